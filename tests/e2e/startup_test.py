# SPDX-License-Identifier: Apache-2.0
"""What goes wrong before anything works: each case ends with a sentence that says what to do."""

import os
import re
import socket
import subprocess
import time

from cluster import BUILD, cluster, expect_error, main, wait_for, worker_env

AGENT = os.path.join(BUILD, "daemon", "thagentd")
SERVER = os.path.join(BUILD, "server", "thserverd")
CTL = os.path.join(BUILD, "tools", "thctl")


def fails(argv, *words, code=None, env=None):
    p = subprocess.run(
        argv, capture_output=True, text=True, timeout=20, env={**os.environ, **(env or {})}
    )
    assert p.returncode != 0 and (code is None or p.returncode == code), (p.returncode, p.stderr)
    assert p.returncode > 0, f"killed by a signal: {p.stderr}"
    for word in words:
        assert word in p.stdout + p.stderr, f"{word!r} is not in: {p.stderr}"
    return p


def a_second_agent_on_the_same_runtime_dir():
    with cluster() as c:
        a = c.agent("a")
        fails(
            [
                AGENT,
                "-c",
                "/dev/null",
                "-s",
                c.server_url,
                "-r",
                a.runtime,
                "-n",
                "b",
                "-d",
                "127.0.0.1",
            ],
            a.runtime,
            "another agent",
        )
        w = c.worker("w", "a")
        w.setup(1 << 20, model="m", replica="w")
        w.call("publish", version=1)


def a_stale_socket_is_replaced():
    with cluster() as c:
        a = c.agent("a")
        a.kill()
        assert os.path.exists(os.path.join(a.runtime, "agent.fds"))
        wait_for(lambda: again(c, a.runtime), 20, "the node name is free again")
        w = c.worker("w", c.agents["a2"])
        w.setup(1 << 20, model="m", replica="w")
        w.call("publish", version=1)


def again(c, runtime):
    if "a2" not in c.agents:
        c.agent("a2", runtime=runtime)
    return True


def what_is_no_socket_stays():
    """A file where a socket is to be: the agent does not start, and does not remove it."""
    with cluster() as c:
        for name in ("agent.fds", "agent.ipc", "admin.ipc"):
            runtime = os.path.join(c.dir, f"with-{name}")
            os.mkdir(runtime)
            path = os.path.join(runtime, name)
            with open(path, "w") as f:
                f.write("of somebody")
            argv = [AGENT, "-c", "/dev/null", "-s", c.server_url, "-d", "127.0.0.1", "-r", runtime]
            fails(argv, path, code=1)
            assert sorted(os.listdir(runtime)) == sorted([name, "agent.lock"]), os.listdir(runtime)


def a_port_in_use():
    with cluster() as c:
        port = c.server_url.rsplit(":", 1)[1]
        fails([SERVER, "-c", "/dev/null", "-l", f"tcp://127.0.0.1:{port}"], port, "in use")
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = str(s.getsockname()[1])
            fails(
                [
                    AGENT,
                    "-c",
                    "/dev/null",
                    "-s",
                    c.server_url,
                    "-r",
                    os.path.join(c.dir, "x"),
                    "-d",
                    f"127.0.0.1:{port}",
                ],
                port,
                "in use",
            )


