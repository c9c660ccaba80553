# SPDX-License-Identifier: Apache-2.0
"""tensorhub.integrations.vllm against the Python code of one version of vLLM, and real agents.

vLLM's own code loads the plugin, makes engines, trainers and loaders, calls them from its worker,
reads its sources and puts weights into a module. There is no engine around the worker: test_vllm.py
starts whole ones, of one version. Suite `frameworks`, once for each version that meson names.
"""

import logging
import os
import subprocess
import sys
import threading

import pytest
import tensorhub as th
from conftest import HERE

WANTED = os.environ.get("TH_VLLM")
vllm = pytest.importorskip("vllm", reason="vllm is not installed")
if WANTED and not vllm.__version__.startswith(WANTED):
    pytest.skip(f"vllm is not installed as {WANTED}", allow_module_level=True)

from vllm.config.load import LoadConfig  # noqa: E402
from vllm.distributed import weight_transfer as wt  # noqa: E402
from vllm.model_executor.model_loader import get_model_loader  # noqa: E402
from vllm_worker import Client, Net, named, worker_of  # noqa: E402

TRAINS = hasattr(wt, "WeightTransferTrainerFactory")
trains = pytest.mark.skipif(not TRAINS, reason="vLLM before 0.28 has no engines of trainers")


@pytest.fixture(scope="module")
def adapter(installed):
    """As vLLM loads it in each of its processes: by its entry point, and more than once."""
    from vllm import plugins

    sys.path.append(installed)
    try:
        for _ in range(2):
            plugins.plugins_loaded = False
            plugins.load_general_plugins()
    finally:
        sys.path.remove(installed)
    return sys.modules["tensorhub.integrations.vllm"]


@pytest.fixture
def workers(adapter, agent):
    """Two of an engine, and what they hold."""
    nets = [Net(0), Net(0)]
    made = [worker_of(net) for net in nets]
    yield made, nets
    for worker in made:
        worker.weight_transfer_engine.shutdown()


class Trainer:
    """For vLLM 0.24 what its users write: it has an engine on one side only."""

    def __init__(self, model, net, client, lineage):
        self.info = {"model": model, "lineage": lineage}
        self.net, self.client, self.step = net, client, 0
        self.handle = th.open(model, replica="trainer", lineage=lineage)
        self.publisher = th.Publisher(self.handle, dict(named(net)))
        client.init_weight_transfer_engine({"model": model})

    def send_weights(self, step=None):
        self.step = self.step + 1 if step is None else step
        self.publisher.publish(self.step)
        self.client.start_weight_update()
        self.client.update_weights({**self.info, "version": self.step})
        self.client.finish_weight_update(str(self.step))

    def shutdown(self):
        self.publisher.close()
        self.handle.close()


def trainer_of(adapter, model, net, client, lineage=1, **options):
    if not TRAINS:
        return Trainer(model, net, client, lineage)
    return wt.WeightTransferTrainerFactory.trainer_init(
        adapter.TrainerInfo(model, rank=0, lineage=lineage, **options),
        client=client, source=wt.ModuleSource(net),
    )  # fmt: skip


def test_vllm_makes_what_is_registered(adapter, workers):
    (worker, _), _ = workers
    engine = worker.weight_transfer_engine
    assert type(engine) is adapter.Engine and isinstance(engine, wt.WeightTransferEngine)
    assert engine.parse_init_info({"model": "m"}) == adapter.InitInfo("m")
    assert engine.parse_update_info({"model": "m", "lineage": 2, "version": 3}).version == 3
    for wrong in ({}, {"model": "m", "colour": 1}):
        with pytest.raises(ValueError, match="Invalid init_info for Engine"):
            engine.parse_init_info(wrong)
    with pytest.raises(ValueError, match="Invalid weight transfer backend: other"):
        worker_of(Net(0), "other")


