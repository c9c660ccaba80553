# SPDX-License-Identifier: Apache-2.0
"""Users who do not trust each other on one host: who may pass for an agent, who for an operator."""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess

from cluster import BUILD, Process, Skip, cluster, expect_error, main, wait_for, with_library

with_library()
import library

STRANGER, AGENT, OPERATORS = 65534, 65533, 65532
OK, DENIED = 0, 7
HEAD = struct.Struct("<IHHII")
MAGIC, HELLO, WELCOME, OPEN, SESSION = 0x31434854, 1, 2, 4, 5


def needs_root():
    if os.geteuid() != 0:
        raise Skip("needs root to be several users")


@contextlib.contextmanager
def another(uid, run, gid=None):
    """A process of this user (and of our group, or that one) in which run() runs, until the end;
    what it writes is read from the pipe."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(r)
            os.setgroups([])
            if gid is not None:
                os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            run(w)
            status = 0
        finally:
            os._exit(status)
    os.close(w)
    try:
        yield r
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(r)


def fake_agent(folder):
    """Listens as an agent does and says on the pipe what came."""

    def run(w):
        sockets = []
        for name, kind in (("agent.fds", socket.SOCK_SEQPACKET), ("agent.ipc", socket.SOCK_STREAM)):
            s = socket.socket(socket.AF_UNIX, kind)
            s.bind(os.path.join(folder, name))
            os.chmod(os.path.join(folder, name), 0o777)
            s.listen(8)
            sockets.append(s)
        os.write(w, b"listens\n")
        while True:
            s, _ = sockets[0].accept()
            s.settimeout(10)
            with s:
                data, fds, _flags, _address = socket.recv_fds(s, 65536, 8)
                os.write(w, f"got {len(data)} bytes, {len(fds)} descriptors\n".encode())

    return run


def told(r):
    return os.read(r, 4096).decode()


def open_at(folder):
    return library.th.open("m", replica="r", agent=folder, timeout=5)


def a_fake_agent_gets_nothing():
    """In folders of all kinds that a stranger may write, or has made where everybody may."""
    needs_root()
    with cluster(server=False) as c:
        os.chmod(c.dir, 0o755)

        def made(name, mode, uid=0):
            folder = os.path.join(c.dir, name)
            os.mkdir(folder)
            os.chmod(folder, mode)
            os.chown(folder, uid, -1)
            return folder

        everybodys = made("everybodys", 0o777)
        sticky = made("sticky", 0o1777)
        folders = [everybodys, sticky]
        for parent in folders[:2]:
            folder = os.path.join(parent, "tensorhub")
            os.mkdir(folder)
            os.chown(folder, STRANGER, -1)
            folders.append(folder)
        # A name in a folder of everybody's that leads to one which is well made, for another.
        theirs = made("theirs", 0o755, STRANGER)
        link = os.path.join(sticky, "link")
        os.symlink(theirs, link)
        os.chown(link, STRANGER, -1, follow_symlinks=False)
        for folder in folders + [link]:
            with another(STRANGER, fake_agent(folder)) as r:
                assert told(r) == "listens\n"
                e = expect_error("DENIED", open_at, folder)
                path = os.path.join(folder, "agent.fds")
                assert path in str(e) and f"uid {STRANGER} listens there" in str(e), e
                assert "may be no agent" in str(e) and len(str(e)) < 511, e
                # It came, and went without a word.
                assert told(r) == "got 0 bytes, 0 descriptors\n"
            for name in ("agent.fds", "agent.ipc"):
                os.unlink(os.path.join(folder, name))
        # The same where root has made the folder for that user, and nobody else may write there:
        # then who listens is the agent, as far as anybody can tell.
        with another(STRANGER, fake_agent(theirs)) as r:
            assert told(r) == "listens\n"
            expect_error("AGENT_LOST", open_at, theirs)
            assert told(r).startswith("got "), "HELLO"


def an_agent_of_its_own_user_is_trusted():
    """As the unit runs it: in a directory that root made for it, under a name that is a link."""
    needs_root()
    with cluster() as c:
        os.chmod(c.dir, 0o755)
        binary = shutil.copy(os.path.join(BUILD, "daemon", "thagentd"), c.dir)
        runtime, link = os.path.join(c.dir, "run"), os.path.join(c.dir, "link")
        os.mkdir(runtime)
        os.chmod(runtime, 0o755)
        os.chown(runtime, AGENT, AGENT)
        os.symlink("run", link)
        prefix = ["setpriv", f"--reuid={AGENT}", f"--regid={AGENT}", "--clear-groups"]
        prefix += ["sh", "-c", f'shift; exec {binary} "$@"', "sh"]
        c.agent("a", prefix=prefix, runtime=runtime)
        for where in (runtime, link):
            shard = open_at(where)
            # Over agent.ipc.
            assert not shard.list().all
            shard.close()


def a_fake_documents_socket_gets_nothing():
    """agent.fds is the agent's, agent.ipc a stranger's, who could write the directory for once."""
    needs_root()
    with cluster() as c:
        os.chmod(c.dir, 0o755)
        a = c.agent("a")
        shard = open_at(a.runtime)
        os.rename(os.path.join(a.runtime, "agent.ipc"), os.path.join(a.runtime, "aside"))
        os.chmod(a.runtime, 0o777)

        def listen(w):
            s = socket.socket(socket.AF_UNIX)
            s.bind(os.path.join(a.runtime, "agent.ipc"))
            os.chmod(os.path.join(a.runtime, "agent.ipc"), 0o777)
            s.listen(8)
            os.write(w, b"listens\n")
            s, _ = s.accept()
            os.write(w, b"got %d bytes\n" % len(s.recv(4096)))

        with another(STRANGER, listen) as r:
            assert told(r) == "listens\n"
            e = expect_error("DENIED", shard.list)
            assert "agent.ipc" in str(e) and "may be written by others" in str(e), e
            assert told(r) == "got 0 bytes\n", "the secret of the session"
        os.chmod(a.runtime, 0o750)
        os.rename(os.path.join(a.runtime, "aside"), os.path.join(a.runtime, "agent.ipc"))
        assert not shard.list().all
        shard.close()


# ---- operators ----------------------------------------------------------------------------------

# Of message Request.
LIST, INSPECT, RESOLVE, STATUS, ADMIN, WAITS = 25, 28, 26, 43, 50, 63
NUMBER, CODE, TEXT = 1, 2, 3


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def part(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def admin(verb, node="", origin=""):
    return part(
        ADMIN, b"\x08" + bytes([verb]) + part(2, node.encode()) + part(10, origin.encode())
    )


DRAIN = 1


def parts_of(data):
    """{field: the value} of a message; of those that come again the last."""
    found, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            value = number()
        else:
            count = {1: 8, 5: 4}.get(tag & 7) or number()
            value = data[at : at + count]
            at += count
        found[tag >> 3] = value
    return found


def exchange(path, body, session=0, secret=b""):
    """(code, sentence) of the answer to a document."""
    request = b"\x09" + os.urandom(8) + body
    if session:
        request += b"\x18" + varint(session) + part(4, secret)
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(30)
        s.connect(path)
        frame = b"\1" + struct.pack(">Q", 4 + len(request)) + b"\x80\0\0\1"
        s.sendall(b"\0SP\0\0\x30\0\0" + frame + request)
        with s.makefile("rb") as f:
            _sp, _type, length = struct.unpack(">8sBQ", f.read(17))
            reply = parts_of(f.read(length)[4:])
    code = reply.get(CODE, 0)
    return code >> 1 ^ -(code & 1), reply.get(TEXT, b"").decode()


def asked_by(uid, path, bodies, gid=None, **session):
    """What each of them is answered, and the pid of who asked."""

    def run(w):
        answers = [exchange(path, body, **session) for body in bodies]
        os.write(w, json.dumps([os.getpid(), answers]).encode() + b"\n")

    with another(uid, run, gid) as r:
        text = b""
        while not text.endswith(b"\n"):
            more = os.read(r, 65536)
            assert more, "who asks has failed"
            text += more
    return json.loads(text)


def events(c):
    out = c.thctl("-s", c.server_url, "-o", "json", "events").stdout
    return [e["text"] for e in json.loads(out)["events"]]


def is_drained(c, agent):
    """As the server has it."""
    out = c.thctl("-s", c.server_url, "-o", "json", "ls", "nodes").stdout
    return any(n["draining"] for n in json.loads(out)["nodes"] if n["node"] == agent)


def attached(c, agent):
    wait_for(lambda: c.thctl("status", agent=agent, check=False).returncode == OK, 30, "attached")


def counter(c, agent, name):
    out = c.thctl("-o", "json", "status", agent=agent).stdout
    return next(k["value"] for k in json.loads(out)["counters"] if k["name"] == name)


def a_worker_is_no_operator():
    """As nobody, in the agent's group, as workers are: by the bytes, so that no client helps."""
    needs_root()
    with cluster() as c:
        os.chmod(c.dir, 0o755)
        a = c.agent("a")
        attached(c, "a")
        path = os.path.join(a.runtime, "agent.ipc")
        others = library.opened(a, "r", "others")
        bodies = [
            admin(DRAIN, "a", "uid 0 (root) on a"),
            admin(2, "a"),
            admin(3),
            admin(4),
            part(INSPECT, b""),
            part(LIST, part(1, b"others")),
            part(RESOLVE, part(1, b"others") + part(2, b"latest")),
            part(WAITS, b""),
        ]
        _pid, answers = asked_by(STRANGER, path, bodies)
        for code, text in answers:
            assert code == -5018 and f"{a.runtime}/admin.ipc" in text, answers
            assert "admin.group" in text, text
        assert not is_drained(c, "a")
        assert counter(c, "a", "documents_denied") == len(bodies)
        assert f"uid={STRANGER}" in a.tail() and "only operators drain" in a.tail(), a.tail()
        # The state of the agent it is told, as thctl shows.
        assert asked_by(STRANGER, path, [part(STATUS, b"")])[1] == [[0, ""]]
        # A socket of one's own is no way to the other: not even for root.
        assert exchange(path, admin(DRAIN, "a"))[0] == -5018
        # And operators' is closed.
        try:
            asked_by(STRANGER, os.path.join(a.runtime, "admin.ipc"), [admin(DRAIN, "a")])
        except AssertionError as e:
            assert "who asks has failed" in str(e), e
        else:
            raise AssertionError("nobody is an operator")
        assert not is_drained(c, "a")
        others.close()


