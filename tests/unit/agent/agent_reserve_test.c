/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies in the agent's own memory: RESERVE to RELEASE, with every refusal, crossing and loss on
 * the way; closing the last copy of a retained version, which may be refused.
 */
#include "tests/unit/agent/agent_fixture.h"

TestSuite(agent_reserve, .init = setup_attached, .fini = teardown);

/* Nothing of it is left. */
static void
expect_gone(void)
{
	struct agent_session_info info;

	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, RIG_MEMORY);
	cr_assert_not(agent_core_session_at(rig.agent, 0, &info));
	/* Nobody was ever there to be told. */
	cr_assert_eq(rig_count(&rig, AGENT_OPENED) + rig_count(&rig, AGENT_REGISTERED) +
			     rig_count(&rig, AGENT_LINE) + rig_count(&rig, AGENT_COMPLETE) +
			     rig_count(&rig, AGENT_CLOSED),
		0);
}

/* ---- what is asked for ----------------------------------------------------------------- */

Test(agent_reserve, reserve__memory_is_there__opened_and_registered_as_asked)
{
	struct agent_session_info info;
	sid = rig_offload(&rig);
	const struct ctl_open *open = &rig_request(&rig, CTL_OPEN)->u.open;
	const struct ctl_register *reg = &rig_request(&rig, CTL_REGISTER)->u.reg;
	cr_assert_eq(open->reservation, RIG_RESERVATION);
	cr_assert_str_eq(open->model, "m");
	cr_assert_str_eq(open->replica, "r");
	cr_assert_eq(open->shard, 1);
	cr_assert_eq(open->num_shards, 2);
	cr_assert_eq(open->lineage, 4);
	cr_assert_eq(reg->sid, sid);
	cr_assert_eq(reg->bytes, 1000);
	cr_assert_eq(reg->num_chunks, RIG_CHUNKS);
	cr_assert_eq(reg->manifest.lo, 8);
	cr_assert(agent_core_session_at(rig.agent, 0, &info));
	cr_assert(info.offload);
	cr_assert_eq(rig_requests(&rig, CTL_RESERVED), 0);
}

Test(agent_reserve, reserve__a_session_of_ours_is_the_source__the_shell_is_told)
{
	sid = rig_ready(&rig, 1);
	struct ctl_event one = rig_reserve(RIG_RESERVATION, 0);
	one.u.reserve.source_sid = sid;
	rig_event(&rig, one);
	cr_assert_eq(rig_last(&rig, AGENT_RESERVE)->u.reserve.source_session, 1);
	one = rig_reserve(RIG_RESERVATION, 1);
	one.u.reserve.source_sid = sid + 1000;
	rig_event(&rig, one);
	cr_assert_eq(rig_last(&rig, AGENT_RESERVE)->u.reserve.source_session, 0);
}

Test(agent_reserve, reserve__no_memory__the_server_hears_why)
{
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	rig_reserved(&rig, rig_last(&rig, AGENT_RESERVE)->u.reserve.id, 0, TH_E_NOMEM_RETAIN);
	const struct ctl_reserved *refusal = &rig_request(&rig, CTL_RESERVED)->u.reserved;
	cr_assert_eq(refusal->reservation, RIG_RESERVATION);
	cr_assert_eq(refusal->shard, 1);
	cr_assert_eq(refusal->code, TH_E_NOMEM_RETAIN);
	cr_assert_str_eq(refusal->text, "the shell has none");
	cr_assert_eq(rig_requests(&rig, CTL_OPEN), 0);
}

Test(agent_reserve, reserve__twice__asked_for_once)
{
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	cr_assert_eq(rig_count(&rig, AGENT_RESERVE), 1);
	rig_reserved(&rig, rig_last(&rig, AGENT_RESERVE)->u.reserve.id, RIG_MEMORY, 0);
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	cr_assert_eq(rig_count(&rig, AGENT_RESERVE), 1);
	cr_assert_eq(rig_requests(&rig, CTL_RESERVED), 0);
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 0));
	cr_assert_eq(rig_count(&rig, AGENT_RESERVE), 2);
}

