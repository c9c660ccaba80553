/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, group operations: agreement, order, deadlines, cancel; publish, unpublish, grouped list.
 */
#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_op, .init = setup_two, .fini = teardown);

static void
pair(const char *replica, struct world_member m[2])
{
	m[0] = world_member(&w, a, replica, 0, 2);
	m[1] = world_member(&w, b, replica, 1, 2);
}

static void
publish_pair(struct world_member m[2], const char *spec)
{
	world_call(&w, &m[0], CTL_OP_PUBLISH, spec, TH_FOREVER);
	world_call(&w, &m[1], CTL_OP_PUBLISH, spec, TH_FOREVER);
	succeeded_both(m);
}

static uint32_t
flags_of_first(void)
{
	cr_assert_eq(num_versions(a), 1);
	return w.reply.u.list.versions[0].replicas[0].flags;
}

/* ---- publish ---- */

Test(refsrv_op, publish__visible_only_when_the_last_member_has_called)
{
	struct world_member m[2];
	pair("r", m);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	cr_assert_not(world_ended(&w, &m[0]));
	cr_assert_eq(num_versions(a), 0);
	world_call(&w, &m[1], CTL_OP_PUBLISH, "7", TH_FOREVER);
	for (int i = 0; i < 2; i++) {
		struct ctl_ev_outcome end = world_outcome(&w, &m[i]);
		cr_assert_eq(end.code, 0);
		cr_assert_eq(end.kind, CTL_OP_PUBLISH);
		cr_assert_eq(end.version.lineage, 1);
		cr_assert_eq(end.version.version, 7);
		cr_assert_not(end.updated);
	}
	cr_assert_eq(flags_of_first(), CTL_REPLICA_READY);
}

Test(refsrv_op, publish__waits_for_a_member_that_has_not_joined)
{
	struct world_member m0 = world_member(&w, a, "r", 0, 2);
	world_call(&w, &m0, CTL_OP_PUBLISH, "7", TH_FOREVER);
	struct world_member m1 = world_member(&w, b, "r", 1, 2);
	cr_assert_not(world_ended(&w, &m0));
	world_call(&w, &m1, CTL_OP_PUBLISH, "7", TH_FOREVER);
	succeeded(&m0);
	succeeded(&m1);
}

Test(refsrv_op, publish__not_registered__state_for_all)
{
	struct world_member m0 = world_member(&w, a, "r", 0, 2);
	struct world_member m1 = {.agent = b, .shard = 1, .num_shards = 2};
	cr_assert_eq(world_open(&w, b, "m", "r", 1, 2, 1, &m1.sid), 0);
	world_call(&w, &m0, CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_call(&w, &m1, CTL_OP_PUBLISH, "7", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m0).code, TH_E_STATE);
	cr_assert_eq(world_outcome(&w, &m1).code, TH_E_STATE);
}

Test(refsrv_op, publish__holds_a_version__state)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);
	world_publish(&w, &m, "1");
	world_call(&w, &m, CTL_OP_PUBLISH, "2", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, TH_E_STATE);
	cr_assert(strstr(end.text, "holds version 1"));
}

Test(refsrv_op, publish__relative_name__invalid)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);
	world_call(&w, &m, CTL_OP_PUBLISH, "latest", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_INVALID);
}

Test(refsrv_op, publish__same_version_same_layout__another_copy)
{
	struct world_member m0 = world_member(&w, a, "r0", 0, 1);
	struct world_member m1 = world_member(&w, b, "r1", 0, 1);
	world_publish(&w, &m0, "1");
	world_publish(&w, &m1, "1");
	cr_assert_eq(num_versions(a), 1);
	cr_assert_eq(w.reply.u.list.versions[0].num_replicas, 2);
}

