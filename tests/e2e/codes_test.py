# SPDX-License-Identifier: Apache-2.0
"""The contract with real daemons: every call succeeds, and codes that no other script brings
about."""

import json
import os
import signal
import socket
import struct

from cluster import cluster, expect_error, main, wait_for, with_library

with_library()
import library
import memory_kinds
import raw
import tensorhub as th
from tensorhub import _abi, dtypes

lib = _abi.lib


def opened(cl, agent, replica, model="m", **options):
    return library.opened(cl.agents[agent], replica, model, **options)


def with_memory(cl, agent, replica, nbytes=1 << 20, **options):
    shard = opened(cl, agent, replica, **options)
    memory = memory_kinds.Allocated(nbytes)
    shard.register({"a": memory_kinds.Tensor(memory, [nbytes])})
    return shard, memory


def every_call_succeeds():
    """Also those that the package does without, which waits by itself."""
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        assert lib.thc_version_string() == b"1.0.0" and lib.thc_strerror(th.Timeout.code)
        assert lib.thc_dtype_bits(dtypes.BY_NAME["BF16"].code) == 16
        source, memory = with_memory(cl, "a", "source")
        reader, _ = with_memory(cl, "b", "reader")
        memory.fill(7)
        source.set_attribute("header", b"{}")
        assert source.fileno() >= 0
        op = source.publish_async(1)
        op.result()
        assert op.done()
        op = reader.replicate_async("1")
        assert op.result().bytes_moved == memory.bytes
        assert op.progress == (memory.bytes, memory.bytes)
        assert reader.manifest("1").attributes == {"header": b"{}"}
        source.unpublish_async().result()
        memory.fill(8)
        source.publish(2)
        op = reader.update_async("latest")
        assert op.result()
        op.cancel()  # of what has ended
        assert not reader.update("latest")
        assert reader.held == (0, 2)
        assert reader.events() == 0
        assert reader.memory_path("a")
        raw.wait(reader, lambda listing: 2 in listing)
        assert reader.wait(lambda listing: 2 in listing)
        assert reader.list(group=True)[2] == {"source", "reader"}
        reader.unpublish()
        reader.follow()
        raw.follow(reader)
        raw.follow(reader, None)
        raw.go(source, 2)
        raw.inside(reader, "replicate", "2")
        raw.inside(source, "unpublish", 0)
        raw.inside(source, "publish", 3)
        raw.inside(reader, "update", "3")
        assert reader.version == 3
        reader.unpublish()
        reader.unregister()
        assert reader.safe_to_mutate
        reader.close()
        source.close()
        memory.free()
        _abi.call("thc_free", None)


def an_unknown_outcome_is_resolved():
    with cluster() as cl:
        agent = cl.agent("a")
        shard, _ = with_memory(cl, "a", "r")
        agent.signal(signal.SIGSTOP)
        try:
            e = expect_error("UNKNOWN", shard.publish, 1, timeout=2)
            assert "thc_resolve" in str(e)
            expect_error("STATE", shard.publish, 2)
            expect_error("UNKNOWN", shard.resolve, timeout=0)
        finally:
            agent.signal(signal.SIGCONT)
        # Its deadline is counted from when the agent sees it: it may pass, or not.
        try:
            shard.resolve(timeout=60)
        except th.Timeout:
            shard.publish(1, timeout=60)
        assert shard.held == (0, 1)
        expect_error("STATE", shard.resolve, timeout=0)
        shard.close()


def memory_that_lies_on_no_gpu():
    """Whether this machine has one or not."""
    with cluster() as cl:
        cl.agent("a")
        memory = memory_kinds.Allocated(1 << 20)
        shard = opened(cl, "a", "r")
        try:
            shard.register({"weight": memory_kinds.Tensor(memory, [100], device=0)})
            raise AssertionError("host memory was taken for a GPU's")
        except th.Error as e:
            assert e.name in ("MEMORY_KIND", "INVALID"), e
            assert "'weight'" in str(e) and "GPU 0" in str(e), e
        shard.close()


def a_transport_that_is_forbidden_is_no_path():
    """RDMA as well, wherever this runs: devices are left out or switched off."""
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b", args=["--transport", "local"])
        cl.agent("c", args=["-o", "rdma=off"])
        source, _ = with_memory(cl, "a", "source")
        reader, _ = with_memory(cl, "b", "reader")
        source.publish(1)
        other, _ = with_memory(cl, "b", "other")
        apart, _ = with_memory(cl, "a", "source", model="n")
        apart.publish(1)
        strict, _ = with_memory(cl, "c", "strict", model="n", require_rdma=True)
        # Side by side: each looks for another source before it gives up.
        ops = [
            (reader.replicate_async("1"), "tcp"),
            (other.update_async("1"), "tcp"),
            (strict.replicate_async("1"), "THC_REQUIRE_RDMA"),
        ]
        for op, word in ops:
            e = expect_error("NO_PATH", op.result)
            assert word in str(e) and "rdma" in str(e), e
            assert op.done()
        for shard in (reader, other, strict):
            assert shard.held is None
        # Nothing was overwritten: the handle goes on, and within a host nothing is forbidden.
        near, _ = with_memory(cl, "b", "near")
        near.publish(2)
        assert reader.replicate("2").transport == "local"
        # Who does not require RDMA has TCP.
        staged, _ = with_memory(cl, "c", "staged", model="n", staged=True)
        assert staged.replicate("1").transport == "tcp"
        assert strict.replicate("1").transport == "local"
        status = json.loads(cl.thctl("-o", "json", "status", agent="c").stdout)
        assert status["rdma"] == "not used: rdma is off in the configuration", status["rdma"]
        assert status["transports"].startswith("local,tcp"), status["transports"]
        assert status["far"].startswith("tcp, "), status["far"]
        assert status["far"].endswith(", 16 connections, no cap"), status["far"]
        assert status["far_transport"] == "tcp" and status["far_connections"] == 16, status
        assert status["far_limit"] is None and status["far_fallbacks_counted"] is False, status
        for shard in (staged, strict, apart, near, other, reader, source):
            shard.close()


