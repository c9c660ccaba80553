/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, replicate and update: plan, prepared, go, commit; what a name means; source choice.
 */
#include <stdio.h>

#include "tests/unit/server/refsrv_fixture.h"

static void
start(bool pipelining)
{
	struct refsrv_config config;
	refsrv_config_default(&config);
	config.pipelining = pipelining;
	world_init(&w, &config);
	new_agents(3);
}

static void
setup(void)
{
	start(true);
}

TestSuite(refsrv_replicate, .init = setup, .fini = teardown);

/* ---- the four steps ---- */

Test(refsrv_replicate, steps__two_shards__plan_prepared_go_commit)
{
	struct world_member s[2] = {
		world_member(&w, a, "src", 0, 2), world_member(&w, b, "src", 1, 2)};
	struct world_member d[2] = {
		world_member(&w, c, "dst", 0, 2), world_member(&w, c, "dst", 1, 2)};
	struct ctl_event event, grant;
	call_both(s, CTL_OP_PUBLISH, "4");
	succeeded_both(s);
	/* The plan is fixed and told at the first call. */
	world_call(&w, &d[0], CTL_OP_REPLICATE, "latest", TH_FOREVER);
	cr_assert(world_take(&w, c, CTL_EV_PLAN, d[0].sid, &event));
	cr_assert_eq(event.u.plan.version.version, 4);
	cr_assert_eq(event.u.plan.layout.lo, 1);
	cr_assert_not(event.u.plan.drain_old);
	cr_assert_eq(world_prepared(&w, &d[0], 0), 0);
	cr_assert_not(world_has(&w, c, CTL_EV_GO, 0)); /* no byte moves before all are ready */
	world_call(&w, &d[1], CTL_OP_REPLICATE, "latest", TH_FOREVER);
	cr_assert(world_take(&w, c, CTL_EV_PLAN, d[1].sid, &event));
	cr_assert_eq(event.u.plan.layout.lo, 2);
	cr_assert_eq(world_prepared(&w, &d[1], 0), 0);
	uint64_t legs[2];
	for (int i = 0; i < 2; i++) {
		cr_assert(world_take(&w, c, CTL_EV_GO, d[i].sid, &event));
		cr_assert(world_take(&w, s[i].agent, CTL_EV_GRANT, s[i].sid, &grant));
		legs[i] = event.u.go.grant.leg;
		cr_assert_eq(event.u.go.grant.source_sid, s[i].sid);
		cr_assert_eq(event.u.go.grant.source_gen, 1);
		cr_assert_str_eq(event.u.go.grant.source_replica, "src");
		cr_assert_str_eq(event.u.go.grant.source_node, w.agents[s[i].agent].node);
		cr_assert_eq(grant.u.grant.leg, legs[i]);
		cr_assert_eq(grant.u.grant.gen, 1);
		cr_assert_eq(grant.u.grant.reader_agent_inc, w.agents[c].inc);
		cr_assert_eq(memcmp(&grant.u.grant.ticket, &event.u.go.grant.ticket,
				     sizeof(struct th_ticket)),
			0);
	}
	world_finish(&w, &d[0], legs[0]);
	cr_assert_not(world_ended(&w, &d[0])); /* all or nothing */
	world_finish(&w, &d[1], legs[1]);
	for (int i = 0; i < 2; i++) {
		struct ctl_ev_outcome end = world_outcome(&w, &d[i]);
		cr_assert_eq(end.code, 0);
		cr_assert(end.updated);
		cr_assert_eq(end.version.version, 4);
		cr_assert_str_eq(end.source, "src");
	}
}

