# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at each line, in each call that waits, before GO and after it: what is true afterwards."""

import contextlib
import gc
import os
import signal
import sys
import threading
import time
import weakref

import pytest
import tensorhub as th
from cluster import Cluster
from conftest import AHEAD
from tensorhub import _abi, _steps

SIZE = 64 << 20
MOMENTS = 20
SMALL = 1 << 20
SLOW = 16 << 20  # bytes that take 1.4 s from the slow agent
PACKAGE = os.path.dirname(th.__file__)


def memory(seed=0, size=SMALL):
    view = th.empty((size,), "U8")
    view[:] = bytes([seed]) * size
    return view


@pytest.fixture(scope="module")
def far(daemons):
    """A second agent, so that bytes take a while."""
    return daemons.agent("far")


@pytest.fixture(scope="module")
def slow(daemons):
    """An agent that sends 12 MB a second."""
    return daemons.agent("slow", args=["-o", "rate.out=12MB"])


@pytest.fixture
def called(monkeypatch):
    """The names of the calls of libthc, in their order."""
    names = []
    call, close = _abi.call, th.Handle._close_once

    def remember(name, *args):
        names.append(name)
        return call(name, *args)

    def remember_close(handle, *args):
        names.append("thc_close")
        return close(handle, *args)

    monkeypatch.setattr(_abi, "call", remember)
    monkeypatch.setattr(th.Handle, "_close_once", remember_close)
    return names


@pytest.fixture
def begun(monkeypatch):
    """The operations that verbs have begun, in their order."""
    ops = []
    submit = _steps.Op._submit

    def remember(op, *args):
        submit(op, *args)
        ops.append(op)
        return op

    monkeypatch.setattr(_steps.Op, "_submit", remember)
    return ops


@contextlib.contextmanager
def interrupt_when(condition):
    """Sends SIGINT to this process when the condition becomes true, or not at all."""
    left = threading.Event()

    def watch():
        while not condition():
            if left.wait(0.0002):
                return
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


@contextlib.contextmanager
def stopped(agent):
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent.pid, signal.SIGCONT)


# ---- at each line ------------------------------------------------------------------------------


def in_finalizer(frame):
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def interrupted(line, call):
    """Calls, and raises KeyboardInterrupt at this line of the package. False: it has fewer."""
    left = line

    def trace(frame, event, _argument):
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE) or in_finalizer(frame):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def close_elsewhere(handle):
    """Another thread can: who was interrupted has left nothing locked."""
    failures = []

    def close():
        try:
            handle.close(timeout=30)
        except th.Error as failure:
            failures.append(failure)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert not failures


@pytest.fixture
def each_line(agent, model):
    """Runs a call on a new handle for each of its lines; then the handle's shard is free again."""

    def run(prepare, call, after):
        line, going = 0, True
        while going:
            handle = th.open(model, replica="r")
            handle.weights = {"w": memory(1)}
            prepare(handle)
            going = interrupted(line, lambda handle=handle: call(handle))
            after(handle)
            close_elsewhere(handle)
            line += 1
        assert line > 5

    return run


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_at_each_line_of_open(agent, model):
    line, opened = 0, []
    while interrupted(line, lambda: opened.append(th.open(model, replica="r"))):
        gc.collect()
        assert not opened and f"{model}/r/0" not in th.handles()
        th.open(model, replica="r").close()  # nobody else has this shard
        line += 1
    opened[0].close()
    assert line > 20


def registered(handle):
    handle.register(handle.weights)


def published(handle):
    registered(handle)
    handle.publish(1)


def may_be_registered(handle):
    """It is, or not; never are its bytes given back before that is undone."""
    with contextlib.suppress(th.State):
        handle.unregister()
    registered(handle)


def still_works(handle):
    handle.events()
    if handle.version is None:
        handle.publish(2)
    handle.unpublish()
    assert handle.safe_to_mutate and handle.version is None


@pytest.mark.parametrize(
    "prepare, call, after",
    [
        (lambda handle: None, registered, may_be_registered),
        (registered, lambda handle: handle.unregister(), may_be_registered),
        (registered, lambda handle: handle.publish(1), still_works),
        (published, lambda handle: handle.unpublish(), still_works),
        (published, lambda handle: handle.replicate(1), still_works),
        (published, lambda handle: handle.update(), still_works),
        (published, lambda handle: handle.list(), still_works),
        (published, lambda handle: handle.list(group=True), still_works),
        (published, lambda handle: handle.wait(len), still_works),
        (published, lambda handle: handle.manifest(), still_works),
        (registered, lambda handle: handle.close(), lambda handle: None),
        (registered, lambda handle: handle.close(abandon=True), lambda handle: None),
    ],
    ids="register unregister publish unpublish replicate update list grouped-list wait manifest "
    "close abandon".split(),
)
def test_an_interrupt_at_each_line(each_line, prepare, call, after):
    each_line(prepare, call, after)


