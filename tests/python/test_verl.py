# SPDX-License-Identifier: Apache-2.0
"""tensorhub.integrations.verl under the real veRL: its CheckpointEngineManager, its Worker and ray.

The workers are of verl_workers.py; they have no GPU, and tensors instead of a model. Suite
`frameworks`. Where veRL is not installed all but the hint of the import is skipped.
"""

import asyncio
import contextlib
import importlib
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import threading
import time

import pytest
import tensorhub as th
from cluster import Cluster, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
MODULE = "tensorhub.integrations.verl"
MARK = "TH_TEST_VERL"  # in the environment of all that ray starts
LIMIT_S = 400  # of what a fixture or a test waits for; a worker imports veRL, which takes long
TIMEOUT_S = 15.0  # the key of engine_kwargs: what an update may wait for a version
MODEL_BYTES = 4 * ((4096 * 1024 + 1 + 105) * 2 + 1024 * 4)  # SHAPES of verl_workers.py


def test_without_verl_the_import_says_what_to_do(monkeypatch):
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setitem(sys.modules, "verl", None)
    hint = r"^tensorhub\.integrations\.verl: veRL 0\.9 cannot .* \(.*\); pip install verl$"
    with pytest.raises(ImportError, match=hint):
        importlib.import_module(MODULE)


def engine(**kwargs):
    """As veRL makes one, of engine_kwargs.tensorhub."""
    pytest.importorskip("verl", reason="verl is not installed")
    from verl.checkpoint_engine import CheckpointEngineRegistry

    importlib.import_module(MODULE)
    return CheckpointEngineRegistry.new("tensorhub", bucket_size=1, **kwargs)


@pytest.mark.parametrize(
    "kwargs, kind, sentence",
    [
        ({}, ValueError, "engine_kwargs.tensorhub.model is not there: give the weights a name"),
        ({"modle": "m"}, TypeError, "unexpected keyword argument 'modle'"),
    ],
)
def test_a_key_that_is_missing_or_unknown_is_named(kwargs, kind, sentence):
    with pytest.raises(kind, match=sentence):
        engine(**kwargs)
    importlib.reload(importlib.import_module(MODULE))
    engine(model="m")


def test_without_its_module_the_backend_is_unknown_to_verl(monkeypatch):
    pytest.importorskip("verl", reason="verl is not installed")
    from verl.checkpoint_engine import CheckpointEngineRegistry

    monkeypatch.delitem(CheckpointEngineRegistry._registry, "tensorhub", raising=False)
    with pytest.raises(ValueError, match="Checkpoint engine tensorhub not registered"):
        CheckpointEngineRegistry.get("tensorhub")


@pytest.mark.parametrize(
    "kwargs, sentence",
    [
        ({"timeout": "1h"}, "timeout: '1h'"),
        ({"dtype": "I32"}, "dtype: nothing is cast to I32"),
        ({"model": 5}, "model: 5 is no str"),
    ],
)
def test_a_value_that_is_none_of_its_key_is_named_by_the_first_update(world, kwargs, sentence):
    async def send():
        trainer = engine(**{"model": "keys", "agent": world.a, **kwargs})
        trainer.init_process_group(trainer.prepare()["name"], 1)
        try:
            await trainer.send_weights(iter([("w", memoryview(bytearray(64)))]), 1)
        finally:
            if trainer._handle is not None:
                trainer._handle.timeout = 5.0
                await trainer._handle.close()

    with pytest.raises(th.Invalid, match=sentence):
        asyncio.run(send())


@contextlib.contextmanager
def limit(seconds=LIMIT_S):
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


class Gates:
    """Workers come to moments of an update (verl_workers.come_to); a closed one holds them."""

    def __init__(self, path):
        self.came, self.closed, self.changed = [], None, threading.Condition()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                worker, _ = self.listener.accept()
                threading.Thread(target=self._hold, args=(worker,), daemon=True).start()

    def _hold(self, worker):
        with worker:
            moment = worker.recv(100).decode().strip()
            with self.changed:
                self.came.append(moment)
                self.changed.notify_all()
                self.changed.wait_for(lambda: moment != self.closed)

    def close(self, moment):
        """None: all are open."""
        with self.changed:
            self.came.clear()
            self.closed = moment
            self.changed.notify_all()

    def wait(self, moment):
        with self.changed:
            assert self.changed.wait_for(lambda: moment in self.came, LIMIT_S), moment


