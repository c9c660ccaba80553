# SPDX-License-Identifier: Apache-2.0
"""The figures of GPU memory, as one table: what is measured, what is wanted, what came out.

    TH_GPU_HARDWARE=1 TH_BUILD=build python3 tests/bench/gpu.py        on this machine's GPUs
    TH_BUILD=build python3 tests/bench/gpu.py --quick                  on GPUs that are files

`tools/check --gpu` runs it on hardware, and a row below what is wanted fails there; on files the
figures mean nothing, and it only shows that it runs. A plain copy of the same bytes by the driver,
in the same process and round, is what rates are compared with. A replica has 8 GiB where 35 GiB of
a GPU's memory and 32 GiB of the host's are free, less where they are not, and 2 GiB at least, which
need 11 and 8 (gpu_room.py). Options: --bytes N (of a replica), --rounds N, --only GROUP (see
--help), --json FILE, --markdown.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))
os.environ.setdefault("TH_SOURCE", os.path.abspath(os.path.join(HERE, "..", "..")))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
import gpu_driver
import gpu_kills
import gpu_room
import gpus
from cluster import cluster

HARDWARE = gpus.HARDWARE
GIB = 1 << 30
rows = []
later = []  # rows that wait, while others are measured


def row(what, measured, wanted=None, good=None):
    """good: None where nothing is wanted."""
    rows.append({"what": what, "measured": measured, "wanted": wanted or "", "good": good})
    print(f"{what}: {measured}" + (f" (wanted: {wanted})" if wanted else ""), flush=True)


def ratio(what, value, base, least, text):
    part = value / base
    measured = f"{part:.2f} ({value / 1e9:.1f} of {base / 1e9:.1f} GB/s)"
    row(f"{what}, against {text}", measured, f">= {least}", part >= least)


def seconds_of(worker, cmd, **args):
    """How long the worker's call took, by its own clock, and what it returned."""
    message = worker.message(worker.start(cmd, **args), 300)
    if "error" in message:
        raise RuntimeError(f"{cmd}: {message['error']}: {message['text']}")
    return message["seconds"], message["value"]


def pair(c, nbytes, where=("a", "a"), devices=(0, 0), gpu=("legacy", "legacy"), **opts):
    """A worker that has published version 1, and the number of bytes."""
    w = c.worker(f"w{c.num_workers}", where[0])
    model = f"m{c.num_workers}"
    w.call("open", model=model, replica="w", **opts)
    w.call("alloc", total_bytes=nbytes, gpu=gpu[0], device=devices[0])
    w.call("register", timeout=60)
    w.call("fill_words", word=1)
    w.call("publish", version=1, timeout=120)
    r = c.worker(f"r{c.num_workers}", where[1])
    r.call("open", model=model, replica="warm")
    r.call("alloc", total_bytes=nbytes, gpu=gpu[1], device=devices[1])
    r.call("register", timeout=60)
    return w, r, model


def replicas(w, r, model, rounds):
    """Bytes a second of replicates into memory that was never a replica: nothing is reused."""
    nbytes, rates = r.nbytes, []
    for i in range(rounds + 1):
        name = f"x{i}"
        r.call("open", model=model, replica=name, name=name)
        r.call("register", name=name, memory="s", timeout=60)
        seconds, result = seconds_of(r, "replicate", name=name, version="1", timeout=250)
        assert result["bytes_reused"] == 0, result
        if i > 0:  # the first one opens, maps and pins
            rates.append(nbytes / seconds)
        r.call("unpublish", name=name)
        r.call("close", name=name)
        r.transport = result["transport"]
    return statistics.median(rates)


# ---- rows --------------------------------------------------------------------------------------


def same_gpu(options):
    for verify, least in (("off", 0.95), ("full", 0.8)):
        with cluster(has_gpus=True) as c:
            c.agent("a", args=["--verify", verify])
            w, r, model = pair(c, options.bytes)
            r.nbytes = options.bytes
            value = replicas(w, r, model, options.rounds)
            base = r.call("gpu_rates", total_bytes=options.copy_bytes)["dtod"]
            kind = "verified" if verify == "full" else "unverified"
            what = f"replica on the same GPU, {kind} ({r.transport})"
            ratio(what, value, base, least, "cuMemcpyDtoD")


