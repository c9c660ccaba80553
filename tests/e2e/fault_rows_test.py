# SPDX-License-Identifier: Apache-2.0
"""What a user sees of each kind of fault, one scenario each; after it the rules of history.py hold,
the same names serve a new version, and nothing is left. Needs -Dfaults=true.

The kinds have numbers; a scenario's name begins with its own. Who shows which (faults: the matrix
of faults_test.py, every step of the protocol with each party killed, frozen or cut off):

  F1  the publisher is killed at rest            f1_*, retain
  F2  ... while it is read                       f2_*, memory
  F3  a reader is killed mid-leg                 f3_*, faults
  F4  the source's agent is killed mid-leg       f4_*, resume, faults
  F5  the reader's agent is killed               f5_*, faults
  F6  an agent is killed before its proof        f6_*, faults
  F7  the source's agent is frozen               f7_*, frozen
  F8  a reader is frozen mid-update              f8_*, frozen
  F9  the server is frozen                       f9_*, frozen, faults
  F10 the server is killed                       f10_*, restart, faults (its phase rejoin)
  F11 two halves, each with a server             standby (split_in_halves)
  F12 one agent cannot reach the server          f12_*, faults, standby (one_agent_cut_off)
  F13 one-way loss, a flapping or thin link      f13_*
  F14 a reader cannot reach its source           f14_*
  F15 packets vanish mid-leg                     f15_*
  F16 a slow link; a seed behind one             f16_*, drain
  F17 no memory: register, a part, an offload    f17_*, retain
  F19 no descriptors                             f19_*
  F20 no room for logs                           f20_*
  F21 no memory files                            f17_f21_*
  F31 the wall clock jumps by a day              f31_* (timejump.c)
  F32 signals, a fork, calls beside each other   f32_*, fork, interrupt, async, life
  F33 worker and agent stand still together      f33_* (SIGSTOP; a twin of the agent)

The scenarios run side by side, because they mostly wait; each then tells what came of it. By hand:
fault_rows_test.py NAME... runs those whose name has one of the texts in it.
"""

import contextlib
import json
import os
import re
import resource
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import BUILD, FAULTS, LONG, Agent, Skip, cluster, main, netns_available, wait_for
from cluster import worker_env
from faults import AGENTS, HOLD, HOST, PATIENT, SIZE, Life, begun, holdings, lane_of
from history import BUSY, GRACE

LANES = 4
ROUNDS = 20 if LONG else 3  # of what chance decides


@contextlib.contextmanager
def scenario(links=False, phase=None, **kwargs):
    """A life that has come to this phase; what is wrong at its end is raised."""
    if links and not netns_available():
        raise Skip("network namespaces need root and iproute2")
    with cluster(server=False) as c:
        lane = lane_of(c, **kwargs)
        life = begun(lane, "m", phase)
        yield lane, life
        problems = life.aftermath()
        assert not problems, "\n".join([*problems, *map(str, life.history.calls)])


def ended(running, **codes):
    """Each handle's call has ended with one of the codes that are allowed to it."""
    running.join()
    for handle, allowed in codes.items():
        call = running.calls[handle]
        assert call.code in allowed.split(), f"not {allowed}: {call}"
    return running.calls


def paused(lane, party, point, running):
    """Starts what running() starts and waits until the party has come to the point."""
    points = lane.points[party]
    points.arm(f"{point}:pause")
    calls = running()
    assert points.wait(point, calls.over), f"{party} never came to {point}"
    points.arm("")
    return calls, lambda: points.go(lane.process(party).alive)


def soon(call, what, seconds=1.0):
    """The call ended at once, as far as this machine could."""
    assert call.seconds <= seconds + BUSY + 2 * call.late, f"{what}: {call}"


def open_others(life):
    assert life.opening("o0", "o1").join(), "the other group opens"


def others_replicate(life):
    calls = life.group("replicate", "o0", "o1", version="latest", timeout=PATIENT)
    ended(calls, o0="ok", o1="ok")


def table(lane, name):
    """What the server lists; agent c, which is asked, may reach none for a moment."""

    def ls():
        p = lane.c.thctl("-o", "json", "ls", name, agent="c", check=False)
        return p.returncode == 0 and [json.loads(p.stdout)[name]]

    return wait_for(ls, PATIENT, f"ls {name}")[0]


