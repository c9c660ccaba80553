# SPDX-License-Identifier: Apache-2.0
"""Two reference servers: the second one serves when the first is killed or stands still, and gives
the cluster back; what is held stays held, what is pending goes on. Both serve, each its half, when
the halves cannot reach each other. The cases run side by side, because they mostly wait."""

import json
import select
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import Hosts, RemoteError, Skip, cluster, expect_error, main, netns_available, wait_for
from restart_test import SHARDS, again, each, group

SIZE = 1 << 20
PATIENT = 60


def status(c, agent):
    return json.loads(c.thctl("-o", "json", "status", agent=agent, check=False).stdout)


def served_by(c, index, *agents):
    """All of them are attached to this server of the list."""
    for agent in agents:
        wait_for(
            lambda a=agent: (s := status(c, a))["attached"]
            and s["server"] == c.server_urls[index],
            PATIENT,
            f"agent {agent} is attached to server {index}",
        )


def serving(c, index, **kwargs):
    """Whether this server of the list serves; None: it is not there."""
    p = c.thctl("-s", c.server_urls[index], "-o", "json", "status", check=False, **kwargs)
    return None if p.returncode == 4 else json.loads(p.stdout)["serving"]


def without_server(worker):
    """update says at once that nobody serves, and the version stays held."""
    start = time.monotonic()
    held = worker.call("held")

    def update():
        while True:  # until the agent has seen it
            worker.call("update", timeout=20)

    expect_error("NO_SERVER", update)
    assert time.monotonic() - start < 10
    assert worker.call("held") == held != [0, 0]


def world(c, names="ab"):
    """Trainers that have published version 1, and readers that hold it."""
    for name in names:
        c.agent(name)
    trainers, readers = group(c, "trainer", names, SIZE), group(c, "rollout", names[::-1], SIZE)
    want = [w.call("fill", seed=f"1.{i}") for i, w in enumerate(trainers)]
    each(trainers, "publish", version=1)
    each(readers, "replicate", version="latest")
    return trainers, readers, want


def next_version(trainers, version, *groups):
    again(trainers, "unpublish")
    want = [w.call("fill", seed=f"{version}.{i}") for i, w in enumerate(trainers)]
    each(trainers, "publish", version=version, timeout=PATIENT)
    for readers in groups:
        wait_for(
            lambda r=readers: again(r, "update")[0]["version"] == version,
            PATIENT,
            f"version {version}",
        )
        assert each(readers, "digest") == want
    return want


def killed_and_back():
    with cluster(server=False) as c:
        args = ("-o", "peers.return=3s")
        ready = c.start_servers(args=args)
        assert [r["state"] for r in ready] == ["serving", "standby"], ready
        trainers, readers, want = world(c)
        served_by(c, 0, *"ab")
        late, more = group(c, "late", "ba", SIZE), group(c, "more", "ab", SIZE)
        said = c.thctl("-s", c.server_urls[1], "status", check=False)
        assert said.returncode == 5 and f"{c.server_urls[0]} is alive" in said.stdout, said
        killed = time.monotonic()
        c.replaced(c.servers[0])
        # What is called now waits for whoever serves next; update does not wait.
        pending = [(w, w.start("replicate", version="1", timeout=PATIENT)) for w in late]
        for reader in readers:
            without_server(reader)
        filled = [w.call("fill", seed=f"2.{i}") for i, w in enumerate(more)]
        pending += [(w, w.start("publish", version=2, timeout=PATIENT)) for w in more]
        for w, ident in pending[:SHARDS]:
            assert w.finish(ident)["version"] == 1
        print(f"pending replicate answered by the standby: {time.monotonic() - killed:.2f} s")
        assert each(late, "digest") == want
        for w, ident in pending[SHARDS:]:
            w.finish(ident)
        served_by(c, 1, *"ab")
        wait_for(lambda: again(readers, "update")[0]["version"] == 2, PATIENT, "version 2")
        assert each(readers, "digest") == filled
        assert [serving(c, i) for i in (0, 1)] == [None, True]
        shown = status(c, "a")
        assert shown["servers"] == c.server_url and shown["epoch"] > 1, shown
        both = json.loads(c.thctl("-s", c.server_url, "-o", "json", "status").stdout)
        assert both["server"] == c.server_urls[1], both
        epoch = shown["epoch"]
        # It is first in the list, and empty: it does not serve while the other one does.
        c.servers[0] = c.server_of_list(0, args)
        assert c.servers[0].ready()["state"] == "standby"
        served_by(c, 0, *"ab")
        assert status(c, "a")["epoch"] > epoch
        wait_for(lambda: [serving(c, i) for i in (0, 1)] == [True, False], PATIENT, "one serves")
        next_version(trainers, 3, readers, late)


