# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with gloo: a broadcast between two ranks."""

import os
import socket

import peer


def group(rank, port):
    import torch.distributed

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )


def broadcast(data):
    import torch
    import torch.distributed

    tensor = torch.from_numpy(data)
    return lambda: torch.distributed.broadcast(tensor, src=0)


def source(options, channel):
    data = peer.memory(options.bytes, 1)
    channel.send("there")
    group(0, channel.receive())
    send = broadcast(data)
    peer.answer(channel, data, lambda message: send())


def reader(options, channel):
    data = peer.memory(options.bytes, 2)
    channel.receive()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    channel.send(port)
    group(1, port)
    receive = broadcast(data)

    def pull():
        channel.send("go")
        receive()

    yield data
    while True:
        yield peer.timed(pull)


if __name__ == "__main__":
    peer.run("gloo", "torch", source, reader)
