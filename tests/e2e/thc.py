# SPDX-License-Identifier: Apache-2.0
"""libthc by ctypes, for the tests: the structs of thc.h and thin calls that raise ThcError."""

import ctypes as c
import mmap
import os

FOREVER = -1
NO_VERSION = 2**64 - 1
HOST = -1
DIMS = 8

CODES = {
    name: -5001 - i
    for i, name in enumerate(
        "INVALID STATE TIMEOUT NOT_AVAILABLE VERSION_LOST VERSION_CONFLICT LAYOUT DIRTY "
        "GROUP_BROKEN GROUP_MISMATCH NOMEM_RETAIN LIMIT CHECKSUM CONTRACT NO_AGENT AGENT_LOST "
        "NO_SERVER DENIED PROTOCOL "
        "FORKED CANCELLED MEMORY_KIND STALE_MEMORY NO_PATH UNKNOWN EVICTED".split()
    )
}
NAMES = {v: k for k, v in CODES.items()}
DTYPES = {
    name: i + 1
    for i, name in enumerate(
        "U8 I8 BOOL I16 U16 F16 BF16 I32 U32 F32 I64 U64 F64 F8_E4M3 F8_E5M2 C64 "
        "F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ F4 F6_E2M3 F6_E3M2".split()
    )
}


class Tensor(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("data", c.c_void_p),
        ("bytes", c.c_uint64),
        ("dtype", c.c_int),
        ("device", c.c_int32),
        ("ndim", c.c_uint32),
        ("local_shape", c.c_uint64 * DIMS),
        ("global_shape", c.c_uint64 * DIMS),
        ("offset", c.c_uint64 * DIMS),
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
        ("source", c.c_char * 256),
        ("transport", c.c_char * 32),
    ]

    def as_dict(self):
        out = {name: getattr(self, name) for name, _ in self._fields_ if name != "struct_size"}
        return {k: v.decode() if isinstance(v, bytes) else v for k, v in out.items()}


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
        ("replicas", c.POINTER(ReplicaInfo)),
    ]


class Listing(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("generation", c.c_uint64),
        ("num_versions", c.c_uint32),
        ("version_bytes", c.c_size_t),
        ("replica_bytes", c.c_size_t),
        ("versions", c.POINTER(VersionInfo)),
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
        ("tensors", c.POINTER(Tensor)),
        ("num_attributes", c.c_size_t),
        ("attribute_bytes", c.c_size_t),
        ("attributes", c.POINTER(Attribute)),
    ]


class ThcError(Exception):
    def __init__(self, call, code, text):
        self.code = code
        self.name = NAMES.get(code, os.strerror(-code) if -4096 < code < 0 else str(code))
        self.text = text
        super().__init__(f"{call}: {self.name}: {text}")