def frozen():
    with cluster(server=False) as c:
        c.start_servers(args=("-o", "peers.return=1h"))
        trainers, readers, want = world(c)
        before = status(c, "a")
        # A second is only latency.
        c.servers[0].signal(signal.SIGSTOP)
        end = time.monotonic() + 1
        wait_for(lambda: time.monotonic() > end, PATIENT, "a second")
        c.servers[0].signal(signal.SIGCONT)
        want = next_version(trainers, 2, readers)
        now = status(c, "a")
        assert all(now[k] == before[k] for k in ("server", "epoch", "server_inc")), (before, now)
        # For long is as good as dead, but it comes back and believes that it serves.
        late = group(c, "late", "ab", SIZE)
        c.servers[0].signal(signal.SIGSTOP)
        served_by(c, 1, *"ab")
        again(late, "replicate", version="2", timeout=PATIENT)
        c.servers[0].signal(signal.SIGCONT)
        wait_for(lambda: serving(c, 0) is False, PATIENT, "it stands by")
        assert serving(c, 1)
        served_by(c, 1, *"ab")
        assert each([*readers, *late], "digest") == 2 * want
        next_version(trainers, 3, readers, late)


class Proxy(threading.Thread):
    """Between an agent and a server; what comes while it is cut is lost, and nobody is told."""

    def __init__(self, url):
        super().__init__(daemon=True)
        host, port = url.removeprefix("tcp://").rsplit(":", 1)
        self.target, self.cut, self.ends = (host, int(port)), False, {}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.start()

    def run(self):
        while True:
            for end in select.select([self.listener, *self.ends], [], [], 1)[0]:
                if end is self.listener:
                    self.accept()
                elif end in self.ends:
                    self.pass_on(end)

    def accept(self):
        client = self.listener.accept()[0]
        try:
            server = socket.create_connection(self.target, 10)
        except OSError:
            client.close()
            return
        self.ends |= {client: server, server: client}

    def pass_on(self, end):
        other = self.ends[end]
        try:
            data = end.recv(65536)
            if data and not self.cut:
                other.sendall(data)
        except OSError:
            data = b""
        if not data:
            for one in (end, other):
                del self.ends[one]
                one.close()


def one_agent_cut_off():
    """It finds the second server, which refuses it because the first is alive: nobody moves."""
    with cluster(server=False) as c:
        # Whoever is cut off here is not given up meanwhile.
        c.start_servers(args=("-o", "lease.dead=10m", "-o", "lease.gone=9m"))
        proxy, urls = Proxy(c.server_urls[0]), c.server_url
        c.agent("a")
        c.server_url = f"{proxy.url},{c.server_urls[1]}"
        c.agent("b")
        c.server_url = urls
        workers = [c.worker("trainer", "a"), c.worker("rollout", "b")]
        for w in workers:
            w.setup(SIZE, model="m", replica=w.label)
        workers[0].call("fill", seed="1")
        workers[0].call("publish", version=1)
        workers[1].call("replicate", version="latest")
        proxy.cut = True
        refused = wait_for(
            lambda: (s := status(c, "b"))["server"] == c.server_urls[1]
            and not s["attached"]
            and "alive" in s["server_text"]
            and s,
            PATIENT,
            "the standby refuses it",
        )
        assert c.server_urls[0] in refused["server_text"], refused
        without_server(workers[1])
        served_by(c, 0, "a")
        assert [serving(c, i) for i in (0, 1)] == [True, False]
        workers[0].call("unpublish")
        want = workers[0].call("fill", seed="2")
        workers[0].call("publish", version=2)
        proxy.cut = False
        wait_for(
            lambda: (s := status(c, "b"))["attached"] and s["server"] == proxy.url,
            PATIENT,
            "b is back at the first server",
        )
        wait_for(
            lambda: again(workers[1:], "update")[0]["version"] == 2, PATIENT, "b goes on"
        )
        assert workers[1].call("digest") == want
        with open(c.agents["b"].log_path) as log:
            told = [line for line in log if "not attached" in line]
        assert 0 < len(told) < 10, told


