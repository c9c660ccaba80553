# SPDX-License-Identifier: Apache-2.0
"""Every call ends within its deadline + 1 s, whoever is frozen or gone, and says what is true.

A table: who (server, own agent, ...) x STOP or KILL x calls x timeouts. All calls of a row begin
side by side in one worker, each on a handle of its own, and are timed in that process.
"""

import signal
import time

from cluster import LONG, cluster, expect_error, main, wait_for

SIZE = 1 << 20
TIMEOUTS = (0, 0.2, 1.0, 5.0) if LONG else (0, 0.4)
GRACE = 1.0  # beyond its deadline, says thc.h
BUSY = 1.0  # the machine may be: threads are woken late
PATIENT = 60  # for what is to happen, however busy the machine is

# One handle for each: the last step before, the call, its arguments.
CALLS = {
    "register": ("alloc", "register", {}),
    "unregister": ("register", "unregister", {}),
    "publish": ("register", "publish", {"version": 100}),
    "unpublish": ("publish", "unpublish", {}),
    "replicate": ("register", "replicate", {"version": "1"}),
    "replicate_none": ("register", "replicate", {"version": "999999"}),
    "update": ("publish", "update", {"version": "1"}),
    "list": ("alloc", "list", {}),
    "list_grouped": ("alloc", "list", {"group": True}),
    "wait": ("alloc", "wait_never", {}),
    "manifest": ("alloc", "manifest", {"version": "1"}),
    "close": ("publish", "close", {}),
    # The package begins an operation and waits for it in Python; these wait inside libthc.
    "publish/inside": ("register", "inside", {"verb": "publish", "argument": 100}),
    "unpublish/inside": ("publish", "inside", {"verb": "unpublish", "argument": 0}),
    "replicate/inside": ("register", "inside", {"verb": "replicate", "argument": "1"}),
    "update/inside": ("publish", "inside", {"verb": "update", "argument": "1"}),
}
STEPS = ("open", "alloc", "register", "publish")
CHANGING = ("publish", "unpublish", "replicate", "replicate_none", "update")
PUBLISHED = ("unpublish", "update", "close")
PULLS = ("replicate", "replicate_none", "update")

# What may come of a call. Silence proves nothing: whoever is only frozen is not lost.
FROZEN = {"TIMEOUT", "UNKNOWN"}
NOT_THERE = {"AGENT_LOST", "NO_AGENT", "NO_SERVER"}


def verb(call):
    return call.split("/")[0]


def allowed(who, signum, call, name):
    stop = signum == signal.SIGSTOP
    if who == "own agent" and stop:
        return name in (FROZEN if call in CHANGING or call == "list_grouped" else {"TIMEOUT"})
    if who == "own agent":
        return name == {"close": "ok", "open": "NO_AGENT"}.get(call, "AGENT_LOST")
    if who != "server":
        return name not in NOT_THERE | {"INVALID", "STATE", "PROTOCOL", "DIED"}
    if call in PULLS:  # without the server there is no GO, so what it says is certain
        return name in {"TIMEOUT", "NO_SERVER"} if stop else name == "NO_SERVER"
    if call in ("unpublish", "close") and name == "ok":
        return True  # by the agent's own proof, where there was time for it
    return name in FROZEN | {"NO_SERVER"}


