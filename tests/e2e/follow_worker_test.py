# SPDX-License-Identifier: Apache-2.0
"""Workers that follow: the agent brings each version for which somebody says go into their tensors,
and what a worker reads at both ends of a batch tells whether its weights have changed under it."""

import signal

from cluster import cluster, expect_error, main, wait_for

SIZE = 8 << 20
MANY = 100
UPDATED, FAILED = 128, 256


def trainer(c, agent):
    w = c.worker("trainer", agent)
    w.setup(SIZE, model="m", replica="trainer")
    return w


def follower(c, label, agent, **opts):
    r = c.worker(label, agent)
    r.setup(SIZE, model="m", replica=label, **opts)
    r.call("follow_versions")
    return r


def with_memory(c, label, agent, **how):
    """A reader whose one tensor lies in memory of this kind."""
    r = c.worker(label, agent)
    r.call("open", model="m", replica=label)
    r.call("alloc", total_bytes=SIZE, **how)
    r.call("register")
    return r


def publish(w, version, go=True):
    """Every 8 bytes of it are its number."""
    w.call("fill_words", word=version)
    w.call("publish", version=version)
    if go:
        w.call("go", version=version)


def next_version(w, version, go=True):
    w.call("unpublish")
    publish(w, version, go)


def has(r, version):
    """It holds this one, and all its bytes; which events came before it did."""
    held, seen = r.call("await_held", version=version)
    assert held == version, (held, version)
    r.call("truth_start")
    truth = r.call("truth_end", polls=4096)
    assert truth["error"] is None and truth["held"], truth
    return seen


def a_hundred_versions_come_by_themselves():
    """One on the trainer's host, one on another. They read their tensors all the time and call
    nothing: at no moment are the bytes others than those of the version held."""
    with cluster() as c:
        for label in "ab":
            c.agent(label)
        w = trainer(c, "a")
        readers = [c.worker(label, agent) for label, agent in (("near", "a"), ("far", "b"))]
        for r in readers:
            r.setup(SIZE, model="m", replica=r.label)
        calls = [r.start("follow_versions") for r in readers]
        for r, call in zip(readers, calls):
            r.finish(call)
            r.call("truth_start")
        for version in range(1, MANY + 1):
            publish(w, version) if version == 1 else next_version(w, version)
            for r in readers:
                held, seen = r.call("await_held", version=version)
                assert held == version and seen & UPDATED, (held, seen)
        for r in readers:
            truth = r.call("truth_end", polls=10)
            assert truth["error"] is None and truth["held"] > 0, truth
            assert r.call("safe") is False
            # Whoever follows no more keeps what he has.
            r.call("follow_versions", version=None)
        next_version(w, MANY + 1)
        for r in readers:
            assert r.call("held")[1] == MANY
            assert r.call("update")["version"] == MANY + 1
            has(r, MANY + 1)


def a_group_takes_a_version_together():
    with cluster() as c:
        for label in "ab":
            c.agent(label)
        both = [("x", 0, "a"), ("y", 1, "b")]
        w = [c.worker(f"w{label}", agent) for label, _, agent in both]
        r = [c.worker(f"r{label}", agent) for label, _, agent in both]
        for side, replica in ((w, "trainer"), (r, "rollout")):
            for worker, (_, shard, _) in zip(side, both):
                worker.setup(SIZE, model="m", replica=replica, shard=shard, num_shards=2)
        together(r, "follow_versions")
        for version in range(1, 6):
            if version > 1:
                together(w, "unpublish")
            together(w, "fill_words", word=version)
            together(w, "publish", version=version)
            w[0].call("go", version=version)
            for worker in r:
                has(worker, version)


def together(workers, cmd, **args):
    calls = [worker.start(cmd, **args) for worker in workers]
    return [worker.finish(call) for worker, call in zip(workers, calls)]


