# SPDX-License-Identifier: Apache-2.0
"""publish waits for the streams that write its tensors, before the agent hears of it.

On the GPUs of tests/support/cuda. What torch would be asked is asked of a torch of this test.
"""

import asyncio
import ctypes as c
import os
import sys
import threading
import types

import cluster
import gpu_driver
import pytest
import tensorhub as th

SIZE = 1 << 20


@pytest.fixture(scope="session")
def daemons():
    """With GPUs, whose driver this process has as well."""
    cluster.library_is_here = True
    made = cluster.Cluster(has_gpus=True)
    failed = True
    try:
        made.agent("a")
        failed = False
        yield made
    finally:
        gpu_driver.driver().leave()
        made.close(failed)


@pytest.fixture
def gpus(daemons):
    return daemons.gpus


class Array:
    """What cupy and numba hand out: memory of a GPU, and the stream that it is written on."""

    def __init__(self, device=0, stream=None, fill=0):
        self.memory = gpu_driver.Legacy(SIZE, device)
        self.memory.fill(fill)
        self.device, self.stream = types.SimpleNamespace(id=device), stream

    @property
    def __cuda_array_interface__(self):
        place = {"shape": (SIZE,), "typestr": "|u1", "data": (self.memory.address, False)}
        return {**place, "version": 3, "stream": self.stream}


class TorchTensor:
    """As much of a tensor of torch on a GPU as is looked at."""

    dtype, layout, shape = "torch.uint8", "torch.strided", (SIZE,)

    def __init__(self, device=0, fill=0):
        self.array = Array(device, fill=fill)
        self.device = types.SimpleNamespace(type="cuda", index=device)
        self.data_ptr = lambda: self.array.memory.address
        self.numel, self.element_size = lambda: SIZE, lambda: 1
        self.is_contiguous, self.is_conj, self.is_neg = lambda: True, lambda: False, lambda: False


class Capsule:
    """Who speaks DLPack only, on a GPU."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__dlpack__ = lambda **options: tensor
        self.__dlpack_device__ = lambda: (2, tensor.device.index)


class Recorder:
    """A stream, as torch's are: it writes down that it was waited for, and what was listed then."""

    def __init__(self, seen, name, look=None, queries=0):
        self.seen, self.name, self.look, self.queries = seen, name, look, queries

    def synchronize(self):
        self.seen.append((self.name, self.look() if self.look else None))

    def query(self):
        self.queries -= 1
        if self.queries < 0:
            self.seen.append((self.name, self.look() if self.look else None))
        return self.queries < 0


@pytest.fixture
def torch(monkeypatch):
    """A torch whose current streams write down who waits for them, and who takes what in."""
    fake = types.SimpleNamespace(seen=[], look=None)

    def current_stream(device):
        return Recorder(fake.seen, f"torch {device}", fake.look)

    def from_dlpack(capsule):
        fake.seen.append(("taken in", None))
        return capsule.__dlpack__()

    fake.cuda, fake.from_dlpack = types.SimpleNamespace(current_stream=current_stream), from_dlpack
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@pytest.fixture
def trainer(agent, model):
    with th.open(model, replica="trainer") as handle:
        yield handle
        handle.close(abandon=True)


@pytest.fixture
def watcher(agent, model):
    with th.open(model, replica="watcher") as handle:
        yield handle


def calls(gpus, name="cuStreamSynchronize"):
    return max(gpus.calls(os.getpid(), name), 0)


def driver_stream():
    cuda = gpu_driver.driver()
    cuda.current(0)
    return cuda.number("cuStreamCreateWithPriority", 1, 0, kind=c.c_void_p)


# ---- torch ---------------------------------------------------------------------------------------


def test_torch_is_asked_once_for_each_gpu_before_the_agent_hears(torch, trainer, watcher, gpus):
    torch.look = lambda: dict(watcher.list())
    trainer.register({"a": TorchTensor(1), "b": TorchTensor(0), "c": TorchTensor(1)})
    before = calls(gpus)
    trainer.publish(1)
    assert sorted(torch.seen) == [("torch 0", {}), ("torch 1", {})]
    assert dict(watcher.list()) == {1: {"trainer"}} and calls(gpus) == before


def test_submit_forms_wait_as_well(torch, trainer, watcher):
    torch.look = lambda: dict(watcher.list())
    trainer.register({"a": TorchTensor()})
    trainer.publish_async(1).result(20)
    assert torch.seen == [("torch 0", {})]


def test_a_stream_that_is_given_is_the_only_one(torch, trainer):
    trainer.register({"a": TorchTensor()})
    trainer.publish(1, stream=Recorder(torch.seen, "mine"))
    assert torch.seen == [("mine", None)]


def test_false_waits_for_none(torch, trainer, gpus):
    trainer.register({"a": TorchTensor(), "b": Array()})
    before = calls(gpus)
    trainer.publish(1, stream=False)
    assert not torch.seen and calls(gpus) == before


def test_host_memory_waits_for_none(torch, trainer, gpus):
    trainer.register({"a": bytearray(64)})
    before = calls(gpus)
    trainer.publish(1)
    assert not torch.seen and calls(gpus) == before


def test_what_is_wrong_is_said_before_any_waiting(torch, trainer):
    trainer.register({"a": TorchTensor()})
    with pytest.raises(th.Invalid, match="version"):
        trainer.publish("1")
    trainer.close()
    with pytest.raises(th.State):
        trainer.publish(1)
    assert not torch.seen