def options(*keys):
    return [word for key in keys for word in ("-o", key)]


class Halves:
    """Four hosts: a server and an agent in each half, which can be cut from each other."""

    AGENTS = "ab"

    def __init__(self, c):
        if not netns_available():
            raise Skip("network namespaces need root and iproute2")
        self.c, self.hosts = c, Hosts(c, 4)
        c.server_urls = [f"tcp://{self.hosts.address(i)}:7070" for i in (0, 1)]
        c.server_url = ",".join(c.server_urls)
        # Whoever is cut off here is not given up meanwhile; who serves in the end stays that.
        args = options(
            "lease.dead=10m", "lease.gone=9m", "lease.warm=1s", "peers.probe=200ms",
            "peers.silence=2s", "peers.return=1h",
        )
        c.servers = [c.server_of_list(i, args, prefix=self.hosts.prefix(i)) for i in (0, 1)]
        states = [server.ready()["state"] for server in c.servers]
        assert states == ["serving", "standby"], states
        for i, agent in enumerate(self.AGENTS):
            c.agent(
                agent,
                prefix=self.hosts.prefix(2 + i),
                data=self.hosts.address(2 + i),
                args=options("server.beat=300ms", "server.reply=1s", "server.silent=1500ms"),
            )

    def cut(self, heal=False):
        for i in (0, 2):
            for j in (1, 3):
                self.hosts.lose(i, j, heal)
                self.hosts.lose(j, i, heal)

    def serving(self):
        return [serving(self.c, i, prefix=self.hosts.prefix(i)) for i in (0, 1)]

    def handle(self, label, agent, **opts):
        w = self.c.worker(label, agent)
        w.setup(SIZE, replica=opts.pop("replica", label), **{"model": "m", **opts})
        return w


def pull(worker, version):
    """It updates to this version; the digest of what it has then."""
    wait_for(
        lambda: again([worker], "update")[0]["version"] == version,
        PATIENT,
        f"{worker.label} has version {version}",
    )
    return worker.call("digest")


CONFLICT = 2  # thc.h: enum thc_event_bits
UNDECIDED = ("NO_SERVER", "TIMEOUT", "UNKNOWN")  # nothing has changed, or nobody has said so yet


def refused(worker, cmd, **args):
    """The code of the call's failure; None: it succeeded."""
    try:
        worker.call(cmd, **args)
    except RemoteError as e:
        return e.name
    return None


def unpublished(worker):
    """It may be told first how a call has ended that its mate made alone."""
    wait_for(
        lambda: (end := refused(worker, "unpublish", timeout=PATIENT)) not in UNDECIDED[:2]
        and [end],
        PATIENT,
        f"{worker.label} has an answer",
    )
    assert worker.call("held") is None, worker.label


def versions(worker):
    return {v for _, v, _ in worker.call("list", timeout=PATIENT)["versions"]}