Test(refsrv_op, publish__same_version_other_layout__conflict_while_copies_exist)
{
	struct world_member m0 = world_member(&w, a, "r0", 0, 1);
	struct world_member m1 = world_member(&w, b, "r1", 0, 1);
	struct world_member m2[2];
	pair("r2", m2);
	cr_assert_eq(world_register(&w, b, m1.sid, 9), 0);
	world_publish(&w, &m0, "1");
	world_call(&w, &m1, CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m1).code, TH_E_VERSION_CONFLICT);
	world_call(&w, &m2[0], CTL_OP_PUBLISH, "1", TH_FOREVER);
	world_call(&w, &m2[1], CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m2[0]).code, TH_E_VERSION_CONFLICT);
	struct ctl_ev_outcome end = world_outcome(&w, &m2[1]);
	cr_assert(strstr(end.text, "1 shards") && strstr(end.text, "publishes 2"));
	world_call(&w, &m0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_part drain = world_take_drain(&w, &m0);
	world_drain_done(&w, a, &drain);
	world_publish(&w, &m1, "1"); /* no copies: it is new content */
}

Test(refsrv_op, publish__attributes__travel_with_the_version)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);
	struct ctl_request request = {.kind = CTL_OP};
	struct ctl_request resolve = {.kind = CTL_RESOLVE};
	request.u.op = (struct ctl_op){.sid = m.sid,
		.op_seq = 1,
		.kind = CTL_OP_PUBLISH,
		.timeout_ns = TH_FOREVER,
		.spec = "3",
		.attributes = {.lo = 5}};
	cr_assert_eq(world_request(&w, a, &request), 0);
	m.seq = 1;
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_NOT_AVAILABLE);
	cr_assert_eq(world_put(&w, a, "attributes", 10, &request.u.op.attributes), 0);
	request.u.op.op_seq = m.seq = 2;
	cr_assert_eq(world_request(&w, a, &request), 0);
	succeeded(&m);
	strcpy(resolve.u.resolve.model, "m");
	strcpy(resolve.u.resolve.spec, "latest");
	cr_assert_eq(world_request(&w, b, &resolve), 0);
	cr_assert_eq(w.reply.u.resolve.attributes.lo, request.u.op.attributes.lo);
}

/* ---- what it waits for ---- */

static const char *
waits(const struct world_member *m)
{
	struct ctl_request request = {.kind = CTL_WAITS, .u.waits_sid = m->sid};

	cr_assert_eq(world_request(&w, m->agent, &request), 0, "%s", w.reply.text);
	return w.reply.u.waits.text;
}

Test(refsrv_op, waits__at_each_stage__the_first_that_is_missing)
{
	struct ctl_request request = {.kind = CTL_WAITS};
	struct world_member src[2], m[2];
	struct ctl_grant grants[2];

	pair("src", src);
	publish_pair(src, "7");
	m[0] = world_member(&w, a, "r", 0, 2);
	request.u.waits_sid = m[0].sid;
	cr_assert_eq(world_request(&w, a, &request), TH_E_STATE);
	cr_assert_eq(world_request(&w, b, &request), TH_E_STATE);
	world_call(&w, &m[0], CTL_OP_REPLICATE, "7", TH_FOREVER);
	cr_assert_str_eq(waits(&m[0]), "shard 0 on node node0 (pid 100) is not ready");
	taken(&m[0], CTL_EV_PLAN);
	cr_assert_eq(world_prepared(&w, &m[0], 0), 0);
	cr_assert_str_eq(waits(&m[0]), "shard 1 has not joined");
	m[1] = world_member(&w, b, "r", 1, 2);
	cr_assert_str_eq(waits(&m[0]), "shard 1 on node node1 (pid 101) has not called it");
	world_call(&w, &m[1], CTL_OP_REPLICATE, "7", TH_FOREVER);
	taken(&m[1], CTL_EV_PLAN);
	cr_assert_eq(world_prepared(&w, &m[1], 0), 0);
	for (int i = 0; i < 2; i++)
		grants[i] = world_go(&w, &m[i]);
	cr_assert_str_eq(waits(&m[1]), "shard 0 on node node0 (pid 100) is still receiving");
	world_finish(&w, &m[0], grants[0].leg);
	cr_assert_str_eq(waits(&m[0]), "shard 1 on node node1 (pid 101) is still receiving");
	world_finish(&w, &m[1], grants[1].leg);
	succeeded_both(m);
	cr_assert_eq(world_request(&w, a, &request), TH_E_STATE);
	world_call(&w, &src[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_str_eq(waits(&src[0]), "shard 0 on node node0 (pid 100) is still being read");
}

Test(refsrv_op, waits__nobody_has_the_version__is_said)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);

	world_call(&w, &m, CTL_OP_REPLICATE, "8", TH_FOREVER);
	cr_assert_str_eq(waits(&m), "no source has the version");
}

