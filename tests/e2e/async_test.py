# SPDX-License-Identifier: Apache-2.0
"""The asynchronous form as a program with a loop of its own uses it: this script is the worker.
thc_fd in asyncio and in epoll by level and by edge, beside threads that block in the same handle;
cancel before and after GO; operations that are dropped or outlive their handle; 64 shards in one
thread."""

import asyncio
import os
import select
import signal
import threading

import cluster

cluster.with_library()

import content
import library
import memory_kinds
import raw
from cluster import expect_error, main, wait_for
from tensorhub import Error, Event

SECONDS = 60  # nothing here takes long; a wake-up that is lost takes for ever
SIZE = 200_000


class Member:
    """A shard with its memory."""

    def __init__(self, agent, size=SIZE, **opts):
        self.shard = library.opened(agent, **opts)
        self.memory = memory_kinds.wanted(size)
        self.shard.register(memory_kinds.tensors(self.memory))

    def fill(self, seed):
        data = content.content(seed, self.memory.bytes)
        self.memory.write(0, data)
        return content.digest(data)

    def digest(self):
        return content.digest(self.memory.read(0, self.memory.bytes))

    def close(self):
        self.shard.close()
        self.memory.free()


def members(agent, replica, count, **opts):
    return [Member(agent, replica=replica, shard=i, num_shards=count, **opts) for i in range(count)]


class Looped:
    """A member in an asyncio loop: its operations are awaited there."""

    def __init__(self, member):
        self.shard, self.events, self.running = member.shard, 0, {}
        asyncio.get_running_loop().add_reader(self.shard, self.look)

    def look(self):
        self.events |= self.shard.events()
        for op, future in list(self.running.items()):
            if op.done():
                del self.running[op]
                future.set_result(None)

    async def run(self, op):
        self.running[op] = asyncio.get_running_loop().create_future()
        await asyncio.wait_for(self.running[op], SECONDS)
        return op.result(0)


def an_asyncio_loop_beside_threads_that_block():
    """Two handles in one loop; a thread of each sits in thc_wait all the time and takes the
    doorbell for all."""
    with cluster.cluster() as c:
        trainer = Member(c.agent("a"), replica="trainer")
        rollout = Member(c.agent("b"), replica="rollout")
        steps, stop, problems = 30, threading.Event(), []

        def sit(shard):
            try:
                while not stop.is_set():
                    raw.wait(shard, lambda listing: stop.is_set() or steps in listing, SECONDS)
            except Exception as e:
                problems.append(e)

        threads = [threading.Thread(target=sit, args=(m.shard,)) for m in (trainer, rollout)]

        async def loop():
            t, r = Looped(trainer), Looped(rollout)
            for version in range(1, steps + 1):
                want = trainer.fill(version)
                await t.run(trainer.shard.publish_async(version))
                begin = rollout.shard.update_async
                if version == 1:
                    begin = rollout.shard.replicate_async
                result = await r.run(begin("latest"))
                assert (result.version, result.updated) == (version, True), result
                assert rollout.digest() == want, version
                if version == steps:
                    stop.set()
                await t.run(trainer.shard.unpublish_async())
            assert t.events == r.events == 0
            for m in (trainer, rollout):
                asyncio.get_running_loop().remove_reader(m.shard)

        for thread in threads:
            thread.start()
        asyncio.run(loop())
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        assert not problems, problems
        trainer.close()
        rollout.close()


def collect(op, shard):
    """The end of an operation, learnt from thc_fd alone."""
    poll = select.poll()
    poll.register(shard, select.POLLIN)
    while not op.done():
        assert poll.poll(SECONDS * 1000), "no wake-up"
        shard.events()
    return op.result(0)


