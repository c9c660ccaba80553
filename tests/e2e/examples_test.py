# SPDX-License-Identifier: Apache-2.0
"""The example programs of libthc: a trainer group and two rollout groups, step by step."""

import os
import subprocess

from cluster import BUILD, Process, cluster, main, wait_for

STEPS = 4
SHARDS = 2


class Example(Process):
    """One of the programs; what it prints goes to a file, which its log is."""

    def __init__(self, c, label, agent, name, *args):
        out = open(os.path.join(c.dir, f"{label}.out"), "wb")
        super().__init__(
            c,
            label,
            [
                "/bin/sh",
                "-c",
                'exec "$@" >"$OUT"',
                "sh",
                os.path.join(BUILD, "libthc", "examples", name),
                *map(str, args),
            ],
            env={"THC_AGENT": c.agents[agent].runtime, "OUT": out.name},
            stdin=subprocess.PIPE,
        )
        out.close()
        self.out_path = out.name

    def lines(self):
        with open(self.out_path) as f:
            return [line.split() for line in f.read().splitlines()]

    def versions(self):
        return [int(line[1]) for line in self.lines()]

    def enter(self):
        self.p.stdin.write(b"\n")
        self.p.stdin.flush()

    def reaches(self, version):
        wait_for(
            lambda: version in self.versions() or not self.alive(),
            60,
            f"{self.label} at version {version}",
        )
        assert version in self.versions(), (self.versions(), self.tail())


def the_two_loops():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        trainers = [
            Example(c, f"trainer{i}", "a", "trainer", i, SHARDS, STEPS) for i in range(SHARDS)
        ]
        rollouts = {
            name: [
                Example(c, f"{name}-{i}", agent, "rollout", name, i, SHARDS, STEPS)
                for i in range(SHARDS)
            ]
            for name, agent in (("near", "a"), ("far", "b"))
        }
        members = [m for group in rollouts.values() for m in group]
        for step in range(1, STEPS + 1):
            for t in trainers:
                t.reaches(step)
            for m in members:
                m.reaches(step)
            for t in trainers:
                t.enter()
        for p in (*members, *trainers):
            assert p.p.wait(60) == 0, p.tail()
        for m in members:
            assert m.versions() == list(range(1, STEPS + 1)), m.versions()
        # Each shard came from a copy of the same shard, over TCP where it crossed hosts.
        by = {line[5] for m in rollouts["far"] for line in m.lines()}
        assert by <= {"tcp", "local"} and "tcp" in by, by


def wrong_usage():
    for name in ("trainer", "rollout"):
        path = os.path.join(BUILD, "libthc", "examples", name)
        p = subprocess.run([path], capture_output=True, text=True, timeout=20)
        assert p.returncode == 2 and p.stderr.startswith("usage: "), p
        args = ["1", "0"] if name == "trainer" else ["r", "0", "1"]
        p = subprocess.run(
            [path, *args, "3" if name == "trainer" else "1"],
            capture_output=True,
            text=True,
            timeout=20,
            env={**os.environ, "THC_AGENT": "/nowhere"},
        )
        assert p.returncode in (1, 2) and len(p.stderr) > 15, p


if __name__ == "__main__":
    main(the_two_loops, wrong_usage)