def limits_are_named():
    with cluster() as cl:
        cl.agent("a", args=["-o", "limit.sessions=1", "-o", "limit.tensors=3"])
        shard = opened(cl, "a", "r")
        e = expect_error("LIMIT", opened, cl, "a", "other")
        assert "1" in str(e), e
        memory = memory_kinds.Allocated(4096)
        rows = {f"t{i}": memory_kinds.Tensor(memory, [1], at=i) for i in range(4)}
        e = expect_error("LIMIT", shard.register, rows)
        assert "3" in str(e), e
        expect_error("LIMIT", shard.set_attribute, "large", b"x" * 65537)
        shard.close()


def what_is_not_there():
    with cluster() as cl:
        agent = cl.agent("a")
        shard, _ = with_memory(cl, "a", "r")
        expect_error("NOT_AVAILABLE", shard.manifest, "latest")
        assert shard.held is None
        keeper = opened(cl, "a", "keeper", retain="3")
        shard.publish(3)
        expect_error("NOT_AVAILABLE", shard.manifest, "4")
        expect_error("INVALID", shard.manifest, "3", 1)
        expect_error("TIMEOUT", shard.wait, lambda _: False, timeout=0)
        cl.server.kill()
        wait_for(
            lambda: cl.thctl("status", agent="a", check=False).returncode != 0,
            30,
            "the agent misses its server",
        )
        expect_error("NO_SERVER", shard.list)
        expect_error("NO_SERVER", shard.manifest, "3")
        expect_error("NO_SERVER", shard.update, "latest")
        # Nobody can be asked to keep what is retained: the handle is as before.
        e = expect_error("NO_SERVER", shard.close, timeout=0)
        assert "THC_CLOSE_ABANDON" in str(e), e
        assert shard.held == (0, 3) and not shard.safe_to_mutate
        keeper.close()
        agent.kill()
        expect_error("AGENT_LOST", shard.list)
        expect_error("AGENT_LOST", shard.unregister)
        assert shard.safe_to_mutate
        assert shard.events() & th.Event.AGENT_LOST
        shard.close()


HELLO, WELCOME, REFUSED = 1, 2, 3
MAGIC = 0x31434854


def say_hello(agent, lowest, highest):
    """The agent's answer to a library that speaks these protocols: (kind, body)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(20)
        sock.connect(os.path.join(agent.runtime, "agent.fds"))
        body = struct.pack("<IIQII", lowest, highest, 0, 4096, 0)
        sock.send(struct.pack("<IHHII", MAGIC, HELLO, 0, len(body), 0) + body)
        answer = sock.recv(65536)
    magic, kind = struct.unpack_from("<IH", answer)
    assert magic == MAGIC
    return kind, answer[16:]


def other_protocol_versions_are_served_or_refused():
    with cluster() as cl:
        agent = cl.agent("a")
        kind, body = say_hello(agent, 1, 1)
        assert (kind, struct.unpack_from("<I", body)[0]) == (WELCOME, 1)
        # A newer library that still speaks ours is served with ours.
        kind, body = say_hello(agent, 1, 9)
        assert kind == WELCOME and struct.unpack_from("<I", body)[0] >= 1
        spoken = struct.unpack_from("<I", body)[0]
        # An older one, and a newer one that has given ours up: both ranges are named.
        for lowest, highest in ((0, 0), (spoken + 1, spoken + 3)):
            kind, body = say_hello(agent, lowest, highest)
            code, text = struct.unpack_from("<i", body)[0], body[8:].split(b"\0")[0].decode()
            assert (kind, code) == (REFUSED, th.Protocol.code), (kind, code, text)
            assert f"{lowest} to {highest}" in text and f"1 to {spoken}" in text, text
        shard = opened(cl, "a", "r")
        shard.close()


if __name__ == "__main__":
    main(
        every_call_succeeds,
        an_unknown_outcome_is_resolved,
        memory_that_lies_on_no_gpu,
        a_transport_that_is_forbidden_is_no_path,
        limits_are_named,
        what_is_not_there,
        other_protocol_versions_are_served_or_refused,
    )
