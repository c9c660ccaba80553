# SPDX-License-Identifier: Apache-2.0
"""NIXL with its UCX backend: the reader reads the source's registered memory, one request with a
descriptor a piece. --set UCX_TLS=tcp takes the way between hosts; without it UCX chooses, which on
one host is shared or copied memory."""

import base64
import time

import peer


def agent(name, data):
    from nixl._api import nixl_agent, nixl_agent_config

    made = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    registered = made.register_memory([(data.ctypes.data, len(data), 0, "")], "DRAM")
    if not registered:
        raise SystemExit("nixl: the memory is not taken")
    return made


def source(options, channel):
    data = peer.memory(options.bytes, 1)
    made = agent("source", data)
    channel.send([base64.b64encode(made.get_agent_metadata()).decode(), data.ctypes.data])
    # Without RDMA it is this process that answers: UCX needs to be driven by NIXL's own thread.
    peer.answer(channel, data)


def reader(options, channel):
    data = peer.memory(options.bytes, 2)
    made = agent("reader", data)
    metadata, there = channel.receive()
    name = made.add_remote_agent(base64.b64decode(metadata))
    parts = peer.pieces(options.bytes, options.piece)
    local = made.get_xfer_descs([(data.ctypes.data + at, count, 0) for at, count in parts], "DRAM")
    remote = made.get_xfer_descs([(there + at, count, 0) for at, count in parts], "DRAM")
    handle = made.initialize_xfer("READ", local, remote, name)

    def pull():
        state = made.transfer(handle)
        while state == "PROC":
            time.sleep(0)
            state = made.check_xfer_state(handle)
        if state != "DONE":
            raise SystemExit(f"nixl: the transfer ended as {state}")

    yield data
    while True:
        yield peer.timed(pull)


if __name__ == "__main__":
    peer.run("nixl", "nixl", source, reader)
