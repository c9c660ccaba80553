# SPDX-License-Identifier: Apache-2.0
"""Garbage on every channel: the peer is dropped and counted, and everybody else goes on."""

import fcntl
import itertools
import json
import mmap
import os
import random
import signal
import socket
import struct
from contextlib import closing, suppress

import fuse
from cluster import Skip, cluster, main, wait_for

HEAD = struct.Struct("<IHHII")
MAGIC = 0x31434854
HELLO, WELCOME, REFUSED, OPEN, SESSION, MEMORY, MEMORY_ID, FORGET, CLOSE, CLOSED = range(1, 11)
GPU = 11
FOLLOW = 8  # of enum shm_submission_kind
STATE, INVALID = -5002, -5001
FEATURE_GPU = 1
ROUNDS = 40
CLOSERS = 16  # THREADS_MAX of closer.c


def message(kind, body=b"", fds=0, magic=MAGIC, length=None):
    return HEAD.pack(magic, kind, fds, len(body) if length is None else length, 0) + body


def hello(lowest=1, highest=1, features=0):
    return message(HELLO, struct.pack("<IIQII", lowest, highest, features, mmap.PAGESIZE, 0))


def opening(model="m", replica="evil"):
    def text(s, size):
        return s.encode().ljust(size, b"\0")

    body = (
        struct.pack("<QIIII", 0, 0, 1, 0, 0)
        + text(model, 256)
        + text(replica, 256)
        + text("", 256)
        + text("", 1024)
    )
    return message(OPEN, body)


def connect(runtime):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(10)
    s.connect(os.path.join(runtime, "agent.fds"))
    return s


def receive(s):
    data, fds, _flags, _address = socket.recv_fds(s, 65536, 8)
    if not data:
        return None, b"", fds
    _magic, kind, _n, _length, _zero = HEAD.unpack_from(data)
    return kind, data[HEAD.size :], fds


def join(runtime, replica, features=0):
    s = connect(runtime)
    s.send(hello(features=features))
    kind, _body, _fds = receive(s)
    assert kind == WELCOME, kind
    s.send(opening(replica=replica))
    kind, body, fds = receive(s)
    assert kind == SESSION, (kind, body[:80])
    return s, fds, body


def session(runtime, replica, features=0):
    return join(runtime, replica, features)[:2]


def gone(s):
    """The agent hangs up (after a last word or not)."""
    while True:
        try:
            data = s.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return True
        if not data:
            return True


class Witness:
    """Somebody else on the same agents, who must notice nothing."""

    def __init__(self, c):
        c.agent("a")
        c.agent("b")
        self.c, self.version = c, 0
        self.w, self.r = c.worker("w", "a"), c.worker("r", "b")
        self.w.setup(2 << 20, model="m", replica="w")
        self.r.setup(2 << 20, model="m", replica="r")
        self.works()

    def works(self):
        self.version += 1
        if self.version > 1:
            self.w.call("unpublish")
        want = self.w.call("fill", seed=self.version)
        self.w.call("publish", version=self.version)
        assert self.r.call("update")["version"] == self.version
        assert self.r.call("digest") == want

    def counters(self, agent="a"):
        return {
            k["name"]: k["value"]
            for k in json.loads(self.c.thctl("-o", "json", "status", agent=agent).stdout)[
                "counters"
            ]
        }