/* ---- agreement ---- */

static void
expect_mismatch(struct world_member m[2], const char *first, const char *second)
{
	for (int i = 0; i < 2; i++) {
		struct ctl_ev_outcome end = world_outcome(&w, &m[i]);
		cr_assert_eq(end.code, TH_E_GROUP_MISMATCH);
		cr_assert(strstr(end.text, first), "%s", end.text);
		cr_assert(strstr(end.text, second), "%s", end.text);
	}
}

Test(refsrv_op, mismatch__other_kind__all_learn_both_calls)
{
	struct world_member m[2];
	pair("r", m);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_call(&w, &m[1], CTL_OP_REPLICATE, "7", TH_FOREVER);
	expect_mismatch(m, "publish of 7", "replicate of 7");
	/* They are in step again: nothing has happened. */
	publish_pair(m, "7");
}

Test(refsrv_op, mismatch__other_version__all_learn_both_calls)
{
	struct world_member m[2];
	pair("r", m);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_call(&w, &m[1], CTL_OP_PUBLISH, "8", TH_FOREVER);
	expect_mismatch(m, "publish of 7", "publish of 8");
}

Test(refsrv_op, mismatch__while_unpublish_drains__undone_for_all)
{
	struct world_member m[2];
	struct ctl_event event;
	pair("r", m);
	publish_pair(m, "7");
	world_call(&w, &m[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	world_call(&w, &m[1], CTL_OP_LIST, "", TH_FOREVER);
	expect_mismatch(m, "unpublish", "list");
	cr_assert(world_take(&w, a, CTL_EV_UNDRAIN, m[0].sid, &event));
	cr_assert(world_take(&w, b, CTL_EV_UNDRAIN, m[1].sid, &event));
	cr_assert_eq(flags_of_first(), CTL_REPLICA_READY);
}

Test(refsrv_op, mismatch__after_a_success__group_breaks_by_the_next_call)
{
	struct world_member m[2];
	pair("r", m);
	world_call(&w, &m[0], CTL_OP_LIST, "", TH_FOREVER);
	succeeded(&m[0]);
	world_call(&w, &m[1], CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m[1]).code, TH_E_GROUP_MISMATCH);
	taken(&m[0], CTL_EV_BROKEN);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m[0]).code, TH_E_GROUP_BROKEN);
}

Test(refsrv_op, order__not_the_next_number__refused_and_not_used_up)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);
	cr_assert_eq(world_op(&w, a, m.sid, 2, CTL_OP_LIST, "", TH_FOREVER), TH_E_STATE);
	cr_assert_eq(world_op(&w, a, m.sid, 0, CTL_OP_LIST, "", TH_FOREVER), TH_E_STATE);
	cr_assert_eq(world_op(&w, a, m.sid, 1, (enum ctl_op_kind)9, "", TH_FOREVER), TH_E_INVALID);
	world_call(&w, &m, CTL_OP_LIST, "", TH_FOREVER);
	succeeded(&m);
}

