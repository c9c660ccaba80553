# SPDX-License-Identifier: Apache-2.0
"""Host memory of every kind as source and destination, and memory that changes, shrinks, goes or
blocks while an agent uses it: the code, a sentence, and an agent that lives. With GPU memory:
between it and the host's kinds, and what is not about the host's."""

import contextlib
import os
import shutil
import signal

from cluster import LONG, Skip, cluster, expect_error, main, wait_for, with_library

with_library()
import content
import fuse
import gpus
import library
import memory_kinds as kinds
import tensorhub as th

SIZE = (32 if LONG else 6) << 20
MANY = 100_000
PAGE = kinds.PAGE

# kind: how it is made, what thc_memory_path begins with, whether private memory must be given away
KINDS = {
    "sealed": (kinds.sealed, "direct (", False),
    "unsealed": (kinds.unsealed, "copy (a file in memory that may shrink", False),
    "appending": (kinds.appending, "copy (a file in memory that may shrink", False),
    "malloc": (kinds.Malloc, "copy (private memory", True),
    "mapping": (kinds.Mapped, "copy (private memory", True),
}


def opened(cl, agent, replica, model="m", **options):
    return library.opened(cl.agents[agent], replica, model, **options)


def fill(memory, seed):
    data = content.content(seed, memory.bytes)
    memory.write(0, data)
    return content.digest(data)


def digest(memory):
    return content.digest(memory.read(0, memory.bytes))


def alive(cl):
    for agent in cl.agents.values():
        assert agent.alive(), agent.tail()
        # A question that its main thread answers.
        cl.thctl("status", agent=agent.node)


def pair(cl, make, agents=("a", "b"), model="m", size=SIZE):
    """A publisher and a reader with registered memory of one kind: (shard, memory) of each."""
    out = []
    for replica, agent in zip(("source", "reader"), agents):
        memory = make(size)
        shard = opened(cl, agent, replica, model)
        shard.register(kinds.tensors(memory))
        out.append((shard, memory))
    return out


def every_kind_at_both_ends():
    """Over TCP and within a host; private memory is given away only where it must be."""
    table = dict(KINDS)
    if kinds.lies_in_memory("/dev/shm"):
        table["tmpfs"] = (kinds.file_in("/dev/shm"), "copy (a file in memory", False)
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        if not kinds.lies_in_memory(cl.dir):
            table["disk"] = (kinds.file_in(cl.dir), "copy (no file that lies in memory", True)
        for name, (make, text, private) in table.items():
            source, near, far = (make(SIZE) for _ in range(3))
            how = {"no_memory_fd": not private}
            shards = []
            for memory, agent in ((source, "a"), (near, "a"), (far, "b")):
                shard = opened(cl, agent, f"r{len(shards)}", name, **how)
                shard.register(kinds.tensors(memory))
                path = shard.memory_path("layer.0.weight")
                assert path.startswith(text), path
                shards.append(shard)
            want = fill(source, name)
            shards[0].publish(1)
            for shard, memory, transport in ((shards[2], far, "tcp"), (shards[1], near, "local")):
                result = shard.replicate("1")
                assert result.transport == transport, (name, result)
                assert digest(memory) == want, (name, transport)
            # And a second version over the first.
            for shard in shards:
                shard.unpublish()
            source.write(SIZE - 1, b"\x55")
            want = digest(source)
            shards[0].publish(2)
            result = shards[2].update()
            assert result, (name, result)
            assert digest(far) == want, name
            for shard in reversed(shards):
                shard.close()
            for memory in (source, near, far):
                memory.free()
        alive(cl)


def rights(agent):
    """What it may do with what it maps of kinds.sealed, by its maps."""
    found = set()
    with open(f"/proc/{agent.pid}/maps") as maps:
        for line in maps:
            if "/memfd:sealed" in line:
                found.add(line.split()[1])
    return found


