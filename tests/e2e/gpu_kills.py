# SPDX-License-Identifier: Apache-2.0
"""Workers with GPU memory, and the processes of GPUs, that are killed: how long is the memory held?

gpu_kill_test.py runs it on GPUs that are files; tests/bench/gpu.py prints what comes out.
"""

import contextlib
import os
import signal
import time

import gpus
from cluster import cluster, wait_for

FREE_S = 1.0  # after the last reader's end
SLACK_S = 4.0  # the test's own: two cores, other tests


class Rig:
    """Two agents; "a" sends no faster than rate_out bytes a second."""

    def __init__(self, c, kind, nbytes=None, rate=None):
        self.c, self.kind = c, kind
        self.hardware = c.gpus.hardware
        self.bytes = nbytes or ((4 << 30) if self.hardware else (48 << 20))
        # What contexts take, and what the driver keeps back, is no worker's memory.
        self.allowance = (1536 << 20) if self.hardware else (2 << 20)
        assert self.allowance < self.bytes
        self.baseline = [c.gpus.used(device) for device in range(c.gpus.count)]
        rate = rate or self.bytes
        c.agent("a", args=["-o", f"rate.out={rate}"])
        c.agent("b")
        self.devices = {}

    def worker(self, label, agent, device, kind=None, **opts):
        worker = self.c.worker(label, agent)
        self.devices[label] = device
        worker.call("open", model="m", replica=label, **opts)
        worker.call("alloc", total_bytes=self.bytes, gpu=kind or self.kind, device=device)
        worker.call("register", timeout=60)
        return worker

    def publisher(self, label="w", agent="a", device=0, seed=1, version=1):
        worker = self.worker(label, agent, device)
        self.want = worker.call("fill", seed=seed)
        worker.call("publish", version=version)
        return worker

    def free_after(self, worker, since=None):
        """Seconds from since (now) until no worker's memory is held on its GPU."""
        device = self.devices[worker.label]
        since = since or time.monotonic()
        limit = self.baseline[device] + self.allowance
        if gpus.wait_free(self.c.gpus, device, limit, 30) is None:
            raise AssertionError(
                f"{worker.label} is dead, {self.c.gpus.used(device)} bytes of GPU {device} are "
                f"still held, {self.baseline[device]} were before it"
            )
        return time.monotonic() - since

    def kill(self, worker):
        """Dead when it returns."""
        worker.p.send_signal(signal.SIGKILL)
        since = time.monotonic()
        worker.p.wait(20)
        return since

    def under_way(self, reader, part=8):
        """The submitted operation has moved some of its bytes, and has not ended."""
        wait_for(lambda: reader.call("progress")[0] > self.bytes // part, 60, "bytes come")

    def read_ahead(self, agent="b", device=0, label="r"):
        reader = self.worker(label, agent, device)
        reader.call("submit", version="1", timeout=60)
        self.under_way(reader)
        return reader


@contextlib.contextmanager
def rig(kind, **options):
    with cluster(has_gpus=True) as c:
        yield Rig(c, kind, **options)


# ---- workers ---------------------------------------------------------------------------------


def worker_idle(kind):
    """Published, nobody reads."""
    with rig(kind) as it:
        w = it.publisher()
        return it.free_after(w, it.kill(w))


def worker_while_read(kind):
    """Its reader gets all bytes; then the memory is free."""
    with rig(kind) as it:
        w = it.publisher()
        r = it.read_ahead(device=it.c.gpus.count - 1)
        it.kill(w)
        assert not r.call("progress")[0] == it.bytes, "the leg was over before the kill"
        r.call("op_wait", timeout=60)
        ended = time.monotonic()
        assert r.call("digest") == it.want
        same = it.devices["r"] == it.devices["w"]
        if same:  # its own memory is there, too
            it.baseline[0] += it.bytes + it.allowance
        return it.free_after(w, ended)


def reader_during_replicate(kind):
    """What it was filled from is as it was."""
    with rig(kind) as it:
        w = it.publisher()
        if it.c.gpus.count == 1:
            it.baseline[0] = it.c.gpus.used(0)
        r = it.read_ahead(device=it.c.gpus.count - 1)
        since = it.kill(r)
        seconds = it.free_after(r, since)
        assert w.call("digest") == it.want
        again = it.worker("again", "b", it.c.gpus.count - 1)
        again.call("replicate", version="1", timeout=60)
        assert again.call("digest") == it.want
        return seconds


def worker_in_warm_up(kind):
    """While its memory is being registered: many pieces."""
    with rig(kind) as it:
        w = it.c.worker("w", "a")
        it.devices["w"] = 0
        w.call("open", model="m", replica="w")
        w.call("alloc", total_bytes=it.bytes, gpu=kind, device=0)
        plan = None
        if not it.hardware and kind in OPENS:
            # The first of them hangs: a driver that does not come back.
            plan = it.c.gpus.plan("hang", OPENS[kind])
        w.start("register", timeout=60)
        if plan is not None:
            wait_for(lambda: it.c.gpus.met(plan), 30, "the GPU's process opens the memory")
        seconds = it.free_after(w, it.kill(w))
        if plan is not None:
            it.c.gpus.lift(plan)
        return seconds


def worker_while_its_stream_waits(kind):
    with rig(kind) as it:
        w = it.publisher()
        if not it.hardware:
            it.c.gpus.plan("hang", "stream", pid=w.pid)
        w.call("stall")
        return it.free_after(w, it.kill(w))


# ---- the processes of GPUs --------------------------------------------------------------------

# The call by which a piece of a kind is opened; only the GPU's process makes it.
OPENS = {
    "legacy": "cuIpcOpenMemHandle",
    "chunk": "cuMemImportFromShareableHandle",
    "chunks": "cuMemImportFromShareableHandle",
    "pool": "cuMemPoolImportFromShareableHandle",
}


def gpu_processes(agent):
    """Pids of an agent's."""
    found = []
    for task in os.listdir(f"/proc/{agent.pid}/task"):
        with contextlib.suppress(OSError):
            with open(f"/proc/{agent.pid}/task/{task}/children") as f:
                found += [int(word) for word in f.read().split()]
    return sorted(pid for pid in set(found) if b"gpu-helper" in command_line(pid))


def command_line(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read()
    return b""


class Step:
    """Stops the processes of GPUs in a call of the driver that workers do not make meanwhile."""

    def __init__(self, it, call, pid=0, after=0):
        self.it, self.call = it, call
        self.plan = it.c.gpus.plan("hang", call, pid=pid, after=after)

    def met(self):
        wait_for(lambda: self.it.c.gpus.met(self.plan), 60, f"a GPU's process calls {self.call}")

    def kill(self, agent):
        """Those of this agent; the call returns in all others."""
        pids = gpu_processes(agent)
        assert pids, "the agent has no GPU process"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.it.c.gpus.lift(self.plan)
        return pids


# Where its bytes go: to the other agent's GPU, or to the same GPU of the same agent.
HELPER_STEPS = (
    # call, the agent whose process is killed, the reader's agent, its GPU
    ("cuMemcpyDtoHAsync", "a", "b", 1),
    ("cuMemcpyHtoDAsync", "b", "b", 1),
    ("cuMemcpyDtoDAsync", "a", "a", 0),
    ("cuMemcpyDtoDAsync", "a", "a", 1),
)


def helper_in_a_leg(kind, call, killed, where, device, after=2):
    """The bytes come all the same, by the next process; nobody else notices."""
    with rig(kind, rate=1 << 40) as it:
        w = it.publisher()
        r = it.worker("r", where, min(device, it.c.gpus.count - 1))
        step = Step(it, call, after=after)
        running = r.start("replicate", version="1", timeout=90)
        step.met()
        before = step.kill(it.c.agents[killed])
        result = r.finish(running, 100)
        assert result["version"] == 1 and r.call("digest") == it.want
        assert w.call("digest") == it.want
        assert not set(before) & set(gpu_processes(it.c.agents[killed]))
        assert all(agent.alive() for agent in it.c.agents.values())
        # All that there is goes on: a new version, through the same handles.
        w.call("unpublish", timeout=30)
        want = w.call("fill", seed=2)
        w.call("publish", version=2)
        r.call("update", version="2", timeout=60)
        assert r.call("digest") == want


def helper_at_times(kind, count):
    """Also where nothing can be planned: killed at moments spread over a transfer. How many of the
    transfers brought all bytes."""
    with rig(kind, rate=1 << 40, nbytes=(2 << 30) if gpus.HARDWARE else None) as it:
        w = it.publisher()
        r = it.worker("r", "a", it.c.gpus.count - 1)
        begin = time.monotonic()
        r.call("replicate", version="1", timeout=60)
        whole = time.monotonic() - begin
        good = 0
        for i in range(count):
            version = i + 2
            w.call("unpublish", timeout=30)
            want = w.call("fill", seed=version)
            w.call("publish", version=version)
            running = r.start("update", version=str(version), timeout=60)
            time.sleep(whole * i / count)  # the moment is what is tried, no event stands for it
            for pid in gpu_processes(it.c.agents["a"]):
                os.kill(pid, signal.SIGKILL)
            r.finish(running, 90)
            good += r.call("digest") == want
        return good


def helper_while_it_starts(kind):
    with rig(kind) as it:
        w = it.c.worker("w", "a")
        w.call("open", model="m", replica="w")
        w.call("alloc", total_bytes=it.bytes, gpu=kind, device=0)
        step = Step(it, "cuInit")
        running = w.start("register", timeout=60)
        step.met()
        step.kill(it.c.agents["a"])
        w.finish(running, 70)
        w.call("publish", version=1)


def helper_while_it_opens(kind):
    with rig(kind) as it:
        w = it.c.worker("w", "a")
        w.call("open", model="m", replica="w")
        w.call("alloc", total_bytes=it.bytes, gpu=kind, device=0)
        step = Step(it, OPENS[kind])
        running = w.start("register", timeout=60)
        step.met()
        step.kill(it.c.agents["a"])
        w.finish(running, 70)
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        r = it.worker("r", "a", 0)
        r.call("replicate", version="1", timeout=60)
        assert r.call("digest") == want


CLOSES = {"legacy": "cuIpcCloseMemHandle", "chunk": "cuMemUnmap", "chunks": "cuMemUnmap"}


def helper_while_it_closes(kind):
    """The worker is dead, the driver does not come back: the memory is free in time, and what runs
    on the same GPU for others ends well."""
    with rig(kind) as it:
        w = it.publisher()
        other = it.worker("other", "a", 0)
        r = it.worker("r", "b", 0)
        other.call("replicate", version="1", timeout=60)
        it.baseline[0] = it.c.gpus.used(0) - it.bytes
        step = Step(it, CLOSES[kind])
        seconds = it.free_after(w, it.kill(w))
        it.c.gpus.lift(step.plan)
        r.call("replicate", version="1", timeout=60)
        assert r.call("digest") == it.want
        return seconds


def gpu_is_lost(kind):
    """Everything on it ends with a sentence; the other GPU's processes and workers go on."""
    with rig(kind, rate=1 << 40) as it:
        lost = it.worker("lost", "a", 0)
        w = it.publisher(device=1, label="w")
        r = it.worker("r", "a", 1)
        r.call("replicate", version="1", timeout=60)
        it.c.gpus.lose(0, 719)
        message = lost.message(lost.start("replicate", version="1", timeout=20), 60)
        assert message.get("error") and len(message["text"]) > 15, message
        w.call("unpublish")
        want = w.call("fill", seed=2)
        w.call("publish", version=2)
        r.call("update", version="2", timeout=60)
        assert r.call("digest") == want
        assert all(agent.alive() for agent in it.c.agents.values())
        return message["error"], message["text"]
