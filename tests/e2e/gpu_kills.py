# SPDX-License-Identifier: Apache-2.0
"""Workers with GPU memory, and the processes of GPUs, that are killed: how long is the memory held?

gpu_kill_test.py runs it on GPUs that are files; tests/bench/gpu.py prints what comes out.
"""

import collections
import contextlib
import json
import os
import signal
import time

import gpus
from cluster import SANITIZED, cluster, expect_error, wait_for

FREE_S = 1.0  # after the last reader's end

# How long the memory was held, and how long it may be: on a busy machine that wakes us late, others
# are woken late, too, one after the other.
Free = collections.namedtuple("Free", "seconds, limit")


class Rig:
    """Two agents; "a" sends no faster than rate_out bytes a second."""

    def __init__(self, c, kind, nbytes=None, rate=None):
        self.c, self.kind = c, kind
        self.hardware = c.gpus.hardware
        small = (16 << 20) if SANITIZED else (48 << 20)
        self.bytes = nbytes or ((4 << 30) if self.hardware else small)
        # What contexts take, and what the driver keeps back, is no worker's memory.
        self.allowance = (1536 << 20) if self.hardware else (2 << 20)
        assert self.allowance < self.bytes
        self.baseline = [c.gpus.used(device) for device in range(c.gpus.count)]
        rate = rate or self.bytes
        c.agent("a", args=["-o", f"rate.out={rate}"])
        c.agent("b")
        self.devices = {}

    def worker(self, label, agent, device, kind=None, model="m", **opts):
        worker = self.c.worker(label, agent)
        self.devices[label] = device
        worker.call("open", model=model, replica=label, **opts)
        worker.call("alloc", total_bytes=self.bytes, gpu=kind or self.kind, device=device)
        worker.call("register", timeout=60)
        return worker

    def publisher(self, label="w", agent="a", device=0, seed=1, version=1):
        worker = self.worker(label, agent, device)
        self.want = worker.call("fill", seed=seed)
        worker.call("publish", version=version)
        return worker

    def free_after(self, worker, since):
        """Free, from since until no worker's memory is held on its GPU."""
        device = self.devices[worker.label]
        found = gpus.wait_free(self.c.gpus, device, self.baseline[device] + self.allowance, 30)
        if found is None:
            raise AssertionError(
                f"{worker.label} is dead, {self.c.gpus.used(device)} bytes of GPU {device} are "
                f"still held, {self.baseline[device]} were before it"
            )
        return Free(time.monotonic() - since, FREE_S + (0 if self.hardware else 0.5 + 8 * found[1]))

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
        if it.devices["r"] == it.devices["w"]:  # its own memory is there, too
            it.baseline[0] += it.bytes + it.allowance
        r.call("op_wait", timeout=60)
        free = it.free_after(w, time.monotonic())
        assert r.call("digest") == it.want
        return free


def reader_during_replicate(kind):
    """What it was filled from is as it was."""
    with rig(kind) as it:
        w = it.publisher()
        if it.c.gpus.count == 1:
            it.baseline[0] = it.c.gpus.used(0)
        r = it.read_ahead(device=it.c.gpus.count - 1)
        since = it.kill(r)
        free = it.free_after(r, since)
        assert w.call("digest") == it.want
        again = it.worker("again", "b", it.c.gpus.count - 1)
        again.call("replicate", version="1", timeout=60)
        assert again.call("digest") == it.want
        return free


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
        registration = w.start("register", timeout=60)
        if plan is not None:
            wait_for(lambda: it.c.gpus.met(plan), 30, "the GPU's process opens the memory")
        else:
            # It starts, or opens: the agent has been given some of it.
            wait_for(lambda: shared(it.c, "a") > 0, 30, "the agent has handles of the memory")
        assert not w.finished(registration), "the registration was over before the kill"
        free = it.free_after(w, it.kill(w))
        if plan is not None:
            it.c.gpus.lift(plan)
        return free


