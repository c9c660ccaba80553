# SPDX-License-Identifier: Apache-2.0
"""A small cluster that goes through the life of a version again and again, with one fault each
time, and what must be true after it.

Source worker (shards t0, t1 of group t) on agent a, reader worker (r0) on agent b, the reader's
mate (r1; and x0, x1, a group that copies within its host) on agent c, and if wanted another worker
(o0, o1) on agent d. Where there are network namespaces, every agent and the server is a host.
Timers are a tenth of what is the default, the stall detector 300 ms. A fault comes when a process
has reached a failpoint, which it reports by a fifo: nothing waits by sleeping.
"""

import collections
import contextlib
import json
import os
import signal
import threading
import time

import gpus
from cluster import Hosts, netns_available, wait_for
from history import GROUP_CALLS, Call, History

SIZE = 9 << 20  # three chunks: a first, one at half, a last
DEADLINE = 2.0
HOLD = 1.5  # how long a party is frozen or cut off: longer than lease.dead
WAYS = 5  # to a phase
LATER = 10  # a point may be reached after the calls of its phase have ended
# Threads that an agent starts when it needs them first, and keeps with this: one for each GPU that
# it has had to do with, a few that close descriptors, one that finds memory for offloaded copies.
KEPT = {  # at most so many
    "th-gpu": (gpus.FAKE_GPUS, ("thread", "fd", "eventfd")),
    "th-close": (16, ("thread",)),
    "th-offload": (1, ("thread",)),
}
PATIENT = 60  # for what is to happen, however busy the machine is

# Rules outlive a killed holder by retain.grace, and what they name stays in host memory as long.
SERVER_TIMERS = (
    "lease.suspect=300ms",
    "lease.dead=1s",
    "lease.warm=300ms",
    "poll.hold=100ms",
    "route.pair_block=3s",
    "route.crawl=500ms",
    "retain.grace=1s",
    "retain.release_after=100ms",
)
# Of two servers. What a frozen one needs to be given up: the others' own silence, and then some.
PEERS_TIMERS = ("peers.probe=100ms", "peers.silence=600ms", "peers.return=10m")
AGENT_TIMERS = (
    "server.beat=100ms",
    "server.reply=300ms",
    "server.silent=300ms",
    "leg.stall=300ms",
    "drain.timeout=2s",
)
# Where what others say or send may come seconds late, and nobody is to be given up for it.
CALM_SERVER = ("lease.suspect=20s", "lease.dead=30s")
CALM_AGENT = ("server.reply=5s", "server.silent=30s", "leg.stall=20s")

# party: host
HOST = {
    "server": 0,
    "source agent": 1,
    "reader agent": 2,
    "mate agent": 3,
    "source worker": 1,
    "reader worker": 2,
    "mate worker": 3,
    "other agent": 4,
    "other worker": 4,
}
AGENT_OF = {
    "source worker": "a",
    "reader worker": "b",
    "mate worker": "c",
    "other worker": "d",
}
AGENTS = {"source agent": "a", "reader agent": "b", "mate agent": "c", "other agent": "d"}
SHORT_OF_MEMORY = "mate agent"  # of its own: it keeps a copy of one shard, not of two
OTHERS = ("other agent", "other worker")
# handle: its worker, group, shard
HANDLES = {
    "t0": ("source worker", "t", 0),
    "t1": ("source worker", "t", 1),
    "r0": ("reader worker", "r", 0),
    "r1": ("mate worker", "r", 1),
    "x0": ("mate worker", "x", 0),
    "x1": ("mate worker", "x", 1),
    "o0": ("other worker", "o", 0),
    "o1": ("other worker", "o", 1),
}


def options(keys):
    return [word for key in keys for word in ("-o", key)]


