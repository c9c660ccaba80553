# SPDX-License-Identifier: Apache-2.0
"""What an agent does with GPU memory of its workers beside moving it: what it says of it, whom it
refuses and why, and that nothing of it stays."""

import json
import os
import signal

import gpu_driver
import gpus
from cluster import LONG, SANITIZED, cluster, expect_error, main, wait_for

SIZE = 9 << 20


def status(c, agent="a"):
    return json.loads(c.thctl("-o", "json", "status", agent=agent, check=False).stdout)


def registered(c, replica, kind, agent="a"):
    worker = c.worker(replica, agent)
    worker.call("open", model="m", replica=replica)
    worker.call("alloc", total_bytes=SIZE, gpu=kind)
    worker.call("register")
    return worker


def gpu_pids(c, agent="a"):
    return [gpu["pid"] for gpu in status(c, agent).get("gpus", []) if gpu["pid"]]


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
        if not c.gpus.hardware:
            assert gpus.wait_free(c.gpus, device, base[device] - SIZE, 30) is not None


def who_cannot_have_it_is_told_why_and_what_to_do():
    with cluster(has_gpus=True) as c:
        c.agent("off", args=["-o", "gpu=off"])
        for kind in gpu_driver.OPEN_KINDS:
            worker = c.worker(f"off-{kind}", "off")
            worker.call("open", model="m", replica=kind)
            worker.call("alloc", total_bytes=SIZE, gpu=kind)
            text = expect_error("MEMORY_KIND", worker.call, "register").text
            assert "gpu=auto" in text, text
            # The handle is as good as before.
            worker.call("free")
            worker.call("alloc", total_bytes=SIZE, gpu="")
            worker.call("register")
        assert not status(c, "off")["gpu_used"]
        if c.gpus.hardware:
            return
        c.agent("blind", env={"TH_FAKE_CUDA": ""})
        worker = c.worker("blind", "blind")
        worker.call("open", model="m", replica="blind")
        worker.call("alloc", total_bytes=SIZE, gpu="legacy")
        text = expect_error("MEMORY_KIND", worker.call, "register").text
        assert "GPU" in text and "CUDA" in text, text
        told = status(c, "blind")
        assert not gpu_pids(c, "blind"), told


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
    if not LONG:
        return
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
            wait_for(
                lambda: not any(gpu["imports"] for gpu in status(c)["gpus"]), 30, "all is closed"
            )
        worker.call("free")


if __name__ == "__main__":
    main(
        status_says_what_is_open_and_how_each_allocation_is_reached,
        who_cannot_have_it_is_told_why_and_what_to_do,
        the_process_ends_with_its_agent_and_not_with_its_service,
        nobody_needs_it,
        hundreds_of_pieces_come_and_go,
    )