Test(refsrv_op, order__while_the_last_is_open__refused)
{
	struct world_member m0 = world_member(&w, a, "r", 0, 2);
	world_call(&w, &m0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(world_op(&w, a, m0.sid, 2, CTL_OP_LIST, "", TH_FOREVER), TH_E_STATE);
}

Test(refsrv_op, order__same_call_under_another_request_number__one_outcome)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);
	world_call(&w, &m, CTL_OP_LIST, "", TH_FOREVER);
	cr_assert_eq(world_op(&w, a, m.sid, 1, CTL_OP_LIST, "", TH_FOREVER), 0);
	world_outcome(&w, &m);
	cr_assert_not(world_ended(&w, &m));
}

Test(refsrv_op, order__more_than_64_ahead__held_until_the_slowest_moves)
{
	struct world_member m[2];
	pair("r", m);
	for (int i = 0; i < 64; i++) {
		world_call(&w, &m[0], CTL_OP_LIST, "", TH_FOREVER);
		succeeded(&m[0]);
	}
	world_call(&w, &m[0], CTL_OP_LIST, "", TH_FOREVER);
	cr_assert_not(world_ended(&w, &m[0]));
	world_call(&w, &m[1], CTL_OP_LIST, "", TH_FOREVER);
	succeeded(&m[1]);
	succeeded(&m[0]);
}

Test(refsrv_op, order__held_too_long__timeout_for_all)
{
	struct world_member m[2];
	pair("r", m);
	for (int i = 0; i < 64; i++) {
		world_call(&w, &m[0], CTL_OP_LIST, "", TH_FOREVER);
		world_outcome(&w, &m[0]);
	}
	world_call(&w, &m[0], CTL_OP_LIST, "", SEC);
	world_sleep(&w, 2 * SEC);
	struct ctl_ev_outcome end = world_outcome(&w, &m[0]);
	cr_assert_eq(end.code, TH_E_TIMEOUT);
	cr_assert(strstr(end.text, "64 operations ahead"));
	for (int i = 0; i < 64; i++) {
		world_call(&w, &m[1], CTL_OP_LIST, "", TH_FOREVER);
		succeeded(&m[1]);
	}
	world_call(&w, &m[1], CTL_OP_LIST, "", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m[1]).code, TH_E_TIMEOUT);
}

/* ---- deadline and cancel ---- */

Test(refsrv_op, deadline__before_go__ends_it_for_all_also_for_the_late)
{
	struct world_member m[2];
	pair("r", m);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", 2 * SEC);
	world_sleep(&w, 1900 * MS);
	cr_assert_not(world_ended(&w, &m[0]));
	world_sleep(&w, 200 * MS);
	struct ctl_ev_outcome end = world_outcome(&w, &m[0]);
	cr_assert_eq(end.code, TH_E_TIMEOUT);
	cr_assert(strstr(end.text, "shard 1 on node node1 (pid 101) has not called"));
	world_call(&w, &m[1], CTL_OP_PUBLISH, "7", 100 * SEC);
	cr_assert_eq(world_outcome(&w, &m[1]).code, TH_E_TIMEOUT);
	publish_pair(m, "7");
}

Test(refsrv_op, deadline__counted_from_the_first_member)
{
	struct world_member m[2];
	pair("r", m);
	world_call(&w, &m[0], CTL_OP_UPDATE, "latest", 2 * SEC);
	succeeded(&m[0]);
	world_call(&w, &m[1], CTL_OP_UPDATE, "latest", 2 * SEC);
	succeeded(&m[1]);
	world_call(&w, &m[0], CTL_OP_REPLICATE, "9", 2 * SEC);
	world_sleep(&w, SEC);
	world_call(&w, &m[1], CTL_OP_REPLICATE, "9", 2 * SEC);
	world_sleep(&w, 1100 * MS);
	cr_assert_eq(world_outcome(&w, &m[0]).code, TH_E_TIMEOUT);
	cr_assert_eq(world_outcome(&w, &m[1]).code, TH_E_TIMEOUT);
}

