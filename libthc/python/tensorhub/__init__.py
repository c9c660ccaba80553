# SPDX-License-Identifier: Apache-2.0
"""TensorHub: publish weights where they lie, replicate a version straight from whoever has it.

    import tensorhub as th

    with th.open("policy", replica="trainer") as h:      # a trainer
        h.register(model.state_dict())
        h.publish(step)

    with th.open("policy") as h:                         # a rollout
        h.register(engine.state_dict())
        if h.update("latest"):
            ...                                          # these weights are new

    with th.watch("policy") as w:                        # a scheduler: no part in any of it
        w.wait(lambda versions: versions.latest == step)

An agent (thagentd) must run on this host: ``thctl up`` starts one. ``tensorhub.aio`` has the same
for asyncio. Every failure is a :class:`tensorhub.Error` whose text says what to do.
"""

from typing import TYPE_CHECKING, Any

from . import errors
from ._abi import lib as _lib
from .errors import *  # noqa: F401,F403
from .errors import Error
from ._steps import Op
from .borrowing import Borrowed
from .handle import Event, Handle, close_all, handles, open
from .loading import load
from .memory import Block, empty, share_
from .publisher import Publisher
from .tensors import Part
from .results import Listing, Manifest, Replica, Result, Row, Version
from .watching import Watch, watch

if TYPE_CHECKING:
    from . import aio, distributed

__version__: str = _lib.thc_version_string().decode()

__all__ = [
    "Block", "Borrowed", "Error", "Event", "Handle", "Listing", "Manifest", "Op", "Part",
    "Publisher", "Replica", "Result", "Row", "Version", "Watch", "aio", "close_all",
    "distributed", "empty", "errors", "handles", "load", "open", "share_", "watch",
    *(kind.__name__ for kind in errors.CLASSES.values()),
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """When they are asked for: asyncio alone takes longer to import than all the rest."""
    if name in ("aio", "distributed"):
        from importlib import import_module

        return import_module(f"tensorhub.{name}")
    raise AttributeError(f"module 'tensorhub' has no attribute {name!r}")
