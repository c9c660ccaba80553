# SPDX-License-Identifier: Apache-2.0
"""The wheel in an empty environment: what is in it needs nothing of this machine but the C library,
and that no newer than the wheel's name says; a server, an agent and ten lines of Python run."""

import glob
import os
import re
import subprocess
import sys

from cluster import BUILD, Process, Skip, cluster, main

SOURCE = os.environ["TH_SOURCE"]
GLIBC = (2, 34)
C_LIBRARY = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread)\.so\..*)$")
NEVER = re.compile(r"^lib(ibverbs|mlx|rdmacm|nl-|cuda)")
TEN_LINES = """
import tensorhub as th
trainer, rollout = th.open("m", replica="trainer"), th.open("m", replica="rollout")
source, target = th.empty((1 << 20,), "U8"), th.empty((1 << 20,), "U8")
source[:] = bytes(range(256)) * (1 << 12)
trainer.register({"w": source})
rollout.register({"w": target})
trainer.publish(7)
assert rollout.update("latest").version == 7 and target == source
rollout.close()
trainer.close()
print(th.__file__)
"""


def run(*argv, **kwargs):
    p = subprocess.run(argv, capture_output=True, text=True, timeout=200, **kwargs)
    assert p.returncode == 0, f"{argv}: {p.returncode}\n{p.stdout}{p.stderr}"
    return p.stdout


class Wheel:
    """Made, and installed where nothing else is."""

    def __init__(self, folder):
        if os.confstr("CS_GNU_LIBC_VERSION").split()[1] != "2.36":
            raise Skip("another C library: only what is made on Debian 12 runs on what is older")
        p = subprocess.run(
            [sys.executable, os.path.join(SOURCE, "tools", "wheel"), BUILD, folder],
            capture_output=True,
            text=True,
        )
        if p.returncode and "cannot be had" in p.stderr:
            raise Skip(p.stderr.strip().splitlines()[0])
        assert p.returncode == 0, p.stderr
        print(f"  {os.path.basename(p.stdout.strip())}")
        (self.path,) = glob.glob(os.path.join(folder, "*.whl"))
        venv = os.path.join(folder, "empty")
        run(sys.executable, "-m", "venv", venv)
        self.bin = os.path.join(venv, "bin")
        run(self.at("pip"), "install", "--quiet", "--no-index", "--no-deps", self.path)
        (self.root,) = glob.glob(os.path.join(venv, "lib", "python3*", "site-packages"))
        # Nothing leads to the build or to what else this machine has installed.
        self.env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": folder}

    def at(self, name):
        return os.path.join(self.bin, name)

    def elves(self):
        for where, _, names in os.walk(self.root):
            for path in (os.path.join(where, name) for name in names):
                if "/tensorhub" in path:
                    with open(path, "rb") as f:
                        if f.read(4) == b"\x7fELF":
                            yield path


def nothing_in_it_needs_more_than_its_name_says():
    name = os.path.basename(wheel.path)
    version = run(wheel.at("thctl"), "--version", env=wheel.env).split()[1]
    assert name == f"tensorhub_agent-{version}-py3-none-manylinux_2_34_x86_64.whl", name
    elves = {os.path.basename(path): path for path in wheel.elves()}
    assert {"thctl", "thagentd", "thserverd", "libthc.so.1"} < set(elves), elves
    for name, path in elves.items():
        listed = run("readelf", "--wide", "--version-info", "--dynamic", path)
        versions = {(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", listed)}
        assert max(versions) <= GLIBC, (name, max(versions))
        for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", listed):
            assert needed in elves or C_LIBRARY.match(needed), f"{name} needs {needed}"
        assert not NEVER.match(name), name


def what_comes_along_has_its_licence():
    (licences,) = glob.glob(os.path.join(wheel.root, "tensorhub_agent-*.dist-info", "licenses"))
    there = os.listdir(licences)
    assert "LICENSE" in there, there
    for path in glob.glob(os.path.join(wheel.root, "tensorhub_agent.libs", "*")):
        stem = re.sub(r"-[0-9a-f]{8}\.so.*", "", os.path.basename(path))
        assert [name for name in there if name.startswith(stem)], (path, there)


def a_server_and_an_agent_and_ten_lines():
    with cluster(server=False) as c:
        outside = {"LD_LIBRARY_PATH": "", "PYTHONPATH": "", **wheel.env}
        argv = [wheel.at("thserverd"), "-c", "/dev/null", "-l", "tcp://127.0.0.1:0"]
        url = Process(c, "server", argv, env=outside).ready()["listen"]
        runtime = os.path.join(c.dir, "agent")
        argv = [wheel.at("thagentd"), "-c", "/dev/null", "-s", url, "-r", runtime]
        agent = Process(c, "agent", [*argv, "-d", "127.0.0.1", "-n", "inside"], env=outside)
        agent.ready()
        env = {**wheel.env, "THC_AGENT": runtime}
        where = run(wheel.at("python"), "-c", TEN_LINES, env=env, cwd="/").strip()
        assert where.startswith(wheel.root + "/"), where
        assert "inside" in run(wheel.at("thctl"), "status", env=env), "its node"
        with open(f"/proc/{agent.pid}/maps") as f:
            mapped = set(re.findall(r"/\S+\.so\b\S*", f.read()))
        strange = [
            path
            for path in mapped
            if not path.startswith(wheel.root + "/") and not C_LIBRARY.match(os.path.basename(path))
        ]
        assert mapped and not strange, strange


if __name__ == "__main__":
    with cluster(server=False) as c:
        try:
            wheel = Wheel(os.path.join(c.dir, "wheel"))
        except Skip as e:
            print(f"skip made: {e}\n0 passed, 0 failed, 1 skipped")
            sys.exit(77)
        main(
            nothing_in_it_needs_more_than_its_name_says,
            what_comes_along_has_its_licence,
            a_server_and_an_agent_and_ten_lines,
        )
