# SPDX-License-Identifier: Apache-2.0
"""A handle: one shard of one replica of a model, with every verb of thc.h."""

import contextlib
import ctypes as c
import enum
import os
import socket
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from itertools import chain, compress, starmap
from operator import not_
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Tuple, Union

from . import _abi, errors
from ._steps import DEFAULT, SLICE_S, Op, Steps, Time, Within, in_slices, milliseconds, remaining
from ._steps import run, seconds, wait_once
from .borrowing import Borrowed, Loan
from .progress import Told, report_of
from .results import Listing, Manifest, Result, listing_of, manifest_of, result_of
from .streams import Registered
from .tensors import Tensors, pieces_after, rows_of

OPEN_S = 30.0  # thc_open's default
VERB_S = 1800.0  # every other verb's: a straggler behind a checkpoint must not end a run
TENSOR_S = 20e-6  # what one more may take to register, on a busy machine
LEAVE_S = 5.0  # what an abandon may take

VersionSpec = Union[int, str]
Submission = Tuple[Op, str, Any, int]  # what _operate and _begin take


class Event(enum.IntFlag):
    """What has happened to a handle since it was asked last; see thc_shard_events(3)."""

    EVICTED = 1
    VERSION_CONFLICT = 2
    CONTRACT = 4
    GROUP_BROKEN = 8
    AGENT_LOST = 16
    AT_RISK = 32
    READY = 64
    UPDATED = 128
    FOLLOW_FAILED = 256


_handles: "weakref.WeakSet[Base]" = weakref.WeakSet()


