/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, fetched copies: agents bring a version into their own memory before a group asks for it,
 * and its update takes it from there. How a copy is reserved and filled is in refsrv_offload_test.
 */
#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_fetch, .init = setup_keeping, .fini = teardown);

static struct world_member
reader(uint32_t agent, const char *replica, uint32_t flags)
{
	w.flags = flags;
	struct world_member m = world_member(&w, agent, replica, 0, 1);
	w.flags = 0;
	return m;
}

/* It holds what the latest is now. */
static struct world_member
reader_of_latest(uint32_t agent, const char *replica, uint32_t flags)
{
	struct world_member m = reader(agent, replica, flags);
	cr_assert_not(world_asked(&w, agent), "it is about to replicate");
	world_replicate(&w, &m, "latest");
	return m;
}

/* The publisher moves on; a reader of the old version has none of it left to lose. */
static void
publishes(struct world_member *m, const char *version)
{
	if (m->seq > 0)
		unpublish(m);
	world_publish(&w, m, version);
}

static void
nothing_new(struct world_member *m)
{
	world_call(&w, m, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, m);
	cr_assert_eq(end.code, 0, "%s", end.text);
	cr_assert_not(end.updated);
}

/* Its update reads this source; false in ret_reason: none is given. */
static uint64_t
updates_from(struct world_member *m, char *ret_reason)
{
	struct ctl_event go;
	world_call(&w, m, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, m, 0), 0);
	if (world_has(&w, m->agent, CTL_EV_DRAIN, m->sid))
		world_drained(&w, m);
	cr_assert(world_take(&w, m->agent, CTL_EV_GO, m->sid, &go));
	if (ret_reason != NULL)
		strcpy(ret_reason, go.u.go.reason);
	finished(m, go.u.go.grant.leg);
	return go.u.go.grant.source_sid;
}

/* Of version; UINT64_MAX: of none. */
static void
told_ready(const struct world_member *m, uint64_t version)
{
	struct ctl_event event = taken(m, CTL_EV_READY);
	cr_assert_eq(event.u.ready.version.version, version);
}

/* What operators are told of it. */
static const struct ctl_member_info *
inspected(const struct world_member *m)
{
	const struct ctl_inspection *all = refsrv_inspect(w.server, w.now_ns);

	for (uint32_t i = 0; i < all->num_members; i++) {
		if (all->members[i].sid == m->sid)
			return &all->members[i];
	}
	cr_assert_fail("it is not listed");
	return NULL;
}

Test(refsrv_fetch, prefetch__whole__update_takes_it_and_it_goes)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	struct world_member o = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &o);
	cr_assert_eq(grant.source_sid, p.sid);
	nothing_new(&r);
	cr_assert_not(world_has(&w, b, CTL_EV_READY, r.sid));
	cr_assert_str_eq(inspected(&o)->why, "prefetch");
	cr_assert_str_eq(inspected(&o)->replica, "r");
	cr_assert_str_eq(inspected(&r)->why, "");
	cr_assert_eq(inspected(&r)->flags, CTL_OPEN_PREFETCH);
	cr_assert_eq(inspected(&r)->ready.version, TH_NO_VERSION);
	world_finish(&w, &o, grant.leg);
	told_ready(&r, 2);
	cr_assert_eq(inspected(&r)->ready.version, 2);
	cr_assert_eq(updates_from(&r, NULL), o.sid);
	told_ready(&r, TH_NO_VERSION);
	released(&o);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_fetch, without_the_flag__nothing_is_brought)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", 0);
	publishes(&p, "2");
	cr_assert_not(world_asked(&w, b));
	cr_assert_eq(updates_from(&r, NULL), p.sid);
}

Test(refsrv_fetch, prefetch__nothing_held__update_begins_it)
{
	world_published(&w, a, "p", "1");
	struct world_member r = reader(b, "r", CTL_OPEN_PREFETCH);
	cr_assert_not(world_asked(&w, b));
	nothing_new(&r);
	struct world_member o = brought(b);
	cr_assert_eq(updates_from(&r, NULL), o.sid);
}

Test(refsrv_fetch, prefetch__absolute_name__as_without_the_flag)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	cr_assert(world_asked(&w, b));
	cr_assert_eq(world_begin(&w, &r, CTL_OP_UPDATE, "2").source_sid, p.sid);
}

