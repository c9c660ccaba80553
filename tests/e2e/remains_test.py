# SPDX-License-Identifier: Apache-2.0
"""A test that is killed leaves no process, folder or network namespace, and no machine of GPUs."""

import json
import os
import subprocess
import sys
import time

from cluster import Cluster, Hosts, main, netns_available, wait_for


def victim():
    c = Cluster(has_gpus=True)
    a = c.agent("a")
    w = c.worker("w", "a")
    w.call("open", model="m", replica="w")
    w.call("alloc", total_bytes=1 << 20, gpu="legacy")
    w.call("register")
    hosts = Hosts(c, 1).names if netns_available() else []
    pids = [c.server.pid, a.pid, w.pid, *a.gpu_processes(), c.gpus.p.pid]
    made = {"pids": pids, "dirs": [c.dir, c.gpus.folder], "netns": hosts}
    print(json.dumps(made), flush=True)
    time.sleep(3600)


def living(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def a_killed_test_leaves_nothing():
    p = subprocess.Popen([sys.executable, __file__, "victim"], stdout=subprocess.PIPE)
    made = json.loads(p.stdout.readline())
    assert len(made["pids"]) == 5 and all(living(pid) for pid in made["pids"]), made
    p.kill()
    p.wait()
    wait_for(lambda: not any(living(pid) for pid in made["pids"]), 30, "its processes are gone")
    wait_for(lambda: not any(map(os.path.exists, made["dirs"])), 30, "its folders are gone")
    for name in made["netns"]:
        wait_for(lambda n=name: not os.path.exists(f"/run/netns/{n}"), 30, "its networks are gone")


if __name__ == "__main__":
    if sys.argv[1:] == ["victim"]:
        victim()
    main(a_killed_test_leaves_nothing)
