/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, retention: the last copy of a retained version is copied to host memory before it is
 * given up, by unpublish, update and close, or is not given up. Other ways to lose it are in
 * refsrv_rescue_test.
 */
#include <stdio.h>

#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_offload, .init = setup_retaining, .fini = teardown);

/* ---- unpublish ---- */

Test(refsrv_offload, unpublish__not_retained__at_once)
{
	w.retain = NULL;
	struct world_member m = world_published(&w, a, "p", "7");
	unpublish(&m);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_offload, unpublish__another_copy_counts__at_once)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    r = world_member(&w, b, "r", 0, 1);
	world_replicate(&w, &r, "7");
	unpublish(&m);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_offload, unpublish__last_copy__is_copied_before_it_goes)
{
	struct ctl_ev_reserve reserve;
	struct world_member m = world_published(&w, a, "p", "7"), o;
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, a, &reserve), "its own agent is asked first");
	cr_assert_eq(reserve.version.version, 7);
	cr_assert_eq(reserve.source_sid, m.sid);
	cr_assert_eq(reserve.bytes, 1000);
	cr_assert_str_eq(reserve.replica, "p");
	/* Nothing is hidden while it is copied. */
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
	cr_assert_eq(world_accept(&w, a, &reserve, &o), 0);
	struct ctl_grant grant = world_filling(&w, &o);
	cr_assert_eq(grant.source_sid, m.sid);
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	finished(&o, grant.leg);
	cr_assert_not(world_ended(&w, &m), "not before the proof that nobody reads it");
	world_drained(&w, &m);
	succeeded(&m);
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD | CTL_REPLICA_READY);
	cr_assert_eq(world_flags(&w, c, "p", false), 0);
	/* It serves. */
	struct world_member r = world_member(&w, b, "r", 0, 1);
	cr_assert_eq(world_begin(&w, &r, CTL_OP_REPLICATE, "latest").source_sid, o.sid);
}

Test(refsrv_offload, unpublish__refused__another_agent_of_the_datacenter_is_asked)
{
	struct ctl_ev_reserve reserve;
	uint32_t far = world_agent_in(&w, "elsewhere");
	struct world_member m = world_published(&w, a, "p", "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, a, &reserve));
	cr_assert_eq(world_refuse(&w, a, &reserve), 0);
	struct world_member o = world_accepts(&w, b);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, c) || world_asked(&w, far));
	world_finish(&w, &o, world_filling(&w, &o).leg);
	world_drained(&w, &m);
	succeeded(&m);
}

Test(refsrv_offload, unpublish__nobody_has_memory__fails_and_nothing_has_changed)
{
	struct ctl_ev_reserve reserve;
	uint32_t far = world_agent_in(&w, "elsewhere");
	struct world_member m = world_published(&w, a, "p", "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	for (uint32_t agent = a; agent <= c; agent++) {
		cr_assert_not(world_ended(&w, &m));
		cr_assert(world_reserve(&w, agent, &reserve));
		cr_assert_eq(world_refuse(&w, agent, &reserve), 0);
	}
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, TH_E_NOMEM_RETAIN);
	cr_assert(strstr(end.text, "version 7 of m") && strstr(end.text, "node2"), "%s", end.text);
	cr_assert_not(world_asked(&w, far));
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, 0));
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
	/* The next call tries again. */
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_asked(&w, a));
}

/* Its agent can only close the session then. */
Test(refsrv_offload, unpublish__registration_refused__the_failure_says_why)
{
	struct ctl_ev_reserve reserve;
	struct world_member m = world_published(&w, a, "p", "7"), o;
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	for (uint32_t i = 0; !world_ended(&w, &m); i++) {
		cr_assert_lt(i, 10);
		cr_assert(world_reserve(&w, a, &reserve));
		reserve.num_chunks++;
		cr_assert_eq(world_accept(&w, a, &reserve, &o), TH_E_LAYOUT);
		cr_assert_eq(world_close(&w, &o, false), 0);
	}
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, TH_E_NOMEM_RETAIN);
	cr_assert(strstr(end.text, "node0: shard 0") && strstr(end.text, "laid out otherwise"),
		"%s", end.text);
}

