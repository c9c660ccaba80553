# SPDX-License-Identifier: Apache-2.0
"""An update of veRL through TensorHub: where its time goes, and what memory it takes.

TH_BUILD=build PYTHON tests/bench/verl_update.py [--steps N] [--layers N] [--trainers N]
    [--rollouts N]

PYTHON is one of tests/python/make_venv FOLDER frameworks.txt. The trainers and rollouts of
tests/python/verl_workers.py, under veRL's manager and ray, on one host; a layer is 8 MiB in five
tensors. Prints medians, and from where to where they lie, of the steps after the first. A rollout
installs by one copy of each tensor. A measurement, not a test.
"""

import argparse
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))
sys.path[:0] = [os.path.join(ROOT, "tests", "python"), os.path.join(ROOT, "tests", "e2e")]

from cluster import with_library  # noqa: E402

with_library()


def line(what, values, unit="s", scale=1.0):
    low, middle, high = min(values), statistics.median(values), max(values)
    numbers = "".join(f"{value * scale:10.3f}" for value in (middle, low, high))
    print(f"{what:44}{numbers} {unit}", flush=True)


def memory(world):
    """The most that each process has had, trainers first."""
    facts = [*world.trainer.facts(), *world.of_rollouts().facts()]
    return [fact["peak"] for fact in facts]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name, count in (("steps", 10), ("layers", 60), ("trainers", 2), ("rollouts", 4)):
        parser.add_argument(f"--{name}", type=int, default=count)
    args = parser.parse_args()
    os.environ["TH_TEST_LAYERS"] = str(args.layers)
    import test_verl

    rows = {"update, as veRL's manager sees it": []}
    with test_verl.world_of(options=()) as world:
        world.start_trainer([world.a] * args.trainers)
        world.add_rollouts([world.a] * args.rollouts)
        before = memory(world)
        for step in range(args.steps + 1):
            begin = time.monotonic()
            publisher = world.step()
            took = time.monotonic() - begin
            if step == 0:
                line("first update", [took])
                continue
            rows["update, as veRL's manager sees it"].append(took)
            for facts in [publisher, *world.of_rollouts().facts()]:
                for key, value in facts.items():
                    if key.endswith("_s"):
                        rows.setdefault(key, []).append(value)
        above = [after - was for was, after in zip(before, memory(world))]
        for what, values in rows.items():
            line(what, values)
        line("memory of the trainer that publishes", above[:1], "MiB", 1 / (1 << 20))
        if args.trainers > 1:
            line("memory of each other trainer", above[1 : args.trainers], "MiB", 1 / (1 << 20))
        line("memory of each rollout", above[args.trainers :], "MiB", 1 / (1 << 20))


if __name__ == "__main__":
    main()
