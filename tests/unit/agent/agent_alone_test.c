/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpublish while there is no server: a group of one ends it by its own proof, the server is told
 * before anything else when it is back; several members cannot.
 */
#include "tests/unit/agent/agent_fixture.h"

TestSuite(agent_alone, .init = setup_holding, .fini = teardown);

static void
held_nothing(void)
{
	const struct agent_line *line = &rig_last(&rig, AGENT_LINE)->u.line;

	cr_assert_eq(line->held.version, TH_NO_VERSION);
	cr_assert(line->safe_to_mutate);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	cr_assert_gt(rig_at(&rig, AGENT_COMPLETE), rig_at(&rig, AGENT_LINE));
	cr_assert_gt(rig_at(&rig, AGENT_COMPLETE), rig_at(&rig, AGENT_PART_END));
}

/* Unpublished in slot 0 without a server, and the server has not heard of it. */
static void
unpublished(void)
{
	rig_hang_up(&rig);
	submit(0, CTL_OP_UNPUBLISH, SEC);
	cr_assert_eq(code_of(0), 0);
	held_nothing();
	rig_clear(&rig);
}

/* ---- the worker -------------------------------------------------------------------------------*/

Test(agent_alone, unpublish__no_server_and_nobody_reads__done_also_when_it_looks_once)
{
	rig_hang_up(&rig);
	submit(0, CTL_OP_UNPUBLISH, 0);
	cr_assert_eq(code_of(0), 0);
	cr_assert_eq(rig_complete(&rig, 1, 0)->u.complete.result.version.version, TH_NO_VERSION);
	held_nothing();
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_alone, unpublish__a_reader__done_when_it_has_ended)
{
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig_hang_up(&rig);
	submit(0, CTL_OP_UNPUBLISH, 20 * SEC);
	rig_sleep(&rig, 10 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(code_of(0), 0);
	held_nothing();
}

Test(agent_alone, unpublish__a_stalled_reader__fenced)
{
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig_hang_up(&rig);
	submit(0, CTL_OP_UNPUBLISH, 20 * SEC);
	rig_out(&rig, AGENT_EV_OUT_STALLED, out);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 1);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(code_of(0), 0);
}

Test(agent_alone, unpublish__a_reader_until_the_deadline__held_and_served_again)
{
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig_hang_up(&rig);
	submit(0, CTL_OP_UNPUBLISH, SEC);
	rig_sleep(&rig, SEC + 300 * MS);
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
	cr_assert_eq(rig_complete(&rig, 1, 0)->u.complete.result.version.version, 3);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0, "nothing of it is left");
	rig_reader(&rig, sid, gen, 51);
}

Test(agent_alone, unpublish__cancelled_before_it_was_sent__served_again)
{
	rig_reader(&rig, sid, gen, 50);
	rig_hang_up(&rig);
	submit(0, CTL_OP_UNPUBLISH, TH_FOREVER);
	rig_step(&rig, &(struct agent_event){.kind = AGENT_EV_CANCEL, .session = 1});
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
	rig_back(&rig);
	rig_reader(&rig, sid, gen, 51);
}

Test(agent_alone, unpublish__sent_and_then_silence__done_when_it_is_noticed)
{
	rig.mute = true;
	submit(0, CTL_OP_UNPUBLISH, 10 * SEC);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(code_of(0), 0);
	held_nothing();
}

Test(agent_alone, unpublish__of_several_members__no_server_at_its_deadline)
{
	rig.num_shards = 2;
	uint64_t other = rig_ready(&rig, 2);
	rig_publish(&rig, 2, other, "5");
	rig_clear(&rig);
	rig_hang_up(&rig);
	rig_submit(&rig, 2, 0, CTL_OP_UNPUBLISH, "", SEC);
	rig_sleep(&rig, SEC - MS);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_sleep(&rig, MS);
	cr_assert_eq(rig_complete(&rig, 2, 0)->u.complete.code, TH_E_NO_SERVER);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
}

