# SPDX-License-Identifier: Apache-2.0
"""Borrowed versions: one copy in the agent's memory for all processes of a host that read it, which
nobody can write, and which stays until the last has returned it or has ended, whatever becomes of
publisher, handle and server."""

import os
import signal

from cluster import cluster, expect_error, main, wait_for, worker_env
from retain_test import offloads, status, used

SIZE = 24 << 20
MANY = 8


def publisher(c, agent, version=1, seed=1, **opts):
    w = c.worker(f"trainer-{agent}-{version}", agent)
    w.setup(SIZE, model="m", replica="trainer", **opts)
    digest = w.call("fill", seed=seed)
    w.call("publish", version=version)
    return w, digest


def borrower(c, label, agent, **options):
    """An observer, without tensors."""
    r = c.worker(label, agent, **options)
    r.call("open", model="m")
    return r


def gone(c, agent):
    wait_for(lambda: used(c, agent) == 0, 60, "the memory is given back")


def many_processes_read_one_copy():
    """Eight borrow it at once: one copy, whose pages no process has for itself."""
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        w, want = publisher(c, "b")
        workers = [borrower(c, f"r{i}", "a") for i in range(MANY)]
        calls = [r.start("borrow_version") for r in workers]
        for r, call in zip(workers, calls):
            assert r.finish(call) == [1, True]
        assert SIZE <= used(c, "a") < 2 * SIZE, used(c, "a")
        (copy,) = offloads(c, "a")
        told = status(c, "a")["loans"]
        assert {loan["pid"] for loan in told} == {r.pid for r in workers}, told
        assert {(loan["version"], loan["shard"]) for loan in told} == {(1, 0)}, told
        assert copy["version"] == 1, copy
        for r in workers:
            before = used(c, "a")
            assert r.call("lent_digest", total_bytes=SIZE) == want, r.label
            mapped, own = r.call("lent_memory")
            assert mapped >= SIZE * 9 // 10 and own == 0, (mapped, own)
            assert used(c, "a") == before
        # Its publisher goes, and the next version comes: these stay with theirs.
        w.call("unpublish", scribble=0x5A)
        w.call("fill", seed=2)
        w.call("publish", version=2)
        for r in workers[1:]:
            r.call("return_version")
        assert workers[0].call("lent_digest", total_bytes=SIZE) == want
        assert used(c, "a") >= SIZE
        workers[0].call("return_version")
        gone(c, "a")
        assert a.alive()


def nobody_writes_it():
    """No store, no descriptor and no mapping: and a private mapping is its own."""
    with cluster() as c:
        c.agent("a")
        _, want = publisher(c, "a")
        r, t = (borrower(c, label, "a") for label in "rt")
        # A sanitizer would end it by an exit status of its own.
        asan = worker_env().get("ASAN_OPTIONS", "") + ":handle_segv=0"
        s = borrower(c, "s", "a", env={"ASAN_OPTIONS": asan})
        r.call("borrow_version")
        said = r.call("lent_write")
        assert "done" not in said.values(), said
        assert said["mprotect"] == "Permission denied", said
        s.call("borrow_version")
        dies = s.start("lent_scribble")
        assert s.message(dies)["error"] == "DIED"
        assert s.p.wait(10) == -signal.SIGSEGV
        t.call("borrow_version", flags=2)
        t.call("lent_scribble")
        assert t.call("lent_digest", total_bytes=SIZE) != want
        assert r.call("lent_digest", total_bytes=SIZE) == want


