# SPDX-License-Identifier: Apache-2.0
"""th.Publisher: copies are published, and what they were made of may change at once. No torch."""

import array
import asyncio
import gc
import threading

import pytest
import tensorhub as th
from cluster import Cluster
from conftest import memory

RATE, LARGE = "20MB", 16 << 20  # a second: what a reader of another host needs for these bytes


@pytest.fixture(scope="session")
def daemons():
    """No agent has room for copies of its own."""
    made, failed = Cluster(), True
    try:
        made.agent("a", args=("--offload-limit", "0"))
        failed = False
        yield made
    finally:
        made.close(failed)


@pytest.fixture(scope="module")
def slow(daemons):
    """An agent that sends slowly."""
    return daemons.agent("slow", args=("-o", f"rate.out={RATE}", "--offload-limit", "0")).runtime


@pytest.fixture
def trainer(agent, model):
    with th.open(model, replica="trainer") as handle:
        yield handle
        handle.close(abandon=True)


def blocks():
    """How many blocks of memory that agents map this process has."""
    gc.collect()
    with open("/proc/self/maps") as f:
        return sum("/memfd:thc-memory" in line for line in f)


def values(*numbers):
    return array.array("f", numbers)


def test_a_copy_is_published(trainer, model):
    weights = {"w": values(1, 2), "n": array.array("q", [7])}
    publisher = th.Publisher(trainer, weights)
    assert trainer.memory_path("w").startswith("direct") and publisher.handles == (trainer,)
    publisher.publish(1)
    weights["w"][0] = 9  # an optimizer goes on at once
    assert list(th.load(model)["w"]) == [1, 2] and list(th.load(model)["n"]) == [7]
    publisher.publish(2)
    assert trainer.version == 2 and list(th.load(model, 2)["w"]) == [9, 2]
    assert dict(trainer.list()) == {2: {"trainer"}} and not trainer.events()


@pytest.mark.parametrize(
    "source",
    [
        {"a": values(1), "b": values(2)},
        [("a", values(1)), ("b", values(2))],
        lambda: {"a": values(1), "b": values(2)},
        lambda: iter([("a", values(1)), ("b", values(2))]),
        lambda: ((name, values(i + 1)) for i, name in enumerate("ab")),
        type("Module", (), {"state_dict": lambda self: {"a": values(1), "b": values(2)}})(),
        lambda: type("Module", (), {"state_dict": lambda self: {"a": values(1), "b": values(2)}})(),
    ],
    ids=["dict", "list", "callable", "iterator", "generator", "module", "makes_a_module"],
)
def test_sources(trainer, model, source):
    publisher = th.Publisher(trainer, source)
    for step in (1, 2):
        publisher.publish(step)
        weights = th.load(model, step)
        assert {name: list(tensor) for name, tensor in weights.items()} == {"a": [1], "b": [2]}


def test_tied_names_are_one_copy(trainer, model):
    one = values(1, 2)
    with th.Publisher(trainer, {"a": one, "b": one, "c": values(1, 2)}) as publisher:
        publisher.publish(1)
        rows = trainer.manifest().tensors
        assert rows["a"].tied == rows["b"].tied != 0 and rows["c"].tied == 0


def test_what_comes_one_by_one_is_never_tied(trainer, model):
    """Each takes the place of the one before it, so that addresses say nothing."""

    def tensors():
        room = values(0)
        for i, name in enumerate("abc"):
            room[0] = i
            yield name, room

    th.Publisher(trainer, tensors).publish(1)
    assert {name: list(t) for name, t in th.load(model).items()} == {"a": [0], "b": [1], "c": [2]}


def once(*numbers):
    """What a framework gives: tensors one by one, once, each in the place of the one before."""
    room = values(0)
    for i, number in enumerate(numbers):
        room[0] = number
        yield f"w{i}", room