/* Another member has called: with our proof given it may have been told that it succeeded. */
Test(agent_alone, unpublish__of_several_members_and_drained_already__waits_for_the_outcome)
{
	rig.num_shards = 2;
	uint64_t other = rig_ready(&rig, 2);
	uint64_t its_gen = rig_publish(&rig, 2, other, "5");
	rig_hashed(&rig, AGENT_EV_HASHED, 2, its_gen);
	rig_event(&rig, rig_drain(other, its_gen, 4));
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
	rig_clear(&rig);
	rig_hang_up(&rig);
	rig_submit(&rig, 2, 0, CTL_OP_UNPUBLISH, "", SEC);
	rig_sleep(&rig, 5 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_back(&rig);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_UNPUBLISH);
	rig_event(&rig, rig_outcome(other, 2, 0, TH_NO_VERSION));
	cr_assert_eq(rig_complete(&rig, 2, 0)->u.complete.code, 0);
}

Test(agent_alone, unpublish__behind_a_ghost__done_too)
{
	rig.mute = true;
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
	submit(1, CTL_OP_UNPUBLISH, SEC);
	cr_assert_eq(code_of(1), 0);
	held_nothing();
	rig_clear(&rig);
	rig_back(&rig);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	const struct ctl_op *op = &rig_request(&rig, CTL_OP)->u.op;
	cr_assert_eq(op->kind, CTL_OP_UNPUBLISH);
	cr_assert_eq(op->op_seq, 3);
	cr_assert_eq(op->timeout_ns, TH_FOREVER);
	rig_event(&rig, rig_outcome(sid, 3, 0, TH_NO_VERSION));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
}

Test(agent_alone, unpublish__behind_a_ghost_and_a_reader_until_the_deadline__held)
{
	rig_reader(&rig, sid, gen, 50);
	rig.mute = true;
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_sleep(&rig, 4 * SEC);
	submit(1, CTL_OP_UNPUBLISH, SEC);
	rig_sleep(&rig, SEC + 300 * MS);
	cr_assert_eq(code_of(1), TH_E_NO_SERVER);
	rig_back(&rig);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	rig_reader(&rig, sid, gen, 51);
}

/* ---- the server -------------------------------------------------------------------------------*/

Test(agent_alone, back__told_first_and_in_silence__then_the_next_operation)
{
	unpublished();
	submit(1, CTL_OP_PUBLISH, 60 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_UNPUBLISH);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.timeout_ns, TH_FOREVER);
	rig_event(&rig, rig_drain(sid, gen, 7));
	cr_assert_eq(rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done.drain_no, 7);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(rig_requests(&rig, CTL_OP), 2);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_PUBLISH);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_event(&rig, rig_outcome(sid, 3, 0, 9));
	cr_assert_eq(code_of(1), 0);
}

/* It had the OP before it went away, and ended it at the deadline that was in it. */
Test(agent_alone, restored_by_the_server__told_again_without_a_deadline)
{
	rig.mute = true;
	submit(0, CTL_OP_UNPUBLISH, 10 * SEC);
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(code_of(0), 0);
	rig_clear(&rig);
	rig_back(&rig);
	rig_event(&rig, rig_undrain(sid, gen));
	rig_event(&rig, rig_outcome(sid, 2, TH_E_TIMEOUT, 3));
	const struct ctl_op *op = &rig_request(&rig, CTL_OP)->u.op;
	cr_assert_eq(op->kind, CTL_OP_UNPUBLISH);
	cr_assert_eq(op->op_seq, 3);
	cr_assert_eq(op->timeout_ns, TH_FOREVER);
	rig_event(&rig, rig_outcome(sid, 3, 0, TH_NO_VERSION));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	submit(1, CTL_OP_PUBLISH, SEC);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 4);
}

Test(agent_alone, refused_by_the_server__broken_and_not_asked_for_ever)
{
	unpublished();
	rig.refused[CTL_OP] = TH_E_STATE;
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1);
	submit(1, CTL_OP_PUBLISH, SEC);
	cr_assert_eq(code_of(1), TH_E_GROUP_BROKEN);
	cr_assert(strstr(rig_complete(&rig, 1, 1)->u.complete.text, "unpublished"));
}

Test(agent_alone, reader_sent_here_meanwhile__refused_at_once)
{
	unpublished();
	rig_back(&rig);
	rig_event(&rig, rig_grant(sid, gen, 50));
	cr_assert_eq(rig_count(&rig, AGENT_EXPECT), 0);
	cr_assert_eq(rig_count(&rig, AGENT_REFUSE), 1);
}

