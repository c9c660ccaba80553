# SPDX-License-Identifier: Apache-2.0
"""thbench measures something with each of its verbs, in the form that programs may rely on; no
figure is judged here. Its mistakes are sentences, and it leaves nothing behind."""

import glob
import json
import os
import signal
import subprocess
import tempfile

from cluster import BUILD, SANITIZED, main, wait_for

PROGRAM = os.path.join(BUILD, "tools", "thbench")
SMALL = ["--bytes", "8MiB", "--rounds", "2", "--tensor", "1MB", "--readers", "2"]
VERBS = ["pair", "local", "digest", "ring", "control", "pause", "fanout", "failover"]


def run(*arguments, folder=None, code=0):
    env = dict(os.environ, TMPDIR=folder or tempfile.gettempdir())
    p = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=100, env=env)
    assert p.returncode == code, f"{arguments}: {p.returncode}\n{p.stdout}{p.stderr}"
    return p


def check_section(section):
    for key in ("verb", "title", "facts", "series", "ratios", "notes"):
        assert key in section, section
    for name, series in section["series"].items():
        assert series["samples"], name
        assert series["unit"] in ("GB/s", "MiB", "us", "ms", "s", "x"), series
        assert 0 < series["min"] <= series["median"] <= series["max"], (name, series)
        assert series["min"] <= series["p99"] <= series["max"], (name, series)
    for name, ratio in section["ratios"].items():
        assert ratio["of"] in section["series"] and ratio["to"] in section["series"], ratio
        assert 0 < ratio["min"] <= ratio["max"] and ratio["ratio"] > 0, (name, ratio)
        assert ratio["at_least"] is None or ratio["at_most"] is None, ratio


def every_verb_as_json():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        document = json.loads(run("-q", "-o", "json", *SMALL, *VERBS, folder=folder).stdout)
        assert os.listdir(folder) == []
    assert document["schema"] == "thbench/1", document["schema"]
    for key in ("thbench", "cpu", "cpus", "kernel", "host_congestion_control", "load_before"):
        assert key in document["machine"], key
    for section in document["results"]:
        check_section(section)
    assert [v for v in VERBS if v not in {s["verb"] for s in document["results"]}] == []
    pair = document["results"][0]
    assert pair["facts"]["bytes"] == 8 << 20 and pair["facts"]["connections"] >= 1, pair["facts"]
    (pause,) = (s for s in document["results"] if s["verb"] == "pause")
    assert pause["facts"]["bytes"] == 8 << 20, pause["facts"]
    limit = pause["ratios"]["fetched_to_limit"]
    assert (limit["of"], limit["to"], limit["at_most"]) == ("update_fetched", "limit", 1), limit
    for copy, most in zip(*(pause["series"][name]["samples"] for name in ("copy_stream", "limit"))):
        assert abs(most - (copy / 0.9 + 50)) < 1e-3 * most, (copy, most)
    for name in ("unverified_to_raw_send", "verified_to_raw_send", "verified_to_raw_sendfile"):
        assert name in pair["ratios"], name


def peers_are_measured_or_named():
    arguments = ["-q", "-o", "json", *SMALL, "peers", "--python"]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        # What the scripts say, without the libraries that they need.
        program = os.path.join(folder, "python")
        with open(program, "w") as f:
            f.write(
                """#!/bin/sh
case "$1" in
*gloo*) echo 'no such library' >&2; exit 1 ;;
esac
echo '{"ready": "it", "version": "1.2.3"}'
while read -r word; do echo '{"seconds": 0.001}'; done
"""
            )
        os.chmod(program, 0o755)
        document = json.loads(run(*arguments, program).stdout)
        one = json.loads(run(*arguments, program, "--peers", "ray").stdout)
        assert [s["facts"]["peer"] for s in one["results"]] == ["ray"], one
    assert len(document["results"]) == 5, document
    for section in document["results"]:
        check_section(section)
        peer = section["facts"]["peer"]
        if peer == "gloo":
            assert "no such library; pip install torch" in section["notes"][0], section
        else:
            assert section["facts"]["version"] == "1.2.3", section
            # 8 MiB in 1 ms.
            assert abs(section["series"][peer]["median"] - 8.388608) < 0.001, section
            assert f"verified_to_{peer}" in section["ratios"], section


def sizes_and_shapes():
    arguments = ["-q", "-o", "json", "--bytes", "16MiB", "--rounds", "1", "--tensor", "4MB"]
    document = json.loads(run(*arguments, "pair", "--curve", "--shapes").stdout)
    titles = [section["title"] for section in document["results"]]
    assert len([t for t in titles if "curve" in t]) == 2, titles
    assert len([t for t in titles if "shape" in t]) == 5, titles
    for section in document["results"]:
        check_section(section)


def a_table_for_people():
    out = run("-q", *SMALL, "digest").stdout
    for word in ("machine", "digest:", "median", "GB/s", "ratio"):
        assert word in out, out


def mistakes_are_sentences():
    for arguments, word in (
        ([], "a verb is missing"),
        (["nonsense"], "nonsense"),
        (["--bytes", "12XB", "pair"], "12XB"),
        (["--bytes", "1", "pair"], "1MiB"),
        (["--rounds", "0", "pair"], "from 1 to"),
        (["--rounds", "-1", "pair"], "from 1 to"),
        (["--connections", "17", "pair"], "from 1 to 16"),
        (["--tensor", "none", "pair"], "none"),
        (["--readers", "65", "fanout"], "from 1 to 64"),
        (["--link", "10KB", "fanout"], "1MiB"),
        (["-o", "yaml", "pair"], "yaml"),
    ):
        error = run(*arguments, code=2).stderr
        assert word in error, (arguments, error)
    error = run("-q", "--bytes", "8TiB", "digest", code=1).stderr
    assert "--bytes" in error, error


def processes_below(folder):
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as f:
                if folder.encode() in f.read():
                    found.append(path)
        except OSError:
            pass
    return found


def an_interrupt_leaves_nothing():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        env = dict(os.environ, TMPDIR=folder)
        p = subprocess.Popen(
            [PROGRAM, "-q", "--bytes", "64MiB", "--rounds", "1000", "pair"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        wait_for(lambda: len(processes_below(folder)) >= 4, 60, "its agents")
        p.send_signal(signal.SIGINT)
        error = p.communicate(timeout=60)[1]
        assert p.returncode == 1 and "interrupted" in error, (p.returncode, error)
        assert processes_below(folder) == [] and os.listdir(folder) == []


tests = [
    every_verb_as_json,
    peers_are_measured_or_named,
    a_table_for_people,
    mistakes_are_sentences,
]
if not SANITIZED:
    tests += [sizes_and_shapes, an_interrupt_leaves_nothing]
main(*tests)
