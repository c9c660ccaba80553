# SPDX-License-Identifier: Apache-2.0
"""The verbs of a handle, in threads and in event loops, over real daemons. Needs no torch."""

import asyncio
import contextlib
import gc
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from datetime import timedelta
from types import SimpleNamespace

import pytest
import tensorhub as th
from cluster import cluster, wait_for
from conftest import AHEAD, SIZE, memory
from tensorhub import _steps


def opened(model, replica, tensors=None, **options):
    handle = th.open(model, replica=replica, **options)
    handle.register(tensors or {"w": memory(0)})
    return handle


@contextlib.contextmanager
def holder(model, replica, seed):
    """An open handle of one tensor, which is its ``tensors["w"]``."""
    with th.open(model, replica=replica) as handle:
        handle.tensors = {"w": memory(seed)}
        handle.register(handle.tensors)
        yield handle
        handle.close(abandon=True)


@pytest.fixture
def trainer(agent, model):
    with holder(model, "trainer", 1) as handle:
        yield handle


@pytest.fixture
def rollout(agent, model):
    with holder(model, "rollout", 0) as handle:
        yield handle


def test_ten_lines(trainer, rollout):
    assert not rollout.update() and rollout.version is None
    trainer.publish(7)
    result = rollout.update("latest")
    assert result and result.updated and result.version == 7 and result.source == "trainer"
    assert rollout.tensors["w"] == trainer.tensors["w"]
    assert rollout.version == 7 and rollout.held == (0, 7)
    again = rollout.replicate(7)
    assert again and not again.updated
    assert not rollout.update()
    listing = rollout.list()
    assert dict(listing) == {7: {"trainer", "rollout"}} and list(listing) == [7]
    assert listing.all == {(0, 7): {"trainer", "rollout"}}
    assert listing.details[0, 7].replicas[0].ready
    trainer.unpublish()
    assert trainer.safe_to_mutate and trainer.version is None


def test_manifest_allocate_and_attributes(trainer, agent, model):
    trainer.set_attribute("note", b"of a test")
    trainer.publish(1)
    with th.open(model, replica="reader") as reader:
        manifest = reader.manifest()
        assert manifest.version == 1 and manifest.attributes == {"note": b"of a test"}
        row = manifest.tensors["w"]
        assert (row.dtype, row.shape, row.nbytes) == ("U8", (SIZE,), SIZE)
        weights = reader.allocate()
        assert reader.memory_path("w").startswith("direct")
        assert reader.replicate(1).bytes_moved >= SIZE
        assert weights["w"] == trainer.tensors["w"]


def test_wait_sees_what_comes(trainer, rollout):
    seen = []
    timer = threading.Timer(0.3, trainer.publish, [3])
    timer.start()
    there = lambda versions: seen.append(dict(versions)) or 3 in versions  # noqa: E731
    listing = rollout.wait(there, timeout=20)
    timer.join()
    assert 3 in listing and len(seen) >= 2
    with pytest.raises(th.Timeout):
        rollout.wait(lambda versions: 4 in versions, timeout=0.2)
    with pytest.raises(ZeroDivisionError):
        rollout.wait(lambda versions: 1 / 0)


def test_submit_forms(trainer, rollout):
    op = rollout.replicate_async("latest", timeout=30)
    assert not op.done() and op.progress == (0, 0)
    with pytest.raises(th.Timeout, match="runs on"):
        op.result(timeout=0.1)
    with pytest.raises(th.State, match="at a time"):
        rollout.update()
    trainer.publish_async(5).result(timeout=20)
    assert op.result(timeout=20).version == 5 and op.done()
    assert op.progress == (SIZE, SIZE)