Test(agent_reserve, reserve__more_than_the_limit__refused)
{
	for (uint32_t i = 0; i < 4; i++)
		rig_event(&rig, rig_reserve(RIG_RESERVATION + i, 0));
	cr_assert_eq(rig_count(&rig, AGENT_RESERVE), 3);
	const struct ctl_reserved *refusal = &rig_request(&rig, CTL_RESERVED)->u.reserved;
	cr_assert_eq(refusal->reservation, RIG_RESERVATION + 3);
	cr_assert_eq(refusal->code, TH_E_NOMEM_RETAIN);
	cr_assert_neq(strstr(refusal->text, "3 offloaded shards"), NULL);
	/* The workers have room of their own. */
	rig_open(&rig, 1);
}

Test(agent_reserve, reserve__of_what_cannot_be__refused)
{
	struct ctl_event one = rig_reserve(RIG_RESERVATION, 2);
	rig_event(&rig, one);
	cr_assert_eq(rig_request(&rig, CTL_RESERVED)->u.reserved.code, TH_E_PROTOCOL);
	one = rig_reserve(RIG_RESERVATION, 0);
	one.u.reserve.model[0] = '\0';
	rig_event(&rig, one);
	one = rig_reserve(0, 0);
	rig_event(&rig, one);
	cr_assert_eq(rig_count(&rig, AGENT_RESERVE), 0);
	cr_assert_eq(rig_requests(&rig, CTL_RESERVED), 3);
}

Test(agent_reserve, reserve__the_server_refuses_it__memory_is_freed)
{
	rig.refused[CTL_OPEN] = TH_E_NOT_AVAILABLE;
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	rig_reserved(&rig, rig_last(&rig, AGENT_RESERVE)->u.reserve.id, RIG_MEMORY, 0);
	expect_gone();
	rig_clear(&rig);
	rig.refused[CTL_OPEN] = 0;
	rig.refused[CTL_REGISTER] = TH_E_INVALID;
	rig_offload(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	expect_gone();
}

/* ---- withdrawn ------------------------------------------------------------------------- */

Test(agent_reserve, release__while_the_shell_is_at_it__what_it_made_is_freed)
{
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	uint64_t id = rig_last(&rig, AGENT_RESERVE)->u.reserve.id;
	rig_release(&rig, RIG_RESERVATION, 1, 0);
	cr_assert_eq(rig_last(&rig, AGENT_UNRESERVE)->u.reserve.id, id);
	rig_reserved(&rig, id, RIG_MEMORY, 0);
	expect_gone();
	cr_assert_eq(rig_requests(&rig, CTL_OPEN) + rig_requests(&rig, CTL_RESERVED), 0);
}

Test(agent_reserve, release__while_it_is_opened__closed_when_that_is_known)
{
	rig.held = 1u << CTL_OPEN;
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	rig_reserved(&rig, rig_last(&rig, AGENT_RESERVE)->u.reserve.id, RIG_MEMORY, 0);
	rig_release(&rig, RIG_RESERVATION, 1, 0);
	expect_gone();
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
	rig_answer(&rig, CTL_OPEN);
	cr_assert_eq(rig_request(&rig, CTL_CLOSE)->u.close.sid, rig.last_sid);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.died);
}

Test(agent_reserve, release__of_another__nothing)
{
	sid = rig_offload(&rig);
	rig_release(&rig, RIG_RESERVATION + 1, 1, sid);
	rig_release(&rig, RIG_RESERVATION, 0, sid);
	rig_release(&rig, RIG_RESERVATION, 1, sid + 1);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
	rig_release(&rig, RIG_RESERVATION, 1, sid);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	expect_gone();
	rig_release(&rig, RIG_RESERVATION, 1, sid);
}

