#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has Spin search the models of this folder: each right variant whole, without an error; and each
planted mistake until it finds the wait that never ends. A mistake that is not found is a failure:
then the model says nothing of the code either.

    model_test.py MODEL COMPILER...
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

RIGHT = {"ring": [()], "waiters": [(), ("EDGE",)]}
PLANTED = {
    "ring": [
        ("NO_FENCE_WAKER",),
        ("NO_FENCE_WAITER",),
        ("FLAG_READ_FIRST",),
        ("LOOK_FIRST",),
        ("DRAIN_LAST",),
    ],
    "waiters": [
        ("NO_HANDOVER",),
        ("NO_KICK",),
        ("NO_SHOW",),
        ("NO_SHOW", "EDGE"),
        ("FLAG_KEPT",),
        ("FLAG_KEPT", "EDGE"),
        ("WHOLE_LINE",),
        ("BELL_ONLY",),
        ("LATE_SLEEP",),
    ],
}
MEMORY_MB = 400  # of one search; two run at once
SECONDS = 100


def run(argv, folder):
    done = subprocess.run(
        argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS
    )
    return done.returncode, done.stdout.decode(errors="replace")


def search(model, compiler, defines):
    """What the search of one variant printed."""
    with tempfile.TemporaryDirectory(prefix="th-model-") as folder:
        for argv in (
            ["spin", "-a", *(f"-D{name}" for name in defines), model],
            [*compiler, "-O0", "-w", "-DSAFETY", f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c"],
        ):
            status, text = run(argv, folder)
            if status != 0:
                raise RuntimeError(f"{' '.join(argv)}: status {status}\n{text}")
        status, text = run([os.path.join(folder, "pan"), "-m100000"], folder)
        if status != 0:
            raise RuntimeError(f"pan: status {status}\n{text}")
        return text


def judge(text, planted):
    """None, or what is wrong."""
    errors = re.search(r"errors: (\d+)", text)
    if errors is None or re.search(r"max search depth too small|out of memory", text):
        return "the search was cut off"
    if planted:
        return None if "invalid end state (at depth" in text else "the mistake was not found"
    if int(errors.group(1)) != 0 or "Search not completed" in text:
        return "an error was found"
    return None


def main():
    model, compiler = os.path.abspath(sys.argv[1]), sys.argv[2:]
    name = os.path.splitext(os.path.basename(model))[0]
    cases = [(d, False) for d in RIGHT[name]] + [(d, True) for d in PLANTED[name]]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        searches = [pool.submit(search, model, compiler, defines) for defines, _ in cases]
        for (defines, planted), future in zip(cases, searches):
            what = f"{name} {' '.join(defines) or 'as it is'}"
            try:
                text = future.result()
                wrong = judge(text, planted)
            except (RuntimeError, subprocess.TimeoutExpired) as e:
                text, wrong = str(e), "the search failed"
            states = re.search(r"([\d.e+]+) states, stored", text)
            print(f"{what}: {wrong or ('found' if planted else 'whole')}, "
                  f"{states.group(1) if states else '?'} states", flush=True)
            if wrong:
                failed += 1
                print(text)
    sys.exit(1 if failed else 0)


main()
