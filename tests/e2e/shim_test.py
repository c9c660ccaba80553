# SPDX-License-Identifier: Apache-2.0
"""What libthc may cost a worker: libc only, thc_* only, no thread."""

import os
import re
import subprocess

import gpus
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
        if gpus.KIND:
            w.call("alloc", total_bytes=1, name="first")  # the driver has threads
        before = len(w.call("threads"))
        w.setup(1 << 20, model="m", replica="w")
        w.call("publish", version=1)
        w.call("list")
        after = len(w.call("threads"))
        # Each command runs in a Python thread of its own that may not have ended yet.
        assert after <= before + 1, (before, after)


if __name__ == "__main__":
    if gpus.KIND:
        main(starts_no_thread)
    main(links_libc_only, exports_thc_only, starts_no_thread)
