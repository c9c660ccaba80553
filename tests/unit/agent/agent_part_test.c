/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts and legs out in the agent core: tickets, serving, draining, fencing, hashing.
 */
#include "tests/unit/agent/agent_fixture.h"

TestSuite(agent_part, .init = setup_ready, .fini = teardown);

/* ---- tickets ------------------------------------------------------------------------- */

static const struct agent_action *
grant(uint64_t of, uint64_t leg)
{
	uint32_t before = rig_count(&rig, AGENT_EXPECT);
	rig_event(&rig, rig_grant(sid, of, leg));
	cr_assert_eq(rig_count(&rig, AGENT_EXPECT), before + 1);
	return rig_last(&rig, AGENT_EXPECT);
}

Test(agent_part, grant__of_what_is_held__its_ticket_is_expected_at_once)
{
	gen = rig_hold(&rig, 1, sid, "3");
	const struct agent_action *expect = grant(gen, 50);
	const struct th_ticket ticket = rig_ticket(50);
	cr_assert_eq(expect->session, 1);
	cr_assert_eq(expect->u.leg.gen, gen);
	cr_assert_eq(expect->u.leg.grant.leg, 50);
	cr_assert_arr_eq(expect->u.leg.grant.ticket.bytes, ticket.bytes, sizeof(ticket.bytes));
}

Test(agent_part, grant__of_a_far_reader__the_transport_is_told)
{
	gen = rig_hold(&rig, 1, sid, "3");
	struct ctl_event event = rig_grant(sid, gen, 50);
	cr_assert_not(grant(gen, 49)->u.leg.grant.far);
	event.u.grant.far = true;
	rig_event(&rig, event);
	cr_assert(rig_last(&rig, AGENT_EXPECT)->u.leg.grant.far);
}

Test(agent_part, grant__too_many_or_too_old__oldest_is_taken_back)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t first = grant(gen, 50)->u.leg.leg, second = grant(gen, 51)->u.leg.leg;
	grant(gen, 52);
	grant(gen, 53);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 0);
	grant(gen, 54);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 1);
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, first);
	rig_out(&rig, AGENT_EV_OUT_BEGAN, second);
	rig_sleep(&rig, 61 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 1 + 3, "each once, and not who has begun");
	rig_sleep(&rig, 61 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 1 + 3);
}

Test(agent_part, grant__of_a_part_that_is_not_there__its_reader_is_refused_at_once)
{
	gen = rig_hold(&rig, 1, sid, "3");
	const struct th_ticket ticket = rig_ticket(50);
	rig_event(&rig, rig_grant(sid, gen + 1, 50));
	const struct agent_action *refuse = rig_last(&rig, AGENT_REFUSE);
	cr_assert_eq(refuse->u.refuse.code, TH_E_NOT_AVAILABLE);
	cr_assert_arr_eq(refuse->u.refuse.ticket.bytes, ticket.bytes, sizeof(ticket.bytes));
	cr_assert_eq(rig_count(&rig, AGENT_EXPECT), 0);
}

/* The same memory, published again: tickets of what it held before read nothing of it. */
Test(agent_part, ticket__of_an_older_generation__over_before_the_memory_is_published_again)
{
	uint64_t old = rig_hold(&rig, 1, sid, "3");
	uint64_t leg = grant(old, 50)->u.leg.leg;
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig_event(&rig, rig_drain(sid, old, 4));
	rig_sleep(&rig, 2 * SEC); /* its reader never came */
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, leg);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0, "somebody may just have come");
	rig_out(&rig, AGENT_EV_OUT_ENDED, leg);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(code_of(0), 0);
	uint64_t now = rig_publish(&rig, 1, sid, "4");
	rig_hashed(&rig, AGENT_EV_HASHED, 1, now);
	cr_assert_neq(now, old);
	rig_clear(&rig);
	rig_event(&rig, rig_grant(sid, old, 51));
	cr_assert_eq(rig_last(&rig, AGENT_REFUSE)->u.refuse.code, TH_E_NOT_AVAILABLE);
	cr_assert(strstr(rig_last(&rig, AGENT_REFUSE)->u.refuse.text, "given up"));
	cr_assert_eq(rig_count(&rig, AGENT_EXPECT), 0);
	rig_reader(&rig, sid, now, 52);
}

Test(agent_part, part__being_filled__serves_from_go_on)
{
	rig_filling(&rig, 1, sid, 1, 7);
	rig_reader(&rig, sid, 1, 50);
}

/* ---- draining ------------------------------------------------------------------------ */

Test(agent_part, drain__unknown_part__answered_at_once)
{
	rig_event(&rig, rig_drain(sid, 9, 4));
	rig_event(&rig, rig_drain(4711, 9, 5));
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 2);
	cr_assert_eq(rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done.drain_no, 5);
	cr_assert_eq(rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done.sid, 4711);
}

Test(agent_part, drain__legs_run__done_after_the_last_with_its_numbers)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50), b = rig_reader(&rig, sid, gen, 51);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 0, "they progress");
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, b);
	rig_out(&rig, AGENT_EV_OUT_ENDED, b);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
	const struct ctl_drain_done *done = &rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done;
	cr_assert(done->sid == sid && done->gen == gen && done->drain_no == 4);
}

