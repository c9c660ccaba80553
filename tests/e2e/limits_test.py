# SPDX-License-Identifier: Apache-2.0
"""Odd and large content: lineages, tied and empty tensors, every dtype, eight dimensions, names
and attributes at their limits, 100,000 tensors, 64 shards, groups that read from each other."""

import math
import select
import time

from cluster import LONG, SANITIZED, cluster, expect_error, main, with_library

with_library()
import content
import gpus
import library
import memory_kinds
import raw
import tensorhub as th
from tensorhub import _abi, dtypes

TENSORS = 10_000 if SANITIZED else 100_000
SHARDS = 16 if SANITIZED else 64
ROUNDS = 40 if LONG else 3
DEVICE = 0 if gpus.KIND else _abi.HOST


def new_memory(nbytes):
    return memory_kinds.wanted(nbytes, device=DEVICE)


def opened(cl, agent, replica, **options):
    return library.opened(cl.agents[agent], replica, **options)


def nbytes(shape, dtype):
    return (math.prod(shape) * dtypes.BY_NAME[dtype].bits + 7) // 8


def tensor(memory, shape, dtype="U8", at=0, box=None):
    """box: (global shape, offset)."""
    made = memory_kinds.Tensor(memory, shape, dtype, at)
    return th.Part(made, *box) if box else made


def one(cl, agent, replica, nbytes=4096, **kwargs):
    """A handle with one tensor, and its memory."""
    shard = opened(cl, agent, replica, **kwargs)
    memory = new_memory(nbytes)
    shard.register({"w": tensor(memory, [nbytes])})
    return shard, memory


def lineages():
    with cluster() as cl:
        cl.agent("a")
        old, old_memory = one(cl, "a", "old", lineage=0)
        new, new_memory = one(cl, "a", "new", lineage=7)
        reader, memory = one(cl, "a", "reader")
        old_memory.fill(1)
        new_memory.fill(2)
        old.publish(500)
        assert reader.replicate("latest").version == 500
        assert reader.held == (0, 500)
        # The new run begins at a lower number, and still is the newer one.
        new.publish(3)
        assert list(reader.list().all) == [(0, 500), (7, 3)]
        found = reader.manifest("latest")
        assert (found.lineage, found.version) == (7, 3)
        result = reader.update("latest")
        assert result and (result.lineage, result.version) == (7, 3), result
        assert reader.held == (7, 3) and memory.read(0, 4096) == bytes([2]) * 4096
        # Numbers mean the highest lineage too: 500 is there, but of the old run.
        expect_error("NOT_AVAILABLE", reader.manifest, "500")
        late, late_memory = one(cl, "a", "late")
        expect_error("TIMEOUT", late.replicate, "500", timeout=0.3)
        # When nobody has the new run any more, names mean the old one again. A relative name never
        # moves a handle backward, and reader still holds (7, 3), which counts.
        new.unpublish()
        assert late.replicate("latest").lineage == 7
        late.unpublish()
        reader.unpublish()
        result = late.replicate("latest")
        assert (result.lineage, result.version) == (0, 500), result
        assert late_memory.read(0, 4096) == bytes([1]) * 4096
        # The same number in both lineages are two versions.
        new.publish(500)
        assert list(late.list().all) == [(0, 500), (7, 500)]
        for s in (old, new, reader, late):
            s.close()


