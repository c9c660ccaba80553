# SPDX-License-Identifier: Apache-2.0
"""What python -m tensorhub.doctor says of a machine in each state."""

import importlib.util
import subprocess
import sys

from cluster import Cluster
from tensorhub import doctor


def test_all_is_well(agent):
    p = subprocess.run(
        [sys.executable, "-m", "tensorhub.doctor"], capture_output=True, text=True, timeout=60
    )
    assert p.returncode == 0 and p.stderr == "", p
    found = {}
    for line in p.stdout.splitlines():
        mark, what, text = line.split(maxsplit=2)
        found[what] = (mark, text)
    for what in ("package", "library", "memory", "agent", "server"):
        assert found[what][0] == "ok", found
    assert "THC_LIBRARY" in found["library"][1] and agent in found["agent"][1]
    for name in ("torch", "numpy", "tqdm"):
        assert found[name][0] == ("ok" if importlib.util.find_spec(name) else "--"), found


def test_no_agent(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_optional", lambda name, *_: ("--", name, "not asked"))
    monkeypatch.setenv("THC_AGENT", str(tmp_path))
    ((mark, what, text),) = doctor._agent_and_server()
    assert (mark, what) == ("no", "agent") and "thctl up" in text, text
    assert doctor.main() == 1 and text in capsys.readouterr().out


def test_no_server(monkeypatch):
    cluster = Cluster()
    failed = True
    try:
        monkeypatch.setenv("THC_AGENT", cluster.agent("alone").runtime)
        cluster.server.kill()
        agent, (mark, what, text) = doctor._agent_and_server()
        assert agent[:2] == ("ok", "agent"), agent
        assert (mark, what) == ("no", "server") and cluster.server_url in text, text
        failed = False
    finally:
        cluster.close(failed)
