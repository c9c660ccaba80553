# SPDX-License-Identifier: Apache-2.0
"""Memory that a worker cannot register as a GPU's: the code, a sentence with the tensor, what is
wrong and what to do, and that this helps. The same handle goes on, and nothing stays behind. Also
what the driver says of memory that another process has opened, by which it is told apart."""

import json
import os
import re

from cluster import Skip, cluster, expect_error, main, wait_for

SIZE = 10 << 20
HOST = -1


def status(c):
    return json.loads(c.thctl("-o", "json", "status", agent="a", check=False).stdout)


def opened(c):
    """Pieces of GPU memory that workers share with the agent, those that are open, and whose it
    is."""
    shown = status(c)
    gpus = shown.get("gpus", [])
    pieces, imports = (sum(gpu[what] for gpu in gpus) for what in ("pieces", "imports"))
    return pieces, imports, sorted(m["replica"] for m in shown["memory"] if m.get("gpu"))


class Rig:
    """A worker with good memory, and a reader; both are known to the driver and the agent before
    anything is counted."""

    def __init__(self, c, device=0):
        self.c, self.device, self.version = c, device, 0
        c.agent("a")
        self.w, self.r = (self.worker(name) for name in ("w", "r"))
        self.w.call("alloc", total_bytes=SIZE, name="good", gpu="legacy", device=device)
        self.r.call("alloc", total_bytes=SIZE, gpu="legacy", device=device)
        self.r.call("register")
        self.goes_on()
        self.before = self.held()

    def worker(self, name):
        worker = self.c.worker(name, "a")
        worker.call("open", model="m", replica=name)
        return worker

    def held(self):
        """All that the worker, the agent and the process of the GPU have of what is tried here.
        What the agent has of host memory, of the handle's and its own, stays and is not
        counted."""

        def all_is_told():
            pieces, imports, _ = opened(self.c)
            return pieces == imports

        wait_for(all_is_told, 30, "all that is shared is open, and nothing else")
        found = {"agent": opened(self.c)}
        if not self.c.gpus.hardware:  # whose driver keeps descriptors of its own
            found["descriptors"] = len(os.listdir(f"/proc/{self.w.pid}/fd"))
            found["bytes"] = [self.c.gpus.used(i) for i in range(self.c.gpus.count)]
            for pid in (self.w.pid, *self.c.agents["a"].gpu_processes()):
                for what in ("imports", "pools", "mappings", "handles", "reservations"):
                    found[pid, what] = self.c.gpus.holds(pid, what)
            found["pinned"] = self.c.gpus.holds(self.w.pid, "host")
        return found

    def expect_nothing_more(self):
        held = {}

        def as_before():
            held.update(self.held())
            return held == self.before

        try:
            wait_for(as_before, 30, "all is let go of")
        except AssertionError:
            raise AssertionError(f"{held} are held, {self.before} were before") from None

    def moves(self, worker, memory):
        """What it has registered is published and read."""
        self.version += 1
        want = worker.call("fill", seed=self.version, name=memory)
        worker.call("publish", version=self.version)
        how = "update" if self.version > 1 else "replicate"
        self.r.call(how, version=str(self.version))
        assert self.r.call("digest") == want, memory
        worker.call("unpublish")

    def expect_open(self, worker, memory):
        path = worker.call("path", memory=memory)
        assert path.startswith("cuda-ipc"), path

    def goes_on(self, worker=None, memory="good"):
        """This memory is what the same handle registers next."""
        worker = worker or self.w
        worker.call("register", memory=memory)
        self.expect_open(worker, memory)
        self.moves(worker, memory)
        self.r.call("unpublish")
        worker.call("unregister")

    def refused(self, code, words, worker=None, memory="bad", **how):
        worker = worker or self.w
        error = expect_error(code, worker.call, "register", memory=memory, **how)
        print(f"  {code}: {error.text}", flush=True)
        assert re.match(r"tensors\[\d+\]\.data: '(embed|layer)[.\w]+'", error.text), error.text
        for word in words:
            assert word in error.text, (word, error.text)
        expect_error("STATE", worker.call, "publish", version=1000)


def managed(it):
    """What to do is what all of these do next: cudaMalloc."""
    it.w.call("alloc", total_bytes=SIZE, name="bad", gpu="managed", device=it.device)
    it.refused("MEMORY_KIND", ["is managed memory", "allocate it with cudaMalloc"])


def freed(it):
    it.w.call("alloc", total_bytes=SIZE, name="bad", gpu="freed", device=it.device)
    it.refused("INVALID", ["it was freed, or never was", "stay allocated until thc_unregister"])


