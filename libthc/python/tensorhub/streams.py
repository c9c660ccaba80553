# SPDX-License-Identifier: Apache-2.0
"""Which CUDA streams write what is published: publish waits for them before the agent hears of it.

torch is asked for its current streams, other arrays for the stream that they name
(__cuda_array_interface__), and the driver for its default stream where nobody names one. Nothing is
loaded, and no context is made: who has memory on a GPU has both.
"""

import ctypes as c
import functools
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .errors import Invalid, MemoryKind
from .tensors import Kept, Piece

LEGACY, PER_THREAD = 1, 2  # default streams, as the driver and __cuda_array_interface__ number them
_SUCCESS, _NOT_READY = 0, 600
_CONTEXT = 1  # CU_POINTER_ATTRIBUTE_CONTEXT
# Each call with the version of CUDA that brought the form that is used here (ipc/cuda/names.h).
_CALLS = {
    "cuCtxGetCurrent": 4000,
    "cuCtxGetDevice": 2000,
    "cuCtxPopCurrent": 4000,
    "cuCtxPushCurrent": 4000,
    "cuDevicePrimaryCtxGetState": 7000,
    "cuDevicePrimaryCtxRelease": 11000,
    "cuDevicePrimaryCtxRetain": 7000,
    "cuGetErrorName": 6000,
    "cuPointerGetAttribute": 4000,
    "cuStreamQuery": 2000,
    "cuStreamSynchronize": 2000,
}


class _Driver:
    """The driver that this process has its GPU memory of."""

    def __init__(self) -> None:
        try:
            library = c.CDLL("libcuda.so.1")
            find = library.cuGetProcAddress_v2
        except (OSError, AttributeError) as failure:
            raise MemoryKind(
                f"stream: the driver of CUDA cannot be asked ({failure}); wait for the stream, and "
                "say stream=False"
            ) from None
        self._calls: Dict[str, Any] = {}
        for name, version in _CALLS.items():
            address, found = c.c_void_p(), c.c_int()
            code = find(name.encode(), c.byref(address), version, c.c_uint64(0), c.byref(found))
            if code != _SUCCESS or not address.value:
                raise MemoryKind(
                    f"stream: the driver of CUDA has no {name}; wait for the stream, and say "
                    "stream=False"
                )
            self._calls[name] = c.CFUNCTYPE(c.c_int)(address.value)

    def result(self, name: str, *args: Any) -> int:
        code: int = self._calls[name](*args)
        return code

    def name_of(self, code: int) -> str:
        text = c.c_char_p()
        self.result("cuGetErrorName", c.c_int(code), c.byref(text))
        return text.value.decode() if text.value else f"error {code}"


@functools.lru_cache(maxsize=1)
def _driver() -> _Driver:
    return _Driver()


