# SPDX-License-Identifier: Apache-2.0
"""Who wants to know what versions there are, and has no part in them."""

from typing import Any, Callable, Optional, Type

from ._steps import DEFAULT, Time, run
from .borrowing import Borrowed
from .handle import Handle, VersionSpec
from .results import Listing, Manifest


class _Observer(Handle):
    _joins = False


class Watch:
    """An observer of a model: a member of nothing. Made by :func:`tensorhub.watch`.

    It holds nothing, no listing names it, nobody waits for it, and it goes on when groups end or
    the server begins anew. It may stand where the versions of several workers are decided: wait for
    one here, send its number to all, and have each call ``update`` with that.

    Every verb takes ``timeout``, as those of a handle do. Several threads may use one watch.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle, self.model = handle, handle.model

    def __repr__(self) -> str:
        return f"<tensorhub watch of {self.model}: {'open' if self._handle._shard else 'closed'}>"

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *rest: object) -> None:
        self._handle.__exit__(kind, *rest)

    def list(self, *, timeout: Time = DEFAULT) -> Listing:
        """Which versions there are, and who has them."""
        return self._handle.list(timeout=timeout)

    def wait(
        self, predicate: Callable[[Listing], Any], *, timeout: Time = DEFAULT
    ) -> Listing:
        """Waits until the predicate is true of the listing, and returns that listing.

        NoServer when the server answers no more: wait again.
        """
        return self._handle.wait(predicate, timeout=timeout)

    def latest(self, *, timeout: Time = DEFAULT) -> Optional[int]:
        """The highest version that somebody has whole now; None: there is none."""
        return self._handle.list(timeout=timeout).latest

    def manifest(
        self, version: VersionSpec = "latest", shard: int = 0, *, timeout: Time = DEFAULT
    ) -> Manifest:
        """What one shard of a version consists of, and the attributes that travel with it."""
        return self._handle.manifest(version, shard, timeout=timeout)

    def borrow(
        self, version: VersionSpec = "latest", shard: int = 0, *, timeout: Time = DEFAULT
    ) -> Borrowed:
        """One shard of a version out of the agent's own memory: :meth:`Handle.borrow`."""
        return self._handle.borrow(version, of_shard=shard, timeout=timeout)

    def close(self, *, timeout: Time = DEFAULT) -> None:
        """Ends it. A second close does nothing."""
        self._handle.close(timeout=timeout)


def watch(
    model: str, *, agent: Optional[str] = None, timeout: Time = DEFAULT
) -> Watch:
    """Opens an observer of ``model``; ``timeout`` is that of this call, 30 s.

    ``agent`` is the directory of the agent; left out libthc finds it.
    """
    observer = _Observer(model, None, 0, 1, 0, None, None, agent, 0, DEFAULT)
    run(observer._open(timeout))
    return Watch(observer)
