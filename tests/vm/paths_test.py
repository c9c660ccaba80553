# SPDX-License-Identifier: Apache-2.0
"""In the guest: which path bytes take, and that every place where one can look says the same: the
result of the call, thctl status, thctl ls transfers and the log. On the two rails that the guest
lays by itself; part of vm_rdma, or run-in-vm -n 2 -- python3 tests/vm/paths_test.py."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import BUILD, LONG, cluster, expect_error, main, wait_for, with_library

with_library()
import gpu_driver
import library
import memory_kinds
from memory_kinds import Allocated, Malloc

SIZE = 4 << 20
GPU_SIZE = 32 << 20  # less has no memory of the agent's own on a GPU


def with_memory(cl, agent, replica, model="m", make=Allocated, size=SIZE, **options):
    shard = library.opened(cl.agents[agent], replica, model, **options)
    memory = make(size)
    shard.register({"a": memory_kinds.Tensor(memory, [size])})
    return shard, memory


def status(cl, agent):
    return json.loads(cl.thctl("-o", "json", "status", agent=agent, check=False).stdout)


def registered(cl, agent):
    return sum(port["bytes_registered"] for port in status(cl, agent)["rdma_ports"])


def every_place_says_the_same():
    with cluster() as cl:
        cl.agent("a", args=["-o", "rdma.devices=rxe0,rxe1"])
        cl.agent("b", args=["-o", "rdma.devices=rxe1"])
        cl.agent("c", args=["--transport", "tcp,rdma", "-o", "rdma.devices=rxe0,rxe1"])
        cl.agent("d", args=["-o", "rdma=off"])
        source, memory = with_memory(cl, "a", "source")
        memory.fill(7)
        source.publish(1)
        idle = registered(cl, "b")

        # The source has no RDMA, and the reader takes nothing else. It looks for another one first.
        last, _ = with_memory(cl, "a", "last", model="p", require_rdma=True)
        away, _ = with_memory(cl, "d", "away", model="p")
        away.publish(1)
        hopeless = last.replicate_async("1")

        # Nothing but RDMA is good enough, and there is one device to it.
        strict, _ = with_memory(cl, "b", "strict", require_rdma=True)
        result = strict.replicate("1")
        assert result.transport == "rdma" and result.bytes_moved == SIZE, result
        b = status(cl, "b")
        assert b["rdma"] == "1 of 1 ports up" and b["rdma_fallbacks"] == 0, b
        assert b["transports"].startswith("local,rdma,tcp"), b["transports"]
        (port,) = b["rdma_ports"]
        assert port["port"] == "rxe1/1" and port["state"] == "up", port
        assert port["bytes_in"] >= SIZE and port["reads"] >= SIZE >> 20, port
        assert port["bytes_registered"] >= SIZE and port["address"] == "10.77.1.1", port
        (path,) = b["rdma_paths"]
        assert path["state"] == "used" and path["failures"] == 0, path
        assert "path=rdma" in cl.agents["b"].tail()

        # Both ends have RDMA, and the operator prefers TCP: only who requires it gets it.
        easy, _ = with_memory(cl, "c", "easy")
        assert easy.replicate("1").transport == "tcp"
        hard, _ = with_memory(cl, "c", "hard", model="n", require_rdma=True)
        other, _ = with_memory(cl, "a", "other", model="n")
        other.publish(1)
        assert hard.replicate("1").transport == "rdma"

        # The source has none: who can do without does, and it says why.
        far, _ = with_memory(cl, "d", "far", model="o")
        far.publish(1)
        near, _ = with_memory(cl, "b", "near", model="o")
        assert near.replicate("1").transport == "tcp"
        b = status(cl, "b")
        assert b["rdma_fallbacks"] == 1 and b["rdma_last_fallback"], b
        assert b["rdma_last_fallback"] in cl.agents["b"].tail()

        e = expect_error("NO_PATH", hopeless.result)
        assert "RDMA is required" in str(e), e
        assert last.held is None
        for shard in (strict, easy, hard, other, near, far, last, away, source):
            shard.close()
        wait_for(lambda: registered(cl, "b") == idle, 30, "nothing of the workers is registered")

        copies_say_why(cl)


def copies_say_why(cl):
    """Memory that no device is to know, or reaches: its bytes are copied there, at either end."""
    for count, (model, source, reader, is_staged, words) in enumerate(
        (
            ("q", Allocated, Allocated, True, ("THC_STAGED",)),
            ("r", Malloc, Allocated, False, ("the source says", "private")),
            ("s", Malloc, Malloc, False, ("private", "the source says")),
        ),
        start=1,
    ):
        how = {"staged": is_staged, "require_rdma": True}
        staged, into = with_memory(cl, "b", "staged", model, reader, **how)
        given, out = with_memory(cl, "a", "given", model, source)
        out.fill(30 + count)
        given.publish(1)
        assert staged.replicate("1").transport == "rdma-copy"
        assert into.read(0, SIZE) == out.read(0, SIZE)
        b = status(cl, "b")
        assert b["rdma_copies"] == count, b
        assert all(word in b["rdma_last_copy"] for word in words), b["rdma_last_copy"]
        log = cl.agents["b"].tail()
        assert "path=rdma-copy" in log and b["rdma_last_copy"] in log, b["rdma_last_copy"]
        wait_for(
            lambda count=count: status(cl, "a")["rdma_copies"] == count, 30, "the source says so"
        )
        staged.close()
        given.close()


def a_library_that_lacks_a_call_is_not_used():
    """As that of an rdma-core before 34. The agent starts, and what it can do it does."""
    lacking = {"LD_PRELOAD": os.path.join(BUILD, "tests", "support", "libverbs_lacking.so")}
    sentence = (
        "libibverbs.so.1 has no ibv_reg_dmabuf_mr of IBVERBS_1.12: update rdma-core to 34 or newer"
    )
    with cluster() as cl:
        a = cl.agent("a", args=["-o", "rdma.devices=rxe0"])
        b = cl.agent("b", env=lacking)
        assert status(cl, "a")["rdma"] == "1 of 1 ports up", a.tail()
        assert status(cl, "b")["rdma"] == f"not used: {sentence}", b.tail()
        assert b.tail().count(sentence) == 1, b.tail()
        source, memory = with_memory(cl, "a", "source")
        memory.fill(9)
        source.publish(1)
        strict, _ = with_memory(cl, "b", "strict", require_rdma=True)
        e = expect_error("NO_PATH", strict.replicate, "1")
        assert sentence in str(e), e
        reader, into = with_memory(cl, "b", "reader")
        assert reader.replicate("1").transport == "tcp"
        assert into.read(0, SIZE) == memory.read(0, SIZE)
        for shard in (strict, reader, source):
            shard.close()
        p = subprocess.run(
            [*b.argv, "-r", os.path.join(cl.dir, "on"), "-o", "rdma=on"],
            env={**os.environ, **lacking},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert p.returncode > 0 and f"rdma=on, and {sentence}, or say rdma=auto" in p.stderr, p


def gpu_memory_goes_through_pinned_memory_of_the_hosts():
    """Soft-RoCE takes no dma-buf: not the worker's, nor that of the agents' own memory on a GPU."""
    if not LONG:
        return
    with cluster(has_gpus=True) as cl:
        cl.agent("a", args=["-o", "rdma.devices=rxe0,rxe1"])
        cl.agent("b", args=["-o", "rdma.devices=rxe1"])
        given, out = with_memory(cl, "a", "given", make=gpu_driver.Chunks, size=GPU_SIZE)
        taken, into = with_memory(
            cl, "b", "taken", require_rdma=True, make=gpu_driver.Chunks, size=GPU_SIZE
        )
        for shard in (given, taken):
            path = shard.memory_path("a")
            assert path == "cuda-ipc (chunks of a range on GPU 0, with a dma-buf for NICs)", path
        want = os.urandom(GPU_SIZE)
        out.write(0, want)
        given.publish(1, timeout=60)
        result = taken.replicate("1", timeout=60)
        assert into.read(0, GPU_SIZE) == want
        assert result.transport == "rdma-copy", (result, cl.agents["b"].tail(100))
        assert result.bytes_moved == GPU_SIZE and result.verify > 0, result
        for agent in "ab":
            told = status(cl, agent)
            assert told["rdma_copies"] == 1 and told["rdma_fallbacks"] == 0, told
            why = "does not take this kind of memory (dma-buf)"
            assert why in told["rdma_last_copy"], told["rdma_last_copy"]
            assert all(why in port["why"] for port in told["rdma_ports"]), told["rdma_ports"]
            # The GPU has written to what the device has READ from, or the other way round.
            assert told["rdma_stage_bytes"] == GPU_SIZE and told["rdma_stage_on_gpus"] == 0, told
            assert told["gpu_stage_bytes"] == 0, told
            assert [gpu["pinned_bytes"] for gpu in told["gpus"]] == [GPU_SIZE], told["gpus"]
        given.close()
        taken.close()


if __name__ == "__main__":
    main(every_place_says_the_same, gpu_memory_goes_through_pinned_memory_of_the_hosts)
