# SPDX-License-Identifier: Apache-2.0
"""What both ends of the adapter for vLLM have, and what vLLM's workers lack: to fail together, and
to look at weights before a model is changed."""

import contextlib
import itertools
import os
import socket
from collections import Counter
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, TypeVar

import tensorhub as th
from vllm.distributed import parallel_state  # type: ignore[import-not-found]
from vllm.model_executor import model_loader  # type: ignore[import-not-found,unused-ignore]

BACKEND = "tensorhub"
BEGUN = "an update of another trainer has begun and has not ended"
ENDED = th.Event.AGENT_LOST | th.Event.GROUP_BROKEN | th.Event.EVICTED | th.Event.CONTRACT
SAID_MAX = 1000  # bytes that a worker tells the others
FAR = 1 << 60  # elements, more than a layer has
T = TypeVar("T")
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


def everywhere(part: Callable[[], T], config: Any) -> Optional[T]:
    """What part returns, when it succeeds on all workers of the engine. Else the last one raises.

    The others return None: vLLM (0.32) reads the answers of workers in turn, stops at a failure,
    and takes those behind it for answers to its next call. So all call this, at the same point.
    ``config`` is vLLM's ParallelConfig.
    """
    if config.world_size == 1:
        return part()
    import torch

    result, said = None, ""
    try:
        result = part()
    except Exception as failure:
        said = f"worker {config.rank} of {config.world_size}: {type(failure).__name__}: {failure}"
    # Not the group of all, in which there are the engines of data parallelism, too.
    for group in parallel_state.get_tp_group(), parallel_state.get_pp_group():
        line = bytearray(said.encode()[:SAID_MAX].ljust(SAID_MAX))
        row = torch.frombuffer(line, dtype=torch.uint8)
        rows = [torch.empty_like(row) for _ in range(group.world_size)]
        torch.distributed.all_gather(rows, row, group=group.cpu_group)
        texts = (bytes(row.tolist()).decode(errors="replace").strip() for row in rows)
        said = "; ".join(text for text in texts if text)
    if said and config.rank == config.world_size - 1:
        raise RuntimeError(said)
    return None if said else result


def load(model: Any, config: Any, weights: Dict[str, Any]) -> None:
    """By vLLM's own loader, into a model that was prepared for its kernels before."""
    model_loader.reload.initialize_layerwise_reload(model)
    model.load_weights(iter(weights.items()))
    model_loader.reload.finalize_layerwise_reload(model, config)


def check(model: Any, config: Any, weights: Dict[str, Any]) -> None:
    """Raises where load() would, or where a layer would not be filled. The model is as it was.

    vLLM's loaders are shown the tensors, and collect them for elements that never come.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Untouched(TorchDispatchMode):  # type: ignore[misc,no-untyped-call,unused-ignore]
        """Biases are not taken out of the model, as other parameters are."""

        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._schema.is_mutable and not args[0].is_meta:
                return args[0]
            return func(*args, **(kwargs or {}))

    steps = model_loader.reload.layerwise
    parameters = [name.rpartition(".") for name, _ in model.named_parameters()]  # tied ones once
    layers = dict(model.named_modules())
    kind, last = type(model).__name__, ""

    def shown() -> Iterator[Tuple[str, Any]]:
        nonlocal last
        for last, tensor in weights.items():
            yield last, tensor

    infos = {name: steps.get_layerwise_info(layer) for name, layer in layers.items()}
    steps.initialize_layerwise_reload(model)
    try:
        for info in infos.values():
            info.load_numel = -FAR
        with Untouched():  # type: ignore[no-untyped-call,unused-ignore]
            model.load_weights(shown())
        wanted: Counter[str] = Counter()
        for name, _, leaf in parameters:
            wanted[name] += getattr(layers[name], leaf).numel()
        come = {name: infos[name].load_numel + FAR for name in wanted}
        short = [
            f"{name} gets {come[name]} of {size} elements"
            for name, size in wanted.items()
            # A vocabulary may be padded.
            if come[name] < (1 if hasattr(layers[name], "num_embeddings_padded") else size)
        ]
    except Exception as failure:
        raise ValueError(
            f"a {kind} does not take {last!r} {tuple(weights[last].shape)}; send it weights of its "
            f"own model ({type(failure).__name__}: {failure})"
        ) from failure
    finally:
        for info in infos.values():
            info.loaded_weights.clear()
            info.load_numel = info.load_numel_total = 0  # nothing has come, and nothing was to come
        steps.finalize_layerwise_reload(model, config)
    if short and config.quantization is None:
        raise ValueError(
            f"{short[0]}, one of {len(short)} layers that get too few; send all weights of a {kind}"
        )
