# SPDX-License-Identifier: Apache-2.0
"""A line between two ports of a network namespace: what comes into one leaves the other later.

line.py PORT PORT SECONDS BYTES carries frames both ways until it is ended. Each way holds so many
bytes at most; what comes then is lost, as in a queue that is full. It stands in where the kernel
has no netem.
"""

import collections
import select
import signal
import socket
import sys
import time

FRAME_MAX = 1 << 17  # a frame that a device would cut later, with what the kernel says of it
SOL_PACKET, IGNORE_OUTGOING, VNET_HDR = 263, 23, 15
ETH_P_ALL = 3


def port_of(name):
    """Frames of this device as they are, also where checksum or cutting is left to a device."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    port.bind((name, ETH_P_ALL))
    port.setblocking(False)
    return port


class Way:
    """From one port to the other, in order."""

    def __init__(self, come, go, seconds, most):
        self.come, self.go, self.seconds, self.most = come, go, seconds, most
        self.held, self.bytes = collections.deque(), 0

    def take(self, now):
        try:
            while True:
                frame = self.come.recv(FRAME_MAX)
                if self.bytes + len(frame) <= self.most:
                    self.held.append((now + self.seconds, frame))
                    self.bytes += len(frame)
        except BlockingIOError:
            pass

    def give(self, now):
        while self.held and self.held[0][0] <= now:
            frame = self.held.popleft()[1]
            self.bytes -= len(frame)
            try:
                self.go.send(frame)
            except OSError:  # the port is down, or has no room: the frame is lost
                pass

    def due(self):
        return self.held[0][0] if self.held else None


def main(one, other, seconds, most):
    a, b = port_of(one), port_of(other)
    ways = [Way(a, b, float(seconds), int(most)), Way(b, a, float(seconds), int(most))]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    while True:
        due = min((way.due() for way in ways if way.held), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        readable, _, _ = select.select([a, b], [], [], wait)
        now = time.monotonic()
        for way in ways:
            if way.come in readable:
                way.take(now)
            way.give(now)


if __name__ == "__main__":
    main(*sys.argv[1:])