class Row:
    """Worker w of agent a has a handle for each call and timeout; replica "source" on agent b
    holds version 1; in groups of two worker mate of agent b has the other shard of each."""

    def __init__(self, c, num_shards):
        self.c, self.num_shards = c, num_shards
        self.a, self.b = c.agent("a"), c.agent("b")
        self.w, self.s = c.worker("w", "a"), c.worker("s", "b")
        self.mate = c.worker("mate", "b") if num_shards == 2 else None
        names = [f"source{shard}" for shard in range(num_shards)]
        opened = [
            {"name": n, "model": "m", "replica": "source", "shard": i, "num_shards": num_shards}
            for i, n in enumerate(names)
        ]
        for step, args in (
            ("open", opened),
            ("alloc", [{"name": n, "total_bytes": SIZE} for n in names]),
            ("register", [{"name": n} for n in names]),
            ("publish", [{"name": n, "version": 1} for n in names]),
        ):
            self.all_ok(self.s, [[step, a] for a in args])
        self.cells = [(call, t) for call in CALLS for t in TIMEOUTS]
        for step in STEPS:
            running = [
                (w, w.start("many", calls=self.prepare(step, shard)))
                for shard, w in enumerate((self.w, self.mate))
                if w
            ]
            for w, ident in running:
                self.check_ok(step, w.finish(ident))

    @staticmethod
    def check_ok(what, results):
        for name, _, text in results:
            assert name == "ok", f"{what}: {name}: {text}"

    def all_ok(self, worker, calls):
        self.check_ok(calls[0][0], worker.call("many", calls=calls))

    @staticmethod
    def handle(call, timeout):
        return f"{call}-{timeout}"

    def before(self, call, timeout):
        """The version that this handle holds before its call."""
        return 1000 + self.cells.index((call, timeout)) if verb(call) in PUBLISHED else None

    def prepare(self, step, shard):
        calls = []
        for call, timeout in self.cells:
            if STEPS.index(step) > STEPS.index(CALLS[call][0]):
                continue
            name = self.handle(call, timeout)
            args = {
                "open": {
                    "model": "m",
                    "replica": name,
                    "shard": shard,
                    "num_shards": self.num_shards,
                },
                "alloc": {"total_bytes": SIZE},
                "publish": {"version": self.before(call, timeout)},
            }
            calls.append([step, {"name": name, **args.get(step, {})}])
        return calls

    def run(self, who, signum):
        """The calls of the table; {cell: name}."""
        cells = self.cells + [("open", t) for t in TIMEOUTS]
        calls = []
        for call, timeout in cells:
            name = self.handle(call, timeout)
            _, cmd, args = CALLS.get(call, (None, "open", {"model": "m", "replica": name}))
            calls.append([cmd, {"name": name, "timeout": timeout, **args}])
        results = self.w.finish(self.w.start("many", calls=calls), max(TIMEOUTS) + PATIENT)
        outcomes = {}
        for (call, timeout), (name, seconds, text) in zip(cells, results):
            what = f"{who} {signum.name}: {call}({timeout}): {name} after {seconds:.2f} s: {text}"
            assert seconds <= timeout + GRACE + BUSY, what
            assert allowed(who, signum, verb(call), name), what
            if who == "own agent" and signum == signal.SIGKILL:
                assert seconds <= GRACE + BUSY, f"not at once: {what}"
            if who == "server" and signum == signal.SIGKILL and verb(call) == "update":
                assert seconds <= GRACE + BUSY, f"not at once: {what}"
            if name != "ok":
                assert len(text) > 15, what
            outcomes[call, timeout] = name
        return outcomes

    def unknown(self, outcomes):
        """After THC_E_UNKNOWN only thc_resolve and thc_close are accepted, in time too."""
        cells = [cell for cell, name in outcomes.items() if name == "UNKNOWN"]
        calls = []
        for cell in cells:
            name = self.handle(*cell)
            calls.append(["publish", {"name": name, "version": 5, "timeout": 0.2}])
            calls.append(["resolve", {"name": name, "timeout": 0.2}])
        results = self.w.call("many", calls=calls)
        for i, cell in enumerate(cells):
            (refused, _, text), (unknown, seconds, _) = results[2 * i : 2 * i + 2]
            assert refused == "STATE" and "thc_resolve" in text, (cell, refused, text)
            assert unknown == "UNKNOWN", (cell, unknown)
            assert seconds <= 0.2 + GRACE + BUSY, (cell, seconds)
        return cells

    def resolve(self, cells):
        """The outcome is known in the end; {cell: name}."""
        calls = [["resolve", {"name": self.handle(*c), "timeout": PATIENT}] for c in cells]
        results = self.w.finish(self.w.start("many", calls=calls), 2 * PATIENT)
        for cell, (name, _, text) in zip(cells, results):
            assert name not in NOT_THERE | {"UNKNOWN", "STATE"}, (cell, name, text)
        return {cell: result[0] for cell, result in zip(cells, results)}

    def holds(self, outcomes):
        """What the calls said is what the handles hold."""
        cells = [c for c in self.cells if verb(c[0]) in CHANGING]
        calls = [["held", {"name": self.handle(*c)}] for c in cells]
        for cell, (code, _, held) in zip(cells, self.w.call("many", calls=calls)):
            call, outcome = verb(cell[0]), outcomes[cell]
            assert code == "ok", (cell, code, held)
            version = held[1] if held else None
            after = {"publish": 100, "unpublish": None, "replicate": 1, "update": 1}
            what = f"{cell}: {outcome}, holds {version}"
            if outcome == "ok":
                # A relative or absolute name may also find nothing newer; here all name version 1.
                assert version == after[call], what
            elif outcome in ("TIMEOUT", "NO_SERVER") or call not in PULLS:
                assert version == self.before(*cell), what
            else:
                assert version in (None, self.before(*cell)), what

    def register_again(self):
        """A registration without an answer is undone by the next one."""
        names = [self.handle("register", t) for t in TIMEOUTS]
        for name in names:
            self.w.call("many", calls=[["unregister", {"name": name, "timeout": PATIENT}]])
        self.all_ok(self.w, [["register", {"name": n, "timeout": PATIENT}] for n in names])

    def close(self):
        names = [self.handle(*c) for c in self.cells]
        calls = [["close", {"name": n, "timeout": PATIENT}] for n in names]
        results = self.w.finish(self.w.start("many", calls=calls), 2 * PATIENT)
        for name, (code, _, text) in zip(names, results):
            # PYTHON: the row's own close was successful, so there is no such handle.
            assert code == "ok" or (code == "PYTHON" and name.startswith("close")), (name, text)


