# SPDX-License-Identifier: Apache-2.0
"""How long the calls take that move little or nothing: one trainer and one rollout at two agents.

TH_BUILD=build python3 tests/bench/latency.py prints the median and the 99th percentile of 300
rounds. A measurement, not a test.
"""

import os
import sys
import time

os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import thc
from cluster import cluster

ROUNDS = 300
SIZE = 1 << 20


def member(c, agent, replica):
    memory = thc.Memory(SIZE)
    shard = thc.Shard("m", replica, agent=c.agents[agent].runtime)
    shard.register([thc.tensor("w", memory.address, [SIZE])])
    return shard


def main():
    taken = {}

    def timed(name, call, *args):
        begin = time.perf_counter()
        result = call(*args)
        taken.setdefault(name, []).append(time.perf_counter() - begin)
        return result

    with cluster() as c:
        c.agent("a")
        c.agent("b")
        trainer, rollout = member(c, "a", "trainer"), member(c, "b", "rollout")
        for version in range(1, ROUNDS + 1):
            timed("publish", trainer.publish, version)
            assert timed("update, 1 MiB by tcp", rollout.update)["updated"]
            assert not timed("update, nothing new", rollout.update)["updated"]
            timed("unpublish", trainer.unpublish)
        rollout.close()
        trainer.close()
    for name, seconds in taken.items():
        seconds.sort()
        middle, late = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
        print(f"{name:22} p50 {middle * 1e3:.3f} ms  p99 {late * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
