# SPDX-License-Identifier: Apache-2.0
"""Whose memory control group pays for the bytes of tensors: the worker's, never the agent's."""

import contextlib
import ctypes as c
import os

from cluster import Skip, cluster, expect_error, main, wait_for, with_library

with_library()
import library
import memory_kinds as kinds
import tensorhub as th
from cgroups import MemoryGroup

SIZE = 64 << 20
LITTLE = SIZE // 4
PAGE = kinds.PAGE


def untouched_memory_is_paid_by_its_worker():
    """A worker publishes what it never wrote to, and another replicates into such memory."""
    with cluster() as cl:
        agents = {}
        for node in ("a", "b"):
            agents[node] = MemoryGroup(cl)
            cl.agent(node, prefix=agents[node].prefix)
        for kind in (None, "sealed", "unsealed", "Malloc"):
            workers = {}
            before = {node: group.charged() for node, group in agents.items()}
            for replica, node in (("source", "a"), ("near", "a"), ("far", "b")):
                group = MemoryGroup(cl)
                worker = cl.worker(f"{replica}-{kind}", node, prefix=group.prefix)
                worker.call("open", model=f"m-{kind}", replica=replica)
                idle = group.charged()
                worker.call("alloc", total_bytes=SIZE, kind=kind)
                worker.call("register")
                workers[replica] = worker, group, idle
            workers["source"][0].call("publish", version=1)
            for replica in ("far", "near"):
                assert workers[replica][0].call("replicate", version="1")["version"] == 1
            for node, group in agents.items():
                grown = group.charged() - before[node]
                assert grown < LITTLE, (kind, node, grown)
            for replica, (worker, group, idle) in workers.items():
                if kind == "Malloc" and replica == "source":
                    continue  # nobody ever touched it: pages of zeros are nobody's
                grown = group.charged() - idle
                assert grown > SIZE - LITTLE, (kind, replica, grown)
            for worker, _, _ in workers.values():
                worker.call("close")
                worker.kill()


def an_agent_with_little_memory():
    """Less than what its workers have: as in a pod with a limit."""
    with cluster() as cl:
        for node in ("a", "b"):
            cl.agent(node, prefix=MemoryGroup(cl, SIZE).prefix)
        source, reader = cl.worker("source", "a"), cl.worker("reader", "b")
        source.setup(2 * SIZE, model="m", replica="source")
        reader.setup(2 * SIZE, model="m", replica="reader")
        source.call("publish", version=1)
        reader.call("replicate", version="1")
        assert reader.call("digest") == source.call("digest")
        for agent in cl.agents.values():
            assert agent.alive(), agent.tail()


def expect_any(codes, call, *args):
    try:
        value = call(*args)
    except th.Error as e:
        assert e.name in codes and len(str(e)) > 15, e
        return e
    raise AssertionError(f"expected one of {codes}, got {value!r}")


def tells_of_holes(fd):
    """cachestat(2), since Linux 6.5."""
    pages = (c.c_uint64 * 5)()
    return kinds.libc.syscall(451, fd, (c.c_uint64 * 2)(0, PAGE), pages, 0) == 0


class Holder:
    """A handle of this process, which is in nobody's group, and its memory."""

    def __init__(self, cl, agent, replica, make, model="m"):
        self.memory = make(SIZE)
        assert self.there() == 0
        self.shard = library.opened(cl.agents[agent], replica, model)
        self.shard.register(kinds.tensors(self.memory))

    def there(self):
        return os.fstat(self.memory.fd).st_blocks * 512

    def punch(self, at=0, nbytes=SIZE):
        kinds.punch(self.memory.fd, at, nbytes)

    def end(self):
        self.shard.close()
        self.memory.free()


