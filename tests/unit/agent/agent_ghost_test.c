/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update and a server that goes away: the worker is answered at once, what the server may still
 * know is ended in silence, and the next operation waits for that.
 */
#include "tests/unit/agent/agent_fixture.h"

TestSuite(agent_ghost, .init = setup_holding, .fini = teardown);

/* The server is silent until agents notice. */
static void
silence(void)
{
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	cr_assert_not(agent_core_attached(rig.agent));
}

static void
answered_no_server(uint32_t slot)
{
	const struct agent_action *done = rig_complete(&rig, 1, slot);

	cr_assert_eq(done->u.complete.code, TH_E_NO_SERVER);
	cr_assert(strstr(done->u.complete.text, "the held version stays"));
	cr_assert_eq(done->u.complete.result.version.version, 3);
	cr_assert_not(done->u.complete.result.updated);
}

/* An update in slot 0 whose OP the server took and whose worker was answered. */
static void
haunt(void)
{
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	silence();
	answered_no_server(0);
	rig_clear(&rig);
}

/* As haunt; then the link is back and the CANCEL is answered. The OUTCOME is still to come. */
static void
haunt_attached(void)
{
	haunt();
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	rig_clear(&rig);
}

/* ---- who is answered ----------------------------------------------------------------- */

Test(agent_ghost, update__accepted_then_silence__no_server_when_noticed)
{
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig.mute = true;
	while (agent_core_attached(rig.agent)) {
		cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
		rig.now_ns = rig.next_ns;
		rig_tick(&rig);
	}
	answered_no_server(0);
}

Test(agent_ghost, update__sent_and_unanswered__no_server)
{
	rig.held = 1u << CTL_OP;
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	silence();
	answered_no_server(0);
}

Test(agent_ghost, update__planned_and_draining__no_server_and_the_part_stays)
{
	rig_reader(&rig, sid, gen, 50);
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	silence();
	answered_no_server(0);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
}

Test(agent_ghost, update__prepared__waits_for_its_outcome)
{
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, 0);
	silence();
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_back(&rig);
	rig_event(&rig, rig_undrain(sid, gen));
	rig_event(&rig, rig_outcome(sid, 2, TH_E_TIMEOUT, 3));
	cr_assert_eq(code_of(0), TH_E_TIMEOUT);
}

/* Groups of one: nobody else is told anything. */
Test(agent_ghost, pull__no_word_by_the_deadline__timeout_and_the_version_stays)
{
	submit(0, CTL_OP_UPDATE, SEC);
	rig.mute = true;
	rig_sleep(&rig, SEC + 299 * MS);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_sleep(&rig, MS);
	cr_assert(agent_core_attached(rig.agent));
	cr_assert_eq(code_of(0), TH_E_TIMEOUT);
	cr_assert_eq(rig_complete(&rig, 1, 0)->u.complete.result.version.version, 3);
	rig_clear(&rig);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	submit(1, CTL_OP_UPDATE, SEC);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 3);
}

Test(agent_ghost, replicate__server_goes__no_server_at_its_deadline)
{
	submit(0, CTL_OP_REPLICATE, 10 * SEC);
	silence();
	rig_sleep(&rig, 6 * SEC - MS);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_sleep(&rig, MS);
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
}

Test(agent_ghost, replicate__prepared__waits_for_its_outcome)
{
	submit(0, CTL_OP_REPLICATE, SEC);
	rig_event(&rig, rig_plan(sid, 2, true));
	rig.mute = true;
	rig_sleep(&rig, 60 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
}

/* Of several members no other may hear that there was nothing to do. */
Test(agent_ghost, pull__of_several_members__waits_for_the_one_outcome)
{
	rig.num_shards = 2;
	uint64_t other = rig_ready(&rig, 2);
	rig_clear(&rig);
	rig_submit(&rig, 2, 0, CTL_OP_UPDATE, "latest", SEC);
	rig.held = 1u << CTL_POLL;
	rig_sleep(&rig, 60 * SEC);
	cr_assert(agent_core_attached(rig.agent));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig.held = 0;
	rig_event(&rig, rig_outcome(other, 1, 0, TH_NO_VERSION));
	cr_assert_eq(rig_complete(&rig, 2, 0)->u.complete.code, 0);
	rig_clear(&rig);
	rig_submit(&rig, 2, 1, CTL_OP_REPLICATE, "latest", 10 * SEC);
	silence();
	rig_sleep(&rig, 6 * SEC);
	cr_assert_eq(rig_complete(&rig, 2, 1)->u.complete.code, TH_E_NO_SERVER);
}

Test(agent_ghost, list__silence__waits_for_its_outcome)
{
	submit(0, CTL_OP_LIST, TH_FOREVER);
	silence();
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
}

Test(agent_ghost, update__server_asks_who_we_are__no_server_and_then_broken)
{
	rig_reset_at_loss();
	teardown();
	setup_holding();
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig.unknown = rig.fresh = true;
	rig_sleep(&rig, 4 * SEC);
	cr_assert(agent_core_attached(rig.agent));
	answered_no_server(0);
	submit(1, CTL_OP_UPDATE, TH_FOREVER);
	cr_assert_eq(code_of(1), TH_E_GROUP_BROKEN);
}

/* ---- what the server hears ----------------------------------------------------------- */

Test(agent_ghost, link_back__cancelled_once_and_ended_in_silence)
{
	haunt();
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	cr_assert_eq(rig_request(&rig, CTL_CANCEL)->u.cancel.op_seq, 2);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 3);
}

