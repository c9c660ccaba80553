# SPDX-License-Identifier: Apache-2.0
"""The matrix: every step of the protocol that a fault can meet, by phase and by whose process."""

import hashlib
import os
import re

from faults import Case, Passage

OPEN_AGENT = (
    "agent_greets agent_opens agent_sends_open agent_makes_session agent_takes_memory "
    "agent_registers agent_sends_register agent_registered"
)
OPEN_WORKER = "worker_connects worker_joined worker_shares_memory worker_registers"
CLOSE_AGENT = "agent_closing agent_sends_close agent_closed agent_frees"

STEPS = (
    ("attach", "server", "server_attach server_attached"),
    ("attach", "reader agent", "agent_sends_attach"),
    (
        "open",
        "server",
        "server_open server_opened server_manifest_put server_register server_registered",
    ),
    ("open", "source agent", OPEN_AGENT),
    ("open", "reader agent", OPEN_AGENT),
    ("open", "source worker", OPEN_WORKER),
    ("open", "reader worker", OPEN_WORKER),
    (
        "publish",
        "server",
        "server_op server_op_taken server_content",
    ),
    (
        "publish",
        "source agent",
        "agent_submitted agent_sends_op agent_part_new agent_hashed agent_sends_content "
        "agent_told_outcome agent_completes",
    ),
    ("publish", "source worker", "worker_submits worker_submitted worker_completed"),
    (
        "replicate",
        "server",
        "server_op server_op_taken server_prepared server_prepared_taken server_leg_end "
        "server_leg_ended",
    ),
    (
        "replicate",
        "source agent",
        "agent_told_grant agent_serves leg_out_hello leg_out_first_chunk leg_out_half "
        "leg_out_last_chunk leg_out_bye agent_leg_out_over",
    ),
    (
        "replicate",
        "reader agent",
        "agent_submitted agent_sends_op agent_told_plan agent_part_new agent_sends_prepared "
        "agent_told_go agent_pulls leg_in_connects leg_in_hello leg_in_welcome "
        "leg_in_first_chunk leg_in_half leg_in_last_chunk leg_in_bye agent_leg_in_over "
        "agent_sends_leg_end agent_told_outcome agent_completes",
    ),
    ("replicate", "reader worker", "worker_submits worker_submitted worker_completed"),
    ("idle", "server", "server_beat server_poll"),
    ("idle", "source agent", "agent_sends_beat"),
    ("copy", "mate agent", "agent_copies copy_first_chunk copy_last_chunk"),
    ("unpublish", "server", "server_op server_drain_done server_drained"),
    (
        "unpublish",
        "source agent",
        "agent_told_drain agent_sends_drain_done agent_part_end agent_told_outcome "
        "agent_completes",
    ),
    ("unpublish", "source worker", "worker_submitted worker_completed"),
    ("update", "server", "server_op server_prepared server_leg_end"),
    ("update", "source agent", "leg_out_hello leg_out_half"),
    (
        "update",
        "reader agent",
        "agent_told_plan agent_sends_prepared agent_told_go "
        "leg_in_first_chunk agent_leg_in_over agent_told_outcome",
    ),
    (
        "drain",
        "source agent",
        "leg_out_hello leg_out_first_chunk leg_out_half leg_out_last_chunk",
    ),
    ("drain", "reader agent", "leg_in_first_chunk leg_in_half"),
    ("unregister", "source agent", "agent_unregisters"),
    ("unregister", "source worker", "worker_unregisters"),
    (
        "offload",
        "source agent",
        "agent_told_reserve agent_makes_room agent_copies agent_sends_leg_end",
    ),
    ("offload", "server", "server_open server_register server_leg_end"),
    ("release", "source agent", "agent_told_release agent_sends_close"),
    ("refuse", "server", "server_reserved"),
    ("refuse", "mate agent", "agent_told_reserve agent_sends_reserved"),
    ("rejoin", "server", "server_attach server_rejoin server_rejoined"),
    ("rejoin", "source agent", "agent_sends_rejoin agent_sends_rejoined"),
    ("rejoin", "reader agent", "agent_sends_attach agent_sends_rejoin agent_sends_rejoined"),
    ("leave", "server", "server_admin"),
    ("leave", "reader agent", "agent_sends_admin"),
    ("close", "server", "server_close server_closed"),
    ("close", "source agent", CLOSE_AGENT),
    ("close", "reader agent", CLOSE_AGENT),
    ("close", "source worker", "worker_closes worker_closed"),
    ("close", "reader worker", "worker_closes worker_closed"),
)



def all_points():
    """Their names in ipc/base/failpoint.h."""
    with open(os.path.join(os.environ["TH_SOURCE"], "ipc", "base", "failpoint.h")) as f:
        return set(re.findall(r"^\tX\((\w+)\)", f.read(), re.MULTILINE))


def passages():
    """Each phase with the points that are passed in it."""
    phases = {}
    for phase, where, points in STEPS:
        phases.setdefault(phase, []).extend((where, point) for point in points.split())
    return [Passage(phase, points) for phase, points in phases.items()]


VICTIMS = ("source worker", "source agent", "reader worker", "reader agent", "server")
HOSTS = ("source agent", "reader agent", "server")  # a worker has no link of its own


def faults(links):
    """(victim, action) of every step."""
    for victim in VICTIMS:
        yield victim, "kill"
        yield victim, "stop"
        if links and victim in HOSTS:
            yield victim, "cut"


def all_cases(links):
    return [
        Case(point, where, phase, victim, action)
        for phase, where, points in STEPS
        for point in points.split()
        for victim, action in faults(links)
    ]


def choice(cases, count):
    """As many of each (victim, action) as of the others, and of them the same ones every time,
    spread over all steps."""
    groups = {}
    for case in cases:
        groups.setdefault((case.victim, case.action), []).append(case)
    for group in groups.values():
        group.sort(key=lambda case: hashlib.sha256(str(case).encode()).digest())
    ordered = [case for row in zip(*groups.values()) for case in row]
    return ordered[:count]