def test_each_step_is_in_every_worker_bit_for_bit(adapter, workers, model):
    made, nets = workers
    places = [one.data_ptr() for net in nets for one in net.parameters()]
    trained, client = Net(0), Client(*made)
    trainer = trainer_of(adapter, model, trained, client)
    for step in (1, 2, 3):
        trained.draw(step)
        trainer.send_weights()
        assert client.version == str(step)
        for net in nets:
            assert net.bits() == trained.bits()
    # vLLM copies into the memory that its graphs were captured over.
    assert places == [one.data_ptr() for net in nets for one in net.parameters()]
    trainer.shutdown()
    again = trainer_of(adapter, model, trained, client, lineage=2)
    trained.draw(4)
    again.send_weights(3)  # a step that the workers hold, of the training before
    assert all(net.bits() == trained.bits() for net in nets)
    again.shutdown()


def test_what_is_not_there_is_said(adapter, workers, model):
    made, nets = workers
    trained, client = Net(1), Client(*made)
    trainer = trainer_of(adapter, model, trained, client)
    trainer.send_weights()
    client.start_weight_update()
    for worker in made:
        missing = (1, 2, th.NotAvailable, "send the weights again")
        before = (0, 1, th.State, "a later training, of lineage 1")
        for lineage, version, kind, said in (missing, before):
            worker._weight_update_active = True  # vLLM has ended the update
            with pytest.raises(kind, match=said):
                worker.update_weights({"model": model, "lineage": lineage, "version": version})
            assert not worker._weight_update_active
    if TRAINS:  # 0.24 takes a model apart before it asks
        assert all(net.bits() == trained.bits() for net in nets)
    trained.draw(2)
    trainer.send_weights()
    assert all(net.bits() == trained.bits() for net in nets)
    trainer.shutdown()


def loader_of(model, **extra):
    extra["model"] = model
    return get_model_loader(LoadConfig(load_format="tensorhub", model_loader_extra_config=extra))


def test_an_engine_begins_with_what_another_one_has(adapter, workers, model):
    made, _ = workers
    trained, begins = Net(3), Net(0)
    trainer = trainer_of(adapter, model, trained, Client(*made))
    trainer.send_weights()
    trainer.shutdown()
    loader = loader_of(model)
    assert type(loader) is adapter.Loader
    loader.download_model(None)
    loader.load_weights(begins, None)
    assert begins.bits() == trained.bits()
    for worker in made:
        worker.weight_transfer_engine.shutdown()
    with pytest.raises(th.NotAvailable):
        loader.load_weights(begins, None)


def test_an_engine_waits_for_the_first_version_where_it_is_told_to(adapter, agent, model):
    trained, begins = Net(4), Net(0)
    with pytest.raises(th.Timeout):
        loader_of(model, wait=0.2).load_weights(begins, None)
    loader = loader_of(model, wait=60)
    engine = threading.Thread(target=loader.load_weights, args=(begins, None))
    engine.start()
    with th.open(model, replica="trainer") as h:
        h.register(dict(named(trained)))
        h.publish(1)
        engine.join()
    assert begins.bits() == trained.bits()


class Elsewhere(Client):
    """Of workers on another host, which has this agent."""

    def __init__(self, agent, *workers):
        super().__init__(*workers)
        self.agent = agent

    def __getattribute__(self, name):
        call = super().__getattribute__(name)
        if not callable(call):
            return call

        def there(*arguments):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("THC_AGENT", self.agent.runtime)
                patch.setattr("socket.gethostname", lambda: "elsewhere")
                return call(*arguments)

        return there


@pytest.fixture
def elsewhere(daemons):
    """Agents, by what they are started with."""
    made = []

    def start(*args):
        made.append(daemons.agent("elsewhere", args=args))
        return made[-1]

    yield start
    for one in made:
        daemons.replaced(one)


