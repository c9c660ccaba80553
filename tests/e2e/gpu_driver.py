# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver for the workers of tests, by ctypes, and GPU memory of every kind.

It is the process's libcuda.so.1: NVIDIA's, or that of tests/support/cuda. Works in the primary
context of a device, as frameworks do. Copies have ended when they return. Any thread: the context
is made current in each call.
"""

import ctypes as c
import mmap
import os
import threading
import time

POSIX_FD = 1
LAZY_PEER_ACCESS = 1
DEVICE, PINNED, READ_WRITE = 1, 1, 3
CHUNK = 2 << 20  # torch's expandable segments: 2 MiB for small memory, 20 MiB for large
LARGE_CHUNK = int(os.environ.get("TH_E2E_GPU_CHUNK", 20 << 20))
# Each call with the version of CUDA that brought the form that is used here (ipc/cuda/names.h).
VERSIONS = {
    "cuInit": 2000,
    "cuDriverGetVersion": 2020,
    "cuGetErrorName": 6000,
    "cuDeviceGetCount": 2000,
    "cuDeviceGetName": 2000,
    "cuDeviceGetUuid": 11040,
    "cuDeviceGetPCIBusId": 4010,
    "cuDeviceGetAttribute": 2000,
    "cuDeviceTotalMem": 3020,
    "cuDeviceCanAccessPeer": 4000,
    "cuDevicePrimaryCtxRetain": 7000,
    "cuDevicePrimaryCtxRelease": 11000,
    "cuCtxSetCurrent": 4000,
    "cuCtxSynchronize": 2000,
    "cuMemAlloc": 3020,
    "cuMemFree": 3020,
    "cuMemAllocManaged": 6000,
    "cuPointerGetAttribute": 4000,
    "cuIpcGetMemHandle": 4010,
    "cuIpcOpenMemHandle": 11000,
    "cuIpcCloseMemHandle": 4010,
    "cuMemGetAllocationGranularity": 10020,
    "cuMemCreate": 10020,
    "cuMemRelease": 10020,
    "cuMemRetainAllocationHandle": 11000,
    "cuMemExportToShareableHandle": 10020,
    "cuMemImportFromShareableHandle": 10020,
    "cuMemAddressReserve": 10020,
    "cuMemAddressFree": 10020,
    "cuMemMap": 10020,
    "cuMemUnmap": 10020,
    "cuMemSetAccess": 10020,
    "cuMemPoolCreate": 11020,
    "cuMemPoolDestroy": 11020,
    "cuMemPoolExportToShareableHandle": 11020,
    "cuMemPoolImportFromShareableHandle": 11020,
    "cuMemPoolExportPointer": 11020,
    "cuMemPoolImportPointer": 11020,
    "cuMemAllocFromPoolAsync": 11020,
    "cuMemFreeAsync": 11020,
    "cuMemHostRegister": 6050,
    "cuMemHostUnregister": 4000,
    "cuStreamCreateWithPriority": 5050,
    "cuStreamSynchronize": 2000,
    "cuStreamQuery": 2000,
    "cuMemcpyHtoD": 3020,
    "cuMemcpyDtoH": 3020,
    "cuMemcpyDtoD": 3020,
    "cuMemcpyHtoDAsync": 3020,
    "cuMemcpyDtoHAsync": 3020,
    "cuMemcpyDtoDAsync": 3020,
    "cuMemsetD8": 3020,
    "cuLaunchHostFunc": 10000,
}
RDMA_WITH_VMM = 110
# Those that libthc decides by (ipc/cuda/cuda_memory.c).
POINTER_ATTRIBUTES = {
    "type": 2,
    "managed": 8,
    "ordinal": 9,
    "legacy_ipc": 10,
    "range_bytes": 12,
    "mapped": 13,
    "handle_types": 14,
    "pool": 17,
}


class CudaError(Exception):
    def __init__(self, call, result, name):
        self.result, self.name = result, name
        super().__init__(f"{call}: {name}")


class Location(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_int)]


class AllocationProp(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", Location),
        ("win32", c.c_void_p),
        ("compression", c.c_ubyte),
        ("rdma", c.c_ubyte),
        ("usage", c.c_ushort),
        ("reserved", c.c_ubyte * 4),
    ]


class Access(c.Structure):
    _fields_ = [("location", Location), ("flags", c.c_int)]


class PoolProps(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", Location),
        ("win32", c.c_void_p),
        ("max_size", c.c_size_t),
        ("usage", c.c_ushort),
        ("reserved", c.c_ubyte * 54),
    ]


class Handle(c.Structure):
    """CUipcMemHandle, and CUmemPoolPtrExportData."""

    _fields_ = [("reserved", c.c_ubyte * 64)]


class Driver:
    """call("cuMemAlloc", ...) raises CudaError. Arguments are ctypes' own or integers, which are
    64 bits wide; what is narrower is passed in a register all the same."""

    def __init__(self):
        self.library = c.CDLL("libcuda.so.1")
        self.find = self.library.cuGetProcAddress_v2
        self.find.argtypes = [c.c_char_p, c.c_void_p, c.c_int, c.c_uint64, c.c_void_p]
        self.entries, self.contexts, self.memories = {}, {}, set()
        self.lock = threading.Lock()
        self.call("cuInit", 0)

    def entry(self, name):
        if name not in self.entries:
            address, found = c.c_void_p(), c.c_int()
            version = VERSIONS[name]
            rc = self.find(name.encode(), c.byref(address), version, 0, c.byref(found))
            if rc or not address.value:
                raise CudaError(name, rc, f"the driver does not have it ({rc}, {found.value})")
            self.entries[name] = c.CFUNCTYPE(c.c_int)(address.value)
        return self.entries[name]

    def result(self, name, *args):
        converted = [c.c_uint64(a % 2**64) if isinstance(a, int) else a for a in args]
        return self.entry(name)(*converted)

    def call(self, name, *args):
        rc = self.result(name, *args)
        if rc:
            text = c.c_char_p()
            if name != "cuInit":
                self.result("cuGetErrorName", rc, c.byref(text))
            raise CudaError(name, rc, text.value.decode() if text.value else f"error {rc}")

    def number(self, name, *args, kind=c.c_int):
        """What the call writes to its first argument."""
        value = kind()
        self.call(name, c.byref(value), *args)
        return value.value

    def current(self, device):
        """The device's primary context, for this thread."""
        with self.lock:
            if device not in self.contexts:
                self.contexts[device] = self.number(
                    "cuDevicePrimaryCtxRetain", device, kind=c.c_void_p
                )
        self.call("cuCtxSetCurrent", c.c_void_p(self.contexts[device]))

    def leave(self):
        """This process has no memory and no context of a GPU any more."""
        for memory in list(self.memories):
            memory.free()
        with self.lock:
            for device in self.contexts:
                self.call("cuDevicePrimaryCtxRelease", device)
            self.contexts = {}

    def count(self):
        return self.number("cuDeviceGetCount")

    def text(self, name, device):
        room = c.create_string_buffer(256)
        self.call(name, room, 256, device)
        return room.value.decode()

    def uuid(self, device):
        room = (c.c_ubyte * 16)()
        self.call("cuDeviceGetUuid", room, device)
        return bytes(room)

    def describe(self, device):
        return {
            "name": self.text("cuDeviceGetName", device),
            "pci": self.text("cuDeviceGetPCIBusId", device),
            "uuid": self.uuid(device).hex(),
            "bytes": self.number("cuDeviceTotalMem", device, kind=c.c_size_t),
        }


