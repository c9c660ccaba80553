# SPDX-License-Identifier: Apache-2.0
"""One shard, two agents: the life of a version from publish to close."""

import os

import gpus
from cluster import cluster, expect_error, main, wait_for

SIZE = 40 << 20


def publish_replicate_update_unpublish():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        w, r = c.worker("trainer", "a"), c.worker("rollout", "b")
        w.setup(SIZE, model="m", replica="trainer")
        r.setup(SIZE, model="m", replica="rollout")
        assert r.call("update")["updated"] == 0, "there is nothing yet"
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        assert w.call("held") == [0, 1]
        result = r.call("replicate", version="latest")
        assert (result["version"], result["updated"]) == (1, 1), result
        assert result["source"] == "trainer" and result["transport"] == "tcp", result
        assert result["bytes_moved"] >= SIZE, result
        assert r.call("digest") == want
        assert r.call("held") == [0, 1]
        assert r.call("replicate", version="1")["updated"] == 0
        assert r.call("update")["updated"] == 0
        listing = r.call("list")
        assert [[0, 1]] == [v[:2] for v in listing["versions"]]
        assert sorted(r["name"] for r in listing["versions"][0][2]) == ["rollout", "trainer"]

        w.call("unpublish")
        assert w.call("held") is None and w.call("safe") == 1
        want = w.call("fill", seed=2)
        w.call("publish", version=2)
        result = r.call("update")
        assert (result["version"], result["updated"]) == (2, 1), result
        assert r.call("digest") == want
        expect_error("STATE", r.call, "replicate", version="3")
        expect_error("STATE", w.call, "publish", version=3)
        r.call("unpublish")
        r.call("close")
        w.call("close")


