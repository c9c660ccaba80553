# SPDX-License-Identifier: Apache-2.0
"""Listings of thousands of replicas: in parts of one snapshot for libthc and thctl, the same for
all members of a group, and what happens at the server's limit. The replicas are crowd.c's."""

import itertools
import json
import os
import subprocess

import cluster

cluster.with_library()

import library
import memory_kinds
from tensorhub import Op, _abi

# The crowd sends no heartbeat and polls no events.
PATIENT = ["-o", "lease.suspect=1h", "-o", "lease.dead=2h", "-o", "limit.members_per_agent=65536"]
NAME_BYTES = 250


class Crowd(cluster.Process):
    def __init__(self, cl, versions, name_bytes=NAME_BYTES):
        super().__init__(
            cl,
            "crowd",
            [
                os.path.join(cluster.BUILD, "tests", "e2e", "crowd"),
                cl.server_url,
                "crowd",
                "m",
                str(versions),
                str(name_bytes),
            ],
            stdin=subprocess.PIPE,
        )
        self.name_bytes, self.versions, self.count = name_bytes, versions, 0

    def begin(self, more):
        self.p.stdin.write(f"{more}\n".encode())
        self.p.stdin.flush()
        self.count += more

    def end(self):
        line = self.p.stdout.readline()
        assert line == b"done\n", f"{line} {self.tail()}"

    def add(self, more):
        self.begin(more)
        self.end()

    def leave(self):
        self.p.stdin.close()
        assert self.p.wait(60) == 0

    def name(self, i):
        return f"r{i * 7919 % 100000:05d}".ljust(self.name_bytes, "x")

    def listing(self, count):
        """What is listed when the first so many have published: version -> names."""
        versions = {}
        for i in range(count):
            versions.setdefault(i % self.versions, set()).add(self.name(i))
        return versions


def names_of(listing):
    """version -> names, sorted as they came; lineage 0."""
    return {v: [r.name for r in one.replicas] for (_, v), one in listing.details.items()}


def check(got, crowd):
    """Sorted, and as many as it says: exactly the first ones, nothing in between is missing."""
    assert list(got) == sorted(got)
    for names in got.values():
        assert names == sorted(names)
    count = sum(len(names) for names in got.values())
    assert {v: set(names) for v, names in got.items()} == crowd.listing(count), count
    return count


def thctl_json(cl, *args, agent=None):
    args = ("-o", "json", *args) if agent else ("-s", cl.server_url, "-o", "json", *args)
    return json.loads(cl.thctl(*args, agent=agent).stdout)


def thousands_of_replicas():
    count = 1800 if cluster.SANITIZED else 4500
    with cluster.cluster(server=False) as cl:
        cl.start_server(args=PATIENT)
        cl.agent("a")
        crowd = Crowd(cl, versions=3)
        shard = library.opened(cl.agents["a"], "asker")
        assert shard.list().all == {}
        crowd.add(count)
        before = shard.list()
        assert check(names_of(before), crowd) == count
        for one in before.details.values():
            for replica in one.replicas:
                assert replica.ready and not (replica.offload or replica.spot), replica
                assert not replica.draining and replica.progress == 1.0, replica
        # While it grows every listing is one moment's, and no older than the one before.
        crowd.begin(300)
        seen = [before]
        while len(seen) < 4:
            listing = shard.list()
            assert listing.generation >= seen[-1].generation
            assert check(names_of(listing), crowd) >= check(names_of(seen[-1]), crowd)
            seen.append(listing)
        crowd.end()
        assert check(names_of(shard.list()), crowd) == count + 300
        # Through the agent and from the server itself.
        for agent in ("a", None):
            rows = thctl_json(cl, "ls", "replicas", agent=agent)["replicas"]
            listed = [r for r in rows if r["version"] is not None]
            assert len(listed) == count + 300
            assert sorted(r["replica"] for r in listed) == sorted(
                crowd.name(i) for i in range(count + 300)
            )
            assert [r["replica"] for r in rows if r["version"] is None] == ["asker"]
            rows = thctl_json(cl, "ls", "versions", "m", agent=agent)["versions"]
            assert [r["version"] for r in rows] == [0, 1, 2]
            assert sum(r["ready"] for r in rows) == count + 300
            assert len(thctl_json(cl, "ls", "workers", agent=agent)["workers"]) == count + 301
        status = thctl_json(cl, "status")
        assert len(status["workers"]) == count + 301
        counters = {c["name"]: c["value"] for c in status["counters"]}
        assert counters["snapshots_made"] >= 5, counters
        shard.close()
        crowd.leave()


