# SPDX-License-Identifier: Apache-2.0
"""thctl up: a server and an agent in one command, as a user without rights, and what becomes of
them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

from cluster import BUILD, Process, cluster, command_line, main, wait_for, worker_env

USER = 100000 + os.getpid()  # nobody's, where the test runs as root
ROOT = os.geteuid() == 0
UID = USER if ROOT else os.geteuid()
THCTL = os.path.join(BUILD, "tools", "thctl")
FAILED, NO_AGENT, TIMED_OUT, DENIED, TAKEN = 1, 3, 6, 7, 8


def as_user(*argv):
    if not ROOT:
        return [*argv]
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *argv]


os.environ.pop("THC_AGENT", None)


def environment(xdg):
    # What the calls return is remembered in a file that the user may not write.
    env = {"XDG_RUNTIME_DIR": xdg, "TH_CALLS_SEEN": ""}
    return {**os.environ, **env, **worker_env()}


def run(xdg, *argv, **env):
    return run_here(xdg, *as_user(*argv), **env)


def run_here(xdg, *argv, **env):
    env = {**environment(xdg), **env}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)


@contextlib.contextmanager
def users_cluster():
    """With a folder of the user's as his $XDG_RUNTIME_DIR."""
    with cluster(server=False) as c:
        os.chmod(c.dir, 0o755)
        c.xdg = os.path.join(c.dir, "xdg")
        c.run_dir = os.path.join(c.xdg, "tensorhub")
        os.mkdir(c.xdg, 0o700)
        if ROOT:
            os.chown(c.xdg, USER, USER)
        yield c


class Up(Process):
    """Ready when it is there: .said is what it printed, .children the daemons by their names."""

    def __init__(self, c, *args, thctl=THCTL, env=None):
        label = f"up-{len(c.processes)}"
        argv = as_user(thctl, "-o", "json", "up", *args)
        super().__init__(c, label, argv, env={**environment(c.xdg), **(env or {})})
        text = b""
        # An object over several lines, the last of which is its end.
        while not text.endswith(b"\n}\n"):
            line = self.p.stdout.readline()
            assert line, f"ended with {self.p.wait(20)}: {self.tail()}"
            text += line
        self.said = json.loads(text)
        self.children = {}
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
            for pid in f.read().split():
                program = command_line(int(pid)).split(b"\0")[0].decode()
                self.children[os.path.basename(program)] = int(pid)

    def gone(self):
        return not any(os.path.exists(f"/proc/{pid}") for pid in self.children.values())


TEN_LINES = """
import tensorhub as th
weights, copy = th.empty([1 << 20], "U8"), th.empty([1 << 20], "U8")
weights[:] = bytes([42]) * len(weights)
with th.open("m", replica="trainer") as a, th.open("m", replica="rollout") as b:
    a.register({"w": weights})
    a.publish(1, timeout=20)
    b.register({"w": copy})
    assert b.replicate("latest", timeout=20).version == 1
    assert copy == weights
"""


def python(c, text, **env):
    return run(c.xdg, sys.executable, "-S", "-c", text, **env)


def up_serves_workers_that_were_told_nothing_and_leaves_nothing():
    with users_cluster() as c:
        up = Up(c)
        assert set(up.children) == {"thserverd", "thagentd"}, up.children
        said = up.said
        assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", said["server"]), said
        assert said["runtime_dir"] == c.run_dir and said["environment"] is None, said
        assert said["data_address"].startswith("127.0.0.1:"), said
        assert said["join"].startswith(f"thctl up --join {said['server']}"), said
        assert not ROOT or said["node"].endswith(f"-{UID}"), said
        assert os.stat(c.run_dir).st_mode & 0o777 == 0o700
        status = json.loads(run(c.xdg, THCTL, "-o", "json", "status").stdout)
        assert status["offload_limit"] == 0, status
        worker = python(c, TEN_LINES)
        assert worker.returncode == 0, worker.stderr
        # Of a terminal its whole group gets Ctrl-C: the daemons must not, before their time.
        assert all(os.getpgid(pid) == pid for pid in up.children.values())
        up.signal(signal.SIGINT)
        assert up.p.wait(20) == 0, up.tail()
        assert "draining" in up.tail(), up.tail()
        assert up.gone()
        assert os.listdir(c.xdg) == [], os.listdir(c.xdg)
        # What others say then.
        worker = python(c, 'import tensorhub as th; th.open("m")')
        for text in ("NoAgent", "thctl up", f"{c.run_dir} (is not there)", f"hub-{UID} (is"):
            assert text in worker.stderr, worker.stderr


