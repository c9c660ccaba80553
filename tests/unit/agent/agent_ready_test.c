/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a worker may believe of the version that its update would install without the network: from
 * the server's word to the line, and when it is taken back.
 */
#include "tests/unit/agent/agent_fixture.h"

/* Session 1 holds version 3. */
TestSuite(agent_ready, .init = setup_holding, .fini = teardown);

static void
server_says(uint64_t version)
{
	struct ctl_event one = {.kind = CTL_EV_READY};

	one.u.ready.sid = sid;
	one.u.ready.version.version = version;
	rig_event(&rig, one);
}

/* What the worker reads, and how often it was told of one. */
static void
worker_reads(uint64_t version, uint16_t told)
{
	const struct agent_line *line = &rig_last(&rig, AGENT_LINE)->u.line;

	cr_assert_eq(line->ready.version, version, "%lu", (unsigned long)line->ready.version);
	cr_assert_eq(line->ready_told, told, "%u", line->ready_told);
}

Test(agent_ready, said__in_the_line_and_told_once)
{
	server_says(4);
	worker_reads(4, 1);
	rig_clear(&rig);
	server_says(4);
	cr_assert_eq(rig_count(&rig, AGENT_LINE), 0);
	server_says(6);
	worker_reads(6, 2);
}

Test(agent_ready, its_copy_goes__taken_back_and_no_event)
{
	server_says(4);
	server_says(TH_NO_VERSION);
	worker_reads(TH_NO_VERSION, 1);
	server_says(4);
	worker_reads(4, 2);
}

/* The server sends none, and what is held needs no update. */
Test(agent_ready, not_newer_than_what_is_held__nothing)
{
	rig_clear(&rig);
	server_says(3);
	server_says(2);
	cr_assert_eq(rig_count(&rig, AGENT_LINE), 0);
}

Test(agent_ready, of_a_session_that_is_gone__nothing)
{
	sid += 100;
	rig_clear(&rig);
	server_says(4);
	cr_assert_eq(rig_count(&rig, AGENT_LINE), 0);
}

/* The worker has it before the server can say that there is nothing more. */
Test(agent_ready, an_update_has_installed_it__taken_back_with_its_outcome)
{
	server_says(17);
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	rig_event(&rig, rig_go(sid, 2, 7));
	worker_reads(17, 1);
	rig_leg(&rig, AGENT_EV_LEG_DONE, 1, 0);
	rig_event(&rig, rig_outcome(sid, 2, 0, 17));
	cr_assert_eq(code_of(0), 0);
	worker_reads(TH_NO_VERSION, 1);
	cr_assert_lt(rig_at(&rig, AGENT_LINE), rig_at(&rig, AGENT_COMPLETE));
	server_says(TH_NO_VERSION);
	server_says(18);
	worker_reads(18, 2);
}

/* Only replicate helps now. */
Test(agent_ready, an_update_leaves_the_handle_dirty__taken_back)
{
	server_says(17);
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	rig_event(&rig, rig_go(sid, 2, 7));
	rig_leg(&rig, AGENT_EV_LEG_FAILED, 1, TH_E_CHECKSUM);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CHECKSUM, TH_NO_VERSION));
	cr_assert_eq(code_of(0), TH_E_CHECKSUM);
	worker_reads(TH_NO_VERSION, 1);
}

/* ---- the server ------------------------------------------------------------------------------ */

/* Who is woken by the event and finds nothing any more has to be woken again. */
Test(agent_ready, server_is_away__taken_back_until_it_is_there_again)
{
	server_says(4);
	rig_hang_up(&rig);
	worker_reads(TH_NO_VERSION, 1);
	rig_back(&rig);
	worker_reads(4, 2);
}

Test(agent_ready, server_is_silent__taken_back)
{
	server_says(4);
	rig.mute = true;
	rig_sleep(&rig, 10 * SEC);
	cr_assert_not(agent_core_attached(rig.agent));
	worker_reads(TH_NO_VERSION, 1);
}

Test(agent_ready, another_server__says_it_anew)
{
	server_says(4);
	rig_lost(&rig);
	worker_reads(TH_NO_VERSION, 1);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 1);
	rig.unknown = rig.fresh = false;
	server_says(4);
	worker_reads(4, 2);
}

/* ---- ends ------------------------------------------------------------------------------------ */

