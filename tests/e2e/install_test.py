# SPDX-License-Identifier: Apache-2.0
"""What `meson install` brings to a machine: everything is there, the README's program is built and
run against it by pkg-config, shared and static, and the units start what was installed."""

import configparser
import os
import re
import shutil
import subprocess
import tempfile

from cluster import BUILD, Process, cluster, main

SOURCE = os.environ["TH_SOURCE"]


class Installed:
    """A folder with all that is installed; files are found by name, as where is a choice."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="th-install-")
        self.root = self.folder.name
        subprocess.run(
            ["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", self.root],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.paths = [
            os.path.join(where, name)
            for where, folders, names in os.walk(self.root)
            for name in names
        ]
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def find(self, ending):
        found = [p for p in self.paths if p.endswith("/" + ending)]
        assert len(found) == 1, (ending, found)
        return found[0]


def program():
    with open(os.path.join(SOURCE, "README.md")) as f:
        return f.read().split("```c\n")[1].split("```")[0]


def pkg_config(installed, *options):
    env = dict(
        os.environ,
        PKG_CONFIG_PATH=os.path.dirname(installed.find("pkgconfig/libthc.pc")),
        PKG_CONFIG_SYSROOT_DIR=installed.root,
    )
    return subprocess.run(
        ["pkg-config", *options, "libthc"], env=env, capture_output=True, text=True, check=True
    ).stdout.split()


def run_pair(c, installed, binary):
    def start(name, agent):
        env = {
            "LD_LIBRARY_PATH": os.path.dirname(installed.find("libthc.so.1.0.0")),
            "THC_AGENT": c.agents[agent].runtime,
        }
        return Process(
            c,
            f"{name}-{os.path.basename(binary)}",
            [binary, name],
            env=env,
            stdin=subprocess.PIPE,
        )

    # The reader may come first: it waits for the version.
    reader, trainer = start("rollout", "b"), start("trainer", "a")
    assert reader.p.wait(60) == 0, reader.tail()
    assert b"67108864 bytes from trainer by tcp" in reader.p.stdout.read()
    trainer.p.stdin.write(b"\n")
    trainer.p.stdin.flush()
    assert trainer.p.wait(60) == 0, trainer.tail()


def the_program_of_the_readme_works():
    with Installed() as installed, cluster() as c:
        c.agent("a")
        c.agent("b")
        source = os.path.join(c.dir, "hello.c")
        with open(source, "w") as f:
            f.write(program())
        cc = ["cc", "-Wall", "-Wextra", "-Werror", source, *pkg_config(installed, "--cflags")]
        libs = pkg_config(installed, "--libs")
        assert "-lthc" in libs, libs
        shared, static = os.path.join(c.dir, "shared"), os.path.join(c.dir, "static")
        subprocess.run([*cc, *libs, "-o", shared], check=True)
        libs = ["-l:libthc.a" if word == "-lthc" else word for word in libs]
        subprocess.run([*cc, *libs, "-o", static], check=True)
        for binary, linked in ((shared, True), (static, False)):
            needed = subprocess.run(
                ["readelf", "--dynamic", binary], capture_output=True, text=True, check=True
            ).stdout
            assert ("libthc.so.1" in needed) == linked, needed
            run_pair(c, installed, binary)


def everything_is_there():
    with Installed() as installed:
        for ending in (
            "bin/thbench",
            "bin/thctl",
            "sbin/thagentd",
            "sbin/thserverd",
            "include/thc.h",
            "libthc.a",
            "libthc.so",
            "libthc.so.1",
            "libthc.so.1.0.0",
            "pkgconfig/libthc.pc",
            "share/tensorhub/peers/peer.py",
            "share/tensorhub/peers/peer_ray.py",
            "share/tensorhub/proto/tensorhub.proto",
            "lib/systemd/system/thagentd.service",
            "lib/systemd/system/thserverd.service",
            "lib/sysusers.d/tensorhub.conf",
            "man1/thbench.1",
            "man1/thctl.1",
            "man5/thagentd.conf.5",
            "man5/thserverd.conf.5",
            "man7/tensorhub.7",
            "man8/thagentd.8",
            "man8/thserverd.8",
            "man3/libthc.3",
        ):
            assert os.path.exists(installed.find(ending)), ending
        with open(installed.find("include/thc.h")) as f:
            calls = set(re.findall(r"\b(thc_\w+)\(", f.read()))
        for call in calls - {"thc_predicate"}:
            # A link to the page of another call must lead somewhere.
            assert os.path.exists(installed.find(f"man3/{call}.3")), call
        lib = os.path.dirname(installed.find("libthc.so.1.0.0"))
        for ending in ("bin/thctl", "sbin/thagentd", "sbin/thserverd"):
            out = subprocess.run(
                [installed.find(ending), "--version"],
                env=dict(os.environ, LD_LIBRARY_PATH=lib),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert os.path.basename(ending) in out, out
        soname = subprocess.run(
            ["readelf", "--dynamic", installed.find("libthc.so.1.0.0")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "soname: [libthc.so.1]" in soname, soname
        # What only some hosts have is loaded where it is, so that the agent starts everywhere.
        needed = subprocess.run(
            ["readelf", "--dynamic", installed.find("sbin/thagentd")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", needed)
        assert "libc.so.6" in needed, needed
        assert not [n for n in needed if re.match("lib(ibverbs|mlx|rdma|nl-|cuda)", n)], needed


def the_units_start_what_is_installed():
    with Installed() as installed:
        for name in ("thagentd", "thserverd"):
            path = installed.find(f"lib/systemd/system/{name}.service")
            unit = configparser.ConfigParser(strict=False, interpolation=None)
            unit.optionxform = str
            unit.read(path)
            service = unit["Service"]
            assert service["Type"] == "notify" and service["NotifyAccess"] == "main"
            command = service["ExecStart"].split()
            assert command == [command[0]] and os.path.isabs(command[0]), command
            program = installed.root + command[0]
            assert os.access(program, os.X_OK), program
            assert service["User"] == "tensorhub"
            # thagentd's drain.timeout of 30 s must fit in.
            if name == "thagentd":
                assert int(service.get("TimeoutStopSec", "90")) > 30
                # A container has this directory as a volume: another of its name it would not see.
                assert service["RuntimeDirectoryPreserve"] == "yes"
            analyze = shutil.which("systemd-analyze")
            if analyze:
                moved = os.path.join(installed.root, f"{name}.service")
                with open(path) as f, open(moved, "w") as out:
                    out.write(f.read().replace(command[0], program))
                p = subprocess.run(
                    [analyze, "verify", "--man=no", moved], capture_output=True, text=True
                )
                about = [line for line in p.stderr.splitlines() if name in line]
                assert not about, about


if __name__ == "__main__":
    main(everything_is_there, the_program_of_the_readme_works, the_units_start_what_is_installed)
