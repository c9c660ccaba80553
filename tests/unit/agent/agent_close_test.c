/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of sessions in the agent core: close, loss of the worker, a broken contract, with and
 * without a server, in every state.
 */
#include "tests/unit/agent/agent_fixture.h"

TestSuite(agent_close, .init = setup_ready, .fini = teardown);

Test(agent_close, close__holding__hidden_by_the_server_then_closed)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.died);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	cr_assert_lt(rig_at(&rig, AGENT_PART_END), rig_at(&rig, AGENT_CLOSED));
	cr_assert_lt(rig_at(&rig, AGENT_CLOSED), rig_at(&rig, AGENT_FREE));
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
}

Test(agent_close, close__nothing_held__closed_when_the_server_has_let_it_go)
{
	rig.held = 1u << CTL_CLOSE;
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_answer(&rig, CTL_CLOSE);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
}

Test(agent_close, close__no_drain_comes__own_proof_after_a_while)
{
	rig_hold(&rig, 1, sid, "3");
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_sleep(&rig, 3 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
}

Test(agent_close, close__no_server__own_proof_and_the_server_is_told_later)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50), b = rig_reader(&rig, sid, gen, 51);
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	rig_out(&rig, AGENT_EV_OUT_STALLED, b);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 1);
	rig_out(&rig, AGENT_EV_OUT_ENDED, b);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	rig.mute = false;
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	/* Nothing is left that the server could have copied. */
	const struct ctl_close *close = &rig_request(&rig, CTL_CLOSE)->u.close;
	cr_assert(close->abandon && close->unreadable && !close->died);
	rig_event(&rig, rig_drain(sid, gen, 9));
	cr_assert_eq(rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done.drain_no, 9);
}

/* Whoever was not to be asked: what is gone cannot be copied from there by the next server. */
Test(agent_close, abandon__no_server__it_hears_later_that_nothing_is_left)
{
	struct agent_event close = {.kind = AGENT_EV_CLOSE, .session = 1};
	gen = rig_hold(&rig, 1, sid, "3");
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	close.u.close.abandon = true;
	rig_step(&rig, &close);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	rig.mute = false;
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.unreadable);
}

Test(agent_close, lost__no_server_for_long__it_hears_later_that_nothing_is_left)
{
	gen = rig_hold(&rig, 1, sid, "3");
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	rig_session(&rig, 1, AGENT_EV_LOST);
	rig_sleep(&rig, 700 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	rig.mute = false;
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	const struct ctl_close *close = &rig_request(&rig, CTL_CLOSE)->u.close;
	cr_assert(close->died && close->unreadable);
}

Test(agent_close, close__unanswered_and_opened_again__close_goes_first)
{
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	struct agent_event open = {.kind = AGENT_EV_OPEN, .session = 27};
	strcpy(open.u.open.model, "m");
	strcpy(open.u.open.replica, "b"); /* as session 1 */
	open.u.open.num_shards = 1;
	rig_step(&rig, &open);
	cr_assert_eq(rig_requests(&rig, CTL_OPEN), 0);
	rig.mute = false;
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_OPENED), 1);
}

Test(agent_close, close__server_restarts_meanwhile__closed)
{
	rig_hold(&rig, 1, sid, "3");
	rig.held = 1u << CTL_CLOSE;
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	rig.unknown = rig.fresh = true;
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

Test(agent_close, close__operation_open__cancelled_and_its_leg_stopped)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(code_of(61), TH_E_CANCELLED);
	cr_assert_eq(rig_last(&rig, AGENT_STOP)->u.leg.leg, leg);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 7);
}

Test(agent_close, close__another_leg_was_to_follow__both_are_ended)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_event(&rig, rig_reroute(sid, 1, 7, 8));
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 8);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 7);
	cr_assert_eq(rig_requests(&rig, CTL_LEG_END), 2);
}

Test(agent_close, close__go_crosses_it__leg_is_ended_unbegun)
{
	rig_submit(&rig, 1, 61, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 1, false));
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	rig_event(&rig, rig_go(sid, 1, 7));
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 7);
	cr_assert_not(rig_request(&rig, CTL_LEG_END)->u.leg_end.overwrote);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
}

Test(agent_close, close__partial_part_has_readers__fenced_they_cannot_finish)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	uint64_t out = rig_reader(&rig, sid, 1, 50);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, out);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
}

Test(agent_close, close__operation_on_its_way__cancelled_first)
{
	rig_publish(&rig, 1, sid, "1");
	rig.held = 1u << CTL_OP;
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_step(&rig, &(struct agent_event){.kind = AGENT_EV_CANCEL, .session = 1});
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
	rig_answer(&rig, CTL_OP);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1, "after the OP that was on its way");
}

Test(agent_close, lost__holding__running_legs_finish_then_free)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	rig_session(&rig, 1, AGENT_EV_LOST);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.died);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.unreadable);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 0);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
}

Test(agent_close, lost__digests_incomplete__part_is_dropped)
{
	gen = rig_publish(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	rig_session(&rig, 1, AGENT_EV_LOST);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.unreadable);
	cr_assert_eq(rig_count(&rig, AGENT_HASH_STOP), 1);
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, a);
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_hashed(&rig, AGENT_EV_HASH_STOPPED, 1, gen);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