Test(refsrv_fetch, prefetch__it_follows_the_name_of_the_last_update)
{
	struct ctl_ev_reserve reserve;
	world_published(&w, a, "p", "1");
	world_published(&w, a, "q", "2");
	struct world_member r = reader(b, "r", CTL_OPEN_PREFETCH);
	world_replicate(&w, &r, "1");
	struct world_member o = brought(b);
	told_ready(&r, 2);
	world_call(&w, &r, CTL_OP_UPDATE, "latest-1", TH_FOREVER);
	cr_assert_not(world_outcome(&w, &r).updated);
	told_ready(&r, TH_NO_VERSION);
	released(&o);
	world_published(&w, a, "x", "3");
	cr_assert(world_reserve(&w, b, &reserve));
	cr_assert_eq(reserve.version.version, 2);
}

Test(refsrv_fetch, prefetch__two_groups_on_a_host__share_one_copy)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH),
			    s = reader_of_latest(b, "s", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	struct world_member o = brought(b);
	cr_assert_not(world_asked(&w, b));
	told_ready(&r, 2);
	told_ready(&s, 2);
	cr_assert_eq(updates_from(&r, NULL), o.sid);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, o.sid), "the other one wants it");
	(void)updates_from(&s, NULL);
	released(&o);
}

Test(refsrv_fetch, prefetch__another_worker_of_the_host_has_it__nothing_is_brought)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH),
			    s = reader_of_latest(b, "s", 0);
	publishes(&p, "2");
	struct world_member o = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &o);
	(void)updates_from(&s, NULL);
	told_ready(&r, 2);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, 0, false, WORLD_CHUNKS), 0);
	cr_assert_eq(updates_from(&r, NULL), o.sid, "the older of two");
	released(&o);
}

Test(refsrv_fetch, prefetch__no_room__update_goes_over_the_wire_and_says_why)
{
	struct ctl_ev_reserve reserve;
	char reason[128];
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	cr_assert(world_reserve(&w, b, &reserve));
	cr_assert_eq(world_refuse(&w, b, &reserve), 0);
	cr_assert_not(world_asked(&w, b) || world_asked(&w, c), "once, and there alone");
	cr_assert_eq(updates_from(&r, reason), p.sid);
	cr_assert(strstr(reason, "node1"), "%s", reason);
	/* The next version is tried again. */
	publishes(&p, "3");
	cr_assert(world_asked(&w, b));
}

Test(refsrv_fetch, prefetch__agent_takes_no_copies__update_says_so)
{
	char reason[128];
	w.offload_bytes = 0;
	uint32_t d = world_agent(&w);
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(d, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	cr_assert_not(world_asked(&w, d));
	cr_assert_eq(updates_from(&r, reason), p.sid);
	cr_assert(strstr(reason, "a copy does not fit there"), "%s", reason);
}

/* On the same hosts: what failed for the one is no reason to try again for the other. */
Test(refsrv_fetch, prefetch__no_copies_taken__two_names_followed__each_fails_once)
{
	char reason[128];
	w.offload_bytes = 0;
	uint32_t d = world_agent(&w);
	world_published(&w, a, "p", "1");
	struct world_member r = reader(d, "r", CTL_OPEN_PREFETCH),
			    s = reader(d, "s", CTL_OPEN_PREFETCH);
	world_replicate(&w, &r, "1");
	world_replicate(&w, &s, "1");
	world_call(&w, &s, CTL_OP_UPDATE, "latest-1", TH_FOREVER);
	(void)world_outcome(&w, &s);
	world_published(&w, b, "q", "2");
	world_published(&w, c, "x", "3");
	cr_assert_not(world_asked(&w, d));
	world_call(&w, &r, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &r, 0), 0);
	struct ctl_event go = taken(&r, CTL_EV_GO);
	strcpy(reason, go.u.go.reason);
	cr_assert(strstr(reason, "a copy does not fit there"), "%s", reason);
}

/* An agent without room for two: what is ready stays, and the newer one waits for its memory. */
Test(refsrv_fetch, prefetch__no_room_beside_what_is_ready__waits_until_that_is_taken)
{
	struct ctl_ev_reserve reserve;
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	struct world_member o = brought(b);
	publishes(&p, "3");
	cr_assert(world_reserve(&w, b, &reserve));
	cr_assert_eq(world_refuse(&w, b, &reserve), 0);
	cr_assert_eq(updates_from(&r, NULL), o.sid, "version 2");
	released(&o);
	struct world_member n = brought(b);
	cr_assert_eq(updates_from(&r, NULL), n.sid);
}

