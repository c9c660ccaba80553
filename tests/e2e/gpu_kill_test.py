# SPDX-License-Identifier: Apache-2.0
"""GPU memory when workers and GPU processes die: free within a second of the last reader's end, and
nobody else notices. Every kind of memory with TH_LONG=1, else those that go different ways."""

import gpu_driver
import gpu_kills as kills
from cluster import LONG, SANITIZED, main, needs_plans

KINDS = gpu_driver.OPEN_KINDS if LONG else ("chunks",) if SANITIZED else ("legacy", "chunks")


def within(kind, free):
    assert free.seconds <= free.limit, (kind, free)
    print(f"  {kind}: free after {free.seconds:.3f} s of {free.limit:.1f} s", flush=True)


def a_worker_that_is_idle():
    for kind in KINDS if SANITIZED else gpu_driver.OPEN_KINDS:
        within(kind, kills.worker_idle(kind))


def a_worker_that_is_read():
    for kind in KINDS:
        within(kind, kills.worker_while_read(kind))


def a_reader_during_replicate():
    for kind in KINDS:
        within(kind, kills.reader_during_replicate(kind))


def a_worker_during_its_registration():
    for kind in KINDS:
        within(kind, kills.worker_in_warm_up(kind))


def a_worker_while_its_stream_waits():
    within("legacy", kills.worker_while_its_stream_waits("legacy"))


def a_gpu_process_while_it_starts():
    needs_plans()
    kills.helper_while_it_starts("legacy")


def a_gpu_process_while_it_opens():
    needs_plans()
    for kind in KINDS:
        kills.helper_while_it_opens(kind)


def a_gpu_process_in_every_part_of_a_leg():
    needs_plans()
    steps = kills.HELPER_STEPS
    for i, step in enumerate(steps):
        for kind in KINDS if LONG else KINDS[i % len(KINDS) :][:1]:
            kills.helper_in_a_leg(kind, *step)


def a_gpu_process_in_an_offload():
    needs_plans()
    for kind in KINDS if LONG else KINDS[:1]:
        kills.helper_in_an_offload(kind)


def a_gpu_process_while_the_reader_looks():
    needs_plans()
    for i, killed in enumerate("ab"):
        for kind in KINDS if LONG else KINDS[i % len(KINDS) :][:1]:
            kills.helper_while_it_looks(kind, killed)


def a_gpu_process_while_it_closes():
    needs_plans()
    for kind in kills.CLOSES if LONG else ("legacy",):
        within(kind, kills.helper_while_it_closes(kind))


def a_gpu_that_is_lost():
    needs_plans()
    for kind in KINDS:
        print(f"  {kind}: {kills.gpu_is_lost(kind)}", flush=True)


def a_gpu_that_is_lost_under_a_leg_to_another_agent():
    needs_plans()
    for kind in KINDS:
        for has_other in (True, False):
            print(f"  {kind}: {kills.publishers_gpu_is_lost(kind, has_other)}", flush=True)


if __name__ == "__main__":
    main(
        a_worker_that_is_idle,
        a_worker_that_is_read,
        a_reader_during_replicate,
        a_worker_during_its_registration,
        a_worker_while_its_stream_waits,
        a_gpu_process_while_it_starts,
        a_gpu_process_while_it_opens,
        a_gpu_process_in_every_part_of_a_leg,
        a_gpu_process_in_an_offload,
        a_gpu_process_while_the_reader_looks,
        a_gpu_process_while_it_closes,
        a_gpu_that_is_lost,
        a_gpu_that_is_lost_under_a_leg_to_another_agent,
    )
