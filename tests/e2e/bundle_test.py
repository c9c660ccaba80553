# SPDX-License-Identifier: Apache-2.0
"""What tools/bundle makes runs elsewhere: moved, with an empty environment, and where nothing else
is."""

import json
import os
import re
import shutil
import subprocess
import sys

import gpus
from cluster import BUILD, Skip, cluster, main

SOURCE = os.environ["TH_SOURCE"]
PROGRAMS = ("thagentd", "thserverd", "thctl", "thbench")
ON_HARDWARE = ("basic_legacy", "conformance_cuda", "cuda_gather", "cuda_hash", "transport_cuda")
GLIBC = (2, 34)  # of the oldest systems that agents and workers run on


def run(argv, **kwargs):
    kwargs = {"capture_output": True, "text": True, "timeout": 100, **kwargs}
    return subprocess.run(argv, stdin=subprocess.DEVNULL, **kwargs)


class Bundle:
    """Made in one place, and moved to another."""

    def __init__(self, c, *options):
        made, self.root = os.path.join(c.dir, "made"), os.path.join(c.dir, "else where")
        p = run([os.path.join(SOURCE, "tools", "bundle"), BUILD, made, *options])
        assert p.returncode == 0, p
        os.rename(made, self.root)

    def at(self, *parts):
        return os.path.join(self.root, *parts)


def programs_and_tests_run_elsewhere():
    with cluster(server=False) as c:
        bundle = Bundle(c)
        for name in PROGRAMS:
            p = run([bundle.at("bin", name), "--version"], env={"PATH": "/usr/bin:/bin"}, cwd="/")
            assert p.returncode == 0 and p.stdout.startswith(name), p
        # Also by a link from somewhere else.
        os.symlink(bundle.at("bin", "thctl"), os.path.join(c.dir, "thctl"))
        p = run([os.path.join(c.dir, "thctl"), "--version"], env={"PATH": "/usr/bin:/bin"})
        assert p.returncode == 0, p
        env = {"PATH": os.environ["PATH"], "HOME": c.dir}
        p = run([bundle.at("run-tests"), "--list"], env=env, cwd="/")
        assert p.returncode == 0 and "basic e2e" in p.stdout and "transport unit" in p.stdout, p
        listed = dict(line.split(" ") for line in p.stdout.splitlines() if line.count(" ") == 1)
        assert all("gpu" in listed[n].split(",") for n in ON_HARDWARE), p.stdout
        names = ["remains", "clock", "fake_cuda", "gpu_harness", "conformance_cuda"]
        with open(bundle.at("tests.json")) as f:
            words = [word for test in json.load(f)["tests"] for word in test["cmd"]]
        strange = [word for word in words if "/" in word and not word.startswith("@")]
        assert strange == [] and "@BUNDLE@/build/tests/sim/thsim" in words, strange
        p = run([bundle.at("run-tests"), *names], env=env, cwd="/")
        assert p.returncode == 0, p.stdout + p.stderr
        assert p.stdout.endswith(" passed, 0 failed, 0 skipped\n"), p.stdout
        # What measures where there are GPUs is there, too.
        found = {"TH_BUILD": bundle.at("build"), "LD_LIBRARY_PATH": bundle.at("lib")}
        for name in ("digest", "small_tensors"):
            figures = [bundle.at("source", "tests", "bench", "gpu.py"), "--quick", "--only", name]
            p = run([sys.executable, *figures], env={**env, **found}, cwd="/")
            assert p.returncode == 0, p.stdout + p.stderr
        p = run([bundle.at("run-tests"), "nothing_of_the_kind"], env=env, cwd="/")
        assert p.returncode == 1 and "no such test" in p.stderr, p
        if not gpus.look()[0]:
            p = run([bundle.at("check-gpu")], env=env, cwd="/")
            assert p.returncode == 1 and "no GPU can be used: " in p.stdout, p
            assert p.stdout.endswith("0 passed, 1 failed, 0 skipped\n"), p.stdout
        # Nothing of it came from the folders where it was built.
        for folder in ("build", "lib"):
            for where, _, names in os.walk(bundle.at(folder)):
                for name in names:
                    path = os.path.realpath(os.path.join(where, name))
                    assert path.startswith(os.path.realpath(bundle.root)), path


