/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, failures: sources that fail, checksums, lost versions, aborts after GO, close, death of
 * workers and agents.
 */
#include "tests/unit/server/refsrv_fixture.h"

static uint32_t d;

static void
setup(void)
{
	setup_three();
	d = world_agent(&w);
}

TestSuite(refsrv_failure, .init = setup, .fini = teardown);

static struct ctl_ev_reroute
rerouted(const struct world_member *m)
{
	struct ctl_event event = taken(m, CTL_EV_REROUTE);
	cr_assert_eq(event.u.reroute.op_seq, m->seq);
	return event.u.reroute;
}

static void
source_fails(const struct world_member *m, uint64_t leg, int code, uint32_t chunks)
{
	cr_assert_eq(world_leg_end(&w, m->agent, leg, code, true, chunks), 0);
}

/* The host pair's whole exchange after CANCEL: the reader ends its leg. */
static void
expect_cancel(const struct world_member *m, uint64_t leg)
{
	struct ctl_event event = taken(m, CTL_EV_CANCEL);
	cr_assert_eq(event.u.cancel.op_seq, m->seq);
	cr_assert_eq(world_leg_end(&w, m->agent, leg, TH_E_CANCELLED, false, 1), 0);
}

static uint32_t
num_replicas(void)
{
	cr_assert_eq(world_list(&w, d, "m"), 0);
	return w.reply.u.list.num_versions == 0 ? 0 : w.reply.u.list.versions[0].num_replicas;
}

/* ---- sources that fail ---- */

Test(refsrv_failure, source__fails__another_one_and_the_pair_is_avoided)
{
	struct world_member s0 = world_published(&w, a, "s0", "1"),
			    s1 = world_published(&w, b, "s1", "1");
	struct world_member r = single(c, "r"), r2 = single(c, "r2"), r3 = single(d, "r3");
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	cr_assert_eq(grant.source_sid, s0.sid);
	source_fails(&r, grant.leg, TH_E_NO_PATH, 4);
	struct ctl_ev_reroute moved = rerouted(&r);
	cr_assert_eq(moved.old_leg, 0);
	cr_assert_eq(moved.grant.source_sid, s1.sid);
	world_finish(&w, &r, moved.grant.leg);
	struct ctl_ev_outcome end = world_outcome(&w, &r);
	cr_assert_eq(end.code, 0);
	cr_assert_str_eq(end.source, "s1");
	/* The pair is blocked, not the source: another host still reads from it. */
	cr_assert_eq(world_close(&w, &r, false), 0);
	struct ctl_ev_part drain = world_take_drain(&w, &r);
	world_drain_done(&w, c, &drain);
	cr_assert_eq(world_begin(&w, &r2, CTL_OP_REPLICATE, "1").source_sid, s1.sid);
	cr_assert_eq(world_begin(&w, &r3, CTL_OP_REPLICATE, "1").source_sid, s0.sid);
}

Test(refsrv_failure, source__only_one_and_blocked__tried_again_after_a_while)
{
	struct world_member s0 = world_published(&w, a, "s0", "1");
	struct world_member r = single(c, "r");
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	source_fails(&r, grant.leg, TH_E_NO_PATH, 4);
	cr_assert_not(world_has(&w, c, CTL_EV_REROUTE, r.sid));
	world_sleep(&w, SEC);
	cr_assert_not(world_has(&w, c, CTL_EV_REROUTE, r.sid));
	world_sleep(&w, SEC); /* 30 s / 16, because nothing else is left */
	struct ctl_ev_reroute moved = rerouted(&r);
	cr_assert_eq(moved.grant.source_sid, s0.sid);
	/* It fails again: twice as long. */
	source_fails(&r, moved.grant.leg, TH_E_NO_PATH, 4);
	world_sleep(&w, 3 * SEC);
	cr_assert_not(world_has(&w, c, CTL_EV_REROUTE, r.sid));
	world_sleep(&w, SEC);
	moved = rerouted(&r);
	finished(&r, moved.grant.leg);
}