def host_memory_that_cuda_knows(it):
    it.w.call("alloc", total_bytes=SIZE, name="bad", gpu="pinned", device=it.device)
    it.refused("INVALID", ["host memory that CUDA knows", f"with device {HOST}"])
    it.w.call("register", memory="bad", device=HOST)
    it.moves(it.w, "bad")
    it.r.call("unpublish")
    it.w.call("unregister")


def asleep(it):
    it.w.call("alloc", total_bytes=SIZE, name="bad", gpu="chunks", device=it.device)
    it.w.call("sleep", name="bad")
    it.refused("INVALID", ["a reserved address without memory", "wake the engine before"])
    it.w.call("wake", name="bad")
    it.goes_on(memory="bad")


def longer_than_its_allocation(it):
    it.w.call("alloc", total_bytes=SIZE, name="bad", gpu="legacy", device=it.device)
    it.refused("INVALID", ["end 1 bytes behind their allocation", "another tensor's"], shift=1)
    it.goes_on(memory="bad")


def not_aligned_to_its_elements(it):
    it.w.call("alloc_even", total_bytes=SIZE, count=1, name="bad", gpu="legacy", device=it.device)
    it.refused("INVALID", ["no multiple of the 4 bytes of an element"], shift=2, dtype="F32")
    it.w.call("register", memory="bad", dtype="F32")
    it.expect_open(it.w, "bad")
    it.w.call("unregister")


def said_to_lie_on_another_gpu(it):
    """Also where the machine has no such GPU."""
    other = it.device + 1
    it.w.call("alloc", total_bytes=SIZE, name="bad", gpu="legacy", device=it.device)
    it.refused(
        "INVALID",
        [
            f"is said to lie on GPU {other}",
            f"lies on GPU {it.device}, not on GPU {other}",
            f"the tensor's device has to be {it.device}",
        ],
        device=other,
    )
    it.goes_on(memory="bad")


BAD = (
    managed,
    freed,
    host_memory_that_cuda_knows,
    asleep,
    longer_than_its_allocation,
    not_aligned_to_its_elements,
    said_to_lie_on_another_gpu,
)


def bad_memory():
    with cluster(has_gpus=True) as c:
        it = Rig(c)
        for case in BAD:
            case(it)
            it.goes_on()
            it.w.call("free", name="bad")
            it.expect_nothing_more()


def memory_of_another_gpu():
    with cluster(has_gpus=True) as c:
        if c.gpus.count < 2:
            raise Skip("two GPUs are needed")
        it = Rig(c, device=1)
        it.w.call("alloc", total_bytes=SIZE, name="bad", gpu="legacy", device=1)
        words = ["lies on GPU 1, not on GPU 0", "the tensor's device has to be 1"]
        it.refused("INVALID", words, device=0)
        it.goes_on(memory="bad")
        it.goes_on()
        it.w.call("free", name="bad")
        it.expect_nothing_more()


def lent(it, kind):
    """A worker that has memory, which the handle of it.w has opened."""
    lender = it.worker(kind)
    lender.call("alloc", total_bytes=SIZE, gpu=kind, device=it.device)
    path = os.path.join(it.c.dir, f"lent.{kind}")
    lender.call("lend", path=path)
    where = {"path": path, "kind": kind, "total_bytes": SIZE, "device": it.device}
    there = it.w.call("borrow", name="bad", **where)
    here = lender.call("says")
    print(f"  {kind}, where it was allocated: {here}", flush=True)
    print(f"  {kind}, where it was opened:    {there}", flush=True)
    return lender


def what_another_process_has_allocated():
    """It is registered there, while it is open here."""
    with cluster(has_gpus=True) as c:
        it = Rig(c)
        for kind in ("legacy", "pool"):
            lender = lent(it, kind)
            words = ["memory of another process, opened here by a handle"]
            it.refused("MEMORY_KIND", [*words, "registered in the process that allocated it"])
            it.goes_on()
            it.goes_on(lender, "s")
            it.refused("MEMORY_KIND", words)
            it.w.call("free", name="bad")
            lender.call("free")
            lender.call("close")
            lender.kill()
            it.expect_nothing_more()


def a_chunk_of_another_process_is_a_reference_of_its_own():
    """It is taken, and outlives the process that made it."""
    with cluster(has_gpus=True) as c:
        it = Rig(c)
        lender = lent(it, "chunk")
        it.w.call("register", memory="bad")
        it.expect_open(it.w, "bad")
        lender.kill()
        it.moves(it.w, "bad")
        it.r.call("unpublish")
        it.w.call("unregister")
        it.w.call("free", name="bad")
        it.expect_nothing_more()
        it.goes_on()


if __name__ == "__main__":
    main(
        bad_memory,
        memory_of_another_gpu,
        what_another_process_has_allocated,
        a_chunk_of_another_process_is_a_reference_of_its_own,
    )