Test(agent_reserve, release__while_it_is_filled__the_leg_is_stopped_first)
{
	sid = rig_offload(&rig);
	uint64_t leg = rig_offload_filling(&rig, sid);
	rig_release(&rig, RIG_RESERVATION, 1, sid);
	cr_assert_eq(rig_last(&rig, AGENT_STOP)->u.leg.leg, leg);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, TH_E_CANCELLED);
	expect_gone();
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, TH_E_CANCELLED);
}

Test(agent_reserve, release__it_is_read__freed_after_its_last_reader)
{
	sid = rig_offload_filled(&rig);
	uint64_t leg = rig_reader(&rig, sid, 1, 60);
	rig_release(&rig, RIG_RESERVATION, 1, sid);
	/* Its memory is room that comes, also for who asks in the same step. */
	cr_assert_eq(rig_last(&rig, AGENT_GIVEN_UP)->session, RIG_MEMORY);
	rig_event(&rig, rig_drain(sid, 1, 3));
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, leg);
	cr_assert_eq(rig_count(&rig, AGENT_GIVEN_UP), 1);
	cr_assert_eq(rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done.drain_no, 3);
	expect_gone();
	cr_assert_lt(rig_at(&rig, AGENT_PART_END), rig_at(&rig, AGENT_FREE));
}

/* ---- its operation --------------------------------------------------------------------- */

Test(agent_reserve, plan__of_the_server__prepared_pulled_and_serving)
{
	struct agent_session_info info;
	sid = rig_offload(&rig);
	uint64_t leg = rig_offload_filling(&rig, sid);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	/* It serves while it is filled. */
	uint64_t reader = rig_reader(&rig, sid, 1, 60);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, 0);
	rig_event(&rig, rig_outcome(sid, 1, 0, 17));
	cr_assert(agent_core_session_at(rig.agent, 0, &info));
	cr_assert_eq(info.held.version, 17);
	cr_assert_eq(info.legs_out, 1);
	rig_out(&rig, AGENT_EV_OUT_ENDED, reader);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE) + rig_count(&rig, AGENT_LINE), 0);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
}

Test(agent_reserve, plan__before_the_reply_to_register__prepared)
{
	rig.held = 1u << CTL_REGISTER;
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	rig_reserved(&rig, rig_last(&rig, AGENT_RESERVE)->u.reserve.id, RIG_MEMORY, 0);
	sid = rig.last_sid;
	rig_event(&rig, rig_offload_plan(sid));
	rig_event(&rig, rig_offload_plan(sid));
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 0);
	rig.held = 0;
	rig_answer(&rig, CTL_REGISTER);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 1);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, 0);
}

Test(agent_reserve, plan__other_layout__declined)
{
	sid = rig_offload(&rig);
	struct ctl_event one = rig_offload_plan(sid);
	one.u.plan.layout.lo++;
	rig_event(&rig, one);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, TH_E_LAYOUT);
	cr_assert_eq(rig_count(&rig, AGENT_EXPLAIN), 0);
	rig_event(&rig, rig_outcome(sid, 1, TH_E_LAYOUT, TH_NO_VERSION));
	expect_gone();
}

Test(agent_reserve, plan__of_another_operation__nothing)
{
	sid = rig_offload(&rig);
	struct ctl_event one = rig_offload_plan(sid);
	one.u.plan.kind = CTL_OP_UPDATE;
	rig_event(&rig, one);
	one = rig_offload_plan(sid);
	one.u.plan.op_seq = 2;
	rig_event(&rig, one);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 0);
	/* A second one does not exist. */
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_offload_filling(&rig, sid), 0);
	rig_event(&rig, rig_outcome(sid, 1, 0, 17));
	rig_clear(&rig);
	one = rig_offload_plan(sid);
	one.u.plan.op_seq = 2;
	rig_event(&rig, one);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 0);
}

Test(agent_reserve, outcome__a_failure__closed_by_itself)
{
	sid = rig_offload(&rig);
	uint64_t leg = rig_offload_filling(&rig, sid);
	rig_event(&rig, rig_outcome(sid, 1, TH_E_VERSION_LOST, TH_NO_VERSION));
	cr_assert_eq(rig_last(&rig, AGENT_STOP)->u.leg.leg, leg);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, TH_E_CANCELLED);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	expect_gone();
}