def descriptor_socket():
    rng = random.Random(1)
    with cluster() as c:
        witness = Witness(c)
        a = c.agents["a"]
        before = witness.counters()
        fds_before = len(os.listdir(f"/proc/{a.pid}/fd"))
        cases = [
            [b"x"],
            [b"\0" * 16],
            [os.urandom(64)],
            [message(HELLO, magic=1)],
            [message(HELLO, b"\0" * 24, length=1 << 31)],
            [message(OPEN, b"\0" * 100)],
            [opening()],
            [hello(), hello()],
            [hello(), message(SESSION)],
            [hello(), message(OPEN, b"\xff" * 1816)],
            [hello(), opening(model="")],
            [hello(), opening(model="bad\nname")],
            [hello(), message(CLOSE, struct.pack("<IIq", 0, 0, 0))],
            [hello(), opening(), opening()],
            [hello(), opening(), message(77)],
            [hello(), opening(), message(MEMORY, struct.pack("<IIQQQ", 1, 1, 0, 4096, 0))],
        ]
        for _ in range(ROUNDS):
            cases.append([message(rng.randrange(0, 14), os.urandom(rng.randrange(0, 2000)))])
        for case in cases:
            s = connect(a.runtime)
            try:
                for m in case:
                    s.send(m)
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert gone(s), case
            s.close()
        # Descriptors on messages that may not carry any are closed, not kept.
        for _ in range(50):
            s = connect(a.runtime)
            r, w = os.pipe()
            socket.send_fds(s, [hello()], [r, w, r, w])
            os.close(r)
            os.close(w)
            assert gone(s)
            s.close()
        # Memory that is none: a pipe, a file without seals, a memfd shorter than announced.
        s, fds = session(a.runtime, "evil-memory")
        for make in (
            lambda: os.pipe()[0],
            lambda: os.open("/dev/zero", os.O_RDWR),
            lambda: os.memfd_create("short", os.MFD_ALLOW_SEALING),
        ):
            fd = make()
            socket.send_fds(
                s, [message(MEMORY, struct.pack("<IIQQQ", 7, 1, 4096, 1 << 30, 0), fds=1)], [fd]
            )
            kind, body, _ = receive(s)
            assert kind == MEMORY_ID, kind
            _token, ident, code, _zero = struct.unpack_from("<IIiI", body)
            assert code < 0 and ident == 0, (code, ident)
            os.close(fd)
        for fd in fds:
            os.close(fd)
        s.close()
        # Protocol ranges that do not overlap are refused with both in the sentence.
        s = connect(a.runtime)
        s.send(hello(7, 9))
        kind, body, _ = receive(s)
        code, _zero = struct.unpack_from("<iI", body)
        text = body[8:].split(b"\0")[0].decode()
        assert kind == REFUSED and code == -5019 and "7" in text and "9" in text and "1" in text, (
            kind,
            code,
            text,
        )
        s.close()
        wait_for(
            lambda: len(os.listdir(f"/proc/{a.pid}/fd")) <= fds_before + 2,
            5,
            "no descriptor is left",
        )
        after = witness.counters()
        grew = {k: after[k] - before.get(k, 0) for k in after if after[k] > before.get(k, 0)}
        assert any("violation" in k or "refused" in k for k in grew), grew
        witness.works()


def gpu_piece(kind, gpu, base, nbytes=4096, handle_bytes=None):
    """A GPU message; the handle is garbage, as nobody but the driver can tell."""
    handle = struct.pack("<IIQQ", kind, 0, handle_bytes or nbytes, 1) + bytes([gpu]) * 16
    return struct.pack("<IIQQ", 9, 0, base, nbytes) + handle + os.urandom(64)


def gpu_messages():
    """Memory of GPUs that do not exist, with descriptors that are none, and never registered."""
    with cluster() as c:
        witness = Witness(c)
        a = c.agents["a"]
        fds_before = len(os.listdir(f"/proc/{a.pid}/fd"))
        # Who has not said that he knows of it.
        s, fds = session(a.runtime, "old")
        assert len(fds) == 5, fds
        for fd in fds:
            os.close(fd)
        s.send(message(GPU, gpu_piece(1, 1, 1 << 40)))
        assert gone(s)
        s.close()
        s, fds = session(a.runtime, "evil-gpu", FEATURE_GPU)
        assert len(fds) == 6, fds
        os.set_blocking(fds[5], False)
        try:
            assert os.read(fds[5], 1), "the lifeline has hung up"
        except BlockingIOError:
            pass
        ids, refused = [], 0
        for i in range(60):
            kind, with_fd = i % 7, i % 2
            body = gpu_piece(kind, 1 + i % 20, (1 << 40) + (i << 12), handle_bytes=4096 + i % 3)
            if with_fd:
                r, w = os.pipe()
                socket.send_fds(s, [message(GPU, body, fds=1)], [r])
                os.close(r)
                os.close(w)
            else:
                s.send(message(GPU, body))
            kind, body, _ = receive(s)
            assert kind == MEMORY_ID, kind
            token, ident, code, _zero = struct.unpack_from("<IIiI", body)
            assert token == 9 and (code == 0) == (ident > 0), (token, ident, code)
            refused += code != 0
            if ident:
                ids.append(ident)
        assert ids and refused, (ids, refused)
        s.send(message(FORGET, struct.pack("<II", ids[0], 0)))
        witness.works()
        s.send(message(FORGET, struct.pack("<II", max(ids) + 1000, 0)))
        assert gone(s)
        for fd in fds:
            os.close(fd)
        s.close()
        witness.works()
        wait_for(
            lambda: len(os.listdir(f"/proc/{a.pid}/fd")) <= fds_before + 2 * 16 + 2,
            30,
            "no descriptor of it is left",
        )
        assert a.alive()


