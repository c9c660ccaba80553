# SPDX-License-Identifier: Apache-2.0
"""The life of handles and of memory: how they end, what outlives what, and what is refused."""

import signal

import gpus
from cluster import RemoteError, Skip, cluster, expect_error, main, wait_for

SIZE = 4 << 20
PATIENT = 60


def settles(call, *args, **kwargs):
    """Repeats a call that the cluster may refuse while it has not seen an end yet."""
    last = []

    def once():
        try:
            call(*args, **kwargs)
            return True
        except RemoteError as e:
            last[:] = [f"{e.name}: {e.text}"]
            return False

    try:
        wait_for(once, PATIENT, "the call succeeds")
    except AssertionError as e:
        raise AssertionError(f"{e}; last {last}")


def is_not_freed(worker, **args):
    """Memory of thc_alloc that is registered; of GPU memory nobody asks before it is freed."""
    if not gpus.KIND:
        expect_error("STATE", worker.call, "free", **args)


def opening_twice():
    with cluster() as c:
        c.agent("a")
        w, other = c.worker("w", "a"), c.worker("other", "a")
        w.call("open", model="m", replica="g", shard=0, num_shards=2)
        for worker, name in ((w, "again"), (other, "s")):
            error = expect_error(
                "GROUP_MISMATCH", worker.call, "open", name=name, model="m", replica="g",
                shard=0, num_shards=2,
            )
            assert "open on node a already" in error.text, error.text
        error = expect_error(
            "GROUP_MISMATCH", other.call, "open", model="m", replica="g", shard=1, num_shards=3
        )
        assert "3 shards" in error.text and "with 2" in error.text, error.text
        expect_error(
            "GROUP_MISMATCH", other.call, "open", model="m", replica="g", shard=1, num_shards=2,
            lineage=7,
        )
        # The same shard of another group, and after a close, is nobody else's.
        other.call("open", model="m", replica="h", shard=0, num_shards=2)
        other.call("close")
        w.call("close")
        w.call("open", model="m", replica="g", shard=0, num_shards=3)


def launched_again():
    """What is left of an older launch gives way, and cannot come back."""
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        old = [c.worker("old0", "a"), c.worker("old1", "b")]
        new = [c.worker("new0", "b"), c.worker("new1", "a")]
        group = {"model": "m", "replica": "g", "num_shards": 2}
        for i, w in enumerate(old):
            w.call("open", shard=i, launch_id="job-1", **group)
            w.call("alloc", total_bytes=SIZE)
            w.call("register")
        ids = [w.start("publish", version=1) for w in old]
        for w, ident in zip(old, ids):
            w.finish(ident)
        for i, w in enumerate(new):
            w.call("open", shard=i, launch_id="job-2", **group)
            w.call("alloc", total_bytes=SIZE)
            w.call("register")
        for w in old:
            error = expect_error("GROUP_BROKEN", w.call, "update")
            assert "job-2 replaces launch job-1" in error.text, error.text
            w.call("close")
            expect_error("GROUP_MISMATCH", w.call, "open", shard=0, launch_id="job-1", **group)
        ids = [w.start("publish", version=2) for w in new]
        for w, ident in zip(new, ids):
            w.finish(ident)
        listing = new[0].call("list")
        assert [v[:2] for v in listing["versions"]] == [[0, 2]], listing


