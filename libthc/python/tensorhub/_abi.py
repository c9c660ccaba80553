# SPDX-License-Identifier: Apache-2.0
"""thc.h by ctypes: its structs, its functions, and the library that is loaded.

Nothing here decides anything. Names are those of thc.h; tests/python/test_abi.py compares both.
"""

import ctypes as c
import os
from typing import Any, Dict, List, Tuple

from . import errors

VERSION_MAJOR = 1
FOREVER = -1
NO_VERSION = 2**64 - 1
DIMS_MAX = 8
NAME_MAX = 255
HOST = -1

# enum thc_open_flags and the others
SPOT, REQUIRE_RDMA, OFFLOAD_SEED, NO_MEMORY_FD, STAGED, PREFETCH = (1 << i for i in range(6))
CLOSE_ABANDON = 1
ALLOC_HUGE = 1
FORCE = 1
LIST_GROUP = 1
WHOLE, COW = 1, 2  # of thc_borrow
WHOLE, COW = 1, 2


class Tensor(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("data", c.c_void_p),
        ("bytes", c.c_uint64),
        ("dtype", c.c_int),
        ("device", c.c_int32),
        ("ndim", c.c_uint32),
        ("local_shape", c.c_uint64 * DIMS_MAX),
        ("global_shape", c.c_uint64 * DIMS_MAX),
        ("offset", c.c_uint64 * DIMS_MAX),
    ]


class OpenOpts(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("model", c.c_char_p),
        ("replica", c.c_char_p),
        ("shard", c.c_uint32),
        ("num_shards", c.c_uint32),
        ("lineage", c.c_uint64),
        ("retain", c.c_char_p),
        ("launch_id", c.c_char_p),
        ("agent", c.c_char_p),
        ("flags", c.c_uint32),
    ]


class Result(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("lineage", c.c_uint64),
        ("version", c.c_uint64),
        ("updated", c.c_int),
        ("bytes_moved", c.c_uint64),
        ("bytes_reused", c.c_uint64),
        ("wait_ns", c.c_uint64),
        ("transfer_ns", c.c_uint64),
        ("verify_ns", c.c_uint64),
        ("source", c.c_char * (NAME_MAX + 1)),
        ("transport", c.c_char * 32),
        ("bytes_prefetched", c.c_uint64),
        ("num_sources", c.c_uint32),
        ("derived", c.c_uint32),
        ("reason", c.c_char * 128),
    ]


class Attribute(c.Structure):
    _fields_ = [("name", c.c_char_p), ("value", c.c_void_p), ("bytes", c.c_size_t)]


class Manifest(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("lineage", c.c_uint64),
        ("version", c.c_uint64),
        ("shard", c.c_uint32),
        ("num_shards", c.c_uint32),
        ("count", c.c_size_t),
        ("tensor_bytes", c.c_size_t),
        ("tensors", c.c_void_p),
        ("num_attributes", c.c_size_t),
        ("attribute_bytes", c.c_size_t),
        ("attributes", c.c_void_p),
    ]


class ReplicaInfo(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("datacenter", c.c_char_p),
        ("num_shards", c.c_uint32),
        ("flags", c.c_uint32),
        ("progress", c.c_double),
    ]


class VersionInfo(c.Structure):
    _fields_ = [
        ("lineage", c.c_uint64),
        ("version", c.c_uint64),
        ("retained", c.c_uint32),
        ("num_replicas", c.c_uint32),
        ("replicas", c.c_void_p),
    ]


class Listing(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("generation", c.c_uint64),
        ("num_versions", c.c_uint32),
        ("version_bytes", c.c_size_t),
        ("replica_bytes", c.c_size_t),
        ("versions", c.c_void_p),
    ]


_P = c.c_void_p
_PP = c.POINTER(c.c_void_p)
_SHARD, _OP, _MS, _FLAGS, _TEXT = _P, _P, c.c_int64, c.c_uint32, c.c_char_p
_U64P = c.POINTER(c.c_uint64)
PREDICATE = c.CFUNCTYPE(c.c_int, c.POINTER(Listing), c.c_void_p)

