# SPDX-License-Identifier: Apache-2.0
"""What an agent does with GPU memory of its workers beside moving it: what it says of it, whom it
refuses and why, and that nothing of it stays."""

import json
import os
import signal

import gpu_driver
import gpu_kills
import gpus
from cluster import BUILD, SANITIZED, Process, cluster, expect_error, main, needs_plans, wait_for

SIZE = 9 << 20


def status(c, agent="a"):
    return json.loads(c.thctl("-o", "json", "status", agent=agent, check=False).stdout)


def allocated(c, replica, kind, agent="a", model="m", size=SIZE, **where):
    worker = c.worker(replica, agent)
    worker.call("open", model=model, replica=replica)
    worker.call("alloc", total_bytes=size, gpu=kind, **where)
    return worker


def registered(c, replica, kind, agent="a", **where):
    worker = allocated(c, replica, kind, agent, **where)
    worker.call("register")
    return worker


def gpu_pids(c, agent="a"):
    return [gpu["pid"] for gpu in status(c, agent).get("gpus", []) if gpu["pid"]]


def opening(c):
    """Processes of GPUs on which less is open than is shared."""
    return {
        gpu["pid"] for gpu in status(c)["gpus"] if gpu["pid"] and gpu["imports"] < gpu["pieces"]
    }


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def status_says_what_is_open_and_how_each_allocation_is_reached():
    with cluster(has_gpus=True) as c:
        c.agent("a")
        assert not gpu_pids(c), "nobody has asked for one"
        names = {"legacy": "cudaMalloc", "pool": "a memory pool", "chunks": "chunks of a range"}
        workers = [registered(c, kind, kind) for kind in names]
        # Counted a moment after it has happened.
        wait_for(
            lambda: all(gpu["imports"] == gpu["pieces"] for gpu in status(c)["gpus"]),
            30,
            "all that is shared is open",
        )
        told = status(c)
        assert told["gpu_used"] and told["gpu_stage_budget"] == 256 << 20, told
        assert sum(gpu["workers"] for gpu in told["gpus"]) == len(workers), told["gpus"]
        for gpu in told["gpus"]:
            assert gpu["uuid"].startswith("GPU-") and len(gpu["uuid"]) == 40, gpu
            assert gpu["pid"] and lives(gpu["pid"]) and gpu["starts"] == 1, gpu
            assert gpu["imports"] == gpu["pieces"] > 0 and not gpu["why"], gpu
        by_replica = {}
        for memory in told["memory"]:
            by_replica.setdefault(memory["replica"], []).append(memory)
        for kind, name in names.items():
            ways = [m for m in by_replica[kind] if m["path"] == "cuda-ipc"]
            assert sum(m["bytes"] for m in ways) >= SIZE, by_replica[kind]
            assert all(m["kind"] == name and m["gpu"].startswith("GPU-") for m in ways), ways
        chunks = [m for m in by_replica["chunks"] if m["path"] == "cuda-ipc"]
        assert len(chunks) == 1 and chunks[0]["pieces"] > 1, "what follows each other is one"
        shown = c.thctl("-o", "wide", "status", agent="a", check=False).stdout
        assert "chunks of a range" in shown and told["gpus"][0]["uuid"] in shown, shown
        assert "cuda-ipc" in c.thctl("status", agent="a", check=False).stdout

        # Whoever is not there any more has nothing open, and soon no memory.
        base = [c.gpus.used(device) for device in range(c.gpus.count)]
        workers[0].call("close")
        wait_for(
            lambda: sum(gpu["workers"] for gpu in status(c)["gpus"]) == len(workers) - 1,
            30,
            "the agent lets go of what was closed",
        )
        workers[1].kill()
        wait_for(lambda: len(status(c)["sessions"]) == 1, 30, "the dead worker is forgotten")
        device = 1 % c.gpus.count
        assert gpus.wait_free(c.gpus, device, base[device] - SIZE, 30) is not None