Test(refsrv_offload, unpublish__agents_without_a_budget__are_not_asked)
{
	world_fini(&w);
	world_init(&w, NULL);
	new_agents(1);
	w.spot = true;
	w.offload_bytes = UINT64_MAX;
	b = world_agent(&w);
	w.spot = false;
	w.offload_bytes = 999;
	c = world_agent(&w);
	w.retain = "latest";
	struct world_member m = world_published(&w, a, "p", "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_NOMEM_RETAIN);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_offload, unpublish__force__gives_it_up)
{
	struct world_member m = world_published(&w, a, "p", "7");
	struct ctl_request request = {.kind = CTL_OP};
	request.u.op.sid = m.sid;
	request.u.op.op_seq = ++m.seq;
	request.u.op.kind = CTL_OP_UNPUBLISH;
	request.u.op.timeout_ns = TH_FOREVER;
	request.u.op.flags = CTL_OP_FORCE;
	cr_assert_eq(world_request(&w, a, &request), 0);
	world_drained(&w, &m);
	succeeded(&m);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_offload, unpublish__deadline__source_stays_and_the_offload_is_released)
{
	struct world_member m = world_published(&w, a, "p", "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", 5 * SEC);
	struct world_member o = world_accepts(&w, a);
	struct ctl_grant grant = world_filling(&w, &o);
	world_sleep(&w, 6 * SEC);
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, TH_E_TIMEOUT);
	cr_assert(strstr(end.text, "host memory"), "%s", end.text);
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
	cr_assert_eq(world_flags(&w, c, "p", true), 0);
	cr_assert_eq(world_leg_end(&w, a, grant.leg, TH_E_CANCELLED, false, 3), 0);
	released(&o);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_asked(&w, a));
}

Test(refsrv_offload, unpublish__deadline_before_an_answer__memory_is_not_wanted)
{
	struct ctl_ev_reserve reserve;
	struct ctl_event event;
	struct world_member m = world_published(&w, a, "p", "7"), o;
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", 5 * SEC);
	cr_assert(world_reserve(&w, a, &reserve));
	world_sleep(&w, 6 * SEC);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_TIMEOUT);
	cr_assert(world_take(&w, a, CTL_EV_RELEASE, 0, &event));
	cr_assert_eq(event.u.release.reservation, reserve.reservation);
	cr_assert_eq(world_accept(&w, a, &reserve, &o), TH_E_STATE);
	cr_assert_eq(world_refuse(&w, a, &reserve), 0, "an answer to what is no longer asked");
}

Test(refsrv_offload, unpublish__cancelled__as_before)
{
	struct world_member m = world_published(&w, a, "p", "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_asked(&w, a));
	cr_assert_eq(world_cancel(&w, &m), 0);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_CANCELLED);
	cr_assert(world_has(&w, a, CTL_EV_RELEASE, 0));
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
}

/* ---- groups ---- */

static void
pair(struct world_member m[2])
{
	m[0] = world_member(&w, a, "p", 0, 2);
	m[1] = world_member(&w, b, "p", 1, 2);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_call(&w, &m[1], CTL_OP_PUBLISH, "7", TH_FOREVER);
	succeeded_both(m);
}

