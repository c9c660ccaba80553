# SPDX-License-Identifier: Apache-2.0
"""Operators: a node is drained while transfers run, what it waits for is named, a replica is
evicted, events are followed; an agent that is told to end lets what runs end."""

import json
import os
import signal
import time

from cluster import BUILD, Process, cluster, expect_error, main, wait_for, with_library

with_library()
import library
import memory_kinds
import raw
import tensorhub as th
from tensorhub import _abi

OK, FAILED, DEGRADED, TIMED_OUT = 0, 1, 5, 6
SIZE = 256 << 20


def with_memory(c, agent, replica, nbytes=1 << 20, **options):
    shard = library.opened(c.agents[agent], replica, **options)
    memory = memory_kinds.wanted(nbytes)
    shard.register({"a": memory_kinds.Tensor(memory, [nbytes])})
    return shard, memory


def operator(c, *args, **kwargs):
    """Asks the server itself; the answer as JSON."""
    p = c.thctl("-s", c.server_url, "-o", "json", *args, **kwargs)
    return json.loads(p.stdout) if p.stdout else None


def attached(c, *nodes):
    """A daemon is ready before the server knows it."""

    def all_there():
        there = {n["node"] for n in operator(c, "ls", "nodes")["nodes"] if n["state"] == "active"}
        return there >= set(nodes)

    wait_for(all_there, 30, f"{nodes} are attached")


def evict(c, replica):
    answer = operator(c, "evict", "--model", "m", "--replica", replica, "--yes")
    assert answer["schema"] == "thctl/1" and answer["state"] == "evicted", answer


def an_evicted_replica_says_so_in_every_call():
    with cluster() as c:
        c.agent("a")
        holder, _ = with_memory(c, "a", "holder")
        holder.publish(1)
        waiting, _ = with_memory(c, "a", "waiting")
        op = waiting.replicate_async("9")
        bare = library.opened(c.agents["a"], "bare")
        evict(c, "holder")
        wait_for(lambda: holder.events() & th.Event.EVICTED, 20, "the event")
        assert not holder.events() & th.Event.EVICTED, "it is told once"
        for call, *args in (
            (holder.publish, 2),
            (holder.replicate, "1"),
            (holder.update, "latest"),
            (holder.unregister,),
            (lambda: holder.list(group=True),),
            (holder.wait, lambda _: False),
            (raw.inside, holder, "publish", 2),
            (raw.inside, holder, "replicate", "1"),
            (raw.inside, holder, "update", "latest"),
            (raw.inside, holder, "unpublish", 0),
            (raw.inside, holder, "list", _abi.LIST_GROUP),
            (raw.wait, holder, lambda _: False),
        ):
            e = expect_error("EVICTED", call, *args)
            assert "operator" in str(e) and "open again" in str(e), e
        evict(c, "waiting")
        expect_error("EVICTED", op.result)
        evict(c, "bare")
        tensors = {"a": memory_kinds.Tensor(memory_kinds.Allocated(4096), [4096])}
        wait_for(lambda: bare.events() & th.Event.EVICTED, 20, "the event")
        expect_error("EVICTED", bare.register, tensors)
        expect_error("EVICTED", holder.unpublish)
        for shard in (holder, waiting, bare):
            shard.close()
        # The name is free again, and the evicted version gone.
        again, _ = with_memory(c, "a", "holder")
        assert not again.list().all
        again.publish(1)
        again.close()


class Reader:
    """A transfer to agent b that was stopped in the middle, by a signal to `process`. On a fast
    or busy host it may be over before: then it is tried again."""

    def __init__(self, c, process, timeout):
        self.memory = memory_kinds.wanted(SIZE)
        tensors = {"a": memory_kinds.Tensor(self.memory, [SIZE])}
        for _ in range(50):
            self.shard = library.opened(c.agents["b"], "reader")
            self.shard.register(tensors)
            self.op = self.shard.replicate_async("1", timeout=timeout)
            wait_for(self.begun, 30, "it has begun")
            process.signal(signal.SIGSTOP)
            if not self.op.done():
                return
            process.signal(signal.SIGCONT)
            self.close()
        raise AssertionError("each of 50 transfers was over too soon")

    def begun(self):
        return self.op.progress[0] > 0 or self.op.done()

    def close(self):
        self.op = None
        self.shard.close()