Test(refsrv_failure, checksum__every_source__abort_with_checksum)
{
	world_published(&w, a, "s0", "1");
	world_published(&w, b, "s1", "1");
	struct world_member r = single(c, "r");
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	source_fails(&r, grant.leg, TH_E_CHECKSUM, 4);
	struct ctl_ev_reroute moved = rerouted(&r);
	cr_assert_neq(moved.grant.source_sid, grant.source_sid);
	source_fails(&r, moved.grant.leg, TH_E_CHECKSUM, 4);
	struct ctl_ev_outcome end = world_outcome(&w, &r);
	cr_assert_eq(end.code, TH_E_CHECKSUM);
	cr_assert(strstr(end.text, "the last: leg failed. Look for"), "%s", end.text);
	cr_assert_eq(end.version.version, TH_NO_VERSION);
	cr_assert_eq(num_replicas(), 2);
}

Test(refsrv_failure, reader__fails_by_itself__all_members_get_its_cause)
{
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, b, "s", 1, 2)};
	struct world_member r[2] = {world_member(&w, c, "r", 0, 2), world_member(&w, d, "r", 1, 2)};
	struct ctl_grant grant[2];
	call_both(s, CTL_OP_PUBLISH, "1");
	begin_both(r, "1", grant);
	cr_assert_eq(world_leg_end(&w, c, grant[0].leg, TH_E_STALE_MEMORY, false, 3), 0);
	cr_assert_not(world_ended(&w, &r[0])); /* the other's leg still runs */
	expect_cancel(&r[1], grant[1].leg);
	for (int i = 0; i < 2; i++) {
		struct ctl_ev_outcome end = world_outcome(&w, &r[i]);
		cr_assert_eq(end.code, TH_E_STALE_MEMORY);
		cr_assert_str_eq(end.text, "leg failed");
		cr_assert_eq(end.version.version, TH_NO_VERSION);
	}
	/* The group holds nothing and may try again. */
	world_call(&w, &r[0], CTL_OP_REPLICATE, "1", TH_FOREVER);
	cr_assert(world_has(&w, c, CTL_EV_PLAN, r[0].sid));
}

Test(refsrv_failure, leg_end__bad_or_strange__refused_or_ignored)
{
	struct world_member r = single(c, "r");
	world_published(&w, a, "s0", "1");
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	cr_assert_eq(world_leg_end(&w, c, grant.leg, 0, false, WORLD_CHUNKS - 1), TH_E_INVALID);
	cr_assert_eq(world_leg_end(&w, c, grant.leg, 5, false, 1), TH_E_INVALID);
	cr_assert_eq(world_leg_end(&w, c, grant.leg, TH_E_NO_PATH, true, WORLD_CHUNKS + 1),
		TH_E_INVALID);
	cr_assert_eq(world_leg_end(&w, d, grant.leg, 0, false, WORLD_CHUNKS), TH_E_INVALID);
	cr_assert_eq(world_leg_end(&w, c, grant.leg + 1, 0, false, WORLD_CHUNKS), 0);
	world_finish(&w, &r, grant.leg);
	world_finish(&w, &r, grant.leg); /* again: forgotten, answered 0 */
	succeeded(&r);
	cr_assert_not(world_ended(&w, &r));
}

/* ---- chains ---- */

Test(refsrv_failure, chain__middle_aborts__children_move_and_it_is_drained_before_its_outcome)
{
	struct world_member s = world_published(&w, a, "s", "1"), m = single(b, "m"),
			    r = single(c, "r");
	struct ctl_event event;
	struct ctl_grant gm = world_begin(&w, &m, CTL_OP_REPLICATE, "1");
	struct ctl_grant gr = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	cr_assert_eq(gr.source_sid, m.sid);
	cr_assert_eq(world_leg_end(&w, b, gm.leg, TH_E_STALE_MEMORY, false, 3), 0);
	cr_assert(world_take(&w, b, CTL_EV_CANCEL, m.sid, &event));
	cr_assert(world_take(&w, b, CTL_EV_FENCE, 0, &event));
	cr_assert_eq(event.u.fence_leg, gr.leg);
	struct ctl_ev_part drain = world_take_drain(&w, &m);
	cr_assert_eq(drain.gen, m.seq);
	cr_assert_not(world_ended(&w, &m)); /* somebody may still read its bytes */
	struct ctl_ev_reroute moved = rerouted(&r);
	cr_assert_eq(moved.old_leg, gr.leg);
	cr_assert_eq(moved.grant.source_sid, s.sid);
	cr_assert_eq(world_drain_done(&w, b, &drain), 0);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_STALE_MEMORY);
	source_fails(&r, gr.leg, TH_E_NO_PATH, 2); /* the old leg's end: nobody is blamed */
	cr_assert_not(world_has(&w, c, CTL_EV_REROUTE, r.sid));
	finished(&r, moved.grant.leg);
}