def a_reader_ends_before_ctrl_c_ends_the_agent():
    """A drain: what a worker has published stays for as long as somebody reads it."""
    with users_cluster() as c:
        up = Up(c)
        hold = python_holds(c)
        up.signal(signal.SIGTERM)
        assert up.p.wait(40) == 0, up.tail()
        assert hold.p.wait(20) == 0, hold.tail()


def python_holds(c):
    """Holds a version until its agent is gone."""
    text = """
import select
import tensorhub as th
a = th.open("m", replica="trainer")
a.register({"w": th.empty([1 << 20], "U8")})
a.publish(1, timeout=20)
print("ready", flush=True)
while not a.events() & th.Event.AGENT_LOST:
    select.select([a], [], [])
"""
    argv = as_user(sys.executable, "-S", "-c", text)
    p = Process(c, f"holder-{len(c.processes)}", argv, env=environment(c.xdg))
    p.ready()
    return p


def a_second_one_says_who_is_there():
    with users_cluster() as c:
        up = Up(c)
        second = run(c.xdg, THCTL, "up")
        assert second.returncode == TAKEN, second.stderr
        assert f"(pid {up.pid}, since 2" in second.stderr, second.stderr
        assert f"server {up.said['server']}" in second.stderr, second.stderr
        assert second.stdout == "" and up.alive() and run(c.xdg, THCTL, "status").returncode == 0
        # Also by another name of it.
        link = os.path.join(c.xdg, "link")
        os.symlink("tensorhub", link)
        assert run(c.xdg, THCTL, "up", "-r", link).returncode == TAKEN
        os.unlink(link)
        assert up.terminate() == 0
        # It can begin anew.
        assert Up(c).terminate() == 0


def an_agent_started_by_hand_is_named():
    with users_cluster() as c:
        c.start_server()
        c.agent("a")
        second = run(c.xdg, THCTL, "up", "-r", c.agents["a"].runtime)
        if ROOT:  # its directory is not the user's
            assert second.returncode == DENIED, second.stderr
            second = run_here(c.xdg, THCTL, "up", "-r", c.agents["a"].runtime)
        assert second.returncode == TAKEN, second.stderr
        assert f"an agent (pid {c.agents['a'].pid}, since 2" in second.stderr, second.stderr
        assert not os.path.exists(os.path.join(c.agents["a"].runtime, "up.lock"))


def another_joins():
    with users_cluster() as c:
        first = Up(c)
        other = os.path.join(c.xdg, "other")
        url = first.said["server"].removeprefix("tcp://")
        second = Up(c, "--join", url, "-r", other, "--node", "other", "--datacenter", "far")
        assert set(second.children) == {"thagentd"}, second.children
        assert second.said["server"] == first.said["server"], second.said
        # Nobody would look there by himself.
        assert second.said["environment"] == f"export THC_AGENT={other}", second.said
        nodes = json.loads(run(c.xdg, THCTL, "-o", "json", "ls", "nodes").stdout)["nodes"]
        assert {n["node"] for n in nodes} == {first.said["node"], "other"}, nodes
        publisher = python_holds(c)
        text = """
import tensorhub as th
with th.open("m") as b:
    b.register({"w": th.empty([1 << 20], "U8")})
    assert b.replicate("latest", timeout=20).transport == "tcp"
"""
        reader = python(c, text, THC_AGENT=other)
        assert reader.returncode == 0, reader.stderr
        assert second.terminate() == 0 and not os.path.exists(other)
        assert first.alive()
        assert first.terminate(40) == 0
        assert publisher.p.wait(20) == 0


def a_child_that_is_killed_ends_the_other():
    for name, what in (("thserverd", "server"), ("thagentd", "agent")):
        with users_cluster() as c:
            up = Up(c)
            os.kill(up.children[name], signal.SIGKILL)
            assert up.p.wait(40) == FAILED, up.tail()
            said = up.tail()
            assert f"the {what} (pid {up.children[name]}) was ended by signal 9" in said, said
            assert re.search(r"the last of its log:\n  info ", said), said
            assert up.gone() and os.listdir(c.xdg) == [], os.listdir(c.xdg)


def the_daemons_end_with_it():
    with users_cluster() as c:
        up = Up(c)
        up.kill()
        wait_for(up.gone, 20, "the daemons end")
        # What it has left hides nothing, and the next one takes it.
        failed = run(c.xdg, THCTL, "status")
        assert failed.returncode == NO_AGENT and "thctl up" in failed.stderr, failed.stderr
        assert f"{c.run_dir} (is there)" in failed.stderr, failed.stderr
        assert Up(c).terminate() == 0
        assert os.listdir(c.xdg) == []