def moves(c, agent, kind, reason, harm=lambda: None):
    """Both workers copy their memory themselves, and say why; what moves is whole."""
    trainer, rollout = (allocated(c, f"{agent}-{part}", kind, agent) for part in "ab")
    harm()
    for worker in (trainer, rollout):
        worker.call("register")
        path = worker.call("path")
        assert path.startswith("worker-copy (on GPU ") and "the agent does not reach it" in path
        assert reason in path, path
    shown = status(c, agent)["memory"]
    assert [m["path"] for m in shown] == ["worker-copy", "worker-copy"], shown
    assert "worker-copy" in c.thctl("status", agent=agent, check=False).stdout
    for version in ("1", "2"):
        digest = trainer.call("fill", seed=int(version))
        trainer.call("publish", version=int(version))
        rollout.call("replicate" if version == "1" else "update", version=version)
        assert rollout.call("digest") == digest, version
        rollout.call("unpublish")
        trainer.call("unpublish")
    trainer.call("close")
    rollout.call("close")


def what_the_agent_does_not_open_is_copied_by_its_worker():
    with cluster(has_gpus=True) as c:
        c.agent("off", args=["-o", "gpu=off"])
        for kind in gpu_driver.OPEN_KINDS:
            moves(c, "off", kind, "gpu=auto")
        assert not status(c, "off")["gpu_used"]


def what_the_agent_cannot_open_is_copied_by_its_worker():
    needs_plans()
    with cluster(has_gpus=True) as c:
        c.agent("blind", env={"TH_FAKE_CUDA": ""})
        moves(c, "blind", "legacy", "CUDA")
        assert not gpu_pids(c, "blind")

        # As handles of cudaMalloc in another PID namespace.
        c.agent("a")
        plan = c.gpus.plan("result", "cuIpcOpenMemHandle", result=201)
        moves(c, "a", "legacy", "cuIpcOpenMemHandle")
        c.gpus.lift(plan)

        # It ends the process each time. Whoever reads it is not concerned.
        poisoned, reader = allocated(c, "poisoned", "legacy"), registered(c, "reader", "legacy")
        plan, killed = c.gpus.plan("hang", "cuIpcOpenMemHandle"), set()
        registration = poisoned.start("register", timeout=60, at_once=True)
        for times in (1, 2, 3):
            wait_for(lambda: c.gpus.met(plan) == times, 30, "it is opened again")
            wait_for(lambda: opening(c) - killed, 30, "by a process that is up")
            for pid in opening(c) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        poisoned.finish(registration)
        c.gpus.lift(plan)
        assert "ended 3 times" in poisoned.call("path"), poisoned.call("path")
        assert reader.call("path").startswith("cuda-ipc")
        digest = poisoned.call("fill", seed=3)
        poisoned.call("publish", version=3)
        reader.call("replicate", version="3")
        assert reader.call("digest") == digest
        poisoned.call("unpublish")
        poisoned.call("unregister")
        poisoned.call("register")
        assert "ended too often" in poisoned.call("path"), "again, at the cost of all others"

        # The workers leave no room for the agent's context.
        c.agent("full")

        def fill():
            for device in range(c.gpus.count):
                c.gpus.set(device, "context_bytes", 1 << 40)

        moves(c, "full", "legacy", "CUDA_ERROR_OUT_OF_MEMORY", harm=fill)


def counter(c, name, agent):
    return next(n["value"] for n in status(c, agent)["counters"] if n["name"] == name)