def a_handle_asks_about_its_own_model():
    with cluster() as c:
        a = c.agent("a")
        attached(c, "a")
        others = library.opened(a, "elsewhere", "others")
        # A session by hand, as its secret is needed.
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(10)
        s.connect(os.path.join(a.runtime, "agent.fds"))

        def told_of(kind, body):
            s.send(HEAD.pack(MAGIC, kind, 0, len(body), 0) + body)
            data, fds, _flags, _address = socket.recv_fds(s, 65536, 8)
            for fd in fds:
                os.close(fd)
            return HEAD.unpack_from(data)[1], data[HEAD.size :]

        kind, _ = told_of(HELLO, struct.pack("<IIQII", 1, 1, 0, 4096, 0))
        assert kind == WELCOME, kind
        names = b"".join(name.ljust(256, b"\0") for name in (b"own", b"r", b""))
        kind, body = told_of(OPEN, struct.pack("<QIIII", 0, 0, 1, 0, 0) + names + bytes(1024))
        assert kind == SESSION, kind
        session, secret = struct.unpack_from("<Q16s", body)
        path, key = os.path.join(a.runtime, "agent.ipc"), {"session": session, "secret": secret}
        assert exchange(path, part(LIST, part(1, b"own")), **key) == (0, "")
        for body in (
            part(LIST, part(1, b"others")),
            part(LIST, b""),
            part(RESOLVE, part(1, b"others") + part(2, b"latest")),
        ):
            code, text = exchange(path, body, **key)
            assert code == -5018 and "model of its handle alone" in text, (code, text)
        code, text = exchange(path, part(INSPECT, b""), **key)
        assert code == -5018 and "only operators" in text, (code, text)
        # Whichever session it names, it hears of its own, which has called nothing.
        table = c.thctl("-s", c.server_url, "-o", "json", "ls", "workers", "others").stdout
        sid = json.loads(table)["workers"][0]["session"]
        code, text = exchange(path, part(WAITS, varint(1 << 3) + varint(sid)), **key)
        assert code == -5002 and "of replica r has called no" in text, (code, text)
        s.close()
        others.close()