Test(refsrv_failure, chain__end_crosses_the_reroute__a_success_counts)
{
	struct world_member s = world_published(&w, a, "s", "1"), m = single(b, "m"),
			    r = single(c, "r");
	struct ctl_event event;
	struct ctl_grant gm = world_begin(&w, &m, CTL_OP_REPLICATE, "1");
	struct ctl_grant gr = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	cr_assert_eq(world_leg_end(&w, b, gm.leg, TH_E_STALE_MEMORY, false, 3), 0);
	struct ctl_ev_reroute moved = rerouted(&r);
	world_finish(&w, &r, gr.leg); /* sent before the REROUTE was seen */
	succeeded(&r);
	/* The new grant is taken back. */
	cr_assert(world_take(&w, a, CTL_EV_FENCE, 0, &event));
	cr_assert_eq(event.u.fence_leg, moved.grant.leg);
	(void)s;
}

Test(refsrv_failure, chain__no_cycle__a_descendant_is_never_the_source)
{
	struct world_member s = world_published(&w, a, "s", "1"), m = single(b, "m"),
			    r = single(c, "r");
	struct ctl_grant gm = world_begin(&w, &m, CTL_OP_REPLICATE, "1");
	struct ctl_grant gr = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	cr_assert_eq(gr.source_sid, m.sid);
	source_fails(&m, gm.leg, TH_E_NO_PATH, 3);
	/* r hangs on m: the blocked s is waited for instead. */
	cr_assert_not(world_has(&w, b, CTL_EV_REROUTE, m.sid));
	world_sleep(&w, 2 * SEC);
	struct ctl_ev_reroute moved = rerouted(&m);
	cr_assert_eq(moved.grant.source_sid, s.sid);
	world_finish(&w, &m, moved.grant.leg);
	world_finish(&w, &r, gr.leg);
	succeeded(&m);
	succeeded(&r);
}

Test(refsrv_failure, lost__last_complete_copy_dies__version_lost_for_the_whole_chain)
{
	struct world_member s = world_published(&w, a, "s", "1"), m = single(b, "m"),
			    r = single(c, "r");
	struct ctl_grant gm = world_begin(&w, &m, CTL_OP_REPLICATE, "1");
	struct ctl_grant gr = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	w.agents[a].silent = true;
	world_sleep(&w, 11 * SEC);
	cr_assert_not(world_ended(&w, &m)); /* what it brought is not known yet */
	source_fails(&m, gm.leg, TH_E_NO_PATH, 3);
	taken(&m, CTL_EV_CANCEL);
	world_drained(&w, &m);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_VERSION_LOST);
	cr_assert_not(world_ended(&w, &r));
	source_fails(&r, gr.leg, TH_E_NO_PATH, 2);
	cr_assert_eq(world_outcome(&w, &r).code, TH_E_VERSION_LOST);
	cr_assert_eq(num_replicas(), 0);
	(void)s;
}

Test(refsrv_failure, lost__reader_had_everything__it_is_the_new_source)
{
	struct world_member s = world_published(&w, a, "s", "1"), m = single(b, "m"),
			    r = single(c, "r");
	struct ctl_grant gm = world_begin(&w, &m, CTL_OP_REPLICATE, "1");
	struct ctl_grant gr = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	w.agents[a].silent = true;
	world_sleep(&w, 11 * SEC);
	finished(&m, gm.leg);
	finished(&r, gr.leg);
	cr_assert_eq(num_replicas(), 2);
	(void)s;
}

/* ---- close and death of workers ---- */

