# SPDX-License-Identifier: Apache-2.0
"""What the scripts for `thbench peers` share: two processes with memory of their own, and the
exchange with thbench.

A script is started with --bytes N --piece N. It starts itself once more as the source, makes
everything ready, moves the bytes once unmeasured, compares, and prints one line of JSON
{"ready": NAME, "version": TEXT}. Then for each line on stdin it moves the bytes once more from
the source's memory to its own and prints {"seconds": S}. At the end of stdin it ends.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time

# What the libraries print goes to stderr: stdout is for the lines.
LINES = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


class Channel:
    """Lines of JSON to the other process."""

    def __init__(self, reads, writes):
        self.reads, self.writes = reads, writes

    def send(self, value):
        self.writes.write(json.dumps(value) + "\n")
        self.writes.flush()

    def receive(self):
        line = self.reads.readline()
        if not line:
            sys.exit(0)
        return json.loads(line)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--piece", type=int, default=50_000_000)
    parser.add_argument("--source", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the environment")
    options = parser.parse_args()
    for setting in options.set:
        key, value = setting.split("=", 1)
        os.environ[key] = value
    return options


def memory(count, seed):
    """Touched, and not equal to another one's."""
    import numpy

    words = numpy.arange(count // 8 + 1, dtype=numpy.uint64)
    words *= numpy.uint64(0x9E3779B97F4A7C15)
    words += numpy.uint64(seed)
    return words.view(numpy.uint8)[:count]


def digest(data):
    import numpy

    words = data[: len(data) // 8 * 8].view(numpy.uint64)
    with numpy.errstate(over="ignore"):
        # The second one sees the order.
        some = words[::4099]
        places = numpy.arange(len(some), dtype=numpy.uint64)
        return [int(words.sum()), int((some * places).sum())]


def pieces(count, piece):
    """(offset, bytes) of each."""
    return [(at, min(piece, count - at)) for at in range(0, count, piece)]


def ready(name, package):
    version = importlib.metadata.version(package)
    print(json.dumps({"ready": name, "version": version}), file=LINES)


def run(name, package, source, reader):
    """package: whose version it is. source(options, channel) serves until the channel ends.
    reader(options, channel) is a generator: it yields its memory when it is ready, then moves the
    bytes each time it is asked and yields the seconds."""
    options = arguments()
    if options.source:
        source(options, Channel(sys.stdin, LINES))
        return
    child = subprocess.Popen(
        [sys.executable, os.path.abspath(sys.argv[0]), "--source", *sys.argv[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    channel = Channel(child.stdout, child.stdin)
    transfers = reader(options, channel)
    data = next(transfers)
    next(transfers)
    channel.send("digest")
    if channel.receive() != digest(data):
        sys.exit(f"{name}: what arrived is not what was sent")
    ready(name, package)
    for _ in sys.stdin:
        print(json.dumps({"seconds": next(transfers)}), file=LINES)
    transfers.close()
    child.stdin.close()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()


def answer(channel, data, work=lambda message: None):
    """The source's loop: digests itself, all else is for work."""
    while True:
        message = channel.receive()
        if message == "digest":
            channel.send(digest(data))
        else:
            work(message)


def timed(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
