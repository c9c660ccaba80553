# SPDX-License-Identifier: Apache-2.0
"""Workers of test_verl.py, which ray runs in processes of their own: veRL's, without models.

A trainer does what veRL's ActorRolloutRefWorker does for an update, and has the numbers of step and
run instead of a model; a rollout is veRL's CheckpointEngineWorker and keeps what it is given.
"""

import os
import resource
import socket
import weakref

import torch
from verl.checkpoint_engine import CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.import_utils import import_external_libs
from verl.workers.rollout import BaseRollout

BACKEND, MODULE = "tensorhub", "tensorhub.integrations.verl"
SHAPES = {"embed": (4096, 1024), "norm": (1024,), "scale": (), "none": (0, 8), "odd": (3, 5, 7)}
LAYERS = int(os.environ.get("TH_TEST_LAYERS", "4"))
COUNT = LAYERS * len(SHAPES)


def weights(seed, layers=LAYERS):
    """A step's tensors, one by one, as veRL gathers them: each is gone when the next is made."""
    made = torch.Generator().manual_seed(seed)
    for i in range(layers):
        for name, shape in SHAPES.items():
            dtype = torch.float32 if name == "norm" else torch.bfloat16
            yield f"layers.{i}.{name}", torch.rand(shape, generator=made).to(dtype)


def come_to(moment):
    """Says so to the test, and waits until it lets this worker go on."""
    with socket.socket(socket.AF_UNIX) as test:
        test.connect(os.environ["TH_TEST_GATES"])
        test.sendall(f"{moment}\n".encode())
        test.recv(1)


class Calls:
    """What the manager calls by name."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *args, **kwargs):
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def facts(self):
        """Of the last update, and of this process."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        agent = os.environ["THC_AGENT"]
        return dict(self.checkpoint_engine.times, pid=os.getpid(), peak=peak, agent=agent)


class Counted:
    """How many tensors an update has made, and how many of them were there at once."""

    def __init__(self):
        self.made, self.at_once, self.alive = 0, 0, weakref.WeakSet()


class Trainer(Calls, Worker):
    def __init__(self, kwargs, agents, run):
        super().__init__()
        import_external_libs(MODULE)
        self.kwargs, self.spoiled, self.checkpoint_engine = kwargs, None, None
        self.counted = Counted()
        self._begin(agents, run)

    def _begin(self, agents, run):
        self.run = run
        os.environ["THC_AGENT"] = agents[self.rank % len(agents)]
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            BACKEND, is_master=self.rank == 0, bucket_size=1 << 20, **self.kwargs
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def begin_again(self, agents, run):
        """As another training, on other hosts; in this process, for to start one takes long."""
        if self.checkpoint_engine._handle is not None:
            await self.checkpoint_engine._handle.close()
        self._begin(agents, run)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def spoil(self, how):
        """What is wrong with the tensors from now on; None: nothing."""
        self.spoiled = how

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        self.counted = Counted()
        metrics = await self.checkpoint_engine.send_weights(
            self.tensors(global_steps), global_steps=global_steps
        )
        if self.rank == 0:
            come_to("published")
        return metrics

    def tensors(self, step):
        counted = self.counted  # an update that was given up counts its own to the end
        for name, tensor in weights(self.run + (step or 0)):
            if self.rank == 0 and counted.made in (0, COUNT // 2):
                come_to("copying" if counted.made else "gathering")
            counted.made += 1
            if self.spoiled == "raises" and counted.made == COUNT // 2:
                raise ArithmeticError("a tensor could not be gathered")
            if self.spoiled == "misses one" and counted.made == COUNT:
                return
            tensor = tensor.float() if self.spoiled == "other type" else tensor
            counted.alive.add(tensor)
            counted.at_once = max(counted.at_once, len(counted.alive))
            yield name, tensor
            del tensor

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def count(self):
        return self.counted.made, self.counted.at_once


class Kept(BaseRollout):
    def __init__(self):
        self.got, self.other = {}, False

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, **_kwargs):
        self.got = {}
        async for name, tensor in weights:
            if self.other and name.endswith("odd"):
                raise RuntimeError(f"size mismatch for {name}: the model of the engine is another")
            self.got[name] = tensor.clone()


class Rollout(Calls, CheckpointEngineWorker):
    def __init__(self, rollout_config, agents):
        os.environ["THC_AGENT"] = agents[int(os.environ["RANK"]) % len(agents)]
        super().__init__(rollout_config, None, Kept())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None):
        come_to("pulling")
        await super().update_weights(global_steps=global_steps)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def be_another(self, other):
        """The engine's model is of another architecture than the trainers'."""
        self.server_adapter.other = other

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def same(self, seed):
        """Bit for bit; the order is not the trainer's."""
        got, wanted = self.server_adapter.got, dict(weights(seed))
        return got.keys() == wanted.keys() and all(
            got[name].dtype == tensor.dtype
            and got[name].shape == tensor.shape
            and got[name].view(-1).view(torch.uint8).equal(tensor.view(-1).view(torch.uint8))
            for name, tensor in wanted.items()
        )
