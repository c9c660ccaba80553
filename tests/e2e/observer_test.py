# SPDX-License-Identifier: Apache-2.0
"""Observers: handles without a replica list, wait and get manifests, have no part in anything, and
disturb nobody, also when they die or ask an agent for more than they may."""

import json
import mmap
import os
import select
import socket
import struct

import cluster

cluster.with_library()

import memory_kinds
import raw
import tensorhub as th
from hostile_test import MEMORY, MEMORY_ID, REFUSED, Witness, ask, connect, copies
from hostile_test import hello, join, message, opening, receive
from restart_test import attached, each, restart
from tensorhub._steps import Op
from wait_test import has, publisher, sleeping

STATE, INVALID = th.State.code, th.Invalid.code


def observer(cl, agent):
    """Its handle, with every verb of a member."""
    handle = th.watch("m", agent=cl.agents[agent].runtime, timeout=10)._handle
    handle.timeout = 30
    return handle


def sessions(cl, agent):
    """Of `thctl status`: (replica, shard) of each."""
    status = json.loads(cl.thctl("-o", "json", "status", agent=agent).stdout)
    return sorted(str((s["replica"], s["shard"])) for s in status["sessions"])


def operator(cl, *args):
    return json.loads(cl.thctl("-s", cl.server_url, "-o", "json", *args).stdout)


def it_sees_what_members_do_and_is_seen_by_nobody():
    with cluster.cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        watcher = observer(cl, "b")
        assert not watcher.list().all
        waits = sleeping(watcher, has(1), 60)
        trainer = publisher(cl, "a")
        trainer.set_attribute("step", b"1")
        trainer.publish(1)
        waits.result()
        listing = watcher.list()
        assert list(listing.all.values()) == [{"trainer"}], listing
        manifest = watcher.manifest("latest")
        assert manifest.version == 1 and manifest.attributes == {"step": b"1"}, manifest
        # In an event loop.
        op = Op(watcher, "wait")._submit("thc_watch_submit", listing.generation, 60_000)
        assert not op.done()
        trainer.unpublish()
        while not op.done():
            select.select([watcher], [], [], 10)
            watcher.events()
        assert not watcher.list().all
        # Its agent and nobody else knows of it.
        assert sessions(cl, "b") == ["(None, None)"] and sessions(cl, "a") == ["('trainer', 0)"]
        assert [w["replica"] for w in operator(cl, "ls", "workers", "m")["workers"]] == ["trainer"]
        drain = operator(cl, "drain", "b")
        assert drain["state"] == "empty", drain
        waits = sleeping(watcher, has(2), 60)
        trainer.publish(2)
        waits.result()
        for shard in (watcher, observer(cl, "b"), trainer):
            shard.close()
        assert sessions(cl, "b") == []


def all_else_is_refused():
    with cluster.cluster() as cl:
        cl.agent("a")
        for name, value in (
            ("num_shards", 2),
            ("lineage", 3),
            ("retain", b"latest"),
            ("launch_id", b"job"),
            ("flags", 1),
        ):
            fields = {"replica": None, name: value}
            text = str(cluster.expect_error("INVALID", raw.open_with, cl.agents["a"], **fields))
            assert text.startswith(f"{name}: ") and "observer" in text, text
        shard = observer(cl, "a")
        memory = memory_kinds.Allocated(4096)
        for call, *args in (
            (shard.register, {"w": memory_kinds.Tensor(memory, [4096])}),
            (shard.unregister,),
            (shard.set_attribute, "a", b"b"),
            (shard.publish, 1),
            (shard.publish_async, 1),
            (shard.unpublish,),
            (shard.unpublish_async,),
            (shard.replicate,),
            (shard.replicate_async,),
            (shard.update,),
            (shard.update_async,),
            (lambda: shard.list(group=True),),
            (shard.memory_path, "w"),
            (raw.follow, shard),
            (raw.go, shard, 1),
        ):
            cluster.expect_error("STATE", call, *args)
        assert shard.held is None and shard.safe_to_mutate and shard.events() == 0
        shard.list()
        shard.close()


def no_death_disturbs_anybody():
    with cluster.cluster() as cl:
        for name in "ab":
            cl.agent(name)
        # Members of a group, and an observer of their model beside each.
        members = [cl.worker(f"m{i}", "ab"[i]) for i in range(2)]
        for i, member in enumerate(members):
            member.setup(1 << 20, model="m", replica="pair", shard=i, num_shards=2)
        watchers = [cl.worker(f"w{i}", "ab"[i]) for i in range(2)]
        for watcher in watchers:
            watcher.call("open", model="m")
        each(members, "publish", version=1)
        assert len(watchers[1].call("list")["versions"]) == 1
        waits = watchers[0].start("wait_version", version=9)
        watchers[0].kill()
        cluster.wait_for(lambda: len(sessions(cl, "a")) == 1, 10, "its handle is gone")
        assert watchers[0].message(waits)["error"] == "DIED"
        each(members, "unpublish")
        each(members, "publish", version=2)
        # The group breaks, which is no affair of an observer.
        members[0].kill()
        waits = watchers[1].start("wait_version", version=3)
        cluster.wait_for(lambda: not watchers[1].call("list")["versions"], 20, "it is unlisted")
        cluster.expect_error("GROUP_BROKEN", members[1].call, "unpublish")
        members[1].call("close")
        again = cl.worker("again", "a")
        again.setup(1 << 20, model="m", replica="pair")
        again.call("publish", version=3)
        watchers[1].finish(waits)
        watchers[1].call("close")


