# SPDX-License-Identifier: Apache-2.0
"""Memory of every kind that may be registered, and tensors in it."""

import ctypes as c
import fcntl
import itertools
import mmap
import os
import tempfile
from types import SimpleNamespace

import content
import gpu_driver
from tensorhub import _abi

libc = c.CDLL(None, use_errno=True)
libc.mmap.restype = c.c_void_p
libc.mmap.argtypes = [c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.c_int, c.c_long]
libc.munmap.argtypes = [c.c_void_p, c.c_size_t]
libc.mprotect.argtypes = [c.c_void_p, c.c_size_t, c.c_int]
libc.madvise.argtypes = [c.c_void_p, c.c_size_t, c.c_int]
libc.fallocate.argtypes = [c.c_int, c.c_int, c.c_long, c.c_long]
libc.malloc.restype = c.c_void_p
libc.malloc.argtypes = [c.c_size_t]
libc.free.argtypes = [c.c_void_p]

PAGE = mmap.PAGESIZE
READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
F_GET_SEALS = 1034
MFD_HUGETLB = 4
KEEP_SIZE, PUNCH_HOLE = 1, 2


def checked(result):
    if result in (-1, c.c_void_p(-1).value):
        raise OSError(c.get_errno(), os.strerror(c.get_errno()))
    return result


def whole_pages(nbytes, page=PAGE):
    return -(-nbytes // page) * page


class Memory:
    """address, bytes; fd when there is one. With slices to read and write."""

    device = _abi.HOST

    def __init__(self, nbytes):
        self.bytes, self.fd = nbytes, None

    def address_at(self, offset):
        return self.address + offset

    def write(self, offset, data):
        assert offset + len(data) <= self.bytes
        c.memmove(self.address + offset, data, len(data))

    def read(self, offset, nbytes):
        return c.string_at(self.address + offset, nbytes)

    def fill(self, byte):
        c.memset(self.address, byte, self.bytes)

    def protect(self, offset, nbytes, protection):
        checked(libc.mprotect(self.address + offset, nbytes, protection))

    def unmap(self, offset, nbytes):
        checked(libc.munmap(self.address + offset, nbytes))


class Tensor:
    """In such memory, as numpy's arrays or those of CUDA say it. device: where it says it lies."""

    def __init__(self, memory, shape, dtype="U8", at=0, device=None):
        self.memory, self.dtype = memory, dtype
        said = {"shape": tuple(shape), "typestr": "|V1", "data": (memory.address_at(at), False)}
        device = memory.device if device is None else device
        if device == _abi.HOST:
            self.__array_interface__ = said
        else:
            self.__cuda_array_interface__, self.device = said, SimpleNamespace(id=device)


def tensors(memory, rows=None, at=0, dtype="U8", device=None):
    """Tensors of these names and bytes, one after the other; else of the whole memory: small ones,
    odd ones, an empty one."""
    made, width = {}, 4 if dtype == "F32" else 1
    for name, nbytes in rows or content.layout(memory.bytes):
        made[name] = Tensor(memory, [nbytes // width], dtype, at, device)
        at += nbytes
    return made


class Allocated(Memory):
    """thc_alloc's."""

    def __init__(self, nbytes, huge=False):
        super().__init__(nbytes)
        pointer = c.c_void_p()
        _abi.call("thc_alloc", nbytes, _abi.ALLOC_HUGE if huge else 0, c.byref(pointer))
        self.address = pointer.value

    def free(self):
        _abi.call("thc_free", self.address)


class Malloc(Memory):
    def __init__(self, nbytes):
        super().__init__(nbytes)
        self.address = libc.malloc(nbytes)
        assert self.address

    def free(self):
        libc.free(self.address)


class Mapped(Memory):
    """A mapping: of nothing, or of fd."""

    def __init__(self, nbytes, fd=None, offset=0, page=PAGE, protection=READ | WRITE, flags=None):
        super().__init__(nbytes)
        self.fd, self.map_bytes = fd, whole_pages(nbytes, page)
        if flags is None:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if fd is None else mmap.MAP_SHARED
        self.address = checked(
            libc.mmap(
                None, self.map_bytes, protection, flags, -1 if self.fd is None else self.fd, offset
            )
        )

    def free(self):
        libc.munmap(self.address, self.map_bytes)
        if self.fd is not None:
            os.close(self.fd)


class Imported(Mapped):
    """import_flags: for a descriptor of its own to import by."""

    def __init__(self, nbytes, fd, import_flags=None, **kwargs):
        if os.fstat(fd).st_size == 0:
            os.ftruncate(fd, whole_pages(nbytes, kwargs.get("page", PAGE)))
        super().__init__(nbytes, fd, **kwargs)
        other = fd
        if import_flags is not None:
            other = os.open(f"/proc/self/fd/{fd}", import_flags | os.O_CLOEXEC)
        try:
            _abi.call("thc_import", self.address, nbytes, other, kwargs.get("offset", 0))
        finally:
            if other != fd:
                os.close(other)

    def free(self):
        _abi.call("thc_forget", self.address)
        super().free()


def sealed(nbytes):
    return Imported(nbytes, os.memfd_create("sealed", os.MFD_ALLOW_SEALING))


def unsealed(nbytes):
    return Imported(nbytes, os.memfd_create("unsealed"))


def appending(nbytes):
    return Imported(nbytes, os.memfd_create("appending"), import_flags=os.O_RDWR | os.O_APPEND)


def read_only(nbytes):
    return Imported(nbytes, os.memfd_create("read-only"), import_flags=os.O_RDONLY)


def file_in(folder):
    def make(nbytes):
        fd, name = tempfile.mkstemp(prefix="th-memory-", dir=folder)
        os.unlink(name)
        return Imported(nbytes, fd)

    return make


turns = itertools.count()


def wanted(nbytes, kind=None, gpu=None, device=None):
    """kind: a name in this module; gpu: one in gpu_driver.KINDS or BAD_KINDS, or "" for
    none whatever the environment says (gpus.py); else Allocated. device: which GPU, or
    a worker's own, or in a script that is the worker each in its turn."""
    if gpu is None and kind is None:
        gpu = os.environ.get("TH_E2E_GPU")
    if not gpu:
        return (globals()[kind] if kind else Allocated)(nbytes)
    if device is None:
        device = os.environ.get("TH_E2E_GPU_DEVICE") or next(turns) % gpu_driver.driver().count()
    return {**gpu_driver.KINDS, **gpu_driver.BAD_KINDS}[gpu](nbytes, int(device))


def lies_in_memory(folder):
    """As libthc tells it."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.fcntl(file.fileno(), F_GET_SEALS)
        except OSError:
            return False
        return True


def punch(fd, offset, nbytes):
    checked(libc.fallocate(fd, KEEP_SIZE | PUNCH_HOLE, offset, nbytes))