def what_is_there_already_does_not_move():
    for where in ("b", "a"):
        with cluster() as c:
            c.agent("a")
            c.agent("b")
            w, r = c.worker("trainer", "a"), c.worker("rollout", where)
            w.setup(SIZE, model="m", replica="trainer")
            r.setup(SIZE, model="m", replica="rollout")
            w.call("fill", seed=1)
            w.call("publish", version=1)
            result = r.call("replicate", version="1")
            assert result["bytes_reused"] == 0, result

            w.call("unpublish")
            w.call("flip", offset=SIZE // 2)
            w.call("publish", version=2)
            result = r.call("update")
            assert 0 < result["bytes_moved"] < SIZE // 2, result
            assert result["bytes_reused"] == SIZE - result["bytes_moved"], result
            assert r.call("digest") == w.call("digest")

            # The same version again, after the reader has written to its memory: it is seen.
            r.call("unpublish")
            r.call("flip", offset=SIZE // 4)
            result = r.call("replicate", version="2")
            # Memory that a worker's own copy stands for has been overwritten in vain.
            least = -1 if gpus.KIND == "closed" else 0
            assert least < result["bytes_moved"] < SIZE // 2, result
            assert r.call("digest") == w.call("digest")


def a_reader_waits_for_the_version():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        w, r = c.worker("trainer", "a"), c.worker("rollout", "b")
        w.setup(SIZE, model="m", replica="trainer")
        r.setup(SIZE, model="m", replica="rollout")
        running = r.start("replicate", version="7", timeout=30)
        want = w.call("fill", seed=7)
        w.call("publish", version=7)
        assert r.finish(running)["version"] == 7
        assert r.call("digest") == want
        error = expect_error("TIMEOUT", c_replicate_missing, c)
        assert error.seconds < 2, error.seconds


def c_replicate_missing(c):
    other = c.worker("other", "b")
    other.setup(SIZE, model="nobody", replica="x")
    return other.call("replicate", version="1", timeout=1)


def same_host():
    with cluster() as c:
        c.agent("a")
        w, r = c.worker("trainer", "a"), c.worker("rollout", "a")
        w.setup(SIZE, model="m", replica="trainer")
        r.setup(SIZE, model="m", replica="rollout")
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        result = r.call("replicate", version="latest")
        # Between GPUs that do not reach each other it goes through the host.
        assert result["transport"] in (("cuda-ipc", "local") if gpus.KIND else ("local",)), result
        assert r.call("digest") == want


def a_forbidden_way_beside_another():
    """A source on this host that may not be read, and one on another: each version comes from
    there, also when the server has forgotten that the first did not work."""
    with cluster(server=False) as c:
        config = os.path.join(c.dir, "server.conf")
        with open(config, "w", encoding="utf-8") as f:
            f.write("route.pair_block = 1ms\n")
        c.start_server(args=("-c", config))
        c.agent("a", args=("--transport", "tcp"))
        c.agent("b")
        near, far = c.worker("near", "a"), c.worker("far", "b")
        r = c.worker("rollout", "a")
        for name, w in (("near", near), ("far", far), ("rollout", r)):
            w.setup(1 << 20, model="m", replica=name)
        for version in range(1, 4):
            for w in (near, far):
                if version > 1:
                    w.call("unpublish")
                want = w.call("fill", seed=version)
                w.call("publish", version=version)
            # The second is a source when it is known to have the same bytes.
            wait_for(
                lambda: any(
                    v == version and {"near", "far"} <= {copy["name"] for copy in copies}
                    for _, v, copies in r.call("list")["versions"]
                ),
                30,
                "both are listed",
            )
            result = r.call("update")
            assert result["version"] == version and result["source"] == "far", result
            assert r.call("digest") == want


def one_agent_that_does_not_verify():
    """It takes part; who verifies gets nothing from it, and reads from where there are digests."""
    with cluster() as c:
        c.agent("a")
        c.agent("off", args=("--verify", "off"))
        c.agent("b")
        size = 8 << 20
        w, r, s = c.worker("w", "a"), c.worker("r", "off"), c.worker("s", "b")
        for name, worker in (("w", w), ("r", r), ("s", s)):
            worker.setup(size, model="m", replica=name)
        want = w.call("fill", seed=1)
        w.call("publish", version=1)
        assert r.call("replicate", version="1")["source"] == "w"
        assert r.call("digest") == want
        assert s.call("replicate", version="1")["source"] == "w"
        assert s.call("digest") == want
        s.call("unpublish")
        w.call("unpublish")
        # What is left has no digests: it is no sign of bad memory, and the sentence says so.
        error = expect_error("CHECKSUM", s.call, "replicate", version="1")
        assert "runs with --verify off, and ours with full" in error.text, error.text
        assert s.call("held") is None


def relative_versions():
    with cluster() as c:
        c.agent("a")
        workers = [c.worker(f"t{i}", "a") for i in range(3)]
        for i, w in enumerate(workers):
            w.setup(1 << 20, model="m", replica=f"t{i}")
            w.call("fill", seed=i)
            w.call("publish", version=10 + i)
        r = c.worker("r", "a")
        r.setup(1 << 20, model="m", replica="r")
        assert r.call("replicate", version="latest-2")["version"] == 10
        assert r.call("update", version="latest-1")["version"] == 11
        assert (
            r.call("update", version="latest-2")["updated"] == 0
        ), "a relative name never moves back"
        assert r.call("update", version="10")["version"] == 10, "an absolute one may"
        assert r.call("update", version="latest")["version"] == 12
        assert r.call("update", version="latest-5")["updated"] == 0


def attributes_and_manifest():
    with cluster() as c:
        c.agent("a")
        c.agent("b")
        out = c.thctl("version").stdout
        assert out.strip(), "thctl version says something"
        w = c.worker("trainer", "a")
        w.setup(1 << 20, model="m", replica="trainer")
        w.call("publish", version=3)
        status = c.thctl("-o", "json", "status", agent="a").stdout
        assert '"thctl/1"' in status
        assert "trainer" in c.thctl("ls", "replicas", agent="b").stdout
        wait_for(
            lambda: c.thctl("wait", "--model", "m", "--version", "3", agent="b").returncode == 0,
            10,
            "thctl wait",
        )


if __name__ == "__main__":
    main(
        publish_replicate_update_unpublish,
        what_is_there_already_does_not_move,
        a_reader_waits_for_the_version,
        same_host,
        a_forbidden_way_beside_another,
        one_agent_that_does_not_verify,
        relative_versions,
        attributes_and_manifest,
    )