def it_goes_on_when_servers_and_agents_begin_anew():
    with cluster.cluster() as cl:
        cl.agent("a", args=["-o", "server_loss=reset"])
        cl.agent("b")
        watchers = [observer(cl, "a"), observer(cl, "b")]
        for _ in range(3):
            restart(cl)
            attached(cl, *"ab")
            trainer = publisher(cl, "b")
            waits = [sleeping(watcher, has(7), 60) for watcher in watchers]
            trainer.publish(7)
            for wait in waits:
                wait.result()
            trainer.close()
        assert [watcher.events() for watcher in watchers] == [0, 0]
        # As of any handle: none is opened, and who waits hears that nobody answers.
        cl.server.kill()
        cluster.expect_error("NO_SERVER", raw.wait, watchers[1], has(9), 60)
        cluster.expect_error("NO_SERVER", watchers[1].list)
        cluster.expect_error("NO_SERVER", observer, cl, "b")
        cl.start_server(listen=cl.server_url)
        attached(cl, *"ab")
        assert not watchers[1].list().all
        # The agent is another one: as of any handle.
        waits = sleeping(watchers[1], has(9), 60)
        cl.agents["b"].kill()
        cluster.expect_error("AGENT_LOST", waits.result)
        assert watchers[1].events() == th.Event.AGENT_LOST
        cluster.expect_error("AGENT_LOST", watchers[1].list)
        watchers[1].close()
        cl.agent("b")
        attached(cl, "b")
        again = observer(cl, "b")
        again.list()
        # An agent that is told to end waits for none.
        cl.agents["b"].terminate()
        cluster.expect_error("AGENT_LOST", again.list)
        for shard in (again, watchers[0]):
            shard.close()


SLOTS, COMPLETIONS = 256 + 64 * 64, 256


def submit(w, bell, number, kind, spec):
    """Writes a submission, in the slot of its number, as libthc would of a member."""
    w[192 + 64 * number : 256 + 64 * number] = struct.pack(
        "<QHHIq32s8s", number + 1, kind, number, 0, -1, spec.ljust(32, b"\0"), b""
    )
    w[64:72] = struct.pack("<Q", number + 1)
    os.write(bell, struct.pack("<Q", 1))


def who_goes_round_libthc_is_refused_by_the_agent():
    with cluster.cluster() as cl:
        witness = Witness(cl)
        a = cl.agents["a"]
        # What a member says of itself.
        s = connect(a.runtime)
        s.send(hello())
        receive(s)
        body = bytearray(opening(replica=""))
        at = 16 + 24 + 3 * 256  # the head, numbers, and three names
        body[at : at + 6] = b"latest"
        s.send(bytes(body))
        kind, answer, _fds = receive(s)
        assert kind == REFUSED and struct.unpack_from("<i", answer)[0] == INVALID, (kind, answer)
        s.close()
        s, fds, body = join(a.runtime, "")
        number, secret = struct.unpack_from("<Q16s", body)
        before = witness.counters()
        # Operations of a group.
        with mmap.mmap(fds[0], 0) as w, mmap.mmap(fds[1], 0, prot=mmap.PROT_READ) as r:
            for i, kind in enumerate(range(1, 6)):
                submit(w, fds[2], i, kind, b"1")
                cluster.wait_for(
                    lambda i=i: struct.unpack_from("<Q", r, 64)[0] == i + 1, 10, "an answer"
                )
                _seq, slot, _zero, code = struct.unpack_from("<QHHi", r, COMPLETIONS + 64 * i)
                text = r[SLOTS + 1024 * i + 416 :][:512].split(b"\0")[0]
                assert (slot, code) == (i, STATE) and b"an observer" in text, (kind, code, text)
        # Memory: none is kept.
        for nbytes in (4096, 1 << 30):
            fd = os.memfd_create("of an observer", os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, nbytes)
            one = struct.pack("<IIQQQ", 7, 1, 4096, nbytes, 0)
            socket.send_fds(s, [message(MEMORY, one, fds=1)], [fd])
            kind, body, _fds = receive(s)
            _token, ident, code, _zero = struct.unpack_from("<IIiI", body)
            assert (kind, ident, code) == (MEMORY_ID, 0, STATE), (kind, ident, code)
            os.close(fd)
        # Documents: tensors, their end, attributes.
        for n, tag in enumerate((b"\xc2\x02\0", b"\xca\x02\0", b"\xd2\x02\0")):
            answer = ask(a.runtime, number, secret, n + 1, tag)()
            assert b"an observer" in answer, answer
        name = "/memfd:of an observer (deleted)"
        cluster.wait_for(lambda: copies(a.pid, name) == 0, 10, "the agent has closed it")
        after = witness.counters()
        for counter, grows in (
            ("protocol_violations", 0),
            ("memory_refused", 2),
            ("documents_refused", 3),
        ):
            assert after[counter] - before[counter] == grows, (counter, before, after)
        # It is there as before, and nobody has noticed.
        assert sessions(cl, "a").count("(None, None)") == 1
        witness.works()
        for fd in fds:
            os.close(fd)
        s.close()
        cluster.wait_for(lambda: "(None, None)" not in sessions(cl, "a"), 10, "it is gone")


cluster.main(
    it_sees_what_members_do_and_is_seen_by_nobody,
    all_else_is_refused,
    no_death_disturbs_anybody,
    it_goes_on_when_servers_and_agents_begin_anew,
    who_goes_round_libthc_is_refused_by_the_agent,
)
