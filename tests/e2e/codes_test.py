# SPDX-License-Identifier: Apache-2.0
"""The contract with real daemons: every call succeeds, what is not built says so by name, and codes
that no other script brings about."""

import ctypes as c
import json
import os
import signal
import socket
import struct

from cluster import cluster, expect_error, main, wait_for, with_library

with_library()
import thc

lib, CODES = thc.lib, thc.CODES


def opened(cl, agent, replica, model="m", **kwargs):
    return thc.Shard(model, replica, agent=cl.agents[agent].runtime, **kwargs)


def with_memory(cl, agent, replica, nbytes=1 << 20, **kwargs):
    shard = opened(cl, agent, replica, **kwargs)
    memory = thc.Memory(nbytes)
    shard.register([thc.tensor("a", memory.address, [nbytes])])
    return shard, memory


def submit(name, shard, *args, timeout=20):
    op = c.c_void_p()
    thc.call(name, shard.handle, *args, thc.ms(timeout), c.byref(op))
    return thc.Op(op)


def every_call_succeeds():
    with cluster() as cl:
        cl.agent("a")
        cl.agent("b")
        assert lib.thc_version_string() == b"1.0.0"
        assert lib.thc_dtype_bits(thc.DTYPES["BF16"]) == 16
        source, memory = with_memory(cl, "a", "source")
        reader, _ = with_memory(cl, "b", "reader")
        memory.fill(7)
        source.set_attribute("header", b"{}")
        assert lib.thc_fd(source.handle) >= 0
        op = submit("thc_publish_submit", source, 1)
        op.wait()
        assert op.done() == 1
        op.free()
        op = submit("thc_replicate_submit", reader, b"1")
        assert op.wait()["bytes_moved"] == memory.bytes
        assert op.progress() == (memory.bytes, memory.bytes)
        op.free()
        assert reader.manifest("1")["attributes"] == {"header": b"{}"}
        op = submit("thc_unpublish_submit", source, 0)
        op.wait()
        op.free()
        memory.fill(8)
        source.publish(2)
        op = submit("thc_update_submit", reader, b"latest")
        assert op.wait()["updated"] == 1
        assert op.cancel() == 0, "of what has ended"
        op.free()
        assert reader.update("latest")["updated"] == 0
        assert reader.held() == (0, 2)
        assert lib.thc_shard_events(reader.handle) == 0
        text = c.create_string_buffer(100)
        thc.call("thc_memory_path", reader.handle, b"a", text, 100)
        reader.wait(lambda listing: (0, 2) in listing["versions"])
        assert reader.list(grouped=True)["versions"][(0, 2)].keys() == {"source", "reader"}
        reader.unpublish()
        reader.unregister()
        assert reader.safe_to_mutate() == 1
        reader.close()
        source.close()
        memory.free()
        thc.call("thc_free", None)


def an_unknown_outcome_is_resolved():
    with cluster() as cl:
        agent = cl.agent("a")
        shard, _ = with_memory(cl, "a", "r")
        agent.signal(signal.SIGSTOP)
        try:
            e = expect_error("UNKNOWN", shard.publish, 1, timeout=2)
            assert "thc_resolve" in e.text
            expect_error("STATE", shard.publish, 2)
            result = thc.Result(struct_size=c.sizeof(thc.Result))
            expect_error("UNKNOWN", thc.call, "thc_resolve", shard.handle, 0, c.byref(result))
        finally:
            agent.signal(signal.SIGCONT)
        # Its deadline is counted from when the agent sees it: it may pass, or not.
        rc = lib.thc_resolve(shard.handle, 60_000, c.byref(result))
        assert rc in (0, CODES["TIMEOUT"]), lib.thc_errmsg()
        if rc != 0:
            shard.publish(1, timeout=60)
        assert shard.held() == (0, 1)
        assert lib.thc_resolve(shard.handle, 0, None) == CODES["STATE"]
        shard.close()


def what_is_not_built_says_so():
    with cluster() as cl:
        cl.agent("a")
        for bit, flag in (
            (2, "THC_OFFLOAD_SEED"),
            (5, "THC_PREFETCH"),
        ):
            e = expect_error("INVALID", opened, cl, "a", "r", flags=1 << bit)
            assert flag in e.text and "not built" in e.text, e.text