def registering():
    with cluster() as c:
        c.agent("a")
        w = c.worker("w", "a")
        w.setup(SIZE, model="m", replica="w")
        expect_error("STATE", w.call, "register")
        w.call("unregister")
        expect_error("STATE", w.call, "unregister")
        expect_error("STATE", w.call, "publish", version=1)
        # Other tensors than before: the half of them, in other memory.
        w.call("alloc", total_bytes=SIZE // 2)
        w.call("register")
        w.call("publish", version=1)
        expect_error("STATE", w.call, "unregister")
        expect_error("STATE", w.call, "register")
        is_not_freed(w)
        w.call("unpublish")
        w.call("unregister")
        w.call("free")
        # While it waits to be filled.
        w.setup(SIZE, model="m", replica="r", name="r")
        w.call("submit", name="r", version="99", timeout=PATIENT)
        expect_error("STATE", w.call, "unregister", name="r")
        is_not_freed(w, name="r")
        w.call("op_cancel", name="r")
        expect_error("CANCELLED", w.call, "op_wait", name="r", timeout=PATIENT)
        w.call("unregister", name="r")
        w.call("free", name="r")


def one_buffer_under_two_handles():
    if gpus.KIND == "closed":
        raise Skip("each handle has a copy of its own of GPU memory that nobody can map")
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(SIZE, model="m", replica="one")
        want = w.call("fill", seed=1)
        w.call("open", name="two", model="m", replica="two")
        w.call("register", name="two", memory="s")
        # Two publishers of the same bytes only read them.
        w.call("publish", version=1)
        w.call("publish", version=1, name="two")
        r.setup(SIZE, model="m", replica="r")
        r.call("replicate", version="1")
        assert r.call("digest") == want
        # As a destination it would be overwritten under the other's readers.
        w.call("unpublish", name="two")
        error = expect_error("INVALID", w.call, "replicate", name="two", version="1")
        assert "m/one/0" in error.text and "published" in error.text, error.text
        expect_error("INVALID", w.call, "update", name="two", version="latest")
        assert w.call("digest") == want and w.call("held") == [0, 1]
        w.call("unpublish")
        assert w.call("replicate", name="two", version="1")["updated"] == 1
        # And what is held there is as if it was published.
        expect_error("INVALID", w.call, "replicate", version="1")
        w.call("publish", version=1)
        w.call("unpublish")
        # Nor is it replaced by two at a time.
        w.call("unpublish", name="two")
        w.call("submit", name="two", version="99", timeout=PATIENT)
        error = expect_error("INVALID", w.call, "replicate", version="1")
        assert "being replaced" in error.text, error.text
        expect_error("INVALID", w.call, "publish", version=5)
        w.call("op_cancel", name="two")
        expect_error("CANCELLED", w.call, "op_wait", name="two", timeout=PATIENT)
        w.call("publish", version=5)


def a_broken_group_opens_again_with_the_same_memory():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        members = [c.worker("w0", "a"), c.worker("w1", "b")]
        for i, w in enumerate(members):
            w.setup(SIZE, model="m", replica="g", shard=i, num_shards=2)
        want = [w.call("fill", seed=i) for i, w in enumerate(members)]
        ids = [w.start("publish", version=1) for w in members]
        for w, ident in zip(members, ids):
            w.finish(ident)
        members[1].kill()
        seen = []
        wait_for(lambda: seen.append(members[0].call("events")) or seen[-1] & 8, PATIENT, "broken")
        # What it held stays until it is closed; nobody is sent to it any more.
        assert members[0].call("held") == [0, 1] and members[0].call("digest") == want[0]
        for cmd, args in (
            ("publish", {"version": 2}), ("unpublish", {}), ("replicate", {}), ("unregister", {}),
        ):
            expect_error("GROUP_BROKEN", members[0].call, cmd, **args)
        members[0].call("close")
        again = [members[0], c.worker("w1b", "b")]
        again[1].call("alloc", total_bytes=SIZE)
        want[1] = again[1].call("fill", seed=1)
        for i, w in enumerate(again):
            settles(w.call, "open", model="m", replica="g", shard=i, num_shards=2)
            w.call("register")
        assert members[0].call("digest") == want[0], "the memory outlived the handle"
        ids = [w.start("publish", version=2) for w in again]
        for w, ident in zip(again, ids):
            w.finish(ident)
        readers = [c.worker(f"r{i}", "b") for i in range(2)]
        for i, r in enumerate(readers):
            r.setup(SIZE, model="m", replica="r", shard=i, num_shards=2)
        ids = [r.start("replicate", version="2") for r in readers]
        for r, ident in zip(readers, ids):
            r.finish(ident)
        assert [r.call("digest") for r in readers] == want


def an_agent_restarts():
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(SIZE, model="m", replica="w")
        r.setup(SIZE, model="m", replica="r")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        a.kill()
        c.agent("a2", runtime=a.runtime)
        # The next call sees it, and all of them after it.
        for cmd, args in (
            ("publish", {"version": 2}), ("unpublish", {}), ("update", {}), ("list", {}),
            ("register", {}), ("unregister", {}), ("manifest", {}), ("held", {}), ("resolve", {}),
        ):
            try:
                value = w.call(cmd, **args)
                raise AssertionError(f"{cmd} answered {value}")
            except RemoteError as e:
                assert e.name == "AGENT_LOST", (cmd, e.name, e.text)
                assert e.seconds < 2, (cmd, e.seconds)
        assert w.call("events") & 16, "THC_EV_AGENT_LOST"
        assert w.call("safe") == 1, "the process that could write has ended"
        is_not_freed(w)
        w.call("close", timeout=0)
        # The bytes are still there. Another name: the old group may not have been given up yet.
        settles(w.call, "open", model="m", replica="w2", timeout=20)
        w.call("register")
        assert w.call("digest") == want and w.call("held") is None
        settles(w.call, "publish", version=2)
        assert r.call("replicate", version="2", timeout=PATIENT)["updated"] == 1
        assert r.call("digest") == want


def closing_with_a_frozen_reader():
    """A reader that takes nothing is fenced: close is proven, not waited for."""
    with cluster() as c:
        c.agent("a")
        b = c.agent("b")
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(64 << 20, model="m", replica="w")
        r.setup(64 << 20, model="m", replica="r")
        w.call("publish", version=1)
        r.call("submit", version="1", timeout=PATIENT)
        wait_for(lambda: r.call("progress")[0] > 0, PATIENT, "the first bytes")
        b.signal(signal.SIGSTOP)
        try:
            w.call("close", timeout=PATIENT)
            w.call("scribble", byte=7)
            w.call("free")
        finally:
            b.signal(signal.SIGCONT)
        # Whole or not at all: what came before the fence is no version.
        try:
            r.call("op_wait", timeout=PATIENT)
            assert r.call("held") == [0, 1]
        except RemoteError as e:
            assert e.name in ("VERSION_LOST", "NO_PATH", "NOT_AVAILABLE", "TIMEOUT"), e
            assert r.call("held") is None


def closing_ends_the_calls_inside():
    with cluster() as c:
        c.agent("a")
        w = c.worker("w", "a")
        w.setup(SIZE, model="m", replica="w")
        inside = [
            w.start("replicate", version="99", timeout=PATIENT),
            w.start("wait_never", timeout=PATIENT),
        ]
        running = lambda: "replicate" in c.thctl("-o", "json", "status", agent="a").stdout
        wait_for(running, PATIENT, "the replicate runs")
        w.call("close")
        for ident in inside:
            error = expect_error("CANCELLED", w.finish, ident)
            assert error.seconds < PATIENT - 10
        w.call("free")
        # Own operations, and those that are abandoned with their handle.
        w.setup(SIZE, model="m", replica="w")
        w.call("submit", version="99", timeout=PATIENT)
        w.call("close", abandon=True)
        expect_error("CANCELLED", w.call, "op_wait", timeout=PATIENT)
        settles(w.call, "open", model="m", replica="w")


def abandoned_without_an_agent_that_answers():
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(SIZE, model="m", replica="w")
        r.setup(SIZE, model="m", replica="r")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        a.signal(signal.SIGSTOP)
        try:
            # It fails and stays; what it holds may be read.
            expect_error("TIMEOUT", w.call, "close", timeout=0.1)
            assert w.call("safe") == 0
            is_not_freed(w)
            # It fails and goes; the bytes are the agent's until it has let go of them.
            expect_error("TIMEOUT", w.call, "close", timeout=0.1, abandon=True)
        finally:
            a.signal(signal.SIGCONT)
        # The agent finished alone: the shard is free again, with the same memory.
        settles(w.call, "open", model="m", replica="w")
        w.call("register")
        settles(w.call, "publish", version=2)
        r.call("replicate", version="2", timeout=PATIENT)
        assert r.call("digest") == want


if __name__ == "__main__":
    main(
        opening_twice,
        launched_again,
        registering,
        one_buffer_under_two_handles,
        a_broken_group_opens_again_with_the_same_memory,
        an_agent_restarts,
        closing_with_a_frozen_reader,
        closing_ends_the_calls_inside,
        abandoned_without_an_agent_that_answers,
    )
