# SPDX-License-Identifier: Apache-2.0
"""What callers do wrong: an exception with its sentence, nothing changed, nothing left open."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import types

import pytest
import tensorhub as th
from conftest import memory
from tensorhub import _abi

SMALL = 4096


@pytest.fixture(autouse=True)
def nothing_is_left(agent):
    yield
    assert not th.handles()


@pytest.fixture
def handle(agent, model):
    """Open, with one tensor. Whatever was refused, it publishes at the end."""
    with th.open(model, replica="r") as handle:
        weights = memory(1, SMALL)
        handle.register({"w": weights})
        yield handle
        handle.publish(7)
        handle.unpublish()


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"model": b"m"}, "model: b'm' is no str"), ({"model": "a\0b"}, "null character"),
        ({"model": "\ud800"}, "is no UTF-8"), ({"model": ""}, "model: must be"),
        ({"replica": 5}, "replica: 5 is no str"), ({"replica": "a/b\n"}, "replica: "),
        ({"agent": 5}, "agent: 5 is no str"), ({"launch_id": b"1"}, "launch_id: b'1' is no str"),
        ({"shard": -1}, "shard: -1"), ({"shard": True}, "shard: True"),
        ({"shard": 2, "num_shards": 2}, "not below num_shards"), ({"num_shards": 0}, "num_shards"),
        ({"lineage": 1.0}, "lineage: 1.0"), ({"retain": -1}, "retain: -1"),
        ({"retain": "newest"}, '"newest" is no rule'), ({"retain": [None]}, '"None" is no rule'),
        ({"retain": 5.0}, "retain: 5.0 is no rule"), ({"timeout": -1}, "timeout: -1"),
    ],
)  # fmt: skip
def test_open_names_a_bad_argument(agent, model, arguments, sentence):
    arguments = {"model": model, **arguments}

    async def in_a_loop():
        await th.aio.open(**arguments)

    with pytest.raises(th.Invalid, match=sentence):
        th.open(**arguments)
    with pytest.raises(th.Invalid, match=sentence):
        asyncio.run(in_a_loop())


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda m: th.watch(m, timeout=-1), "timeout: -1"), (lambda m: th.watch(5), "model: 5"),
        (lambda m: th.load(m, timeout="1"), "timeout: '1'"), (lambda m: th.load(5), "model: 5"),
        (lambda m: th.load(m, "newest"), "'newest' is neither"),
        (lambda m: th.empty((2, -1), "U8"), "shape: .2, -1. has a number that is negative"),
        (lambda m: th.empty((1.5,), "U8"), "shape: .1.5,. is no sequence of whole numbers"),
        (lambda m: th.empty(4, "U8"), "shape: 4 is no sequence"),
        (lambda m: th.empty((2**62 + 1,), "F32"), "more than an address"),
        (lambda m: th.empty((4,), "X9"), "dtype: 'X9'"), (lambda m: th.share_(5), "module: 5"),
    ],
)  # fmt: skip
def test_a_function_names_a_bad_argument(agent, model, call, sentence):
    with pytest.raises(th.Invalid, match=sentence):
        call(model)


class OnGpu:
    """As torch would have it, where there is no GPU of that number."""

    device = types.SimpleNamespace(type="cuda", index=9)
    layout, dtype, shape = "torch.strided", "float32", (4,)
    is_conj = is_neg = lambda self: False
    is_contiguous = lambda self: True
    data_ptr = lambda self: 0x7F0000000000
    numel = element_size = lambda self: 4


class OnAnother(OnGpu):
    device = types.SimpleNamespace(type="mps", index=0)


class Nowhere:
    __cuda_array_interface__ = {
        "shape": (4,), "typestr": "<f4", "data": (1 << 40, False), "version": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    "tensors, kind, sentence",
    [
        (None, th.Invalid, "neither a mapping nor pairs"), (5, th.Invalid, "neither a mapping"),
        ({"a\0b": memory(1)}, th.Invalid, "null character"), ({}, th.Invalid, "at least one"),
        ({"\ud800": memory(1)}, th.Invalid, "is no UTF-8"),
        ({b"a": memory(1)}, th.Invalid, "the name b'a' is no str"),
        ([("a", memory(1)), ("a", memory(2))], th.Invalid, "two tensors have the name 'a'"),
        ({"a": OnGpu()}, th.MemoryKind, "'a' is said to lie on GPU 9"),
        ({"a": OnAnother()}, th.Invalid, "'a' lies on device mps"),
        ({"a": Nowhere()}, th.Invalid, "'a' does not say on which GPU"),
        ({"a": th.Part(memory(1), ("x",), (0,))}, th.Invalid, "'a': global_shape: "),
        ({"a": th.Part(memory(1), 8, 0)}, th.Invalid, "'a': global_shape: 8 is no sequence"),
        ({"a": th.Part(memory(1), (2**70,), (0,))}, th.Invalid, "'a': global_shape: "),
        ({"a": th.Part(memory(1), (1 << 20,), (-1,))}, th.Invalid, "'a': offset: "),
        ({"a": th.Part(memory(1), (1 << 20,), (1,))}, th.Invalid, "out of its global shape"),
    ],
)  # fmt: skip
def test_register_names_what_is_wrong(agent, model, tensors, kind, sentence):
    with th.open(model, replica="r") as handle:
        with pytest.raises(kind, match=sentence):
            handle.register(tensors)
        handle.register({"w": memory(1, SMALL)})


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda h: h.update("newest"), "'newest' is neither"), (lambda h: h.update(b"1"), "b'1'"),
        (lambda h: h.replicate("late\0st"), "null character"),
        (lambda h: h.replicate(None), "version: None"),
        (lambda h: h.update_async("newest"), "'newest' is neither"),
        (lambda h: h.set_attribute("a", "text"), "str is no bytes"),
        (lambda h: h.set_attribute("a\0b", b""), "null character"),
        (lambda h: h.memory_path("x"), "no tensor 'x'"), (lambda h: h.memory_path(5), "name: 5"),
        (lambda h: h.publish_async(1, timeout=-1), "timeout: -1"),
        (lambda h: h.wait(lambda versions: True, timeout=-0.5), "timeout: -0.5"),
        (lambda h: h.close(timeout=-1), "timeout: -1"),
        (lambda h: h.allocate(timeout=-1), "timeout: -1"),
        (lambda h: h.resolve(timeout=-1), "timeout: -1"),
        (lambda h: h.unpublish(timeout=-1), "timeout: -1"),
        (lambda h: h.register({"x": memory(1)}, timeout=-1), "timeout: -1"),
    ],
)  # fmt: skip
def test_a_verb_names_a_bad_argument(handle, call, sentence):
    with pytest.raises(th.Invalid, match=sentence):
        call(handle)


def test_an_operation_names_a_bad_timeout(handle):
    op = handle.replicate_async(9, timeout=60)
    with pytest.raises(th.Invalid, match="timeout: -1"):
        op.result(timeout=-1)
    op.cancel()
    with pytest.raises(th.Cancelled):
        op.result(timeout=20)


def test_what_is_registered_cannot_be_resized(handle):
    """Python itself refuses it, until the tensor is given back."""
    grows = bytearray(SMALL)
    handle.unregister()
    handle.register({"w": grows})
    with pytest.raises(BufferError):
        grows.extend(b"1")
    handle.publish(1)
    handle.unpublish()
    handle.unregister()
    grows.extend(b"1")
    handle.register({"w": grows})


# Every public call but close, which may be called twice.
VERBS = {
    "register": ({"w": memory(1, SMALL)},), "unregister": (), "publish": (1,), "unpublish": (),
    "replicate": (), "update": (), "resolve": (), "list": (), "wait": (lambda versions: True,),
    "manifest": (), "allocate": (),
}  # fmt: skip
SUBMITS = {"publish_async": (1,), "unpublish_async": (), "replicate_async": (), "update_async": ()}
ASKS = {"fileno": (), "memory_path": ("w",), "set_attribute": ("a", b"")}


@pytest.mark.parametrize("verb", [*VERBS, *SUBMITS, *ASKS])
def test_use_after_close(agent, model, verb):
    handle = th.open(model, replica="r")
    handle.register({"w": memory(1, SMALL)})
    handle.close()
    with pytest.raises(th.State, match="is closed"):
        getattr(handle, verb)(*{**VERBS, **SUBMITS, **ASKS}[verb])


def test_use_after_close_in_a_loop(agent, model):
    async def work():
        async with th.aio.open(model, replica="r") as handle, th.aio.watch(model) as watch:
            pass
        for verb, arguments in VERBS.items():
            with pytest.raises(th.State, match="is closed"):
                await getattr(handle, verb)(*arguments)
        for verb, arguments in {"list": (), "wait": VERBS["wait"], "manifest": ()}.items():
            with pytest.raises(th.State, match="is closed"):
                await getattr(watch, verb)(*arguments)
        await handle.close()
        await watch.close()

    asyncio.run(work())


def test_an_operation_after_the_close_of_its_handle(agent, model):
    handle = th.open(model, replica="r")
    handle.register({"w": memory(1, SMALL)})
    op = handle.replicate_async(9, timeout=60)
    handle.close()
    with pytest.raises(th.Cancelled):
        op.result(timeout=20)
    assert op.done()
    op.cancel()


# ---- other processes ----------------------------------------------------------------------------


def child(model, answer):
    """In a process that has only been told a name: its own handle, and nothing of its parent's."""
    weights = memory(0, SMALL)
    with th.open(model, replica="child") as handle:
        handle.register({"w": weights})
        result = handle.replicate(1, timeout=60)
        answer.send((result.version, bytes(weights[:1]), th.handles()))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_opens_its_own_handle(agent, model, method):
    context = multiprocessing.get_context(method)
    mine, other = context.Pipe()
    with th.open(model, replica="parent") as parent:
        parent.register({"w": memory(5, SMALL)})
        parent.publish(1)
        process = context.Process(target=child, args=(model, other))
        process.start()
        try:
            assert mine.poll(60)
            version, byte, open_there = mine.recv()
        finally:
            process.join(20)
            process.kill()
        assert process.exitcode == 0 and (version, byte) == (1, b"\5")
        inherited = {parent.label} if method == "fork" else set()
        assert open_there == {f"{model}/child/0"} | inherited
        parent.unpublish()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_handle_cannot_be_given_to_a_child(handle, method):
    context = multiprocessing.get_context(method)
    with pytest.raises(th.State, match="belongs to its process"):
        context.Process(target=print, args=(handle,)).start()


# ---- the library --------------------------------------------------------------------------------


def imported(library):
    env = {**os.environ, "THC_LIBRARY": str(library)}
    command = [sys.executable, "-c", "import tensorhub"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_a_library_of_another_version(tmp_path):
    names = [name for name in _abi.PROTOTYPES if name != "thc_version_string"]
    source, library = tmp_path / "other.c", tmp_path / "libthc.so.2"
    source.write_text(
        "".join(f"void {name}(void) {{}}\n" for name in names)
        + 'const char *thc_version_string(void) { return "2.3.4"; }\n'
    )
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=60)
    said = imported(library)
    assert said.returncode == 1
    assert f"ImportError: tensorhub: {library} is libthc 2.3.4, and this" in said.stderr


@pytest.mark.parametrize(
    "library, sentence",
    [("/nowhere/libthc.so.1", "cannot be loaded"), ("libc.so.6", "is no libthc that this package")],
)
def test_what_is_no_libthc(library, sentence):
    said = imported(library)
    assert said.returncode == 1 and "ImportError: tensorhub: " in said.stderr
    assert sentence in said.stderr and library in said.stderr