def split_in_halves():
    """Each half works, as far as thserverd(8) says; when they meet, all are with the server of the
    higher epoch, one version has one content, and nobody's bytes are mixed."""
    with cluster(server=False) as c:
        halves = Halves(c)
        trainers = [halves.handle(f"trainer-{agent}", agent) for agent in "ab"]
        readers = [halves.handle(f"rollout-{agent}", agent) for agent in "ab"]
        # A group of both halves, and a version that one half will publish, and the other not see.
        both = [
            halves.handle(f"both{i}", "ab"[i], model="n", replica="both", shard=i, num_shards=2)
            for i in range(2)
        ]
        alone, asking = [halves.handle(f"k-{agent}", agent, model="k") for agent in "ab"]
        want = trainers[0].call("fill", seed="1")
        again(trainers[:1], "publish", version=1)
        again(readers, "replicate", version="latest")
        assert each(readers, "digest") == 2 * [want]
        filled = [w.call("fill", seed=f"n.{i}") for i, w in enumerate(both)]
        again(both, "publish", version=4)

        start = time.monotonic()
        halves.cut()
        without_server(readers[1])
        for i, agent in enumerate("ab"):
            served_by(c, i, agent)
        wait_for(lambda: halves.serving() == [True, True], PATIENT, "both serve")
        epochs = [status(c, agent)["epoch"] for agent in "ab"]
        assert epochs[0] < epochs[1], epochs
        # One number, other bytes in each half; and a number that only one half has.
        again(trainers[:1], "unpublish")
        filled_2 = [w.call("fill", seed=w.label) for w in trainers]
        again(trainers, "publish", version=2)
        assert [pull(r, 2) for r in readers] == filled_2, "each half has its own"
        alone_5 = alone.call("fill", seed="5")
        again([alone], "publish", version=5)
        assert versions(alone) == {5} and versions(asking) == set()
        # Who is in both halves decides nothing, and keeps what it holds.
        ends = [refused(w, "unpublish", timeout=1) for w in both]
        assert all(end in UNDECIDED for end in ends), ends
        assert each(both, "digest") == filled and each(both, "held") == [[0, 4]] * 2
        apart = time.monotonic() - start

        halves.cut(heal=True)
        start = time.monotonic()
        served_by(c, 1, *"ab")
        wait_for(lambda: halves.serving() == [False, True], PATIENT, "one serves")
        print(f"halves: apart for {apart:.2f} s, one again {time.monotonic() - start:.2f} s later")
        assert {status(c, agent)["epoch"] for agent in "ab"} == {epochs[1]}
        # What comes from the half that gave way counts as published before: the other bytes are no
        # version any more. They are whole, and who holds them is told, once.
        assert each(readers, "digest") == filled_2
        for w in (trainers[1], readers[1]):
            wait_for(lambda w=w: w.call("events") & CONFLICT, PATIENT, f"{w.label} is told")
            expect_error("VERSION_CONFLICT", again, [w], "update")
            assert w.call("held") == [0, 2]
        assert trainers[1].call("digest") == readers[1].call("digest") == filled_2[1]
        assert [pull(r, 2) for r in readers] == 2 * filled_2[:1]
        assert not trainers[0].call("events") & CONFLICT
        assert again([asking], "replicate", version="5", timeout=PATIENT)[0]["version"] == 5
        assert asking.call("digest") == alone_5
        # All go on together.
        again(trainers[1:], "unpublish")
        want = trainers[1].call("fill", seed="3")
        again(trainers[1:], "publish", version=3)
        assert [pull(r, 3) for r in readers] == 2 * [want]
        if apart < 20:  # a group is broken that is not together for half a minute
            assert each(both, "digest") == filled
            for i, w in enumerate(both):
                if ends[i] == "UNKNOWN":
                    ends[i] = refused(w, "resolve", timeout=PATIENT)
            assert all(end in UNDECIDED[:2] for end in ends), ends
            list(ThreadPoolExecutor(2).map(unpublished, both))


CASES = [killed_and_back, frozen, one_agent_cut_off, split_in_halves]


def side_by_side():
    pool = ThreadPoolExecutor(len(CASES))
    futures = {}

    def test(case):
        def run():
            if not futures:
                futures.update({c: pool.submit(c) for c in CASES})
            futures[case].result()

        run.__name__ = case.__name__
        return run

    return [test(case) for case in CASES]


if __name__ == "__main__":
    main(*side_by_side())
