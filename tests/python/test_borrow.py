# SPDX-License-Identifier: Apache-2.0
"""Versions that are borrowed out of the agent's memory: values, types, how long they last, who may
write, in threads and in loops."""

import asyncio
import ctypes
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import tensorhub as th
from conftest import SIZE, memory, wait_for
from tensorhub import dtypes
from tensorhub.tensors import Piece


@pytest.fixture(scope="module")
def far(daemons):
    return daemons.agent("lends").runtime


@pytest.fixture
def trainer(agent, model):
    with th.open(model, replica="trainer", agent=agent) as handle:
        handle.tensors = {"w": memory(1), "bias": bytearray(b"\1" * 64)}
        handle.register(handle.tensors)
        handle.set_attribute("step", b"1")
        handle.publish(1)
        yield handle
        handle.close(abandon=True)


@pytest.fixture
def watch(model, far):
    with th.watch(model, agent=far) as handle:
        yield handle


@pytest.fixture
def loans(daemons, far, model):
    """How many loans of the model the agent has."""
    del far

    def count():
        status = json.loads(daemons.thctl("-o", "json", "status", agent="lends").stdout)
        return sum(loan["model"] == model for loan in status["loans"])

    return count


def content(weights):
    return {name: set(memoryview(bytes_of(t))) for name, t in weights.items()}