Test(refsrv_op, cancel__before_go__ends_it_for_all)
{
	struct world_member m[2];
	pair("r", m);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	cr_assert_eq(world_cancel(&w, &m[0]), 0);
	cr_assert_eq(world_outcome(&w, &m[0]).code, TH_E_CANCELLED);
	world_call(&w, &m[1], CTL_OP_PUBLISH, "7", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m[1]).code, TH_E_CANCELLED);
	cr_assert_eq(world_cancel(&w, &m[1]), 0); /* nothing to cancel: no effect */
	cr_assert_not(world_ended(&w, &m[1]));
}

/* ---- unpublish ---- */

Test(refsrv_op, unpublish__acts_at_the_first_call__drains_all_parts)
{
	struct world_member m[2];
	pair("r", m);
	publish_pair(m, "7");
	world_call(&w, &m[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_part d0 = world_take_drain(&w, &m[0]), d1 = world_take_drain(&w, &m[1]);
	cr_assert_eq(d0.gen, 1);
	cr_assert_eq(flags_of_first(), CTL_REPLICA_READY | CTL_REPLICA_DRAINING);
	cr_assert_eq(world_drain_done(&w, a, &d0), 0);
	cr_assert_not(world_ended(&w, &m[0]));
	cr_assert_eq(world_drain_done(&w, b, &d1), 0);
	succeeded(&m[0]);
	cr_assert_eq(num_versions(a), 0);
	world_call(&w, &m[1], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &m[1]);
	cr_assert_eq(end.code, 0);
	cr_assert_eq(end.version.version, TH_NO_VERSION);
}

Test(refsrv_op, unpublish__nothing_held__state)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_STATE);
}

Test(refsrv_op, unpublish__deadline_first__listed_again_and_legs_go_on)
{
	struct world_member src = world_member(&w, a, "src", 0, 1);
	struct world_member dst = world_member(&w, b, "dst", 0, 1);
	world_publish(&w, &src, "1");
	struct ctl_grant grant = world_begin(&w, &dst, CTL_OP_REPLICATE, "1");
	world_call(&w, &src, CTL_OP_UNPUBLISH, "", SEC);
	world_take_drain(&w, &src);
	world_sleep(&w, 1100 * MS);
	struct ctl_ev_outcome end = world_outcome(&w, &src);
	cr_assert_eq(end.code, TH_E_TIMEOUT);
	cr_assert(strstr(end.text, "still being read"));
	cr_assert_eq(end.version.version, 1);
	struct ctl_event event = taken(&src, CTL_EV_UNDRAIN);
	cr_assert_eq(event.u.undrain.gen, 1);
	finished(&dst, grant.leg);
	cr_assert_eq(num_versions(a), 1);
	cr_assert_eq(w.reply.u.list.versions[0].num_replicas, 2);
}

Test(refsrv_op, unpublish__late_answer_to_an_older_drain__proves_nothing)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);
	world_publish(&w, &m, "1");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", SEC);
	struct ctl_ev_part old = world_take_drain(&w, &m);
	world_sleep(&w, 1100 * MS);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_TIMEOUT);
	taken(&m, CTL_EV_UNDRAIN);
	cr_assert_eq(world_drain_done(&w, a, &old), 0);
	cr_assert_eq(num_versions(a), 1);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_part drain = world_take_drain(&w, &m);
	cr_assert_eq(world_drain_done(&w, a, &old), 0);
	cr_assert_not(world_ended(&w, &m));
	cr_assert_eq(world_drain_done(&w, a, &drain), 0);
	succeeded(&m);
}

Test(refsrv_op, unpublish__cancelled__listed_again)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);
	world_publish(&w, &m, "1");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(world_cancel(&w, &m), 0);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_CANCELLED);
	cr_assert_eq(flags_of_first(), CTL_REPLICA_READY);
}

