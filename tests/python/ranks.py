# SPDX-License-Identifier: Apache-2.0
"""The ranks of torch trainers that publish their parts of a model.

The kinds: fsdp (FSDP2), tensor (rows and columns of one mesh), hsdp (replicas of shards: only the
first publishes) and both (FSDP2 over tensor parallel). With a dtype a th.Publisher casts to it.
"""

import tensorhub as th
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def model():
    """Sizes that no number of ranks divides: uneven shards, and empty ones (3 rows, 4 ranks)."""
    torch.manual_seed(1)
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(17, 13), linear(13, 3), linear(3, 13))


def fsdp(ranks):
    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (ranks,)))
    return dict(net.state_dict()), True


def hsdp(ranks):
    net = model()
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("copy", "shard"))
    fully_shard(net, mesh=mesh)
    return dict(net.state_dict()), dist.get_rank() < ranks // 2


def tensor(ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    cuts = {"0.weight": Shard(0), "0.bias": Shard(0), "1.weight": Shard(1), "1.bias": Replicate()}
    return {
        name: distribute_tensor(t.detach(), mesh, [cuts.get(name, Replicate())])
        for name, t in model().state_dict().items()
    }, True


def both(ranks):
    mesh = init_device_mesh("cpu", (2, ranks // 2))
    cuts = {"0.weight": (Shard(0), Shard(1)), "1.weight": (Shard(1), Shard(0))}
    return {
        name: distribute_tensor(t.detach(), mesh, cuts.get(name, (Replicate(), Replicate())))
        for name, t in model().state_dict().items()
    }, True


def publish_shards(rank, ranks, pipe, place, kind, name, dtype):
    """Rank 0 writes what full_tensor() answers to a file and tells how many shards there are; they
    end when it is told to."""
    group = f"file://{place}/group"
    dist.init_process_group("gloo", init_method=group, rank=rank, world_size=ranks)
    state, publishes = globals()[kind](ranks)
    full = {k: t.full_tensor() if isinstance(t, DTensor) else t for k, t in state.items()}
    shards = ranks // 2 if kind == "hsdp" else ranks
    if publishes:
        handle = th.open(name, replica="trainer", shard=rank, num_shards=shards)
        if dtype:
            th.Publisher(handle, state, dtype).publish(1)
        else:
            handle.register(state)
            handle.publish(1)
    dist.barrier()
    if rank == 0:
        torch.save(full, f"{place}/full.pt")
        pipe.send(shards)
        pipe.recv()
    dist.barrier()
    if publishes:
        handle.close(abandon=True)
    dist.destroy_process_group()
