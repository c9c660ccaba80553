# SPDX-License-Identifier: Apache-2.0
"""Hosts of the lab: network namespaces on a switch, each with a link of limited rate both ways, an
agent and a worker. Processes and namespaces are those of tests/e2e/cluster.py, so they end with
the lab, also when it is killed.
"""

import statistics
import subprocess
import time

from cluster import Hosts, RemoteError, Skip, cluster, wait_for

MIB = 1 << 20
CHUNK = 4 * MIB


def busy_seconds():
    """Of all processors since boot, as /proc/stat says: (busy, all)."""
    with open("/proc/stat") as f:
        ticks = [int(word) for word in f.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


class Busy:
    """How much of the processors was in use."""

    def __init__(self):
        self.before = busy_seconds()

    def share(self):
        busy, total = (a - b for a, b in zip(busy_seconds(), self.before))
        return busy / max(total, 1)


def shape(namespace, device, rate):
    """What leaves by this device has this rate, MB/s. Little is queued: 10 ms at most, beyond what
    may go at once."""
    limit = f"root tbf rate {rate * 8}mbit burst 128k latency 10ms".split()
    p = subprocess.run(
        ["tc", "-n", namespace, "qdisc", "replace", "dev", device, *limit],
        capture_output=True,
        text=True,
    )
    if p.returncode:
        raise Skip(f"tc tbf: {p.stderr.strip()}")


class Lab:
    """One publisher, host 0, and readers, hosts 1 to N. The server has a host without a limit."""

    def __init__(self, c, readers, megabytes, rate, options=()):
        self.c, self.count = c, readers
        self.bytes, self.rate = megabytes * MIB, rate
        self.hosts = Hosts(c, readers + 2)
        for i in range(readers + 1):
            shape(self.hosts.names[i], "eth0", rate)
            shape(self.hosts.switch, f"p{i}", rate)
        last = readers + 1
        args = [word for option in options for word in ("-o", option)]
        c.start_server(
            listen=f"tcp://{self.hosts.address(last)}:0", prefix=self.hosts.prefix(last), args=args
        )
        self.workers = [None] * (readers + 1)
        for i in range(readers + 1):
            self.join(i)
        self.want = self.workers[0].call("fill", seed=1)
        self.workers[0].call("publish", version=1)

    def join(self, i):
        """An agent and a worker on this host, also in place of those that were killed."""
        name = f"host{i}"
        self.c.agent(name, prefix=self.hosts.prefix(i), data=self.hosts.address(i))
        worker = self.workers[i] = self.c.worker(f"worker{i}", name)

        def opened():
            """Until the server has given up the agent before, whose host was cut off, it refuses
            another one of its name."""
            try:
                return worker.call("open", model="m", replica=f"r{i}") or True
            except RemoteError as e:
                if e.name != "NO_SERVER":
                    raise
                return False

        wait_for(opened, 60, f"{name} is let in")
        # Whole chunks, so that K is what it seems to be.
        worker.call("alloc_even", count=max(1, self.bytes // (64 * MIB)), total_bytes=self.bytes)
        worker.call("register")

    def kill(self, i):
        """Agent and worker of a host at once: for the others the host is gone."""
        agent, worker = self.c.agents[f"host{i}"], self.workers[i]
        agent.signal(9)
        worker.signal(9)
        moment = time.monotonic()
        for process in (agent, worker):
            self.c.replaced(process)
        return moment

    def sent(self, i):
        return self.hosts.sent_bytes(i)

    def together(self, count, check=True):
        """The first so many readers call replicate at once. Returns their own times, and how long
        the last one took from the first call."""
        readers = self.workers[1 : count + 1]
        limit = 120 + 4 * count * self.bytes / (self.rate * 1e6)
        begin, calls = time.monotonic(), []
        for reader in readers:
            at = time.monotonic() - begin
            calls.append((at, reader, reader.start("replicate", version="1", timeout=limit)))
        own, last = [], 0
        for at, reader, call in calls:
            message = reader.message(call, limit)
            if "error" in message:
                raise AssertionError(f"{reader.label}: {message['error']} {message['text']}")
            own.append(message["seconds"])
            last = max(last, at + message["seconds"])
        if check:
            for reader in {readers[0], readers[-1]}:
                assert reader.call("digest") == self.want, f"{reader.label} has other bytes"
        for reader in readers:
            self.forget(reader)
        return own, last

    @staticmethod
    def forget(reader):
        """It gives up what it has; and other bytes, for what is there already does not move."""
        reader.call("unpublish")
        reader.call("scribble", byte=7)

    def single(self, rounds):
        """The median time of one transfer to one reader."""
        times = [self.together(1, check=i == 0)[1] for i in range(rounds)]
        return statistics.median(times)


def lab(readers, megabytes, rate, options=()):
    """As a context: a Lab that is gone afterwards."""
    return Context(readers, megabytes, rate, options)


class Context:
    def __init__(self, *args):
        self.args, self.cluster = args, cluster(server=False)

    def __enter__(self):
        c = self.cluster.__enter__()
        try:
            return Lab(c, *self.args)
        except BaseException as e:
            self.cluster.__exit__(type(e), e, e.__traceback__)
            raise

    def __exit__(self, *exception):
        return self.cluster.__exit__(*exception)