def a_second_signal_ends_it_at_once():
    """While an agent drains that does not come to an end."""
    with users_cluster() as c:
        up = Up(c)
        os.kill(up.children["thagentd"], signal.SIGSTOP)
        up.signal(signal.SIGINT)
        wait_for(lambda: "draining" in up.tail(), 20, "it drains")
        assert up.alive() and not up.gone()
        up.signal(signal.SIGINT)
        assert up.p.wait(20) == FAILED
        assert "ended at once" in up.tail(), up.tail()
        assert up.gone() and os.listdir(c.xdg) == [], os.listdir(c.xdg)


def what_cannot_be_said_why():
    with users_cluster() as c:
        closed = os.path.join(c.dir, "closed")
        os.mkdir(closed, 0o555)
        rows = [
            (DENIED, "cannot be made: Permission denied", "-r", os.path.join(closed, "run")),
            (DENIED, "up.lock cannot be opened: Permission denied", "-r", closed),
            (FAILED, "cannot be made: No such file", "-r", os.path.join(c.dir, "no", "run")),
            (FAILED, "Cannot assign requested address", "--listen", "192.0.2.1"),
            (2, "no address that others can connect to", "--listen", "0.0.0.0"),
            (2, "is not HOST or HOST:PORT", "--listen", "a/b"),
            (2, "--join: ", "--join", ","),
            (2, "-s cannot be given", "-s", "tcp://127.0.0.1:1"),
            (TIMED_OUT, "was not ready in time", "--timeout", "1ns"),
        ]
        for code, text, *args in rows:
            p = run(c.xdg, THCTL, "up", *args)
            assert p.returncode == code and text in p.stderr, (args, p.returncode, p.stderr)
            assert p.stdout == "" and os.listdir(c.xdg) == [], (args, p.stdout)


def without_a_runtime_directory_it_is_one_in_tmp():
    with users_cluster() as c:
        c.xdg, c.run_dir = "", f"/tmp/tensorhub-{UID}"
        assert not os.path.lexists(c.run_dir), f"{c.run_dir} is another's"
        up = Up(c)
        assert up.said["runtime_dir"] == c.run_dir and up.said["environment"] is None, up.said
        assert os.stat(c.run_dir).st_mode & 0o777 == 0o700
        worker = python(c, TEN_LINES)
        assert worker.returncode == 0, worker.stderr
        assert up.terminate() == 0
        assert not os.path.lexists(c.run_dir)
        if not ROOT:
            return
        # Whoever makes that name keeps nobody from saying what is wrong.
        os.mkdir(c.run_dir, 0o777)
        try:
            p = run(c.xdg, THCTL, "up")
            assert p.returncode == DENIED and "thctl up -r DIR" in p.stderr, p.stderr
            assert f"{c.run_dir} (belongs to another user)" in p.stderr, p.stderr
        finally:
            os.rmdir(c.run_dir)


def who_listens_to_others_is_warned():
    with users_cluster() as c:
        quiet = Up(c, "--listen", "127.0.0.1:0")
        assert quiet.terminate() == 0 and "no keys" not in quiet.tail(), quiet.tail()
        host = next((a for a in addresses() if not a.startswith("127.")), None)
        if host is None:
            return  # of a machine without a network there is nothing to be reached
        up = Up(c, "--listen", f"{host}:0")
        assert up.said["server"].startswith(f"tcp://{host}:"), up.said
        assert up.said["data_address"].startswith(f"{host}:"), up.said
        assert up.said["join"] == f"thctl up --join {up.said['server']}", up.said
        assert "there are no keys" in up.tail(), up.tail()
        assert up.terminate() == 0


def addresses():
    p = subprocess.run(["ip", "-4", "-j", "addr"], capture_output=True, text=True)
    return [a["local"] for link in json.loads(p.stdout or "[]") for a in link["addr_info"]]


if __name__ == "__main__":
    main(
        up_serves_workers_that_were_told_nothing_and_leaves_nothing,
        a_reader_ends_before_ctrl_c_ends_the_agent,
        a_second_one_says_who_is_there,
        an_agent_started_by_hand_is_named,
        another_joins,
        a_child_that_is_killed_ends_the_other,
        the_daemons_end_with_it,
        a_second_signal_ends_it_at_once,
        what_cannot_be_said_why,
        without_a_runtime_directory_it_is_one_in_tmp,
        who_listens_to_others_is_warned,
    )