def test_a_long_wait_names_who_is_missing(agent, model, monkeypatch, caplog):
    monkeypatch.setattr("tensorhub._steps.LONG_S", 0.5)
    with th.open(model, replica="r", num_shards=2) as handle:
        handle.register({"w": memory(1)})
        with pytest.raises(th.Timeout, match="shard 1 has not joined"):
            handle.publish(1, timeout=2)
        with th.open(model, replica="r", num_shards=2, shard=1) as other:
            other.register({"w": memory(1)})
            with pytest.raises(th.Timeout):
                other.publish(1)
            with pytest.raises(th.Timeout, match="shard 1 on node a"):
                handle.publish(2, timeout=2)
            handle.close(abandon=True)
            other.close(abandon=True)
    first, second = [r.getMessage() for r in caplog.records if r.name == "tensorhub"]
    began = f"the publish of {model}/r/0 runs since 0 s: shard 1 "
    assert first == began + "has not joined"
    assert second == f"{began}on node a (pid {os.getpid()}) has not called it"


def test_cancel_before_go_changes_nothing(rollout):
    op = rollout.replicate_async(9)
    op.cancel()
    with pytest.raises(th.Cancelled):
        op.result(timeout=20)
    assert bytes(rollout.tensors["w"][:1]) == b"\0" and rollout.version is None


def test_an_op_that_is_dropped_is_cancelled(rollout):
    rollout.replicate_async(9)
    gc.collect()

    def another_begins():
        try:
            rollout.replicate(9, timeout=0.1)
        except th.State:  # the dropped one has not ended yet
            return False
        except th.Timeout:
            return True

    wait_for(another_begins, 20, "the end of the operation that was dropped")


@pytest.mark.parametrize(
    "verb, arguments",
    [
        ("publish", (-1,)), ("publish", ("1",)), ("publish", (True,)), ("publish", (2**64,)),
        ("update", ("newest",)), ("update", (b"1",)), ("update", (1.5,)),
        ("manifest", ("latest", -1)), ("set_attribute", ("a", "text")),
        ("set_attribute", (b"a", b"text")), ("wait", (None,)),
    ],
)  # fmt: skip
def test_a_bad_argument_is_named(trainer, verb, arguments):
    with pytest.raises(th.Invalid) as failure:
        getattr(trainer, verb)(*arguments)
    assert isinstance(failure.value, ValueError) and str(failure.value)


@pytest.mark.parametrize("timeout", [-1, "1", float("nan"), True, timedelta(seconds=-1)])
def test_a_bad_timeout_is_named(trainer, timeout):
    with pytest.raises(th.Invalid, match="timeout: "):
        trainer.list(timeout=timeout)


def test_timeouts_of_each_kind(rollout):
    for timeout in (0, 0.1, timedelta(milliseconds=100)):
        with pytest.raises(TimeoutError):
            rollout.replicate(1, timeout=timeout)


def test_a_handles_own_timeout_is_that_of_verbs_that_are_given_none(rollout):
    rollout.timeout = 0.1
    with pytest.raises(TimeoutError):
        rollout.replicate(1)
    rollout.timeout = None
    with pytest.raises(TimeoutError):
        rollout.replicate(1, timeout=0)


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan"), b"1"])
def test_a_bad_timeout_is_refused_where_it_is_set(rollout, timeout):
    """And not by whatever is called next, which may be close()."""
    before = rollout.timeout
    with pytest.raises(th.Invalid, match="timeout: "):
        rollout.timeout = timeout
    assert rollout.timeout == before
    rollout.timeout = timedelta(seconds=20)
    rollout.close()
    assert "closed" in repr(rollout)


def test_a_loop_of_ones_own_waits_for_a_handle(trainer):
    op = trainer.publish_async(1, timeout=60)
    poller = select.poll()
    poller.register(trainer, select.POLLIN)
    while not op.done():
        assert poller.poll(60_000), "no wake-up"
        assert not trainer.events()
    assert op.result(0).version == trainer.version == 1
    trainer.close()
    with pytest.raises(th.State):
        trainer.fileno()


@contextlib.contextmanager
def standing_still(agent):
    agent.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.signal(signal.SIGCONT)


def test_a_wait_ends_in_time_though_the_agent_stands_still(daemons, rollout):
    asked, took = threading.Event(), []

    def wait():
        with pytest.raises(th.Timeout):
            rollout.wait(lambda listing: asked.set(), timeout=1)
        took.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    start = time.monotonic()
    assert asked.wait(30)
    with standing_still(daemons.agents["a"]):
        thread.join(30)
        assert took and took[0] - start < 3, took