Test(agent_alone, server_restarts__broken_and_nothing_is_told)
{
	rig_reset_at_loss();
	teardown();
	setup_holding();
	unpublished();
	rig.unknown = rig.fresh = true;
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	submit(1, CTL_OP_PUBLISH, SEC);
	cr_assert_eq(code_of(1), TH_E_GROUP_BROKEN);
}

Test(agent_alone, server_restarts_while_a_reader_is_waited_for__broken)
{
	rig_reset_at_loss();
	teardown();
	setup_holding();
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig_hang_up(&rig);
	submit(0, CTL_OP_UNPUBLISH, 60 * SEC);
	rig.unknown = rig.fresh = true;
	rig_back(&rig);
	cr_assert_eq(code_of(0), TH_E_GROUP_BROKEN);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
}

/* ---- what a rule of this host names ---------------------------------------------------------- */

/* Session 2 holds the version, and is the one that claims it. */
static uint64_t
retains(const char *rules, const char *version)
{
	rig.retain = rules;
	uint64_t other = rig_ready(&rig, 2);
	rig_hold(&rig, 2, other, version);
	return other;
}

Test(agent_alone, retained__stays_until_the_deadline)
{
	retains("latest", "4");
	rig_hang_up(&rig);
	rig_submit(&rig, 2, 0, CTL_OP_UNPUBLISH, "", 5 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_sleep(&rig, 6 * SEC);
	const struct agent_action *end = rig_complete(&rig, 2, 0);
	cr_assert_eq(end->u.complete.code, TH_E_NO_SERVER);
	cr_assert(strstr(end->u.complete.text, "THC_FORCE"), "%s", end->u.complete.text);
	cr_assert_eq(end->u.complete.result.version.version, 4);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
	/* What no rule names goes as before. */
	submit(0, CTL_OP_UNPUBLISH, SEC);
	cr_assert_eq(code_of(0), 0);
}

Test(agent_alone, retained__force__given_up)
{
	struct agent_event event = {.kind = AGENT_EV_SUBMIT, .session = 2};
	retains("latest", "4");
	rig_hang_up(&rig);
	event.u.submit.kind = CTL_OP_UNPUBLISH;
	event.u.submit.timeout_ns = SEC;
	event.u.submit.flags = 1;
	rig_step(&rig, &event);
	cr_assert_eq(rig_complete(&rig, 2, 0)->u.complete.code, 0);
}

Test(agent_alone, retained__server_comes_in_time__asked)
{
	retains("latest-1,4", "4");
	rig_hang_up(&rig);
	rig_submit(&rig, 2, 0, CTL_OP_UNPUBLISH, "", 30 * SEC);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_back(&rig);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_UNPUBLISH);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.flags, 0);
}

Test(agent_alone, retained__another_copy_is_here__given_up)
{
	retains("3", "3");
	rig_hang_up(&rig);
	submit(0, CTL_OP_UNPUBLISH, SEC);
	cr_assert_eq(code_of(0), 0);
	/* Now the other is the last. */
	rig_submit(&rig, 2, 0, CTL_OP_UNPUBLISH, "", SEC);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_complete(&rig, 2, 0)->u.complete.code, TH_E_NO_SERVER);
}

Test(agent_alone, retained__a_worker_dies__its_part_is_kept_for_the_server)
{
	uint64_t other = retains("latest", "4");
	rig_hang_up(&rig);
	rig_session(&rig, 2, AGENT_EV_LOST);
	rig_session(&rig, 1, AGENT_EV_LOST);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 1, "what no rule names is let go");
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	rig_sleep(&rig, SEC);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	rig_clear(&rig);
	rig.unknown = rig.fresh = true;
	rig.held = 1u << CTL_CLOSE;
	rig_back(&rig);
	const struct ctl_rejoin *said = &rig_request(&rig, CTL_REJOIN)->u.rejoin;
	cr_assert_eq(said->sid, other);
	cr_assert_eq(said->held.version, 4);
	cr_assert_not(said->gone);
	cr_assert_eq(rig_request(&rig, CTL_CLOSE)->u.close.sid, other);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.died);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0, "the server copies it, and says DRAIN");
	rig_event(&rig, rig_drain(other, 1, 9));
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 2);
}

