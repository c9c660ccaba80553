# SPDX-License-Identifier: Apache-2.0
"""Several publishers of one version: with the same bytes all are sources, with other bytes the
first stays what it was and the later one is told."""

from cluster import cluster, expect_error, main, wait_for

MIB = 1 << 20
SIZE = 24 * MIB
EV_VERSION_CONFLICT = 2
LIST_GROUP = 1


def shard(c, label, agent, replica=None, size=SIZE, **opts):
    worker = c.worker(label, agent)
    worker.setup(size, model="m", replica=replica or label, **opts)
    return worker


def listed(w, version=1):
    for _, number, replicas in w.call("list")["versions"]:
        if number == version:
            return sorted(r["name"] for r in replicas)
    return []


def wait_conflict(w):
    seen = []
    wait_for(lambda: seen.append(w.call("events")) or seen[-1], 30, "the event")
    assert seen[-1] == EV_VERSION_CONFLICT, seen
    assert w.call("events") == 0, "an event is told once"


def each(workers, cmd, **args):
    ids = [(w, w.start(cmd, **args)) for w in workers]
    return [w.finish(i) for w, i in ids]


def the_same_bytes():
    with cluster() as c:
        for name in "abc":
            c.agent(name)
        w1, w2, r = shard(c, "w1", "a"), shard(c, "w2", "b"), shard(c, "r", "c")
        want = w1.call("fill", seed=1)
        assert w2.call("fill", seed=1) == want
        ids = [(w, w.start("publish", version=1)) for w in (w1, w2)]
        # At once: it gets what was published first, while nobody knows yet whether it is the same.
        result = r.start("replicate", version="1")
        for w, i in ids:
            w.finish(i)
        r.finish(result)
        assert r.call("digest") == want
        wait_for(lambda: listed(r) == ["r", "w1", "w2"], 30, "all three are sources")
        # Either of the two may go.
        w1.kill()
        r.call("unpublish")
        wait_for(lambda: listed(r) == ["w2"], 30, "the second goes on alone")
        r.call("replicate", version="1")
        assert r.call("digest") == want
        assert w2.call("events") == 0


def other_bytes():
    with cluster() as c:
        for name in "abc":
            c.agent(name)
        w1, w2, r = shard(c, "w1", "a"), shard(c, "w2", "b"), shard(c, "r", "c")
        want = w1.call("fill", seed=1)
        w2.call("fill", seed=2)
        w1.call("publish", version=1)
        w2.call("publish", version=1)
        r.call("replicate", version="1")
        assert r.call("digest") == want, "the bytes of the first"
        wait_conflict(w2)
        assert listed(r) == ["r", "w1"]
        error = expect_error("VERSION_CONFLICT", w2.call, "inside", verb="unpublish", argument=0)
        print(f"  {error.text}")
        assert "w1" in error.text and "w2" in error.text, error.text
        # Once: then it can go on. The first has not noticed anything.
        w2.call("unpublish")
        assert w2.call("safe") == 1
        w2.call("publish", version=2)
        wait_for(lambda: listed(r, 2) == ["w2"], 30, "under another number it is listed")
        assert w1.call("events") == 0
        assert w1.call("held") == [0, 1]
        w1.call("unpublish")
        # When all copies of the first have gone other bytes are another version 1.
        r.call("unpublish")
        want = w1.call("fill", seed=3)
        w1.call("publish", version=1)
        r.call("replicate", version="1")
        assert r.call("digest") == want


def a_replica_keeps_the_version_what_it_is():
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        w, r = shard(c, "w", "a"), shard(c, "r", "b")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        r.call("replicate", version="1")
        w.call("unpublish")
        w.call("fill", seed=2)
        w.call("publish", version=1)
        wait_conflict(w)
        # update takes what is listed in place of what is not.
        for verb, version in (("update", "latest"), ("replicate", "1")):
            expect_error("VERSION_CONFLICT", w.call, "inside", verb=verb, argument=version)
        assert w.call("update", version="latest")["updated"] == 1
        assert w.call("digest") == want
        assert listed(r) == ["r", "w"]


def groups_of_two_shards():
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        groups = [
            [shard(c, f"{label}{i}", "a", label, shard=i, num_shards=2) for i in range(2)]
            for label in ("t1", "t2", "t3")
        ]
        readers = [shard(c, f"r{i}", "b", "r", shard=i, num_shards=2) for i in range(2)]
        want = []
        for number, group in enumerate(groups):
            for i, w in enumerate(group):
                # The third group differs in its second shard.
                digest = w.call("fill", seed=99 if (number, i) == (2, 1) else i)
                if number == 0:
                    want.append(digest)
            each(group, "publish", version=1)
        each(readers, "replicate", version="1")
        assert each(readers, "digest") == want
        for w in groups[2]:
            wait_conflict(w)
        wait_for(lambda: listed(readers[0]) == ["r", "t1", "t2"], 30, "the equal ones")
        ids = [(w, w.start("inside", verb="list", argument=LIST_GROUP)) for w in groups[2]]
        for w, i in ids:
            error = expect_error("VERSION_CONFLICT", w.finish, i)
            assert "shard 1" in error.text, error.text
        each(groups[2], "unpublish")
        for w in [*groups[0], *groups[1]]:
            assert w.call("events") == 0
        each(groups[0], "unpublish")
        each(groups[1], "unpublish")


def without_digests_nobody_can_tell():
    with cluster() as c:
        for name in "ab":
            c.agent(name, args=["--verify", "off"])
        w1, w2 = shard(c, "w1", "a"), shard(c, "w2", "b")
        w1.call("fill", seed=1)
        w2.call("fill", seed=2)
        w1.call("publish", version=1)
        w2.call("publish", version=1)
        wait_for(lambda: listed(w1) == ["w1", "w2"], 30, "both are listed")
        assert w2.call("events") == 0


if __name__ == "__main__":
    main(
        the_same_bytes,
        other_bytes,
        a_replica_keeps_the_version_what_it_is,
        groups_of_two_shards,
        without_digests_nobody_can_tell,
    )
