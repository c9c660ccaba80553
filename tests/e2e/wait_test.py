# SPDX-License-Identifier: Apache-2.0
"""thc_wait itself: where the predicate runs and what it may do, several threads of a handle, what
ends a wait, and what a thousand waiters cost the server."""

import json
import os
import signal
import subprocess
import threading
import time

import cluster

cluster.with_library()

import library
import memory_kinds
import raw
from tensorhub import Error, _abi


def opened(cl, agent, replica, **options):
    return library.opened(cl.agents[agent], replica, **options)


def publisher(cl, agent, replica="trainer"):
    shard = opened(cl, agent, replica)
    shard.register({"w": memory_kinds.Tensor(memory_kinds.Allocated(4096), [4096])})
    return shard


def has(version):
    return lambda listing: version in listing


def in_thread(function, *args):
    """Runs it beside; .result() gives what it returned or raises what it raised."""
    box = {}

    def run():
        try:
            box["value"] = function(*args)
        except BaseException as e:
            box["error"] = e

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result(seconds=60):
        thread.join(seconds)
        assert not thread.is_alive(), "it does not end"
        if "error" in box:
            raise box["error"]
        return box["value"]

    thread.result = result
    return thread


def sleeping(shard, predicate, timeout):
    """A thread in thc_wait whose predicate has been asked and said no."""
    asked = threading.Event()

    def judge(listing):
        asked.set()
        return predicate(listing)

    thread = in_thread(raw.wait, shard, judge, timeout)
    assert asked.wait(60)
    return thread


def predicates_run_in_the_calling_thread_under_no_lock():
    with cluster.cluster() as cl:
        cl.agent("a")
        trainer, waiter, other = publisher(cl, "a"), opened(cl, "a", "w"), opened(cl, "a", "o")
        trainer.publish(1)
        generations, threads = [], set()

        def judge(listing):
            generations.append(listing.generation)
            threads.add(threading.get_ident())
            # Other handles and this one, also a wait within the wait.
            assert has(1)(other.list())
            assert waiter.list().generation >= listing.generation
            assert waiter.manifest("latest").version in (1, 2)
            raw.wait(waiter, lambda inner: inner.generation >= listing.generation)
            error = cluster.expect_error("STATE", waiter.close)
            assert "predicate" in str(error)
            return has(2)(listing)

        second = publisher(cl, "a", "second")
        thread = in_thread(raw.wait, waiter, judge, 60)
        cluster.wait_for(lambda: generations, 30, "the first look")
        second.publish(2)
        thread.result()
        assert len(threads) == 1 and threads != {threading.get_ident()}
        assert generations == sorted(generations) and len(generations) == len(set(generations))
        # True at once, whatever number says so; and nothing to wait for.
        raw.wait(waiter, has(1), timeout=0)
        assert _abi.call("thc_wait", waiter._shard, _abi.PREDICATE(lambda *_: -7), None, 0) == 0
        assert "predicate" in str(cluster.expect_error("TIMEOUT", raw.wait, waiter, has(3), 0))
        start = time.monotonic()
        cluster.expect_error("TIMEOUT", raw.wait, waiter, has(3), 0.3)
        assert time.monotonic() - start >= 0.3
        for shard in (trainer, second, waiter, other):
            shard.close()


def threads_of_one_handle_wait_beside_its_operations():
    with cluster.cluster() as cl:
        cl.agent("a")
        shard = publisher(cl, "a")
        # More than a handle has slots: they share what they wait for.
        waits = [sleeping(shard, has(i % 3 + 1), 120) for i in range(80)]
        for version in (1, 2, 3):
            shard.publish(version)
            for i in range(version - 1, 80, 3):
                waits[i].result()
            shard.unpublish()
        # One whose deadline is near does not end it for the others.
        patient = sleeping(shard, has(4), 120)
        cluster.expect_error("TIMEOUT", raw.wait, shard, has(4), 0.1)
        shard.publish(4)
        patient.result()
        # Closing ends them.
        last = sleeping(shard, has(9), 120)
        shard.unpublish()
        shard.close()
        cluster.expect_error("CANCELLED", last.result)


