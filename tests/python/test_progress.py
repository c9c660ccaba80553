# SPDX-License-Identifier: Apache-2.0
"""Who is told how far an operation is: callables and tqdm's bar, over a link that is slow."""

import asyncio
import contextlib
import fcntl
import os
import select
import struct
import sys
import termios
import threading
import types

import pytest
import tensorhub as th
from conftest import memory

SIZE = 64 << 20
RATE = "100MB"  # a second: most of a second for these bytes


@pytest.fixture(scope="module")
def link(daemons):
    """Directories of two agents, the first of which sends slowly."""
    return [
        daemons.agent("slow", args=("-o", f"rate.out={RATE}")).runtime,
        daemons.agent("reader").runtime,
    ]


@pytest.fixture
def trainer(link, model):
    with th.open(model, replica="trainer", agent=link[0]) as handle:
        handle.register({"w": memory(1, SIZE)})
        handle.publish(1)
        yield handle
        handle.close(abandon=True)


@pytest.fixture
def rollout(link, model):
    with th.open(model, replica="rollout", agent=link[1]) as handle:
        handle.tensors = {"w": memory(0, SIZE)}
        handle.register(handle.tensors)
        yield handle
        handle.close(abandon=True)


def check(seen):
    """Of one operation: it grows, and ends with all."""
    assert seen == sorted(seen) and seen[-1] == (SIZE, SIZE)
    assert {total for _, total in seen} == {SIZE}
    assert len({done for done, _ in seen}) >= 3


@pytest.mark.parametrize("verb", ["replicate", "update"])
def test_a_callable_is_told_while_bytes_come(trainer, rollout, verb):
    seen, threads = [], set()

    def told(done, total):
        seen.append((done, total))
        threads.add(threading.get_ident())

    before = threading.active_count()
    assert getattr(rollout, verb)(1, progress=told).updated
    check(seen)
    assert threads == {threading.get_ident()} and threading.active_count() == before


def test_nothing_new_tells_nothing(trainer, rollout):
    rollout.replicate(1)
    assert not rollout.update(progress=lambda done, total: pytest.fail("told"))


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt])
def test_what_it_raises_ends_the_operation(trainer, rollout, failure):
    seen = []

    def told(done, total):
        seen.append(done)
        raise failure("mine")

    with pytest.raises(failure, match="mine"):
        rollout.replicate(1, progress=told)
    # It was after GO, so the bytes are there; and nobody writes to them any more.
    assert len(seen) == 1 and rollout.version == 1
    assert rollout.tensors["w"] == memory(1, SIZE)


def test_a_callable_in_a_loop(trainer, link, model):
    def fails(done, total):
        raise ZeroDivisionError("mine")

    async def work():
        async with th.aio.open(model, replica="r", agent=link[1]) as r:
            tensors, seen = {"w": memory(0, SIZE)}, []
            await r.register(tensors)
            with pytest.raises(ZeroDivisionError, match="mine"):
                await r.replicate(1, progress=fails)
            assert r.version == 1 and tensors["w"] == memory(1, SIZE)
            await r.unpublish()
            await r.update(1, progress=lambda *told: seen.append(told))
            assert seen[-1] == (SIZE, SIZE)

    asyncio.run(work())


@pytest.mark.parametrize("progress", [5, "bar", True])
def test_what_cannot_be_called_is_refused(rollout, progress):
    with pytest.raises(th.Invalid, match="progress: "):
        rollout.update(progress=progress)


# ---- tqdm ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def terminal(monkeypatch):
    """What is written to stderr meanwhile, which is a terminal: a function that reads a line of it.

    The kernel hands over what was written a little later, and in pieces.
    """
    master, slave = os.openpty()

    def line():
        text = b""
        while not text.endswith(b"\n") and select.select([master], [], [], 10)[0]:
            text += os.read(master, 1 << 16)
        return text.decode()

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    try:
        with monkeypatch.context() as patch, os.fdopen(slave, "w") as stderr:
            patch.setattr(sys, "stderr", stderr)
            yield line
    finally:
        os.close(master)


@pytest.fixture
def bars(monkeypatch):
    """tqdm as far as it is used here, which keeps the bars that were made."""
    made = []

    class tqdm:
        def __init__(self, **options):
            self.n, self.total, self.closed = 0, None, False
            made.append(self)

        def update(self, more):
            self.n += more

        def close(self):
            self.closed = True

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=tqdm))
    return made


def test_a_bar_on_a_terminal(trainer, rollout, bars, monkeypatch):
    seen = []
    with terminal(monkeypatch):
        rollout.replicate(1, tqdm=True, progress=lambda *told: seen.append(told))
    check(seen)
    (bar,) = bars
    assert (bar.n, bar.total, bar.closed) == (SIZE, SIZE, True)
    assert type(bar).monitor_interval == 0


def test_no_bar_where_nobody_looks(trainer, rollout, bars):
    assert rollout.replicate(1, tqdm=True).updated and not bars


def test_no_bar_where_tqdm_is_not_installed(trainer, rollout, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with terminal(monkeypatch):
        assert rollout.replicate(1, tqdm=True).updated


def test_a_bar_is_closed_whatever_happens(trainer, rollout, bars, monkeypatch):
    def fails(done, total):
        raise ZeroDivisionError("mine")

    with terminal(monkeypatch):
        with pytest.raises(th.Timeout):
            rollout.replicate(2, tqdm=True, timeout=0.1)
        with pytest.raises(ZeroDivisionError):
            rollout.replicate(1, tqdm=True, progress=fails)
        rollout.close()
        with pytest.raises(th.State):
            rollout.replicate(1, tqdm=True)
    assert [bar.closed for bar in bars] == [True] * 3


def test_tqdm_itself(trainer, rollout, monkeypatch):
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    before = threading.active_count()
    with terminal(monkeypatch) as written:
        rollout.replicate(1, tqdm=True)
        assert threading.active_count() == before
        text = written()  # to the end of the line, which a bar that is closed ends
    assert "64.0M/64.0M" in text and "replicate" in text
