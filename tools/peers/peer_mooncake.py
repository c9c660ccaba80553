# SPDX-License-Identifier: Apache-2.0
"""Mooncake's transfer engine over TCP: the reader reads the source's registered memory, all
pieces in one batch."""

import peer


def engine(data):
    from mooncake.engine import TransferEngine

    made = TransferEngine()
    if made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        raise SystemExit("mooncake: the engine does not start")
    if made.register_memory(data.ctypes.data, len(data)) != 0:
        raise SystemExit("mooncake: the memory is not taken")
    return made


def source(options, channel):
    data = peer.memory(options.bytes, 1)
    made = engine(data)
    channel.send([f"127.0.0.1:{made.get_rpc_port()}", data.ctypes.data])
    peer.answer(channel, data)


def reader(options, channel):
    data = peer.memory(options.bytes, 2)
    made = engine(data)
    address, there = channel.receive()
    parts = peer.pieces(options.bytes, options.piece)
    here = [data.ctypes.data + at for at, _ in parts]
    there = [there + at for at, _ in parts]
    lengths = [count for _, count in parts]

    def pull():
        if made.batch_transfer_sync_read(address, here, there, lengths) != 0:
            raise SystemExit("mooncake: the transfer failed")

    yield data
    while True:
        yield peer.timed(pull)


if __name__ == "__main__":
    peer.run("mooncake", "mooncake-transfer-engine-non-cuda", source, reader)