def ask(runtime, number, secret, request_no, body):
    """Sends a document of the session and gives the function that returns its answer."""
    request = b"\x09" + struct.pack("<Q", request_no) + b"\x18" + bytes([number])
    request += b"\x22\x10" + secret + body
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    s.connect(os.path.join(runtime, "agent.ipc"))
    frame = b"\1" + struct.pack(">Q", 4 + len(request)) + b"\x80\0\0\1"
    s.sendall(b"\0SP\0\0\x30\0\0" + frame + request)

    def answer():
        with s, s.makefile("rb") as f:
            _sp, _type, length = struct.unpack(">8sBQ", f.read(17))
            return f.read(length)[4:]

    return answer


def copies(pid, path):
    folder, count = f"/proc/{pid}/fd", 0
    for fd in os.listdir(folder):
        try:
            count += os.readlink(os.path.join(folder, fd)) == path
        except FileNotFoundError:
            pass  # closed meanwhile
    return count


def never_registered():
    """Pieces of GPU memory, and the end of a registration that never was, also behind a document
    that its worker waits for no more: the agent keeps none, and says it as of one that was."""
    with cluster() as c:
        a = c.agent("a")
        s, fds, body = join(a.runtime, "evil", FEATURE_GPU)
        number, secret = struct.unpack_from("<Q16s", body)
        assert number < 128
        memory = os.memfd_create("piece")
        piece = message(GPU, gpu_piece(2, 1, 1 << 40), fds=1)
        socket.send_fds(s, [piece], [memory])
        kind, body, _ = receive(s)
        assert kind == MEMORY_ID and struct.unpack_from("<IIi", body)[1:] == (1, 0), body[:80]
        name = "/memfd:piece (deleted)"
        assert copies(a.pid, name) == 1

        def documents():
            status = c.thctl("-o", "json", "status", agent="a", check=False).stdout
            counters = json.loads(status)["counters"]
            return next(k["value"] for k in counters if k["name"] == "documents")

        asked = itertools.count(documents() + 1)
        c.server.signal(signal.SIGSTOP)
        attributes = b"THA1" + struct.pack("<IH1sI", 1, 1, b"a", 0)
        attributes = b"\x10\1\x1a" + bytes([len(attributes)]) + attributes
        put = ask(a.runtime, number, secret, 1, b"\xd2\x02" + bytes([len(attributes)]) + attributes)
        wait_for(lambda: documents() > next(asked), 30, "the agent has the attributes")
        unregistered = ask(a.runtime, number, secret, 2, b"\xca\x02\0")()
        assert unregistered == b"\x09" + struct.pack("<Q", 2), unregistered
        assert b"before its end" in put()
        assert copies(a.pid, name) == 0, "the agent has answered, and keeps the memory"
        c.server.signal(signal.SIGCONT)
        for fd in (memory, *fds):
            os.close(fd)
        s.close()


def add_memory(s, fd, message_of_it):
    socket.send_fds(s, [message_of_it], [fd])
    kind, body, _ = receive(s)
    assert kind == MEMORY_ID, kind
    _token, ident, code, _zero = struct.unpack_from("<IIiI", body)
    return ident, code, body


def name(process, thread):
    with suppress(OSError), open(f"/proc/{process.pid}/task/{thread}/comm") as f:
        return f.read().strip()
    return f"thread {thread} of another process"


