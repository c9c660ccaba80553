# SPDX-License-Identifier: Apache-2.0
"""Chunks that did not change do not cross the network again: an agent that fetches a version into
its own memory copies them from another version that its host holds."""

import json

from cluster import cluster, main, wait_for

CHUNK = 4 << 20  # each row is one
ROWS = 20
SIZE = ROWS * CHUNK


def counters(c, agent):
    status = json.loads(c.thctl("-o", "json", "status", agent=agent).stdout)
    return {row["name"]: row["value"] for row in status["counters"]}


def change(w, *rows):
    for row in rows:
        w.call("flip", offset=row * CHUNK + 4321)


def joins(c, label, agent, **opts):
    w = c.worker(label, agent)
    w.call("open", model="m", replica=label, **opts)
    w.call("alloc_even", total_bytes=SIZE, count=ROWS)
    w.call("register")
    return w


def hosts(c):
    """A trainer whose host keeps nothing, and a rollout on one that keeps what is retained."""
    c.agent("a", args=["--offload-limit", "0"])
    c.agent("b")
    w, r = joins(c, "trainer", "a", retain="latest"), joins(c, "rollout", "b")
    w.call("fill", seed=1)
    w.call("publish", version=1)
    assert r.call("replicate", version="1")["bytes_moved"] == SIZE
    w.call("unpublish")
    return w, r


def kept(c, w, version, rows):
    """The trainer changes these rows, publishes and unpublishes, for which the agent of the rollout
    fetches the version. Returns what crossed the network, and what did not."""
    change(w, *rows)
    want = w.call("digest")
    w.call("publish", version=version)
    before, source = counters(c, "b"), counters(c, "a")
    w.call("unpublish")
    after = counters(c, "b")
    fetched = after["bytes_in"] - before["bytes_in"]
    assert counters(c, "a")["bytes_out"] - source["bytes_out"] == fetched
    assert after["donor_failures"] == 0
    return want, fetched, after["bytes_donated"] - before["bytes_donated"]


def compared(c, label, version, want):
    """What is kept is the version, byte for byte, for a reader of another host as well."""
    reader = joins(c, label, "a")
    assert reader.call("replicate", version=str(version))["version"] == version
    assert reader.call("digest") == want
    reader.call("unpublish")
    reader.call("close")


def what_changed_is_fetched():
    """The rollout goes on with version 1; of each later one a row more differs from that. The copy
    before is the donor while it is there, else the rollout's tensors are."""
    with cluster() as c:
        w, r = hosts(c)
        for version in range(2, 6):
            want, fetched, donated = kept(c, w, version, [version])
            assert CHUNK <= fetched <= (version - 1) * CHUNK, (version, fetched)
            assert fetched + donated == SIZE, (version, fetched, donated)
            compared(c, f"reader{version}", version, want)
        assert r.call("held") == [0, 1]
        # The donor is let go when its worker wants it, with nothing under way at once.
        r.call("unpublish", scribble=0x5A)
        assert "donated=76.0MiB" in c.agents["b"].tail(1000), c.agents["b"].tail(1000)


def nothing_is_held():
    """Then all of it is fetched."""
    with cluster() as c:
        w, r = hosts(c)
        r.call("unpublish")
        want, fetched, donated = kept(c, w, 2, [3])
        assert (fetched, donated) == (SIZE, 0)
        compared(c, "reader", 2, want)


def the_donor_is_unpublished_meanwhile():
    """Its worker overwrites it the moment unpublish has returned; what is kept is right, whenever
    that was."""
    with cluster() as c:
        w, r = hosts(c)
        for version in range(2, 8):
            change(w, version)
            want = w.call("digest")
            w.call("publish", version=version)
            keeps = w.start("unpublish")
            gives = r.start("unpublish", scribble=version)
            r.finish(gives)
            w.finish(keeps)
            assert counters(c, "b")["donor_failures"] == 0
            assert r.call("replicate", version=str(version))["version"] == version
            assert r.call("digest") == want
        w.call("close")
        r.call("close")
        wait_for(lambda: not sessions(c), 60, "nothing is kept any more")


def what_is_prefetched():
    """The agent of a rollout brings each version while the rollout holds the one before: of 20 rows
    one crosses the network."""
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        w, r = joins(c, "trainer", "a"), joins(c, "rollout", "b", prefetch=True)
        w.call("fill", seed=1)
        w.call("publish", version=1)
        assert r.call("replicate", version="1")["bytes_moved"] == SIZE
        for version in range(2, 6):
            w.call("unpublish")
            change(w, version)
            want = w.call("digest")
            before = counters(c, "b")
            w.call("publish", version=version)
            wait_for(lambda: r.call("update")["updated"] == 1, 60, "it is whole here")
            after = counters(c, "b")
            assert after["bytes_in"] - before["bytes_in"] == CHUNK
            assert after["bytes_donated"] - before["bytes_donated"] == SIZE - CHUNK
            assert r.call("held") == [0, version] and r.call("digest") == want


def sessions(c):
    return json.loads(c.thctl("-o", "json", "status", agent="b").stdout)["sessions"]


if __name__ == "__main__":
    main(
        what_changed_is_fetched,
        nothing_is_held,
        the_donor_is_unpublished_meanwhile,
        what_is_prefetched,
    )
