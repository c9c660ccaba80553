# SPDX-License-Identifier: Apache-2.0
"""veRL's checkpoint engine "tensorhub": trainers publish, each rollout worker pulls for itself.

    actor_rollout_ref.rollout.checkpoint_engine:
      backend: tensorhub
      custom_backend_module: tensorhub.integrations.verl
      engine_kwargs: {tensorhub: {model: my-policy}}

veRL gathers each tensor whole on every trainer rank, one after the other. The first rank of each
host copies them into host memory that the agent maps, and publishes the copy as a version: veRL's
global step. A rollout worker has a copy of its own in host memory, pulls that step into it, from a
trainer or from another rollout, and gives the tensors to veRL, which loads them. The two sides meet
through the agents alone, so there is no group to build, and rollouts may come and go between steps.
"""

import contextlib
import logging
import os
import socket
import time
from typing import Any, AsyncIterator, Dict, Iterator, List, Optional, Tuple

import tensorhub as th

try:
    from verl.checkpoint_engine.base import (  # type: ignore[import-not-found,unused-ignore]
        CheckpointEngine,
        CheckpointEngineRegistry,
    )
except ImportError as failure:
    raise ImportError(
        f"tensorhub.integrations.verl: veRL 0.9 cannot be imported ({failure}); pip install verl"
    ) from failure

BACKEND = "tensorhub"
ENDED = th.Event.AGENT_LOST | th.Event.GROUP_BROKEN | th.Event.EVICTED | th.Event.CONTRACT
log = logging.getLogger("tensorhub")


@CheckpointEngineRegistry.register(BACKEND)
class TensorHubCheckpointEngine(CheckpointEngine):  # type: ignore[misc,unused-ignore]
    """What engine_kwargs.tensorhub may have:

    ``model``: its name for the agents; two trainings that run at once have two. ``dtype``: what
    trainers cast floating point tensors to, such as "BF16"; veRL mostly does so itself. ``agent``:
    the directory of the agent; left out it is found as tensorhub.open does. ``timeout``: seconds
    that each wait may take, 1,800.
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
        self._sends, self._run = False, int(time.time())
        self._handle: Optional[th.aio.Handle] = None
        self._publisher: Optional[th.aio.Publisher] = None
        self._weights: Dict[str, Any] = {}
        #: Of the last update of this worker: seconds by what they were spent on, and bytes.
        self.times: Dict[str, float] = {}

    # ---- what veRL calls around an update, in all workers ----------------------------------------

    def prepare(self) -> Dict[str, Any]:
        """What build_topology is told of each worker."""
        agent = self._agent or os.environ.get("THC_AGENT", "")
        return {"host": (socket.gethostname(), agent), "run": self._run}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: List[Dict[str, Any]]
    ) -> Tuple[Dict[str, List[Any]], Dict[str, List[Any]]]:
        """Who publishes: the first trainer of each host, for all have the same tensors."""
        hosts = [one["host"] for one in metadata[:actor_wg_world_size]]
        sends = [hosts.index(host) == rank for rank, host in enumerate(hosts)]
        run = metadata[0]["run"]
        return (
            {"sends": sends, "run": [run] * actor_wg_world_size},
            {"sends": [False] * rollout_world_size, "run": [run] * rollout_world_size},
        )

    def init_process_group(self, sends: bool, run: int) -> None:
        """There is none: this worker hears whether it publishes, and of which run the steps are.

        A training that begins again has the same steps with other bytes: its run is the lineage.
        """
        self._sends, self._run = sends, run

    def finalize(self) -> None:
        """Handles and memory are kept for the next step; both end with the process."""

    # ---- trainers -----------------------------------------------------------------------------

    async def send_weights(
        self, weights: Iterator[Tuple[str, Any]], global_steps: Optional[int] = None
    ) -> Dict[str, float]:
        """Publishes them as version ``global_steps``; veRL logs what it answers."""
        weights = iter(weights)
        try:
            return await self._publish(weights, _version(global_steps)) if self._sends else {}
        finally:  # to make a tensor is collective, and the other ranks wait in it
            for _ in weights:
                pass

    async def _publish(self, weights: Iterator[Tuple[str, Any]], step: int) -> Dict[str, float]:
        begin = time.monotonic()
        handle = await self._open(self._run)
        if self._publisher is None:
            self._publisher = th.aio.Publisher(handle, dtype=self._dtype)
        await self._publisher.publish(step, weights)
        self.times = {"tensorhub/publish_s": time.monotonic() - begin}
        return self.times

    # ---- rollouts -----------------------------------------------------------------------------

    async def receive_weights(
        self, global_steps: Optional[int] = None
    ) -> AsyncIterator[Tuple[str, Any]]:
        """Waits for version ``global_steps``, pulls it, gives its tensors, in no certain order.

        They lie in host memory, the same at each step, and may be used until the next.
        """
        step, begin = _version(global_steps), time.monotonic()
        result = await self._pull(step)
        there = time.monotonic()
        for name, tensor in self._weights.items():
            yield name, tensor
        done = time.monotonic()
        self.times = {
            "tensorhub/wait_s": there - begin - result.transfer - result.verify,
            "tensorhub/wire_s": result.transfer + result.verify,
            "tensorhub/install_s": done - there,
            "tensorhub/bytes": result.bytes_moved,
            "tensorhub/bytes_reused": result.bytes_reused,
        }
        log.info("%s step %d from %r by %s: %s", self._model, step, result.source,
                 result.transport, self.times)  # fmt: skip

    async def _pull(self, step: int) -> th.Result:
        handle = await self._open(0)
        await handle.wait(lambda versions: (self._run, step) in versions.details)
        if not self._weights:
            self._weights = await handle.allocate(step)
        result = await handle.update(step)
        if handle.held != (self._run, step):
            raise th.NotAvailable(
                f"{handle.label}: version {step} of run {self._run} went before it was pulled"
            )
        return result

    async def _open(self, lineage: int) -> th.aio.Handle:
        """The handle of this worker; another one when that has ended, as with its agent."""
        handle = self._handle
        if handle is not None and handle.events() & ENDED:
            with contextlib.suppress(th.Error):
                await handle.close(abandon=True, timeout=5.0)
            self._handle = self._publisher = None
            self._weights = {}
        if self._handle is None:
            self._handle = await th.aio.open(self._model, lineage=lineage, agent=self._agent)
            self._handle.timeout = self._timeout
        return self._handle


def _version(global_steps: Optional[int]) -> int:
    if global_steps is None:
        raise ValueError(
            "update_weights was called without global_steps, which are the versions of the weights"
        )
    return global_steps
