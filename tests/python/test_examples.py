# SPDX-License-Identifier: Apache-2.0
"""The example programs of the package, run as a user runs them."""

import array
import os
import subprocess
import sys

import pytest
import tensorhub as th
from conftest import ROOT

EXAMPLES = os.path.join(ROOT, "libthc", "python", "examples")


def start(name, *args, **env):
    return subprocess.Popen(
        [sys.executable, os.path.join(EXAMPLES, name), *map(str, args)],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outputs(*programs):
    """What each has printed, when all have ended well; those that have not are ended."""
    late = False
    for program in programs:
        program.stdin.close()  # the line that the trainer waits for, when the rollouts have ended
        program.stdin = None
        try:
            late = late or program.wait(120) is None
        except subprocess.TimeoutExpired:
            late = True
    for program in programs:
        program.kill()
    texts = [program.communicate()[0] for program in programs]
    assert not late and not any(program.returncode for program in programs), texts
    return texts


def test_the_papers_two_loops(agent, model):
    """Figure 4: a co-located worker of two shards, and two standalone rollouts of as many."""
    common = ("--model", model, "--num-shards", 2)
    rollouts = [
        start("rollout.py", *common, "--shard", i, "--replica", name, "--last", 3)
        for name in ("r0", "r1")
        for i in range(2)
    ]
    trainers = [start("colocated.py", *common, "--shard", i, "--steps", 3) for i in range(2)]
    texts = outputs(*rollouts, *trainers)
    for text in texts[:4]:
        versions = [int(line.split()[1]) for line in text.splitlines()]
        assert versions == sorted(set(versions)) and versions[-1] == 3, text
    for text in texts[4:]:
        assert text.splitlines() == ["published 1", "published 2", "published 3"], text


def publishes(trainer, published):
    """Versions 1 to 3; published(version) returns when the trainer may go on."""
    weights = th.empty((1 << 20,), "F32")
    trainer.register({"layer.0.weight": weights})
    for version in (1, 2, 3):
        if version > 1:
            trainer.unpublish()
        weights[:] = array.array("f", [version]) * len(weights)
        trainer.publish(version)
        published(version)


def until_two_have(trainer, version):
    if version < 3:  # with the last one the program ends, maybe before anybody looks
        trainer.wait(lambda versions: len(versions.get(version, ())) > 1, timeout=60)


def test_a_rollout_that_is_prefetched_for(agent, daemons, model):
    """The trainer goes on when the rollout's host, which is another, has what was published."""
    far = daemons.agent("prefetching").runtime
    rollout = start("prefetched.py", "--model", model, "--last", 3, THC_AGENT=far)
    with th.open(model, replica="trainer") as trainer:
        publishes(trainer, lambda version: until_two_have(trainer, version))
        (text,) = outputs(rollout)
        trainer.close(abandon=True)
    lines = [line.split(" in ")[0].split(maxsplit=2) for line in text.splitlines()]
    versions = [int(version) for _, version, _ in lines]
    # A version that was overtaken before the rollout looked is left out.
    assert versions == sorted(set(versions)) and versions[-1] == 3, text
    assert {how for _, _, how in lines} == {"from this host"}, text


def test_an_engine_that_follows(agent, daemons, model):
    """On another host. The trainer goes on when the engine has what was said go for."""
    far = daemons.agent("following").runtime
    engine = start("follower.py", "--model", model, "--last", 3, THC_AGENT=far)
    with th.open(model, replica="trainer") as trainer:

        def published(version):
            trainer.go(version)
            until_two_have(trainer, version)

        publishes(trainer, published)
        (text,) = outputs(engine)
        trainer.close(abandon=True)
    *lines, mixed = text.splitlines()
    versions = [int(line.split()[1]) for line in lines]
    # One that was overtaken before a batch had ended is left out.
    assert versions == sorted(set(versions)) and versions[-1] == 3, text
    assert mixed.endswith("batches to be done again"), text


def test_evaluators_that_borrow(agent, daemons, model):
    """Two processes of another host. The trainer goes on when both have said how a version is."""
    far = daemons.agent("evaluating").runtime
    evaluators = [
        start("evaluator.py", "--model", model, "--last", 3, THC_AGENT=far) for _ in range(2)
    ]
    said = []
    with th.open(model, replica="trainer") as trainer:
        publishes(trainer, lambda _: said.append([one.stdout.readline() for one in evaluators]))
        texts = ["".join(lines) for lines in zip(*said, outputs(*evaluators))]
        trainer.close(abandon=True)
    want = "".join(f"version {version} scores {version}.0\n" for version in (1, 2, 3))
    assert texts == [want, want], texts


def test_eight_rollouts_in_one_loop(agent, model):
    (text,) = outputs(start("async_rollouts.py", "--model", model, "--steps", 3))
    assert text.splitlines() == [f"rollout{i}: 3 versions" for i in range(8)], text


def test_a_torch_loop_with_two_rollouts(agent, model):
    pytest.importorskip("torch", reason="torch is not installed")
    (text,) = outputs(start("torch_loop.py", "--model", model, "--steps", 4))
    for name in ("rollout0", "rollout1"):
        lines = [line for line in text.splitlines() if line.startswith(name)]
        assert len(lines) == 4 and "version 4" in lines[-1], text


@pytest.mark.parametrize(
    "lacks", [("transformers",), ("torch", "transformers", "vllm", "requests")]
)
def test_the_loop_with_vllm_says_what_is_not_installed(tmp_path, lacks):
    """Before anything is started: a server that cannot load would be started again and again."""
    for name in {"torch", "transformers", "vllm", "requests"} - set(lacks):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('it is only looked for')")
    path = os.pathsep.join([os.path.join(ROOT, "libthc", "python"), str(tmp_path)])
    ran = subprocess.run(
        [sys.executable, "-S", os.path.join(EXAMPLES, "rl", "run.py"), "--steps", "1"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert ran.returncode == 1 and ran.stdout == "", ran
    (line,) = ran.stderr.splitlines()
    assert f" lacks {', '.join(lacks)}; pip install tensorhub_agent-*.whl vllm" in line, line
