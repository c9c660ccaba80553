# SPDX-License-Identifier: Apache-2.0
"""What a worker sees of versions that its host brings before it asks, in threads and in loops."""

import asyncio
import contextlib
import select
import time

import pytest
import tensorhub as th
from conftest import SIZE, goes_on, memory


@pytest.fixture(scope="module")
def far(daemons):
    return daemons.agent("far").runtime


@pytest.fixture(scope="module")
def full(daemons):
    """An agent that takes no copies."""
    return daemons.agent("full", args=("--offload-limit", "0")).runtime


def told(handle):
    """READY, and the version; nothing is called meanwhile."""
    poller, end = select.poll(), time.monotonic() + 60
    poller.register(handle, select.POLLIN)
    while time.monotonic() < end:
        if th.Event.READY in handle.events():
            return handle.ready_version
        poller.poll(1000)
    raise AssertionError("READY was not told")


@contextlib.contextmanager
def rollout(model, replica, agent, **options):
    with th.open(model, replica=replica, agent=agent, **options) as handle:
        handle.tensors = {"w": memory(0)}
        handle.register(handle.tensors)
        assert handle.ready_version is None
        result = handle.replicate("latest")
        assert (result.bytes_prefetched, result.reason) == (0, "")
        yield handle
        handle.close(abandon=True)


def test_it_is_told_and_comes_from_the_host(trainer, far, model):
    with rollout(model, "r", far, prefetch=True) as handle:
        goes_on(trainer, 2)
        assert told(handle) == 2 and handle.version == 1
        result = handle.update()
        assert result and result.version == 2 and result.transport == "local"
        assert result.bytes_prefetched == result.bytes_moved == SIZE and result.reason == ""
        assert bytes(handle.tensors["w"][:1]) == b"\2" and handle.ready_version is None
        assert th.Event.READY not in handle.events()


def test_without_the_flag_nothing_is_told(trainer, far, model):
    with rollout(model, "r", far) as handle, rollout(model, "p", far, prefetch=True) as other:
        goes_on(trainer, 2)
        assert told(other) == 2
        assert handle.ready_version is None and th.Event.READY not in handle.events()


def test_what_has_no_room_comes_over_the_network_and_says_so(trainer, full, model):
    with rollout(model, "r", full, prefetch=True) as handle:
        goes_on(trainer, 2)
        end = time.monotonic() + 60
        result = handle.update()
        while not result and time.monotonic() < end:
            result = handle.update()
        assert result.version == 2 and result.bytes_prefetched == 0 and result.transport == "tcp"
        assert result.reason.startswith("not brought before: node full: ")


def test_a_loop_sees_the_same(trainer, far, model):
    async def work():
        async with th.aio.open(model, replica="r", agent=far, prefetch=True) as handle:
            await handle.register({"w": memory(0)})
            await handle.replicate()
            goes_on(trainer, 2)
            assert await asyncio.get_running_loop().run_in_executor(None, told, handle) == 2
            result = await handle.update()
            assert result.bytes_prefetched == SIZE and handle.ready_version is None

    asyncio.run(work())


def test_a_handle_that_is_closed_or_lost_has_none_ready(trainer, far, model):
    with rollout(model, "r", far, prefetch=True) as handle:
        goes_on(trainer, 2)
        assert told(handle) == 2
        handle.close()
        assert handle.ready_version is None