def offload(options):
    for verify, least in (("off", 0.95), ("full", 0.9)):
        kind = "verified" if verify == "full" else "unverified"
        out, back = [], []
        with cluster(has_gpus=True) as c:
            limit = str(2 * options.bytes)
            c.agent("a", args=["--verify", verify, "--offload-limit", limit])
            w = c.worker("w", "a")
            w.call("open", model="m", replica="w", retain="latest")
            w.call("alloc", total_bytes=options.bytes, gpu="legacy", device=0)
            w.call("register", timeout=60)
            for i in range(options.rounds + 1):
                w.call("fill_words", word=i + 1)
                w.call("publish", version=i + 1, timeout=120)
                # The last copy of a version that is retained: the call lasts until it is kept.
                seconds, _ = seconds_of(w, "unpublish", timeout=250)
                w.call("scribble", byte=0)
                again, result = seconds_of(w, "replicate", version="latest", timeout=250)
                assert result["bytes_reused"] == 0, result
                w.call("unpublish", timeout=60)
                if i > 0:
                    out.append(options.bytes / seconds)
                    back.append(options.bytes / again)
            base = w.call("gpu_rates", total_bytes=options.copy_bytes)
            for what, found, copy in (("offload", out, "DtoH"), ("reload", back, "HtoD")):
                pinned = base[copy.lower()]
                text = f"a pinned cuMemcpy{copy}"
                ratio(f"{what}, {kind}", statistics.median(found), pinned, least, text)


def unchanged(options):
    """Updates to a version with the same bytes: nothing moves, each end's GPU hashes all of it."""
    for what, where in (("same GPU", ("a", "a")), ("two agents", ("a", "b"))):
        with cluster(has_gpus=True) as c:
            for name in sorted(set(where)):
                c.agent(name)
            w, r, model = pair(c, options.bytes, where=where)
            r.nbytes = options.bytes
            base = replicas(w, r, model, options.rounds)
            r.call("replicate", version="1", timeout=250)
            rates, reused = [], []
            for i in range(options.rounds):
                w.call("unpublish", timeout=60)
                w.call("publish", version=i + 2, timeout=120)
                seconds, result = seconds_of(r, "update", timeout=250)
                rates.append(options.bytes / seconds)
                reused.append(result["bytes_reused"] / options.bytes)
            rate, least = statistics.median(rates), min(reused)
            text = f"{least:.2f} reused, {rate / 1e9:.1f} GB/s, {rate / base:.1f} x into new memory"
            row(f"update with nothing new, {what}", text, "all reused", least == 1)


def prefetch(options):
    """For how long an update holds its caller when its host has fetched the version, and when not:
    it comes from another agent."""
    for fetched in (True, False):
        with cluster(has_gpus=True) as c:
            room = str(options.bytes + (64 << 20))
            c.agent("a")
            c.agent("b", args=["--offload-limit", room])
            w, r = c.worker("w", "a"), c.worker("r", "b")
            for worker, flags in ((w, {}), (r, {"prefetch": fetched})):
                worker.call("open", model="m", replica=worker.label, **flags)
                worker.call("alloc", total_bytes=options.bytes, gpu="legacy", device=0)
                worker.call("register", timeout=60)
            r.call("update")  # the group has said what it follows
            times = []
            for version in range(1, options.rounds + 2):
                w.call("fill_words", word=version)
                w.call("publish", version=version, timeout=120)
                if fetched:
                    r.call("wait_ready", version=version)
                seconds, result = seconds_of(r, "update", timeout=250)
                there = result["bytes_prefetched"]
                assert there == (result["bytes_moved"] if fetched else 0), result
                assert result["updated"] and result["bytes_moved"] == options.bytes, result
                w.call("unpublish", timeout=60)
                times.append(seconds)
            pause = statistics.median(times[1:])  # the first one opens, maps and pins
            if not fetched:
                row("update from another agent holds its caller", f"{pause * 1e3:.1f} ms")
                continue
            rate = r.call("gpu_rates", total_bytes=options.copy_bytes)["htod"]
            most = options.bytes / (0.9 * rate) + 0.050
            what = "update of what its host has fetched holds its caller"
            row(what, f"{pause * 1e3:.1f} ms", f"<= {most * 1e3:.1f} ms", pause <= most)


