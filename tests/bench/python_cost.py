# SPDX-License-Identifier: Apache-2.0
"""What the Python package takes above libthc, which the same process calls directly in between.

TH_BUILD=build python3 tests/bench/python_cost.py [--rounds N] [--tensors N] [--mib N]

Prints medians, and from where to where the rounds lie, of
  register    a dict of tensors, against thc_register of rows that are ready
  update      that finds nothing new, against thc_update
  transfer    publish to the end of replicate within one agent, in memory of th.empty, against
              thc_publish and thc_replicate of the same memory
with tensors of torch where the Python that runs it has torch, else with buffers. A measurement, not
a test.
"""

import argparse
import ctypes as c
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))
os.environ.setdefault("THC_LIBRARY", os.path.join(BUILD, "libthc", "libthc.so.1"))
sys.path[:0] = [os.path.join(ROOT, "libthc", "python"), os.path.join(ROOT, "tests", "e2e")]

try:
    import torch
except ImportError:
    torch = None

import tensorhub as th  # noqa: E402
from cluster import cluster  # noqa: E402
from tensorhub import _abi  # noqa: E402
from tensorhub.tensors import rows_of  # noqa: E402

UPDATES = 100  # in one round: each is short
TENSOR_BYTES = 4096


def timed(call):
    """Seconds, and those of the processor that this thread had."""
    began, busy = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - began, time.thread_time() - busy


def report(what, python, direct, unit, scale):
    """Pairs of one round each. What is judged is above, or the ratio."""
    rows = {
        "Python": [p[0] * scale for p in python],
        "libthc": [d[0] * scale for d in direct],
        "above": [(p[0] - d[0]) * scale for p, d in zip(python, direct)],
        "above, of processor time": [(p[1] - d[1]) * scale for p, d in zip(python, direct)],
        "libthc / Python": [d[0] / p[0] for p, d in zip(python, direct)],
    }
    print(f"{what}, {unit}: median, least, most of {len(python)}")
    for name, values in rows.items():
        spread = statistics.median(values), min(values), max(values)
        print(f"    {name:26}" + "".join(f"{value:10.3f}" for value in spread), flush=True)


def pieces(total, count):
    """Tensors of equal size in one block of memory that agents map; torch's, or memoryviews."""
    whole = th.empty((total,), "U8")
    size = total // count
    return whole, {f"layer{i}.weight": whole[i * size : (i + 1) * size] for i in range(count)}


def register(rounds, count):
    _, tensors = pieces(count * TENSOR_BYTES, count)
    python, direct = [], []
    with th.open("register", replica="r") as handle:
        rows, _, _ = rows_of(tensors)
        size = c.sizeof(_abi.Tensor)
        for i in range(rounds + 1):
            d = timed(
                lambda: _abi.call("thc_register", handle._shard, rows, len(rows), size, 60_000)
            )
            handle.unregister()
            p = timed(lambda: handle.register(tensors))
            handle.unregister()
            if i:  # the first one finds the memory untouched
                python.append(p)
                direct.append(d)
    report(f"register of {count}", python, direct, "ms", 1e3)


def update(rounds):
    python, direct = [], []
    with th.open("update", replica="t") as t, th.open("update", replica="r") as r:
        t.register(pieces(TENSOR_BYTES, 1)[1])
        t.publish(1)
        r.register(pieces(TENSOR_BYTES, 1)[1])
        r.replicate(1)
        raw = _abi.Result(struct_size=c.sizeof(_abi.Result))

        def of_python():
            for _ in range(UPDATES):
                r.update()

        def of_libthc():
            for _ in range(UPDATES):
                _abi.call("thc_update", r._shard, b"latest", 60_000, c.byref(raw))

        for i in range(rounds + 1):
            d, p = timed(of_libthc), timed(of_python)
            if i:
                python.append([seconds / UPDATES for seconds in p])
                direct.append([seconds / UPDATES for seconds in d])
        r.close(abandon=True)
        t.close(abandon=True)
    report("update, nothing new", python, direct, "us", 1e6)


def transfer(rounds, nbytes):
    python, direct, version = [], [], 0
    source, sent = pieces(nbytes, 64)
    target, got = pieces(nbytes, 64)
    with th.open("transfer", replica="t") as t, th.open("transfer", replica="r") as r:
        t.register(sent)
        r.register(got)

        def of_python():
            t.publish(version)
            assert r.replicate(version).bytes_moved == nbytes

        def of_libthc():
            _abi.call("thc_publish", t._shard, version, 60_000)
            _abi.call("thc_replicate", r._shard, str(version).encode(), 60_000, None)

        for i in range(2 * rounds + 2):
            version += 1
            c.memset(rows_of({"w": source})[0][0].data, version % 251, nbytes)
            took = timed(of_libthc if i % 2 else of_python)
            assert bytes(target[-3:].tolist()) == bytes([version % 251]) * 3
            if i > 1:
                (direct if i % 2 else python).append(took)
            r.unpublish()
            t.unpublish()
    report(f"transfer of {nbytes >> 20} MiB", python, direct, "ms", 1e3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tensors", type=int, default=10_000)
    parser.add_argument("--mib", type=int, default=1024)
    options = parser.parse_args()
    whose = f"torch {torch.__version__}" if torch else "buffers (torch is not installed)"
    print(f"Python {sys.version.split()[0]}, tensors: {whose}", flush=True)
    with cluster() as made:
        os.environ["THC_AGENT"] = made.agent("a").runtime
        register(options.rounds, options.tensors)
        update(options.rounds)
        transfer(options.rounds, options.mib << 20)


if __name__ == "__main__":
    main()