def test_an_outcome_that_is_unknown_stays_so_until_it_is_resolved(daemons, trainer):
    with standing_still(daemons.agents["a"]):
        with pytest.raises(th.Unknown):
            trainer.publish(1, timeout=0)
        with pytest.raises(th.Unknown, match="resolve"):
            trainer.resolve(timeout=0.1)
        with pytest.raises(th.State):
            trainer.publish(1, timeout=0)
    with contextlib.suppress(th.Timeout):  # the outcome, where the agent was late
        trainer.resolve(timeout=30)
    trainer.list(timeout=30)


def test_an_abandon_tells_that_the_agent_has_the_memory_still(daemons, trainer):
    with standing_still(daemons.agents["a"]):
        with pytest.raises(th.Timeout):
            trainer.close(abandon=True, timeout=0.1)
    assert "closed" in repr(trainer)


def test_a_call_that_begins_anew_gets_the_time_that_it_needs(monkeypatch):
    """100,000 tensors are not registered in a second on a busy machine."""
    now = [0.0]

    def call(ms):
        now[0] += min(ms, 4000) / 1000
        if ms < 4000:
            raise th.Timeout("cut off")
        return now[0]

    monkeypatch.setattr(_steps, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert _steps.run(_steps.in_slices(call, 60)) < 15
    with pytest.raises(th.Timeout):
        _steps.run(_steps.in_slices(call, 60, most=_steps.SLICE_S))


def test_an_open_without_a_server_says_so(model):
    with cluster(server=False) as c:
        with pytest.raises(th.NoServer):
            th.open(model, agent=c.agent("x").runtime, timeout=10)


def listed(handle):
    with contextlib.suppress(th.NoServer):
        return handle.list(timeout=30)


def test_a_close_waits_for_a_server(model):
    """Who retains the version must be asked, so its holder stays until somebody can be."""
    with cluster() as c:
        agent = c.agent("x").runtime
        holder, keeper = opened(model, "a", agent=agent), th.open(model, retain=1, agent=agent)
        holder.publish(1)
        c.server.kill()
        wait_for(lambda: not listed(holder), 30, "the agent misses its server")
        with pytest.raises(th.NoServer):
            holder.close(timeout=0)
        closing = threading.Thread(target=holder.close)
        closing.start()
        with pytest.raises((th.State, th.Cancelled), match="clos"):
            wait_for(lambda: listed(holder), 30, "it closes")
        c.start_server(listen=c.server_url)
        closing.join(60)
        assert "closed" in repr(holder)
        keeper.close()


def test_asyncio_is_imported_by_those_who_use_it():
    """It costs more than all the rest."""
    program = "import sys, tensorhub as th; assert 'asyncio' not in sys.modules; th.aio.open"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    "tensors, sentence",
    [
        ({"a": "text"}, "'a' is a str"), ({"a": 5}, "'a' is a int"), ({5: b""}, "name 5"),
        ([1], "neither a mapping nor pairs"), (5, "neither a mapping"),
        ({"a": memoryview(bytes(8))[::2]}, "not contiguous"),
        ({"": memory(0)}, "name"), ({"a": memory(0).cast("B", (1,) * 9 + (SIZE,))}, "dimensions"),
    ],
)  # fmt: skip
def test_what_cannot_be_registered_is_named(agent, model, tensors, sentence):
    with th.open(model, replica="r") as handle:
        with pytest.raises(th.Invalid, match=sentence):
            handle.register(tensors)


def test_a_generator_that_ends_early_registers_nothing(agent, model):
    def tensors():
        yield "a", memory(1)
        raise KeyError("lost")

    with th.open(model, replica="r") as handle:
        with pytest.raises(KeyError):
            handle.register(tensors())
        handle.register({"a": memory(1)})


def test_after_close(agent, model):
    handle = opened(model, "r")
    handle.close()
    handle.close()
    for call in (handle.list, handle.update, handle.unregister, lambda: handle.publish(1)):
        with pytest.raises(th.State, match="is closed"):
            call()
    assert handle.version is None and not handle.safe_to_mutate and not handle.events()
    assert "closed" in repr(handle)


