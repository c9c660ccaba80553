# SPDX-License-Identifier: Apache-2.0
"""What an update of an engine of vLLM takes, and where: waiting, bytes moving, vLLM's loader.

TH_BUILD=build PYTHON-WITH-VLLM tests/bench/vllm_update.py [--layers N] [--workers N] [--updates N]
    [--agents 2 [--prefetch SECONDS] [--rate SIZE]]

A model of Qwen2's form in BF16, a trainer, and an engine without a GPU on one host. Prints one line
for each update, and the memory of the trainer and of each worker. A measurement, not a test.
--agents 2: the engine has an agent of its own, as on another host. --prefetch: of TrainerInfo.
--rate: the trainer's agent sends no more in a second, as over a slower link.
"""

import argparse
import json
import os
import re
import socket
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "python"))
os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))

from conftest import Cluster  # noqa: E402, I001 - it makes the package importable

import test_vllm  # noqa: E402

MIB = 1 << 20
LINE = re.compile(
    r"version (\d+): wait_s ([\d.]+), wire_s ([\d.]+), install_s ([\d.]+); prefetched (\d+)"
)
ROOM = 2 << 30  # of the engine's agent, for the model


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
    parser.add_argument("--agents", type=int, choices=(1, 2), default=1)
    parser.add_argument("--prefetch", type=float, default=0.0)
    parser.add_argument("--rate", default="0")
    options = parser.parse_args()
    cluster, failed = Cluster(), True
    place = tempfile.TemporaryDirectory(prefix="th-bench-")
    try:
        runtime = os.environ["THC_AGENT"] = cluster.agent(
            "a", args=["-o", f"rate.out={options.rate}"]
        ).runtime
        if options.agents == 2:
            runtime = cluster.agent("b", args=["--offload-limit", str(ROOM)]).runtime
            name_here = socket.gethostname() + "-trainer"
            socket.gethostname = lambda: name_here  # of this process only
        run(options, place.name, runtime)
        failed = False
    finally:
        cluster.close(failed)
        place.cleanup()


class Timed:
    """The client of an engine, which answers nothing between the first call of an update and the
    end of its last one: so long it stands still."""

    def __init__(self, engine):
        self.engine, self.stall, self.began = engine, 0.0, 0.0

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def start_weight_update(self, *arguments):
        self.began = time.monotonic()
        return self.engine.start_weight_update(*arguments)

    def finish_weight_update(self, *arguments):
        self.engine.finish_weight_update(*arguments)
        self.stall = time.monotonic() - self.began


def run(options, place, runtime):
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
    environ["THC_AGENT"] = runtime
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
    client = Timed(engine)
    told = {"prefetch": options.prefetch} if options.prefetch else {}
    trainer = test_vllm.trainer_of(policy, "bench", client, **told)
    print(f"{size / MIB:.0f} MiB in {len(list(policy.model.parameters()))} tensors")
    for step in range(1, options.updates + 1):
        for parameter in policy.model.parameters():
            parameter.data.mul_(-1.01)  # all is new: nothing is reused
        began = time.monotonic()
        trainer.send_weights(step)
        took = time.monotonic() - began
        with open(log, encoding="utf-8", errors="replace") as f:
            rows = [m.groups() for m in map(LINE.search, f) if m and int(m[1]) == step]
        assert len(rows) == options.workers, rows
        for _, wait, wire, install, prefetched in rows:
            print(
                f"update {step}: {took:.2f} s, the engine stands still for {client.stall:.2f} s; "
                f"wait {wait}, wire {wire}, install {install} s; "
                f"prefetched {int(prefetched) / MIB:.0f} MiB", flush=True,
            )  # fmt: skip
    for pid, (anon0, shared0) in before.items():
        anon, shared = memory(pid)
        if shared != shared0:
            what = "trainer" if pid == os.getpid() else name(pid)
            print(f"{what}: {anon - anon0:+} MiB, in memory of agents {shared - shared0:+} MiB")
    trainer.shutdown()
    engine.kill()


if __name__ == "__main__":
    main()