def transfers(lane):
    return table(lane, "transfers")


def workers(lane):
    """The server's number of each open shard."""
    return {(w["replica"], w["shard"]): w["session"] for w in table(lane, "workers")}


def from_to(lane, source, reader):
    return any((t["source_node"], t["reader_node"]) == (source, reader) for t in transfers(lane))


def status(lane, *args, **kwargs):
    """Of an agent, or with -s of the server."""
    return json.loads(lane.c.thctl("-o", "json", *args, "status", check=False, **kwargs).stdout)


def counter(lane, name, *args, **kwargs):
    found = status(lane, *args, **kwargs)["counters"]
    return next(c["value"] for c in found if c["name"] == name)


def node(lane, name, key="state"):
    """What the server thinks of this node."""
    return next((n[key] for n in table(lane, "nodes") if n["node"] == name), None)


def wait_node(lane, name, *states):
    wait_for(lambda: node(lane, name) in states, PATIENT, f"node {name} is {states}")


# ---- a worker dies ----


def f1_publisher_killed_at_rest():
    """Who holds the version serves it on."""
    with scenario(phase="idle", others=True) as (lane, life):
        lane.process("source worker").kill()
        open_others(life)
        others_replicate(life)


def hashed(lane):
    """What a dying worker has not left digests of may be torn, and is given up."""
    hashing = lambda: counter(lane, "parts_hashing", agent="a")
    wait_for(lambda: hashing() == 0, PATIENT, "all digests are there")


def f1_retained_version_outlives_its_publisher():
    """Its agent has the memory and keeps a copy: who asks later gets it."""
    with scenario(phase="offload") as (lane, life):
        hashed(lane)
        lane.process("source worker").kill()
        ended(life.phase_replicate(timeout=PATIENT), r0="ok", r1="ok")


def f1_only_holder_killed_at_rest():
    """Nobody waits longer than it said for what is gone."""
    with scenario(phase="replicate") as (lane, life):
        lane.process("source worker").kill()
        # Until its agent hears of it readers get what the agent has of it, and rightly.
        wait_for(lambda: not table(lane, "versions"), PATIENT, "it is not listed")
        gone = "VERSION_LOST NOT_AVAILABLE TIMEOUT"
        ended(life.phase_replicate(), r0=gone, r1=gone)


def f1_private_memory_goes_with_its_publisher():
    """Nobody can read it any more: it is given up at once, also where it is to be retained."""
    with scenario(calm=True, keys=("retain.rescue=10m",)) as (lane, life):
        for handle in ("t0", "t1"):
            w = lane.workers["source worker"]
            w.call("alloc", total_bytes=SIZE, name=handle, kind="Malloc")
        life.go_to("offload")
        hashed(lane)
        lane.process("source worker").kill()
        wait_for(lambda: not table(lane, "versions"), PATIENT, "it is not listed")


def f2_publisher_killed_during_legs():
    """Its agent has the memory: readers notice nothing. They have it, and it is given back."""
    with scenario(phase="replicate", calm=True) as (lane, life):
        agent, before = lane.process("source agent").pid, lane.baseline["source agent"]
        kept = lambda: [k for k in ("memfd", "mapping") if holdings(agent)[k] > before[k]]
        calls, go = paused(lane, "reader agent", "leg_in_first_chunk", life.phase_replicate)
        assert kept(), "the memory of a worker is open in its agent"
        hashed(lane)
        lane.process("source worker").kill()
        go()
        done = ended(calls, r0="ok", r1="ok")
        over = time.monotonic()
        wait_for(lambda: not kept(), PATIENT, "the dead one's memory is given back")
        late = max(call.late for call in done.values())
        assert time.monotonic() - over < 5 + BUSY + 2 * late, "and that soon"


def f3_reader_killed_mid_leg():
    with scenario(phase="replicate") as (lane, life):
        calls, go = paused(lane, "reader agent", "leg_in_half", life.phase_replicate)
        killed = time.monotonic()
        lane.process("reader worker").kill()
        go()
        call = ended(calls, r0="DIED", r1="GROUP_BROKEN")["r1"]
        soon(call, "the mate is told", 2.0)
        wait_for(lambda: not transfers(lane), PATIENT, "the source is free")
        assert time.monotonic() - killed < 2 + GRACE + 2 * call.late, "the source is free soon"