Test(agent_part, drain__leg_stalled_before_or_after__fenced)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50), b = rig_reader(&rig, sid, gen, 51);
	rig_out(&rig, AGENT_EV_OUT_STALLED, a);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 0);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, a);
	rig_out(&rig, AGENT_EV_OUT_STALLED, b);
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, b);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 2);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0, "a fence is proven by OUT_ENDED");
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	rig_out(&rig, AGENT_EV_OUT_ENDED, b);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

Test(agent_part, drain__leg_stalled_and_resumed__goes_on)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	rig_out(&rig, AGENT_EV_OUT_STALLED, a);
	rig_out(&rig, AGENT_EV_OUT_RESUMED, a);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 0);
}

Test(agent_part, drain__granted_and_on_its_way__served)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t leg = grant(gen, 50)->u.leg.leg;
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0, "its reader has given up the old one");
	rig_out(&rig, AGENT_EV_OUT_BEGAN, leg);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 0, "it has come in time");
	rig_out(&rig, AGENT_EV_OUT_ENDED, leg);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

Test(agent_part, drain__granted_and_nobody_comes__void_after_a_stall)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t leg = grant(gen, 50)->u.leg.leg;
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_sleep(&rig, SEC);
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, leg);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0, "the door has not said so yet");
	rig_out(&rig, AGENT_EV_OUT_ENDED, leg);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

/* FENCE and the reader cross: the leg is one that reads until its end is proven. */
Test(agent_part, drain__reader_comes_while_its_grant_is_taken_back__joined_first)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t leg = grant(gen, 50)->u.leg.leg;
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_sleep(&rig, SEC);
	rig_out(&rig, AGENT_EV_OUT_BEGAN, leg);
	rig_out(&rig, AGENT_EV_OUT_STALLED, leg);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 1);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, leg);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

Test(agent_part, drain__hashing_and_no_leg__joined_first)
{
	gen = rig_publish(&rig, 1, sid, "3");
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_count(&rig, AGENT_HASH_STOP), 1);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
	rig_hashed(&rig, AGENT_EV_HASHED, 1, gen);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0, "the thread has not said it stopped");
	rig_hashed(&rig, AGENT_EV_HASH_STOPPED, 1, gen);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

/* With the proof goes the server's record of the part, and readers wait for what its bytes are. */
Test(agent_part, drain__hashed_and_not_said_yet__is_said_before_the_proof)
{
	gen = rig_publish(&rig, 1, sid, "3");
	rig.held = 1u << CTL_CONTENT;
	rig_hashed(&rig, AGENT_EV_HASHED, 1, gen);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_requests(&rig, CTL_CONTENT), 1);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0, "the one before has no answer yet");
	rig_answer(&rig, CTL_CONTENT);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

Test(agent_part, drain__hashing_and_a_leg__digests_are_made_until_it_has_ended)
{
	gen = rig_publish(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_count(&rig, AGENT_HASH_STOP), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(rig_count(&rig, AGENT_HASH_STOP), 1);
	rig_hashed(&rig, AGENT_EV_HASH_STOPPED, 1, gen);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

Test(agent_part, undrain__hash_still_stopping__goes_on_when_it_has_stopped)
{
	gen = rig_publish(&rig, 1, sid, "3");
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_event(&rig, rig_undrain(sid, gen));
	cr_assert_eq(rig_count(&rig, AGENT_HASH), 0);
	rig_hashed(&rig, AGENT_EV_HASH_STOPPED, 1, gen);
	cr_assert_eq(rig_count(&rig, AGENT_HASH), 1);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0, "it was taken back");
	cr_assert_eq(rig_count(&rig, AGENT_PART_NEW), 1);
}

Test(agent_part, drain__again_after_undrain__a_proof_of_its_own)
{
	gen = rig_hold(&rig, 1, sid, "3");
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_event(&rig, rig_undrain(sid, gen));
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	rig_event(&rig, rig_drain(sid, gen, 6));
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done.drain_no, 6);
}

Test(agent_part, fence__event__leg_or_grant_goes)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	uint64_t b = grant(gen, 51)->u.leg.leg;
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_FENCE, .u.fence_leg = 50});
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, a);
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_FENCE, .u.fence_leg = 51});
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, b);
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_FENCE, .u.fence_leg = 51});
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_FENCE, .u.fence_leg = 52});
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 2, "each once");
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, b);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

Test(agent_part, unpublish__whole_way__memory_is_safe_before_the_answer)
{
	gen = rig_hold(&rig, 1, sid, "3");
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_count(&rig, AGENT_LINE), 0, "the outcome may still be a failure");
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(code_of(0), 0);
	cr_assert_eq(rig_last(&rig, AGENT_PART_END)->u.part.gen, gen);
	cr_assert(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.held.version, TH_NO_VERSION);
	cr_assert_lt(rig_at(&rig, AGENT_LINE), rig_at(&rig, AGENT_COMPLETE));
}

Test(agent_part, unpublish__outcome_without_our_proof__waits_for_it)
{
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t a = rig_reader(&rig, sid, gen, 50);
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, a);
	cr_assert_eq(code_of(0), 0);
}

Test(agent_part, unpublish__deadline__held_and_served_again)
{
	gen = rig_hold(&rig, 1, sid, "3");
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", SEC);
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_event(&rig, rig_undrain(sid, gen));
	rig_event(&rig, rig_outcome(sid, 2, TH_E_TIMEOUT, 3));
	cr_assert_eq(code_of(0), TH_E_TIMEOUT);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
	rig_reader(&rig, sid, gen, 50);
}
