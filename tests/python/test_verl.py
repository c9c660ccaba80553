# SPDX-License-Identifier: Apache-2.0
"""tensorhub.integrations.verl under the real veRL: its CheckpointEngineManager, its Worker and ray.

The workers are of verl_workers.py; they have no GPU, and tensors instead of a model. Suite
`frameworks`. Where veRL is not installed all but the hint of the import is skipped.
"""

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time

import pytest
import tensorhub as th
from cluster import Cluster, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
MODULE = "tensorhub.integrations.verl"
MARK = "TH_TEST_VERL"  # in the environment of all that ray starts
LIMIT_S = 240  # of what a fixture or a test waits for; a worker imports veRL, which takes long


def test_without_verl_the_import_says_what_to_do(monkeypatch):
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setitem(sys.modules, "verl", None)
    hint = r"^tensorhub\.integrations\.verl: veRL 0\.9 cannot .* \(.*\); pip install verl$"
    with pytest.raises(ImportError, match=hint):
        importlib.import_module(MODULE)


def test_it_may_be_imported_again_and_wants_a_name_for_the_model():
    pytest.importorskip("verl", reason="verl is not installed")
    from verl.checkpoint_engine import CheckpointEngineRegistry

    importlib.reload(importlib.import_module(MODULE))
    with pytest.raises(ValueError, match="engine_kwargs.tensorhub.model is not there"):
        CheckpointEngineRegistry.new("tensorhub", bucket_size=1)


@contextlib.contextmanager
def limit(seconds):
    """ray waits for ever: for a worker that does not come up, too."""

    def late(*_):
        raise TimeoutError(f"not within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def marked():
    """Processes that ray has started for this test."""
    found, mark = [], f"{MARK}={os.getpid()}".encode()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) != os.getpid():
                with open(f"/proc/{name}/environ", "rb") as f:
                    if mark in f.read().split(b"\0"):
                        found.append(int(name))
    return found


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("verl", reason="verl is not installed")
    environment = pytest.MonkeyPatch()
    environment.setenv(MARK, str(os.getpid()))
    environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
    environment.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
    folder = tempfile.TemporaryDirectory(prefix="th-ray-")
    with limit(LIMIT_S):
        ray.init(
            address="local", num_cpus=8, include_dashboard=False, log_to_driver=False,
            logging_level="error", object_store_memory=80 << 20, _temp_dir=folder.name,
        )  # fmt: skip
    environment.undo()
    try:
        yield ray
    finally:
        with limit(LIMIT_S):
            ray.shutdown()
        try:
            wait_for(lambda: not marked(), 20, "ray ends what it has started")
        finally:
            for pid in marked():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            folder.cleanup()