def memory_that_was_taken_away_is_refused():
    """Before anything changes, by a sentence; who registers it again is served again."""
    with cluster() as cl:
        group = MemoryGroup(cl)
        cl.agent("a", prefix=group.prefix)
        source = Holder(cl, "a", "source", kinds.sealed)
        assert source.there() == SIZE
        idle = group.charged()
        source.punch()
        error = expect_error("STALE_MEMORY", source.shard.publish, 1)
        assert f"{SIZE} bytes" in str(error) and "register" in str(error), error
        source.end()
        for make in (kinds.sealed, kinds.unsealed):
            source = Holder(cl, "a", "source", make)
            source.memory.fill(7)
            source.shard.publish(1)
            reader = Holder(cl, "a", "reader", make)
            reader.punch(SIZE // 2, 8 * PAGE)
            for call in (reader.shard.replicate, reader.shard.update):
                error = expect_error("STALE_MEMORY", call, "1")
                assert "'embed.norm'" in str(error) and f"{8 * PAGE} bytes" in str(error), error
                assert reader.there() == SIZE - 8 * PAGE
                assert reader.memory.read(0, PAGE) == bytes(PAGE), "nothing was written"
            assert group.charged() - idle < LITTLE
            reader.end()
            reader = Holder(cl, "a", "reader", make)
            assert reader.shard.replicate("1").version == 1
            assert reader.memory.read(SIZE - PAGE, PAGE) == b"\7" * PAGE
            reader.end()
            source.end()


class Witness:
    """Two workers whose versions move all the time."""

    def __init__(self, cl):
        self.source, self.reader, self.version = cl.worker("w", "a"), cl.worker("o", "a"), 0
        self.source.setup(2 << 20, model="witness", replica="w")
        self.reader.setup(2 << 20, model="witness", replica="o")

    def works(self):
        self.version += 1
        want = self.source.call("fill", seed=self.version)
        self.source.call("publish", version=self.version)
        assert self.reader.call("update")["version"] == self.version
        assert self.reader.call("digest") == want
        self.source.call("unpublish")


def guarded(cl):
    """The agent has what makes no page (daemon/host/memory/holes.h)."""
    with open(cl.agents["a"].log_path) as file:
        if "no userfaultfd" in file.read():
            raise Skip("no userfaultfd here: a filter of system calls")


def pages_that_go_while_they_are_read():
    """A publisher takes all of them away: the agent reads on, and makes none itself."""
    with cluster() as cl:
        group = MemoryGroup(cl, 2 * SIZE)
        cl.agent("a", prefix=group.prefix)
        witness = Witness(cl)
        guarded(cl)
        idle = group.charged()
        for turn in range(8):
            source = Holder(cl, "a", f"source{turn}", kinds.sealed, f"m{turn}")
            reader = Holder(cl, "a", f"reader{turn}", kinds.sealed, f"m{turn}")
            source.shard.publish(1)
            source.punch()
            # When the agent has hashed all of it before, a reader finds out; else it is withdrawn.
            with contextlib.suppress(th.Error):
                assert not reader.shard.update("1")
            wait_for(lambda: source.shard.events() & th.Event.CONTRACT, 30, "an event")
            expect_error("CONTRACT", source.shard.unpublish)
            assert source.there() == 0, "the agent made pages"
            assert group.charged() - idle < LITTLE
            witness.works()
            reader.end()
            source.end()
        assert cl.agents["a"].alive()


def pages_that_go_while_they_are_written():
    """A reader does so, in the midst of what fills them."""
    with cluster() as cl:
        group = MemoryGroup(cl, 2 * SIZE)
        cl.agent("a", prefix=group.prefix)
        cl.agent("b", args=("-o", f"rate.out={SIZE // 2}"))
        witness = Witness(cl)
        guarded(cl)
        source = Holder(cl, "b", "source", kinds.sealed)
        source.memory.fill(7)
        source.shard.publish(1)
        idle = group.charged()
        for make in (kinds.sealed, kinds.unsealed):
            reader = Holder(cl, "a", "reader", make)
            op = reader.shard.replicate_async("1")
            wait_for(lambda: op.progress[0] > 0, 30, "bytes arrive")
            assert not op.done()
            reader.punch()
            expect_any(("STALE_MEMORY", "DIRTY"), op.result)
            witness.works()
            # Of what is written through a descriptor the kernel may know (fd_memory.c).
            if make is kinds.sealed or tells_of_holes(reader.memory.fd):
                assert reader.there() < LITTLE, "the agent made pages"
                assert group.charged() - idle < LITTLE
            reader.end()
        source.end()
        assert cl.agents["a"].alive()


if __name__ == "__main__":
    main(
        untouched_memory_is_paid_by_its_worker,
        an_agent_with_little_memory,
        memory_that_was_taken_away_is_refused,
        pages_that_go_while_they_are_read,
        pages_that_go_while_they_are_written,
    )
