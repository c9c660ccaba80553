# SPDX-License-Identifier: Apache-2.0
"""tests/lab: each of its figures still comes, with two readers and a few MiB. Nothing is timed."""

import os
import subprocess
import sys

from cluster import Skip, main

LAB = os.path.join(os.environ["TH_SOURCE"], "tests", "lab", "lab.py")


def figure(name):
    p = subprocess.run([sys.executable, LAB, "--smoke", name], capture_output=True, text=True)
    if p.returncode == 77:
        raise Skip(p.stdout.strip())
    assert p.returncode == 0, p.stdout + p.stderr
    print(p.stdout, end="")


def burst():
    figure("burst")


def failure():
    figure("failure")


def fanout():
    figure("fanout")


def hub():
    figure("hub")


def far():
    figure("far")


if __name__ == "__main__":
    main(burst, failure, fanout, hub, far)