def a_cancel_before_go_changes_nothing():
    """A group of two; one member has called, the other has not."""
    with cluster.cluster() as c:
        a, b = c.agent("a"), c.agent("b")
        trainers, readers = members(a, "trainer", 2), members(b, "rollout", 2)
        for version in (1, 2):
            want = [m.fill(f"{version}.{i}") for i, m in enumerate(trainers)]
            ops = [m.shard.publish_async(version) for m in trainers]
            for m, op in zip(trainers, ops):
                collect(op, m.shard)
            if version == 2:
                break
            ops = [m.shard.replicate_async("1") for m in readers]
            for m, op in zip(readers, ops):
                assert collect(op, m.shard).version == 1
            ops = [m.shard.unpublish_async() for m in trainers]
            for m, op in zip(trainers, ops):
                collect(op, m.shard)
        first, second = readers
        op = first.shard.update_async("2")
        assert not op.done() and op.progress == (0, 0)
        said = f" (pid {os.getpid()}) has not called it"
        wait_for(lambda: op._waits().endswith(said), SECONDS, "what it waits for")
        assert op._waits().startswith(": shard 1 on node "), op._waits()
        op.cancel()
        e = expect_error("CANCELLED", collect, op, first.shard)
        assert "cancelled" in str(e), e
        op.cancel()  # it has ended: nothing is asked
        assert first.shard.held == (0, 1)
        assert first.digest() == content.digest(content.content("1.0", first.memory.bytes))
        # The operation has ended for all: also for the member that calls it now.
        expect_error("CANCELLED", second.shard.update, "2")
        assert second.shard.held == (0, 1)
        ops = [m.shard.update_async("2") for m in readers]
        for m, op, digest in zip(readers, ops, want):
            assert collect(op, m.shard).version == 2
            assert m.digest() == digest
        for m in readers + trainers:
            m.close()


def a_cancel_after_go_leaves_the_real_outcome():
    with cluster.cluster() as c:
        size = 48 << 20
        trainer = Member(c.agent("a"), replica="trainer", size=size)
        rollout = Member(c.agent("b"), replica="rollout", size=size)
        want = trainer.fill(1)
        trainer.shard.publish(1)
        op = rollout.shard.replicate_async("1")
        assert op.progress[0] <= size
        wait_for(lambda: op.progress[0] > 0, SECONDS, "bytes")
        op.cancel()
        assert collect(op, rollout.shard).version == 1
        assert op.progress == (rollout.memory.bytes, rollout.memory.bytes)
        assert rollout.digest() == want
        rollout.close()
        trainer.close()


def a_dropped_operation_is_cancelled_and_one_outlives_its_handle():
    with cluster.cluster() as c:
        a = c.agent("a")
        m = Member(a, replica="r")

        def again():
            try:
                m.shard.publish(7)
                return True
            except Error as e:
                assert e.name == "STATE", e
                return False

        op = m.shard.replicate_async("5", timeout=None)  # there is no such version: it waits
        expect_error("STATE", m.shard.update_async, "latest")
        op = None
        wait_for(again, SECONDS, "the end of the operation that was dropped")
        op = m.shard.unpublish_async()
        collect(op, m.shard)
        # And a finished one that nobody looked at.
        op = m.shard.publish_async(8)
        poll = select.poll()
        poll.register(m.shard, select.POLLIN)
        assert poll.poll(SECONDS * 1000)
        wait_for(lambda: m.shard.held == (0, 8), SECONDS, "the publish")
        op = None
        m.shard.unpublish()
        op = m.shard.replicate_async("5", timeout=None)
        m.close()
        assert op.done()
        expect_error("CANCELLED", op.result, None)
        assert op.progress == (0, 0)
        op.cancel()


def a_deadline_is_the_operations_own():
    with cluster.cluster() as c:
        a = c.agent("a")
        m = Member(a, replica="r")
        op = m.shard.replicate_async("5", timeout=0.2)
        expect_error("TIMEOUT", collect, op, m.shard)
        op = m.shard.replicate_async("5", timeout=None)
        expect_error("TIMEOUT", op.result, 0.1)  # of the call: it runs on
        assert not op.done()
        op.cancel()
        expect_error("CANCELLED", collect, op, m.shard)
        a.signal(signal.SIGSTOP)
        op = m.shard.publish_async(1, timeout=1)
        expect_error("UNKNOWN", op.result, None)
        assert not op.done()
        e = expect_error("STATE", m.shard.publish_async, 2)
        assert "thc_resolve" in str(e), e
        a.signal(signal.SIGCONT)
        try:
            collect(op, m.shard)
            held = (0, 1)
        except Error as e:
            # The agent counts as well, from when it takes the operation.
            assert e.name == "TIMEOUT", e
            held = None
        assert m.shard.held == held
        m.close()


