# SPDX-License-Identifier: Apache-2.0
"""What workers called and what came of it, and the rules that hold whatever fails.

A Call is one call of one handle. check() yields a sentence for each breach:

  in time      no call ends later than its deadline + 1 s, plus what the machine is to blame for:
               how late it woke a thread of that process meanwhile
  whole        what a handle holds after a call is that version, each byte of it
  one outcome  the n-th operation of a group is not a success for one member and a failure for
               another; a member that was told nothing (UNKNOWN), or lost agent or group, says
               nothing about the others. Nor does NO_SERVER of an update beside a member that was
               told that there is nothing new (see alone_without_server)
  kept         an update that found no server has changed nothing
  forward      latest never brings a handle to an older version than it held
  known        every code is one that the call may return, with a sentence
"""

from dataclasses import dataclass, field

GRACE = 1.0  # thc.h
BUSY = 0.25  # a process under a sanitizer that was woken in time still has to run

GROUP_CALLS = ("publish", "unpublish", "replicate", "update")
# Nobody has told this member how the operation ended.
UNTOLD = {"UNKNOWN", "AGENT_LOST", "NO_AGENT", "DIED", "GROUP_BROKEN", "CANCELLED"}
NEVER = {"PYTHON", "INVALID", "PROTOCOL", "CONTRACT", "CHECKSUM", "GROUP_MISMATCH", "FORKED"}


@dataclass
class Call:
    party: str  # whose process
    group: str  # of the handle; "" for calls that are no group's
    life: int  # of the group: a new one each time it is opened
    shard: int
    index: int  # of the group's operations; -1: none
    cmd: str
    spec: str
    timeout: float
    seconds: float = 0.0
    late: float = 0.0
    code: str = "ok"
    text: str = ""
    version: int | None = None  # what success brought
    held: int | None = None  # after the call, as the handle says
    wrong_at: int | None = None  # the first 64 KiB that are not of the held version

    def __str__(self):
        how = f"-> {self.code}" + (f" version {self.version}" if self.version is not None else "")
        return (
            f"{self.party} {self.group}/{self.shard} life {self.life} op {self.index}: {self.cmd}"
            f"({self.spec}, {self.timeout} s) {how} after {self.seconds:.2f} s (late "
            f"{self.late:.2f} s), holds {self.held} {self.text}"
        )


@dataclass
class History:
    calls: list = field(default_factory=list)

    def add(self, call):
        self.calls.append(call)
        return call

    def check(self):
        yield from self.in_time()
        yield from self.whole()
        yield from self.one_outcome()
        yield from self.kept()
        yield from self.forward()
        yield from self.known()

    def in_time(self):
        for c in self.calls:
            if c.code != "DIED" and c.seconds > c.timeout + GRACE + BUSY + 2 * c.late:
                yield f"too late: {c}"

    def whole(self):
        for c in self.calls:
            if c.wrong_at is not None:
                yield f"wrong bytes at {c.wrong_at}: {c}"

    def one_outcome(self):
        operations, apart = {}, {}
        for c in self.calls:
            if c.index < 0 or c.cmd not in GROUP_CALLS:
                continue
            life = c.group, c.life
            if c.cmd == "update" and c.code == "NO_SERVER":
                apart[life] = min(c.index, apart.get(life, c.index))
            if c.code not in UNTOLD:
                operations.setdefault((life, c.index), []).append(c)
        for (life, index), calls in operations.items():
            if index > apart.get(life, index):
                continue
            if len({(c.code == "ok", c.version) for c in calls}) == 1:
                continue
            if not self.alone_without_server(calls):
                yield "two outcomes: " + "; ".join(map(str, calls))

    @staticmethod
    def alone_without_server(calls):
        """Update waits for no server, so the agent that reaches none answers its member at once and
        by itself. It may, as long as it has not said that it is prepared: without that word the
        operation never begins, for nobody. So a mate may hear from the server that there is nothing
        new, or that the operation has failed, and each of them holds what it held; but no mate may
        have got new bytes. Whether the operation's number is used up depends on what the server
        got to know: by its index no later call can be said to be the same operation as a mate's."""
        return all(
            c.cmd == "update" and (c.code != "ok" or c.version is None) for c in calls
        ) and any(c.code == "NO_SERVER" for c in calls)

    def kept(self):
        last = {}
        for c in self.calls:
            key = c.party, c.group, c.life, c.shard
            before = last.get(key)
            last[key] = c
            # What had no outcome may still have come to one.
            if before is None or before.code == "UNKNOWN" or c.code != "NO_SERVER":
                continue
            if c.cmd == "update" and None not in (before.held, c.held) and c.held != before.held:
                yield f"held {before.held} before and found no server: {c}"

    def forward(self):
        held = {}
        for c in self.calls:
            key = (c.party, c.group, c.life, c.shard)
            before = held.get(key)
            if c.spec.startswith("latest") and before is not None and c.held is not None:
                if c.held < before:
                    yield f"held {before} before: {c}"
            if c.held is not None:
                held[key] = c.held

    def known(self):
        for c in self.calls:
            if c.code in NEVER:
                yield f"a code that no fault excuses: {c}"
            elif c.code not in ("ok", "DIED") and len(c.text) < 15:
                yield f"no sentence: {c}"