def a_close_that_blocks_stops_nobody():
    """The kernel asks who serves a file at each close of a copy of its descriptor. So no copies are
    made, where the agent starts the process of a GPU, or a thread that reads a worker's memory."""
    try:
        served = fuse.FuseFile(1 << 20, 1 << 20)
    except OSError as e:
        raise Skip(f"no file system of our own: {e.strerror}")
    # It closes before the cluster does: a process that waits for its answer cannot be killed.
    with closing(served), cluster(has_gpus=True) as c, closing(served):
        a = c.agent("a")
        # A process that is started has copies of what this one has.
        pair = [c.worker(replica, "a") for replica in "wr"]
        on_gpu = [c.worker(replica, "a") for replica in "xy"]
        # More than there are threads to close what strangers send.
        sessions = [session(a.runtime, f"evil{i}", FEATURE_GPU) for i in range(CLOSERS + 4)]
        fd = os.open(served.path, os.O_RDWR)
        process = struct.pack("<IIQQQ", 7, 3, 4096, 1 << 20, 4096)
        for s, _fds in sessions:
            ident, code, _body = add_memory(s, fd, message(MEMORY, process, fds=1))
            assert (ident, code) == (1, 0), (ident, code)
        # The process of a GPU gets none whose close anybody could keep from it, and who waits
        # for an end waits for none.
        piece = message(GPU, gpu_piece(2, 1, 1 << 40), fds=1)
        dmabuf = message(MEMORY, struct.pack("<IIQQQ", 7, 4, 1 << 40, 4096, 0), fds=1)
        r, w = os.pipe()
        for each, refused, why in (
            (fd, piece, b"of no device"),
            (r, piece, b"of no device"),
            (s.fileno(), piece, b"of no device"),
            (fd, dmabuf, b"of a dma-buf"),
        ):
            ident, code, body = add_memory(s, each, refused)
            assert ident == 0 and code < 0 and why in body, (ident, code, body)
        os.close(r)
        os.close(w)
        os.close(fd)
        left = len(sessions)
        # A close gives the number back before it asks: who has none may not have asked yet.
        wait_for(lambda: served.closed() == 3, 30, "this test and twice the agent have closed")
        assert copies(a.pid, served.path) == left
        served.keep_closes()
        # A thread for each side, and what they need has higher numbers.
        for worker in pair:
            worker.setup(2 << 20, model="m", replica=worker.label)
        want = pair[0].call("fill", seed=1)
        pair[0].call("publish", version=1)
        pair[1].call("replicate", version="1")
        assert pair[1].call("digest") == want
        for worker in on_gpu:
            worker.call("open", model="g", replica=worker.label)
            worker.call("alloc", total_bytes=9 << 20, gpu="chunk")
            worker.call("register")
        want = on_gpu[0].call("fill", seed=1)
        on_gpu[0].call("publish", version=1)
        on_gpu[1].call("replicate", version="1")
        assert on_gpu[1].call("digest") == want
        assert served.kept() == 0, f"closed copies: {[name(a, t) for t in served.closing()]}"
        # The agent closes them where nobody waits for it.
        for s, fds in sessions:
            s.close()
            for each in fds:
                os.close(each)
        wait_for(lambda: served.kept() == CLOSERS, 30, "the agent closes descriptors")
        on_gpu[1].call("unpublish")
        on_gpu[1].call("unregister")
        assert served.go() == CLOSERS