def f8_reader_frozen_mid_update():
    """Its agent does its part; the group and the others do not wait for it."""
    with scenario(phase="update") as (lane, life):
        calls, go = paused(lane, "reader agent", "leg_in_first_chunk", life.phase_update)
        lane.signal("reader worker", signal.SIGSTOP)
        go()
        wait_for(lambda: "r1" in calls.calls, PATIENT, "the mate's update")
        lane.signal("reader worker", signal.SIGCONT)
        ended(calls, r0="ok", r1="ok")


# ---- an agent dies or freezes ----


def two_sources(life):
    """The version is at t and at o, and a leg of r has begun: (calls, go, party of its source)."""
    open_others(life)
    others_replicate(life)
    lane = life.lane
    calls, go = paused(lane, "reader agent", "leg_in_first_chunk", life.phase_replicate)
    found = [t["source_node"] for t in transfers(lane) if t["reader_node"] == "b"]
    assert len(found) == 1, found
    return calls, go, {"a": "source agent", "d": "other agent"}[found[0]]


def f4_source_agent_killed_mid_leg():
    """The leg goes on from the other source."""
    with scenario(phase="replicate", others=True) as (lane, life):
        calls, go, victim = two_sources(life)
        lane.process(victim).kill()
        go()
        for call in ended(calls, r0="ok", r1="ok").values():
            soon(call, "re-routed", 1.5)


def f5_reader_agent_killed():
    with scenario(phase="replicate") as (lane, life):
        calls, go = paused(lane, "reader agent", "leg_in_half", life.phase_replicate)
        lane.process("reader agent").kill()
        done = ended(calls, r0="AGENT_LOST", r1="GROUP_BROKEN VERSION_LOST")
        soon(done["r0"], "the local worker is told")
        # Its memory is its own again: what is written there stays.
        mark = {"name": "r0", "version": 0, "shard": 0}
        lane.workers["reader worker"].call("stamp", **mark)
        wait_for(lambda: not transfers(lane), PATIENT, "the source is free")
        assert lane.workers["reader worker"].call("compare", **mark) is None, "a late write"


def f6_source_agent_killed_before_drain_done():
    """No proof came, so no success; when the process that could read is gone, nobody reads."""
    with scenario(phase="unpublish") as (lane, life):
        calls, _ = paused(lane, "source agent", "agent_sends_drain_done", life.phase_unpublish)
        lane.process("source agent").kill()
        ended(calls, t0="AGENT_LOST ok", t1="AGENT_LOST ok")
        codes = {c.code for c in calls.calls.values()}
        assert "AGENT_LOST" in codes, codes
        w = lane.workers["source worker"]
        for handle in ("t0", "t1"):
            assert w.call("safe", name=handle) == 1, handle


def f7_source_agent_frozen():
    """Silence proves nothing: the memory is not safe. It goes on when the agent does."""
    with scenario(phase="unpublish") as (lane, life):
        w = lane.workers["source worker"]
        lane.signal("source agent", signal.SIGSTOP)
        try:
            calls = life.group("unpublish", "t0", "t1", timeout=1)
            ended(calls, t0="TIMEOUT UNKNOWN", t1="TIMEOUT UNKNOWN")
            assert [w.call("safe", name=h) for h in ("t0", "t1")] == [0, 0]
            wait_node(lane, "a", "suspect", "dead", None)
        finally:
            lane.signal("source agent", signal.SIGCONT)
        lane.attached()
        wait_node(lane, "a", "active")


def pulled(lane, party, shards):
    """The other nodes from which this agent says that it has pulled such shards."""
    lines = lane.process(party).tail(200).splitlines()
    wanted = [line for line in lines if line.startswith("info leg pulling ") and shards in line]
    assert wanted, f"{party} has pulled none of {shards}"
    return re.findall(r" node=(\S+)", "\n".join(wanted))


