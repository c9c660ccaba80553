# SPDX-License-Identifier: Apache-2.0
"""Memory control groups of our own, of either version of the kernel's interface."""

import itertools
import os

from cluster import Skip
from remains import remains

numbers = itertools.count()


def mounted():
    """(folder, version) of the memory controller; None: nowhere."""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split(" - ") for line in file]
    for before, after in mounts:
        folder, (kind, _, options) = before.split()[4], after.split()[:3]
        if kind == "cgroup" and "memory" in options.split(","):
            return folder, 1
        if kind == "cgroup2":
            with open(os.path.join(folder, "cgroup.controllers")) as file:
                if "memory" in file.read().split():
                    return folder, 2
    return None


class MemoryGroup:
    """limit: bytes that it may have; more ends a process in it. prefix: puts a process into it."""

    def __init__(self, cl, limit=None):
        where = mounted()
        if where is None:
            raise Skip("no memory control group of our own: no such controller is mounted")
        root, self.version = where
        name = f"th-test-{os.getpid()}-{next(numbers)}"
        try:
            if self.version == 2:
                with open(os.path.join(root, "cgroup.subtree_control"), "w") as file:
                    file.write("+memory")
            self.folder = os.path.join(root, name)
            os.mkdir(self.folder)
        except OSError as e:
            raise Skip(f"no memory control group of our own: {e.strerror}")
        remains.add("cgroup", self.folder)
        # When all of its processes have ended.
        cl.cleanups.append(lambda: os.rmdir(self.folder))
        if limit is not None:
            self._write("memory.max" if self.version == 2 else "memory.limit_in_bytes", limit)
        procs = os.path.join(self.folder, "cgroup.procs")
        self.prefix = ["sh", "-c", f'echo $$ >{procs} && exec "$@"', "sh"]

    def _write(self, name, value):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(str(value))

    def charged(self):
        """Bytes of tensors and the like: pages of files in memory, and of processes."""
        with open(os.path.join(self.folder, "memory.stat")) as file:
            stat = {name: int(value) for name, value in map(str.split, file)}
        return stat["shmem"] + stat["anon" if self.version == 2 else "rss"]
