/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, after a former server was lost: operations that had begun run on under their numbers, and
 * for as long as agents may still come nothing counts as missing. See refsrv_rejoin_test.
 */
#include "tests/support/core/refsrv_former.h"
#include "tests/unit/server/refsrv_fixture.h"

static void
setup(void)
{
	former_world(&w, &a, &b, &c);
}

TestSuite(refsrv_rejoin_run, .init = setup, .fini = teardown);

/* ---- what runs ---- */

/* Its source is there already. */
static struct world_member
source_back(uint32_t agent, uint32_t shard, uint32_t num_shards)
{
	struct ctl_rejoin said = former_holds("s", shard, num_shards, 7);

	return former_back(&w, agent, &said);
}

Test(refsrv_rejoin_run, leg__source_is_there__ends_under_its_old_number)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct world_member s = source_back(a, 0, 1), m = former_back(&w, b, &said);
	/* It is known who is read: its unpublish waits. */
	former_all_said(&w);
	world_call(&w, &s, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_has(&w, a, CTL_EV_DRAIN, s.sid));
	cr_assert_not(world_ended(&w, &s));
	finished(&m, FORMER_LEG(1));
	cr_assert(former_listed(&w, 7));
	world_drained(&w, &s);
	succeeded(&s);
}

Test(refsrv_rejoin_run, leg__source_comes_later__waited_for)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct world_member m = former_back(&w, b, &said);
	cr_assert_not(former_listed(&w, 7));
	source_back(a, 0, 1);
	former_all_said(&w);
	cr_assert_not(former_is_broken(&w, &m));
	finished(&m, FORMER_LEG(1));
}

/* Another copy of the version is there, or would be asked: who reads from whom is what counts. */
Test(refsrv_rejoin_run, leg__source_comes_later_than_another__its_readers_are_known)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin other = former_holds("t", 0, 1, 7);
	struct world_member t = former_back(&w, c, &other), m = former_back(&w, b, &said);
	struct world_member s = source_back(a, 0, 1);
	struct ctl_event event;
	world_call(&w, &s, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_take(&w, b, CTL_EV_REROUTE, m.sid, &event), "it moves on");
	cr_assert_eq(event.u.reroute.old_leg, FORMER_LEG(1));
	cr_assert_eq(event.u.reroute.grant.source_sid, t.sid);
}

/* Somebody else is there with what he says is the same version: t, with other bytes than s. */
static struct world_member
reads_other_bytes(struct ctl_rejoin *s)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin t = former_holds("t", 0, 1, 7);

	former_back(&w, c, &t);
	struct world_member m = former_back(&w, b, &said);
	if (s != NULL)
		former_back(&w, a, s);
	former_all_said(&w);
	return m;
}

static int
ends(const struct world_member *m, uint64_t content)
{
	former_finish(&w, m, FORMER_LEG(1), content);
	if (world_has(&w, b, CTL_EV_DRAIN, m->sid))
		world_drained(&w, m);
	return world_outcome(&w, m).code;
}

Test(refsrv_rejoin_run, leg__source_comes_later_with_other_bytes__they_are_not_taken_for_these)
{
	struct ctl_rejoin s = former_holds("s", 0, 1, 7);
	s.content.lo = 99;
	struct world_member m = reads_other_bytes(&s);
	cr_assert_eq(ends(&m, 0), TH_E_VERSION_CONFLICT);
}

Test(refsrv_rejoin_run, leg__source_never_comes_and_other_bytes_are_here__proof_is_due)
{
	struct world_member m = reads_other_bytes(NULL);
	cr_assert_eq(ends(&m, 99), TH_E_VERSION_CONFLICT);
}

Test(refsrv_rejoin_run, leg__source_never_comes_and_nothing_is_proven__not_taken_for_these)
{
	struct world_member m = reads_other_bytes(NULL);
	cr_assert_eq(ends(&m, 0), TH_E_VERSION_CONFLICT);
}

