# SPDX-License-Identifier: Apache-2.0
"""The loop of examples/rl with real engines of vLLM: it learns, and goes on when something is lost.

Suite `frameworks`; where vLLM is not installed both tests are skipped.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import tensorhub as th
from conftest import ROOT, Cluster, wait_for

EXAMPLE = os.path.join(ROOT, "libthc", "python", "examples", "rl")
START_S, STEP_S = 400, 200  # what an engine may take to take part, and a step


@pytest.fixture(autouse=True)
def environment(request, monkeypatch):
    pytest.importorskip("vllm", reason="vllm is not installed")
    installed = request.getfixturevalue("installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], installed]))


def rows(path):
    """What the trainer has written: a dict for each step."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]
    return []


def free_ports(count):
    with contextlib.ExitStack() as open_now:
        made = [open_now.enter_context(socket.socket()) for _ in range(count)]
        for one in made:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in made]


# What rollouts and trainer may be apart, against what one update changes.
@pytest.mark.parametrize("dtype, part", [("bfloat16", 0.5), ("float32", 1e-3)])
def test_the_reward_rises_and_the_probabilities_agree(agent, model, tmp_path, dtype, part):
    report = tmp_path / "report"
    command = [sys.executable, os.path.join(EXAMPLE, "run.py"), "--name", model, "--steps", "20"]
    command += ["--dtype", dtype, "--report", str(report), "--ports", *map(str, free_ports(2))]
    with open(tmp_path / "log", "wb") as log:
        ran = subprocess.run(command, stdout=log, stderr=log, timeout=800, check=False)
    said = (tmp_path / "log").read_text()
    assert ran.returncode == 0, said
    steps = rows(report)
    assert [row["step"] for row in steps] == list(range(20)), said
    rewards = [row["reward"] for row in steps]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.4, rewards
    for row in steps:
        assert row["apart"] <= row["may"] < part * row["moved"], row
        assert set(row["rollouts"]) <= set(steps[-1]["rollouts"]), row


class Loop:
    """A trainer and its rollouts, on two hosts."""

    def __init__(self, run, folder, model):
        self.run, self.folder, self.model = run, str(folder), model
        self.report = os.path.join(self.folder, "report")
        self.cluster = Cluster()
        self.ends = contextlib.ExitStack()
        for label in ("trainer", "rollouts"):
            self.cluster.agent(label)
        run.make_policy(self.folder, 64, 2, 256)
        self.urls = [f"http://127.0.0.1:{port}" for port in free_ports(3)]
        self.rollouts = {}

    def start(self, command, host, log):
        os.environ["THC_AGENT"] = self.cluster.agents[host].runtime
        process = self.run.Process(command, os.path.join(self.folder, log))
        self.ends.callback(process.end)
        return process

    def start_rollout(self, i):
        port = int(self.urls[i].rpartition(":")[2])
        command = self.run.rollout_command(self.folder, port, "float32", self.model)
        self.rollouts[i] = self.start(command, "rollouts", f"rollout{i}.log")

    def start_trainer(self):
        command = self.run.trainer_command(
            self.folder, self.urls, "--name", self.model, "--steps", "1000000", "--lr", "1e-4",
            "--dtype", "float32", "--report", self.report,
        )  # fmt: skip
        self.trainer = self.start(command, "trainer", "trainer.log")

    def begin_update(self, i):
        """A server may refuse: the trainer has begun one."""
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(self.urls[i] + "/start_weight_update", data=b"", timeout=60)

    def said(self, log="trainer.log"):
        with open(os.path.join(self.folder, log), encoding="utf-8", errors="replace") as file:
            return file.read()

    def goes_on(self, rollouts, seconds=STEP_S):
        """Waits for two more steps, the last with these rollouts alone; its row."""
        wanted, before = {self.urls[i] for i in rollouts}, len(rows(self.report))
        end = time.monotonic() + seconds
        while True:
            steps = rows(self.report)[before + 1 :]
            if steps and set(steps[-1]["rollouts"]) == wanted:
                return steps[-1]
            assert self.trainer.popen.poll() is None, self.said()[-4000:]
            assert time.monotonic() < end, (rollouts, steps[-2:], self.said()[-4000:])
            time.sleep(0.1)

    def ranks(self):
        """The processes of the trainer's ranks, as they have said it, in their last life."""
        found = re.findall(r"^rank (\d+): process (\d+), from step (\d+)", self.said(), re.M)
        return {int(rank): (int(pid), int(step)) for rank, pid, step in found}

    def lineage(self):
        with th.watch(self.model, agent=self.cluster.agents["trainer"].runtime) as w:
            return max(lineage for lineage, _version in w.list().all)


@pytest.fixture
def loop(model, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setenv("THC_AGENT", "")
    import run

    made, failed = Loop(run, tmp_path, model), True
    try:
        yield made
        failed = False
    finally:
        made.ends.close()
        made.cluster.close(failed)


def test_the_loop_goes_on_when_something_is_lost(loop):
    """Each log-probability is compared meanwhile: the trainer would end if one were of other
    weights."""
    loop.start_trainer()
    for i in (0, 1):
        loop.start_rollout(i)
    loop.goes_on({0, 1}, START_S)

    loop.start_rollout(2)  # one joins in the middle
    loop.goes_on({0, 1, 2}, START_S)

    loop.rollouts[0].kill()  # one is lost, and comes back
    loop.goes_on({1, 2})
    loop.start_rollout(0)
    loop.goes_on({0, 1, 2}, START_S)

    before, lineage, ranks = rows(loop.report)[-1]["step"], loop.lineage(), loop.ranks()
    os.kill(ranks[0][0], signal.SIGKILL)  # the trainer is lost; torchrun starts it again
    loop.begin_update(1)  # as where it was lost in the middle of one
    loop.goes_on({0, 1, 2}, START_S)
    assert loop.lineage() > lineage
    again = loop.ranks()
    for rank, (pid, first) in again.items():
        assert pid != ranks[rank][0] and first >= before, loop.said()[-4000:]

    for host in ("rollouts", "trainer"):  # an agent is lost, and comes back
        heard = len(loop.said())
        loop.cluster.replaced(loop.cluster.agents[host])
        wait_for(lambda: "agent" in loop.said()[heard:], STEP_S, "a sentence about the agent")
        loop.cluster.agent(host)
        loop.goes_on({0, 1, 2})

    loop.cluster.replaced(loop.cluster.server)
    loop.cluster.start_server(listen=loop.cluster.server_url)
    loop.goes_on({0, 1, 2})
    assert loop.ranks() == again, loop.said()[-4000:]
    loop.trainer.end()  # with its ranks
    assert not [pid for pid, _step in again.values() if os.path.exists(f"/proc/{pid}")]