Test(refsrv_failure, close__one_shard_group__simply_unpublishes)
{
	struct world_member s = world_published(&w, a, "s", "1");
	cr_assert_eq(world_close(&w, &s, false), 0); /* answered at once */
	cr_assert_eq(num_replicas(), 0);
	cr_assert_eq(num_members(), 1); /* kept until its part is proven drained */
	struct ctl_ev_part drain = world_take_drain(&w, &s);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, s.sid));
	cr_assert_eq(world_drain_done(&w, a, &drain), 0);
	cr_assert_eq(num_members(), 0);
	cr_assert_eq(world_close(&w, &s, false), TH_E_STATE);
	world_published(&w, a, "s", "1"); /* the name is free */
}

Test(refsrv_failure, close__holds_nothing__forgotten_at_once)
{
	struct world_member s = single(a, "s");
	cr_assert_eq(world_close(&w, &s, false), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, s.sid));
	cr_assert_eq(num_members(), 0);
}

Test(refsrv_failure, close__of_one_member__group_broken_for_the_others)
{
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, b, "s", 1, 2)};
	call_both(s, CTL_OP_PUBLISH, "1");
	succeeded(&s[1]);
	cr_assert_eq(world_close(&w, &s[0], true), 0);
	struct ctl_event event = taken(&s[1], CTL_EV_BROKEN);
	cr_assert(strstr(event.u.broken.text, "shard 0") != NULL);
	cr_assert(strstr(event.u.broken.text, "node0") != NULL);
	cr_assert_eq(num_replicas(), 0);
	/* Both parts are drained, also the survivor's. */
	struct ctl_ev_part d0 = world_take_drain(&w, &s[0]), d1 = world_take_drain(&w, &s[1]);
	cr_assert_eq(world_drain_done(&w, a, &d0), 0);
	cr_assert_eq(world_drain_done(&w, b, &d1), 0);
	world_call(&w, &s[1], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &s[1]).code, TH_E_GROUP_BROKEN);
	cr_assert_eq(num_members(), 1);
	cr_assert_eq(world_close(&w, &s[1], false), 0);
	cr_assert_eq(num_members(), 0); /* its part was drained before */
}

Test(refsrv_failure, close__after_unpublish__a_member_that_calls_later_gets_its_outcome)
{
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, b, "s", 1, 2)};
	call_both(s, CTL_OP_PUBLISH, "1");
	succeeded_both(s);
	world_call(&w, &s[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_part d0 = world_take_drain(&w, &s[0]), d1 = world_take_drain(&w, &s[1]);
	cr_assert_eq(world_drain_done(&w, a, &d0), 0);
	cr_assert_eq(world_drain_done(&w, b, &d1), 0);
	succeeded(&s[0]);
	cr_assert_eq(world_close(&w, &s[0], false), 0);
	world_call(&w, &s[1], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	succeeded(&s[1]);
	world_call(&w, &s[1], CTL_OP_PUBLISH, "2", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &s[1]).code, TH_E_GROUP_BROKEN);
}

Test(refsrv_failure, close__while_an_operation_gathers__broken_for_all)
{
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, b, "s", 1, 2)};
	world_call(&w, &s[0], CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(world_close(&w, &s[1], true), 0);
	cr_assert_eq(world_outcome(&w, &s[0]).code, TH_E_GROUP_BROKEN);
}

Test(refsrv_failure, died__source__running_leg_finishes_from_its_mapping)
{
	struct world_member s = world_published(&w, a, "s", "1"), r = single(b, "r");
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	cr_assert_eq(world_close(&w, &s, true), 0);
	struct ctl_ev_part drain = world_take_drain(&w, &s);
	cr_assert_not(world_has(&w, a, CTL_EV_FENCE, 0));
	finished(&r, grant.leg);
	cr_assert_eq(world_drain_done(&w, a, &drain), 0);
	cr_assert_eq(num_members(), 1);
}

Test(refsrv_failure, died__reader__others_cancelled_its_leg_ended_by_its_agent)
{
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, a, "s", 1, 2)};
	struct world_member r[2] = {world_member(&w, b, "r", 0, 2), world_member(&w, c, "r", 1, 2)};
	struct ctl_grant grant[2];
	call_both(s, CTL_OP_PUBLISH, "1");
	begin_both(r, "1", grant);
	cr_assert_eq(world_close(&w, &r[0], true), 0);
	cr_assert_eq(world_leg_end(&w, b, grant[0].leg, TH_E_CANCELLED, false, 1), 0);
	cr_assert_not(world_ended(&w, &r[1]));
	expect_cancel(&r[1], grant[1].leg);
	cr_assert_eq(world_outcome(&w, &r[1]).code, TH_E_GROUP_BROKEN);
	cr_assert_not(world_ended(&w, &r[0])); /* who has closed hears nothing more */
	cr_assert_eq(num_members(), 3);
}

