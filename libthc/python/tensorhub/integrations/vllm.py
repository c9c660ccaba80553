# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer backend and load format "tensorhub". vllm.md says what it does.

vLLM finds it by the entry point ``vllm.general_plugins`` of the package. The model of an engine is
changed when all its workers have the version: where one fails, none has changed.
"""

import contextlib
import functools
import itertools
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, Optional

import tensorhub as th

try:
    from vllm.distributed import weight_transfer as wt  # type: ignore[import-not-found]
    from vllm.model_executor import model_loader  # type: ignore[import-not-found,unused-ignore]
except ImportError as failure:
    raise ImportError(
        f"tensorhub.integrations.vllm: vLLM cannot be imported ({failure}); pip install vllm"
    ) from failure

BACKEND = "tensorhub"
ENDED = th.Event.AGENT_LOST | th.Event.GROUP_BROKEN | th.Event.EVICTED | th.Event.CONTRACT
_numbers = itertools.count(1)


class Member:
    """Who has a handle, as a replica of its own: engines and trainers may share a process."""

    _handle: Any = None

    def _opened(self, kind: str, **options: Any) -> bool:
        """True: there is another one now, for the one before has ended, as with its agent."""
        if self._handle is not None and self._handle.events() & ENDED:
            self._leave()
        if self._handle is not None:
            return False
        replica = f"{kind}-{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        self._handle = th.open(replica=replica, **options)
        return True

    def _leave(self) -> None:
        handle, self._handle = self._handle, None
        with contextlib.suppress(th.Error):
            handle.close(abandon=True, timeout=5.0)


@dataclass
class InitInfo(wt.base.WeightTransferInitInfo):  # type: ignore[misc,unused-ignore]
    model: str  #: what agents call the weights


@dataclass
class UpdateInfo(wt.base.WeightTransferUpdateInfo):  # type: ignore[misc,unused-ignore]
    """All that a worker needs: one that was started again has had no InitInfo."""

    model: str
    lineage: int
    version: int


class Engine(Member, wt.WeightTransferEngine):  # type: ignore[misc,unused-ignore]
    """One in each worker. Its agent is found as tensorhub.open does, as by THC_AGENT."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    supports_draft_weight_update = False
    _weights: Dict[str, Any] = {}

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Raises where no agent is, before there is a version."""
        self._open(init_info.model)

    def start_weight_update(self) -> None:
        """Nothing: the model is taken apart when the weights are here."""

    def receive_weights(self, update_info: UpdateInfo, load_weights: Any = None) -> None:
        """Pulls that version, which is published by now, into the copy of this worker.

        vLLM 0.24 gives load_weights, and does not call finish_weight_update.
        """
        wanted = update_info.lineage, update_info.version
        handle = self._open(update_info.model)
        if not self._weights:
            self._weights = handle.allocate(update_info.version)
        handle.update(update_info.version)
        if handle.held != wanted:
            raise th.NotAvailable(
                f"{handle.label}: version {wanted[1]} of lineage {wanted[0]} is not there, or not "
                "any more; send the weights again"
            )
        if load_weights is not None:
            load_weights(list(self._weights.items()))

    def finish_weight_update(self) -> None:
        """Loads the copy into the model by vLLM's own loader. Every worker has it by now."""
        model_loader.reload.initialize_layerwise_reload(self.model)
        self.model.load_weights(iter(self._weights.items()))
        model_loader.reload.finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Others get no weights from here any more. The next update opens it again."""
        if self._handle is not None:
            self._leave()
        self._weights = {}

    def _open(self, model: str) -> Any:
        if self._handle is not None and self._handle.model != model:
            self._leave()
        if self._opened("vllm", model=model):
            self._weights = {}
        return self._handle

    @staticmethod
    def trainer_send_weights(*_args: Any, **_kwargs: Any) -> None:
        """What trainers of vLLM before 0.28 call: they have no TrainerEngine."""
        raise NotImplementedError("publish by tensorhub.Publisher, and send engines an UpdateInfo")


class Loader(model_loader.BaseModelLoader):  # type: ignore[misc,unused-ignore]
    """The weights of an engine that starts, from whoever has them.

    model_loader_extra_config has what tensorhub.load takes: ``model``, ``version`` ("latest"), ...
    and ``wait``: seconds to wait for a version where there is none, as when all starts at once.
    """

    def download_model(self, model_config: Any) -> None:
        """There are no files."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        extra = dict(self.load_config.model_loader_extra_config)
        if wait := extra.pop("wait", 0):
            with th.watch(extra["model"], agent=extra.get("agent")) as w:
                w.wait(lambda versions: versions.latest is not None, timeout=wait)
        model.load_weights(iter(th.load(**extra).items()))


@dataclass
class TrainerInfo(getattr(wt.base, "TrainerInitInfo", object)):  # type: ignore[misc,unused-ignore]
    """``rank`` is the base's: that of this trainer, and 0 sends."""

    backend: ClassVar[str] = BACKEND
    model: str  #: what agents call the weights; trainings that run at once have two names
    dtype: Optional[str] = None  #: floating point tensors are cast to it: "BF16"
    buffers: int = 1  #: copies, as of tensorhub.Publisher
    #: Higher than that of the training before, whose steps come again with other weights.
    lineage: int = field(default_factory=lambda: int(time.time()))


_Trainer: Any = getattr(wt.base, "TrainerWeightTransferEngine", object)


class TrainerEngine(Member, _Trainer):  # type: ignore[misc,unused-ignore]
    """On every rank, for all take part in making a tensor whole; rank 0 publishes and sends."""

    init_info_cls = TrainerInfo
    _version = 0

    @classmethod
    def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> Any:
        if source is None:
            raise ValueError("source: there is none; give a WeightSource, as ModuleSource(model)")
        self = cls(client=client, source=source, is_sender=init_info.is_sender)
        self._info = {"model": init_info.model, "lineage": init_info.lineage}
        self._form = init_info.dtype, init_info.buffers
        if self.is_sender:
            self._begin()
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
            self.client.update_weights({**self._info, "version": self._version})
            self.client.finish_weight_update(str(self._version))

    def shutdown(self) -> None:
        """Takes its version back. Engines that have it offer it still."""
        if self._handle is not None:
            self._publisher.close()
            self._handle.close()


@functools.lru_cache(maxsize=None)
def register() -> None:
    """The entry point: vLLM calls it in each of its processes, more than once."""
    wt.WeightTransferEngineFactory.register_engine(BACKEND, Engine)
    if hasattr(wt, "WeightTransferTrainerFactory"):
        wt.WeightTransferTrainerFactory.register_engine(BACKEND, TrainerEngine)
    model_loader.register_model_loader(BACKEND)(Loader)
