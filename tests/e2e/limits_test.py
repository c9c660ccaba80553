# SPDX-License-Identifier: Apache-2.0
"""Odd and large content: lineages, tied and empty tensors, every dtype, eight dimensions, names
and attributes at their limits, 100,000 tensors, 64 shards, groups that read from each other."""

import ctypes as c
import math
import select
import time

from cluster import LONG, SANITIZED, cluster, expect_error, main, with_library

with_library()
import content
import gpus
import memory_kinds
import thc

TENSORS = 10_000 if SANITIZED else 100_000
SHARDS = 16 if SANITIZED else 64
ROUNDS = 40 if LONG else 3
DEVICE = 0 if gpus.KIND else thc.HOST


def new_memory(nbytes):
    return memory_kinds.wanted(nbytes, device=DEVICE)


def opened(cl, agent, replica, **kwargs):
    return thc.Shard("m", replica, agent=cl.agents[agent].runtime, **kwargs)


def nbytes(shape, dtype):
    bits = thc.lib.thc_dtype_bits(thc.DTYPES[dtype])
    assert bits > 0, dtype
    return (math.prod(shape) * bits + 7) // 8


def tensor(name, address, shape, dtype="U8", box=None):
    """box: (global shape, offset)."""
    t = thc.Tensor(
        name=name.encode() if isinstance(name, str) else name,
        data=address,
        bytes=nbytes(shape, dtype),
        dtype=thc.DTYPES[dtype],
        device=DEVICE,
        ndim=len(shape),
    )
    for i, size in enumerate(shape):
        t.local_shape[i] = size
        if box:
            t.global_shape[i], t.offset[i] = box[0][i], box[1][i]
    return t


def manifest(shard, version="latest", of_shard=0):
    """All of it, with the marks of tied tensors: {name: row}."""
    ptr = c.POINTER(thc.Manifest)()
    thc.call(
        "thc_get_manifest", shard.handle, str(version).encode(), of_shard, 10_000, c.byref(ptr)
    )
    try:
        m = ptr.contents
        return (m.lineage, m.version), {
            t.name.decode(): {
                "dtype": t.dtype,
                "mark": t.data,
                "bytes": t.bytes,
                "shape": list(t.local_shape[: t.ndim]),
                "global": list(t.global_shape[: t.ndim]),
                "offset": list(t.offset[: t.ndim]),
            }
            for t in m.tensors[: m.count]
        }
    finally:
        thc.lib.thc_manifest_free(ptr)


def one(cl, agent, replica, nbytes=4096, **kwargs):
    """A handle with one tensor, and its memory."""
    shard = opened(cl, agent, replica, **kwargs)
    memory = new_memory(nbytes)
    shard.register([tensor("w", memory.address, [nbytes])])
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
        assert reader.replicate("latest")["version"] == 500
        assert reader.held() == (0, 500)
        # The new run begins at a lower number, and still is the newer one.
        new.publish(3)
        assert list(reader.list()["versions"]) == [(0, 500), (7, 3)]
        assert manifest(reader, "latest")[0] == (7, 3)
        result = reader.update("latest")
        assert (result["updated"], result["lineage"], result["version"]) == (1, 7, 3), result
        assert reader.held() == (7, 3) and memory.read(0, 4096) == bytes([2]) * 4096
        # Numbers mean the highest lineage too: 500 is there, but of the old run.
        expect_error("NOT_AVAILABLE", manifest, reader, "500")
        late, late_memory = one(cl, "a", "late")
        expect_error("TIMEOUT", late.replicate, "500", 0.3)
        # When nobody has the new run any more, names mean the old one again. A relative name never
        # moves a handle backward, and reader still holds (7, 3), which counts.
        new.unpublish()
        assert late.replicate("latest")["lineage"] == 7
        late.unpublish()
        reader.unpublish()
        result = late.replicate("latest")
        assert (result["lineage"], result["version"]) == (0, 500), result
        assert late_memory.read(0, 4096) == bytes([1]) * 4096
        # The same number in both lineages are two versions.
        new.publish(500)
        assert list(late.list()["versions"]) == [(0, 500), (7, 500)]
        for s in (old, new, reader, late):
            s.close()


