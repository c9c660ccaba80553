# SPDX-License-Identifier: Apache-2.0
"""Bytes that change in flight never become a version. Needs a build with -Dfaults=true."""

from cluster import FAULTS, Skip, cluster, expect_error, main

SIZE = 40 << 20


def pair(c, fault):
    if not FAULTS:
        raise Skip("this build has no fault injection (-Dfaults=true)")
    c.agent("a", env={"TH_FAULT_FLIP_CHUNK": fault} if fault else None)
    c.agent("b")
    w, r = c.worker("w", "a"), c.worker("r", "b")
    w.setup(SIZE, model="m", replica="w")
    r.setup(SIZE, model="m", replica="r")
    want = w.call("fill", seed=1)
    w.call("publish", version=1)
    return w, r, want


def one_flipped_byte_is_fetched_again():
    with cluster() as c:
        w, r, want = pair(c, "3")
        result = r.call("replicate", version="1")
        assert r.call("digest") == want
        assert result["bytes_moved"] > SIZE, "the chunk came twice"


def flipped_by_every_source():
    with cluster() as c:
        w, r, want = pair(c, "3,always")
        c.agent("a2", env={"TH_FAULT_FLIP_CHUNK": "3,always"})
        w2 = c.worker("w2", "a2")
        w2.setup(SIZE, model="m", replica="w2")
        w2.call("fill", seed=1)
        w2.call("publish", version=1)
        error = expect_error("CHECKSUM", r.call, "replicate", version="1")
        print(f"  {error.text}")
        assert r.call("held") is None


def flipped_by_one_of_two_sources():
    with cluster() as c:
        w, r, want = pair(c, "3,always")
        c.agent("good")
        w2 = c.worker("w2", "good")
        w2.setup(SIZE, model="m", replica="w2")
        w2.call("fill", seed=1)
        w2.call("publish", version=1)
        for name in ("r1", "r2"):
            reader = c.worker(name, "b")
            reader.setup(SIZE, model="m", replica=name)
            reader.call("replicate", version="1")
            assert reader.call("digest") == want


if __name__ == "__main__":
    main(one_flipped_byte_is_fetched_again, flipped_by_every_source, flipped_by_one_of_two_sources)
