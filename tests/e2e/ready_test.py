# SPDX-License-Identifier: Apache-2.0
"""Versions that a host brings before its workers ask: what a worker learns of them without asking,
when it is taken back, what update says, and what operators see."""

import ctypes as c
import json
import select

from cluster import cluster, main, wait_for, with_library

with_library()
import library
import memory_kinds
import tensorhub as th
from tensorhub import _abi
from tensorhub.handle import Event

lib = _abi.lib
SIZE = 8 << 20


def opened(cl, agent, replica, **options):
    handle = library.opened(cl.agents[agent], replica, **options)
    memory = memory_kinds.Allocated(SIZE)
    handle.register({"weight": memory_kinds.Tensor(memory, [SIZE])})
    return handle, memory


def ready(handle):
    """Lineage and version; None: there is none."""
    lineage, version = c.c_uint64(), c.c_uint64()
    code = lib.thc_ready_version(handle._shard, c.byref(lineage), c.byref(version))
    if code == th.NotAvailable.code:
        return None
    assert code == 0, code
    return lineage.value, version.value


def is_told(handle):
    """THC_EV_READY has come, and has made thc_fd readable."""
    poll = select.poll()
    poll.register(handle.fileno(), select.POLLIN)
    assert poll.poll(60000), "nothing has happened"
    return Event.READY in handle.events()


def update(handle):
    result = _abi.Result(struct_size=c.sizeof(_abi.Result))
    code = lib.thc_update(handle._shard, b"latest", 60000, c.byref(result))
    assert code == 0, lib.thc_errmsg()
    return result


def table(cl, agent, *args):
    (key,) = args[-1:]
    return json.loads(cl.thctl("-o", "json", *args, agent=agent, check=False).stdout)[key]


def own_copies(cl, agent):
    return [row for row in table(cl, agent, "ls", "workers") if row["why"] is not None]


def sessions(cl, agent):
    out = cl.thctl("-o", "json", "status", agent=agent, check=False).stdout
    return json.loads(out)["sessions"]


def publish(source, memory, version):
    if version > 1:
        source.unpublish()
    memory.fill(version)
    source.publish(version)


def a_worker_is_told_and_installs_it():
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        source, memory = opened(cl, "a", "trainer")
        reader, own = opened(cl, "b", "rollout", prefetch=True)
        plain, _ = opened(cl, "b", "plain")
        publish(source, memory, 1)
        reader.replicate("latest")
        plain.replicate("latest")
        assert ready(reader) is None and ready(plain) is None
        publish(source, memory, 2)
        wait_for(lambda: is_told(reader), 60, "it is told")
        assert ready(reader) == (0, 2) and reader.held == (0, 1)
        assert ready(plain) is None and plain.events() == 0
        counts = {
            row["version"]: (row["prefetched"], row["prefetching"])
            for row in table(cl, "b", "ls", "versions")
        }
        assert counts == {1: (1, 1), 2: (1, 1)}, counts
        (copy,) = own_copies(cl, "b")
        assert (copy["why"], copy["replica"], copy["node"]) == ("prefetch", "rollout", "b"), copy
        assert copy["version"] == 2 and copy["done"] == 1, copy
        by_replica = {row["replica"]: row for row in sessions(cl, "b") if not row["offload"]}
        assert by_replica["rollout"]["ready"] == 2, by_replica
        assert by_replica["rollout"]["flags"] == "prefetch", by_replica
        assert by_replica["plain"]["ready"] is None and by_replica["plain"]["flags"] is None
        result = update(reader)
        assert result.updated == 1 and result.version == 2
        assert result.bytes_prefetched == result.bytes_moved == SIZE, result.bytes_prefetched
        assert result.transport == b"local" and result.reason == b"", result.transport
        assert own.read(0, SIZE) == bytes([2]) * SIZE
        assert ready(reader) is None
        wait_for(lambda: not own_copies(cl, "b"), 60, "its copy goes")
        assert update(plain).bytes_prefetched == 0
        for handle in (reader, plain, source):
            handle.close()


def it_is_taken_back_with_the_server_and_said_again():
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        source, memory = opened(cl, "a", "trainer")
        reader, own = opened(cl, "b", "rollout", prefetch=True)
        publish(source, memory, 1)
        reader.replicate("latest")
        publish(source, memory, 2)
        wait_for(lambda: is_told(reader), 60, "it is told")
        cl.server.kill()
        wait_for(lambda: ready(reader) is None, 60, "without a server there is no update")
        assert reader.events() == 0 and reader.held == (0, 1)
        cl.start_server(listen=cl.server_url)
        wait_for(lambda: is_told(reader), 60, "the next server says it again")
        assert ready(reader) == (0, 2)
        (copy,) = own_copies(cl, "b")
        assert copy["why"] == "prefetch", copy
        result = update(reader)
        assert result.updated == 1 and result.bytes_prefetched == SIZE
        assert own.read(0, SIZE) == bytes([2]) * SIZE
        # An agent that is gone has nothing to install.
        publish(source, memory, 3)
        wait_for(lambda: is_told(reader), 60, "it is told")
        cl.agents["b"].kill()
        asked = lib.thc_ready_version
        wait_for(lambda: asked(reader._shard, None, None) == th.AgentLost.code, 60, "it is lost")
        reader.close()
        source.close()


def without_room_it_comes_over_the_network():
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b", args=["--offload-limit", "0"])
        source, memory = opened(cl, "a", "trainer")
        reader, own = opened(cl, "b", "rollout", prefetch=True)
        publish(source, memory, 1)
        reader.replicate("latest")
        publish(source, memory, 2)
        results = []
        wait_for(lambda: results.append(update(reader)) or results[-1].updated, 60, "it comes")
        result = results[-1]
        assert result.bytes_prefetched == 0 and result.bytes_moved == SIZE
        assert result.reason.startswith(b"not brought before: node "), result.reason
        assert result.transport == b"tcp" and own.read(0, SIZE) == bytes([2]) * SIZE
        assert ready(reader) is None and Event.READY not in reader.events()
        reader.close()
        source.close()


def a_seed_is_fetched_once_for_its_datacenter():
    with cluster() as cl:
        cl.agent("a")
        readers = []
        for label in ("b", "c"):
            cl.agent(label, args=["-D", "far"])
        source, memory = opened(cl, "a", "trainer")
        publish(source, memory, 1)
        for label in ("b", "c"):
            readers.append(opened(cl, label, f"rollout-{label}", offload_seed=True))
            readers[-1][0].replicate("latest")
        publish(source, memory, 2)
        wait_for(lambda: [w["done"] for w in own_copies(cl, "b")] == [1], 60, "it is whole")
        (copy,) = own_copies(cl, "b")
        assert copy["why"] == "seed" and copy["node"] in "bc", copy
        for handle, own in readers:
            here = handle.replica == f"rollout-{copy['node']}"
            if here:
                wait_for(lambda h=handle: is_told(h), 60, "it is told")
            assert ready(handle) == ((0, 2) if here else None)
            result = update(handle)
            assert result.updated == 1 and result.reason == b""
            assert result.bytes_prefetched == (SIZE if here else 0)
            assert own.read(0, SIZE) == bytes([2]) * SIZE
        for handle, _ in readers:
            handle.close()
        source.close()


if __name__ == "__main__":
    main(
        a_worker_is_told_and_installs_it,
        it_is_taken_back_with_the_server_and_said_again,
        without_room_it_comes_over_the_network,
        a_seed_is_fetched_once_for_its_datacenter,
    )