def tied_weights():
    size = 3 << 20
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        memory, out = new_memory(2 * size), new_memory(2 * size)
        memory.write(0, content.content(1, 2 * size))

        def rows(memory, tied=True):
            starts = {"embed": 0, "head": 0 if tied else 2 * size, "other": size}
            starts["again"] = 0 if tied else 3 * size
            return {name: tensor(memory, [size], at=at) for name, at in starts.items()}

        source, reader = opened(cl, "a", "s"), opened(cl, "b", "r")
        source.register(rows(memory))
        source.publish(1)
        found = reader.manifest().tensors
        assert set(found) == {"embed", "head", "other", "again"}
        marks = {name: row.tied for name, row in found.items()}
        assert marks["embed"] and marks["embed"] == marks["head"] == marks["again"], marks
        assert marks["other"] != marks["embed"], marks
        reader.register(rows(out))
        assert reader.replicate("1").bytes_moved == 2 * size, "the tied tensor moves once"
        assert out.read(0, 2 * size) == memory.read(0, 2 * size)
        # A reader that has room for each name of its own is another layout, and so the other way.
        wide = new_memory(4 * size)
        untied = opened(cl, "b", "u")
        untied.register(rows(wide, tied=False))
        e = expect_error("LAYOUT", untied.replicate, "1")
        assert "again" in str(e) or "head" in str(e) or "embed" in str(e), e
        # The same bytes under another type or shape are no tie.
        bad = opened(cl, "a", "bad")
        for other in (
            tensor(memory, [size // 2], "BF16"),
            tensor(memory, [size // 4, 4]),
            tensor(memory, [size], at=1),
            tensor(memory, [size - 1]),
        ):
            both = {"a": tensor(memory, [size]), "b": other}
            e = expect_error("INVALID", bad.register, both)
            assert "'a'" in str(e) and "'b'" in str(e), e
        for s in (source, reader, untied, bad):
            s.close()


def every_dtype_and_odd_shapes():
    shapes = {
        "scalar": [],
        "empty": [0],
        "empty.inside": [5, 0, 1 << 40],
        "one": [1],
        "odd": [3, 5, 7],
        "eight": [2, 1, 3, 1, 2, 1, 5, 2],
    }
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        rows = [(f"{d}.{n}", s, d) for d in dtypes.BY_NAME for n, s in shapes.items()]
        # Sub-byte types round up to whole bytes.
        assert nbytes([3, 5, 7], "F4") == 53 and nbytes([3, 5, 7], "F6_E2M3") == 79
        assert nbytes([], "F4") == 1 and nbytes([], "F6_E3M2") == 1
        total = sum(nbytes(s, d) for _, s, d in rows)
        starts, end = [], 0
        for _, shape, dtype in rows:
            # In the host's memory anywhere; on a GPU where its kernels read such elements.
            end += -end % max(1, nbytes([], dtype)) if gpus.KIND else 0
            starts.append(end)
            end += nbytes(shape, dtype)

        def place(memory):
            placed = zip(rows, starts)
            return {name: tensor(memory, shape, dtype, at) for (name, shape, dtype), at in placed}

        memory, out = new_memory(end), new_memory(end)
        data = content.content(2, end)
        memory.write(0, data)
        source, reader = opened(cl, "a", "s"), opened(cl, "b", "r")
        source.register(place(memory))
        source.publish(1)
        found = reader.manifest().tensors
        assert {n: (r.shape, r.dtype) for n, r in found.items()} == {
            n: (tuple(s), d) for n, s, d in rows
        }
        reader.register(place(out))
        assert reader.replicate("1").bytes_moved == total
        for (name, shape, dtype), at in zip(rows, starts):
            size = nbytes(shape, dtype)
            assert out.read(at, size) == data[at : at + size], name
        # One byte less or more than dtype and shape make.
        bad = opened(cl, "a", "bad")
        for wrong in (52, 54):
            row = raw.row("t", memory.address, [3, 5, 7], "F4", nbytes=wrong, device=DEVICE)
            expect_error("INVALID", raw.register, bad, [row])
        for s in (source, reader, bad):
            s.close()


def nothing_but_empty_tensors():
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        memory = new_memory(4096)
        rows = {"x": tensor(memory, [0]), "y": tensor(memory, [4, 0], "F32")}
        source, reader = opened(cl, "a", "s"), opened(cl, "b", "r")
        expect_error("INVALID", source.register, {})
        source.register(rows)
        source.publish(1)
        reader.register(rows)
        result = reader.replicate("latest")
        assert result.updated and result.bytes_moved == 0, result
        source.unpublish()
        source.publish(2)
        assert reader.update("latest").version == 2
        for s in (source, reader):
            s.close()


def names():
    longest = "ä" * 127 + "x"  # 255 bytes
    widest = "\U0001f9e0" * 63 + "abc"  # 255 bytes
    with cluster() as cl:
        cl.agent("a")
        memory, out = new_memory(64), new_memory(64)
        memory.write(0, content.content(3, 64))
        source = opened(cl, "a", widest, model=longest)
        for bad, why in (
            (longest + "y", "256 bytes"),
            (b"\xff\xfe", "no UTF-8"),
            (b"a\xc3", "cut off"),
            (b"\xed\xa0\x80", "a surrogate"),
            (b"\xc0\xaf", "overlong"),
            ("", "empty"),
            ("a\nb", "a control character"),
        ):
            row = raw.row(bad, memory.address, [64], device=DEVICE)
            e = expect_error("INVALID", raw.register, source, [row])
            assert "name" in str(e), (why, e)
            set_attribute = (_abi.call, "thc_set_attribute", source._shard, row.name)
            expect_error("INVALID", *set_attribute, b"1", 1)

        def rows(memory):
            return {longest: tensor(memory, [32]), widest: tensor(memory, [32], at=32)}

        source.register(rows(memory))
        source.set_attribute(longest, b"value")
        source.publish(1)
        reader = opened(cl, "a", longest, model=longest)
        reader.register(rows(out))
        result = reader.replicate("1")
        assert result.source == widest, result
        assert out.read(0, 64) == memory.read(0, 64)
        found = reader.manifest()
        assert set(found.tensors) == {longest, widest}
        assert found.attributes == {longest: b"value"}
        assert reader.list()[1] == {longest, widest}
        expect_error("INVALID", source.register, [("a", tensor(memory, [1]))] * 2)
        for s in (reader, source):
            s.close()


def attributes():
    piece = content.content(4, 64 << 10)
    with cluster() as cl:
        cl.agent("a")
        source, _ = one(cl, "a", "s")
        source.set_attribute("whole", piece)
        expect_error("LIMIT", source.set_attribute, "more", piece + b"x")
        # What they need together, with names and lengths, is at most 1 MiB.
        for i in range(14):
            source.set_attribute(f"piece {i}", piece)
        expect_error("LIMIT", source.set_attribute, "last", piece)
        source.set_attribute("last", piece[:32_768])
        source.set_attribute("piece 13", b"")
        source.set_attribute("whole", None)
        source.publish(1)
        reader = opened(cl, "a", "r")
        found = reader.manifest().attributes
        expected = {f"piece {i}": piece for i in range(13)}
        assert found == {**expected, "piece 13": b"", "last": piece[:32_768]}, sorted(found)
        for s in (reader, source):
            s.close()


def boxes():
    """What a shard is of the whole stands in the manifest."""
    with cluster() as cl:
        cl.agent("a")
        sources = [opened(cl, "a", "s", shard=i, num_shards=2) for i in range(2)]
        memory = new_memory(2 * 48)
        for i, s in enumerate(sources):
            box = ([4, 6, 4], [2 * i, 0, 0])
            s.register({"w": tensor(memory, [2, 6, 4], at=48 * i, box=box)})
        for op in [s.publish_async(1) for s in sources]:
            op.result()
        probe = opened(cl, "a", "p")
        for i in range(2):
            row = probe.manifest("1", i).tensors["w"]
            assert row.global_shape == (4, 6, 4) and row.offset == (2 * i, 0, 0)
            assert row.shape == (2, 6, 4)
        expect_error("INVALID", probe.manifest, "1", 1024)
        bad = opened(cl, "a", "bad")
        for box in (([4, 6, 4], [3, 0, 0]), ([1, 6, 4], [0, 0, 0]), ([4, 6, 4], [2**64 - 1, 0, 0])):
            e = expect_error("INVALID", bad.register, {"w": tensor(memory, [2, 6, 4], box=box)})
            assert "'w'" in str(e), e
        for s in (*sources, probe, bad):
            s.close()


def many_tensors():
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        size = 24
        memory, out = new_memory(TENSORS * size), new_memory(TENSORS * size)
        memory.write(0, content.content(5, TENSORS * size))
        source, reader = opened(cl, "a", "s"), opened(cl, "b", "r")
        took = {}

        def timed(what, call, *args):
            start = time.monotonic()
            value = call(*args, timeout=60)
            took[what] = round(time.monotonic() - start, 3)
            return value

        def rows(memory):
            starts = range(0, TENSORS * size, size)
            made = (tensor(memory, [2, 3], "F32", at) for at in starts)
            return {f"model.layers.{i}.weight": each for i, each in enumerate(made)}

        timed("register", source.register, rows(memory))
        timed("publish", source.publish, 1)
        timed("register reader", reader.register, rows(out))
        found = timed("manifest", reader.manifest)
        assert len(found.tensors) == TENSORS
        result = timed("replicate", reader.replicate, "1")
        assert result.bytes_moved == TENSORS * size, result
        assert out.read(0, out.bytes) == memory.read(0, memory.bytes)
        assert reader.memory_path("model.layers.77.weight")
        # 131072 are the most; that many and one more are refused before anything is sent.
        other = opened(cl, "a", "x")
        e = expect_error("LIMIT", raw.register, other, [_abi.Tensor()] * 131_073)
        assert "131072" in str(e), e
        other.close()
        timed("close", source.close)
        reader.close()
        print(f"  {TENSORS} tensors: {took}")


def drive(shards, ops):
    """One thread waits for all: poll on the descriptors, then collect."""
    poller = select.poll()
    waiting = {}
    for shard, op in zip(shards, ops):
        fd = shard.fileno()
        waiting[fd] = op
        poller.register(fd, select.POLLIN)
    end = time.monotonic() + 60
    results = []
    while waiting:
        left = end - time.monotonic()
        assert left > 0, f"{len(waiting)} operations have not ended"
        for fd, _ in poller.poll(left * 1000):
            if fd in waiting and waiting[fd].done():
                results.append(waiting.pop(fd).result(0))
                poller.unregister(fd)
    return results


def many_shards():
    size = 10_000
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        groups = {}
        for replica, agent in (("s", "a"), ("r", "b")):
            memory = new_memory(SHARDS * size)
            shards = [
                opened(cl, agent, replica, shard=i, num_shards=SHARDS) for i in range(SHARDS)
            ]
            for i, shard in enumerate(shards):
                shard.register({"w": tensor(memory, [size], at=i * size)})
            groups[replica] = (shards, memory)
        (sources, memory), (readers, out) = groups["s"], groups["r"]
        for version in (1, 2):
            memory.write(0, content.content(version, memory.bytes))
            drive(sources, [s.publish_async(version) for s in sources])
            verb = "replicate_async" if version == 1 else "update_async"
            results = drive(readers, [getattr(r, verb)("latest") for r in readers])
            assert {(r.version, r.updated) for r in results} == {(version, True)}, results
            assert out.read(0, out.bytes) == memory.read(0, memory.bytes)
            assert {r.held for r in readers} == {(0, version)}
            drive(sources, [s.unpublish_async() for s in sources])
        for shard in (*sources, *readers):
            shard.close(abandon=True)


def groups_that_read_from_each_other():
    """Four groups of four on one agent: each in turn publishes, the others take it at the same
    time, from the publisher or from each other as far as they have come."""
    count, size = 4, 3 << 20
    with cluster() as cl:
        cl.agent("a")
        groups = []
        for g in range(count):
            memory = new_memory(count * size)
            shards = [opened(cl, "a", f"g{g}", shard=i, num_shards=count) for i in range(count)]
            for i, shard in enumerate(shards):
                shard.register({"w": tensor(memory, [size], at=i * size)})
            groups.append((shards, memory))
        for version in range(1, ROUNDS + 2):
            shards, memory = groups[version % count]
            data = content.content(version, memory.bytes)
            if shards[0].held:
                drive(shards, [s.unpublish_async() for s in shards])
            memory.write(0, data)
            drive(shards, [s.publish_async(version) for s in shards])
            readers = [s for group, _ in groups if group is not shards for s in group]
            verb = "replicate_async" if version == 1 else "update_async"
            # In another order at each group, so that different shards are ahead.
            order = sorted(readers, key=lambda s: (readers.index(s) * 7 + version * 3) % 12)
            results = drive(order, [getattr(s, verb)("latest") for s in order])
            assert {(r.version, r.updated) for r in results} == {(version, True)}, results
            for group, out in groups:
                assert out.read(0, out.bytes) == data, (version, groups.index((group, out)))
        for group, _ in groups:
            for shard in group:
                shard.close(abandon=True)


if __name__ == "__main__":
    main(
        lineages,
        tied_weights,
        every_dtype_and_odd_shapes,
        nothing_but_empty_tensors,
        names,
        attributes,
        boxes,
        many_tensors,
        many_shards,
        groups_that_read_from_each_other,
    )
