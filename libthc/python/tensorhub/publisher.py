# SPDX-License-Identifier: Apache-2.0
"""Publishing what goes on being trained: a copy of it, in memory that agents map.

A handle has one set of tensors and holds one version, so each buffer is a handle: the first is the
caller's, the others are opened beside it as replicas of their own.
"""

import sys
from typing import Any, Dict, Hashable, Iterable, Iterator, List, Mapping, NamedTuple, Optional
from typing import Sequence, Tuple, Type

from . import _abi, dtypes, errors
from ._steps import DEFAULT, Steps, Time, Within, remaining, run
from .handle import Base, Handle
from .memory import Block, bytes_of, tensor_in, view_in
from .tensors import Heap, Piece, Place, new_pieces, piece_of

CAST = ("F64", "F32", "F16", "BF16")  # from and to these; others would need scales, or no cast
BUFFERS_MAX = 16


class Form(NamedTuple):
    """What a tensor of the source is. It stays so."""

    dtype: dtypes.DType
    shape: Tuple[int, ...]
    global_shape: Tuple[int, ...]
    offset: Tuple[int, ...]
    by: str

    def __str__(self) -> str:
        box = "" if self.shape == self.global_shape else f" at {self.offset} of {self.global_shape}"
        return f"{self.dtype.name} {self.shape}{box}"


def _form(piece: Piece) -> Form:
    whole, offset = piece.global_shape, piece.offset
    if whole is None or offset is None:
        whole, offset = piece.shape, (0,) * len(piece.shape)
    return Form(piece.dtype, piece.shape, whole, offset, piece.by)


def _tie(piece: Piece) -> Hashable:
    """The same for two names of the same bytes, while both are there."""
    strides = piece.keep.stride() if piece.by == "torch" else None
    return piece.address, piece.device, piece.dtype.code, piece.shape, strides


def _read(source: Any) -> Tuple[Iterable[Any], bool]:
    """Names and tensors as they are now, and whether all are there at once, or one by one."""
    if callable(source) and not hasattr(source, "state_dict"):
        source = source()
    if hasattr(source, "state_dict"):
        source = source.state_dict()
    if isinstance(source, Mapping):
        return source.items(), True
    try:
        return iter(source), not isinstance(source, Iterator)
    except TypeError:
        raise errors.Invalid(
            f"source: a {type(source).__name__} is no module, no mapping, no pairs of name and "
            "tensor, and no callable that returns one of these"
        ) from None


def _pieces(pairs: Iterable[Any]) -> Iterator[Tuple[str, Piece]]:
    for pair in pairs:
        try:
            name, tensor = pair
        except (TypeError, ValueError):
            raise errors.Invalid("source: gives other things than name and tensor") from None
        if not isinstance(name, str):
            raise errors.Invalid(f"source: the name {name!r} is no str")
        piece = piece_of(name, tensor, strided=True)
        if piece.by == "dlpack" or (piece.by == "array" and not _is_numpy(piece)):
            raise errors.Invalid(
                f"source: {name!r} is a {type(tensor).__name__}, which is not copied from; give a "
                "tensor of torch (torch.as_tensor, torch.from_dlpack)"
            )
        yield name, piece


def _is_numpy(piece: Piece) -> bool:
    return piece.device == _abi.HOST and hasattr(piece.keep, "__array_interface__")


def _array(block: Block, offset: int, shape: Sequence[int], kind: dtypes.DType) -> Any:
    """An array of numpy over a part of the block."""
    numpy: Any = sys.modules.get("numpy")
    try:
        dtype = numpy.dtype(kind.numpy)
    except (AttributeError, TypeError):
        raise errors.Invalid(
            f"dtype: numpy has no {kind.name}; import ml_dtypes, or give tensors of torch"
        ) from None
    return numpy.frombuffer(block.bytes_at(offset, bytes_of(shape, kind)), dtype).reshape(shape)


# Of whose tensors a copy is made, as who.
_MAKERS = {"torch": tensor_in, "array": _array, "buffer": view_in}


def _copy(target: Any, piece: Piece) -> None:
    """Returns when it is done, also from a GPU: in the order of its current stream."""
    if piece.nbytes == 0:
        return
    if piece.by == "torch":
        target.copy_(piece.keep.detach())
    elif piece.by == "array":
        numpy = sys.modules["numpy"]
        numpy.copyto(target, numpy.asarray(piece.keep), casting="unsafe")
    else:
        target.cast("B")[:] = memoryview(piece.keep).cast("B")


