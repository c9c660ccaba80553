# SPDX-License-Identifier: Apache-2.0
"""What crosses the network when one of a hundred chunks has changed.

TH_BUILD=build python3 tests/bench/donor.py [ROUNDS [CHUNKS]] publishes ROUNDS (10) versions of
CHUNKS (200) chunks of 4 MiB, of which each differs from the first one by one of a hundred. The
agent of another host, where a worker holds the first one, fetches each into its own memory. Prints
the bytes that came, and how long it took from unpublish to its end, which waits for that, against
the first version, of which nothing was there. A measurement, not a test.
"""

import json
import os
import statistics
import sys
import time

os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import cluster

CHUNK = 4 << 20
PATIENT = 60


def joins(c, label, agent, count, **opts):
    w = c.worker(label, agent)
    w.call("open", model="m", replica=label, **opts)
    w.call("alloc_even", total_bytes=count * CHUNK, count=count)
    w.call("register")
    return w


def counter(c, name):
    status = json.loads(c.thctl("-o", "json", "status", agent="b").stdout)
    return next(row["value"] for row in status["counters"] if row["name"] == name)


def keeps(c, w, version):
    """Published and unpublished: the other host fetches it. Bytes that came, and seconds."""
    w.call("publish", version=version)
    before = counter(c, "bytes_in")
    start = time.monotonic()
    w.call("unpublish", timeout=PATIENT)
    seconds = time.monotonic() - start
    return counter(c, "bytes_in") - before, seconds


def line(what, rounds, size):
    came = [b for b, _ in rounds]
    took = [s for _, s in rounds]
    print(
        f"{what:32} fetched {100 * statistics.median(came) / size:6.2f} % "
        f"({100 * min(came) / size:.2f} to {100 * max(came) / size:.2f}), "
        f"{statistics.median(took):.3f} s ({min(took):.3f} to {max(took):.3f})",
        flush=True,
    )


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    size = count * CHUNK
    with cluster() as c:
        c.agent("a", args=["--offload-limit", "0"])
        c.agent("b")
        w = joins(c, "trainer", "a", count, retain="latest")
        r = joins(c, "rollout", "b", count)
        w.call("fill", seed=1)
        line("nothing of it was there", [keeps(c, w, 1)], size)
        r.call("replicate", version="1")
        found = []
        for version in range(2, rounds + 2):
            for row in range(0, count, 100):
                w.call("flip", offset=row * CHUNK + version)
            found.append(keeps(c, w, version))
        line("1 of 100 chunks has changed", found, size)


if __name__ == "__main__":
    main()
