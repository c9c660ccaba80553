# SPDX-License-Identifier: Apache-2.0
"""A version in the agent's own memory, mapped into this process.

Nothing is unmapped while a tensor lies there: each keeps the loan, and the last one returns it. The
mapping is copy-on-write, for loaders write into what they are given, and a tensor of torch cannot
be made read-only: what would be a crash is a private copy of the page instead.
"""

import ctypes as c
import sys
import weakref
from typing import Any, Dict, Iterator, Mapping

from . import _abi, dtypes
from .errors import State
from .memory import tensor_in
from .results import Manifest, Row, manifest_of


class Loan:
    """What thc_borrow has lent; returned when nobody refers to it any more."""

    def __init__(self) -> None:
        self.pointer = c.c_void_p()

    def __del__(self, _return: Any = _abi.lib.thc_return) -> None:
        if self.pointer:
            _return(self.pointer)

    def manifest(self) -> Manifest:
        """Of the shard that is lent; a row's ``tied`` is the address of its bytes."""
        return manifest_of(_abi.Manifest.from_address(self.pointer.value or 0))

    def bytes_at(self, address: int, nbytes: int) -> Any:
        """A ctypes array over a part of it, which keeps the loan."""
        array: Any = (c.c_ubyte * nbytes).from_address(address)
        array._loan = self
        return array

    def tensor(self, row: Row) -> Any:
        """A torch tensor, of its bytes where torch has no such type; without torch a memoryview."""
        kind, shape, torch = dtypes.BY_NAME[row.dtype], row.shape, sys.modules.get("torch")
        if torch is not None and not hasattr(torch, kind.torch or ""):
            kind, shape = dtypes.BY_NAME["U8"], (row.nbytes,)
        return tensor_in(self, row.tied, shape, kind)


class Borrowed(Mapping[str, Any]):
    """Names and tensors of a version that is borrowed. Made by :meth:`Handle.borrow`.

    Torch tensors where torch is imported, else memoryviews, both of bytes alone where they have no
    such type; names of tied weights share one. What
    is written into them stays in this process. ``close``, or the end of ``with``, forgets them; the
    memory goes back to the agent with the last tensor that somebody has kept.
    """

    def __init__(self, loan: Loan) -> None:
        manifest = loan.manifest()
        self.version, self.lineage = manifest.version, manifest.lineage
        self.shard, self.num_shards = manifest.shard, manifest.num_shards
        self.attributes = manifest.attributes
        rows = manifest.tensors
        first = {row.tied or name: row for name, row in rows.items()}
        made = {key: loan.tensor(row) for key, row in first.items()}
        self._tensors = {name: made[row.tied or name] for name, row in rows.items()}
        self._loan = weakref.ref(loan)
        self._open = True

    def __repr__(self) -> str:
        state = "open" if self._open else "returned" if self.returned else "closed"
        return f"<version {self.version}, borrowed: {state}>"

    @property
    def returned(self) -> bool:
        """The agent has it back: no tensor of it is left."""
        return self._loan() is None

    def _there(self) -> Dict[str, Any]:
        if not self._open:
            raise State(f"version {self.version} is borrowed no more: borrow it again")
        return self._tensors

    def __getitem__(self, name: str) -> Any:
        return self._there()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._there())

    def __len__(self) -> int:
        return len(self._there())

    def close(self) -> None:
        """Forgets the tensors. A second close does nothing."""
        self._open, self._tensors = False, {}

    def __enter__(self) -> "Borrowed":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
