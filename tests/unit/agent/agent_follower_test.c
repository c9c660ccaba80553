/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operations that the server begins by itself, of a handle that follows: what gives way to what,
 * what the worker sees of it, and what the next server is told.
 */
#include "ipc/base/ctl.h"
#include "tests/unit/agent/agent_fixture.h"

#define AUTOMATIC (CTL_OP_AUTOMATIC | 7u)

/* Session 1 follows, and holds nothing. */
static void
setup_following(void)
{
	setup_ready();
	submit(0, CTL_OP_FOLLOW, TH_FOREVER);
	rig_event(&rig, rig_outcome(sid, 1, 0, TH_NO_VERSION));
	cr_assert_eq(code_of(0), 0);
	rig_clear(&rig);
}

TestSuite(agent_follower, .init = setup_following, .fini = teardown);
TestSuite(agent_no_follower, .init = setup_ready, .fini = teardown);

static void
planned(void)
{
	rig_event(&rig, rig_plan(sid, AUTOMATIC, false));
}

static void
went(void)
{
	planned();
	rig_event(&rig, rig_go(sid, AUTOMATIC, 40));
}

static void
ended(int code, uint64_t version)
{
	struct ctl_event event = rig_outcome(sid, AUTOMATIC, code, version);

	event.u.outcome.updated = code == 0;
	rig_event(&rig, event);
}

/* All is there, and the server says so. */
static void
followed(uint64_t version)
{
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_last(&rig, AGENT_PULL)->u.leg.leg, 0);
	ended(0, version);
}

static const struct agent_line *
line(void)
{
	return &rig_last(&rig, AGENT_LINE)->u.line;
}

/* ---- what the worker sees -------------------------------------------------------------------- */

Test(agent_follower, plan__goes_all_the_way_without_a_call)
{
	planned();
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.op_seq, AUTOMATIC);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, 0);
	rig_event(&rig, rig_go(sid, AUTOMATIC, 40));
	cr_assert_eq(rig_last(&rig, AGENT_PART_NEW)->u.part.gen, AUTOMATIC);
	followed(5);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 40);
	cr_assert_eq(line()->held.version, 5);
	cr_assert_eq(line()->updated, 1);
	cr_assert_eq(line()->follow_failed, 0);
	cr_assert_eq(rig_requests(&rig, CTL_OP) + rig_count(&rig, AGENT_COMPLETE), 0);
}

Test(agent_follower, go__held_is_none_before_the_first_byte_moves)
{
	went();
	followed(5);
	rig_clear(&rig);
	struct ctl_event event = rig_plan(sid, AUTOMATIC + 1, true);
	rig_event(&rig, event);
	cr_assert_eq(rig_count(&rig, AGENT_LINE), 0, "until GO it holds what it held");
	rig_event(&rig, rig_go(sid, AUTOMATIC + 1, 41));
	cr_assert_eq(line()->held.version, TH_NO_VERSION);
	cr_assert_lt(rig_at(&rig, AGENT_LINE), rig_at(&rig, AGENT_PULL));
}

Test(agent_follower, fails__is_counted_and_nobody_is_answered)
{
	planned();
	ended(TH_E_NOMEM_RETAIN, TH_NO_VERSION);
	cr_assert_eq(line()->follow_failed, 1);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
}

Test(agent_follower, fails_after_go__what_is_begun_anew_is_taken)
{
	went();
	rig_leg(&rig, AGENT_EV_LEG_FAILED, rig_last(&rig, AGENT_PULL)->u.leg.leg,
		TH_E_STALE_MEMORY);
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_CANCEL, .u.cancel = {sid, AUTOMATIC}});
	ended(TH_E_STALE_MEMORY, TH_NO_VERSION);
	cr_assert_eq(line()->follow_failed, 1);
	rig_clear(&rig);
	rig_event(&rig, rig_plan(sid, AUTOMATIC + 1, false));
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, 0);
}

Test(agent_follower, memory_is_not_the_workers__as_long_as_it_follows)
{
	rig_session(&rig, 1, AGENT_EV_UNREGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, TH_E_STATE);
	rig_submit(&rig, 1, 0, CTL_OP_FOLLOW, "", TH_FOREVER);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert(line()->safe_to_mutate);
	rig_session(&rig, 1, AGENT_EV_UNREGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, 0);
}

Test(agent_follower, line__says_to_the_shell_that_it_follows)
{
	went();
	followed(5);
	cr_assert(line()->follows);
	rig_submit(&rig, 1, 0, CTL_OP_FOLLOW, "", TH_FOREVER);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_not(line()->follows);
}

Test(agent_follower, publish__while_a_version_is_brought__says_what_to_do)
{
	went();
	submit(0, CTL_OP_PUBLISH, TH_FOREVER);
	cr_assert_eq(code_of(0), TH_E_STATE);
	cr_assert_not_null(strstr(rig_last(&rig, AGENT_COMPLETE)->u.complete.text, "follows"));
	followed(5);
	submit(0, CTL_OP_PUBLISH, TH_FOREVER);
	cr_assert_not_null(
		strstr(rig_last(&rig, AGENT_COMPLETE)->u.complete.text, "holds version 5"));
}

Test(agent_follower, unpublish__ends_it)
{
	went();
	followed(5);
	submit(0, CTL_OP_UNPUBLISH, TH_FOREVER);
	rig_event(&rig, rig_drain(sid, AUTOMATIC, 3));
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(code_of(0), 0);
	cr_assert(line()->safe_to_mutate);
	rig_clear(&rig);
	rig_event(&rig, rig_plan(sid, AUTOMATIC + 1, false));
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, TH_E_PROTOCOL);
}

