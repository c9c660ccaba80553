# SPDX-License-Identifier: Apache-2.0
"""In the guest: the machine itself, by the programs of rdma-core and perftest, where a failure is
no fault of ours and explains others; and then our own programs of Criterion over the same rails,
each a case. Part of vm_rdma, or run-in-vm -n 2 -- python3 tests/vm/machine_test.py
PROGRAM[=FILTER]..."""

import contextlib
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import LONG, main, wait_for
from rails import Rails, command, listening, resources

BLOCK = 256 << 10
SYNTHESIS = re.compile(r"Synthesis: Tested: (\d+) \| Passing: (\d+)")


def hosts_are_joined_rail_by_rail():
    """Packets go over the interfaces, and a rail carries nothing of the other."""
    for r in range(2):
        before = net.sent(0, r), net.sent(0, 1 - r)
        argv = ["ibv_rc_pingpong", "-g", "1", "-n", "100", "-d"]
        with listening(*argv, net.device(1, r)):
            command(*argv, net.device(0, r), "127.0.0.1")
        assert net.sent(0, r) - before[0] > 100 * 4096
        assert net.sent(0, 1 - r) - before[1] < 10_000


def reads_of_256_kib():
    """The baseline of an emulated processor, for the ratios within one run."""
    how = ("-x", "1", "-F", "-s", str(BLOCK), "-n", "100", "-d")
    with listening("ib_read_bw", *how, net.device(1, 0)):
        out = command("ib_read_bw", *how, net.device(0, 0), "127.0.0.1")
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == [str(BLOCK)])
    print(f"  ib_read_bw: {float(row[3]):.0f} MiB/s")
    assert float(row[3]) > 0


@contextlib.contextmanager
def endless_reads():
    """Host 0 reads from host 1 on rail 0; bytes move already."""
    argv = ["ib_read_bw", "-x", "1", "-F", "-s", str(BLOCK), "-n", "1000000", "-d"]
    with listening(*argv, net.device(1, 0)):
        client = subprocess.Popen(
            [*argv, net.device(0, 0), "127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            before = net.sent(1, 0)
            wait_for(lambda: net.sent(1, 0) > before + (1 << 20), 30, "a MiB moved")
            yield client
        finally:
            client.kill()
            client.communicate()


def still(figure):
    before = figure()
    time.sleep(0.3)
    return figure() == before


def a_lost_rail_stops_and_goes_on():
    """Who lost its carrier knows; the other side does not, and nobody does when packets vanish. No
    retry error ends it: the kernel's soft-RoCE takes a retry count of 7 as `for ever`."""
    with endless_reads() as client:
        for how in ("lose", "cut"):
            getattr(net, how)(1, 0)
            wait_for(lambda: net.up(1, 0) == (how == "lose"), 30, "host 1 knows")
            assert net.up(0, 0)
            wait_for(lambda: still(lambda: net.received(0, 0)), 30, "nothing moves")
            getattr(net, how)(1, 0, heal=True)
            wait_for(lambda: net.up(1, 0), 30, "the link is up")
            moved = net.received(0, 0)
            wait_for(lambda: net.received(0, 0) > moved + (1 << 20), 30, "it goes on")
        assert client.poll() is None


def what_a_program_held_is_gone_with_it():
    idle = resources()
    assert all(row["mr"] == 0 and row["qp"] <= 1 for row in idle.values()), idle
    argv = ["ibv_rc_pingpong", "-g", "1", "-d", net.device(0, 0)]
    with listening(*argv):
        held = resources()[net.device(0, 0)]
        assert held["mr"] == 1 and held["qp"] == idle[net.device(0, 0)]["qp"] + 1, held
    wait_for(lambda: resources() == idle, 30, f"{resources()} is {idle} again")


def a_device_in_use_is_removed_when_the_last_user_ends():
    """Soft-RoCE takes it from nobody: it is not listed, and those who have it open go on."""
    with endless_reads() as client:
        removal = subprocess.Popen(["rdma", "link", "delete", net.device(0, 0)])
        wait_for(lambda: net.device(0, 0) not in resources(), 30, "not listed")
        before = net.sent(1, 0)
        wait_for(lambda: net.sent(1, 0) > before + (1 << 20), 30, "reads go on")
        assert removal.poll() is None and client.poll() is None
    assert removal.wait(30) == 0


def case(argument):
    """Afterwards the kernel holds as much for each device as before."""
    program, _, pattern = argument.partition("=")

    def run():
        before = resources()
        p = subprocess.run(
            # One at a time: they share the rails, and cut them.
            [
                *(program, "--verbose", "--color=never", "--jobs=1"),
                *(["--filter", pattern] if pattern else []),
            ],
            env={**os.environ, "TH_TEST_VERBS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )
        found = SYNTHESIS.search(p.stdout)
        # Those that the filter leaves out are called skipped too.
        skips = re.findall(r"^\[SKIP\].*$", p.stdout, re.MULTILINE)
        skipped = [line for line in skips if not line.endswith(": Test is disabled")]
        whole = found and found[1] == found[2] != "0" and not skipped
        assert p.returncode == 0 and whole, p.stdout
        wait_for(lambda: resources() == before, 30, f"{resources()} is {before} again")
        print(f"  {found[2]} tests")
        for figure in re.findall(r"^figure: (.*)$", p.stdout, re.MULTILINE):
            print(f"  {figure}")

    run.__name__ = os.path.basename(program)
    return run


def cases(rails, arguments):
    """The last one leaves a device less. How fast and how patient soft-RoCE is by itself is known,
    and asked in long runs."""
    global net
    net = rails
    return [
        hosts_are_joined_rail_by_rail,
        *([reads_of_256_kib, a_lost_rail_stops_and_goes_on] if LONG else []),
        what_a_program_held_is_gone_with_it,
        *map(case, arguments),
    ], a_device_in_use_is_removed_when_the_last_user_ends


if __name__ == "__main__":
    first, last = cases(Rails(hosts=2, rails=2), sys.argv[1:])
    main(*first, last)
