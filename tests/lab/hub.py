# SPDX-License-Identifier: Apache-2.0
"""What the lab compares with: one sender that serves everybody, raw sockets, nothing else.

hub.py serve ADDRESS BYTES READERS prints `ready PORT`, waits until all readers are connected, and
sends the bytes to each with sendfile, all at once; then `began SECONDS` (monotonic clock).
hub.py read ADDRESS PORT BYTES receives them into memory; then `ended SECONDS`.
"""

import mmap
import os
import socket
import sys
import threading
import time


def serve(address, nbytes, readers):
    memory = os.memfd_create("hub")
    os.ftruncate(memory, nbytes)
    block = os.urandom(1 << 20)
    for at in range(0, nbytes, len(block)):
        os.pwrite(memory, block[: nbytes - at], at)
    listener = socket.create_server((address, 0))
    print("ready", listener.getsockname()[1], flush=True)
    connections = [listener.accept()[0] for _ in range(readers)]
    print("began", time.monotonic(), flush=True)

    def send(connection):
        at = 0
        while at < nbytes:
            at += os.sendfile(connection.fileno(), memory, at, nbytes - at)
        connection.close()

    threads = [threading.Thread(target=send, args=(c,)) for c in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read(address, port, nbytes):
    memory = memoryview(mmap.mmap(-1, nbytes))
    connection = socket.create_connection((address, port), 60)
    at = 0
    while at < nbytes:
        got = connection.recv_into(memory[at : at + (1 << 20)])
        if got == 0:
            raise EOFError(f"the hub hung up at {at} of {nbytes}")
        at += got
    print("ended", time.monotonic(), flush=True)


if __name__ == "__main__":
    {"serve": serve, "read": read}[sys.argv[1]](sys.argv[2], *map(int, sys.argv[3:]))
