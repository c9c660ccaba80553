# SPDX-License-Identifier: Apache-2.0
"""Weights without tensors of one's own: allocate after a manifest, load in one call. No torch."""

import asyncio
import contextlib
import gc

import pytest
import tensorhub as th
from conftest import SIZE, memory
from tensorhub.dtypes import BY_NAME
from tensorhub.tensors import Place, new_pieces


def blocks():
    """How many blocks of memory that agents map this process has."""
    gc.collect()
    with open("/proc/self/maps") as f:
        return sum("/memfd:thc-memory" in line for line in f)


@contextlib.contextmanager
def published(model, shards, version=1, **options):
    """A group that holds a version: a dict of tensors for each shard."""
    handles = []
    try:
        for i, tensors in enumerate(shards):
            handle = th.open(
                model, replica="trainer", shard=i, num_shards=len(shards), **options
            )
            handles.append(handle)
            handle.register(tensors)
        for op in [handle.publish_async(version, timeout=20) for handle in handles]:
            op.result(20)
        yield handles
    finally:
        for handle in handles:
            handle.close(abandon=True)


def f32(*values):
    tensor = th.empty((len(values),), "F32")
    tensor[:] = memoryview(bytearray(4 * len(values))).cast("f")
    for i, value in enumerate(values):
        tensor[i] = value
    return tensor


# ---- allocate ------------------------------------------------------------------------------------


def test_allocate_gives_types_shapes_and_ties(agent, model):
    tied, deep = f32(1, 2), th.empty((2, 3, 4), "I16")
    sent = {"a": tied, "b": tied, "deep": deep, "none": piece("F32", (0, 4)), "bf": bf16()}
    with published(model, [sent]), th.open(model, replica="r") as r:
        weights = r.allocate()
        assert list(weights) and set(weights) == set(sent)
        assert weights["deep"].shape == (2, 3, 4) and weights["deep"].format == "h"
        assert weights["none"].nbytes == 0
        assert r.manifest().tensors["none"].shape == (0, 4)
        r.replicate(1)
        assert list(weights["a"]) == [1, 2]
        weights["a"][0] = 5  # after its copy was given up it may be written to
        assert weights["b"][0] == 5
        assert bytes(weights["bf"]) == b"\x80\x3f\x00\x40"  # 1 and 2; no format has bfloat16
        r.close(abandon=True)


def piece(kind, shape):
    """As who has torch registers it: a memoryview cannot say every type and shape."""
    (made,) = new_pieces([Place(BY_NAME[kind], shape, shape, (0,) * len(shape))])
    return made


def bf16():
    made = piece("BF16", (2,))
    made.keep[:] = b"\x80\x3f\x00\x40"
    return made


@pytest.mark.parametrize("shape, dtype", [((2,), "BF16"), ((2,), "F8_E4M3"), ((0, 4), "F32")])
def test_what_no_memoryview_can_say_is_not_made(shape, dtype):
    """It would be registered as another type or shape."""
    before = blocks()
    with pytest.raises(th.Invalid, match=f"no memoryview is {dtype}.*import torch"):
        th.empty(shape, dtype)
    assert blocks() == before


def test_allocate_of_another_shard(agent, model):
    with published(model, [{"a": memory(1)}, {"b": memory(2)}]):
        with th.open(model, replica="r", shard=0, num_shards=2) as r:
            assert set(r.allocate(1, of_shard=1)) == {"b"}
            r.unregister()
            assert set(r.allocate(1)) == {"a"}


@pytest.mark.parametrize(
    "of_shard, sentence",
    [(-1, "of_shard: -1"), ("0", "of_shard: '0'"), (True, "of_shard: True"), (7, "shard")],
)  # fmt: skip
def test_allocate_names_a_bad_argument(agent, model, of_shard, sentence):
    with published(model, [{"w": memory(1)}]), th.open(model, replica="r") as r:
        with pytest.raises(th.Invalid, match=sentence):
            r.allocate(1, of_shard=of_shard)


def test_allocate_that_fails_leaves_nothing(agent, model):
    with published(model, [{"w": memory(1)}]), th.open(model, replica="r") as r:
        with pytest.raises(th.NotAvailable):
            r.allocate(2)
        held = r.allocate(1)
        before = blocks()
        with pytest.raises(th.State):
            r.allocate(1)
        assert blocks() == before
        r.close()
        del held
        assert blocks() == before - 1


def test_what_was_allocated_outlives_its_handle(agent, model):
    with published(model, [{"w": memory(1)}]):
        with th.open(model, replica="r") as r:
            weights = r.allocate()
            r.replicate()
        gc.collect()
        assert weights["w"] == memory(1)


# ---- load ----------------------------------------------------------------------------------------