def typed(raw):
    """Rows of two by as many elements as fill the bytes, of each type by its name."""
    rows = {}
    for name, data in raw.items():
        kind = dtypes.BY_NAME[name]
        shape = (2, len(data) * 8 // kind.bits // 2)
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        rows[name] = Piece(address, len(data), kind, shape, keep=data)
    return rows


def bytes_of(tensor):
    """Of a memoryview or a torch tensor."""
    if isinstance(tensor, memoryview):
        return tensor.tobytes()
    import torch

    return bytes(tensor.reshape(-1).view(torch.uint8).tolist())


def test_it_is_there_as_long_as_somebody_has_a_tensor(trainer, watch, loans):
    with watch.borrow() as weights:
        assert content(weights) == {"w": {1}, "bias": {1}} and len(weights) == 2
        assert (weights.version, weights.shard, weights.num_shards) == (1, 0, 1)
        assert weights.attributes == {"step": b"1"} and "w" in weights
        assert loans() == 1 and not weights.returned
        kept = weights["w"][SIZE // 2 :]
    # The handle's end and another version are nothing to it.
    with pytest.raises(th.State, match="version 1 is borrowed no more"):
        weights["w"]
    assert not weights.returned and loans() == 1
    trainer.unpublish()
    trainer.tensors["w"][:] = bytes([2]) * SIZE
    trainer.publish(2)
    watch.close()
    assert set(memoryview(bytes_of(kept))) == {1} and len(kept) == SIZE // 2
    del kept
    gc.collect()
    assert weights.returned and repr(weights) == "<version 1, borrowed: returned>"
    wait_for(lambda: loans() == 0, 30, "the agent has it back")


def test_what_is_written_stays_in_this_process(trainer, watch):
    first, second = watch.borrow(1), watch.borrow(1)
    first["w"][:8] = first["w"][8:16] if not isinstance(first["w"], memoryview) else bytes(8)
    first["w"][0:1] = second["w"][0:1]
    if isinstance(first["w"], memoryview):
        assert first["w"][:9].tobytes() == b"\1" + bytes(7) + b"\1"
    assert content(second) == {"w": {1}, "bias": {1}}
    assert content(watch.borrow()) == {"w": {1}, "bias": {1}}


def test_members_borrow_their_own_shard(agent, far, model):
    handles = [
        th.open(model, replica="t", shard=i, num_shards=2, agent=agent) for i in range(2)
    ]
    for i, handle in enumerate(handles):
        handle.register({"w": memory(5 + i)})
    ops = [handle.publish_async(3) for handle in handles]
    for op in ops:
        op.result(60)
    readers = [
        th.open(model, replica="r", shard=i, num_shards=2, agent=far) for i in range(2)
    ]
    for i, reader in enumerate(readers):
        with reader.borrow(3) as own, reader.borrow(3, of_shard=1 - i) as other:
            assert (own.shard, other.shard, own.num_shards) == (i, 1 - i, 2)
            assert content(own) == {"w": {5 + i}} and content(other) == {"w": {6 - i}}
    for handle in (*readers, *handles):
        handle.close(abandon=True)


def test_what_takes_longer_than_a_look_around_goes_on(daemons, far, model):
    """The call is made again and again, at most a second each time; the bytes take four."""
    slow = daemons.agent("slow", args=("-o", "rate.out=10MB")).runtime
    with th.open(model, replica="t", agent=slow) as trainer, th.watch(model, agent=far) as watch:
        trainer.register({"w": memory(9, 40 << 20)})
        trainer.publish(1)
        with watch.borrow() as weights:
            assert bytes(weights["w"][::4096]) == bytes([9]) * (10 << 10)
        trainer.close(abandon=True)


@pytest.mark.parametrize("with_torch", (False, True))
def test_every_type(agent, far, model, with_torch):
    """In a process of its own: what a tensor is depends on whether torch is imported."""
    if with_torch and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    with th.open(model, replica="t", agent=agent) as trainer:
        raw = {kind.name: bytearray(os.urandom(48)) for kind in dtypes.ALL if kind.name != "BOOL"}
        raw["BOOL"] = bytearray(b"\0\1" * 24)
        trainer.register(typed(raw))
        trainer.publish(1)
        code = ("import torch\n" if with_torch else "") + READS_ALL
        ran = subprocess.run(
            [sys.executable, "-c", code, model, far], capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        got = json.loads(ran.stdout)
        assert {name: bytes.fromhex(data) for name, (data, _) in got.items()} == {
            name: bytes(data) for name, data in raw.items() if name in got
        }
        assert set(got) == set(raw)
        trainer.close(abandon=True)


READS_ALL = """
import json, sys
import tensorhub as th
def raw(t):
    if isinstance(t, memoryview):
        return t.tobytes()
    return bytes(t.reshape(-1).view(sys.modules["torch"].uint8).tolist())
with th.watch(sys.argv[1], agent=sys.argv[2]) as w, w.borrow() as weights:
    print(json.dumps({n: (raw(t).hex(), list(t.shape)) for n, t in weights.items()}))
"""


def test_a_dead_borrower_gives_it_back(trainer, far, model, loans):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, model, far], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert child.stdout.readline() == b"1\n"
    assert loans() == 1
    child.send_signal(signal.SIGKILL)
    child.communicate()
    wait_for(lambda: loans() == 0, 30, "the dead process has returned it")


HOLDS = """
import sys
import tensorhub as th
weights = th.watch(sys.argv[1], agent=sys.argv[2]).borrow()
print(weights.version, flush=True)
sys.stdin.read()
"""


def test_a_fork_reads_on(trainer, watch):
    weights = watch.borrow()
    pid = os.fork()
    if pid == 0:
        ok = content(weights) == {"w": {1}, "bias": {1}}
        del weights
        gc.collect()
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert content(weights) == {"w": {1}, "bias": {1}}


def test_what_cannot_be_borrowed(trainer, watch, daemons, model):
    with pytest.raises(th.NotAvailable):
        watch.borrow(7)
    with pytest.raises(th.Invalid):
        watch.borrow(1, 3)
    with pytest.raises(th.Invalid, match="THC_WHOLE"):
        watch._handle.borrow(whole=True)
    with pytest.raises(th.Invalid, match="shard"):
        watch.borrow(1, -1)
    full = daemons.agent("lends_nothing", args=("-o", "borrow.limit=0")).runtime
    with th.watch(model, agent=full) as other:
        with pytest.raises(th.Limit, match="borrow"):
            other.borrow()
    watch.close()
    with pytest.raises(th.State):
        watch.borrow()


def test_many_threads(trainer, watch, loans):
    failures = []

    def borrows(number):
        try:
            for _ in range(4):
                with watch.borrow() as weights:
                    assert content(weights)["w"] == {1}
        except BaseException as failure:
            failures.append((number, failure))

    threads = [threading.Thread(target=borrows, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and not any(thread.is_alive() for thread in threads), failures
    gc.collect()
    wait_for(lambda: loans() == 0, 30, "all are returned")


def test_in_a_loop(trainer, far, model):
    async def main():
        async with th.aio.watch(model, agent=far) as watch:
            many = await asyncio.gather(*(watch.borrow() for _ in range(8)))
            for weights in many:
                with weights:
                    assert content(weights)["w"] == {1}

    asyncio.run(main())