@contextlib.contextmanager
def cluster_of_ray(gates):
    import ray

    environment = pytest.MonkeyPatch()
    environment.setenv(MARK, str(os.getpid()))
    environment.setenv("TH_TEST_GATES", gates.listener.getsockname())
    environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
    environment.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
    folder = tempfile.TemporaryDirectory(prefix="th-ray-")
    with limit():
        ray.init(
            address="local", num_cpus=64, include_dashboard=False, log_to_driver=False,
            logging_level="error", object_store_memory=80 << 20, _temp_dir=folder.name,
        )  # fmt: skip
    environment.undo()
    try:
        yield ray
    finally:
        with limit():
            ray.shutdown()
        try:
            wait_for(lambda: not marked(), 20, "ray ends what it has started")
        finally:
            for pid in marked():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            folder.cleanup()


# What leaves a host is slow enough for a pull between two to be met.
SLOW = ("rate.out=20MB", "server.beat=200ms")


class World:
    """Two hosts, which are two agents: trainers on the first or on both, rollouts on both."""

    def __init__(self, ray, gates, options=SLOW):
        from verl.workers.config import CheckpointEngineConfig, RolloutConfig

        self.ray, self.gates, self.cluster = ray, gates, Cluster()
        self.options = [word for option in options for word in ("-o", option)]
        self.rollouts, self.trainer, self.run, self.number = [], None, 0, 0
        for label in ("a", "b"):
            self.start_agent(label)
        self.a, self.b = (self.cluster.agents[label].runtime for label in ("a", "b"))
        self.kwargs = {"model": "policy", "timeout": TIMEOUT_S}
        self.config = CheckpointEngineConfig(
            backend="tensorhub", custom_backend_module=MODULE,
            engine_kwargs={"tensorhub": self.kwargs},
        )  # fmt: skip
        self.rollout_config = RolloutConfig(name="vllm", checkpoint_engine=self.config)
        self.manager = None

    def start_agent(self, label):
        self.cluster.agent(label, args=self.options)

    def group(self, kind, count, **kwargs):
        from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

        pool = RayResourcePool([count], use_gpu=False, max_colocate_count=1)
        built = RayClassWithInitArgs(cls=self.ray.remote(kind), **kwargs)
        return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=built, device_name="cpu")

    def start_trainer(self, agents):
        """Another training, in the place of the one before, which is killed."""
        from verl.checkpoint_engine import CheckpointEngineManager
        from verl_workers import Trainer

        if self.trainer is not None:
            for worker in self.trainer.workers:
                self.ray.kill(worker)
        self.run += 1000
        with limit():
            self.trainer = self.group(
                Trainer, len(agents), kwargs=self.kwargs, agents=agents, run=self.run
            )
        self.manager = CheckpointEngineManager(
            config=self.config, actor_wg=self.trainer,
            replicas=[replica for _, replica in self.rollouts],
        )  # fmt: skip

    def move_trainer(self, agents):
        """Another training in the processes of the one before."""
        self.run += 1000
        with limit():
            self.trainer.begin_again(agents, self.run)

    def add_rollouts(self, agents):
        from verl_workers import Rollout

        with limit():
            group = self.group(
                Rollout, len(agents), rollout_config=self.rollout_config, agents=agents
            )
        added = [(worker, self.replica(worker)) for worker in group.workers]
        self.rollouts.extend(added)
        self.manager.add_replicas([replica for _, replica in added])

    def remove_rollout(self, worker):
        ((_, replica),) = [one for one in self.rollouts if one[0] is worker]
        self.rollouts.remove((worker, replica))
        self.manager.remove_replicas([replica])

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

    def of_rollouts(self, *workers):
        """A group of these, or of all, as the manager makes one for an update."""
        from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
        from verl_workers import Rollout

        return RayWorkerGroup(
            worker_handles=list(workers) or [worker for worker, _ in self.rollouts],
            ray_cls_with_init=RayClassWithInitArgs(cls=self.ray.remote(Rollout)),
        )

    def step(self, number=0):
        """One update; what veRL logs of it."""
        self.number = number or self.number + 1
        with limit():
            return self.manager.update_weights(global_steps=self.number)

    def check(self):
        """Every rollout has the tensors of this step and run, and no trainer held them all."""
        with limit():
            assert all(self.of_rollouts().same(self.run + self.number)), self.number
            for made, at_once in self.trainer.count():
                assert made == 20 and at_once <= 2

    def good_step(self, number=0):
        metrics = self.step(number)
        self.check()
        return metrics

    def listed(self):
        with th.watch("policy", agent=self.b) as w:
            return w.list()

    def from_other_hosts(self, label):
        """Bytes that this agent has received from others."""
        text = self.cluster.thctl("status", "-o", "json", agent=label, check=False).stdout
        return next(n["value"] for n in json.loads(text)["counters"] if n["name"] == "bytes_in")


