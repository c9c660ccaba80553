# SPDX-License-Identifier: Apache-2.0
"""The programs of tensorhub-recipes(7), run as they stand on the page: what a reader would write
around each stands here."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest
import tensorhub as th
from cluster import BUILD
from conftest import LOADED_S, ROOT, memory

PAGE = os.path.join(ROOT, "man", "tensorhub-recipes.7")
PROGRAMS = ("tools", "daemon", "server")  # folders of the build


def recipes():
    """{title: the literal text of its section}"""
    found, title, block = {}, "", None
    with open(PAGE, encoding="utf-8") as page:
        for line in page:
            if line.startswith(".Ss "):
                title = line[4:].strip()
            elif line.startswith(".Bd -literal"):
                block = []
            elif line.startswith(".Ed"):
                assert title not in found, f"{title} has two programs"
                found[title], block = "".join(block), None
            elif block is not None:
                assert "\\" not in line, f"{title}: an escape, which nobody may copy: {line}"
                block.append(line)
    return found


# Not loaded here, where memory() is to be one without torch.
needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")
RECIPES = recipes()
RUN = set()  # titles that a test has, also one that was skipped


def recipe(*titles):
    """Marks a test with the program that it runs, which it gets as ``text``, or with several."""
    RUN.update(titles)
    texts = [RECIPES[title] for title in titles]
    text = texts if len(titles) > 1 else texts[0]
    return pytest.mark.parametrize("text", [text], ids=[re.sub(r"\W+", "_", titles[0])])


def test_every_recipe_is_run():
    assert set(RECIPES) == RUN


@pytest.fixture
def start(tmp_path, model):
    """Starts a program of the page with lines after it. All end with the test."""
    with contextlib.ExitStack() as ends:

        def started(text, after="", command=(sys.executable,), **env):
            path = tmp_path / f"{len(os.listdir(tmp_path))}.txt"
            path.write_text((text + textwrap.dedent(after)).replace("policy", model))
            program = subprocess.Popen(
                [*command, str(path)],
                cwd=tmp_path,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # what a shell leaves behind ends with it
            )
            ends.callback(ended, program)
            return program

        yield started


def ended(program):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGTERM)
    try:
        program.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


def output(program):
    """What it has printed, when it has ended well."""
    text = program.communicate(timeout=LOADED_S)[0]
    assert program.returncode == 0, text
    return text


@contextlib.contextmanager
def published(model, version, seed, **options):
    with th.open(model, replica="t", **options) as handle:
        handle.tensors = {"w": memory(seed)}
        handle.register(handle.tensors)
        handle.publish(version)
        yield handle
        handle.close(abandon=True)


# ---- trainers ------------------------------------------------------------------------------------

# A small model over two ranks, and what a reader of each version sees that has the same shards.
FSDP = """
import os, sys, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def look(step, dtype):
    with th.open("policy", replica="rollout", shard=rank, num_shards=ranks, timeout=60) as h:
        got = h.allocate(step)
        h.replicate(step)
        for name, tensor in model.state_dict().items():
            assert got[name].dtype == dtype, (step, name, got[name].dtype)
            assert torch.equal(got[name], tensor.to_local().to(dtype)), (step, name)
            if rank == 0:
                seen.add((name, got[name].double().sum().item()))
        dist.barrier()
        h.close(abandon=True)

def batches(dtype):
    for step in range(1, 4):
        yield torch.rand(4, 7)
        look(step, dtype)

def loss_of(model, batch):
    return model(batch).square().sum()

seen = set()
train(model, optimizer, batches(torch.DTYPE), loss_of)
if rank == 0:
    assert len(seen) == 12, seen  # 4 tensors, others with each step
    print("3 versions", flush=True)
dist.destroy_process_group()
"""
# torchrun, but for its ranks: they are forked, so that torch is loaded once and not by each.
TORCHRUN = """
import sys, torch._dynamo, torch.distributed.fsdp
from torch.distributed.launcher import LaunchConfig, elastic_launch

config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="run", rdzv_backend="c10d",
                      rdzv_endpoint="localhost:0", start_method="fork")
for program in open(sys.argv[1]).read().split("---- the next"):
    elastic_launch(config, exec)(program, {})