def what_is_published_is_mapped_for_reading():
    """Writable while a session receives, and no more when it publishes, whatever came before."""
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        shards, memories = [], []
        for replica, agent in (("trainer", "a"), ("far", "b")):
            memory = kinds.sealed(SIZE)
            shard = opened(cl, agent, replica)
            shard.register(kinds.tensors(memory))
            shards.append(shard)
            memories.append(memory)
        trainer, far = shards
        a, b = cl.agents["a"], cl.agents["b"]
        assert rights(a) == {"r--s"}, rights(a)
        want = fill(memories[0], 1)
        trainer.publish(1)
        far.replicate("1")
        assert digest(memories[1]) == want
        assert rights(a) == {"r--s"}, rights(a)
        assert rights(b) == {"rw-s"}, rights(b)
        # The other way round.
        for shard in (far, trainer):
            shard.unpublish()
        want = fill(memories[1], 2)
        far.publish(2)
        trainer.replicate("2")
        assert digest(memories[0]) == want
        assert rights(b) == {"r--s"}, rights(b)
        assert rights(a) == {"rw-s"}, rights(a)
        # A reader within the host has a session of its own: what is beside it stays as it is.
        near = kinds.sealed(SIZE)
        reader = opened(cl, "b", "near")
        reader.register(kinds.tensors(near))
        assert rights(b) == {"r--s"}, rights(b)
        assert reader.replicate("2").transport == "local"
        assert digest(near) == want
        assert rights(b) == {"r--s", "rw-s"}, rights(b)
        for shard in (reader, trainer, far):
            shard.close()
        for memory in (near, *memories):
            memory.free()
        alive(cl)


def from_one_kind_to_another():
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        source = kinds.read_only(SIZE)
        shard = opened(cl, "a", "source")
        shard.register(kinds.tensors(source))
        want = fill(source, 3)
        shard.publish(1)
        held = []
        others = {name: make for name, (make, _, _) in KINDS.items()}
        if gpus.KIND:
            others = {"gpu": kinds.wanted, **others}
        for name, make in others.items():
            memory = make(SIZE)
            reader = opened(cl, "b", name)
            reader.register(kinds.tensors(memory))
            reader.replicate("1")
            assert digest(memory) == want, name
            held.append((reader, memory))
            if gpus.KIND and len(held) == 1:
                shard.unpublish()  # the others have it from the GPU
        if not gpus.KIND:
            shard.unpublish()
        shard.unregister()
        shard.register(kinds.tensors(source))
        error = expect_error("MEMORY_KIND", shard.replicate, "1")
        assert "cannot be written" in str(error), error
        for reader, memory in held:
            reader.close()
            memory.free()
        shard.close()
        source.free()


def an_agent_of_another_user():
    if os.geteuid() != 0:
        raise Skip("needs root to run an agent as another user")
    with cluster() as cl:
        # Neither the build folder nor ours need be open to that user.
        binary = shutil.copy(os.path.join(os.environ["TH_BUILD"], "daemon", "thagentd"), cl.dir)
        runtime = os.path.join(cl.dir, "other")
        os.chmod(cl.dir, 0o755)
        os.mkdir(runtime)
        os.chown(runtime, 65534, 65534)
        prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
        prefix += ["sh", "-c", f'shift; exec {binary} "$@"', "sh"]
        agent = cl.agent("a", prefix=prefix, runtime=runtime)
        status = open(f"/proc/{agent.pid}/status").read()
        assert "\nUid:\t65534\t65534\t65534\t65534\n" in status, status
        (shard, source), (reader, memory) = pair(cl, kinds.Malloc, ("a", "a"))
        want = fill(source, 1)
        shard.publish(1)
        reader.replicate("1")
        assert digest(memory) == want
        reader.close()
        shard.close()