@contextlib.contextmanager
def world_of(**kwargs):
    with tempfile.TemporaryDirectory(prefix="th-gates-") as folder:
        gates = Gates(os.path.join(folder, "gates"))
        with cluster_of_ray(gates) as ray:
            made, failed = World(ray, gates, **kwargs), True
            try:
                yield made
                failed = False
            finally:
                made.cluster.close(failed)


@pytest.fixture(scope="module")
def world():
    pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("verl", reason="verl is not installed")
    with world_of() as made:
        yield made


def three_steps(world, publishers):
    """Bit for bit, and told of each.

    However many rollouts b has, the model came to it once, and never where it has a trainer.
    """
    for _ in range(3):
        before, begin = world.from_other_hosts("b"), time.monotonic()
        metrics = world.good_step()
        took = time.monotonic() - begin
        came = world.from_other_hosts("b") - before
        assert came == (MODEL_BYTES if publishers == 1 else 0)
        assert metrics["tensorhub/publish_s"] > 0
        print(f"step {world.number}: {took:.2f} s, {came} bytes came to b, trainer {metrics}")
        for fact in world.of_rollouts().facts():
            print(f"    rollout {fact}")
            assert fact["tensorhub/bytes"] + fact["tensorhub/bytes_reused"] == MODEL_BYTES
    listed = world.listed()
    assert list(listed) == [world.number]
    assert len(listed[world.number]) == publishers + len(world.rollouts)


def test_three_steps_of_a_trainer_and_two_rollouts(world):
    world.start_trainer([world.a])
    world.add_rollouts([world.a, world.b])
    three_steps(world, publishers=1)


def test_two_trainers_on_two_hosts_and_four_rollouts(world):
    """A training begins again: what the rollouts hold of step 3 is of another run."""
    world.start_trainer([world.a, world.b])
    world.add_rollouts([world.b, world.b])
    world.number = 2
    three_steps(world, publishers=2)


def test_two_trainers_on_one_host_and_four_rollouts(world):
    """The second publishes nothing; the three rollouts of b fetch the model once."""
    world.move_trainer([world.a])
    three_steps(world, publishers=1)


# ---- bad input -----------------------------------------------------------------------------------


def test_an_update_without_a_step_is_refused_by_all(world):
    with pytest.raises(ValueError, match="update_weights was called without global_steps"):
        with limit():
            world.manager.update_weights()
    assert {made for made, _ in world.trainer.count()} == {20}  # no rank waits for another
    world.good_step()


