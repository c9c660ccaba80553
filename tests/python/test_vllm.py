# SPDX-License-Identifier: Apache-2.0
"""tensorhub.integrations.vllm under the real vLLM: greedy tokens are those of Hugging Face.

Engines run in processes of vllm_engine.py, without a GPU; the trainer is here. Suite `frameworks`.
Where vLLM is not installed all but the hint of the import is skipped.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import types

import pytest
import tensorhub as th
from conftest import HERE, SIZE, Cluster, memory

MODULE = "tensorhub.integrations.vllm"
PROMPT, COUNT = [1, 2, 3, 4], 12
START_S, CALL_S = 240, 120  # what an engine may take to come up, and for a call


def test_without_vllm_the_import_says_what_to_do(monkeypatch):
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"vLLM cannot be imported \(.*\); pip install vllm$"):
        importlib.import_module(MODULE)


# ---- a stand-in with the classes of vLLM 0.24, which has no engine for trainers ------------------


@pytest.fixture
def old(monkeypatch):
    """The adapter over the stand-in, and what it has registered there."""
    registered = []

    class Engine:
        def __init__(self, config, parallel_config, model):
            self.config, self.parallel_config, self.model = config, parallel_config, model

    class Factory:
        @staticmethod
        def register_engine(name, kind):
            registered.append((name, kind))

    class BaseLoader:
        def __init__(self, load_config):
            self.load_config = load_config

    def module(name, **attributes):
        made = types.ModuleType(name)
        made.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    info = types.SimpleNamespace(WeightTransferInitInfo=object, WeightTransferUpdateInfo=object)
    transfer = module(
        "vllm.distributed.weight_transfer", base=info, WeightTransferEngine=Engine,
        WeightTransferEngineFactory=Factory,
    )  # fmt: skip
    loader = module(
        "vllm.model_executor.model_loader", BaseModelLoader=BaseLoader,
        register_model_loader=lambda name: lambda kind: registered.append((name, kind)),
    )  # fmt: skip
    module("vllm")
    module("vllm.distributed", weight_transfer=transfer)
    module("vllm.model_executor", model_loader=loader)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    adapter = importlib.import_module(MODULE)
    yield adapter, registered
    del sys.modules[MODULE]


class Model:
    def __init__(self):
        self.got = {}

    def load_weights(self, pairs):
        self.got = {name: bytes(tensor) for name, tensor in pairs}


def test_it_is_registered_once(old):
    adapter, registered = old
    adapter.register()
    adapter.register()
    assert registered == [("tensorhub", adapter.Engine), ("tensorhub", adapter.Loader)]


def test_an_engine_of_024_loads_what_it_is_given(old, agent, model):
    adapter, _ = old
    engine = adapter.Engine("config", "parallel_config", Model())
    engine.init_transfer_engine(adapter.InitInfo(model))
    with th.open(model, replica="trainer", lineage=5) as h:
        h.register({"w": memory(1)})
        h.publish(7)
        engine.receive_weights(adapter.UpdateInfo(model, 5, 7), engine.model.load_weights)
        assert engine.model.got == {"w": bytes([1]) * SIZE}
        for lineage, version in ((5, 8), (4, 7)):  # not there; of the training before
            with pytest.raises(th.NotAvailable, match="version"):
                engine.receive_weights(adapter.UpdateInfo(model, lineage, version), None)
        assert len(h.list()[7]) == 2
    assert engine.model.got == {"w": bytes([1]) * SIZE}
    engine.shutdown()


def test_an_engine_begins_with_what_another_one_has(old, agent, model):
    adapter, _ = old
    other = adapter.Engine("config", "parallel_config", Model())
    with th.open(model, replica="trainer") as h:
        h.register({"w": memory(2)})
        h.publish(3)
        other.receive_weights(adapter.UpdateInfo(model, 0, 3))
    config = types.SimpleNamespace(model_loader_extra_config={"model": model})
    begins = Model()
    adapter.Loader(config).load_weights(begins, None)
    assert begins.got == {"w": bytes([2]) * SIZE}
    other.shutdown()
    with pytest.raises(th.NotAvailable):
        adapter.Loader(config).load_weights(begins, None)


def test_an_engine_waits_for_the_first_version_where_it_is_told_to(old, agent, model):
    adapter, _ = old
    config = types.SimpleNamespace(model_loader_extra_config={"model": model, "wait": 0.2})
    begins = Model()
    with pytest.raises(th.Timeout):
        adapter.Loader(config).load_weights(begins, None)
    config.model_loader_extra_config["wait"] = 60
    engine = threading.Thread(target=adapter.Loader(config).load_weights, args=(begins, None))
    engine.start()
    with th.open(model, replica="trainer") as h:
        h.register({"w": memory(4)})
        h.publish(1)
        engine.join()
        assert begins.got == {"w": bytes([4]) * SIZE}


# ---- the real vLLM ------------------------------------------------------------------------------


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

    def call(self, *what):
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()
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

    def __init__(self, folder):
        import torch
        import transformers

        self.torch, self.folder = torch, str(folder)
        config = transformers.Qwen2Config(
            vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
            eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
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
        prompt = torch.tensor([PROMPT])
        out = self.model.generate(prompt, max_new_tokens=COUNT, do_sample=False)
        return out[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    pytest.importorskip("vllm", reason="vllm is not installed")
    return Policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def start(agent, policy, installed, tmp_path):
    """Starts an engine; all end with the test."""
    engines = []
    path = os.pathsep.join([os.environ["PYTHONPATH"], installed])
    environment = dict(
        os.environ, PYTHONPATH=path, VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_PLUGINS="tensorhub",
    )  # fmt: skip

    def one(**arguments):
        engine = Engine(
            str(tmp_path / f"engine-{len(engines)}.log"), environment, model=policy.folder,
            skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=64,
            max_num_seqs=2, enable_prefix_caching=False,
            weight_transfer_config={"backend": "tensorhub"}, **arguments,
        )  # fmt: skip
        engines.append(engine)
        assert engine.answer(START_S) == "ready"
        return engine

    try:
        yield one
    finally:
        for engine in engines:
            engine.kill()


def trainer_of(policy, model, client, **info):
    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

    from tensorhub.integrations.vllm import TrainerInfo, register

    register()
    register()  # vLLM loads plugins more than once
    return WeightTransferTrainerFactory.trainer_init(
        TrainerInfo(model, rank=0, **info), client=client, source=ModuleSource(policy.model)
    )


def test_updates_then_the_trainer_goes_and_another_engine_begins(start, policy, model):
    """Three updates; without the trainer an engine gets its weights from the other one, which is
    killed; then a new training, whose steps begin again, updates it."""
    first = start(load_format="dummy")
    trainer = trainer_of(policy, model, first)
    for step in (1, 2, 3):
        wanted = policy.train(step)
        trainer.send_weights()
        assert first.tokens() == wanted and first.call("version") == str(step)
    first.start_weight_update()
    with pytest.raises(Failed, match="version"):
        first.update_weights({"model": model, "lineage": 1, "version": 99})
    assert first.tokens() == wanted  # of what is not there nothing has changed
    trainer.shutdown()
    second = start(load_format="tensorhub", model_loader_extra_config={"model": model})
    assert second.tokens() == wanted
    first.kill()
    trainer = trainer_of(policy, model, second)
    wanted = policy.train(4)
    trainer.send_weights(3)
    assert second.tokens() == wanted and second.call("version") == "3"
    with th.watch(model) as w:
        assert w.latest() == 3
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