def f7_source_agent_frozen_mid_leg():
    """The leg goes on from the other source, nothing new is read from this one; when it goes on,
    what it had begun is over, and it is a source again."""
    with scenario(phase="replicate", others=True) as (lane, life):
        calls, go, frozen = two_sources(life)
        lane.signal(frozen, signal.SIGSTOP)
        try:
            go()
            ended(calls, r0="ok", r1="ok")
            wait_node(lane, AGENTS[frozen], "suspect", "dead", None)
            assert life.opening("x0", "x1").join()
            ended(life.group("replicate", "x0", "x1", version=str(life.version)), x0="ok", x1="ok")
            assert AGENTS[frozen] not in pulled(lane, "mate agent", f"{life.model}/x/")
        finally:
            lane.signal(frozen, signal.SIGCONT)
        lane.attached()
        wait_node(lane, AGENTS[frozen], "active")
        wait_for(lambda: not transfers(lane), PATIENT, "no leg of before is left")


def f33_worker_and_agent_frozen():
    """As a checkpoint of a machine: both are back after everybody has given them up."""
    with scenario(phase="idle") as (lane, life):
        for party in ("reader worker", "reader agent"):
            lane.signal(party, signal.SIGSTOP)
        wait_node(lane, "b", "dead", None)
        for party in ("reader agent", "reader worker"):
            lane.signal(party, signal.SIGCONT)
        lane.attached()
        # Its group is broken or lost; what it holds is whole, which the history checks.
        told = "GROUP_BROKEN AGENT_LOST"
        ended(life.phase_update(), r0=told, r1=told)


def f33_twin_of_a_frozen_agent():
    """A machine goes on elsewhere from its image, and then here, too: who comes back is refused as
    long as the other one lives, and nobody else notices. Then it is taken back."""
    keys = ("lease.suspect=3s", "lease.dead=10s")
    with scenario(phase="idle", calm=True, keys=keys) as (lane, life):
        party = "reader agent"
        for frozen in ("reader worker", party):
            lane.signal(frozen, signal.SIGSTOP)
        wait_node(lane, "b", "suspect", "dead", None)
        args = [*lane.agent_args(party), "-n", "b"]
        twin = Agent(lane.c, "twin", args, prefix=lane.prefix(party), data=lane.address(party))
        its = twin.info["data"]
        wait_for(lambda: node(lane, "b", "address") == its, PATIENT, "the other one is attached")
        for frozen in (party, "reader worker"):
            lane.signal(frozen, signal.SIGCONT)
        refusal = f"node name b is taken: another agent with data address {its} is alive"
        refused = lambda: refusal in ((s := status(lane, agent="b"))["server_text"] or "") and s
        assert not wait_for(refused, PATIENT, "it is refused")["attached"]
        # The version that it holds is whole, which the history checks.
        ended(life.group("update", "r0", version="latest"), r0="NO_SERVER GROUP_BROKEN")
        assert (node(lane, "b", "address"), node(lane, "b")) == (its, "active")
        twin.terminate()
        lane.attached()


# ---- the server ----


def f9_server_frozen_shortly():
    """Only latency."""
    with scenario(phase="replicate") as (lane, life):
        calls, go = paused(lane, "server", "server_leg_end", life.phase_replicate)
        lane.signal("server", signal.SIGSTOP)
        end = time.monotonic() + 0.5
        wait_for(lambda: time.monotonic() > end, PATIENT, "half a second")
        lane.signal("server", signal.SIGCONT)
        go()
        ended(calls, r0="ok", r1="ok")


def f9_server_frozen_for_long():
    """Its own silence is not held against the agents: no group is broken."""
    with scenario(phase="update") as (lane, life):
        lane.signal("server", signal.SIGSTOP)
        end = time.monotonic() + 2 * HOLD
        wait_for(lambda: time.monotonic() > end, PATIENT, "longer than lease.dead")
        lane.signal("server", signal.SIGCONT)
        lane.attached()
        ended(life.phase_update(timeout=PATIENT), r0="ok", r1="ok")


def f10_server_killed():
    """Rollouts keep their weights; update says at once that there is no server."""
    with scenario(phase="idle") as (lane, life):
        assert life.opening("x0", "x1").join()
        lane.process("server").kill()
        for call in ended(life.phase_update(), r0="NO_SERVER", r1="NO_SERVER").values():
            soon(call, "at once")
            assert call.held == life.version and call.wrong_at is None, call
        # A replicate has nothing to go on with: it waits for a server, to its deadline.
        calls = life.group("replicate", "x0", "x1", version="latest", timeout=1)
        for call in ended(calls, x0="NO_SERVER", x1="NO_SERVER").values():
            assert call.seconds >= 1 - BUSY, call


