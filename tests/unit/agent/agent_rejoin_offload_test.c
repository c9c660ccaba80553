/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent core and a server that knows nothing: what is said of copies in the agent's own memory,
 * which of them are kept on, and how the new server takes them over or lets them go.
 */
#include "ipc/base/name.h"
#include "tests/unit/agent/agent_fixture.h"

TestSuite(agent_rejoin_offload, .init = setup_attached, .fini = teardown);

/* The server is lost, and this is said of the copy. */
static const struct ctl_rejoin *
said(uint64_t copy)
{
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 1);
	const struct ctl_rejoin *rejoin = &rig_request(&rig, CTL_REJOIN)->u.rejoin;
	cr_assert_eq(rejoin->sid, copy);
	cr_assert_eq(rejoin->group_inc, 1000 + copy);
	cr_assert_eq(rejoin->open.reservation, RIG_RESERVATION);
	cr_assert_eq(rejoin->open.copy_why, CTL_COPY_SEED, "as the RESERVE said it");
	cr_assert_str_eq(rejoin->open.model, "m");
	cr_assert_str_eq(rejoin->open.replica, "r");
	cr_assert_eq(rejoin->open.shard, 1);
	cr_assert_eq(rejoin->open.num_shards, 2);
	cr_assert_str_eq(rejoin->open.retain, "", "a copy claims nothing itself");
	return rejoin;
}

static uint32_t
num_sessions(void)
{
	struct agent_session_info info;
	uint32_t count = 0;

	while (agent_core_session_at(rig.agent, count, &info))
		count++;
	return count;
}

/* The new server hears that there was one, so that its group is waited for no longer. */
static void
said_gone(uint64_t copy)
{
	const struct ctl_rejoin *rejoin = said(copy);

	cr_assert(rejoin->gone);
	cr_assert_not(rejoin->registered || rejoin->went);
	cr_assert_eq(rejoin->held.version, TH_NO_VERSION);
}

static void
expect_freed(void)
{
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, RIG_MEMORY);
	cr_assert_eq(num_sessions(), 0);
}

/* ---- complete ---- */

Test(agent_rejoin_offload, complete__said_with_its_version_and_reservation)
{
	const struct ctl_rejoin *rejoin = said(rig_offload_filled(&rig));
	cr_assert_not(rejoin->gone || rejoin->went || rejoin->refused);
	cr_assert(rejoin->registered && rejoin->hashed);
	cr_assert(th_hash_equal(rejoin->reg.layout, RIG_LAYOUT));
	cr_assert_eq(rejoin->reg.manifest.lo, 8);
	cr_assert_eq(rejoin->reg.bytes, 1000);
	cr_assert_eq(rejoin->reg.num_chunks, RIG_CHUNKS);
	cr_assert_eq(rejoin->held.version, 17);
	cr_assert_eq(rejoin->gen, 1);
	cr_assert_eq(rejoin->next_op_seq, 2);
	cr_assert_eq(rejoin->num_outcomes, 1);
	cr_assert_eq(rejoin->outcomes[0].op_seq, 1);
	cr_assert_eq(rejoin->outcomes[0].code, 0);
	cr_assert(rejoin->outcomes[0].went);
	cr_assert_eq(rig_request(&rig, CTL_REJOINED)->u.rejoined.num_sessions, 1);
	/* It is kept, and nobody is told anything. */
	cr_assert_eq(rig_count(&rig, AGENT_FREE) + rig_count(&rig, AGENT_PART_END), 0);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE) + rig_count(&rig, AGENT_LINE), 0);
	cr_assert_eq(num_sessions(), 1);
}

Test(agent_rejoin_offload, complete__is_read_on_and_released_by_the_new_server)
{
	sid = rig_offload_filled(&rig);
	uint64_t before = rig_reader(&rig, sid, 1, 60);
	said(sid);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 0);
	uint64_t after = rig_reader(&rig, sid, 1, 61);
	rig_clear(&rig);
	rig_release(&rig, RIG_RESERVATION, 1, sid);
	cr_assert_eq(rig_request(&rig, CTL_CLOSE)->u.close.sid, sid);
	rig_event(&rig, rig_drain(sid, 1, 3));
	rig_out(&rig, AGENT_EV_OUT_ENDED, before);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, after);
	cr_assert_eq(rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done.drain_no, 3);
	expect_freed();
}

Test(agent_rejoin_offload, complete__another_loss__said_again)
{
	sid = rig_offload_filled(&rig);
	said(sid);
	const struct ctl_rejoin *rejoin = said(sid);
	cr_assert_eq(rejoin->held.version, 17);
	cr_assert_eq(rejoin->gen, 1);
}

Test(agent_rejoin_offload, complete__the_new_server_refuses_it__freed)
{
	sid = rig_offload_filled(&rig);
	rig.refused[CTL_REJOIN] = TH_E_GROUP_BROKEN;
	said(sid);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0, "it does not know it");
	expect_freed();
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1);
}

Test(agent_rejoin_offload, complete__counts_among_what_the_agent_keeps)
{
	said(rig_offload_filled(&rig));
	rig_clear(&rig);
	for (uint32_t i = 1; i <= 3; i++)
		rig_event(&rig, rig_reserve(RIG_RESERVATION + i, 0));
	cr_assert_eq(rig_count(&rig, AGENT_RESERVE), 2, "three are the most that it keeps");
	cr_assert_eq(rig_request(&rig, CTL_RESERVED)->u.reserved.code, TH_E_NOMEM_RETAIN);
}

