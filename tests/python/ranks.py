# SPDX-License-Identifier: Apache-2.0
"""A rank of a torch trainer that publishes its part of a model: by torchrun

    ranks.py KIND MODEL [DTYPE]

KIND: fsdp (FSDP2), tensor (rows and columns of one mesh), hsdp (replicas of shards: only the first
publishes), both (FSDP2 over tensor parallel). With DTYPE a th.Publisher casts to it. Rank 0 says
`full PATH SHARDS`: what full_tensor() answers, and how many shards there are. It reads one line
before it ends.
"""

import os
import sys
import tempfile

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


def main():
    kind, name, *dtype = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    state, publishes = globals()[kind](ranks)
    full = {k: t.full_tensor() if isinstance(t, DTensor) else t for k, t in state.items()}
    shards = ranks // 2 if kind == "hsdp" else ranks
    if publishes:
        handle = th.open(name, replica="trainer", shard=rank, num_shards=shards)
        if dtype:
            th.Publisher(handle, state, dtype[0]).publish(1)
        else:
            handle.register(state)
            handle.publish(1)
    dist.barrier()
    if rank == 0:
        path = os.path.join(tempfile.gettempdir(), f"th-full-{os.getpid()}.pt")
        torch.save(full, path)
        print("full", path, shards, flush=True)
        sys.stdin.readline()
        os.unlink(path)
    dist.barrier()
    if publishes:
        handle.close(abandon=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