def two_agents(options):
    """GPU to GPU and host to host in turns, both by TCP."""
    nbytes = options.tcp_bytes
    with cluster(has_gpus=True) as c:
        c.agent("a", args=["-o", "rdma=off"])
        c.agent("b", args=["-o", "rdma=off"])
        last = c.gpus.count - 1
        found = {}
        sides = {"gpu": ("legacy", "legacy"), "host": ("", "")}
        pairs = {}
        for name, kinds in sides.items():
            pairs[name] = pair(c, nbytes, where=("a", "b"), devices=(0, last), gpu=kinds)
            pairs[name][1].nbytes = nbytes
        for _ in range(max(options.rounds // 2, 1)):
            for name, (w, r, model) in pairs.items():
                found.setdefault(name, []).append(replicas(w, r, model, 1))
        best = {name: statistics.median(values) for name, values in found.items()}
        ways = {r.transport for _, r, _ in pairs.values()}
        assert ways == {"tcp"}, ways
        ratio("two agents, GPU to GPU by tcp", best["gpu"], best["host"], 0.95, "host to host")


def register(options):
    """Each kind, and the same bytes after publish, replicate and update."""
    kinds = ("legacy", "chunk", "small_chunks", "pool")
    for kind in kinds[::2] if options.quick else kinds:
        with cluster(has_gpus=True) as c:
            c.agent("a")
            workers = []
            for name in ("w", "r"):
                worker = c.worker(name, "a")
                worker.call("open", model="m", replica=name)
                worker.call(
                    "alloc_even", total_bytes=options.many_bytes, count=10000, gpu=kind, device=0
                )
                workers.append(worker)
            w, r = workers
            # The first one also waits until the agent's process of the GPU has started.
            first, times = w.call("register", timeout=60), []
            for _ in range(options.rounds):
                w.call("unregister")
                times.append(w.call("register", timeout=60))
            worst = max(times)
            measured = f"{statistics.median(times) * 1e3:.1f} ms, the slowest {worst * 1e3:.1f} ms"
            r.call("register", timeout=60)
            same = True
            for version in (1, 2):
                want = w.call("fill", seed=version)
                w.call("publish", version=version, timeout=120)
                r.call("replicate" if version == 1 else "update", timeout=120)
                same = same and r.call("digest") == want
                w.call("unpublish", timeout=60)
            row(f"register 10,000 tensors, {kind}", measured, "<= 50 ms", worst <= 0.050)
            row(f"... the first of a GPU, {kind}", f"{first * 1e3:.0f} ms")
            row(f"the same bytes by publish, replicate, update, {kind}", same, "yes", same)


def publish(options):
    for kind in ("legacy", "small_chunks"):
        with cluster(has_gpus=True) as c:
            c.agent("a")
            w = c.worker("w", "a")
            w.call("open", model="m", replica="w")
            w.call("alloc_even", total_bytes=options.many_bytes, count=10000, gpu=kind, device=0)
            w.call("register", timeout=60)
            times = w.call("publish_times", first=1, count=options.publishes)
            p50, p99 = statistics.median(times), sorted(times)[int(len(times) * 0.99)]
            row(
                f"publish p50 of 10,000 GPU tensors, {kind}",
                f"{p50 * 1e3:.2f} ms (p99 {p99 * 1e3:.2f} ms)",
                "<= 1 ms",
                p50 <= 1e-3,
            )


def agent_memory(options):
    """What the agent's processes take: everything but the workers', by the difference."""
    with contextlib.ExitStack() as stack:
        c = stack.enter_context(cluster(has_gpus=True))
        nothing = c.gpus.used(0)
        c.agent("a")
        idle = c.gpus.used(0) - nothing
        row("GPU memory used by an idle agent", f"{idle} bytes", "0", idle <= 0)
        w = c.worker("w", "a")
        w.call("open", model="m", replica="w")
        w.call("alloc", total_bytes=options.bytes, gpu="legacy", device=0)
        workers = c.gpus.used(0)
        w.call("register", timeout=60)
        w.call("publish", version=1, timeout=120)
        served = c.gpus.used(0) - workers
        row("GPU memory used by the agent, one shard served", f"{served / 2**20:.1f} MiB")
        w.kill()
        rest = stack.pop_all()
    begin = time.monotonic()

    def after_the_last_worker():
        with rest:
            free = gpus.wait_free(c.gpus, 0, nothing, 40)
            took = f"after {time.monotonic() - begin:.1f} s"
            left = 0 if free else c.gpus.used(0) - nothing
            row("... after the last worker", f"{left} bytes {took}", "0", free is not None)

    if HARDWARE:
        after_the_last_worker()
    else:  # each cluster has its own
        later.append(after_the_last_worker)


def kills(options):
    cases = (
        ("idle", gpu_kills.worker_idle),
        ("while read", gpu_kills.worker_while_read),
        ("during its own warm-up", gpu_kills.worker_in_warm_up),
        ("while its stream waits", gpu_kills.worker_while_its_stream_waits),
        ("as a reader in a leg", gpu_kills.reader_during_replicate),
    )
    kinds = gpu_driver.OPEN_KINDS[:1] if options.quick else gpu_driver.OPEN_KINDS
    for name, case in cases:
        worst = max(case(kind).seconds for kind in kinds)
        row(
            f"worker killed {name}: GPU memory free ({', '.join(kinds)})",
            f"{worst:.3f} s",
            "<= 1 s",
            worst <= 1.0,
        )
    count = 2 if options.quick else 10
    for name, case, arguments in (
        ("a transfer within a host", gpu_kills.helper_at_times, ("a",)),
        ("a transfer by TCP", gpu_kills.helper_at_times, ("b",)),
        ("offload and reload", gpu_kills.helper_at_times_of_offload, ()),
    ):
        went = case("legacy", count, *arguments)
        what = f"helper killed at {count} moments of {name}: all bytes came, others went on"
        row(what, went, str(count), went == count)


def measured_by(name, *arguments):
    """What a program says that measures a kernel alone."""
    program = os.path.join(os.environ["TH_BUILD"], "tests", "bench", name)
    if not os.path.exists(program):
        raise RuntimeError(f"{program} is not built")
    with cluster(server=False, has_gpus=True) as c:
        p = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **c.env},
        )
    if p.returncode:
        raise RuntimeError(p.stderr.strip() or p.stdout.strip() or f"exit {p.returncode}")
    return json.loads(p.stdout)