def who_asked_is_the_kernels_word():
    """Whatever the request says of itself; root, and a member of the group of operators."""
    needs_root()
    with cluster() as c:
        os.chmod(c.dir, 0o755)
        a = c.agent("a", args=["-o", f"admin.group={OPERATORS}"])
        os.chmod(a.runtime, 0o755)
        attached(c, "a")
        path = os.path.join(a.runtime, "admin.ipc")
        for uid, gid, name in ((0, 0, "root"), (STRANGER, OPERATORS, "nobody")):
            pid, answers = asked_by(uid, path, [admin(DRAIN, "a", "uid 1 (daemon) on b")], gid=gid)
            assert answers == [[0, ""]] and is_drained(c, "a"), answers
            who = f"node a is being drained: uid {uid} ({name}) pid {pid} on a"
            assert who in events(c), (who, events(c))
            c.thctl("undrain", "a", agent="a")
            back = "node a is not drained any more: uid 0 (root) pid "
            assert any(e.startswith(back) for e in events(c)), events(c)
        assert not any("daemon" in e or "thctl of" in e for e in events(c)), events(c)
        # The server itself believes what thctl says, as there is nobody who knows better.
        c.thctl("-s", c.server_url, "drain", "a")
        assert any("node a is being drained: thctl of uid 0" in e for e in events(c)), events(c)


