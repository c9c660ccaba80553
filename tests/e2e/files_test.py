# SPDX-License-Identifier: Apache-2.0
"""thctl publish and fetch as to the files: memory that they need, disks that are full or cannot be
written, files that change under a publisher, every dtype, ties, what is printed and shown."""

import json
import os
import pty
import re
import select
import struct
import subprocess
import threading

from cluster import (
    BUILD,
    SANITIZED,
    Hosts,
    Process,
    Skip,
    cluster,
    main,
    netns_available,
    wait_for,
    with_library,
)

with_library()
import content
import gpus
import memory_kinds
import library
from tensorhub import dtypes
from thctl_test import publish, safetensors, same, some

MIB = 1 << 20
THCTL = os.path.join(BUILD, "tools", "thctl")


def on_a_disk(c):
    """A folder whose files are not memory themselves."""
    for parent in (c.dir, BUILD):
        name = subprocess.run(
            ["stat", "-f", "-c", "%T", parent], capture_output=True, text=True
        ).stdout.strip()
        if name not in ("tmpfs", "ramfs"):
            if parent == c.dir:
                return c.dir
            folder = os.path.join(BUILD, f"files-test-{os.getpid()}")
            os.makedirs(folder)
            c.cleanups.append(lambda: subprocess.run(["rm", "-rf", folder]))
            return folder
    raise Skip("no folder on a disk")


