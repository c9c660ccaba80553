# SPDX-License-Identifier: Apache-2.0
"""A rollout that stops only to install: its host fetches new weights while it generates.

    python prefetched.py --last 4

As rollout.py, but no batch waits for the network: the agent brings each version into its own
memory, and the rollout copies it from there when all of it is there.
"""

import argparse

import tensorhub as th

SIZE = 1 << 20  # elements, as in colocated.py
ASK_ANYWAY = 20  # batches: for a version that the host has no room for, which is never ready


def generate(weights: memoryview, version: int) -> None:
    """Stands for a batch of inference: looks whether all weights are of this one version."""
    assert set(weights) == {version}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="example")
    parser.add_argument("--replica", help="left out: this host and process")
    parser.add_argument("--last", type=int, default=4, help="the version to end with")
    args = parser.parse_args()
    weights = th.empty((SIZE,), "F32")
    with th.open(args.model, replica=args.replica, prefetch=True) as h:
        h.register({"layer.0.weight": weights})
        h.replicate("latest")  # waits until there are any weights
        batches = 0
        while h.version < args.last:
            generate(weights, h.version)
            batches += 1
            if h.ready_version is None and batches % ASK_ANYWAY:
                continue  # this question costs no system call
            result = h.update("latest")
            if result:
                how = f"from this host in {1000 * result.transfer:.0f} ms"
                print(f"version {h.version} {result.reason or how}", flush=True)


if __name__ == "__main__":
    main()
