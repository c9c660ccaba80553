# SPDX-License-Identifier: Apache-2.0
"""What the operations of a group cost its members, for groups of 1, 8 and 64.

TH_BUILD=build python3 tests/bench/group.py [SIZE...] prints medians of 100 rounds: a trainer group
at one agent, a reader group at another, 64 KiB a member, one thread that drives all members. A
measurement, not a test.
"""

import os
import subprocess
import sys

os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import cluster

ROUNDS = 100
NAMES = (
    "publish, all members",
    "update, nothing new, one member",
    "update, nothing new, all members",
    "update, last call to GO",
    "update, first call to last return",
    "unpublish, all members",
)


def main():
    sizes = sys.argv[1:] or ["1", "8", "64"]
    program = os.path.join(os.environ["TH_BUILD"], "tests", "bench", "group_members")
    with cluster() as c:
        agents = [c.agent("a").runtime, c.agent("b").runtime]
        out = subprocess.run(
            [program, str(ROUNDS), *agents, *sizes], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    rows = [[float(word) for word in line.split()] for line in out.splitlines()]
    print(f"{'members':34}" + "".join(f"{int(row[0]):11}" for row in rows))
    for i, name in enumerate(NAMES):
        print(f"{name:34}" + "".join(f"{row[i + 1] / 1e3:8.2f} ms" for row in rows))


if __name__ == "__main__":
    main()
