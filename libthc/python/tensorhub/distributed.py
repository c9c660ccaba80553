# SPDX-License-Identifier: Apache-2.0
"""One replica of many ranks: open() as a collective of a torch process group.

It imports no torch: who has a process group has imported it. What the ranks tell each other is JSON
in tensors of bytes, for reading a pickle would run what is in it.
"""

import contextlib
import json
import secrets
import sys
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from . import errors
from ._steps import DEFAULT, Time, run
from .handle import Handle, VersionSpec, flags_of

SENTENCE_MAX = 1000  # characters of a failure that go to the other ranks

Said = Dict[str, Any]


def _send(group: Any, rank: int, said: Any) -> None:
    torch = sys.modules["torch"]
    raw = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
    peer = torch.distributed.get_global_rank(group, rank)
    torch.distributed.send(torch.tensor(len(raw)), peer, group)
    torch.distributed.send(raw, peer, group)


def _receive(group: Any, rank: int) -> Any:
    torch = sys.modules["torch"]
    length, peer = torch.tensor(0), torch.distributed.get_global_rank(group, rank)
    torch.distributed.recv(length, peer, group)
    raw = torch.empty(int(length), dtype=torch.uint8)
    torch.distributed.recv(raw, peer, group)
    return json.loads(bytes(raw.tolist()))


def _gone(failure: Exception) -> Said:
    """What a rank that cannot be heard would say."""
    sentence = (
        "it has ended, has made another call, or has not come within the timeout of the process "
        f"group: start all ranks again ({failure})"
    )
    return {"code": errors.GroupBroken.code, "failure": sentence}


def _exchange(group: Any, said: Said) -> List[Said]:
    """What every rank says, in their order. Rank 0 asks all and tells all.

    Of a rank that has ended only some would hear in a collective, and the others would wait on.
    """
    dist = sys.modules["torch"].distributed
    if dist.get_rank(group) != 0:
        try:
            _send(group, 0, said)
            told: List[Said] = _receive(group, 0)
            return told
        except (RuntimeError, ValueError) as failure:
            return [_gone(failure)]
    answers = [said]
    others = range(1, dist.get_world_size(group))
    for rank in others:
        try:
            answers.append(_receive(group, rank))
        except (RuntimeError, ValueError) as failure:
            answers.append(_gone(failure))
    for rank in others:
        with contextlib.suppress(RuntimeError):  # it has ended, and all are told
            _send(group, rank, answers)
    return answers


def _agree(group: Any, said: Said, mine: Optional[BaseException]) -> List[Said]:
    """What every rank says. Raises this rank's failure, else that of the first that has one."""
    if mine is not None:
        said = {"code": 0, "failure": f"{type(mine).__name__}: {mine}"[:SENTENCE_MAX]}
        if isinstance(mine, errors.Error):
            said = {"code": mine.code, "failure": str(mine)[:SENTENCE_MAX]}
    answers = _exchange(group, said)
    if mine is not None:
        raise mine
    for rank, answer in enumerate(answers):
        if "failure" in answer:
            code = answer["code"] or errors.GroupBroken.code
            raise errors.from_code(code, f"rank {rank}: {answer['failure']}")
    return answers


def _compare(answers: List[Said]) -> None:
    for argument, first in answers[0]["same"].items():
        for rank, answer in enumerate(answers):
            value = answer["same"].get(argument)
            if value != first:
                raise errors.Invalid(
                    f"{argument}: rank {rank} gives {value!r} and rank 0 {first!r}; give the same "
                    "on all ranks"
                )


def _of_torch(group: Any) -> Tuple[Any, int, int]:
    """The group, this process's rank in it, and its size."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        raise errors.State("group: there is none; call torch.distributed.init_process_group first")
    dist = torch.distributed
    group = dist.group.WORLD if group is None else group
    rank = dist.get_rank(group)
    if rank < 0:
        raise errors.Invalid("group: this process is none of its ranks")
    kinds = dist.get_backend_config(group)  # "cpu:gloo,cuda:nccl"
    if "cpu:" not in kinds:
        raise errors.Invalid(
            f"group: its backend ({kinds}) moves no host memory; give that of "
            "torch.distributed.new_group(backend='gloo')"
        )
    return group, rank, dist.get_world_size(group)


def open(
    model: str, *, replica: str, group: Any = None,
    retain: Union[None, str, int, Iterable[VersionSpec]] = None, lineage: int = 0,
    agent: Optional[str] = None, timeout: Time = DEFAULT, spot: bool = False,
    require_rdma: bool = False, staged: bool = False, no_memory_fd: bool = False,
    prefetch: bool = False, offload_seed: bool = False,
) -> Handle:  # fmt: skip
    """Opens this rank's shard of a replica. Every rank of ``group`` calls it; all open, or none.

    ``group`` is a torch ProcessGroup, left out the default one; ``mesh.get_group("shard")`` is that
    of a dimension of a DeviceMesh. shard and num_shards are its rank and size. launch_id is a
    random string of rank 0, so ranks that are started again under the same names replace what is
    left of those before. The other arguments are those of :func:`tensorhub.open`, and the same on
    all ranks but for ``agent``, ``spot`` and ``timeout``, which are the host's and the call's own.
    Where they differ, or a rank fails, all ranks raise, with a sentence that names the rank.

    ``group`` needs a backend for host memory, as gloo. The ranks wait for each other as long as its
    own timeout says. This blocks, and has no form for asyncio: ranks open before their loops run.

    A rank that raises inside ``with`` abandons its handle at once, so that the operation in which
    the others wait, or their next one, raises GroupBroken and not Timeout. Then all leave ``with``
    and call this again. Memory of :func:`tensorhub.empty` is still there to be registered.

    HSDP holds each shard several times. The ranks of one copy open, the others do not::

        if mesh.get_local_rank("replicate") == 0:
            h = th.distributed.open("policy", replica="trainer", group=mesh.get_group("shard"))
    """
    group, rank, ranks = _of_torch(group)
    said: Said = {"launch_id": secrets.token_hex(16)}
    failure: Optional[BaseException] = None
    try:
        flags = flags_of(spot, require_rdma, staged, no_memory_fd, prefetch, offload_seed)
        handle = Handle(
            model, replica, rank, ranks, lineage, retain, said["launch_id"], agent, flags, DEFAULT
        )
        said["same"] = {
            "model": model, "replica": replica, "lineage": lineage,
            "retain": (handle._opts.retain or b"").decode(),
            "require_rdma": require_rdma, "staged": staged, "no_memory_fd": no_memory_fd,
            "prefetch": prefetch, "offload_seed": offload_seed,
        }  # fmt: skip
    except Exception as raised:
        failure = raised
    answers = _agree(group, said, failure)
    _compare(answers)
    handle._opts.launch_id = answers[0]["launch_id"].encode()
    try:
        try:
            run(handle._open(timeout))
        except BaseException as raised:  # also an interrupt: the others wait for this rank's word
            failure = raised
        _agree(group, {}, failure)
    except BaseException:
        handle._abandon()
        raise
    return handle