def test_a_handle_that_is_forgotten_warns_and_leaves(agent, model):
    handle = opened(model, "r")
    with pytest.warns(ResourceWarning, match="never closed"):
        del handle
        gc.collect()
    opened(model, "r").close()


def test_close_all(agent, model):
    opened(model, "r")._keep  # noqa: B018
    held = opened(model, "s")
    assert held.label in th.handles()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    th.close_all()
    assert held.label not in th.handles()


def test_an_exception_inside_with_leaves_at_once(agent, model):
    with pytest.raises(RuntimeError, match="mine"):
        with th.open(model, replica="r", num_shards=2) as handle:
            handle.register({"w": memory(1)})
            raise RuntimeError("mine")
    assert "closed" in repr(handle)


@pytest.mark.parametrize(
    "before, after, said",
    [
        ({"THC_LAUNCH_ID": "a"}, {"THC_LAUNCH_ID": "b"}, "launch b replaces launch a "),
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"},
            "launch slurm-7.0-1 replaces launch slurm-7.0-0 ",
        ),
        ({"THC_LAUNCH_ID": "a"}, {"THC_LAUNCH_ID": "a", "SLURM_JOB_ID": "8"}, None),
        ({"TORCHELASTIC_RUN_ID": "a"}, {"TORCHELASTIC_RUN_ID": "b"}, None),
    ],
    ids=["named", "slurm", "same", "torchrun"],
)  # fmt: skip
def test_a_launch_replaces_the_one_before(agent, model, monkeypatch, before, after, said):
    for name in ("THC_LAUNCH_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    with th.open(model, replica="r", num_shards=2) as old:
        for name, value in after.items():
            monkeypatch.setenv(name, value)
        if said is None:
            with pytest.raises(th.GroupMismatch, match="is open on node"):
                th.open(model, replica="r", num_shards=2)
            return
        old.register({"w": memory(1)})
        with th.open(model, replica="r", num_shards=2):
            with pytest.raises(th.GroupBroken, match=said):
                old.publish(1)


def test_no_pickle(trainer):
    with pytest.raises(th.State, match="belongs to its process"):
        pickle.dumps(trainer)


def test_no_agent_is_said(model, tmp_path):
    with pytest.raises(th.NoAgent) as failure:
        th.open(model, agent=str(tmp_path), timeout=0.2)
    assert isinstance(failure.value, ConnectionError) and failure.value.name == "NO_AGENT"


def test_fork(trainer):
    pid = os.fork()
    if pid == 0:
        try:
            trainer.update()
        except th.Forked:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    trainer.publish(1)


def test_threads_share_a_handle(trainer, rollout):
    failures = []

    def look():
        try:
            for _ in range(20):
                rollout.list()
                rollout.wait(lambda versions: True)
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=look) for _ in range(32)]
    for thread in threads:
        thread.start()
    trainer.publish(1)
    rollout.replicate(1)
    for thread in threads:
        thread.join()
    assert not failures


def interrupt_after(seconds):
    timer = threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    return timer


@pytest.mark.parametrize(
    "call",
    [
        lambda h: h.replicate(99), lambda h: h.wait(lambda versions: 99 in versions),
        lambda h: h.replicate_async(99).result(),
    ],
)  # fmt: skip
def test_an_interrupt_ends_a_wait(rollout, call):
    timer = interrupt_after(0.3)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call(rollout)
    timer.join()
    assert time.monotonic() - began < 10
    gc.collect()
    assert rollout.list() == {} and rollout.version is None


# ---- asyncio -------------------------------------------------------------------------------------


def test_a_loop_runs_every_verb(agent, model):
    async def work():
        async with th.aio.open(model, replica="t") as t, th.aio.open(model, replica="r") as r:
            source, target = memory(4), memory(0)
            await t.register({"w": source})
            await r.register({"w": target})
            waits = asyncio.ensure_future(r.replicate("latest"))
            sees = asyncio.ensure_future(r.wait(lambda versions: 2 in versions))
            await asyncio.sleep(0)
            await t.publish(2)
            assert (await waits).version == 2 and 2 in await sees
            assert target == source and not await r.update()
            assert (await r.manifest()).version == 2
            assert dict(await r.list()) == {2: {"t", "r"}}
            await r.unpublish()
            await r.unregister()
            await t.unpublish()

    asyncio.run(work())


