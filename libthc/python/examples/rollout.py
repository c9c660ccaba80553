# SPDX-License-Identifier: Apache-2.0
"""A standalone rollout: it fetches weights once, and asks for newer ones between two batches.

    python rollout.py --last 4

Figure 4 (b) of the TensorHub paper. While it receives a version it is a source of it already.
"""

import argparse

import tensorhub as th

SIZE = 1 << 20  # elements, as in colocated.py


def generate(weights: memoryview, version: int) -> None:
    """Stands for a batch of inference: looks whether all weights are of this one version."""
    assert set(weights) == {version}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="example")
    parser.add_argument("--replica", help="the group of shards; left out: this host and process")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--num-shards", type=int, default=1)
    parser.add_argument("--last", type=int, default=4, help="the version to end with")
    args = parser.parse_args()
    weights = th.empty((SIZE,), "F32")
    with th.open(
        args.model, replica=args.replica, shard=args.shard, num_shards=args.num_shards
    ) as h:
        h.register({"layer.0.weight": weights})
        result = h.replicate("latest")  # waits until there are any weights
        while True:
            if result:
                print(f"version {h.version} from {result.source} by {result.transport}", flush=True)
            generate(weights, h.version)
            if h.version >= args.last:
                break
            result = h.update("latest")  # false: there is no newer version, and nothing was written


if __name__ == "__main__":
    main()