def an_evicted_replica_cannot_resolve():
    """Evicted after its bytes have been overwritten: the outcome of what had begun is that."""
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        source, _ = with_memory(c, "a", "source", SIZE)
        source.publish(1)
        reader = Reader(c, a, timeout=1)
        try:
            expect_error("UNKNOWN", reader.op.result)
            evict(c, "reader")
            expect_error("EVICTED", reader.shard.resolve, timeout=30)
        finally:
            a.signal(signal.SIGCONT)
        reader.close()
        source.close()


class Watch(Process):
    """thctl beside the test: what it says lies in its log."""

    def __init__(self, c, label, *args):
        super().__init__(
            c, label, [os.path.join(BUILD, "tools", "thctl"), "-s", c.server_url, *args]
        )

    def said(self, text, seconds=30):
        wait_for(lambda: text in self.tail() or not self.alive(), seconds, f"{self.label}: {text}")
        assert text in self.tail(), self.tail()

    def finish(self, seconds=60):
        out = self.p.communicate(timeout=seconds)[0].decode()
        return self.p.returncode, out


def a_drain_names_its_blocker_and_survives_its_watcher():
    with cluster() as c:
        c.agent("a")
        b = c.agent("b")
        source, _ = with_memory(c, "a", "source", SIZE)
        source.publish(1)
        follow = Watch(c, "follow", "-o", "json", "events", "--follow")
        reader = Reader(c, b, timeout=60)
        try:
            watch = Watch(c, "watch", "drain", "a", "--watch")
            watch.said("replica reader on node b reads shard 0 of version 1 of m")
            watch.signal(signal.SIGINT)
            code, _ = watch.finish()
            assert code == FAILED, watch.tail()
            assert f"-s {c.server_url} undrain a" in watch.tail() and "goes on" in watch.tail()
            p = c.thctl("-s", c.server_url, "drain", "a", "--timeout", "300ms", check=False)
            assert p.returncode == TIMED_OUT, p
            answer = operator(c, "drain", "a")
            assert answer["state"] == "draining" and answer["num_blockers"] == 1, answer
            blocker = answer["blockers"][0]
            assert blocker["kind"] == "transfer" and blocker["ends_by_itself"], blocker
            assert answer["workers"] == 1 and answer["transfers_out"] == 1, answer
            # Nothing new is opened there, and it is shown.
            e = expect_error("STATE", library.opened, c.agents["a"], "late")
            assert "drained" in str(e), e
            nodes = {n["node"]: n for n in operator(c, "ls", "nodes")["nodes"]}
            assert nodes["a"]["draining"] and not nodes["b"]["draining"]
            status = json.loads(c.thctl("-o", "json", "status", agent="a").stdout)
            assert status["draining"] and not status["leaving"]
        finally:
            b.signal(signal.SIGCONT)
        again = Watch(c, "again", "-o", "json", "drain", "a", "--watch", "--timeout", "60s")
        code, out = again.finish()
        assert code == OK and json.loads(out)["state"] == "empty", (code, out, again.tail())
        assert reader.op.result(60).version == 1
        # What is open goes on, also with something new.
        source.unpublish()
        source.publish(2)
        assert operator(c, "undrain", "a")["state"] == "active"
        library.opened(c.agents["a"], "late").close()
        source.close()
        reader.close()
        wait_for_event(follow, "node a is being drained: thctl")
        wait_for_event(follow, "node a is empty")
        wait_for_event(follow, "node a is not drained any more")
        follow.signal(signal.SIGTERM)
        follow.finish()