Test(refsrv_rejoin_run, leg__source_never_comes_and_the_same_bytes_are_here__done)
{
	struct world_member m = reads_other_bytes(NULL);
	cr_assert_eq(ends(&m, 1), 0);
}

Test(refsrv_rejoin_run, legs__in_a_chain_that_comes_back_from_its_end__all_at_once)
{
	struct ctl_rejoin two = former_fills("q", 0, 1, 7, FORMER_LEG(2), "p");
	struct ctl_rejoin one = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct world_member m2 = former_back(&w, c, &two), m1 = former_back(&w, b, &one);
	source_back(a, 0, 1);
	finished(&m1, FORMER_LEG(1));
	finished(&m2, FORMER_LEG(2));
}

Test(refsrv_rejoin_run, leg__its_group_breaks_before_the_rest_is_there__told_so)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin gone = former_shard("p", 1, 2);
	struct world_member m = former_back(&w, a, &one);
	gone.gone = true;
	cr_assert_eq(former_rejoin(&w, b, &gone), 0);
	cr_assert(former_is_broken(&w, &m));
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_GROUP_BROKEN);
}

Test(refsrv_rejoin_run, leg__source_dies_while_agents_are_waited_for__another_may_come)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin other = former_holds("t", 0, 1, 7);
	struct world_member s = source_back(a, 0, 1), m = former_back(&w, b, &said);
	/* What it holds is worth nothing: that of a worker that only died would be kept. */
	struct ctl_request ends = {.kind = CTL_CLOSE};
	ends.u.close.sid = s.sid;
	ends.u.close.broke_contract = true;
	cr_assert_eq(world_request(&w, a, &ends), 0);
	world_drained(&w, &s);
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), TH_E_NO_PATH, true, 3), 0);
	world_sleep(&w, SEC);
	cr_assert_not(world_has(&w, b, CTL_EV_CANCEL, m.sid));
	struct world_member t = former_back(&w, c, &other);
	struct ctl_event event = taken(&m, CTL_EV_REROUTE);
	cr_assert_eq(event.u.reroute.grant.source_sid, t.sid);
}

/* Its agent was told what the publisher had said, so it does not take a reader's word. */
Test(refsrv_rejoin_run, leg__source_never_comes__runs_to_its_end)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	said.announced = (struct th_hash){.lo = 5, .hi = 1};
	struct world_member m = former_back(&w, b, &said);
	former_all_said(&w);
	cr_assert_not(former_is_broken(&w, &m));
	finished(&m, FORMER_LEG(1));
	cr_assert(former_listed(&w, 7), "all of it is here");
}

Test(refsrv_rejoin_run, leg__source_never_comes_and_it_fails__the_version_is_lost)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct world_member m = former_back(&w, b, &said);
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), TH_E_NO_PATH, true, 3), 0);
	world_sleep(&w, SEC);
	cr_assert_not(world_ended(&w, &m), "who warms misses nothing yet");
	former_all_said(&w);
	taken(&m, CTL_EV_CANCEL);
	world_drained(&w, &m);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_VERSION_LOST);
}

Test(refsrv_rejoin_run, leg__fails__goes_on_from_another_that_came_back)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "x");
	struct world_member m = former_back(&w, b, &said);
	struct world_member s = source_back(a, 0, 1);
	former_all_said(&w);
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), TH_E_NO_PATH, true, 3), 0);
	struct ctl_event event = taken(&m, CTL_EV_REROUTE);
	cr_assert_eq(event.u.reroute.grant.source_sid, s.sid);
	cr_assert_geq(event.u.reroute.grant.leg, former_id(0) + (UINT64_C(1) << TH_EPOCH_SHIFT),
		"a number of this life");
	former_finish(&w, &m, event.u.reroute.grant.leg, 1);
	succeeded(&m);
}

