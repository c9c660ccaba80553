# SPDX-License-Identifier: Apache-2.0
"""torch's tensors in and out: types, ties, modules, DTensors. Needs torch, and no GPU."""

import gc

import pytest
import tensorhub as th
from conftest import LOADED_S, forked

torch = pytest.importorskip("torch", reason="torch is not installed")
from ranks import publish_shards  # noqa: E402

TYPES = (
    "uint8 int8 bool int16 uint16 float16 bfloat16 int32 uint32 float32 int64 uint64 float64 "
    "complex64 float8_e4m3fn float8_e5m2 float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz"
).split()


def raw(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def pattern(shape, dtype):
    nbytes = torch.empty(shape, dtype=dtype).numel() * torch.empty((), dtype=dtype).element_size()
    values = (torch.arange(nbytes) % (2 if dtype is torch.bool else 251)).to(torch.uint8)
    return values.view(dtype).reshape(shape)


def moved(model, tensors, **options):
    """The tensors of a reader that allocated after the manifest and replicated."""
    with th.open(model, replica="t") as t, th.open(model, replica="r", **options) as r:
        t.register(tensors)
        t.publish(1)
        weights = r.allocate()
        r.replicate(1)
        result = {name: tensor.clone() for name, tensor in weights.items()}
        kept = {name: tensor.data_ptr() for name, tensor in weights.items()}
        r.unpublish()
        t.unpublish()
        return result, kept


def test_every_type_comes_back(agent, model):
    sent = {name: pattern((3, 5), getattr(torch, name)) for name in TYPES}
    got, _ = moved(model, sent)
    for name in TYPES:
        assert got[name].dtype == sent[name].dtype and got[name].shape == (3, 5), name
        assert raw(got[name]) == raw(sent[name]), name


def test_shapes(agent, model):
    sent = {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 4), "deep": torch.rand([2] * 8)}
    got, _ = moved(model, sent)
    for name, tensor in sent.items():
        assert got[name].shape == tensor.shape and torch.equal(got[name], tensor), name


def test_tied_weights_are_moved_once(agent, model):
    weight = torch.rand(1024, 256)
    with th.open(model, replica="t") as t, th.open(model, replica="r") as r:
        t.register({"embed": weight, "head": weight})
        t.publish(1)
        weights = r.allocate()
        result = r.replicate(1)
        assert weights["embed"].data_ptr() == weights["head"].data_ptr()
        assert torch.equal(weights["head"], weight)
        assert result.bytes_moved < weight.nbytes * 3 // 2
        t.unpublish()


def test_a_module_in_memory_that_agents_map(agent, model):
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64, bias=False))
    module[1].weight = module[0].weight
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    assert th.share_(module) is module
    assert all(a is b for a, b in zip(parameters, module.parameters()))
    assert module[1].weight is module[0].weight
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    with th.open(model, replica="t") as t:
        t.register(module.state_dict())
        assert t.memory_path("0.weight").startswith("direct")
    module(torch.rand(2, 64)).sum().backward()
    optimizer.step()
    assert not torch.equal(module[0].weight, before["0.weight"])


def test_private_memory_is_copied_and_said(agent, model):
    with th.open(model, replica="t") as t:
        t.register({"w": torch.rand(1024)})
        assert t.memory_path("w").startswith("copy")


def test_empty_outlives_its_handle(agent, model):
    tensor = th.empty((4, 4), torch.bfloat16)
    assert tensor.shape == (4, 4) and not tensor.any()
    row = tensor[2]
    del tensor
    gc.collect()
    row.fill_(3)
    assert row.sum() == 12


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: torch.rand(4, 4).t(), r"not contiguous \(strides"),
        (lambda: torch.empty(4, device="meta"), "device meta"),
        (lambda: torch.eye(3).to_sparse(), "dense parts"),
        (lambda: torch.rand(3, dtype=torch.complex64).conj(), "resolve_conj"),
        (lambda: torch.rand(3, dtype=torch.complex128), "complex128, a type"),
        (lambda: torch.rand([1] * 9), "more than 8 dimensions"),
    ],
)  # fmt: skip
def test_a_tensor_that_cannot_be_registered_is_named(agent, model, make, sentence):
    with th.open(model, replica="t") as t:
        with pytest.raises(th.Invalid, match=sentence) as failure:
            t.register({"good": torch.rand(3), "odd one": make()})
        assert "'odd one'" in str(failure.value)
        t.register({"good": torch.rand(3)})