Test(agent_rejoin_offload, complete__beside_a_worker__both_are_said)
{
	sid = rig_offload_filled(&rig);
	rig_clear(&rig);
	rig_publish(&rig, 1, rig_ready(&rig, 1), "5");
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 2);
	cr_assert_eq(rig_request(&rig, CTL_REJOINED)->u.rejoined.num_sessions, 2);
	uint32_t copies = 0;
	for (uint32_t i = 0; i < rig.num_sent; i++) {
		const struct ctl_request *request = &rig.sent[i].request;
		copies += request->kind == CTL_REJOIN && request->u.rejoin.sid == sid &&
			  request->u.rejoin.open.reservation == RIG_RESERVATION;
	}
	cr_assert_eq(copies, 1);
}

/* ---- being filled ---- */

Test(agent_rejoin_offload, filling__said_with_its_leg_and_goes_on)
{
	sid = rig_offload(&rig);
	uint64_t leg = rig_offload_filling(&rig, sid);
	const struct ctl_rejoin *rejoin = said(sid);
	cr_assert(rejoin->went && rejoin->registered);
	cr_assert_not(rejoin->gone || rejoin->done || rejoin->hashed);
	cr_assert_eq(rejoin->held.version, TH_NO_VERSION);
	cr_assert_eq(rejoin->version.version, 17);
	cr_assert_eq(rejoin->op_seq, 1);
	cr_assert_eq(rejoin->kind, CTL_OP_REPLICATE);
	cr_assert_str_eq(rejoin->spec, "17");
	cr_assert_eq(rejoin->leg, 50, "as the former server numbered it");
	cr_assert_eq(rejoin->next_op_seq, 2);
	cr_assert_eq(rig_count(&rig, AGENT_STOP), 0);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, 0);
	rig_event(&rig, rig_outcome(sid, 1, 0, 17));
	struct agent_session_info info;
	cr_assert(agent_core_session_at(rig.agent, 0, &info));
	cr_assert(info.offload);
	cr_assert_eq(info.held.version, 17);
}

Test(agent_rejoin_offload, filling__its_source_fails__the_new_server_names_another)
{
	sid = rig_offload(&rig);
	uint64_t leg = rig_offload_filling(&rig, sid);
	said(sid);
	rig_leg(&rig, AGENT_EV_LEG_FAILED, leg, TH_E_STALE_MEMORY);
	cr_assert(rig_request(&rig, CTL_LEG_END)->u.leg_end.source_failed);
	rig_event(&rig, rig_reroute(sid, 1, 0, 51));
	cr_assert_eq(rig_last(&rig, AGENT_PULL)->u.leg.grant.leg, 51);
}

Test(agent_rejoin_offload, filled_and_no_outcome__all_is_there)
{
	sid = rig_offload(&rig);
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_offload_filling(&rig, sid), 0);
	const struct ctl_rejoin *rejoin = said(sid);
	cr_assert(rejoin->went && rejoin->done && rejoin->hashed);
	cr_assert_eq(rejoin->chunks, RIG_CHUNKS);
	cr_assert_eq(rejoin->leg, 0);
	rig_event(&rig, rig_outcome(sid, 1, 0, 17));
	cr_assert_eq(said(sid)->held.version, 17);
}

Test(agent_rejoin_offload, filling__released_by_the_new_server__the_leg_is_stopped_first)
{
	sid = rig_offload(&rig);
	uint64_t leg = rig_offload_filling(&rig, sid);
	said(sid);
	rig_release(&rig, RIG_RESERVATION, 1, sid);
	cr_assert_eq(rig_last(&rig, AGENT_STOP)->u.leg.leg, leg);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, TH_E_CANCELLED);
	expect_freed();
}

/* ---- what is begun anew by whoever needs it ---- */

Test(agent_rejoin_offload, without_a_plan__freed_and_said_to_be_gone)
{
	said_gone(rig_offload(&rig));
	expect_freed();
	cr_assert_eq(rig_request(&rig, CTL_REJOINED)->u.rejoined.num_sessions, 0);
}

Test(agent_rejoin_offload, without_go__freed_and_said_to_be_gone)
{
	sid = rig_offload(&rig);
	rig_event(&rig, rig_offload_plan(sid));
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 1);
	said_gone(sid);
	expect_freed();
	/* Its place is free again. */
	rig_clear(&rig);
	for (uint32_t i = 1; i <= 3; i++)
		rig_event(&rig, rig_reserve(RIG_RESERVATION + i, 0));
	cr_assert_eq(rig_count(&rig, AGENT_RESERVE), 3);
}

Test(agent_rejoin_offload, its_operation_has_failed__gone_when_the_leg_has_stopped)
{
	sid = rig_offload(&rig);
	uint64_t leg = rig_offload_filling(&rig, sid);
	rig_event(&rig, rig_outcome(sid, 1, TH_E_VERSION_LOST, TH_NO_VERSION));
	said_gone(sid);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0, "the leg may still write it");
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, TH_E_CANCELLED);
	expect_freed();
}

Test(agent_rejoin_offload, released_by_the_former__freed_after_its_last_reader)
{
	sid = rig_offload_filled(&rig);
	uint64_t out = rig_reader(&rig, sid, 1, 60);
	rig_release(&rig, RIG_RESERVATION, 1, sid);
	said_gone(sid);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	expect_freed();
}

Test(agent_rejoin_offload, sessions_end_with_their_server__the_copy_too)
{
	rig_reset_at_loss();
	teardown();
	setup_attached();
	sid = rig_offload_filled(&rig);
	said_gone(sid);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1);
	expect_freed();
}