Test(refsrv_rejoin_run, leg__none_runs_and_not_all_is_there__a_source_is_named)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, 0, "s");
	said.chunks = 4;
	struct world_member s = source_back(a, 0, 1), m = former_back(&w, b, &said);
	const struct ctl_inspection *all = refsrv_inspect(w.server, w.now_ns);
	for (uint32_t i = 0; i < all->num_members; i++)
		cr_assert_eq(all->members[i].chunks_done,
			all->members[i].sid == m.sid ? 4 : WORLD_CHUNKS);
	struct ctl_event event = taken(&m, CTL_EV_REROUTE);
	cr_assert_eq(event.u.reroute.old_leg, 0);
	cr_assert_eq(event.u.reroute.grant.source_sid, s.sid);
}

Test(refsrv_rejoin_run, leg__has_a_number_of_this_life__is_not_believed_and_another_is_named)
{
	struct world_member s = source_back(a, 0, 1), r = world_member(&w, c, "r", 0, 1);
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, r.sid + 100, "s");
	struct world_member m = former_back(&w, b, &said);
	struct ctl_event event = taken(&m, CTL_EV_REROUTE);
	cr_assert_eq(event.u.reroute.old_leg, 0);
	cr_assert_eq(event.u.reroute.grant.source_sid, s.sid);
}

Test(refsrv_rejoin_run, leg__told_to_give_way__another_is_named_and_its_end_still_counts)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	said.leg_stops = true;
	source_back(a, 0, 1);
	struct world_member m = former_back(&w, b, &said);
	struct ctl_event event = taken(&m, CTL_EV_REROUTE);
	cr_assert_eq(event.u.reroute.old_leg, FORMER_LEG(1));
	finished(&m, FORMER_LEG(1));
}

Test(refsrv_rejoin_run, leg__ends_before_the_rest_is_there__counts_then)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_fills("p", 1, 2, 7, FORMER_LEG(2), "s");
	source_back(a, 0, 2);
	source_back(a, 1, 2);
	struct world_member m0 = former_back(&w, b, &one);
	world_finish(&w, &m0, FORMER_LEG(1));
	struct world_member m1 = former_back(&w, c, &two);
	cr_assert_not(world_ended(&w, &m0));
	world_finish(&w, &m1, FORMER_LEG(2));
	succeeded(&m0);
	succeeded(&m1);
}

Test(refsrv_rejoin_run, leg__fails_before_the_rest_is_there__its_operation_fails_for_all)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_fills("p", 1, 2, 7, FORMER_LEG(2), "s");
	source_back(a, 0, 2);
	source_back(a, 1, 2);
	struct world_member m0 = former_back(&w, b, &one);
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), TH_E_LIMIT, false, 1), 0);
	struct world_member m1 = former_back(&w, c, &two);
	cr_assert_eq(world_leg_end(&w, c, FORMER_LEG(2), TH_E_CANCELLED, false, 1), 0);
	world_drained(&w, &m0);
	world_drained(&w, &m1);
	cr_assert_eq(world_outcome(&w, &m0).code, TH_E_LIMIT);
	cr_assert_eq(world_outcome(&w, &m1).code, TH_E_LIMIT);
}

Test(refsrv_rejoin_run, all_is_there__the_operation_ends_at_once)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, 0, "s"), two = one;
	two = former_fills("p", 1, 2, 7, 0, "s");
	one.done = two.done = one.hashed = two.hashed = true;
	one.chunks = two.chunks = WORLD_CHUNKS;
	one.content = (struct th_hash){.lo = 1, .hi = 1};
	two.content = (struct th_hash){.lo = 1, .hi = 2};
	source_back(a, 0, 2);
	source_back(a, 1, 2);
	struct world_member m0 = former_back(&w, b, &one), m1 = former_back(&w, c, &two);
	succeeded(&m0);
	succeeded(&m1);
}

Test(refsrv_rejoin_run, all_is_there_but_other_bytes__broken)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, 0, "s");
	said.done = said.hashed = true;
	said.chunks = WORLD_CHUNKS;
	said.content = (struct th_hash){.lo = 99, .hi = 1};
	source_back(a, 0, 1);
	struct world_member m = former_back(&w, b, &said);
	former_broken(&w, &m, "shard 0 has received other bytes");
	cr_assert(former_listed(&w, 7), "of the source");
}

