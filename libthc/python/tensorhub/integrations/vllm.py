# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer backend and load format "tensorhub". vllm.md says what it does.

vLLM finds it by the entry point ``vllm.general_plugins`` of the package. The model of an engine is
changed when all its workers have the version and would take it: where one fails, none has changed.
"""

import functools
import logging
import time
from dataclasses import dataclass
from typing import Any, Dict, Optional

import tensorhub as th

try:
    from vllm.distributed import weight_transfer as wt  # type: ignore[import-not-found]
    from vllm.model_executor import model_loader  # type: ignore[import-not-found,unused-ignore]
except ImportError as failure:
    raise ImportError(
        f"tensorhub.integrations.vllm: vLLM cannot be imported ({failure}); pip install vllm"
    ) from failure
from . import _vllm, _vllm_trainer

__all__ = "Engine", "InitInfo", "Loader", "TrainerEngine", "TrainerInfo", "UpdateInfo", "register"
TrainerInfo, TrainerEngine = _vllm_trainer.TrainerInfo, _vllm_trainer.TrainerEngine

log = logging.getLogger("tensorhub")
PULL_S = 900.0  # the other workers wait for a pull, by a group of torch that waits for 1,800 s


@dataclass
class InitInfo(wt.base.WeightTransferInitInfo):  # type: ignore[misc,unused-ignore]
    model: str  #: what agents call the weights
    prefetch: bool = False  #: hosts fetch versions before an update asks for them


@dataclass
class UpdateInfo(wt.base.WeightTransferUpdateInfo):  # type: ignore[misc,unused-ignore]
    """All that a worker needs: one that was started again has had no InitInfo."""

    model: str
    lineage: int
    version: int
    prefetch: bool = False


class Engine(_vllm.Member, wt.WeightTransferEngine):  # type: ignore[misc,unused-ignore]
    """One in each worker. Its agent is found as tensorhub.open does, as by THC_AGENT."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    supports_draft_weight_update = False
    _weights: Dict[str, Any] = {}
    _prefetch = False  # how the handle was opened
    _begun = False
    _received: Optional[th.Result] = None  # of all workers, until it is loaded

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Raises where no agent is, before there is a version."""

        def part() -> None:
            if self._begun:
                raise RuntimeError(f"{_vllm.BEGUN}; end it by finish_weight_update")
            self._open(init_info)

        _vllm.everywhere(part, self.parallel_config)

    def start_weight_update(self) -> None:
        """The model is taken apart when the weights are here."""
        self._begun = True

    def receive_weights(self, update_info: UpdateInfo, load_weights: Any = None) -> None:
        """Pulls that version, which is published by now, into the copy of this worker.

        vLLM 0.24 gives load_weights, and does not call finish_weight_update.
        """
        self._begun = False  # as vLLM has it when this raises
        received = _vllm.everywhere(
            lambda: self._pull(update_info, check=load_weights is None), self.parallel_config
        )
        if load_weights is None:
            self._begun, self._received = True, received
        elif received is not None:
            load_weights(list(self._weights.items()))

    def finish_weight_update(self) -> None:
        """Loads the copy into the model by vLLM's own loader, when every worker has it.

        After one that has failed it is called as well: vLLM ends an update only where it is raised.
        """
        received, self._begun, self._received = self._received, False, None
        if received is not None:
            begin = time.monotonic()
            _vllm.load(self.model, self.model_config, self._weights)
            log.info(
                "vllm: version %d: wait_s %.3f, wire_s %.3f, install_s %.3f; prefetched %d of %d",
                received.version, received.wait, received.transfer + received.verify,
                time.monotonic() - begin, received.bytes_prefetched, received.bytes_moved,
            )  # fmt: skip

    def _pull(self, wanted: UpdateInfo, check: bool) -> th.Result:
        handle: th.Handle = self._open(wanted)
        is_new = not self._weights
        try:
            later = max((lineage for lineage, _ in handle.list().all), default=0)
            if later > wanted.lineage:
                raise th.State(
                    f"{handle.label}: a later training, of lineage {later}, publishes under "
                    f"this name; end that of lineage {wanted.lineage}, or give it another name"
                )
            if is_new:
                self._weights = handle.allocate(wanted.version)
            result = handle.update(wanted.version, timeout=PULL_S)
            if handle.held != (wanted.lineage, wanted.version):
                raise th.NotAvailable(
                    f"{handle.label}: version {wanted.version} of lineage {wanted.lineage} is not "
                    "there, or not any more; send the weights again"
                )
            if is_new and check:
                _vllm.check(self.model, self.model_config, self._weights)
            return result
        except Exception as failure:
            other = not is_new and isinstance(failure, th.Layout)  # a training with other tensors
            if is_new or other or handle.held is None:
                self.shutdown()
            if not other:
                raise
            return self._pull(wanted, check)

    def shutdown(self) -> None:
        """Others get no weights from here any more. The next update opens it again."""
        if self._handle is not None:
            self._leave()
        self._weights = {}

    def _open(self, info: Any) -> Any:
        now = self._handle and (self._handle.model, self._prefetch)
        if now and now != (info.model, info.prefetch):
            self._leave()
        if self._opened("vllm", model=info.model, prefetch=info.prefetch):
            self._weights, self._prefetch = {}, info.prefetch
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


@functools.lru_cache(maxsize=None)
def register() -> None:
    """The entry point: vLLM calls it in each of its processes, more than once."""
    wt.WeightTransferEngineFactory.register_engine(_vllm.BACKEND, Engine)
    if hasattr(wt, "WeightTransferTrainerFactory"):
        wt.WeightTransferTrainerFactory.register_engine(_vllm.BACKEND, TrainerEngine)
    model_loader.register_model_loader(_vllm.BACKEND)(Loader)