@pytest.mark.parametrize("buffers", [1, 2])
def test_each_publish_may_have_tensors_of_its_own_that_come_once(trainer, model, buffers):
    with th.Publisher(trainer, buffers=buffers) as publisher:
        for step in range(1, 5):
            publisher.publish(step, once(step, -step))
            held = {s: [list(t) for t in th.load(model, s).values()] for s in trainer.list()}
            kept = range(max(1, step - buffers + 1), step + 1)
            assert held == {s: [[s], [-s]] for s in kept}
        with pytest.raises(th.Layout, match="'w2' is .* and was not there at first"):
            publisher.publish(9, once(1, 2, 3))
        with pytest.raises(th.Invalid, match="source: this publisher has none"):
            publisher.publish(9)
        publisher.publish(5, {"w0": values(7), "w1": values(8)})
        assert [list(t) for t in th.load(model, 5).values()] == [[7], [8]]


def test_tensors_that_come_once_and_fail_leave_the_handle_as_it_was(trainer, model):
    def broken():
        yield from once(1)
        raise OSError("the checkpoint cannot be read")

    publisher = th.Publisher(trainer)
    before = blocks()
    with pytest.raises(OSError, match="cannot be read"):
        publisher.publish(1, broken())
    assert blocks() == before and publisher.handles == () and not trainer.list()
    publisher.publish(1, once(1, 2))
    assert [list(t) for t in th.load(model).values()] == [[1], [2]]


def test_tensors_that_come_once_lie_in_few_blocks(trainer, model):
    """Not one for each tensor: each is a file, and an agent has so many."""
    sizes = [1 << 20] + [4096] * 300 + [3 << 20, 8]
    before = blocks()
    publisher = th.Publisher(trainer)
    publisher.publish(1, ((f"w{i}", bytes([i % 251]) * size) for i, size in enumerate(sizes)))
    assert blocks() - before <= 4
    with open("/proc/self/smaps") as f:
        text = f.read().split("/memfd:thc-memory")[1:]
    mapped = sum(int(one.split("Size:")[1].split()[0]) << 10 for one in text)
    assert sum(sizes) <= mapped <= 2 * sum(sizes)
    loaded = th.load(model)
    assert all(bytes(loaded[f"w{i}"]) == bytes([i % 251]) * size for i, size in enumerate(sizes))


# ---- buffers -------------------------------------------------------------------------------------


def test_two_buffers_keep_two_versions(trainer, agent, model):
    weights = {"w": values(0)}
    with th.Publisher(trainer, weights, buffers=2) as publisher:
        assert [handle.replica for handle in publisher.handles] == ["trainer", "trainer+1"]
        for step in range(1, 5):
            weights["w"][0] = step
            publisher.publish(step)
            assert set(trainer.list()) == {step, step - 1} - {0}
        assert list(th.load(model, 3)["w"]) == [3] and list(th.load(model, 4)["w"]) == [4]
    assert dict(trainer.list()) == {3: {"trainer"}}
    assert th.handles() == {trainer.label}
    with pytest.raises(th.State, match="closed"):
        publisher.publish(5)


@pytest.fixture
def reader(agent, model):
    with th.open(model, replica="reader") as handle:
        handle.tensors = {"w": memory(0, LARGE)}
        handle.register(handle.tensors)
        yield handle
        handle.close(abandon=True)


def begun(reader):
    """A replicate whose bytes come."""
    op = reader.replicate_async(1)
    reader.wait(lambda versions: "reader" in versions.get(1, ()), timeout=20)
    return op


def test_one_buffer_waits_for_who_reads_it(slow, model, reader):
    weights = {"w": memory(1, LARGE)}
    with th.open(model, replica="trainer", agent=slow) as trainer:
        publisher = th.Publisher(trainer, weights)
        publisher.publish(1)
        op = begun(reader)
        weights["w"][:] = memory(2, LARGE)
        assert not op.done()
        publisher.publish(2)
        assert op.result(20).version == 1 and reader.tensors["w"] == memory(1, LARGE)
        trainer.close(abandon=True)


