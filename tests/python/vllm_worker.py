# SPDX-License-Identifier: Apache-2.0
"""vLLM's worker over a small module, without an engine or a GPU, for test_vllm_contract.py.

vllm_worker.py STORE RANK RANKS MODEL SECONDS STAYS is one rank of a trainer of FSDP2, and the first
has the worker, too: what one of them fails in ends all of them, or none.
"""

import datetime
import inspect
import json
import os
import sys
import time
import types

import torch
from vllm.config import DeviceConfig, VllmConfig
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed import weight_transfer as wt
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.v1.worker.gpu_worker import Worker


class Net(torch.nn.Module):
    """Shapes that do not divide by two and types of three sizes; every bit is drawn from seed."""

    def __init__(self, seed):
        super().__init__()
        self.embed = torch.nn.Embedding(130, 33, dtype=torch.bfloat16)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(33, 33) for _ in range(2))
        self.head = torch.nn.Linear(33, 7, dtype=torch.float64)
        self.draw(seed)

    def draw(self, seed):
        made = torch.Generator().manual_seed(seed)
        for one in self.parameters():
            one.data.view(torch.uint8).random_(0, 256, generator=made)

    def load_weights(self, pairs):
        return AutoWeightsLoader(self).load_weights(pairs)

    def bits(self):
        return {name: bytes(one.data.view(torch.uint8).numpy()) for name, one in named(self)}


def named(module):
    return list(module.named_parameters())


def worker_of(net, backend="tensorhub"):
    """One as an engine has it: its methods are vLLM's, and find what they look at for weights."""
    torch.accelerator.synchronize = lambda: None  # PyPI's torch looks for a GPU that is not here
    record_metadata_for_reloading(net)  # vLLM does so where it makes a model
    config, device = VllmConfig(device_config=DeviceConfig(device="cpu")), torch.device("cpu")
    config.model_config = types.SimpleNamespace(quantization=None)
    made = Worker.__new__(Worker)
    vars(made).update(
        vllm_config=config, parallel_config=config.parallel_config, model_config=None,
        device=device, model_runner=types.SimpleNamespace(model=net, reset_lora_state=lambda: None),
        _weight_update_active=False, _weight_update_is_draft=False, _is_checkpoint_format=True,
    )  # fmt: skip
    create = wt.WeightTransferEngineFactory.create_engine
    given = dict(
        config=WeightTransferConfig(backend=backend), vllm_config=config, device=device, model=net,
        parallel_config=config.parallel_config,
    )  # fmt: skip
    # 0.24 has (config, parallel_config, model).
    wanted = inspect.signature(create).parameters
    made.weight_transfer_engine = create(**{name: given[name] for name in wanted})
    return made


class Client:
    """What a trainer's engine calls: each worker of an engine, one after the other."""

    def __init__(self, *workers):
        self.workers, self.version = workers, None

    def init_weight_transfer_engine(self, info):
        for worker in self.workers:
            worker.init_weight_transfer_engine(json.loads(json.dumps(info)))

    def start_weight_update(self):
        for worker in self.workers:
            worker.start_weight_update()

    def update_weights(self, info):
        for worker in self.workers:
            worker.update_weights(json.loads(json.dumps(info)))

    def finish_weight_update(self, weight_version=None):
        for worker in self.workers:
            worker.finish_weight_update()
        self.version = weight_version


def source_of(module, change):
    """vLLM's source of a module; change(name, tensor) is what comes of it on this rank."""
    way = "iter_full" if hasattr(wt.ModuleSource, "iter_full") else "__iter__"  # 0.28

    def pairs(self):
        for name, tensor in getattr(wt.ModuleSource, way)(self):
            yield name, change(name, tensor)

    return type("Source", (wt.ModuleSource,), {way: pairs})(module)


def main(store, rank, ranks, model, seconds, stays):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    import tensorhub as th
    from tensorhub.integrations import vllm as adapter

    rank, ranks, wait = int(rank), int(ranks), datetime.timedelta(seconds=int(seconds))
    torch.distributed.init_process_group(
        "gloo", init_method="file://" + store, rank=rank, world_size=ranks
    )
    mesh = DeviceMesh.from_group(torch.distributed.new_group(timeout=wait), "cpu")
    adapter.register()
    net, plain, got = Net(0), Net(0), Net(0)
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    worker = worker_of(got) if rank == 0 else None
    failing = None  # what the third tensor is on this rank: an exception, or a shape

    def change(name, tensor):
        if name != "layers.0.bias" or failing is None:
            return tensor
        if isinstance(failing, Exception):
            raise failing
        return tensor.new_zeros(failing)

    trainer = wt.WeightTransferTrainerFactory.trainer_init(
        adapter.TrainerInfo(model, rank=rank), client=Client(worker), source=source_of(net, change)
    )

    def train(seed):
        plain.draw(seed)
        with torch.no_grad():
            for (_, shard), (_, whole) in zip(named(net), named(plain)):
                whole = distribute_tensor(whole.data, shard.device_mesh, shard.placements)
                shard.to_local().copy_(whole.to_local())

    def holds(seed):
        return worker is None or got.bits() == Net(seed).bits()

    for step in (1, 2):
        train(step)
        trainer.send_weights()
        assert holds(step)
    # The one that sends finds that a tensor does not fit: the other one hears nothing of it.
    train(3)
    failing = (2, 2) if rank == 0 else None
    try:
        trainer.send_weights(3)
        assert rank != 0
    except th.Layout:
        assert rank == 0 and holds(2)
    failing = None
    trainer.send_weights(4)
    assert holds(3)
    # The other one cannot make a tensor whole, and ends; or it stays, and the group's time is over.
    train(5)
    failing = RuntimeError("no memory on this rank") if rank != 0 else None
    begin = time.monotonic()
    try:
        trainer.send_weights(5)
        raise AssertionError("it was sent")
    except RuntimeError as failure:
        print(f"rank {rank}: {time.monotonic() - begin:.1f} s: {failure}", flush=True)
        if rank != 0:
            assert failure is failing
            if stays == "stays":
                time.sleep(2 * wait.total_seconds())  # the test ends it before
            raise
    assert holds(3)
    trainer.shutdown()
    worker.weight_transfer_engine.shutdown()
    print("rank 0 has ended", flush=True)
    os._exit(0)  # torch calls abort() at the end of a process whose group is broken


if __name__ == "__main__":
    main(*sys.argv[1:])
