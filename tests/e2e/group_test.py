# SPDX-License-Identifier: Apache-2.0
"""Model-parallel groups: all members see the same version at every step, and a lost member
harms nobody else."""

import json
import random
import threading
import time

from cluster import LONG, RemoteError, cluster, expect_error, main, wait_for

SHARDS = 4
SIZE = 1 << 20
STEPS = 200 if LONG else 80


def each(workers, cmd, **args):
    ids = [(w, w.start(cmd, **args)) for w in workers]
    return [w.finish(i) for w, i in ids]


def group(c, label, agents, model="m", size=SIZE):
    workers = [c.worker(f"{label}{i}", agents[i % len(agents)]) for i in range(SHARDS)]
    for i, w in enumerate(workers):
        # Each shard has its own size, so its own layout, and its own content.
        w.setup(size + i * 4097, model=model, replica=label, shard=i, num_shards=SHARDS)
    return workers


def every_member_reports_the_same_version():
    """Four trainers publish step after step; four readers update with random delays between. At
    each step all readers must report the same (version, updated), and each shard's
    bytes must be that version's."""
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        trainers, readers = group(c, "trainer", "a"), group(c, "rollout", "b")
        want, stop, problems = {}, threading.Event(), []
        published, pace = threading.Event(), random.Random(5)

        def train():
            try:
                version = 0
                while not stop.is_set():
                    if version:
                        each(trainers, "unpublish")
                    version += 1
                    want[version] = [
                        w.call("fill", seed=f"{version}.{i}") for i, w in enumerate(trainers)
                    ]
                    each(trainers, "publish", version=version)
                    published.set()
                    # Steps of random length: some too short for the readers to get the version.
                    stop.wait(pace.random() * 0.08)
            except Exception as e:
                problems.append(e)
                published.set()

        thread = threading.Thread(target=train)
        thread.start()
        try:
            rng = random.Random(4)
            assert published.wait(30)
            updates, last = 0, -1
            for step in range(STEPS):
                if rng.random() < 0.7:
                    readers[0].call("wait_newer", version=last)
                ids = []
                for i in rng.sample(range(SHARDS), SHARDS):
                    if rng.random() < 0.5:
                        time.sleep(rng.random() * 0.004)
                    ids.append((i, readers[i].start("update")))
                outcomes = {}
                for i, ident in ids:
                    try:
                        result = readers[i].finish(ident)
                        outcomes[i] = (result["version"], result["updated"])
                    except RemoteError as e:
                        outcomes[i] = e.name
                assert len(set(outcomes.values())) == 1, f"step {step}: {outcomes}"
                outcome = outcomes[0]
                assert not problems, problems
                assert not isinstance(
                    outcome, str
                ), f"step {step}: {outcome}: the trainers never die"
                version, updated = outcome
                if updated:
                    updates += 1
                    assert version > last, f"step {step}: {version} after {last}"
                    last = version
                    got = each(readers, "digest")
                    assert got == want[version], f"step {step}: bytes of version {version}"
            assert updates >= STEPS // 4, f"only {updates} of {STEPS} steps brought anything"
            print(f"  {STEPS} steps, {updates} of them updates")
        finally:
            stop.set()
            thread.join(60)
        assert not problems, problems


def running(c, agent, operation):
    """How many sessions of this agent are in this operation."""
    status = json.loads(c.thctl("-o", "json", "status", agent=agent).stdout)
    return sum(s["operation"] == operation for s in status["sessions"])


def a_member_killed_before_go_harms_nobody():
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        trainers, readers = group(c, "trainer", "a"), group(c, "rollout", "b")
        want = [w.call("fill", seed=i) for i, w in enumerate(trainers)]
        each(trainers, "publish", version=1)
        each(readers, "replicate", version="1")
        each(trainers, "unpublish")
        for i, w in enumerate(trainers):
            w.call("fill", seed=f"2.{i}")
        each(trainers, "publish", version=2)
        # Three of four call: the plan is made, GO is not. Then the fourth dies.
        ids = [w.start("update") for w in readers[:3]]
        wait_for(lambda: running(c, "b", "update") == 3, 10, "three members in the operation")
        assert not any(w.finished(i) for w, i in zip(readers, ids))
        start = time.monotonic()
        readers[3].kill()
        for w, i in zip(readers, ids):
            expect_error("GROUP_BROKEN", w.finish, i)
        assert time.monotonic() - start < 3
        for i, w in enumerate(readers[:3]):
            assert w.call("held") == [0, 1], "the old version is still held"
            assert w.call("digest") == want[i], "and its bytes are unharmed"
            expect_error("GROUP_BROKEN", w.call, "update")
            w.call("close")
        # The group opens again under the same name, and works.
        again = group(c, "rollout", "b")
        each(again, "replicate", version="latest")


def different_operations_are_a_mismatch():
    with cluster() as c:
        c.agent("a")
        trainers = group(c, "trainer", "a")
        first = [w.start("publish", version=1) for w in trainers[:2]]
        odd = trainers[2].start("publish", version=2)
        last = trainers[3].start("publish", version=1)
        for w, i in zip(trainers, [*first, odd, last]):
            expect_error("GROUP_MISMATCH", w.finish, i)


def the_first_deadline_ends_it_for_all():
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        trainers, readers = group(c, "trainer", "a"), group(c, "rollout", "b")
        each(trainers, "publish", version=1)
        ids = [w.start("replicate", version="1", timeout=1) for w in readers[:3]]
        for w, i in zip(readers, ids):
            error = expect_error("TIMEOUT", w.finish, i)
            assert error.seconds < 2, error.seconds
        error = expect_error("TIMEOUT", readers[3].call, "replicate", version="1", timeout=20)
        assert error.seconds < 1, "the late member hears the outcome at once"
        each(readers, "replicate", version="1")


def shards_are_checked_at_open():
    with cluster() as c:
        c.agent("a")
        w, v = c.worker("w", "a"), c.worker("v", "a")
        w.call("open", model="m", replica="r", shard=0, num_shards=2)
        expect_error(
            "GROUP_MISMATCH", v.call, "open", model="m", replica="r", shard=0, num_shards=2
        )
        expect_error(
            "GROUP_MISMATCH", v.call, "open", model="m", replica="r", shard=1, num_shards=3
        )
        expect_error("INVALID", v.call, "open", model="m", replica="r", shard=2, num_shards=2)
        v.call("open", model="m", replica="r", shard=1, num_shards=2)


def another_layout_is_refused_and_named():
    with cluster() as c:
        c.agent("a")
        w, r = c.worker("w", "a"), c.worker("r", "a")
        w.setup(1 << 20, model="m", replica="w")
        r.setup((1 << 20) + 1, model="m", replica="r")
        w.call("publish", version=1)
        error = expect_error("LAYOUT", r.call, "replicate", version="1")
        assert "layer.0.weight" in error.text, error.text
        assert r.call("held") is None


def a_killed_reader_leaves_the_source_free():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(SIZE, model="m", replica="w")
        r.setup(SIZE, model="m", replica="r")
        w.call("publish", version=1)
        r.call("replicate", version="1")
        r.kill()
        wait_for(
            lambda: [r["name"] for r in w.call("list")["versions"][0][2]] == ["w"],
            2,
            "the dead replica is unlisted",
        )
        w.call("unpublish")


if __name__ == "__main__":
    main(
        every_member_reports_the_same_version,
        a_member_killed_before_go_harms_nobody,
        different_operations_are_a_mismatch,
        the_first_deadline_ends_it_for_all,
        shards_are_checked_at_open,
        another_layout_is_refused_and_named,
        a_killed_reader_leaves_the_source_free,
    )
