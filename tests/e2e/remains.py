# SPDX-License-Identifier: Apache-2.0
"""Removes what a test leaves when it is killed itself, so that no daemon outlives it.

A process of its own, whose input is the test's: a line for each thing that the test makes, `pid
N`, `netns NAME`, `cgroup PATH` or `dir PATH`; the end of the input is the end of the test. After an
orderly one nothing is left to be removed. A process is held by its pidfd, so no other with its
number is hit.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading


class Remains:
    """The test's side; any thread."""

    def __init__(self):
        self.p, self.lock = None, threading.Lock()

    def add(self, kind, what):
        with self.lock:
            self.tell(kind, what)

    def tell(self, kind, what):
        if self.p is None:
            # Whoever ends the test by its process group, or by the keyboard, does not end this.
            self.p = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        self.p.stdin.write(f"{kind} {what}\n".encode())
        self.p.stdin.flush()


remains = Remains()


def main():
    pidfds, namespaces, groups, folders = [], set(), set(), set()
    for line in sys.stdin:
        kind, what = line.rstrip("\n").split(" ", 1)
        if kind == "netns":
            namespaces.add(what)
        elif kind == "cgroup":
            groups.add(what)
        elif kind == "dir":
            folders.add(what)
        else:
            ended = select.select(pidfds, [], [], 0)[0]
            for fd in ended:
                os.close(fd)
            pidfds = [fd for fd in pidfds if fd not in ended]
            with contextlib.suppress(OSError):
                pidfds.append(os.pidfd_open(int(what)))
    for fd in pidfds:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    for fd in pidfds:
        select.select([fd], [], [], 10)
    for name in namespaces:
        if os.path.exists(f"/run/netns/{name}"):
            subprocess.run(["ip", "netns", "del", name])
    for group in groups:
        with contextlib.suppress(OSError):
            os.rmdir(group)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