def an_event_wakes_the_loop_while_others_block():
    """A member goes: the other's thc_fd tells, by an edge, though a thread in thc_wait has the
    doorbell."""
    with cluster.cluster() as c:
        a = c.agent("a")
        stay, go = members(a, "r", 2)
        stop, ends = threading.Event(), []

        def sit():
            try:
                raw.wait(stay.shard, lambda _: stop.is_set(), 2 * SECONDS)
                ends.append("ok")
            except Error as e:
                ends.append(e.name)

        thread = threading.Thread(target=sit)
        thread.start()
        epoll = select.epoll()
        epoll.register(stay.shard, select.EPOLLIN | select.EPOLLET)
        other = Member(a, replica="other")
        go.close()
        seen = 0
        while not seen:
            assert epoll.poll(SECONDS), "no wake-up"
            seen |= stay.shard.events()
        assert seen == Event.GROUP_BROKEN, seen
        assert stay.shard.events() == 0
        stop.set()
        other.shard.publish(1)  # a change that the waiting thread sees
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert ends in (["GROUP_BROKEN"], ["ok"]), ends
        epoll.close()
        other.close()
        stay.close()


class Driver:
    """One thread, one epoll set, any number of members; every other one by edge."""

    def __init__(self, all_members):
        self.epoll, self.by_fd, self.running = select.epoll(), {}, {}
        for i, m in enumerate(all_members):
            fd = m.shard.fileno()
            self.by_fd[fd] = m
            self.epoll.register(fd, select.EPOLLIN | (select.EPOLLET if i % 2 else 0))

    def run(self, ops):
        """ops: {member: operation}; returns {member: result} when all have ended."""
        self.running, results = dict(ops), {}
        # What has ended before it was asked for may have had its edge already.
        for m in list(self.running):
            self.look(m, results)
        while self.running:
            ready = self.epoll.poll(SECONDS)
            assert ready, f"no wake-up, {len(self.running)} operations run"
            for fd, _ in ready:
                self.look(self.by_fd[fd], results)
        return results

    def look(self, m, results):
        assert m.shard.events() == 0
        if m in self.running and self.running[m].done():
            op = self.running.pop(m)
            results[m] = op.result(0)


def sixty_four_shards_in_one_thread():
    """Eight groups of eight: one trains, seven follow. All members of a group must call before any
    of its operations ends, so a thread that blocked in one of them would never end."""
    with cluster.cluster() as c:
        agents = [c.agent(name) for name in "ab"]
        groups = [members(agents[g % 2], f"g{g}", 8, size=110_000) for g in range(8)]
        trainers, readers = groups[0], [m for group in groups[1:] for m in group]
        driver = Driver(trainers + readers)
        for version in range(1, 5):
            want = [m.fill(f"{version}.{i}") for i, m in enumerate(trainers)]
            driver.run({m: m.shard.publish_async(version) for m in trainers})
            if version == 1:
                ops = {m: m.shard.replicate_async("latest") for m in readers}
            else:
                ops = {m: m.shard.update_async("latest") for m in readers}
            results = driver.run(ops)
            assert {r.version for r in results.values()} == {version}
            for group in groups[1:]:
                assert [m.digest() for m in group] == want, version
            driver.run({m: m.shard.unpublish_async() for m in trainers})
        driver.run({m: m.shard.unpublish_async() for m in readers})
        driver.epoll.close()
        for group in groups:
            for m in group:
                m.close()


if __name__ == "__main__":
    main(
        an_asyncio_loop_beside_threads_that_block,
        a_cancel_before_go_changes_nothing,
        a_cancel_after_go_leaves_the_real_outcome,
        a_dropped_operation_is_cancelled_and_one_outlives_its_handle,
        a_deadline_is_the_operations_own,
        an_event_wakes_the_loop_while_others_block,
        sixty_four_shards_in_one_thread,
    )