def test_load(agent, model):
    with published(model, [{"w": memory(3), "x": f32(1, 2, 3)}]) as (trainer,):
        before = th.handles()
        weights = th.load(model)
        assert list(weights["x"]) == [1, 2, 3] and weights["w"] == memory(3)
        assert th.handles() == before and dict(trainer.list()) == {1: {"trainer"}}
        weights["w"][0] = 9  # it is the caller's
        again = th.load(model, 1, agent=agent)
        assert again["w"] == memory(3) and not trainer.events()


def test_load_of_shards_with_names_of_their_own(agent, model):
    seen = []
    shards = [{f"layer{i}.w": memory(i + 1)} for i in range(3)]
    with published(model, shards) as handles:
        weights = th.load(model, "latest", progress=lambda *told: seen.append(told))
        assert weights == {f"layer{i}.w": memory(i + 1) for i in range(3)}
        assert dict(handles[0].list()) == {1: {"trainer"}}
        assert seen[-1] == (3 * SIZE, 3 * SIZE)


@pytest.mark.parametrize(
    "second, sentence",
    [
        (lambda: memory(2), "'w' lies in shards 0 and 1 of version 1.*num_shards=2"),
        (lambda: th.Part(memory(2), (2 * SIZE,), (SIZE,)), "'w' lies in shards 0 and 1"),
    ],
)  # fmt: skip
def test_load_of_shards_that_a_dict_cannot_say(agent, model, second, sentence):
    with published(model, [{"w": memory(1)}, {"w": second()}]) as handles:
        before, open_before = blocks(), th.handles()
        with pytest.raises(th.Layout, match=sentence):
            th.load(model)
        assert blocks() == before and th.handles() == open_before
        assert dict(handles[0].list()) == {1: {"trainer"}}


def test_load_of_a_part_is_refused(agent, model):
    with published(model, [{"w": th.Part(memory(1), (2 * SIZE,), (0,))}]):
        with pytest.raises(th.Layout, match=r"'w' of version 1 is a part of a tensor of \(2097152"):
            th.load(model)


def moves_on(monkeypatch, trainer, version):
    """Between the look of a load and its operation the trainer publishes another version."""
    from tensorhub import loading

    def pieces_after(manifest):
        if trainer.version != version:
            trainer.unpublish()
            trainer.publish(version)
        return kept(manifest)

    kept = loading.pieces_after
    monkeypatch.setattr(loading, "pieces_after", pieces_after)


def test_load_of_latest_follows_it(agent, model, monkeypatch):
    with published(model, [{"w": memory(4)}]) as (trainer,):
        moves_on(monkeypatch, trainer, 2)
        before = th.handles()
        assert th.load(model)["w"] == memory(4)
        assert trainer.version == 2 and th.handles() == before


def test_load_of_a_number_that_goes_says_so(agent, model, monkeypatch):
    with published(model, [{"w": memory(4)}]) as (trainer,):
        moves_on(monkeypatch, trainer, 2)
        before = blocks()
        with pytest.raises(th.NotAvailable):
            th.load(model, 1)
        assert blocks() == before


@pytest.mark.parametrize(
    "arguments, options, kind",
    [
        (("none-such",), {}, th.NotAvailable), ((5,), {}, th.Invalid),
        (("m", "newest"), {}, th.Invalid), (("m", -1), {}, th.Invalid),
        (("m",), {"progress": 1}, th.Invalid), (("m",), {"timeout": "1"}, th.Invalid),
        (("m",), {"agent": "/nowhere", "timeout": 0.1}, th.NoAgent),
    ],
)  # fmt: skip
def test_load_that_cannot_be_leaves_nothing(agent, arguments, options, kind):
    before, open_before = blocks(), th.handles()
    with pytest.raises(kind) as failure:
        th.load(*arguments, **options)
    assert str(failure.value)
    assert blocks() == before and th.handles() == open_before


def test_what_a_callable_raises_ends_a_load(agent, model):
    told = []

    def fails(done, total):
        told.append(done)
        raise ZeroDivisionError("mine")

    with published(model, [{"a": memory(1)}, {"b": memory(2)}]):
        before, open_before = blocks(), th.handles()
        with pytest.raises(ZeroDivisionError, match="mine"):
            th.load(model, progress=fails)
        assert len(told) == 1 and blocks() == before and th.handles() == open_before


def test_load_in_a_loop(agent, model):
    async def work():
        weights, other = await asyncio.gather(th.aio.load(model), th.aio.load(model, 1))
        assert weights == other == {"a": memory(1), "b": memory(2)}
        with pytest.raises(th.NotAvailable):
            await th.aio.load(model, 2)

    with published(model, [{"a": memory(1)}, {"b": memory(2)}]):
        asyncio.run(work())