class Failpoints:
    """The test's side of one process's failpoints (ipc/base/failpoint.h)."""

    def __init__(self, folder):
        self.folder = folder
        os.mkdir(folder)
        for name in ("reached", "go"):
            os.mkfifo(os.path.join(folder, name))
        self.reached = os.open(os.path.join(folder, "reached"), os.O_RDWR | os.O_NONBLOCK)
        self.env = {"TH_FAILPOINT_DIR": folder}

    def arm(self, text):
        self.passed()  # what was reported of earlier texts
        new = os.path.join(self.folder, "new")
        with open(new, "w") as f:
            f.write(text)
        os.rename(new, os.path.join(self.folder, "arm"))

    def wait(self, point, over):
        """False: it was not reached, not even a while after the calls were over: some points are
        passed when all have been answered."""
        seen, end = set(), None

        def look():
            nonlocal end
            seen.update(self.passed())
            if end is None and over():
                end = time.monotonic() + LATER
            return point in seen or (end and time.monotonic() > end)

        wait_for(look, PATIENT, "the failpoint")
        return point in seen

    def passed(self):
        """Those that were reported since the last time."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self.reached, 65536):
                data += more
        return data.decode().split()

    def go(self, alive):
        """Lets the paused thread go on; it may still be on its way to where it waits."""

        def let():
            try:
                os.close(os.open(os.path.join(self.folder, "go"), os.O_WRONLY | os.O_NONBLOCK))
                return True
            except OSError:
                return not alive()

        wait_for(let, PATIENT, "the paused thread takes its go")

    def close(self):
        os.close(self.reached)


def holdings(pid):
    """What a process has that it could leave behind, by kind."""
    kinds = {"memfd": 0, "eventfd": 0, "pidfd": 0, "socket": 0, "shm": 0, "fd": 0, "thread": 0}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            if gpus.STAGING in target:  # it belongs to the process of a GPU, and stays a while
                continue
            if "userfaultfd" in target:  # one for all memory of workers, from the first on
                continue
            kinds["fd"] += 1
            kinds["shm"] += target.startswith("/dev/shm")
            for kind in ("memfd", "eventfd", "pidfd", "socket"):
                kinds[kind] += kind in target
    with open(f"/proc/{pid}/maps") as f:
        kinds["mapping"] = sum("memfd:" in line and gpus.STAGING not in line for line in f)
    names = collections.Counter()
    for thread in os.listdir(f"/proc/{pid}/task"):
        kinds["thread"] += 1
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/comm") as f:
            names[f.read().strip()] += 1
    for name, (most, what) in KEPT.items():
        for kind in what:
            kinds[kind] -= min(names[name], most)
    return kinds


class Lane:
    """One cluster; cases run in it one after the other."""

    def __init__(
        self, c, namespaces, others=False, prefix=(), worker_env=None, standby=False, calm=False,
        keys=(), far=(),
    ):
        """prefix: in front of every daemon's command; worker_env: beside the workers' own; standby:
        a second server, without points (not with namespaces); calm: with timers that are long;
        keys: more of the server's; far: agents in another datacenter."""
        self.calm, self.keys, self.far = calm, tuple(keys), far
        self.c, self.version, self.cases, self.standby = c, 0, 0, standby
        self.before, self.worker_env = tuple(prefix), worker_env or {}
        self.parties = [p for p in HOST if others or p not in OTHERS]
        self.hosts = Hosts(c, 1 + max(HOST[p] for p in self.parties)) if namespaces else None
        self.points, self.workers = {}, {}
        for party in self.parties:
            self.points[party] = Failpoints(os.path.join(c.dir, party.replace(" ", "-")))
            c.cleanups.append(self.points[party].close)
        self.listen = f"tcp://{self.address('server')}:0"
        if standby:
            c.start_servers(args=self.server_args(), env=self.points["server"].env)
            c.server = c.servers[0]
        else:
            self.start("server")
            self.listen = c.server_url
        for party in (*AGENTS, *AGENT_OF):
            if party in self.parties:
                self.start(party)
        self.attached()
        self.baseline = {}

    def address(self, party):
        return Hosts.address(HOST[party]) if self.hosts else "127.0.0.1"

    def prefix(self, party):
        return self.hosts.prefix(HOST[party]) if self.hosts else ()

    @staticmethod
    def limit(party):
        return ("offload.limit=12MiB",) if party == SHORT_OF_MEMORY else ()

    def server_args(self):
        peers = PEERS_TIMERS if self.standby else ()
        calm = CALM_SERVER if self.calm else ()
        return options((*SERVER_TIMERS, *peers, *calm, *self.keys))

    def agent_args(self, party):
        calm = CALM_AGENT if self.calm else ()
        far = ("datacenter=far",) if party in self.far else ()
        return options((*AGENT_TIMERS, *self.limit(party), *calm, *far))

    def start(self, party):
        env, prefix = self.points[party].env, self.prefix(party)
        if party not in AGENT_OF:
            prefix = (*prefix, *self.before)
        if party == "server" and self.standby:
            self.c.server = self.c.server_of_list(0, self.server_args(), env=env)
            self.c.server.ready()
        elif party == "server":
            self.c.start_server(
                listen=self.listen, prefix=prefix, args=self.server_args(), env=env
            )
        elif party in AGENTS:
            self.c.agent(
                AGENTS[party],
                prefix=prefix,
                env=env,
                data=self.address(party),
                args=self.agent_args(party),
                runtime=os.path.join(self.c.dir, f"run-{AGENTS[party]}"),
            )
        else:
            env = {**env, **self.worker_env}
            w = self.c.worker(party.replace(" ", "-"), AGENT_OF[party], prefix=prefix, env=env)
            self.workers[party] = w
            w.call("metronome")
            for handle, (worker, _, _) in HANDLES.items():
                if worker == party:
                    w.call("alloc", total_bytes=SIZE, name=handle)

    def process(self, party):
        if party == "server":
            return self.c.server
        return self.c.agents[AGENTS[party]] if party in AGENTS else self.workers[party]

    def status(self, agent):
        """Attached; 5: a broken group, which is the worker's affair."""
        p = self.c.thctl("-o", "json", "status", agent=agent, check=False, timeout=PATIENT)
        return p.returncode in (0, 5) and json.loads(p.stdout)["attached"]

    def attached(self):
        for agent in self.c.agents:
            wait_for(lambda: self.status(agent), PATIENT, f"agent {agent} is attached")

    def restart_server(self):
        findings = self.c.replaced(self.c.server)
        assert not findings, findings
        self.start("server")

    def restart_dead(self):
        for party in self.parties:
            old = self.process(party)
            if not old.alive():
                findings = self.c.replaced(old)
                assert not findings, findings
                self.start(party)
        self.attached()

    def signal(self, party, signum):
        self.process(party).signal(signum)

    def measure(self):
        """What every process holds when no handle is open: of workers' memory an agent has none,
        once its threads that close it are done."""
        for agent in self.c.agents.values():
            kept = lambda a=agent: {k: holdings(a.pid)[k] for k in ("memfd", "mapping")}
            wait_for(lambda: not any(kept().values()), PATIENT, f"{agent.label} gives memory back")
        self.baseline = {p: holdings(self.process(p).pid) for p in self.parties}

    def nothing_left(self, problem):
        for party in self.parties:
            if not self.process(party).alive():
                yield problem(f"{party} ended with {self.process(party).p.poll()}")
                continue

            def excess():
                now = holdings(self.process(party).pid)
                return {k: v for k, v in now.items() if v > self.baseline[party][k]}

            try:
                wait_for(lambda: not excess(), PATIENT, "")
            except AssertionError:
                yield problem(f"{party} keeps {excess()} more than {self.baseline[party]}")
        for table in ("transfers", "workers"):
            seen = []

            def empty():
                p = self.c.thctl("ls", table, agent="a", check=False)
                seen[:] = [p.stderr or p.stdout]
                return p.returncode == 0 and len(p.stdout.strip().splitlines()) <= 1

            try:
                wait_for(empty, PATIENT, "")
            except AssertionError:
                yield problem(f"ls {table}: {seen[0]}")


