# SPDX-License-Identifier: Apache-2.0
"""The same handle for asyncio: every verb that may wait is a coroutine.

The event loop itself watches the handle's descriptor; no thread is started. A handle belongs to the
first loop that waits for it. Cancelling a task asks its operation to end, and the task ends when
the operation has: ``asyncio.wait_for(handle.update(), 5)`` never returns while memory is written.
"""

import asyncio
from typing import Any, Callable, Dict, Generator, Generic, Iterable, Optional, Type, TypeVar
from typing import Union, cast

from . import errors, handle, publisher, watching
from ._steps import DEFAULT, Op, Steps, Time
from .borrowing import Borrowed
from .handle import Base, VersionSpec, flags_of
from .loading import load_steps
from .progress import Told
from .publisher import Buffers
from .results import Listing, Manifest, Result
from .tensors import Tensors

T = TypeVar("T")
W = TypeVar("W")
Kind = TypeVar("Kind", bound=type)
LOOK_STREAM_S = 0.001  # between two looks whether a stream has ended


def _as_in(threads: type) -> Callable[[Kind], Kind]:
    """What has no docstring of its own does what it does for threads, and has that one."""

    def documented(kind: Kind) -> Kind:
        for name, method in vars(kind).items():
            if callable(method) and method.__doc__ is None:
                method.__doc__ = getattr(getattr(threads, name, None), "__doc__", None)
        return kind

    return documented


class Within:
    """As that of threads."""

    async def __aenter__(self: W) -> W:
        return self

    async def __aexit__(self: Any, kind: Optional[Type[BaseException]], *_rest: object) -> None:
        if kind is None:
            await self.close()
        else:
            self._abandon()


@_as_in(handle.Handle)
class Handle(Within, Base):
    """A handle whose verbs are coroutines; see :class:`tensorhub.Handle` for what each does."""

    _loop: Optional[asyncio.AbstractEventLoop] = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: Dict[Op, "asyncio.Future[None]"] = {}
        self._timer: Optional[asyncio.TimerHandle] = None

    # ---- waiting --------------------------------------------------------------------------------

    def _belongs(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise errors.State(
                f"{self.label}: another event loop has waited for this handle; open one here"
            )
        return loop

    def _look(self) -> None:
        """The descriptor is readable, or a while has passed: who is over goes on."""
        self._collect()
        for op, future in list(self._waiting.items()):
            if op._over() and not future.done():
                future.set_result(None)

    def _tick(self) -> None:
        self._look()
        for op, future in list(self._waiting.items()):
            try:
                op._tell()
            except BaseException as failure:  # a callable's: it belongs to who waits
                if not future.done():
                    future.set_exception(failure)
        if self._loop is not None and self._waiting:
            look_s = min(op._look_s for op in self._waiting)
            self._timer = self._loop.call_later(look_s, self._tick)

    async def _over(self, op: Op) -> None:
        """Until op is over. A cancel of the task is one of op, raised when that has ended."""
        loop = self._belongs()
        cancelled: Optional[BaseException] = None
        descriptor = self._fd
        while not op._over():
            future = loop.create_future()
            if not self._waiting:
                loop.add_reader(descriptor, self._look)
                self._timer = loop.call_later(op._look_s, self._tick)
            self._waiting[op] = future
            try:
                await future
            except BaseException as cancel:
                cancelled = cancel
                op.cancel()
            finally:
                del self._waiting[op]
                if not self._waiting:
                    loop.remove_reader(descriptor)
                    if self._timer is not None:
                        self._timer.cancel()
        if cancelled is not None:
            raise cancelled

    async def _run(self, steps: Steps[T]) -> T:
        return await run(steps)

    # ---- verbs ----------------------------------------------------------------------------------

    async def register(self, tensors: Tensors, *, timeout: Time = DEFAULT) -> None:
        await self._run(self._register(tensors, timeout))

    async def unregister(self, *, timeout: Time = DEFAULT) -> None:
        await self._run(self._unregister(timeout))

    async def publish(
        self, version: int, *, stream: Any = None, timeout: Time = DEFAULT
    ) -> None:
        submission = self._publish(version, timeout)
        self._check()
        for writer in self._keep.writers(stream):
            while not writer.query():  # a stream has no descriptor
                await asyncio.sleep(LOOK_STREAM_S)
        await self._run(self._operate(*submission))

    async def unpublish(self, *, force: bool = False, timeout: Time = DEFAULT) -> None:
        await self._run(self._operate(*self._unpublish(force, timeout)))

    async def replicate(
        self, version: VersionSpec = "latest", *, timeout: Time = DEFAULT, progress: Told = None,
        tqdm: bool = False,
    ) -> Result:  # fmt: skip
        return await self._run(self._operate(*self._replicate(version, timeout, progress, tqdm)))

    async def update(
        self, version: VersionSpec = "latest", *, timeout: Time = DEFAULT, progress: Told = None,
        tqdm: bool = False,
    ) -> Result:  # fmt: skip
        return await self._run(self._operate(*self._update(version, timeout, progress, tqdm)))

    async def follow(
        self, version: Optional[str] = "latest", *, timeout: Time = DEFAULT
    ) -> None:
        await self._run(self._follow(version, timeout))

    async def go(self, version: int, *, timeout: Time = DEFAULT) -> None:
        await self._run(self._go(version, timeout))

    async def resolve(self, *, timeout: Time = DEFAULT) -> Result:
        return await self._run(self._resolve(timeout))

    async def list(self, *, group: bool = False, timeout: Time = DEFAULT) -> Listing:
        return await self._run(self._list(group, timeout))

    async def wait(
        self, predicate: Callable[[Listing], Any], *, timeout: Time = DEFAULT
    ) -> Listing:
        return await self._run(self._wait_for(predicate, timeout))

    async def manifest(
        self, version: VersionSpec = "latest", shard: int = 0, *, timeout: Time = DEFAULT
    ) -> Manifest:
        return await self._run(self._manifest(version, shard, timeout))

    async def allocate(
        self, version: VersionSpec = "latest", *, of_shard: Optional[int] = None,
        timeout: Time = DEFAULT,
    ) -> Dict[str, Any]:  # fmt: skip
        return await self._run(self._allocate(version, of_shard, timeout))

    async def borrow(
        self, version: VersionSpec = "latest", *, of_shard: Optional[int] = None,
        whole: bool = False, timeout: Time = DEFAULT,
    ) -> Borrowed:  # fmt: skip
        return await self._run(self._borrow(version, of_shard, whole, timeout))

    async def close(self, *, abandon: bool = False, timeout: Time = DEFAULT) -> None:
        await self._run(self._close(abandon, timeout))


async def run(steps: Steps[T]) -> T:
    """Runs a verb in this loop. A cancel asks its operation to end, and is raised when it has."""
    try:
        while True:
            op = next(steps)
            if op is None:
                await asyncio.sleep(0)
            else:
                await cast(Handle, op._handle)._over(op)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


class _Observer(Handle):
    _joins = False


@_as_in(watching.Watch)
class Watch:
    """A watch whose verbs are coroutines; see :class:`tensorhub.Watch` for what each does."""

    def __init__(self, handle: Handle) -> None:
        self._handle, self.model = handle, handle.model

    def __repr__(self) -> str:
        return f"<tensorhub watch of {self.model}: {'open' if self._handle._shard else 'closed'}>"

    async def __aenter__(self) -> "Watch":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], *rest: object) -> None:
        await self._handle.__aexit__(kind, *rest)

    async def list(self, *, timeout: Time = DEFAULT) -> Listing:
        return await self._handle.list(timeout=timeout)

    async def wait(
        self, predicate: Callable[[Listing], Any], *, timeout: Time = DEFAULT
    ) -> Listing:
        return await self._handle.wait(predicate, timeout=timeout)

    async def latest(self, *, timeout: Time = DEFAULT) -> Optional[int]:
        return (await self._handle.list(timeout=timeout)).latest

    async def manifest(
        self, version: VersionSpec = "latest", shard: int = 0, *, timeout: Time = DEFAULT
    ) -> Manifest:
        return await self._handle.manifest(version, shard, timeout=timeout)

    async def borrow(
        self, version: VersionSpec = "latest", shard: int = 0, *, timeout: Time = DEFAULT
    ) -> Borrowed:
        return await self._handle.borrow(version, of_shard=shard, timeout=timeout)

    async def close(self, *, timeout: Time = DEFAULT) -> None:
        await self._handle.close(timeout=timeout)