class World:
    """Two hosts, which are two agents; a trainer group, and rollouts."""

    def __init__(self, ray):
        from verl.workers.config import CheckpointEngineConfig, RolloutConfig

        self.ray, self.rollouts, self.trainer, self.run = ray, [], None, 0
        self.cluster = Cluster()
        self.agents = [self.cluster.agent(label).runtime for label in ("a", "b")]
        self.kwargs = {"model": "policy", "timeout": 60.0}
        self.config = CheckpointEngineConfig(
            backend="tensorhub", custom_backend_module=MODULE,
            engine_kwargs={"tensorhub": self.kwargs},
        )  # fmt: skip
        self.rollout_config = RolloutConfig(name="vllm", checkpoint_engine=self.config)
        self.manager = None

    def group(self, kind, count, **kwargs):
        from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

        pool = RayResourcePool([count], use_gpu=False, max_colocate_count=1)
        built = RayClassWithInitArgs(cls=self.ray.remote(kind), **kwargs)
        return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=built, device_name="cpu")

    def start_trainer(self, count, run):
        """In the place of the one before, which is killed."""
        from verl.checkpoint_engine import CheckpointEngineManager
        from verl_workers import Trainer

        if self.trainer is not None:
            self.kill(self.trainer)
        self.run = run
        self.trainer = self.group(
            Trainer, count, kwargs=self.kwargs, agents=self.agents, run=self.run
        )
        self.manager = CheckpointEngineManager(
            config=self.config, actor_wg=self.trainer,
            replicas=[replica for _, replica in self.rollouts],
        )  # fmt: skip

    def add_rollouts(self, count):
        from verl_workers import Rollout

        group = self.group(
            Rollout, count, rollout_config=self.rollout_config, agents=self.agents
        )
        replicas = [self.replica(worker) for worker in group.workers]
        self.rollouts.append((group, replicas[0]))
        self.rollouts.extend((None, replica) for replica in replicas[1:])
        self.manager.add_replicas(replicas)

    @staticmethod
    def replica(worker):
        """What the manager needs of one: to stop and resume it, and its workers."""
        from verl.workers.rollout import RolloutReplica

        async def nothing(*_args, **_kwargs):
            pass

        kind = type("Replica", (RolloutReplica,), {
            name: nothing for name in (
                "abort_all_requests", "resume_generation", "release_kv_cache", "resume_kv_cache",
                "init_hybrid", "get_ray_class_with_init_args", "launch_servers",
            )
        })  # fmt: skip
        one = kind.__new__(kind)
        one.workers = [worker]
        return one

    def kill(self, group):
        for worker in group.workers:
            self.ray.kill(worker)

    def step(self, number):
        """One update; what veRL logs of it."""
        with limit(LIMIT_S):
            return self.manager.update_weights(global_steps=number)

    def check(self, number):
        """Every rollout has the tensors of that step of this run, and no trainer held them all."""
        with limit(LIMIT_S):
            for group, _ in self.rollouts:
                if group is not None:
                    assert all(group.same(self.run + number)), number
            for made, at_once in self.trainer.count():
                assert made == 20 and at_once <= 2

    def facts(self):
        return [fact for group, _ in self.rollouts if group is not None for fact in group.facts()]


@pytest.fixture(scope="module")
def world(ray):
    made, failed = World(ray), True
    try:
        yield made
        failed = False
    finally:
        made.cluster.close(failed)


def test_three_steps_of_a_trainer_and_two_rollouts(world):
    with limit(LIMIT_S):
        world.start_trainer(1, run=1000)
        world.add_rollouts(2)
    for number in (1, 2, 3):
        begin = time.monotonic()
        metrics = world.step(number)
        took = time.monotonic() - begin
        world.check(number)
        assert metrics["tensorhub/publish_s"] > 0
        print(f"step {number}: {took:.2f} s, trainer {metrics}")
        for fact in world.facts():
            print(f"    rollout {fact}")
            assert fact["tensorhub/bytes"] + fact["tensorhub/bytes_reused"] > 32 << 20


def test_a_restarted_trainer_on_two_hosts_and_rollouts_that_join(world):
    """Its steps begin again: what the rollouts hold of step 3 is of another run.

    Of its three ranks one is the second of its host, and publishes nothing.
    """
    with limit(LIMIT_S):
        world.start_trainer(3, run=2000)
        world.add_rollouts(2)
    for number in (3, 4):
        world.step(number)
        world.check(number)
    with th.watch("policy", agent=world.agents[0]) as w:
        listed = w.list()
    assert list(listed) == [4] and len(listed[4]) == 2 + 4


def test_an_update_without_a_step_is_refused_by_all(world):
    with pytest.raises(ValueError, match="update_weights was called without global_steps"):
        world.step(None)
    assert {made for made, _ in world.trainer.count()} == {20}  # no rank waits for another
    world.step(5)
    world.check(5)


def test_an_agent_that_is_away_is_said_and_the_next_step_goes_on(world):
    label = "b"
    world.cluster.agents[label].kill()
    with pytest.raises(th.Error, match="agent"):
        world.step(6)
    world.cluster.agent(label)
    world.step(7)
    world.check(7)