Test(refsrv_replicate, wait__version_not_there__plan_when_it_comes)
{
	struct world_member d = single(b, "dst");
	world_call(&w, &d, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	cr_assert_not(world_has(&w, b, CTL_EV_PLAN, d.sid));
	world_published(&w, a, "src", "3");
	cr_assert(world_has(&w, b, CTL_EV_PLAN, d.sid));
}

Test(refsrv_replicate, wait__deadline__timeout_and_nothing_changed)
{
	struct world_member d = single(b, "dst");
	world_call(&w, &d, CTL_OP_REPLICATE, "3", SEC);
	world_sleep(&w, 1100 * MS);
	struct ctl_ev_outcome end = world_outcome(&w, &d);
	cr_assert_eq(end.code, TH_E_TIMEOUT);
	cr_assert(strstr(end.text, "no source has the version"));
}

Test(refsrv_replicate, held__same_version__nothing_to_do)
{
	struct world_member d = world_published(&w, a, "dst", "3");
	world_call(&w, &d, CTL_OP_REPLICATE, "3", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &d);
	cr_assert_eq(end.code, 0);
	cr_assert_not(end.updated);
	cr_assert_eq(end.version.version, 3);
}

Test(refsrv_replicate, held__another_version__state)
{
	struct world_member d = world_published(&w, a, "dst", "3");
	world_published(&w, b, "src", "4");
	world_call(&w, &d, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &d);
	cr_assert_eq(end.code, TH_E_STATE);
	cr_assert_eq(end.version.version, 3);
}

Test(refsrv_replicate, layout__other_number_of_shards__names_both)
{
	struct world_member d = world_member(&w, b, "dst", 0, 2);
	world_published(&w, a, "src", "3");
	world_call(&w, &d, CTL_OP_REPLICATE, "3", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &d);
	cr_assert_eq(end.code, TH_E_LAYOUT);
	cr_assert(strstr(end.text, "1 shards") && strstr(end.text, "has 2"));
}

Test(refsrv_replicate, layout__agent_did_not_compare__the_server_does)
{
	struct world_member d = single(b, "dst");
	world_published(&w, a, "src", "3");
	cr_assert_eq(world_register(&w, b, d.sid, 7), 0);
	world_call(&w, &d, CTL_OP_REPLICATE, "3", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &d, 0), 0);
	cr_assert_eq(world_outcome(&w, &d).code, TH_E_LAYOUT);
	cr_assert_not(world_has(&w, b, CTL_EV_GO, 0));
}

Test(refsrv_replicate, prepared__one_cannot__all_get_its_cause)
{
	struct world_member s[2] = {
		world_member(&w, a, "src", 0, 2), world_member(&w, a, "src", 1, 2)};
	struct world_member d[2] = {
		world_member(&w, b, "dst", 0, 2), world_member(&w, c, "dst", 1, 2)};
	call_both(s, CTL_OP_PUBLISH, "4");
	world_call(&w, &d[0], CTL_OP_REPLICATE, "4", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &d[0], TH_E_MEMORY_KIND), 0);
	struct ctl_ev_outcome end = world_outcome(&w, &d[0]);
	cr_assert_eq(end.code, TH_E_MEMORY_KIND);
	cr_assert_str_eq(end.text, "shard 0 cannot");
	world_call(&w, &d[1], CTL_OP_REPLICATE, "4", TH_FOREVER);
	end = world_outcome(&w, &d[1]);
	cr_assert_eq(end.code, TH_E_MEMORY_KIND);
	cr_assert_str_eq(end.text, "shard 0 cannot");
}

Test(refsrv_replicate, prepared__again_or_late__no_effect)
{
	struct world_member d = single(b, "dst");
	cr_assert_eq(world_prepared(&w, &d, 0), 0); /* no operation */
	world_published(&w, a, "src", "3");
	world_call(&w, &d, CTL_OP_REPLICATE, "3", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &d, 7), TH_E_INVALID);
	cr_assert_eq(world_prepared(&w, &d, 0), 0);
	struct ctl_grant grant = world_go(&w, &d);
	cr_assert_eq(world_prepared(&w, &d, 0), 0);
	cr_assert_eq(world_prepared(&w, &d, TH_E_LAYOUT), 0);
	cr_assert_not(world_has(&w, b, CTL_EV_GO, d.sid));
	finished(&d, grant.leg);
}

Test(refsrv_replicate, cancel__after_go__too_late)
{
	struct world_member d = single(b, "dst");
	world_published(&w, a, "src", "3");
	struct ctl_grant grant = world_begin(&w, &d, CTL_OP_REPLICATE, "3");
	cr_assert_eq(world_cancel(&w, &d), 0);
	cr_assert_not(world_ended(&w, &d));
	finished(&d, grant.leg);
}

Test(refsrv_replicate, deadline__after_go__runs_on)
{
	struct world_member d = single(b, "dst");
	world_published(&w, a, "src", "3");
	world_call(&w, &d, CTL_OP_REPLICATE, "3", SEC);
	cr_assert_eq(world_prepared(&w, &d, 0), 0);
	struct ctl_grant grant = world_go(&w, &d);
	world_sleep(&w, 5 * SEC);
	cr_assert_not(world_ended(&w, &d));
	finished(&d, grant.leg);
}