Test(agent_no_follower, plan__nothing_is_overwritten)
{
	planned();
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, TH_E_PROTOCOL);
	rig_event(&rig, rig_outcome(sid, AUTOMATIC, TH_E_PROTOCOL, TH_NO_VERSION));
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 1);
}

/* ---- the worker's own calls ------------------------------------------------------------------ */

Test(agent_follower, own_call_before_go__the_other_is_cancelled_and_it_begins)
{
	planned();
	submit(3, CTL_OP_UPDATE, TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_CANCEL)->u.cancel.op_seq, AUTOMATIC);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	ended(TH_E_CANCELLED, TH_NO_VERSION);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 2);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(code_of(3), 0);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
}

Test(agent_follower, own_call_and_go_cross__it_waits_for_the_end)
{
	planned();
	submit(3, CTL_OP_LIST, TH_FOREVER);
	rig_event(&rig, rig_go(sid, AUTOMATIC, 40));
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	followed(5);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 2);
	cr_assert_eq(line()->held.version, 5);
}

Test(agent_follower, own_call_after_go__waits_and_nothing_is_cancelled)
{
	went();
	submit(3, CTL_OP_UNPUBLISH, TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL) + rig_requests(&rig, CTL_OP), 0);
	followed(5);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_UNPUBLISH);
}

Test(agent_follower, own_call_waits_past_its_deadline__timeout_and_nothing_was_begun)
{
	went();
	submit(3, CTL_OP_LIST, SEC);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(code_of(3), TH_E_TIMEOUT);
	followed(5);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_follower, second_call_while_one_waits__is_refused)
{
	went();
	submit(3, CTL_OP_LIST, TH_FOREVER);
	submit(4, CTL_OP_LIST, TH_FOREVER);
	cr_assert_eq(code_of(4), TH_E_STATE);
}

Test(agent_follower, plan_has_crossed_a_call__it_is_taken_back)
{
	rig.held = 1u << CTL_OP;
	submit(3, CTL_OP_UPDATE, TH_FOREVER);
	planned();
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 0);
	ended(TH_E_CANCELLED, TH_NO_VERSION);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(code_of(3), 0);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 0);
}

Test(agent_follower, plan_finds_a_call_at_its_end__begins_after_it)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 2, 50);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_VERSION_LOST, TH_NO_VERSION));
	rig_clear(&rig);
	rig_event(&rig, rig_plan(sid, AUTOMATIC, false));
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 0, "its leg has not stopped");
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.op_seq, AUTOMATIC);
}

Test(agent_follower, closed_before_go__it_is_cancelled)
{
	went();
	followed(5);
	rig_clear(&rig);
	rig_event(&rig, rig_plan(sid, AUTOMATIC + 1, true));
	worker_closes(1, false, TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_CANCEL)->u.cancel.op_seq, AUTOMATIC + 1);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
}

/* ---- without a server, and the next one ------------------------------------------------------ */

static void
marked(uint64_t version)
{
	struct ctl_event event = {.kind = CTL_EV_GO_MARK, .u.go_mark = {"", {0, version}}};

	strcpy(event.u.go_mark.model, "m");
	rig_event(&rig, event);
}

static const struct ctl_rejoin *
said(void)
{
	return &rig_request(&rig, CTL_REJOIN)->u.rejoin;
}

Test(agent_follower, next_server__is_told_the_mark_and_what_it_follows)
{
	marked(8);
	marked(7);
	went();
	followed(5);
	rig_lost(&rig);
	cr_assert_str_eq(said()->follows, "latest");
	cr_assert_eq(said()->go.version, 8);
	cr_assert_eq(said()->next_op_seq, 2);
	cr_assert_eq(said()->held.version, 5);
	cr_assert_eq(said()->gen, AUTOMATIC);
	cr_assert_eq(said()->automatic.op_seq, AUTOMATIC);
	cr_assert_eq(said()->automatic_waits, 0);
	cr_assert_eq(said()->num_outcomes, 1);
}

Test(agent_follower, next_server__had_no_go_and_others_had__goes_on)
{
	planned();
	rig_clear(&rig);
	rig_lost(&rig);
	cr_assert_eq(said()->automatic_waits, AUTOMATIC);
	cr_assert_eq(said()->next_op_seq, 2);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0, "nobody has called it");
	rig_clear(&rig);
	went();
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.op_seq, AUTOMATIC);
	followed(5);
	submit(3, CTL_OP_LIST, TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 2);
}

Test(agent_follower, next_server__it_has_come_to_nothing__what_waits_begins)
{
	planned();
	submit(3, CTL_OP_LIST, TH_FOREVER);
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	ended(TH_E_CANCELLED, TH_NO_VERSION);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 2);
}

Test(agent_follower, next_server__it_runs__runs_on)
{
	went();
	uint64_t leg = rig_last(&rig, AGENT_PULL)->u.leg.leg;
	rig_lost(&rig);
	cr_assert(said()->went);
	cr_assert_eq(said()->op_seq, AUTOMATIC);
	cr_assert_eq(said()->kind, CTL_OP_UPDATE);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	ended(0, 5);
	cr_assert_eq(line()->held.version, 5);
}

Test(agent_follower, update_waits_and_the_server_goes__no_server)
{
	went();
	submit(3, CTL_OP_UPDATE, TH_FOREVER);
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(code_of(3), TH_E_NO_SERVER);
}

Test(agent_follower, unpublish_waits_and_the_server_goes__it_does_not_end_alone)
{
	went();
	followed(5);
	rig_event(&rig, rig_plan(sid, AUTOMATIC + 1, true));
	submit(3, CTL_OP_UNPUBLISH, 10 * SEC);
	rig.mute = true;
	rig_sleep(&rig, 9 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0, "others may have begun to overwrite");
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(code_of(3), TH_E_NO_SERVER);
}
