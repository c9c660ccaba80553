# SPDX-License-Identifier: Apache-2.0
"""A handle that follows, in threads and in loops: what it is told, and who may say go."""

import asyncio
import select
import time

import pytest
import tensorhub as th
from conftest import SIZE, goes_on, memory


@pytest.fixture(scope="module")
def far(daemons):
    return daemons.agent("follows").runtime


def may_go_on(trainer, version):
    goes_on(trainer, version)
    trainer.go(version)


def told(handle, version):
    """UPDATED, and this version; nothing else is called meanwhile."""
    poller, end, seen = select.poll(), time.monotonic() + 60, th.Event(0)
    poller.register(handle, select.POLLIN)
    while time.monotonic() < end:
        held = handle.version
        seen |= handle.events()
        if held == version:
            return th.Event.UPDATED in seen
        poller.poll(1000)
    raise AssertionError(f"holds {handle.version}, told {seen!r}")


def follower(model, far, **options):
    handle = th.open(model, replica="f", agent=far, **options)
    handle.tensors = {"w": memory(0)}
    handle.register(handle.tensors)
    return handle


def test_versions_come_without_a_call(trainer, far, model):
    trainer.go(1)
    with follower(model, far) as handle:
        handle.follow()
        assert told(handle, 1)
        for version in (2, 3):
            may_go_on(trainer, version)
            assert told(handle, version)
            assert bytes(handle.tensors["w"]) == bytes([version]) * SIZE
        with pytest.raises(th.State):
            handle.unregister()
        handle.follow(None)
        may_go_on(trainer, 4)
        assert handle.version == 3 and handle.update().version == 4
        handle.unpublish()
        handle.unregister()


def test_a_loop_follows_and_says_go(trainer, far, model):
    async def work():
        async with th.aio.open(model, replica="f", agent=far) as handle:
            weights = memory(0)
            with pytest.raises(th.Denied, match="registered no tensors"):
                await handle.go(1)
            await handle.register({"w": weights})
            await handle.follow("latest")
            await handle.go(1)
            assert await asyncio.get_running_loop().run_in_executor(None, told, handle, 1)
            assert bytes(weights[:1]) == b"\1"
            await handle.follow(None)

    asyncio.run(work())


def test_a_member_that_does_not_come_ends_in_time_or_by_a_cancel(trainer, far, model):
    with follower(model + "x", far, num_shards=2) as handle:
        with pytest.raises(th.Timeout, match="shard 1"):
            handle.follow(timeout=0.5)
        handle.close(abandon=True)

    async def work():
        async with th.aio.open(model + "y", replica="f", num_shards=2, agent=far) as handle:
            await handle.register({"w": memory(0)})
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(handle.follow(), 0.5)
            await handle.close(abandon=True)

    asyncio.run(work())


def test_what_cannot_be_followed(trainer, far, model):
    with pytest.raises(th.NotAvailable, match="ls versions"):
        trainer.go(7)
    for wrong in (-1, "latest", None):
        with pytest.raises(th.Invalid, match="version"):
            trainer.go(wrong)
    with th.open(model, replica="f", agent=far) as handle:
        with pytest.raises(th.State, match="thc_register"):
            handle.follow()
        handle.register({"w": bytearray(SIZE)})
        with pytest.raises(th.MemoryKind, match="'w'"):
            handle.follow()
        for wrong in (3, "latest-1", "x"):
            with pytest.raises(th.Invalid, match="version"):
                handle.follow(wrong)
