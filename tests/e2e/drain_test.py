# SPDX-License-Identifier: Apache-2.0
"""The mutability contract: when unpublish has returned, nobody reads. The publisher overwrites
every byte the moment it returns, while slow readers are under way: a reader ends with the old
bytes whole or with an error."""

import random
import time

from cluster import LONG, Hosts, RemoteError, Skip, cluster, main

ROUNDS = 200 if LONG else 60
SIZE = 3 << 20


def rounds(c, w, r, seconds_of_a_leg, count):
    rng = random.Random(11)
    whole = errors = overlapped = 0
    for n in range(count):
        version = n + 1
        want = w.call("fill", seed=n)
        w.call("publish", version=version)
        leg = r.start("replicate", version=str(version), timeout=10)
        time.sleep(rng.random() * seconds_of_a_leg)
        busy = not r.finished(leg)
        # Returns when no leg reads; every byte is overwritten before anything else happens.
        w.call("unpublish", scribble=n % 251)
        overlapped += busy
        try:
            result = r.finish(leg)
            assert result["version"] == version
            assert r.call("digest") == want, f"round {n}: a mixture"
            whole += 1
            r.call("unpublish")
        except RemoteError as e:
            assert e.name in ("VERSION_LOST", "NO_PATH", "NOT_AVAILABLE", "TIMEOUT"), e
            assert r.call("held") is None
            errors += 1
    print(f"  {count} rounds: {whole} whole, {errors} errors, {overlapped} with the leg under way")
    return whole, overlapped


def unpublish_waits_for_a_slow_reader():
    """The reader's link is limited, so that most unpublish calls meet a leg under way."""
    with cluster(server=False) as c:
        try:
            hosts = Hosts(c, 2)
            hosts.limit(1, "400mbit")
        except Skip as e:
            raise Skip(f"{e}: no slow link without them")
        c.start_server(listen=f"tcp://{hosts.address(0)}:0", prefix=hosts.prefix(0))
        c.agent("a", prefix=hosts.prefix(0), data=hosts.address(0))
        c.agent("b", prefix=hosts.prefix(1), data=hosts.address(1))
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(SIZE, model="m", replica="w")
        r.setup(SIZE, model="m", replica="r")
        whole, overlapped = rounds(c, w, r, 0.06, ROUNDS)
        assert (
            overlapped >= ROUNDS // 4
        ), f"only {overlapped} of {ROUNDS} rounds met a leg under way"
        assert whole >= ROUNDS // 4, f"only {whole} of {ROUNDS} legs came through"


def a_stalled_reader_is_fenced():
    """A reader's agent that is stopped takes no bytes: the publisher gets its memory back all
    the same."""
    import signal

    with cluster() as c:
        size = 64 << 20
        c.agent("a", args=["-o", f"rate.out={size}"])
        b = c.agent("b")
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(size, model="m", replica="w")
        r.setup(size, model="m", replica="r")
        w.call("publish", version=1)
        r.call("submit", version="1")
        while r.call("progress")[0] < size // 20:
            time.sleep(0.002)
        b.signal(signal.SIGSTOP)
        start = time.monotonic()
        w.call("unpublish", timeout=15, scribble=0xEE)
        took = time.monotonic() - start
        b.signal(signal.SIGCONT)
        assert took < 5, f"{took:.1f} s"
        print(f"  {took:.2f} s until the memory was mutable")
        try:
            r.call("op_wait", timeout=20)
            raise AssertionError("a torn version was accepted")
        except RemoteError as e:
            assert e.name in (
                "VERSION_LOST",
                "NO_PATH",
                "UNKNOWN",
                "GROUP_BROKEN",
                "TIMEOUT",
                "AGENT_LOST",
            ), e


if __name__ == "__main__":
    main(unpublish_waits_for_a_slow_reader, a_stalled_reader_is_fenced)
