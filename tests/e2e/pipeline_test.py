# SPDX-License-Identifier: Apache-2.0
"""A partial replica is a source: the second reader reads from the first while that one is still
receiving."""

import time

from cluster import Hosts, cluster, main

SIZE = 100 << 20
RATE = "400mbit"  # 50 MB/s


def a_chain_of_two():
    with cluster(server=False) as c:
        hosts = Hosts(c, 3)
        c.start_server(listen=f"tcp://{hosts.address(0)}:0", prefix=hosts.prefix(0))
        for i, name in enumerate(("source", "first", "second")):
            c.agent(name, prefix=hosts.prefix(i), data=hosts.address(i))
        hosts.limit(1, RATE)
        w = c.worker("w", "source")
        w.setup(SIZE, model="m", replica="w")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)

        alone = c.worker("alone", "first")
        alone.setup(SIZE, model="m", replica="alone")
        start = time.monotonic()
        alone.call("replicate", version="1", timeout=60)
        single = time.monotonic() - start
        alone.call("unpublish")
        alone.call("close")

        first, second = c.worker("f", "first"), c.worker("s", "second")
        first.setup(SIZE, model="m", replica="f")
        second.setup(SIZE, model="m", replica="s")
        start = time.monotonic()
        first.call("submit", version="1", timeout=60)
        while first.call("progress")[0] == 0:
            time.sleep(0.005)
        second.call("submit", version="1", timeout=60)
        at = None
        while True:
            mine, theirs = second.call("progress")[0], first.call("progress")[0]
            if mine:
                at = theirs / SIZE
                break
            assert theirs < SIZE, "the first is complete and the second has nothing"
        results = [r.call("op_wait", timeout=60) for r in (first, second)]
        both = time.monotonic() - start
        assert results[1]["source"] == "f", f"the second read from {results[1]['source']}"
        assert first.call("digest") == second.call("digest") == want
        print(
            f"  one transfer {single:.2f} s, two in a chain {both:.2f} s ({both / single:.3f} x), "
            f"the second had bytes when the first had {at:.0%}"
        )
        assert at < 0.6, at
        assert both <= 1.25 * single, (both, single)


if __name__ == "__main__":
    main(a_chain_of_two)