Test(refsrv_fetch, prefetch__newer_one_is_whole__the_older_goes)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	struct world_member o = brought(b);
	told_ready(&r, 2);
	publishes(&p, "3");
	struct world_member n = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &n);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, o.sid));
	world_finish(&w, &n, grant.leg);
	told_ready(&r, 3);
	released(&o);
	cr_assert_eq(updates_from(&r, NULL), n.sid);
}

/* A copy of which so many chunks are there when the next version comes. */
static void
overtaken(const char *version, uint32_t chunks, bool given_up)
{
	struct world_member o = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &o);
	cr_assert_eq(beat(b, grant.leg, chunks), 0);
	world_published(&w, a, version, version);
	cr_assert_eq(world_has(&w, b, CTL_EV_RELEASE, o.sid), given_up);
	if (given_up) {
		cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_CANCELLED, false, chunks), 0);
		released(&o);
	} else {
		world_finish(&w, &o, grant.leg);
	}
}

Test(refsrv_fetch, prefetch__overtaken__given_up_unless_most_is_there)
{
	struct world_member p = world_published(&w, a, "p", "1");
	reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	overtaken("3", 5, true);
	overtaken("4", 6, false);
}

Test(refsrv_fetch, prefetch__overtaken__two_in_a_row__the_third_is_finished)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	overtaken("3", 1, true);
	overtaken("4", 1, true);
	overtaken("5", 1, false);
	told_ready(&r, 4);
	/* From here on it counts anew. */
	overtaken("6", 1, true);
}

Test(refsrv_fetch, prefetch__retention_needs_the_room__it_is_given_up_and_asked_again)
{
	struct ctl_ev_reserve reserve;
	char reason[128];
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	struct world_member o = brought(b);
	told_ready(&r, 2);
	/* The last copy of a version of another model, on the same host. */
	struct world_member z = {.agent = b, .num_shards = 1};
	w.retain = "latest";
	cr_assert_eq(world_open(&w, b, "n", "z", 0, 1, 1, &z.sid), 0);
	cr_assert_eq(world_register(&w, b, z.sid, 0), 0);
	world_publish(&w, &z, "1");
	world_call(&w, &z, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, b, &reserve));
	cr_assert_eq(world_refuse(&w, b, &reserve), 0);
	told_ready(&r, TH_NO_VERSION);
	released(&o);
	struct world_member n = world_accepts(&w, b);
	world_finish(&w, &n, world_filling(&w, &n).leg);
	world_drained(&w, &z);
	succeeded(&z);
	cr_assert_eq(updates_from(&r, reason), p.sid);
	cr_assert(strstr(reason, "retained"), "%s", reason);
}

Test(refsrv_fetch, prefetch__last_copy_of_a_retained_version__stays)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	w.retain = "latest";
	world_member(&w, c, "k", 0, 1);
	w.retain = NULL;
	publishes(&p, "2");
	struct world_member o = brought(b);
	world_call(&w, &p, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_not(world_asked(&w, a), "the fetched copy is safe enough");
	world_sleep(&w, 3 * SEC);
	world_drained(&w, &p);
	succeeded(&p);
	cr_assert_eq(world_close(&w, &r, false), 0);
	world_drained(&w, &r);
	world_sleep(&w, 20 * SEC);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, o.sid));
}

Test(refsrv_fetch, prefetch__group_ends__it_goes)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	struct world_member o = brought(b);
	cr_assert_eq(world_close(&w, &r, true), 0);
	world_drained(&w, &r);
	released(&o);
}

Test(refsrv_fetch, prefetch__version_vanishes_while_it_is_brought__nothing_is_left)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	struct world_member o = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &o);
	dies(a);
	world_sleep(&w, 20 * SEC);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_VERSION_LOST, true, 3), 0);
	world_sleep(&w, 5 * SEC);
	cr_assert(world_has(&w, b, CTL_EV_RELEASE, o.sid));
	nothing_new(&r);
}

