# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment of thctl publish and fetch: how it ends, and that nothing is left.

A first signal before anything was begun ends the process; later it undoes what was begun (exit
status 1, or 0 when a copy was held); a second one ends it at once. Each moment is an event: a
line of output, a file, what the cluster shows; never a time.
"""

import json
import os
import signal
import time

from cluster import BUILD, LONG, Process, cluster, main, wait_for
from thctl_test import safetensors, same, some

SIZE = 24 << 20
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if LONG else (signal.SIGINT,)


class Place:
    """A cluster with a published version on agent a, a reader's agent b, and a folder for OUT."""

    def __init__(self, c):
        self.c = c
        c.agent("a")
        c.agent("b")
        self.path = os.path.join(c.dir, "in.safetensors")
        safetensors(self.path, some(2, SIZE // 2))
        self.folder = os.path.join(c.dir, "out")
        os.mkdir(self.folder)
        self.count = 0

    def start(self, agent, verb, *args, version=1):
        self.count += 1
        return Process(
            self.c,
            f"{verb}-{self.count}",
            [
                os.path.join(BUILD, "tools", "thctl"),
                "-r",
                self.c.agents[agent].runtime,
                verb,
                "--model",
                "m",
                "--version",
                str(version),
                *args,
            ],
        )

    def publish(self, *args, version=1):
        return self.start("a", "publish", *args, self.path, version=version)

    def published(self, version=1):
        p = self.publish("--replica", "source", version=version)
        line = p.p.stdout.readline()
        assert line == f"published m {version}\n".encode(), (line, p.tail())
        return p

    def fetch(self, name="o.safetensors", *args, version=1):
        return self.start("b", "fetch", *args, os.path.join(self.folder, name), version=version)

    def members(self):
        out = self.c.thctl("-s", self.c.server_url, "-o", "json", "ls", "workers", "m").stdout
        return sorted({row["replica"] for row in json.loads(out)["workers"]})

    def temporary(self):
        return [f for f in os.listdir(self.folder) if f.startswith(".")]

    def ends_only(self, p, signum, *expected):
        code = p.p.wait(60)
        assert code in [-signum if e == "signal" else e for e in expected], (code, p.tail())
        return code

    def ends(self, p, signum, *expected):
        """With one of the statuses, and without a trace."""
        code = self.ends_only(p, signum, *expected)
        assert self.temporary() == [], self.temporary()
        return code

    def empty(self, *replicas):
        """Only these are members of the model, soon."""
        wait_for(lambda: self.members() == sorted(replicas), 60, f"only {replicas} are left")


def frozen(agent):
    agent.signal(signal.SIGSTOP)
    state = lambda: open(f"/proc/{agent.pid}/stat").read().rpartition(")")[2].split()[0]
    wait_for(lambda: state() == "T", 20, "the agent has stopped")


def publish_before_its_agent_answers():
    with cluster() as c:
        place = Place(c)
        for signum in SIGNALS:
            frozen(c.agents["a"])
            p = place.publish()
            wait_for(lambda: sockets(p.pid), 20, "a connection to the agent")
            p.signal(signum)
            place.ends(p, signum, "signal")
            c.agents["a"].signal(signal.SIGCONT)
            place.empty()


def sockets(pid):
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:"))
        except OSError:
            pass
    return any(found)


def publish_while_a_shard_is_missing():
    with cluster() as c:
        place = Place(c)
        for signum in SIGNALS:
            p = place.publish("--replica", "g", "--num-shards", "2", "--shard", "0")
            wait_for(lambda: place.members() == ["g"], 20, "the first member")
            p.signal(signum)
            place.ends(p, signum, 1, "signal")
            place.empty()


def publish_while_it_is_held():
    with cluster() as c:
        place = Place(c)
        for version, signum in enumerate(SIGNALS, 1):
            p = place.published(version)
            p.signal(signum)
            place.ends(p, signum, 0)
            place.empty()


def publish_while_it_is_read():
    """It waits for a reader that moves, not for one that stands; a second signal waits for none."""
    with cluster() as c:
        place = Place(c)
        for version, signum in enumerate(SIGNALS, 1):
            for second in (False, True):
                number = 2 * version + second
                p = place.published(number)
                f = place.fetch(version=number)
                wait_for(place.temporary, 20, "the fetch has begun")
                frozen(c.agents["b"])
                p.signal(signum)
                if second:
                    wait_for(lambda: pending(p, signum), 20, "the first signal is taken")
                    p.signal(signum)
                place.ends_only(p, signum, 0, *(["signal"] if second else []))
                c.agents["b"].signal(signal.SIGCONT)
                # It has all of it, or its source is gone for good and it waits: then that is ended.
                f.signal(signal.SIGINT)
                f.p.wait(60)
                assert place.temporary() == []
                place.empty()
                out = os.path.join(place.folder, "o.safetensors")
                if os.path.exists(out):
                    assert same(place.path, out)
                    os.unlink(out)


def pending(p, signum):
    """Nothing of it is pending any more, or the process has ended."""
    try:
        with open(f"/proc/{p.pid}/status") as f:
            fields = dict(line.split(":", 1) for line in f.read().splitlines())
    except OSError:
        return True
    mask = int(fields["ShdPnd"], 16) | int(fields["SigPnd"], 16)
    return not mask >> (signum - 1) & 1


def fetch_before_there_is_a_version():
    with cluster() as c:
        place = Place(c)
        for signum in SIGNALS:
            p = place.fetch()
            wait_for(lambda: "waiting for m 1" in p.tail(), 20, "it waits")
            p.signal(signum)
            place.ends(p, signum, "signal")
            place.empty()
            assert os.listdir(place.folder) == []


def fetch_while_bytes_move():
    """The source stands still: it is in the middle until it is told to end."""
    with cluster() as c:
        place = Place(c)
        pulls = lambda: c.agents["b"].tail(10_000).count("leg pulling")
        version = 0
        for signum in SIGNALS:
            for name in ("o.safetensors", "directory"):
                version += 1
                source = place.published(version)
                before = pulls()
                frozen(c.agents["a"])
                p = place.fetch(name, version=version)
                wait_for(lambda: pulls() > before, 30, "a leg")
                assert len(place.temporary()) == 1, os.listdir(place.folder)
                p.signal(signum)
                place.ends(p, signum, 1)
                assert "interrupted" in p.tail(), p.tail()
                assert os.listdir(place.folder) == []
                c.agents["a"].signal(signal.SIGCONT)
                source.signal(signal.SIGTERM)
                # Who stood still for long counts as dead: then it ended before it was asked to.
                place.ends_only(source, signal.SIGTERM, 0, 1)
                place.empty()


def remove(folder, name):
    path = os.path.join(folder, name)
    if os.path.isdir(path):
        for f in os.listdir(path):
            os.unlink(os.path.join(path, f))
        os.rmdir(path)
    elif os.path.exists(path):
        os.unlink(path)


def fetch_twice_with_a_frozen_agent():
    """Nobody answers: the first signal asks, the second one ends it and leaves no file."""
    with cluster() as c:
        place = Place(c)
        place.published()
        for signum in SIGNALS:
            for name in ("o.safetensors", "directory"):
                p = place.fetch(name)
                wait_for(lambda: place.temporary() or p.p.poll() is not None, 20, "a file")
                frozen(c.agents["b"])
                p.signal(signum)
                wait_for(lambda: pending(p, signum), 20, "the first signal is taken")
                p.signal(signum)
                code = place.ends(p, signum, 0, 1, "signal")
                assert os.listdir(place.folder) == ([name] if code == 0 else [])
                c.agents["b"].signal(signal.SIGCONT)
                place.empty("source")
                remove(place.folder, name)


def fetch_while_it_is_held():
    with cluster() as c:
        place = Place(c)
        place.published()
        for signum in SIGNALS:
            p = place.fetch("o.safetensors", "--hold", "--force")
            assert p.p.stdout.readline() == b"fetched m 1\n", p.tail()
            p.signal(signum)
            place.ends(p, signum, 0)
            assert same(place.path, os.path.join(place.folder, "o.safetensors"))
            place.empty("source")


def fetch_at_any_time():
    """Whenever it comes, OUT is whole or not there."""
    with cluster() as c:
        place = Place(c)
        place.published()
        outcomes = set()
        for i in range(60 if LONG else 8):
            p = place.fetch()
            time.sleep(i * 0.004 if LONG else i * 0.01)  # no event: any moment is as good
            if p.p.poll() is None:
                p.signal(signal.SIGINT)
            code = place.ends(p, signal.SIGINT, 0, 1, "signal")
            out = os.path.join(place.folder, "o.safetensors")
            assert os.path.exists(out) or code != 0
            if os.path.exists(out):
                assert same(place.path, out)
                os.unlink(out)
            outcomes.add(code)
        place.empty("source")
        print(f"  ended with {sorted(outcomes)}")


if __name__ == "__main__":
    main(
        publish_before_its_agent_answers,
        publish_while_a_shard_is_missing,
        publish_while_it_is_held,
        publish_while_it_is_read,
        fetch_before_there_is_a_version,
        fetch_while_bytes_move,
        fetch_twice_with_a_frozen_agent,
        fetch_while_it_is_held,
        fetch_at_any_time,
    )