@pytest.mark.parametrize(
    "how, kind, sentence",
    [
        ("misses one", th.Layout, "'layers.3.odd' was there at first and is not"),
        ("other type", th.Layout, r"'layers.0.embed' is F32 .* and was BF16 .* at first"),
        ("raises", ArithmeticError, "a tensor could not be gathered"),
    ],
)
def test_tensors_that_are_not_those_of_before_are_named(world, how, kind, sentence):
    """The rollouts wait meanwhile, and what they wait for ends when the next update begins."""
    world.trainer.spoil(how)
    for _ in range(2):
        with pytest.raises(kind, match=sentence):
            world.step()
    world.trainer.spoil(None)
    world.good_step(world.number)  # the same step again


def test_a_rollout_of_another_architecture_says_so_itself(world):
    """The adapter brings what the trainer has; the engine's loader knows what it can take."""
    rollout = world.of_rollouts(world.rollouts[0][0])
    rollout.be_another(True)
    with pytest.raises(RuntimeError, match="size mismatch for layers.*odd: the model of the eng"):
        world.step()
    rollout.be_another(False)
    world.good_step()


def test_a_training_that_begins_again_may_have_another_type(world):
    """The rollouts make their memory anew, as the trainers have it."""
    world.move_trainer([world.a])
    world.trainer.spoil("other type")
    world.step()
    assert world.of_rollouts().facts()[0]["tensorhub/bytes"] > 1.9 * MODEL_BYTES
    world.move_trainer([world.a])
    world.trainer.spoil(None)
    world.good_step()


def test_two_trainings_of_one_model(world):
    """That which began later is not disturbed, and the first hears of it."""
    newest = max(lineage for lineage, _ in world.listed().details)

    async def another():
        later = engine(model="policy", agent=world.a)
        later.init_process_group(later.prepare()["name"], newest + 1)
        await later.send_weights(iter([("w", memoryview(bytearray(4096)))]), world.number + 1)
        return later

    loop = asyncio.new_event_loop()
    later = loop.run_until_complete(another())
    with pytest.raises(th.VersionConflict, match="engine_kwargs.tensorhub.model of its own"):
        world.step()
    loop.run_until_complete(later._handle.close())
    loop.close()
    world.good_step()


def test_a_version_that_goes_before_it_is_pulled(world):
    """Its trainer has died between the look at the list and the pull."""
    allocate = th.aio.Handle.allocate
    trainer = th.open("brief", replica="t", lineage=7, agent=world.a)
    trainer.register({"w": th.empty((4096,), "U8")})
    trainer.publish(1)

    async def dies(handle, version):
        made = await allocate(handle, version)
        trainer.close(abandon=True)
        return made

    async def pull():
        rollout = engine(model="brief", agent=world.a)
        rollout.init_process_group(None, 7)
        with pytest.raises(th.NotAvailable, match="version 1 of run 7 went before it was pulled"):
            async for _ in rollout.receive_weights(1):
                pass
        await rollout._handle.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(th.aio.Handle, "allocate", dies)
        asyncio.run(pull())