# What each call returns and takes. A call that returns int answers a negative code when it fails.
PROTOTYPES: Dict[str, Tuple[Any, List[Any]]] = {
    "thc_strerror": (_TEXT, [c.c_int]),
    "thc_errmsg": (_TEXT, []),
    "thc_version_string": (_TEXT, []),
    "thc_dtype_bits": (c.c_uint32, [c.c_int]),
    "thc_open": (c.c_int, [c.POINTER(OpenOpts), _MS, _PP]),
    "thc_close": (c.c_int, [_SHARD, _FLAGS, _MS]),
    "thc_shard_events": (c.c_uint32, [_SHARD]),
    "thc_alloc": (c.c_int, [c.c_uint64, _FLAGS, _PP]),
    "thc_free": (c.c_int, [_P]),
    "thc_import": (c.c_int, [_P, c.c_uint64, c.c_int, c.c_uint64]),
    "thc_forget": (c.c_int, [_P]),
    "thc_register": (c.c_int, [_SHARD, c.POINTER(Tensor), c.c_size_t, c.c_size_t, _MS]),
    "thc_unregister": (c.c_int, [_SHARD, _MS]),
    "thc_memory_path": (c.c_int, [_SHARD, _TEXT, c.c_char_p, c.c_size_t]),
    "thc_publish": (c.c_int, [_SHARD, c.c_uint64, _MS]),
    "thc_unpublish": (c.c_int, [_SHARD, _FLAGS, _MS]),
    "thc_safe_to_mutate": (c.c_int, [_SHARD]),
    "thc_replicate": (c.c_int, [_SHARD, _TEXT, _MS, c.POINTER(Result)]),
    "thc_update": (c.c_int, [_SHARD, _TEXT, _MS, c.POINTER(Result)]),
    "thc_held_version": (c.c_int, [_SHARD, _U64P, _U64P]),
    "thc_ready_version": (c.c_int, [_SHARD, _U64P, _U64P]),
    "thc_resolve": (c.c_int, [_SHARD, _MS, c.POINTER(Result)]),
    "thc_set_attribute": (c.c_int, [_SHARD, _TEXT, _P, c.c_size_t]),
    "thc_get_manifest": (c.c_int, [_SHARD, _TEXT, c.c_uint32, _MS, _PP]),
    "thc_manifest_free": (None, [_P]),
    "thc_follow": (c.c_int, [_SHARD, _TEXT, _FLAGS, _MS]),
    "thc_follow_submit": (c.c_int, [_SHARD, _TEXT, _FLAGS, _MS, _PP]),
    "thc_go": (c.c_int, [_SHARD, c.c_uint64, _MS]),
    "thc_borrow": (c.c_int, [_SHARD, _TEXT, c.c_uint32, _FLAGS, _MS, _PP]),
    "thc_return": (c.c_int, [_P]),
    "thc_list": (c.c_int, [_SHARD, _FLAGS, _MS, _PP]),
    "thc_listing_free": (None, [_P]),
    "thc_wait": (c.c_int, [_SHARD, PREDICATE, _P, _MS]),
    "thc_publish_submit": (c.c_int, [_SHARD, c.c_uint64, _MS, _PP]),
    "thc_unpublish_submit": (c.c_int, [_SHARD, _FLAGS, _MS, _PP]),
    "thc_replicate_submit": (c.c_int, [_SHARD, _TEXT, _MS, _PP]),
    "thc_update_submit": (c.c_int, [_SHARD, _TEXT, _MS, _PP]),
    "thc_watch_submit": (c.c_int, [_SHARD, c.c_uint64, _MS, _PP]),
    "thc_list_submit": (c.c_int, [_SHARD, _FLAGS, _MS, _PP]),
    "thc_fd": (c.c_int, [_SHARD]),
    "thc_op_done": (c.c_int, [_OP]),
    "thc_op_wait": (c.c_int, [_OP, _MS, c.POINTER(Result)]),
    "thc_op_progress": (c.c_int, [_OP, _U64P, _U64P]),
    "thc_op_waits": (c.c_int, [_OP, _MS, c.c_char_p, c.c_size_t]),
    "thc_op_listing": (c.c_int, [_OP, _MS, _PP]),
    "thc_op_cancel": (c.c_int, [_OP]),
    "thc_op_free": (None, [_OP]),
}


def _find() -> str:
    """$THC_LIBRARY, else the one that came with the package, else the system's."""
    named = os.environ.get("THC_LIBRARY")
    if named:
        return named
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib", "libthc.so.1")
    return own if os.path.exists(own) else "libthc.so.1"


def _load() -> c.CDLL:
    path = _find()
    try:
        library = c.CDLL(path)
    except OSError as failure:
        raise ImportError(
            f"tensorhub: libthc cannot be loaded ({failure}); install TensorHub, or name its "
            "library by THC_LIBRARY",
            name="tensorhub",
            path=path,
        ) from None
    try:
        for name, (returns, takes) in PROTOTYPES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = returns, takes
        text = library.thc_version_string().decode()
    except AttributeError as failure:
        raise ImportError(
            f"tensorhub: {path} is no libthc that this package can use ({failure}); it needs "
            f"version {VERSION_MAJOR}",
            name="tensorhub",
            path=path,
        ) from None
    if int(text.split(".")[0]) != VERSION_MAJOR:
        raise ImportError(
            f"tensorhub: {path} is libthc {text}, and this package needs version {VERSION_MAJOR}",
            name="tensorhub",
            path=path,
        )
    return library


lib = _load()


def call(name: str, *args: Any) -> int:
    """Calls, without the GIL. A negative return is raised, with the sentence of this thread."""
    return check(getattr(lib, name)(*args), name)


def check(code: int, name: str) -> int:
    """What this thread's last call has answered, raised where it is negative."""
    if code < 0:
        raise errors.from_code(code, lib.thc_errmsg().decode(errors="replace"), name)
    return code


def text(argument: str, value: Any) -> bytes:
    """A str as C has it."""
    if not isinstance(value, str):
        raise errors.Invalid(f"{argument}: {value!r} is no str")
    try:
        raw = value.encode()
    except UnicodeEncodeError as failure:
        raise errors.Invalid(f"{argument}: {value!r} is no UTF-8 ({failure.reason})") from None
    if b"\0" in raw:
        raise errors.Invalid(f"{argument}: {value!r} has a null character")
    return raw