Test(agent_alone, retained__a_worker_dies_and_no_server_comes__let_go_in_the_end)
{
	retains("latest", "4");
	rig_hang_up(&rig);
	rig_session(&rig, 2, AGENT_EV_LOST);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
}

/* ---- closing what a rule of this host names -------------------------------------------------- */

/* Session 2 claims the version that session 1 holds; 2 itself holds nothing. */
static void
claimed(void)
{
	rig.retain = "latest";
	rig_ready(&rig, 2);
	rig_clear(&rig);
}

static void
refused_to_close(uint64_t session)
{
	const struct agent_action *last = rig_last(&rig, AGENT_CLOSED);

	cr_assert_eq(last->session, session);
	cr_assert_eq(last->u.answer.code, TH_E_NO_SERVER);
	cr_assert(strstr(last->u.answer.text, "THC_CLOSE_ABANDON"), "%s", last->u.answer.text);
	cr_assert_eq(rig_count(&rig, AGENT_FREE) + rig_count(&rig, AGENT_PART_END), 0);
}

static void
close_answered(void)
{
	rig.held = 0;
	rig_answer(&rig, CTL_CLOSE);
}

Test(agent_alone, close__retained_and_no_server__refused_at_its_deadline_and_open_as_before)
{
	claimed();
	rig_hang_up(&rig);
	worker_closes(1, false, 2 * SEC);
	rig_sleep(&rig, 2 * SEC - MS);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_sleep(&rig, MS);
	refused_to_close(1);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0, "nothing of it is left");
	rig_out(&rig, AGENT_EV_OUT_ENDED, rig_reader(&rig, sid, gen, 60));
	/* Closed again, of this server. */
	worker_closes(1, false, 2 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

Test(agent_alone, close__retained_and_it_looks_once__refused_at_once)
{
	claimed();
	rig_hang_up(&rig);
	worker_closes(1, false, 0);
	refused_to_close(1);
	worker_closes(1, true, 0);
	cr_assert_eq(closed(), 0, "abandoned: given up");
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

Test(agent_alone, close__retained_and_for_ever__refused_in_the_end)
{
	claimed();
	rig_hang_up(&rig);
	worker_closes(1, false, TH_FOREVER);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_sleep(&rig, 2 * SEC);
	refused_to_close(1);
}

Test(agent_alone, close__retained_and_the_server_comes_in_time__told_what_time_is_left)
{
	claimed();
	rig_hang_up(&rig);
	rig.held = 1u << CTL_CLOSE;
	worker_closes(1, false, 60 * SEC);
	rig_sleep(&rig, SEC);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	const struct ctl_close *close = &rig_request(&rig, CTL_CLOSE)->u.close;
	cr_assert_not(close->abandon || close->died);
	cr_assert_leq(close->timeout_ns, 59 * SEC);
	cr_assert_geq(close->timeout_ns, 55 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	close_answered();
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(closed(), 0);
}

Test(agent_alone, close__retained_and_another_server_comes_in_time__told_what_it_holds)
{
	claimed();
	rig_hang_up(&rig);
	rig.held = 1u << CTL_CLOSE;
	worker_closes(1, false, 60 * SEC);
	rig_clear(&rig);
	rig.unknown = rig.fresh = true;
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 2);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED) + rig_count(&rig, AGENT_PART_END), 0);
	close_answered();
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(closed(), 0);
}

/* The server may have begun with it: whether the handle is open there is not known. */
Test(agent_alone, close__sent_and_then_no_server_and_retained__refused_and_goes_on)
{
	claimed();
	rig.held = 1u << CTL_CLOSE;
	worker_closes(1, false, 2 * SEC);
	rig_hang_up(&rig);
	rig_sleep(&rig, 3 * SEC);
	refused_to_close(1);
	/* It may ask again. */
	worker_closes(1, false, SEC);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	rig_sleep(&rig, SEC);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 2);
	refused_to_close(1);
	rig_back(&rig);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
	close_answered();
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0, "its worker still has the handle");
	worker_closes(1, false, SEC);
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