Test(refsrv_offload, group__all_parts_before_one_outcome)
{
	struct world_member m[2], o[2];
	pair(m);
	world_call(&w, &m[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	o[0] = world_accepts(&w, a);
	cr_assert_not(world_has(&w, a, CTL_EV_PLAN, o[0].sid), "one shard has no memory yet");
	o[1] = world_accepts(&w, b);
	taken(&o[0], CTL_EV_PLAN);
	cr_assert_eq(world_prepared(&w, &o[0], 0), 0);
	struct ctl_grant second = world_filling(&w, &o[1]), first = world_go(&w, &o[0]);
	cr_assert_eq(second.source_sid, m[1].sid);
	world_finish(&w, &o[0], first.leg);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m[0].sid), "shard 1 is not copied");
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
	world_finish(&w, &o[1], second.leg);
	world_drained(&w, &m[0]);
	cr_assert_not(world_ended(&w, &m[0]));
	world_drained(&w, &m[1]);
	succeeded(&m[0]);
	world_call(&w, &m[1], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	succeeded(&m[1]);
}

Test(refsrv_offload, group__one_shard_finds_no_memory__all_keep_theirs)
{
	struct ctl_ev_reserve reserve;
	struct world_member m[2], o;
	pair(m);
	world_call(&w, &m[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	o = world_accepts(&w, a);
	for (int i = 0; i < 3; i++) {
		uint32_t agent = i == 0 ? b : i == 1 ? c : a;
		cr_assert(world_reserve(&w, agent, &reserve), "agent %u", agent);
		cr_assert_eq(reserve.shard, 1);
		cr_assert_eq(world_refuse(&w, agent, &reserve), 0);
	}
	cr_assert_eq(world_outcome(&w, &m[0]).code, TH_E_NOMEM_RETAIN);
	world_call(&w, &m[1], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m[1]).code, TH_E_NOMEM_RETAIN);
	released(&o);
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
}

Test(refsrv_offload, group__asked_agent_dies__another_is_asked)
{
	struct world_member m[2], o[2];
	w.retain = NULL;
	world_member(&w, c, "k", 0, 1);
	w.retain = "latest";
	uint32_t d = world_agent(&w);
	pair(m);
	world_call(&w, &m[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_reserve reserve;
	cr_assert(world_reserve(&w, b, &reserve));
	cr_assert_eq(world_refuse(&w, b, &reserve), 0);
	uint32_t other = world_asked(&w, c) ? c : d, last = other == c ? d : c;
	cr_assert(world_reserve(&w, other, &reserve));
	w.agents[other].silent = true;
	world_sleep(&w, 4 * SEC);
	o[1] = world_accepts(&w, last);
	o[0] = world_accepts(&w, a);
	cr_assert(world_has(&w, a, CTL_EV_PLAN, o[0].sid));
	cr_assert(world_has(&w, last, CTL_EV_PLAN, o[1].sid));
}

Test(refsrv_offload, filling__its_agent_dies__begins_anew_elsewhere)
{
	struct ctl_ev_reserve reserve;
	struct world_member m = world_published(&w, a, "p", "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, a, &reserve));
	cr_assert_eq(world_refuse(&w, a, &reserve), 0);
	struct world_member o = world_accepts(&w, b);
	world_filling(&w, &o);
	w.agents[b].silent = true;
	world_sleep(&w, 12 * SEC);
	o = world_accepts(&w, c);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	world_drained(&w, &m);
	succeeded(&m);
}

Test(refsrv_offload, trainers_unpublish_together__only_the_last_is_copied)
{
	struct world_member m[3];
	m[0] = world_published(&w, a, "p0", "7");
	m[1] = world_published(&w, b, "p1", "7");
	m[2] = world_published(&w, c, "p2", "7");
	for (int i = 0; i < 3; i++)
		world_call(&w, &m[i], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	world_drained(&w, &m[0]);
	world_drained(&w, &m[1]);
	succeeded_both(m);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b));
	struct world_member o = world_accepts(&w, c);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	world_drained(&w, &m[2]);
	succeeded(&m[2]);
}

/* ---- what makes it unnecessary ---- */

Test(refsrv_offload, reader_completes_first__copy_is_unnecessary)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    r = world_member(&w, b, "r", 0, 1);
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct world_member o = world_accepts(&w, a);
	world_finish(&w, &r, grant.leg);
	world_drained(&w, &m);
	succeeded(&m);
	released(&o);
	cr_assert_eq(world_flags(&w, c, "r", false), CTL_REPLICA_READY);
}

Test(refsrv_offload, spot_reader_completes__it_does_not_count)
{
	w.spot = true;
	uint32_t spot = world_agent(&w);
	w.spot = false;
	struct world_member m = world_published(&w, a, "p", "7"),
			    r = world_member(&w, spot, "r", 0, 1);
	world_replicate(&w, &r, "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_asked(&w, a));
	cr_assert_not(world_ended(&w, &m));
}

Test(refsrv_offload, successor_is_published__copy_is_unnecessary)
{
	struct world_member m = world_published(&w, a, "p", "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct world_member o = world_accepts(&w, a);
	world_published(&w, b, "q", "8");
	world_drained(&w, &m);
	succeeded(&m);
	released(&o);
}

Test(refsrv_offload, other_copy_does_not_answer__it_does_not_count)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    r = world_member(&w, b, "r", 0, 1);
	world_replicate(&w, &r, "7");
	/* Its beats still come, but nothing proves that it lives since the call. */
	w.agents[b].deaf = true;
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	/* A POLL of before the call is still standing: it brings the PING, and no answer comes. */
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	cr_assert_not(world_asked(&w, a));
	world_sleep(&w, 2 * SEC);
	cr_assert(world_asked(&w, a));
}

Test(refsrv_offload, readers__prefer_the_copy_that_fills)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    r = world_member(&w, c, "r", 0, 1);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct world_member o = world_accepts(&w, a);
	world_filling(&w, &o);
	cr_assert_eq(world_begin(&w, &r, CTL_OP_REPLICATE, "latest").source_sid, o.sid);
}

/* ---- release ---- */

static struct world_member
offloaded(void)
{
	struct world_member m = world_published(&w, a, "p", "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct world_member o = world_accepts(&w, a);
	finished(&o, world_filling(&w, &o).leg);
	world_drained(&w, &m);
	succeeded(&m);
	return o;
}

Test(refsrv_offload, release__not_retained_any_more)
{
	struct world_member o = offloaded();
	world_sleep(&w, 30 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, 0), "it is the only copy");
	world_published(&w, b, "q", "8");
	released(&o);
	cr_assert_eq(world_flags(&w, c, "p", true), 0);
}

Test(refsrv_offload, release__not_while_it_is_read)
{
	struct world_member o = offloaded(), r = world_member(&w, c, "r", 0, 1);
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "7");
	world_published(&w, b, "q", "8");
	world_sleep(&w, 5 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, 0));
	world_finish(&w, &r, grant.leg);
	released(&o);
}

Test(refsrv_offload, release__while_it_is_read__when_its_room_is_needed)
{
	struct ctl_ev_reserve reserve;
	struct world_member o = offloaded(), r = world_member(&w, c, "r", 0, 1), next;
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "7");
	struct world_member m = world_published(&w, a, "q", "8");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, a, &reserve));
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, 0));
	cr_assert_eq(world_refuse(&w, a, &reserve), 0);
	struct ctl_event event = taken(&o, CTL_EV_RELEASE);
	cr_assert_eq(event.u.release.shard, 0);
	cr_assert(world_reserve(&w, a, &reserve), "the same agent is asked again");
	cr_assert_eq(world_close(&w, &o, false), 0);
	/* Its reader goes on, and has the version. */
	world_finish(&w, &r, grant.leg);
	cr_assert_eq(world_flags(&w, b, "r", false), CTL_REPLICA_READY);
	world_drained(&w, &o);
	cr_assert_eq(world_accept(&w, a, &reserve, &next), 0);
	world_finish(&w, &next, world_filling(&w, &next).leg);
	world_drained(&w, &m);
	succeeded(&m);
}

