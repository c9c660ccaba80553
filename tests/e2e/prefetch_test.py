# SPDX-License-Identifier: Apache-2.0
"""Versions that hosts bring before their workers ask (THC_PREFETCH, THC_OFFLOAD_SEED): the update
takes the bytes from the host's own memory, whoever dies, restarts or is drained meanwhile, or goes
over the wire and says why; nothing is left over."""

import signal

from cluster import LONG, cluster, main, wait_for
from restart_test import attached, each
from retain_test import kept, replicas, used

SIZE = 32 << 20
RATE = 16 << 20  # bytes a second that leave a slow host
ROUNDS = 100 if LONG else 9


def worker(c, label, agent, **options):
    w = c.worker(label, agent)
    w.setup(SIZE, model="m", replica=label, **options)
    return w


def publish(trainer, version, **which):
    """Of one that holds the version before: what a reader of this one must have."""
    if version > 1:
        trainer.call("unpublish", **which)
    want = trainer.call("fill", seed=version, **which)
    trainer.call("publish", version=version, **which)
    return want


def begun(c, slow=False):
    """A trainer on host a and a rollout on host b, which hold version 1, and an observer."""
    c.agent("a", args=["-o", f"rate.out={RATE}"] if slow else [])
    c.agent("b")
    trainer, rollout = worker(c, "trainer", "a"), worker(c, "rollout", "b", prefetch=True)
    looks = c.worker("looks", "a")
    looks.call("open", model="m")
    publish(trainer, 1)
    assert rollout.call("replicate")["version"] == 1
    return trainer, rollout, looks


def copies(looks, version):
    return [replica for replica in replicas(looks, version) if replica["offload"]]


def fills(looks, version):
    """Some of a copy is there, and not all."""
    there = [copy["progress"] for copy in copies(looks, version)]
    assert 1 not in there, "the link is not slow"
    return any(there)


def waits(rollout, version):
    """It is told, and has called nothing."""
    assert rollout.call("wait_ready", version=version) == version


def installs(rollout, version, want):
    """From the memory of its host."""
    result = rollout.call("update")
    assert (result["version"], result["updated"]) == (version, 1), result
    assert result["bytes_prefetched"] == result["bytes_moved"] == SIZE, result
    assert result["transport"] == "local" and result["reason"] == "", result
    assert rollout.call("digest") == want
    assert rollout.call("ready") is None


def comes_by_wire(rollout, version, want, why):
    """When it cannot be brought, and not silently."""
    result = rollout.call("poll", version=version)
    assert result["version"] == version and result["bytes_prefetched"] == 0, result
    assert result["transport"] == "tcp" and result["bytes_moved"] == SIZE, result
    assert result["reason"].startswith("not brought before: ") and why in result["reason"], result
    assert rollout.call("digest") == want and rollout.call("ready") is None


def nothing_is_left(c, *agents):
    for agent in agents:
        wait_for(lambda a=agent: used(c, a) == 0, 60, f"the memory of {agent} is given back")


# ---- what is brought ----------------------------------------------------------------------------


def a_group_on_two_hosts_needs_no_network():
    """Each host brings its shard. While the source's host stands still all of it is installed."""
    with cluster() as c:
        for name in "abc":
            c.agent(name)
        shards = [{"shard": i, "num_shards": 2, "model": "m"} for i in range(2)]
        trainers = [c.worker(f"trainer{i}", "a") for i in range(2)]
        rollouts = [c.worker(f"rollout{i}", "bc"[i]) for i in range(2)]
        for i, shard in enumerate(shards):
            trainers[i].setup(SIZE, replica="trainer", **shard)
            rollouts[i].setup(SIZE, replica="rollout", prefetch=True, **shard)
        for version in (1, 2):
            if version > 1:
                each(trainers, "unpublish")
            want = [t.call("fill", seed=f"{version}.{i}") for i, t in enumerate(trainers)]
            each(trainers, "publish", version=version)
            if version == 1:
                each(rollouts, "replicate")
        for rollout in rollouts:
            waits(rollout, 2)
            assert rollout.call("held") == [0, 1]
        assert used(c, "b") >= SIZE and used(c, "c") >= SIZE
        c.agents["a"].signal(signal.SIGSTOP)
        try:
            results = each(rollouts, "update")
        finally:
            c.agents["a"].signal(signal.SIGCONT)
        for result in results:
            assert (result["version"], result["updated"]) == (2, 1), result
            assert result["bytes_prefetched"] == result["bytes_moved"] == SIZE, result
            assert result["transport"] == "local" and result["reason"] == "", result
        assert each(rollouts, "digest") == want
        nothing_is_left(c, "b", "c")