driver_lock, the_driver = threading.Lock(), None


def driver():
    global the_driver
    with driver_lock:
        if the_driver is None:
            the_driver = Driver()
        return the_driver


def host_pointer(data):
    """Of bytes or of something that can be written to; keep it alive."""
    if isinstance(data, bytes):
        return c.cast(c.c_char_p(data), c.c_void_p)
    return c.cast((c.c_char * len(data)).from_buffer(data), c.c_void_p)


class Memory:
    """address, bytes, device; with slices to read and write as memory_kinds.Memory has."""

    def __init__(self, nbytes, device=0):
        self.bytes, self.device, self.cuda = nbytes, device, driver()
        self.cuda.current(device)
        self.allocate()
        self.cuda.memories.add(self)

    def call(self, name, *args):
        self.cuda.current(self.device)
        self.cuda.call(name, *args)

    def write(self, offset, data):
        assert offset + len(data) <= self.bytes
        self.call("cuMemcpyHtoD", self.address + offset, host_pointer(data), len(data))
        self.call("cuCtxSynchronize")

    def address_at(self, offset):
        return self.address + offset

    def read(self, offset, nbytes):
        data = bytearray(nbytes)
        if nbytes:
            self.call("cuMemcpyDtoH", host_pointer(data), self.address + offset, nbytes)
        return bytes(data)

    def fill(self, byte):
        self.call("cuMemsetD8", self.address, byte, self.bytes)
        self.call("cuCtxSynchronize")

    def says(self):
        """What the driver says of it: each attribute, or the code with which it was refused, and
        the codes of the calls that tell whose it is."""
        self.cuda.current(self.device)
        found = {}
        for name, number in POINTER_ATTRIBUTES.items():
            value = c.c_uint64()
            rc = self.cuda.result("cuPointerGetAttribute", c.byref(value), number, self.address)
            found[name] = f"error {rc}" if rc else value.value
        handle = c.c_uint64()
        retained = self.cuda.result("cuMemRetainAllocationHandle", c.byref(handle), self.address)
        if not retained:
            self.cuda.call("cuMemRelease", handle.value)
        found["retain"] = retained
        return found

    def free(self):
        self.cuda.memories.remove(self)
        self.cuda.current(self.device)
        self.release()