def tied_weights():
    size = 3 << 20
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        memory, out = new_memory(2 * size), new_memory(2 * size)
        memory.write(0, content.content(1, 2 * size))

        def rows(base, tied=True):
            return [
                tensor("embed", base, [size]),
                tensor("head", base if tied else base + 2 * size, [size]),
                tensor("other", base + size, [size]),
                tensor("again", base if tied else base + 3 * size, [size]),
            ]

        source, reader = opened(cl, "a", "s"), opened(cl, "b", "r")
        source.register(rows(memory.address))
        source.publish(1)
        _, found = manifest(reader)
        assert set(found) == {"embed", "head", "other", "again"}
        marks = {name: row["mark"] for name, row in found.items()}
        assert marks["embed"] and marks["embed"] == marks["head"] == marks["again"], marks
        assert marks["other"] != marks["embed"], marks
        reader.register(rows(out.address))
        result = reader.replicate("1")
        assert result["bytes_moved"] == 2 * size, "the tied tensor moves once"
        assert out.read(0, 2 * size) == memory.read(0, 2 * size)
        # A reader that has room for each name of its own is another layout, and so the other way.
        wide = new_memory(4 * size)
        untied = opened(cl, "b", "u")
        untied.register(rows(wide.address, tied=False))
        e = expect_error("LAYOUT", untied.replicate, "1", 10)
        assert "again" in e.text or "head" in e.text or "embed" in e.text, e.text
        # The same bytes under another type or shape are no tie.
        bad = opened(cl, "a", "bad")
        for other in (
            tensor("b", memory.address, [size // 2], "BF16"),
            tensor("b", memory.address, [size // 4, 4]),
            tensor("b", memory.address + 1, [size]),
            tensor("b", memory.address, [size - 1]),
        ):
            e = expect_error("INVALID", bad.register, [tensor("a", memory.address, [size]), other])
            assert "'a'" in e.text and "'b'" in e.text, e.text
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
        rows = [(f"{d}.{n}", s, d) for d in thc.DTYPES for n, s in shapes.items()]
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

        def place(base):
            return [
                tensor(name, base + at if nbytes(shape, dtype) else None, shape, dtype)
                for (name, shape, dtype), at in zip(rows, starts)
            ]

        memory, out = new_memory(end), new_memory(end)
        data = content.content(2, end)
        memory.write(0, data)
        source, reader = opened(cl, "a", "s"), opened(cl, "b", "r")
        source.register(place(memory.address))
        source.publish(1)
        _, found = manifest(reader)
        assert {n: (r["shape"], r["dtype"]) for n, r in found.items()} == {
            n: (s, thc.DTYPES[d]) for n, s, d in rows
        }
        reader.register(place(out.address))
        assert reader.replicate("1")["bytes_moved"] == total
        for (name, shape, dtype), at in zip(rows, starts):
            size = nbytes(shape, dtype)
            assert out.read(at, size) == data[at : at + size], name
        # One byte less or more than dtype and shape make, and a ninth dimension.
        bad = opened(cl, "a", "bad")
        for wrong in (52, 54):
            t = tensor("t", memory.address, [3, 5, 7], "F4")
            t.bytes = wrong
            expect_error("INVALID", bad.register, [t])
        t = tensor("t", memory.address, [1])
        t.ndim = 9
        expect_error("INVALID", bad.register, [t])
        for s in (source, reader, bad):
            s.close()


def nothing_but_empty_tensors():
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        rows = [tensor("x", None, [0]), tensor("y", None, [4, 0], "F32")]
        source, reader = opened(cl, "a", "s"), opened(cl, "b", "r")
        expect_error("INVALID", source.register, [])
        source.register(rows)
        source.publish(1)
        reader.register(rows)
        result = reader.replicate("latest")
        assert (result["updated"], result["bytes_moved"]) == (1, 0), result
        source.unpublish()
        source.publish(2)
        assert reader.update("latest")["version"] == 2
        for s in (source, reader):
            s.close()


def names():
    longest = "ä" * 127 + "x"  # 255 bytes
    widest = "\U0001f9e0" * 63 + "abc"  # 255 bytes
    with cluster() as cl:
        cl.agent("a")
        memory, out = new_memory(64), new_memory(64)
        memory.write(0, content.content(3, 64))
        source = thc.Shard(longest, widest, agent=cl.agents["a"].runtime)
        for bad, why in (
            (longest + "y", "256 bytes"),
            (b"\xff\xfe", "no UTF-8"),
            (b"a\xc3", "cut off"),
            (b"\xed\xa0\x80", "a surrogate"),
            (b"\xc0\xaf", "overlong"),
            ("", "empty"),
            ("a\nb", "a control character"),
        ):
            e = expect_error("INVALID", source.register, [tensor(bad, memory.address, [64])])
            assert "name" in e.text, (why, e.text)
            raw = bad.encode() if isinstance(bad, str) else bad
            expect_error(
                "INVALID", thc.call, "thc_set_attribute", source.handle, raw, b"1", 1
            )

        def rows(base):
            return [tensor(longest, base, [32]), tensor(widest, base + 32, [32])]

        source.register(rows(memory.address))
        source.set_attribute(longest, b"value")
        source.publish(1)
        reader = thc.Shard(longest, longest, agent=cl.agents["a"].runtime)
        reader.register(rows(out.address))
        result = reader.replicate("1")
        assert result["source"] == widest, result
        assert out.read(0, 64) == memory.read(0, 64)
        assert set(manifest(reader)[1]) == {longest, widest}
        assert reader.manifest()["attributes"] == {longest: b"value"}
        assert set(reader.list()["versions"][(0, 1)]) == {longest, widest}
        e = expect_error("INVALID", source.register, [tensor("a", memory.address, [1])] * 2)
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
        found = reader.manifest()["attributes"]
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
            s.register(
                [
                    tensor(
                        "w", memory.address + 48 * i, [2, 6, 4], box=([4, 6, 4], [2 * i, 0, 0])
                    )
                ]
            )
        submitted = [submit(s, "publish", c.c_uint64(1)) for s in sources]
        for op in submitted:
            op.wait()
        probe = opened(cl, "a", "p")
        for i in range(2):
            (_, found) = manifest(probe, "1", i)
            assert found["w"]["global"] == [4, 6, 4] and found["w"]["offset"] == [2 * i, 0, 0]
            assert found["w"]["shape"] == [2, 6, 4]
        expect_error("INVALID", manifest, probe, "1", 1024)
        bad = opened(cl, "a", "bad")
        for box in (([4, 6, 4], [3, 0, 0]), ([1, 6, 4], [0, 0, 0]), ([4, 6, 4], [2**64 - 1, 0, 0])):
            e = expect_error(
                "INVALID", bad.register, [tensor("w", memory.address, [2, 6, 4], box=box)]
            )
            assert "'w'" in e.text, e.text
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
            value = call(*args)
            took[what] = round(time.monotonic() - start, 3)
            return value

        def rows(base):
            array = (thc.Tensor * TENSORS)()
            for i in range(TENSORS):
                array[i].name = b"model.layers.%d.weight" % i
                array[i].data = base + i * size
                array[i].bytes, array[i].dtype = size, thc.DTYPES["F32"]
                array[i].device, array[i].ndim = DEVICE, 2
                array[i].local_shape[0], array[i].local_shape[1] = 2, 3
            return array

        def register(shard, array):
            thc.call(
                "thc_register", shard.handle, array, TENSORS, c.sizeof(thc.Tensor), 60_000
            )

        timed("register", register, source, rows(memory.address))
        timed("publish", source.publish, 1)
        timed("register reader", register, reader, rows(out.address))
        _, found = timed("manifest", manifest, reader)
        assert len(found) == TENSORS
        result = timed("replicate", reader.replicate, "1")
        assert result["bytes_moved"] == TENSORS * size, result
        assert out.read(0, out.bytes) == memory.read(0, memory.bytes)
        path = c.create_string_buffer(200)
        thc.call("thc_memory_path", reader.handle, b"model.layers.77.weight", path, 200)
        # 131072 are the most; that many and one more are refused before anything is sent.
        array = (thc.Tensor * 131_073)()
        e = expect_error(
            "LIMIT",
            thc.call,
            "thc_register",
            opened(cl, "a", "x").handle,
            array,
            len(array),
            c.sizeof(thc.Tensor),
            1000,
        )
        assert "131072" in e.text, e.text
        timed("close", source.close)
        reader.close()
        print(f"  {TENSORS} tensors: {took}")


def submit(shard, verb, *args):
    op = c.c_void_p()
    lib_call = getattr(thc.lib, f"thc_{verb}_submit")
    rc = lib_call(shard.handle, *args, c.c_int64(60_000), c.byref(op))
    if rc < 0:
        raise thc.ThcError(verb, rc, thc.lib.thc_errmsg().decode())
    return thc.Op(op)


def drive(shards, ops):
    """One thread waits for all: poll on the descriptors, then collect."""
    poller = select.poll()
    waiting = {}
    for shard, op in zip(shards, ops):
        fd = thc.lib.thc_fd(shard.handle)
        waiting[fd] = op
        poller.register(fd, select.POLLIN)
    end = time.monotonic() + 60
    results = []
    while waiting:
        left = end - time.monotonic()
        assert left > 0, f"{len(waiting)} operations have not ended"
        for fd, _ in poller.poll(left * 1000):
            if fd in waiting and waiting[fd].done():
                op = waiting.pop(fd)
                results.append(op.wait(0))
                op.free()
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
                shard.register([tensor("w", memory.address + i * size, [size])])
            groups[replica] = (shards, memory)
        (sources, memory), (readers, out) = groups["s"], groups["r"]
        for version in (1, 2):
            memory.write(0, content.content(version, memory.bytes))
            drive(sources, [submit(s, "publish", c.c_uint64(version)) for s in sources])
            verb = "replicate" if version == 1 else "update"
            results = drive(readers, [submit(r, verb, b"latest") for r in readers])
            assert {(r["version"], r["updated"]) for r in results} == {(version, 1)}, results
            assert out.read(0, out.bytes) == memory.read(0, memory.bytes)
            assert {r.held() for r in readers} == {(0, version)}
            drive(sources, [submit(s, "unpublish", c.c_uint32(0)) for s in sources])
        for shard in (*sources, *readers):
            shard.close(flags=1)


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
                shard.register([tensor("w", memory.address + i * size, [size])])
            groups.append((shards, memory))
        for version in range(1, ROUNDS + 2):
            shards, memory = groups[version % count]
            data = content.content(version, memory.bytes)
            if shards[0].held():
                drive(shards, [submit(s, "unpublish", c.c_uint32(0)) for s in shards])
            memory.write(0, data)
            drive(shards, [submit(s, "publish", c.c_uint64(version)) for s in shards])
            readers = [s for group, _ in groups if group is not shards for s in group]
            verb = "replicate" if version == 1 else "update"
            # In another order at each group, so that different shards are ahead.
            order = sorted(readers, key=lambda s: (readers.index(s) * 7 + version * 3) % 12)
            results = drive(order, [submit(s, verb, b"latest") for s in order])
            assert {(r["version"], r["updated"]) for r in results} == {(version, 1)}, results
            for group, out in groups:
                assert out.read(0, out.bytes) == data, (version, groups.index((group, out)))
        for group, _ in groups:
            for shard in group:
                shard.close(flags=1)


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
