# SPDX-License-Identifier: Apache-2.0
"""A reader whose source dies goes on at another one, from where it was."""

import time

from cluster import Hosts, cluster, expect_error, main

SIZE = 160 << 20


def the_source_dies_at_half():
    for victim in ("worker", "agent"):
        with cluster(server=False) as c:
            hosts = Hosts(c, 3)
            c.start_server(listen=f"tcp://{hosts.address(2)}:0", prefix=hosts.prefix(2))
            for i, name in enumerate("abr"):
                c.agent(name, prefix=hosts.prefix(i), data=hosts.address(i))
            first, second, r = c.worker("first", "a"), c.worker("second", "b"), c.worker("r", "r")
            want = None
            for w, name in ((first, "first"), (second, "second")):
                w.setup(SIZE, model="m", replica=name)
                want = w.call("fill", seed=1)
            first.call("publish", version=1)
            r.setup(SIZE, model="m", replica="r")
            hosts.limit(2, "400mbit")
            before = hosts.received_bytes(2)
            r.call("submit", version="1", timeout=60)
            while r.call("progress")[0] < SIZE * 0.4:
                time.sleep(0.005)
            # The rest takes longer than whatever is done meanwhile.
            hosts.limit(2, "16mbit")
            second.call("publish", version=1)
            (first if victim == "worker" else c.agents["a"]).kill()
            hosts.limit(2, "2400mbit")
            result = r.call("op_wait", timeout=60)
            after = hosts.received_bytes(2)
            assert r.call("digest") == want
            if victim == "agent":
                assert result["source"] == "second", result
            # A dead worker's memory is still mapped by its agent: its readers may finish there.
            ratio = result["bytes_moved"] / SIZE
            wire = (after - before) / SIZE
            print(
                f"  {victim} killed: moved {ratio:.3f} x the shard's size, {wire:.3f} on the wire, "
                f"source {result['source']}"
            )
            assert ratio <= 1.05, ratio
            assert wire >= 1.0, wire


def the_only_source_dies():
    with cluster() as c:
        size = 64 << 20
        c.agent("a", args=["-o", f"rate.out={size}"])
        c.agent("b")
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(size, model="m", replica="w")
        r.setup(size, model="m", replica="r")
        w.call("publish", version=1)
        r.call("submit", version="1", timeout=60)
        while r.call("progress")[0] < size // 20:
            time.sleep(0.002)
        c.agents["a"].kill()
        error = expect_error("VERSION_LOST", r.call, "op_wait", timeout=60)
        print(f"  {error.text}")
        assert r.call("held") is None
        expect_error("DIRTY", r.call, "publish", version=2)
        expect_error("DIRTY", r.call, "update")
        again = c.worker("again", "b")
        again.setup(size, model="m", replica="again")
        again.call("publish", version=1)
        assert r.call("replicate", version="1")["version"] == 1, "replicate cleans a dirty handle"
        assert r.call("held") == [0, 1]


if __name__ == "__main__":
    main(the_source_dies_at_half, the_only_source_dies)