@pytest.mark.parametrize(
    "give",
    [
        lambda t: t.resize_(4096), lambda t: t.set_(torch.rand(64)),
        lambda t: setattr(t, "data", torch.rand(64)),
    ],
    ids=["resize", "set", "data"],
)  # fmt: skip
def test_a_tensor_that_has_other_memory_now_is_named(agent, model, give):
    """Its old memory is freed and may be anybody's: nothing is read there, and nothing written."""
    tensor = torch.rand(64)
    with th.open(model, replica="t") as t:
        t.register({"good": torch.rand(3), "odd one": tensor})
        give(tensor)
        for verb in (t.publish, t.publish_async, t.replicate, t.replicate_async, t.update):
            with pytest.raises(th.StaleMemory, match="'odd one'"):
                verb(1, timeout=5)
        t.unregister()
        t.register({"good": torch.rand(3), "odd one": tensor})
        t.publish(1)
        t.unpublish()


def test_a_layout_that_differs_names_the_tensor(agent, model):
    with th.open(model, replica="t") as t, th.open(model, replica="r") as r:
        t.register({"w": torch.rand(4, 4)})
        t.publish(1)
        r.register({"w": torch.rand(4, 5)})
        with pytest.raises(th.Layout, match="w"):
            r.replicate(1)
        t.unpublish()


def test_numpy_and_dlpack(agent, model):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    array = numpy.arange(1000, dtype="<f4").reshape(10, 100)

    class Exporter:
        def __dlpack__(self, **options):
            return torch.from_numpy(array).__dlpack__(**options)

        def __dlpack_device__(self):
            return torch.from_numpy(array).__dlpack_device__()

    got, _ = moved(model, {"array": array, "capsule": Exporter()})
    assert (got["array"].numpy() == array).all() and (got["capsule"].numpy() == array).all()
    with th.open(model, replica="t") as t, pytest.raises(th.Invalid, match="not contiguous"):
        t.register({"w": array[:, ::2]})


@pytest.mark.parametrize(
    "kind, count", [("fsdp", 2), ("fsdp", 4), ("tensor", 4), ("hsdp", 4), ("both", 4)]
)
def test_the_shards_of_ranks_are_those_of_full_tensor(agent, model, tmp_path, kind, count):
    shards_equal_full(model, tmp_path, kind, count)


def shards_equal_full(model, place, kind, count, dtype=None):
    """Ranks publish their local tensors as they lie, or copies that are cast; a reader of all
    shards puts them together."""
    with forked(count, publish_shards, str(place), kind, model, dtype) as pipes:
        assert pipes[0].poll(LOADED_S)
        shards = pipes[0].recv()
        full = torch.load(place / "full.pt", weights_only=True)
        compare(model, full, shards, dtype)
        pipes[0].send("end")


def compare(model, full, shards, dtype):
    if dtype:
        full = {name: tensor.to(getattr(torch, dtype)) for name, tensor in full.items()}
    readers = [th.open(model, replica="r", shard=i, num_shards=shards) for i in range(shards)]
    pieces = [reader.allocate(1, of_shard=i) for i, reader in enumerate(readers)]
    for op in [reader.replicate_async(1, timeout=60) for reader in readers]:
        op.result(timeout=60)
    whole = {name: torch.full_like(tensor, -7) for name, tensor in full.items()}
    for i, (reader, piece) in enumerate(zip(readers, pieces)):
        rows = reader.manifest(1, i).tensors
        for name, tensor in piece.items():
            box = tuple(slice(o, o + n) for o, n in zip(rows[name].offset, rows[name].shape))
            assert rows[name].global_shape == tuple(full[name].shape), name
            if tensor.numel():
                whole[name][box] = tensor
    for name, tensor in full.items():
        assert torch.equal(whole[name], tensor), name
    for reader in readers:
        reader.close(abandon=True)