/* The leg of the other had ended before: nobody says so a second time. */
Test(refsrv_rejoin_run, all_is_there_but_other_bytes__what_ended_before_is_over)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_fills("p", 1, 2, 7, 0, "s");
	two.done = two.hashed = true;
	two.chunks = WORLD_CHUNKS;
	two.content = (struct th_hash){.lo = 99, .hi = 2};
	source_back(a, 0, 2);
	source_back(a, 1, 2);
	struct world_member m0 = former_back(&w, b, &one);
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), TH_E_CANCELLED, false, 1), 0);
	struct world_member m1 = former_back(&w, c, &two);
	former_broken(&w, &m0, "shard 1 has received other bytes");
	world_drained(&w, &m0);
	world_drained(&w, &m1);
	cr_assert_eq(world_outcome(&w, &m0).code, TH_E_GROUP_BROKEN);
	cr_assert_eq(world_close(&w, &m0, false), 0);
	cr_assert_eq(world_close(&w, &m1, false), 0);
	cr_assert_eq(refsrv_inspect(w.server, w.now_ns)->num_transfers, 0);
}

Test(refsrv_rejoin_run, was_being_cancelled__fails_when_all_had_begun)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	said.cancelled = true;
	source_back(a, 0, 1);
	struct world_member m = former_back(&w, b, &said);
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), TH_E_CANCELLED, false, 2), 0);
	world_drained(&w, &m);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_DIRTY);
	cr_assert_not(former_is_broken(&w, &m));
}

Test(refsrv_rejoin_run, was_being_cancelled__breaks_when_not_all_had_begun)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_shard("p", 1, 2);
	one.cancelled = true;
	source_back(a, 0, 2);
	source_back(a, 1, 2);
	struct world_member m0 = former_back(&w, b, &one), m1 = former_back(&w, c, &two);
	former_broken(&w, &m0, "was being given up");
	former_broken(&w, &m1, "was being given up");
}

/* One of two has had its GO, the other was not told; both have the source. */
static void
half_begun(struct world_member *ret_m0, struct world_member *ret_m1)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_shard("p", 1, 2);

	source_back(a, 0, 2);
	source_back(a, 1, 2);
	*ret_m0 = former_back(&w, b, &one);
	*ret_m1 = former_back(&w, c, &two);
	world_call(&w, ret_m1, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	struct ctl_event event = taken(ret_m1, CTL_EV_PLAN);
	cr_assert_eq(event.u.plan.version.version, 7);
	cr_assert(
		event.u.plan.drain_old, "it may hold what the former server's PLAN had it give up");
	cr_assert_not(world_has(&w, c, CTL_EV_GO, ret_m1->sid));
}

Test(refsrv_rejoin_run, not_all_had_begun__the_others_follow)
{
	struct world_member m0, m1;
	half_begun(&m0, &m1);
	cr_assert_eq(world_prepared(&w, &m1, 0), 0);
	struct ctl_grant grant = world_go(&w, &m1);
	world_finish(&w, &m0, FORMER_LEG(1));
	cr_assert_not(world_ended(&w, &m0));
	world_finish(&w, &m1, grant.leg);
	succeeded(&m0);
	succeeded(&m1);
}

Test(refsrv_rejoin_run, not_all_had_begun__who_cannot_follow_breaks_it)
{
	struct world_member m0, m1;
	half_begun(&m0, &m1);
	cr_assert_eq(world_prepared(&w, &m1, TH_E_LAYOUT), 0);
	former_broken(&w, &m0, "shard 1 on node node2 cannot follow");
	former_broken(&w, &m1, "shard 1 on node node2 cannot follow");
}

Test(refsrv_rejoin_run, not_all_had_begun__a_leg_fails__broken)
{
	struct world_member m0, m1;
	half_begun(&m0, &m1);
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), TH_E_LIMIT, false, 1), 0);
	cr_assert(former_is_broken(&w, &m0));
	cr_assert(former_is_broken(&w, &m1));
}