def two_groups_of_a_host_share_one_copy():
    with cluster() as c:
        trainer, rollout, looks = begun(c)
        other = worker(c, "other", "b", prefetch=True)
        other.call("replicate")
        want = publish(trainer, 2)
        for one in (rollout, other):
            waits(one, 2)
        assert len(copies(looks, 2)) == 1, copies(looks, 2)
        assert SIZE <= used(c, "b") < 2 * SIZE
        installs(rollout, 2, want)
        # A worker of this host has it as well now: either is its source.
        assert other.call("ready") == 2
        result = other.call("update")
        assert result["updated"] and result["transport"] == "local", result
        assert other.call("digest") == want
        nothing_is_left(c, "b")


def readers_chain_behind_a_copy_that_fills():
    """And its own group's update finds nothing until it is whole."""
    with cluster() as c:
        trainer, rollout, looks = begun(c, slow=True)
        c.agent("c")
        reader = worker(c, "reader", "c")
        want = publish(trainer, 2)
        wait_for(lambda: fills(looks, 2), 60, "it comes")
        result = rollout.call("update")
        assert result["updated"] == 0 and result["reason"] == "", result
        assert rollout.call("held") == [0, 1] and rollout.call("ready") is None
        reads = reader.start("replicate", version="2")
        waits(rollout, 2)
        result = reader.finish(reads)
        # The copy bears the name of the group that it is for, which holds version 1 itself.
        assert result["source"] == "rollout" and rollout.call("held") == [0, 1], result
        assert result["bytes_prefetched"] == 0 and reader.call("digest") == want
        installs(rollout, 2, want)
        nothing_is_left(c, "b")


# ---- no room ------------------------------------------------------------------------------------


def without_room_the_update_says_so():
    with cluster() as c:
        c.agent("a")
        trainer, rollouts = worker(c, "trainer", "a"), []
        publish(trainer, 1)
        for name, limit in (("none", "0"), ("small", "8MiB")):
            c.agent(name, args=["--offload-limit", limit])
            rollouts.append(worker(c, name, name, prefetch=True))
            rollouts[-1].call("replicate")
        for version in (2, 3):
            want = publish(trainer, version)
            for rollout in rollouts:
                comes_by_wire(rollout, version, want, f"node {rollout.label}: ")
        said = c.thctl("-s", c.server_url, "events").stdout
        for rollout in rollouts:
            assert f"version 3 of m is not brought to replica {rollout.label} before" in said, said
            assert not rollout.call("events")


