# SPDX-License-Identifier: Apache-2.0
"""Weights by a broadcast of gloo: what both ends share, and vLLM's end.

    vllm serve ... --worker-extension-cls broadcast.Receiver
"""

import socket
from typing import Any, Iterator

import torch
import torch.distributed as dist
from vllm.distributed.utils import stateless_init_torch_distributed_process_group


def join(port: int, rank: int, ranks: int, listens: "socket.socket | None" = None) -> Any:
    """A group beside those that trainer and engine have of their own; rank 0 sends, and listens."""
    return stateless_init_torch_distributed_process_group(
        "127.0.0.1", port, rank, ranks, "gloo", listen_socket=listens
    )


def broadcast(group: Any, tensor: torch.Tensor) -> torch.Tensor:
    group.broadcast([tensor], dist.BroadcastOptions()).wait()
    return tensor


class Receiver:
    """Methods of each worker of vLLM, for collective_rpc."""

    def gloo_join(self, port: int, rank: int, ranks: int) -> None:
        self.gloo_group = join(port, rank, ranks)

    def gloo_receive(self, rows: "list[tuple[str, list[int], str]]") -> None:
        """Loads each tensor into the model when it is here."""

        def tensors() -> "Iterator[tuple[str, torch.Tensor]]":
            for name, shape, dtype in rows:
                empty = torch.empty(shape, dtype=getattr(torch, dtype))
                yield name, broadcast(self.gloo_group, empty)

        self.model_runner.reload_weights(weights_iterator=tensors())  # type: ignore[attr-defined]
