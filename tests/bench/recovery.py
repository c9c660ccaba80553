# SPDX-License-Identifier: Apache-2.0
"""How long it takes to go on after a party was killed, with the timers as they are by default.

TH_BUILD=build python3 tests/bench/recovery.py [RUNS [ROW]...] kills a party RUNS times (100) for
each row and prints p50, p99 and the worst against the goal. A measurement, not a test; what is
moved is compared all the same. Rows:

  worker   a member of a group dies: until the other member's call has returned
  source   the agent of the source dies while a replica is filled: until bytes come again, from the
           other source
  server   the server is killed and started again: until it has answered the first replicate
  standby  the server is killed, another one stands by: until that has answered the first replicate
"""

import json
import os
import sys
import time

os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import RemoteError, cluster, wait_for

SMALL, LARGE = 1 << 20, 384 << 20
PATIENT = 60
OPENED = {"model": "m", "timeout": 30}


def settles(call, *args, **kwargs):
    """What died is given up after a while; until then its name is taken."""
    end = time.monotonic() + PATIENT
    while True:
        try:
            return call(*args, **kwargs)
        except RemoteError:
            if time.monotonic() > end:
                raise


def joins(w, **opts):
    settles(w.call, "open", **OPENED, **opts)
    w.call("register", timeout=30)


def fresh(c, label, agent, size, seed=0):
    w = c.worker(label, agent)
    w.call("alloc", total_bytes=size)
    w.call("stamp", version=seed, shard=0)
    return w


def worker(c, runs):
    """The survivor waits in replicate, for a version that nobody has."""
    for name in "ab":
        c.agent(name)
    mate = fresh(c, "mate", "b", SMALL)
    for run in range(runs):
        victim = fresh(c, f"victim{run}", "a", SMALL)
        joins(victim, replica=f"g{run}", shard=0, num_shards=2)
        joins(mate, replica=f"g{run}", shard=1, num_shards=2)
        ident = mate.start("replicate", version="99", timeout=30)
        victim.start("replicate", version="99", timeout=30)
        wait_for(lambda: runs_at(c, "b"), PATIENT, "the call is under way")
        killed = time.monotonic()
        c.replaced(victim)
        message = mate.message(ident)
        assert message["error"] == "GROUP_BROKEN", message
        yield message["start"] + message["seconds"] - killed
        mate.call("close")


def runs_at(c, agent):
    status = json.loads(c.thctl("-o", "json", "status", agent=agent, check=False).stdout)
    return any(s.get("operation") == "replicate" for s in status["sessions"])


def source(c, runs):
    c.agent("r")
    reader = fresh(c, "reader", "r", LARGE)
    holders = {}
    for name in "ab":
        c.agent(name)
        holders[name] = fresh(c, f"worker-{name}", name, LARGE, seed=1)
        joins(holders[name], replica=name)
        holders[name].call("publish", version=1, timeout=60)
    joins(reader, replica="r")
    for _ in range(runs):
        reader.call("submit", version="1", timeout=PATIENT)
        reader.call("follow", least_bytes=LARGE // 16)
        legs = json.loads(c.thctl("-o", "json", "ls", "transfers", agent="r").stdout)
        victim = legs["transfers"][0]["source_node"]
        killed = time.monotonic()
        c.replaced(c.agents[victim])
        reader.call("op_wait", timeout=PATIENT)
        assert reader.call("compare", version=1, shard=0) is None
        resumed = reader.call("followed", since=killed)
        if resumed is not None:  # else all was there before it died
            yield resumed - killed
        reader.call("unpublish")
        c.agent(victim, runtime=c.agents[victim].runtime)
        c.replaced(holders[victim])
        holders[victim] = fresh(c, f"worker-{victim}", victim, LARGE, seed=1)
        joins(holders[victim], replica=victim)
        settles(holders[victim].call, "publish", version=1, timeout=60)


def server(c, runs):
    """A rollout that holds version 1 on another host, and one that asks for it."""
    for name in "ab":
        c.agent(name)
    holder, reader = fresh(c, "holder", "a", SMALL, seed=1), fresh(c, "reader", "b", SMALL)
    joins(holder, replica="t")
    holder.call("publish", version=1)
    joins(reader, replica="r")
    url = c.server_url
    for _ in range(runs):
        c.replaced(c.server)
        killed = time.monotonic()
        c.start_server(listen=url)
        message = reader.message(reader.start("replicate", version="1", timeout=30))
        assert "error" not in message, message
        yield message["start"] + message["seconds"] - killed
        assert reader.call("compare", version=1, shard=0) is None
        reader.call("unpublish")


def standby(c, runs):
    """As in server, but the other server of the list takes over. The killed one is started again
    and stands by for that: the next run kills the other way round."""
    args = ("-o", "peers.return=1h")
    c.start_servers(args=args)
    for name in "ab":
        c.agent(name)
    holder, reader = fresh(c, "holder", "a", SMALL, seed=1), fresh(c, "reader", "b", SMALL)
    joins(holder, replica="t")
    holder.call("publish", version=1)
    joins(reader, replica="r")
    for run in range(runs):
        victim = run % 2
        c.replaced(c.servers[victim])
        killed = time.monotonic()
        message = reader.message(reader.start("replicate", version="1", timeout=30))
        assert "error" not in message, message
        yield message["start"] + message["seconds"] - killed
        assert reader.call("compare", version=1, shard=0) is None
        reader.call("unpublish")
        c.servers[victim] = c.server_of_list(victim, args)
        assert c.servers[victim].ready()["state"] == "standby"
        wait_for(lambda: attached(c, "a") and attached(c, "b"), PATIENT, "both agents are served")


def attached(c, agent):
    out = c.thctl("-o", "json", "status", agent=agent, check=False).stdout
    return json.loads(out)["attached"]


ROWS = {
    "worker": (worker, 2.0, "a worker's death -> the other members are told"),
    "source": (source, 1.5, "a source's death -> bytes come again, from another"),
    "server": (server, 5.0, "server killed, started again -> first replicate answered"),
    "standby": (standby, 5.0, "server killed -> first replicate answered by the standby"),
}


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"{'':58} runs      p50      p99    worst   goal (p99)")
    missed = False
    for name in sys.argv[2:] or ROWS:
        row, goal, what = ROWS[name]
        taken = []
        while len(taken) < runs:
            with cluster(server=name != "standby") as c:
                taken += row(c, runs - len(taken))
        taken.sort()
        late = taken[(len(taken) * 99 + 99) // 100 - 1]
        missed |= late > goal
        print(
            f"{what:58} {len(taken):4} {taken[len(taken) // 2]:6.3f} s {late:6.3f} s "
            f"{taken[-1]:6.3f} s   {goal} s",
            flush=True,
        )
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