class Stream:
    """A stream of the driver, by its number. The default ones are of a context: that of memory."""

    def __init__(self, number: int, device: int = 0, address: int = 0) -> None:
        self._number, self._device, self._address = number, device, address

    def synchronize(self) -> None:
        """Waits until all that was queued on it has ended."""
        self._ask("cuStreamSynchronize")

    def query(self) -> bool:
        """All that was queued on it has ended."""
        return self._ask("cuStreamQuery") == _SUCCESS

    def _ask(self, call: str) -> int:
        driver = _driver()
        if self._number not in (LEGACY, PER_THREAD):
            code = driver.result(call, c.c_void_p(self._number))
        else:
            context, retained = self._context(driver)
            driver.result("cuCtxPushCurrent", context)
            code = driver.result(call, c.c_void_p(self._number))
            driver.result("cuCtxPopCurrent", c.byref(c.c_void_p()))
            if retained:
                driver.result("cuDevicePrimaryCtxRelease", c.c_int(self._device))
        if code not in (_SUCCESS, _NOT_READY):
            raise MemoryKind(
                f"stream: {call} says {driver.name_of(code)}, so what the stream writes is not "
                "there; nothing was published"
            )
        return code

    def _context(self, driver: _Driver) -> Tuple[c.c_void_p, bool]:
        """The memory's, this thread's, or the primary one when it is active: none is made."""
        context, flags, active = c.c_void_p(), c.c_uint(), c.c_int()
        address = c.c_uint64(self._address)
        kind = c.c_int(_CONTEXT)
        code = driver.result("cuPointerGetAttribute", c.byref(context), kind, address)
        if code == _SUCCESS and context.value:
            return context, False
        driver.result("cuCtxGetCurrent", c.byref(context))
        if context.value:
            number = c.c_int(-1)
            driver.result("cuCtxGetDevice", c.byref(number))
            if number.value == self._device:
                return context, False
        device = c.c_int(self._device)
        driver.result("cuDevicePrimaryCtxGetState", device, c.byref(flags), c.byref(active))
        if active.value:
            code = driver.result("cuDevicePrimaryCtxRetain", c.byref(context), device)
            if code == _SUCCESS:
                return context, True
        raise MemoryKind(
            f"stream: GPU {self._device} has no context in this process; publish on a thread where "
            "the framework has set the device, or say stream=False"
        )


class Registered:
    """What a handle keeps of its tensors: they stay alive, and tell who writes them."""

    def __init__(
        self, kept: Optional[Kept] = None, on_gpus: Sequence[Piece] = (),
        before: "Optional[Registered]" = None,
    ) -> None:  # fmt: skip
        self._kept = kept
        self.before = before  # until it is known which of both are registered
        self._at: Dict[int, int] = {}  # some address on each GPU
        self._torch: Dict[int, None] = {}  # GPUs with tensors of torch, in the order of their names
        self._arrays: List[Piece] = []
        for piece in on_gpus:
            self._at.setdefault(piece.device, piece.address)
            if piece.by == "torch":
                self._torch[piece.device] = None
            else:
                self._arrays.append(piece)

    def check(self) -> None:
        """StaleMemory: a tensor has left its memory since."""
        if self._kept is not None:
            self._kept.check()

    def writers(self, stream: Any = None) -> Sequence[Any]:
        """Streams to wait for: objects with synchronize() and query().

        None: the current stream of each GPU that has tensors here. False: none. Else a stream of
        torch, cupy or cuda.core, or a number (cudaStream_t).
        """
        if stream is False or (stream is None and not self._at):
            return ()
        if stream is not None:
            return self._given(stream)
        found: Dict[Any, Any] = {}
        torch_on = dict(self._torch)
        for piece in self._arrays:
            if piece.by == "dlpack":  # it lets the stream of who takes it wait for its own
                sys.modules["torch"].from_dlpack(piece.keep)
                torch_on[piece.device] = None
                continue
            number = _number_of(piece.keep.__cuda_array_interface__.get("stream")) or LEGACY
            key = (number, piece.device if number in (LEGACY, PER_THREAD) else None)
            found.setdefault(key, Stream(number, piece.device, piece.address))
        current = sys.modules["torch"].cuda.current_stream if torch_on else None
        return [current(device) for device in torch_on if current] + list(found.values())

    def _given(self, stream: Any) -> Sequence[Any]:
        if callable(getattr(stream, "synchronize", None)) and callable(
            getattr(stream, "query", None)
        ):
            return (stream,)
        number = _number_of(stream)
        if number is None:
            raise Invalid(
                f"stream: {stream!r} is no stream; give one of torch, cupy or cuda.core, a number "
                "(cudaStream_t), or False when you have waited for it"
            )
        if number > PER_THREAD:
            return (Stream(number),)
        return [Stream(number or LEGACY, *place) for place in self._at.items()]


def _number_of(stream: Any) -> Optional[int]:
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        value = (protocol() if callable(protocol) else protocol)[1]
    else:
        value = getattr(stream, "ptr", stream)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        return None
    return value
