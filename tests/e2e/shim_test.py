# SPDX-License-Identifier: Apache-2.0
"""What libthc may cost a worker: libc only, thc_* only, no thread; and the README's program."""

import os
import re
import subprocess

from cluster import BUILD, SANITIZED, Process, Skip, cluster, main

LIB = os.path.join(BUILD, "libthc", "libthc.so.1")


def links_libc_only():
    if SANITIZED:
        raise Skip("a sanitizer adds its own libraries")
    out = subprocess.run(["ldd", LIB], capture_output=True, text=True, check=True).stdout
    libs = {line.split()[0] for line in out.splitlines()}
    extra = {
        l
        for l in libs
        if not re.match(r"(linux-vdso|libc\.so\.6|/lib64/ld-linux|/lib/ld-linux)", l)
    }
    assert not extra, extra


def exports_thc_only():
    if SANITIZED:
        raise Skip("a sanitizer adds its own symbols")
    out = subprocess.run(
        ["nm", "-D", "--defined-only", LIB], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[2].split("@")[0] for line in out.splitlines()}
    extra = {n for n in names if not n.startswith(("thc_", "THC_"))}
    assert not extra, extra
    assert "thc_publish" in names


def starts_no_thread():
    with cluster() as c:
        c.agent("a")
        w = c.worker("w", "a")
        before = len(w.call("threads"))
        w.setup(1 << 20, model="m", replica="w")
        w.call("publish", version=1)
        w.call("list")
        after = len(w.call("threads"))
        # Each command runs in a Python thread of its own that may not have ended yet.
        assert after <= before + 1, (before, after)


def the_program_of_the_readme_works():
    if SANITIZED:
        raise Skip("a program without the sanitizer cannot link a library with it")
    with open(os.path.join(os.environ["TH_SOURCE"], "README.md")) as f:
        program = f.read().split("```c\n")[1].split("```")[0]
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        source = os.path.join(c.dir, "hello.c")
        with open(source, "w") as f:
            f.write(program)
        thc_h = os.path.join(os.environ["TH_SOURCE"], "libthc")
        cc = ["cc", "-Wall", "-Wextra", "-Werror", "-I", thc_h, source, LIB, "-o", source + ".bin"]
        subprocess.run(cc, check=True)

        def start(name, agent):
            env = {"LD_LIBRARY_PATH": os.path.dirname(LIB), "THC_AGENT": c.agents[agent].runtime}
            return Process(c, name, [source + ".bin", name], env=env, stdin=subprocess.PIPE)

        # The reader may come first: it waits for the version.
        reader, trainer = start("rollout", "b"), start("trainer", "a")
        assert reader.p.wait(20) == 0, reader.tail()
        assert b"67108864 bytes from trainer by tcp" in reader.p.stdout.read()
        trainer.p.stdin.write(b"\n")
        trainer.p.stdin.flush()
        assert trainer.p.wait(20) == 0, trainer.tail()


if __name__ == "__main__":
    main(links_libc_only, exports_thc_only, starts_no_thread, the_program_of_the_readme_works)
