# SPDX-License-Identifier: Apache-2.0
"""Workers of test_verl.py, which ray runs in processes of their own: veRL's, without models.

A trainer does what veRL's ActorRolloutRefWorker does for an update, and has the numbers of step and
run instead of a model; a rollout is veRL's CheckpointEngineWorker and keeps what it is given.
"""

import os
import weakref

import torch
from verl.checkpoint_engine import CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.import_utils import import_external_libs
from verl.workers.rollout import BaseRollout

BACKEND, MODULE = "tensorhub", "tensorhub.integrations.verl"
SHAPES = {"embed": (4096, 1024), "norm": (1024,), "scale": (), "none": (0, 8), "odd": (3, 5, 7)}


def weights(seed, layers=4):
    """A step's tensors, one by one, as veRL gathers them: each is gone when the next is made."""
    made = torch.Generator().manual_seed(seed)
    for i in range(layers):
        for name, shape in SHAPES.items():
            dtype = torch.float32 if name == "norm" else torch.bfloat16
            yield f"layers.{i}.{name}", torch.rand(shape, generator=made).to(dtype)


class Calls:
    """What the manager calls by name."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *args, **kwargs):
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def facts(self):
        """Of the last update."""
        return self.checkpoint_engine.times


class Trainer(Calls, Worker):
    def __init__(self, kwargs, agents, run):
        super().__init__()
        os.environ["THC_AGENT"] = agents[self.rank % len(agents)]
        import_external_libs(MODULE)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            BACKEND, is_master=self.rank == 0, bucket_size=1 << 20, **kwargs
        )
        self.run, self.made, self.alive, self.most_alive = run, 0, weakref.WeakSet(), 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        self.made = self.most_alive = 0
        return await self.checkpoint_engine.send_weights(
            self.tensors(global_steps), global_steps=global_steps
        )

    def tensors(self, step):
        for name, tensor in weights(self.run + (step or 0)):
            self.made += 1
            self.alive.add(tensor)
            self.most_alive = max(self.most_alive, len(self.alive))
            yield name, tensor
            del tensor

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def count(self):
        """How many tensors this rank has made, and how many of them were there at once."""
        return self.made, self.most_alive


class Kept(BaseRollout):
    def __init__(self):
        self.got = {}

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, **_kwargs):
        self.got = {}
        async for name, tensor in weights:
            self.got[name] = tensor.clone()


class Rollout(Calls, CheckpointEngineWorker):
    def __init__(self, rollout_config, agents):
        os.environ["THC_AGENT"] = agents[int(os.environ["RANK"]) % len(agents)]
        super().__init__(rollout_config, None, Kept())

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
