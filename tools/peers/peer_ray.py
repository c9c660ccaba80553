# SPDX-License-Identifier: Apache-2.0
"""Ray's object store: an object that was put on one node is got on another and copied into memory
that is there. Two nodes of one machine, each with a store of its own; what is measured is the get
and the copy, not the put."""

import os
import sys

import peer


def start(options):
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    store = 2 * options.bytes + (256 << 20)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": store, "resources": {"a": 1}},
    )
    cluster.add_node(num_cpus=2, object_store_memory=store, resources={"b": 1})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    return cluster


def main():
    options = peer.arguments()
    cluster = start(options)
    import ray

    here = os.path.dirname(os.path.abspath(__file__))

    @ray.remote(resources={"a": 1}, num_cpus=1)
    class Source:
        def __init__(self, count):
            sys.path.insert(0, here)
            import peer

            self.data = peer.memory(count, 1)

        def put(self):
            import ray

            return [ray.put(self.data)]

        def digest(self):
            import peer

            return peer.digest(self.data)

    @ray.remote(resources={"b": 1}, num_cpus=1)
    class Reader:
        def __init__(self, count):
            sys.path.insert(0, here)
            import peer

            self.data = peer.memory(count, 2)

        def pull(self, refs):
            import numpy
            import peer
            import ray

            return peer.timed(lambda: numpy.copyto(self.data, ray.get(refs[0])))

        def digest(self):
            import peer

            return peer.digest(self.data)

    source, reader = Source.remote(options.bytes), Reader.remote(options.bytes)

    def transfer():
        refs = ray.get(source.put.remote())
        seconds = ray.get(reader.pull.remote(refs))
        del refs
        return seconds

    transfer()
    if ray.get(source.digest.remote()) != ray.get(reader.digest.remote()):
        sys.exit("ray: what arrived is not what was sent")
    peer.ready("ray", "ray")
    for _ in sys.stdin:
        print(peer.json.dumps({"seconds": transfer()}), file=peer.LINES)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