Test(refsrv_failure, broken__during_unpublish__outcome_for_all_and_drain_goes_on)
{
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, b, "s", 1, 2)};
	call_both(s, CTL_OP_PUBLISH, "1");
	succeeded(&s[0]);
	world_call(&w, &s[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_part d0 = world_take_drain(&w, &s[0]), d1 = world_take_drain(&w, &s[1]);
	cr_assert_eq(world_close(&w, &s[1], false), 0);
	cr_assert_eq(world_outcome(&w, &s[0]).code, TH_E_GROUP_BROKEN);
	cr_assert_not(world_has(&w, a, CTL_EV_UNDRAIN, s[0].sid));
	cr_assert_not(world_has(&w, b, CTL_EV_DRAIN, s[1].sid)); /* one is due, not two */
	cr_assert_eq(world_drain_done(&w, b, &d1), 0);
	cr_assert_eq(num_members(), 1);
	cr_assert_eq(world_drain_done(&w, a, &d0), 0);
}

Test(refsrv_failure, broken__during_update_before_go__old_copy_is_drained_not_restored)
{
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, a, "s", 1, 2)};
	struct world_member r[2] = {world_member(&w, b, "r", 0, 2), world_member(&w, c, "r", 1, 2)};
	call_both(s, CTL_OP_PUBLISH, "2");
	call_both(r, CTL_OP_PUBLISH, "1");
	succeeded_both(r);
	world_call(&w, &r[0], CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &r[0], 0), 0);
	cr_assert_eq(world_close(&w, &r[1], true), 0);
	cr_assert_eq(world_outcome(&w, &r[0]).code, TH_E_GROUP_BROKEN);
	cr_assert_not(world_has(&w, b, CTL_EV_UNDRAIN, r[0].sid));
	world_drained(&w, &r[0]);
}

/* ---- death of agents ---- */

Test(refsrv_failure, agent_dies__its_members_are_gone_and_readers_move)
{
	struct world_member s0 = world_published(&w, a, "s0", "1"),
			    s1 = world_published(&w, b, "s1", "1");
	struct world_member r = single(c, "r");
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	cr_assert_eq(grant.source_sid, s0.sid);
	w.agents[a].silent = true;
	world_sleep(&w, 11 * SEC);
	struct ctl_ev_reroute moved = rerouted(&r);
	cr_assert_eq(moved.old_leg, grant.leg);
	cr_assert_eq(moved.grant.source_sid, s1.sid);
	cr_assert_eq(num_members(), 2);
	finished(&r, moved.grant.leg);
}

Test(refsrv_failure, agent_dies__as_a_reader__its_source_forgets_the_leg)
{
	struct world_member s = world_published(&w, a, "s", "1"), r = single(c, "r");
	struct ctl_event event;
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	w.agents[c].silent = true;
	world_sleep(&w, 11 * SEC);
	cr_assert(world_take(&w, a, CTL_EV_FENCE, 0, &event));
	cr_assert_eq(event.u.fence_leg, grant.leg);
	cr_assert_eq(num_members(), 1);
	cr_assert_eq(num_replicas(), 1);
	(void)s;
}

Test(refsrv_failure, agent_dies__in_the_middle_of_an_operation__one_outcome_for_the_rest)
{
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, a, "s", 1, 2)};
	struct world_member r[2] = {world_member(&w, b, "r", 0, 2), world_member(&w, c, "r", 1, 2)};
	struct ctl_grant grant[2];
	call_both(s, CTL_OP_PUBLISH, "1");
	begin_both(r, "1", grant);
	world_finish(&w, &r[1], grant[1].leg);
	w.agents[b].silent = true;
	world_sleep(&w, 11 * SEC);
	taken(&r[1], CTL_EV_CANCEL);
	cr_assert_eq(world_outcome(&w, &r[1]).code, TH_E_GROUP_BROKEN);
	cr_assert_eq(num_members(), 3);
}