def wait_for_event(follow, text, seconds=30):
    """follow prints an object a line."""
    if not hasattr(follow, "lines"):
        follow.lines, follow.rest = [], b""
        os.set_blocking(follow.p.stdout.fileno(), False)
    end = time.monotonic() + seconds
    while not any(text in line["text"] for line in follow.lines):
        assert time.monotonic() < end, (text, follow.lines)
        try:
            follow.rest += os.read(follow.p.stdout.fileno(), 65536)
        except BlockingIOError:
            time.sleep(0.02)
        *whole, follow.rest = follow.rest.split(b"\n")
        for line in whole:
            event = json.loads(line)
            assert event["schema"] == "thctl/1" and event["severity"] in (
                "info",
                "warning",
                "error",
            )
            follow.lines.append(event)


def an_agent_that_is_told_to_end_lets_what_runs_end():
    with cluster() as c:
        a, b = c.agent("a", args=["-o", "drain.timeout=60s"]), c.agent("b")
        source, memory = with_memory(c, "a", "source", SIZE)
        idle, _ = with_memory(c, "a", "idle")
        memory.fill(7)
        source.publish(1)
        reader = Reader(c, b, timeout=60)
        a.signal(signal.SIGTERM)
        try:
            status = lambda: json.loads(c.thctl("-o", "json", "status", agent="a").stdout)
            wait_for(lambda: status()["leaving"], 20, "it leaves")
            expect_error("CANCELLED", idle.publish, 5)
            expect_error("CANCELLED", idle.update, "latest")
            assert a.alive(), a.tail()
        finally:
            b.signal(signal.SIGCONT)
        assert a.p.wait(60) == 0, a.tail()
        assert reader.op.result(60).version == 1
        assert reader.memory.read(SIZE - 4096, 4096) == bytes([7]) * 4096
        reader.close()
        # It was its own end, not an operator's drain: the next agent of the node takes work.
        c.agent("a")
        again, _ = with_memory(c, "a", "source")
        again.publish(2)
        again.close()


def a_drain_outlives_agent_and_server():
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        attached(c, "a", "b")
        assert operator(c, "drain", "a")["state"] == "empty"
        # The server starts again: the agent knows it still.
        url = c.server_url
        c.server.kill()
        c.start_server(listen=url)
        attached(c, "a")
        expect_error("STATE", library.opened, c.agents["a"], "late")
        # The agent starts again: the server knows it still.
        assert a.terminate() == 0
        c.agent("a")
        wait_for(
            lambda: json.loads(
                c.thctl("-o", "json", "status", agent="a", check=False).stdout or "{}"
            ).get("draining"),
            30,
            "the new agent hears of it",
        )
        expect_error("STATE", library.opened, c.agents["a"], "late")
        operator(c, "undrain", "a")
        library.opened(c.agents["a"], "late").close()


def a_last_copy_moves_and_is_fetched_when_its_host_is_gone():
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        c.agent("c")
        attached(c, "a", "b", "c")
        source, memory = with_memory(c, "a", "source", 8 << 20, retain="latest")
        memory.fill(9)
        source.publish(1)
        watch = Watch(c, "watch", "-o", "json", "drain", "a", "--watch", "--timeout", "60s")
        code, out = watch.finish(90)
        assert code == OK and json.loads(out)["state"] == "empty", (code, out, watch.tail())
        assert "version 1 of m is retained and only here" in watch.tail(), watch.tail()
        a.kill()
        reader, got = with_memory(c, "c", "reader", 8 << 20)
        assert reader.replicate("1", timeout=60).version == 1
        assert got.read(0, 8 << 20) == bytes([9]) * (8 << 20)
        reader.close()