Test(agent_reserve, leg__its_source_fails__told_and_rerouted)
{
	sid = rig_offload(&rig);
	uint64_t leg = rig_offload_filling(&rig, sid);
	rig_leg(&rig, AGENT_EV_LEG_FAILED, leg, TH_E_STALE_MEMORY);
	const struct ctl_leg_end *end = &rig_request(&rig, CTL_LEG_END)->u.leg_end;
	cr_assert_eq(end->code, TH_E_STALE_MEMORY);
	cr_assert(end->source_failed);
	rig_event(&rig, rig_reroute(sid, 1, 0, 51));
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_last(&rig, AGENT_PULL)->u.leg.leg, 0);
	rig_event(&rig, rig_outcome(sid, 1, 0, 17));
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
}

Test(agent_reserve, broken__closed_by_itself)
{
	sid = rig_offload_filled(&rig);
	struct ctl_event one = {.kind = CTL_EV_BROKEN, .u.broken = {.sid = sid, .text = "why"}};
	rig_event(&rig, one);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_event(&rig, rig_drain(sid, 1, 1));
	expect_gone();
}

Test(agent_reserve, lost__the_shell_cannot_keep_it__the_server_hears_that_it_died)
{
	sid = rig_offload_filled(&rig);
	rig_session(&rig, RIG_MEMORY, AGENT_EV_LOST);
	cr_assert_eq(rig_request(&rig, CTL_CLOSE)->u.close.sid, sid);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.died);
	rig_event(&rig, rig_drain(sid, 1, 1));
	expect_gone();
}

Test(agent_reserve, contract__its_bytes_have_changed__withdrawn_at_once)
{
	sid = rig_offload_filled(&rig);
	struct agent_event one = {.kind = AGENT_EV_CONTRACT, .session = RIG_MEMORY};
	one.u.contract.gen = 1;
	strcpy(one.u.contract.text, "this host's memory fails");
	uint64_t reader = rig_reader(&rig, sid, 1, 60);
	rig_step(&rig, &one);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.broke_contract);
	cr_assert_eq(rig_last(&rig, AGENT_FENCE)->u.leg.leg, reader);
	rig_out(&rig, AGENT_EV_OUT_ENDED, reader);
	expect_gone();
}

/* ---- another server -------------------------------------------------------------------- */

static void
another_server(void)
{
	rig.server_inc++;
	rig.fresh = rig.unknown = true;
	rig_sleep(&rig, 5 * SEC);
	cr_assert(agent_core_attached(rig.agent));
}

Test(agent_reserve, server_restarts__what_it_had_asked_for_is_dropped)
{
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	uint64_t id = rig_last(&rig, AGENT_RESERVE)->u.reserve.id;
	another_server();
	cr_assert_eq(rig_last(&rig, AGENT_UNRESERVE)->u.reserve.id, id);
	rig_reserved(&rig, id, 0, TH_E_CANCELLED);
	cr_assert_eq(rig_requests(&rig, CTL_RESERVED), 0);
}

Test(agent_reserve, server_restarts__an_open_that_it_did_not_take_is_not_repeated)
{
	rig.held = 1u << CTL_OPEN;
	rig_event(&rig, rig_reserve(RIG_RESERVATION, 1));
	rig_reserved(&rig, rig_last(&rig, AGENT_RESERVE)->u.reserve.id, RIG_MEMORY, 0);
	another_server();
	expect_gone();
}

/* ---- closing the last copy ------------------------------------------------------------- */

static uint64_t
published(void)
{
	sid = rig_ready(&rig, 1);
	gen = rig_hold(&rig, 1, sid, "3");
	return gen;
}

