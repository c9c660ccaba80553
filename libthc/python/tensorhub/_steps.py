# SPDX-License-Identifier: Apache-2.0
"""A verb is written once, as a generator, and run to its end by a thread or by an event loop.

It yields the operation that it waits for, or None to give way between two looks. Who runs it waits
on the handle's descriptor (thc_fd): no thread is started, and the GIL is free meanwhile.
"""

import ctypes as c
import logging
import select
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Generator, Optional, Type, TypeVar, Union

from . import _abi, errors
from .progress import PERIOD_S, Report
from .results import Result, result_of

if TYPE_CHECKING:
    from .handle import Base

T = TypeVar("T")
W = TypeVar("W")
Steps = Generator[Optional["Op"], None, T]

# An agent that stands still wakes nobody (thc_op_wait). libthc knows half a second after a deadline
# that an outcome is unknown, and a call ends within one.
LOOK_S = 0.4
# The most that a call of libthc gets before a loop and Ctrl-C have their turn: one whose work goes
# on meanwhile, and one that begins anew and must come to its end, however many tensors there are.
SLICE_S, ANEW_S = 1.0, 10.0
LONG_S = 30.0  # until somebody is told that a call waits
log = logging.getLogger("tensorhub")


class Default:
    """The type of a timeout that was left out: it is the handle's."""

    def __repr__(self) -> str:
        return "the handle's"


DEFAULT = Default()
Time = Union[float, timedelta, None, Default]


def seconds(timeout: Time, default: Optional[float]) -> Optional[float]:
    """A timeout in seconds; None: no limit."""
    if isinstance(timeout, Default):
        return default
    if timeout is None:
        return None
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise errors.Invalid(f"timeout: {timeout!r} is no number of seconds from 0, and not None")
    return float(value)


def remaining(limit: Optional[float]) -> Callable[[], Optional[float]]:
    """What is left of a time that begins now, for calls that are made one after the other."""
    if limit is None:
        return lambda: None
    end = time.monotonic() + limit
    return lambda: max(end - time.monotonic(), 0.0)


def milliseconds(timeout: Optional[float]) -> int:
    """As thc.h counts them: rounded up, so that a short wait is one."""
    if timeout is None or timeout > 2**52:
        return _abi.FOREVER
    return int(timeout * 1000) + (timeout * 1000 % 1 > 0)


