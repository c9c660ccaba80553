# SPDX-License-Identifier: Apache-2.0
"""A virtual machine whose kernel has soft-RoCE, so that code which needs an RDMA device runs for
real on a host without one.

The kernel is Debian's own package, unpacked into a cache outside the repository; qemu emulates the
processor, because a host that is itself a virtual machine often cannot do better. The guest's root
is the host's, read-only: programs, libraries and builds are the host's own. What is written goes
to memory of the guest, or to a folder that was given for it. How it starts is init.sh beside this.

Nothing is left behind: the guest ends with the process that started it, however that one ends.
"""

import ctypes
import fcntl
import glob
import lzma
import os
import platform
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(
    os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "tensorhub-tests", "vm"
)
# In this order; what they depend on goes before them.
MODULES = (
    "virtio_pci 9pnet_virtio 9p virtio_console virtio_net e1000 dummy veth bridge sch_tbf "
    "crc32_generic ib_uverbs rdma_ucm rdma_rxe nf_tables"
).split()
LAYOUT = "1 " + " ".join(MODULES)  # another one is another cache
# What a program in the guest may want to know of the build that it belongs to.
PASSED_ON = ("TH_", "THC_", "ASAN_OPTIONS", "UBSAN_OPTIONS", "PYTHONDONTWRITEBYTECODE", "LC_ALL")
COVERED = ("/tmp", "/run", "/var/tmp", "/dev/shm")  # these are the guest's own


class Unavailable(Exception):
    """No machine can be had here; says why."""


class OutOfTime(Exception):
    pass


def dies_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run(argv, seconds, **kwargs):
    """Its output; what goes wrong is the reason why there is no machine."""
    try:
        p = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            preexec_fn=dies_with_parent,
            **kwargs,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Unavailable(f"no virtual machine: {e}") from None
    if p.returncode:
        last = (p.stderr.strip().splitlines() or [f"exit status {p.returncode}"])[-1]
        raise Unavailable(f"no virtual machine: {shlex.join(argv[:2])}: {last}")
    return p.stdout