def bad_options():
    with cluster(server=False) as c:
        conf = os.path.join(c.dir, "x.conf")
        with open(conf, "w") as f:
            f.write("\n[lease]\ndaed = 3s\n")
        fails([SERVER, "-t", "-c", conf], conf, "3", "daed")
        fails([SERVER, "-c", "/dev/null", "-o", "no.such=1"], "no.such")
        fails([SERVER, "-c", "/dev/null", "-l", "nonsense"], "nonsense")
        fails([AGENT, "-c", "/dev/null", "-r", c.dir], "--server")
        fails([AGENT, "-c", "/dev/null", "-s", "nonsense", "-r", c.dir], "nonsense")
        fails(
            [AGENT, "-c", "/dev/null", "-s", "tcp://127.0.0.1:1", "-r", c.dir, "--verify", "maybe"],
            "verify",
        )
        fails(
            [
                AGENT,
                "-c",
                "/dev/null",
                "-s",
                "tcp://127.0.0.1:1",
                "-r",
                c.dir,
                "--transport",
                "pigeon",
            ],
            "pigeon",
        )
        here = [AGENT, "-c", "/dev/null", "-s", "tcp://127.0.0.1:1", "-r", c.dir]
        fails([*here, "-o", "rdma=on", "--transport", "local,tcp"], "rdma=on", "--transport")
        fails([*here, "-o", "rdma=on", "-o", "rdma.devices=no_such"], "rdma=on", "device")


def versions():
    for program in (AGENT, SERVER, CTL):
        p = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20)
        assert p.returncode == 0, (program, p.returncode, p.stderr)
        assert re.match(rf"{os.path.basename(program)} \d+\.\d+\.\d+\b", p.stdout), p.stdout


def no_agent():
    with cluster(server=False) as c:
        out = c.thctl("-r", os.path.join(c.dir, "nobody"), "status", check=False)
        assert out.returncode == 3 and "thctl up" in out.stderr, (out.returncode, out.stderr)
        code = (
            "import sys, tensorhub as th\n"
            "try: th.open('m', agent=sys.argv[1])\n"
            "except th.Error as e: print(e.name, e)"
        )
        import sys

        p = subprocess.run(
            [sys.executable, "-c", code, os.path.join(c.dir, "nobody")],
            capture_output=True,
            text=True,
            env={**os.environ, **worker_env()},
        )
        assert p.stdout.startswith("NO_AGENT") and "thctl up" in p.stdout, (p.stdout, p.stderr)


def no_server():
    with cluster(server=False) as c:
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        c.server_url = f"tcp://127.0.0.1:{port}"
        c.agent("a")
        w = c.worker("w", "a")
        start = time.monotonic()
        expect_error("NO_SERVER", w.call, "open", model="m", replica="w", timeout=30)
        assert time.monotonic() - start < 10
        out = c.thctl("status", agent="a", check=False)
        assert out.returncode in (4, 5), (out.returncode, out.stdout)
        # It comes up later on the address that the agent knows: no restart is needed.
        c.start_server(listen=c.server_url)
        wait_for(
            lambda: c.thctl("status", agent="a", check=False).returncode == 0,
            15,
            "the agent attaches",
        )
        w.setup(1 << 20, model="m", replica="w")
        w.call("publish", version=1)


def the_server_goes_away():
    with cluster() as c:
        c.agent("a")
        w = c.worker("w", "a")
        w.setup(1 << 20, model="m", replica="w")
        w.call("publish", version=1)
        c.server.kill()
        start = time.monotonic()
        expect_error(
            "NO_SERVER",
            lambda: wait_for(lambda: w.call("update", timeout=10) and False, 10, "an error"),
        )
        assert time.monotonic() - start < 10
        assert w.call("held") == [0, 1], "the held version stays"
        start = time.monotonic()
        w.call("close", timeout=5)
        assert time.monotonic() - start < 6


def sigterm_ends_in_order():
    with cluster() as c:
        a = c.agent("a")
        w = c.worker("w", "a")
        w.setup(1 << 20, model="m", replica="w")
        w.call("publish", version=1)
        assert a.terminate() == 0
        expect_error("AGENT_LOST", w.call, "unpublish")
        wait_for(lambda: w.call("safe") == 1, 2, "an agent that has exited cannot write")
        w.call("close")
        assert c.server.terminate() == 0


if __name__ == "__main__":
    main(
        a_second_agent_on_the_same_runtime_dir,
        a_stale_socket_is_replaced,
        what_is_no_socket_stays,
        a_port_in_use,
        bad_options,
        versions,
        no_agent,
        no_server,
        the_server_goes_away,
        sigterm_ends_in_order,
    )