def own_memory(pid):
    """Bytes that only this process has, files that are mapped not counted; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/status") as f:
            fields = dict(line.split(":", 1) for line in f.read().splitlines())
    except OSError:
        return 0
    return sum(int(fields.get(k, "0 kB").split()[0]) << 10 for k in ("RssAnon", "RssShmem"))


class Watch:
    """The most memory that each process had."""

    def __init__(self, pids):
        self.pids, self.most, self.over = dict(pids), {}, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            for name, pid in list(self.pids.items()):
                self.most[name] = max(self.most.get(name, 0), own_memory(pid))
            if self.over.wait(0.002):
                return

    def end(self):
        self.over.set()
        self.thread.join()
        return self.most


def large_files_need_no_memory():
    size = (32 if SANITIZED else 128) * MIB
    with cluster() as c:
        folder = on_a_disk(c)
        agents = {name: c.agent(name).pid for name in "ab"}
        path, out = (os.path.join(folder, f"{n}.safetensors") for n in ("in", "out"))
        safetensors(path, [("w", "U8", [size], os.urandom(size)), *some(1, MIB)])
        watch = Watch(agents)
        p = publish(c, "a", path)
        watch.pids["publish"] = p.pid
        f = Process(
            c,
            "fetch",
            [THCTL, "-r", c.agents["b"].runtime, "fetch", "--model", "m", "--version", "1", out],
        )
        watch.pids["fetch"] = f.pid
        assert f.p.wait(60) == 0, f.tail()
        most = watch.end()
        assert same(path, out)
        print(f"  {size >> 20} MiB: " + ", ".join(f"{k} {v / MIB:.1f}" for k, v in most.items()))
        # A sanitizer has memory of its own, which grows with what the process does.
        for name, used in most.items():
            assert SANITIZED or used < 16 * MIB, (name, used)
        p.terminate()


def in_mount(c, options, argv, folder):
    """argv with a tmpfs at folder that only it sees; what is left there is printed at the end."""
    if not netns_available():
        raise Skip("a mount of its own needs root")
    script = (
        'o="$1"; d="$2"; shift 2; mount -t tmpfs -o "$o" none "$d" || exit 99; "$@"; rc=$?; '
        'ls -A "$d"; exit $rc'
    )
    p = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", options, folder, *argv],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if p.returncode == 99 or p.stderr.startswith("unshare: "):
        raise Skip(f"no mount namespace: {p.stderr.strip()}")
    return p


def disks_that_do_not_take_it():
    with cluster() as c:
        c.agent("a")
        path, folder = os.path.join(c.dir, "in.safetensors"), os.path.join(c.dir, "small")
        safetensors(path, some(2, 3 * MIB))
        os.mkdir(folder)
        publish(c, "a", path)
        fetch = [THCTL, "-r", c.agents["a"].runtime, "fetch", "--model", "m", "--version", "1"]
        for out in ("o.safetensors", "directory"):
            p = in_mount(c, "size=4m", [*fetch, os.path.join(folder, out)], folder)
            assert p.returncode == 1 and p.stdout == "", p
            assert "no room" in p.stderr and "6.00MiB" in p.stderr and folder in p.stderr, p.stderr
            p = in_mount(c, "size=4m,ro", [*fetch, os.path.join(folder, out)], folder)
            assert p.returncode in (1, 7) and p.stdout == "", p
            assert "cannot write in folder" in p.stderr, p.stderr
            p = in_mount(c, "size=16m", [*fetch, os.path.join(folder, out)], folder)
            assert p.returncode == 0 and p.stdout == f"fetched m 1\n{out}\n", p


def places_that_are_taken():
    with cluster() as c:
        c.agent("a")
        path, place = os.path.join(c.dir, "in.safetensors"), os.path.join(c.dir, "d.safetensors")
        safetensors(path, some(1, 4096))
        publish(c, "a", path)
        fetch = lambda *args: c.thctl(
            "fetch", "--model", "m", "--version", "1", *args, agent="a", check=False
        )
        os.mkdir(place)
        for args in ((place,), ("--force", place)):
            p = fetch(*args)
            assert p.returncode == 1 and place in p.stderr, p
        other = os.path.join(c.dir, "thesis")
        os.mkdir(other)
        with open(os.path.join(other, "chapter"), "w") as f:
            f.write("years")
        p = fetch("--force", other)
        assert p.returncode == 1 and "chapter" in p.stderr and os.listdir(other) == ["chapter"], p
        p = fetch(path, "--force")  # the very file that is published is replaced, not written to
        assert p.returncode == 0, p
        p = fetch(os.path.join(c.dir, "absent", "o.safetensors"))
        assert p.returncode == 1 and "absent" in p.stderr, p
        assert not [f for f in os.listdir(c.dir) if f.startswith(".thctl")]


def ends_with(p, *words):
    """It ends by itself, with status 1 and a sentence of these words."""
    assert p.p.wait(60) == 1, p.tail()
    for word in words:
        assert word in p.tail(), (word, p.tail())


def files_that_change():
    with cluster() as c:
        c.agent("a")
        path = os.path.join(c.dir, "in.safetensors")

        def shrinks():
            os.truncate(path, 1000)

        def grows():
            with open(path, "ab") as f:
                f.write(b"more")

        def is_written():
            with open(path, "r+b") as f:
                f.seek(MIB)
                f.write(b"other")
            os.utime(path, (1, 1))  # a clock that is coarse shows no difference

        for version, change in enumerate((shrinks, grows, is_written), 1):
            safetensors(path, some(2, MIB))
            p = publish(c, "a", path, version=version)
            change()
            ends_with(p, path, "written to" if change is is_written else "was changed")
        wait_for(
            lambda: "thctl-" not in c.thctl("ls", "replicas", "m", agent="a").stdout,
            20,
            "no replica",
        )
        # To remove it or to put another one in its place is no change.
        safetensors(path, some(2, MIB))
        copy, out = (os.path.join(c.dir, f"{n}.safetensors") for n in ("copy", "out"))
        subprocess.run(["cp", path, copy], check=True)
        publish(c, "a", path, version=10)
        os.unlink(path)
        safetensors(path, some(1, 1000))
        c.thctl("fetch", "--model", "m", "--version", "10", out, agent="a")
        assert same(copy, out)
        # What is fetched and held is published too.
        held = Process(
            c,
            "held",
            [
                THCTL,
                "-r",
                c.agents["a"].runtime,
                "fetch",
                "--model",
                "m",
                "--version",
                "10",
                "--hold",
                "--force",
                out,
            ],
        )
        assert held.p.stdout.readline() == b"fetched m 10\n", held.tail()
        os.truncate(out, 1000)
        ends_with(held, out, "was changed")


def every_dtype():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        rows = []
        for name, bits in ((kind.name, kind.bits) for kind in dtypes.ALL):
            rows.append((f"t.{name}", name, [3, 8], os.urandom(3 * bits)))
            rows.append((f"e.{name}", name, [8, 0, 2], b""))
            if bits % 8 == 0:
                rows.append((f"s.{name}", name, [], os.urandom(bits // 8)))
        path, out = (os.path.join(c.dir, f"{n}.safetensors") for n in ("in", "out"))
        safetensors(path, rows, {"format": "pt"})
        publish(c, "a", path)
        c.thctl("fetch", "--model", "m", "--version", "1", out, agent="b")
        assert same(path, out)


def what_libthc_published():
    """Tied tensors are two in a file; what the format cannot hold is said before anything moves."""
    with cluster() as c:
        agent = c.agent("a")
        memory = memory_kinds.wanted(3 * 4096)
        memory.write(0, content.content(1, memory.bytes))
        shard = library.opened(agent, "s")
        first = memory_kinds.Tensor(memory, [4096])
        second = memory_kinds.Tensor(memory, [4096], at=4096)
        shard.register({"a": first, "b": second, "tied": first})
        shard.publish(1)
        out = os.path.join(c.dir, "out.safetensors")
        c.thctl("fetch", "--model", "m", "--version", "1", out, agent="a")
        with open(out, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            data = f.read()
        read = lambda name: data[slice(*header[name]["data_offsets"])]
        assert len(data) == 3 * 4096 and read("a") == read("tied") == memory.read(0, 4096)
        assert read("b") == memory.read(4096, 4096)
        shard.close()
        shard = library.opened(agent, "s", "half")
        shard.register({"half": memory_kinds.Tensor(memory, [1], "F4")})
        shard.publish(1)
        p = c.thctl(
            "fetch", "--model", "half", "--version", "1", out, "--force", agent="a", check=False
        )
        assert p.returncode == 1 and "'half'" in p.stderr and "whole byte" in p.stderr, p
        shard.close()


def what_is_printed():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        folder, out = os.path.join(c.dir, "in"), os.path.join(c.dir, "out")
        os.mkdir(folder)
        rows = some(1, MIB)
        safetensors(os.path.join(folder, "model.safetensors"), rows)
        safetensors(os.path.join(folder, "stray.safetensors"), some(1, 16))
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
            json.dump({"weight_map": {r[0]: "model.safetensors" for r in rows}}, f)
        p = Process(
            c,
            "publish",
            [
                THCTL,
                "-o",
                "json",
                "-r",
                c.agents["a"].runtime,
                "publish",
                "--model",
                "m",
                "--version",
                "7",
                "--lineage",
                "3",
                folder,
            ],
        )
        text = b""
        while not text.strip().endswith(b"}"):
            line = p.p.stdout.readline()
            assert line, p.tail()
            text += line
        said = json.loads(text)
        size = sum(len(r[3]) for r in rows)
        expected = {"schema": "thctl/1", "model": "m", "lineage": 3, "version": 7, "shard": 0}
        expected |= {"num_shards": 1, "tensors": len(rows), "bytes": size}
        assert expected.items() <= said.items(), said
        assert "stray.safetensors" in p.tail(), p.tail()
        said = json.loads(
            c.thctl(
                "-o", "json", "fetch", "--model", "m", "--version", "latest", out, agent="b"
            ).stdout
        )
        expected = {"schema": "thctl/1", "model": "m", "lineage": 3, "version": 7, "out": out}
        expected |= {"num_shards": 1, "bytes": size, "bytes_moved": size, "bytes_reused": 0}
        expected |= {"transport": "tcp", "same_header": True}
        assert expected.items() <= said.items(), said
        assert sorted(os.listdir(out)) == ["model.safetensors", "model.safetensors.index.json"]
        name = "model.safetensors"
        assert same(os.path.join(folder, name), os.path.join(out, name))


def exit_statuses():
    with cluster() as c:
        c.agent("a")
        path, out = os.path.join(c.dir, "in.safetensors"), os.path.join(c.dir, "out.safetensors")
        safetensors(path, some(1, 16))
        what = ("--model", "m", "--version", "1")

        def status(*args, **kwargs):
            p = c.thctl(*args, check=False, **kwargs)
            assert len(p.stderr) > 20 and not p.stdout, p
            return p.returncode

        nowhere = os.path.join(c.dir, "nowhere")
        assert status("-r", nowhere, "publish", *what, path) == 3
        assert status("-r", nowhere, "fetch", *what, out) == 3
        assert status("fetch", *what, "--timeout", "300ms", out, agent="a") == 6
        assert status("wait", *what, "--timeout", "300ms", agent="a") == 6
        shard = ("--replica", "r", "--num-shards", "2", "--shard", "0")
        assert status("publish", *what, *shard, "--timeout", "300ms", path, agent="a") == 6
        assert status("publish", "--model", "m", path, agent="a") == 2
        assert status("publish", *what, path + ".absent", agent="a") == 1
        c.server.kill()
        agent = c.agents["a"]
        wait_for(lambda: "not attached" in agent.tail(), 30, "the agent misses its server")
        assert status("publish", *what, "--timeout", "300ms", path, agent="a") in (4, 6)
        assert os.listdir(c.dir).count("out.safetensors") == 0


def progress_on_a_terminal():
    """A bar with how much, how fast and how long yet; nothing of it where there is no terminal."""
    with cluster(server=False) as c:
        hosts = Hosts(c, 2)
        hosts.limit(1, "400mbit")
        c.start_server(f"tcp://{hosts.address(0)}:0", prefix=hosts.prefix(0))
        for i, name in enumerate("ab"):
            c.agent(name, prefix=hosts.prefix(i), data=hosts.address(i))
        path, out = (os.path.join(c.dir, f"{n}.safetensors") for n in ("in", "out"))
        safetensors(path, some(1, 64 * MIB))
        publish(c, "a", path)
        argv = [THCTL, "-r", c.agents["b"].runtime, "fetch", "--model", "m", "--version", "1"]
        text = on_terminal([*argv, out])
        bar = r"fetch  \[[#-]{20}\] +\d+%  [\d.]+\w*B of 64\.0MiB  [\d.]+\w*B/s  [\d.]+[a-z]+ left"
        assert re.search(bar, text), text
        assert same(path, out)
        hosts.limit(1, "2gbit")
        p = subprocess.run([*argv, "--force", out], capture_output=True, text=True, timeout=60)
        assert p.returncode == 0 and p.stdout == "fetched m 1\n", p
        assert "\r" not in p.stderr and "%" not in p.stderr and "\x1b" not in p.stderr, p.stderr


def on_terminal(argv):
    """What it writes when all of its descriptors are a terminal; it must succeed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(argv[0], argv)
    text = b""
    try:
        while select.select([fd], [], [], 60)[0]:
            chunk = os.read(fd, 4096)
            if not chunk:
                break
            text += chunk
    except OSError:
        pass  # how the end of a terminal shows
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, text
    return text.decode(errors="replace")


if __name__ == "__main__":
    if gpus.KIND:
        main(what_libthc_published)  # all others have files at both ends
    main(
        large_files_need_no_memory,
        disks_that_do_not_take_it,
        places_that_are_taken,
        files_that_change,
        every_dtype,
        what_libthc_published,
        what_is_printed,
        exit_statuses,
        progress_on_a_terminal,
    )