def a_group_sees_one_listing():
    with cluster.cluster(server=False) as cl:
        cl.start_server(args=PATIENT)
        cl.agent("a")
        cl.agent("b")
        crowd = Crowd(cl, versions=2)
        crowd.add(2500)
        members = [
            cl.worker(f"w{i}", "ab"[i], env={"PYTHONUNBUFFERED": "1"}) for i in range(2)
        ]
        for i, member in enumerate(members):
            member.call("open", model="m", replica="pair", shard=i, num_shards=2)
        crowd.begin(400)
        # The first member's call decides; the second comes later, and others list meanwhile.
        for turn in range(3):
            first = members[turn % 2].call("list", group=True)
            alone = members[turn % 2].call("list")
            second = members[1 - turn % 2].call("list", group=True)
            assert first == second
            assert alone["generation"] >= first["generation"]
            names = {v: [r["name"] for r in copies] for _, v, copies in first["versions"]}
            assert 2500 <= check(names, crowd) <= 2900
        crowd.end()
        for member in members:
            member.call("close", abandon=True)
        crowd.leave()


def a_listing_is_kept_until_all_have_moved_on():
    """thc_op_listing, each time for the same operation, while the members call the next ones."""
    with cluster.cluster() as cl:
        cl.agent("a")
        pair = [library.opened(cl.agents["a"], "pair", shard=i, num_shards=2) for i in (0, 1)]

        def called(member):
            op = Op(member, "grouped list")
            op._submit("thc_list_submit", _abi.LIST_GROUP, 30_000).result()
            return op

        def generation(op):
            raw = _abi.c.c_void_p()
            _abi.call("thc_op_listing", op._pointer, 10_000, _abi.c.byref(raw))
            got = _abi.Listing.from_address(raw.value).generation
            _abi.lib.thc_listing_free(raw)
            return got

        ops = [called(member) for member in pair]
        was = generation(ops[0])
        alone = library.opened(cl.agents["a"], "alone")
        alone.register({"w": memory_kinds.Tensor(memory_kinds.Allocated(4096), [4096])})
        alone.publish(1)
        assert alone.list().generation > was
        ops.append(called(pair[0]))
        assert [generation(op) for op in ops[:2]] == [was, was]
        assert generation(ops[2]) > was
        ops.append(called(pair[1]))
        for op in ops[:2]:
            error = cluster.expect_error("NOT_AVAILABLE", generation, op)
            assert "moved on from it: list again" in str(error), error
        assert generation(ops[2]) == generation(ops[3]) > was
        for shard in (alone, *pair):
            shard.close(abandon=True)


def the_limit_is_named():
    with cluster.cluster(server=False) as cl:
        cl.start_server(args=[*PATIENT, "-o", "limit.snapshot_bytes=1MiB"])
        cl.agent("a")
        crowd = Crowd(cl, versions=1)
        # Each takes 536 bytes of a snapshot: the first fit into the megabyte, and are two parts.
        crowd.add(1800)
        shard = library.opened(cl.agents["a"], "asker")
        assert check(names_of(shard.list()), crowd) == 1800
        crowd.add(400)
        error = cluster.expect_error("LIMIT", shard.list)
        assert "limit.snapshot_bytes" in str(error), error
        p = cl.thctl("-s", cl.server_url, "ls", "versions", check=False)
        assert p.returncode == 1 and "limit.snapshot_bytes" in p.stderr, p.stderr
        shard.close()
        crowd.leave()


def lineages_and_versions_ascend():
    with cluster.cluster() as cl:
        cl.agent("a")
        held = []
        for lineage, version in itertools.product((3, 1), (10, 9, 100)):
            shard = library.opened(cl.agents["a"], f"r{lineage}-{version}", lineage=lineage)
            shard.register({"w": memory_kinds.Tensor(memory_kinds.Allocated(4096), [4096])})
            shard.publish(version)
            held.append(shard)
        listing = held[0].list()
        assert list(listing.all) == [(1, 9), (1, 10), (1, 100), (3, 9), (3, 10), (3, 100)]
        generation = listing.generation
        for shard in held:
            shard.unpublish()
            now = shard.list()
            assert now.generation > generation
            generation = now.generation
        assert not now.all
        for shard in held:
            shard.close()


cluster.main(
    thousands_of_replicas,
    a_group_sees_one_listing,
    a_listing_is_kept_until_all_have_moved_on,
    the_limit_is_named,
    lineages_and_versions_ascend,
)
