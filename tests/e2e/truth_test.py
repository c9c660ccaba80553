# SPDX-License-Identifier: Apache-2.0
"""thc_held_version and thc_safe_to_mutate are true at every moment: asked all the time by a thread
of the reader, through updates in which sources are killed and stopped."""

import random
import signal
import time

from cluster import LONG, RemoteError, cluster, main, wait_for

SIZE = 8 << 20
UPDATES = 100 if LONG else 30
POLLS = 200_000 if LONG else 20_000
PATIENT = 60
# In these updates of every ten a source of the version goes away: another has it too, except where
# the version ends with its source. That takes the server ten seconds to be sure of.
FAULTS = {
    3: ("worker", signal.SIGKILL, True),
    5: ("agent", signal.SIGSTOP, True),
    7: ("agent", signal.SIGKILL, True),
}
KILLS = {k: v for k, v in FAULTS.items() if v[1] == signal.SIGKILL}
if LONG:
    FAULTS.update({8: ("agent", signal.SIGSTOP, False), 9: ("agent", signal.SIGKILL, False)})
ENDS = ("ok", "VERSION_LOST", "NO_PATH", "NOT_AVAILABLE", "TIMEOUT")


class Source:
    def __init__(self, c, number):
        self.c, self.agent = c, c.agent(f"a{number}")
        self.worker = c.worker(f"w{number}", self.agent)
        self.worker.setup(SIZE, model="m", replica=f"source{number}")

    def publish(self, version):
        self.worker.call("fill_words", word=version)
        self.worker.call("publish", version=version)

    def unpublish(self):
        """And proves that nobody reads: what is written then must never be seen anywhere."""
        self.worker.call("unpublish", timeout=PATIENT)
        assert self.worker.call("safe") == 1
        self.worker.call("scribble", byte=0xEE)


def pull(r, cmd, version, meanwhile=lambda: None):
    """What update or replicate comes to in the end."""
    ident = r.start(cmd, version=version, timeout=PATIENT)
    meanwhile()
    try:
        r.finish(ident, 2 * PATIENT)
        return "ok"
    except RemoteError as e:
        if e.name != "UNKNOWN":
            return e.name
    try:
        r.call("resolve", timeout=PATIENT)
        return "ok"
    except RemoteError as e:
        return e.name


def seen(r, what):
    """The thread comes to look at it, however busy the machine is."""
    before = r.call("truth")[what]

    def looked():
        now = r.call("truth")
        assert now["error"] is None, now
        return now[what] > before

    wait_for(looked, PATIENT, f"a look at what is {what}")


def updates_with_sources_that_die():
    rng = random.Random(7)
    with cluster() as c:
        b = c.agent("b")
        r = c.worker("r", "b")
        r.setup(SIZE, model="m", replica="r")
        holder, spare, number = Source(c, 0), Source(c, 1), 2
        holder.publish(1)
        r.call("replicate", version="1", timeout=PATIENT)
        r.call("truth_start")
        ends, kept = {}, 1
        for version in range(2, UPDATES + 2):
            spare.publish(version)
            fault = FAULTS.get(version % 10) if version < 10 or LONG else KILLS.get(version % 10)
            if fault and fault[2]:
                holder.unpublish()
                holder.publish(version)
                kept = version

            def meanwhile():
                if fault:
                    time.sleep(rng.random() * 0.012)  # any moment of the transfer
                    getattr(spare, fault[0]).signal(fault[1])

            if version % 4 == 0:
                # Between both it holds nothing, and nobody touches its memory.
                r.call("unpublish", timeout=PATIENT)
                seen(r, "safe")
                end = pull(r, "replicate", str(version), meanwhile)
            else:
                end = pull(r, "update", "latest", meanwhile)
            assert end in ENDS, end
            what = f"{fault[0]} {fault[1].name}: {end}" if fault else end
            ends[what] = ends.get(what, 0) + 1
            if r.call("held") is None:
                # What was mixed heals with a version that is still there.
                assert pull(r, "replicate", str(kept)) == "ok"
            seen(r, "held")
            if fault:
                if fault[1] == signal.SIGSTOP:
                    spare.agent.signal(signal.SIGCONT)
                spare, number = Source(c, number), number + 1
            else:
                assert end == "ok"
                holder.unpublish()
                holder, spare, kept = spare, holder, version
        truth = r.call("truth_end", polls=POLLS)
        print(f"  {truth}, {ends}")
        assert truth["error"] is None, truth
        # The reader's own agent goes: nothing is held any more, and its end is the proof.
        b.kill()

        def lost():
            try:
                r.call("held")
            except RemoteError as e:
                assert e.name == "AGENT_LOST", e
                return True

        wait_for(lost, PATIENT, "the agent's end is seen without a call to it")
        assert r.call("safe") == 1, "an agent that has ended cannot write"


if __name__ == "__main__":
    main(updates_with_sources_that_die)