class Bytes(bytearray):
    """Memory of which a test sees when it goes."""


def test_tensors_are_kept_as_long_as_they_may_be_registered(agent, model):
    line, going, kept = 0, True, 0
    while going:
        with th.open(model, replica="r") as handle:
            tensor = Bytes(64)
            seen = weakref.ref(tensor)
            tensors = {"w": tensor}
            going = interrupted(line, lambda h=handle, t=tensors: h.register(t))
            del tensor, tensors
            gc.collect()
            with contextlib.suppress(th.State):
                handle.publish(1)  # of what is registered
                assert seen() is not None, f"line {line}"
                kept += 1
                handle.unpublish()
        line += 1
    assert 1 < kept < line


# ---- in each call that waits, before GO --------------------------------------------------------

# Each on a handle whose agent stands still: the call, and what is called of libthc.
STANDING = {
    "register": ("thc_register", lambda h: h.register({"other": memory(2)})),
    "unregister": ("thc_unregister", lambda h: h.unregister()),
    "list": ("thc_list", lambda h: h.list()),
    "wait": ("thc_list", lambda h: h.wait(lambda versions: False)),
    "manifest": ("thc_get_manifest", lambda h: h.manifest(1)),
    "allocate": ("thc_get_manifest", lambda h: h.allocate(1)),
    "close": ("thc_close", lambda h: h.close()),
}


@pytest.mark.parametrize("verb", STANDING)
def test_a_call_of_an_agent_that_stands_still(agent, far, model, called, verb):
    name, call = STANDING[verb]
    handle = th.open(model, replica="r", agent=far.runtime)
    if verb != "register":
        handle.register({"w": memory(1)})
    del called[:]
    with stopped(far), pytest.raises(KeyboardInterrupt):
        with interrupt_when(lambda: name in called):
            call(handle)
    if verb != "close":
        assert handle.list(timeout=30) == {}
    handle.close(timeout=30)
    th.open(model, replica="r", agent=far.runtime).close()


def test_open_of_an_agent_that_stands_still(agent, far, model, called):
    with stopped(far), pytest.raises(KeyboardInterrupt):
        with interrupt_when(lambda: "thc_open" in called):
            th.open(model, replica="r", agent=far.runtime)
    th.open(model, replica="r", agent=far.runtime).close()


@pytest.fixture
def pair(agent, model):
    """Two handles of one group: what one calls waits for the other."""
    handles = [th.open(model, replica="g", shard=i, num_shards=2) for i in (0, 1)]
    for i, handle in enumerate(handles):
        handle.register({"w": memory(i)})
    yield handles
    for handle in handles:
        handle.close(abandon=True)


def both(handles, verb, *args):
    for op in [getattr(handle, verb + "_async")(*args, timeout=30) for handle in handles]:
        op.result()


@pytest.mark.parametrize("verb", ["publish", "replicate", "update"])
def test_before_go_nothing_has_changed(pair, agent, model, called, verb):
    sources = []
    if verb != "publish":
        sources = [th.open(model, replica="s", shard=i, num_shards=2) for i in (0, 1)]
        for i, source in enumerate(sources):
            source.register({"w": memory(7 + i)})
        both(sources, "publish", 1)
    with pytest.raises(KeyboardInterrupt):
        with interrupt_when(lambda: f"thc_{verb}_submit" in called):
            getattr(pair[0], verb)(1)
    assert pair[0].version is None and pair[0].safe_to_mutate
    with pytest.raises(th.Cancelled, match="cancelled by shard 0"):
        getattr(pair[1], verb)(1)
    both(pair, verb, 1)
    assert [handle.version for handle in pair] == [1, 1]
    for source in sources:
        source.close(abandon=True)


def test_a_grouped_list_ends_at_once(pair, called):
    for _ in range(AHEAD):
        pair[0].list(group=True)
    del called[:]
    with pytest.raises(KeyboardInterrupt):
        with interrupt_when(lambda: any("list" in name for name in called)):
            pair[0].list(group=True, timeout=30)
    for _ in range(AHEAD):
        pair[1].list(group=True)
    with pytest.raises(th.Cancelled, match="cancelled by shard 0"):
        pair[1].list(group=True)
    one, other = [handle.list(group=True) for handle in pair]
    assert one.generation == other.generation


def test_an_unpublish_that_is_interrupted_is_taken_back(agent, far, slow, model, called):
    target = memory(0, SLOW)
    with th.open(model, replica="t", agent=slow.runtime) as t:
        with th.open(model, replica="r", agent=far.runtime) as r:
            t.register({"w": memory(3, SLOW)})
            r.register({"w": target})
            t.publish(1)
            op = r.replicate_async(1)
            while op.progress[0] == 0:
                op._handle._wait(op, time.monotonic() + 0.01)
            with pytest.raises(KeyboardInterrupt):
                with interrupt_when(lambda: "thc_unpublish_submit" in called):
                    t.unpublish()
            assert t.version == 1 and not op.done()
            assert op.result(60).version == 1 and bytes(target[-1:]) == b"\3"
            r.unpublish()
            t.unpublish()