def shared(c, agent):
    """Pieces of memory that workers share with the agent."""
    told = json.loads(c.thctl("-o", "json", "status", agent=agent, check=False).stdout)
    return sum(gpu["pieces"] for gpu in told.get("gpus", []))


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


class Bystanders:
    """A worker and its reader on the last GPU of agent "a", whose process nobody kills: they notice
    nothing. They come first, so it is theirs. Where there is one GPU, there are none."""

    def __init__(self, it):
        self.agent, self.pids, self.version = it.c.agents["a"], [], 0
        if it.c.gpus.count == 1:
            return
        device = it.c.gpus.count - 1
        self.publisher = it.worker("bystander", "a", device, model="other")
        self.reader = it.worker("reading bystander", "a", device, model="other")
        self.pids = self.agent.gpu_processes()
        assert len(self.pids) == 1, self.pids

    def begin(self):
        if not self.pids:
            return
        self.version += 1
        if self.version > 1:
            self.publisher.call("unpublish", timeout=30)
        self.want = self.publisher.call("fill", seed=100 + self.version)
        self.publisher.call("publish", version=self.version)
        how = "update" if self.version > 1 else "replicate"
        self.running = self.reader.start(how, version=str(self.version), timeout=90)

    def end(self):
        if not self.pids:
            return
        self.reader.finish(self.running, 100)
        assert self.reader.call("digest") == self.want
        assert set(self.pids) <= set(self.agent.gpu_processes()), "the process of another GPU ended"


class Step:
    """Stops the processes of GPUs in a call of the driver that workers do not make meanwhile."""

    def __init__(self, it, call, pid=0, after=0):
        self.it, self.call = it, call
        self.plan = it.c.gpus.plan("hang", call, pid=pid, after=after)

    def met(self):
        wait_for(lambda: self.it.c.gpus.met(self.plan), 60, f"a GPU's process calls {self.call}")

    def kill(self, agent, spared=()):
        """Those of this agent, but for the spared; the call returns in all others."""
        pids = [pid for pid in agent.gpu_processes() if pid not in spared]
        assert pids, "the agent has no GPU process"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.it.c.gpus.lift(self.plan)
        return pids


# Where its bytes go: to the other agent's GPU, or to the same GPU of the same agent.
HELPER_STEPS = (
    # call, how many pass before, the agent whose process is killed, the reader's agent, its GPU
    ("cuMemcpyDtoHAsync", 2, "a", "b", 1),
    ("cuMemcpyHtoDAsync", 2, "b", "b", 1),
    ("cuMemcpyDtoDAsync", 2, "a", "a", 0),
    ("cuMemcpyDtoDAsync", 2, "a", "a", 1),
    ("cuLaunchKernel", 0, "a", "a", 0),
)


def helper_in_a_leg(kind, call, after, killed, where, device):
    """The bytes come all the same, by the next process; nobody else notices."""
    with rig(kind, rate=1 << 40) as it:
        others = Bystanders(it) if (where, device) != ("a", 1) else None
        w = it.publisher()
        r = it.worker("r", where, min(device, it.c.gpus.count - 1))
        step = Step(it, call, after=after)
        running = r.start("replicate", version="1", timeout=90)
        step.met()
        before = step.kill(it.c.agents[killed], others.pids if others else ())
        result = r.finish(running, 100)
        if others:
            others.begin()
            others.end()
        assert result["version"] == 1 and r.call("digest") == it.want
        assert w.call("digest") == it.want
        assert not set(before) & set(it.c.agents[killed].gpu_processes())
        assert all(agent.alive() for agent in it.c.agents.values())
        # All that there is goes on: a new version, through the same handles.
        w.call("unpublish", timeout=30)
        want = w.call("fill", seed=2)
        w.call("publish", version=2)
        r.call("update", version="2", timeout=60)
        assert r.call("digest") == want


