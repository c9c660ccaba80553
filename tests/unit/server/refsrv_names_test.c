/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, replicate and update by a name: what it named goes before a byte has moved, or is about
 * to go. A name asks for whatever is there, so it is planned anew, with what is left of the time.
 */
#include "tests/unit/server/refsrv_fixture.h"

static uint32_t d;

static void
setup(void)
{
	world_init(&w, NULL);
	w.offload_bytes = UINT64_MAX;
	new_agents(3);
	d = world_agent(&w);
}

TestSuite(refsrv_names, .init = setup, .fini = teardown);

/* The member's next PLAN is for this version; returns its number. */
static uint32_t
planned(const struct world_member *m, uint64_t version)
{
	struct ctl_event event = taken(m, CTL_EV_PLAN);
	cr_assert_eq(event.u.plan.version.version, version);
	return event.u.plan.plan_no;
}

static void
prepared(const struct world_member *m, uint32_t plan_no)
{
	struct ctl_request request = {.kind = CTL_PREPARED};

	request.u.prepared.sid = m->sid;
	request.u.prepared.op_seq = m->seq;
	request.u.prepared.plan_no = plan_no;
	cr_assert_eq(world_request(&w, m->agent, &request), 0);
}

static void
brings(const struct world_member *m, uint32_t plan_no, uint64_t version)
{
	prepared(m, plan_no);
	world_finish(&w, m, world_go(&w, m).leg);
	struct ctl_ev_outcome end = world_outcome(&w, m);
	cr_assert_eq(end.code, 0);
	cr_assert_eq(end.version.version, version);
}

/* ---- replicate ------------------------------------------------------------------------------ */

