# SPDX-License-Identifier: Apache-2.0
"""What libthc may cost a worker: libc only, thc_* only, no thread, usable from C++."""

import os
import re
import shutil
import subprocess

from cluster import BUILD, SANITIZED, Skip, cluster, main

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


def is_usable_from_cplusplus():
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise Skip("no C++ compiler")
    if SANITIZED:
        raise Skip("linked without the sanitizer")
    source = """
#include "libthc/thc.h"
#include <cstdio>
int main() {
	thc_open_opts opts = THC_OPEN_OPTS_INIT;
	thc_result result = THC_RESULT_INIT;
	thc_shard *shard = nullptr;
	opts.model = "m"; opts.replica = "r"; opts.agent = "/nonexistent";
	int rc = thc_open(&opts, 1000, &shard);
	std::printf("%d %zu %s\\n", rc, result.struct_size, thc_errmsg());
	return rc == THC_E_NO_AGENT ? 0 : 1;
}
"""
    with cluster(server=False) as c:
        path = os.path.join(c.dir, "t.cc")
        with open(path, "w") as f:
            f.write(source)
        subprocess.run(
            [
                compiler,
                "-Wall",
                "-Wextra",
                "-Werror",
                "-I",
                os.environ["TH_SOURCE"],
                path,
                LIB,
                "-o",
                path + ".bin",
            ],
            check=True,
        )
        p = subprocess.run(
            [path + ".bin"],
            env={"LD_LIBRARY_PATH": os.path.dirname(LIB)},
            capture_output=True,
            text=True,
        )
        assert p.returncode == 0, (p.stdout, p.stderr)


if __name__ == "__main__":
    main(links_libc_only, exports_thc_only, starts_no_thread, is_usable_from_cplusplus)
