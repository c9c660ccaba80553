# SPDX-License-Identifier: Apache-2.0
"""What users register, as rows of thc.h: torch, DTensor, numpy, CUDA arrays and buffers.

Nothing here imports torch or numpy: their objects are known by what they can do. A row borrows its
memory, so whoever registers it keeps the tensor.
"""

import ctypes as c
import functools
import sys
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence
from typing import Tuple, Union

from . import _abi, dtypes
from .errors import Invalid, StaleMemory
from .memory import Block, bytes_of, numbers, place, tensor_in
from .results import Manifest

Tensors = Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]


class Piece(NamedTuple):
    """The bytes of one tensor, or of the part of it that this process has."""

    address: int
    nbytes: int
    dtype: dtypes.DType
    shape: Tuple[int, ...]
    device: int = _abi.HOST  #: CUDA ordinal, or HOST
    global_shape: Optional[Tuple[int, ...]] = None
    offset: Optional[Tuple[int, ...]] = None
    keep: Any = None  #: what must live as long as the bytes are used
    by: str = "buffer"  #: who knows the stream that writes it: "torch", "array" or "dlpack"


class Part(NamedTuple):
    """A tensor that is a box of a larger one: ``tensor`` lies in it at ``offset``.

    A DTensor says this by itself. ``global_shape`` and ``offset`` have a number for each dimension.
    """

    tensor: Any
    global_shape: Sequence[int]
    offset: Sequence[int]


def piece_of(name: str, tensor: Any, strided: bool = False) -> Piece:
    """The piece that this object is; Invalid says what to call for one that is none.

    ``strided``: it is copied from, and need not be contiguous.
    """
    if isinstance(tensor, Piece):
        return tensor
    if isinstance(tensor, Part):
        piece = piece_of(name, tensor.tensor, strided)
        whole = numbers(f"tensors: {name!r}: global_shape", tensor.global_shape)
        offset = numbers(f"tensors: {name!r}: offset", tensor.offset)
        if not len(piece.shape) == len(whole) == len(offset):
            raise Invalid(f"tensors: {name!r} has {len(piece.shape)} dimensions, its box others")
        return piece._replace(global_shape=whole, offset=offset)
    if hasattr(tensor, "__create_chunk_list__") and hasattr(tensor, "to_local"):
        return _distributed(name, tensor, strided)
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "element_size"):
        return _torch(name, tensor, strided)
    if hasattr(tensor, "__cuda_array_interface__"):
        return _array(name, tensor.__cuda_array_interface__, tensor, _cuda_device(name, tensor))
    if hasattr(tensor, "__array_interface__"):
        return _array(name, tensor.__array_interface__, tensor, _abi.HOST, strided)
    if isinstance(tensor, str) or not _is_buffer(tensor):
        return _dlpack(name, tensor)
    return _buffer(name, tensor)


def _is_buffer(tensor: Any) -> bool:
    try:
        memoryview(tensor).release()
    except (TypeError, BufferError):
        return False
    return True


def _torch(name: str, tensor: Any, strided: bool = False) -> Piece:
    device = tensor.device
    place = device.type
    if place not in ("cpu", "cuda"):
        raise Invalid(f"tensors: {name!r} lies on device {place}; only cpu and cuda have bytes")
    if str(tensor.layout) != "torch.strided" or getattr(tensor, "is_quantized", False):
        raise Invalid(f"tensors: {name!r} is {tensor.layout}; register its dense parts")
    if tensor.is_conj() or tensor.is_neg():
        raise Invalid(f"tensors: {name!r} is a lazy view; call resolve_conj().resolve_neg()")
    if not strided and not tensor.is_contiguous():
        raise Invalid(
            f"tensors: {name!r} is not contiguous (strides {tuple(tensor.stride())}); register "
            "tensor.contiguous(), and keep that"
        )
    kind = _dtype(name, tensor.dtype)
    shape = tuple(tensor.shape)
    number = _abi.HOST if place == "cpu" else device.index or 0
    nbytes = tensor.numel() * tensor.element_size()
    address = tensor.data_ptr() if nbytes else 0
    return Piece(address, nbytes, kind, shape, number, None, None, tensor, "torch")


_known = functools.lru_cache(maxsize=256)(dtypes.of)


def _dtype(name: str, dtype: Any) -> dtypes.DType:
    try:
        return _known(dtype)
    except Invalid:
        raise Invalid(f"tensors: {name!r} is {dtype}, a type that is not moved") from None


