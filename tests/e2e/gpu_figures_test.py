# SPDX-License-Identifier: Apache-2.0
"""The table of figures of GPU memory (tests/bench/gpu.py) is measured to its end on GPUs that are
files, where its figures mean nothing."""

import json
import os
import subprocess
import sys

from cluster import HERE, cluster, main

PROGRAM = os.path.join(HERE, "..", "bench", "gpu.py")
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
        for row in told["rows"]:
            if any(what in row["what"] for what in AS_HERE):
                assert row["good"], row


if __name__ == "__main__":
    main(every_figure_is_measured)