Test(refsrv_failure, agent_dies__one_that_never_fetches_its_events_counts_as_dead)
{
	struct world_member m = single(a, "m");
	w.agents[a].deaf = true;
	for (uint64_t i = 1; i <= 65536 + 1; i++) {
		struct ctl_request request = {.kind = CTL_OP,
			.agent_inc = w.agents[a].inc,
			.secret = world_secret(w.agents[a].inc),
			.attach_no = w.agents[a].attach_no};
		struct refsrv_out out;
		request.request_no = ++w.agents[a].request_no;
		request.u.op = (struct ctl_op){.sid = m.sid, .op_seq = i, .kind = CTL_OP_LIST};
		refsrv_step(w.server, w.now_ns, 1, &request, &out);
	}
	world_sleep(&w, 2 * SEC);
	cr_assert_eq(num_members(), 0);
}

Test(refsrv_failure, abort__success_of_the_old_leg_crosses_reroute_and_cancel__operation_ends)
{
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, a, "s", 1, 2)};
	struct world_member s2[2] = {
		world_member(&w, b, "s2", 0, 2), world_member(&w, b, "s2", 1, 2)};
	struct world_member r[2] = {world_member(&w, c, "r", 0, 2), world_member(&w, d, "r", 1, 2)};
	struct ctl_grant grant[2];
	call_both(s, CTL_OP_PUBLISH, "1");
	begin_both(r, "1", grant);
	call_both(s2, CTL_OP_PUBLISH, "1");
	for (int i = 0; i < 2; i++) {
		succeeded(&s[i]);
		succeeded(&s2[i]);
	}
	world_call(&w, &s[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rerouted(&r[0]);
	struct ctl_ev_reroute moved = rerouted(&r[1]);
	cr_assert_eq(world_leg_end(&w, d, grant[1].leg, TH_E_CANCELLED, true, 1), 0);
	cr_assert_eq(world_leg_end(&w, d, moved.grant.leg, TH_E_STALE_MEMORY, false, 1), 0);
	/* Sent before the REROUTE came; its agent ignores the new leg. */
	cr_assert_not(world_ended(&w, &r[0]));
	world_finish(&w, &r[0], grant[0].leg);
	cr_assert_eq(world_outcome(&w, &r[0]).code, TH_E_STALE_MEMORY);
	cr_assert_eq(world_outcome(&w, &r[1]).code, TH_E_STALE_MEMORY);
}

Test(refsrv_failure, no_pipelining__two_halves_wait_for_each_other__both_end_with_version_lost)
{
	struct refsrv_config config = w.config;
	config.pipelining = false;
	world_fini(&w);
	world_init(&w, &config);
	for (int i = 0; i < 4; i++)
		world_agent(&w);
	struct world_member s[2] = {world_member(&w, a, "s", 0, 2), world_member(&w, a, "s", 1, 2)};
	struct world_member r[2][2] = {
		{world_member(&w, b, "r0", 0, 2), world_member(&w, b, "r0", 1, 2)},
		{world_member(&w, c, "r1", 0, 2), world_member(&w, c, "r1", 1, 2)}};
	struct ctl_grant grant[2][2];
	call_both(s, CTL_OP_PUBLISH, "1");
	for (int g = 0; g < 2; g++) {
		for (int i = 0; i < 2; i++)
			world_call(&w, &r[g][i], CTL_OP_REPLICATE, "1", TH_FOREVER);
		for (int i = 0; i < 2; i++)
			cr_assert_eq(world_prepared(&w, &r[g][i], 0), 0);
		for (int i = 0; i < 2; i++)
			grant[g][i] = world_go(&w, &r[g][i]);
	}
	world_finish(&w, &r[0][0], grant[0][0].leg);
	world_finish(&w, &r[1][1], grant[1][1].leg);
	cr_assert_eq(world_close(&w, &s[0], true), 0);
	source_fails(&r[0][1], grant[0][1].leg, TH_E_NO_PATH, 1);
	source_fails(&r[1][0], grant[1][0].leg, TH_E_NO_PATH, 1);
	for (int g = 0; g < 2; g++)
		for (int i = 0; i < 2; i++)
			cr_assert_eq(world_outcome(&w, &r[g][i]).code, TH_E_VERSION_LOST);
}