def test_a_loop_lists_for_a_group(agent, model):
    async def work():
        first, second = [
            await th.aio.open(model, replica="g", shard=i, num_shards=2) for i in (0, 1)
        ]
        for _ in range(AHEAD):
            await first.list(group=True)
        waits = asyncio.ensure_future(first.list(group=True))
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await asyncio.wait_for(asyncio.shield(waits), 0.2)
        await second.list(group=True)  # and the first is near enough
        await waits
        waits = asyncio.ensure_future(first.list(group=True))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        for _ in range(AHEAD):
            await second.list(group=True)
        with pytest.raises(th.Cancelled, match="cancelled by shard 0"):
            await second.list(group=True)
        one, other = await asyncio.gather(first.list(group=True), second.list(group=True))
        assert one.generation == other.generation
        for handle in (first, second):
            await handle.close(abandon=True)

    asyncio.run(work())


def test_a_loop_is_told_who_is_missing(agent, model, monkeypatch, caplog):
    async def work():
        async with th.aio.open(model, replica="r", num_shards=2) as handle:
            await handle.register({"w": memory(1)})
            with pytest.raises(th.Timeout):
                await handle.publish(1, timeout=2)
            await handle.close(abandon=True)

    monkeypatch.setattr("tensorhub._steps.LONG_S", 0.5)
    asyncio.run(work())
    said = [record.getMessage() for record in caplog.records if record.name == "tensorhub"]
    assert len(said) == 1 and said[0].endswith(": shard 1 has not joined"), said


def test_many_handles_in_one_loop_start_no_thread(agent, model):
    count = 200

    async def reader(i):
        async with th.aio.open(model, replica=f"r{i}") as r:
            target = memory(0, 4096)
            await r.register({"w": target})
            assert (await r.replicate(1)).updated
            assert bytes(target) == bytes([9]) * 4096

    async def work():
        async with th.aio.open(model, replica="t") as t:
            await t.register({"w": memory(9, 4096)})
            readers = [asyncio.ensure_future(reader(i)) for i in range(count)]
            await asyncio.sleep(0)
            await t.publish(1)
            threads = threading.active_count()
            await asyncio.gather(*readers)
            assert threading.active_count() == threads == before
            await t.unpublish()

    before = threading.active_count()
    asyncio.run(work())


def test_a_cancelled_task_ends_when_its_operation_has(agent, model):
    async def work():
        async with th.aio.open(model, replica="t") as t, th.aio.open(model, replica="r") as r:
            source, target = memory(4), memory(0)
            await t.register({"w": source})
            await r.register({"w": target})
            for moment in range(20):
                task = asyncio.ensure_future(r.replicate("latest"))
                publishing = asyncio.ensure_future(t.publish(moment))
                for _ in range(moment):
                    await asyncio.sleep(0.0005)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    pass
                await publishing
                assert r.version is not None or bytes(target[:1]) in (b"\0", b"\4")
                if r.version is not None:
                    assert target == source
                    await r.unpublish()
                await t.unpublish()

    asyncio.run(work())


def test_wait_for_gives_the_handle_back(agent, model):
    async def work():
        async with th.aio.open(model, replica="r") as r:
            await r.register({"w": memory(0)})
            with pytest.raises((asyncio.TimeoutError, TimeoutError)):
                await asyncio.wait_for(r.replicate(1), 0.2)
            assert not await r.update()

    asyncio.run(work())


def test_a_second_loop_is_refused(agent, model):
    async def begin():
        handle = await th.aio.open(model, replica="r")
        await handle.register({"w": memory(0)})
        with pytest.raises(th.Timeout):
            await handle.replicate(1, timeout=0.1)
        return handle

    async def use(handle):
        with pytest.raises(th.State, match="another event loop"):
            await handle.replicate(1)

    handle = asyncio.run(begin())
    asyncio.run(use(handle))
    handle._abandon()
