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
import thc

HUGE = 1 << 62
NO_MEMORY_FD = 1 << 3


def opened(cl, replica, **kwargs):
    return thc.Shard("m", replica, agent=cl.agents["a"].runtime, **kwargs)


def names(error, *words):
    for word in words:
        assert word in error.text, f"{word!r} is not in: {error.text}"


def open_arguments():
    with cluster() as cl:
        agent = cl.agent("a").runtime
        for kwargs, word in (
            (dict(model=""), "model"),
            (dict(model="x" * 256), "model"),
            (dict(model="a\nb"), "model"),
            (dict(replica=""), "replica"),
            (dict(num_shards=0), "num_shards"),
            (dict(shard=1, num_shards=1), "shard"),
            (dict(flags=1 << 30), "flags"),
            (dict(retain="latest,nonsense"), "retain"),
        ):
            args = {"model": "m", "replica": "r", "agent": agent, **kwargs}
            names(expect_error("INVALID", thc.Shard, **args), word)
        handle = c.c_void_p()
        opts = thc.OpenOpts(struct_size=0, model=b"m", replica=b"r", num_shards=1)
        assert thc.lib.thc_open(c.byref(opts), 1000, c.byref(handle)) == thc.CODES["INVALID"]
        assert b"struct_size" in thc.lib.thc_errmsg()
        assert thc.lib.thc_open(None, 1000, c.byref(handle)) == thc.CODES["INVALID"]


def null_handles():
    lib, bad = thc.lib, thc.CODES["INVALID"]
    assert lib.thc_close(None, 0, 0) == bad
    assert lib.thc_register(None, None, 0, 0, 0) == bad
    assert lib.thc_unregister(None, 0) == bad
    assert lib.thc_publish(None, 1, 0) == bad
    assert lib.thc_unpublish(None, 0, 0) == bad
    assert lib.thc_replicate(None, b"1", 0, None) == bad
    assert lib.thc_update(None, b"1", 0, None) == bad
    assert lib.thc_list(None, 0, 0, None) == bad
    assert lib.thc_held_version(None, None, None) == bad
    assert lib.thc_alloc(0, 0, None) == bad
    assert lib.thc_free(c.c_void_p(12345)) == bad
    assert lib.thc_strerror(-5004) and lib.thc_strerror(1)


def tensors():
    with cluster() as cl:
        cl.agent("a")
        memory = thc.Memory(1 << 20)
        shard = opened(cl, "r")
        base = memory.address
        t = thc.tensor

        def bad(code, rows, *words):
            names(expect_error(code, shard.register, rows), *words)

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
            shard.register([gpu])
            raise AssertionError("host memory was taken for a GPU's")
        except thc.ThcError as e:
            assert e.name in ("MEMORY_KIND", "INVALID"), e
            names(e, "'gpu'", "GPU 0")
        bad("MEMORY_KIND", [t("behind", base + memory.bytes - 50, [100])], "behind")
        bad("INVALID", [t("unmapped", 4096, [100])], "unmapped", "0x1000")
        private = c.create_string_buffer(100)
        discreet = opened(cl, "discreet", flags=NO_MEMORY_FD)
        row = t("private", c.addressof(private), [100])
        error = expect_error("MEMORY_KIND", discreet.register, [row])
        names(error, "private", "THC_NO_MEMORY_FD", "thc_alloc")
        discreet.close()
        # After all that the handle works: ties and empty tensors too.
        shard.register(
            [
                t("a", base, [100]),
                t("tied", base, [100]),
                t("empty", None, [0]),
                t("scalar", base + 200, []),
            ]
        )
        expect_error("STATE", memory.free)
        expect_error("STATE", shard.register, [t("a", base, [100])])
        shard.publish(1)
        rows = shard.manifest("latest")["tensors"]
        assert {r[0] for r in rows} == {"a", "tied", "empty", "scalar"}, rows
        expect_error("STATE", shard.unregister)
        shard.unpublish()
        shard.unregister()
        memory.free()
        shard.close()


def a_tensor_missing_at_the_source_is_named():
    with cluster() as cl:
        cl.agent("a")
        memory = thc.Memory(1 << 20)
        source, reader = opened(cl, "source"), opened(cl, "reader")
        source.register([thc.tensor("a", memory.address, [100])])
        reader.register(
            [
                thc.tensor("a", memory.address + 1000, [100]),
                thc.tensor("only.here", memory.address + 2000, [10]),
            ]
        )
        source.publish(1)
        names(expect_error("LAYOUT", reader.replicate, "1"), "only.here")
        reader.close()
        source.close()


def a_published_range_is_no_destination():
    with cluster() as cl:
        cl.agent("a")
        memory = thc.Memory(1 << 20)
        source, reader = opened(cl, "source"), opened(cl, "reader")
        source.register([thc.tensor("a", memory.address, [1000])])
        source.publish(1)

        def overlap():
            reader.register([thc.tensor("a", memory.address + 500, [1000])])
            reader.replicate("1")

        expect_error("INVALID", overlap)
        source.close()
        reader.close()


def versions():
    with cluster() as cl:
        cl.agent("a")
        memory = thc.Memory(4096)
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
        shard.register([thc.tensor("a", memory.address, [100])])
        names(expect_error("INVALID", shard.publish, thc.NO_VERSION), "version")
        expect_error("STATE", shard.unpublish)
        expect_error("TIMEOUT", shard.replicate, "5", timeout=0)
        assert shard.held() is None
        shard.publish(2)
        other = opened(cl, "other")
        other.register([thc.tensor("b", memory.address + 1000, [100])])
        expect_error("VERSION_CONFLICT", other.publish, 2)
        assert other.held() is None
        shard.close()
        other.close()


def imported_memory():
    with cluster() as cl:
        cl.agent("a")
        lib = thc.lib
        fd = os.memfd_create("mine", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 1 << 20)
        shared = mmap.mmap(fd, 1 << 20)
        address = c.addressof(c.c_char.from_buffer(shared))
        thc.call("thc_import", address, 1 << 20, fd, 0)
        shard = opened(cl, "r")
        shard.register([thc.tensor("a", address, [1 << 20])])
        path = c.create_string_buffer(200)
        thc.call("thc_memory_path", shard.handle, b"a", path, 200)
        assert path.value.startswith(b"direct"), path.value
        assert lib.thc_forget(address) == thc.CODES["STATE"], "while registered"
        shard.publish(1)
        shard.close()
        thc.call("thc_forget", address)
        assert lib.thc_forget(address) == thc.CODES["INVALID"]
        assert lib.thc_import(address, 1 << 20, 9999, 0) < 0
        assert (
            lib.thc_import(address, 2 << 20, fd, 0) == thc.CODES["INVALID"]
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
            shard, other = thc.Shard("m", "r"), thc.Shard("m", "s", agent="./a")
            del os.environ["THC_AGENT"]
        for each in (shard, other):
            memory = thc.Memory(4096)
            each.register([thc.tensor("a", memory.address, [100])])
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
