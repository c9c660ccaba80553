# SPDX-License-Identifier: Apache-2.0
"""veRL's checkpoint engine "tensorhub": trainers publish, each rollout worker pulls for itself.

    actor_rollout_ref.rollout.checkpoint_engine:
      backend: tensorhub
      custom_backend_module: tensorhub.integrations.verl
      engine_kwargs: {tensorhub: {model: my-policy}}

veRL gathers each tensor whole on every trainer rank, one after the other. The first rank of each
host copies them into host memory that the agent maps, and publishes the copy as a version: veRL's
global step. A rollout worker pulls that step into a copy of its own, from a trainer or from another
rollout, and gives veRL the tensors. No group is built, so rollouts may come and go between steps.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from typing import Any, AsyncIterator, Dict, Iterator, List, Optional, Tuple

import tensorhub as th

try:
    from verl.checkpoint_engine import base  # type: ignore[import-not-found,unused-ignore]
except ImportError as failure:
    raise ImportError(
        f"tensorhub.integrations.verl: veRL 0.9 cannot be imported ({failure}); pip install verl"
    ) from failure

NEAR_S = 5.0  # a trainer of the same host is waited for, when another has published already
SERVER_S = 60.0  # so long a server may be away: who starts it again needs seconds
log = logging.getLogger("tensorhub")


@base.CheckpointEngineRegistry.register("tensorhub")
class TensorHubCheckpointEngine(base.CheckpointEngine):  # type: ignore[misc,unused-ignore]
    """What engine_kwargs.tensorhub may have:

    ``model``: its name; trainings that run at once have one each. ``dtype``: what trainers cast
    floating point tensors to, such as "BF16"; veRL mostly does so itself. ``agent``: the agent's
    directory; left out it is found as by tensorhub.open. ``timeout``: seconds of each wait.
    """

    def __init__(
        self, bucket_size: int, is_master: bool = False, *, model: str = "",
        dtype: Optional[str] = None, agent: Optional[str] = None, timeout: float = 1800.0,
    ) -> None:  # fmt: skip
        if not model:
            raise ValueError(
                "checkpoint_engine.engine_kwargs.tensorhub.model is not there: give the weights a "
                "name, such as the experiment's"
            )
        self._model, self._dtype, self._agent, self._timeout = model, dtype, agent, timeout
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self._sender: Optional[str] = None
        self._run, self._done = time.time_ns() // 1_000_000, 0  # of the last update that succeeded
        self._task: "Optional[asyncio.Task[Any]]" = None
        self._handle: Optional[th.aio.Handle] = None
        self._publisher: Optional[th.aio.Publisher] = None
        self._weights: Dict[str, Any] = {}
        #: Of the last update of this worker: seconds by what they were spent on, and bytes.
        self.times: Dict[str, float] = {}

    def prepare(self) -> Dict[str, Any]:
        """What build_topology is told of each worker."""
        host = socket.gethostname(), self._agent or os.environ.get("THC_AGENT")
        return {"host": host, "name": self._name, "run": self._run}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: List[Dict[str, Any]]
    ) -> Tuple[Dict[str, List[Any]], Dict[str, List[Any]]]:
        """Who publishes: the first trainer of each host, for all have the same tensors."""
        n, run = actor_wg_world_size, metadata[0]["run"]
        senders = {one["host"]: one["name"] for one in reversed(metadata[:n])}
        of_host = [senders.get(one["host"]) for one in metadata]
        return (
            {"sender": of_host[:n], "run": [run] * n},
            {"sender": of_host[n:], "run": [run] * rollout_world_size},
        )

    def init_process_group(self, sender: Optional[str], run: int) -> None:
        """There is none: a worker hears who publishes on its host, and of which run the steps are.

        A training that begins again has the same steps with other bytes: its run is the lineage.
        """
        self._sender, self._run = sender, run

    def finalize(self) -> None:
        """Handles and memory are kept for the next step; both end with the process."""

    async def send_weights(
        self, weights: Iterator[Tuple[str, Any]], global_steps: Optional[int] = None
    ) -> Dict[str, float]:
        """Publishes them as version ``global_steps``; veRL logs what it answers."""
        weights, began = iter(weights), time.monotonic()
        try:
            step = await self._begin(global_steps)
            if self._sender != self._name:
                return {}
            handle = await self._open(self._run)
            self._done = self._run  # a publisher goes on after a failure
            if self._publisher is None:
                self._publisher = th.aio.Publisher(handle, dtype=self._dtype)
            await self._publisher.publish(step, weights)
        finally:  # to make a tensor is collective, and the other ranks wait in it
            for _ in weights:
                pass
        self.times = {"tensorhub/publish_s": time.monotonic() - began}
        return self.times

    async def receive_weights(
        self, global_steps: Optional[int] = None
    ) -> AsyncIterator[Tuple[str, Any]]:
        """Pulls version ``global_steps``; its tensors lie in host memory, till the next step."""
        began = time.monotonic()
        step = await self._begin(global_steps)
        result = await self._pull_or_wait(step)
        there = time.monotonic()
        for name, tensor in self._weights.items():
            yield name, tensor
        done = time.monotonic()
        self.times = {
            "tensorhub/wait_s": there - began - result.transfer - result.verify,
            "tensorhub/wire_s": result.transfer + result.verify,
            "tensorhub/install_s": done - there,
            "tensorhub/bytes": result.bytes_moved,
            "tensorhub/bytes_reused": result.bytes_reused,
        }
        log.info("%s step %d from %r by %s: %s", self._model, step, result.source,
                 result.transport, self.times)  # fmt: skip

    async def _pull_or_wait(self, step: int) -> th.Result:
        away = 0.0
        while True:
            try:
                return await self._pull(step)
            except th.NoServer:
                away = away or time.monotonic()
                if time.monotonic() - away > min(self._timeout, SERVER_S):
                    raise
                self._done = self._run  # nothing has happened to the handle
                await asyncio.sleep(1.0)

    async def _pull(self, step: int) -> th.Result:
        handle = await self._open(0)
        await handle.wait(lambda versions: self._has(versions.details, step))
        if self._sender is not None:  # else all that is on this host comes from another one
            with contextlib.suppress(th.Timeout):
                await handle.wait(lambda v: self._sender in v.get(step, ()), timeout=NEAR_S)
        if not self._weights:
            self._weights = await handle.allocate(step)
        result = await handle.update(step)
        if handle.held != (self._run, step):
            raise th.NotAvailable(
                f"{handle.label}: version {step} of run {self._run} went before it was pulled, as "
                "when its trainer dies; call the next update"
            )
        self._done = self._run
        return result

    def _has(self, versions: Any, step: int) -> bool:
        """A version is pulled by its number, which is that of the highest lineage."""
        newest = max((lineage for lineage, _ in versions), default=0)
        if newest > self._run:
            raise th.VersionConflict(
                f"{self._model}: run {newest} is there, which began after this one, {self._run}; "
                "give each training an engine_kwargs.tensorhub.model of its own"
            )
        return (self._run, step) in versions

    async def _begin(self, global_steps: Optional[int]) -> int:
        """Ends the update before: when a worker fails veRL gives it up, and others are in it."""
        last, self._task = self._task, asyncio.current_task()
        if last is not None and last is not self._task and not last.done():
            last.cancel()
            await asyncio.wait([last])
        if global_steps is None:
            raise ValueError("update_weights was called without global_steps: what is published?")
        return global_steps

    async def _open(self, lineage: int) -> th.aio.Handle:
        """The handle of this worker; another one after a failure, or when its agent has ended."""
        handle = self._handle
        if handle is not None and (self._done != self._run or handle.events()):
            with contextlib.suppress(th.Error):
                await handle.close(abandon=True, timeout=5.0)
            self._handle = self._publisher = None
            self._weights = {}
        if self._handle is None:
            self._handle = await th.aio.open(
                self._model, replica=self._name, lineage=lineage, agent=self._agent
            )
            self._handle.timeout = self._timeout
        self._done = 0
        return self._handle