class Nobody:
    """thctl as user nobody, who need not get into the build folder: it has a copy."""

    def __init__(self, c):
        for name in ("tools/thctl", "libthc/libthc.so.1"):
            copy = os.path.join(c.dir, name)
            os.makedirs(os.path.dirname(copy))
            shutil.copy(os.path.join(BUILD, name), copy)
        self.program = os.path.join(c.dir, "tools", "thctl")

    def argv(self, *args, gid=0):
        drop = ["setpriv", f"--reuid={STRANGER}", f"--regid={gid}", "--clear-groups"]
        return [*drop, self.program, *args]

    def thctl(self, *args, **kwargs):
        return subprocess.run(
            self.argv(*args, **kwargs),
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )


def thctl_says_what_it_may_not():
    needs_root()
    with cluster() as c:
        os.chmod(c.dir, 0o755)
        a = c.agent("a")
        attached(c, "a")
        root = library.opened(a, "r", "of-root")
        nobody = Nobody(c)
        for args in (
            ("drain", "a"),
            ("undrain", "a"),
            ("evict", "--model", "m", "--replica", "r", "--yes"),
            ("go", "of-root", "1"),
            ("events",),
            ("ls", "models"),
            ("ls", "versions", "of-root"),
            ("ls", "nodes"),
        ):
            p = nobody.thctl("-r", a.runtime, *args)
            assert p.returncode == DENIED and not p.stdout, p
            assert f"{a.runtime}/admin.ipc may not be opened" in p.stderr, p
            assert "admin.group" in p.stderr and f"thctl -s URL {args[0]}" in p.stderr, p
        # What is one's own works: publish, wait, fetch, and the status of that.
        source = os.path.join(c.dir, "in.safetensors")
        header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
        with open(source, "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header + os.urandom(64))
        target = os.path.join(c.dir, "nobodys")
        os.mkdir(target)
        os.chown(target, STRANGER, 0)
        which = ["--model", "of-nobody", "--version", "1"]
        publisher = Process(
            c, "publish", nobody.argv("-r", a.runtime, "publish", *which, source)
        )
        assert publisher.p.stdout.readline() == b"published of-nobody 1\n", publisher.tail()
        out = os.path.join(target, "out.safetensors")
        for args in (["wait", *which], ["fetch", *which, out]):
            p = nobody.thctl("-r", a.runtime, *args)
            assert p.returncode == OK, p
        with open(source, "rb") as f, open(out, "rb") as g:
            assert f.read() == g.read()
        p = nobody.thctl("-r", a.runtime, "-o", "json", "status")
        assert p.returncode == OK and "what belongs to this user" in p.stderr, p
        status = json.loads(p.stdout)
        assert status["own_only"] and status["node"] == "a" and status["attached"], status
        assert {s["model"] for s in status["sessions"]} == {"of-nobody"}, status
        assert not status["counters"] and status["mapped_bytes"] is None, status
        whole = json.loads(c.thctl("-o", "json", "status", agent="a").stdout)
        assert {s["model"] for s in whole["sessions"]} == {"of-root", "of-nobody"}, whole
        assert not whole["own_only"] and whole["counters"], whole
        # Neither socket: as anybody outside the agent's group.
        os.chmod(a.runtime, 0o755)
        p = nobody.thctl("-r", a.runtime, "status", gid=STRANGER)
        assert p.returncode == DENIED and "agent.ipc" in p.stderr, p
        publisher.signal(signal.SIGINT)
        assert publisher.p.wait(20) == 0, publisher.tail()
        root.close()


def a_group_that_is_none_ends_the_start():
    with cluster(server=False) as c:
        try:
            c.agent("a", args=["-o", "admin.group=no-such-group"])
        except AssertionError as e:
            assert 'there is no group "no-such-group"' in str(e), e
        else:
            raise AssertionError("it has started")


if __name__ == "__main__":
    main(
        a_fake_agent_gets_nothing,
        an_agent_of_its_own_user_is_trusted,
        a_fake_documents_socket_gets_nothing,
        a_worker_is_no_operator,
        a_handle_asks_about_its_own_model,
        who_asked_is_the_kernels_word,
        thctl_says_what_it_may_not,
        a_group_that_is_none_ends_the_start,
    )