def test_two_buffers_wait_for_nobody_until_the_third_publish(slow, model, reader):
    weights = {"w": memory(1, LARGE)}
    with th.open(model, replica="trainer", agent=slow) as trainer:
        publisher = th.Publisher(trainer, weights, buffers=2)
        publisher.publish(1)
        op = begun(reader)
        weights["w"][:] = memory(2, LARGE)
        publisher.publish(2)
        assert not op.done()
        publisher.publish(3)
        assert op.result(20).version == 1 and reader.tensors["w"] == memory(1, LARGE)
        publisher.close()
        trainer.close(abandon=True)


def test_the_last_copy_of_a_retained_version_is_not_given_up(slow, agent, model):
    """With one buffer there is nowhere to go; with two the next version is there before."""
    weights = {"w": values(1)}
    with th.open(model, replica="one", agent=slow, retain="latest") as trainer:
        publisher = th.Publisher(trainer, weights)
        publisher.publish(1)
        weights["w"][0] = 2
        with pytest.raises(th.NoMemoryToRetain):
            publisher.publish(2)
        assert trainer.version == 1 and list(th.load(model)["w"]) == [1]
        trainer.unpublish(force=True)
        trainer.close(abandon=True)
    with th.open(model, replica="two", agent=slow, retain="latest") as trainer:
        publisher = th.Publisher(trainer, weights, buffers=2)
        for step in (3, 4, 5):
            publisher.publish(step)
        assert set(trainer.list()) == {4, 5}
        publisher.close()
        trainer.close(abandon=True)


def test_members_of_a_group_publish_together(agent, model):
    handles = [th.open(model, replica="t", shard=i, num_shards=2) for i in range(2)]
    publishers = [
        th.Publisher(handle, {f"w{i}": values(i)}, buffers=2) for i, handle in enumerate(handles)
    ]
    for step in (1, 2, 3):
        other = threading.Thread(target=publishers[1].publish, args=(step,))
        other.start()
        publishers[0].publish(step)
        other.join()
    assert dict(handles[0].list()) == {2: {"t+1"}, 3: {"t"}}
    assert {name: list(t) for name, t in th.load(model).items()} == {"w0": [0], "w1": [1]}
    for publisher, handle in zip(publishers, handles):
        publisher._abandon()
        handle.close(abandon=True)


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, options, sentence",
    [
        (5, {}, "source: a int"), ({}, {}, "no tensors"),
        (iter([]), {}, "gives its tensors once"), ([5], {}, "other things than name and tensor"),
        ([(1, values(1))], {}, "name 1 is no str"), ({"w": "text"}, {}, "'w' is a str"),
        ([("w", values(1)), ("w", values(2))], {}, "'w' comes twice"),
        ({"w": values(1)}, {"dtype": "I8"}, "cast to I8"),
        ({"w": values(1)}, {"dtype": "F8_E4M3"}, "cast to F8_E4M3"),
        ({"w": values(1)}, {"dtype": "float17"}, "dtype: 'float17'"),
        ({"w": values(1)}, {"dtype": "BF16"}, "'w' is a buffer"),
        ({"w": values(1)}, {"buffers": 0}, "buffers: 0"),
        ({"w": values(1)}, {"buffers": 17}, "buffers: 17"),
        ({"w": values(1)}, {"buffers": True}, "buffers: True"),
        ({"w": values(1)}, {"buffers": "2"}, "buffers: '2'"),
        ({"w": memoryview(bytes(8))[::2]}, {}, "'w' is not contiguous"),
    ],
)  # fmt: skip
def test_a_bad_argument_is_named(trainer, source, options, sentence):
    before = blocks()
    with pytest.raises(th.Invalid, match=sentence):
        th.Publisher(trainer, source, **{"buffers": 2, **options})
    assert blocks() == before and th.handles() == {trainer.label}
    trainer.register({"w": values(1)})  # it is as it was


def test_no_handle_is_refused():
    with pytest.raises(th.Invalid, match="handle: 'm'"):
        th.Publisher("m", {"w": values(1)})


