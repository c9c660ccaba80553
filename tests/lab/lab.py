# SPDX-License-Identifier: Apache-2.0
"""The lab: hosts with limited links on one machine, and what many readers take there.

    TH_BUILD=build python3 tests/lab/lab.py [--quick] [--out FOLDER] [burst failure fanout hub far]

Each figure prints what it measures and writes FOLDER/NAME.tsv, and NAME.png where gnuplot is
installed (Debian: gnuplot-nox); all of them together results.json. FOLDER: tests/lab/figures. Needs
root, for network namespaces.

    burst    1 to 16 readers at once, pipelining on and off: the sum of their stalls
    failure  B reads through A, which is killed, or cut off, at ten moments
    fanout   512 MiB to 8 and 18 readers: when the last one is done, what the publisher sent
    hub      2, 4, 10 readers, beside a hub of raw sockets that serves all of them
    far      figure 12 of the paper: 4 groups of 2 shards in another datacenter, behind a link of an
             eighth of the rate and 30 ms, call update all the time: how long each shard stands
             still for a new version, and what the link carries, in three ways

All hosts share this machine's processors. Links are so slow that these are not what is measured:
how busy they were is printed with each row, and a row above 90 % is marked with '!'. --quick: small
payloads, 5 minutes; the figures are then of the right kind and not precise. --smoke: seconds; tries
that all of it runs, and judges bytes and sources only.
"""

import json
import os
import signal
import subprocess
import sys
import time

import command
import far
import plot
from cluster import Skip, wait_for
from net import CHUNK, MIB, Busy, lab

# Payload in MiB, rate of a link in MB/s, readers; rounds of the single transfer.
FULL = {
    "burst": (256, 40, [1, 2, 4, 8, 16]),
    "failure": (128, 40, [0.05 + 0.1 * i for i in range(10)]),
    "fanout": (512, 40, [8, 18]),
    "hub": (128, 40, [2, 4, 10]),
    "far": (256, 80, range(3)),
    "rounds": 3,
}
QUICK = {
    "burst": (64, 40, [1, 2, 4, 8, 16]),
    "failure": (64, 40, [0.05 + 0.1 * i for i in range(10)]),
    "fanout": (128, 40, [8, 18]),
    "hub": (64, 40, [2, 4, 10]),
    "far": (128, 80, range(1)),
    "rounds": 1,
}
SMOKE = {
    "burst": (8, 100, [2]),
    "failure": (64, 100, [0.3]),
    "fanout": (8, 100, [2]),
    "hub": (8, 100, [2]),
    "far": (8, 80, range(1)),
    "rounds": 1,
}


def line(text, busy):
    print(f"  {text}; processors {busy:.0%} busy{' !' if busy > 0.9 else ''}", flush=True)


def burst(sizes, rounds):
    """Figure 7(b) of the paper."""
    megabytes, rate, counts = sizes
    total, singles = {}, {}
    for mode in ("on", "off"):
        option = "route.pipelining=" + ("yes" if mode == "on" else "no")
        with lab(max(counts), megabytes, rate, [option]) as it:
            singles[mode] = it.single(rounds)
            for count in counts:
                busy = Busy()
                own, last = it.together(count)
                total[mode, count] = sum(own)
                line(
                    f"pipelining {mode}, {count:2} readers: stall {sum(own):7.1f} s together, "
                    f"{sum(own) / count / singles['on']:.3f} x one alone each, "
                    f"last after {last:.1f} s",
                    busy.share(),
                )
    chunks = megabytes * MIB // CHUNK
    single = singles["on"]
    rows = [
        (n, n * single, total["on", n], total["off", n], total["on", n] / (n * single))
        for n in counts
    ]
    print(f"  one transfer {single:.2f} s; {chunks} chunks")
    return {
        "columns": ["readers", "ideal_s", "on_s", "off_s", "on_over_ideal"],
        "rows": rows,
        "values": {"most": max(counts) * 1.1},
    }


def failure(sizes, rounds):
    """Figure 7(c) of the paper: A is lost, B goes on at the publisher. Once all of A is killed and
    its kernel says so; once its link is cut and nobody says anything."""
    megabytes, rate, moments = sizes
    with lab(2, megabytes, rate) as it:
        single = it.single(rounds)
        per_byte = single / it.bytes

        def chain():
            """A reads from the publisher, B from A."""
            a, b = it.workers[1:]
            a.call("submit", version="1", timeout=120)
            wait_for(lambda: a.call("progress")[0] > 0, 60, "A's first bytes")
            begin = time.monotonic()
            b.call("submit", version="1", timeout=120)
            return a, b, begin

        def ended(b):
            result = b.call("op_wait", timeout=120)
            end = time.monotonic()
            assert b.call("digest") == it.want, "B has other bytes"
            it.forget(b)
            return result, end

        def lose(how, moment):
            busy = Busy()
            _, b, begin = chain()
            wait_for(lambda: b.call("progress")[0] >= moment * it.bytes, 60, "B's bytes")
            if how == "killed":
                lost = it.kill(1)
            else:
                it.hosts.cut(1)
                lost = time.monotonic()
            have = b.call("progress")[0]
            result, end = ended(b)
            # Whoever has the last bytes when A goes needs nobody.
            assert result["source"] == "r0" or have > 0.8 * it.bytes, result
            missing = (it.bytes - have) * per_byte
            line(
                f"A {how:6} after {lost - begin:.2f} s, B had {have / it.bytes:4.0%}: complete "
                f"{end - lost:.2f} s later, {end - lost - missing:+.2f} s beside the missing "
                f"bytes' time; moved {result['bytes_moved'] / it.bytes:.3f} x",
                busy.share(),
            )
            if how == "cut":
                it.kill(1)
                it.hosts.cut(1, up=True)
            it.join(1)
            return lost - begin, end - lost - missing, end - begin, lost - begin + missing + 1

        a, b, begin = chain()
        result, end = ended(b)
        whole = end - begin
        if result["source"] != "r1":
            print("  B did not read through A: this machine is too busy for these figures")
        a.call("op_wait", timeout=120)
        it.forget(a)
        print(f"  one transfer {single:.2f} s; B when nobody is lost {whole:.2f} s")
        killed = [lose("killed", moment) for moment in moments]
        cut = [lose("cut", moment) for moment in moments]
        rows = [(moment, *a, *b[:3]) for moment, a, b in zip(moments, killed, cut)]
    columns = "share killed_s extra_s complete_s limit_s cut_s cut_extra_s cut_complete_s"
    return {"columns": columns.split(), "rows": rows, "values": {"whole": f"{whole:.3f}"}}


