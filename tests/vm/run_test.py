# SPDX-License-Identifier: Apache-2.0
"""Runs a test in a virtual machine, for Meson: run_test.py RAILS PROGRAM [ARGUMENT...], where the
program may be a script of Python. What it prints is counted case by case, as that of a script in
tests/e2e; where no machine can be had, all of it is one skipped case."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import machine


def main(rails, *command):
    def out(data):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    if command[0].endswith(".py"):
        command = (os.path.realpath(sys.executable), *command)
    options = machine.Options(command, rails=int(rails), seconds=float(os.environ["TH_VM_SECONDS"]))
    try:
        return machine.in_machine(options, out)
    except machine.Unavailable as e:
        print(f"skip machine: {e}\n0 passed, 0 failed, 1 skipped")
        return 77
    except (machine.OutOfTime, RuntimeError) as e:
        print(e, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