def test_a_handle_with_tensors_is_refused(trainer):
    trainer.register({"w": values(1)})
    before = blocks()
    with pytest.raises(th.State):
        th.Publisher(trainer, {"w": values(1)}, buffers=3)
    assert blocks() == before and th.handles() == {trainer.label}


@pytest.mark.parametrize("step", [-1, "1", None, True, 2**64])
def test_a_bad_step_changes_nothing(trainer, step):
    publisher = th.Publisher(trainer, {"w": values(1)})
    publisher.publish(1)
    with pytest.raises(th.Invalid, match="version: "):
        publisher.publish(step)
    assert trainer.version == 1


@pytest.mark.parametrize(
    "now, sentence",
    [
        ({"a": values(1), "b": values(1, 2)}, r"'b' is F32 \(2,\) and was F32 \(1,\)"),
        ({"a": values(1), "b": array.array("d", [1])}, r"'b' is F64 \(1,\) and was F32"),
        ({"a": values(1)}, "'b' was there"),
        ({"a": values(1), "b": values(2), "c": values(3)}, "'c' is F32 .* was not there"),
    ],
)  # fmt: skip
def test_a_source_that_changes_is_said_and_changes_nothing(trainer, model, now, sentence):
    state = {"a": values(1), "b": values(2)}
    publisher = th.Publisher(trainer, lambda: state)
    publisher.publish(1)
    state = now
    with pytest.raises(th.Layout, match=sentence):
        publisher.publish(2)
    assert trainer.version == 1 and list(th.load(model)["b"]) == [2]
    state = {"a": values(3), "b": values(4)}
    publisher.publish(2)
    assert list(th.load(model)["b"]) == [4]


def test_names_that_are_not_tied_any_more_are_said(trainer):
    one = values(1)
    state = {"a": one, "b": one}
    publisher = th.Publisher(trainer, state)
    publisher.publish(1)
    state["b"] = values(2)
    with pytest.raises(th.Layout, match="'b' was tied"):
        publisher.publish(2)
    assert trainer.version == 1


def test_a_generator_that_fails_leaves_no_version_and_the_next_is_whole(trainer, model):
    fails = False

    def tensors():
        yield "a", values(1)
        if fails:
            raise KeyError("lost")
        yield "b", values(2)

    publisher = th.Publisher(trainer, tensors)
    publisher.publish(1)
    fails = True
    with pytest.raises(KeyError):
        publisher.publish(2)
    assert trainer.version is None and not trainer.list()
    fails = False
    publisher.publish(2)
    assert list(th.load(model)["b"]) == [2]


def test_an_exception_inside_with_leaves_at_once(trainer):
    with pytest.raises(RuntimeError, match="mine"):
        with th.Publisher(trainer, {"w": values(1)}, buffers=3) as publisher:
            publisher.publish(1)
            raise RuntimeError("mine")
    assert th.handles() == {trainer.label} and trainer.version == 1


def test_memory_is_given_back(agent, model):
    before = blocks()
    with th.open(model, replica="t") as handle:
        with th.Publisher(handle, lambda: {"w": memory(1)}, buffers=3) as publisher:
            publisher.publish(1)
            assert blocks() == before + 3
        handle.close(abandon=True)
    del publisher
    assert blocks() == before


# ---- asyncio -------------------------------------------------------------------------------------


def test_a_publisher_in_a_loop(agent, model):
    async def work():
        weights = {"w": values(0)}
        async with th.aio.open(model, replica="t") as t:
            async with th.aio.Publisher(t, weights, buffers=2) as publisher:
                for step in (1, 2, 3):
                    weights["w"][0] = step
                    await publisher.publish(step)
                assert list((await th.aio.load(model))["w"]) == [3]
                assert dict(await t.list()) == {2: {"t+1"}, 3: {"t"}}
            with pytest.raises(th.Invalid, match="'w' is a buffer"):
                await th.aio.Publisher(t, weights, dtype="F16").publish(4)
            await t.unpublish()

    asyncio.run(work())