Test(refsrv_replicate, lost_before_go__replicate_says_so)
{
	struct world_member src = world_published(&w, a, "src", "4");
	struct world_member d = single(b, "dst");
	world_call(&w, &d, CTL_OP_REPLICATE, "4", TH_FOREVER);
	taken(&d, CTL_EV_PLAN);
	unpublish(&src);
	cr_assert_eq(world_outcome(&w, &d).code, TH_E_VERSION_LOST);
}

Test(refsrv_replicate, lost_before_go__update_finds_nothing_new_and_old_copy_restored)
{
	struct world_member src = world_published(&w, a, "src", "4");
	struct world_member d = world_published(&w, b, "dst", "3");
	world_call(&w, &d, CTL_OP_UPDATE, "latest", TH_FOREVER);
	taken(&d, CTL_EV_PLAN);
	unpublish(&src);
	struct ctl_ev_outcome end = world_outcome(&w, &d);
	cr_assert_eq(end.code, 0);
	cr_assert_not(end.updated);
	cr_assert_eq(end.version.version, 3);
	cr_assert(world_has(&w, b, CTL_EV_UNDRAIN, d.sid));
}

/* The member's next PLAN for what it has called; and it is prepared for that. */
static struct ctl_ev_plan
plan_of(const struct world_member *m)
{
	struct ctl_event event = taken(m, CTL_EV_PLAN);
	return event.u.plan;
}

static void
prepared_for(const struct world_member *m, uint32_t plan_no, int code)
{
	struct ctl_request request = {.kind = CTL_PREPARED};

	request.u.prepared.sid = m->sid;
	request.u.prepared.op_seq = m->seq;
	request.u.prepared.plan_no = plan_no;
	request.u.prepared.code = code;
	cr_assert_eq(world_request(&w, m->agent, &request), 0);
}

