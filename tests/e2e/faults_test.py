# SPDX-License-Identifier: Apache-2.0
"""Each party is killed, frozen or cut off at every step of the protocol. Whatever happens: no
wrong bytes, one outcome for a group, no call beyond its deadline, nothing left behind, and the
same names serve a new version soon after (history.py, faults.py). Needs -Dfaults=true.

By hand: faults_test.py TEXT... runs the cases whose description has one of the texts in it.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import FAULTS, LONG, Skip, cluster, main, netns_available
from fault_points import all_cases, all_points, choice, passages
from faults import Case, lane_of

LANES = 4  # side by side: they mostly wait
COUNT = 40


def run_lane(cases, report):
    problems = []
    with cluster(server=False) as c:
        lane = lane_of(c)
        for case in cases:
            start = time.monotonic()
            try:
                found = case.run(lane)
            except Exception as e:
                raise AssertionError("\n".join([f"{case}: {e!r}", *problems])) from e
            report(case, time.monotonic() - start, found)
            problems += found
        if problems:
            raise AssertionError("\n".join(problems))


def wanted():
    cases = all_cases(netns_available())
    texts = sys.argv[1:]
    if texts:
        return [case for case in [*passages(), *cases] if any(t in str(case) for t in texts)]
    return [*passages(), *(cases if LONG else choice(cases, COUNT))]


def every_point_has_a_step():
    strays = all_points() ^ {point for p in passages() for _, point in p.points}
    assert not strays, f"failpoints that no step of the matrix has, or the reverse: {strays}"


def need_faults():
    if not FAULTS:
        raise Skip("this build has no fault injection (-Dfaults=true)")


def every_party_at_every_step():
    need_faults()
    every_point_has_a_step()
    cases, took = wanted(), []

    def report(case, seconds, found):
        took.append(seconds)
        for problem in found:
            print(problem, flush=True)
        if LONG or sys.argv[1:]:
            codes = [f"{c.cmd} {c.group}{c.shard} {c.code}" for c in case.calls if c.code != "ok"]
            print(f"  {seconds:5.2f} s {case}: {', '.join(codes)}", flush=True)

    with ThreadPoolExecutor(LANES) as pool:
        lanes = [pool.submit(run_lane, cases[n::LANES], report) for n in range(LANES)]
        failures = [str(e) for e in (lane.exception() for lane in lanes) if e]
    if failures:
        raise AssertionError("\n".join(failures))
    assert len(took) == len(cases)
    each, points = sum(took) / len(took), sum(isinstance(case, Case) for case in cases)
    print(f"  {points} kill points, {each:.2f} s each, worst {max(took):.2f} s")


if __name__ == "__main__":
    main(every_party_at_every_step)
