# SPDX-License-Identifier: Apache-2.0
"""The tests and figures of GPU memory on the GPUs of this machine, from a bundle: what
`tools/check --gpu` does where the source is, but for planned faults. Ends with `N passed, N failed,
N skipped`.

    check-gpu [--figures-only | --tests-only] [OPTION OF tests/bench/gpu.py...]     in the bundle
"""

import os
import subprocess
import sys

import bundle_tests


def main():
    bundle, *options = sys.argv[1:]
    bundle = os.path.abspath(bundle)
    if set(options) & {"-h", "--help"}:
        print(__doc__)
        return 0
    source = os.path.join(bundle, "source", "tests")
    build = os.path.join(bundle, "build")
    looked = subprocess.run([sys.executable, os.path.join(source, "e2e", "gpus.py")])
    if looked.returncode:
        print("0 passed, 1 failed, 0 skipped")
        return 1
    env = {**os.environ, "TH_GPU_HARDWARE": "1", "TH_BUILD": build}
    env.update(TH_SOURCE=os.path.join(bundle, "source"), PYTHONDONTWRITEBYTECODE="1")
    found = bundle_tests.count.Count([])
    if "--figures-only" not in options:
        tests = [t for t in bundle_tests.known(bundle)["tests"] if "gpu" in t["suite"]]
        found = bundle_tests.run(tests, env, "gpu")
        if not any(t["name"] == "basic_small_chunks" for t in tests):
            found.fail("the bundle has not every kind of GPU memory: make it with -Dgpu_kinds=true")
    if "--tests-only" not in options:
        rest = [o for o in options if o != "--figures-only"]
        command = [sys.executable, os.path.join(source, "bench", "gpu.py"), *rest]
        if subprocess.run(command, env=env).returncode:
            found.fail("figures: some are below what is wanted, or were not measured")
        else:
            found.passed += 1
    return bundle_tests.conclude(found)


if __name__ == "__main__":
    sys.exit(main())