Test(agent_alone, close__sent_and_refused_by_the_server_after_all__open_as_before)
{
	struct ctl_event one = {.kind = CTL_EV_CLOSE_REFUSED};

	claimed();
	rig.held = 1u << CTL_CLOSE;
	worker_closes(1, false, 2 * SEC);
	rig_hang_up(&rig);
	rig_sleep(&rig, 2 * SEC);
	refused_to_close(1);
	rig_back(&rig);
	close_answered();
	one.u.close_refused.sid = sid;
	one.u.close_refused.code = TH_E_TIMEOUT;
	rig_event(&rig, one);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1, "nobody waits for it");
	rig_out(&rig, AGENT_EV_OUT_ENDED, rig_reader(&rig, sid, gen, 60));
	rig_clear(&rig);
	worker_closes(1, false, SEC);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
}

Test(agent_alone, close__refused_and_then_the_worker_dies__kept_for_the_server)
{
	claimed();
	rig_hang_up(&rig);
	worker_closes(1, false, SEC);
	rig_sleep(&rig, 10 * SEC);
	refused_to_close(1);
	rig_session(&rig, 1, AGENT_EV_LOST);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 1);
}

Test(agent_alone, close__being_refused_the_worker_dies__kept_for_the_server)
{
	claimed();
	rig.held = 1u << CTL_CLOSE;
	worker_closes(1, false, SEC);
	rig_hang_up(&rig);
	rig_sleep(&rig, 10 * SEC);
	refused_to_close(1);
	rig_session(&rig, 1, AGENT_EV_LOST);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0, "as long as that of any dead worker");
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 1);
}

Test(agent_alone, close__its_own_rules_end_with_it__given_up)
{
	retains("latest", "4");
	rig_hang_up(&rig);
	worker_closes(2, false, 5 * SEC);
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 2);
}

/* ---- the next server ------------------------------------------------------------------------- */

/* The former server had the OP; the next one has not yet, and is not told of a deadline. */
Test(agent_alone, server_restarts_and_the_reader_ends_before_it_is_asked__told_without_a_deadline)
{
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	submit(0, CTL_OP_UNPUBLISH, 60 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1);
	rig_hang_up(&rig);
	rig_clear(&rig);
	rig.unknown = rig.fresh = true;
	rig.held = 1u << CTL_REJOIN;
	rig_back(&rig);
	cr_assert_eq(rig_request(&rig, CTL_REJOIN)->u.rejoin.held.version, 3);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(code_of(0), 0);
	held_nothing();
	rig.held = 0;
	rig_answer(&rig, CTL_REJOIN);
	const struct ctl_op *op = &rig_request(&rig, CTL_OP)->u.op;
	cr_assert_eq(op->op_seq, 2);
	cr_assert_eq(op->timeout_ns, TH_FOREVER);
	cr_assert_eq(op->flags, CTL_OP_FORCE, "no rule can keep what is the worker's again");
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 0);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 1);
}

/* ---- what comes after ------------------------------------------------------------------------ */

Test(agent_alone, unregister__waits_until_the_server_knows)
{
	unpublished();
	rig.held = 1u << CTL_OP;
	rig_back(&rig);
	rig_session(&rig, 1, AGENT_EV_UNREGISTER);
	cr_assert_eq(rig_requests(&rig, CTL_UNREGISTER), 0);
	rig.held = 0;
	rig_answer(&rig, CTL_OP);
	cr_assert_eq(rig_requests(&rig, CTL_UNREGISTER), 0);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(rig_requests(&rig, CTL_UNREGISTER), 1);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, 0);
}

Test(agent_alone, close__done_and_only_the_close_is_told)
{
	unpublished();
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
}

Test(agent_alone, close__sent_and_then_no_server__it_is_told_not_to_wait)
{
	rig.held = 1u << CTL_CLOSE;
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_hang_up(&rig);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	rig.held = 0;
	rig_back(&rig);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
	cr_assert_eq(rig_request(&rig, CTL_CLOSE)->u.close.sid, sid);
}

Test(agent_alone, close__a_reader_is_waited_for__cancelled_and_closed_after_it)
{
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig_hang_up(&rig);
	submit(0, CTL_OP_UNPUBLISH, 60 * SEC);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
}

Test(agent_alone, lost__everything_ends)
{
	unpublished();
	submit(1, CTL_OP_PUBLISH, 60 * SEC);
	rig_session(&rig, 1, AGENT_EV_LOST);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
}