Test(agent_close, lost__its_memory_went_with_it__readers_are_fenced_and_the_server_is_told)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	struct agent_event lost = {.kind = AGENT_EV_LOST, .session = 1};
	lost.u.lost.memory_gone = true;
	rig_step(&rig, &lost);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.unreadable);
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, a);
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

Test(agent_close, lost__digests_incomplete_and_closing__server_is_told_that_nobody_reads_it)
{
	(void)rig_publish(&rig, 1, sid, "3");
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.unreadable);
	rig_clear(&rig);
	rig_session(&rig, 1, AGENT_EV_LOST);
	const struct ctl_close *close = &rig_request(&rig, CTL_CLOSE)->u.close;
	cr_assert(close->died && close->unreadable);
}

Test(agent_close, lost__its_memory_went_after_an_abandoning_close__server_is_told)
{
	struct agent_event close = {.kind = AGENT_EV_CLOSE, .session = 1};
	struct agent_event lost = {.kind = AGENT_EV_LOST, .session = 1};
	close.u.close.abandon = lost.u.lost.memory_gone = true;
	for (int answered = 0; answered <= 1; answered++) {
		teardown();
		setup_ready();
		(void)rig_hold(&rig, 1, sid, "3");
		rig.held = answered ? 0 : 1u << CTL_CLOSE;
		rig_step(&rig, &close);
		cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.unreadable);
		rig_clear(&rig);
		rig_step(&rig, &lost);
		if (!answered)
			rig_answer(&rig, CTL_CLOSE);
		cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.unreadable);
	}
}

Test(agent_close, lost__while_opening__server_is_told_when_it_has_answered)
{
	rig.held = 1u << CTL_OPEN;
	struct agent_event open = {.kind = AGENT_EV_OPEN, .session = 9};
	strcpy(open.u.open.model, "m");
	strcpy(open.u.open.replica, "r");
	open.u.open.num_shards = 1;
	rig_step(&rig, &open);
	rig_session(&rig, 9, AGENT_EV_LOST);
	rig_session(&rig, 9, AGENT_EV_LOST);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	rig_answer(&rig, CTL_OPEN);
	cr_assert_eq(rig_count(&rig, AGENT_OPENED), 0);
	cr_assert_eq(rig_request(&rig, CTL_CLOSE)->u.close.sid, rig.last_sid);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.died);
}

Test(agent_close, lost__during_close__no_answer_but_free)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	rig_session(&rig, 1, AGENT_EV_LOST);
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
}

/* Brings session 1 into the state with this number; false when there is none. */
static bool
bring(int state)
{
	switch (state) {
	case 0:
		return true;
	case 1:
		rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
		return true;
	case 2:
		rig_publish(&rig, 1, sid, "1");
		return true;
	case 3:
		rig_publish(&rig, 1, sid, "1");
		rig_hashed(&rig, AGENT_EV_HASHED, 1, 1);
		rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
		rig_event(&rig, rig_drain(sid, 1, 1));
		return true;
	case 4:
		rig_publish(&rig, 1, sid, "1");
		rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
		rig_event(&rig, rig_plan(sid, 2, true));
		return true;
	case 5:
		rig_filling(&rig, 1, sid, 1, 7);
		return true;
	case 6:
		rig_filling(&rig, 1, sid, 1, 7);
		rig_event(&rig, rig_reroute(sid, 1, 7, 8));
		return true;
	case 7:
		rig_filling(&rig, 1, sid, 1, 7);
		rig_event(&rig, (struct ctl_event){.kind = CTL_EV_CANCEL, .u.cancel = {sid, 1}});
		return true;
	case 8:
		rig_leg(&rig, AGENT_EV_LEG_DONE, rig_filling(&rig, 1, sid, 1, 7), 0);
		return true;
	case 9:
		rig_publish(&rig, 1, sid, "1");
		rig_event(&rig,
			(struct ctl_event){.kind = CTL_EV_BROKEN, .u.broken = {sid, "broken"}});
		return true;
	default:
		return false;
	}
}

/* A shell that does what it was told, and a server that says what it must. */
static void
obey(void)
{
	for (uint32_t i = 0; i < rig.num_actions; i++) {
		struct agent_action action = rig.actions[i];
		if (action.kind == AGENT_HASH_STOP)
			rig_hashed(&rig, AGENT_EV_HASH_STOPPED, action.session, action.u.part.gen);
		else if (action.kind == AGENT_STOP)
			rig_leg(&rig, AGENT_EV_LEG_STOPPED, action.u.leg.leg, 0);
		else if (action.kind == AGENT_FENCE)
			rig_out(&rig, AGENT_EV_OUT_ENDED, action.u.leg.leg);
	}
}

static uint32_t
answers(uint32_t slot)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < rig.num_actions; i++)
		count += rig.actions[i].kind == AGENT_COMPLETE &&
			 rig.actions[i].u.complete.slot == slot;
	return count;
}