Test(agent_ghost, cancelled_before__no_second_cancel)
{
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_step(&rig, &(struct agent_event){.kind = AGENT_EV_CANCEL, .session = 1});
	silence();
	answered_no_server(0);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
}

Test(agent_ghost, plan__declined_and_nothing_drains)
{
	rig_reader(&rig, sid, gen, 50);
	haunt_attached();
	rig_event(&rig, rig_plan(sid, 2, true));
	const struct ctl_prepared *prepared = &rig_request(&rig, CTL_PREPARED)->u.prepared;
	cr_assert_eq(prepared->code, TH_E_CANCELLED);
	cr_assert(strstr(prepared->text, "while no server was reachable"));
	rig_event(&rig, rig_plan(sid, 2, true));
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 1);
	rig_reader(&rig, sid, gen, 51);
}

Test(agent_ghost, plan_before__declined_also_when_the_part_is_drained_later)
{
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	silence();
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 1);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, TH_E_CANCELLED);
	rig_event(&rig, rig_undrain(sid, gen));
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	rig_reader(&rig, sid, gen, 51);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 1);
}

Test(agent_ghost, explained_after__says_nothing_more)
{
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	struct ctl_event plan = rig_plan(sid, 2, true);
	plan.u.plan.layout.lo++;
	rig_event(&rig, plan);
	silence();
	struct agent_event explained = {.kind = AGENT_EV_EXPLAINED, .session = 1};
	explained.u.explained.op_seq = 2;
	rig_step(&rig, &explained);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 1);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, TH_E_CANCELLED);
}

Test(agent_ghost, go__a_lie__not_a_byte_is_overwritten)
{
	haunt_attached();
	rig_event(&rig, rig_plan(sid, 2, true));
	rig_event(&rig, rig_go(sid, 2, 8));
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 0);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, TH_E_PROTOCOL);
}

Test(agent_ghost, outcome__nothing_new__taken_in_silence)
{
	haunt_attached();
	rig_event(&rig, rig_outcome(sid, 2, 0, 3));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	submit(0, CTL_OP_LIST, TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 3);
}

Test(agent_ghost, op_refused__its_number_is_not_used_up)
{
	rig.held = 1u << CTL_OP;
	haunt();
	rig.refused[CTL_OP] = TH_E_LIMIT;
	rig.held = 0;
	rig_back(&rig);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig.refused[CTL_OP] = 0;
	rig_clear(&rig);
	submit(0, CTL_OP_LIST, TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 2);
}

/* ---- the next operation -------------------------------------------------------------- */

Test(agent_ghost, update_again__still_no_server__at_once)
{
	haunt();
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_ghost, update_again__attached__starts_when_the_ghost_is_gone)
{
	haunt_attached();
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 3);
	rig_event(&rig, rig_outcome(sid, 3, 0, 3));
	cr_assert_eq(code_of(0), 0);
}

Test(agent_ghost, pending_update__link_lost_again__no_server_at_once)
{
	haunt_attached();
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	silence();
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
}

Test(agent_ghost, pending__second_one__state)
{
	haunt();
	submit(1, CTL_OP_REPLICATE, TH_FOREVER);
	submit(2, CTL_OP_LIST, TH_FOREVER);
	cr_assert_eq(code_of(2), TH_E_STATE);
	cr_assert(strstr(rig_complete(&rig, 1, 2)->u.complete.text, "replicate is running"));
	struct agent_session_info info;
	cr_assert(agent_core_session_at(rig.agent, 0, &info));
	cr_assert_str_eq(info.operation, "replicate");
}