def gpus_that_do_not_reach_each_other_copy_by_the_host_and_say_why():
    """A reader follows another one of its host, on the other GPU, which is slow by itself."""
    needs_plans()
    why = (
        "by staging on the host: GPU 1 does not reach the memory of GPU 0: there is no peer access "
        "(nvidia-smi topo -p2p r says why)"
    )
    with cluster(has_gpus=True) as c:
        for device in range(c.gpus.count):
            c.gpus.set(device, "peers", 1 << device)
        c.agent("a", args=["-o", "rate.out=10MB"])
        c.agent("b", args=["-o", "server.beat=100ms"])
        trainer = registered(c, "t", "legacy", size=64 << 20, device=0)
        first = registered(c, "r", "legacy", "b", size=64 << 20, device=0)
        second = registered(c, "s", "legacy", "b", size=64 << 20, device=1)
        digest = trainer.call("fill", seed=7)
        trainer.call("publish", version=1)
        first.call("submit", version="1")
        wait_for(lambda: first.call("progress")[0], 30, "its first bytes have come")
        second.call("submit", version="1")

        def shown():
            table = json.loads(c.thctl("-o", "json", "ls", "transfers", agent="b").stdout)
            return [
                t for t in table["transfers"] if t["source_node"] == t["reader_node"] and t["why"]
            ]

        (row,) = wait_for(shown, 30, "thctl says why")
        assert (row["path"], row["why"]) == ("local", why), row
        for reader in (first, second):
            reader.call("op_wait", timeout=60)
            assert reader.call("digest") == digest
        assert counter(c, "gpu_fallbacks", "b") == 1
        assert counter(c, "gpu_fallbacks", "a") == 0
        rdma = status(c, "b")
        assert not rdma.get("rdma_last_fallback"), "it is no matter of RDMA"


def the_process_ends_with_its_agent_and_not_with_its_service():
    """A service manager sends SIGTERM to all of a service at once: the agent alone says when."""
    with cluster(has_gpus=True) as c:
        agent = c.agent("a")
        registered(c, "r", "legacy")
        (pid,) = gpu_pids(c)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        registered(c, "s", "legacy")
        assert pid in gpu_pids(c)
        agent.kill()
        wait_for(lambda: not lives(pid), 30, "the process of a GPU sees the end of its agent")


def nobody_needs_it():
    """The context is given back, and comes again."""
    with cluster(has_gpus=True) as c:
        c.agent("a")
        worker = registered(c, "r", "chunks")
        (pid,) = gpu_pids(c)
        worker.call("close")
        wait_for(lambda: not lives(pid), 60, "the process ends")
        registered(c, "s", "chunks")
        (again,) = gpu_pids(c)
        assert again != pid
        worker.kill()


def hundreds_of_pieces_come_and_go():
    """As torch's expandable segments have them: more than a socket holds messages of."""
    with cluster(has_gpus=True) as c:
        c.agent("a")
        worker = c.worker("w", "a", env={"TH_E2E_GPU_CHUNK": str(2 << 20)})
        worker.call("open", model="m", replica="w")
        size = (400 if SANITIZED else 1200) << 20
        worker.call("alloc_even", total_bytes=size, count=1000, gpu="chunks")
        for _ in range(3):
            seconds = worker.call("register")
            print(f"{size >> 21} pieces registered in {seconds:.3f} s")
            gpu = [gpu for gpu in status(c)["gpus"] if gpu["workers"]][0]
            assert gpu["pieces"] == size >> 21 and gpu["ends"] == 0, gpu
            worker.call("unregister")
            (pid,) = gpu_pids(c)
            if not c.gpus.hardware:
                assert c.gpus.holds(pid, "mappings") == 0, "all is closed"
        worker.call("free")


def small_allocations_share_a_block():
    """Of the driver's, which opens as a whole by the handle of each of them."""
    with cluster(has_gpus=True) as c:
        c.agent("a")
        c.agent("b")
        part = gpu_driver.Smalls.PART
        w, near, far = workers = [c.worker(name, name[0]) for name in ("a1", "a2", "b")]
        for i, worker in enumerate(workers):
            worker.call("open", model="m", replica=f"r{i}")
            where = {"gpu": "smalls", "device": i % c.gpus.count}
            worker.call("alloc_even", total_bytes=100 * part, count=100, **where)
            worker.call("register")
            assert worker.call("path").startswith("cuda-ipc"), worker.call("path")
        for version in (1, 2):
            want = w.call("fill", seed=version)
            w.call("publish", version=version)
            for reader in (near, far):
                reader.call("replicate" if version == 1 else "update", version=str(version))
                assert reader.call("digest") == want, version
            w.call("unpublish")
        w.call("unregister")
        near.call("unpublish")
        near.call("unregister")
        for pid in gpu_pids(c):
            assert c.gpus.hardware or c.gpus.holds(pid, "imports") == 0, "all is closed"


