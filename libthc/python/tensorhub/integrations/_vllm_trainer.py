# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of tensorhub.integrations.vllm."""

import contextlib
import logging
import socket
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, List, Optional

from vllm.distributed import weight_transfer as wt  # type: ignore[import-not-found]

import tensorhub as th

from . import _vllm

log = logging.getLogger("tensorhub")


def _said(failure: BaseException) -> str:
    return str(getattr(getattr(failure, "response", failure), "text", failure))


def _end_update(client: Any) -> None:
    """On the workers where vLLM has not ended it. The last one has, and says so."""
    with contextlib.suppress(Exception):
        client.finish_weight_update()


@dataclass
class TrainerInfo(getattr(wt.base, "TrainerInitInfo", object)):  # type: ignore[misc,unused-ignore]
    """``rank`` is the base's: that of this trainer, and 0 sends."""

    backend: ClassVar[str] = _vllm.BACKEND
    model: str  #: what agents call the weights; trainings that run at once have two names
    dtype: Optional[str] = None  #: floating point tensors are cast to it: "BF16"
    buffers: int = 1  #: copies, as of tensorhub.Publisher
    #: Seconds that a step waits at most for the hosts of engines to fetch it, while these go on.
    prefetch: float = 0.0
    #: Higher than that of the training before, whose steps come again with other weights.
    lineage: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


_Trainer: Any = getattr(wt.base, "TrainerWeightTransferEngine", object)


class TrainerEngine(_vllm.Member, _Trainer):  # type: ignore[misc,unused-ignore]
    """On every rank, for all take part in making a tensor whole; rank 0 publishes and sends."""

    init_info_cls = TrainerInfo
    _version = 0
    _wait = 0.0  # seconds, for the hosts of engines

    @classmethod
    def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> Any:
        if source is None:
            raise ValueError("source: there is none; give a WeightSource, as ModuleSource(model)")
        if hasattr(source, "owned_names"):  # vLLM 0.33
            lacks = {meta.name for meta in source.metadata} - set(source.owned_names(0))
            if lacks:
                raise ValueError(f"source: rank 0 has to own all it sends, and not {min(lacks)}")
        self = cls(client=client, source=source, is_sender=init_info.is_sender)
        self._info = {"model": init_info.model, "lineage": init_info.lineage}
        self._form, self._wait = (init_info.dtype, init_info.buffers), init_info.prefetch
        # Engines of an older release do not know the word.
        self._told = {"prefetch": True} if self._wait else {}
        if self.is_sender:
            self._begin()
            try:
                client.init_weight_transfer_engine({"model": init_info.model, **self._told})
            except Exception as failure:
                if _vllm.BEGUN not in _said(failure):
                    raise
                _end_update(client)
                client.init_weight_transfer_engine({"model": init_info.model, **self._told})
        return self

    def _begin(self) -> None:
        if self._opened("trainer", **self._info):
            self._publisher = th.Publisher(self._handle, None, *self._form)

    def send_weights(self, version: Optional[int] = None) -> None:
        """Publishes as ``version``, the step; left out it is one more than the one before."""
        self._version = self._version + 1 if version is None else version
        source = self.source
        pairs = iter(source.iter_full() if hasattr(source, "iter_full") else source)  # vLLM 0.33
        try:
            if self.is_sender:
                self._begin()
                self._publisher.publish(self._version, pairs)
        finally:  # the other ranks wait in what this one leaves out
            for _ in pairs:
                pass
        if self.is_sender:
            if self._wait:
                self._wait_for_hosts()
            self.client.start_weight_update()
            try:
                info = {**self._info, **self._told, "version": self._version}
                self.client.update_weights(info)
            except BaseException as failure:
                _end_update(self.client)
                if hasattr(failure, "response"):  # vLLM's client for HTTP leaves out why
                    raise RuntimeError(_said(failure)) from failure
                raise
            self.client.finish_weight_update(str(self._version))

    def _wait_for_hosts(self) -> None:
        """Until those that fetch this step for engines have it.

        Engines of this host read it where it is, and those whose first step it is ask for it; one
        whose host is not done pulls what is missing. So who is overlooked is only slower.
        """
        step, here = (self._info["lineage"], self._version), f"vllm-{socket.gethostname()}-"
        copies: List[bool] = []

        def settled(listing: th.Listing) -> bool:
            nonlocal copies
            of = {key: one.replicas for key, one in listing.details.items()}
            copies = [copy.ready for copy in of.pop(step, ()) if copy.offload]
            names = [copy.name for one in of.values() for copy in one]
            others = any(n.startswith("vllm-") and not n.startswith(here) for n in names)
            return all(copies) if copies else not others

        try:
            self._handle.wait(settled, timeout=self._wait)
        except th.NoServer:  # the update says so
            pass
        except th.Timeout:
            if not copies:
                self._wait = 0.0
                log.warning(
                    "vllm: no host of an engine fetches version %d, and no step waits for that any "
                    "more; give the agents of engines memory for the model (thagentd "
                    "--offload-limit)", self._version,
                )  # fmt: skip

    def shutdown(self) -> None:
        """Takes its version back. Engines that have it offer it still."""
        if self._handle is not None:
            self._publisher.close()
            self._handle.close()