class Life:
    """The groups of one model from open to close, once; every call goes into the history."""

    numbers = iter(range(1, 1 << 30))

    def __init__(self, lane, model, history):
        self.lane, self.model, self.history = lane, model, history
        self.number = next(Life.numbers)
        self.index = {h: 0 for h in HANDLES}
        self.version = None  # what the source holds, or has published last
        self.retain = None  # the rules that every group opens with
        self.by_name = False  # replicate what is the latest
        self.open, self.lock = set(), threading.Lock()

    # ---- one call ----

    def call(self, handle, cmd, timeout=DEADLINE, **args):
        """The Call, when it has ended."""
        party, group, shard = HANDLES[handle]
        w = self.lane.workers[party]
        spec = str(args.get("version", ""))
        c = Call(party, group, self.number, shard, -1, cmd, spec, timeout)
        if cmd in GROUP_CALLS:
            c.index = self.index[handle]
            self.index[handle] += 1
        try:
            ident = w.start(cmd, name=handle, timeout=timeout, **args)
            self.take(c, w.message(ident, timeout + PATIENT))
        except BrokenPipeError:
            c.code, c.text = "DIED", "its process has ended"
        if c.code == "ok" and cmd in ("replicate", "update"):
            c.version = c.version["version"] if c.version["updated"] else c.version.get("held")
        elif c.code == "ok" and cmd == "publish":
            c.version = args["version"]
        else:
            c.version = None
        if cmd in (*GROUP_CALLS, "resolve"):
            self.look(c, handle, w)
        with self.lock:
            return self.history.add(c)

    @staticmethod
    def take(c, message):
        c.code = message.get("error", "ok")
        c.text = message.get("text", "")
        c.seconds = message.get("seconds", 0.0)
        c.late = max(0.0, message.get("late", 0.0))
        c.version = message.get("value")

    def look(self, c, handle, w):
        """What the handle holds now, and whether its bytes are that."""
        with contextlib.suppress(Exception):  # a worker that is gone, a handle that is lost
            held = w.call("held", name=handle)
            if held is not None:
                c.held = held[1]
                c.wrong_at = w.call(
                    "compare", name=handle, version=c.held, shard=HANDLES[handle][2]
                )

    # ---- steps: tracks run side by side, a track ends at its first failure ----

    def tracks(self, *tracks):
        """Each a list of (handle, cmd, args). Threads; join() gives True when all went well."""
        outcomes, calls = [], {}

        def run(track):
            for handle, cmd, args in track:
                c = calls[handle] = self.call(handle, cmd, **args)
                if c.code != "ok":
                    outcomes.append(c)
                    return
                if cmd == "open":
                    self.open.add(handle)
                if cmd == "close":
                    self.open.discard(handle)

        threads = [threading.Thread(target=run, args=(t,), daemon=True) for t in tracks]
        for t in threads:
            t.start()
        return Running(threads, outcomes, calls)

    def opening(self, *handles):
        tracks = []
        for h in handles:
            _, group, shard = HANDLES[h]
            o = {"model": self.model, "replica": group, "shard": shard, "num_shards": 2}
            o["retain"] = self.retain
            tracks.append([(h, "open", dict(o, timeout=5)), (h, "register", {"timeout": 5})])
        return self.tracks(*tracks)

    def group(self, cmd, *handles, **args):
        return self.tracks(*([(h, cmd, args)] for h in handles))

    def stamp(self, group="t"):
        self.lane.version += 1
        for handle, (worker, of, shard) in HANDLES.items():
            if of == group:
                self.lane.workers[worker].call(
                    "stamp", name=handle, version=self.lane.version, shard=shard
                )
        return self.lane.version

    # ---- phases ----

    def phase_attach(self):
        """A new life of the reader's agent comes to the server."""
        lane, agent = self.lane, "reader agent"
        lane.c.replaced(lane.process(agent))
        lane.start(agent)
        lost = lambda: not (lane.process(agent).alive() and lane.process("server").alive())
        done = lambda: lost() or lane.status(AGENTS[agent])
        thread = threading.Thread(
            target=lambda: wait_for(done, PATIENT, "the agent is attached"), daemon=True
        )
        thread.start()
        return Running([thread], [], {})

    def phase_leave(self):
        """The reader's agent is told to end: its host is drained."""
        agent = self.lane.process("reader agent")
        agent.signal(signal.SIGTERM)
        thread = threading.Thread(
            target=lambda: wait_for(lambda: not agent.alive(), PATIENT, "the agent's end"),
            daemon=True,
        )
        thread.start()
        return Running([thread], [], {})

    def phase_open(self):
        return self.opening("t0", "t1", "r0", "r1")

    def phase_publish(self, **args):
        self.version = self.stamp()
        return self.group("publish", "t0", "t1", version=self.version, **args)

    def phase_replicate(self, **args):
        version = "latest" if self.by_name else str(self.version)
        return self.group("replicate", "r0", "r1", version=version, **args)

    def phase_idle(self):
        """Everybody holds what there is; the mate waits for a version that nobody makes."""
        return self.tracks([("r1", "wait_never", {"timeout": 1})])

    def phase_copy(self):
        assert self.opening("x0", "x1").join(), "the mate's second group"
        return self.group("replicate", "x0", "x1", version="latest")

    def phase_unpublish(self, **args):
        return self.group("unpublish", "t0", "t1", **args)

    def phase_update(self, **args):
        """From the source's next version; what was held is drained before."""
        return self.group("update", "r0", "r1", version="latest", **args)

    def phase_drain(self):
        """The source takes back what is being read: begin_drain() when the reader reads."""
        return self.phase_update()

    def begin_drain(self):
        return self.group("unpublish", "t0", "t1")

    def phase_unregister(self):
        return self.group("unregister", "t0", "t1")

    def phase_offload(self):
        """The last copy of what must stay: its agent keeps it."""
        return self.phase_unpublish()

    def phase_release(self):
        """Nobody wants it any more: the copy goes."""
        return self.phase_close()

    def phase_mate(self):
        """The mate's second group has a version of its own."""
        assert self.opening("x0", "x1").join(), "the mate's second group"
        self.version = self.stamp("x")
        return self.group("publish", "x0", "x1", version=self.version)

    def phase_refuse(self):
        """The last copy of what must stay, on an agent that keeps none: another one does."""
        return self.group("unpublish", "x0", "x1")

    def phase_rejoin(self):
        """A new server is told what there is."""
        self.lane.restart_server()
        return self.group("update", "r0", "r1", version="latest")

    def phase_close(self):
        tracks = []
        for h in sorted(self.open):
            tracks.append([(h, "close", {})])
        return self.tracks(*tracks)

    # ---- the way to a phase ----

    WAY = {
        "attach": (),
        "open": (),
        "publish": ("open",),
        "replicate": ("open", "publish"),
        "idle": ("open", "publish", "replicate"),
        "copy": ("open", "publish", "replicate"),
        "unpublish": ("open", "publish", "replicate"),
        "update": ("open", "publish", "replicate", "unpublish", "publish"),
        "drain": ("open", "publish", "replicate", "unpublish", "publish"),
        "unregister": ("open", "publish", "unpublish"),
        "offload": ("open", "publish"),
        "release": ("open", "publish", "offload"),
        "refuse": ("mate",),
        "rejoin": ("open", "publish", "replicate"),
        "leave": ("open", "publish", "replicate"),
        "close": ("open", "publish", "replicate"),
    }

    def go_to(self, phase):
        if phase in ("offload", "release", "refuse"):
            self.retain = "latest"
        for before in self.WAY[phase]:
            running = getattr(self, f"phase_{before}")()
            assert running.join(), f"on the way to {phase}, {before}: {running.failures()}"

    def resolve(self):
        """Outcomes that were unknown, once nothing fails any more."""
        last = {}
        for c in self.history.calls:
            if c.life == self.number and c.index >= 0:
                last[c.group, c.shard] = c
        for handle, (party, group, shard) in HANDLES.items():
            c = last.get((group, shard))
            if c and c.code == "UNKNOWN" and self.lane.workers[party].alive():
                r = self.call(handle, "resolve", timeout=5)
                r.index, r.spec = c.index, c.spec
                if r.code == "ok":
                    r.version = r.held
                r.cmd = c.cmd

    def abandon(self):
        """Every handle that may be open is given up, in whatever state it is."""
        for handle in sorted(self.open | {"t0", "t1", "r0", "r1"}):
            w = self.lane.workers[HANDLES[handle][0]]
            if not w.alive():
                continue
            message = w.message(w.start("close", name=handle, timeout=3), PATIENT)
            if message.get("error") not in (None, "PYTHON"):
                w.message(w.start("close", name=handle, timeout=1, abandon=True), PATIENT)
        self.open.clear()


    def aftermath(self):
        """Nothing fails any more. What is wrong?"""
        self.lane.restart_dead()
        self.resolve()
        self.abandon()
        problems = list(self.history.check())
        problems += recovers(self.lane, self.model)
        return problems + list(self.lane.nothing_left(str))