class Buffers:
    """What a publisher has, whoever waits."""

    def __init__(
        self, handle: Base, source: Any = None, dtype: Any = None, buffers: int = 1
    ) -> None:
        if not isinstance(handle, Base):
            raise errors.Invalid(f"handle: {handle!r} is no handle of tensorhub.open")
        if isinstance(source, Iterator):
            raise errors.Invalid(
                "source: an iterator gives its tensors once; give a callable that returns one, or "
                "each publish its own: Publisher(handle), publish(step, tensors)"
            )
        self._dtype = None if dtype is None else dtypes.of(dtype)
        if self._dtype is not None and self._dtype.name not in CAST:
            raise errors.Invalid(
                f"dtype: nothing is cast to {self._dtype.name}, only to {', '.join(CAST)}"
            )
        if isinstance(buffers, bool) or not isinstance(buffers, int):
            raise errors.Invalid(f"buffers: {buffers!r} is no number")
        if not 1 <= buffers <= BUFFERS_MAX:
            raise errors.Invalid(f"buffers: {buffers} is not within 1 and {BUFFERS_MAX}")
        self._handle, self._source, self._count = handle, source, buffers
        self._forms: Dict[str, Form] = {}
        self._keys: Dict[str, Hashable] = {}  # the same for names of the same bytes
        self._buffers: List[Tuple[Base, Dict[Hashable, Any]]] = []
        self._next = 0
        self._closed = False

    @property
    def handles(self) -> Tuple[Base, ...]:
        """The handle of each buffer, the caller's first."""
        return tuple(handle for handle, _ in self._buffers)

    def _look(self, source: Any) -> Optional[Dict[Hashable, Piece]]:
        """What the source has. Of what comes one by one an address may come twice: no tie.

        Of what comes only once a copy is made meanwhile, and returned.
        """
        pairs, held = _read(source)
        copies: Optional[Dict[Hashable, Piece]] = {} if isinstance(source, Iterator) else None
        heap = Heap()
        for name, piece in _pieces(list(pairs) if held else pairs):
            if name in self._forms:
                raise errors.Invalid(f"source: {name!r} comes twice")
            self._forms[name] = _form(piece)
            self._keys[name] = _tie(piece) if held and piece.nbytes else name
            if copies is not None:
                copies[name] = heap.piece(self._place(name))
                _copy(copies[name].keep, piece)
        if not self._forms:
            raise errors.Invalid("source: has no tensors")
        return copies

    def _place(self, name: str) -> Place:
        form = self._forms[name]
        cast = self._dtype if form.dtype.name in CAST else None
        if cast is not None and form.by == "buffer":
            raise errors.Invalid(f"dtype: {name!r} is a buffer; give numpy or torch to cast it")
        return Place(cast or form.dtype, *form[1:4], _MAKERS[form.by])

    def _allocate(self) -> Dict[Hashable, Piece]:
        """Memory for a copy of all of it."""
        first: Dict[Hashable, Place] = {}
        for name, key in self._keys.items():
            first.setdefault(key, self._place(name))
        return dict(zip(first, new_pieces(list(first.values()))))

    def _prepare(self, source: Any, timeout: Time) -> Steps[bool]:
        """The caller's handle comes last: when anything fails it is as it was.

        True: the first buffer has a copy already, of tensors that come only once.
        """
        left = remaining(self._handle._limit(timeout))
        self._handle._check()
        self._forms, self._keys = {}, {}
        copied = self._look(source)
        made = [self._handle._beside(f"{self._handle.replica}+{i}") for i in range(1, self._count)]
        buffers = []
        try:
            for handle in [*made, self._handle]:
                if handle is not self._handle:
                    yield from handle._open(left())
                first = copied if handle is self._handle else None
                copies = self._allocate() if first is None else first
                rows = {name: copies[key] for name, key in self._keys.items()}
                yield from handle._register(rows, left())
                buffers.append((handle, {key: piece.keep for key, piece in copies.items()}))
        except BaseException:
            for handle in made:
                handle._abandon()
            raise
        self._buffers = buffers[-1:] + buffers[:-1]
        return copied is not None

    def _checked(self, pieces: Iterable[Tuple[str, Piece]]) -> Iterator[Tuple[Hashable, Piece]]:
        """Layout when the source is not what it was."""
        missing = set(self._forms)
        ties: Dict[Hashable, Hashable] = {}
        for name, piece in pieces:
            was, form = self._forms.get(name), _form(piece)
            if was != form:
                raise errors.Layout(
                    f"source: {name!r} is {form} and was {was or 'not there'} at first; make "
                    "another Publisher"
                )
            key = self._keys[name]
            if key != name and ties.setdefault(key, _tie(piece)) != _tie(piece):
                raise errors.Layout(
                    f"source: {name!r} was tied to another name at first and is not; make another "
                    "Publisher"
                )
            missing.discard(name)
            yield key, piece
        for name in sorted(missing):
            raise errors.Layout(
                f"source: {name!r} was there at first and is not; make another Publisher"
            )

    def _publish(self, step: int, source: Any, timeout: Time) -> Steps[None]:
        left = remaining(self._handle._limit(timeout))
        if self._closed:
            raise errors.State("publisher: it is closed; make another one")
        self._handle._publish(step, timeout)  # a step that is no version is refused here
        source = self._source if source is None else source
        if source is None:
            raise errors.Invalid("source: this publisher has none; give publish the tensors")
        copied = False
        if not self._buffers:
            copied = yield from self._prepare(source, left())
        handle, targets = self._buffers[self._next]
        if not copied:
            yield from self._fill(handle, targets, source, left())
        yield from handle._operate(*handle._publish(step, left()))
        self._next = (self._next + 1) % len(self._buffers)

    def _fill(
        self, handle: Base, targets: Dict[Hashable, Any], source: Any, timeout: Time
    ) -> Steps[None]:
        """Copies into a buffer, when nobody has its version any more."""
        pairs, held = _read(source)
        pieces: Iterable[Tuple[Hashable, Piece]] = self._checked(_pieces(pairs))
        if held:  # all of it is looked at before anything changes
            pieces = list(pieces)
        if handle.version is not None:
            yield from handle._operate(*handle._unpublish(False, timeout))
        copied = set()
        for key, piece in pieces:
            if key not in copied:
                copied.add(key)
                _copy(targets[key], piece)

    def _close(self, timeout: Time) -> Steps[None]:
        self._closed = True
        left = remaining(self._handle._limit(timeout))
        for handle in self.handles[1:]:
            yield from handle._close(False, left())

    def _abandon(self) -> None:
        self._closed = True
        for handle in self.handles[1:]:
            handle._abandon()


