# SPDX-License-Identifier: Apache-2.0
"""A connection to the reference server from which nothing comes any more, and no end either, as
when something between the two forgets it: the agent makes a new one, and all goes on."""

import socket
import threading

from cluster import RemoteError, cluster, main, wait_for


class Between:
    """In front of the server. A connection that is made deaf stays, and carries nothing."""

    def __init__(self, url):
        host, port = url.removeprefix("tcp://").rsplit(":", 1)
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lock, self.pairs = threading.Lock(), []  # [(from the agent, to the server)]
        self.deaf, self.used = set(), set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            inner = self.listener.accept()[0]
            outer = socket.create_connection(self.target)
            with self.lock:
                self.pairs.append((inner, outer))
            for a, b in ((inner, outer), (outer, inner)):
                threading.Thread(target=self.carry, args=(a, b, inner), daemon=True).start()

    def carry(self, source, sink, inner):
        try:
            while data := source.recv(65536):
                with self.lock:
                    if inner in self.deaf:
                        return
                    # More than the greeting has come back by it.
                    if source is not inner and len(data) > 8:
                        self.used.add(inner)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        with self.lock:
            self.pairs = [pair for pair in self.pairs if inner not in pair]

    def living(self):
        """Those by which something has been answered."""
        with self.lock:
            all_used = [inner for inner, _ in self.pairs if inner in self.used]
            return [inner for inner in all_used if inner not in self.deaf]

    def silence(self, inner):
        with self.lock:
            self.deaf.add(inner)


def each_connection_may_go_deaf():
    with cluster() as c:
        c.agent("a")
        real, between = c.server_url, Between(c.server_url)
        c.server_url = between.url
        c.agent("b", args=("-o", "server.silent=1s"))
        c.server_url = real
        w, r = c.worker("w", "a"), c.worker("r", "b")
        w.setup(1 << 20, model="m", replica="w")
        r.setup(1 << 20, model="m", replica="r")
        wait_for(lambda: len(between.living()) == 3, 60, "one for each channel")
        version = 0

        def updated():
            try:
                return r.call("update", version=str(version))["updated"]
            except RemoteError as e:
                assert e.name == "NO_SERVER", e

        def works():
            nonlocal version
            version += 1
            w.call("publish", version=version)
            wait_for(updated, 60, "an update")
            w.call("unpublish")

        w.call("publish", version=0)
        r.call("replicate", version="0", timeout=60)
        w.call("unpublish")
        for number, inner in enumerate(between.living()):
            between.silence(inner)
            works()
            wait_for(lambda: len(between.living()) == 3, 60, f"a new one for number {number}")
        for inner in between.living():
            between.silence(inner)
        works()
        wait_for(lambda: len(between.living()) == 3, 60, "three new ones")


if __name__ == "__main__":
    main(each_connection_may_go_deaf)