Test(refsrv_replicate, lost_before_go__update_plans_anew_what_there_is)
{
	struct world_member src = world_published(&w, a, "src", "4");
	struct world_member d = world_published(&w, b, "dst", "3");
	world_call(&w, &d, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_ev_plan first = plan_of(&d);
	cr_assert_eq(first.version.version, 4);
	world_published(&w, c, "next", "5");
	unpublish(&src);
	/* What it gave up for the first is given back before the second takes it again. */
	taken(&d, CTL_EV_UNDRAIN);
	struct ctl_ev_plan second = plan_of(&d);
	cr_assert_eq(second.version.version, 5);
	cr_assert(second.drain_old);
	cr_assert_gt(second.plan_no, first.plan_no);
	prepared_for(&d, second.plan_no, 0);
	struct ctl_grant grant = world_go(&w, &d);
	world_finish(&w, &d, grant.leg);
	struct ctl_ev_outcome end = world_outcome(&w, &d);
	cr_assert_eq(end.code, 0);
	cr_assert(end.updated);
	cr_assert_eq(end.version.version, 5);
}

Test(refsrv_replicate, planned_anew__prepared_for_the_first_plan__counts_for_nothing)
{
	struct world_member src[2] = {
		world_member(&w, a, "src", 0, 2), world_member(&w, a, "src", 1, 2)};
	struct world_member next[2] = {
		world_member(&w, a, "next", 0, 2), world_member(&w, a, "next", 1, 2)};
	struct world_member d[2] = {
		world_member(&w, b, "dst", 0, 2), world_member(&w, c, "dst", 1, 2)};
	call_both(src, CTL_OP_PUBLISH, "4");
	world_call(&w, &d[0], CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_ev_plan first = plan_of(&d[0]);
	prepared_for(&d[0], first.plan_no, 0);
	call_both(next, CTL_OP_PUBLISH, "5");
	call_both(src, CTL_OP_UNPUBLISH, "");
	for (int i = 0; i < 2; i++)
		world_drained(&w, &src[i]);
	struct ctl_ev_plan second = plan_of(&d[0]);
	cr_assert_eq(second.version.version, 5);
	/* A member that calls late hears of the second only; the first comes late, and is void. */
	world_call(&w, &d[1], CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(plan_of(&d[1]).plan_no, second.plan_no);
	cr_assert_not(world_has(&w, c, CTL_EV_PLAN, d[1].sid));
	prepared_for(&d[1], second.plan_no, 0);
	prepared_for(&d[0], first.plan_no, 0);
	prepared_for(&d[0], first.plan_no, TH_E_LAYOUT);
	cr_assert_not(world_has(&w, b, CTL_EV_GO, d[0].sid));
	cr_assert_not(world_ended(&w, &d[0]));
	prepared_for(&d[0], second.plan_no, 0);
	cr_assert(world_has(&w, b, CTL_EV_GO, d[0].sid));
	cr_assert(world_has(&w, c, CTL_EV_GO, d[1].sid));
}

Test(refsrv_replicate, source_draining_at_go__waits_for_its_return)
{
	struct world_member src = world_published(&w, a, "src", "4");
	struct world_member d = single(b, "dst");
	world_call(&w, &d, CTL_OP_REPLICATE, "4", TH_FOREVER);
	taken(&d, CTL_EV_PLAN);
	world_call(&w, &src, CTL_OP_UNPUBLISH, "", SEC);
	cr_assert_eq(world_prepared(&w, &d, 0), 0);
	cr_assert_not(world_has(&w, b, CTL_EV_GO, d.sid));
	world_sleep(&w, 1100 * MS);
	cr_assert_eq(world_outcome(&w, &src).code, TH_E_TIMEOUT);
	cr_assert(world_has(&w, b, CTL_EV_GO, d.sid));
}

/* ---- update ---- */

static void
expect_nothing_new(struct world_member *d, const char *spec, uint64_t held)
{
	world_call(&w, d, CTL_OP_UPDATE, spec, TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, d);
	cr_assert_eq(end.code, 0);
	cr_assert_not(end.updated);
	cr_assert_eq(end.version.version, held);
	cr_assert_not(world_has(&w, d->agent, CTL_EV_PLAN, d->sid));
}

Test(refsrv_replicate, update__nothing_new__decided_without_the_others)
{
	struct world_member d[2] = {
		world_member(&w, a, "dst", 0, 2), world_member(&w, b, "dst", 1, 2)};
	expect_nothing_new(&d[0], "latest", TH_NO_VERSION);
	struct world_member s[2] = {
		world_member(&w, c, "src", 0, 2), world_member(&w, c, "src", 1, 2)};
	call_both(s, CTL_OP_PUBLISH, "4");
	/* The second member gets what the first got, although a version has come meanwhile. */
	expect_nothing_new(&d[1], "latest", TH_NO_VERSION);
}

Test(refsrv_replicate, update__never_backward_by_a_relative_name)
{
	struct world_member d = world_published(&w, b, "dst", "5");
	world_published(&w, a, "src", "4");
	expect_nothing_new(&d, "latest", 5);
	expect_nothing_new(&d, "latest-1", 5);
	expect_nothing_new(&d, "9", 5); /* not there: does not wait */
	expect_nothing_new(&d, "5", 5);
	struct ctl_grant grant = world_begin(&w, &d, CTL_OP_UPDATE, "4"); /* an absolute one may */
	world_finish(&w, &d, grant.leg);
	cr_assert_eq(world_outcome(&w, &d).version.version, 4);
}

Test(refsrv_replicate, update__something_new__old_copy_hidden_then_replaced)
{
	struct world_member d = world_published(&w, b, "dst", "3");
	world_published(&w, a, "src", "4");
	world_call(&w, &d, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_event event = taken(&d, CTL_EV_PLAN);
	cr_assert(event.u.plan.drain_old);
	cr_assert_eq(num_versions(a), 2);
	cr_assert_eq(w.reply.u.list.versions[0].replicas[0].flags,
		CTL_REPLICA_READY | CTL_REPLICA_DRAINING);
	cr_assert_eq(world_prepared(&w, &d, 0), 0);
	struct ctl_grant grant = world_go(&w, &d);
	cr_assert_eq(num_versions(a), 1);
	world_finish(&w, &d, grant.leg);
	struct ctl_ev_outcome end = world_outcome(&w, &d);
	cr_assert(end.updated);
	cr_assert_eq(end.version.version, 4);
}

Test(refsrv_replicate, update__ends_before_go__old_copy_is_served_again)
{
	struct world_member d[2] = {
		world_member(&w, b, "dst", 0, 2), world_member(&w, b, "dst", 1, 2)};
	struct world_member s[2] = {
		world_member(&w, a, "src", 0, 2), world_member(&w, a, "src", 1, 2)};
	call_both(d, CTL_OP_PUBLISH, "3");
	succeeded_both(d);
	call_both(s, CTL_OP_PUBLISH, "4");
	world_call(&w, &d[0], CTL_OP_UPDATE, "latest", SEC);
	world_sleep(&w, 1100 * MS);
	struct ctl_ev_outcome end = world_outcome(&w, &d[0]);
	cr_assert_eq(end.code, TH_E_TIMEOUT);
	cr_assert_eq(end.version.version, 3);
	taken(&d[0], CTL_EV_UNDRAIN);
	cr_assert_not(world_has(&w, b, CTL_EV_UNDRAIN, d[1].sid)); /* it never had a PLAN */
	cr_assert_eq(num_versions(a), 2);
	cr_assert_eq(w.reply.u.list.versions[0].replicas[0].flags, CTL_REPLICA_READY);
}

Test(refsrv_replicate, update__all_sources_draining__nothing_new)
{
	struct world_member src = world_published(&w, a, "src", "4");
	struct world_member d = world_published(&w, b, "dst", "3");
	world_call(&w, &src, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	/* latest is still 4, so latest-1 is 3, which is held. */
	expect_nothing_new(&d, "latest", 3);
	expect_nothing_new(&d, "latest-1", 3);
}

Test(refsrv_replicate, update__two_holders_want_each_others__none_loses_bytes)
{
	struct world_member x = world_published(&w, a, "x", "1"),
			    y = world_published(&w, b, "y", "2");
	world_call(&w, &x, CTL_OP_UPDATE, "2", TH_FOREVER);
	taken(&x, CTL_EV_PLAN);
	expect_nothing_new(&y, "1", 2); /* what it wants is being given up */
	cr_assert_eq(world_prepared(&w, &x, 0), 0);
	struct ctl_grant grant = world_go(&w, &x);
	world_finish(&w, &x, grant.leg);
	cr_assert_eq(world_outcome(&w, &x).version.version, 2);
}

Test(refsrv_replicate, latest__orphan_partial_does_not_count__chain_does)
{
	struct world_member old = world_published(&w, c, "old", "3");
	struct world_member src = world_published(&w, a, "src", "4");
	struct world_member d = single(b, "dst"), e = single(c, "e");
	struct ctl_request resolve = {.kind = CTL_RESOLVE};
	(void)old;
	strcpy(resolve.u.resolve.model, "m");
	strcpy(resolve.u.resolve.spec, "latest");
	struct ctl_grant grant = world_begin(&w, &d, CTL_OP_REPLICATE, "4");
	cr_assert_eq(world_close(&w, &src, true), 0); /* its agent lets the leg finish */
	cr_assert_eq(world_request(&w, c, &resolve), 0);
	cr_assert_eq(w.reply.u.resolve.version.version, 4);
	/* And a new reader may join behind it. */
	struct ctl_grant behind = world_begin(&w, &e, CTL_OP_REPLICATE, "latest");
	cr_assert_eq(behind.source_sid, d.sid);
	cr_assert_eq(behind.source_gen, d.seq);
	world_finish(&w, &d, grant.leg);
	finished(&e, behind.leg);
}

/* ---- source choice ---- */

Test(refsrv_replicate, route__same_agent_before_same_datacenter_before_other)
{
	uint32_t far = world_agent_in(&w, "dc2");
	struct world_member at_far = world_published(&w, far, "s0", "1");
	struct world_member d0 = single(b, "d0"), d1 = single(b, "d1");
	struct world_member d2 = single(c, "d2");
	struct ctl_grant g0 = world_begin(&w, &d0, CTL_OP_REPLICATE, "1");
	cr_assert_eq(g0.source_sid, at_far.sid);
	struct ctl_grant g1 = world_begin(&w, &d1, CTL_OP_REPLICATE, "1");
	cr_assert_eq(g1.source_sid, d0.sid); /* the same host */
	cr_assert_eq(g1.source_agent_inc, w.agents[b].inc);
	struct ctl_grant g2 = world_begin(&w, &d2, CTL_OP_REPLICATE, "1");
	cr_assert_eq(g2.source_sid, d1.sid); /* the same datacenter, without a leg */
}

Test(refsrv_replicate, route__least_loaded__one_leg_each_makes_a_chain)
{
	struct world_member src = world_published(&w, a, "src", "1");
	struct world_member d[6];
	uint64_t expected = src.sid;
	for (int i = 0; i < 6; i++) {
		char name[8];
		uint32_t agent = world_agent(&w);
		snprintf(name, sizeof(name), "d%d", i);
		d[i] = single(agent, name);
		cr_assert_eq(world_begin(&w, &d[i], CTL_OP_REPLICATE, "1").source_sid, expected);
		expected = d[i].sid;
	}
}

Test(refsrv_replicate, route__no_pipelining__only_ready_copies)
{
	world_fini(&w);
	start(false);
	struct world_member src = world_published(&w, a, "src", "1");
	struct world_member d0 = single(b, "d0"), d1 = single(c, "d1"), d2 = single(c, "d2");
	struct ctl_grant g0 = world_begin(&w, &d0, CTL_OP_REPLICATE, "1");
	cr_assert_eq(g0.source_sid, src.sid);
	cr_assert_eq(world_begin(&w, &d1, CTL_OP_REPLICATE, "1").source_sid, src.sid);
	world_finish(&w, &d0, g0.leg);
	cr_assert_eq(world_begin(&w, &d2, CTL_OP_REPLICATE, "1").source_sid, d0.sid);
}

Test(refsrv_replicate, route__equal_load__fewest_descendants_then_longest_prefix_then_oldest)
{
	struct world_member s0 = world_published(&w, a, "s0", "1"),
			    s1 = world_published(&w, b, "s1", "1");
	struct world_member d0 = single(c, "d0");
	cr_assert_eq(world_begin(&w, &d0, CTL_OP_REPLICATE, "1").source_sid, s0.sid);
	/* s1 is without a leg and complete; d0 without a leg, but empty. */
	uint32_t agent = world_agent(&w);
	struct world_member d1 = single(agent, "d1");
	cr_assert_eq(world_begin(&w, &d1, CTL_OP_REPLICATE, "1").source_sid, s1.sid);
}

Test(refsrv_replicate, route__one_replica_for_all_shards)
{
	struct world_member s[2][2], d[2];
	for (uint32_t r = 0; r < 2; r++) {
		for (uint32_t i = 0; i < 2; i++) {
			s[r][i] = world_member(&w, r == 0 ? a : b, r == 0 ? "s0" : "s1", i, 2);
			world_call(&w, &s[r][i], CTL_OP_PUBLISH, "1", TH_FOREVER);
		}
		for (uint32_t i = 0; i < 2; i++)
			cr_assert_eq(world_outcome(&w, &s[r][i]).code, 0);
	}
	/* One shard is on a host with a source, the other is not: still one replica for both. */
	d[0] = world_member(&w, b, "d", 0, 2);
	d[1] = world_member(&w, c, "d", 1, 2);
	call_both(d, CTL_OP_REPLICATE, "1");
	prepared_both(d);
	for (int i = 0; i < 2; i++)
		cr_assert_eq(world_go(&w, &d[i]).source_sid, s[1][i].sid);
}

Test(refsrv_replicate, route__suspect_agent__no_new_grants_from_or_to_it)
{
	struct world_member s0 = world_published(&w, a, "s0", "1"),
			    s1 = world_published(&w, b, "s1", "1");
	struct world_member d = single(c, "d");
	(void)s0;
	w.agents[a].silent = true;
	world_sleep(&w, 5 * SEC);
	struct ctl_grant grant = world_begin(&w, &d, CTL_OP_REPLICATE, "1");
	cr_assert_eq(grant.source_sid, s1.sid);
	/* To a suspect agent nothing begins either, until it beats again. */
	struct world_member e = single(a, "e");
	world_call(&w, &e, CTL_OP_REPLICATE, "1", TH_FOREVER);
	taken(&e, CTL_EV_PLAN);
	cr_assert_eq(world_prepared(&w, &e, 0), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_GO, e.sid));
	w.agents[a].silent = false;
	world_sleep(&w, 2 * SEC);
	cr_assert(world_has(&w, a, CTL_EV_GO, e.sid));
}