def begun(lane, model, phase):
    """A life that has come to this phase. The lane's timers are short: on a machine that is busy
    elsewhere one may fail on the way, where nothing is tested yet, and another is begun."""
    for left in reversed(range(WAYS)):
        life = Life(lane, f"{model}-{left}", History())
        try:
            if phase:
                life.go_to(phase)
            return life
        except AssertionError:
            if left == 0:
                raise
        problems = list(life.history.whole())  # late is forgiven here, wrong bytes are not
        assert not problems, problems
        print(f"  {phase} of {life.model} is begun anew")
        life.abandon()
        lane.attached()


class Running:
    """calls: the last one of each handle that has ended."""

    def __init__(self, threads, outcomes, calls):
        self.threads, self.outcomes, self.calls = threads, outcomes, calls

    def over(self):
        return not any(t.is_alive() for t in self.threads)

    def join(self):
        for t in self.threads:
            t.join(2 * PATIENT)
            assert not t.is_alive(), "a call hangs"
        return not self.outcomes

    def failures(self):
        return "; ".join(map(str, self.outcomes))


class Case:
    """One fault: when `where` reaches `point` in `phase`, `victim` suffers `action`."""

    def __init__(self, point, where, phase, victim, action):
        self.point, self.where, self.phase = point, where, phase
        self.victim, self.action = victim, action

    def __str__(self):
        return f"{self.action} {self.victim} when {self.where} is at {self.point} of {self.phase}"

    # ---- the fault ----

    def strike(self, lane):
        if self.action == "kill":
            lane.process(self.victim).kill()
        elif self.action == "stop":
            lane.signal(self.victim, signal.SIGSTOP)
        else:
            lane.hosts.cut(HOST[self.victim])

    def heal(self, lane):
        if self.action == "stop":
            lane.signal(self.victim, signal.SIGCONT)
        elif self.action == "cut":
            lane.hosts.cut(HOST[self.victim], up=True)

    def run(self, lane):
        """The sentences of what is wrong after it."""
        lane.cases += 1
        life, points = begun(lane, f"m{lane.cases}", self.phase), lane.points[self.where]
        history = life.history
        points.arm(f"{self.point}:pause")
        running = [getattr(life, f"phase_{self.phase}")()]
        reached = points.wait(self.point, running[0].over)
        if reached and self.phase == "drain":
            running.append(life.begin_drain())
        if reached:
            self.hit(lane, points, running)
        points.arm("")
        for r in running:
            r.join()
        self.calls = [c for c in history.calls if c.life == life.number]
        problems = [] if reached else ["the point was not reached"]
        problems += life.aftermath()
        return [f"{self}: {p}\n  " + "\n  ".join(map(str, history.calls)) for p in problems]

    def hit(self, lane, points, running):
        where, frozen = lane.process(self.where), self.victim == self.where
        self.strike(lane)
        if not (frozen and self.action == "stop"):
            points.go(where.alive)
        if self.action != "kill":
            end = time.monotonic() + HOLD
            over = lambda: all(r.over() for r in running) or time.monotonic() > end
            wait_for(over, PATIENT, "the calls, or the end of the fault")
        self.heal(lane)
        if frozen and self.action == "stop":
            points.go(where.alive)