def nothing_comes_without_go():
    """And what an operator says counts as well; the mark does not fall."""
    with cluster() as c:
        for label in "ab":
            c.agent(label)
        w, r = trainer(c, "a"), follower(c, "r", "b")
        publish(w, 5)
        has(r, 5)
        next_version(w, 6, go=False)
        error = expect_error("NOT_AVAILABLE", w.call, "go", version=7)
        assert "ls versions m" in error.text, error.text
        # An own call needs no go.
        assert r.call("update")["version"] == 6
        next_version(w, 7, go=False)
        assert r.call("held")[1] == 6
        c.thctl("go", "m", "7", agent="b")
        has(r, 7)
        next_version(w, 3)
        assert r.call("held")[1] == 7


def who_may_say_go():
    with cluster() as c:
        c.agent("a")
        w, observer, bare = trainer(c, "a"), c.worker("o", "a"), c.worker("n", "a")
        publish(w, 1, go=False)
        observer.call("open", model="m")
        error = expect_error("STATE", observer.call, "go", version=1)
        assert "observer" in error.text, error.text
        bare.call("open", model="m", replica="n")
        error = expect_error("DENIED", bare.call, "go", version=1)
        assert "registered no tensors" in error.text, error.text
        expect_error("STATE", bare.call, "follow_versions")
        w.call("go", version=1)


def memory_that_cannot_be_followed():
    """Copied by the worker, reached by its address, or only to be read: with the tensor's name."""
    with cluster(has_gpus=True) as c:
        c.agent("a")
        w = trainer(c, "a")
        for label, how in (
            ("copied", {"gpu": "closed"}),
            ("private", {"kind": "Malloc"}),
        ):
            r = with_memory(c, label, "a", **how)
            error = expect_error("MEMORY_KIND", r.call, "follow_versions")
            assert "follow: tensor '" in error.text and "thc_update" in error.text, error.text
        r = with_memory(c, "gpu", "a", gpu="legacy")
        r.call("follow_versions")
        publish(w, 1)
        has(r, 1)


def bytes_of_a_follower_are_no_others():
    """As long as it follows, they are a destination: nobody on its host publishes them."""
    with cluster() as c:
        c.agent("a")
        r = follower(c, "r", "a")
        r.call("open", model="m", replica="other", name="t")
        r.call("register", name="t", memory="s")
        error = expect_error("INVALID", r.call, "publish", version=1, name="t")
        assert "m/r/0" in error.text and "follows" in error.text, error.text
        expect_error("STATE", r.call, "unregister")
        r.call("follow_versions", version=None)
        r.call("publish", version=1, name="t")
        error = expect_error("INVALID", r.call, "follow_versions")
        assert "m/other/0" in error.text, error.text
        r.call("unpublish", name="t")
        r.call("follow_versions")


def own_calls_before_go():
    """They come first, and cancel what the server has begun, or find it done: either way the handle
    is as they say."""
    with cluster() as c:
        for label in "ab":
            c.agent(label)
        w, r = trainer(c, "a"), follower(c, "r", "b")
        publish(w, 1)
        has(r, 1)
        for version in range(2, 32):
            next_version(w, version, go=False)
            said = w.start("go", version=version)
            updated = r.call("update")
            w.finish(said)
            assert updated["version"] == version, updated
            has(r, version)
        next_version(w, 40, go=False)
        said = w.start("go", version=40)
        r.call("unpublish", scribble=0x5A)
        w.finish(said)
        # Unpublish ends it.
        assert r.call("held") is None and r.call("safe") is True
        r.call("fill_words", word=41)
        r.call("publish", version=41)
        has(r, 41)


def own_calls_after_go():
    """They wait for its end. The source's agent stands still, so that GO is said and no byte comes:
    then the handle holds nothing."""
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        w = trainer(c, "a")
        publish(w, 1)
        for version, cmd in ((2, "update"), (3, "unpublish"), (4, "close")):
            r = follower(c, f"r{version}", "b")
            has(r, version - 1)
            next_version(w, version, go=False)
            a.signal(signal.SIGSTOP)
            c.thctl("-s", c.server_url, "go", "m", str(version))
            wait_for(lambda: r.call("held") is None, 60, "GO is said")
            expect_error("STATE", r.call, "publish", version=99)
            call = r.start(cmd, timeout=60)
            a.signal(signal.SIGCONT)
            r.finish(call)
            if cmd == "update":
                has(r, version)
                r.call("unpublish")
            if cmd != "close":
                assert r.call("held") is None and r.call("safe") is True
                r.call("close")