def a_wait_ends_when_nobody_can_say_what_changes():
    with cluster.cluster() as cl:
        for name in "abc":
            cl.agent(name)
        # A member of the group is gone.
        members = [opened(cl, "a", "pair", shard=i, num_shards=2) for i in range(2)]
        wait = sleeping(members[0], has(9), 120)
        members[1].close()
        cluster.expect_error("GROUP_BROKEN", wait.result)
        # The agent is gone.
        shard = opened(cl, "b", "on-b")
        wait = sleeping(shard, has(9), 120)
        cl.agents["b"].kill()
        cluster.expect_error("AGENT_LOST", wait.result)
        cluster.expect_error("AGENT_LOST", raw.wait, shard, has(9), 120)
        shard.close()
        # The server is stopped: silence, not an end.
        shard = opened(cl, "c", "on-c")
        wait = sleeping(shard, has(9), 120)
        cl.server.signal(signal.SIGSTOP)
        try:
            error = cluster.expect_error("NO_SERVER", wait.result)
            assert "thctl status" in str(error)
            cluster.expect_error("NO_SERVER", raw.wait, shard, has(9), 120)
            cluster.expect_error("NO_SERVER", shard.list)
        finally:
            cl.server.signal(signal.SIGCONT)

        # And comes back: the handle is as it was.
        def listed():
            try:
                return shard.list() is not None
            except Error as e:
                assert e.name == "NO_SERVER", e

        cluster.wait_for(listed, 60, "the server answers again")
        in_time = sleeping(shard, lambda _listing: True, 120)
        in_time.result()
        shard.close()


class Waiters(cluster.Process):
    def __init__(self, cl, agent, handles, threads):
        super().__init__(
            cl,
            "waiters",
            [
                os.path.join(cluster.BUILD, "tests", "e2e", "waiters"),
                "m",
                str(handles),
                str(threads),
            ],
            env={"THC_AGENT": cl.agents[agent].runtime},
            stdin=subprocess.PIPE,
        )
        assert self.line() == "open"

    def line(self):
        line = self.p.stdout.readline().decode()
        assert line, f"{self.label} ended: {self.tail()}"
        return line.strip()

    def begin(self, version, timeout=600):
        self.p.stdin.write(f"{version} {timeout * 1000}\n".encode())
        self.p.stdin.flush()
        assert self.line() == "looked"

    def end(self):
        words = self.line().split()
        assert words[0] == "ended", words
        return {k: int(v) for k, v in (w.split("=") for w in words[1:])}


def server_counters(cl):
    p = cl.thctl("-s", cl.server_url, "-o", "json", "status")
    return {c["name"]: c["value"] for c in json.loads(p.stdout)["counters"]}


def a_thousand_waiters_cost_a_message_and_a_listing_a_change():
    handles, threads = (25, 4) if cluster.SANITIZED else (125, 8)
    with cluster.cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        # A trainer a version: each publish is one change of the listing.
        trainers = [publisher(cl, "a", f"trainer{i}") for i in range(4)]
        waiters = Waiters(cl, "b", handles, threads)
        for version in range(1, 4):
            # Every predicate was asked: nothing is under way.
            waiters.begin(version)
            before = server_counters(cl)
            trainers[version].publish(version)
            assert waiters.end()["0"] == handles * threads
            after = server_counters(cl)
            delta = {k: after[k] - before[k] for k in after}
            assert delta["changes_told"] == 1 and delta["lists"] == 1, delta
        counters = json.loads(cl.thctl("-o", "json", "status", agent="b").stdout)["counters"]
        counters = {c["name"]: c["value"] for c in counters}
        assert counters["listings_given"] >= 6 * handles * threads, counters
        waiters.p.stdin.close()
        assert waiters.p.wait(60) == 0
        # Nobody is left who would want to hear of it.
        cluster.wait_for(lambda: server_counters(cl)["watches_open"] == 0, 60, "the watch ends")
        told = server_counters(cl)["changes_told"]
        trainers[0].publish(50)
        trainers[0].unpublish()
        assert server_counters(cl)["changes_told"] == told
        for trainer in trainers:
            trainer.close()


if __name__ == "__main__":
    cluster.main(
        predicates_run_in_the_calling_thread_under_no_lock,
        threads_of_one_handle_wait_beside_its_operations,
        a_wait_ends_when_nobody_can_say_what_changes,
        a_thousand_waiters_cost_a_message_and_a_listing_a_change,
    )
