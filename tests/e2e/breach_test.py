# SPDX-License-Identifier: Apache-2.0
"""A worker that writes to what it has published: no reader gets such bytes, and the worker is told
by an event and by every later call."""

from cluster import RemoteError, cluster, expect_error, main, wait_for

MIB = 1 << 20
SIZE = 24 * MIB
EV_CONTRACT = 4


def shard(c, label, agent, replica=None, size=SIZE, **opts):
    worker = c.worker(label, agent)
    worker.setup(size, model="m", replica=replica or label, **opts)
    return worker


def check_ended(w, version=2):
    """Everything but close and safe_to_mutate answers CONTRACT; the event is raised once."""
    seen = []
    wait_for(lambda: seen.append(w.call("events")) or seen[-1], 30, "the event")
    assert seen[-1] == EV_CONTRACT, seen
    assert w.call("events") == 0, "an event is told once"
    texts = set()
    for cmd, args in (
        ("publish", {"version": version}),
        ("unpublish", {}),
        ("replicate", {}),
        ("held", {}),
        ("list", {}),
        ("manifest", {}),
        ("unregister", {}),
    ):
        texts.add(expect_error("CONTRACT", w.call, cmd, **args).text)
    assert len(texts) == 1, texts
    text = texts.pop()
    assert "layer." in text and "before unpublish" in text, text
    print(f"  {text}")
    wait_for(lambda: w.call("safe") == 1, 30, "the memory is the worker's again")
    w.call("close")


def refused(r):
    """A replicate from the only source, whose memory was changed."""
    try:
        result = r.call("replicate", version="1")
    except RemoteError as e:
        assert e.name in ("CHECKSUM", "VERSION_LOST"), e
        print(f"  reader: {e}")
    else:
        raise AssertionError(f"replicated from changed memory: {result}")
    assert r.call("held") is None


def published(c, agent, reader_agent):
    """A publisher whose digests are all made: a reader has had them."""
    w = shard(c, "w", agent)
    want = w.call("fill", seed=1)
    w.call("publish", version=1)
    first = shard(c, "first", reader_agent)
    first.call("replicate", version="1")
    assert first.call("digest") == want
    first.call("close")
    return w


def breach(agents):
    with cluster() as c:
        for name in set(agents):
            c.agent(name)
        w = published(c, agents[0], agents[1])
        w.call("flip", offset=SIZE - 1)
        r = shard(c, "r", agents[1])
        refused(r)
        check_ended(w)
        # The name is free again, and what is published now is what arrives.
        again = shard(c, "again", agents[0], replica="w")
        want = again.call("fill", seed=2)
        again.call("publish", version=1)
        r.call("replicate", version="1")
        assert r.call("digest") == want


def over_tcp():
    breach(("a", "b"))


def within_a_host():
    breach(("a", "a"))


def another_source_has_the_bytes():
    with cluster() as c:
        for name in "abc":
            c.agent(name)
        w = published(c, "a", "c")
        good = shard(c, "good", "b")
        good.call("replicate", version="1")
        want = good.call("digest")
        w.call("flip", offset=12 * MIB)
        ended = False
        for i in range(8):
            # It goes now to this one, now to that one.
            r = shard(c, f"r{i}", "c")
            r.call("replicate", version="1")
            assert r.call("digest") == want
            r.call("close")
            ended = w.call("events") == EV_CONTRACT
            if ended:
                break
        assert ended, "nobody has ever read from it"
        error = expect_error("CONTRACT", w.call, "unpublish")
        assert "layer." in error.text
        w.call("close")
        assert good.call("held") == [0, 1]


def a_member_of_a_group():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        trainers = [shard(c, f"w{i}", "a", "w", shard=i, num_shards=2) for i in range(2)]
        first = [shard(c, f"f{i}", "b", "f", shard=i, num_shards=2) for i in range(2)]
        readers = [shard(c, f"r{i}", "b", "r", shard=i, num_shards=2) for i in range(2)]
        for i, w in enumerate(trainers):
            w.call("fill", seed=i)
        for group, cmd, args in (
            (trainers, "publish", {"version": 1}),
            (first, "replicate", {"version": "1"}),
            (first, "unpublish", {}),
        ):
            ids = [(w, w.start(cmd, **args)) for w in group]
            for w, i in ids:
                w.finish(i)
        trainers[1].call("flip", offset=5 * MIB)
        ids = [(r, r.start("replicate", version="1")) for r in readers]
        names = set()
        for r, i in ids:
            try:
                r.finish(i)
                names.add("done")
            except RemoteError as e:
                names.add(e.name)
        assert len(names) == 1 and names <= {"CHECKSUM", "VERSION_LOST"}, names
        check_ended(trainers[1])
        error = expect_error("GROUP_BROKEN", trainers[0].call, "unpublish")
        assert "changed its published memory" in error.text, error.text
        trainers[0].call("close")


def a_replica_that_changes_what_it_serves():
    with cluster() as c:
        for name in "abc":
            c.agent(name)
        w, f, r = shard(c, "w", "a"), shard(c, "f", "b"), shard(c, "r", "c")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        f.call("replicate", version="1")
        w.call("unpublish")
        f.call("flip", offset=9 * MIB)
        refused(r)
        check_ended(f)
        w.call("publish", version=2)
        r.call("replicate", version="2")
        assert r.call("digest") == want


if __name__ == "__main__":
    main(
        over_tcp,
        within_a_host,
        another_source_has_the_bytes,
        a_member_of_a_group,
        a_replica_that_changes_what_it_serves,
    )