def kept(worker, version):
    """Whether an agent keeps the whole of it."""
    copies = [r for _, v, each in worker.call("list")["versions"] if v == version for r in each]
    return any(copy["offload"] and copy["ready"] for copy in copies)


def offload_goes_on_both_gpus_side_by_side():
    """The one waits for a driver that does not come back, the other one's copy is made meanwhile:
    when its holder gives it up, when its host is drained, and when its holder dies."""
    with cluster(has_gpus=True) as c:
        c.agent("a")
        c.agent("b")
        workers, claims, readers, uuid = [], [], [], None
        for i in range(2):
            where = {"kind": "legacy", "device": i % c.gpus.count}
            workers.append(registered(c, f"w{i}", model=f"m{i}", **where))
            uuid = uuid or [gpu["uuid"] for gpu in status(c)["gpus"] if gpu["pid"]][0]
        for i in range(2):
            where = {"kind": "legacy", "device": (i + 1) % c.gpus.count}
            readers.append(registered(c, f"r{i}", model=f"m{i}", **where))
            claims.append(c.worker(f"claim{i}", "b"))
            claims[i].call("open", model=f"m{i}", replica="claim", retain="latest")

        def given_up():
            ids = [w.start("unpublish", timeout=60, scribble=0) for w in workers]
            return lambda: [w.finish(i) for w, i in zip(workers, ids)]

        def drained():
            argv = [os.path.join(BUILD, "tools", "thctl"), "-s", c.server_url]
            watch = Process(c, "drain", [*argv, "drain", "a", "--watch", "--timeout", "60s"])
            return lambda: watch.p.wait(60)

        def dead():
            for w in workers:
                w.kill()
            return lambda: None

        for version, way in enumerate((given_up, drained, dead), 1):
            want = [w.call("fill", seed=f"{version}.{i}") for i, w in enumerate(workers)]
            for i, w in enumerate(workers):
                w.call("publish", version=version)
                # Until all digests are made nobody can tell what it should have been.
                readers[i].call("update")
                readers[i].call("unpublish")
            plan = None
            if not c.gpus.hardware:
                # A process that is slow to let go of the copy before is another one then.
                wait_for(lambda: status(c)["offload_used"] == 0, 60, "the copy before is gone")
                (pid,) = [gpu["pid"] for gpu in status(c)["gpus"] if gpu["uuid"] == uuid]
                plan = c.gpus.plan("hang", "cuMemcpyDtoHAsync", pid=pid)
            over = way()
            wait_for(lambda: kept(claims[1], version), 60, f"{way.__name__}: one GPU's is kept")
            if plan is not None:
                wait_for(lambda: c.gpus.met(plan), 30, "the other GPU's process waits")
                # After 10 s another process does it.
                assert not kept(claims[0], version) or not lives(pid), way.__name__
                c.gpus.lift(plan)
            wait_for(lambda: kept(claims[0], version), 60, f"{way.__name__}: the other's, too")
            over()
            if way == drained:
                c.thctl("-s", c.server_url, "undrain", "a")
            for i, worker in enumerate(readers if way == dead else workers):
                if way != drained:
                    worker.call("replicate", version=str(version))
                assert worker.call("digest") == want[i], way.__name__
                worker.call("unpublish")
        for claim in claims:
            claim.call("close")


OPENED = {  # what a process of a GPU has of a piece
    "legacy": ("imports",),
    "chunk": ("mappings", "reservations"),
    "chunks": ("mappings", "reservations"),
    "pool": ("imports", "pools"),
}


def opened(c, kind):
    """What the processes of GPUs have of it, by the driver of the tests; [0] elsewhere."""
    if c.gpus.hardware:
        return [0]
    (pid,) = gpu_pids(c)
    return [c.gpus.holds(pid, what) for what in OPENED[kind]]