def _distributed(name: str, tensor: Any, strided: bool) -> Piece:
    """A DTensor: the box of this rank, as torch's own checkpoints cut it."""
    local = tensor.to_local()
    if hasattr(local, "wait"):
        local = local.wait()
    piece = _torch(name, local.detach(), strided)
    whole = tuple(tensor.shape)
    chunks = tensor.__create_chunk_list__()
    if len(chunks) > 1:
        raise Invalid(
            f"tensors: {name!r} is {len(chunks)} boxes on this rank (strided shards); register "
            "full_tensor(), or shard it once"
        )
    if not chunks or piece.nbytes == 0:
        return piece._replace(global_shape=whole, offset=(0,) * len(whole))
    offset, sizes = tuple(chunks[0].offsets), tuple(chunks[0].sizes)
    if sizes != piece.shape:
        raise Invalid(
            f"tensors: {name!r} has a partial placement: its local tensor is {piece.shape}, its "
            f"box {sizes}; reduce it first"
        )
    return piece._replace(global_shape=whole, offset=offset)


def _cuda_device(name: str, tensor: Any) -> int:
    device = getattr(tensor, "device", None)
    for key in ("id", "index"):
        number = getattr(device, key, None)
        if isinstance(number, int):
            return number
    raise Invalid(f"tensors: {name!r} does not say on which GPU it lies (device.id)")


def _array(
    name: str, interface: Mapping[str, Any], tensor: Any, device: int, strided: bool = False
) -> Piece:
    shape = tuple(interface["shape"])
    try:
        kind = dtypes.of_format(interface["typestr"])
    except Invalid:
        kind = _dtype(name, getattr(tensor, "dtype", interface["typestr"]))
    strides = interface.get("strides")
    if not strided and strides is not None and tuple(strides) != _row_major(shape, kind):
        raise Invalid(f"tensors: {name!r} is not contiguous; register a copy that is, and keep it")
    nbytes = bytes_of(shape, kind)
    address = interface["data"][0] if nbytes else 0
    return Piece(address, nbytes, kind, shape, device, keep=tensor, by="array")


def _row_major(shape: Sequence[int], kind: dtypes.DType) -> Tuple[int, ...]:
    strides, step = [], kind.bits // 8
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _buffer(name: str, tensor: Any) -> Piece:
    view = memoryview(tensor)
    if not view.c_contiguous:
        raise Invalid(f"tensors: {name!r} is not contiguous; register a copy that is, and keep it")
    kind = dtypes.of_format(view.format)
    shape = tuple(view.shape or ())
    if view.nbytes == 0:
        return Piece(0, 0, kind, shape, keep=tensor)
    return Piece(_address(view), view.nbytes, kind, shape, keep=view)


class _PyBuffer(c.Structure):
    _fields_ = [
        ("buf", c.c_void_p),
        ("obj", c.py_object),
        ("len", c.c_ssize_t),
        ("itemsize", c.c_ssize_t),
        ("readonly", c.c_int),
        ("ndim", c.c_int),
        ("format", c.c_char_p),
        ("shape", c.c_void_p),
        ("strides", c.c_void_p),
        ("suboffsets", c.c_void_p),
        ("internal", c.c_void_p),
    ]


def _address(view: memoryview) -> int:
    """Where it lies, also of one that is read-only: who is published from is not written to."""
    raw = _PyBuffer()
    c.pythonapi.PyObject_GetBuffer(c.py_object(view), c.byref(raw), 0)
    address = raw.buf or 0
    c.pythonapi.PyBuffer_Release(c.byref(raw))
    return int(address)


def _dlpack(name: str, tensor: Any) -> Piece:
    """Whoever speaks DLPack only: torch or numpy takes it in, without a copy."""
    if not hasattr(tensor, "__dlpack__"):
        raise Invalid(
            f"tensors: {name!r} is a {type(tensor).__name__}, which has no memory to register; "
            "give a torch tensor, a numpy array or a buffer"
        )
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    on_cpu = tensor.__dlpack_device__()[0] == 1
    if torch is None and (numpy is None or not on_cpu):
        who = "torch or numpy" if on_cpu else "torch"
        raise Invalid(f"tensors: {name!r} speaks DLPack only: import {who} first")
    try:
        if torch is not None:
            return _torch(name, torch.from_dlpack(tensor))._replace(keep=tensor, by="dlpack")
        array = numpy.from_dlpack(tensor)  # type: ignore[union-attr]
    except (BufferError, RuntimeError, TypeError) as failure:
        raise Invalid(f"tensors: {name!r} cannot be taken in by DLPack: {failure}") from None
    return _array(name, array.__array_interface__, array, _abi.HOST)._replace(keep=tensor)


