# SPDX-License-Identifier: Apache-2.0
"""A program that was built against an older header works with today's library."""

import os

from cluster import BUILD, Process, cluster, main


def an_older_program_publishes_and_replicates():
    with cluster() as c:
        agents = [c.agent("a"), c.agent("b")]
        program = os.path.join(BUILD, "tests", "abi", "older_client")
        client = Process(c, "client", [program, *(a.runtime for a in agents)])
        assert client.p.wait(60) == 0, client.tail()
        assert client.p.stdout.read() == b"ok\n"


if __name__ == "__main__":
    main(an_older_program_publishes_and_replicates)