def helper_in_an_offload(kind):
    """While it makes the copy of a retained version, and while that is read back."""
    with rig(kind) as it:
        w = it.worker("w", "a", 0, retain="latest")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        for cmd, args, call in (
            ("unpublish", {"scribble": 0}, "cuMemcpyDtoHAsync"),
            ("replicate", {"version": "1"}, "cuMemcpyHtoDAsync"),
        ):
            step = Step(it, call)
            running = w.start(cmd, timeout=90, **args)
            step.met()
            step.kill(it.c.agents["a"])
            w.finish(running, 100)
        assert w.call("digest") == want


def helper_while_it_looks(kind, killed):
    """The reader's process finds out what need not come, and does not come back, or the source's is
    killed meanwhile. What is equal stays where it is all the same."""
    with rig(kind, rate=1 << 40) as it:
        w = it.publisher()
        r = it.worker("r", "b", it.c.gpus.count - 1)
        r.call("replicate", version="1", timeout=60)
        w.call("unpublish", timeout=30)
        w.call("flip", offset=it.bytes // 2)
        w.call("publish", version=2)
        (pid,) = it.c.agents["b"].gpu_processes()
        step = Step(it, "cuLaunchKernel", pid=pid)
        running = r.start("update", version="2", timeout=90)
        step.met()
        before = step.kill(it.c.agents[killed])
        result = r.finish(running, 100)
        assert result["version"] == 2 and r.call("digest") == w.call("digest")
        assert 0 < result["bytes_reused"] < it.bytes, result
        assert not set(before) & set(it.c.agents[killed].gpu_processes())


def kill_at(it, others, started, seconds):
    """The processes of all GPUs but the bystanders', so long after the call was started: the moment
    is what is tried, no event stands for it."""
    worker, running = started
    time.sleep(seconds)
    for agent in it.c.agents.values():
        for pid in agent.gpu_processes():
            with contextlib.suppress(ProcessLookupError):
                if pid not in others.pids:
                    os.kill(pid, signal.SIGKILL)
    worker.finish(running, 100)
    assert all(agent.alive() for agent in it.c.agents.values())


def timed_call(worker, cmd, **args):
    begin = time.monotonic()
    worker.call(cmd, timeout=60, **args)
    return time.monotonic() - begin


def helper_at_times(kind, count, where):
    """Also where nothing can be planned: killed at moments spread over a transfer to another worker
    of agent where, beginning with the digests. How many of the transfers brought all bytes."""
    with rig(kind, rate=1 << 40, nbytes=(2 << 30) if gpus.HARDWARE else None) as it:
        others = Bystanders(it)
        w = it.publisher()
        # The bystanders' process is another one: of that agent, or of that GPU.
        r = it.worker("r", where, max(0, it.c.gpus.count - (2 if where == "a" else 1)))
        whole, good = timed_call(r, "replicate", version="1"), 0
        for i in range(count):
            version = i + 2
            w.call("unpublish", timeout=30)
            want = w.call("fill", seed=version)
            w.call("publish", version=version)
            others.begin()
            running = r.start("update", version=str(version), timeout=90)
            kill_at(it, others, (r, running), whole * i / count)
            others.end()
            good += r.call("digest") == want
        return good


def helper_at_times_of_offload(kind, count):
    """The same of making a retained version's copy, and of reading it back."""
    with rig(kind, nbytes=(2 << 30) if gpus.HARDWARE else None) as it:
        others = Bystanders(it)
        w = it.worker("w", "a", 0, retain="latest")
        w.call("publish", version=1)
        out, back = timed_call(w, "unpublish"), timed_call(w, "replicate", version="1")
        w.call("unpublish", timeout=60)
        good = 0
        for i in range(count):
            version = i + 2
            want = w.call("fill", seed=version)
            w.call("publish", version=version)
            others.begin()
            kill_at(it, others, (w, w.start("unpublish", timeout=90)), out * i / count)
            w.call("scribble", byte=0)
            running = w.start("replicate", version=str(version), timeout=90)
            kill_at(it, others, (w, running), back * i / count)
            others.end()
            good += w.call("digest") == want
            w.call("unpublish", timeout=60)
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


CLOSES = {
    "legacy": "cuIpcCloseMemHandle",
    "chunk": "cuMemUnmap",
    "chunks": "cuMemUnmap",
    "pool": "cuMemFree",
}


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
        free = it.free_after(w, it.kill(w))
        assert it.c.gpus.met(step.plan), "nothing was closed"
        it.c.gpus.lift(step.plan)
        r.call("replicate", version="1", timeout=60)
        assert r.call("digest") == it.want
        return free


LOST = 719  # as of an assertion in a kernel


def expect_lost(worker, cmd, **args):
    """As the driver calls it: it neither sleeps nor was it freed."""
    error = expect_error("MEMORY_KIND", worker.call, cmd, **args)
    assert "CUDA_ERROR_LAUNCH_FAILED" in error.text, error.text
    assert "only a new process can use it" in error.text, error.text
    return error.text


def gpu_is_lost(kind):
    """Everything on it ends with a sentence; the other GPU's processes and workers go on."""
    with rig(kind, rate=1 << 40) as it:
        lost = it.worker("lost", "a", 0)
        w = it.publisher(device=1, label="w")
        r = it.worker("r", "a", 1)
        r.call("replicate", version="1", timeout=60)
        it.c.gpus.lose(0, LOST)
        text = expect_lost(lost, "replicate", version="1", timeout=20)
        expect_lost(lost, "publish", version=3)
        w.call("unpublish")
        want = w.call("fill", seed=2)
        w.call("publish", version=2)
        r.call("update", version="2", timeout=60)
        assert r.call("digest") == want
        assert all(agent.alive() for agent in it.c.agents.values())
        return text


def publishers_gpu_is_lost(kind, has_other):
    """Under a leg to another agent. The reader goes on with another source of the same version, or
    hears that there is none; its own GPU, and who has memory of others, notice nothing."""
    with rig(kind, rate=1 << 40, nbytes=64 << 20) as it:
        others = Bystanders(it)
        w = it.publisher()
        r = it.worker("r", "b", 1)
        it.c.agent("c")
        s = it.worker("s", "c", 1)
        want = s.call("fill", seed=1)
        assert want == it.want
        (pid,) = it.c.agents["b"].gpu_processes()
        step = Step(it, "cuMemcpyHtoDAsync", pid=pid, after=2)
        others.begin()
        running = r.start("replicate", version="1", timeout=90)
        step.met()  # so its source is w, and most of the bytes have not left that GPU
        if has_other:
            s.call("publish", version=1)
        it.c.gpus.lose(0, LOST)
        it.c.gpus.lift(step.plan)
        message = r.message(running, 100)
        others.end()
        # The agent cannot read what w has published, which has to open a handle anew.
        error = expect_error("CONTRACT", w.call, "unpublish")
        assert "can not be read any more" in error.text, error.text
        assert "CUDA_ERROR_LAUNCH_FAILED" in error.text, error.text
        w.call("close")
        w.call("open", model="m", replica="w")
        expect_lost(w, "register")
        if has_other:
            assert "error" not in message, message
            assert message["value"]["source"] == "s", message
            assert message["value"]["transport"] == "tcp", message
        else:
            assert message.get("error") == "VERSION_LOST", message
            assert "its last complete copy is gone" in message["text"], message
            s.call("publish", version=1)
            r.call("replicate", version="1", timeout=60)
        assert r.call("digest") == want and s.call("digest") == want
        others.begin()
        others.end()
        assert it.c.agents["b"].gpu_processes() == [pid], "the reader's GPU was never in question"
        assert all(agent.alive() for agent in it.c.agents.values())
        return message.get("text", "the other source")
