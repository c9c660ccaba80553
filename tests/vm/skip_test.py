# SPDX-License-Identifier: Apache-2.0
"""Where no virtual machine can be had, suite vm is skipped, says what is missing, and leaves
nothing behind. Tried on this host, from which the programs are hidden."""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
import machine
from cluster import main


def run_without(programs, cached=False):
    """What run_test.py says where these programs (name: script) are all that there is. cached: the
    kernel was fetched before."""
    with tempfile.TemporaryDirectory(prefix="th-skip-") as folder:
        found, cache = os.path.join(folder, "bin"), os.path.join(folder, "tensorhub-tests", "vm")
        os.makedirs(found)
        os.makedirs(cache)
        for name, script in programs.items():
            with open(os.path.join(found, name), "w", encoding="utf-8") as f:
                f.write(f"#!/bin/sh\n{script}\n")
            os.chmod(f.name, 0o755)
        if cached:
            os.makedirs(os.path.join(cache, "linux"))
            with open(os.path.join(cache, "linux", "layout"), "w", encoding="utf-8") as f:
                f.write(machine.LAYOUT)
        p = subprocess.run(
            [sys.executable, os.path.join(HERE, "run_test.py"), "0", "true"],
            env={**os.environ, "PATH": found, "XDG_CACHE_HOME": folder, "TH_VM_SECONDS": "30"},
            capture_output=True,
            text=True,
        )
        assert p.returncode == 77 and not p.stderr, (p.returncode, p.stdout, p.stderr)
        left = set(os.listdir(cache)) - {"lock", "linux" if cached else ""}
        assert not left, left
        skip, summary = p.stdout.splitlines()
        assert summary == "0 passed, 0 failed, 1 skipped", p.stdout
        print(f"  said: {skip}")
        return skip


def without_qemu():
    skip = run_without({"busybox": "exit 0"}, cached=True)
    assert "qemu-system-x86_64 is not installed (tools/check --deps-only)" in skip, skip


def without_a_package_manager():
    skip = run_without({})
    assert "apt-cache is not installed" in skip, skip


def without_a_network():
    why = "E: Failed to fetch linux-image-6.1.0-1-amd64.deb: no route"
    skip = run_without(
        {
            "apt-cache": "echo '  Depends: linux-image-6.1.0-1-amd64'",
            "apt-get": f"echo '{why}' >&2; exit 100",
        }
    )
    assert skip.endswith(why), skip


def without_a_list_of_packages():
    skip = run_without({"apt-cache": "echo linux-image-amd64"})
    assert "apt knows no linux-image-amd64 (apt-get update)" in skip, skip


def such_skips_are_allowed():
    """And no test is lost by another reason."""
    with open(os.path.join(HERE, "..", "allowed-skips"), encoding="utf-8") as f:
        lines = [line.rstrip("\n") for line in f]
    assert "vm_rdma/machine no virtual machine" in lines, lines
    assert run_without({}).startswith("skip machine: no virtual machine"), lines


if __name__ == "__main__":
    main(
        without_qemu,
        without_a_package_manager,
        without_a_network,
        without_a_list_of_packages,
        such_skips_are_allowed,
    )
