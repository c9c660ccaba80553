# SPDX-License-Identifier: Apache-2.0
"""Bad arguments against a living agent: each has its code and a sentence that names what is
wrong."""

import ctypes as c
import json
import mmap
import os
import subprocess
from contextlib import chdir

from cluster import BUILD, cluster, expect_error, main, with_library

with_library()
import library
import memory_kinds
import raw
import tensorhub as th
from tensorhub import _abi

HUGE = 1 << 62


def opened(cl, replica, **options):
    return library.opened(cl.agents["a"], replica, **options)


def tensor(memory, nbytes, at=0):
    return memory_kinds.Tensor(memory, [nbytes], at=at)


def names(error, *words):
    for word in words:
        assert word in str(error), f"{word!r} is not in: {error}"


def open_arguments():
    with cluster() as cl:
        agent = cl.agent("a")
        for kwargs, word in (
            (dict(model=""), "model"),
            (dict(model="x" * 256), "model"),
            (dict(model="a\nb"), "model"),
            (dict(replica=""), "replica"),
            (dict(num_shards=0), "num_shards"),
            (dict(shard=1, num_shards=1), "shard"),
            (dict(retain="latest,nonsense"), "retain"),
        ):
            args = {"model": "m", "replica": "r", "agent": agent.runtime, **kwargs}
            names(expect_error("INVALID", th.open, **args), word)
        for wrong in ({"struct_size": 0}, {"flags": 1 << 30}):
            names(expect_error("INVALID", raw.open_with, agent, **wrong), *wrong)
        assert _abi.lib.thc_open(None, 1000, c.byref(c.c_void_p())) == th.Invalid.code


def null_handles():
    lib, bad = _abi.lib, th.Invalid.code
    assert lib.thc_close(None, 0, 0) == bad
    assert lib.thc_register(None, None, 0, 0, 0) == bad
    assert lib.thc_unregister(None, 0) == bad
    assert lib.thc_publish(None, 1, 0) == bad
    assert lib.thc_unpublish(None, 0, 0) == bad
    assert lib.thc_replicate(None, b"1", 0, None) == bad
    assert lib.thc_update(None, b"1", 0, None) == bad
    assert lib.thc_list(None, 0, 0, None) == bad
    assert lib.thc_held_version(None, None, None) == bad
    assert lib.thc_ready_version(None, None, None) == bad
    assert lib.thc_follow(None, None, 0, 0) == bad
    assert lib.thc_go(None, 1, 0) == bad
    assert lib.thc_alloc(0, 0, None) == bad
    assert lib.thc_free(c.c_void_p(12345)) == bad
    assert lib.thc_strerror(-5004) and lib.thc_strerror(1)


def tensors():
    with cluster() as cl:
        cl.agent("a")
        memory = memory_kinds.Allocated(1 << 20)
        shard = opened(cl, "r")
        base = memory.address
        t = raw.row

        def bad(code, rows, *words):
            names(expect_error(code, raw.register, shard, rows), *words)

        bad("INVALID", [t("x", base, [100]), t("y", base + 50, [100])], "x", "y")
        bad("INVALID", [t("x", base, [100]), t("x", base + 200, [100])], "x")
        bad("INVALID", [t("", base, [100])], "name")
        bad("INVALID", [t("n" * 256, base, [100])], "name")
        bad("INVALID", [t(b"\xff\xfe", base, [100])], "UTF-8")
        bad("INVALID", [t("over", base, [HUGE, HUGE])], "over")
        bad("INVALID", [t("short", base, [100], nbytes=99)], "short", "99")
        bad("INVALID", [t("null", None, [100])], "null")
        dtype = t("what", base, [100])
        dtype.dtype = 99
        bad("INVALID", [dtype], "what", "dtype")
        dims = t("dims", base, [1])
        dims.ndim = 9
        bad("INVALID", [dims], "dims")
        box = t("box", base, [100])
        box.global_shape[0], box.offset[0] = 150, 60
        bad("INVALID", [box], "box")
        gpu = t("gpu", base, [100])
        gpu.device = 0
        # Without CUDA; where there is one, this process has not begun with it.
        try:
            raw.register(shard, [gpu])
            raise AssertionError("host memory was taken for a GPU's")
        except th.Error as e:
            assert e.name in ("MEMORY_KIND", "INVALID"), e
            names(e, "'gpu'", "GPU 0")
        bad("MEMORY_KIND", [t("behind", base + memory.bytes - 50, [100])], "behind")
        bad("INVALID", [t("unmapped", 4096, [100])], "unmapped", "0x1000")
        private = c.create_string_buffer(100)
        discreet = opened(cl, "discreet", no_memory_fd=True)
        row = t("private", c.addressof(private), [100])
        error = expect_error("MEMORY_KIND", raw.register, discreet, [row])
        names(error, "private", "THC_NO_MEMORY_FD", "thc_alloc")
        discreet.close()
        # After all that the handle works: ties and empty tensors too.
        rows = {"a": tensor(memory, 100), "tied": tensor(memory, 100), "empty": tensor(memory, 0)}
        rows["scalar"] = memory_kinds.Tensor(memory, [], at=200)
        shard.register(rows)
        expect_error("STATE", memory.free)
        expect_error("STATE", shard.register, {"a": tensor(memory, 100)})
        shard.publish(1)
        assert shard.manifest("latest").tensors.keys() == rows.keys()
        expect_error("STATE", shard.unregister)
        shard.unpublish()
        shard.unregister()
        memory.free()
        shard.close()


