# SPDX-License-Identifier: Apache-2.0
"""The wheel in an empty environment: what is in it needs nothing of this machine but the C library,
and that no newer than the wheel's name says; `thctl up` and the README's ten lines of Python run.
And the source distribution, of which pip builds the same for this machine."""

import glob
import os
import re
import signal
import subprocess
import sys

from cluster import BUILD, Process, Skip, main
from up_test import Up, as_user, environment, users_cluster

SOURCE = os.environ["TH_SOURCE"]
PACKAGE = os.path.join(SOURCE, "libthc", "python")
GLIBC = (2, 34)
C_LIBRARY = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread)\.so\..*)$")
NEVER = re.compile(r"^lib(ibverbs|mlx|rdmacm|nl-|cuda)")
PROGRAMS = ("thctl", "thagentd", "thserverd")
# Where Python loads libthc from, and what of this machine is in the process.
WHICH = """
import tensorhub as th
print(th.__file__)
print(*{line.split()[-1] for line in open("/proc/self/maps") if "libthc" in line})
"""


def run(*argv, **kwargs):
    p = subprocess.run(argv, capture_output=True, text=True, timeout=280, **kwargs)
    assert p.returncode == 0, f"{argv}: {p.returncode}\n{p.stdout}{p.stderr}"
    return p.stdout


