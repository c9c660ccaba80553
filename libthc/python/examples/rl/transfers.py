# SPDX-License-Identifier: Apache-2.0
"""How weights get from the trainer's ranks to the rollouts: TensorHub, and two others beside it.

Each has ``send(step)``, which all ranks call, and ``resume()``, the step that a trainer begins at.
"""

import os
import shutil
import socket
import tempfile
from typing import Any, Iterator

import tensorhub as th
import tensorhub.integrations.vllm as tensorhub_vllm
import torch
from broadcast import broadcast, join
from rollouts import Rollouts
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

DTYPES = {"float32": "F32", "bfloat16": "BF16"}  # as the publisher calls them


class TensorHub:
    """By the adapter for vLLM. What a run is called, its rollouts have to be told as well."""

    def __init__(self, args: Any, model: Any, rank: int, rollouts: Rollouts) -> None:
        tensorhub_vllm.register()
        info = tensorhub_vllm.TrainerInfo(args.name, DTYPES[args.dtype], rank=rank)
        self.name, self.model = args.name, model
        self.trainer = WeightTransferTrainerFactory.trainer_init(
            info, client=rollouts, source=ModuleSource(model)
        )

    def resume(self) -> int:
        """Takes the weights that the rollouts have, when there are any; the step that they are of.

        A trainer that was lost goes on where it was, without a checkpoint.
        """
        with th.watch(self.name) as w:
            step = w.latest()
        if step is None:
            return 0
        weights = {name: tensor.float() for name, tensor in th.load(self.name, step).items()}
        set_model_state_dict(self.model, weights, options=StateDictOptions(full_state_dict=True))
        return step

    def send(self, step: int) -> None:
        """Returns when the weights are published: the rollouts take them in their own time."""
        try:
            self.trainer.send_weights(step)
        except ConnectionError as failure:  # agent or server are away: the loop asks again
            print(f"step {step}: {failure}", flush=True)


def whole(model: Any, dtype: str) -> "Iterator[tuple[str, torch.Tensor]]":
    """One tensor after the other, gathered; all ranks take part."""
    for name, parameter in model.named_parameters():
        yield name, parameter.detach().full_tensor().to(getattr(torch, dtype))


class Files:
    """A file of safetensors in a folder that all hosts see, and vLLM's reload_weights."""

    def __init__(self, args: Any, model: Any, rank: int, rollouts: Rollouts) -> None:
        self.model, self.dtype, self.rollouts = model, args.dtype, rollouts
        self.folder = tempfile.TemporaryDirectory(prefix="weights-", dir=args.files)
        self.is_sender = rank == 0

    def resume(self) -> int:
        return 0

    def send(self, step: int) -> None:
        """Returns when the file is written. The one before it goes, for nobody reads it now."""
        weights = dict(whole(self.model, self.dtype))
        if not self.is_sender:
            return
        for before in os.scandir(self.folder.name):
            shutil.rmtree(before)
        path = tempfile.mkdtemp(prefix=f"{step}-", dir=self.folder.name)
        save_file(weights, os.path.join(path, "model.safetensors"))
        load = {"load_format": "safetensors", "model_loader_extra_config": {}}
        rpc = self.rollouts.call
        rpc("collective_rpc", begins=True, method="update_config", args=[{"load_config": load}])
        rpc("collective_rpc", method="reload_weights", kwargs={"weights_path": path})
        rpc("update_weight_version", version=str(step), new_version=str(step))


class Gloo:
    """A broadcast to the rollouts that there are at first (broadcast.py has their end).

    One that is lost ends the group, and with it the trainer: all begin again, with new weights.
    """

    def __init__(self, args: Any, model: Any, rank: int, rollouts: Rollouts) -> None:
        self.model, self.dtype, self.rollouts = model, args.dtype, rollouts
        self.is_sender, self.group = rank == 0, None

    def resume(self) -> int:
        return 0

    def send(self, step: int) -> None:
        """Returns when the last rollout has received the last tensor."""
        if self.is_sender:
            if self.group is None:
                self.group = self._join()
            rows = [(name, tuple(p.shape), self.dtype) for name, p in self.model.named_parameters()]
            rpc = self.rollouts.call
            rpc("collective_rpc", begins=True, method="gloo_receive", args=[rows])
            rpc("update_weight_version", version=str(step), new_version=str(step))
        for _name, tensor in whole(self.model, self.dtype):
            if self.is_sender:
                broadcast(self.group, tensor)

    def _join(self) -> Any:
        self.rollouts.wait()
        listens, ranks = socket.create_server(("127.0.0.1", 0)), 1 + len(self.rollouts.all)
        port = listens.getsockname()[1]
        for i, rollout in enumerate(self.rollouts.all, 1):
            rollout.submit("collective_rpc", method="gloo_join", args=[port, i, ranks])
        return join(port, 0, ranks, listens)


TRANSFERS = {"tensorhub": TensorHub, "files": Files, "gloo": Gloo}