Test(refsrv_offload, release__while_it_is_read__not_what_is_retained)
{
	struct ctl_ev_reserve reserve;
	w.retain = "latest,latest-1";
	offloaded();
	struct world_member r = world_member(&w, c, "r", 0, 1),
			    m = world_published(&w, a, "q", "8");
	world_begin(&w, &r, CTL_OP_REPLICATE, "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, a, &reserve));
	cr_assert_eq(world_refuse(&w, a, &reserve), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, 0));
	cr_assert(world_reserve(&w, b, &reserve), "another agent is asked");
}

Test(refsrv_offload, release__another_copy_for_a_second)
{
	struct world_member o = offloaded(), r = world_member(&w, c, "r", 0, 1);
	world_replicate(&w, &r, "7");
	world_sleep(&w, 900 * MS);
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, 0));
	world_sleep(&w, 200 * MS);
	released(&o);
	cr_assert_eq(world_flags(&w, c, "r", false), CTL_REPLICA_READY);
}

Test(refsrv_offload, release__not_for_a_copy_whose_agent_does_not_answer)
{
	offloaded();
	struct world_member r = world_member(&w, c, "r", 0, 1);
	world_replicate(&w, &r, "7");
	w.agents[c].deaf = true;
	world_sleep(&w, 5 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, 0));
}

Test(refsrv_offload, release__not_on_proof_that_is_older_than_its_time)
{
	offloaded();
	struct world_member r = world_member(&w, c, "r", 0, 1), q = world_member(&w, b, "q", 0, 1);
	world_replicate(&w, &r, "7");
	world_replicate(&w, &q, "7");
	world_sleep(&w, 100 * MS);
	/* c is asked whether it lives, answers, and dies. */
	unpublish(&q);
	w.agents[c].deaf = w.agents[c].silent = true;
	world_sleep(&w, 15 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, 0), "it is the only copy that is left");
}

