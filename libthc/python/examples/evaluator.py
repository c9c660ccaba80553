# SPDX-License-Identifier: Apache-2.0
"""An evaluator that borrows: it reads each version where the agent has it, and has no copy.

    python evaluator.py --last 4

Start as many as the host has processors: the agent keeps each version once for all of them, and as
long as one of them reads it, whatever the trainer publishes meanwhile.
"""

import argparse

import tensorhub as th


def score(weights: th.Borrowed) -> float:
    """Stands for an evaluation: looks whether all weights are of one version."""
    layer = weights["layer.0.weight"]
    assert set(layer) == {weights.version}
    return float(layer[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="example")
    parser.add_argument("--last", type=int, default=4, help="the version to end with")
    args = parser.parse_args()
    seen = 0
    with th.watch(args.model) as w:
        while seen < args.last:
            w.wait(lambda versions: (versions.latest or 0) > seen)
            try:
                with w.borrow("latest") as weights:
                    print(f"version {weights.version} scores {score(weights):.1f}", flush=True)
                    seen = weights.version
            except (th.NotAvailable, th.VersionLost):
                pass  # it went before all of it was here: there is a newer one, or soon will be


if __name__ == "__main__":
    main()