def f10_server_restarted():
    """It is told what there is: nobody opens anything again, and the version is served."""
    with scenario(phase="idle") as (lane, life):
        assert life.opening("x0", "x1").join()
        lane.process("server").kill()
        lane.restart_dead()
        first = life.group("replicate", "x0", "x1", version="latest", timeout=10)
        for call in ended(first, x0="ok", x1="ok").values():
            soon(call, "the first replicate", 5.0)
        ended(life.phase_unpublish(timeout=PATIENT), t0="ok", t1="ok")
        ended(life.phase_publish(timeout=PATIENT), t0="ok", t1="ok")
        ended(life.phase_update(timeout=PATIENT), r0="ok", r1="ok")


def served_by_the_standby(lane):
    """All agents have gone to the second server of the list."""

    def gone(agent):
        p = lane.c.thctl("-o", "json", "status", agent=agent, check=False, timeout=PATIENT)
        status = json.loads(p.stdout)
        return status["attached"] and status["server"] == lane.c.server_urls[1]

    for agent in lane.c.agents:
        wait_for(lambda a=agent: gone(a), PATIENT, f"agent {agent} is with the standby")


def stands_by(lane):
    """The first server serves nobody."""
    p = lane.c.thctl("-s", lane.c.server_urls[0], "status", check=False, timeout=PATIENT)
    return p.returncode == 5 and "standby" in p.stdout


def f9_server_frozen_and_replaced():
    """The standby serves; the other one wakes up, sees that, and forgets what it knew."""
    with scenario(phase="update", namespaces=False, standby=True) as (lane, life):
        assert life.opening("x0", "x1").join()
        lane.signal("server", signal.SIGSTOP)
        waiting = life.group("replicate", "x0", "x1", version=str(life.version), timeout=PATIENT)
        served_by_the_standby(lane)
        ended(waiting, x0="ok", x1="ok")
        lane.signal("server", signal.SIGCONT)
        wait_for(lambda: stands_by(lane), PATIENT, "the first server stands by")
        served_by_the_standby(lane)
        ended(life.phase_update(timeout=PATIENT), r0="ok", r1="ok")


def f10_server_killed_and_replaced():
    """What waits goes on at the standby; update has said at once that nobody serves."""
    with scenario(phase="idle", namespaces=False, standby=True) as (lane, life):
        assert life.opening("x0", "x1").join()
        lane.process("server").kill()
        waiting = life.group("replicate", "x0", "x1", version=str(life.version), timeout=PATIENT)
        for call in ended(life.phase_update(), r0="NO_SERVER", r1="NO_SERVER").values():
            soon(call, "at once")
            assert call.held == life.version and call.wrong_at is None, call
        served_by_the_standby(lane)
        ended(waiting, x0="ok", x1="ok")
        ended(life.phase_unpublish(timeout=PATIENT), t0="ok", t1="ok")
        ended(life.phase_publish(timeout=PATIENT), t0="ok", t1="ok")


# ---- links ----


def f12_one_agent_cut_off_from_the_server():
    """Its worker is told; nobody else moves."""
    with scenario(phase="update", links=True, others=True) as (lane, life):
        lane.hosts.lose(HOST["reader agent"], HOST["server"])
        lane.hosts.lose(HOST["server"], HOST["reader agent"])
        open_others(life)
        others_replicate(life)
        wait_for(lambda: not lane.status("b"), PATIENT, "its agent knows that it is cut off")
        told = "NO_SERVER GROUP_BROKEN TIMEOUT UNKNOWN"
        ended(life.phase_update(), r0="NO_SERVER", r1=told)
        wait_node(lane, "b", "suspect", "dead", None)
        for other in "acd":
            wait_node(lane, other, "active")
        lane.hosts.lose(HOST["reader agent"], HOST["server"], heal=True)
        lane.hosts.lose(HOST["server"], HOST["reader agent"], heal=True)