# ---- after GO ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["replicate", "update"])
def test_after_go_it_ends_with_its_outcome(agent, far, slow, model, begun, verb):
    source, target = memory(5, SLOW), memory(0, SLOW)
    with th.open(model, replica="t", agent=slow.runtime) as t:
        with th.open(model, replica="r", agent=far.runtime) as r:
            t.register({"w": source})
            r.register({"w": target})
            t.publish(1)
            del begun[:]
            with pytest.raises(KeyboardInterrupt):
                with interrupt_when(lambda: begun and 0 < begun[0].progress[0] < SLOW):
                    getattr(r, verb)(1)
            assert r.version == 1 and target == source
            r.unpublish()
            t.unpublish()


def test_an_interrupt_at_each_moment(agent, far, model, begun):
    source, target = th.empty((SIZE,), "U8"), th.empty((SIZE,), "U8")
    source[:: 1 << 20] = bytes(i % 250 + 1 for i in range(SIZE >> 20))
    with th.open(model, replica="t") as t, th.open(model, replica="r", agent=far.runtime) as r:
        t.register({"w": source})
        r.register({"w": target})
        t.publish(1)
        for moment in range(MOMENTS):
            del begun[:]

            def there(moment=moment):
                done, _ = begun[0].progress if begun and begun[0]._pointer else (0, 0)
                return bool(begun) and (
                    moment == 0 or not begun[0]._pointer or done * MOMENTS >= moment * SIZE
                )

            with contextlib.suppress(KeyboardInterrupt), interrupt_when(there):
                r.replicate(1)
            if r.version is None:
                assert r.safe_to_mutate, "it has returned, and somebody may write"
            else:
                assert r.version == 1 and target == source
                r.unpublish()
            target[:: 1 << 20] = bytes(SIZE >> 20)
        r.replicate(1)
        assert target == source
        r.unpublish()
        t.unpublish()


DEAD_S = 3.0  # lease.dead of the daemons of the next test; 10 s where nobody says so
REFUSED_S = 2.7  # a source that does not answer to a ticket: 2 s, and leg.stall


def test_after_go_a_silent_source_ends_it_when_it_is_given_up(begun):
    """Its outcome is known no sooner: until lease.dead the source may come back and go on."""
    cluster = Cluster(server=False)
    cluster.start_server(args=["-o", "lease.suspect=1s", "-o", f"lease.dead={DEAD_S:.0f}s"])
    failed = True
    try:
        a, b = [cluster.agent(name, args=["-o", "server.beat=100ms"]) for name in ("a", "b")]
        source, target = memory(ord("s")), memory(0)
        t = th.open("m", replica="t", agent=a.runtime)
        r = th.open("m", replica="r", agent=b.runtime)
        t.register({"w": source})
        r.register({"w": target})
        t.publish(1)
        del begun[:]
        with stopped(a):
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                with interrupt_when(lambda: begun and begun[0].progress[1] > 0):
                    r.replicate(1)
            took = time.monotonic() - began
            assert r.version is None and r.safe_to_mutate and bytes(target[:1]) == b"\0"
        # Less than the lease: of it a beat and the look of the server may have passed before.
        assert DEAD_S - 1 < took < DEAD_S + REFUSED_S + 5
        # No source has it any more: who waits for it waits until somebody publishes it again.
        with pytest.raises(th.Timeout, match="no source has the version"):
            r.replicate(1, timeout=0.5)
        with pytest.raises(th.GroupBroken, match="was given up"):
            t.unpublish()
        t.close(abandon=True)
        with th.open("m", replica="t", agent=a.runtime) as again:
            again.register({"w": source})
            again.publish(1)
            assert r.replicate(1, timeout=30).version == 1 and target == source
            r.close()
        failed = False
    finally:
        cluster.close(failed)


def test_a_second_interrupt_leaves_at_once(agent, far, model, begun):
    with th.open(model, replica="r", agent=far.runtime) as r:
        r.register({"w": memory()})
        with stopped(far):
            cancelled = threading.Event()
            end = r._end
            r._end = lambda op: (cancelled.set(), end(op))
            with pytest.raises(KeyboardInterrupt):
                with interrupt_when(lambda: begun), interrupt_when(cancelled.is_set):
                    r.replicate(5)
            del r._end
            assert r.version is None
            for call in (r.update, r.list, r.unregister):
                with pytest.raises(th.State, match="second interrupt"):
                    call()
        with pytest.raises(th.Cancelled):
            r.resolve(timeout=30)
        assert not r.update()
