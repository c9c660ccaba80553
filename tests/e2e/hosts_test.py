# SPDX-License-Identifier: Apache-2.0
"""Hosts of their own. The reader's agent and worker live in a network and a mount namespace that
cannot see the checkpoint: the bytes can only have come over the link. And a host that vanishes."""

import os
import subprocess

from cluster import Hosts, RemoteError, Skip, cluster, main, wait_for

SIZE = 200 << 20


def a_checkpoint_crosses_the_link():
    with cluster(server=False) as c:
        hosts = Hosts(c, 2)
        c.start_server(listen=f"tcp://{hosts.address(0)}:0", prefix=hosts.prefix(0))
        secret = os.path.join(c.dir, "checkpoint")
        os.mkdir(secret)
        path = os.path.join(secret, "model.safetensors")
        write_checkpoint(path)
        runtime_b = os.path.join(c.dir, "host-b")
        os.mkdir(runtime_b)
        # The second host sees an empty folder where the checkpoint is.
        hide = f'mount -t tmpfs none {secret} && exec "$@"'
        second = [
            *hosts.prefix(1),
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            hide,
            "sh",
        ]
        probe = subprocess.run([*second, "ls", secret], capture_output=True, text=True)
        if probe.returncode:
            raise Skip(f"no mount namespace: {probe.stderr.strip()}")
        assert probe.stdout == "", "the second host sees the checkpoint"
        c.agent("a", prefix=hosts.prefix(0), data=hosts.address(0))
        c.agent("b", prefix=second, data=hosts.address(1), runtime=runtime_b)
        publisher = c_publish(c, path)
        try:
            before = hosts.received_bytes(1)
            out = os.path.join(runtime_b, "out.safetensors")
            c.thctl(
                "fetch",
                "--model",
                "m",
                "--version",
                "1",
                out,
                agent="b",
                prefix=second,
                timeout=120,
            )
            crossed = hosts.received_bytes(1) - before
            payload = os.path.getsize(path)
            assert subprocess.run(["cmp", path, out]).returncode == 0
            assert crossed >= SIZE, (crossed, payload)
            print(f"  {crossed / SIZE:.3f} x the payload on the link")
        finally:
            publisher.terminate()


def connections(agent, port):
    """Of the agent's network namespace, by this port at either end; without TIME_WAIT."""
    with open(f"/proc/{agent.pid}/net/tcp") as f:
        rows = [line.split()[1:4] for line in f.readlines()[1:]]
    listens, waits = "0A", "06"
    return sum(
        port in (int(local.split(":")[1], 16), int(remote.split(":")[1], 16))
        for local, remote, state in rows
        if state not in (listens, waits)
    )


def the_only_source_vanishes():
    """No end and no reset, for good: the call ends by its deadline, and neither agent keeps
    anything of the transfer."""
    with cluster(server=False) as c:
        hosts = Hosts(c, 3)
        c.start_server(listen=f"tcp://{hosts.address(2)}:0", prefix=hosts.prefix(2))
        for i, name in enumerate("ab"):
            args = ("-o", "tcp.timeout=1s")
            c.agent(name, prefix=hosts.prefix(i), data=hosts.address(i), args=args)
        a, b = c.agents["a"], c.agents["b"]
        port = int(a.info["data"].rsplit(":", 1)[1])
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(64 << 20, model="m", replica="w")
        r.setup(64 << 20, model="m", replica="r")
        w.call("fill", seed=1)
        w.call("publish", version=1)
        hosts.limit(1, "80mbit")
        call = r.start("replicate", version="1", timeout=2.5)
        wait_for(lambda: connections(b, port) >= 2, 30, "the transfer")
        hosts.cut(0)
        try:
            raise AssertionError(f"it came from nowhere: {r.finish(call)}")
        except RemoteError as error:
            assert error.name in ("TIMEOUT", "UNKNOWN"), error
        # The source's agent hears of it from nobody: only its own patience ends its side.
        for agent, which in ((b, "reader"), (a, "source")):
            wait_for(lambda x=agent: connections(x, port) == 0, 30, f"nothing at the {which}")
        hosts.cut(0, up=True)


def c_publish(c, path):
    from cluster import BUILD, Process

    p = Process(
        c,
        "publisher",
        [
            os.path.join(BUILD, "tools", "thctl"),
            "-r",
            c.agents["a"].runtime,
            "publish",
            "--model",
            "m",
            "--version",
            "1",
            path,
        ],
    )
    line = p.p.stdout.readline().decode()
    assert line.strip() == "published m 1", (line, p.tail())
    return p


def write_checkpoint(path):
    """A safetensors file of a few tensors and SIZE bytes."""
    import json
    import struct

    header, at = {}, 0
    for name, nbytes in (
        ("a.weight", SIZE // 2),
        ("b.bias", 2048),
        ("c.weight", SIZE - SIZE // 2 - 2048),
    ):
        header[name] = {"dtype": "BF16", "shape": [nbytes // 2], "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _ in range(SIZE >> 20):
            f.write(os.urandom(1 << 20))


if __name__ == "__main__":
    main(a_checkpoint_crosses_the_link, the_only_source_vanishes)
