# SPDX-License-Identifier: Apache-2.0
"""A worker with a living forked child is killed: its replica goes all the same, and the child
can do no harm."""

import os
import signal

from cluster import cluster, main, wait_for


def a_forked_child_keeps_nothing_alive():
    with cluster() as c:
        c.agent("a")
        w, other = c.worker("w", "a"), c.worker("other", "a")
        w.setup(1 << 20, model="m", replica="w")
        other.setup(1 << 20, model="m", replica="other")
        w.call("publish", version=1)
        child = w.call("fork")
        try:
            assert set(child["codes"].values()) == {"FORKED"}, child["codes"]
            assert w.call("held") == [0, 1], "the parent is untouched"
            w.kill()
            os.kill(child["pid"], 0)
            wait_for(
                lambda: not other.call("list")["versions"], 2, "the dead worker's replica is gone"
            )
        finally:
            os.kill(child["pid"], signal.SIGKILL)


if __name__ == "__main__":
    main(a_forked_child_keeps_nothing_alive)
