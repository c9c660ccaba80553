# SPDX-License-Identifier: Apache-2.0
"""th.distributed: ranks that open together, come late, differ, raise and die. Needs torch."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
import tensorhub as th

torch = pytest.importorskip("torch", reason="torch is not installed")
HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = 8
SOON_S = 20  # far below the 1,800 s of a verb, and the 30 minutes of gloo


@contextlib.contextmanager
def ranks(tmp_path, model, *scenarios):
    """Eight ranks that run these: reads scenario -> what each rank saw, in their order."""
    command = [sys.executable, os.path.join(HERE, "many_ranks.py"), str(RANKS),
               str(tmp_path / scenarios[0]), model, *scenarios]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def said(scenario, count=RANKS):
        seen = {}
        while len(seen) < count:
            line = process.stdout.readline()
            assert line, f"the ranks ended in {scenario}, of which {sorted(seen)} have told"
            name, rank, value = json.loads(line)
            early.setdefault(name, {})[rank] = value
            seen = early.get(scenario, {})
        return [seen[rank] for rank in sorted(seen)]

    early = {}
    try:
        yield said
        process.stdin.close()
        assert process.wait(SOON_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def raised(seen, kind, *words):
    """All ranks raised this, soon, with a sentence that has these words."""
    for rank, (name, sentence, took) in enumerate(seen):
        assert name == kind and took < SOON_S, (rank, name, sentence, took)
        assert all(word in sentence for word in words), (rank, sentence)


def test_what_is_no_group_of_host_memory(agent, model, tmp_path):
    with pytest.raises(th.State, match="init_process_group first"):
        th.distributed.open(model, replica="r")
    place = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("cuda:gloo", init_method=place, rank=0, world_size=1)
    try:
        with pytest.raises(th.Invalid, match=r"group: its backend \(cuda:gloo\) .*new_group"):
            th.distributed.open(model, replica="r")
    finally:
        torch.distributed.destroy_process_group()


def test_eight_ranks(agent, model, tmp_path):
    scenarios = ("late", "differ", "invalid", "no_agent", "meshes", "raises", "killed")
    with ranks(tmp_path, model, *scenarios) as said:
        late = said("late")
        assert [seen[:2] for seen in late] == [[rank, RANKS] for rank in range(RANKS)]
        assert min(took for *_, took in late[:3]) > 4 and max(took for *_, took in late) < SOON_S
        raised(said("differ"), "Invalid", "retain: ", "rank 5 gives 'latest-1'", "rank 0 'latest'")
        invalid = said("invalid")
        raised(invalid, "Invalid", "lineage: -1")
        raised(invalid[:2] + invalid[3:], "Invalid", "rank 2: ")
        none = said("no_agent")
        raised(none, "NoAgent")
        raised(none[:4] + none[5:], "NoAgent", "rank 4: ")
        for rank, seen in enumerate(said("meshes")):
            assert seen == [f"{model}/copy {rank // 4}/{rank % 4}", 4]
        for rank, (sentence, took, same) in enumerate(said("raises")):
            assert took < SOON_S and same, (rank, took, same)
            if rank == 6:
                assert sentence == "Mine: "
            else:
                assert sentence.startswith("GroupBroken: ") and "shard 6 on" in sentence, sentence
        for rank, (sentence, took, reopened) in enumerate(said("killed", RANKS - 1)):
            assert sentence.startswith("GroupBroken: ") and "shard 7 on" in sentence, sentence
            assert took < SOON_S
            raised([reopened], "GroupBroken", "rank 7: ", "start all ranks again")
        with ranks(tmp_path, model, "again", "leader") as those:
            assert those("again") == [True] * RANKS
            raised(those("leader", RANKS - 1), "GroupBroken", "rank 0: ", "start all ranks again")