Test(refsrv_fetch, prefetch__taken_back_between_plan_and_go__planned_anew)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	struct world_member o = brought(b);
	world_call(&w, &r, CTL_OP_UPDATE, "latest", TH_FOREVER);
	/* Its agent ends the session: the driver, or an operator, took the memory. */
	cr_assert_eq(world_close(&w, &o, false), 0);
	world_drained(&w, &o);
	cr_assert_eq(world_prepared(&w, &r, 0), 0);
	cr_assert_not(world_has(&w, b, CTL_EV_GO, r.sid), "it may be brought again");
	cr_assert_not(world_outcome(&w, &r).updated);
	cr_assert(world_asked(&w, b));
}

Test(refsrv_fetch, prefetch__node_is_drained__it_goes_and_none_comes)
{
	char reason[128];
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	publishes(&p, "2");
	struct world_member o = brought(b);
	operator_says(CTL_ADMIN_DRAIN, "node1");
	released(&o);
	cr_assert_not(world_asked(&w, b));
	cr_assert_eq(updates_from(&r, reason), p.sid);
	cr_assert(strstr(reason, "node1: it is to end"), "%s", reason);
}

Test(refsrv_fetch, prefetch__node_is_not_drained_any_more__it_comes_again)
{
	struct world_member p = world_published(&w, a, "p", "1");
	(void)reader_of_latest(b, "r", CTL_OPEN_PREFETCH);
	operator_says(CTL_ADMIN_DRAIN, "node1");
	publishes(&p, "2");
	cr_assert_not(world_asked(&w, b));
	operator_says(CTL_ADMIN_UNDRAIN, "node1");
	(void)brought(b);
}

/* ---- across datacenters ---- */

Test(refsrv_fetch, seed__one_copy_for_all_groups_of_the_datacenter)
{
	uint32_t d = world_agent_in(&w, "far"), e = world_agent_in(&w, "far");
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(d, "r", CTL_OPEN_SEED),
			    s = reader_of_latest(e, "s", CTL_OPEN_SEED);
	publishes(&p, "2");
	struct world_member o = world_accepts(&w, d);
	struct ctl_grant grant = world_filling(&w, &o);
	cr_assert_not(world_asked(&w, e));
	nothing_new(&r);
	nothing_new(&s);
	cr_assert_str_eq(inspected(&o)->why, "seed");
	world_sleep(&w, 300 * SEC);
	nothing_new(&s);
	world_finish(&w, &o, grant.leg);
	cr_assert_eq(updates_from(&s, NULL), o.sid);
	cr_assert_not(world_has(&w, d, CTL_EV_RELEASE, o.sid));
	(void)updates_from(&r, NULL);
	released(&o);
}

Test(refsrv_fetch, seed__in_the_publishers_datacenter__nothing_is_brought)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(b, "r", CTL_OPEN_SEED);
	publishes(&p, "2");
	cr_assert_not(world_asked(&w, b));
	cr_assert_eq(updates_from(&r, NULL), p.sid);
}

Test(refsrv_fetch, seed__no_room__another_host_of_the_datacenter_brings_it)
{
	struct ctl_ev_reserve reserve;
	uint32_t d = world_agent_in(&w, "far"), e = world_agent_in(&w, "far");
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = reader_of_latest(d, "r", CTL_OPEN_SEED);
	publishes(&p, "2");
	cr_assert(world_reserve(&w, d, &reserve));
	cr_assert_eq(reserve.copy_why, CTL_COPY_SEED, "its agent tells a new server");
	cr_assert_eq(world_refuse(&w, d, &reserve), 0);
	struct world_member o = brought(e);
	cr_assert_eq(updates_from(&r, NULL), o.sid);
}

Test(refsrv_fetch, seed__a_worker_there_reads_it_across__that_is_the_seed)
{
	uint32_t d = world_agent_in(&w, "far"), e = world_agent_in(&w, "far");
	world_published(&w, a, "p", "1");
	struct world_member s = world_member(&w, e, "s", 0, 1);
	struct ctl_grant grant = world_begin(&w, &s, CTL_OP_REPLICATE, "1");
	struct world_member r = reader(d, "r", CTL_OPEN_SEED);
	nothing_new(&r);
	cr_assert_not(world_asked(&w, d) || world_asked(&w, e));
	finished(&s, grant.leg);
	cr_assert_eq(updates_from(&r, NULL), s.sid);
}