def members_that_do_not_agree():
    with cluster() as c:
        c.agent("a")
        x, y = c.worker("x", "a"), c.worker("y", "a")
        for shard, r in enumerate((x, y)):
            r.setup(SIZE, model="m", replica="r", shard=shard, num_shards=2)
        x.call("submit", timeout=60)
        wait_for(lambda: "version" in x.call("op_waits"), 60, "the server has its call")
        error = expect_error("GROUP_MISMATCH", y.call, "follow_versions", timeout=60)
        assert "replicate" in error.text, error.text
        expect_error("GROUP_MISMATCH", x.call, "op_wait")
        expect_error("TIMEOUT", x.call, "follow_versions", timeout=1)
        y.kill()
        expect_error("GROUP_BROKEN", x.call, "follow_versions", timeout=60)
        z = follower(c, "z", "a")
        c.thctl("evict", "--model", "m", "--replica", "z", "--yes", agent="a")
        expect_error("EVICTED", z.call, "follow_versions", timeout=60)


def pages_are_taken_out():
    """The agent does not pay for them: it fails with an event and the sentence, and goes on when
    they are there again."""
    with cluster() as c:
        for label in "ab":
            c.agent(label)
        w = trainer(c, "a")
        r = with_memory(c, "r", "b", kind="sealed")
        r.call("follow_versions")
        publish(w, 1)
        has(r, 1)
        r.call("punch")
        next_version(w, 2)

        def told():
            texts = c.thctl("-s", c.server_url, "events").stdout
            return "could not follow to version 2" in texts and "has no pages" in texts

        wait_for(told, 60, "why it cannot")
        wait_for(lambda: r.call("events") & FAILED, 60, "the event")
        assert r.call("held") is None
        r.call("scribble", byte=0)
        has(r, 2)
        r.call("follow_versions", version=None)
        r.call("unpublish")
        r.call("punch")
        expect_error("STALE_MEMORY", r.call, "follow_versions")


def server_and_agent_end():
    """The next server knows the mark and who follows; an agent's end is the handle's."""
    with cluster() as c:
        c.agent("a")
        b = c.agent("b")
        w, r = trainer(c, "a"), follower(c, "r", "b")
        publish(w, 1)
        has(r, 1)
        listen = c.server_url
        c.server.kill()
        wait_for(
            lambda: c.thctl("status", agent="b", check=False).returncode != 0,
            60,
            "the agent misses its server",
        )
        expect_error("NO_SERVER", r.call, "follow_versions", timeout=0)
        expect_error("NO_SERVER", r.call, "go", version=1)
        assert r.call("held")[1] == 1
        c.start_server(listen=listen)
        w.call("unpublish", timeout=30)
        w.call("fill_words", word=2)
        w.call("publish", version=2, timeout=30)
        wait_for(lambda: said(w, 2), 60, "the new server knows all")
        has(r, 2)
        b.kill()
        expect_error("AGENT_LOST", r.call, "follow_versions", version=None)
        assert r.call("events") & 16
        c.agent("b", runtime=b.runtime)
        again = follower(c, "again", "b")
        has(again, 2)
        next_version(w, 3)
        has(again, 3)


def said(w, version):
    try:
        w.call("go", version=version)
    except Exception as e:
        if getattr(e, "name", None) != "NO_SERVER":
            raise
        return False
    return True


if __name__ == "__main__":
    main(
        a_hundred_versions_come_by_themselves,
        a_group_takes_a_version_together,
        nothing_comes_without_go,
        who_may_say_go,
        memory_that_cannot_be_followed,
        bytes_of_a_follower_are_no_others,
        own_calls_before_go,
        own_calls_after_go,
        members_that_do_not_agree,
        pages_are_taken_out,
        server_and_agent_end,
    )
