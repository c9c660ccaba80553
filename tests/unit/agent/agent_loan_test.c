/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loans: a shard of a version out of the agent's own memory, for a process. Who borrows is session
 * 1 of model m; the copy is shard 1 of version 17.
 */
#include "tests/unit/agent/agent_fixture.h"

TestSuite(agent_loan, .init = setup_ready, .fini = teardown);

static void
borrow(uint64_t session, uint64_t id, uint64_t limit, int64_t timeout_ns)
{
	struct agent_event event = {.kind = AGENT_EV_BORROW, .session = session};

	event.u.borrow = (struct agent_borrow){.id = id,
		.version = {.version = 17},
		.shard = 1,
		.timeout_ns = timeout_ns,
		.limit = limit};
	rig_step(&rig, &event);
}

static void
returned(uint64_t id)
{
	struct agent_event event = {.kind = AGENT_EV_RETURNED, .u.returned_loan = id};

	rig_step(&rig, &event);
}

static const struct ctl_borrow *
asked(void)
{
	return &rig_request(&rig, CTL_BORROW)->u.borrow;
}

/* The last one that was refused, for this reason. */
static void
refused(uint64_t id, int code)
{
	cr_assert_eq(rig_last(&rig, AGENT_LOAN_REFUSED)->u.loan.id, id);
	cr_assert_eq(rig_last(&rig, AGENT_LOAN_REFUSED)->u.loan.code, code, "%s",
		rig_last(&rig, AGENT_LOAN_REFUSED)->u.loan.text);
}

static void
refused_by_the_server(int code)
{
	struct ctl_event event = {.kind = CTL_EV_BORROW_REFUSED};

	event.u.borrow_refused = (struct ctl_ev_borrow_refused){.model = "m",
		.version = {.version = 17},
		.shard = 1,
		.code = code,
		.text = "the reason why"};
	rig_event(&rig, event);
}

static void
lent(uint64_t id)
{
	cr_assert_eq(rig_last(&rig, AGENT_LEND)->u.loan.id, id);
	cr_assert_eq(rig_last(&rig, AGENT_LEND)->session, RIG_MEMORY);
}

Test(agent_loan, not_here__the_server_brings_it__lent)
{
	borrow(1, 5, 10000, TH_FOREVER);
	cr_assert_str_eq(asked()->model, "m");
	cr_assert_eq(asked()->version.version, 17);
	cr_assert_eq(asked()->shard, 1);
	cr_assert_eq(asked()->room, 10000);
	cr_assert_not(asked()->stop || asked()->held);
	cr_assert_eq(rig_count(&rig, AGENT_LEND), 0);
	rig_offload_filled(&rig);
	lent(5);
	cr_assert_eq(rig_count(&rig, AGENT_LEND), 1);
	cr_assert(asked()->held);
	rig_clear(&rig);
	returned(5);
	cr_assert(asked()->stop);
	cr_assert_eq(asked()->version.version, 17);
}

Test(agent_loan, here__lent_at_once_and_the_server_keeps_it)
{
	rig_offload_filled(&rig);
	rig_clear(&rig);
	borrow(1, 5, 10000, 0);
	lent(5);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 1);
	cr_assert(asked()->held);
}

Test(agent_loan, several__asked_once__kept_until_the_last_is_returned)
{
	rig.held = 1u << CTL_BORROW;
	borrow(1, 5, 10000, TH_FOREVER);
	borrow(1, 6, 10000, TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 1);
	rig.held = 0;
	rig_answer(&rig, CTL_BORROW);
	rig_offload_filled(&rig);
	cr_assert_eq(rig_count(&rig, AGENT_LEND), 2);
	rig_clear(&rig);
	borrow(1, 7, 10000, TH_FOREVER);
	lent(7);
	returned(5);
	returned(7);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 0);
	returned(6);
	cr_assert(asked()->stop);
	/* Once more: nothing. */
	rig_clear(&rig);
	returned(6);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 0);
}

Test(agent_loan, who_has_borrowed_closes_or_dies__the_loan_stands)
{
	rig_offload_filled(&rig);
	borrow(1, 5, 10000, 0);
	rig_clear(&rig);
	rig_session(&rig, 1, AGENT_EV_LOST);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 0);
	returned(5);
	cr_assert(asked()->stop);
}

Test(agent_loan, who_waits_closes__refused_and_not_wanted)
{
	borrow(1, 5, 10000, TH_FOREVER);
	rig_clear(&rig);
	worker_closes(1, true, 0);
	refused(5, TH_E_CANCELLED);
	cr_assert(asked()->stop);
}

/* Who waits in slices of time is back soon, and what is brought for it goes on meanwhile. */
Test(agent_loan, deadline__refused__and_not_wanted_when_nobody_is_back_soon)
{
	borrow(1, 5, 10000, 2 * SEC);
	borrow(1, 6, 10000, 4 * SEC);
	rig_clear(&rig);
	rig_sleep(&rig, 3 * SEC);
	refused(5, TH_E_TIMEOUT);
	rig_sleep(&rig, 2 * SEC);
	refused(6, TH_E_TIMEOUT);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 0);
	rig_sleep(&rig, 5 * SEC);
	cr_assert(asked()->stop);
	rig_clear(&rig);
	borrow(1, 7, 10000, TH_FOREVER);
	cr_assert_not(asked()->stop || asked()->held);
}