def it_lasts_as_long_as_its_process():
    """Not as its handle, and no longer than a process that is killed."""
    with cluster() as c:
        c.agent("a")
        w, want = publisher(c, "a")
        r, s = borrower(c, "r", "a"), borrower(c, "s", "a")
        r.call("borrow_version")
        s.call("borrow_version")
        r.call("close")
        w.call("unpublish")
        w.call("close")
        assert r.call("lent_digest", total_bytes=SIZE) == want
        s.kill()
        assert r.call("lent_digest", total_bytes=SIZE) == want
        assert used(c, "a") >= SIZE
        r.kill()
        gone(c, "a")
        # What was lent twice by one process is returned twice.
        w, want = publisher(c, "a", version=3)
        r = borrower(c, "again", "a")
        r.call("borrow_version", key="one")
        r.call("borrow_version", key="two")
        r.call("return_version", key="one")
        assert r.call("lent_digest", total_bytes=SIZE, key="two") == want
        r.call("return_version", key="two")
        gone(c, "a")


def what_cannot_be_lent():
    """No such version or shard, no room, and more than may be lent: with the reason."""
    with cluster() as c:
        c.agent("a", args=["-o", f"borrow.limit={SIZE + (8 << 20)}"])
        c.agent("none", args=["--offload-limit", "0"])
        r, n = borrower(c, "r", "a"), borrower(c, "n", "none")
        expect_error("NOT_AVAILABLE", r.call, "borrow_version")
        w, want = publisher(c, "a")
        expect_error("INVALID", r.call, "borrow_version", shard=1)
        expect_error("NOT_AVAILABLE", r.call, "borrow_version", version="7")
        error = expect_error("LIMIT", n.call, "borrow_version")
        assert "offload" in error.text or "borrow" in error.text, error.text
        r.call("borrow_version", key="one")
        w.call("unpublish")
        w.call("fill", seed=2)
        w.call("publish", version=2)
        error = expect_error("LIMIT", r.call, "borrow_version", key="two")
        assert "borrow.limit" in error.text, error.text
        # What is lent hinders no trainer: there is room left for what is retained.
        assert r.call("lent_digest", total_bytes=SIZE, key="one") == want
        r.call("return_version", key="one")
        r.call("borrow_version", key="two")


def the_server_is_started_again():
    """What is lent stays lent, and the new server knows it."""
    with cluster() as c:
        c.agent("a")
        w, want = publisher(c, "a")
        r, s = borrower(c, "r", "a"), borrower(c, "s", "a")
        r.call("borrow_version")
        listen = c.server_url
        c.server.kill()
        assert r.call("lent_digest", total_bytes=SIZE) == want
        c.start_server(listen=listen)
        w.call("unpublish", timeout=30)
        w.call("fill", seed=2)
        w.call("publish", version=2, timeout=30)
        assert s.call("borrow_version", version="1", timeout=30) == [1, True]
        assert s.call("lent_digest", total_bytes=SIZE) == want
        assert len(offloads(c, "a")) == 1
        r.call("return_version")
        s.call("return_version")
        gone(c, "a")


def the_agent_ends():
    """The mapping outlives it; its successor lends again."""
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        _, want = publisher(c, "b")
        r = borrower(c, "r", "a")
        r.call("borrow_version")
        a.kill()
        assert r.call("lent_digest", total_bytes=SIZE) == want
        c.agent("a", runtime=a.runtime)
        s = borrower(c, "s", "a")
        s.call("borrow_version")
        assert s.call("lent_digest", total_bytes=SIZE) == want
        r.call("return_version")
        assert s.call("lent_digest", total_bytes=SIZE) == want


def a_drained_node_names_them():
    """A drain waits for what is lent, and says so."""
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        publisher(c, "b")
        r = borrower(c, "r", "a")
        r.call("borrow_version")
        told = c.thctl("-s", c.server_url, "drain", "a", check=False).stdout
        assert "lent to processes" in told, told
        expect_error("LIMIT", r.call, "borrow_version", key="two")
        r.call("return_version")
        gone(c, "a")


if __name__ == "__main__":
    main(
        many_processes_read_one_copy,
        nobody_writes_it,
        it_lasts_as_long_as_its_process,
        what_cannot_be_lent,
        the_server_is_started_again,
        the_agent_ends,
        a_drained_node_names_them,
    )