def ring():
    rng = random.Random(2)
    with cluster() as c:
        witness = Witness(c)
        a = c.agents["a"]

        def attack(n, scribble):
            s, fds = session(a.runtime, f"evil{n}")
            with mmap.mmap(fds[0], 0) as w:
                scribble(w)
                os.write(fds[2], struct.pack("<Q", 1))
                assert gone(s), n
            for fd in fds:
                os.close(fd)
            s.close()

        def submission(op_seq=1, kind=3, slot=0, spec=b"latest", reserved=b""):
            return struct.pack(
                "<QHHIq32s8s",
                op_seq,
                kind,
                slot,
                0,
                -1,
                spec.ljust(32, b"\0"),
                reserved.ljust(8, b"\0"),
            )

        def index(value):
            return lambda w: w.__setitem__(slice(64, 72), struct.pack("<Q", value))

        def record(data):
            def scribble(w):
                w[192 : 192 + 64] = data
                w[64:72] = struct.pack("<Q", 1)

            return scribble

        cases = [
            index(65),
            index(2**64 - 1),
            index(1 << 40),
            record(submission(kind=0)),
            record(submission(kind=9)),
            record(submission(kind=99)),
            record(submission(slot=64)),
            record(submission(slot=65535)),
            record(submission(spec=b"x" * 32)),
            record(submission(reserved=b"\1")),
            record(os.urandom(64)),
        ]
        for n, case in enumerate(cases):
            attack(n, case)

        # FOLLOW of who has registered nothing, and of what is none: its code, in its slot.
        def refused(n, spec):
            s, fds = session(a.runtime, f"follower{n}")
            with mmap.mmap(fds[0], 0) as w, mmap.mmap(fds[1], 0, prot=mmap.PROT_READ) as answers:
                record(submission(kind=FOLLOW, spec=spec))(w)
                os.write(fds[2], struct.pack("<Q", 1))
                wait_for(lambda: answers[64:72] == struct.pack("<Q", 1), 30, "an answer")
                _op_seq, _slot, _zero, code = struct.unpack_from("<QHHi", answers, 256)
            for fd in fds:
                os.close(fd)
            s.close()
            return code

        assert [refused(n, spec) for n, spec in enumerate((b"latest", b"x", b"1"))] == [
            STATE,
            INVALID,
            STATE,
        ]
        # What is written under the agent's eyes: random bytes over the whole file, again and again.
        for n in range(10):
            s, fds = session(a.runtime, f"flip{n}")
            with mmap.mmap(fds[0], 0) as w:
                for _ in range(200):
                    at = rng.randrange(64, len(w) - 8)
                    w[at : at + 8] = os.urandom(8)
                    try:
                        os.write(fds[2], struct.pack("<Q", 1))
                    except BlockingIOError:
                        pass
            for fd in fds:
                os.close(fd)
            s.close()
        # The agent's file cannot be written, nor W truncated.
        s, fds = session(a.runtime, "seals")
        for attempt in (
            lambda: mmap.mmap(fds[1], 0),
            lambda: os.ftruncate(fds[0], 0),
            lambda: os.pwrite(fds[1], b"x", 0),
        ):
            try:
                attempt()
                raise AssertionError("the seal does not hold")
            except (PermissionError, OSError):
                pass
        for fd in fds:
            os.close(fd)
        s.close()
        witness.works()


def documents():
    """nng on agent.ipc and on the server's port."""
    with cluster() as c:
        witness = Witness(c)
        a = c.agents["a"]

        def ipc():
            s = socket.socket(socket.AF_UNIX)
            s.connect(os.path.join(a.runtime, "agent.ipc"))
            return s

        def tcp():
            host, port = c.server_url.split("//")[1].rsplit(":", 1)
            return socket.create_connection((host, int(port)))

        sp = b"\0SP\0\0\x30\0\0"
        for make, lead in ((ipc, b"\1"), (tcp, b"")):
            for data in (
                os.urandom(100),
                sp + os.urandom(200),
                sp + lead + struct.pack(">Q", 1 << 30) + b"\x80\0\0\1" + b"x" * 1000,
                sp + lead + struct.pack(">Q", 20) + b"\x80\0\0\1" + os.urandom(16),
                sp + lead + struct.pack(">Q", 4) + b"\x80\0\0\1",
                sp + lead + struct.pack(">Q", 2**64 - 1),
            ):
                for _ in range(5):
                    s = make()
                    s.settimeout(5)
                    s.sendall(data)
                    s.close()
        # A well-formed message that is none of ours, from a peer that stays: it is answered or
        # dropped, in time.
        s = ipc()
        s.settimeout(10)
        s.sendall(sp + b"\1" + struct.pack(">Q", 4 + 50) + b"\x80\0\0\1" + os.urandom(50))
        assert s.recv(8) == b"\0SP\0\0\x31\0\0"
        s.close()
        witness.works()


