# SPDX-License-Identifier: Apache-2.0
"""tensorhub.integrations.vllm under the real vLLM: greedy tokens are those of Hugging Face.

Engines run in processes of vllm_engine.py, without a GPU; the trainer is here. Suite `frameworks`.
Where vLLM is not installed all but the hint of the import is skipped.
"""

import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import types

import pytest
import tensorhub as th
from conftest import HERE, Cluster, distribution, install, wait_for

MODULE = "tensorhub.integrations.vllm"
PARTS = "tensorhub.integrations._vllm", "tensorhub.integrations._vllm_trainer", MODULE
PROMPT, COUNT = [1, 2, 3, 4], 12
TWO = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # of an engine of two workers
START_S, CALL_S = 480, 240  # what an engine may take to come up, and for a call


def forget():
    """The next import of the adapter is over what is vLLM then."""
    package = vars(importlib.import_module("tensorhub.integrations"))
    for name in PARTS:
        sys.modules.pop(name, None)
        package.pop(name.rpartition(".")[2], None)


def test_without_vllm_the_import_says_what_to_do(monkeypatch):
    forget()
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"vLLM cannot be imported \(.*\); pip install vllm$"):
        importlib.import_module(MODULE)


class Failed(Exception):
    """What a call of an engine raised."""


class Engine:
    """One of vllm_engine.py; the client of vLLM's trainers."""

    def __init__(self, log, environment, **arguments):
        self.log = open(log, "wb")
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "vllm_engine.py"), json.dumps(arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=environment,
            start_new_session=True,
        )  # fmt: skip

    def answer(self, seconds):
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        assert line, f"no answer within {seconds} s; see {self.log.name}:\n{self.tail()}"
        answer = json.loads(line)
        if isinstance(answer, dict) and "failure" in answer:
            raise Failed(answer["failure"])
        return answer

    def tail(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-60:])

    def begin(self, *what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def call(self, *what):
        self.begin(*what)
        return self.answer(CALL_S)

    def tokens(self):
        return self.call("tokens")

    def init_weight_transfer_engine(self, info):
        self.call("init", info)

    def start_weight_update(self):
        self.call("start")

    def update_weights(self, info):
        self.call("update", info)

    def finish_weight_update(self, weight_version=None):
        self.call("finish", weight_version)

    def kill(self):
        """It and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for f in (self.process.stdin, self.process.stdout, self.log):
            with contextlib.suppress(OSError):
                f.close()


class Policy:
    """A small model, and what it says with the weights of a seed."""

    def __init__(self, folder, kind="Qwen2Config", **other):
        import torch
        import transformers

        self.torch, self.folder = torch, str(folder)
        sizes = {
            "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 128, "eos_token_id": None, "bos_token_id": None,
        }  # fmt: skip
        config = getattr(transformers, kind)(**{**sizes, **other})
        self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        config.architectures = [type(self.model).__name__]
        config.save_pretrained(self.folder)  # no weights: these come from agents

    def train(self, seed):
        """Other weights, in place; the tokens that Hugging Face makes of them."""
        torch = self.torch
        made = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.dim() > 1:
                    parameter.copy_(torch.randn(parameter.shape, generator=made) * 0.2)
        return self.says()

    def says(self):
        torch = self.torch
        prompt = torch.tensor([PROMPT])
        out = self.model.generate(prompt, max_new_tokens=COUNT, do_sample=False)
        return out[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    pytest.importorskip("vllm", reason="vllm is not installed")
    return Policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def experts(policy, tmp_path_factory):
    """A mixture of experts."""
    return Policy(
        tmp_path_factory.mktemp("experts"), "Qwen2MoeConfig", num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=64, shared_expert_intermediate_size=128,
    )  # fmt: skip


def engine_of(policy, folder, log, environ={}, **arguments):
    """An engine that is ready; ``folder`` is an installed one."""
    path = os.pathsep.join([os.environ["PYTHONPATH"], folder, HERE])
    environment = dict(
        os.environ, PYTHONPATH=path, VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_PLUGINS="tensorhub",
    )  # fmt: skip
    fixed = {
        "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32",
        "max_model_len": 64, "max_num_seqs": 2, "enable_prefix_caching": False,
        "weight_transfer_config": {"backend": "tensorhub"},
    }  # fmt: skip
    engine = Engine(log, {**environment, **environ}, model=policy.folder, **{**fixed, **arguments})
    try:
        assert engine.answer(START_S) == "ready"
    except BaseException:
        engine.kill()
        raise
    return engine


@pytest.fixture(scope="module")
def start(agent, tmp_path_factory):
    """Starts engines of a policy; all end with the tests of this file."""
    engines = []
    folder = tmp_path_factory.mktemp("engines")
    install(folder)
    distribution(folder, "place", {"vllm.general_plugins": {"place": "vllm_engine:place"}})

    def one(policy, environ={}, **arguments):
        log = str(folder / f"engine-{len(engines)}.log")
        environ = {"THC_AGENT": agent, **environ}
        engines.append(engine_of(policy, str(folder), log, environ, **arguments))
        return engines[-1]

    try:
        yield one
    finally:
        for engine in engines:
            engine.kill()


@pytest.fixture(scope="module")
def pair(daemons, start, policy):
    """An engine of two workers for many tests; the agent of worker 0 is b."""
    runtime = daemons.agent("b").runtime
    environ = {"TH_TEST_AGENT_OF_WORKER_0": runtime, "VLLM_PLUGINS": "tensorhub,place", **TWO}
    return start(policy, environ, load_format="dummy", tensor_parallel_size=2)


def trainer_of(policy, model, client, source=None, **info):
    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

    from tensorhub.integrations.vllm import TrainerInfo, register

    register()
    register()  # vLLM loads plugins more than once
    return WeightTransferTrainerFactory.trainer_init(
        TrainerInfo(model, rank=0, **info),
        client=client,
        source=source or ModuleSource(policy.model),
    )


def sends(trainer, policy, engine, seed, version=None):
    """An update, after which the engine says what Hugging Face says."""
    wanted = policy.train(seed)
    trainer.send_weights(version)
    assert engine.tokens() == wanted
    return wanted


class Answer(Exception):
    """As what requests raises: why is in the answer only."""

    def __init__(self, text):
        super().__init__("500 Server Error for url")
        self.response = types.SimpleNamespace(text=text)


def test_what_a_server_answers_is_heard(policy, model, agent):
    """vLLM's client for HTTP raises for the status, and leaves out the rest."""
    calls, begun = [], ["Worker failed: an update of another trainer has begun and has not ended"]

    class Client:
        def __getattr__(self, name):
            return lambda *_: calls.append(name)

        def init_weight_transfer_engine(self, info):
            calls.append("init")
            if begun:
                raise Answer(begun.pop())

        def update_weights(self, info):
            raise Answer("worker 0 of 2: NoAgent: no agent")

    trainer = trainer_of(policy, model, Client())
    assert calls == ["init", "finish_weight_update", "init"]
    calls.clear()
    with pytest.raises(RuntimeError, match="worker 0 of 2: NoAgent: no agent"):
        trainer.send_weights()
    assert calls == ["start_weight_update", "finish_weight_update"]
    trainer.shutdown()


def test_a_trainer_goes_on_when_its_agent_has_come_back(policy, model, monkeypatch):
    told = []
    client = types.SimpleNamespace(
        init_weight_transfer_engine=told.append, start_weight_update=lambda: None,
        update_weights=told.append, finish_weight_update=told.append,
    )  # fmt: skip
    cluster, failed = Cluster(), True
    try:
        first = cluster.agent("a")
        monkeypatch.setenv("THC_AGENT", first.runtime)
        trainer = trainer_of(policy, model, client, lineage=7)
        trainer.send_weights(1)
        cluster.replaced(first)
        told.clear()
        with pytest.raises(ConnectionError):
            trainer.send_weights(2)
        assert not told
        cluster.agent("a")
        trainer.send_weights(2)
        assert told == [{"model": model, "lineage": 7, "version": 2}, "2"]
        assert set(th.load(model)) == {name for name, _ in policy.model.named_parameters()}
        trainer.shutdown()
        failed = False
    finally:
        cluster.close(failed)


class Nobody:
    """The client of a trainer whose engine has not started."""

    def __getattr__(self, name):
        return lambda *_: None


def digests_of_experts(experts, size):
    """What vLLM says of them in each of its workers, layer for layer: of their rows and columns."""

    def digest(tensor):
        return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()

    for rank in range(size):
        mine = {}
        for i, layer in enumerate(experts.model.model.layers):
            gate, up = layer.mlp.experts.gate_up_proj.chunk(2, dim=1)
            rows = [half.chunk(size, dim=1)[rank] for half in (gate, up)]
            mine[i, "w13_weight"] = digest(experts.torch.cat(rows, dim=1))
            mine[i, "w2_weight"] = digest(layer.mlp.experts.down_proj.chunk(size, dim=2)[rank])
        yield mine


def test_a_mixture_of_experts(start, experts, model, agent):
    """Engines of two workers and of one begin with it, and say what Hugging Face says.

    After an update vLLM 0.32 does not pack experts for its kernel of CPUs, so what the engine says
    then is not looked at: its workers have the bytes of the trainer.
    """
    trainer = trainer_of(experts, model, Nobody())
    wanted = experts.train(1)
    trainer.send_weights()
    options = {"load_format": "tensorhub", "model_loader_extra_config": {"model": model}}
    two = start(experts, TWO, tensor_parallel_size=2, **options)
    assert two.tokens() == wanted
    trainer.client = two
    for seed in (2, 3):
        wanted = experts.train(seed)
        trainer.send_weights()
        for said, mine in zip(two.call("digests"), digests_of_experts(experts, 2)):
            of_experts = [name.split(".") for name in said if ".experts." in name]
            names = {(int(name[2]), name[-1]): ".".join(name) for name in of_experts}
            assert {key: said[names[key]] for key in mine} == mine
    trainer.shutdown()
    one = start(experts, **options)  # from a worker of the other engine
    two.kill()
    assert one.tokens() == wanted
    one.kill()


def test_two_workers_say_what_one_model_says(pair, policy, model, agent):
    trainer = trainer_of(policy, model, pair)
    for step in (1, 2, 3):
        sends(trainer, policy, pair, step)
        assert pair.call("version") == str(step)
    with th.watch(model) as w:
        assert len(w.list()[3]) == 3  # the trainer, and each worker for itself
    trainer.shutdown()


def test_where_one_worker_fails_none_changes_and_the_next_update_works(
    pair, policy, model, agent, daemons
):
    trainer = trainer_of(policy, model, pair)
    before = sends(trainer, policy, pair, 4)
    daemons.replaced(daemons.agents["b"])
    wanted = policy.train(5)
    for _ in range(2):
        with pytest.raises(Failed, match=r"worker 0 of 2: NoAgent: .*thctl up"):
            trainer.send_weights()
        assert pair.tokens() == before and pair.call("version") == "1"
    daemons.agent("b")
    trainer.send_weights()
    assert pair.tokens() == wanted and pair.call("version") == "4"
    trainer.shutdown()


def test_weights_of_another_model_change_nothing(pair, policy, model, agent):
    """What is missing, has another shape or has no place is said before anything is loaded."""
    trainer = trainer_of(policy, model, pair)
    before = sends(trainer, policy, pair, 6)
    trainer.shutdown()
    policy.train(7)
    weights = dict(policy.model.named_parameters())

    def but(name):
        return {n: tensor for n, tensor in weights.items() if n != name}

    k, norm, other = (
        f"model.{name}.weight" for name in ("layers.1.self_attn.k_proj", "norm", "other")
    )
    wrong = {
        r"layers\.1\.self_attn\.qkv_proj gets \d+ of \d+ elements": but(k),
        r"model\.norm gets 0 of 128 elements, one of 1 layers": but(norm),
        r"not take 'model\.other\.weight' \(128,\)": {**weights, other: weights[norm]},
        rf"not take '{k}' \(64, 64\)": {**weights, k: weights[k][:, :64].contiguous()},
    }
    for i, (said, tensors) in enumerate(wrong.items()):
        trainer = trainer_of(policy, f"{model}-{i}", pair, list(tensors.items()))
        with pytest.raises(Failed, match=f"worker 0 of 2: ValueError: .*{said}"):
            trainer.send_weights()
        assert pair.tokens() == before
        trainer.shutdown()
    trainer = trainer_of(policy, model, pair)
    sends(trainer, policy, pair, 8)
    trainer.shutdown()


def test_other_types_and_shapes_come_with_another_trainer(pair, policy, model, agent):
    """vLLM's loader casts; a trainer's tensors stay what they were at first."""
    trainer = trainer_of(policy, model, pair)
    sends(trainer, policy, pair, 9)
    shapes = [("w", policy.torch.ones(2)), ("w", policy.torch.ones(3))]
    changed = trainer_of(policy, f"{model}-2", pair, shapes[:1])
    with pytest.raises(Failed, match="not take 'w'"):
        changed.send_weights()
    changed.source = shapes[1:]
    with pytest.raises(th.Layout, match=r"'w' is F32 \(3,\) and was F32 \(2,\) at first"):
        changed.send_weights()
    changed.shutdown()
    trainer.shutdown()
    trainer = trainer_of(policy, model, pair, dtype="BF16")
    policy.train(10)
    with policy.torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.copy_(parameter.bfloat16())
    trainer.send_weights()
    assert pair.tokens() == policy.says()
    trainer.shutdown()


def test_a_version_that_is_gone_and_a_training_that_is_over(pair, policy, model, agent):
    trainer = trainer_of(policy, model, pair)
    before = sends(trainer, policy, pair, 11)
    pair.start_weight_update()
    with pytest.raises(Failed, match="worker 0 of 2: NotAvailable: .*send the weights again"):
        pair.update_weights({**trainer._info, "version": 99})
    with pytest.raises(Failed, match="without a matching start_weight_update"):
        pair.finish_weight_update()  # as the trainer does
    later = trainer_of(policy, model, pair)
    before = sends(later, policy, pair, 12)
    policy.train(13)
    with pytest.raises(Failed, match="a later training, of lineage .*give it another name"):
        trainer.send_weights()
    assert pair.tokens() == before
    trainer.shutdown()
    sends(later, policy, pair, 14)
    later.shutdown()


@contextlib.contextmanager
def agent_of_another_release(runtime):
    """What a libthc of this release hears there: a WELCOME (ipc/sock/fdmsg.h) of protocol 9."""
    body = struct.pack("<IIQQ32s256s", 9, 1, 0, 1, b"9.0.0", b"b")
    path = os.path.join(runtime, "agent.fds")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        peer.recv(1 << 16)
                        peer.send(struct.pack("<IHHII", 0x31434854, 2, 0, len(body), 0) + body)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    os.unlink(path)


def test_an_agent_of_another_release(pair, policy, model, agent, daemons):
    b = daemons.agents["b"]
    daemons.replaced(b)
    with agent_of_another_release(b.runtime):
        with pytest.raises(Failed, match="worker 0 of 2: Protocol: .* upgrade the older one"):
            trainer_of(policy, f"{model}-2", pair)
    daemons.agent("b")
    trainer = trainer_of(policy, model, pair)
    sends(trainer, policy, pair, 15)
    trainer.shutdown()


class Piped:
    """The client of a trainer in another process: whoever has the other end makes its calls."""

    def __init__(self, pipe):
        self.pipe = pipe

    def __getattr__(self, name):
        def call(*arguments):
            self.pipe.send((name, arguments))
            self.pipe.recv()

        return call


def trains(policy, model, pipe, directory):
    os.environ["THC_AGENT"] = directory
    trainer_of(policy, model, Piped(pipe)).send_weights()


@contextlib.contextmanager
def trainer_process(policy, model, engine, directory, until):
    """A trainer that has made its calls to the engine until this one, and is killed at the end."""
    here, there = multiprocessing.Pipe()
    arguments = policy, model, there, directory
    process = multiprocessing.get_context("fork").Process(target=trains, args=arguments)
    process.start()
    try:
        while True:
            assert here.poll(CALL_S), f"the trainer did not come to {until}"
            name, arguments = here.recv()
            if name == until:
                break
            getattr(engine, name)(*arguments)
            here.send(None)
        yield arguments
    finally:
        process.kill()
        process.join()
        here.close()
        there.close()


@pytest.mark.parametrize(
    "moment, made, is_new",
    [
        ("init_weight_transfer_engine", True, False),  # nothing is published
        ("start_weight_update", False, False),  # published
        ("update_weights", False, False),  # the update has begun
        ("finish_weight_update", False, False),  # each worker has it
        ("finish_weight_update", True, True),
    ],
)
def test_a_trainer_is_killed(pair, policy, model, agent, moment, made, is_new):
    """It has made that call to the engine, or was about to. The next trainer goes on."""
    before = pair.tokens()
    wanted = policy.train(20)
    with trainer_process(policy, model, pair, agent, moment) as arguments:
        if made:
            getattr(pair, moment)(*arguments)
    assert pair.tokens() == (wanted if is_new else before)
    trainer = trainer_of(policy, model, pair)
    sends(trainer, policy, pair, 21)
    trainer.shutdown()


def test_a_trainer_is_killed_while_workers_pull(pair, policy, model, agent, daemons):
    """One worker has it, so the other one gets it from there."""
    wanted = policy.train(22)
    b = daemons.agents["b"]
    with trainer_process(policy, model, pair, agent, "update_weights") as (info,):
        b.signal(signal.SIGSTOP)
        pair.begin("update", info)
        with th.watch(model) as w:
            w.wait(lambda versions: len(versions.get(1, ())) == 2, timeout=CALL_S)
    b.signal(signal.SIGCONT)
    pair.answer(CALL_S)
    pair.finish_weight_update()
    assert pair.tokens() == wanted
    trainer = trainer_of(policy, model, pair)
    sends(trainer, policy, pair, 23)
    trainer.shutdown()


class At:
    """The client of a trainer, before one of whose calls something happens."""

    def __init__(self, engine, moment, act):
        self.engine, self.moment, self.act = engine, moment, act

    def __getattr__(self, name):
        if name == self.moment:
            self.act()
        return getattr(self.engine, name)


@pytest.mark.parametrize(
    "moment, is_new",
    [("start_weight_update", False), ("update_weights", False), ("finish_weight_update", True)],
)
def test_the_agent_of_a_worker_is_killed(pair, policy, model, agent, daemons, moment, is_new):
    """What it has it has: it is loaded without an agent."""
    before, wanted = pair.tokens(), policy.train(24)
    kill = At(pair, moment, lambda: daemons.replaced(daemons.agents["b"]))
    trainer = trainer_of(policy, model, kill)
    with contextlib.nullcontext() if is_new else pytest.raises(Failed, match="worker 0 of 2: No"):
        trainer.send_weights()
    assert pair.tokens() == (wanted if is_new else before)
    daemons.agent("b")
    trainer.client = pair
    sends(trainer, policy, pair, 25)
    trainer.shutdown()


def test_the_agent_of_a_worker_is_killed_while_it_pulls(pair, policy, model, agent, daemons):
    before, b = pair.tokens(), daemons.agents["b"]
    policy.train(26)
    with trainer_process(policy, model, pair, agent, "update_weights") as (info,):
        b.signal(signal.SIGSTOP)
        pair.begin("update", info)
        with th.watch(model) as w:
            w.wait(lambda versions: len(versions.get(1, ())) == 2, timeout=CALL_S)
        daemons.replaced(b)
        with pytest.raises(Failed, match="worker 0 of 2: (AgentLost|NoAgent): "):
            pair.answer(CALL_S)
    assert pair.tokens() == before
    daemons.agent("b")
    trainer = trainer_of(policy, model, pair)  # it ends the update of the one before
    sends(trainer, policy, pair, 27)
    trainer.shutdown()


@pytest.mark.parametrize(
    "moment", ["start_weight_update", "update_weights", "finish_weight_update", "no call"]
)
def test_the_agent_of_the_trainer_is_killed(
    pair, policy, model, agent, daemons, monkeypatch, moment
):
    """An update that has begun may end with the new weights or without, but on all workers."""
    before, wanted = pair.tokens(), policy.train(28)
    monkeypatch.setenv("THC_AGENT", daemons.agent("c").runtime)
    kill = At(pair, moment, lambda: daemons.replaced(daemons.agents["c"]))
    trainer = trainer_of(policy, model, kill)
    try:
        trainer.send_weights()
        assert pair.tokens() == wanted
    except Failed as failure:
        assert moment != "finish_weight_update" and "NotAvailable" in str(failure)
        assert pair.tokens() == before
    if moment == "no call":
        daemons.replaced(daemons.agents["c"])
    trainer.client = pair
    with pytest.raises(ConnectionError):
        trainer.send_weights()
    daemons.agent("c")
    sends(trainer, policy, pair, 29)
    trainer.shutdown()
    daemons.replaced(daemons.agents["c"])


def reaches(runtime, model):
    """Whether this agent has a server: it attaches to a new one within seconds."""
    with th.watch(model, agent=runtime) as watch:
        try:
            return watch.list() is not None
        except th.NoServer:
            return False


@pytest.mark.parametrize(
    "moment, is_new",
    [("start_weight_update", False), ("update_weights", False), ("finish_weight_update", True)],
)
def test_the_server_is_killed(pair, policy, model, agent, daemons, moment, is_new):
    """Where it is asked for the version the update fails; the next publish waits for it."""
    before, wanted = pair.tokens(), policy.train(30)
    trainer = trainer_of(policy, model, At(pair, moment, daemons.server.kill))
    with contextlib.nullcontext() if is_new else pytest.raises(Failed, match="NoServer: .*"):
        trainer.send_weights()
    assert pair.tokens() == (wanted if is_new else before)
    daemons.replaced(daemons.server)
    daemons.start_server(daemons.server_url)
    for host in (daemons.agents["a"], daemons.agents["b"]):  # those of the workers
        wait_for(lambda host=host: reaches(host.runtime, model), 30, f"{host.node} is attached")
    trainer.client = pair
    sends(trainer, policy, pair, 31)
    trainer.shutdown()


def test_an_engine_begins_with_what_another_one_has_and_outlives_it(
    start, pair, policy, model, agent
):
    """Of one worker; the other one has two, and is killed in the middle of an update."""
    trainer = trainer_of(policy, model, pair)
    wanted = sends(trainer, policy, pair, 32, 7)
    trainer.shutdown()
    alone = start(policy, load_format="tensorhub", model_loader_extra_config={"model": model})
    assert alone.tokens() == wanted
    trainer = trainer_of(policy, model, At(pair, "finish_weight_update", pair.kill))
    policy.train(33)
    with pytest.raises(ValueError, match="closed file"):
        trainer.send_weights()
    assert alone.tokens() == wanted
    trainer.client = alone
    for seed in (34, 35):
        sends(trainer, policy, alone, seed)
    assert alone.call("version") == "3"
    trainer.shutdown()
