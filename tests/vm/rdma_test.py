# SPDX-License-Identifier: Apache-2.0
"""In the guest: a server, agents and workers on three hosts with two rails each, and how versions
travel between them. TCP has a network of its own, so the ways fail one by one. Before it, the
machine itself and the programs that are given (machine_test); one boot for all."""

import concurrent.futures
import contextlib
import os
import signal
import sys
import time
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import machine_test
import paths_test
from cluster import LONG, Hosts, Worker, cluster, expect_error, main, wait_for
from rails import Rails, resources
from restart_test import attached

HOSTS, RAILS = 3, 2
pool = concurrent.futures.ThreadPoolExecutor()  # what takes its time on several hosts at once
SIZE = 16 << 20
# On a busy machine an emulated device stands still now and then, without a fault. The window is
# what it is by default: slow rails are where what is asked for must not wait too long (rail.h).
FIT = ("leg.stall=3s",)
SMALL = 2000  # tensors
EVEN = "120mbit"  # of each rail, so that the rails bound what they carry and not the processors
SLOW = "24mbit"  # of a rail towards a host, until what should happen half way has happened


class Bed:
    """Agents are new in each case, because they remember which paths failed. Workers stay, and open
    their handles at the agent of the case; each has one memory for all."""

    def __init__(self, c, net):
        self.c, self.net, self.agents = c, net, []
        self.hosts = Hosts(c, HOSTS + 1)
        c.start_server(
            listen=f"tcp://{self.hosts.address(HOSTS)}:0", prefix=self.hosts.prefix(HOSTS)
        )
        nobody = types.SimpleNamespace(runtime=os.path.join(c.dir, "no-agent"))
        self.workers = [Worker(c, f"worker{h}", nobody) for h in range(HOSTS)]
        how = {"total_bytes": SIZE, "name": "memory"}
        allocs = [worker.start("alloc", **how) for worker in self.workers]
        for worker, alloc in zip(self.workers, allocs):
            worker.finish(alloc, 240)
        self.want = self.ask(0, "fill", seed=1, name="memory")
        self.idle = resources()

    def ask(self, h, command, **args):
        """However slow the machine is."""
        return self.workers[h].finish(self.workers[h].start(command, **args), 240)

    @contextlib.contextmanager
    def case(self, name, count=2, options=None, slots=False):
        """Agents on so many hosts; options: of some of them; slots: they copy, and keep registered
        slots for the next leg. When they have ended the kernel holds nothing of them."""
        self.name, self.agents = name, []
        try:
            made = [pool.submit(self.agent, h, (options or {}).get(h, ())) for h in range(count)]
            self.agents = [future.result() for future in made]
            attached(self.c, *(agent.node for agent in self.agents))
            self.before = held()
            yield self
            alive = [h for h, agent in enumerate(self.agents) if agent.alive()]
            for h in alive:
                self.ask(h, "close", name=name, timeout=60)
            # Nothing of a handle outlives it, and nothing of an agent outlives that.
            self.wait_idle(*alive, what=1 if slots else slice(2))
            codes = list(pool.map(lambda h: self.agents[h].terminate(), alive))
            assert not any(codes), [self.agents[h].tail() for h in alive]
            wait_for(lambda: resources() == self.idle, 30, f"{resources()} is {self.idle} again")
        except BaseException:
            for agent in self.agents:
                print(f"---- {agent.label}\n{agent.tail(100)}", file=sys.stderr)
            raise
        finally:
            for agent in self.agents:
                self.c.replaced(agent)
            self.net.heal()

    def wait_idle(self, *hosts, what):
        """Their agents have no regions and queue pairs but those that they began with."""
        names = [name for h in hosts for name in self.net.devices(h)]
        of = lambda every: {name: every[name][what] for name in names}
        wait_for(lambda: of(held()) == of(self.before), 30, f"{held()} is {self.before} again")

    def regions(self, h):
        """How many more than an agent has by itself, on each rail."""
        return [held()[name][0] - self.before[name][0] for name in self.net.devices(h)]

    def agent(self, h, options):
        args = []
        for option in ("rdma.devices=" + ",".join(self.net.devices(h)), *FIT, *options):
            args += ["-o", option]
        return self.c.agent(
            f"{self.name}{h}", prefix=self.hosts.prefix(h), data=self.hosts.address(h), args=args
        )

    def open(self, h, layout="memory", **how):
        who = {"name": self.name, "model": self.name, "replica": f"r{h}", "timeout": 60}
        self.ask(h, "open", agent=self.agents[h].runtime, **who, **how)
        self.ask(h, "register", name=self.name, memory=layout, timeout=60)
        # The memory and the small tensors. What begins before may go by TCP as far as it comes.
        if layout != "private" and not how.get("staged"):
            wait_for(lambda: self.regions(h) == [2] * RAILS, 60, f"two regions: {held()}")

    def publish(self, **how):
        self.open(0, **how)
        self.ask(0, "publish", name=self.name, version=1, timeout=60)

    def prepare(self, h, **how):
        """Nothing of what it is going to read is there already."""
        self.ask(h, "scribble", byte=h, name="memory")
        self.open(h, **how)

    def begin(self, h):
        self.ask(h, "submit", name=self.name, version="1", timeout=200)

    def arrived(self, h):
        return self.ask(h, "progress", name=self.name)[0]

    def half_way(self, h):
        wait_for(lambda: self.arrived(h) > SIZE // 4, 60, "a quarter arrived")
        assert self.arrived(h) < SIZE

    def finish(self, h):
        result = self.ask(h, "op_wait", name=self.name, timeout=200)
        assert self.ask(h, "digest", name="memory") == self.want
        return result

    def slow(self, h):
        self.net.limit(h, SLOW)

    def quick(self, h):
        self.net.limit(h, None)

    def log(self, h):
        return self.agents[h].tail(400)


def held():
    """Regions and queue pairs of each device."""
    return {name: (row["mr"], row["qp"]) for name, row in resources().items()}


def rate(result):
    return result["bytes_moved"] / result["transfer"] / (1 << 20)


def both_rails_carry_it_and_tcp_does_not():
    with bed.case("direct", 3, options={2: ["verify=off"]}):
        bed.publish()
        rails = [bed.net.received(1, r) for r in range(RAILS)]
        tcp = bed.hosts.received_bytes(1)
        bed.prepare(1, require_rdma=True)
        bed.net.limit(1, EVEN)
        bed.begin(1)
        result = bed.finish(1)
        bed.quick(1)
        rails = [bed.net.received(1, r) - before for r, before in enumerate(rails)]
        tcp = bed.hosts.received_bytes(1) - tcp
        assert result["transport"] == "rdma", (result, bed.log(1))
        assert result["bytes_moved"] >= SIZE and result["bytes_reused"] == 0, result
        assert sum(rails) > SIZE and min(rails) > sum(rails) // 4, rails
        assert tcp < SIZE // 10, tcp
        bed.prepare(2)
        bed.begin(2)
        unverified = bed.finish(2)
        assert unverified["transport"] == "rdma" and unverified["verify"] == 0, unverified
        print(
            f"  the rails carried {' and '.join(f'{part / sum(rails):.0%}' for part in rails)}, "
            f"TCP {tcp} bytes; {rate(unverified):.0f} MiB/s unverified, at no limit"
        )


def many_small():
    """Rows of the whole memory: the small ones are packed, and of some nothing is there; a large
    one, the packed ones and an empty one end where their region ends."""
    small = [(f"small.{i:04}", 0 if i % 7 == 0 else 1 + i * 37 % 1500) for i in range(SMALL)]
    first = ("large.0", 5 << 20)
    last = ("large.1", SIZE - first[1] - sum(size for _, size in small))
    return [first, *small, last, ("end", 0)]


def small_tensors_are_packed_and_served_on():
    rows = many_small()
    for h in range(3):
        bed.ask(h, "layout", rows=rows, memory="memory", name="small")
    with bed.case("small", 3):
        bed.publish(layout="small")
        tcp = bed.hosts.received_bytes(1)
        bed.prepare(1, require_rdma=True, layout="small")
        bed.begin(1)
        result = bed.finish(1)
        tcp = bed.hosts.received_bytes(1) - tcp
        assert result["transport"] == "rdma" and result["bytes_moved"] == SIZE, result
        assert tcp < SIZE // 10, tcp
        # From where it landed, packed as it came.
        bed.ask(0, "unpublish", name=bed.name, timeout=60)
        bed.prepare(2, require_rdma=True, layout="small")
        bed.begin(2)
        result = bed.finish(2)
        assert result["transport"] == "rdma" and result["source"] == "r1", result


def what_no_device_reaches_is_copied():
    """Private memory is served out of slots; memory that no device shall know is filled from them;
    and both in one leg."""
    bed.ask(0, "alloc", total_bytes=SIZE, name="private", kind="Malloc")
    bed.ask(0, "fill", seed=1, name="private")
    with bed.case("copy", 3, slots=True):
        bed.publish(layout="private")
        tcp = [bed.hosts.received_bytes(h) for h in (1, 2)]
        for h, staged in ((1, False), (2, True)):
            bed.prepare(h, require_rdma=True, staged=staged)
            bed.begin(h)
        for h in (1, 2):
            result = bed.finish(h)
            assert result["transport"] == "rdma-copy" and result["bytes_moved"] == SIZE, result
            assert bed.hosts.received_bytes(h) - tcp[h - 1] < SIZE // 10
        # Host 1 has it in memory that is registered: only what comes is copied now.
        bed.ask(2, "close", name=bed.name, timeout=60)
        bed.ask(0, "unpublish", name=bed.name, timeout=60)
        bed.prepare(2, require_rdma=True, staged=True)
        bed.begin(2)
        result = bed.finish(2)
        assert result["transport"] == "rdma-copy" and result["source"] == "r1", result
    bed.ask(0, "free", name="private")


def a_third_reads_from_the_second_while_that_one_reads():
    with bed.case("chain", 3):
        bed.publish()
        bed.prepare(1)
        bed.prepare(2)
        bed.slow(1)
        bed.begin(1)
        wait_for(lambda: bed.arrived(1) > 0, 60, "the second has something")
        bed.begin(2)
        wait_for(lambda: bed.arrived(2) > 0, 60, "the third has something")
        assert bed.arrived(1) < SIZE
        bed.quick(1)
        second, third = bed.finish(1), bed.finish(2)
        assert (second["source"], third["source"]) == ("r0", "r1"), (second, third)
        assert second["transport"] == third["transport"] == "rdma", (second, third)


def one_of_two_rails_fails_half_way():
    for how in ("cut", "lose") if LONG else ("cut",):
        with bed.case(how, 2):
            bed.publish()
            bed.prepare(1)
            bed.slow(1)
            bed.begin(1)
            bed.half_way(1)
            getattr(bed.net, how)(1, 0)
            bed.quick(1)
            result = bed.finish(1)
            assert result["transport"] == "rdma" and result["source"] == "r0", result
            assert "h1r0" in bed.log(1), bed.log(1)


def without_rails_it_goes_on_by_tcp_and_says_why():
    with bed.case("fallback", 2):
        bed.publish()
        bed.prepare(1)
        bed.slow(1)
        bed.begin(1)
        bed.half_way(1)
        bed.net.cut(1, *range(RAILS))
        result = bed.finish(1)
        assert result["transport"] == "tcp" and result["source"] == "r0", result
        assert "does without RDMA" in bed.log(1), bed.log(1)
        # And who wants nothing else does not get it. (paths_test has it shorter.)
        if not LONG:
            return
        bed.ask(1, "close", name=bed.name, timeout=60)
        bed.prepare(1, require_rdma=True)
        bed.begin(1)
        e = expect_error("NO_PATH", bed.ask, 1, "op_wait", name=bed.name, timeout=200)
        assert "RDMA" in e.text, e.text


def another_datacenter_is_read_by_tcp_unless_the_operator_says_so():
    far = ("datacenter=far",)
    with bed.case("far", 3, options={1: far, 2: (*far, "far.transport=auto")}):
        bed.publish()
        for h, transport in ((1, "tcp"), (2, "rdma")):
            bed.prepare(h)
            bed.begin(h)
            result = bed.finish(h)
            assert result["transport"] == transport and result["source"] == "r0", (result, h)
            bed.ask(h, "unpublish", name=bed.name)
        assert 'why="the source is in another datacenter"' in bed.log(1), bed.log(1)
        assert "does without RDMA" not in bed.log(1) and "fallback=" not in bed.log(1), bed.log(1)


def the_source_agent_is_killed():
    with bed.case("kill", 3):
        bed.publish()
        bed.prepare(2)
        bed.begin(2)
        bed.finish(2)
        bed.prepare(1)
        bed.slow(1)
        bed.begin(1)
        bed.half_way(1)
        source = 0 if "from=r0" in bed.log(1) else 2
        bed.agents[source].signal(signal.SIGKILL)
        killed, before = time.monotonic(), bed.arrived(1)
        wait_for(lambda: bed.arrived(1) > before + (1 << 20), 60, "bytes flow again")
        gap = time.monotonic() - killed
        bed.quick(1)
        result = bed.finish(1)
        assert result["transport"] == "rdma" and result["source"] == f"r{2 - source}", result
        print(f"  a MiB more {gap:.2f} s after the kill")


def the_reader_agent_is_killed():
    """The source has nothing left of it while it lives on, and serves others."""
    with bed.case("gone", 2):
        bed.publish()
        idle = held()
        bed.prepare(1)
        bed.slow(1)
        bed.begin(1)
        bed.half_way(1)
        names = bed.net.devices(0)
        assert all(held()[name][1] > idle[name][1] for name in names), held()
        bed.agents[1].signal(signal.SIGKILL)
        bed.quick(1)
        wait_for(lambda: all(held()[name] == idle[name] for name in names), 30, "no queue pairs")
        bed.agents[1].p.wait(60)  # its memory may take longer to be given back


def a_server_and_workers_on_three_hosts():
    global bed
    bed = Bed(c, net)


if __name__ == "__main__":
    net = Rails(HOSTS, RAILS)
    first, last = machine_test.cases(net, sys.argv[1:])
    with cluster(server=False) as c:
        try:
            main(
                *first,
                a_server_and_workers_on_three_hosts,
                both_rails_carry_it_and_tcp_does_not,
                small_tensors_are_packed_and_served_on,
                what_no_device_reaches_is_copied,
                a_third_reads_from_the_second_while_that_one_reads,
                one_of_two_rails_fails_half_way,
                without_rails_it_goes_on_by_tcp_and_says_why,
                another_datacenter_is_read_by_tcp_unless_the_operator_says_so,
                the_source_agent_is_killed,
                the_reader_agent_is_killed,
                paths_test.every_place_says_the_same,
                paths_test.a_library_that_lacks_a_call_is_not_used,
                paths_test.gpu_memory_goes_through_pinned_memory_of_the_hosts,
                last,
            )
        except SystemExit as e:
            if e.code:
                raise