def fanout(sizes, rounds):
    megabytes, rate, counts = sizes
    rows = []
    chunks = megabytes * MIB // CHUNK
    with lab(max(counts), megabytes, rate) as it:
        single = it.single(rounds)
        print(f"  one transfer {single:.2f} s")
        for count in counts:
            busy, before = Busy(), it.sent(0)
            own, last = it.together(count)
            sent = (it.sent(0) - before) / it.bytes
            ideal = single * (chunks + count - 1) / chunks
            line(
                f"{count:2} readers: last after {last:.2f} s, {last / ideal:.3f} x (K+N-1)/K of "
                f"one transfer; the publisher sent {sent:.3f} x the payload",
                busy.share(),
            )
            rows.append((count, last, ideal, last / ideal, sent))
    return {
        "columns": ["readers", "last_s", "chain_s", "last_over_chain", "publisher_sent"],
        "rows": rows,
        "values": {"chunks": chunks, "most": max(counts) + 2},
    }


def raw_hub(it, count):
    """The last of so many readers of a hub of raw sockets on the same hosts and links."""
    script = os.path.join(command.HERE, "hub.py")
    begun = []

    def begin(i, *args):
        p = subprocess.Popen(
            [*it.hosts.prefix(i), sys.executable, script, *map(str, args)],
            stdout=subprocess.PIPE,
            text=True,
        )
        begun.append(p)
        return p

    try:
        address = it.hosts.address(0)
        hub = begin(0, "serve", address, it.bytes, count)
        port = hub.stdout.readline().split()[1]
        readers = [begin(i, "read", address, port, it.bytes) for i in range(1, count + 1)]
        since = float(hub.stdout.readline().split()[1])
        ends = [float(reader.stdout.readline().split()[1]) for reader in readers]
        return max(ends) - since
    finally:
        for p in begun:
            p.kill()
            p.wait()
            p.stdout.close()


def hub(sizes, rounds):
    megabytes, rate, counts = sizes
    rows = []
    with lab(max(counts), megabytes, rate) as it:
        it.single(rounds)
        for count in counts:
            busy = Busy()
            theirs = raw_hub(it, count)
            ours = it.together(count)[1]
            line(
                f"{count:2} readers: the hub's last after {theirs:.1f} s, ours after {ours:.1f} s, "
                f"{theirs / ours:.1f} x as fast",
                busy.share(),
            )
            rows.append((count, theirs, ours, theirs / ours))
    return {"columns": ["readers", "hub_s", "ours_s", "hub_over_ours"], "rows": rows, "values": {}}


FIGURES = {"burst": burst, "failure": failure, "fanout": fanout, "hub": hub, "far": far.far}


def write(folder, name, sizes, result):
    with open(os.path.join(folder, f"{name}.tsv"), "w") as f:
        for row in (result["columns"], *result["rows"]):
            f.write("\t".join(v if isinstance(v, str) else f"{v:.6g}" for v in row) + "\n")
    if plot.available():
        plot.plot(folder, name, size=sizes[0], rate=sizes[1], **result["values"])
    else:
        print("  no gnuplot: no picture (Debian: gnuplot-nox)")


def earlier(args):
    """What other runs have left in results.json: each figure is replaced by itself."""
    path = os.path.join(args.out, "results.json")
    if args.smoke or not os.path.exists(path):
        return {}
    with open(path) as f:
        return json.load(f)


def main():
    parser = command.parser(__doc__)
    parser.add_argument("figures", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", default=os.path.join(command.HERE, "figures"))
    args = parser.parse_args()
    unknown = [name for name in args.figures if name not in FIGURES]
    if unknown:
        parser.error(f"there is no figure {unknown[0]}; there are {', '.join(FIGURES)}")
    command.need_build()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell had it ignored
    plan = SMOKE if args.smoke else QUICK if args.quick else FULL
    if not args.smoke:
        os.makedirs(args.out, exist_ok=True)
    results, begin = earlier(args), time.monotonic()
    for name in args.figures or FIGURES:
        sizes, at = plan[name], time.monotonic()
        print(f"{name}: {sizes[0]} MiB, links of {sizes[1]} MB/s both ways", flush=True)
        try:
            result = FIGURES[name](sizes, plan["rounds"])
        except Skip as e:
            print(f"cannot run here: {e}")
            sys.exit(77)
        if not args.smoke:
            write(args.out, name, sizes, result)
        results[name] = {
            "megabytes": sizes[0],
            "rate": sizes[1],
            "columns": result["columns"],
            "rows": result["rows"],
        }
        print(f"  took {time.monotonic() - at:.0f} s", flush=True)
    if not args.smoke:
        with open(os.path.join(args.out, "results.json"), "w") as f:
            json.dump(results, f, indent=1)
            f.write("\n")
    print(f"all: {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