def _count(argument: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise errors.Invalid(f"{argument}: {value!r} is no whole number from 0")
    return value


def spec(version: Any) -> bytes:
    """A version as libthc reads it: a number, "latest" or "latest-2"."""
    if isinstance(version, str):
        return _abi.text("version", version)
    return str(_count("version", version)).encode()


def _launch() -> Optional[str]:
    """The launch that the environment names. TORCHELASTIC_RUN_ID names none: restarts keep it."""
    named, job = os.environ.get("THC_LAUNCH_ID"), os.environ.get("SLURM_JOB_ID")
    if named or not job:
        return named or None
    step, restarts = os.environ.get("SLURM_STEP_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")
    return f"slurm-{job}.{step}-{restarts}"


def _rules(retain: Union[None, str, int, Iterable[VersionSpec]]) -> Optional[bytes]:
    if isinstance(retain, int):
        retain = ["latest"] + [f"latest-{i}" for i in range(1, _count("retain", retain))]
    if retain is not None and not isinstance(retain, str):
        try:
            retain = ",".join(map(str, retain))
        except TypeError:
            raise errors.Invalid(
                f"retain: {retain!r} is no rule, no list of rules and no number of versions"
            ) from None
    return _abi.text("retain", retain) if retain else None


class Base:
    """What a handle is, whoever waits: verbs as steps, questions that never wait."""

    _joins = True  # False: an observer, a member of nothing
    _shard = c.c_void_p()  # of libthc; null before it is open, and as soon as it is freed

    def __init__(
        self, model: str, replica: Optional[str], shard: int, num_shards: int, lineage: int,
        retain: Union[None, str, int, Iterable[VersionSpec]], launch_id: Optional[str],
        agent: Optional[str], flags: int, timeout: Time,
    ) -> None:  # fmt: skip
        self._shard = c.c_void_p()
        self._turn = threading.Lock()  # of who calls thc_close
        self._fd = -1
        self._keep = Registered()
        self._seen = Event(0)
        self._left: Optional[Op] = None
        self.timeout = timeout
        if launch_id is None and self._joins:
            launch_id = _launch()
        if replica is None and self._joins:
            replica = f"{socket.gethostname()}-{os.getpid()}"
        self.model, self.replica = model, replica
        self.shard, self.num_shards = shard, num_shards
        self._opts = _abi.OpenOpts(
            struct_size=c.sizeof(_abi.OpenOpts),
            model=_abi.text("model", model),
            replica=None if replica is None else _abi.text("replica", replica),
            shard=min(_count("shard", shard), 2**32 - 1),
            num_shards=min(_count("num_shards", num_shards), 2**32 - 1),
            lineage=_count("lineage", lineage),
            retain=_rules(retain),
            launch_id=None if launch_id is None else _abi.text("launch_id", launch_id),
            agent=None if agent is None else _abi.text("agent", agent),
            flags=flags,
        )

    @property
    def timeout(self) -> Time:
        """Of every verb that is given none: seconds, a timedelta, or None for no limit."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: Time) -> None:
        # Here, and not in the next verb: that may be close().
        self._timeout = seconds(timeout, VERB_S)

    @property
    def label(self) -> str:
        """For sentences: model, replica and shard."""
        if not self._joins:
            return f"{self.model}/(observer)"
        return f"{self.model}/{self.replica}/{self.shard}"

    def _beside(self, replica: str) -> "Base":
        """One of another replica with the same options, not open yet."""
        own = self._opts
        other = type(self)(
            self.model, replica, self.shard, self.num_shards, own.lineage, None, None, None,
            own.flags, self.timeout,
        )  # fmt: skip
        other._opts.retain, other._opts.agent = own.retain, own.agent
        other._opts.launch_id = own.launch_id
        return other

    def __repr__(self) -> str:
        what = f"version {self.version}" if self._shard else "closed"
        return f"<tensorhub handle {self.label}: {what}>"

    def __reduce__(self) -> Any:
        raise errors.State(f"{self.label}: a handle belongs to its process; open one in the other")

    def __del__(self) -> None:
        if self._shard and not sys.is_finalizing():
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self)
            self._abandon()

    # ---- questions ----------------------------------------------------------------------------

    @property
    def version(self) -> Optional[int]:
        """The version that is held, from shared memory; None: none, or it is being overwritten."""
        held = self.held
        return None if held is None else held[1]

    @property
    def held(self) -> "Optional[tuple[int, int]]":
        """Lineage and version that are held; None as of ``version``."""
        return self._ask("thc_held_version")

    @property
    def ready_version(self) -> Optional[int]:
        """The newest version that update() would install without the network, from shared memory.

        With ``prefetch`` or ``offload_seed``; None: nothing newer than what is held is whole on
        this host, or it was taken back. Each member of a group is answered for itself: decide on
        one for all, or call update() on all. A version that cannot be brought never gets ready, so
        also call update() now and then when this is None.
        """
        ready = self._ask("thc_ready_version")
        return None if ready is None else ready[1]

    def _ask(self, question: str) -> "Optional[tuple[int, int]]":
        lineage, version = c.c_uint64(), c.c_uint64()
        if self._left is not None or not self._shard:
            return None
        code = getattr(_abi.lib, question)(self._shard, c.byref(lineage), c.byref(version))
        if code == errors.NotAvailable.code:
            return None
        _abi.check(code, question)
        return lineage.value, version.value

    def fileno(self) -> int:
        """Readable when something has happened (thc_fd): for poll, or a loop of one's own.

        Whoever has seen it readable asks events() and done() of the operations that run.
        """
        self._check()
        return self._fd

    def events(self) -> Event:
        """What has happened since this was asked last, each bit once."""
        self._collect()
        seen, self._seen = self._seen, Event(0)
        return seen

    @property
    def safe_to_mutate(self) -> bool:
        """Proven: nobody writes the tensors any more, and nobody takes what is read from them."""
        return bool(self._shard) and _abi.lib.thc_safe_to_mutate(self._shard) == 1

    def memory_path(self, name: str) -> str:
        """How the agent reaches a tensor: "direct ...", "copy ...", "cuda-ipc ..." and why."""
        self._check()
        text = c.create_string_buffer(1024)
        _abi.call("thc_memory_path", self._shard, _abi.text("name", name), text, len(text))
        return text.value.decode(errors="replace")

    def set_attribute(self, name: str, value: Optional[bytes]) -> None:
        """Bytes that travel with what is published next; None takes the name away."""
        self._check()
        if value is not None and not isinstance(value, (bytes, bytearray)):
            raise errors.Invalid(f"value: {type(value).__name__} is no bytes")
        raw = None if value is None else bytes(value)
        _abi.call("thc_set_attribute", self._shard, _abi.text("name", name), raw, len(raw or b""))

    # ---- waiting ------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self._shard:
            raise errors.State(f"{self.label}: this handle is closed, or was not opened")
        if self._left is not None:
            raise errors.State(
                f"{self.label}: a {self._left.verb} was left by a second interrupt; call "
                "resolve() or close()"
            )

    def _limit(self, timeout: Time) -> Optional[float]:
        return seconds(timeout, self._timeout)

    def _collect(self) -> None:
        if self._shard:
            self._seen |= Event(_abi.lib.thc_shard_events(self._shard))

    def _wait(self, op: Op, end: Optional[float]) -> None:
        """Until op is over, or that moment has come. Another thread may close the handle."""
        while not op._over():
            left = op._look_s if end is None else min(op._look_s, end - time.monotonic())
            if left <= 0:
                return
            op._tell()
            wait_once(self._fd, left)
            self._collect()

    def _end(self, op: Op) -> None:
        """Cancels, and waits for the end. A second Ctrl-C leaves it to resolve() or close()."""
        try:
            _abi.lib.thc_op_cancel(op._pointer)
            self._wait(op, None)
        except BaseException:
            self._left, kept = Op(self, op.verb, op._always), op._pointer
            self._left._pointer, op._pointer = kept, c.c_void_p()
            raise

    # ---- verbs, as steps ------------------------------------------------------------------------

    def _open(self, timeout: Time) -> Steps[None]:
        # As in Op._submit: libthc writes the pointer where a signal cannot lose it.
        pointer = c.byref(self._shard)
        try:
            yield from in_slices(
                lambda ms: _abi.call("thc_open", c.byref(self._opts), ms, pointer),
                seconds(timeout, OPEN_S),
            )
            self._fd = _abi.call("thc_fd", self._shard)
            _handles.add(self)
        except BaseException:
            self._abandon()
            raise

    def _register(self, tensors: Tensors, timeout: Time) -> Steps[None]:
        self._check()
        array, kept, on_gpus = rows_of(tensors)
        before = self._keep
        self._keep = now = Registered(kept, on_gpus, before)  # also when this is interrupted
        try:
            yield from in_slices(
                lambda ms: _abi.call(
                    "thc_register", self._shard, array, len(array), c.sizeof(_abi.Tensor), ms
                ),
                self._limit(timeout),
                pause=0.05 + len(array) * TENSOR_S,
            )
        except errors.Error:
            self._keep = before
            raise
        now.before = None

    def _unregister(self, timeout: Time) -> Steps[None]:
        self._check()
        yield from in_slices(
            lambda ms: _abi.call("thc_unregister", self._shard, ms), self._limit(timeout)
        )
        self._keep = Registered()

    def _operate(self, op: Op, function: str, *args: Any) -> Steps[Result]:
        with op:
            self._check()
            yield op._submit(function, *args)
            return op._outcome()

    def _publish(self, version: int, timeout: Time) -> Submission:
        number, ms = _count("version", version), milliseconds(self._limit(timeout))
        self._keep.check()
        return Op(self, "publish"), "thc_publish_submit", number, ms

    def _unpublish(self, force: bool, timeout: Time) -> Submission:
        flags, ms = _abi.FORCE if force else 0, milliseconds(self._limit(timeout))
        return Op(self, "unpublish"), "thc_unpublish_submit", flags, ms

    def _replicate(
        self, version: VersionSpec, timeout: Time, progress: Told = None, tqdm: bool = False
    ) -> Submission:
        text, ms = spec(version), milliseconds(self._limit(timeout))
        self._keep.check()
        report = report_of(f"replicate {self.model}", progress, tqdm)
        return Op(self, "replicate", always=True, report=report), "thc_replicate_submit", text, ms

    def _update(
        self, version: VersionSpec, timeout: Time, progress: Told = None, tqdm: bool = False
    ) -> Submission:
        text, ms = spec(version), milliseconds(self._limit(timeout))
        self._keep.check()
        report = report_of(f"update {self.model}", progress, tqdm)
        return Op(self, "update", report=report), "thc_update_submit", text, ms

    def _follow(self, version: Optional[str], timeout: Time) -> Steps[None]:
        text = None if version is None else spec(version)
        with Op(self, "follow") as op:
            self._check()
            yield op._submit("thc_follow_submit", text, 0, milliseconds(self._limit(timeout)))
            op._outcome()

    def _go(self, version: int, timeout: Time) -> Steps[None]:
        self._check()
        number = _count("version", version)
        yield from in_slices(
            lambda ms: _abi.call("thc_go", self._shard, number, ms), self._limit(timeout)
        )

    def _resolve(self, timeout: Time) -> Steps[Result]:
        left, self._left = self._left, None
        if left is not None:
            with left:
                yield left
                return left._outcome()
        self._check()
        raw = _abi.Result(struct_size=c.sizeof(_abi.Result))
        yield from in_slices(
            lambda ms: _abi.call("thc_resolve", self._shard, ms, c.byref(raw)),
            self._limit(timeout),
            errors.Unknown,  # Timeout is the outcome of that operation
            most=SLICE_S,
        )
        return result_of(raw, False)

    def _list(self, group: bool, timeout: Time) -> Steps[Listing]:
        self._check()
        left = remaining(self._limit(timeout))
        raw = c.c_void_p()
        pointer = c.byref(raw)
        try:
            if group:
                with Op(self, "grouped list") as op:
                    yield op._submit("thc_list_submit", _abi.LIST_GROUP, milliseconds(left()))
                    op._outcome()
                    yield from in_slices(
                        lambda ms: _abi.call("thc_op_listing", op._pointer, ms, pointer), left()
                    )
            else:
                yield from in_slices(
                    lambda ms: _abi.call("thc_list", self._shard, 0, ms, pointer), left()
                )
            return listing_of(_abi.Listing.from_address(raw.value or 0))
        finally:
            _abi.lib.thc_listing_free(raw)

    def _wait_for(self, predicate: Callable[[Listing], Any], timeout: Time) -> Steps[Listing]:
        if not callable(predicate):
            raise errors.Invalid(f"predicate: {predicate!r} cannot be called")
        limit = self._limit(timeout)
        end = None if limit is None else time.monotonic() + limit
        while True:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            listing = yield from self._list(False, left)
            if predicate(listing):
                return listing
            with Op(self, "wait") as op:
                op._end = end
                ms = milliseconds(None if end is None else max(end - time.monotonic(), 0.0))
                yield op._submit("thc_watch_submit", listing.generation, ms)
                op._outcome()

    def _manifest(self, version: VersionSpec, shard: int, timeout: Time) -> Steps[Manifest]:
        self._check()
        raw, text = c.c_void_p(), spec(version)
        number = min(_count("shard", shard), 2**32 - 1)
        try:
            yield from in_slices(
                lambda ms: _abi.call(
                    "thc_get_manifest", self._shard, text, number, ms, c.byref(raw)
                ),
                self._limit(timeout),
            )
            return manifest_of(_abi.Manifest.from_address(raw.value or 0))
        finally:
            _abi.lib.thc_manifest_free(raw)

    def _allocate(
        self, version: VersionSpec, of_shard: Optional[int], timeout: Time
    ) -> Steps[Dict[str, Any]]:
        shard = self.shard if of_shard is None else _count("of_shard", of_shard)
        manifest = yield from self._manifest(version, shard, timeout)
        pieces = pieces_after(manifest)
        yield from self._register(pieces, timeout)
        return {name: piece.keep for name, piece in pieces.items()}

    def _borrow(
        self, version: VersionSpec, of_shard: Optional[int], whole: bool, timeout: Time
    ) -> Steps[Borrowed]:
        self._check()
        loan, text, flags = Loan(), spec(version), _abi.COW | (_abi.WHOLE if whole else 0)
        number = (0 if whole else self.shard) if of_shard is None else _count("of_shard", of_shard)
        number, pointer = min(number, 2**32 - 1), c.byref(loan.pointer)
        short = errors.Timeout, errors.NoServer  # both are waited for
        yield from in_slices(
            lambda ms: _abi.call("thc_borrow", self._shard, text, number, flags, ms, pointer),
            self._limit(timeout),
            *short,
            most=SLICE_S,
        )
        return Borrowed(loan)

    def _close(self, abandon: bool, timeout: Time) -> Steps[None]:
        if not self._shard:
            return
        left, self._left = self._left, None
        if left is not None:
            left._free()
        limit = self._limit(timeout)
        if abandon:
            self._close_once(_abi.CLOSE_ABANDON, milliseconds(limit))
            return
        short = errors.Timeout, errors.NoServer  # both are waited for
        yield from in_slices(lambda ms: self._close_once(0, ms), limit, *short, most=SLICE_S)

    def _close_once(self, flags: int, ms: int) -> None:
        """One thc_close, by one thread at a time: the next open gets the address that one frees.

        Its steps are iterators of C, which one call runs to their end. So no signal comes between
        them: the lock is given back, the answer is known, and the pointer is null once it is freed.
        """
        shard, abandon = self._shard, flags & _abi.CLOSE_ABANDON
        # An abandon has to come to its turn: another's is a slice, or frees the handle.
        least_s = 2 * SLICE_S if abandon else 0.0
        wait_s = -1.0 if ms < 0 else min(max(ms / 1000, least_s), threading.TIMEOUT_MAX)
        codes: List[int] = []
        answers = map(_abi.lib.thc_close, filter(None, (shard,)), (flags,), (ms,))
        freed: Iterable[Any] = (True,) if abandon else map(not_, codes)
        steps = chain(
            map(codes.append, answers),
            starmap(setattr, compress(((shard, "value", None),), freed)),
            starmap(self._turn.release, ((),)),
        )
        turns = map(self._turn.acquire, (True,), (wait_s,))
        try:
            deque(chain.from_iterable(compress((steps,), turns)), 0)
        finally:
            if not shard:
                self._forget()
        if codes:
            _abi.check(codes[0], "thc_close")
        elif shard:
            raise errors.Timeout(f"{self.label}: another thread closes this handle, and goes on")

    def _abandon(self) -> None:
        if self._shard:
            with contextlib.suppress(errors.Error):  # it frees the handle, whatever is said
                self._close_once(_abi.CLOSE_ABANDON, int(LEAVE_S * 1000))

    def _forget(self) -> None:
        self._fd, self._keep = -1, Registered()
        _handles.discard(self)


def _after_fork() -> None:
    """A thread that is not in the child may have had the turn."""
    for handle in list(_handles):
        handle._turn = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Handle(Within, Base):
    """A handle whose verbs wait in the calling thread. Made by :func:`tensorhub.open`.

    Every verb takes ``timeout``: seconds, a timedelta, or None for no limit; left out it is the
    attribute ``timeout`` of the handle, 1,800 s. Several threads may use one handle; one operation
    runs at a time. ``with`` closes it, and after an exception abandons it at once, so that the
    other members of its group go on.
    """

    def register(self, tensors: Tensors, *, timeout: Time = DEFAULT) -> None:
        """Says which memory is moved: a mapping or pairs of name and tensor.

        Host and CUDA tensors of torch, DTensors, numpy arrays, CUDA arrays and buffers, each
        contiguous. They are kept until unregister() or close(). Two names for the same bytes are
        one tensor. Invalid names the tensor that cannot be registered, and says what to call.
        """
        run(self._register(tensors, timeout))

    def unregister(self, *, timeout: Time = DEFAULT) -> None:
        """Gives the memory back, and forgets the tensors. State: they are published."""
        run(self._unregister(timeout))

    def publish(self, version: int, *, stream: Any = None, timeout: Time = DEFAULT) -> None:
        """Offers the registered tensors as this version. Returns when all members have done so.

        No byte moves. They may not be written to before unpublish() has returned. VersionConflict:
        there is such a version with other bytes. State: a version is held, or there are no tensors.

        What writes tensors on a GPU must have ended: it first waits, without a timeout, for the
        current stream of each GPU that has some, as this thread has them: torch's, that which an
        array names (``__cuda_array_interface__``), else the default stream. ``stream``: for this
        one instead, of torch, cupy or cuda.core, or a cudaStream_t; False: you have waited.
        """
        submission = self._publish(version, timeout)
        self._written(stream)
        run(self._operate(*submission))

    def unpublish(self, *, force: bool = False, timeout: Time = DEFAULT) -> None:
        """Takes the version back. Returns when nobody reads it, and a retained one is elsewhere.

        From then on every byte may be written to. NoMemoryToRetain: it is the last copy of a
        retained version, no agent has room for it, and it is published still; ``force`` gives it
        up.
        """
        run(self._operate(*self._unpublish(force, timeout)))

    def replicate(
        self, version: VersionSpec = "latest", *, timeout: Time = DEFAULT, progress: Told = None,
        tqdm: bool = False,
    ) -> Result:  # fmt: skip
        """Waits for the version, and brings it into the registered tensors.

        Layout names a tensor that differs from the publisher's in name, type or shape. Timeout
        means that nothing has changed, Unknown that it had begun, Dirty that the tensors are partly
        overwritten: another replicate() fills them.

        When it returns the bytes are there: what is launched from then on sees them, on any stream.
        What reads or writes the tensors on a GPU must have ended before it is called, and it waits
        for no stream: with submit forms, until the operation has ended.

        ``progress`` is called with (done, total), bytes that are here and verified and all, about
        ten times a second while they come and once when they are there. It is called by this
        thread; what it raises ends the operation as Ctrl-C does. ``tqdm``: a bar where tqdm is
        installed and the output is a terminal.
        """
        return run(self._operate(*self._replicate(version, timeout, progress, tqdm)))

    def update(
        self, version: VersionSpec = "latest", *, timeout: Time = DEFAULT, progress: Told = None,
        tqdm: bool = False,
    ) -> Result:  # fmt: skip
        """Brings the version if it is there and not held. The result is true when bytes are new.

        Waits for no version. While it runs after GO, ``version`` is None. Streams, ``progress`` and
        ``tqdm`` are as of replicate(); an update that finds nothing new touches no tensor.

        With ``prefetch`` or ``offload_seed`` a version by a relative name is not there before it is
        whole, and then comes from the host: ``result.bytes_prefetched``. What could not be brought
        comes over the network, and ``result.reason`` says why.
        """
        return run(self._operate(*self._update(version, timeout, progress, tqdm)))

    def follow(self, version: Optional[str] = "latest", *, timeout: Time = DEFAULT) -> None:
        """From now on the agent brings versions into the tensors by itself, up to the one for which
        somebody says go. All members call it; None, unpublish() and close() end it.

        This process calls nothing for a version: Event.UPDATED tells that one has come. ``version``
        of the handle is None while bytes change; whoever finds the same one before and after a
        batch, and no UPDATED in between, has had the same weights all the time. A call of one's own
        comes first, or waits for the end. Event.FOLLOW_FAILED: it is tried again, and ``thctl
        events`` has why.

        MemoryKind: tensors lie in memory of torch or numpy, which has to be looked at before each
        transfer, and whoever follows calls nothing: take th.empty() or th.share_().
        """
        run(self._follow(version, timeout))

    def go(self, version: int, *, timeout: Time = DEFAULT) -> None:
        """Says that whoever follows the model may take its versions up to this one, which is there.

        It is never taken back. Denied: without registered tensors nothing could be published here.
        """
        run(self._go(version, timeout))

    def resolve(self, *, timeout: Time = DEFAULT) -> Result:
        """After Unknown, or a second Ctrl-C: waits for the outcome of that operation.

        Raises what it failed with; Unknown when that is not known in time.
        """
        return run(self._resolve(timeout))

    def list(self, *, group: bool = False, timeout: Time = DEFAULT) -> Listing:
        """Which versions there are, and who has them. NoServer: nobody knows now.

        ``group``: all members of the replica call it, and get the same one.
        """
        return run(self._list(group, timeout))

    def wait(
        self, predicate: Callable[[Listing], Any], *, timeout: Time = DEFAULT
    ) -> Listing:
        """Waits until the predicate is true of the listing, and returns that listing.

        It is called by this thread at first and after each change; what it raises is raised here.
        Timeout: it was not true in time. NoServer when the server answers no more: wait again.
        """
        return run(self._wait_for(predicate, timeout))

    def manifest(
        self, version: VersionSpec = "latest", shard: int = 0, *, timeout: Time = DEFAULT
    ) -> Manifest:
        """What one shard of a version consists of, and the attributes that travel with it.

        It waits for no version: NotAvailable. Shapes are in elements, ``nbytes`` in bytes.
        """
        return run(self._manifest(version, shard, timeout))

    def allocate(
        self, version: VersionSpec = "latest", *, of_shard: Optional[int] = None,
        timeout: Time = DEFAULT,
    ) -> Dict[str, Any]:  # fmt: skip
        """Tensors after a version's manifest, in memory that agents map, registered.

        Torch tensors where torch is imported, else memoryviews. Then replicate() fills them. They
        are those of this handle's shard, or of ``of_shard``. The memory is freed with the last of
        them, and not before unregister() or close().
        """
        return run(self._allocate(version, of_shard, timeout))

    def borrow(
        self, version: VersionSpec = "latest", *, of_shard: Optional[int] = None,
        whole: bool = False, timeout: Time = DEFAULT,
    ) -> Borrowed:  # fmt: skip
        """A version out of the agent's own memory, without a copy of this process's own.

        All who borrow it on this host share the bytes; the agent brings them when it has them not.
        It waits for no version: NotAvailable. Needs no tensors. It stays, whatever becomes of the
        handle, until the last tensor of it is gone. ``of_shard`` is this handle's if left out;
        ``whole``, all shards joined, is not there yet: Invalid.
        """
        return run(self._borrow(version, of_shard, whole, timeout))

    def close(self, *, abandon: bool = False, timeout: Time = DEFAULT) -> None:
        """Leaves the group and gives all back. ``abandon``: the handle is gone whatever the agent
        says; Timeout tells that the agent has not let go of the memory yet.

        The last copy of a version that others retain is copied first. A second close does nothing.
        """
        run(self._close(abandon, timeout))

    # ---- submit forms ---------------------------------------------------------------------------

    def _begin(self, op: Op, function: str, *args: Any) -> Op:
        self._check()
        return op._submit(function, *args)

    def _written(self, stream: Any) -> None:
        self._check()
        for writer in self._keep.writers(stream):
            writer.synchronize()

    def publish_async(
        self, version: int, *, stream: Any = None, timeout: Time = DEFAULT
    ) -> Op:
        """Begins a publish, when ``stream`` has ended; ``timeout`` is its own deadline."""
        submission = self._publish(version, timeout)
        self._written(stream)
        return self._begin(*submission)

    def unpublish_async(self, *, force: bool = False, timeout: Time = DEFAULT) -> Op:
        """Begins an unpublish; ``timeout`` is its own deadline."""
        return self._begin(*self._unpublish(force, timeout))

    def replicate_async(self, version: VersionSpec = "latest", *, timeout: Time = DEFAULT) -> Op:
        """Begins a replicate; ``timeout`` is its own deadline."""
        return self._begin(*self._replicate(version, timeout))

    def update_async(self, version: VersionSpec = "latest", *, timeout: Time = DEFAULT) -> Op:
        """Begins an update; ``timeout`` is its own deadline."""
        return self._begin(*self._update(version, timeout))


def flags_of(
    spot: bool, require_rdma: bool, staged: bool, no_memory_fd: bool, prefetch: bool,
    offload_seed: bool,
) -> int:  # fmt: skip
    """enum thc_open_flags of the keywords of open()."""
    return (
        (_abi.SPOT if spot else 0)
        | (_abi.REQUIRE_RDMA if require_rdma else 0)
        | (_abi.STAGED if staged else 0)
        | (_abi.NO_MEMORY_FD if no_memory_fd else 0)
        | (_abi.PREFETCH if prefetch else 0)
        | (_abi.OFFLOAD_SEED if offload_seed else 0)
    )


def open(
    model: str, *, replica: Optional[str] = None, shard: int = 0, num_shards: int = 1,
    retain: Union[None, str, int, Iterable[VersionSpec]] = None, lineage: int = 0,
    launch_id: Optional[str] = None, agent: Optional[str] = None, timeout: Time = DEFAULT,
    spot: bool = False, require_rdma: bool = False, staged: bool = False,
    no_memory_fd: bool = False, prefetch: bool = False, offload_seed: bool = False,
) -> Handle:  # fmt: skip
    """Opens shard ``shard`` of ``num_shards`` of a replica of ``model``.

    ``replica`` names the group of shards, and is the same for all its members; left out it is this
    host and process. ``retain`` says what stays available while the handle is open: "latest-2", a
    list of such rules, or a number N for the last N. ``lineage`` is raised when a training restarts
    from an older checkpoint. ``launch_id`` is one string for all members of one launch, which
    replaces what is left of the one before; left out it is $THC_LAUNCH_ID, else Slurm's job, step
    and restart count, else none. ``agent`` is the directory of the agent; left out libthc finds it.
    ``timeout`` is that of this call, 30 s.

    ``spot``: this host may be taken away, so what is held here is nobody's backup.
    ``require_rdma``: what comes from other hosts comes by RDMA, or NoPath is raised. ``staged``:
    the tensors are reallocated often, so RDMA goes through buffers of the agent. ``no_memory_fd``:
    the agent gets no access to memory that it cannot map, which then cannot be registered.
    ``prefetch``: the agents of the group bring each new version into their own memory while the
    worker goes on with the old one, and update() installs it from there when it is whole on all
    hosts of the group; ``h.ready_version`` and Event.READY tell. ``offload_seed``: the same for
    versions of other datacenters, once for all groups of this one. All members give them alike.

    NoAgent says where an agent was looked for, GroupMismatch who has this shard open already.
    """
    flags = flags_of(spot, require_rdma, staged, no_memory_fd, prefetch, offload_seed)
    handle = Handle(
        model, replica, shard, num_shards, lineage, retain, launch_id, agent, flags, DEFAULT
    )
    run(handle._open(timeout))
    return handle


def close_all() -> None:
    """Abandons every handle of this process that is open: for notebooks and for signal handlers."""
    for handle in list(_handles):
        handle._abandon()


def handles() -> FrozenSet[str]:
    """Labels of the handles that are open in this process."""
    return frozenset(handle.label for handle in list(_handles) if handle._shard)