Test(agent_loan, deadline__asked_again_soon__the_server_hears_nothing_of_it)
{
	borrow(1, 5, 10000, SEC);
	rig_clear(&rig);
	rig_sleep(&rig, 2 * SEC);
	refused(5, TH_E_TIMEOUT);
	borrow(1, 6, 10000, TH_FOREVER);
	rig_sleep(&rig, 9 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 0);
	rig_offload_filled(&rig);
	lent(6);
	cr_assert(asked()->held);
}

Test(agent_loan, deadline__it_comes_soon_after__lent_to_who_is_back)
{
	borrow(1, 5, 10000, SEC);
	rig_sleep(&rig, 2 * SEC);
	rig_offload_filled(&rig);
	rig_clear(&rig);
	borrow(1, 6, 10000, 0);
	lent(6);
}

Test(agent_loan, deadline__refused_or_another_server_meanwhile__over)
{
	borrow(1, 5, 10000, 0);
	refused_by_the_server(TH_E_NOT_AVAILABLE);
	rig_clear(&rig);
	borrow(1, 6, 10000, 0);
	cr_assert_not(asked()->stop, "a new question");
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 0, "nobody wants it any more");
	rig_sleep(&rig, 9 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 0);
}

Test(agent_loan, the_server_refuses__whoever_waits_hears_why)
{
	borrow(1, 5, 10000, TH_FOREVER);
	borrow(1, 6, 10000, TH_FOREVER);
	refused_by_the_server(TH_E_NOT_AVAILABLE);
	refused(6, TH_E_NOT_AVAILABLE);
	cr_assert_eq(rig_count(&rig, AGENT_LOAN_REFUSED), 2);
	cr_assert_str_eq(rig_last(&rig, AGENT_LOAN_REFUSED)->u.loan.text, "the reason why");
	/* Of what nobody waits for any more: nothing. */
	rig_clear(&rig);
	refused_by_the_server(TH_E_NOT_AVAILABLE);
	cr_assert_eq(rig_count(&rig, AGENT_LOAN_REFUSED), 0);
}

Test(agent_loan, a_server_that_knows_no_loans__its_word_is_told)
{
	rig.refused[CTL_BORROW] = TH_E_INVALID;
	borrow(1, 5, 10000, TH_FOREVER);
	refused(5, TH_E_INVALID);
}

Test(agent_loan, limit__room_is_what_is_left__and_what_is_here_is_not_lent_beyond_it)
{
	rig_offload_filled(&rig);
	rig_clear(&rig);
	borrow(1, 5, 999, 0);
	refused(5, TH_E_LIMIT);
	cr_assert_eq(rig_count(&rig, AGENT_LEND), 0);
	borrow(1, 6, 1000, 0);
	lent(6);
	/* The same copy is lent once. */
	borrow(1, 7, 1000, 0);
	lent(7);
	struct agent_event event = {.kind = AGENT_EV_BORROW, .session = 1};
	event.u.borrow = (struct agent_borrow){
		.id = 8, .version = {.version = 18}, .timeout_ns = TH_FOREVER, .limit = 1500};
	rig_step(&rig, &event);
	cr_assert_eq(asked()->version.version, 18);
	cr_assert_eq(asked()->room, 500);
}

Test(agent_loan, handle_is_not_open__refused)
{
	borrow(2, 5, 10000, 0);
	refused(5, TH_E_STATE);
}

Test(agent_loan, node_is_drained__nothing_new_is_lent)
{
	struct ctl_event event = {.kind = CTL_EV_NODE, .u.node = {.draining = true}};

	rig_offload_filled(&rig);
	borrow(1, 5, 10000, 0);
	rig_event(&rig, event);
	rig_clear(&rig);
	borrow(1, 6, 10000, 0);
	refused(6, TH_E_LIMIT);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0, "what is lent stays");
}

Test(agent_loan, the_copy_is_released__the_loan_stands__the_next_is_asked_for_again)
{
	sid = rig_offload_filled(&rig);
	borrow(1, 5, 10000, 0);
	rig_release(&rig, RIG_RESERVATION, 1, sid);
	rig_event(&rig, rig_drain(sid, 1, 3));
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, RIG_MEMORY);
	cr_assert_eq(rig_count(&rig, AGENT_LOAN_REFUSED), 0);
	rig_clear(&rig);
	borrow(1, 6, 10000, TH_FOREVER);
	cr_assert_not(asked()->held);
	cr_assert_eq(rig_count(&rig, AGENT_LEND), 0);
}

Test(agent_loan, another_server__is_told_before_all_is_said)
{
	rig_offload_filled(&rig);
	borrow(1, 5, 10000, 0);
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_BORROW), 1);
	cr_assert(asked()->held);
	int borrowed = -1, said = -1;
	for (uint32_t i = 0; i < rig.num_sent; i++) {
		if (rig.sent[i].request.kind == CTL_BORROW)
			borrowed = (int)i;
		if (rig.sent[i].request.kind == CTL_REJOINED)
			said = (int)i;
	}
	cr_assert(borrowed >= 0 && borrowed < said, "%d, %d", borrowed, said);
}

Test(agent_loan, another_server__what_waits_is_asked_for_again)
{
	borrow(1, 5, 10000, TH_FOREVER);
	rig_lost(&rig);
	cr_assert_not(asked()->held || asked()->stop);
	rig_clear(&rig);
	rig_offload_filled(&rig);
	lent(5);
}

Test(agent_loan, no_server_until_the_deadline__said_so)
{
	rig.mute = true;
	borrow(1, 5, 10000, 8 * SEC);
	rig_sleep(&rig, 9 * SEC);
	refused(5, TH_E_NO_SERVER);
}
