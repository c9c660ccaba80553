# SPDX-License-Identifier: Apache-2.0
"""Where the processors' time goes while one verified GiB moves.

    TH_BUILD=build python3 tests/lab/profile.py [--mib 1024] [--rounds 8] [--top 12]

Between two agents over loopback (tcp), and between two workers of one agent (local). Each round has
a new version with new bytes: published, hashed by its agent, pulled and verified. Prints what both
agents used for a GiB, from /proc, and how that divides, from samples of perf (Debian: linux-perf):
by what is done, and the most frequent functions. Workers do nothing meanwhile. Needs root, or a
perf_event_paranoid of at most 1.
"""

import collections
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys

import command
from cluster import cluster, wait_for

HERTZ = 1999
GIB = 1 << 30
# The first that fits has the sample. Names are of Linux 6 and of this project.
KINDS = [
    ("copied past the caches, hashed on the way", "avx[0-9a-z]*_copy|sse[0-9a-z]*_copy|plain_copy"),
    ("hashed", "avx[0-9a-z]*_hash|sse[0-9a-z]*_hash|plain_hash|leaf|digest|xxh|XXH"),
    (
        "copied to and from the kernel",
        "copy_user|_copy_to_iter|_copy_from_iter|rep_movs|copyin|copyout|copy_page_to_iter"
        "|copy_mc|memcpy|skb_copy_datagram|skb_do_copy|check_object_size",
    ),
    (
        "pages: found, sent from a file, faults",
        "page|fault|mmu|tlb|shmem|folio|filemap|workingset|splice|clear_|zap|lru|memcg|pte"
        "|charge|rmqueue|zone|pcp|xas_",
    ),
    (
        "waiting and waking",
        "epoll|ep_|eventfd|futex|schedule|wake|poll|try_to|finish_task|clock|timer|idle|ktime"
        "|switch|unlock_irqrestore",
    ),
    (
        "TCP, sockets, loopback",
        "tcp|sock|skb|ip_|inet|net_|dev_|loopback|nf_|napi|qdisc|softirq|send|recv|iov_iter"
        "|validate_xmit|eth_|csum",
    ),
    ("system calls, entry and exit", "syscall|entry_|exit_to|srso|retbleed|fget|fput"),
]


def processor_seconds(pid):
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat") as f:
        words = f.read().rsplit(")", 1)[1].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(words[11]) / tick, int(words[12]) / tick


def kind_of(symbol):
    for name, pattern in KINDS:
        if re.search(pattern, symbol):
            return name
    return "the rest"


class Samples:
    """perf on these processes, until it is asked what it saw."""

    def __init__(self, folder, pids):
        self.path = os.path.join(folder, "perf.data")
        argv = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(HERTZ), "-o", self.path]
        self.p = subprocess.Popen(
            [*argv, "-p", ",".join(map(str, pids))], stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda: os.path.exists(self.path) or self.p.poll() is not None, 20, "perf")
        if self.p.poll() is not None:
            raise SystemExit(f"perf: {self.p.stderr.read()}")

    def symbols(self):
        self.p.send_signal(signal.SIGINT)
        self.p.wait(30)
        self.p.stderr.close()
        text = subprocess.run(
            ["perf", "script", "-i", self.path, "-F", "pid,ip,sym"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        count = collections.Counter()
        for row in text.splitlines():
            words = row.split(None, 2)
            if len(words) > 1:
                count[int(words[0]), words[2].strip() if len(words) > 2 else "?"] += 1
        return count


def measure(c, title, agents, writer, reader, mib, rounds, top):
    pids = [agent.pid for agent in agents]
    rates = []

    def one(version):
        if version > 1:
            reader.call("unpublish")
            writer.call("unpublish")
        writer.call("fill_words", word=version * 0x9E3779B97F4A7C15 % 2**64)
        writer.call("publish", version=version)
        message = reader.message(reader.start("replicate", version=str(version), timeout=60), 90)
        assert "value" in message, message
        rates.append((mib << 20) / message["seconds"] / 1e9)
        return message["value"]["transport"]

    path = one(1)  # touches all memory
    rates.clear()
    before = [processor_seconds(pid) for pid in pids]
    samples = Samples(c.dir, pids)
    for version in range(2, rounds + 2):
        one(version)
    symbols = samples.symbols()
    after = [processor_seconds(pid) for pid in pids]
    gib = rounds * (mib << 20) / GIB
    print(f"\n{title}: {path}, {rounds} x {mib} MiB, median {statistics.median(rates):.2f} GB/s")
    for agent, a, b in zip(agents, before, after):
        user, system = ((y - x) / gib for x, y in zip(a, b))
        print(
            f"  agent {agent.node}: {user + system:.3f} s of a processor a GiB "
            f"({user:.3f} of its own, {system:.3f} in the kernel)"
        )
    total = sum(symbols.values())
    used = sum(sum(b) - sum(a) for a, b in zip(before, after)) / gib
    kinds, names = collections.Counter(), collections.Counter()
    for (pid, symbol), number in symbols.items():
        kinds[pid, kind_of(symbol)] += number
        names[symbol] += number
    for (pid, name), number in kinds.most_common(top):
        node = agents[pids.index(pid)].node
        print(f"  {number / total:6.1%}  {number / total * used:.3f} s  agent {node}: {name}")
    print("  most frequent:")
    for symbol, number in names.most_common(top):
        print(f"    {number / total:6.1%}  {symbol}  [{kind_of(symbol)}]")


def main():
    parser = command.parser(__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--top", type=int, default=12)
    args = parser.parse_args()
    command.need_build()
    if not shutil.which("perf"):
        sys.exit("no perf (Debian: linux-perf)")
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        w, far, near = c.worker("w", "a"), c.worker("far", "b"), c.worker("near", "a")
        for worker, name in ((w, "w"), (far, "far"), (near, "near")):
            worker.call("open", model="local" if name == "near" else "tcp", replica=name)
            worker.call("alloc_even", count=16, total_bytes=args.mib << 20)
            worker.call("register")
        both = [c.agents["a"], c.agents["b"]]
        measure(c, "two agents", both, w, far, args.mib, args.rounds, args.top)
        far.call("close")
        w.call("unpublish")
        w.call("close")
        w.call("open", model="local", replica="w")
        w.call("register")
        measure(c, "one agent", both[:1], w, near, args.mib, args.rounds, args.top)


if __name__ == "__main__":
    main()
