# SPDX-License-Identifier: Apache-2.0
"""Two datacenters and a slow link between them: a version comes over it once, and only the replica
that fetches it stands still meanwhile, also when all of them ask in the same instant. Between the
two a transfer has connections, a congestion control and a cap of its own, and RDMA is not tried."""

import json
import subprocess
import time

from cluster import LONG, Hosts, cluster, main, wait_for

SIZE = 32 << 20
SLOW = "80mbit"
FAST = "4gbit"
READERS = range(1, 5)
ROUNDS = 200 if LONG else 5
CHUNK = 4 << 20
LIMIT = 20 * 10**6
CONNECTIONS = 6


def a_burst_of_updates():
    with cluster(server=False) as c:
        server = READERS[-1] + 1
        hosts = Hosts(c, server + 1)
        c.start_server(listen=f"tcp://{hosts.address(server)}:0", prefix=hosts.prefix(server))
        for i in (0, *READERS):
            # One connection: chunks come one by one, none of them takes long.
            args = ("-D", "far" if i else "home", "-o", "leg.connections=1")
            c.agent(f"host{i}", prefix=hosts.prefix(i), data=hosts.address(i), args=args)
        trainer = c.worker("trainer", "host0")
        trainer.setup(SIZE, model="m", replica="trainer")
        readers = [c.worker(f"reader{i}", f"host{i}") for i in READERS]
        for i, reader in zip(READERS, readers):
            reader.setup(SIZE, model="m", replica=f"reader{i}")
        trainer.call("fill", seed=1)
        trainer.call("publish", version=1)
        for reader in readers:
            reader.call("replicate", version="1")
        for version in range(2, 2 + ROUNDS):
            a_round(hosts, trainer, readers, version)


def a_round(hosts, trainer, readers, version):
    trainer.call("unpublish")
    want = trainer.call("fill", seed=version)
    calls = [reader.start("poll", version=version) for reader in readers]
    hosts.limit(0, SLOW, leaves=True)
    before = hosts.sent_bytes(0)
    trainer.call("publish", version=version)

    # Two answers more each: the second call has begun when the version was there. All get them
    # but the seed, which stands still. It does until the link is faster.
    asked = [reader.call("polled") for reader in readers]

    def told():
        return sum(r.call("polled") >= n + 2 for r, n in zip(readers, asked)) >= len(readers) - 1

    wait_for(told, 30, "all but one find nothing new")
    moving = [call for reader, call in zip(readers, calls) if not reader.finished(call)]
    assert len(moving) == len(readers), "the seed is complete: the link is not slow"
    hosts.limit(0, FAST, leaves=True)
    results = [reader.finish(call, 120) for reader, call in zip(readers, calls)]
    crossed = (hosts.sent_bytes(0) - before) / SIZE
    sources = sorted(result["source"] for result in results)
    print(f"  version {version}: {crossed:.3f} x the payload over the link, from {sources}")
    assert sources.count("trainer") == 1, sources
    assert 1 <= crossed < 1.5, crossed
    for reader in readers:
        assert reader.call("digest") == want, reader.label


def served_by(hosts, i):
    """The congestion control of each connection to the data port of the agent on host i."""
    argv = [*hosts.prefix(i), "ss", "-tinHO", "state", "established", "sport", "=", ":7071"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    known = ("cubic", "reno", "bbr")
    return sorted(word for line in lines for word in line.split() if word in known)


def transfer_to(c, node):
    rows = json.loads(c.thctl("-o", "json", "ls", "transfers", agent=node).stdout)["transfers"]
    return next((row for row in rows if row["reader_node"] == node and row["path"]), None)


def counter(c, node, name):
    counters = json.loads(c.thctl("-o", "json", "status", agent=node).stdout)["counters"]
    return next(row["value"] for row in counters if row["name"] == name)


def a_transfer_between_datacenters_has_its_own_policy():
    """Of host 0 reads a host near, then one far away. The near one is slowed by its link."""
    with cluster(server=False) as c:
        hosts = Hosts(c, 4)
        delayed = hosts.delay(0, "15ms") and hosts.delay(2, "15ms")
        print(f"  a round trip between the two {'takes 30 ms' if delayed else 'is not delayed'}")
        c.start_server(listen=f"tcp://{hosts.address(3)}:0", prefix=hosts.prefix(3))
        options = ("far.congestion=reno", f"far.connections={CONNECTIONS}", f"far.limit={LIMIT}")
        args = [word for option in options for word in ("-o", option)]
        for i, where in enumerate(("home", "home", "far")):
            c.agent(
                f"host{i}",
                prefix=hosts.prefix(i),
                data=f"{hosts.address(i)}:7071",
                args=("-D", where, *args),
            )
        status = json.loads(c.thctl("-o", "json", "status", agent="host2").stdout)
        told = [status[f"far_{key}"] for key in ("transport", "congestion", "connections")]
        assert told == ["tcp", "reno", CONNECTIONS], told
        assert status["far_fallbacks_counted"] is False and status["far_limit"], status
        workers = [c.worker(f"worker{i}", f"host{i}") for i in range(3)]
        for i, worker in enumerate(workers):
            worker.setup(SIZE, model="m", replica=f"r{i}")
        want = workers[0].call("fill", seed=1)
        workers[0].call("publish", version=1)

        hosts.limit(1, SLOW)
        call = workers[1].start("replicate", version="1")
        near = wait_for(lambda: transfer_to(c, "host1"), 30, "the near one moves")
        assert near["path"] == "tcp" and near["why"] is None, near
        assert set(served_by(hosts, 0)) == {"cubic"}, served_by(hosts, 0)
        hosts.limit(1, FAST)
        workers[1].finish(call, 60)
        workers[1].call("unpublish")
        wait_for(lambda: not served_by(hosts, 0), 30, "its connections end")

        begin = time.monotonic()
        call = workers[2].start("replicate", version="1")
        # One more is the control connection.
        mine = ["cubic", *["reno"] * CONNECTIONS]
        wait_for(lambda: served_by(hosts, 0) == mine, 30, "as many as far.connections, of reno")
        row = wait_for(lambda: transfer_to(c, "host2"), 30, "the far one moves")
        result = workers[2].finish(call, 60)
        took = time.monotonic() - begin
        assert row["path"] == "tcp", row
        assert row["why"] == "the source is in another datacenter", row
        assert result["transport"] == "tcp" and result["source"] == "r0", result
        assert workers[2].call("digest") == want
        # What the bucket holds, and the chunk that empties it, go at once.
        least = (SIZE - CHUNK - LIMIT // 20) / LIMIT
        print(f"  {SIZE / took / 1e6:.1f} MB/s where the cap is {LIMIT / 1e6:.0f}")
        assert took >= least, (took, least)
        assert counter(c, "host2", "rdma_fallbacks") == 0
        log = c.agents["host2"].tail(400)
        assert 'why="the source is in another datacenter"' in log, log
        assert " warn leg" not in log and " fallback=" not in log, log


if __name__ == "__main__":
    main(a_burst_of_updates, a_transfer_between_datacenters_has_its_own_policy)