class Op:
    """An operation that was begun: ask done(), wait by result(), end it by cancel().

    Made by replicate_async, update_async, publish_async and unpublish_async. One that is dropped
    before its end is cancelled, and its handle begins no other operation before that end.
    """

    _pointer = c.c_void_p()

    def __init__(
        self, handle: "Base", verb: str, always: bool = False, report: Optional[Report] = None
    ) -> None:
        self.verb = verb
        self._end: Optional[float] = None  # nobody waits past this moment to hear how it ended
        self._handle = handle
        self._always = always
        self._report = report
        self._look_s = LOOK_S if report is None else PERIOD_S
        self._pointer = c.c_void_p()
        self._began = time.monotonic()
        self._told = False

    def __repr__(self) -> str:
        state = "done" if self.done() else "running"
        return f"<{self.verb} of {self._handle.label}: {state}>"

    def _submit(self, function: str, *args: Any) -> "Op":
        # libthc writes the pointer here before a signal can be taken: nothing begun is lost.
        _abi.call(function, self._handle._shard, *args, c.byref(self._pointer))
        return self

    def done(self) -> bool:
        """It has ended; result() does not wait any more."""
        return not self._pointer or _abi.lib.thc_op_done(self._pointer) != 0

    @property
    def progress(self) -> "tuple[int, int]":
        """Bytes that are here and verified, and all; (0, 0) before it has begun."""
        done, total = c.c_uint64(), c.c_uint64()
        if self._pointer:
            _abi.call("thc_op_progress", self._pointer, c.byref(done), c.byref(total))
        return done.value, total.value

    def cancel(self) -> None:
        """Asks it to end. Before GO it ends, and nothing has changed; after GO with its outcome.

        That is: while bytes flow it goes on; without a source it fails when that is given up, 10 s
        after it fell silent (lease.dead).
        """
        if self._pointer:
            _abi.call("thc_op_cancel", self._pointer)

    def result(self, timeout: Time = None) -> Result:
        """Waits until it has ended. Timeout: it runs on. What it failed with is raised."""
        limit = seconds(timeout, None)
        self._handle._wait(self, None if limit is None else time.monotonic() + limit)
        if not self._over():
            raise errors.Timeout(f"timeout: the {self.verb} of {self._handle.label} runs on")
        return self._outcome()

    # ---- for who runs steps -------------------------------------------------------------------

    def _over(self) -> bool:
        """Nothing more comes of waiting: it has ended, or its outcome is not known in time."""
        if self.done() or (self._end is not None and time.monotonic() >= self._end):
            return True
        code = _abi.lib.thc_op_wait(self._pointer, 0, None)
        return code not in (0, errors.Timeout.code) or self.done()

    def _outcome(self) -> Result:
        raw = _abi.Result(struct_size=c.sizeof(_abi.Result))
        _abi.call("thc_op_wait", self._pointer, 0, c.byref(raw))
        self._report_progress()
        return result_of(raw, self._always)

    def _free(self) -> None:
        pointer = self.__dict__.pop("_pointer", None)  # by one thread, if several come
        if pointer:
            _abi.lib.thc_op_free(pointer)

    def _report_progress(self) -> None:
        """A callable that raises is not called again: who waits for the end comes here, too."""
        report, (done, total) = self._report, self.progress if self._report else (0, 0)
        if report is not None and total > 0:
            self._report = None
            report(done, total)
            self._report = report

    def _tell(self) -> None:
        """How far it is, to who wants to know; and once, when it has waited for long."""
        self._report_progress()
        if not self._told and time.monotonic() - self._began > LONG_S:
            self._told = True
            log.warning(
                "the %s of %s runs since %.0f s%s",
                self.verb, self._handle.label, LONG_S, self._waits(),
            )

    def _waits(self) -> str:
        """": " and what it waits for, as the reference server knows it; or nothing."""
        text = c.create_string_buffer(1024)
        code = _abi.lib.thc_op_waits(self._pointer, 0, text, len(text))
        return "" if code < 0 else f": {text.value.decode(errors='replace')}"

    def __enter__(self) -> "Op":
        return self

    def __exit__(self, *_exc: object) -> None:
        """Ends it, whatever happened: no call returns while its tensors are written to."""
        if self._pointer and not self._over():
            self._handle._end(self)
        if self._report is not None:
            self._report.close()
        self._free()

    def __del__(self) -> None:
        self._free()


class Within:
    """``with`` closes it, and abandons it after an exception: nothing masks that."""

    def __enter__(self: W) -> W:
        return self

    def __exit__(self: Any, kind: Optional[Type[BaseException]], *_rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()


def in_slices(
    function: Callable[[int], T], timeout: Optional[float], *short: Type[errors.Error],
    pause: float = 0.05, most: float = ANEW_S,
) -> Steps[T]:  # fmt: skip
    """A call that may be repeated when its time was too short, with a look around in between.

    ``short`` is what says so, Timeout if nothing else; raised when there is no time left. ``pause``
    is the first time that it gets, ``most`` the longest.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if end is None else max(end - time.monotonic(), 0.0)
        last = left is not None and left <= pause
        try:
            return function(milliseconds(left if last else pause))
        except short or errors.Timeout:
            if last or (end is not None and time.monotonic() >= end):
                raise
        yield None
        pause = min(pause * 2, most)


def run(steps: Steps[T]) -> T:
    """Runs a verb in this thread. Ctrl-C asks its operation to end, and is raised when it has."""
    try:
        while True:
            op = next(steps)
            if op is not None:
                op._handle._wait(op, None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def wait_once(descriptor: int, limit: float) -> None:
    """Until it is readable, or a while has passed."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    poller.poll(max(int(limit * 1000), 0))