/* It is on record with what the others have begun to fill, and not with what it still has. */
Test(refsrv_rejoin_run, not_all_had_begun__what_the_others_held_is_given_up_with_the_group)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_holds("p", 1, 2, 5);
	struct ctl_event event;
	uint64_t gens = 0;

	one.kind = CTL_OP_UPDATE;
	one.op_seq = 2;
	one.next_op_seq = 3;
	source_back(a, 0, 2);
	source_back(a, 1, 2);
	struct world_member m0 = former_back(&w, b, &one), m1 = former_back(&w, c, &two);
	cr_assert_not(world_has(&w, c, CTL_EV_DRAIN, m1.sid), "it waits for the PLAN");
	cr_assert_eq(world_close(&w, &m1, false), 0);
	cr_assert(former_is_broken(&w, &m0));
	while (world_take(&w, c, CTL_EV_DRAIN, m1.sid, &event)) {
		gens = gens * 10 + event.u.drain.gen;
		cr_assert_eq(world_drain_done(&w, c, &event.u.drain), 0);
	}
	cr_assert_eq(gens, 12, "its agent waits for the DRAIN of what it has");
}

Test(refsrv_rejoin_run, not_all_had_begun__a_leg_failed_before_the_rest_is_there__broken)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_shard("p", 1, 2);

	source_back(a, 0, 2);
	source_back(a, 1, 2);
	struct world_member m0 = former_back(&w, b, &one);
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), TH_E_LIMIT, false, 1), 0);
	struct world_member m1 = former_back(&w, c, &two);
	cr_assert(former_is_broken(&w, &m0));
	cr_assert(former_is_broken(&w, &m1));
}

/* ---- warming ---- */

Test(refsrv_rejoin_run, warming__a_new_cluster__never)
{
	world_fini(&w);
	world_init(&w, NULL);
	new_agents(1);
	struct world_member m = world_member(&w, a, "p", 0, 1), r;
	world_publish(&w, &m, "3");
	r = world_member(&w, a, "r", 0, 1);
	world_replicate(&w, &r, "latest");
}