def experiment(who, signum):
    with cluster() as c:
        row = Row(c, 2 if who.startswith("member") else 1)
        victim = {
            "server": c.server,
            "own agent": row.a,
            "source's agent": row.b,
            "member": row.mate,
            "member's agent": row.b,
        }[who]
        stop = signum == signal.SIGSTOP
        try:
            victim.signal(signum)
            if not stop:
                victim.p.wait(PATIENT)
            outcomes = row.run(who, signum)
            # A source that is only slow to be noticed ends by itself; the others do not.
            unknown = []
            if who in ("server", "own agent"):
                unknown = row.unknown(outcomes)
            elif stop:
                unknown = [cell for cell, name in outcomes.items() if name == "UNKNOWN"]
        finally:
            if stop:
                victim.signal(signal.SIGCONT)
        if stop:
            outcomes.update(row.resolve(unknown))
            row.holds(outcomes)
            row.register_again()
        row.close()


def the_server():
    experiment("server", signal.SIGSTOP)
    experiment("server", signal.SIGKILL)


def the_own_agent():
    experiment("own agent", signal.SIGSTOP)
    experiment("own agent", signal.SIGKILL)


def the_agent_of_the_source():
    experiment("source's agent", signal.SIGSTOP)
    experiment("source's agent", signal.SIGKILL)


def another_member():
    experiment("member", signal.SIGSTOP)
    experiment("member", signal.SIGKILL)


def the_agent_of_another_member():
    experiment("member's agent", signal.SIGSTOP)
    experiment("member's agent", signal.SIGKILL)


def for_ever_waits_for_a_frozen_agent():
    with cluster() as c:
        a = c.agent("a")
        w = c.worker("w", "a")
        w.setup(SIZE, model="m", replica="w")
        a.signal(signal.SIGSTOP)
        try:
            start = time.monotonic()
            ident = w.start("publish", version=1, timeout=None)
            # Longer than any grace: no answer in this time is what is looked for.
            wait_for(lambda: w.finished(ident) or time.monotonic() - start > 1.5, PATIENT, "1.5 s")
            assert not w.finished(ident)
        finally:
            a.signal(signal.SIGCONT)
        w.finish(ident)
        assert w.call("held") == [0, 1]


def members_of_a_group_resolve_to_one_outcome():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        members = [c.worker("w0", "a"), c.worker("w1", "b")]
        opened = [
            w.start("open", model="m", replica="w", shard=i, num_shards=2)
            for i, w in enumerate(members)
        ]
        for w, ident in zip(members, opened):
            w.finish(ident)
            w.call("alloc", total_bytes=SIZE)
            w.call("register")
        c.server.signal(signal.SIGSTOP)
        try:
            calls = [w.start("publish", version=7, timeout=20) for w in members[:1]]
            calls.append(members[1].start("publish", version=7, timeout=0))
            expect_error("UNKNOWN", members[1].finish, calls[1])
        finally:
            c.server.signal(signal.SIGCONT)
        # With no time left at the second the first deadline ends it for both; or both came in time.
        outcomes = []
        for w, wait in ((members[0], lambda: members[0].finish(calls[0])),
                        (members[1], lambda: members[1].call("resolve", timeout=PATIENT))):
            try:
                wait()
                outcomes.append(("ok", w.call("held")))
            except Exception as e:
                outcomes.append((getattr(e, "name", repr(e)), w.call("held")))
        assert outcomes[0] == outcomes[1], outcomes
        assert outcomes[0] in (("ok", [0, 7]), ("TIMEOUT", None)), outcomes


def unpublish_without_a_server():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(SIZE, model="m", replica="w")
        r.setup(SIZE, model="m", replica="r")
        w.call("publish", version=1)
        c.server.signal(signal.SIGSTOP)
        try:
            # Noticed after three seconds of silence; then the own agent's proof is enough.
            w.call("unpublish", timeout=PATIENT)
            assert w.call("held") is None and w.call("safe") == 1
            w.call("fill", seed=2)
        finally:
            c.server.signal(signal.SIGCONT)
        # The server is told before it may be wrong for long, and the next version follows.
        w.call("publish", version=2, timeout=PATIENT)
        assert r.call("replicate", version="2", timeout=PATIENT)["updated"] == 1
        assert r.call("digest") == w.call("digest")
        listing = r.call("list")
        assert [v[:2] for v in listing["versions"]] == [[0, 2]], listing


if __name__ == "__main__":
    main(
        the_server,
        the_own_agent,
        the_agent_of_the_source,
        another_member,
        the_agent_of_another_member,
        for_ever_waits_for_a_frozen_agent,
        members_of_a_group_resolve_to_one_outcome,
        unpublish_without_a_server,
    )
