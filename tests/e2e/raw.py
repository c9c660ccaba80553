# SPDX-License-Identifier: Apache-2.0
"""Calls of thc.h that the package never makes: with rows that are wrong, and those that wait inside
libthc, where the package begins an operation and waits for it in Python. `tensorhub._abi` has the
rest."""

import ctypes as c

from tensorhub import _abi, _steps, dtypes, results
from tensorhub.memory import count_of


def row(name, address, shape, dtype="U8", nbytes=None, device=_abi.HOST):
    kind = dtypes.BY_NAME[dtype]
    made = _abi.Tensor(
        name=name.encode() if isinstance(name, str) else name,
        data=address,
        bytes=(count_of(shape) * kind.bits + 7) // 8 if nbytes is None else nbytes,
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


def open_with(agent, **fields):
    """thc_open with these fields of its options."""
    usual = {"struct_size": c.sizeof(_abi.OpenOpts), "model": b"m", "replica": b"r"}
    usual.update(num_shards=1, agent=agent.runtime.encode())
    opts = _abi.OpenOpts(**{**usual, **fields})
    _abi.call("thc_open", c.byref(opts), 10_000, c.byref(c.c_void_p()))


def inside(handle, verb, argument, timeout=20):
    """thc_publish, thc_unpublish, thc_replicate, thc_update or thc_list, without its result."""
    listing = c.c_void_p()
    result = (c.byref(listing),) if verb == "list" else (None,) * isinstance(argument, str)
    argument = argument.encode() if isinstance(argument, str) else argument
    ms = _steps.milliseconds(timeout)
    _abi.call(f"thc_{verb}", handle._shard, argument, ms, *result)
    _abi.lib.thc_listing_free(listing)


def wait(handle, predicate, timeout=20):
    judge = _abi.PREDICATE(lambda raw, _: int(bool(predicate(results.listing_of(raw.contents)))))
    _abi.call("thc_wait", handle._shard, judge, None, _steps.milliseconds(timeout))


def follow(handle, version="latest", timeout=20):
    spec = version.encode() if version else None
    _abi.call("thc_follow", handle._shard, spec, 0, _steps.milliseconds(timeout))


def go(handle, version, timeout=20):
    _abi.call("thc_go", handle._shard, version, _steps.milliseconds(timeout))


class Lent:
    """thc_borrow, and what it has brought: rows are (name, address, bytes)."""

    def __init__(self, handle, version="latest", shard=0, flags=0, timeout=30):
        self.raw = c.c_void_p()
        ms = _steps.milliseconds(timeout)
        _abi.call(
            "thc_borrow", handle._shard, version.encode(), shard, flags, ms, c.byref(self.raw)
        )
        manifest = _abi.Manifest.from_address(self.raw.value)
        self.version = manifest.version
        rows = (_abi.Tensor * manifest.count).from_address(manifest.tensors)
        self.rows = [(row.name.decode(), row.data or 0, row.bytes) for row in rows]

    def read(self):
        """All bytes, row by row."""
        return b"".join(c.string_at(address, count) for _, address, count in self.rows)

    def give_back(self):
        _abi.call("thc_return", self.raw)