Test(agent_ghost, pending__op_refused__starts_with_the_same_number)
{
	rig.held = 1u << CTL_OP;
	haunt();
	submit(1, CTL_OP_LIST, TH_FOREVER);
	rig.mute = false;
	rig.refused[CTL_OP] = TH_E_LIMIT;
	rig_sleep(&rig, 4 * SEC);
	rig.held = 1u << CTL_CANCEL; /* so that the refusal is for the first alone */
	rig_answer(&rig, CTL_OP);
	rig.refused[CTL_OP] = 0;
	rig.held = 0;
	rig_answer(&rig, CTL_CANCEL);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_LIST);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 2);
}

Test(agent_ghost, pending__deadline_without_a_server__no_server)
{
	haunt();
	submit(1, CTL_OP_LIST, 2 * SEC);
	rig_sleep(&rig, 2 * SEC - MS);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_sleep(&rig, MS);
	cr_assert_eq(code_of(1), TH_E_NO_SERVER);
	cr_assert_eq(rig_complete(&rig, 1, 1)->u.complete.op_seq, 0);
}

Test(agent_ghost, pending__deadline_with_a_server__timeout)
{
	haunt_attached();
	submit(1, CTL_OP_LIST, 2 * SEC);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_sleep(&rig, 300 * MS);
	cr_assert_eq(code_of(1), TH_E_TIMEOUT);
}

Test(agent_ghost, pending__looks_once__not_refused_for_the_ghost)
{
	haunt_attached();
	submit(1, CTL_OP_UPDATE, 0);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.timeout_ns, 0);
}

Test(agent_ghost, pending__starts__sends_what_is_left_of_its_time)
{
	haunt();
	submit(1, CTL_OP_LIST, 60 * SEC);
	rig_back(&rig);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.timeout_ns, 56 * SEC);
}

Test(agent_ghost, pending__cancelled__ends_here_and_the_ghost_stays)
{
	haunt();
	submit(0, CTL_OP_LIST, TH_FOREVER);
	struct agent_event cancel = {.kind = AGENT_EV_CANCEL, .session = 1};
	rig_step(&rig, &cancel);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
	rig_step(&rig, &cancel);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 1);
}

Test(agent_ghost, pending__broken__told_so)
{
	haunt_attached();
	submit(1, CTL_OP_LIST, TH_FOREVER);
	rig_event(&rig,
		(struct ctl_event){.kind = CTL_EV_BROKEN, .u.broken = {sid, "shard 1 is lost"}});
	cr_assert_eq(code_of(1), TH_E_GROUP_BROKEN);
	cr_assert_str_eq(rig_complete(&rig, 1, 1)->u.complete.text, "shard 1 is lost");
	rig_event(&rig, rig_outcome(sid, 2, TH_E_GROUP_BROKEN, TH_NO_VERSION));
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_ghost, pending__server_restarted__broken_and_the_ghost_is_gone)
{
	rig_reset_at_loss();
	teardown();
	setup_holding();
	haunt();
	submit(1, CTL_OP_LIST, TH_FOREVER);
	rig.unknown = rig.fresh = true;
	rig_back(&rig);
	cr_assert_eq(code_of(1), TH_E_GROUP_BROKEN);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 1);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_ghost, close__pending_cancelled_and_the_slot_of_the_ghost_left_alone)
{
	haunt();
	submit(1, CTL_OP_LIST, TH_FOREVER);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(code_of(1), TH_E_CANCELLED);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 1);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
}

Test(agent_ghost, lost__everything_ends)
{
	haunt_attached();
	submit(1, CTL_OP_LIST, TH_FOREVER);
	rig_session(&rig, 1, AGENT_EV_LOST);
	cr_assert_eq(code_of(1), TH_E_CANCELLED);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
}

Test(agent_ghost, unregister__attached__not_in_the_way)
{
	uint64_t other = rig_ready(&rig, 2);
	rig_submit(&rig, 2, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	silence();
	rig_back(&rig);
	rig_session(&rig, 2, AGENT_EV_UNREGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, 0);
	rig_event(&rig, rig_plan(other, 1, false));
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, TH_E_CANCELLED);
}