static void
end_in_every_state(enum agent_event_kind end, bool server)
{
	for (int state = 0;; state++) {
		teardown();
		setup_ready();
		if (!bring(state))
			break;
		uint32_t submitted = state == 1 || state == 3 || state == 4 || state >= 5;
		uint32_t slot = state >= 5 && state <= 8 ? 61 : 0;
		if (state == 9)
			submitted = 0;
		rig.mute = !server;
		if (!server)
			rig_sleep(&rig, 4 * SEC);
		rig_session(&rig, 1, end);
		rig_session(&rig, 1, end);
		obey();
		rig_sleep(&rig, 4 * SEC);
		obey();
		cr_assert_eq(rig_count(&rig, AGENT_FREE), 1, "state %d", state);
		cr_assert_eq(
			rig_count(&rig, AGENT_CLOSED), end == AGENT_EV_CLOSE, "state %d", state);
		cr_assert_eq(answers(slot), submitted, "state %d", state);
		cr_assert_eq(rig_count(&rig, AGENT_PART_NEW) > 0,
			rig_count(&rig, AGENT_PART_END) > 0, "state %d", state);
	}
}

Test(agent_close, lost__in_every_state__answers_once_and_frees)
{
	end_in_every_state(AGENT_EV_LOST, true);
}

Test(agent_close, lost__in_every_state_without_server__answers_once_and_frees)
{
	end_in_every_state(AGENT_EV_LOST, false);
}

Test(agent_close, close__in_every_state__answers_once_and_frees)
{
	end_in_every_state(AGENT_EV_CLOSE, true);
}

Test(agent_close, close__in_every_state_without_server__answers_once_and_frees)
{
	end_in_every_state(AGENT_EV_CLOSE, false);
}

static void
breach(uint64_t part_gen)
{
	struct agent_event breach = {.kind = AGENT_EV_CONTRACT, .session = 1};
	breach.u.contract.gen = part_gen;
	strcpy(breach.u.contract.text, "tensor w was changed");
	rig_step(&rig, &breach);
}

Test(agent_close, contract__readers_are_fenced_and_every_call_says_why)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	breach(gen);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 1);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.broke_contract);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.died);
	cr_assert_not(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.contract, 1);
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0, "its worker has not closed");
	rig_submit(&rig, 1, 5, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(code_of(5), TH_E_CONTRACT);
	cr_assert_str_eq(rig_complete(&rig, 1, 5)->u.complete.text, "tensor w was changed");
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
}

Test(agent_close, contract__of_another_generation__nobody_is_accused)
{
	gen = rig_hold(&rig, 1, sid, "3");
	breach(gen + 1);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
	rig_submit(&rig, 1, 5, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_event(&rig, rig_outcome(sid, gen + 1, 0, TH_NO_VERSION));
	cr_assert_eq(code_of(5), 0);
	breach(gen);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.contract, 0);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
}

static void
contract_in_every_state(bool server, enum agent_event_kind end)
{
	for (int state = 0;; state++) {
		teardown();
		setup_ready();
		if (!bring(state))
			break;
		/* 0, 1: there is nothing that could have been changed. */
		bool breaks = state >= 2;
		uint32_t slot = state >= 5 && state <= 8 ? 61 : 0;
		rig.mute = !server;
		if (!server)
			rig_sleep(&rig, 4 * SEC);
		breach(1);
		obey();
		rig_sleep(&rig, 4 * SEC);
		obey();
		if (breaks)
			cr_assert(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate, "state %d",
				state);
		cr_assert_eq(rig_count(&rig, AGENT_FREE), 0, "state %d", state);
		rig_session(&rig, 1, end);
		obey();
		rig_sleep(&rig, 4 * SEC);
		cr_assert_eq(rig_count(&rig, AGENT_FREE), 1, "state %d", state);
		cr_assert_leq(answers(slot), 1, "state %d", state);
	}
}

Test(agent_close, contract__in_every_state__answers_once_and_frees)
{
	contract_in_every_state(true, AGENT_EV_CLOSE);
	contract_in_every_state(true, AGENT_EV_LOST);
	contract_in_every_state(false, AGENT_EV_CLOSE);
	contract_in_every_state(false, AGENT_EV_LOST);
}

Test(agent_close, server__restarts_in_every_state__every_operation_answers_once)
{
	rig_reset_at_loss();
	teardown();
	setup_ready();
	for (int state = 0;; state++) {
		teardown();
		setup_ready();
		if (!bring(state))
			break;
		uint32_t slot = state >= 5 && state <= 8 ? 61 : 0;
		rig.unknown = rig.fresh = true;
		rig.server_inc = 2;
		rig_sleep(&rig, 2 * SEC);
		obey();
		rig_sleep(&rig, 2 * SEC);
		cr_assert(agent_core_attached(rig.agent));
		cr_assert_eq(
			answers(slot), state != 0 && state != 2 && state != 9, "state %d", state);
		cr_assert(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate, "state %d", state);
		cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.broken, 1, "state %d", state);
		rig_session(&rig, 1, AGENT_EV_CLOSE);
		cr_assert_eq(rig_count(&rig, AGENT_FREE), 1, "state %d", state);
	}
}
