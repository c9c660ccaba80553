# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of tensorhub.integrations.vllm."""

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional

from vllm.distributed import weight_transfer as wt  # type: ignore[import-not-found]

import tensorhub as th

from . import _vllm


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
    #: Higher than that of the training before, whose steps come again with other weights.
    lineage: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


_Trainer: Any = getattr(wt.base, "TrainerWeightTransferEngine", object)


class TrainerEngine(_vllm.Member, _Trainer):  # type: ignore[misc,unused-ignore]
    """On every rank, for all take part in making a tensor whole; rank 0 publishes and sends."""

    init_info_cls = TrainerInfo
    _version = 0

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
        self._form = init_info.dtype, init_info.buffers
        if self.is_sender:
            self._begin()
            try:
                client.init_weight_transfer_engine({"model": init_info.model})
            except Exception as failure:
                if _vllm.BEGUN not in _said(failure):
                    raise
                _end_update(client)
                client.init_weight_transfer_engine({"model": init_info.model})
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
            self.client.start_weight_update()
            try:
                self.client.update_weights({**self._info, "version": self._version})
            except BaseException as failure:
                _end_update(self.client)
                if hasattr(failure, "response"):  # vLLM's client for HTTP leaves out why
                    raise RuntimeError(_said(failure)) from failure
                raise
            self.client.finish_weight_update(str(self._version))

    def shutdown(self) -> None:
        """Takes its version back. Engines that have it offer it still."""
        if self._handle is not None:
            self._publisher.close()
            self._handle.close()
