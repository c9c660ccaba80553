# SPDX-License-Identifier: Apache-2.0
"""A co-located worker: it trains, and generates with the same weights, step after step.

    python colocated.py --steps 4

Figure 4 (a) of the TensorHub paper. From publish() to unpublish() nobody writes the weights, so
workers elsewhere (rollout.py) read them where they lie while this one generates.
"""

import argparse
import array
import sys

import tensorhub as th

SIZE = 1 << 20  # elements


def train(weights: memoryview, step: int) -> None:
    """Stands for the optimizer: all weights of a step are its number."""
    weights[:] = array.array("f", [step]) * SIZE


def generate(weights: memoryview, version: int) -> None:
    """Stands for a batch of inference."""
    assert weights[0] == weights[SIZE - 1] == version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="example")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--num-shards", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    weights = th.empty((SIZE,), "F32")
    with th.open(
        args.model, replica="trainer", shard=args.shard, num_shards=args.num_shards
    ) as h:
        h.register({"layer.0.weight": weights})
        for step in range(1, args.steps + 1):
            if step > 1:
                h.unpublish()  # returns when nobody reads: every byte may change
            train(weights, step)
            h.publish(step)
            print(f"published {step}", flush=True)
            generate(weights, step)
        sys.stdin.readline()  # the last step stays until then


if __name__ == "__main__":
    main()
