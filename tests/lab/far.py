# SPDX-License-Identifier: Apache-2.0
"""Figure 12 of the paper: a trainer in one datacenter, groups of readers in another one, and a slow
link between the two. What each shard stands still for a new version, and what the link carries:
when each group reads over the link, when only the first one does (smart skipping), and when the
agents of one fetch it before (offload seeding).
"""

import os
import statistics
import sys

import command
from cluster import Hosts, Process, cluster
from net import MIB, Busy, shape

GROUPS, SHARDS = 4, 2
PART = 8  # the link has this part of the rate of a host's own one
DELAY_S = 0.015  # each way
HELD = 16 * MIB  # of the line, each way
MODES = {
    "each": (("route.skip=0s", "route.pipelining=no"), {}),
    "skipping": ((), {}),
    "seeding": ((), {"offload_seed": True}),
}
EXPECTED = {"skipping": SHARDS, "seeding": 0}  # shards that read over the link
CALL_S = 900


class Datacenters:
    """Host 0 is the trainer's, the next ones have a group each, the last one, beside the trainer's,
    has the server. A shard is a worker, and a host's workers have one agent."""

    def __init__(self, c, megabytes, rate, mode):
        options, flags = MODES[mode]
        self.bytes = megabytes * MIB
        readers, server = range(1, GROUPS + 1), GROUPS + 1
        self.hosts = hosts = Hosts(c, GROUPS + 2)
        hosts.divide(readers)
        for i in (0, *readers):
            shape(hosts.names[i], "eth0", rate)
            shape(hosts.switch, f"p{i}", rate)
        for i in range(2):
            shape(hosts.switch, f"cross{i}", rate / PART)
        line = [sys.executable, os.path.join(command.HERE, "line.py"), "out0", "out1"]
        inside = ["ip", "netns", "exec", hosts.switch]
        Process(c, "line", [*inside, *line, str(DELAY_S), str(HELD)]).ready()
        args = [word for option in options for word in ("-o", option)]
        c.start_server(
            listen=f"tcp://{hosts.address(server)}:0", prefix=hosts.prefix(server), args=args
        )
        self.groups = [self.group(c, i, flags if i else {}) for i in (0, *readers)]
        self.trainer, self.readers = self.groups[0], self.groups[1:]
        self.version, self.want = 0, None

    def group(self, c, i, flags):
        # One connection carries what the link and its delay hold, and chunks come one by one.
        args = ("-D", "far" if i else "home", "-o", "far.connections=1")
        args += ("--offload-limit", str(self.bytes + 64 * MIB))
        c.agent(f"host{i}", prefix=self.hosts.prefix(i), data=self.hosts.address(i), args=args)
        workers = [c.worker(f"worker{i}-{shard}", f"host{i}") for shard in range(SHARDS)]
        for shard, worker in enumerate(workers):
            worker.call(
                "open", model="m", replica=f"r{i}", shard=shard, num_shards=SHARDS, **flags
            )
        part = self.bytes // SHARDS
        # Whole chunks, so that their number is what it seems to be.
        every(workers, "alloc_even", count=max(1, part // (64 * MIB)), total_bytes=part)
        every(workers, "register")
        return workers

    def publish(self):
        """The next version, which the readers wait for or not."""
        if self.version:
            every(self.trainer, "unpublish", timeout=CALL_S)
        self.version += 1
        fills = [w.start("fill", seed=2 * self.version + i) for i, w in enumerate(self.trainer)]
        self.want = [w.finish(fill) for w, fill in zip(self.trainer, fills)]
        every(self.trainer, "publish", version=self.version)

    def check(self):
        for group in self.readers:
            assert every(group, "digest") == self.want, f"{group[0].label} has other bytes"

    def replicate(self, groups):
        workers = [worker for group in groups for worker in group]
        calls = [w.start("replicate", version=str(self.version), timeout=CALL_S) for w in workers]
        messages = [w.message(call, CALL_S) for w, call in zip(workers, calls)]
        assert not any("error" in message for message in messages), messages
        return max(message["seconds"] for message in messages)

    def local(self):
        """What one group needs that reads from another one of its datacenter."""
        group = self.readers[-1]
        every(group, "unpublish")
        every(group, "scribble", byte=7)
        return self.replicate([group])

    def round(self):
        """All call update all the time when a version is published. Of each shard its longest call,
        and whom it read from; what has crossed the link, against the version."""
        workers = [worker for group in self.readers for worker in group]
        calls = [w.start("poll", version=self.version + 1, seconds=CALL_S) for w in workers]
        before = self.hosts.crossed_bytes()
        self.publish()
        results = [w.finish(call, CALL_S) for w, call in zip(workers, calls)]
        crossed = (self.hosts.crossed_bytes() - before) / self.bytes
        self.check()
        return [r["longest"] for r in results], [r["source"] for r in results], crossed


def every(workers, cmd, **args):
    """A call of each, all at once: they are a group. What each has answered."""
    calls = [worker.start(cmd, **args) for worker in workers]
    return [worker.finish(call, CALL_S) for worker, call in zip(workers, calls)]


def measure(mode, megabytes, rate, rounds):
    stalls, crossings, locals_ = [], [], []
    with cluster(server=False) as c:
        it = Datacenters(c, megabytes, rate, mode)
        it.publish()
        it.replicate(it.readers)
        it.check()
        for _ in rounds:
            locals_.append(it.local())
            busy = Busy()
            own, sources, crossed = it.round()
            over = sources.count("r0")
            assert over == EXPECTED.get(mode, over), sources
            stalls += own
            crossings.append(crossed)
            share = busy.share()
            print(
                f"  {mode:8}: {over} of {len(own)} shards read over the link and stand still for "
                f"{most(own, sources, True):.2f} s, the others for {most(own, sources, False):.2f}"
                f" s at most; alone and near {locals_[-1]:.2f} s; {crossed:.3f} x the payload over "
                f"the link; processors {share:.0%} busy{' !' if share > 0.9 else ''}",
                flush=True,
            )
    return sorted(stalls), statistics.mean(crossings), statistics.median(locals_)


def most(own, sources, over):
    return max((t for t, source in zip(own, sources) if (source == "r0") == over), default=0.0)


def far(sizes, _rounds):
    megabytes, rate, rounds = sizes
    found = {mode: measure(mode, megabytes, rate, rounds) for mode in MODES}
    columns = [f"{mode}_s" for mode in MODES]
    count = len(found["each"][0])
    shares = [(i + 1) / count for i in range(count)]
    rows = list(zip(shares, *(stalls for stalls, _, _ in found.values())))
    bars = [
        f"{mode}\t{sum(stalls) / len(rounds):.3f}\t{crossed:.4f}"
        for mode, (stalls, crossed, _) in found.items()
    ]
    local = statistics.median(local for _, _, local in found.values())
    values = {"bars": "\n".join(bars), "local": f"{local:.3f}", "part": PART}
    return {"columns": ["share", *columns], "rows": rows, "values": values}
