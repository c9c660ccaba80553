# SPDX-License-Identifier: Apache-2.0
"""What the transfers of a run cost, as a table and a picture: figure.py REPORT PICTURE.svg

REPORT is that of train.py with several of --transfer. The first step of each is left out: memory is
made in it, and connections.
"""

import json
import statistics
import sys

WHAT = {
    "trainer": "the trainer stands for",
    "rollouts": "a rollout stands for",
    "ready": "all have the weights after",
}
COLOURS = {"tensorhub": "#2050a0", "files": "#b03030", "gloo": "#308050"}
WIDTH, HEIGHT, LEFT, TOP = 640, 320, 60, 30


def seconds_of(rows: "list[dict]") -> "dict[str, dict[str, list[float]]]":
    """{what: {transfer: seconds}}"""
    found: "dict[str, dict[str, list[float]]]" = {what: {} for what in WHAT}
    seen = set()
    for row in rows:
        if row["transfer"] in seen:
            for what in WHAT:
                one = row[what]
                many = list(one.values()) if isinstance(one, dict) else [one]
                found[what].setdefault(row["transfer"], []).extend(many)
        seen.add(row["transfer"])
    return found


def table(found: "dict[str, dict[str, list[float]]]") -> str:
    lines = ["| | " + " | ".join(WHAT.values()) + " |", "|---" * (len(WHAT) + 1) + "|"]
    for transfer in found["ready"]:
        cells = []
        for what in WHAT:
            low, middle, high = statistics.quantiles(found[what][transfer], n=4)
            cells.append(f"{middle:.2f} s ({low:.2f} to {high:.2f})")
        lines.append(f"| {transfer} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(found: "dict[str, dict[str, list[float]]]") -> str:
    """A point for each measurement, a line at each median."""
    most = max(max(values) for of in found.values() for values in of.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]

    def y(value: float) -> float:
        return HEIGHT - TOP - (HEIGHT - 2 * TOP) * value / most

    def text(x: float, y: float, words: str, colour: str = "black", anchor: str = "middle") -> None:
        parts.append(
            f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'
        )

    for tick in range(5):
        value = most * tick / 4
        parts.append(
            f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - 10}" stroke="#dddddd"/>'
        )
        text(LEFT - 6, y(value) + 4, f"{value:.2f} s", anchor="end")
    for i, (what, of) in enumerate(found.items()):
        width = (WIDTH - LEFT - 10) / len(found)
        text(LEFT + width * (i + 0.5), HEIGHT - 10, WHAT[what])
        for j, (transfer, values) in enumerate(of.items()):
            slot = width / (len(of) + 1)
            x, colour = LEFT + width * i + slot * (j + 1), COLOURS[transfer]
            for k, value in enumerate(values):
                at = x + slot * 0.5 * (k * 0.618 % 1 - 0.5)
                parts.append(
                    f'<circle cx="{at:.1f}" cy="{y(value):.1f}" r="2.5" fill="{colour}" '
                    'fill-opacity="0.5"/>'
                )
            middle = y(statistics.median(values))
            line = f"M{x - slot * 0.4:.1f} {middle:.1f}h{slot * 0.8:.1f}"
            parts.append(f'<path d="{line}" stroke="{colour}" stroke-width="2"/>')
            if i == 0:
                text(LEFT + 80 * (j + 1), TOP / 2, transfer, colour)
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        found = seconds_of([json.loads(line) for line in file])
    print(table(found))
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(picture(found))


if __name__ == "__main__":
    main()