class Kept:
    """What must live while it is registered, and where tensors of torch lay then."""

    def __init__(self) -> None:
        self._objects: List[Any] = []
        self._torch: List[Any] = []
        self._addresses: List[int] = []
        self._names: List[str] = []

    def add(self, name: str, piece: Piece) -> None:
        """Keeps the memory of one tensor."""
        self._objects.append(piece.keep)
        if piece.by == "torch" and piece.nbytes:
            self._torch.append(piece.keep)
            self._addresses.append(piece.address)
            self._names.append(name)

    def check(self) -> None:
        """StaleMemory: a tensor of torch has left its memory, which may be anybody's by now.

        libthc knows that where it was unmapped. Buffers and arrays of numpy do not let it happen.
        """
        now = [tensor.data_ptr() for tensor in self._torch]
        if now == self._addresses:
            return
        for name, address, before in zip(self._names, now, self._addresses):
            if address != before:
                raise StaleMemory(
                    f"tensors: {name!r} was given other memory after register, by resize_, set_ or "
                    "an assignment to .data; unregister, and register it anew"
                )


def rows_of(tensors: Tensors) -> Tuple[Any, Kept, List[Piece]]:
    """An array of thc_tensor, what must live while it is registered, and the pieces on GPUs.

    One piece is there at a time: as many as there are tensors would set the garbage collector off.
    """
    if isinstance(tensors, Mapping):
        count, pairs = len(tensors), iter(tensors.items())
    else:
        try:
            pairs = iter(tensors)
        except TypeError:
            raise Invalid("tensors: is neither a mapping nor pairs of name and tensor") from None
        listed = list(pairs)
        count, pairs = len(listed), iter(listed)
    array = (_abi.Tensor * count)()
    kept = Kept()
    on_gpus: List[Piece] = []
    for row, pair in zip(array, pairs):
        try:
            name, tensor = pair
        except (TypeError, ValueError):
            raise Invalid("tensors: is neither a mapping nor pairs of name and tensor") from None
        if not isinstance(name, str):
            raise Invalid(f"tensors: the name {name!r} is no str")
        piece = piece_of(name, tensor)
        ndim = len(piece.shape)
        if ndim > _abi.DIMS_MAX:
            raise Invalid(f"tensors: {name!r} has more than {_abi.DIMS_MAX} dimensions")
        row.name, row.data, row.bytes = _abi.text("tensors", name), piece.address, piece.nbytes
        row.dtype, row.device, row.ndim = piece.dtype.code, piece.device, ndim
        row.local_shape[:ndim] = piece.shape
        if piece.global_shape is not None and piece.offset is not None:
            row.global_shape[:ndim] = piece.global_shape
            row.offset[:ndim] = piece.offset
        kept.add(name, piece)
        if piece.device != _abi.HOST:
            on_gpus.append(piece)
    return array, kept, on_gpus


class Place(NamedTuple):
    """A tensor that is to be made: ``make`` is tensor_in, or another with the same arguments."""

    dtype: dtypes.DType
    shape: Tuple[int, ...]
    global_shape: Tuple[int, ...]
    offset: Tuple[int, ...]
    make: Callable[[Block, int, Sequence[int], dtypes.DType], Any] = tensor_in


def new_pieces(places: Sequence[Place]) -> List[Piece]:
    """New tensors in one block of memory that agents map; ``keep`` of each is the tensor."""
    offsets, nbytes = place([(one.shape, one.dtype) for one in places])
    block = Block(nbytes)
    return [_new_piece(block, at, one) for at, one in zip(offsets, places)]


def _new_piece(block: Block, at: int, one: Place) -> Piece:
    nbytes = bytes_of(one.shape, one.dtype)
    tensor = one.make(block, at, one.shape, one.dtype)
    address = block.address + at if nbytes else 0
    return Piece(address, nbytes, *one[:2], _abi.HOST, *one[2:4], tensor)


class Heap:
    """The same for tensors that become known one by one: in few blocks, with little left over.

    A block is as large as all before it, within BLOCK_BYTES, or as the tensor that it is made for;
    what is left in one goes to a tensor that fits.
    """

    BLOCK_BYTES = 256 << 20

    def __init__(self) -> None:
        self._blocks: List[Tuple[Block, int]] = []  # and how far it is taken

    def piece(self, one: Place) -> Piece:
        """A new tensor."""
        _, nbytes = place([(one.shape, one.dtype)])
        for i, (block, end) in enumerate(self._blocks):
            if end + nbytes <= block.nbytes:
                break
        else:
            before = sum(block.nbytes for block, _ in self._blocks)
            i, end = len(self._blocks), 0
            block = Block(max(nbytes, min(before, self.BLOCK_BYTES)))
            self._blocks.append((block, end))
        self._blocks[i] = (block, end + nbytes)
        return _new_piece(block, end, one)


def pieces_after(manifest: Manifest) -> Dict[str, Piece]:
    """New tensors for what a manifest names; names of tied weights share one."""
    first: Dict[Any, Place] = {}
    for name, row in manifest.tensors.items():
        kind = dtypes.BY_NAME[row.dtype]
        first.setdefault(row.tied or name, Place(kind, row.shape, row.global_shape, row.offset))
    made = dict(zip(first, new_pieces(list(first.values()))))
    return {name: made[row.tied or name] for name, row in manifest.tensors.items()}
