# SPDX-License-Identifier: Apache-2.0
"""What somebody says at the servers' port who is neither agent nor server: refused with a sentence,
counted, and nobody else is disturbed. (Who knows an agent's number needs its secret, which no test
has: unit refsrv_trust and the simulator show that.)"""

import json
import random
import socket
import struct

from cluster import cluster, main, wait_for
from standby_test import PATIENT, SIZE, served_by

HELLO, ATTACH = 10, 11
DENIED, INVALID = -5018, -5001
EPOCH_MAX = (1 << 23) - 1
WARM = 300_000_000  # ns: of the servers here


def varint(n):
    data = b""
    while n > 0x7F:
        data, n = data + bytes([n & 0x7F | 0x80]), n >> 7
    return data + bytes([n])


def text(field, value):
    return varint(field << 3 | 2) + varint(len(value)) + value.encode()


def number(field, value):
    return varint(field << 3) + varint(value)


def fixed(field, value):
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def hello(server_inc, epoch, name):
    return HELLO, number(1, 2) + number(2, 2) + fixed(3, server_inc) + number(4, epoch) + number(
        5, 1
    ) + text(6, name)


def attach(node, epoch, name):
    body = text(1, node) + text(2, "dc") + text(3, "127.0.0.1:9") + fixed(6, 1234)
    return ATTACH, body + number(7, epoch) + text(52, name)


def exactly(s, count):
    data = b""
    while len(data) < count:
        more = s.recv(count - len(data))
        assert more, "the server hung up"
        data += more
    return data


def say(url, message, agent_inc=0):
    """The code of the server's answer, and all of it."""
    kind, body = message
    request = fixed(1, 7) + (fixed(2, agent_inc) if agent_inc else b"")
    request += varint(kind << 3 | 2) + varint(len(body)) + body
    host, port = url.removeprefix("tcp://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as s:
        s.settimeout(10)
        s.sendall(b"\0SP\0\0\x30\0\0")
        assert exactly(s, 8) == b"\0SP\0\0\x31\0\0"
        s.sendall(struct.pack(">Q", 4 + len(request)) + b"\x80\0\0\1" + request)
        (length,) = struct.unpack(">Q", exactly(s, 8))
        reply = exactly(s, length)[4:]
    assert reply[:9] == fixed(1, 7), reply
    if reply[9:10] != b"\x10":  # no code: it is 0
        return 0, reply
    zigzag = shift = 0
    for byte in reply[10:]:
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return (zigzag >> 1) ^ -(zigzag & 1), reply


def status(c, url):
    return json.loads(c.thctl("-s", url, "-o", "json", "status", check=False).stdout)


def uptime(c, url):
    return status(c, url)["uptime_ns"]


def counters(c, url):
    return {one["name"]: one["value"] for one in status(c, url)["counters"]}


def attachments(c, label):
    with open(c.agents[label].log_path) as log:
        return [line for line in log if "attached" in line]


def nobody_is_disturbed():
    rng = random.Random(1)
    with cluster(server=False) as c:
        c.start_servers(args=("--cluster", "red", "-o", f"lease.warm={WARM}ns"))
        first = c.server_urls[0]
        for label in "ab":
            c.agent(label, args=("--cluster", "red"))
        served_by(c, 0, "a", "b")
        trainer, rollout = c.worker("trainer", "a"), c.worker("rollout", "b")
        for w in (trainer, rollout):
            w.setup(SIZE, model="m", replica=w.label)
        want = trainer.call("fill", seed="1")
        trainer.call("publish", version=1)
        rollout.call("replicate", version="latest")
        assert rollout.call("digest") == want
        # It has believed all agents for as long as it was new.
        new = uptime(c, first)
        wait_for(lambda: uptime(c, first) > new + WARM, PATIENT, "the server is not new")
        before = {label: attachments(c, label) for label in "ab"}
        for i in range(10):
            for url in c.server_urls:
                code, _ = say(url, hello(rng.getrandbits(64), 1000 + i, "red"))
                assert code == 0, code
                code, reply = say(url, hello(rng.getrandbits(64), 1000, "blue"))
                assert code == DENIED and b"blue" in reply and b"red" in reply, reply
            code, reply = say(first, attach(f"evil{i}", EPOCH_MAX - 1, "red"), 1000 + i)
            assert code == INVALID and b"epoch 8388606" in reply, reply
            code, reply = say(first, attach(f"evil{i}", 0, "blue"), 1000 + i)
            assert code == DENIED and f"evil{i} is of cluster blue".encode() in reply, reply
            # One that has moved over from another cluster is taken, and nobody waits for it.
            assert say(first, attach(f"other{i}", 1, "red"), 2000 + i)[0] == 0
            assert not rollout.call("update")["updated"]
        told = counters(c, first)
        assert told["refused_epochs"] == 10 and told["refused_clusters"] == 20, told
        assert {label: attachments(c, label) for label in "ab"} == before
        served_by(c, 0, "a", "b")
        trainer.call("unpublish")
        want = trainer.call("fill", seed="2")
        trainer.call("publish", version=2)
        assert rollout.call("update")["version"] == 2
        assert rollout.call("digest") == want


def agent_of_another_cluster():
    with cluster(server=False) as c:
        c.start_server(args=("--cluster", "red"))
        c.agent("a", args=("--cluster", "blue"))
        wait_for(
            lambda: any(
                "cluster blue" in line and "cluster red" in line for line in attachments(c, "a")
            ),
            PATIENT,
            "the agent says why it is not attached",
        )
        c.agent("b")
        wait_for(
            lambda: json.loads(c.thctl("-o", "json", "status", agent="b", check=False).stdout)[
                "attached"
            ],
            PATIENT,
            "one without a name is attached",
        )


if __name__ == "__main__":
    main(nobody_is_disturbed, agent_of_another_cluster)
