# SPDX-License-Identifier: Apache-2.0
"""Several threads close one handle, and libthc gives its address to the next open meanwhile."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
import warnings

import pytest
import tensorhub as th
from conftest import memory
from tensorhub import _abi

LONG_S = 60  # more than any of this takes


class Turns:
    """thc_close, which a thread of a test leaves later than libthc's has returned."""

    def __init__(self):
        self.close, self.held, self.codes = _abi.lib.thc_close, {}, {}
        self.before_it_returns = lambda: None

    def hold(self):
        """Of the next thread that comes: (it is there, it may go)."""
        there, go = threading.Event(), threading.Event()
        self.held[None] = there, go
        return there, go

    def __call__(self, *arguments):
        name = threading.current_thread().name
        code = self.codes.pop(name) if name in self.codes else self.close(*arguments)
        there, go = self.held.pop(None, (None, None))
        if there is not None:
            self.before_it_returns()
            there.set()
            assert go.wait(LONG_S)
        return code


@pytest.fixture
def turns(monkeypatch):
    turns = Turns()
    monkeypatch.setattr(_abi.lib, "thc_close", turns)
    return turns


@pytest.fixture
def soon(monkeypatch):
    """Nobody waits for his turn for long."""
    for name in ("SLICE_S", "LEAVE_S"):
        monkeypatch.setattr(th.handle, name, 0.02)


@contextlib.contextmanager
def closing(turns, call):
    """A thread whose call has freed its handle, and returns at the end or when ``go`` is set."""
    there, go = turns.hold()
    failures = []

    def run():
        try:
            call()
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert there.wait(LONG_S)
        yield go
    finally:
        go.set()
        thread.join(LONG_S)
    assert not thread.is_alive() and not failures


def address(handle):
    return handle._shard.value


def opened(model, replica="r"):
    handle = th.open(model, replica=replica)
    handle.weights = memory(1, 4096)
    handle.register({"w": handle.weights})
    return handle


def still_works(handle):
    handle.publish(1)
    handle.unpublish()
    handle.close()


@pytest.mark.parametrize(
    "second",
    [
        lambda h: h.close(timeout=0), lambda h: h.close(abandon=True, timeout=0),
        lambda h: h.__exit__(None), lambda h: h.__exit__(KeyError), lambda h: th.close_all(),
    ],
    ids="close abandon with exception close_all".split(),
)  # fmt: skip
def test_a_handle_that_was_opened_meanwhile_is_not_closed(agent, model, turns, soon, second):
    handle = opened(model)
    handle.timeout = 0
    freed = address(handle)
    with closing(turns, lambda: handle.close(timeout=LONG_S)):
        other = opened(model, "other")
        assert address(other) == freed, "the next open gets another address: this tests nothing"
        th.handle._handles.discard(other)  # close_all is not meant for this one
        try:
            second(handle)
        except th.Timeout as failure:
            assert "another thread closes this handle" in str(failure)
        assert other.list() == {} and other.version is None
    assert "closed" in repr(handle)
    handle.close()
    still_works(other)


def test_three_threads_close_one_handle_and_another_opens(agent, model, turns):
    handle = opened(model)
    with closing(turns, lambda: handle.close(abandon=True)):
        others = [threading.Thread(target=handle.close) for _ in range(2)]
        for thread in others:
            thread.start()
        other = opened(model, "other")
    for thread in others:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert "closed" in repr(handle)
    still_works(other)


def test_each_thread_hears_its_own_answer(agent, model, turns):
    """Another thread closes at every line of one whose thc_close has failed."""
    handle = opened(model)
    failed = threading.Event()
    turns.codes["first"] = th.NoMemoryToRetain.code
    heard, others = [], []

    def other():
        name = threading.current_thread().name
        turns.codes[name] = th.Limit.code
        try:
            handle.close(timeout=0)
        except th.Error as failure:
            others.append(type(failure))
        turns.codes.pop(name, None)

    def trace(frame, event, _argument):
        if frame.f_code.co_name not in ("_close_once", "_close", "in_slices", "run"):
            return None
        if event == "line" and failed.is_set():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(LONG_S)
        return trace

    def first():
        sys.settrace(trace)
        try:
            handle.close(timeout=LONG_S)
        except th.Error as failure:
            heard.append(type(failure))
        finally:
            sys.settrace(None)

    turns.before_it_returns = failed.set
    there, go = turns.hold()
    go.set()
    thread = threading.Thread(target=first, name="first")
    thread.start()
    thread.join(LONG_S)
    assert there.is_set() and heard == [th.NoMemoryToRetain]
    assert set(others) == {th.Limit}
    still_works(handle)


def test_an_interrupt_while_another_thread_closes(agent, model, turns):
    handle = opened(model)
    with closing(turns, handle.close):
        timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            handle.close(timeout=LONG_S)
        timer.join()
    handle.close()
    assert "closed" in repr(handle)


def test_a_signal_handler_closes_in_a_close_that_waits(agent, model, turns, soon):
    handle = opened(model)
    called = []

    def handler(_number, _frame):
        th.close_all()
        called.append(bool(handle._shard))
        go.set()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with closing(turns, handle.close) as go:
            timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1])
            timer.start()
            handle.close(timeout=LONG_S)
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert called == [True] and "closed" in repr(handle)


def test_finalizers_run_in_who_closes(agent, model, turns):
    handle, forgotten = opened(model), [opened(model, "forgotten")]

    def forget():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            forgotten.clear()
            gc.collect()

    turns.before_it_returns = forget
    label = forgotten[0].label
    with closing(turns, handle.close):
        assert label not in th.handles()
    still_works(opened(model, "forgotten"))


def test_a_child_of_a_fork_while_a_thread_closes(agent, model, turns):
    """Nobody gives the lock back there."""
    handle = opened(model)
    with closing(turns, handle.close):
        pid = os.fork()
        if pid == 0:
            code, began = 1, time.monotonic()
            try:
                handle.close(timeout=LONG_S)
            except th.Forked:
                code = 7 if time.monotonic() - began < LONG_S / 2 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_loop_closes_while_a_thread_does(agent, model, turns):
    async def work():
        handle = await th.aio.open(model, replica="r")
        with closing(turns, handle._abandon):
            with pytest.raises(th.Timeout, match="another thread closes"):
                await handle.close(timeout=0)
            other = opened(model, "other")
        await handle.close()
        return other

    still_works(asyncio.run(work()))
