# SPDX-License-Identifier: Apache-2.0
"""The reference server is killed and started again, empty, on the same port: what is held stays
held, what runs runs on, and every byte is what its publisher had."""

import concurrent.futures
import json
import random
import signal
import time

from cluster import LONG, RemoteError, cluster, expect_error, main, wait_for
from retain_test import fetched, kept, offloads, replicas, used

SIZE = 24 << 20
SHARDS = 2


def each(workers, cmd, **args):
    ids = [(w, w.start(cmd, **args)) for w in workers]
    return [w.finish(i) for w, i in ids]


def group(c, label, agents, size=SIZE):
    workers = [c.worker(f"{label}{i}", agents[i % len(agents)]) for i in range(SHARDS)]
    for i, w in enumerate(workers):
        w.setup(size + i * 4097, model="m", replica=label, shard=i, num_shards=SHARDS)
    return workers


def restart(c, args=()):
    c.server.kill()
    c.start_server(listen=c.server_url, args=args)


def attached(c, *agents):
    """To the server that runs now: an agent may not know yet that the one before is gone."""

    def asked(*args, **where):
        status = c.thctl(*args, "-o", "json", "status", check=False, **where)
        return status.returncode, json.loads(status.stdout or "{}").get("server_inc")

    # A server that misses a node says so by its exit status.
    _, runs = asked("-s", c.server_url, prefix=c.server_prefix)
    assert runs, "no server answers"
    for agent in agents:
        wait_for(lambda a=agent: asked(agent=a) == (0, runs), 30, f"agent {agent} attaches")


def again(workers, cmd, **args):
    """As programs do it that go on without a server: each calls again while it finds none. The
    others may have been told of the same call that there was nothing new."""

    def one(w):
        end = time.monotonic() + 60
        while True:
            try:
                return w.call(cmd, **args)
            except RemoteError as e:
                if e.name != "NO_SERVER" or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(one, workers))


def what_is_held_stays_held():
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        trainers, readers = group(c, "trainer", "ab"), group(c, "rollout", "ba")
        want = [w.call("fill", seed=f"1.{i}") for i, w in enumerate(trainers)]
        each(trainers, "publish", version=1)
        each(readers, "replicate", version="latest")
        c.server.kill()
        for r in readers:
            start = time.monotonic()
            expect_error(
                "NO_SERVER",
                lambda r=r: wait_for(lambda: r.call("update", timeout=20) and False, 20, "it"),
            )
            assert time.monotonic() - start < 10
            assert r.call("held") == [0, 1]
        c.start_server(listen=c.server_url)
        start = time.monotonic()
        late = group(c, "late", "ab")
        results = each(late, "replicate", version="latest", timeout=30)
        assert [x["version"] for x in results] == [1, 1], results
        print(f"first replicate after a restart: {time.monotonic() - start:.2f} s")
        assert each(late, "digest") == want
        assert each(readers, "digest") == want and each(readers, "held") == [[0, 1]] * SHARDS
        names = [v[:2] for v in late[0].call("list")["versions"]]
        assert names == [[0, 1]], names
        # Everybody goes on: the trainer gives up what it holds, and the next version flows.
        again(trainers, "unpublish")
        want = [w.call("fill", seed=f"2.{i}") for i, w in enumerate(trainers)]
        each(trainers, "publish", version=2)
        for workers in (readers, late):
            wait_for(lambda w=workers: again(w, "update")[0]["version"] == 2, 30, "version 2")
            assert each(workers, "digest") == want
        restart(c)
        attached(c, *"ab")
        # The source is gone with its group; the copies are as good.
        each(trainers, "close")
        more = group(c, "more", "ab")
        each(more, "replicate", version="2", timeout=40)
        assert each(more, "digest") == want


def attributes_outlive_their_publisher():
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        trainer, reader = c.worker("trainer", "a"), c.worker("reader", "b")
        for w, label in ((trainer, "trainer"), (reader, "reader")):
            w.setup(1 << 20, model="m", replica=label)
        trainer.call("set_attribute", key="header", value="x" * 60000)
        trainer.call("publish", version=1)
        reader.call("replicate", version="1")
        want = reader.call("attributes", version="1")
        trainer.call("close")
        restart(c)
        attached(c, *"ab")
        # It has read them from one that had read them, and is lost in turn.
        second = c.worker("second", "a")
        second.setup(1 << 20, model="m", replica="second")
        second.call("replicate", version="1", timeout=30)
        wait_for(lambda: attributes(second) == want, 30, "they come back")
        reader.call("close")
        restart(c)
        attached(c, *"ab")
        wait_for(lambda: attributes(second) == want, 30, "they come back again")


