# SPDX-License-Identifier: Apache-2.0
"""Retention: the last copy of a version that somebody retains is kept by the agents, is read from
there byte for byte, and is gone when it is not needed any more."""

import json
import os

import gpus
from cluster import cluster, expect_error, main, wait_for

SIZE = 24 << 20
AT_RISK = 32


def status(c, agent):
    return json.loads(c.thctl("-o", "json", "status", agent=agent, check=False).stdout)


def used(c, agent):
    return status(c, agent)["offload_used"]


def offloads(c, agent):
    return [s for s in status(c, agent)["sessions"] if s["offload"]]


def replicas(worker, version):
    """Those of a version; empty: it is not listed."""
    versions = worker.call("list")["versions"]
    return [replica for _, number, each in versions if number == version for replica in each]


def kept(worker, version):
    """Whether an agent keeps the whole of it."""
    return any(r["offload"] and r["ready"] for r in replicas(worker, version))


def mapped(pid):
    """Bytes of its own memory for copies, and those of workers' memory, that an agent maps."""
    own = others = 0
    with open(f"/proc/{pid}/maps") as f:
        for line in f:
            low, high = (int(n, 16) for n in line.split()[0].split("-"))
            if "/memfd:tensorhub-offload" in line:
                own += high - low
            elif "/memfd:" in line and gpus.STAGING not in line:
                others += high - low
    return own, others


def fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def fetched(c, label, agent, version, want, model="m", **opts):
    """A new reader gets the version and its bytes; returns the result."""
    r = c.worker(label, agent)
    r.setup(SIZE, model=model, replica=label, **opts)
    result = r.call("replicate", version=str(version))
    assert r.call("digest") == want, label
    r.call("unpublish")
    r.call("close")
    return result


def a_version_outlives_its_publisher():
    """unpublish makes the copy, readers of both hosts get it, the successor ends it."""
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        w = c.worker("trainer", "a")
        w.setup(SIZE, model="m", replica="trainer", retain="latest")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        before = fds(a.pid)
        assert used(c, "a") == used(c, "b") == 0
        w.call("unpublish", scribble=0x5A)
        assert w.call("held") is None and w.call("safe") == 1
        assert kept(w, 1), replicas(w, 1)
        assert used(c, "a") >= SIZE and used(c, "b") == 0
        (session,) = offloads(c, "a")
        assert session["pid"] == a.pid and session["replica"] == "trainer", session
        assert session["version"] == 1 and session["shard"] == 0, session
        assert mapped(a.pid)[0] >= SIZE
        table = c.thctl("ls", "replicas", "m", agent="a").stdout
        assert "offload" in table, table
        assert fetched(c, "near", "a", 1, want)["transport"] == "local"
        assert fetched(c, "far", "b", "latest", want)["transport"] == "tcp"
        # The successor is there: what was kept goes, and with it its memory.
        w.call("fill", seed=2)
        w.call("publish", version=2)
        wait_for(lambda: not replicas(w, 1), 60, "version 1 is not listed any more")
        wait_for(lambda: used(c, "a") == 0, 60, "the memory is given back")
        wait_for(lambda: mapped(a.pid)[0] == 0, 60, "its pages are gone")
        if not gpus.KIND:  # or the process of a GPU has been started since
            wait_for(lambda: fds(a.pid) <= before, 60, "and the descriptors")
        assert not offloads(c, "a")
        # The claim ends with its handle: nothing is kept of this one.
        w.call("close")
        r = c.worker("other", "b")
        r.setup(SIZE, model="m", replica="other")
        assert not replicas(r, 2)
        assert used(c, "a") == used(c, "b") == 0


def nowhere_to_keep_it():
    """Without memory every call that would give up the last copy fails, and nothing has changed;
    with force it is given up."""
    with cluster() as c:
        c.agent("a", args=["--offload-limit", "0"])
        c.agent("b", args=["--offload-limit", "8MiB"])
        w, r = c.worker("trainer", "a"), c.worker("rollout", "b")
        w.setup(SIZE, model="m", replica="trainer", retain="latest,latest-1")
        r.setup(SIZE, model="m", replica="rollout")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        error = expect_error("NOMEM_RETAIN", w.call, "unpublish")
        assert "offload-limit" in error.text, error.text
        assert w.call("held") == [0, 1] and w.call("safe") == 0
        assert r.call("replicate", version="1")["version"] == 1
        assert r.call("digest") == want
        # There is another copy now.
        w.call("unpublish")
        w.call("fill", seed=2)
        w.call("publish", version=2)
        # The reader has the last one of version 1.
        for verb, argument in (("update", "latest"), ("unpublish", 0)):
            expect_error("NOMEM_RETAIN", r.call, verb)
            expect_error("NOMEM_RETAIN", r.call, "inside", verb=verb, argument=argument)
            assert r.call("held") == [0, 1] and r.call("digest") == want
        # Closing ends one's own rules first; these are another's.
        error = expect_error("NOMEM_RETAIN", r.call, "close")
        assert r.call("held") == [0, 1]
        assert kept(w, 1) is False and len(replicas(w, 1)) == 1
        r.call("unpublish", force=True)
        assert r.call("held") is None and not replicas(w, 1)
        assert r.call("replicate", version="2")["version"] == 2
        w.call("unpublish")
        expect_error("NOMEM_RETAIN", r.call, "close")
        r.call("close", abandon=True)
        wait_for(lambda: not replicas(w, 2), 60, "it was given up")