def settled(c):
    """How much is open once that is all that is shared: it is counted a moment after."""

    def pieces():
        told = status(c)["gpus"]
        found = [sum(gpu[what] for gpu in told) for what in ("imports", "pieces")]
        return found if found[0] == found[1] else None

    return wait_for(pieces, 30, "what is shared is open, and nothing else")[0]


def memory_is_free_when_unregister_returns():
    """A trainer that goes to sleep gives it back next."""
    with cluster(has_gpus=True) as c:
        c.agent("a")
        # What contexts and pools take for themselves is less than this memory.
        spare = SIZE - 1 if c.gpus.hardware else 0
        for kind in gpu_driver.OPEN_KINDS:
            reader = registered(c, f"r-{kind}", kind, device=0)
            before, imports = opened(c, kind), settled(c)
            worker = c.worker(kind, "a")
            worker.call("open", model="m", replica=kind)
            used = None  # at first the worker has no context of its own
            for version in range(1, 6):
                worker.call("alloc", total_bytes=SIZE, gpu=kind, device=0)
                worker.call("register")
                assert c.gpus.hardware or opened(c, kind)[0] > before[0]
                worker.call("publish", version=version)
                reader.call("update" if version > 1 else "replicate", version=str(version))
                worker.call("unpublish")
                worker.call("unregister")
                assert opened(c, kind) == before, kind
                worker.call("free")
                if used is None:
                    assert settled(c) == imports, "what it comes down to, late or not"
                    used = c.gpus.used(0)
                held = c.gpus.used(0) - used
                assert held <= spare, f"{kind}: {held} bytes are held"
            worker.call("close")
            reader.call("close")


class Engine:
    """A worker that sleeps and wakes as tensorhub-cuda(7) says."""

    def __init__(self, c, label, agent, device):
        self.c, self.label, self.agent, self.device = c, label, agent, device
        self.worker = c.worker(label, agent)
        self.call = self.worker.call

    def begin(self, kind):
        self.call("open", model=kind, replica=self.label)
        self.call("alloc", total_bytes=SIZE, gpu=kind, device=self.device)
        self.call("register")

    def used(self):
        return self.c.gpus.used(self.device)

    def sleep(self):
        self.call("unpublish")
        self.call("unregister")
        memory = status(self.c, self.agent)["memory"]
        assert not [m for m in memory if m["replica"] == self.label], memory
        awake = self.used()
        self.call("sleep")
        given = awake - self.used()
        assert given >= SIZE, f"{self.label}: {given} bytes given back: somebody holds the rest"

    def wake(self):
        asleep = self.used()
        self.call("wake")
        assert self.used() >= asleep + SIZE
        # What it had in it before may be there again by chance.
        self.call("scribble", byte=0xA5)
        self.call("register")
        assert self.call("held") is None

    def end(self):
        self.call("close")
        self.call("free")


def nothing_is_open(c, agent):
    told = status(c, agent)
    return not told["memory"] and not any(gpu["imports"] + gpu["pieces"] for gpu in told["gpus"])


