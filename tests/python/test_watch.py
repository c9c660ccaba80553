# SPDX-License-Identifier: Apache-2.0
"""Observers: who has no part in versions, and sees what becomes of them. Needs no torch."""

import asyncio
import gc
import pickle
import threading
import time
import warnings

import pytest
import tensorhub as th
from cluster import Cluster, wait_for
from conftest import memory


@pytest.fixture
def trainer(agent, model):
    with th.open(model, replica="trainer") as handle:
        handle.register({"w": memory(1)})
        yield handle
        handle.close(abandon=True)


def test_sees_what_is_there(trainer, model):
    with th.watch(model) as w:
        assert not w.list() and w.latest() is None
        trainer.set_attribute("note", b"of a test")
        trainer.publish(3)
        assert w.latest() == 3
        assert dict(w.list()) == {3: {"trainer"}}  # and no name of the watch's own
        manifest = w.manifest(3)
        assert manifest.attributes == {"note": b"of a test"} and list(manifest.tensors) == ["w"]
        trainer.unpublish()
        assert w.latest() is None
        with pytest.raises(th.NotAvailable):
            w.manifest()


def test_waits_while_others_publish(trainer, model):
    with th.watch(model) as w:
        seen = []

        def see():
            for version in (1, 2, 3):
                seen.append(w.wait(lambda v, n=version: v.latest == n, timeout=30).latest)
                arrived.release()

        arrived = threading.Semaphore(0)
        thread = threading.Thread(target=see)
        thread.start()
        for version in (1, 2, 3):
            trainer.publish(version)
            assert arrived.acquire(timeout=30)
            trainer.unpublish()
        thread.join(30)
        assert seen == [1, 2, 3]
        start = time.monotonic()
        with pytest.raises(th.Timeout):
            w.wait(lambda v: 9 in v, timeout=0.2)
        assert 0.2 <= time.monotonic() - start < 1.2
        with pytest.raises(th.Invalid):
            w.wait(9)


def test_latest_is_whole_and_of_the_last_lineage(agent, model):
    with th.open(model, replica="old") as old, th.open(model, replica="new", lineage=1) as new:
        for handle, version in ((old, 9), (new, 2)):
            handle.register({"w": memory(1)})
            handle.publish(version)
        with th.watch(model) as w:
            assert w.latest() == 2 and w.list().all == {(0, 9): {"old"}, (1, 2): {"new"}}
            new.unpublish()
            assert w.latest() == 9
        old.close(abandon=True)


def test_latest_of_copies_that_are_being_filled():
    def copy(ready):
        return th.Replica("r", "dc", 1, float(ready), ready, False, False, False)

    details = {
        (0, 7): th.Version(0, 7, False, (copy(True),)),
        (1, 4): th.Version(1, 4, False, (copy(False), copy(True))),
        (1, 5): th.Version(1, 5, False, (copy(False),)),
    }
    assert th.Listing(1, details).latest == 4
    assert th.Listing(1, {}).latest is None


def test_is_a_member_of_nothing(trainer, model, monkeypatch):
    monkeypatch.setenv("THC_LAUNCH_ID", "launch")  # of members
    w = th.watch(model)
    assert not hasattr(w, "publish") and f"{model}/(observer)" in th.handles()
    with pytest.raises(th.State, match="observer"):
        w._handle.publish(1)
    with pytest.raises(th.State, match="belongs to its process"):
        pickle.dumps(w)
    trainer.publish(1)  # a group of one still
    assert "open" in repr(w)
    w.close()
    w.close()
    assert "closed" in repr(w) and f"{model}/(observer)" not in th.handles()
    with pytest.raises(th.State, match="closed"):
        w.latest()


def test_is_abandoned_when_it_is_dropped(agent, model):
    w = th.watch(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del w
        gc.collect()
    assert [one.category for one in caught] == [ResourceWarning]
    with pytest.raises(ZeroDivisionError):
        with th.watch(model) as w:
            raise ZeroDivisionError
    assert "closed" in repr(w)


def test_no_agent_and_bad_arguments(tmp_path, model):
    with pytest.raises(th.NoAgent):
        th.watch(model, agent=str(tmp_path))
    with pytest.raises(th.Invalid):
        th.watch(7, agent=str(tmp_path))
    with pytest.raises(th.Invalid):
        th.watch(model, agent=str(tmp_path), timeout=-1)


def test_asyncio(trainer, model):
    async def scheduler():
        before = threading.active_count()
        async with th.aio.watch(model) as w:
            assert not await w.list() and await w.latest() is None
            others = [await th.aio.watch(model) for _ in range(20)]
            waits = [asyncio.ensure_future(o.wait(lambda v: v.latest == 5)) for o in others]
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(w.wait(lambda v: v.latest == 6), 0.2)
            with pytest.raises(th.Timeout):
                await w.wait(lambda v: v.latest == 6, timeout=0.2)
            op = trainer.publish_async(5)
            listings = await asyncio.gather(*waits)
            assert op.result(20) is not None
            assert {one.latest for one in listings} == {5}
            assert (await w.manifest()).version == 5 and await w.latest() == 5
            for other in others:
                await other.close()
                await other.close()
            assert threading.active_count() == before
        assert "closed" in repr(w)

    asyncio.run(scheduler())


def test_servers_and_agents_begin_anew(model):
    cluster, failed = Cluster(), True
    try:
        agent = cluster.agent("a")
        w = th.watch(model, agent=agent.runtime)
        cluster.server.kill()
        with pytest.raises(th.NoServer):
            w.wait(lambda v: 1 in v, timeout=60)
        cluster.start_server(listen=cluster.server_url)

        def listed():
            try:
                return not w.list()
            except th.NoServer:
                return False

        wait_for(listed, 30, "the watch goes on")
        with th.open(model, agent=agent.runtime) as trainer:
            trainer.register({"w": memory(1)})
            trainer.publish(1)
            assert w.wait(lambda v: v.latest == 1, timeout=30)
        agent.kill()
        with pytest.raises(th.AgentLost):
            w.wait(lambda v: 2 in v, timeout=60)
        w.close()
        agent = cluster.agent("a")
        with th.watch(model, agent=agent.runtime) as w:  # also before it has found its server
            assert w.latest() is None
        failed = False
    finally:
        cluster.close(failed)