def another_agent_keeps_it():
    with cluster() as c:
        c.agent("a", args=["--offload-limit", "1MiB"])
        c.agent("b")
        w = c.worker("trainer", "a")
        w.setup(SIZE, model="m", replica="trainer", retain="1")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        w.call("unpublish", scribble=0)
        assert kept(w, 1)
        assert used(c, "a") == 0 and used(c, "b") >= SIZE
        assert fetched(c, "reader", "a", 1, want)["transport"] == "tcp"
        w.call("close")
        wait_for(lambda: used(c, "b") == 0, 60, "it is not retained any more")


def a_dead_publisher():
    """kill -9 of the last holder: its agent still has the memory, and copies it."""
    with cluster() as c:
        a = c.agent("a")
        c.agent("b")
        holder = c.worker("holder", "b")
        holder.setup(1 << 20, model="m", replica="holder", retain="latest")
        w = c.worker("trainer", "a")
        w.setup(SIZE, model="m", replica="trainer")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        # Until all digests are made nobody can tell what it should have been.
        fetched(c, "first", "b", 1, want)
        w.kill()
        wait_for(lambda: kept(holder, 1), 60, "it was rescued")
        wait_for(lambda: "trainer/0" not in json.dumps(status(c, "a")), 60, "the dead are gone")
        wait_for(lambda: mapped(a.pid)[1] < SIZE, 60, "and their memory")
        assert mapped(a.pid)[0] >= SIZE
        fetched(c, "near", "a", 1, want)
        fetched(c, "far", "b", 1, want)


def a_group_on_two_hosts():
    """Each agent keeps the shard of its host; the replica is one."""
    with cluster() as c:
        for name in "ab":
            c.agent(name)
        members = [c.worker(f"t{i}", "ab"[i]) for i in range(2)]
        want = []
        for i, w in enumerate(members):
            w.setup(
                SIZE + i * 4097, model="m", replica="trainer", shard=i, num_shards=2,
                retain="latest",
            )
            want.append(w.call("fill", seed=i))
        ids = [(w, w.start("publish", version=5)) for w in members]
        for w, i in ids:
            w.finish(i)
        ids = [(w, w.start("unpublish", scribble=1)) for w in members]
        for w, i in ids:
            w.finish(i)
        assert kept(members[0], 5), replicas(members[0], 5)
        assert used(c, "a") >= SIZE and used(c, "b") >= SIZE + 4097
        readers = [c.worker(f"r{i}", "ab"[1 - i]) for i in range(2)]
        for i, r in enumerate(readers):
            r.setup(SIZE + i * 4097, model="m", replica="rollout", shard=i, num_shards=2)
        ids = [(r, r.start("replicate", version="latest")) for r in readers]
        for r, i in ids:
            assert r.finish(i)["version"] == 5
        assert [r.call("digest") for r in readers] == want
        # A resident copy is as good: the agents keep none beside it.
        wait_for(lambda: used(c, "a") == used(c, "b") == 0, 60, "both parts are given back")
        assert len(replicas(members[0], 5)) == 1


def steps_of_a_training():
    """One trainer, each version kept until the next one is there: a reader never misses one."""
    with cluster() as c:
        a = c.agent("a")
        w, r = c.worker("trainer", "a"), c.worker("rollout", "a")
        w.setup(SIZE, model="m", replica="trainer", retain="latest")
        r.setup(SIZE, model="m", replica="rollout")
        for version in range(1, 7):
            want = w.call("fill", seed=version)
            w.call("publish", version=version)
            w.call("unpublish", scribble=0)
            result = r.call("update")
            assert (result["version"], result["updated"]) == (version, 1), result
            assert r.call("digest") == want, version
        r.call("close")
        w.call("close")
        wait_for(lambda: used(c, "a") == 0, 60, "all of it is given back")
        wait_for(lambda: mapped(a.pid)[0] == 0, 60, "its pages are gone")