PREDICATE = c.CFUNCTYPE(c.c_int, c.POINTER(Listing), c.c_void_p)
_P = c.c_void_p
_PROTOTYPES = {
    "thc_open": [c.POINTER(OpenOpts), c.c_int64, c.POINTER(_P)],
    "thc_close": [_P, c.c_uint32, c.c_int64],
    "thc_shard_events": [_P],
    "thc_alloc": [c.c_uint64, c.c_uint32, c.POINTER(_P)],
    "thc_free": [_P],
    "thc_import": [_P, c.c_uint64, c.c_int, c.c_uint64],
    "thc_forget": [_P],
    "thc_register": [_P, c.POINTER(Tensor), c.c_size_t, c.c_size_t, c.c_int64],
    "thc_unregister": [_P, c.c_int64],
    "thc_memory_path": [_P, c.c_char_p, c.c_char_p, c.c_size_t],
    "thc_publish": [_P, c.c_uint64, c.c_int64],
    "thc_unpublish": [_P, c.c_uint32, c.c_int64],
    "thc_safe_to_mutate": [_P],
    "thc_replicate": [_P, c.c_char_p, c.c_int64, c.POINTER(Result)],
    "thc_update": [_P, c.c_char_p, c.c_int64, c.POINTER(Result)],
    "thc_resolve": [_P, c.c_int64, c.POINTER(Result)],
    "thc_held_version": [_P, c.POINTER(c.c_uint64), c.POINTER(c.c_uint64)],
    "thc_set_attribute": [_P, c.c_char_p, c.c_char_p, c.c_size_t],
    "thc_get_manifest": [_P, c.c_char_p, c.c_uint32, c.c_int64, c.POINTER(c.POINTER(Manifest))],
    "thc_list": [_P, c.c_uint32, c.c_int64, c.POINTER(c.POINTER(Listing))],
    "thc_wait": [_P, PREDICATE, _P, c.c_int64],
    "thc_replicate_submit": [_P, c.c_char_p, c.c_int64, c.POINTER(_P)],
    "thc_update_submit": [_P, c.c_char_p, c.c_int64, c.POINTER(_P)],
    "thc_publish_submit": [_P, c.c_uint64, c.c_int64, c.POINTER(_P)],
    "thc_unpublish_submit": [_P, c.c_uint32, c.c_int64, c.POINTER(_P)],
    "thc_watch_submit": [_P, c.c_uint64, c.c_int64, c.POINTER(_P)],
    "thc_fd": [_P],
    "thc_op_done": [_P],
    "thc_op_wait": [_P, c.c_int64, c.POINTER(Result)],
    "thc_op_waits": [_P, c.c_int64, c.c_char_p, c.c_size_t],
    "thc_op_progress": [_P, c.POINTER(c.c_uint64), c.POINTER(c.c_uint64)],
    "thc_op_cancel": [_P],
}

lib = c.CDLL(os.path.join(os.environ["TH_BUILD"], "libthc", "libthc.so.1"))
for _name, _args in _PROTOTYPES.items():
    getattr(lib, _name).argtypes = _args
lib.thc_shard_events.restype = c.c_uint32
lib.thc_errmsg.restype = c.c_char_p
lib.thc_strerror.restype = c.c_char_p
lib.thc_version_string.restype = c.c_char_p
for _name, _args in (
    ("thc_manifest_free", [c.POINTER(Manifest)]),
    ("thc_listing_free", [c.POINTER(Listing)]),
    ("thc_op_free", [_P]),
):
    getattr(lib, _name).argtypes = _args
    getattr(lib, _name).restype = None


def _remember():
    """Each call's codes go into the table of TH_CALLS_SEEN (calls_seen.c says how it
    looks), as seen with real daemons. Nothing is opened when a call returns."""
    try:
        with open(os.path.join(os.environ["TH_CALLS_SEEN"], "table"), "r+b") as file:
            table = mmap.mmap(file.fileno(), 0)
    except (KeyError, OSError):
        return
    for at in range(0, len(table), 96):
        name = table[at : at + 32].rstrip(b"\0").decode()

        def note(result, _function, _args, at=at, coded=name in _PROTOTYPES):
            flag = 0
            if coded and result < 0:
                flag = 30 if result >= -4095 else -5000 - result if result >= -5026 else 31
            table[at + 64 + flag] = 1
            return result

        getattr(lib, name).errcheck = note


_remember()


def call(name, *args):
    """Calls and raises ThcError for a negative return; the sentence is read on the same thread."""
    rc = getattr(lib, name)(*args)
    if rc < 0:
        raise ThcError(name, rc, lib.thc_errmsg().decode())
    return rc


def ms(seconds):
    return FOREVER if seconds is None else int(seconds * 1000)