def f13_one_way_and_flapping():
    """Whatever is lost, in either direction, nothing happens twice. Who was silent is suspect, and
    then in service again with all that it had: nobody is given up, nothing is told anew."""
    # Silence for long is another scenario.
    patient = ("lease.dead=10m", "lease.gone=9m")
    with scenario(phase="update", links=True, keys=patient) as (lane, life):
        agent, server = HOST["reader agent"], HOST["server"]
        before, start = workers(lane), time.monotonic()
        asked = -counter(lane, "server_requests", agent="b")
        for turn in range(6):
            way = (agent, server) if turn % 2 else (server, agent)
            lane.hosts.lose(*way)
            calls = life.group("update", "r0", "r1", version="latest", timeout=0.5)
            calls.join()
            if turn < 2:
                wait_node(lane, "b", "suspect")
            lane.hosts.lose(*way, heal=True)
            life.resolve()
            wait_node(lane, "b", "active")
        lane.attached()
        assert workers(lane) == before, "the same sessions"
        # A hundred a second would be many: it polls and beats ten times a second here.
        asked += counter(lane, "server_requests", agent="b")
        assert asked < 100 * (time.monotonic() - start), f"{asked} requests"
        known = {call.code for call in life.history.calls}
        assert not known & {"GROUP_BROKEN", "AGENT_LOST"}, known


def f13_thin_link():
    """Three of ten packets between agent and server are lost: calls may end late or without an
    outcome, but none twice, and none beyond its deadline."""
    with scenario(phase="update", links=True) as (lane, life):
        agent, server = HOST["reader agent"], HOST["server"]
        for way in (agent, server), (server, agent):
            lane.hosts.thin(*way, 30)
        for turn in range(ROUNDS):
            if turn > 0 and life.phase_unpublish().join():
                life.phase_publish().join()
            life.phase_update().join()
            life.resolve()
        for way in (agent, server), (server, agent):
            lane.hosts.thin(*way, 0)
        lane.attached()


def f14_reader_and_source_cut_off_from_each_other():
    """The pair is blocked, the other source serves, and the first one stays in service."""
    with scenario(phase="replicate", links=True, others=True) as (lane, life):
        calls, go, source = two_sources(life)
        ways = [(HOST["reader agent"], HOST[source]), (HOST[source], HOST["reader agent"])]
        for way in ways:
            lane.hosts.lose(*way)
        go()
        ended(calls, r0="ok", r1="ok")
        assert [node(lane, n) for n in "abcd"] == 4 * ["active"]
        for way in ways:
            lane.hosts.lose(*way, heal=True)


def f15_black_hole_mid_leg():
    """No reset, no end: the stall detector finds it and the leg goes on from the other source."""
    with scenario(phase="replicate", links=True, others=True) as (lane, life):
        calls, go, source = two_sources(life)
        lane.hosts.cut(HOST[source])
        go()
        for call in ended(calls, r0="ok", r1="ok").values():
            soon(call, "re-routed", 1.5)
        lane.hosts.cut(HOST[source], up=True)


def f16_slow_link():
    """A leg at a crawl is no stall; it ends with its call, and the source takes its memory back."""
    with scenario(phase="replicate", links=True) as (lane, life):
        lane.hosts.limit(HOST["reader agent"], "8mbit")
        ended(life.phase_replicate(), r0="TIMEOUT UNKNOWN", r1="TIMEOUT UNKNOWN")
        assert [node(lane, n) for n in "abc"] == 3 * ["active"]
        # The owner of the memory is not kept waiting either.
        ended(life.phase_unpublish(), t0="ok TIMEOUT UNKNOWN", t1="ok TIMEOUT UNKNOWN")
        lane.hosts.limit(HOST["reader agent"], "10gbit")


def f16_fast_reader_behind_a_slow_one():
    """It is given the source itself, and is done long before the other."""
    with scenario(phase="replicate", links=True, others=True, calm=True) as (lane, life):
        open_others(life)
        lane.hosts.limit(HOST["reader agent"], "4mbit")
        slow = life.group("replicate", "r0", "r1", version="latest", timeout=PATIENT)
        wait_for(lambda: from_to(lane, "a", "b"), PATIENT, "the slow leg")
        fast = life.group("replicate", "o0", "o1", version="latest", timeout=PATIENT)
        ended(fast, o0="ok", o1="ok")
        assert not slow.over(), "the link was not slow"
        assert "from=r node=b" in lane.process("other agent").tail(50), "it was never behind it"
        lane.hosts.limit(HOST["reader agent"], "10gbit")
        ended(slow, r0="ok", r1="ok")


