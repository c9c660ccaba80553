# SPDX-License-Identifier: Apache-2.0
"""How large the replicas of tests/bench/gpu.py are: as there is memory for them."""

import os
import re

GIB = 1 << 30
MOST = 8 * GIB  # more shows nothing else
LEAST = 2 * GIB  # so that the rows with fixed sizes have room, too: two workers of 4 GiB at most
STEP = 64 << 20
# Of one GPU: a worker and its reader, and twice as much where plain copies are measured beside
# them; a context each, and of the agents' processes.
GPU_TIMES, CONTEXTS = 4, 3 * GIB
# Of the host: two offloaded versions, and what is pinned, or written, beside them; or what workers
# make, read and hash of tensors.
HOST_TIMES = 4


def replica_bytes(gpu_free, host_free):
    """Of the most that fits; a sentence in its place when that is too little."""
    found = min(MOST, (gpu_free - CONTEXTS) // GPU_TIMES, host_free // HOST_TIMES)
    if found >= LEAST:
        return found - found % STEP, None
    return None, (
        f"the figures need {GPU_TIMES * LEAST + CONTEXTS >> 30} GiB of a GPU and "
        f"{HOST_TIMES * LEAST >> 30} GiB of the host's memory at least: "
        f"{gpu_free / GIB:.1f} and {host_free / GIB:.1f} GiB are free"
    )


def read(*path):
    try:
        with open(os.path.join(*path)) as f:
            return f.read()
    except OSError:
        return ""


def host_free(proc="/proc", groups="/sys/fs/cgroup"):
    """What this process may take: no more than what any control group around it leaves."""
    meminfo = read(proc, "meminfo")
    free = [int(re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.M).group(1)) << 10]
    for kinds, path in re.findall(r"^\d+:(.*?):/(.*)$", read(proc, "self/cgroup"), re.M):
        if kinds not in ("", "memory"):
            continue
        names = path.split("/")
        for depth in range(len(names) + 1):
            folder = os.path.join(groups, kinds, *names[:depth])
            limit = read(folder, "memory.max") or read(folder, "memory.limit_in_bytes")
            if limit.strip().isdigit():
                # Of what it has, files that are kept meanwhile make room.
                stat = read(folder, "memory.stat")
                held = re.findall(r"^(?:anon|shmem|total_rss|total_shmem) (\d+)$", stat, re.M)
                free.append(int(limit) - sum(map(int, held)))
    return max(min(free), 0)
