# SPDX-License-Identifier: Apache-2.0
"""Seeds 1 to N in the simulator: none fails, and every corner case is met.

    sim_test.py THSIM COUNT

The marks (TH_MARK) named c01_... to c33_... stand where the protocol's corner cases are decided.
One that no seed reaches is a case that nothing proves, so it fails the test; the other marks are
counted and printed. Processes at once: the processors there are.
"""
import collections
import os
import re
import subprocess
import sys

CORNER_CASE = re.compile(r'c\d\d_')
FEWEST_SEEDS_FOR_MARKS = 2000
# An agent has 65,536 events to miss before it counts as dead; a unit test has the patience.
UNIT_TESTED = {'c33_agent_fetches_no_events'}


def marks_of(text):
    """What --marks printed, by name: one name may stand at several places."""
    hits = collections.Counter()
    for line in text.splitlines():
        match = re.fullmatch(r' *(\d+) (\w+) \S+:\d+', line)
        if match:
            hits[match[2]] += int(match[1])
    return hits


def main():
    thsim, count = sys.argv[1], int(sys.argv[2])
    jobs = str(len(os.sched_getaffinity(0)))
    run = subprocess.run([thsim, '--count', str(count), '--jobs', jobs, '--marks'],
                         stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        print(run.stdout)
        print(f'replay: {thsim} --seed N; smaller: {thsim} --seed N --shrink')
        return 1
    hits = marks_of(run.stdout)
    for name, number in sorted(hits.items()):
        print(f'{number:12} {name}')
    print(run.stdout.splitlines()[-1])
    missed = sorted(name for name, number in hits.items()
                    if number == 0 and CORNER_CASE.match(name) and name not in UNIT_TESTED)
    if missed and count >= FEWEST_SEEDS_FOR_MARKS:
        print(f'no seed of {count} met: {", ".join(missed)}')
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