class Memory:
    """thc_alloc'd memory with slices to read and write."""

    device = HOST

    def __init__(self, nbytes):
        ptr = _P()
        call("thc_alloc", nbytes, 0, c.byref(ptr))
        self.address, self.bytes = ptr.value, nbytes

    def address_at(self, offset):
        return self.address + offset

    def write(self, offset, data):
        assert offset + len(data) <= self.bytes
        c.memmove(self.address + offset, data, len(data))

    def read(self, offset, nbytes):
        return c.string_at(self.address + offset, nbytes)

    def fill(self, byte):
        c.memset(self.address, byte, self.bytes)

    def free(self):
        call("thc_free", self.address)


def tensor(name, address, shape, dtype="U8", nbytes=None, device=HOST):
    bits = {"U8": 8, "I8": 8, "BF16": 16, "F16": 16, "F32": 32, "I32": 32, "I64": 64, "F64": 64}[
        dtype
    ]
    count = 1
    for s in shape:
        count *= s
    t = Tensor(
        name=name.encode() if isinstance(name, str) else name,
        data=address,
        bytes=(count * bits + 7) // 8 if nbytes is None else nbytes,
        dtype=DTYPES[dtype],
        device=device,
        ndim=len(shape),
    )
    for i, s in enumerate(shape):
        t.local_shape[i] = s
    return t


class Shard:
    def __init__(
        self,
        model,
        replica=None,
        shard=0,
        num_shards=1,
        lineage=0,
        agent=None,
        flags=0,
        retain=None,
        launch_id=None,
        timeout=10,
    ):
        opts = OpenOpts(
            struct_size=c.sizeof(OpenOpts),
            model=model.encode(),
            replica=replica.encode() if replica is not None else None,
            shard=shard,
            num_shards=num_shards,
            lineage=lineage,
            retain=retain.encode() if retain else None,
            launch_id=launch_id.encode() if launch_id else None,
            agent=agent.encode() if agent else None,
            flags=flags,
        )
        handle = _P()
        call("thc_open", c.byref(opts), ms(timeout), c.byref(handle))
        self.handle = handle

    def register(self, tensors, timeout=10):
        array = (Tensor * len(tensors))(*tensors)
        return call("thc_register", self.handle, array, len(tensors), c.sizeof(Tensor), ms(timeout))

    def unregister(self, timeout=10):
        return call("thc_unregister", self.handle, ms(timeout))

    def memory_path(self, tensor):
        text = c.create_string_buffer(800)
        call("thc_memory_path", self.handle, tensor.encode(), text, 800)
        return text.value.decode()

    def publish(self, version, timeout=20):
        return call("thc_publish", self.handle, version, ms(timeout))

    def unpublish(self, timeout=20, flags=0):
        return call("thc_unpublish", self.handle, flags, ms(timeout))

    def _pull(self, name, version, timeout):
        result = Result(struct_size=c.sizeof(Result))
        call(name, self.handle, str(version).encode(), ms(timeout), c.byref(result))
        return result.as_dict()

    def replicate(self, version="latest", timeout=30):
        return self._pull("thc_replicate", version, timeout)

    def update(self, version="latest", timeout=30):
        return self._pull("thc_update", version, timeout)

    def resolve(self, timeout=30):
        result = Result(struct_size=c.sizeof(Result))
        call("thc_resolve", self.handle, ms(timeout), c.byref(result))
        return result.as_dict()

    def _submit(self, name, argument, timeout):
        op = _P()
        call(name, self.handle, argument, ms(timeout), c.byref(op))
        return Op(op)

    def publish_submit(self, version, timeout=30):
        return self._submit("thc_publish_submit", version, timeout)

    def unpublish_submit(self, timeout=30, flags=0):
        return self._submit("thc_unpublish_submit", flags, timeout)

    def replicate_submit(self, version="latest", timeout=30):
        return self._submit("thc_replicate_submit", str(version).encode(), timeout)

    def update_submit(self, version="latest", timeout=30):
        return self._submit("thc_update_submit", str(version).encode(), timeout)

    def watch_submit(self, generation, timeout=30):
        return self._submit("thc_watch_submit", generation, timeout)

    def fd(self):
        return call("thc_fd", self.handle)

    def events(self):
        return lib.thc_shard_events(self.handle)

    def held(self):
        lineage, version = c.c_uint64(), c.c_uint64()
        rc = lib.thc_held_version(self.handle, c.byref(lineage), c.byref(version))
        if rc == CODES["NOT_AVAILABLE"]:
            return None
        if rc < 0:
            raise ThcError("thc_held_version", rc, lib.thc_errmsg().decode())
        return (lineage.value, version.value)

    def safe_to_mutate(self):
        return lib.thc_safe_to_mutate(self.handle)

    def list(self, grouped=False, timeout=10):
        listing = c.POINTER(Listing)()
        call("thc_list", self.handle, 1 if grouped else 0, ms(timeout), c.byref(listing))
        try:
            return listing_dict(listing.contents)
        finally:
            lib.thc_listing_free(listing)

    def wait(self, predicate, timeout=20):
        fn = PREDICATE(lambda listing, _arg: int(bool(predicate(listing_dict(listing.contents)))))
        return call("thc_wait", self.handle, fn, None, ms(timeout))

    def set_attribute(self, name, value):
        return call(
            "thc_set_attribute", self.handle, name.encode(), value, len(value) if value else 0
        )

    def manifest(self, version="latest", of_shard=0, timeout=10):
        ptr = c.POINTER(Manifest)()
        call(
            "thc_get_manifest",
            self.handle,
            str(version).encode(),
            of_shard,
            ms(timeout),
            c.byref(ptr),
        )
        try:
            m = ptr.contents
            return {
                "version": m.version,
                "num_shards": m.num_shards,
                "tensors": [
                    (t.name.decode(), t.dtype, list(t.local_shape[: t.ndim]), t.bytes)
                    for t in m.tensors[: m.count]
                ],
                "attributes": {
                    a.name.decode(): c.string_at(a.value, a.bytes)
                    for a in m.attributes[: m.num_attributes]
                },
            }
        finally:
            lib.thc_manifest_free(ptr)

    def close(self, timeout=20, flags=0):
        return call("thc_close", self.handle, flags, ms(timeout))


