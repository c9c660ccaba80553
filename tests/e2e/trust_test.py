# SPDX-License-Identifier: Apache-2.0
"""Users who do not trust each other on one host: who may pass for an agent."""

import contextlib
import os
import shutil
import signal
import socket

from cluster import BUILD, Skip, cluster, expect_error, main, with_library

with_library()
import thc

STRANGER, AGENT = 65534, 65533


def needs_root():
    if os.geteuid() != 0:
        raise Skip("needs root to be several users")


@contextlib.contextmanager
def another(uid, run):
    """A process of this user (and of this one's group) in which run() runs, until the end; what it
    writes is read from the pipe."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(r)
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
    return thc.Shard("m", "r", agent=folder, timeout=5)


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
                assert path in e.text and f"uid {STRANGER} listens there" in e.text, e.text
                assert "may be no agent" in e.text and len(e.text) < 511, e.text
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
            assert shard.list()["versions"] == {}
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
            assert "agent.ipc" in e.text and "may be written by others" in e.text, e.text
            assert told(r) == "got 0 bytes\n", "the secret of the session"
        os.chmod(a.runtime, 0o750)
        os.rename(os.path.join(a.runtime, "aside"), os.path.join(a.runtime, "agent.ipc"))
        assert shard.list()["versions"] == {}
        shard.close()


if __name__ == "__main__":
    main(
        a_fake_agent_gets_nothing,
        an_agent_of_its_own_user_is_trusted,
        a_fake_documents_socket_gets_nothing,
    )
