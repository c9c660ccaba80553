# SPDX-License-Identifier: Apache-2.0
"""The table of figures of GPU memory (tests/bench/gpu.py) is measured to its end on GPUs that are
files, where its figures mean nothing."""

import json
import os
import subprocess
import sys

from cluster import HERE, cluster, main, needs_plans

PROGRAM = os.path.join(HERE, "..", "bench", "gpu.py")
sys.path.insert(0, os.path.dirname(PROGRAM))
import gpu_room

GIB = 1 << 30
ROWS = (
    "replica on the same GPU, unverified",
    "replica on the same GPU, verified",
    "offload, verified",
    "offload, unverified",
    "reload, verified",
    "reload, unverified",
    "digest on the GPU",
    "500 ranges of 8192 bytes, read by one launch",
    "update with nothing new, same GPU",
    "update with nothing new, two agents",
    "update of what its host has fetched",
    "update from another agent",
    "two agents, GPU to GPU",
    "register 10,000 tensors, legacy",
    "register 10,000 tensors, small_chunks",
    "the same bytes by publish, replicate, update, legacy",
    "publish p50 of 10,000 GPU tensors",
    "GPU memory used by an idle agent",
    "GPU memory used by the agent, one shard served",
    "... after the last worker",
    "worker killed idle",
    "worker killed while read",
    "worker killed during its own warm-up",
    "worker killed while its stream waits",
    "worker killed as a reader in a leg",
    "helper killed at",
)
# What is no rate is as it must be here, too.
AS_HERE = ("same bytes", "all bytes came", "nothing new", "last worker")


def every_figure_is_measured():
    with cluster(server=False) as c:
        path = os.path.join(c.dir, "figures.json")
        p = subprocess.run(
            [sys.executable, PROGRAM, "--quick", "--json", path],
            env={**os.environ, "TH_GPU_HARDWARE": "0"},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert p.returncode == 0, p.stdout + p.stderr
        with open(path) as f:
            told = json.load(f)
        found = [row["what"] for row in told["rows"]]
        for row in ROWS:
            assert any(what.startswith(row) for what in found), (row, found)
        assert "figures mean nothing" in p.stdout and not told["hardware"]
        assert "a replica has 0.03 GiB, each of 10,000 tensors 4096 bytes" in p.stdout, p.stdout
        assert told["bytes"] == 32 << 20
        for row in told["rows"]:
            if any(what in row["what"] for what in AS_HERE):
                assert row["good"], row


def what_is_free_says_how_much_is_moved():
    for gpu, host, want in (
        (139, 126, 8),  # of any more
        (35, 32, 8),
        (24, 126, 5.25),
        (139, 20, 5),
        (11, 8, 2),
        (10.9, 126, None),
        (139, 7.9, None),
        (0, 0, None),
    ):
        found, why = gpu_room.replica_bytes(int(gpu * GIB), int(host * GIB))
        assert found == (want and want * GIB), (gpu, host, found)
        if want is None:
            assert why.startswith("the figures need 11 GiB of a GPU and 8 GiB of the host"), why
            assert f": {gpu:.1f} and {host:.1f} GiB are free" in why, why


def a_group_of_processes_has_less_than_its_host():
    """Files as a kernel has them: control groups of both kinds, and one around the other."""
    with cluster(server=False) as c:

        def file(path, text):
            path = os.path.join(c.dir, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)

        def free():
            return gpu_room.host_free(os.path.join(c.dir, "proc"), os.path.join(c.dir, "groups"))

        file("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   65536000 kB\n")
        assert free() == 65536000 << 10
        file("proc/self/cgroup", "0::/outer/inner\n")
        file("groups/outer/inner/memory.max", "max\n")
        assert free() == 65536000 << 10
        file("groups/outer/memory.max", f"{16 * GIB}\n")
        file("groups/outer/memory.stat", f"anon {GIB}\nfile {4 * GIB}\nshmem {2 * GIB}\n")
        assert free() == 13 * GIB
        file("groups/memory/memory.limit_in_bytes", f"{8 * GIB}\n")
        file("groups/memory/memory.stat", f"rss 1\ntotal_rss {3 * GIB}\ntotal_shmem 0\n")
        assert free() == 13 * GIB
        file("proc/self/cgroup", "9:pids:/\n5:memory:/\n0::/\n")
        assert free() == 5 * GIB
        assert 0 < gpu_room.host_free() < 1 << 50


def too_little_is_said():
    """Told that the GPUs, which are files of 3 GiB, are real."""
    needs_plans()
    with cluster(server=False, has_gpus=True) as c:
        p = subprocess.run(
            [sys.executable, PROGRAM],
            env={**os.environ, **c.env, "TH_GPU_HARDWARE": "1"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        last = p.stdout.splitlines()[-1]
        assert p.returncode == 2 and "need 11 GiB of a GPU" in last and ": 3.0 and " in last, p


if __name__ == "__main__":
    main(
        every_figure_is_measured,
        what_is_free_says_how_much_is_moved,
        a_group_of_processes_has_less_than_its_host,
        too_little_is_said,
    )