def room_for_one_and_a_half():
    """The next version takes the room of the former, which is still read, and read to its end."""
    with cluster() as c:
        c.agent("a", args=["--offload-limit", str(SIZE * 3 // 2), "-o", f"rate.out={SIZE // 2}"])
        c.agent("b", args=["--offload-limit", "0"])
        w, r = c.worker("trainer", "a"), c.worker("rollout", "b")
        w.setup(SIZE, model="m", replica="trainer", retain="latest")
        r.setup(SIZE, model="m", replica="rollout")
        former = w.call("fill", seed=1)
        w.call("publish", version=1)
        w.call("unpublish", scribble=0)
        read = r.start("replicate", version="1")
        wait_for(lambda: offloads(c, "a")[0]["transfers_out"] > 0, 60, "it is read")
        want = w.call("fill", seed=2)
        w.call("publish", version=2)
        w.call("unpublish", scribble=0)
        assert r.finish(read)["version"] == 1
        assert r.call("digest") == former
        assert used(c, "a") <= SIZE * 3 // 2
        r.call("unpublish")
        fetched(c, "reader", "b", 2, want)


def told(worker):
    """It gets the event, and gets it once."""
    wait_for(lambda: worker.call("events") & AT_RISK, 60, f"{worker.label} is told of the risk")
    assert not worker.call("events") & AT_RISK, worker.label


def nobody_can_keep_it():
    """Only a spot host has it and no agent has memory: who holds or retains it is told, once; again
    when it was safe in between, and is lost."""
    with cluster(server=False) as c:
        c.start_server(args=["-o", "retain.release_after=100ms"])
        c.agent("spot", args=["--spot"])
        c.agent("a", args=["--offload-limit", "0"])
        claimant, stranger = c.worker("claimant", "a"), c.worker("stranger", "a")
        claimant.setup(1 << 20, model="m", replica="claimant", retain="latest")
        stranger.setup(1 << 20, model="m", replica="stranger", retain="latest-1")
        w = c.worker("trainer", "spot")
        w.setup(SIZE, model="m", replica="trainer")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        told(w)
        told(claimant)
        assert w.call("held") == [0, 1] and w.call("safe") == 0, "nothing has changed"
        # A host with memory comes: it is tried again, and the trainer may go.
        b = c.agent("b")
        wait_for(lambda: kept(claimant, 1), 60, "it was rescued")
        fetched(c, "reader", "a", 1, want)
        w.call("unpublish", scribble=0)
        w.call("close")
        assert not claimant.call("events") & AT_RISK
        c.replaced(b)
        told(claimant)
        assert not replicas(claimant, 1)
        assert not stranger.call("events") & AT_RISK
        log = c.thctl("events", agent="a").stdout
        assert "version 1 of m is lost, although it is retained" in log, log


def a_handle_that_is_spot():
    """Its host stays, its worker may not: the copy is rescued to the host's own agent."""
    with cluster(server=False) as c:
        c.start_server(args=["-o", "retain.release_after=100ms"])
        c.agent("a")
        w = c.worker("trainer", "a")
        w.setup(SIZE, model="m", replica="trainer", retain="latest", spot=True)
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        wait_for(lambda: kept(w, 1), 60, "it was rescued")
        copies = replicas(w, 1)
        assert all(r["ready"] for r in copies), copies
        assert sorted((r["offload"], r["spot"]) for r in copies) == [(False, True), (True, False)]
        assert not w.call("events") & AT_RISK
        w.kill()
        fetched(c, "reader", "a", 1, want)


def rules_that_are_none():
    with cluster() as c:
        c.agent("a")
        w, other = c.worker("w", "a"), c.worker("o", "a")
        for rules in ("latest,", "yesterday", "latest-0", "1,,2", " latest", "latest 1"):
            error = expect_error(
                "INVALID", w.call, "open", model="m", replica="r", retain=rules
            )
            assert "retain" in error.text, error.text
        rules = ",".join(str(n) for n in range(17))
        expect_error("LIMIT", w.call, "open", model="m", replica="r", retain=rules)
        w.call("open", model="m", replica="r", num_shards=2, retain="latest,3")
        expect_error(
            "GROUP_MISMATCH", other.call, "open", model="m", replica="r", shard=1, num_shards=2,
            retain="latest",
        )
        other.call("open", model="m", replica="r", shard=1, num_shards=2, retain="3,latest")


if __name__ == "__main__":
    main(
        a_version_outlives_its_publisher,
        nowhere_to_keep_it,
        another_agent_keeps_it,
        a_dead_publisher,
        a_group_on_two_hosts,
        steps_of_a_training,
        room_for_one_and_a_half,
        nobody_can_keep_it,
        a_handle_that_is_spot,
        rules_that_are_none,
    )
