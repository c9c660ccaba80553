# SPDX-License-Identifier: Apache-2.0
"""Real daemons for the tests of the package: one server and one agent for all of them.

Started and ended by the harness of tests/e2e. The package is that of the source tree, over the
libthc of the build.
"""

import contextlib
import itertools
import multiprocessing
import os
import re
import signal
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from cluster import Cluster, wait_for, with_library  # noqa: E402, F401

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads spin, and others want the cores
with_library()
import tensorhub as th  # noqa: E402

SIZE = 1 << 20
AHEAD = 64  # calls that a member makes before the first of another: the next one waits
LOADED_S = 150  # by then ranks have torch, however busy the machine is
_numbers = itertools.count(1)
# Whoever starts tests in the background has SIGINT ignored, and Python takes that over.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def daemons():
    cluster = Cluster()
    failed = True
    try:
        cluster.agent("a")
        failed = False
        yield cluster
    finally:
        cluster.close(failed)


@pytest.fixture(scope="session")
def agent(daemons):
    """The directory of the agent, as agent= takes it."""
    return daemons.agents["a"].runtime


@pytest.fixture(autouse=True)
def _where(request, monkeypatch):
    if "agent" in request.fixturenames:
        monkeypatch.setenv("THC_AGENT", request.getfixturevalue("agent"))


@contextlib.contextmanager
def forked(count, main, *args, killed=()):
    """Ranks that run main(rank, count, pipe, *args): the other ends of their pipes. All end well,
    but those that kill themselves.

    Loading torch takes seconds: a process of its own does it once, and forks the ranks of all
    tests.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp"])
    processes, pipes = [], []
    try:
        for rank in range(count):
            pipe, theirs = context.Pipe()
            processes.append(context.Process(target=main, args=(rank, count, theirs, *args)))
            processes[rank].start()
            theirs.close()
            pipes.append(pipe)
        yield pipes
        for pipe in pipes:
            pipe.close()
        for rank, process in enumerate(processes):
            process.join(60)
            assert process.exitcode == (-signal.SIGKILL if rank in killed else 0), processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def install(folder):
    """Makes it one for PYTHONPATH that has the package's entry points, as pip installs them."""
    import tomllib

    with open(os.path.join(ROOT, "libthc", "python", "pyproject.toml"), "rb") as f:
        groups = tomllib.load(f)["project"]["entry-points"]
    distribution(folder, "tensorhub_agent", groups)


def distribution(folder, name, groups):
    """Makes it one for PYTHONPATH that has a distribution of entry points."""
    info = os.path.join(folder, f"{name}-0.dist-info")
    os.mkdir(info)
    with open(os.path.join(info, "METADATA"), "w", encoding="ascii") as f:
        f.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    with open(os.path.join(info, "entry_points.txt"), "w", encoding="ascii") as f:
        for group, rows in groups.items():
            f.write(f"[{group}]\n" + "".join(f"{name} = {call}\n" for name, call in rows.items()))


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder for PYTHONPATH with the package's entry points."""
    folder = str(tmp_path_factory.mktemp("installed"))
    install(folder)
    return folder


@pytest.fixture
def model():
    """A model of this test's own."""
    return f"m{next(_numbers)}"


def memory(seed, size=SIZE):
    """A tensor in memory that agents map, with bytes that seed names."""
    view = th.empty((size,), "U8")
    view[:] = bytes([seed]) * size
    return view


@pytest.fixture
def trainer(agent, model):
    """It has published version 1; goes_on brings the next."""
    with th.open(model, replica="trainer") as handle:
        handle.tensors = {"w": memory(1)}
        handle.register(handle.tensors)
        handle.publish(1)
        yield handle
        handle.close(abandon=True)


def goes_on(trainer, version):
    trainer.unpublish()
    trainer.tensors["w"][:] = bytes([version]) * SIZE
    trainer.publish(version)


# ---- what tests/support/count.py reads --------------------------------------------------------


def _word(nodeid):
    """test_verbs.py::test_a[b-c] as one word: test_verbs__a_b_c."""
    text = nodeid.rpartition("/")[2].replace(".py", "").replace("::test_", "__")
    return re.sub(r"\W+", "_", text).strip("_")


def pytest_terminal_summary(terminalreporter):
    """A line for each case, and the numbers: as the scripts of tests/e2e end."""
    stats, write = terminalreporter.stats, terminalreporter.write_line
    write("")
    passed = [report for report in stats.get("passed", ()) if report.when == "call"]
    failed = {report.nodeid for kind in ("failed", "error") for report in stats.get(kind, ())}
    for report in passed:
        if report.nodeid not in failed:
            write(f"ok {_word(report.nodeid)} {report.duration:.1f} s")
    for nodeid in sorted(failed):
        write(f"FAILED {_word(nodeid)}")
    skipped = stats.get("skipped", ())
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        write(f"skip {_word(report.nodeid)}: {reason}")
    good = sum(report.nodeid not in failed for report in passed)
    write(f"{good} passed, {len(failed)} failed, {len(skipped)} skipped")


def pytest_sessionfinish(session, exitstatus):
    """A file of which all is skipped has run: as a script of tests/e2e it ends with 77."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = 77
