# SPDX-License-Identifier: Apache-2.0
"""Two datacenters and a slow link between them: a version comes over it once, and only the replica
that fetches it stands still meanwhile, also when all of them ask in the same instant."""

from cluster import Hosts, cluster, main, wait_for

SIZE = 32 << 20
SLOW = "80mbit"
FAST = "4gbit"
READERS = range(1, 5)
ROUNDS = 5


def a_burst_of_updates():
    with cluster(server=False) as c:
        server = READERS[-1] + 1
        hosts = Hosts(c, server + 1)
        c.start_server(listen=f"tcp://{hosts.address(server)}:0", prefix=hosts.prefix(server))
        for i in (0, *READERS):
            # One connection: chunks come one by one, none of them takes long.
            args = ("-D", "far" if i else "home", "-o", "leg.connections=1")
            c.agent(f"host{i}", prefix=hosts.prefix(i), data=hosts.address(i), args=args)
        trainer = c.worker("trainer", "host0")
        trainer.setup(SIZE, model="m", replica="trainer")
        readers = [c.worker(f"reader{i}", f"host{i}") for i in READERS]
        for i, reader in zip(READERS, readers):
            reader.setup(SIZE, model="m", replica=f"reader{i}")
        trainer.call("fill", seed=1)
        trainer.call("publish", version=1)
        for reader in readers:
            reader.call("replicate", version="1")
        for version in range(2, 2 + ROUNDS):
            a_round(hosts, trainer, readers, version)


def a_round(hosts, trainer, readers, version):
    trainer.call("unpublish")
    want = trainer.call("fill", seed=version)
    calls = [reader.start("poll", version=version) for reader in readers]
    hosts.limit(0, SLOW, leaves=True)
    before = hosts.sent_bytes(0)
    trainer.call("publish", version=version)

    # Two answers more each: the second call has begun when the version was there. All get them
    # but the seed, which stands still. It does until the link is faster.
    asked = [reader.call("polled") for reader in readers]

    def told():
        return sum(r.call("polled") >= n + 2 for r, n in zip(readers, asked)) >= len(readers) - 1

    wait_for(told, 30, "all but one find nothing new")
    moving = [call for reader, call in zip(readers, calls) if not reader.finished(call)]
    assert len(moving) == len(readers), "the seed is complete: the link is not slow"
    hosts.limit(0, FAST, leaves=True)
    results = [reader.finish(call, 120) for reader, call in zip(readers, calls)]
    crossed = (hosts.sent_bytes(0) - before) / SIZE
    sources = sorted(result["source"] for result in results)
    print(f"  version {version}: {crossed:.3f} x the payload over the link, from {sources}")
    assert sources.count("trainer") == 1, sources
    assert 1 <= crossed < 1.5, crossed
    for reader in readers:
        assert reader.call("digest") == want, reader.label


if __name__ == "__main__":
    main(a_burst_of_updates)