"""


@needs_torch
@recipe("A trainer publishes what it trains", "A trainer publishes a copy")
def test_trainers_of_fsdp2(agent, model, start, text):
    kinds = zip(text, ("float32", "bfloat16"))
    programs = [one + FSDP.replace("DTYPE", dtype) for one, dtype in kinds]
    ranks = start("---- the next".join(programs), command=(sys.executable, "-c", TORCHRUN))
    assert output(ranks).count("3 versions\n") == 2


@recipe("A restart from an older checkpoint")
def test_a_restart(agent, model, start, text):
    after = """
        import sys
        run, step = map(int, sys.stdin.readline().split())
        weights = th.empty((4096,), "U8")
        weights[:] = bytes([step]) * 4096
        h = resume(run, step, {"w": weights})
        print("published", flush=True)
        sys.stdin.readline()
    """
    target = memory(0, 4096)
    with th.open(model, replica="r") as rollout:
        rollout.register({"w": target})
        for run, step in ((0, 9), (0, 10), (1, 5)):
            trainer = start(text, after)
            trainer.stdin.write(f"{run} {step}\n")
            trainer.stdin.flush()
            assert trainer.stdout.readline() == "published\n"
            assert rollout.update("latest") and rollout.held == (run, step)
            assert bytes(target) == bytes([step]) * 4096
            trainer.stdin.close()
            trainer.stdin = None
            output(trainer)


# ---- rollouts ------------------------------------------------------------------------------------


@recipe("All weights in one call")
def test_load(agent, model, start, text):
    with published(model, 3, 7):
        said = output(start(text, "assert bytes(tensor) == bytes([7]) * tensor.nbytes\n"))
    assert said == "w (1048576,)\n"


@recipe("All weights, for an engine that loads them itself")
def test_an_engine_that_loads(agent, model, start, text):
    after = """
        class Engine:
            def load_weights(self, weights):
                self.weights = {name: bytes(tensor) for name, tensor in weights}
                print("loaded", self.weights["w"][0], flush=True)
            def generate(self, version):
                assert set(self.weights["w"]) == {version}
                return version < 2
        serve(Engine())
    """
    engine = start(text, after)
    with published(model, 1, 1) as trainer:
        assert engine.stdout.readline() == "loaded 1\n"
        trainer.unpublish()
        trainer.tensors["w"][:] = bytes([2]) * len(trainer.tensors["w"])
        trainer.publish(2)
        assert output(engine) == "loaded 2\n"


@recipe("A tensor-parallel rollout")
def test_a_tensor_parallel_rollout(agent, model, start, text):
    trainer_of = """
        weights = [th.empty((4096,), "U8") for _ in range(2)]
        step = 0
        def cut(rank):
            weights[rank][:] = bytes([10 * step + rank]) * 4096
            return {"w": weights[rank]}
        def steps():
            global step
            with th.open("policy", replica="looks") as looks:
                for step in (1, 2, 3):
                    yield step
                    if step < 3:
                        looks.wait(lambda versions: "engine0" in versions.get(step, ()))
            input()  # the engine has the last one, too
        publish_shards(cut, 2, steps())
    """
    rank_of = """
        import sys
        rank = int(sys.stdin.readline())
        weights = th.empty((4096,), "U8")
        def generate(version):
            assert set(weights) == {10 * version + rank}, (version, weights[0])
            print(version, flush=True)
            return version < 3
        roll_out(rank, 2, {"w": weights}, generate)
    """
    ranks = [start(text, rank_of) for _ in range(2)]
    for rank, program in enumerate(ranks):
        program.stdin.write(f"{rank}\n")
        program.stdin.flush()
    trainer = start(text, trainer_of)
    for program in ranks:
        versions = [int(line) for line in output(program).split()]
        assert sorted(set(versions)) == [1, 2, 3], versions
    trainer.communicate("\n", timeout=60)
    assert trainer.returncode == 0


@recipe("An engine of several processes")
def test_an_engine_of_several_processes(agent, model, start, text):
    after = """
        import multiprocessing
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe() for _ in range(2)]

        def rank_of(rank):
            weights = th.empty((4096,), "U8")
            work(rank, 2, pipes[rank][1], {"w": weights})
            assert set(weights) == {30 + rank}, weights[0]

        ranks = [context.Process(target=rank_of, args=(rank,)) for rank in range(2)]
        for rank in ranks:
            rank.start()

        def go_on(held):
            print(held, flush=True)
            return held != 3

        schedule([mine for mine, _ in pipes], go_on)
        for rank in ranks:
            rank.join()
            assert rank.exitcode == 0
    """
    engine = start(text, after)
    assert engine.stdout.readline() == "None\n"
    with contextlib.ExitStack() as ends:
        weights, trainers = [memory(0, 4096) for _ in range(2)], []
        for rank in range(2):
            trainers.append(th.open(model, replica="t", shard=rank, num_shards=2))
            ends.callback(trainers[rank].close, abandon=True)
            trainers[rank].register({"w": weights[rank]})
        for version in (1, 2, 3):
            for rank in range(2):
                weights[rank][:] = bytes([10 * version + rank]) * 4096
            for op in [t.publish_async(version) for t in trainers]:
                op.result(timeout=60)
            assert engine.stdout.readline() == f"{version}\n"
            for op in [t.unpublish_async() for t in trainers]:
                op.result(timeout=60)
        output(engine)


@recipe("Rollouts in an event loop")
def test_rollouts_in_a_loop(agent, model, start, text):
    after = """
        def rollout(replica):
            weights = th.empty((4096,), "U8")
            async def generate(version):
                assert set(weights) == {version}
                return version < 3
            return replica, {"w": weights}, generate

        async def main():
            weights = th.empty((4096,), "U8")
            async with th.aio.open("policy", replica="trainer") as h:
                rollouts = asyncio.ensure_future(serve([rollout(f"r{i}") for i in range(4)]))
                await h.register({"w": weights})
                for step in (1, 2, 3):
                    weights[:] = bytes([step]) * 4096
                    await h.publish(step)
                    if step < 3:
                        await h.wait(lambda versions: len(versions.get(step, ())) > 4)
                        await h.unpublish()
                await rollouts

        asyncio.run(main())
    """
    output(start(text, after))


def shell(tmp_path, text, start, **env):
    """Runs it by bash, which finds the programs of the build as those that are installed."""
    path = ":".join(os.path.join(BUILD, folder) for folder in PROGRAMS)
    env = {"PATH": f"{tmp_path}:{path}:{os.environ['PATH']}", **env}
    return start("set -e\n" + text, "", ("bash",), **env)


@recipe("A rollout that pauses only to install")
def test_a_rollout_that_pauses_only_to_install(agent, daemons, model, start, text):
    after = """
        class Engine:
            paused, weights = False, {"w": th.empty((1 << 20,), "U8")}
            def generate(self, version):
                assert not self.paused and set(self.weights["w"]) == {version}
                print(version, flush=True)
                return version < 3
            def pause(self):
                self.paused = True
            def resume(self):
                self.paused = False
        serve(Engine())
    """
    engine = start(text, after, THC_AGENT=daemons.agent("engine").runtime)
    with published(model, 1, 1) as trainer:
        for version in (2, 3):
            trainer.wait(lambda versions, v=version: len(versions.get(v - 1, ())) > 1, timeout=60)
            trainer.unpublish()
            trainer.tensors["w"][:] = bytes([version]) * len(trainer.tensors["w"])
            trainer.publish(version)
        said = output(engine)
    # A version that is overtaken before the engine looks is left out.
    seen = sorted(set(said.split()))
    assert seen[0] == "1" and seen[-1] == "3" and said.split() == sorted(said.split()), said


@recipe("Files")
def test_files(agent, model, start, text, tmp_path):
    header = b'{"w":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}}'
    header += b" " * (-len(header) % 8)
    content = len(header).to_bytes(8, "little") + header + os.urandom(100000)
    (tmp_path / "model.safetensors").write_bytes(content)
    output(shell(tmp_path, text, start))
    assert (tmp_path / "copy.safetensors").read_bytes() == content


@recipe("A notebook")
def test_a_notebook(agent, model, start, text):
    with published(model, 1, 6):
        said = output(start(text + text + "print(bytes(weights['w'])[0], th.handles())\n"))
    assert said == f"6 frozenset({{'{model}/notebook/0'}})\n"


# ---- where the agent is --------------------------------------------------------------------------


@recipe("Slurm")
def test_slurm(daemons, model, start, text, tmp_path):
    """Its srun is a script here: one node, one task."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    srun.chmod(0o755)
    (tmp_path / "rollout.py").write_text(
        "import os, tensorhub as th\n"
        "with th.open('m', replica='r') as h:\n"
        "    print('opened by', h._opts.launch_id.decode(), os.environ['XDG_RUNTIME_DIR'])\n"
    )
    xdg = tmp_path / "xdg"
    xdg.mkdir(mode=0o700)
    job = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "1", "XDG_RUNTIME_DIR": str(xdg)}
    text = text.replace("tcp://server:7070", daemons.server_url)
    said = output(shell(tmp_path, f"unset THC_AGENT\n{text}kill %1; wait\n", start, **job))
    assert f"opened by slurm-5.1-0 {xdg}" in said, said


@recipe("Containers")
def test_containers(text):
    """Nothing here runs pods: the directory is that of libthc, and the volume has one name."""
    assert re.search(r"mountPath: /run/tensorhub$", text, re.MULTILINE)
    assert re.search(r"hostPath:\n +path: /run/tensorhub\n", text)
    assert re.findall(r"- name: (.*)", text) == ["rollout", "tensorhub", "tensorhub"]