def memory_that_sleeps_is_given_back_and_filled_again_when_it_is_awake():
    """Of the publisher, of a reader on its host, and of one on another host: each wakes to other
    memory at its addresses."""
    with cluster(has_gpus=True) as c:
        c.agent("a")
        c.agent("b")
        engines = w, near, far = [
            Engine(c, label, agent, i % c.gpus.count)
            for i, (label, agent) in enumerate((("w", "a"), ("near", "a"), ("far", "b")))
        ]
        for kind in gpu_driver.SLEEPING_KINDS:
            for engine in engines:
                engine.begin(kind)
            for version in (1, 2):
                want = w.call("fill", seed=f"{kind}.{version}")
                w.call("publish", version=version)
                near.call("replicate", version=str(version))
                far.call("update", version=str(version))
                assert [near.call("digest"), far.call("digest")] == [want, want], kind
                # The others hold it, and give it to who has slept.
                w.sleep()
                far.sleep()
                far.wake()
                assert far.call("update", version="latest")["updated"], "it has nothing of it"
                assert far.call("digest") == want, f"{kind}, version {version}"
                near.sleep()
                near.wake()
                near.call("replicate", version=str(version))
                assert near.call("digest") == want, f"{kind}, version {version}"
                # All sleep: nobody has it, awake again or not.
                near.sleep()
                far.sleep()
                for agent in "ab":
                    wait_for(lambda: nothing_is_open(c, agent), 30, f"{agent} lets go of {kind}")
                for engine in engines:
                    engine.wake()
                for reader in (near, far):
                    blank = reader.call("digest")
                    where = dict(version=str(version), timeout=0)
                    expect_error("TIMEOUT", reader.call, "replicate", **where)
                    assert not reader.call("update", **where)["updated"]
                    assert reader.call("held") is None and reader.call("digest") == blank
                assert not w.call("list")["versions"], "it went to sleep with its holders"
            for engine in engines:
                engine.end()


def what_sleeps_while_it_is_registered_is_refused_by_name():
    """And while it is published: what is read then is the version, never what lies there now."""
    with cluster(has_gpus=True) as c:
        c.agent("a")
        worker, reader = Engine(c, "w", "a", 0), Engine(c, "r", "a", 1 % c.gpus.count)
        for kind in gpu_driver.SLEEPING_KINDS:
            worker.begin(kind)
            reader.begin(kind)
            for step in ("sleep", "wake"):
                worker.call(step)
                for call, version in (("publish", 1), ("replicate", "1"), ("update", "latest")):
                    error = expect_error("STALE_MEMORY", worker.call, call, version=version)
                    assert "'embed.norm'" in error.text, error.text
                    assert "asleep, or mapped anew" in error.text, error.text
                expect_error("TIMEOUT", reader.call, "replicate", version="1", timeout=0)
            worker.call("unregister")
            worker.call("register")
            want = worker.call("fill", seed=kind)
            worker.call("publish", version=1)
            reader.call("replicate", version="1")
            assert reader.call("digest") == want, kind
            reader.call("unpublish")
            reader.call("scribble", byte=0xA5)
            # What the agent has open stays; of the rest it has a copy.
            awake = worker.used()
            worker.call("sleep")
            copied = worker.call("path").startswith("worker-copy")
            assert copied == (worker.used() <= awake - SIZE), (kind, awake, worker.used())
            reader.call("replicate", version="1")
            assert reader.call("digest") == want, kind
            worker.call("unpublish")
            expect_error("STALE_MEMORY", worker.call, "publish", version=2)
            worker.call("unregister")
            assert worker.used() <= awake - SIZE, f"{kind}: the agent holds what sleeps"
            worker.end()
            reader.end()


def the_process_cannot_be_had_any_more():
    """Nothing of the memory has changed: to register it again is what helps."""
    needs_plans()
    with cluster(has_gpus=True) as c:
        c.agent("a")
        source = c.worker("w", "a")
        source.call("open", model="m", replica="w")
        source.call("alloc", total_bytes=SIZE, gpu="")
        source.call("register")
        want = source.call("fill", seed=1)
        source.call("publish", version=1)
        worker = registered(c, "r", "legacy", device=0)
        (pid,) = gpu_pids(c)
        c.gpus.set(0, "context_bytes", 1 << 40)
        os.kill(pid, signal.SIGKILL)
        error = expect_error("MEMORY_KIND", worker.call, "replicate", version="1")
        assert "CUDA_ERROR_OUT_OF_MEMORY" in error.text, error.text
        worker.call("close")
        worker.call("open", model="m", replica="r")
        worker.call("register")
        assert worker.call("path").startswith("worker-copy")
        worker.call("replicate", version="1")
        assert worker.call("digest") == want