Test(refsrv_op, unpublish__reader_with_an_idle_source__moved_at_once)
{
	struct world_member src = world_member(&w, a, "src", 0, 1);
	struct world_member other = world_member(&w, b, "other", 0, 1);
	struct world_member dst = world_member(&w, b, "dst", 0, 1);
	struct ctl_event event;
	world_publish(&w, &src, "1");
	struct ctl_grant grant = world_begin(&w, &dst, CTL_OP_REPLICATE, "1");
	world_publish(&w, &other, "1");
	world_call(&w, &src, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_take(&w, b, CTL_EV_REROUTE, dst.sid, &event));
	cr_assert_eq(event.u.reroute.old_leg, grant.leg);
	cr_assert_eq(event.u.reroute.grant.source_sid, other.sid);
	uint64_t leg = event.u.reroute.grant.leg;
	cr_assert(world_take(&w, a, CTL_EV_FENCE, 0, &event));
	cr_assert_eq(event.u.fence_leg, grant.leg);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_CANCELLED, true, 4), 0);
	world_finish(&w, &dst, leg);
	struct ctl_ev_outcome end = world_outcome(&w, &dst);
	cr_assert_eq(end.code, 0);
	cr_assert_str_eq(end.source, "other");
}

Test(refsrv_op, unpublish__other_source_is_busy__leg_goes_on_where_it_is)
{
	struct refsrv_config config = w.config;
	config.pipelining = false;
	world_fini(&w);
	world_init(&w, &config);
	new_agents(2);
	struct world_member src = world_member(&w, a, "src", 0, 1);
	struct world_member other = world_member(&w, a, "other", 0, 1);
	struct world_member d0 = world_member(&w, b, "d0", 0, 1);
	struct world_member d1 = world_member(&w, b, "d1", 0, 1);
	world_publish(&w, &src, "1");
	world_publish(&w, &other, "1");
	struct ctl_grant g0 = world_begin(&w, &d0, CTL_OP_REPLICATE, "1");
	struct ctl_grant g1 = world_begin(&w, &d1, CTL_OP_REPLICATE, "1");
	cr_assert_neq(g0.source_sid, g1.source_sid);
	world_call(&w, &src, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_not(world_has(&w, b, CTL_EV_REROUTE, 0));
	cr_assert_not(world_has(&w, a, CTL_EV_FENCE, 0));
	struct ctl_ev_part drain = world_take_drain(&w, &src);
	/* The source's agent sees its reader finish; the reader's own word comes later. */
	cr_assert_eq(world_drain_done(&w, a, &drain), 0);
	succeeded(&src);
	world_finish(&w, &d0, g0.leg);
	world_finish(&w, &d1, g1.leg);
	succeeded(&d0);
	succeeded(&d1);
}

/* ---- grouped list ---- */

Test(refsrv_op, list__snapshot_at_the_first_call__the_same_for_all)
{
	struct world_member m[2];
	struct world_member other = world_member(&w, a, "other", 0, 1);
	pair("r", m);
	world_call(&w, &m[0], CTL_OP_LIST, "", TH_FOREVER);
	struct ctl_ev_outcome first = world_outcome(&w, &m[0]);
	world_publish(&w, &other, "1");
	world_call(&w, &m[1], CTL_OP_LIST, "", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m[1]).generation, first.generation);
	for (int i = 0; i < 2; i++) {
		struct ctl_request request = {.kind = CTL_LIST};
		request.u.list.sid = m[i].sid;
		request.u.list.op_seq = m[i].seq;
		cr_assert_eq(world_request(&w, m[i].agent, &request), 0);
		cr_assert_eq(w.reply.u.list.num_versions, 0);
		cr_assert_eq(w.reply.u.list.generation, first.generation);
	}
	/* Kept until all have moved on. */
	world_call(&w, &m[0], CTL_OP_LIST, "", TH_FOREVER);
	struct ctl_request request = {.kind = CTL_LIST};
	request.u.list.sid = m[1].sid;
	request.u.list.op_seq = 1;
	cr_assert_eq(world_request(&w, b, &request), 0);
	world_call(&w, &m[1], CTL_OP_LIST, "", TH_FOREVER);
	cr_assert_eq(world_request(&w, b, &request), TH_E_NOT_AVAILABLE);
}