class Op:
    def __init__(self, op):
        self.op = op

    def progress(self):
        done, total = c.c_uint64(), c.c_uint64()
        call("thc_op_progress", self.op, c.byref(done), c.byref(total))
        return done.value, total.value

    def waits(self):
        """None: it has not come to the server yet, or it has ended."""
        text = c.create_string_buffer(256)
        try:
            call("thc_op_waits", self.op, 5000, text, len(text))
        except ThcError as e:
            if e.code != CODES["STATE"]:
                raise
            return None
        return text.value.decode()

    def wait(self, timeout=30):
        result = Result(struct_size=c.sizeof(Result))
        call("thc_op_wait", self.op, ms(timeout), c.byref(result))
        return result.as_dict()

    def done(self):
        return call("thc_op_done", self.op)

    def cancel(self):
        return call("thc_op_cancel", self.op)

    def free(self):
        lib.thc_op_free(self.op)


def listing_dict(listing):
    return {
        "generation": listing.generation,
        "versions": {
            (v.lineage, v.version): {
                r.name.decode(): {
                    "flags": r.flags,
                    "progress": r.progress,
                    "num_shards": r.num_shards,
                }
                for r in v.replicas[: v.num_replicas]
            }
            for v in listing.versions[: listing.num_versions]
        },
        # A name may stand twice: of the workers' copy, and of the one that agents keep.
        "entries": [
            [v.lineage, v.version, r.name.decode(), r.flags]
            for v in listing.versions[: listing.num_versions]
            for r in v.replicas[: v.num_replicas]
        ],
        "retained": [
            [v.lineage, v.version]
            for v in listing.versions[: listing.num_versions]
            if v.retained
        ],
    }
