# SPDX-License-Identifier: Apache-2.0
"""th.Publisher of modules, optimizers' masters and arrays: casts, strides, ties. Needs torch."""

import pytest
import tensorhub as th
from test_torch import shards_equal_full

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def trainer(agent, model):
    with th.open(model, replica="trainer") as handle:
        yield handle
        handle.close(abandon=True)


def network():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16, bias=False))
    net[1].weight = net[0].weight
    net.register_buffer("steps", torch.tensor(3))
    return net


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, "F16", "float64"])
def test_a_module_is_cast_and_trains_on(trainer, model, dtype):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    kind = {"F16": torch.float16, "float64": torch.float64, None: torch.float32}.get(dtype, dtype)
    with th.Publisher(trainer, net, dtype=dtype, buffers=2) as publisher:
        for step in range(3):
            before = {name: t.detach().clone() for name, t in net.state_dict().items()}
            publisher.publish(step)
            net(torch.rand(4, 16)).sum().backward()
            optimizer.step()
            got = th.load(model, step)
            assert got["0.weight"].dtype == kind and got["steps"].dtype == torch.int64
            for name, tensor in before.items():
                assert torch.equal(got[name], tensor.to(got[name].dtype)), name
            assert got["0.weight"].data_ptr() == got["1.weight"].data_ptr()
            assert not torch.equal(net[0].weight, before["0.weight"])


def test_layouts_in_memory_are_straightened(trainer, model):
    base = torch.arange(24.0).reshape(4, 6)
    source = {"t": base.t(), "cut": base[:, ::2], "same": base, "scalar": torch.tensor(1.5),
              "empty": torch.empty(0, 3), "grad": torch.ones(3, requires_grad=True)}  # fmt: skip
    th.Publisher(trainer, source, dtype="BF16").publish(1)
    got = th.load(model)
    for name, tensor in source.items():
        assert got[name].shape == tensor.shape, name
        assert torch.equal(got[name], tensor.detach().to(torch.bfloat16)), name


def test_a_generator_has_one_tensor_at_a_time(trainer, model):
    alive, most = 0, 0

    class Counted(torch.Tensor):
        def __del__(self):
            nonlocal alive
            alive -= 1

    def tensors():
        nonlocal alive, most
        for i in range(20):
            alive += 1
            most = max(most, alive)
            yield f"w{i}", torch.full((64,), float(i)).as_subclass(Counted)

    publisher = th.Publisher(trainer, tensors)
    publisher.publish(1)
    assert most <= 3
    got = th.load(model)
    assert all(torch.equal(got[f"w{i}"], torch.full((64,), float(i))) for i in range(20))


def test_a_dtensor_is_the_box_of_its_rank(trainer, model, tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        whole = torch.rand(5, 3)
        mesh = init_device_mesh("cpu", (1,))
        publisher = th.Publisher(trainer, {"w": distribute_tensor(whole, mesh, [Shard(0)])}, "BF16")
        publisher.publish(1)
        row = trainer.manifest().tensors["w"]
        assert (row.dtype, row.shape, row.global_shape) == ("BF16", (5, 3), (5, 3))
        assert torch.equal(th.load(model)["w"], whole.to(torch.bfloat16))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("count", [2, 4])
def test_masters_of_fsdp2_are_cast_shard_by_shard(agent, model, tmp_path, count):
    shards_equal_full(model, tmp_path, "fsdp", count, "bfloat16")


def test_arrays_of_numpy(trainer, model):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    base = numpy.arange(12, dtype="f4").reshape(3, 4)
    source = {"w": base, "t": base.T, "i": numpy.arange(3), "none": numpy.empty((0, 2), "f4")}
    th.Publisher(trainer, source, dtype="float16").publish(1)
    base[:] = 0
    got = th.load(model)
    assert got["w"].dtype == torch.float16 and got["i"].dtype == torch.int64
    assert got["w"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert torch.equal(got["t"], got["w"].t()) and got["none"].shape == (0, 2)


@pytest.mark.parametrize(
    "tensor, dtype, sentence",
    [
        (lambda: torch.empty(4, device="meta"), None, "device meta"),
        (lambda: torch.eye(3).to_sparse(), None, "dense parts"),
        (lambda: Exporter(), None, "'odd one' is a Exporter.*from_dlpack"),
        (lambda: pytest.importorskip("numpy").ones(3, "f4"), "BF16", "numpy has no BF16"),
    ],
)  # fmt: skip
def test_what_cannot_be_copied_is_named(trainer, tensor, dtype, sentence):
    with pytest.raises(th.Invalid, match=sentence):
        th.Publisher(trainer, {"good": torch.rand(3), "odd one": tensor()}, dtype=dtype)
    trainer.register({"good": torch.rand(3)})


class Exporter:
    def __dlpack__(self, **options):
        return torch.ones(3).__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)