Test(agent_ready, the_agent_is_told_to_end__taken_back)
{
	struct agent_event leave = {.kind = AGENT_EV_LEAVE, .u.leave_timeout_ns = SEC};

	server_says(4);
	rig_step(&rig, &leave);
	worker_reads(TH_NO_VERSION, 1);
}

Test(agent_ready, its_group_is_broken__taken_back)
{
	struct ctl_event broken = {.kind = CTL_EV_BROKEN};

	server_says(4);
	broken.u.broken.sid = sid;
	rig_event(&rig, broken);
	worker_reads(TH_NO_VERSION, 1);
}

Test(agent_ready, its_worker_closes__taken_back)
{
	server_says(4);
	worker_closes(1, false, SEC);
	worker_reads(TH_NO_VERSION, 1);
}

/* A copy of the agent's own has no line. */
Test(agent_ready, of_an_own_copy__nothing)
{
	sid = rig_offload_filled(&rig);
	rig_clear(&rig);
	server_says(40);
	cr_assert_eq(rig_count(&rig, AGENT_LINE), 0);
}

/* ---- what the result says -------------------------------------------------------------------- */

/* Session 1 updates, from this host. */
static void
updates_from(uint64_t source_sid, uint64_t source_gen)
{
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	struct ctl_event go = rig_go(sid, 2, 7);
	go.u.go.grant.source_agent_inc = RIG_INC;
	go.u.go.grant.source_sid = source_sid;
	go.u.go.grant.source_gen = source_gen;
	rig_event(&rig, go);
}

static const struct agent_result *
result_of_17(void)
{
	rig_event(&rig, rig_outcome(sid, 2, 0, 17));
	cr_assert_eq(code_of(0), 0);
	return &rig_complete(&rig, 1, 0)->u.complete.result;
}

static void
copied(enum agent_event_kind how, int code)
{
	rig_leg(&rig, how, rig_last(&rig, AGENT_COPY)->u.leg.leg, code);
}

Test(agent_ready, update__of_an_own_copy__its_bytes_were_brought_before)
{
	updates_from(rig_offload_filled(&rig), 1);
	copied(AGENT_EV_LEG_DONE, 0);
	const struct agent_result *result = result_of_17();
	cr_assert_eq(result->bytes_moved, 100);
	cr_assert_eq(result->bytes_prefetched, 100);
	cr_assert_str_eq(result->reason, "");
}

/* It is read while it fills: its bytes come over the network meanwhile. */
Test(agent_ready, update__of_an_own_copy_that_fills__none_was_brought_before)
{
	uint64_t own = rig_offload(&rig);

	(void)rig_offload_filling(&rig, own);
	updates_from(own, 1);
	copied(AGENT_EV_LEG_DONE, 0);
	cr_assert_eq(result_of_17()->bytes_prefetched, 0);
}

Test(agent_ready, update__of_another_worker_here__none_was_brought_before)
{
	uint64_t other = rig_ready(&rig, 2), other_gen = rig_hold(&rig, 2, other, "17");

	updates_from(other, other_gen);
	copied(AGENT_EV_LEG_DONE, 0);
	cr_assert_eq(result_of_17()->bytes_prefetched, 0);
}

Test(agent_ready, update__the_copy_goes_meanwhile__the_rest_comes_from_elsewhere)
{
	updates_from(rig_offload_filled(&rig), 1);
	rig_event(&rig, rig_reroute(sid, 2, 7, 8));
	copied(AGENT_EV_LEG_STOPPED, 0);
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_last(&rig, AGENT_PULL)->u.leg.leg, 0);
	const struct agent_result *result = result_of_17();
	cr_assert_eq(result->bytes_moved, 200);
	cr_assert_eq(result->bytes_prefetched, 100);
}

Test(agent_ready, update__over_the_network__says_why)
{
	submit(0, CTL_OP_UPDATE, TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	struct ctl_event go = rig_go(sid, 2, 7);
	strcpy(go.u.go.reason, "not brought before: no room");
	rig_event(&rig, go);
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_last(&rig, AGENT_PULL)->u.leg.leg, 0);
	const struct agent_result *result = result_of_17();
	cr_assert_eq(result->bytes_prefetched, 0);
	cr_assert_str_eq(result->reason, "not brought before: no room");
}