static void
close_refused(int code)
{
	struct ctl_event one = {.kind = CTL_EV_CLOSE_REFUSED};

	one.u.close_refused.sid = sid;
	one.u.close_refused.code = code;
	strcpy(one.u.close_refused.text, "nobody has memory");
	rig_event(&rig, one);
}

Test(agent_reserve, close__refused__the_session_is_open_as_before)
{
	gen = published();
	worker_closes(1, false, 5 * SEC);
	cr_assert_eq(rig_request(&rig, CTL_CLOSE)->u.close.timeout_ns, 5 * SEC);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
	close_refused(TH_E_NOMEM_RETAIN);
	cr_assert_eq(closed(), TH_E_NOMEM_RETAIN);
	cr_assert_str_eq(rig_last(&rig, AGENT_CLOSED)->u.answer.text, "nobody has memory");
	cr_assert_eq(rig_count(&rig, AGENT_FREE) + rig_count(&rig, AGENT_PART_END), 0);
	/* It serves, and may be closed again. */
	rig_out(&rig, AGENT_EV_OUT_ENDED, rig_reader(&rig, sid, gen, 60));
	rig_clear(&rig);
	worker_closes(1, false, 5 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

Test(agent_reserve, close__refused_after_the_worker_died__given_up)
{
	gen = published();
	worker_closes(1, false, TH_FOREVER);
	rig_session(&rig, 1, AGENT_EV_LOST);
	rig_clear(&rig);
	close_refused(TH_E_NOMEM_RETAIN);
	const struct ctl_close *close = &rig_request(&rig, CTL_CLOSE)->u.close;
	cr_assert(close->died && close->abandon);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	close_refused(TH_E_NOMEM_RETAIN);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
}

Test(agent_reserve, close__abandoned__takes_no_refusal)
{
	gen = published();
	worker_closes(1, true, 0);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
	close_refused(TH_E_NOMEM_RETAIN);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(closed(), 0);
}

Test(agent_reserve, died__the_memory_stays_until_the_drain)
{
	gen = published();
	rig_session(&rig, 1, AGENT_EV_LOST);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.died);
	/* A copy within the host begins after the close was answered. */
	struct ctl_event one = rig_reserve(RIG_RESERVATION, 1);
	one.u.reserve.source_sid = sid;
	rig_event(&rig, one);
	cr_assert_eq(rig_last(&rig, AGENT_RESERVE)->u.reserve.source_session, 1);
	rig_reserved(&rig, rig_last(&rig, AGENT_RESERVE)->u.reserve.id, RIG_MEMORY, 0);
	uint64_t copy = rig.last_sid;
	rig_event(&rig, rig_offload_plan(copy));
	one = rig_go(copy, 1, 50);
	one.u.go.grant.source_agent_inc = RIG_INC;
	one.u.go.grant.source_sid = sid;
	one.u.go.grant.source_gen = gen;
	rig_event(&rig, one);
	cr_assert_eq(rig_last(&rig, AGENT_COPY)->u.leg.source_session, 1);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_last(&rig, AGENT_COPY)->u.leg.leg, 0);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 1);
	rig_event(&rig, rig_outcome(copy, 1, 0, 3));
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

/* ---- versions at risk ---- */

Test(agent_reserve, at_risk__is_counted_for_its_session_only)
{
	struct ctl_event one = {.kind = CTL_EV_AT_RISK};
	uint64_t first = rig_ready(&rig, 1);
	uint64_t second = rig_ready(&rig, 2);

	rig_clear(&rig);
	one.u.at_risk.sid = first;
	strcpy(one.u.at_risk.text, "version 17 of m is retained, and only spot hosts have it");
	rig_event(&rig, one);
	cr_assert_eq(rig_count(&rig, AGENT_LINE), 1);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->session, 1);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.at_risk, 1);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.broken, 0);
	rig_event(&rig, one);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.at_risk, 2);
	rig_clear(&rig);
	one.u.at_risk.sid = second + 100;
	rig_event(&rig, one);
	cr_assert_eq(rig_count(&rig, AGENT_LINE), 0, "of a session that is not there any more");
}