def tool(name):
    """Where a program is, also when /sbin is not in the path."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise Unavailable(f"no virtual machine: {name} is not installed (tools/check --deps-only)")
    return path


def uncompressed(image):
    """The kernel within a bzImage, so that no emulated processor has to unpack it; None where it
    is not packed by xz. Where it lies: Documentation/arch/x86/boot.rst of Linux."""
    word = lambda at: int.from_bytes(image[at : at + 4], "little")
    if image[0x202:0x206] != b"HdrS":
        return None
    begin = (image[0x1F1] + 1) * 512 + word(0x248)
    packed = image[begin : begin + word(0x24C)]
    if not packed.startswith(b"\xfd7zXZ\0"):
        return None
    kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(packed)
    return kernel if kernel.startswith(b"\x7fELF") else None


def fetch_kernel(folder):
    """Debian's kernel from the host's own mirror; of its modules only those that are used."""
    found = run([tool("apt-cache"), "depends", "linux-image-amd64"], 60).split()
    package = next((w for w in found if w.startswith("linux-image-") and w[12].isdigit()), None)
    if package is None:
        raise Unavailable("no virtual machine: apt knows no linux-image-amd64 (apt-get update)")
    version = package.removeprefix("linux-image-")
    whole = os.path.join(folder, "whole")
    os.mkdir(whole)
    run([tool("apt-get"), "download", "-q", package], 120, cwd=whole)
    run([tool("dpkg-deb"), "-x", glob.glob(f"{whole}/{package}_*.deb")[0], whole], 120)
    run([tool("depmod"), "-b", whole, version], 60)
    order = []
    for module in MODULES:
        shown = run([tool("modprobe"), "-d", whole, "-S", version, "--show-depends", module], 20)
        for verb, *words in map(str.split, shown.splitlines()):
            if verb == "insmod" and words[0] not in order:
                order.append(words[0])
    for i, path in enumerate(order):
        shutil.copy(path, os.path.join(folder, f"{i:02}-{os.path.basename(path)}"))
    with open(f"{whole}/boot/vmlinuz-{version}", "rb") as f:
        image = f.read()
    with open(os.path.join(folder, "kernel"), "wb") as f:
        f.write(uncompressed(image) or image)
    shutil.rmtree(whole)
    with open(os.path.join(folder, "layout"), "w", encoding="utf-8") as f:
        f.write(LAYOUT)


def is_there(folder):
    try:
        with open(os.path.join(folder, "layout"), encoding="utf-8") as f:
            return f.read() == LAYOUT
    except OSError:
        return False


def kernel():
    """The folder with the kernel and its modules, fetched when it is not there."""
    os.makedirs(CACHE, exist_ok=True)
    folder = os.path.join(CACHE, "linux")
    with open(os.path.join(CACHE, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_there(folder):
            return folder
        # What a fetch left that was ended.
        for left in [folder, *glob.glob(os.path.join(CACHE, "fetch-*"))]:
            shutil.rmtree(left, ignore_errors=True)
        fetching = tempfile.mkdtemp(prefix="fetch-", dir=CACHE)
        try:
            fetch_kernel(fetching)
            os.rename(fetching, folder)
        finally:
            shutil.rmtree(fetching, ignore_errors=True)
    return folder


class Archive:
    """An initial file system: cpio, `newc`."""

    def __init__(self):
        self.data, self.inode = bytearray(), 0

    def add(self, name, mode, content=b""):
        self.inode += 1
        path = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        self.data += b"070701" + b"".join(b"%08X" % field for field in fields) + path
        self.pad()
        self.data += content
        self.pad()

    def pad(self):
        self.data += bytes(-len(self.data) % 4)

    def folder(self, name):
        self.add(name, 0o040755)

    def file(self, name, content, mode=0o644):
        self.add(name, 0o100000 | mode, content)

    def finished(self):
        self.add("TRAILER!!!", 0)
        return bytes(self.data)


def content_of(path):
    with open(path, "rb") as f:
        return f.read()


def base_archive(folder):
    archive = Archive()
    for name in ("bin", "modules", "proc", "sys", "dev", "mnt", "hold"):
        archive.folder(name)
    archive.file("bin/busybox", content_of(tool("busybox")), 0o755)
    archive.file("init", content_of(os.path.join(HERE, "init.sh")), 0o755)
    archive.file("boot", content_of(os.path.join(HERE, "boot.sh")), 0o755)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".ko"):
            archive.file(f"modules/{name}", content_of(os.path.join(folder, name)))
    return archive


def memory_file(name, data=b""):
    """A file without a name, so nothing has to be removed; the path is for a child process."""
    fd = os.memfd_create(name, 0)
    os.set_inheritable(fd, True)
    with open(os.dup(fd), "wb") as f:
        f.write(data)
    return fd, f"/proc/self/fd/{fd}"


class Guest:
    """One machine; read its output by .read() until .status is known."""

    def __init__(self, kernel_folder, archive, options):
        self.status = None
        self.token = f"run-in-vm-{secrets.token_hex(8)}"
        self.rest = b""
        settings = {
            "token": self.token,
            "rails": options.rails,
            "shown": "\n".join(options.shown),
            "written": "\n".join(options.written),
        }
        begin = f"cd {shlex.quote(os.getcwd())} || exit 125\n"
        for name, value in sorted(os.environ.items()):
            if name.startswith(PASSED_ON):
                begin += f"export {name}={shlex.quote(value)}\n"
        begin += "export TH_VM=1\n"
        own = Archive()
        lines = (f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items())
        own.file("settings", "".join(lines).encode())
        own.file("command", (begin + "exec " + shlex.join(options.command) + "\n").encode())
        initial, initial_path = memory_file("initrd", archive + own.finished())
        self.console, console_path = memory_file("console")
        argv = [
            *(tool("qemu-system-x86_64"), "-accel", "tcg,thread=multi", "-cpu", "max"),
            *("-machine", "q35", "-smp", str(options.cpus), "-m", str(options.memory)),
            *("-no-reboot", "-nodefaults", "-display", "none", "-serial", f"file:{console_path}"),
            *("-kernel", os.path.join(kernel_folder, "kernel"), "-initrd", initial_path),
            "-append",
            # Where the host is busy, a timer that works looks to the guest as if it did not
            # (no_timer_check).
            "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable "
            "no_timer_check "
            "random.trust_cpu=on rcupdate.rcu_expedited=1 cryptomgr.notests",
            *("-device", "virtio-serial-pci", "-chardev", "file,id=out,path=/proc/self/fd/1"),
            *("-device", "virtserialport,chardev=out"),
            "-virtfs",
            "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
        ]
        for i, path in enumerate(options.written):
            where = f"local,path={path.replace(',', ',,')},mount_tag=written{i}"
            argv += ["-virtfs", f"{where},security_model=none,multidevs=remap"]
        try:
            self.p = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self.console,
                pass_fds=(initial, self.console),
                preexec_fn=dies_with_parent,
            )
        finally:
            os.close(initial)

    def read(self):
        """What came, without the line that tells the status; None at the end."""
        data = os.read(self.p.stdout.fileno(), 65536)
        if not data:
            return None
        self.rest += data
        mark = f"\n{self.token} ".encode()
        at = self.rest.find(mark)
        if at >= 0 and b"\n" in self.rest[at + 1 :]:
            self.status = int(self.rest[at + len(mark) :].split(b"\n")[0])
            out, self.rest = self.rest[:at], b""
            return out
        # Whatever may be the beginning of the mark stays until more is known.
        keep = len(self.rest) - self.rest.rfind(b"\n") if b"\n" in self.rest else 0
        keep = keep if keep and mark.startswith(self.rest[-keep:][: len(mark)]) else 0
        out, self.rest = self.rest[: len(self.rest) - keep], self.rest[len(self.rest) - keep :]
        return out

    def console_text(self):
        return os.pread(self.console, 1 << 20, 0).decode(errors="replace").replace("\r", "")

    def end(self):
        self.p.kill()
        self.p.wait()
        self.p.stdout.close()
        os.close(self.console)


class Options:
    """What to run, and in what machine."""

    def __init__(self, command, rails=2, cpus=2, memory=3072, seconds=300, written=()):
        self.command, self.rails = list(command), rails
        self.cpus, self.memory, self.seconds = cpus, memory, seconds
        self.written = [os.path.realpath(path) for path in written]
        shown = {os.getcwd(), os.path.dirname(HERE)}
        shown |= {os.environ[name] for name in ("TH_BUILD", "TH_SOURCE") if name in os.environ}
        shown |= {os.path.realpath(sys.prefix)}
        self.shown = sorted(
            path
            for path in map(os.path.realpath, shown)
            if any(path.startswith(covered + "/") for covered in COVERED)
        )
        self.shown = [
            path
            for path in self.shown
            if not any(path.startswith(other + "/") for other in self.shown)
        ]


def in_machine(options, out):
    """Runs the command in a guest, with its output through `out(bytes)`, and returns its status.
    Raises Unavailable, OutOfTime."""
    if platform.machine() != "x86_64":
        raise Unavailable(f"no virtual machine: not written for {platform.machine()}")
    folder = kernel()
    archive = bytes(base_archive(folder).data)
    end = time.monotonic() + options.seconds
    guest = Guest(folder, archive, options)
    try:
        while guest.status is None:
            left = end - time.monotonic()
            if not select.select([guest.p.stdout], [], [], max(0, left))[0]:
                text = guest.console_text()[-2000:]
                raise OutOfTime(
                    f"the guest did not end within {options.seconds} s; its console:\n{text}"
                )
            data = guest.read()
            if data:
                out(data)
            elif data is None:
                text = guest.console_text()[-4000:]
                raise RuntimeError(f"the guest ended by itself; its console:\n{text}")
        return guest.status
    finally:
        guest.end()
