# SPDX-License-Identifier: Apache-2.0
"""Calls of thc.h that the package never makes: rows that are wrong, and thc_wait itself, which waits
and asks its predicate inside libthc. `tensorhub._abi` has the rest."""

import ctypes as c

from tensorhub import _abi, _steps, dtypes, results

def row(name, address, shape, dtype="U8", nbytes=None, device=_abi.HOST):
    kind = dtypes.BY_NAME[dtype]
    count = 1
    for size in shape:
        count *= size
    made = _abi.Tensor(
        name=name.encode() if isinstance(name, str) else name,
        data=address,
        bytes=(count * kind.bits + 7) // 8 % 2**64 if nbytes is None else nbytes,
        dtype=kind.code,
        device=device,
        ndim=len(shape),
    )
    made.local_shape[: len(shape)] = shape
    return made


def register(handle, rows, timeout=10):
    """The rows' memory is kept by who calls."""
    array = (_abi.Tensor * len(rows))(*rows)
    ms = _steps.milliseconds(timeout)
    _abi.call("thc_register", handle._shard, array, len(rows), c.sizeof(_abi.Tensor), ms)


def wait(handle, predicate, timeout=20):
    judge = _abi.PREDICATE(lambda raw, _: int(bool(predicate(results.listing_of(raw.contents)))))
    _abi.call("thc_wait", handle._shard, judge, None, _steps.milliseconds(timeout))