def programs_run_where_nothing_else_is():
    with cluster(server=False) as c:
        bundle = Bundle(c, "--programs-only")
        tried = [["chroot"], ["unshare", "-r", "chroot"]]
        loader = ["/libc/ld-linux-x86-64.so.2", "--library-path", "/lib:/libc"]
        if not os.path.exists(bundle.at(loader[0][1:])):
            raise Skip("no chroot: the loader of this processor has another name")
        for way in tried:
            argv = [*way, bundle.root, *loader, "--version"]
            if shutil.which(way[0]) and run(argv).returncode == 0:
                break
        else:
            raise Skip("no chroot: not permitted here")
        for path in ("daemon/thagentd", "server/thserverd", "tools/thctl", "tools/thbench"):
            argv = [*way, bundle.root, *loader, f"/build/{path}", "--version"]
            p = run(argv, env={"PATH": os.environ["PATH"]})
            assert p.returncode == 0 and p.stdout.startswith(os.path.basename(path)), p


def it_runs_on_older_systems():
    if os.confstr("CS_GNU_LIBC_VERSION").split()[1] != "2.36":
        raise Skip("another C library: only what is made on Debian 12 runs on what is older")
    with cluster(server=False) as c:
        bundle = Bundle(c, "--programs-only")
        with open(bundle.at("README")) as f:
            found = re.search(r"glibc\) of version (\d+)\.(\d+) or newer", f.read())
        assert tuple(map(int, found.groups())) <= GLIBC, found.group(0)


def refused(c, build):
    p = run([os.path.join(SOURCE, "tools", "bundle"), build, os.path.join(c.dir, "refused")])
    shutil.rmtree(os.path.join(c.dir, "refused"))
    assert p.returncode == 1 and p.stderr.count("\n") == 1, p
    return p.stderr


def what_is_not_built_is_said():
    """A folder where only the programs are; the test programs come after them, bit by bit."""
    with cluster(server=False) as c:
        build = os.path.join(c.dir, "build")
        for folder in ("daemon", "server", "tools", "tests", "meson-info"):
            os.makedirs(os.path.join(build, folder))
        for path in ("daemon/thagentd", "server/thserverd", "tools/thctl", "tools/thbench"):
            os.symlink(os.path.join(BUILD, path), os.path.join(build, path))
        shutil.copytree(os.path.join(BUILD, "libthc"), os.path.join(build, "libthc"))
        assert "no daemons" in refused(c, build)
        infos = [f"meson-info/intro-{name}.json" for name in ("tests", "targets", "projectinfo")]
        for path in ["tests/bundled", *infos]:
            with open(os.path.join(BUILD, path)) as f:
                text = f.read()
            with open(os.path.join(build, path), "w") as f:
                f.write(text.replace(BUILD, build))
        listed = os.path.join(build, "tests", "bundled")
        said = refused(c, build)
        assert "is not built: ninja" in said and said.endswith(" bundle does all of it\n"), said
        with open(listed) as f:
            lines = f.readlines()
        # A test's program that the target would not build.
        for name in ("unit_clock", "thsim", "helper_program", "older_client"):
            with open(listed, "w") as f:
                f.writelines(line for line in lines if not line.endswith(f"/{name}\n"))
            assert f"/{name}: `bundled` in tests/meson.build" in refused(c, build)


def a_folder_of_others_is_left_alone():
    with cluster(server=False) as c:
        theirs = os.path.join(c.dir, "theirs")
        os.mkdir(theirs)
        p = run([os.path.join(SOURCE, "tools", "bundle"), BUILD, theirs])
        assert p.returncode == 1 and "is no bundle" in p.stderr, p
        assert os.listdir(theirs) == []


if __name__ == "__main__":
    main(
        programs_and_tests_run_elsewhere,
        programs_run_where_nothing_else_is,
        it_runs_on_older_systems,
        what_is_not_built_is_said,
        a_folder_of_others_is_left_alone,
    )