def protection_is_looked_at_again():
    with cluster() as cl:
        cl.agent("a")
        (shard, source), (reader, memory) = pair(cl, kinds.Mapped, ("a", "a"))
        want = fill(source, 1)
        source.protect(0, source.map_bytes, kinds.READ)
        shard.publish(1)
        memory.protect(SIZE // 2 // PAGE * PAGE, PAGE, kinds.READ)
        before = memory.read(0, SIZE)
        error = expect_error("MEMORY_KIND", reader.update)
        assert "'layer.0.weight' is mapped read-only" in str(error), error
        assert memory.read(0, SIZE) == before, "nothing was written through the protection"
        memory.protect(0, memory.map_bytes, kinds.READ | kinds.WRITE)
        assert reader.update()
        assert digest(memory) == want
        memory.unmap(SIZE // 2 // PAGE * PAGE, PAGE)
        reader.unpublish()
        error = expect_error("STALE_MEMORY", reader.replicate, "1")
        assert "'layer.0.weight' is not mapped any more" in str(error), error
        reader.close()
        shard.close()


# What a reader says whose only source cannot be read to its end.
READ_FAILURES = ("VERSION_LOST", "NOT_AVAILABLE", "STALE_MEMORY", "CHECKSUM", "CONTRACT")


def expect_any(codes, call, *args, **kwargs):
    try:
        value = call(*args, **kwargs)
    except th.Error as e:
        assert e.name in codes and len(str(e)) > 15, e
        return e
    raise AssertionError(f"expected one of {codes}, got {value!r}")


def lose_the_source(make, lose, hashed=True):
    """A reader of a source whose memory goes, and another of a good source. hashed: the memory goes
    when a first reader has had all of it, so that all digests are there; else right after
    publish."""
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        (shard, source), (reader, memory) = pair(cl, make)
        fill(source, 1)
        shard.publish(1)
        if hashed:
            reader.replicate("1")
            reader.unpublish()
            memory.fill(0)
        lose(source, SIZE // 2 // PAGE * PAGE)
        if hashed:
            expect_any(READ_FAILURES, reader.replicate, "1", timeout=20)
        else:
            # The agent may have withdrawn it before: then update finds nothing.
            with contextlib.suppress(th.Error):
                assert not reader.update("1", timeout=20)
        assert reader.held is None
        # The publisher is told, and may do what it likes with the memory.
        wait_for(lambda: shard.events() & th.Event.CONTRACT, 30, "an event")
        error = expect_error("CONTRACT", shard.unpublish)
        assert "can not be read" in str(error) or "was changed" in str(error), error
        wait_for(lambda: shard.safe_to_mutate, 30, "nobody reads it any more")
        alive(cl)
        # The agents go on: others are served.
        (good, other), (reader2, memory2) = pair(cl, make, model="good")
        want = fill(other, 2)
        good.publish(1)
        reader2.replicate("1")
        assert digest(memory2) == want
        for each in (reader, shard, reader2, good):
            each.close()


def memory_that_is_unmapped_under_a_publish():
    for hashed in (True, False):
        lose_the_source(kinds.Mapped, lambda memory, at: memory.unmap(at, PAGE), hashed)


def a_file_that_shrinks_under_a_publish():
    for hashed in (True, False):
        lose_the_source(kinds.unsealed, lambda memory, at: os.ftruncate(memory.fd, at), hashed)


def a_hole_punched_into_what_is_published():
    """Of a sealed memfd: the bytes are then zeros, which no reader takes for the version."""
    lose_the_source(kinds.sealed, lambda memory, at: kinds.punch(memory.fd, at, 8 * PAGE))


def a_worker_that_dies():
    """What is reached by its address goes with it; another copy serves."""
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        worker = cl.worker("w", "a")
        worker.call("open", model="m", replica="w")
        worker.call("alloc", total_bytes=SIZE, kind="Malloc")
        worker.call("register")
        want = worker.call("fill", seed=1)
        worker.call("publish", version=1)
        (first, memory), (second, memory2) = pair(cl, kinds.Malloc, ("b", "a"))
        first.replicate("1")
        worker.kill()
        second.replicate("1")
        assert digest(memory) == digest(memory2) == want
        alive(cl)
        second.close()
        first.close()


def one_memory_under_two_handles():
    with cluster() as cl:
        cl.agent("a")
        (shard, source), (reader, memory) = pair(cl, kinds.wanted, ("a", "a"))
        fill(source, 1)
        shard.publish(1)
        reader.replicate("1")
        both = opened(cl, "a", "both", "other")
        both.register({"x": kinds.Tensor(source, [1000], at=100)})
        feeder = opened(cl, "a", "feeder", "other")
        feeder.register({"x": kinds.Tensor(memory, [1000], at=100)})
        feeder.publish(1)  # read by both: no harm
        if gpus.KIND != "closed":  # of which each handle has a copy
            error = expect_error("INVALID", both.replicate, "1")
            assert "'x'" in str(error), error
        shard.unpublish()
        both.replicate("1")
        assert source.read(100, 1000) == memory.read(100, 1000)
        for each in (both, feeder, reader, shard):
            each.close()


def the_same_memory_after_an_agent_has_gone():
    with cluster() as cl:
        agent = cl.agent("a")
        memory = kinds.wanted(SIZE)
        shard = opened(cl, "a", "source")
        shard.register(kinds.tensors(memory))
        want = fill(memory, 1)
        shard.publish(1)
        assert agent.terminate() == 0, agent.tail()
        expect_error("AGENT_LOST", shard.publish, 2)
        shard.close()
        cl.agents["a"] = type(agent)(cl, "a", runtime=agent.runtime)
        shard = wait_for(lambda: reopened(cl), 60, "the server takes the agent's name again")
        shard.register(kinds.tensors(memory))
        shard.publish(1)
        other = kinds.wanted(SIZE)
        reader = opened(cl, "a", "reader2")
        reader.register(kinds.tensors(other))
        reader.replicate("1")
        assert digest(other) == want
        reader.close()
        shard.close()


def reopened(cl):
    try:
        return opened(cl, "a", "source2")
    except th.Error as e:
        if e.name != "NO_SERVER":
            raise
        return None


def many_small_tensors():
    with cluster() as cl:
        cl.agent("a")
        shards, memories = [], []
        for replica in ("source", "reader"):
            memory = (kinds.wanted if gpus.KIND else kinds.Malloc)(MANY * 48)
            tensors = {f"t{i}": kinds.Tensor(memory, [40], at=i * 48) for i in range(MANY)}
            shard = opened(cl, "a", replica)
            shard.register(tensors)
            shards.append(shard)
            memories.append(memory)
        memories[1].fill(0)
        data = content.content(1, MANY * 48)
        memories[0].write(0, data)
        shards[0].publish(1)
        shards[1].replicate("1")
        got = memories[1].read(0, MANY * 48)
        for i in range(0, MANY, 997):
            assert got[i * 48 : i * 48 + 40] == data[i * 48 : i * 48 + 40], i
            assert got[i * 48 + 40 : i * 48 + 48] == bytes(8), "between two tensors"
        for shard in reversed(shards):
            shard.close()


def huge_pages():
    knob = "/proc/sys/vm/nr_hugepages"
    page = 2 << 20
    try:
        with open(knob) as file:
            before = int(file.read())
        with open(knob, "w") as file:
            file.write(str(before + 2 * SIZE // page + 8))
    except OSError as e:
        raise Skip(f"no huge pages here: {e.strerror}")
    try:
        memories = []
        try:
            for _ in range(2):
                memories.append(kinds.Allocated(SIZE, huge=True))
            fd = os.memfd_create("huge", kinds.MFD_HUGETLB | os.MFD_ALLOW_SEALING)
            memories.append(kinds.Imported(page, fd, page=page))
        except (th.Error, OSError) as e:
            for memory in memories:
                memory.free()
            raise Skip(f"no huge pages here: {e}")
        with cluster() as cl:
            cl.agent("a")
            source, memory, imported = memories
            shard, reader = opened(cl, "a", "source"), opened(cl, "a", "reader")
            shard.register(kinds.tensors(source))
            reader.register(kinds.tensors(memory))
            assert shard.memory_path("scalar").startswith("direct (")
            want = fill(source, 1)
            shard.publish(1)
            reader.replicate("1")
            assert digest(memory) == want
            one = opened(cl, "a", "one", "one")
            one.register({"x": kinds.Tensor(imported, [page - 100], at=100)})
            imported.fill(7)
            one.publish(1)
            other = opened(cl, "a", "other", "one")
            destination = kinds.Malloc(page - 100)
            other.register({"x": kinds.Tensor(destination, [page - 100])})
            other.replicate("1")  # all digests are there afterwards
            other.unpublish()
            # The pages go back, and the pool is emptied: whoever touches them now gets none.
            kinds.punch(imported.fd, 0, page)
            with open(knob, "w") as file:
                file.write("0")
            expect_any(READ_FAILURES, other.replicate, "1", timeout=20)
            alive(cl)
            for each in (other, one, reader, shard):
                each.close()
        for each in memories:
            each.free()
    finally:
        with open(knob, "w") as file:
            file.write(str(before))


def successor(cl, agent):
    """The next agent of the same runtime directory, unless that is served still."""
    try:
        return type(agent)(cl, "next", runtime=agent.runtime)
    except AssertionError as e:
        if "another agent serves" not in str(e):
            raise
        return None


def a_page_that_blocks_stops_nobody():
    """A source lies in a file of a file system whose owner does not answer."""
    nbytes = 256 * PAGE
    try:
        served = fuse.FuseFile(nbytes, 128 * PAGE)
    except OSError as e:
        raise Skip(f"no file system of our own: {e.strerror}")
    # It closes before the cluster does: a process that waits for its answer cannot be killed.
    with contextlib.closing(served), cluster() as cl, contextlib.closing(served):
        cl.agent("a")
        # A process of its own: it waits as well once it touches its own memory. While the agent
        # waits for the page, nothing can be mapped there: what Python needs, it has before.
        room = {"PYTHONMALLOC": "malloc", "MALLOC_ARENA_MAX": "1"}
        room.update(MALLOC_TOP_PAD_=str(64 << 20), MALLOC_TRIM_THRESHOLD_=str(1 << 30))
        blocked = cl.worker("blocked", "a", env=room)
        blocked.call("open", model="blocked", replica="w")
        blocked.call("map_file", path=served.path, total_bytes=nbytes)
        blocked.call("register")
        running = blocked.start("publish", version=1, timeout=20)
        wait_for(served.kept, 30, "the agent reads the page that blocks")
        (shard, source), (reader, memory) = pair(cl, kinds.Malloc, ("a", "a"))
        want = fill(source, 1)
        shard.publish(1)
        reader.replicate("1")
        assert digest(memory) == want, "others are served meanwhile"
        alive(cl)
        reader.close()
        shard.close()
        blocked.finish(running)
        # What waits in the kernel cannot be ended, but the agent's work: the next one has its
        # sockets and its lock.
        first = cl.agents["a"]
        first.signal(signal.SIGTERM)
        cl.agents["a"] = wait_for(lambda: successor(cl, first), 60, "the agent has ended")
        assert served.kept() > 0
        served.close()
        assert first.p.wait(30) == 0, first.tail()


if __name__ == "__main__":
    if gpus.KIND:
        main(
            from_one_kind_to_another,
            one_memory_under_two_handles,
            the_same_memory_after_an_agent_has_gone,
            many_small_tensors,
        )
    main(
        every_kind_at_both_ends,
        what_is_published_is_mapped_for_reading,
        from_one_kind_to_another,
        an_agent_of_another_user,
        protection_is_looked_at_again,
        memory_that_is_unmapped_under_a_publish,
        a_file_that_shrinks_under_a_publish,
        a_hole_punched_into_what_is_published,
        a_worker_that_dies,
        one_memory_under_two_handles,
        the_same_memory_after_an_agent_has_gone,
        many_small_tensors,
        huge_pages,
        a_page_that_blocks_stops_nobody,
    )
