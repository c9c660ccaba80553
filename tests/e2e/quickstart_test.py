# SPDX-License-Identifier: Apache-2.0
"""tools/quickstart with the programs of this build: to its end, and interrupted on the way."""

import os
import signal
import subprocess
import time

from cluster import BUILD, cluster, main, wait_for
from thctl_test import safetensors, some

QUICKSTART = os.path.join(os.environ["TH_SOURCE"], "tools", "quickstart")


def environment(c):
    # It runs in a process group of its own: the signal is for it alone, as Ctrl-C is.
    return {**os.environ, "QUICKSTART_BUILD": BUILD, "TMPDIR": c.dir}


def left_behind(c):
    """Processes with our temporary folder in their arguments, and what lies in it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if c.dir.encode() in f.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass
    return found, [f for f in os.listdir(c.dir) if f.startswith("tensorhub.")]


def a_checkpoint_moves():
    with cluster(server=False) as c:
        path = os.path.join(c.dir, "in.safetensors")
        safetensors(path, some())
        p = subprocess.run(
            [QUICKSTART, path], env=environment(c), capture_output=True, text=True, timeout=60
        )
        assert p.returncode == 0, p.stdout + p.stderr
        assert f"all {os.path.getsize(path)} bytes are equal" in p.stdout, p.stdout
        assert left_behind(c) == ([], []), left_behind(c)


def what_it_does_not_take():
    for arguments, reason in ((["--wat"], "no option '--wat'"), (["a", "b"], "2 arguments")):
        p = subprocess.run([QUICKSTART, *arguments], capture_output=True, text=True, timeout=60)
        assert p.returncode == 2 and reason in p.stderr.split("\n")[0], p.stderr
        assert "usage:" in p.stderr and p.stdout == "", p.stdout


def interrupted_anywhere():
    with cluster(server=False) as c:
        path = os.path.join(c.dir, "in.safetensors")
        safetensors(path, some(4, 40 << 20))
        ended_early = 0
        for tenths in range(12):
            p = subprocess.Popen(
                [QUICKSTART, path],
                env=environment(c),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            end = time.monotonic() + tenths / 10
            wait_for(lambda: p.poll() is not None or time.monotonic() >= end, 5, "the moment")
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGINT)
                ended_early += p.wait(30) == 130
            assert left_behind(c) == ([], []), (tenths, left_behind(c))
        assert ended_early >= 3, f"only {ended_early} of 12 were interrupted"


if __name__ == "__main__":
    main(a_checkpoint_moves, what_it_does_not_take, interrupted_anywhere)