def f16_seed_behind_a_slow_link():
    """Between datacenters: the first reader goes on however slow it is, an update of another one
    there finds nothing new, and waits no longer than route.skip: then it reads behind the first
    one. Nothing comes over the slow link twice."""
    far, skip = ("reader agent", "mate agent"), 1.0
    keys = [f"route.skip={skip:.0f}s", "route.crawl=10m"]
    with scenario(phase="update", links=True, calm=True, keys=keys, far=far) as (lane, life):
        assert life.opening("x0", "x1").join()
        for party in far:
            lane.hosts.limit(HOST[party], "10mbit")
        sent, start = lane.hosts.sent_bytes(HOST["source agent"]), time.monotonic()
        seed = life.group("update", "r0", "r1", version="latest", timeout=PATIENT)
        wait_for(lambda: from_to(lane, "a", "b"), PATIENT, "the seed fills")
        fills, early = time.monotonic(), 0
        while True:
            poll = life.group("update", "x0", "x1", version="latest", timeout=PATIENT)
            wait_for(lambda: poll.over() or behind(lane), PATIENT, "an answer, or a leg of it")
            if not poll.over():
                break
            done = ended(poll, x0="ok", x1="ok")
            assert all(c.version is None for c in done.values()), "it was not skipped"
            early += 1
        waited, over = time.monotonic(), seed.over()
        assert early or fills - start > skip, "it did not wait for the seed"
        late = max((c.late for c in life.history.calls), default=0)
        # It joins a seed that gets no chunk for 5 s, too: not that long after route.skip.
        assert waited - fills < skip + 3 + BUSY + 4 * late, "it waits longer than route.skip"
        assert not over, "the link was not slow"
        for party in far:
            lane.hosts.limit(HOST[party], "10gbit")
        ended(seed, r0="ok", r1="ok")
        ended(poll, x0="ok", x1="ok")
        sent = lane.hosts.sent_bytes(HOST["source agent"]) - sent
        # What the slow link drops TCP sends again; a shard that came twice would make it three.
        assert sent < 2.7 * SIZE, f"{sent} bytes left for two shards of {SIZE}"


def behind(lane):
    """The second group of the far datacenter reads, and from the first one."""
    found = {t["source"] for t in transfers(lane) if t["reader"] == "x"}
    assert found <= {"r"}, found
    return found


# ---- resources ----


def f17_f21_no_memory_and_no_files():
    """The call that needed it fails with a sentence, the agent lives, nothing is left."""
    with scenario() as (lane, life):
        points = lane.points["source agent"]
        for errno, name in ((12, "ENOMEM"), (24, "LIMIT"), (28, "ENOSPC")):
            points.arm(f"agent_makes_session:errno={errno}")
            running = life.opening("t0")
            assert not running.join() and running.calls["t0"].code == name, running.failures()
        points.arm("agent_takes_memory:errno=12")
        running = life.opening("t0")
        assert not running.join(), "it was registered without memory"
        assert running.calls["t0"].code == "ENOMEM", running.failures()
        life.abandon()
        points.arm("agent_part_new:errno=12")
        assert life.opening("t0", "t1").join()
        life.version = life.stamp()
        running = life.group("publish", "t0", "t1", version=life.version)
        # One of them has no part. The other hears of it now, or by its next call.
        done = ended(running, t0="AGENT_LOST GROUP_BROKEN ok", t1="AGENT_LOST GROUP_BROKEN ok")
        assert any(c.code == "AGENT_LOST" for c in done.values()), running.failures()
        ended(life.group("unpublish", "t0", "t1"), t0="AGENT_LOST GROUP_BROKEN",
              t1="AGENT_LOST GROUP_BROKEN")
        points.arm("")
        assert lane.process("source agent").alive()


def f17_no_memory_for_a_copy():
    """No host keeps what must stay: unpublish fails and the version is served as before."""
    with scenario(phase="offload") as (lane, life):
        errors = ",".join(f"agent_makes_room:errno=12:{n}" for n in range(1, 9))
        for points in lane.points.values():
            points.arm(errors)
        ended(life.phase_unpublish(), t0="NOMEM_RETAIN", t1="NOMEM_RETAIN")
        for points in lane.points.values():
            points.arm("")
        ended(life.phase_replicate(timeout=PATIENT), r0="ok", r1="ok")
        ended(life.phase_unpublish(timeout=PATIENT), t0="ok", t1="ok")


