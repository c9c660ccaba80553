# SPDX-License-Identifier: Apache-2.0
"""A version as a dict of tensors in one call, which leaves nothing open."""

import itertools
import os
import socket
from contextlib import ExitStack
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from . import _abi, errors
from ._steps import DEFAULT, Op, Steps, Time, log, remaining, run, seconds
from .handle import VERB_S, Base, Handle, VersionSpec
from .progress import Report, Told, report_of
from .results import Manifest
from .tensors import Piece, pieces_after
from .watching import _Observer

_numbers = itertools.count(1)
Left = Callable[[], Optional[float]]  # seconds until the deadline; None: there is none


def _check_join(manifests: List[Manifest]) -> None:
    """Every tensor is whole and in one shard, so that a dict of names can say all of it."""
    where: Dict[str, int] = {}
    for manifest in manifests:
        for name, row in manifest.tensors.items():
            first = where.setdefault(name, manifest.shard)
            if first == manifest.shard and row.shape == row.global_shape:
                continue
            what = (
                f"lies in shards {first} and {manifest.shard} of version {manifest.version}"
                if first != manifest.shard
                else f"of version {manifest.version} is a part of a tensor of {row.global_shape}"
            )
            raise errors.Layout(
                f"tensors: {name!r} {what}, and load joins none; open each shard by "
                f"th.open(model, shard=i, num_shards={manifest.num_shards}), allocate and "
                "replicate it, and join them where manifest(version, i).tensors[name].offset says",
            )


def _group(
    handles: List[Base], pieces: List[Dict[str, Piece]], version: int, report: Optional[Report],
    left: Left,
) -> Steps[bool]:  # fmt: skip
    """Members of one group, opened and filled by one thread. False: the version is gone."""
    for handle, tensors in zip(handles, pieces):
        yield from handle._open(left())
        yield from handle._register(tensors, left())
    ops: List[Op] = []

    def told(_done: int, _total: int) -> None:
        nonlocal report
        once, report = report, None  # who raises is not told again by another shard
        if once is not None:
            reached = [op.progress for op in ops]
            once(sum(done for done, _ in reached), sum(total for _, total in reached))
            report = once

    def stop() -> None:
        for op in ops:
            op.cancel()

    with ExitStack() as ends:
        for handle in handles:
            _, function, text, ms = handle._update(version, left())
            op = Op(handle, "load", report=None if report is None else Report(told, None))
            ops.append(ends.enter_context(op))
            op._submit(function, text, ms)
        # Before any is waited for, whatever has happened: they end together, or not at all.
        ends.callback(stop)
        for op in ops:
            yield op
        return all(op._outcome().version == version for op in ops)


def load_steps(
    kind: Type[Base], observer: Type[Base], model: str, version: VersionSpec, agent: Optional[str],
    timeout: Time, progress: Told, tqdm: bool,
) -> Steps[Dict[str, Any]]:  # fmt: skip
    left = remaining(seconds(timeout, VERB_S))
    report = report_of(f"load {model}", progress, tqdm)
    with ExitStack() as leave:
        if report is not None:
            leave.callback(report.close)

        def member(name: str, shard: int, num_shards: int) -> Base:
            # A spot member's copy never counts for retention: these are nobody's backup.
            handle = kind(model, name, shard, num_shards, 0, None, None, agent, _abi.SPOT, DEFAULT)
            leave.callback(handle._abandon)
            return handle

        looks = observer(model, None, 0, 1, 0, None, None, agent, 0, DEFAULT)
        leave.callback(looks._abandon)
        yield from looks._open(left())
        tried: Optional[Tuple[int, int]] = None
        while True:
            head = yield from looks._manifest(version, 0, left())
            if (head.lineage, head.version) == tried:
                raise errors.NotAvailable(
                    f"version: {head.version} of {model} went while it was being loaded"
                )
            tried = head.lineage, head.version
            manifests = [head]
            for shard in range(1, head.num_shards):
                manifests.append((yield from looks._manifest(head.version, shard, left())))
            _check_join(manifests)
            pieces = [pieces_after(manifest) for manifest in manifests]
            name = _name()
            group = [member(name, shard, head.num_shards) for shard in range(head.num_shards)]
            there = yield from _group(group, pieces, head.version, report, left)
            for handle in group:
                try:
                    yield from handle._close(False, left())
                except errors.Error as failure:  # it is abandoned: the bytes are here all the same
                    log.warning("load of %s: its copy was left at once: %s", model, failure)
            if there:
                return {name: piece.keep for one in pieces for name, piece in one.items()}


def _name() -> str:
    return f"load-{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"


def load(
    model: str, version: VersionSpec = "latest", *, agent: Optional[str] = None,
    timeout: Time = DEFAULT, progress: Told = None, tqdm: bool = False,
) -> Dict[str, Any]:  # fmt: skip
    """All weights of a version: a dict of name and tensor, as safetensors' load_file gives.

    Torch tensors where torch is imported, else memoryviews, in host memory that agents map. They
    are the caller's alone: the copy is not offered to others any more, and nothing is open.

    It waits for no version: NotAvailable. Of a version of several shards the tensors of all are in
    the dict; Layout names a tensor that lies in more than one, which a dict cannot say. ``agent``
    is the directory of the agent; ``timeout`` that of the whole, 1,800 s; ``progress`` and ``tqdm``
    are those of :meth:`Handle.replicate`.
    """
    return run(load_steps(Handle, _Observer, model, version, agent, timeout, progress, tqdm))
