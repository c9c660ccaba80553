# SPDX-License-Identifier: Apache-2.0
"""Ranks of one replica that open together, each of which runs scenarios and tells what it saw."""

import contextlib
import os
import signal
import tempfile
import time

import tensorhub as th
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

LATE_S = 2.0  # of the rank that comes late


class Mine(Exception):
    """What a rank raises inside with."""


def opened(model, **options):
    return th.distributed.open(model, replica="trainer", **options)


def failed(call):
    """What it raises, as the others tell it: class and sentence; and how long that took."""
    began = time.monotonic()
    try:
        with call():
            pass
    except th.Error as error:
        return [type(error).__name__, str(error), time.monotonic() - began]
    return ["", "", time.monotonic() - began]


def late(rank, model, weights):
    """Rank 3 comes when the others have waited."""
    if rank == 3:
        time.sleep(LATE_S)
    began = time.monotonic()
    with opened(model) as handle:
        handle.register(weights)
        handle.publish(1)
        took = time.monotonic() - began
        handle.unpublish()
        return [handle.shard, handle.num_shards, took]


def differ(rank, model, _weights):
    return failed(lambda: opened(model, retain="latest-1" if rank == 5 else "latest"))


def invalid(rank, model, _weights):
    return failed(lambda: opened(model, lineage=-1 if rank == 2 else 0))


def no_agent(rank, model, _weights):
    place = {"agent": tempfile.gettempdir(), "timeout": 0.2} if rank == 4 else {}
    return failed(lambda: opened(model, **place))


def meshes(_rank, model, weights):
    """Two copies of four shards, each a replica of its own: a group's ranks are not the world's."""
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    name, group = f"copy {mesh.get_local_rank('replicate')}", mesh.get_group("shard")
    with th.distributed.open(model, replica=name, group=group) as handle:
        handle.register(weights)
        handle.publish(2)
        return [handle.label, handle.num_shards]


def raises(rank, model, weights):
    """Rank 6 raises inside with while the others publish. Then all open again.

    Who reads the same memory then gets what was written before.
    """
    weights["w"].fill_(rank)

    def work():
        with opened(model) as handle:
            handle.register(weights)
            if rank == 6:
                raise Mine
            handle.publish(2)

    began = time.monotonic()
    try:
        work()
        seen = ""
    except (Mine, th.Error) as error:
        seen = f"{type(error).__name__}: {error}"
    took = time.monotonic() - began
    reads = {"replica": "reader", "shard": rank, "num_shards": dist.get_world_size()}
    with opened(model) as handle, th.open(model, **reads) as reader:
        handle.register(weights)
        handle.publish(3)
        copy = reader.allocate(3)
        reader.replicate(3)
        same = bool((copy["w"] == rank).all())
        reader.unpublish()
        handle.unpublish()
    return [seen, took, same]


def killed(rank, model, weights):
    """Rank 7 is killed while the others publish; they are left over, with their handles open."""
    handle = opened(model)
    handle.register(weights)
    if rank == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        handle.publish(4)
        seen = ""
    except th.Error as error:
        seen = f"{type(error).__name__}: {error}"
    return [seen, time.monotonic() - began, failed(lambda: opened(model))]


def again(_rank, model, weights):
    """Under the same names, beside what is left over of those before."""
    with opened(model) as handle:
        handle.register(weights)
        handle.publish(5)
        handle.unpublish()
    return True


def leader(rank, model, _weights):
    """Rank 0, by which the others agree, is killed before it opens."""
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return failed(lambda: opened(model))


def run_scenarios(rank, ranks, pipe, place, model, scenarios):
    """They end when the other end of the pipe is closed."""
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
    weights = {"w": th.empty((1024,), torch.int32)}
    for scenario in scenarios:
        pipe.send(globals()[scenario](rank, model, weights))
    with contextlib.suppress(EOFError):
        pipe.recv()
    th.close_all()