def retention_goes_first():
    """A copy that is ready gives way to the last one of a retained version."""
    with cluster() as c:
        c.agent("a", args=["--offload-limit", "0"])
        c.agent("b", args=["--offload-limit", str(SIZE * 3 // 2)])
        trainer, rollout = worker(c, "trainer", "a"), worker(c, "rollout", "b", prefetch=True)
        holder = c.worker("holder", "b")
        holder.setup(SIZE, model="other", replica="holder", retain="latest")
        publish(holder, 1)
        publish(trainer, 1)
        rollout.call("replicate")
        want = publish(trainer, 2)
        waits(rollout, 2)
        holder.call("unpublish", scribble=0)
        assert kept(holder, 1)
        wait_for(lambda: rollout.call("ready") is None, 60, "it is taken back")
        comes_by_wire(rollout, 2, want, "retained")
        holder.call("close")
        nothing_is_left(c, "b")


# ---- who goes meanwhile -------------------------------------------------------------------------


def the_version_vanishes_while_it_is_brought():
    with cluster(server=False) as c:
        c.start_server(args=["-o", "lease.suspect=1s", "-o", "lease.dead=3s"])
        trainer, rollout, _ = begun(c, slow=True)
        want = rollout.call("digest")
        c.agent("c")
        looks = c.worker("stays", "c")
        looks.call("open", model="m")
        publish(trainer, 2)
        wait_for(lambda: fills(looks, 2), 60, "it comes")
        c.agents["a"].kill()
        wait_for(lambda: not replicas(looks, 2), 60, "nobody has it")
        nothing_is_left(c, "b")
        assert not rollout.call("update")["updated"] and rollout.call("ready") is None
        assert rollout.call("held") == [0, 1] and rollout.call("digest") == want
        trainer = worker(c, "next", "c")
        want = trainer.call("fill", seed=3)
        trainer.call("publish", version=3)
        waits(rollout, 3)
        installs(rollout, 3, want)
        nothing_is_left(c, "b")


def a_worker_dies():
    with cluster() as c:
        trainer, rollout, looks = begun(c, slow=True)
        publish(trainer, 2)
        wait_for(lambda: fills(looks, 2), 60, "it comes")
        rollout.kill()
        wait_for(lambda: not copies(looks, 2), 60, "nobody wants it")
        nothing_is_left(c, "b")
        rollout = worker(c, "again", "b", prefetch=True)
        rollout.call("replicate")
        publish(trainer, 3)
        waits(rollout, 3)
        rollout.kill()
        wait_for(lambda: not copies(looks, 3), 60, "nobody wants it")
        nothing_is_left(c, "b")


def an_agent_dies():
    with cluster() as c:
        trainer, rollout, looks = begun(c, slow=True)
        runtime = c.agents["b"].runtime
        publish(trainer, 2)
        wait_for(lambda: fills(looks, 2), 60, "it comes")
        for version, node in ((2, "b"), (3, "b2")):
            if version == 3:
                publish(trainer, 3)
                waits(rollout, 3)
            c.agents[node].kill()
            wait_for(lambda r=rollout: r.call("events") & 16, 60, "its worker is told")
            rollout.kill()
            wait_for(lambda v=version: not copies(looks, v), 60, "its copy has gone with it")
            node = f"b{version}"
            c.agent(node, runtime=runtime)
            rollout = worker(c, f"rollout{version}", node, prefetch=True)
            assert rollout.call("replicate")["version"] == version
        want = publish(trainer, 4)
        waits(rollout, 4)
        installs(rollout, 4, want)
        nothing_is_left(c, "b3")


def a_server_restarts():
    """While it is brought, and when it is ready: then it is said again."""
    with cluster() as c:
        trainer, rollout, looks = begun(c, slow=True)
        for version, filling in ((2, True), (3, False)):
            want = publish(trainer, version)
            if filling:
                wait_for(lambda v=version: fills(looks, v), 60, "it comes")
            else:
                waits(rollout, version)
            c.server.kill()
            if not filling:
                wait_for(lambda: rollout.call("ready") is None, 60, "nobody would answer")
            c.start_server(listen=c.server_url)
            attached(c, "a", "b")
            waits(rollout, version)
            installs(rollout, version, want)
            nothing_is_left(c, "b")


def a_node_is_drained():
    with cluster() as c:
        trainer, rollout, looks = begun(c)
        want = publish(trainer, 2)
        waits(rollout, 2)
        c.thctl("-s", c.server_url, "drain", "b", "--timeout", "300ms", check=False)
        wait_for(lambda: not copies(looks, 2), 60, "no copies on a host that is to end")
        assert rollout.call("ready") is None and rollout.call("held") == [0, 1]
        nothing_is_left(c, "b")
        c.thctl("-s", c.server_url, "undrain", "b")
        waits(rollout, 2)
        installs(rollout, 2, want)


# ---- slow links ---------------------------------------------------------------------------------


def a_publisher_faster_than_the_link():
    """Each version is overtaken as soon as it begins to come: of three at least one is finished."""
    with cluster() as c:
        c.agent("a", args=["-o", f"rate.out={RATE}"])
        c.agent("b")
        trainer, rollout = c.worker("trainer", "a"), worker(c, "rollout", "b", prefetch=True)
        names, want, taken = ("s0", "s1", "s2"), {}, [1]
        for name in names:
            trainer.setup(SIZE, model="m", replica=name, name=name)
        want[1] = trainer.call("fill", seed=1, name="s1")
        trainer.call("publish", version=1, name="s1")
        rollout.call("replicate")
        looks = c.worker("looks", "a")
        looks.call("open", model="m")

        def comes(version):
            ready = rollout.call("ready")
            if ready is not None:
                installs(rollout, ready, want[ready])
                taken.append(ready)
            return taken[-1] == version or any(c["progress"] for c in copies(looks, version))

        for version in range(2, 2 + ROUNDS):
            name = names[version % 3]
            if version > 3:
                trainer.call("unpublish", name=name)
            want[version] = trainer.call("fill", seed=version, name=name)
            trainer.call("publish", version=version, name=name)
            wait_for(lambda v=version: comes(v), 60, "it comes, after what is finished first")
            assert used(c, "b") <= 2 * (SIZE + (1 << 20))
        wait_for(lambda: comes(version) and taken[-1] == version, 60, "the last one is whole")
        print(f"  of {ROUNDS} versions were installed: {taken[1:]}")
        assert max(b - a for a, b in zip(taken, taken[1:])) <= 3, taken
        nothing_is_left(c, "b")


def a_seed_of_another_datacenter():
    """It crosses once, into an agent's memory: no group stands still meanwhile."""
    with cluster() as c:
        c.agent("a", args=["-D", "home", "-o", f"rate.out={RATE}"])
        for name in "bc":
            c.agent(name, args=["-D", "away"])
        trainer = worker(c, "trainer", "a")
        publish(trainer, 1)
        rollouts = [worker(c, f"rollout-{name}", name, offload_seed=True) for name in "bc"]
        for rollout in rollouts:
            rollout.call("replicate")
        looks = c.worker("looks", "a")
        looks.call("open", model="m")
        want = publish(trainer, 2)
        wait_for(lambda: fills(looks, 2), 60, "it crosses")
        for result in each(rollouts, "update"):
            assert result["updated"] == 0 and result["reason"] == "", result
        wait_for(lambda: kept(looks, 2), 60, "it is whole")
        (copy,) = copies(looks, 2)
        (seed,) = [i for i, name in enumerate("bc") if used(c, name) > 0]
        results = each(rollouts, "update")
        for i, result in enumerate(results):
            assert result["updated"] and result["source"] not in ("trainer", ""), result
            assert result["bytes_prefetched"] == (SIZE if i == seed else 0), (copy, result)
            assert result["reason"] == "", result
        assert each(rollouts, "digest") == [want, want]
        nothing_is_left(c, "b", "c")


if __name__ == "__main__":
    main(
        a_group_on_two_hosts_needs_no_network,
        two_groups_of_a_host_share_one_copy,
        readers_chain_behind_a_copy_that_fills,
        without_room_the_update_says_so,
        retention_goes_first,
        the_version_vanishes_while_it_is_brought,
        a_worker_dies,
        an_agent_dies,
        a_server_restarts,
        a_node_is_drained,
        a_publisher_faster_than_the_link,
        a_seed_of_another_datacenter,
    )
