# SPDX-License-Identifier: Apache-2.0
"""An engine that follows: it calls nothing for new weights, and knows which batches they spoilt.

    python follower.py --last 4

Its agent writes each version for which the trainer says go into the weights while batches run. The
engine looks which version it holds before a batch and after it, without a system call.
"""

import argparse
import select
from typing import Set

import tensorhub as th

SIZE = 1 << 20  # elements, as in colocated.py


def generate(weights: memoryview) -> Set[float]:
    """Stands for a batch of inference: which versions do its weights come from?"""
    return set(weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="example")
    parser.add_argument("--replica", help="left out: this host and process")
    parser.add_argument("--last", type=int, default=4, help="the version to end with")
    args = parser.parse_args()
    weights = th.empty((SIZE,), "F32")  # memory that the agent maps
    with th.open(args.model, replica=args.replica) as h:
        h.register({"layer.0.weight": weights})
        h.follow("latest")
        last, mixed = 0, 0
        while last < args.last:
            h.events()  # what came before is nothing to this batch
            before = h.version
            if before is None:
                select.select([h], [], [], 1)  # there is none yet, or it is being written
                continue
            batch = generate(weights)
            if h.version != before or th.Event.UPDATED in h.events():
                mixed += 1
                continue
            assert batch == {before}, (batch, before)
            if before > last:
                print(f"version {before} without a call", flush=True)
                last = before
        print(f"{mixed} batches to be done again", flush=True)


if __name__ == "__main__":
    main()