class Publisher(Within, Buffers):
    """Publishes copies of tensors, so that these may change again as soon as publish() returns.

        with th.Publisher(handle, model, dtype="BF16", buffers=2) as publisher:
            for step in range(steps):
                ...
                publisher.publish(step)

    ``source`` is a module, a state dict, pairs of name and tensor, or a callable that returns one
    of these: it is asked at each publish, and its names, shapes and types stay what they were at
    first. Tensors of torch (on a GPU, too; of a DTensor the box of this rank), numpy and buffers,
    contiguous or not. A callable may return a generator: then one tensor is there at a time, ties
    are not seen, and it runs once at first to see what there is. Or there is none, and each publish
    is given its own: an iterator, too, which is run once. ``dtype``: F64, F32, F16 and BF16 are
    cast to it, other types are copied as they are.

    ``handle`` must have no tensors: its own are the copies, in memory that agents map. It holds one
    version, so with one buffer publish() takes the version before back first and waits until nobody
    reads it; until it returns there may be no version at all. Each buffer more is a handle beside
    it, opened here with the same options, as replica "NAME+1" and so on: publish() takes them in
    turn, so the versions of the last ``buffers`` steps are there, and it waits only for who still
    reads the oldest. Members of a group make publishers with the same ``buffers``.
    """

    def __init__(
        self, handle: Handle, source: Any = None, dtype: Any = None, buffers: int = 1
    ) -> None:
        super().__init__(handle, source, dtype, buffers)
        if source is not None:
            run(self._prepare(source, DEFAULT))

    def publish(self, step: int, source: Any = None, *, timeout: Time = DEFAULT) -> None:
        """Copies, publishes as version ``step``, and returns when all members have done so.

        ``source``: the tensors of this step, where they are not the publisher's own.

        Layout: the source is not what it was. Where that, or taking the old version back, fails,
        nothing has changed. When a generator fails, or the publish, its buffer has no version, and
        the next call begins again. ``timeout`` is that of all of it but the copying.
        """
        run(self._publish(step, source, timeout))

    def close(self, *, timeout: Time = DEFAULT) -> None:
        """Closes the handles that it has opened. The caller's stays, with what it holds."""
        run(self._close(timeout))
