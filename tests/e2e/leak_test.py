# SPDX-License-Identifier: Apache-2.0
"""Each party is killed at points spread over a transfer: every call ends in time, and nothing
is left behind."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from cluster import LONG, Agent, Hosts, RemoteError, cluster, main, wait_for
from faults import holdings

SIZE = 32 << 20
POINTS = 20 if LONG else 5
DEADLINE = 4
# Of an agent without workers: two doors for them, one for operators, one for other agents, three
# ways to the server.
AGENT_SOCKETS = 7
# What a daemon holds for workers and peers. Its threads that close what is left it keeps.
KINDS = ("memfd", "eventfd", "pidfd", "socket", "mapping")


def settled(p, baseline):
    now = holdings(p.pid)
    # The process of a GPU stays for 10 s when nobody needs it: its pidfd, and a socket to it.
    stay = len(p.gpu_processes()) if isinstance(p, Agent) else 0
    return all(now[k] - stay * (k in ("pidfd", "socket")) <= baseline[k] for k in KINDS)


def timed(worker, ident, what, allowed):
    """The call must end within its deadline + 1 s, however it ends."""
    start = time.monotonic()
    try:
        worker.finish(ident, DEADLINE + 1.5)
        return "ok"
    except RemoteError as e:
        assert e.name in allowed, f"{what}: {e}"
        # It sleeps until that very second: the thread runs a moment later.
        assert e.seconds <= DEADLINE + 1.5, f"{what}: ended after {e.seconds:.1f} s"
        return e.name
    finally:
        took = time.monotonic() - start
        assert took <= DEADLINE + 1.5, f"{what}: {took:.1f} s"


ERRORS = (
    "VERSION_LOST",
    "NO_PATH",
    "NOT_AVAILABLE",
    "TIMEOUT",
    "UNKNOWN",
    "NO_SERVER",
    "AGENT_LOST",
    "GROUP_BROKEN",
    "DIED",
    "STATE",
    "DIRTY",
)


def kill_at_points(victim):
    """Four clusters at a time: they mostly wait."""
    with ThreadPoolExecutor(4) as pool:
        outcomes = Counter(pool.map(lambda point: kill_at(victim, point), range(POINTS)))
    print(f"  {victim}: {dict(outcomes)}")


def kill_at(victim, point):
    what = f"{victim} at {point}/{POINTS}"
    with cluster(server=False) as c:
        hosts = Hosts(c, 2)
        c.start_server(listen=f"tcp://{hosts.address(0)}:0", prefix=hosts.prefix(0))
        for i, name in enumerate("ab"):
            c.agent(name, prefix=hosts.prefix(i), data=hosts.address(i))
            attached = lambda: c.thctl("status", agent=name, check=False).returncode == 0
            wait_for(attached, 10, "attached")
        daemons = {"a": c.agents["a"], "b": c.agents["b"], "server": c.server}
        # Not while a way is still being opened, or who asked for its status is still leaving.
        for name, sockets in ("a", AGENT_SOCKETS), ("b", AGENT_SOCKETS), ("server", 7):
            at_rest = lambda: holdings(daemons[name].pid)["socket"] == sockets
            wait_for(at_rest, 20, f"{what}: {name} has {sockets} sockets")
        baseline = {name: holdings(p.pid) for name, p in daemons.items()}
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(SIZE, model="m", replica="w")
        r.setup(SIZE, model="m", replica="r")
        w.call("publish", version=1)
        hosts.limit(1, "1gbit")
        leg = r.start("replicate", version="1", timeout=DEADLINE)
        line = hosts.received_bytes(1)
        while hosts.received_bytes(1) - line < SIZE * point // POINTS and not r.finished(leg):
            time.sleep(0.001)
        parties = {
            "server": c.server,
            "source agent": c.agents["a"],
            "reader agent": c.agents["b"],
            "source worker": w,
            "reader worker": r,
        }
        parties[victim].kill()
        outcome = timed(r, leg, what, ERRORS)
        for worker in (w, r):
            if worker.alive():
                timed(worker, worker.start("close", timeout=DEADLINE), f"{what}: close", ERRORS)
                assert worker.terminate() in (0, -15)
        for name, daemon in daemons.items():
            if daemon.alive():
                wait_for(
                    lambda: settled(daemon, baseline[name]),
                    30,
                    f"{what}: {name} holds {holdings(daemon.pid)}, before {baseline[name]}",
                )
        return outcome


def server():
    kill_at_points("server")


def source_agent():
    kill_at_points("source agent")


def reader_agent():
    kill_at_points("reader agent")


def source_worker():
    kill_at_points("source worker")


def reader_worker():
    kill_at_points("reader worker")


if __name__ == "__main__":
    main(server, source_agent, reader_agent, source_worker, reader_worker)