def attributes(w):
    try:
        return w.call("attributes", version="1")
    except RemoteError as e:
        # Before its agent has told the new server of it, and given it what belongs to it.
        assert e.name in ("NOT_AVAILABLE", "NO_SERVER"), e
        return None


def what_runs_runs_on():
    """Killed at any moment of a publish and of a replicate, a few times in a row."""
    rounds, pick = (40 if LONG else 3), random.Random(11)
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        trainers, readers = group(c, "trainer", "a", SIZE * 2), group(c, "rollout", "b", SIZE * 2)
        held = False
        for version in range(1, rounds + 1):
            want = [w.call("fill", seed=f"{version}.{i}") for i, w in enumerate(trainers)]
            running = [(w, w.start("publish", version=version, timeout=60)) for w in trainers]
            if version % 2 == 0:
                time.sleep(pick.random() * 0.02)
                restart(c)
            for w, i in running:
                w.finish(i)
            attached(c, *"ab")
            if held:
                wait_for(lambda v=version: again(readers, "update")[0]["version"] == v, 60, "it")
            else:
                running = [
                    (w, w.start("replicate", version=str(version), timeout=60)) for w in readers
                ]
                time.sleep(pick.random() * 0.1)
                restart(c)
                assert [w.finish(i)["version"] for w, i in running] == [version] * SHARDS
            assert each(readers, "digest") == want, f"round {version}"
            again(trainers, "unpublish")
            held = version % 3 != 0
            if not held:
                again(readers, "unpublish")


def what_must_stay_stays():
    """A copy in an agent's memory is known again, and goes when its successor is there; and the
    last copy is not given up while the server does not know yet who retains it."""
    # A reader's copy beside that of an agent is as good, but does not last as long here.
    args = ("-o", "lease.warm=5s", "-o", "retain.release_after=10m")
    with cluster(server=False) as c:
        c.start_server(args=args)
        c.agent("a")
        b = c.agent("b")
        w = c.worker("trainer", "a")
        w.setup(SIZE, model="m", replica="trainer", retain="latest")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        w.call("unpublish", scribble=0x5A)
        before = offloads(c, "a")
        assert kept(w, 1) and len(before) == 1 and used(c, "a") >= SIZE
        # The second model's version is with one who does not retain it.
        source, claimant = c.worker("source", "a"), c.worker("claimant", "b")
        source.setup(SIZE, model="n", replica="source")
        claimant.setup(SIZE, model="n", replica="claimant", retain="latest")
        want_n = source.call("fill", seed="n")
        source.call("publish", version=7)

        # Who retains it comes last.
        b.signal(signal.SIGSTOP)
        restart(c, args)
        attached(c, "a")
        gives_up = source.start("unpublish", timeout=60)
        assert not source.finished(gives_up)
        b.signal(signal.SIGCONT)
        attached(c, "b")
        source.finish(gives_up)
        assert source.call("held") is None and source.call("safe") == 1
        assert kept(claimant, 7), replicas(claimant, 7)
        assert kept(w, 1), replicas(w, 1)
        assert before[0] in offloads(c, "a") and used(c, "b") == 0, offloads(c, "a")
        fetched(c, "reader-n", "b", 7, want_n, model="n")
        assert fetched(c, "near", "a", 1, want)["transport"] == "local"
        assert fetched(c, "far", "b", "latest", want)["transport"] == "tcp"
        w.call("fill", seed=2)
        w.call("publish", version=2)
        wait_for(lambda: not replicas(w, 1), 60, "version 1 is not listed any more")
        # The rule of the other model ends with its handle.
        claimant.call("close")
        wait_for(lambda: used(c, "a") == used(c, "b") == 0, 60, "the memory is given back")


def reset_ends_the_handles():
    with cluster() as c:
        c.agent("a", args=("-o", "server_loss=reset"))
        w = c.worker("w", "a")
        w.setup(1 << 20, model="m", replica="w")
        w.call("publish", version=1)
        restart(c)
        expect_error("GROUP_BROKEN", again, [w], "update", timeout=1)
        w.call("close")
        w = c.worker("again", "a")
        w.setup(1 << 20, model="m", replica="w")
        w.call("publish", version=2)


if __name__ == "__main__":
    main(
        what_is_held_stays_held,
        attributes_outlive_their_publisher,
        what_runs_runs_on,
        what_must_stay_stays,
        reset_ends_the_handles,
    )
