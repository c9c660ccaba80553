# SPDX-License-Identifier: Apache-2.0
"""What an update of an engine of vLLM takes, and where: waiting, bytes moving, vLLM's loader.

TH_BUILD=build PYTHON-WITH-VLLM tests/bench/vllm_update.py [--layers N] [--workers N] [--updates N]

A model of Qwen2's form in BF16, a trainer, and an engine without a GPU on one host. Prints one line
for each update, and the memory of the trainer and of each worker. A measurement, not a test.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))
os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))

from conftest import Cluster  # noqa: E402, I001 - it makes the package importable

import test_vllm  # noqa: E402

MIB = 1 << 20
LINE = re.compile(r"version (\d+): wait_s ([\d.]+), wire_s ([\d.]+), install_s ([\d.]+)")


def memory(pid):
    """MiB that are the process's alone, and that it shares as memory of agents."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        rows = dict(line.split(":", 1) for line in f)
    return [int(rows[name].split()[0]) // 1024 for name in ("RssAnon", "RssShmem")]


def processes(pid):
    """It, and what it has started."""
    found = [pid]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as f:
            for child in f.read().split():
                found += processes(int(child))
    return found


def name(pid):
    with open(f"/proc/{pid}/cmdline", encoding="ascii", errors="replace") as f:
        return f.read().replace("\0", " ").strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--updates", type=int, default=6)
    options = parser.parse_args()
    cluster, failed = Cluster(), True
    place = tempfile.TemporaryDirectory(prefix="th-bench-")
    try:
        os.environ["THC_AGENT"] = cluster.agent("a").runtime
        run(options, place.name)
        failed = False
    finally:
        cluster.close(failed)
        place.cleanup()


def run(options, place):
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": options.layers}
    policy = test_vllm.Policy(os.path.join(place, "model"), **sizes)
    policy.model.bfloat16()
    size = sum(p.nbytes for p in policy.model.parameters())
    logging = {
        "version": 1,
        "handlers": {"stderr": {"class": "logging.StreamHandler"}},
        "loggers": {"tensorhub": {"level": "INFO", "handlers": ["stderr"]}},
    }
    with open(os.path.join(place, "logging.json"), "w", encoding="ascii") as f:
        json.dump(logging, f)
    environ = {"VLLM_LOGGING_CONFIG_PATH": os.path.join(place, "logging.json")}
    if options.workers == 2:
        environ.update(test_vllm.TWO)
    log = os.path.join(place, "engine.log")
    test_vllm.install(place)
    engine = test_vllm.engine_of(
        policy, place, log, environ, load_format="dummy", dtype="bfloat16",
        tensor_parallel_size=options.workers,
    )  # fmt: skip
    workers = processes(engine.process.pid)
    before = {pid: memory(pid) for pid in [os.getpid(), *workers]}
    trainer = test_vllm.trainer_of(policy, "bench", engine)
    print(f"{size / MIB:.0f} MiB in {len(list(policy.model.parameters()))} tensors")
    for step in range(1, options.updates + 1):
        began = time.monotonic()
        trainer.send_weights(step)
        took = time.monotonic() - began
        with open(log, encoding="utf-8", errors="replace") as f:
            rows = [m.groups() for m in map(LINE.search, f) if m and int(m[1]) == step]
        assert len(rows) == options.workers, rows
        for _, wait, wire, install in rows:
            print(f"update {step}: {took:.2f} s; wait {wait}, wire {wire}, install {install} s")
    for pid, (anon0, shared0) in before.items():
        anon, shared = memory(pid)
        if shared != shared0:
            what = "trainer" if pid == os.getpid() else name(pid)
            print(f"{what}: {anon - anon0:+} MiB, in memory of agents {shared - shared0:+} MiB")
    trainer.shutdown()
    engine.kill()


if __name__ == "__main__":
    main()
