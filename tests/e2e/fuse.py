# SPDX-License-Identifier: Apache-2.0
"""A file system of one file, "weights", whose owner answers when it is told to: a process of its
own that speaks the kernel's FUSE protocol on /dev/fuse. Started by FuseFile; needs root.

    fuse.py DEVICE_FD BYTES BLOCKED_FROM

A read from BLOCKED_FROM on is kept, and from the line "closes" on standard input on each close of a
copy of a descriptor, too. "go" answers what is kept, and all that follows. Each line is answered by
two numbers and more: how many requests are kept, how many closes have been answered, and the
threads whose closes are kept. At the end of it the process ends, and the kernel fails what is kept.
"""

import ctypes as c
import os
import select
import struct
import subprocess
import sys
import tempfile

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE = 1, 2, 3, 14, 15, 18
FLUSH, INIT, INTERRUPT, DESTROY, BATCH_FORGET = 25, 26, 36, 38, 42
ENOENT, ENOSYS = 2, 38
SILENT = (FORGET, INTERRUPT, BATCH_FORGET)
ROOT, FILE = 1, 2
HEADER = struct.Struct("<IIQQIIII")


class Server:
    def __init__(self, device, nbytes, blocked_from):
        self.device, self.nbytes, self.blocked_from = device, nbytes, blocked_from
        self.reads, self.closes, self.closed = [], [], 0
        self.open, self.keeps_closes = False, False

    def attr(self, node):
        mode, size = (0o040755, 0) if node == ROOT else (0o100600, self.nbytes)
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, 0, *[0] * 6, mode, 1, 0, 0, 0, 4096, 0)

    def reply(self, unique, data=b"", error=0):
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)
        except OSError:
            pass  # nobody waits for it any more

    def read(self, unique, offset, size):
        self.reply(unique, bytes(max(0, min(size, self.nbytes - offset))))

    def take(self):
        request = os.read(self.device, 1 << 17)
        _, opcode, unique, node, _, _, thread, _ = HEADER.unpack_from(request)
        body = request[HEADER.size :]
        if opcode == INIT:
            # One request a page: what is asked for is what is touched.
            major, minor, _, _ = struct.unpack_from("<IIII", body)
            reply = struct.pack("<IIIIHHIIHHI", 7, min(minor, 31), 0, 0, 16, 12, 4096, 1, 1, 0, 0)
            self.reply(unique, reply + bytes(28))
        elif opcode == LOOKUP and body == b"weights\0":
            head = struct.pack("<QQQQII", FILE, 1, 1000, 1000, 0, 0)
            self.reply(unique, head + self.attr(FILE))
        elif opcode == LOOKUP:
            self.reply(unique, error=ENOENT)
        elif opcode == GETATTR:
            self.reply(unique, struct.pack("<QII", 1000, 0, 0) + self.attr(node))
        elif opcode == OPEN:
            self.reply(unique, bytes(16))
        elif opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            if offset >= self.blocked_from and not self.open:
                self.reads.append((unique, offset, size))
            else:
                self.read(unique, offset, size)
        elif opcode == FLUSH and self.keeps_closes:
            self.closes.append((unique, thread))
        elif opcode in (RELEASE, FLUSH, DESTROY):
            self.reply(unique)
            self.closed += opcode == FLUSH
        elif opcode not in SILENT:
            self.reply(unique, error=ENOSYS)

    def run(self):
        while True:
            ready = select.select([self.device, 0], [], [])[0]
            if self.device in ready:
                try:
                    self.take()
                except OSError:
                    return  # unmounted
            if 0 in ready:
                line = os.read(0, 100)
                if not line:
                    return
                if line == b"closes\n":
                    self.keeps_closes = True
                if line == b"go\n":
                    self.open, self.keeps_closes = True, False
                    for request in self.reads:
                        self.read(*request)
                    for request, _ in self.closes:
                        self.reply(request)
                kept = len(self.reads) + len(self.closes)
                print(kept, self.closed, *(thread for _, thread in self.closes), flush=True)


class FuseFile:
    """path of the file; kept(): how many requests wait; go(): answers them and all that follow;
    closed(): how many closes were answered before; closing(): the threads whose closes wait."""

    def __init__(self, nbytes, blocked_from):
        self.libc = c.CDLL(None, use_errno=True)
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self.folder = tempfile.mkdtemp(prefix="th-fuse-")
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
        try:
            if self.libc.mount(b"th-test", self.folder.encode(), b"fuse", 6, options) < 0:
                raise OSError(c.get_errno(), os.strerror(c.get_errno()))
            argv = [sys.executable, __file__, str(device), str(nbytes), str(blocked_from)]
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[device]
            )
        except OSError:
            os.rmdir(self.folder)
            raise
        finally:
            os.close(device)
        self.path = os.path.join(self.folder, "weights")

    def ask(self, line):
        self.process.stdin.write(line)
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split()]

    def kept(self):
        return self.ask(b"?\n")[0]

    def closed(self):
        return self.ask(b"?\n")[1]

    def closing(self):
        return self.ask(b"?\n")[2:]

    def keep_closes(self):
        self.ask(b"closes\n")

    def go(self):
        return self.ask(b"go\n")[0]

    def close(self):
        """As often as you like."""
        if self.process.stdin.closed:
            return
        self.process.stdin.close()
        self.process.wait(30)
        self.libc.umount2(self.folder.encode(), 2)  # detached: it may be in use until its end
        os.rmdir(self.folder)


if __name__ == "__main__":
    Server(*map(int, sys.argv[1:])).run()