def small_tensors(_options):
    for size, times in measured_by("gpu_gather_bench").items():
        for way in ("read", "write"):
            calls, launch = times[f"{way}_calls"], times[f"{way}_launch"]
            what = f"{times['ranges']} ranges of {size} bytes, {way} by one launch"
            row(what, f"{launch:.0f} us, calls {calls:.0f}", "less", launch < calls)


def digest(options):
    found = measured_by("gpu_digest_bench", str(options.bytes))
    rate, copy = found["digest"], found["copy"]
    row("digest on the GPU", f"{rate / 1e12:.2f} TB/s", ">= 1 TB/s", rate >= 1e12)
    ratio("digest on the GPU", rate, copy, 0.5, "the memory's copy rate")


ROWS = (
    same_gpu,
    offload,
    digest,
    small_tensors,
    unchanged,
    prefetch,
    two_agents,
    register,
    publish,
    agent_memory,
    kills,
)


def table(markdown):
    head = ("what", "wanted", "measured", "")
    marks = {True: "ok", False: "BELOW", None: ""}
    lines = [head] + [
        (r["what"], r["wanted"], str(r["measured"]), marks[r["good"]]) for r in rows
    ]
    if markdown:
        body = ["| " + " | ".join(line) + " |" for line in lines]
        return "\n".join([body[0], "|---|---|---|---|", *body[1:]])
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in lines
    )


def fitting_bytes():
    """Of a replica, and a sentence. Rows have it on the first GPU, or on the first and the last."""
    there = gpus.new()
    try:
        gpu_free = min(there.free(device) for device in {0, there.count - 1})
    finally:
        there.close()
    return gpu_room.replica_bytes(gpu_free, gpu_room.host_free())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bytes", type=int, help="of a replica; else as there is room")
    parser.add_argument("--rounds", type=int)
    names = [measure.__name__ for measure in ROWS]
    parser.add_argument("--only", choices=names, help="one of the rows' groups")
    parser.add_argument("--json")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--quick", action="store_true", help="small: only to see that it runs")
    options = parser.parse_args()
    small = options.quick or not HARDWARE
    options.rounds = options.rounds or (1 if small else 7)
    options.publishes = 20 if small else 300
    found, sentence = gpus.look()
    if HARDWARE:
        print(sentence, flush=True)
        if not found:
            return 2
        if not options.bytes and not small:
            options.bytes, sentence = fitting_bytes()
            if not options.bytes:
                print(sentence)
                return 2
    else:
        print("GPUs that are files: these figures mean nothing", flush=True)
    options.bytes = options.bytes or 32 << 20
    options.copy_bytes = options.bytes
    options.tcp_bytes = min(options.bytes, 4 * GIB)
    # Up to 6.6 GB: 3,165 chunks of 2 MiB.
    options.many_bytes = 10000 * max(4096, min(663552, options.bytes // 10000 // 4096 * 4096))
    print(
        f"a replica has {options.bytes / GIB:.2f} GiB, "
        f"each of 10,000 tensors {options.many_bytes // 10000} bytes",
        flush=True,
    )
    failed = 0
    for measure in ROWS:
        if options.only and options.only != measure.__name__:
            continue
        try:
            measure(options)
        except Exception as e:
            failed += 1
            traceback.print_exc()
            row(measure.__name__.replace("_", " "), f"not measured: {e}", "", False)
    for measure in later:
        try:
            measure()
        except Exception as e:
            failed += 1
            traceback.print_exc()
            row("... after the last worker", f"not measured: {e}", "0", False)
    print("\n" + table(options.markdown))
    if options.json:
        with open(options.json, "w") as f:
            told = {"gpus": found, "hardware": HARDWARE, "bytes": options.bytes, "rows": rows}
            json.dump(told, f, indent=1)
    below = sum(r["good"] is False for r in rows)
    return 1 if failed or (HARDWARE and below) else 0


if __name__ == "__main__":
    sys.exit(main())