def memory_that_lies_on_no_gpu():
    """Whether this machine has one or not."""
    with cluster() as cl:
        cl.agent("a")
        memory = thc.Memory(1 << 20)
        shard = opened(cl, "a", "r")
        gpu = thc.tensor("weight", memory.address, [100], device=0)
        try:
            shard.register([gpu])
            raise AssertionError("host memory was taken for a GPU's")
        except thc.ThcError as e:
            assert e.name in ("MEMORY_KIND", "INVALID"), e
            assert "'weight'" in e.text and "GPU 0" in e.text, e.text
        shard.close()


REQUIRE_RDMA, STAGED = 1 << 1, 1 << 4


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
        strict, _ = with_memory(cl, "c", "strict", model="n", flags=REQUIRE_RDMA)
        # Side by side: each looks for another source before it gives up.
        ops = [
            (submit("thc_replicate_submit", reader, b"1"), "tcp"),
            (submit("thc_update_submit", other, b"1"), "tcp"),
            (submit("thc_replicate_submit", strict, b"1"), "THC_REQUIRE_RDMA"),
        ]
        for op, word in ops:
            e = expect_error("NO_PATH", op.wait)
            assert word in e.text and "rdma" in e.text, e.text
            expect_error("NO_PATH", op.done)
            op.free()
        for shard in (reader, other, strict):
            assert shard.held() is None
        # Nothing was overwritten: the handle goes on, and within a host nothing is forbidden.
        near, _ = with_memory(cl, "b", "near")
        near.publish(2)
        assert reader.replicate("2")["transport"] == "local"
        # Who does not require RDMA has TCP.
        staged, _ = with_memory(cl, "c", "staged", model="n", flags=STAGED)
        assert staged.replicate("1")["transport"] == "tcp"
        assert strict.replicate("1")["transport"] == "local"
        status = json.loads(cl.thctl("-o", "json", "status", agent="c").stdout)
        assert status["rdma"] == "not used: rdma is off in the configuration", status["rdma"]
        assert status["transports"].startswith("local,tcp"), status["transports"]
        for shard in (staged, strict, apart, near, other, reader, source):
            shard.close()


def limits_are_named():
    with cluster() as cl:
        cl.agent("a", args=["-o", "limit.sessions=1", "-o", "limit.tensors=3"])
        shard = opened(cl, "a", "r")
        e = expect_error("LIMIT", opened, cl, "a", "other")
        assert "1" in e.text, e.text
        memory = thc.Memory(4096)
        rows = [thc.tensor(f"t{i}", memory.address + i, [1]) for i in range(4)]
        e = expect_error("LIMIT", shard.register, rows)
        assert "3" in e.text, e.text
        expect_error("LIMIT", shard.set_attribute, "large", b"x" * 65537)
        shard.close()


def what_is_not_there():
    with cluster() as cl:
        agent = cl.agent("a")
        shard, _ = with_memory(cl, "a", "r")
        expect_error("NOT_AVAILABLE", shard.manifest, "latest")
        assert lib.thc_held_version(shard.handle, None, None) == CODES["NOT_AVAILABLE"]
        keeper = opened(cl, "a", "keeper", retain="3")
        shard.publish(3)
        expect_error("NOT_AVAILABLE", shard.manifest, "4")
        expect_error("INVALID", shard.manifest, "3", of_shard=1)
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
        assert "THC_CLOSE_ABANDON" in e.text, e.text
        assert shard.held() == (0, 3) and shard.safe_to_mutate() == 0
        keeper.close()
        agent.kill()
        expect_error("AGENT_LOST", shard.list)
        expect_error("AGENT_LOST", shard.unregister)
        assert shard.safe_to_mutate() == 1
        assert lib.thc_shard_events(shard.handle) & 16
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
            assert (kind, code) == (REFUSED, CODES["PROTOCOL"]), (kind, code, text)
            assert f"{lowest} to {highest}" in text and f"1 to {spoken}" in text, text
        shard = opened(cl, "a", "r")
        shard.close()


if __name__ == "__main__":
    main(
        every_call_succeeds,
        an_unknown_outcome_is_resolved,
        what_is_not_built_says_so,
        memory_that_lies_on_no_gpu,
        a_transport_that_is_forbidden_is_no_path,
        limits_are_named,
        what_is_not_there,
        other_protocol_versions_are_served_or_refused,
    )