def a_tensor_missing_at_the_source_is_named():
    with cluster() as cl:
        cl.agent("a")
        memory = memory_kinds.Allocated(1 << 20)
        source, reader = opened(cl, "source"), opened(cl, "reader")
        source.register({"a": tensor(memory, 100)})
        reader.register({"a": tensor(memory, 100, 1000), "only.here": tensor(memory, 10, 2000)})
        source.publish(1)
        names(expect_error("LAYOUT", reader.replicate, "1"), "only.here")
        reader.close()
        source.close()


def a_published_range_is_no_destination():
    with cluster() as cl:
        cl.agent("a")
        memory = memory_kinds.Allocated(1 << 20)
        source, reader = opened(cl, "source"), opened(cl, "reader")
        source.register({"a": tensor(memory, 1000)})
        source.publish(1)

        def overlap():
            reader.register({"a": tensor(memory, 1000, 500)})
            reader.replicate("1")

        expect_error("INVALID", overlap)
        source.close()
        reader.close()


def versions():
    with cluster() as cl:
        cl.agent("a")
        memory = memory_kinds.Allocated(4096)
        shard = opened(cl, "r")
        for spec in (
            "",
            "late",
            "latest-",
            "latest-0",
            "latest-01",
            "-1",
            "1x",
            "18446744073709551616",
            "latest~1",
        ):
            names(expect_error("INVALID", shard.update, spec), "version")
        expect_error("STATE", shard.publish, 1)
        shard.register({"a": tensor(memory, 100)})
        names(expect_error("INVALID", shard.publish, _abi.NO_VERSION), "version")
        expect_error("STATE", shard.unpublish)
        expect_error("TIMEOUT", shard.replicate, "5", timeout=0)
        assert shard.held is None
        shard.publish(2)
        other = opened(cl, "other")
        other.register({"b": tensor(memory, 100, 1000)})
        expect_error("VERSION_CONFLICT", other.publish, 2)
        assert other.held is None
        shard.close()
        other.close()


def imported_memory():
    with cluster() as cl:
        cl.agent("a")
        lib = _abi.lib
        fd = os.memfd_create("mine", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 1 << 20)
        shared = mmap.mmap(fd, 1 << 20)
        address = c.addressof(c.c_char.from_buffer(shared))
        _abi.call("thc_import", address, 1 << 20, fd, 0)
        shard = opened(cl, "r")
        shard.register({"a": shared})
        assert shard.memory_path("a").startswith("direct"), shard.memory_path("a")
        assert lib.thc_forget(address) == th.State.code, "while registered"
        shard.publish(1)
        shard.close()
        _abi.call("thc_forget", address)
        assert lib.thc_forget(address) == th.Invalid.code
        assert lib.thc_import(address, 1 << 20, 9999, 0) < 0
        assert (
            lib.thc_import(address, 2 << 20, fd, 0) == th.Invalid.code
        ), "larger than the file"
        os.close(fd)


def addresses_of_programs():
    """The option is named, what it was, and what is wanted."""
    agent = ["daemon/thagentd", "-c", "/dev/null", "-t"]
    server = ["server/thserverd", "-c", "/dev/null", "-t"]
    good = ["-s", "tcp://host:7070"]
    for argv, option, value in (
        ([*agent, *good, "-d", "host:x"], "-d", "host:x"),
        ([*agent, *good, "-d", "host:65536"], "-d", "host:65536"),
        ([*agent, *good, "-d", ":7071"], "-d", ":7071"),
        ([*agent, *good, "-d", "[::1"], "-d", "[::1"),
        ([*agent, *good, "-o", "data=host:x"], "-d", "host:x"),
        ([*agent, "-s", "host:7070"], "-s", "host:7070"),
        ([*agent, "-s", "tcp://host"], "-s", "tcp://host"),
        ([*agent, "-s", "tcp://host:x"], "-s", "tcp://host:x"),
        ([*agent, "-s", "tcp://host:1,tcp://:2"], "-s", "tcp://:2"),
        ([*server, "-l", "host:7070"], "-l", "host:7070"),
        ([*server, "-l", "tcp://host:x"], "-l", "tcp://host:x"),
        ([*server, "--peers", "tcp://a:1,b:2"], "--peers", "b:2"),
        (["tools/thctl", "-s", "host:x", "status"], "-s", "host:x"),
    ):
        argv[0] = os.path.join(BUILD, argv[0])
        p = subprocess.run(argv, capture_output=True, text=True, timeout=20)
        assert p.returncode in (1, 2), (argv, p)
        for word in (option, value, "write"):
            assert word in p.stderr, f"{word!r} is not in: {p.stderr}"


def a_runtime_folder_by_a_relative_name():
    """It stays right for the agent, thctl and a worker that goes elsewhere; so does a socket's name
    that is looked up again for each connection."""
    with cluster() as cl:
        with chdir(cl.dir):
            agent = cl.agent("a", runtime="a")
            assert agent.info["runtime"] == os.path.join(cl.dir, "a"), agent.info
            # Whether it is attached yet, and so how thctl ends, is not the question.
            status = cl.thctl("-o", "json", "status", agent="a", check=False)
            assert json.loads(status.stdout)["node"] == "a", status
            os.environ["THC_AGENT"] = "a"
            shard, other = th.open("m", replica="r"), th.open("m", replica="s", agent="./a")
            del os.environ["THC_AGENT"]
        for each in (shard, other):
            memory = memory_kinds.Allocated(4096)
            each.register({"a": tensor(memory, 100)}, timeout=20)
            each.close()


if __name__ == "__main__":
    main(
        open_arguments,
        null_handles,
        tensors,
        a_tensor_missing_at_the_source_is_named,
        a_published_range_is_no_destination,
        versions,
        imported_memory,
        addresses_of_programs,
        a_runtime_folder_by_a_relative_name,
    )