class Legacy(Memory):
    """cudaMalloc."""

    def allocate(self):
        self.address = self.cuda.number("cuMemAlloc", self.bytes, kind=c.c_uint64)

    def share(self):
        """What another process opens it by: bytes, and a descriptor or None."""
        handle = Handle()
        self.call("cuIpcGetMemHandle", c.byref(handle), self.address)
        return bytes(handle), None

    def release(self):
        self.cuda.call("cuMemFree", self.address)


class Smalls(Memory):
    """Many of cudaMalloc, some of which share a block of the driver."""

    PART = 61_001

    def allocate(self):
        self.parts = []
        for at in range(0, self.bytes, self.PART):
            part = Legacy(min(self.PART, self.bytes - at), self.device)
            self.cuda.memories.remove(part)
            self.parts.append(part)

    def address_at(self, offset):
        return self.parts[offset // self.PART].address + offset % self.PART

    def write(self, offset, data):
        view = memoryview(data)
        while view:
            part, at = self.parts[offset // self.PART], offset % self.PART
            here = view[: part.bytes - at]
            part.write(at, bytes(here))
            view, offset = view[len(here) :], offset + len(here)

    def read(self, offset, nbytes):
        found = []
        while nbytes:
            part, at = self.parts[offset // self.PART], offset % self.PART
            found.append(part.read(at, min(nbytes, part.bytes - at)))
            nbytes, offset = nbytes - len(found[-1]), offset + len(found[-1])
        return b"".join(found)

    def fill(self, byte):
        for part in self.parts:
            part.fill(byte)

    def release(self):
        for part in self.parts:
            part.release()


class Managed(Legacy):
    def allocate(self):
        self.address = self.cuda.number("cuMemAllocManaged", self.bytes, 1, kind=c.c_uint64)


class Mapped(Memory):
    """cuMemCreate: physical chunks, mapped one behind the other into one range."""

    handle_types = POSIX_FD

    def chunk_bytes(self):
        return self.bytes

    def properties(self):
        can = self.cuda.number("cuDeviceGetAttribute", RDMA_WITH_VMM, self.device)
        return AllocationProp(
            type=PINNED,
            handle_types=self.handle_types,
            location=Location(DEVICE, self.device),
            rdma=1 if can else 0,
        )

    def allocate(self):
        cuda, prop = self.cuda, self.properties()
        self.granularity = cuda.number(
            "cuMemGetAllocationGranularity", c.byref(prop), 0, kind=c.c_size_t
        )

        def whole(nbytes):
            return -(-nbytes // self.granularity) * self.granularity

        chunk = whole(self.chunk_bytes())
        self.range_bytes = -(-self.bytes // chunk) * chunk
        self.address = cuda.number(
            "cuMemAddressReserve", self.range_bytes, 0, 0, 0, kind=c.c_uint64
        )
        self.parts = [(at, chunk) for at in range(0, self.range_bytes, chunk)]
        self.handles = []
        self.wake()

    def chunk(self, nbytes):
        prop = self.properties()
        return self.cuda.number("cuMemCreate", nbytes, c.byref(prop), 0, kind=c.c_uint64)

    def wake(self):
        """New memory behind the same addresses: so sleep modes come back."""
        cuda = self.cuda
        cuda.current(self.device)
        for at, nbytes in self.parts:
            handle = self.chunk(nbytes)
            self.handles.append(handle)
            cuda.call("cuMemMap", self.address + at, nbytes, 0, handle, 0)
        access = Access(Location(DEVICE, self.device), READ_WRITE)
        cuda.call("cuMemSetAccess", self.address, self.range_bytes, c.byref(access), 1)

    def sleep(self):
        """The memory is given back, the addresses stay."""
        self.call("cuCtxSynchronize")
        for (at, nbytes), handle in zip(self.parts, self.handles):
            self.cuda.call("cuMemUnmap", self.address + at, nbytes)
            self.cuda.call("cuMemRelease", handle)
        self.handles = []

    def release(self):
        if self.handles:
            self.sleep()
        self.cuda.call("cuMemAddressFree", self.address, self.range_bytes)


class Chunk(Mapped):
    """One chunk that fills its range."""

    def share(self):
        self.cuda.current(self.device)
        return b"", self.cuda.number("cuMemExportToShareableHandle", self.handles[0], POSIX_FD, 0)


class Chunks(Mapped):
    """Many chunks, as torch's expandable segments."""

    def chunk_bytes(self):
        return CHUNK if self.bytes <= 32 * CHUNK else LARGE_CHUNK


class SmallChunks(Mapped):
    """As many as there can be."""

    def chunk_bytes(self):
        return CHUNK


class Closed(Chunks):
    """No other process can map it, as most sleep modes make it."""

    handle_types = 0


class Pool(Memory):
    """cudaMallocAsync, from a pool that can be exported."""

    def allocate(self):
        place = Location(DEVICE, self.device)
        props = PoolProps(type=PINNED, handle_types=POSIX_FD, location=place)
        self.pool = self.cuda.number("cuMemPoolCreate", c.byref(props), kind=c.c_void_p)
        self.address = self.cuda.number(
            "cuMemAllocFromPoolAsync", self.bytes, c.c_void_p(self.pool), None, kind=c.c_uint64
        )
        self.cuda.call("cuCtxSynchronize")

    def share(self):
        self.cuda.current(self.device)
        fd = self.cuda.number(
            "cuMemPoolExportToShareableHandle", c.c_void_p(self.pool), POSIX_FD, 0
        )
        data = Handle()
        self.cuda.call("cuMemPoolExportPointer", c.byref(data), self.address)
        return bytes(data), fd

    def release(self):
        self.cuda.call("cuMemFreeAsync", self.address, None)
        self.cuda.call("cuCtxSynchronize")
        self.cuda.call("cuMemPoolDestroy", c.c_void_p(self.pool))


# ---- what is no tensor's memory, or another process's ----------------------------------------


class Freed(Legacy):
    """An address of memory that there was."""

    def allocate(self):
        super().allocate()
        super().release()

    def release(self):
        pass


class Pinned(Memory):
    """Host memory that CUDA knows."""

    def allocate(self):
        self.pages = mmap.mmap(-1, self.bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pointer = host_pointer(self.pages)
        self.address = pointer.value
        self.cuda.call("cuMemHostRegister", pointer, self.bytes, 0)

    def write(self, offset, data):
        self.pages[offset : offset + len(data)] = bytes(data)

    def read(self, offset, nbytes):
        return self.pages[offset : offset + nbytes]

    def fill(self, byte):
        self.write(0, bytes([byte]) * self.bytes)

    def release(self):
        self.cuda.call("cuMemHostUnregister", c.c_void_p(self.address))


class Lent:
    """First of the classes of what was opened by what share() gave another process; the
    descriptor is closed."""

    def __init__(self, nbytes, device, data, fd):
        self.data, self.fd = Handle.from_buffer_copy(data or bytes(64)), fd
        super().__init__(nbytes, device)
        if fd is not None:
            os.close(fd)


class LentLegacy(Lent, Memory):
    def allocate(self):
        self.address = self.cuda.number(
            "cuIpcOpenMemHandle", self.data, LAZY_PEER_ACCESS, kind=c.c_uint64
        )

    def release(self):
        self.cuda.call("cuIpcCloseMemHandle", self.address)


class LentPool(Lent, Memory):
    def allocate(self):
        self.pool = self.cuda.number(
            "cuMemPoolImportFromShareableHandle", self.fd, POSIX_FD, 0, kind=c.c_void_p
        )
        self.address = self.cuda.number(
            "cuMemPoolImportPointer", c.c_void_p(self.pool), c.byref(self.data), kind=c.c_uint64
        )

    def says(self):
        """Also whether its pool is exported again."""
        fd = c.c_int(-1)
        rc = self.cuda.result(
            "cuMemPoolExportToShareableHandle", c.byref(fd), c.c_void_p(self.pool), POSIX_FD, 0
        )
        if not rc:
            os.close(fd.value)
        return {**super().says(), "export": rc}

    def release(self):
        self.cuda.call("cuMemFree", self.address)
        self.cuda.call("cuMemPoolDestroy", c.c_void_p(self.pool))


class LentChunk(Lent, Mapped):
    def chunk(self, nbytes):
        return self.cuda.number(
            "cuMemImportFromShareableHandle", c.c_void_p(self.fd), POSIX_FD, kind=c.c_uint64
        )


LENT = {"legacy": LentLegacy, "pool": LentPool, "chunk": LentChunk}
KINDS = {
    "legacy": Legacy,
    "smalls": Smalls,
    "chunk": Chunk,
    "chunks": Chunks,
    "small_chunks": SmallChunks,
    "pool": Pool,
    "closed": Closed,
}
BAD_KINDS = {"managed": Managed, "pinned": Pinned, "freed": Freed}
OPEN_KINDS = ("legacy", "chunk", "chunks", "pool")  # that other processes can map
# Whose memory can go while its addresses stay.
SLEEPING_KINDS = tuple(kind for kind, of in KINDS.items() if issubclass(of, Mapped))


# ---- what a copy is measured against ---------------------------------------------------------


def rates(nbytes, device=0, rounds=5):
    """Bytes a second of plain copies, the best of some rounds: within the GPU, from it and to it;
    the host's memory is pinned."""
    cuda = driver()
    cuda.current(device)
    a, b = Legacy(nbytes, device), Legacy(nbytes, device)
    host = mmap.mmap(-1, nbytes)
    pointer = host_pointer(host)
    c.memset(pointer, 1, nbytes)
    cuda.call("cuMemHostRegister", pointer, nbytes, 0)
    found = {}
    for name, call, args in (
        ("dtod", "cuMemcpyDtoDAsync", (a.address, b.address, nbytes, None)),
        ("dtoh", "cuMemcpyDtoHAsync", (pointer, a.address, nbytes, None)),
        ("htod", "cuMemcpyHtoDAsync", (a.address, pointer, nbytes, None)),
    ):
        times = []
        for _ in range(rounds + 1):  # the first one warms up
            begin = time.perf_counter()
            cuda.call(call, *args)
            cuda.call("cuCtxSynchronize")
            times.append(time.perf_counter() - begin)
        found[name] = nbytes / min(times[1:])
    cuda.call("cuMemHostUnregister", pointer)
    a.free()
    b.free()
    del pointer
    return found


# Called by the driver on a thread of its own: the stream waits for it, for as long as we live.
FOREVER = c.CFUNCTYPE(None, c.c_void_p)(lambda _: time.sleep(3600))


def stall(memory):
    """A stream with a copy from the memory that waits for ever. Where the driver is that of the
    tests, a plan makes it wait."""
    cuda = memory.cuda
    cuda.current(memory.device)
    stream = c.c_void_p(cuda.number("cuStreamCreateWithPriority", 1, 0, kind=c.c_void_p))
    try:
        cuda.call("cuLaunchHostFunc", stream, c.cast(FOREVER, c.c_void_p), None)
    except CudaError:
        pass
    half = memory.bytes // 2
    cuda.call("cuMemcpyDtoDAsync", memory.address, memory.address + half, half, stream)