def f19_no_descriptors():
    """Full tables refuse what is new and keep what is there; afterwards all is as before."""
    with scenario(phase="idle") as (lane, life):
        before = {}
        w = lane.workers["reader worker"]

        def leave(room, *parties):
            for party in parties:
                pid = lane.process(party).pid
                limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                before.setdefault(party, limits)
                used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
                lowest = min(set(range(len(used) + 1)) - used)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest + room, limits[1]))

        def refused():
            ident = w.start("open", name="more", model="n", replica="n", timeout=PATIENT)
            message = w.message(ident, PATIENT)
            assert message.get("error") == "LIMIT", message
            assert "LimitNOFILE=" in message["text"], message

        # A few are kept for who is there; and when there is none, who comes is still told so.
        leave(4, "reader agent")
        refused()
        assert counter(lane, "descriptors_left", agent="b") <= 4
        short = lambda: counter(lane, "descriptors_short", agent="b")
        wait_for(short, PATIENT, "its agent says that they run short")
        leave(0, "reader agent", "server")
        for _ in range(3):
            refused()
        # Who is there stays: what needs no new descriptor works, the leases are kept.
        ended(life.phase_unpublish(timeout=PATIENT), t0="ok", t1="ok")
        ended(life.phase_publish(timeout=PATIENT), t0="ok", t1="ok")
        life.phase_update().join()
        assert [node(lane, n) for n in "abc"] == 3 * ["active"]
        for party, limits in before.items():
            resource.prlimit(lane.process(party).pid, resource.RLIMIT_NOFILE, limits)

        def opens():
            ident = w.start("open", name="more", model="n", replica="n", timeout=5)
            return "error" not in w.message(ident, PATIENT)

        wait_for(opens, PATIENT, "an open with descriptors again")
        w.call("close", name="more")
        assert counter(lane, "descriptors_refused", agent="b") == 4
        server = ("-s", lane.c.server_url)
        assert counter(lane, "descriptors_left", *server, prefix=lane.prefix("server")) > 0


def f20_disk_full():
    """What a log cannot take is lost, counted, and nothing else."""
    full = ["sh", "-c", 'exec "$@" 2>/dev/full', "sh"]
    with scenario(phase="update", prefix=full) as (lane, life):
        before = counter(lane, "log_lines_lost", agent="b")
        ended(life.phase_update(timeout=PATIENT), r0="ok", r1="ok")
        assert counter(lane, "log_lines_lost", agent="b") > before > 0, before
        server = ("-s", lane.c.server_url)
        assert counter(lane, "log_lines_lost", *server, prefix=lane.prefix("server")) > 0


# ---- time and signals ----


def f31_wall_clock_jumps():
    """A day forwards and back, all the time, in every process: no effect."""
    jump = os.path.join(BUILD, "tests", "e2e", "timejump.so")
    sanitizer = worker_env().get("LD_PRELOAD")
    preload = f"{sanitizer} {jump}" if sanitizer else jump
    with scenario(
        phase="update", prefix=["env", f"LD_PRELOAD={preload}"], worker_env={"LD_PRELOAD": preload}
    ) as (_, life):
        ended(life.phase_update(timeout=PATIENT), r0="ok", r1="ok")


def f32_signal_storm():
    """Calls that are interrupted all the time do what they say."""
    with scenario() as (lane, life):
        for party in ("source worker", "reader worker", "mate worker"):
            lane.workers[party].call("signal_storm")
        life.go_to("update")
        ended(life.phase_update(timeout=PATIENT), r0="ok", r1="ok")


ROWS = [value for name, value in list(globals().items()) if name[0] == "f" and name[1].isdigit()]


def side_by_side(rows):
    """Tests that begin together with the first and end one after the other."""
    pool, futures = ThreadPoolExecutor(LANES), {}

    def result(row):
        if not futures:
            futures.update({r: pool.submit(r) for r in rows})
        return futures[row].result()

    def test(row):
        def run():
            return result(row)

        run.__name__ = row.__name__
        return run

    return [test(row) for row in rows]


def every_row():
    raise Skip("this build has no fault injection (-Dfaults=true)")


if __name__ == "__main__":
    if not FAULTS:
        main(every_row)
    wanted = [r for r in ROWS if not sys.argv[1:] or any(t in r.__name__ for t in sys.argv[1:])]
    main(*side_by_side(wanted))