def a_blocked_drain_is_not_over_with_a_new_server():
    """Nobody has room for the last copy. A server that is started again does not call the node
    empty before it knows what is there, and an agent that is told to end says what it waits for."""
    with cluster() as c:
        a = c.agent("a", args=["-o", "drain.timeout=3s"])
        c.agent("b", args=["--offload-limit", "0"])
        attached(c, "a", "b")
        source, _ = with_memory(c, "a", "source", 8 << 20, retain="latest")
        source.publish(1)
        # Nothing has to be tried to know that, so nobody has to ask twice.
        p = c.thctl("-s", c.server_url, "drain", "a", check=False)
        assert p.returncode == DEGRADED and "no other host has memory" in p.stdout, p
        watch = Watch(c, "watch", "drain", "a", "--watch")
        watch.said("no other host has memory")
        url = c.server_url
        c.server.kill()
        c.start_server(listen=url)
        collected = False
        while not collected:
            # First: what was collected by then is in the answer after it.
            texts = [e["text"] for e in operator(c, "events")["events"]]
            collected = any("all agents have said what they hold" in t for t in texts)
            p = c.thctl("-s", url, "-o", "json", "drain", "a", check=False)
            state = json.loads(p.stdout)["state"] if p.stdout else "unknown yet"
            assert state in ("draining", "unknown yet"), p
        assert "last-copy" in c.thctl("-s", url, "drain", "a", check=False).stdout
        assert watch.alive(), watch.tail()
        a.signal(signal.SIGTERM)
        assert a.p.wait(60) == 1, a.tail()
        assert "stopping waits: version 1 of m is retained and only here" in a.tail(), a.tail()
        assert "left behind: version 1 of m is retained" in a.tail(), a.tail()
        expect_error("AGENT_LOST", source.unpublish)
        source.close()
        texts = [e["text"] for e in operator(c, "events")["events"]]
        assert any("was closed, because its agent ends" in t for t in texts), texts
        code, _ = watch.finish()
        assert code == FAILED, watch.tail()
        assert "went what was retained and nowhere else (1): version 1 of m" in watch.tail()


def go_is_said_for_what_is_there():
    with cluster() as c:
        c.agent("a")
        holder, _ = with_memory(c, "a", "holder")
        holder.publish(7)
        for way in ((), ("-s", c.server_url)):
            p = c.thctl(*way, "go", "m", "latest", agent=None if way else "a")
            assert "followers of m may take its versions up to 7; 0 replicas follow" in p.stdout, p
        answer = operator(c, "go", "m", "7")
        said = {k: answer[k] for k in ("schema", "model", "version", "followers")}
        assert said == {"schema": "thctl/1", "model": "m", "version": 7, "followers": 0}, answer
        texts = [e["text"] for e in operator(c, "events")["events"]]
        once = [t for t in texts if "followers of m may take its versions up to 7" in t]
        assert len(once) == 1 and "uid" in once[0], texts


def what_is_not_there_is_said():
    with cluster() as c:
        c.agent("a")
        attached(c, "a")
        c.worker("there", "a").call("open", model="m", replica="there")
        for args, code, text in (
            (("drain", "nowhere"), FAILED, "ls nodes"),
            (("undrain", "nowhere"), FAILED, "ls nodes"),
            (("drain",), 2, "NODE"),
            (("drain", "a\nb"), 2, "name of a node"),
            (("evict", "--model", "m"), 2, "--replica"),
            (("evict", "--model", "m", "--replica", "there"), 2, "no terminal"),
            (("evict", "--model", "m", "--replica", "r"), FAILED, "ls replicas"),
            (("evict", "--model", "m", "--replica", "r", "--yes"), FAILED, "ls replicas"),
            (("go", "m"), 2, "MODEL VERSION"),
            (("go", "m", "soon"), 2, "is no version"),
            (("go", "nothing", "1"), FAILED, "ls models"),
            (("go", "m", "7"), FAILED, "ls versions m"),
        ):
            for way in ((), ("-s", c.server_url)):
                p = c.thctl(*way, *args, agent=None if way else "a", check=False)
                assert p.returncode == code and text in p.stderr, (args, p)
        events = json.loads(c.thctl("-o", "json", "events", agent="a").stdout)["events"]
        assert [e["number"] for e in events] == list(range(1, len(events) + 1)), events
        assert any("agent a is attached" in e["text"] for e in events), events


if __name__ == "__main__":
    main(
        an_evicted_replica_says_so_in_every_call,
        an_evicted_replica_cannot_resolve,
        a_drain_names_its_blocker_and_survives_its_watcher,
        an_agent_that_is_told_to_end_lets_what_runs_end,
        a_drain_outlives_agent_and_server,
        a_last_copy_moves_and_is_fetched_when_its_host_is_gone,
        a_blocked_drain_is_not_over_with_a_new_server,
        go_is_said_for_what_is_there,
        what_is_not_there_is_said,
    )