class Environment:
    """Has what pip makes of one file, and nothing that leads to the build or to what else this
    machine has installed."""

    def __init__(self, folder, path, *options, env=None):
        run(sys.executable, "-m", "venv", folder)
        self.bin = os.path.join(folder, "bin")
        self.env = {"PATH": f"{self.bin}:/usr/bin:/bin", "LD_LIBRARY_PATH": "", "PYTHONPATH": ""}
        pip = [self.at("python"), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        run(*pip, *options, path, env={**os.environ, **self.env, **(env or {})})
        (self.root,) = glob.glob(os.path.join(folder, "lib", "python3*", "site-packages"))

    def at(self, name):
        return os.path.join(self.bin, name)

    def python(self, text, **env):
        env = {**self.env, **env}
        return subprocess.run(
            [self.at("python"), "-c", text], env=env, cwd="/", capture_output=True, text=True
        )

    def elves(self):
        for where, _, names in os.walk(self.root):
            for path in (os.path.join(where, name) for name in names):
                if "/tensorhub" in path:
                    with open(path, "rb") as f:
                        if f.read(4) == b"\x7fELF":
                            yield path


class Wheel(Environment):
    def __init__(self, folder):
        if os.confstr("CS_GNU_LIBC_VERSION").split()[1] != "2.36":
            raise Skip("another C library: only what is made on Debian 12 runs on what is older")
        p = subprocess.run(
            [sys.executable, os.path.join(PACKAGE, "build_wheel.py"), BUILD, folder],
            capture_output=True,
            text=True,
        )
        if p.returncode and "cannot be had" in p.stderr:
            raise Skip(p.stderr.strip().splitlines()[0])
        assert p.returncode == 0, p.stderr
        print(f"  {os.path.basename(p.stdout.strip())}")
        (self.path,) = glob.glob(os.path.join(folder, "*.whl"))
        super().__init__(os.path.join(folder, "empty"), self.path)


def nothing_in_it_needs_more_than_its_name_says():
    """So that it starts on what has the C library of its name, such as Ubuntu 22.04 with 2.35."""
    name = os.path.basename(wheel.path)
    version = run(wheel.at("thctl"), "--version", env=wheel.env).split()[1]
    assert name == f"tensorhub_agent-{version}-py3-none-manylinux_2_34_x86_64.whl", name
    elves = {os.path.basename(path): path for path in wheel.elves()}
    assert {*PROGRAMS, "libthc.so.1"} < set(elves), elves
    for name, path in elves.items():
        listed = run("readelf", "--wide", "--version-info", "--dynamic", path)
        versions = {(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", listed)}
        assert max(versions) <= GLIBC, (name, max(versions))
        assert "GLIBC_PRIVATE" not in listed and "GLIBC_ABI" not in listed, name
        for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", listed):
            assert needed in elves or C_LIBRARY.match(needed), f"{name} needs {needed}"
        assert not NEVER.match(name), name


def what_comes_along_has_its_licence():
    (info,) = glob.glob(os.path.join(wheel.root, "tensorhub_agent-*.dist-info"))
    licences = os.path.join(info, "licenses")
    with open(os.path.join(info, "METADATA")) as f:
        listed = set(re.findall(r"^License-File: (.*)$", f.read(), re.MULTILINE))
    there = {
        os.path.relpath(os.path.join(where, name), licences)
        for where, _, names in os.walk(licences)
        for name in names
    }
    assert "LICENSE" in there and there == listed, there ^ listed
    for path in glob.glob(os.path.join(wheel.root, "tensorhub_agent.libs", "*")):
        stem = re.sub(r"-[0-9a-f]{8}\.so.*", "", os.path.basename(path))
        assert [name for name in there if name.startswith(stem)], (path, there)
    # What a page of Debian's only names by its place there.
    for name in there:
        with open(os.path.join(licences, name)) as f:
            for other in re.findall(r"/usr/share/(common-licenses/[\w.+-]*\w)", f.read()):
                assert other in there, f"{name} names {other}"


def thctl_up_and_the_ten_lines_of_the_readme():
    with open(os.path.join(SOURCE, "README.md")) as f:
        text = f.read().split("```python\n")[1].split("```")[0]
    with users_cluster() as c:
        program = os.path.join(c.dir, "hello.py")
        with open(program, "w") as f:
            f.write(text)
        up = Up(c, thctl=wheel.at("thctl"), env=wheel.env)
        assert set(up.children) == set(PROGRAMS) - {"thctl"}, up.children
        env = {**environment(c.xdg), **wheel.env}

        def start(name):
            argv = as_user(wheel.at("python"), program, name)
            return Process(c, name, argv, env=env, stdin=subprocess.PIPE)

        trainer, rollout = start("trainer"), start("rollout")
        out, _ = rollout.p.communicate(timeout=60)
        assert rollout.p.returncode == 0, rollout.tail()
        for said in (b"version=1,", b"bytes_moved=67108864,", b"source='trainer'"):
            assert said in out, out
        trainer.p.communicate(b"\n", timeout=60)
        assert trainer.p.returncode == 0, trainer.tail()
        for pid in (up.pid, *up.children.values()):
            with open(f"/proc/{pid}/maps") as f:
                mapped = set(re.findall(r"/\S+\.so\b\S*", f.read()))
            strange = [
                path
                for path in mapped
                if not path.startswith(wheel.root + "/")
                and not C_LIBRARY.match(os.path.basename(path))
            ]
            assert mapped and not strange, strange
        up.signal(signal.SIGINT)
        assert up.p.wait(20) == 0, up.tail()


def another_libthc_by_its_name():
    own = os.path.join(wheel.root, "tensorhub", "_lib", "libthc.so.1")
    other = os.path.realpath(os.path.join(BUILD, "libthc", "libthc.so.1"))
    for named, expected in ((None, own), (other, other)):
        p = wheel.python(WHICH, **({"THC_LIBRARY": named} if named else {}))
        module, loaded = p.stdout.splitlines()
        assert module.startswith(wheel.root + "/") and loaded == expected, (p.stdout, p.stderr)
    # A name that leads nowhere is no reason to take another one silently.
    for named, why in (
        ("/nowhere/libthc.so.1", "cannot be loaded"),
        ("libc.so.6", "is no libthc that this package can use"),
    ):
        p = wheel.python("import tensorhub", THC_LIBRARY=named)
        assert p.returncode == 1 and "ImportError: tensorhub: " in p.stderr, p.stderr
        assert why in p.stderr and named in p.stderr, p.stderr


def a_source_distribution_is_built_by_meson():
    with users_cluster() as c:
        if not os.path.exists(os.path.join(SOURCE, ".git")):
            raise Skip("no clone by git")
        text = f"import build_wheel; print(build_wheel.build_sdist({c.dir!r}))"
        name = run(sys.executable, "-c", text, cwd=PACKAGE).strip()
        assert re.fullmatch(r"tensorhub_agent-[\d.]+\.tar\.gz", name), name
        # What meson and ninja are here, and patchelf of those who made the wheel: no network.
        tools = f"{os.environ['PATH']}:{os.path.join(BUILD, 'wheel-tools', 'bin')}"
        built = Environment(
            os.path.join(c.dir, "built"),
            os.path.join(c.dir, name),
            "--no-build-isolation",
            "--config-settings=setup-args=-Doptimization=0",
            env={"PATH": tools},
        )
        for program in PROGRAMS:
            assert program in run(built.at(program), "--version", env=built.env)
        loaded = built.python(WHICH).stdout.split()[-1]
        assert loaded == os.path.join(built.root, "tensorhub", "_lib", "libthc.so.1"), loaded


if __name__ == "__main__":
    with users_cluster() as c:
        try:
            wheel = Wheel(os.path.join(c.dir, "wheel"))
        except Skip as e:
            print(f"skip made: {e}\n0 passed, 0 failed, 1 skipped")
            sys.exit(77)
        main(
            nothing_in_it_needs_more_than_its_name_says,
            what_comes_along_has_its_licence,
            thctl_up_and_the_ten_lines_of_the_readme,
            another_libthc_by_its_name,
            a_source_distribution_is_built_by_meson,
        )