Test(refsrv_offload, release__claims_end)
{
	w.retain = NULL;
	struct world_member m = world_published(&w, a, "p", "7");
	w.retain = "7";
	struct world_member k = world_member(&w, b, "k", 0, 1);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct world_member o = world_accepts(&w, a);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	world_drained(&w, &m);
	succeeded(&m);
	cr_assert_eq(world_close(&w, &k, false), 0);
	released(&o);
}

Test(refsrv_offload, the_copy_in_memory__lets_the_next_holder_go_at_once)
{
	offloaded();
	struct world_member r = world_member(&w, b, "r", 0, 1);
	world_replicate(&w, &r, "7");
	unpublish(&r);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
	/* The replica is gone: now it is needed again. */
	world_sleep(&w, 5 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, 0));
}

/* ---- update ---- */

Test(refsrv_offload, update__last_copy_of_what_is_held__is_copied_first)
{
	w.retain = NULL;
	struct world_member m = world_published(&w, a, "p", "7"),
			    next = world_published(&w, b, "q", "8");
	w.retain = "7";
	world_member(&w, c, "k", 0, 1);
	world_call(&w, &m, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_not(world_has(&w, a, CTL_EV_PLAN, m.sid), "its memory may not be touched");
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
	struct world_member o = world_accepts(&w, a);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	struct ctl_event event = taken(&m, CTL_EV_PLAN);
	cr_assert(event.u.plan.drain_old);
	cr_assert_eq(world_prepared(&w, &m, 0), 0);
	struct ctl_grant grant = world_go(&w, &m);
	cr_assert_eq(grant.source_sid, next.sid);
	finished(&m, grant.leg);
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD | CTL_REPLICA_READY);
}

Test(refsrv_offload, update__no_memory__keeps_what_it_holds)
{
	struct ctl_ev_reserve reserve;
	w.retain = NULL;
	struct world_member m = world_published(&w, a, "p", "7");
	world_published(&w, b, "q", "8");
	w.retain = "7";
	world_member(&w, c, "k", 0, 1);
	world_call(&w, &m, CTL_OP_UPDATE, "latest", TH_FOREVER);
	for (uint32_t agent = a; agent <= c; agent++) {
		cr_assert(world_reserve(&w, agent, &reserve));
		cr_assert_eq(world_refuse(&w, agent, &reserve), 0);
	}
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, TH_E_NOMEM_RETAIN);
	cr_assert_eq(end.version.version, 7);
	cr_assert_not(world_has(&w, a, CTL_EV_UNDRAIN, 0), "it was never hidden");
}

Test(refsrv_offload, update__what_was_wanted_goes_meanwhile__nothing_new)
{
	w.retain = NULL;
	struct world_member m = world_published(&w, a, "p", "7"),
			    next = world_published(&w, b, "q", "8");
	w.retain = "7";
	world_member(&w, c, "k", 0, 1);
	world_call(&w, &m, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct world_member o = world_accepts(&w, a);
	world_call(&w, &next, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, 0);
	cr_assert_not(end.updated);
	cr_assert_eq(end.version.version, 7);
	released(&o);
}

/* ---- close ---- */

Test(refsrv_offload, close__own_rules_keep_nothing)
{
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(world_close(&w, &m, false), 0);
	world_drained(&w, &m);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

static int
close_within(const struct world_member *m, int64_t timeout_ns, bool abandon)
{
	struct ctl_request request = {.kind = CTL_CLOSE};

	request.u.close.sid = m->sid;
	request.u.close.timeout_ns = timeout_ns;
	request.u.close.abandon = abandon;
	return world_request(&w, m->agent, &request);
}

Test(refsrv_offload, close__others_claim_it__is_copied_first)
{
	world_member(&w, c, "k", 0, 1);
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(close_within(&m, TH_FOREVER, false), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
	struct world_member o = world_accepts(&w, a);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	world_drained(&w, &m);
	cr_assert_eq(world_flags(&w, c, "p", false), 0);
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD | CTL_REPLICA_READY);
	cr_assert_not(world_has(&w, a, CTL_EV_CLOSE_REFUSED, 0));
}

Test(refsrv_offload, close__no_memory__is_refused_and_the_session_goes_on)
{
	struct ctl_ev_reserve reserve;
	world_member(&w, c, "k", 0, 1);
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(close_within(&m, TH_FOREVER, false), 0);
	for (uint32_t agent = a; agent <= c; agent++) {
		cr_assert(world_reserve(&w, agent, &reserve));
		cr_assert_eq(world_refuse(&w, agent, &reserve), 0);
	}
	struct ctl_event event = taken(&m, CTL_EV_CLOSE_REFUSED);
	cr_assert_eq(event.u.close_refused.code, TH_E_NOMEM_RETAIN);
	cr_assert(strstr(event.u.close_refused.text, "last copy"));
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_asked(&w, a), "it is open as before");
	cr_assert_eq(close_within(&m, TH_FOREVER, true), 0);
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY, "its agent finishes alone");
}