class Passage:
    """No fault: in this phase all these (party, point) are passed. It is begun anew where a call
    failed, as it may on a machine that is busy elsewhere: the lane's timers are short."""

    def __init__(self, phase, points):
        self.phase, self.points, self.calls = phase, set(points), []

    def __str__(self):
        return f"the points of {self.phase}"

    def run(self, lane):
        for left in reversed(range(WAYS)):
            lane.cases += 1
            life = begun(lane, f"m{lane.cases}", self.phase)
            missing, failed = self.pass_all(lane, life)
            problems = [f"{self}: {p}" for p in life.aftermath()]
            if problems or not missing:
                return problems
            calls = "\n  ".join(map(str, life.history.calls))
            if not failed or left == 0:
                return [f"{self}: nobody has passed {missing}\n  {calls}"]
            print(f"  {self} are passed anew, they had no {missing}: {failed}")

    def pass_all(self, lane, life):
        """The points that are missing, in words, and what failed."""
        parties = {party for party, _ in self.points}
        for party in parties:
            # The phase says nothing to the process: a new text counts from the beginning.
            lane.points[party].arm(f"*:report,{lane.cases}")
        running, passed, end = [getattr(life, f"phase_{self.phase}")()], set(), None

        def all_passed():
            passed.update((p, point) for p in parties for point in lane.points[p].passed())
            return passed >= self.points

        def enough():
            nonlocal end
            if end is None and all(r.over() for r in running):
                end = time.monotonic() + LATER
            return all_passed() or (end and time.monotonic() > end)

        try:
            if self.phase == "drain":
                reads = ("reader agent", "leg_in_first_chunk")
                wait_for(lambda: enough() or reads in passed, PATIENT, "a leg")
                end = None
                running.append(life.begin_drain())
            wait_for(enough, PATIENT, "the points, or the end of the calls")
        finally:
            for party in parties:
                lane.points[party].arm("")
            for r in running:
                r.join()
        missing = ", ".join(f"{party}: {point}" for party, point in self.points - passed)
        return missing, "; ".join(r.failures() for r in running)


def recovers(lane, model):
    """The same names serve a new version within a bounded time."""
    end, last = time.monotonic() + PATIENT, None
    while time.monotonic() < end:
        history = History()
        life = Life(lane, model, history)
        # A server that has just started says what the latest is when all have told it.
        life.by_name = True
        try:
            life.go_to("close")
            got = {c.version for c in history.calls if c.cmd == "replicate"}
            assert got == {life.version}, f"the latest is {life.version}, not {got}"
            last = life.phase_close()
            if last.join():
                return list(history.check())
        except AssertionError as e:
            last = e
        life.abandon()
    return [f"it does not recover: {last if isinstance(last, Exception) else last.failures()}"]


def lane_of(c, namespaces=True, **kwargs):
    """A lane that has been through a whole life once, so that what stays by design is known."""
    lane = Lane(c, namespaces and netns_available(), **kwargs)
    problems = recovers(lane, "warm")
    assert not problems, problems
    lane.measure()
    return lane