def lingering():
    """A socket whose last close waits for a reader who does not read, and its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        s = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    s.setblocking(False)
    try:
        while True:
            s.send(bytes(1 << 16))
    except BlockingIOError:
        return s, other


def slow_close():
    """Descriptors that take an hour to close: on every message, in numbers, received or not."""
    with cluster() as c:
        witness = Witness(c)
        a = c.agents["a"]
        before = len(os.listdir(f"/proc/{a.pid}/fd"))
        others = []

        def send(s, data, count):
            slow, other = lingering()
            others.append(other)
            try:
                socket.send_fds(s, [data], [slow.fileno()] * count)
            except (BrokenPipeError, ConnectionResetError):
                # Nobody has it but this process, which does not want to wait either.
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
            slow.close()

        memory = message(MEMORY, struct.pack("<IIQQQ", 7, 1, 4096, 1 << 30, 0), fds=1)
        for n in range(3):
            s, fds = session(a.runtime, f"evil{n}")
            for _ in range(10):
                send(s, memory, 1)
                kind, _body, _fds = receive(s)
                assert kind == MEMORY_ID, kind
            witness.works()
            s.close()
            for fd in fds:
                os.close(fd)
        for count in (1, 6, 250):
            s = connect(a.runtime)
            send(s, hello(), count)
            assert gone(s)
            s.close()
        witness.works()
        # Behind a message that ends the connection: nobody receives these.
        for _ in range(5):
            s = connect(a.runtime)
            s.send(b"x")
            send(s, hello(), 250)
            assert gone(s)
            s.close()
        witness.works()
        wait_for(
            lambda: len(os.listdir(f"/proc/{a.pid}/fd")) <= before + 2,
            5,
            "no descriptor is left",
        )
        for other in others:
            other.close()


def address_space():
    """Sparse files of any size: the agent keeps enough of its address space for everybody else."""
    with cluster() as c:
        witness = Witness(c)
        a = c.agents["a"]
        keep = []
        for n in range(20):
            s, fds = session(a.runtime, f"evil{n}")
            keep.append(s)
            for fd in fds:
                os.close(fd)
            big = os.memfd_create("big", os.MFD_ALLOW_SEALING)
            size = 1 << 46
            os.ftruncate(big, size)
            fcntl.fcntl(big, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            codes = set()
            while size >= 1 << 20:
                body = struct.pack("<IIQQQ", 7, 1, 4096, size, 0)
                socket.send_fds(s, [message(MEMORY, body, fds=1)], [big])
                kind, body, _fds = receive(s)
                assert kind == MEMORY_ID, kind
                code = struct.unpack_from("<IIiI", body)[2]
                if code < 0:
                    codes.add(code)
                    size >>= 1
            os.close(big)
            assert codes == {-5012}, codes
        late, fds = session(a.runtime, "late")
        for fd in fds:
            os.close(fd)
        for s in (*keep, late):
            s.close()
        witness.works()


def data_port():
    rng = random.Random(3)
    with cluster() as c:
        witness = Witness(c)
        host, port = c.agents["a"].info["data"].rsplit(":", 1)
        before = witness.counters()
        idle = [socket.create_connection((host, int(port))) for _ in range(50)]
        for n in range(ROUNDS):
            s = socket.create_connection((host, int(port)))
            s.settimeout(10)
            try:
                s.sendall(os.urandom(rng.randrange(1, 6000)))
                while s.recv(65536):
                    pass
            except OSError:
                pass
            s.close()
        witness.works()
        for s in idle:
            # Who says nothing is dropped after two seconds.
            s.settimeout(10)
            try:
                assert s.recv(1) == b""
            except ConnectionResetError:
                pass
            s.close()
        after = witness.counters()
        name = next(k for k in after if "stranger" in k)
        assert after[name] >= before[name] + ROUNDS, (before[name], after[name])
        witness.works()


if __name__ == "__main__":
    main(
        descriptor_socket,
        gpu_messages,
        never_registered,
        a_close_that_blocks_stops_nobody,
        ring,
        documents,
        slow_close,
        address_space,
        data_port,
    )