Given = TypeVar("Given")


class _Opening(Generic[Given]):
    """``await open(...)`` or ``async with open(...)``: both are what people write."""

    def __init__(self, handle: Handle, timeout: Time, given: Given) -> None:
        self._handle, self._timeout, self._given = handle, timeout, given

    async def _opened(self) -> Given:
        await self._handle._run(self._handle._open(self._timeout))
        return self._given

    def __await__(self) -> Generator[Any, None, Given]:
        return self._opened().__await__()

    async def __aenter__(self) -> Given:
        return await self._opened()

    async def __aexit__(self, kind: Optional[Type[BaseException]], *rest: object) -> None:
        await self._handle.__aexit__(kind, *rest)


def open(
    model: str, *, replica: Optional[str] = None, shard: int = 0, num_shards: int = 1,
    retain: Union[None, str, int, Iterable[VersionSpec]] = None, lineage: int = 0,
    launch_id: Optional[str] = None, agent: Optional[str] = None, timeout: Time = DEFAULT,
    spot: bool = False, require_rdma: bool = False, staged: bool = False,
    no_memory_fd: bool = False, prefetch: bool = False, offload_seed: bool = False,
) -> _Opening[Handle]:  # fmt: skip
    """As :func:`tensorhub.open`, to be awaited or used by ``async with``."""
    flags = flags_of(spot, require_rdma, staged, no_memory_fd, prefetch, offload_seed)
    handle = Handle(
        model, replica, shard, num_shards, lineage, retain, launch_id, agent, flags, DEFAULT
    )
    return _Opening(handle, timeout, handle)


def watch(
    model: str, *, agent: Optional[str] = None, timeout: Time = DEFAULT
) -> _Opening[Watch]:
    """As :func:`tensorhub.watch`, to be awaited or used by ``async with``."""
    observer = _Observer(model, None, 0, 1, 0, None, None, agent, 0, DEFAULT)
    return _Opening(observer, timeout, Watch(observer))


async def load(
    model: str, version: VersionSpec = "latest", *, agent: Optional[str] = None,
    timeout: Time = DEFAULT, progress: Told = None, tqdm: bool = False,
) -> Dict[str, Any]:  # fmt: skip
    """As :func:`tensorhub.load`."""
    return await run(load_steps(Handle, _Observer, model, version, agent, timeout, progress, tqdm))


@_as_in(publisher.Publisher)
class Publisher(Within, Buffers):
    """As :class:`tensorhub.Publisher`; the first publish() prepares it. Copying holds the loop."""

    async def publish(
        self, step: int, source: Any = None, *, timeout: Time = DEFAULT
    ) -> None:
        await run(self._publish(step, source, timeout))

    async def close(self, *, timeout: Time = DEFAULT) -> None:
        await run(self._close(timeout))