@trains
def test_hosts_of_engines_fetch_a_step_before_they_are_told(
    adapter, workers, model, elsewhere, caplog
):
    """All but the first one, and the host once for both workers."""
    made, nets = workers
    caplog.set_level(logging.INFO, "tensorhub")
    trained, client = Net(0), Elsewhere(elsewhere(), *made)
    size = sum(one.nbytes for one in trained.parameters())
    trainer = trainer_of(adapter, model, trained, client, prefetch=60.0)

    def sends(trainer, seed):
        """Bytes that the host had before, and all, of each worker."""
        caplog.clear()
        trained.draw(seed)
        trainer.send_weights()
        assert all(net.bits() == trained.bits() for net in nets)
        return [record.args[-2:] for record in caplog.records if "install_s" in record.message]

    assert sends(trainer, 1) == [(0, size)] * 2
    for seed in (2, 3):
        first, second = sends(trainer, seed)
        assert first == (size, size) and second in (first, (0, size))  # or it reads from the first
    trainer.shutdown()
    again = trainer_of(adapter, model, trained, client, lineage=2)  # one that does not ask for it
    for seed in (4, 5):
        assert sends(again, seed) == [(0, size)] * 2
    again.shutdown()


@trains
def test_where_no_host_can_fetch_it_is_said_once(adapter, model, agent, elsewhere, caplog):
    trained, net = Net(0), Net(0)
    worker = worker_of(net)
    client = Elsewhere(elsewhere("--offload-limit", "0"), worker)
    trainer = trainer_of(adapter, model, trained, client, prefetch=0.5)
    for step in (1, 2, 3, 4):
        trained.draw(step)
        trainer.send_weights()
        assert net.bits() == trained.bits()
    said = [record.message for record in caplog.records if "--offload-limit" in record.message]
    assert len(said) == 1 and "version 2," in said[0], said
    trainer.shutdown()
    worker.weight_transfer_engine.shutdown()


@trains
def test_a_trainer_without_a_source_is_refused(adapter, agent, model):
    with pytest.raises(ValueError, match="source: there is none"):
        wt.WeightTransferTrainerFactory.trainer_init(
            adapter.TrainerInfo(model, rank=0), client=Client()
        )


@trains
def test_a_source_of_which_the_sender_has_a_part_is_refused(adapter, agent, model):
    """A stage of a pipeline: what rank 0 does not own would be missing in the version."""
    if not hasattr(wt.ModuleSource, "owned_names"):
        pytest.skip("vLLM before 0.33 has no owners of tensors")
    from functools import cached_property

    class Stage(wt.ModuleSource):
        @cached_property
        def metadata(self):
            first, *others = super().metadata
            return [wt.ParamMeta(first.name, first.dtype, first.shape, owners=(1,)), *others]

    for rank in (0, 1):
        with pytest.raises(ValueError, match=r"rank 0 has to own .* not embed\.weight"):
            wt.WeightTransferTrainerFactory.trainer_init(
                adapter.TrainerInfo(model, rank=rank), client=Client(), source=Stage(Net(0))
            )


@trains
@pytest.mark.parametrize("what", ["ends", "stays"])
def test_ranks_of_fsdp2_send_and_none_hangs(agent, model, tmp_path, what):
    """Two steps; one that cannot be published, which its other rank does not notice; the next; one
    that the other rank cannot gather: the sender hears of it, and the worker has the old one."""
    seconds = 60 if what == "ends" else 15  # of the process group
    here = os.path.dirname(os.path.dirname(vllm.__file__))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([os.environ["PYTHONPATH"], here]))
    ranks = [
        subprocess.Popen(
            [sys.executable, os.path.join(HERE, "vllm_worker.py"), str(tmp_path / "store"),
             str(rank), "2", model, str(seconds), what],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = ranks[0].communicate(timeout=500)[0]
        assert ranks[0].returncode == 0 and said.endswith("rank 0 has ended\n"), said
        if what == "ends":
            other = ranks[1].communicate(timeout=60)[0]
            assert "RuntimeError: no memory on this rank" in other
    finally:
        for one in ranks:
            one.kill()
            one.wait()
            one.stdout.close()
