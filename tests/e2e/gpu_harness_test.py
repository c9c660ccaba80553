# SPDX-License-Identifier: Apache-2.0
"""What the tests of GPU memory stand on: a worker's memory of each kind, what is held, faults."""

import os
import re
import subprocess
import sys

import content
import gpu_driver
import gpus
from cluster import BUILD, HERE, Worker, cluster, main, needs_plans, wait_for, worker_env

SIZE = 9 << 20


class Alone:
    """A worker without an agent."""

    def __init__(self, c):
        self.worker = Worker(c, f"worker{c.num_workers}", self)

    runtime = "/nonexistent"


def each_kind_keeps_its_bytes_and_leaves_nothing():
    with cluster(server=False, has_gpus=True) as c:
        base = [c.gpus.used(device) for device in range(c.gpus.count)]
        for kind in gpu_driver.KINDS:
            worker = Alone(c).worker
            device = (c.num_workers - 1) % c.gpus.count
            worker.call("alloc", total_bytes=SIZE, gpu=kind)
            want = worker.call("fill", seed=kind)
            assert want == content.digest(content.content(kind, SIZE))
            worker.call("flip", offset=SIZE // 2)
            assert worker.call("digest") != want
            worker.call("flip", offset=SIZE // 2)
            assert worker.call("digest") == want
            assert c.gpus.used(device) >= base[device] + SIZE, kind
            if kind != "pool":  # which keeps a little for itself
                before = c.gpus.used(device)
                worker.call("free")
                assert c.gpus.used(device) <= before - SIZE, kind
            worker.kill()
            assert gpus.wait_free(c.gpus, device, base[device], 10) is not None, kind


def memory_sleeps_and_wakes_at_its_addresses():
    with cluster(server=False, has_gpus=True) as c:
        worker = Alone(c).worker
        worker.call("alloc", total_bytes=SIZE, gpu="chunks")
        worker.call("fill", seed=1)
        awake = c.gpus.used(0)
        worker.call("sleep")
        assert c.gpus.used(0) <= awake - SIZE
        worker.call("wake")
        assert c.gpus.used(0) >= awake
        want = worker.call("fill", seed=2)
        assert worker.call("digest") == want


def what_is_planned_happens():
    needs_plans()
    with cluster(server=False, has_gpus=True) as c:
        worker = Alone(c).worker
        worker.call("alloc", total_bytes=SIZE, gpu="legacy")
        assert c.gpus.holds(worker.pid, "allocations") == 1
        assert c.gpus.calls(worker.pid, "cuMemAlloc") == 1
        assert c.gpus.holds(os.getpid(), "contexts") == -1
        plan = c.gpus.plan("result", "cuMemcpyDtoH", pid=worker.pid, result=700)
        message = worker.message(worker.start("digest"))
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in message["text"], message
        assert c.gpus.met(plan) == 1
        c.gpus.lift(plan)
        hang = c.gpus.plan("hang", "cuMemcpyDtoH", pid=worker.pid)
        running = worker.start("digest")
        wait_for(lambda: c.gpus.met(hang), 30, "it hangs")
        assert not worker.finished(running)
        c.gpus.lift(hang)
        worker.finish(running)
        c.gpus.lose(0, 719)
        message = worker.message(worker.start("digest"))
        assert "CUDA_ERROR_LAUNCH_FAILED" in message["text"], message


def what_is_there_is_said():
    env = dict(os.environ, **worker_env())
    p = subprocess.run(
        [sys.executable, os.path.join(HERE, "gpus.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=150,
    )
    first = p.stdout.splitlines()[0]
    assert ("no GPU can be used: " in first) == (p.returncode == 1), p
    with cluster(server=False, has_gpus=True) as c:
        p = subprocess.run(
            [sys.executable, os.path.join(HERE, "gpus.py")],
            env={**env, **c.env},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert p.returncode == 0 and f"{c.gpus.count} GPU: " in p.stdout, p


def tests_may_last_longer_on_hardware():
    """As long in a bundle as by tools/check, which asks for the factor."""
    sys.path.insert(0, os.path.join(HERE, "..", "support"))
    import bundle_tests

    p = subprocess.run(
        [sys.executable, os.path.join(HERE, "gpus.py"), "--slower"],
        env={**os.environ, **worker_env()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    factor = int(p.stdout)
    assert p.returncode == 0 and factor > 1, p
    hardware = {"TH_GPU_HARDWARE": "1"}
    for suite, env, times in (
        (["unit", "gpu"], hardware, factor),
        (["e2e", "gpu_faults"], hardware, factor),
        (["e2e", "waiting"], hardware, 1),
        (["unit", "gpu"], {}, 1),
    ):
        limit = bundle_tests.limit_s({"suite": suite, "timeout": 240}, env)
        assert limit == 240 * times, (suite, env, limit)


def unit_program(name, env, which):
    path = os.path.join(BUILD, "tests", "unit", f"unit_{name}")
    env = {**os.environ, **env, "TH_GPU_HARDWARE": "1"}
    return subprocess.run(
        [path, "--verbose", "--color=never", "--jobs=2", "--filter", which],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
    )


def run_and_passed(p):
    found = re.search(r"Tested: (\d+) \| Passing: (\d+) \| Failing: 0 \| Crashing: 0", p.stdout)
    assert p.returncode == 0 and found, p.stdout
    return int(found.group(1))


def unit_programs_run_by_the_driver_that_is_there():
    """Told that the GPUs are real they plan nothing and look into no file: so they run by the
    driver of the tests as by any other."""
    needs_plans()
    programs = {
        "conformance_cuda": "*/whole_shard*",
        "cuda_gather": "*/copy__*",
        "cuda_hash": "*/value__*",
        "transport_cuda": "*/between_two_gpus*",
    }
    if not gpus.look()[0]:
        for name, which in programs.items():
            p = unit_program(name, {}, which)
            assert p.returncode != 0 and "no GPU can be used: " in p.stdout, p.stdout
            assert "[PASS]" not in p.stdout, p.stdout
    with cluster(server=False, has_gpus=True) as c:
        for name, which in programs.items():
            p = unit_program(name, c.env, which)
            assert run_and_passed(p) >= 3 and "2 GPU, TensorHub Test GPU: " in p.stdout, p.stdout
        assert [c.gpus.used(device) for device in range(2)] == [0, 0]
        # What a machine has not is said, and the rest runs.
        for device in range(2):
            c.gpus.set(device, "peers", 1 << device)
            c.gpus.set(device, "pools", 0)
        p = unit_program("conformance_cuda", c.env, programs["conformance_cuda"])
        assert run_and_passed(p) >= 2 and "GPUs have no memory pools" in p.stdout, p.stdout
        p = unit_program("transport_cuda", c.env, programs["transport_cuda"])
        assert run_and_passed(p) == 0 and p.stdout.count("two GPUs are needed") == 3, p.stdout
        p = unit_program("transport_cuda", c.env, "*/all_let_go*")
        assert run_and_passed(p) == 0 and "on real GPUs nothing can be" in p.stdout, p.stdout


if __name__ == "__main__":
    main(
        each_kind_keeps_its_bytes_and_leaves_nothing,
        memory_sleeps_and_wakes_at_its_addresses,
        what_is_planned_happens,
        what_is_there_is_said,
        tests_may_last_longer_on_hardware,
        unit_programs_run_by_the_driver_that_is_there,
    )
