# SPDX-License-Identifier: Apache-2.0
"""The reference server is killed and started again, empty, on the same port: what is held stays
held, what runs runs on, and every byte is what its publisher had."""

import concurrent.futures
import random
import time

from cluster import LONG, RemoteError, cluster, expect_error, main, wait_for

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


def restart(c):
    c.server.kill()
    c.start_server(listen=c.server_url)


def attached(c, *agents):
    for agent in agents:
        wait_for(
            lambda a=agent: c.thctl("status", agent=a, check=False).returncode == 0,
            30,
            f"agent {agent} attaches",
        )


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
    main(what_is_held_stays_held, what_runs_runs_on, reset_ends_the_handles)
