# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a bundle (tools/bundle), one after the other, and counts as tools/check does:
the last line is `N passed, N failed, N skipped`, the exit status 0 when nothing failed.

    run-tests [--suite SUITE] [--list] [NAME...]     in the bundle
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import count

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
import gpus
GRACE_S = 10


def known(bundle):
    """The tests, with their paths of now."""
    with open(os.path.join(bundle, "tests.json")) as f:
        text = f.read()
    words = {"@BUNDLE@": bundle, "@PYTHON@": sys.executable}
    for word, value in words.items():
        text = text.replace(word, json.dumps(value)[1:-1])
    return json.loads(text)


def outcome(status):
    return {0: "OK", 77: "SKIP"}.get(status, "FAIL")


def limit_s(test, env):
    """How long it may last."""
    on_gpus = env.get("TH_GPU_HARDWARE") == "1" and {"gpu", "gpu_faults"} & set(test["suite"])
    return test["timeout"] * (gpus.SLOWER if on_gpus else 1)


def run_one(test, env, where):
    """An entry as in Meson's testlog.json."""
    begin = time.monotonic()
    path = [test["env"].get("LD_LIBRARY_PATH"), env.get("LD_LIBRARY_PATH")]
    full = {**env, **test["env"], "LD_LIBRARY_PATH": ":".join(filter(None, path))}
    with tempfile.TemporaryFile(mode="w+", errors="replace") as log:
        p = subprocess.Popen(
            test["cmd"], env=full, cwd=where, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            result = outcome(p.wait(limit_s(test, env)))
        except subprocess.TimeoutExpired:
            result = "TIMEOUT"
            p.terminate()
            try:
                p.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        log.seek(0)
        text = log.read()
    seconds = time.monotonic() - begin
    return {"name": test["name"], "result": result, "duration": seconds, "stdout": text}


def run(tests, env, label):
    """Count of them."""
    found = count.Count(count.read_allowed(os.path.join(HERE, "..", "allowed-skips")))
    with tempfile.TemporaryDirectory(prefix="th-bundle-") as where:
        folder = os.path.join(where, label)
        for name in ("meson-info", "meson-logs"):
            os.makedirs(os.path.join(folder, name))
        with open(os.path.join(folder, "meson-info", "intro-tests.json"), "w") as f:
            json.dump(tests, f)
        with open(os.path.join(folder, "meson-logs", "testlog.json"), "w") as log:
            for test in tests:
                entry = run_one(test, env, where)
                print(f"{entry['result']:8}{entry['duration']:7.1f} s  {test['name']}", flush=True)
                log.write(json.dumps(entry) + "\n")
        count.count_build(found, folder)
    return found


def conclude(found):
    print(f"{found.passed} passed, {found.failed} failed, {found.skipped} skipped")
    return 1 if found.failed or found.passed == 0 else 0


def main():
    bundle = os.path.abspath(sys.argv[1])
    parser = argparse.ArgumentParser(prog="run-tests", description=__doc__.split("\n\n")[0])
    parser.add_argument("--suite", action="append", help="only these; may be given again")
    parser.add_argument("--list", action="store_true", help="names and suites, nothing runs")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args(sys.argv[2:])
    everything = known(bundle)
    tests = [
        t
        for t in everything["tests"]
        if (not args.suite or set(args.suite) & set(t["suite"]))
        and (not args.names or t["name"] in args.names)
    ]
    if args.list:
        for test in tests:
            print(test["name"], ",".join(test["suite"]))
        left_out = ", ".join(everything["left_out"])
        print(f"not here, because they need the source tree and a compiler: {left_out}")
        return 0
    if not tests:
        sys.exit("run-tests: there is no such test; --list names them")
    return conclude(run(tests, dict(os.environ), "bundle"))


if __name__ == "__main__":
    sys.exit(main())
