# SPDX-License-Identifier: Apache-2.0
"""th.distributed: ranks that open together, come late, differ, raise and die. Needs torch."""

import contextlib

import pytest
import tensorhub as th
from conftest import LOADED_S, forked

torch = pytest.importorskip("torch", reason="torch is not installed")
from many_ranks import LATE_S, run_scenarios  # noqa: E402

RANKS = 8
SOON_S = 20  # far below the 1,800 s of a verb, and the 30 minutes of gloo


def told(pipes):
    """What each rank saw of the next scenario, of those that are alive after it."""
    seen = []
    for pipe in pipes:
        with contextlib.suppress(EOFError):  # it has killed itself
            assert pipe.poll(LOADED_S)
            seen.append(pipe.recv())
    return seen


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
    place = str(tmp_path / "group")
    with forked(RANKS, run_scenarios, place, model, scenarios, killed=[7]) as pipes:
        late = told(pipes)
        assert [seen[:2] for seen in late] == [[rank, RANKS] for rank in range(RANKS)]
        assert min(took for *_, took in late[:3]) > LATE_S - 1
        assert max(took for *_, took in late) < SOON_S
        raised(told(pipes), "Invalid", "retain: ", "rank 5 gives 'latest-1'", "rank 0 'latest'")
        invalid = told(pipes)
        raised(invalid, "Invalid", "lineage: -1")
        raised(invalid[:2] + invalid[3:], "Invalid", "rank 2: ")
        none = told(pipes)
        raised(none, "NoAgent")
        raised(none[:4] + none[5:], "NoAgent", "rank 4: ")
        for rank, seen in enumerate(told(pipes)):
            assert seen == [f"{model}/copy {rank // 4}/{rank % 4}", 4]
        for rank, (sentence, took, same) in enumerate(told(pipes)):
            assert took < SOON_S and same, (rank, took, same)
            if rank == 6:
                assert sentence == "Mine: "
            else:
                assert sentence.startswith("GroupBroken: ") and "shard 6 on" in sentence, sentence
        killed = told(pipes)
        assert len(killed) == RANKS - 1
        for sentence, took, reopened in killed:
            assert sentence.startswith("GroupBroken: ") and "shard 7 on" in sentence, sentence
            assert took < SOON_S
            raised([reopened], "GroupBroken", "rank 7: ", "start all ranks again")
        scenarios, place = ("again", "leader"), str(tmp_path / "next")
        with forked(RANKS, run_scenarios, place, model, scenarios, killed=[0]) as those:
            assert told(those) == [True] * RANKS
            left = told(those)
            assert len(left) == RANKS - 1
            raised(left, "GroupBroken", "rank 0: ", "start all ranks again")