def test_an_agent_of_another_release(world, tmp_path):
    """It speaks a protocol that this libthc does not know: its WELCOME, by hand."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(tmp_path / "agent.fds"))
        other.listen(8)

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    worker, _ = other.accept()
                    with worker:
                        worker.recv(4096)
                        body = struct.pack("<IIQQ32s256s", 99, 4096, 0, 4096, b"9.0.0", b"a")
                        worker.send(struct.pack("<IHHII", 0x31434854, 2, 0, len(body), 0) + body)

        threading.Thread(target=answer, daemon=True).start()
        world.move_trainer([str(tmp_path)])
        with pytest.raises(th.Protocol, match="speaks protocol 99 .* upgrade the older one"):
            world.step()
        other.shutdown(socket.SHUT_RDWR)
    world.move_trainer([world.a])
    world.good_step()


# ---- deaths --------------------------------------------------------------------------------------

MOMENTS = ("before publish", "while publishing", "before the pull", "while pulling", "after")
DIED = "ActorDied"
#: What the update of that moment raises, or that after it; None: nothing. The table of verl.md.
OUTCOMES = {
    "rollout": (DIED, DIED, DIED, DIED, DIED),
    "trainer": (DIED, DIED, "Timeout", DIED, DIED),
    "trainers' agent": ("AgentLost", "AgentLost", "Timeout", "VersionLost", "NoAgent"),
    "rollouts' agent": ("AgentLost", "AgentLost", "NoAgent", "AgentLost", "NoAgent"),
    "server": (None, None, None, None, None),
}


class Death:
    """Of one process at one moment of an update, and what comes in its place."""

    def __init__(self, world, who):
        self.world, self.who = world, who
        with limit():
            self.trainer = world.trainer.facts()[0]["pid"]
            rollouts = world.of_rollouts().facts()
        self.rollout = rollouts[0]["pid"]
        host = socket.gethostname()
        self.readers = {f"{host}-{one['pid']}" for one in rollouts if one["agent"] == world.b}

    def kill(self, moment):
        world = self.world
        if self.who == "trainer":
            os.kill(self.trainer, signal.SIGKILL)
        elif self.who == "rollout":
            os.kill(self.rollout, signal.SIGKILL)
        elif self.who == "server":  # as what watches over it does
            world.cluster.server.kill()
            world.cluster.start_server(listen=world.cluster.server_url)
        else:
            world.cluster.agents[self.agent()].kill()
        if moment == "before the pull" and self.who in ("trainer", "trainers' agent"):
            with th.watch("policy", agent=world.b) as watch:
                wait_for(lambda: world.number not in watch.list(), 60, "the version is gone")

    def agent(self):
        return "a" if self.who == "trainers' agent" else "b"

    def replace(self):
        world = self.world
        if self.who == "trainer":
            world.start_trainer([world.a])
        elif self.who == "rollout":
            world.remove_rollout(world.rollouts[0][0])
            if len(world.rollouts) < 2:
                world.add_rollouts([world.b] * 3)
        elif self.who != "server":
            world.start_agent(self.agent())

    def pulls(self, watch):
        """A rollout of b has begun to, and has not ended."""
        return any(
            replica.name in self.readers and not replica.ready
            for (_, number), version in watch.list().details.items()
            if number == self.world.number
            for replica in version.replicas
        )

    def come(self, moment):
        if moment == "while pulling":
            with th.watch("policy", agent=self.world.b) as watch:
                wait_for(lambda: self.pulls(watch), 60, "a rollout pulls")
        elif moment == "before the pull":
            self.world.gates.wait("published")
            self.world.trainer.count()  # answered after the update of the trainer
        else:
            self.world.gates.wait(GATES[moment])

    def update(self, moment):
        """What the update raises during which it comes, or that after it."""
        if moment == "after":
            self.world.good_step()
            self.kill(moment)
            return raised(self.world.step)
        failures = []

        def dies():
            try:
                self.come(moment)
                self.kill(moment)
            except BaseException as failure:
                failures.append(failure)
            finally:
                self.world.gates.close(None)

        self.world.gates.close(GATES.get(moment))
        thread = threading.Thread(target=dies)
        thread.start()
        failure = raised(self.world.step)
        thread.join()
        assert not failures, failures
        return failure


GATES = {
    "before publish": "gathering", "while publishing": "copying", "before the pull": "pulling"
}  # fmt: skip


def raised(call):
    try:
        call()
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return None


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", OUTCOMES)
def test_a_death(world, who, moment):
    """Nobody hangs, and with another process in its place the next update works."""
    death, begin = Death(world, who), time.monotonic()
    failure, wanted = death.update(moment), OUTCOMES[who][MOMENTS.index(moment)]
    print(f"{who}, {moment}: {time.monotonic() - begin:.1f} s: {failure}")
    death.replace()
    begin = time.monotonic()
    world.good_step()
    print(f"    then {time.monotonic() - begin:.1f} s")
    assert failure is None if wanted is None else wanted in (failure or ""), failure


def test_a_server_that_stays_away_is_named(world):
    """In the end, and the agents find it again by themselves."""
    cluster = world.cluster
    cluster.server.kill()
    with pytest.raises(th.Error, match="server"):
        world.step()
    cluster.start_server(listen=cluster.server_url)
    world.good_step()
