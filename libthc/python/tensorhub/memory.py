# SPDX-License-Identifier: Apache-2.0
"""Memory that agents map: what is registered from it is moved in place, without a copy.

torch's own host memory is private to its process, and an agent reaches it only by copies. What is
made here lies in a sealed file of the kernel's memory; it belongs to the process, outlives handles,
and is freed with the last tensor that lies in it.
"""

import ctypes as c
import operator
import sys
from typing import Any, Dict, Sequence, Tuple

from . import _abi, dtypes
from .errors import Invalid

ALIGN = 64  # bytes; of each tensor in a block


class Block:
    """thc_alloc'd memory. ``address`` and ``nbytes``; freed when nobody refers to it any more."""

    def __init__(self, nbytes: int, huge: bool = False) -> None:
        self._pointer, self.nbytes = c.c_void_p(), nbytes
        if nbytes >= 2**63:  # ctypes would take the lower 64 bits
            raise Invalid(f"nbytes: {nbytes} are more than an address can tell apart")
        flags = _abi.ALLOC_HUGE if huge else 0
        _abi.call("thc_alloc", max(nbytes, 1), flags, c.byref(self._pointer))

    @property
    def address(self) -> int:
        """Where it begins in this process; 0 when there is none."""
        return self._pointer.value or 0

    def __del__(self, _free: Any = _abi.lib.thc_free) -> None:
        _free(self._pointer)

    def bytes_at(self, offset: int, nbytes: int) -> Any:
        """A writable ctypes array over a part of it, which keeps the block."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise Invalid(f"offset: {offset} and {nbytes} bytes reach beyond {self.nbytes}")
        array: Any = (c.c_ubyte * nbytes).from_address(self.address + offset)
        array._block = self
        return array


def numbers(argument: str, values: Any) -> Tuple[int, ...]:
    """A shape, or a place in one."""
    try:
        found = tuple(map(operator.index, values))
    except TypeError:
        raise Invalid(f"{argument}: {values!r} is no sequence of whole numbers") from None
    if not all(0 <= one < 2**63 for one in found):
        raise Invalid(f"{argument}: {found} has a number that is negative, or 2**63 or more")
    return found


def count_of(shape: Sequence[int]) -> int:
    """Elements of a tensor of this shape; 1 for a scalar."""
    count = 1
    for size in shape:
        count *= size
    return count


def bytes_of(shape: Sequence[int], kind: dtypes.DType) -> int:
    """Of a tensor of this shape and type."""
    return (count_of(shape) * kind.bits + 7) // 8


def place(shapes: Sequence[Tuple[Sequence[int], dtypes.DType]]) -> Tuple[Sequence[int], int]:
    """Where each of these tensors goes in one block, and its bytes."""
    offsets, end = [], 0
    for shape, kind in shapes:
        offsets.append(end)
        end += (bytes_of(shape, kind) + ALIGN - 1) // ALIGN * ALIGN
    return offsets, end


def tensor_in(block: Any, offset: int, shape: Sequence[int], kind: dtypes.DType) -> Any:
    """A torch tensor over a part of a block; without torch a memoryview."""
    torch = sys.modules.get("torch")
    if torch is None:
        return view_in(block, offset, shape, kind)
    dtype = getattr(torch, kind.torch or "", None)
    if dtype is None:
        raise Invalid(f"dtype: torch has no {kind.name}")
    nbytes = bytes_of(shape, kind)
    if nbytes == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    flat = torch.frombuffer(block.bytes_at(offset, nbytes), dtype=torch.uint8)
    return flat.view(dtype).reshape(tuple(shape))


def _casts(kind: dtypes.DType) -> bool:
    """A memoryview may have this type. Half floats have a format, and cast takes it not."""
    return kind.format not in (None, "e")


def view_in(block: Any, offset: int, shape: Sequence[int], kind: dtypes.DType) -> Any:
    """A memoryview over a part of a block: of its bytes where no format says the type, or none."""
    nbytes = bytes_of(shape, kind)
    view: Any = memoryview(block.bytes_at(offset, nbytes)).cast("B")
    if not _casts(kind) or nbytes == 0:
        return view
    return view.cast(kind.format, tuple(shape)) if shape else view.cast(kind.format)


def empty(shape: Sequence[int], dtype: Any) -> Any:
    """A tensor of this shape in memory that agents map; its bytes are zero.

    A torch tensor where torch is imported, else a memoryview, which has elements, and a type of
    Python's: no BF16. ``dtype`` is one of torch or numpy, or a name such as "BF16".
    """
    kind, shape = dtypes.of(dtype), numbers("shape", shape)
    (offset,), nbytes = place([(shape, kind)])
    if "torch" not in sys.modules and not (_casts(kind) and nbytes):
        raise Invalid(f"dtype: no memoryview is {kind.name} {tuple(shape)}; import torch first")
    return tensor_in(Block(nbytes), offset, shape, kind)


def share_(module: Any) -> Any:
    """Moves a torch module's parameters and buffers on the host into memory that agents map.

    In place: the module and its optimizer keep the same Parameter objects, and tied weights stay
    tied. What lies on a GPU, or has no bytes, stays. Returns the module.
    """
    if not (hasattr(module, "parameters") and hasattr(module, "buffers")):
        raise Invalid(f"module: {module!r} is no module of torch")
    found: Dict[Tuple[int, Any, Any, Any], Any] = {}
    tensors = list(module.parameters()) + list(module.buffers())
    plain = [t for t in tensors if t.device.type == "cpu" and t.numel() > 0]
    first = []
    for t in plain:
        key = (t.data_ptr(), t.dtype, tuple(t.shape), t.stride())
        if key not in found:
            found[key] = None
            first.append((key, t))
    offsets, nbytes = place([(t.shape, dtypes.of(t.dtype)) for _, t in first])
    if not first:
        return module
    block = Block(nbytes)
    for (key, t), offset in zip(first, offsets):
        moved = tensor_in(block, offset, t.shape, dtypes.of(t.dtype))
        moved.copy_(t.detach())
        found[key] = moved
    for t in plain:
        t.data = found[t.data_ptr(), t.dtype, tuple(t.shape), t.stride()]
    return module