def two_handles_of_one_worker_share_the_same_memory():
    with cluster(has_gpus=True) as c:
        c.agent("a")
        for kind in gpu_driver.OPEN_KINDS:
            worker = registered(c, kind, kind, device=0)
            worker.call("open", name="t", model="m", replica=f"{kind}-t")
            worker.call("register", name="t", memory="s")
            want = worker.call("fill", seed=1)
            worker.call("publish", version=1)
            # What the one lets go of is the other's still.
            worker.call("unregister", name="t")
            reader = registered(c, f"{kind}-r", kind, device=0)
            reader.call("replicate", version="1")
            assert reader.call("digest") == want, kind
            for who in (reader, worker):
                who.call("close")


def who_asks_again_waits_for_the_same_end():
    """Unregister had no answer in time: the next call hears when the memory is free."""
    needs_plans()
    with cluster(has_gpus=True) as c:
        c.agent("a")
        worker = registered(c, "w", "legacy", device=0)
        (pid,) = gpu_pids(c)
        plan = c.gpus.plan("hang", "cuIpcCloseMemHandle", pid=pid)
        c.server.signal(signal.SIGSTOP)
        expect_error("TIMEOUT", worker.call, "unregister", timeout=0.05)
        c.server.signal(signal.SIGCONT)
        worker.call("unregister", timeout=60)
        assert c.gpus.met(plan) == 1 and not lives(pid)
        # Or register, whose memory is still being opened when the handle is closed.
        plan = c.gpus.plan("hang", "cuIpcOpenMemHandle")
        expect_error("TIMEOUT", worker.call, "register", timeout=0.05)
        wait_for(lambda: c.gpus.met(plan), 30, "it is being opened")
        worker.call("close", timeout=60)
        assert not gpu_pids(c), "nothing of it is open"


def a_driver_that_does_not_let_go_delays_the_end_until_its_process_is_killed():
    needs_plans()
    with cluster(has_gpus=True) as c:
        c.agent("a")
        for kind, call in gpu_kills.CLOSES.items():
            worker = registered(c, kind, kind, device=0)
            reader = registered(c, f"r-{kind}", kind, device=0)
            (pid,) = gpu_pids(c)
            used = c.gpus.used(0) - SIZE
            plan = c.gpus.plan("hang", call, pid=pid)
            worker.call("close" if kind == "chunk" else "unregister", timeout=60)
            assert c.gpus.met(plan) == 1 and not lives(pid)
            c.gpus.lift(plan)
            if kind == "chunk":
                worker.call("open", model="m", replica=kind)
            worker.call("free")
            assert c.gpus.used(0) <= used, kind
            (gpu,) = [gpu for gpu in status(c)["gpus"] if gpu["workers"]]
            assert gpu["kills"] >= 1 and "let go" in gpu["why"], gpu
            # The others go on, and so does this one.
            worker.call("alloc", total_bytes=SIZE, gpu=kind, device=0)
            worker.call("register", timeout=60)
            worker.call("publish", version=1)
            reader.call("replicate", version="1", timeout=60)
            worker.call("close")
            reader.call("close")


if __name__ == "__main__":
    main(
        status_says_what_is_open_and_how_each_allocation_is_reached,
        what_the_agent_does_not_open_is_copied_by_its_worker,
        what_the_agent_cannot_open_is_copied_by_its_worker,
        gpus_that_do_not_reach_each_other_copy_by_the_host_and_say_why,
        the_process_ends_with_its_agent_and_not_with_its_service,
        nobody_needs_it,
        hundreds_of_pieces_come_and_go,
        small_allocations_share_a_block,
        offload_goes_on_both_gpus_side_by_side,
        memory_is_free_when_unregister_returns,
        memory_that_sleeps_is_given_back_and_filled_again_when_it_is_awake,
        what_sleeps_while_it_is_registered_is_refused_by_name,
        the_process_cannot_be_had_any_more,
        two_handles_of_one_worker_share_the_same_memory,
        who_asks_again_waits_for_the_same_end,
        a_driver_that_does_not_let_go_delays_the_end_until_its_process_is_killed,
    )