def test_a_capsule_is_taken_in_again_and_then_torch_is_asked(torch, trainer):
    trainer.register({"a": Capsule(TorchTensor(1))})
    torch.seen.clear()
    trainer.publish(1)
    assert torch.seen == [("taken in", None), ("torch 1", None)]


@pytest.mark.parametrize("modules, sentence", [((), "import torch first"), (("numpy",), "torch")])
def test_a_capsule_on_a_gpu_needs_torch(trainer, monkeypatch, modules, sentence):
    capsule = Capsule(TorchTensor())
    for name in ("torch", "numpy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in modules:
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace())
    with pytest.raises(th.Invalid, match=f"'a'.*{sentence}"):
        trainer.register({"a": capsule})


def test_a_stream_that_fails_publishes_nothing(torch, trainer, watcher):
    def fails():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    trainer.register({"a": TorchTensor()})
    torch.look = fails
    with pytest.raises(RuntimeError, match="illegal memory access"):
        trainer.publish(1)
    assert trainer.version is None and not watcher.list()
    torch.look = None
    trainer.publish(1)


# ---- the driver ----------------------------------------------------------------------------------


def test_arrays_name_their_stream_when_they_are_published(trainer, gpus):
    one, two = driver_stream(), driver_stream()
    arrays = {"a": Array(stream=one), "b": Array(stream=one), "c": Array(stream=two)}
    trainer.register(arrays)
    before = calls(gpus)
    trainer.publish(1)
    assert calls(gpus) == before + 2
    trainer.unpublish()
    for array in arrays.values():
        array.stream = two
    trainer.publish(2)
    assert calls(gpus) == before + 3


@pytest.mark.parametrize("stream", [None, 1, 2, 0])
def test_the_default_stream_is_that_of_each_gpu(trainer, gpus, stream):
    trainer.register({"a": Array(0, stream), "b": Array(1, stream), "c": Array(1, stream)})
    before, contexts = calls(gpus), gpus.holds(os.getpid(), "contexts")
    trainer.publish(1)
    assert calls(gpus) == before + 2
    assert gpus.holds(os.getpid(), "contexts") == contexts


@pytest.mark.parametrize("form", ["number", "protocol", "pointer"])
def test_streams_are_given_in_three_forms(trainer, gpus, form):
    number = driver_stream()
    stream = {
        "number": number,
        "protocol": types.SimpleNamespace(__cuda_stream__=lambda: (0, number)),
        "pointer": types.SimpleNamespace(ptr=number, synchronize=lambda: None),
    }[form]
    trainer.register({"a": Array(0), "b": Array(1)})
    before = calls(gpus)
    trainer.publish(1, stream=stream)
    assert calls(gpus) == before + 1


@pytest.mark.parametrize("stream", [True, "current", -1, 1.5, 2**64, object()])
def test_what_is_no_stream_is_refused(trainer, watcher, stream):
    trainer.register({"a": Array()})
    with pytest.raises(th.Invalid, match="stream: .* is no stream"):
        trainer.publish(1, stream=stream)
    assert not watcher.list()


def test_bytes_that_are_still_written_are_not_published(trainer, watcher, gpus, model):
    """The copy hangs on its stream; publish waits, and a reader then has what it wrote."""
    cuda, stream = gpu_driver.driver(), driver_stream()
    array = Array(stream=stream, fill=1)
    trainer.register({"a": array})
    plan = gpus.plan("hang", "stream", pid=os.getpid())
    fresh = (c.c_char * SIZE).from_buffer(bytearray([7]) * SIZE)
    cuda.call("cuMemHostRegister", c.addressof(fresh), SIZE, 0)
    cuda.call("cuMemcpyHtoDAsync", array.memory.address, c.addressof(fresh), SIZE, stream)
    before = calls(gpus)
    thread = threading.Thread(target=trainer.publish, args=(1,))
    thread.start()
    try:
        cluster.wait_for(lambda: calls(gpus) == before + 1, 20, "publish waits for the stream")
        assert not watcher.list() and thread.is_alive()
    finally:
        gpus.lift(plan)
        thread.join(20)
    assert not thread.is_alive() and gpus.met(plan)
    assert bytes(th.load(model)["a"]) == bytes(fresh)
    cuda.call("cuMemHostUnregister", c.addressof(fresh))


def test_a_driver_that_says_no_publishes_nothing(trainer, watcher, gpus):
    trainer.register({"a": Array(stream=driver_stream())})
    plan = gpus.plan("result", "cuStreamSynchronize", pid=os.getpid(), result=700)
    try:
        with pytest.raises(th.MemoryKind, match="ILLEGAL_ADDRESS.*nothing was published"):
            trainer.publish(1)
    finally:
        gpus.lift(plan)
    assert trainer.version is None and not watcher.list()
    trainer.publish(1)


# ---- asyncio -------------------------------------------------------------------------------------


def test_a_loop_goes_on_while_a_stream_is_waited_for(torch, agent, model, watcher, gpus):
    async def work():
        async with th.aio.open(model, replica="t") as t:
            await t.register({"a": TorchTensor()})
            stream = Recorder(torch.seen, "mine", lambda: dict(watcher.list()), queries=5)
            task = asyncio.ensure_future(t.publish(1, stream=stream))
            turns = 0
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            assert torch.seen == [("mine", {})] and turns > 5 and t.version == 1
            await t.unpublish()
            await t.unregister()
            await t.register({"a": Array(stream=driver_stream())})
            before = calls(gpus), calls(gpus, "cuStreamQuery")
            await t.publish(2)
            assert calls(gpus) == before[0] and calls(gpus, "cuStreamQuery") > before[1]
            await t.unpublish()

    asyncio.run(work())
