# SPDX-License-Identifier: Apache-2.0
"""The ranks of torch trainers that publish their parts of a model: ranks.py PLACE.

Reads a line KIND RANKS MODEL [DTYPE] for each trainer: KIND is fsdp (FSDP2), tensor (rows and
columns of one mesh), hsdp (replicas of shards: only the first publishes) or both (FSDP2 over tensor
parallel). With DTYPE a th.Publisher casts to it. torch is imported once, which takes seconds, and
the ranks are forked. Rank 0 says `full PATH SHARDS`: what full_tensor() answers, and how many
shards there are; it reads one line before they end, and `ended N` says how many of them did so
without a failure.
"""

import os
import sys

import tensorhub as th
import torch
import torch._dynamo  # noqa: F401 - FSDP2 would load it in each rank
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


def rank_main(place, kind, rank, ranks, name, *dtype):
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
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
        torch.save(full, place + ".pt")
        print("full", place + ".pt", shards, flush=True)
        sys.stdin.readline()
    dist.barrier()
    if publishes:
        handle.close(abandon=True)
    dist.destroy_process_group()


def fork(function, *args):
    if os.fork() == 0:
        try:
            function(*args)
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)


def main(place):
    while line := sys.stdin.readline():
        kind, ranks, name, *dtype = line.split()
        for rank in range(int(ranks)):
            fork(rank_main, os.path.join(place, name), kind, rank, int(ranks), name, *dtype)
        good = sum(os.wait()[1] == 0 for _ in range(int(ranks)))
        print("ended", good, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