Test(refsrv_rejoin_run, warming__latest_waits_a_number_does_not)
{
	struct ctl_rejoin said = former_holds("s", 0, 1, 7);
	struct world_member s = former_back(&w, a, &said), r = world_member(&w, b, "r", 0, 1);
	struct world_member n = world_member(&w, c, "n", 0, 1);
	cr_assert_eq(world_begin(&w, &n, CTL_OP_REPLICATE, "7").source_sid, s.sid);
	world_call(&w, &r, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	for (uint32_t agent = a; agent <= c; agent++)
		cr_assert_eq(former_said(&w, agent, 1), 0);
	world_sleep(&w, 3 * SEC - MS);
	cr_assert_not(world_has(&w, b, CTL_EV_PLAN, r.sid), "there may be a later one");
	world_sleep(&w, MS);
	cr_assert(world_has(&w, b, CTL_EV_PLAN, r.sid));
}

Test(refsrv_rejoin_run, warming__update_does_not_wait__says_that_it_does_not_know)
{
	struct ctl_rejoin said = former_holds("p", 0, 1, 7);
	struct world_member m = former_back(&w, a, &said);
	world_call(&w, &m, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, TH_E_NO_SERVER);
	cr_assert(strstr(end.text, "was restarted"), "%s", end.text);
	former_all_said(&w);
	world_call(&w, &m, CTL_OP_UPDATE, "latest", TH_FOREVER);
	succeeded(&m);
}

static int
get(struct th_hash key)
{
	struct ctl_request request = {.kind = CTL_MANIFEST_GET, .u.manifest_get = {.key = key}};

	return world_request(&w, a, &request);
}

static int
publish(struct world_member *m, const char *spec, struct th_hash attributes)
{
	struct ctl_request request = {.kind = CTL_OP};

	request.u.op = (struct ctl_op){.sid = m->sid,
		.op_seq = ++m->seq,
		.kind = CTL_OP_PUBLISH,
		.timeout_ns = TH_FOREVER,
		.attributes = attributes};
	strcpy(request.u.op.spec, spec);
	cr_assert_eq(world_request(&w, m->agent, &request), 0);
	return world_outcome(&w, m).code;
}

/* The worker has set them, and does not know that there is another server. */
Test(refsrv_rejoin_run, warming__attributes_that_the_former_server_had__are_waited_for)
{
	struct ctl_rejoin said = former_shard("p", 0, 1), other = former_shard("q", 0, 1);
	struct world_member m = former_back(&w, a, &said), n = former_back(&w, b, &other);
	struct th_hash key, never = {.lo = 4, .hi = 4};

	cr_assert_eq(publish(&n, "3", never), 0);
	cr_assert_eq(get(never), TH_E_NOT_AVAILABLE);
	cr_assert(strstr(w.reply.text, "try again"), "%s", w.reply.text);
	former_all_said(&w);
	unpublish(&n);
	cr_assert_eq(get(never), TH_E_NOT_AVAILABLE);
	cr_assert(strstr(w.reply.text, "has no manifest"), "expected by nobody");
	cr_assert_eq(publish(&m, "4", never), TH_E_NOT_AVAILABLE);
	cr_assert_eq(world_put(&w, a, "attributes", 10, &key), 0);
	cr_assert_eq(publish(&m, "4", key), 0);
	cr_assert_eq(get(key), 0);
}

static bool
warming(void)
{
	static char name[] = "xa";
	struct world_member r = world_member(&w, a, name, 0, 1);

	name[1]++;
	world_call(&w, &r, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_event event = taken(&r, CTL_EV_OUTCOME);
	return event.u.outcome.code == TH_E_NO_SERVER;
}

Test(refsrv_rejoin_run, warming__three_seconds_from_the_last_that_attaches)
{
	for (uint32_t agent = a; agent <= c; agent++)
		cr_assert_eq(former_said(&w, agent, 0), 0);
	world_sleep(&w, 2 * SEC);
	uint32_t d = former_agent(&w);
	cr_assert_eq(former_said(&w, d, 0), 0);
	world_sleep(&w, 3 * SEC - MS);
	cr_assert(warming());
	world_sleep(&w, MS);
	cr_assert_not(warming());
	/* An agent that is new brings nothing. */
	world_agent(&w);
	cr_assert_not(warming());
}

Test(refsrv_rejoin_run, warming__an_inventory_is_late__waited_for_but_not_for_ever)
{
	cr_assert_eq(former_said(&w, a, 0), 0);
	cr_assert_eq(former_said(&w, b, 0), 0);
	world_sleep(&w, 33 * SEC - MS);
	cr_assert(warming());
	world_sleep(&w, MS);
	cr_assert_not(warming());
	/* Too late to make it uncertain again. */
	cr_assert_eq(former_said(&w, c, 0), 0);
	cr_assert_not(warming());
}

Test(refsrv_rejoin_run, warming__whose_inventory_is_missing_dies__not_waited_for)
{
	cr_assert_eq(former_said(&w, a, 0), 0);
	cr_assert_eq(former_said(&w, b, 0), 0);
	w.agents[c].silent = true;
	world_sleep(&w, 9 * SEC);
	cr_assert(warming());
	world_sleep(&w, 3 * SEC);
	cr_assert_not(warming());
}

Test(refsrv_rejoin_run, leg__source_never_comes_and_had_not_spoken__nobody_vouches_for_it)
{
	struct ctl_rejoin said = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct world_member m = former_back(&w, b, &said);
	world_finish(&w, &m, FORMER_LEG(1));
	cr_assert_not(world_ended(&w, &m), "its publisher may come");
	former_all_said(&w);
	world_drained(&w, &m);
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, TH_E_VERSION_LOST);
	cr_assert(strstr(end.text, "nobody can vouch") != NULL, "%s", end.text);
}