Test(refsrv_names, replicate__the_latest_goes_before_go__the_one_before_it)
{
	world_published(&w, a, "old", "3");
	struct world_member src = world_published(&w, b, "src", "4");
	struct world_member r = world_member(&w, c, "r", 0, 1);
	world_call(&w, &r, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	uint32_t first = planned(&r, 4);
	unpublish(&src);
	uint32_t second = planned(&r, 3);
	cr_assert_gt(second, first);
	prepared(&r, first);
	cr_assert_not(world_has(&w, c, CTL_EV_GO, r.sid), "that was for another version");
	brings(&r, second, 3);
}

Test(refsrv_names, replicate__all_go_before_go__waits_for_the_next)
{
	struct world_member src = world_published(&w, a, "src", "4");
	struct world_member r = world_member(&w, c, "r", 0, 1), s = world_member(&w, d, "s", 0, 1);
	world_call(&w, &r, CTL_OP_REPLICATE, "latest", 60 * SEC);
	world_call(&w, &s, CTL_OP_REPLICATE, "4", 60 * SEC);
	uint32_t first = planned(&r, 4);
	(void)planned(&s, 4);
	unpublish(&src);
	cr_assert_eq(world_outcome(&w, &s).code, TH_E_VERSION_LOST, "a number names that one");
	world_sleep(&w, 5 * SEC);
	cr_assert_not(world_ended(&w, &r));
	world_published(&w, b, "next", "5");
	uint32_t second = planned(&r, 5);
	cr_assert_gt(second, first);
	brings(&r, second, 5);
}

Test(refsrv_names, replicate__nothing_comes__timeout_at_its_deadline)
{
	struct world_member src = world_published(&w, a, "src", "4");
	struct world_member r = world_member(&w, c, "r", 0, 1);
	world_call(&w, &r, CTL_OP_REPLICATE, "latest", 5 * SEC);
	(void)planned(&r, 4);
	world_sleep(&w, 2 * SEC);
	unpublish(&src);
	world_sleep(&w, 2900 * MS);
	cr_assert_not(world_ended(&w, &r));
	world_sleep(&w, 200 * MS);
	struct ctl_ev_outcome end = world_outcome(&w, &r);
	cr_assert_eq(end.code, TH_E_TIMEOUT);
	cr_assert(strstr(end.text, "no source has the version"), "%s", end.text);
}

Test(refsrv_names, replicate__of_several_members__all_are_planned_anew)
{
	struct world_member src[2], next[2], r[2];
	for (uint32_t i = 0; i < 2; i++) {
		src[i] = world_member(&w, a, "src", i, 2);
		next[i] = world_member(&w, b, "next", i, 2);
		r[i] = world_member(&w, i == 0 ? c : d, "r", i, 2);
	}
	call_both(src, CTL_OP_PUBLISH, "4");
	succeeded_both(src);
	world_call(&w, &r[0], CTL_OP_REPLICATE, "latest", 60 * SEC);
	prepared(&r[0], planned(&r[0], 4));
	call_both(src, CTL_OP_UNPUBLISH, "");
	for (uint32_t i = 0; i < 2; i++)
		world_drained(&w, &src[i]);
	/* There is nothing: who calls now waits as well. */
	world_call(&w, &r[1], CTL_OP_REPLICATE, "latest", 60 * SEC);
	cr_assert_not(world_has(&w, d, CTL_EV_PLAN, r[1].sid));
	call_both(next, CTL_OP_PUBLISH, "5");
	uint32_t plan_no = planned(&r[0], 5);
	cr_assert_eq(planned(&r[1], 5), plan_no);
	prepared(&r[0], plan_no);
	prepared(&r[1], plan_no);
	cr_assert(world_has(&w, c, CTL_EV_GO, r[0].sid));
	cr_assert(world_has(&w, d, CTL_EV_GO, r[1].sid));
}

/* ---- update --------------------------------------------------------------------------------- */

/* The latest is being given up, and is still read by who has begun. */
static void
drains(struct world_member *latest)
{
	world_call(&w, latest, CTL_OP_UNPUBLISH, "", TH_FOREVER);
}

Test(refsrv_names, update__the_latest_drains__the_next_best)
{
	world_published(&w, a, "p3", "3");
	struct world_member p4 = world_published(&w, b, "p4", "4");
	struct world_member r = world_published(&w, c, "r", "2");
	drains(&p4);
	world_call(&w, &r, CTL_OP_UPDATE, "latest", TH_FOREVER);
	brings(&r, planned(&r, 3), 3);
}

Test(refsrv_names, update__the_latest_drains_and_the_rest_is_older__nothing_new)
{
	world_published(&w, a, "p3", "3");
	struct world_member p4 = world_published(&w, b, "p4", "4");
	struct world_member r = world_member(&w, c, "r", 0, 1);
	world_replicate(&w, &r, "3");
	drains(&p4);
	world_call(&w, &r, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &r);
	cr_assert_eq(end.code, 0);
	cr_assert_not(end.updated);
	cr_assert_eq(end.version.version, 3);
}

Test(refsrv_names, update__what_is_counted_from_the_latest_drains__nothing_new)
{
	struct world_member p3 = world_published(&w, a, "p3", "3");
	world_published(&w, b, "p4", "4");
	world_published(&w, d, "p2", "2");
	struct world_member r = world_published(&w, c, "r", "1");
	drains(&p3);
	world_call(&w, &r, CTL_OP_UPDATE, "latest-1", TH_FOREVER);
	cr_assert_not(world_outcome(&w, &r).updated);
	world_call(&w, &r, CTL_OP_UPDATE, "3", TH_FOREVER);
	cr_assert_not(world_outcome(&w, &r).updated);
}

/* It has waited for a copy of what it holds, and the latest goes meanwhile. */
Test(refsrv_names, update__the_latest_drains_while_what_is_held_is_copied__the_next_best)
{
	struct world_member r = world_published(&w, c, "r", "2");
	world_published(&w, a, "p3", "3");
	struct world_member p4 = world_published(&w, b, "p4", "4");
	w.retain = "2";
	world_member(&w, d, "keeper", 0, 1);
	w.retain = NULL;
	world_call(&w, &r, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct world_member o = world_accepts(&w, c);
	struct ctl_grant grant = world_filling(&w, &o);
	drains(&p4);
	cr_assert_not(world_ended(&w, &r));
	cr_assert_not(world_has(&w, c, CTL_EV_PLAN, r.sid), "what it holds is not safe yet");
	world_finish(&w, &o, grant.leg);
	brings(&r, planned(&r, 3), 3);
}
