# SPDX-License-Identifier: Apache-2.0
"""thctl as an operator uses it: publish, fetch, wait, ls, status; exit codes; bad files."""

import json
import os
import signal
import struct
import subprocess

from cluster import BUILD, Process, cluster, main, wait_for


def safetensors(path, tensors, metadata=None):
    header, at, blob = {}, 0, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        blob += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)


def some(n=3, size=5 << 20):
    rows = [(f"w.{i}", "BF16", [size // 4, 2], os.urandom(size)) for i in range(n)]
    return rows + [
        ("bias", "F32", [7], os.urandom(28)),
        ("empty", "F16", [0, 4], b""),
        ("scalar", "I64", [], os.urandom(8)),
    ]


def publish(c, agent, path, *args, model="m", version=1):
    p = Process(
        c,
        f"publish-{len(c.processes)}",
        [
            os.path.join(BUILD, "tools", "thctl"),
            "-r",
            c.agents[agent].runtime,
            "publish",
            "--model",
            model,
            "--version",
            str(version),
            *args,
            path,
        ],
    )
    line = p.p.stdout.readline().decode()
    assert line == f"published {model} {version}\n", (line, p.tail())
    return p


def same(a, b):
    return subprocess.run(["cmp", a, b]).returncode == 0


def a_file_comes_back_equal():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        path, out = os.path.join(c.dir, "in.safetensors"), os.path.join(c.dir, "out.safetensors")
        safetensors(path, some(), {"format": "pt", "who": "me"})
        p = publish(c, "a", path)
        c.thctl("wait", "--model", "m", "--version", "1", "--timeout", "5s", agent="b")
        c.thctl("fetch", "--model", "m", "--version", "latest", out, agent="b")
        assert same(path, out)
        again = c.thctl("fetch", "--model", "m", "--version", "1", out, agent="b", check=False)
        assert again.returncode == 1 and "--force" in again.stderr, (again.returncode, again.stderr)
        c.thctl("fetch", "--model", "m", "--version", "1", "--force", out, agent="b")
        listing = json.loads(c.thctl("-o", "json", "ls", "versions", "m", agent="a").stdout)
        assert listing["schema"] == "thctl/1", listing
        status = c.thctl("status", agent="a").stdout
        assert status.splitlines()[0], status
        p.signal(signal.SIGINT)
        assert p.p.wait(20) == 0, p.tail()
        missing = c.thctl(
            "fetch",
            "--model",
            "m",
            "--version",
            "1",
            "--timeout",
            "1s",
            out + "2",
            agent="b",
            check=False,
        )
        assert missing.returncode == 6, (missing.returncode, missing.stderr)
        assert not os.path.exists(out + "2")


def a_directory_with_an_index():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        source, out = os.path.join(c.dir, "ckpt"), os.path.join(c.dir, "out")
        os.mkdir(source)
        weights = {}
        for i in range(2):
            name = f"model-0000{i + 1}-of-00002.safetensors"
            rows = [(f"part{i}.{r[0]}", *r[1:]) for r in some(2)]
            safetensors(os.path.join(source, name), rows)
            weights.update({r[0]: name for r in rows})
        with open(os.path.join(source, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {}, "weight_map": weights}, f)
        publish(c, "a", source)
        c.thctl("fetch", "--model", "m", "--version", "1", out, agent="b")
        index = json.load(open(os.path.join(out, "model.safetensors.index.json")))
        assert set(index["weight_map"]) == set(weights)
        for name in weights:
            assert tensor(source, weights[name], name) == tensor(
                out, index["weight_map"][name], name
            ), name


def tensor(folder, file, name):
    with open(os.path.join(folder, file), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        base = f.tell()
        begin, end = header[name]["data_offsets"]
        f.seek(base + begin)
        return header[name]["dtype"], header[name]["shape"], f.read(end - begin)


def shards():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        paths, out = [], os.path.join(c.dir, "out")
        starting = []
        for i in range(2):
            paths.append(os.path.join(c.dir, f"shard{i}.safetensors"))
            safetensors(paths[i], some(1 + i))
            starting.append(
                Process(
                    c,
                    f"shard{i}",
                    [
                        os.path.join(BUILD, "tools", "thctl"),
                        "-r",
                        c.agents["a"].runtime,
                        "publish",
                        "--model",
                        "m",
                        "--version",
                        "4",
                        "--replica",
                        "t",
                        "--num-shards",
                        "2",
                        "--shard",
                        str(i),
                        paths[i],
                    ],
                )
            )
        for p in starting:
            assert p.p.stdout.readline() == b"published m 4\n", p.tail()
        c.thctl("fetch", "--model", "m", "--version", "4", out, agent="b")
        files = sorted(f for f in os.listdir(out) if f.endswith(".safetensors"))
        assert len(files) == 2, os.listdir(out)
        for path, file in zip(paths, files):
            assert same(path, os.path.join(out, file)), file


def a_held_copy_is_a_source():
    with cluster() as c:
        for name in "abr":
            c.agent(name)
        path, out = os.path.join(c.dir, "in.safetensors"), os.path.join(c.dir, "out.safetensors")
        safetensors(path, some())
        first = publish(c, "a", path)
        held = Process(
            c,
            "held",
            [
                os.path.join(BUILD, "tools", "thctl"),
                "-r",
                c.agents["b"].runtime,
                "fetch",
                "--model",
                "m",
                "--version",
                "1",
                "--replica",
                "second",
                "--hold",
                out,
            ],
        )
        wait_for(
            lambda: "second" in c.thctl("ls", "replicas", "m", agent="r").stdout,
            20,
            "the second replica",
        )
        c.thctl(
            "wait",
            "--model",
            "m",
            "--version",
            "1",
            "--replicas",
            "2",
            "--timeout",
            "20s",
            agent="r",
        )
        first.terminate()
        third = os.path.join(c.dir, "third.safetensors")
        c.thctl("fetch", "--model", "m", "--version", "1", third, agent="r")
        assert same(path, third)
        assert held.terminate() == 0


def bad_files():
    with cluster() as c:
        c.agent("a")
        path = os.path.join(c.dir, "bad.safetensors")
        good = os.path.join(c.dir, "good.safetensors")
        safetensors(good, some(1, 4096))
        whole = open(good, "rb").read()
        header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()

        def with_header(text, data=b"abcd"):
            return struct.pack("<Q", len(text)) + text + data

        cases = {
            "truncated data": whole[:-1],
            "truncated header": whole[:30],
            "empty": b"",
            "length only": struct.pack("<Q", 10),
            "huge length": struct.pack("<Q", 1 << 60) + header,
            "no json": with_header(b"hello{}!"),
            "trailing bytes": with_header(header, b"abcdefgh"),
            "unknown dtype": with_header(header.replace(b"U8", b"X8")),
            "negative": with_header(header.replace(b"[4]", b"[-4]")),
            "backwards": with_header(header.replace(b"[0, 4]", b"[4, 0]")),
            "outside": with_header(header.replace(b"[0, 4]", b"[0, 5]")),
            "shape and size": with_header(header.replace(b"[4]", b"[5]")),
            "overflow": with_header(header.replace(b"[4]", b"[4611686018427387904, 4]")),
            "twice": with_header(header[:-1] + b", " + header[1:]),
            "list": with_header(b"[1,2,3,4]   "),
        }
        for what, data in cases.items():
            with open(path, "wb") as f:
                f.write(data)
            p = c.thctl(
                "publish",
                "--model",
                "m",
                "--version",
                "1",
                path,
                agent="a",
                check=False,
                timeout=20,
            )
            assert p.returncode == 1 and path in p.stderr, (what, p.returncode, p.stderr)
        p = c.thctl(
            "publish",
            "--model",
            "m",
            "--version",
            "1",
            os.path.join(c.dir, "absent"),
            agent="a",
            check=False,
        )
        assert p.returncode == 1 and "absent" in p.stderr
        assert json.loads(c.thctl("-o", "json", "ls", "versions", agent="a").stdout)


def usage():
    with cluster() as c:
        c.agent("a")
        for args in (
            ["frobnicate"],
            ["publish"],
            ["publish", "--model", "m", "x"],
            ["ls", "unicorns"],
            ["-o", "yaml", "status"],
            ["fetch", "--model", "m", "--version", "late", "out"],
            ["--timeout", "soon", "status"],
        ):
            p = c.thctl(*args, agent="a", check=False)
            assert p.returncode == 2, (args, p.returncode, p.stderr)
            assert p.stderr and not p.stdout, args
        # What is wrong in the command comes before what is wrong with the file.
        args = ["publish", "--model", "m", "--version", "1", "--retain", "latest-x", "absent"]
        p = c.thctl(*args, agent="a", check=False)
        assert p.returncode == 2 and '"latest-x" is no rule' in p.stderr, p
        p = c.thctl("-s", "tcp://127.0.0.1:1", "--timeout", "1s", "ls", "nodes", check=False)
        assert p.returncode == 4, (p.returncode, p.stderr)
        p = c.thctl("-s", c.server_url, "ls", "nodes")
        assert "a" in p.stdout


if __name__ == "__main__":
    main(
        a_file_comes_back_equal,
        a_directory_with_an_index,
        shards,
        a_held_copy_is_a_source,
        bad_files,
        usage,
    )