Test(refsrv_offload, close__deadline__is_refused)
{
	world_member(&w, c, "k", 0, 1);
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(close_within(&m, 3 * SEC, false), 0);
	struct world_member o = world_accepts(&w, a);
	world_sleep(&w, 4 * SEC);
	struct ctl_event event = taken(&m, CTL_EV_CLOSE_REFUSED);
	cr_assert_eq(event.u.close_refused.code, TH_E_TIMEOUT);
	released(&o);
	/* Its rules count again, and it can be closed once more. */
	cr_assert_eq(close_within(&m, TH_FOREVER, false), 0);
	cr_assert(world_asked(&w, a));
}

Test(refsrv_offload, close_of_all_members__goes_when_it_is_copied)
{
	struct world_member m[2], o[2];
	world_member(&w, c, "k", 0, 1);
	pair(m);
	cr_assert_eq(close_within(&m[0], TH_FOREVER, false), 0);
	cr_assert_eq(close_within(&m[1], TH_FOREVER, false), 0);
	cr_assert_not(world_has(&w, b, CTL_EV_BROKEN, m[1].sid));
	o[0] = world_accepts(&w, a);
	o[1] = world_accepts(&w, b);
	taken(&o[0], CTL_EV_PLAN);
	cr_assert_eq(world_prepared(&w, &o[0], 0), 0);
	world_finish(&w, &o[1], world_filling(&w, &o[1]).leg);
	world_finish(&w, &o[0], world_go(&w, &o[0]).leg);
	world_drained(&w, &m[0]);
	world_drained(&w, &m[1]);
	cr_assert_eq(world_flags(&w, c, "p", false), 0);
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD | CTL_REPLICA_READY);
}

/* ---- hostile ---- */

Test(refsrv_offload, open_with_a_reservation__only_as_it_was_asked_for)
{
	struct ctl_ev_reserve reserve, bad;
	struct world_member m = world_published(&w, a, "p", "7"), o;
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, a, &reserve));
	cr_assert_eq(world_accept(&w, b, &reserve, &o), TH_E_STATE, "another agent");
	bad = reserve;
	bad.reservation++;
	cr_assert_eq(world_accept(&w, a, &bad, &o), TH_E_STATE);
	bad = reserve;
	bad.num_shards = 2;
	bad.shard = 1;
	cr_assert_eq(world_accept(&w, a, &bad, &o), TH_E_STATE);
	bad = reserve;
	strcpy(bad.replica, "q");
	cr_assert_eq(world_accept(&w, a, &bad, &o), TH_E_STATE);
	bad = reserve;
	bad.version.lineage = 9;
	cr_assert_eq(world_accept(&w, a, &bad, &o), TH_E_STATE);
	bad = reserve;
	strcpy(bad.model, "other");
	cr_assert_eq(world_accept(&w, a, &bad, &o), TH_E_STATE);
	bad = reserve;
	bad.shard = 5;
	cr_assert_eq(world_refuse(&w, a, &bad), 0);
	cr_assert_eq(world_refuse(&w, b, &reserve), 0, "not asked: nothing follows");
	bad = reserve;
	bad.layout.lo++;
	cr_assert_eq(world_accept(&w, a, &bad, &o), TH_E_LAYOUT);
	cr_assert_eq(world_accept(&w, a, &reserve, &o), TH_E_STATE, "it has a session already");
}

Test(refsrv_offload, offload_group__is_no_replica_to_join)
{
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(world_close(&w, &m, true), 0);
	struct world_member o = world_accepts(&w, a);
	struct world_member again = world_member(&w, b, "p", 0, 1);
	cr_assert_neq(again.sid, o.sid);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	world_replicate(&w, &again, "7");
}
