/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, smart skipping: the first reader of a datacenter is its seed, and what the others there
 * see of the version meanwhile.
 */
#include "tests/unit/server/refsrv_fixture.h"

#define SKIP (20 * SEC)

static uint32_t home, far, far_too;
static struct world_member trainer, seed;
static uint64_t leg;

static void
begin(int64_t skip_ns)
{
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.skip_ns = skip_ns;
	world_init(&w, &config);
	home = world_agent(&w);
	far = world_agent_in(&w, "far");
	far_too = world_agent_in(&w, "far");
	trainer = world_published(&w, home, "trainer", "1");
	seed = world_member(&w, far, "seed", 0, 1);
}

static void
setup(void)
{
	begin(SKIP);
	leg = world_begin(&w, &seed, CTL_OP_UPDATE, "latest").leg;
}

TestSuite(refsrv_seed, .init = setup, .fini = teardown);

/* So many chunks more, one each time. */
static void
fills(uint32_t chunks, int64_t each_ns)
{
	for (uint32_t i = 1; i <= chunks; i++) {
		struct ctl_leg_progress progress = {.leg = leg, .chunks_verified = i};
		struct ctl_request request = {.kind = CTL_BEAT, .u.beat = {1, &progress}};
		world_sleep(&w, each_ns);
		cr_assert_eq(world_request(&w, far, &request), 0);
	}
}

static void
finds_nothing_new(struct world_member *m)
{
	world_call(&w, m, CTL_OP_UPDATE, "latest", 0);
	struct ctl_ev_outcome outcome = world_outcome(&w, m);
	cr_assert_eq(outcome.code, 0);
	cr_assert_not(outcome.updated);
}

static void
reads_from(struct world_member *m, const char *spec, uint64_t source_sid)
{
	struct ctl_grant grant = world_begin(&w, m, CTL_OP_UPDATE, spec);

	cr_assert_eq(grant.source_sid, source_sid);
}

/* Reads, and both ends of its leg are told the same. */
static bool
is_told_far(struct world_member *m)
{
	struct ctl_event told = {0};
	struct ctl_grant grant = world_begin(&w, m, CTL_OP_REPLICATE, "latest");
	uint32_t source = 0;

	while (w.agents[source].inc != grant.source_agent_inc)
		source++;
	while (told.u.grant.leg != grant.leg)
		cr_assert(world_take(&w, source, CTL_EV_GRANT, grant.source_sid, &told));
	cr_assert_eq(told.u.grant.far, grant.far);
	return grant.far;
}

Test(refsrv_seed, grant__says_whether_the_other_end_is_in_another_datacenter)
{
	struct world_member behind = world_member(&w, far_too, "behind", 0, 1);
	struct world_member beside = world_member(&w, world_agent(&w), "beside", 0, 1);
	struct world_member third = world_member(&w, world_agent_in(&w, "third"), "third", 0, 1);
	cr_assert_not(is_told_far(&behind), "it reads behind the seed");
	cr_assert_not(is_told_far(&beside));
	cr_assert(is_told_far(&third));
}

Test(refsrv_seed, update__while_the_seed_fills__nothing_new_and_then_from_near)
{
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	finds_nothing_new(&m);
	fills(9, SEC);
	finds_nothing_new(&m);
	finished(&seed, leg);
	reads_from(&m, "latest", seed.sid);
}

Test(refsrv_seed, update__by_number__likewise)
{
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	world_call(&w, &m, CTL_OP_UPDATE, "1", 0);
	cr_assert_not(world_outcome(&w, &m).updated);
}

Test(refsrv_seed, update__seed_takes_longer_than_is_allowed__reads_behind_it)
{
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	fills(9, 2 * SEC);
	finds_nothing_new(&m);
	world_sleep(&w, 3 * SEC);
	reads_from(&m, "latest", seed.sid);
}

Test(refsrv_seed, update__seed_gets_nothing__reads_behind_it)
{
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	world_sleep(&w, 4 * SEC);
	finds_nothing_new(&m);
	world_sleep(&w, 2 * SEC);
	reads_from(&m, "latest", seed.sid);
}

/* So many seconds in which bytes come of many chunks, and none of these is whole. */
static void
trickles(int seconds)
{
	static uint64_t bytes;

	for (int i = 0; i < seconds; i++) {
		struct ctl_leg_progress progress = {
			.leg = leg, .chunks_verified = 2, .bytes_moved = ++bytes};
		struct ctl_request request = {.kind = CTL_BEAT, .u.beat = {1, &progress}};
		world_sleep(&w, SEC);
		cr_assert_eq(world_request(&w, far, &request), 0);
	}
}

Test(refsrv_seed, update__bytes_come_though_no_chunk_is_whole__nothing_new)
{
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	trickles(9);
	finds_nothing_new(&m);
	world_sleep(&w, 4 * SEC);
	finds_nothing_new(&m);
	/* The same number again is no byte. */
	struct ctl_leg_progress progress = {.leg = leg, .chunks_verified = 2, .bytes_moved = 9};
	struct ctl_request request = {.kind = CTL_BEAT, .u.beat = {1, &progress}};
	cr_assert_eq(world_request(&w, far, &request), 0);
	world_sleep(&w, 2 * SEC);
	reads_from(&m, "latest", seed.sid);
}

Test(refsrv_seed, replicate__reads_behind_the_seed_at_once)
{
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	struct ctl_grant grant = world_begin(&w, &m, CTL_OP_REPLICATE, "latest");
	cr_assert_eq(grant.source_sid, seed.sid, "no second seed");
}

Test(refsrv_seed, update__where_the_source_is__not_held_up)
{
	struct world_member m = world_member(&w, world_agent(&w), "m", 0, 1);
	reads_from(&m, "latest", trainer.sid);
}

Test(refsrv_seed, update__a_third_datacenter__has_a_seed_of_its_own)
{
	struct world_member m = world_member(&w, world_agent_in(&w, "third"), "m", 0, 1);
	struct ctl_grant grant = world_begin(&w, &m, CTL_OP_UPDATE, "latest");
	cr_assert(grant.source_sid == trainer.sid || grant.source_sid == seed.sid);
}

Test(refsrv_seed, update__a_complete_copy_near__is_read)
{
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	world_published(&w, far_too, "again", "1");
	world_call(&w, &m, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &m, 0), 0);
	cr_assert(world_has(&w, far_too, CTL_EV_GO, m.sid));
}

/* Nobody reads from the seed, nor from who reads behind it; but both stand behind the slow link. */
Test(refsrv_seed, update__a_complete_copy_near_that_is_read__is_read_and_not_the_seed)
{
	struct world_member behind = world_member(&w, world_agent_in(&w, "far"), "behind", 0, 1);
	struct world_member first = world_member(&w, world_agent_in(&w, "far"), "first", 0, 1);
	struct world_member m = world_member(&w, world_agent_in(&w, "far"), "m", 0, 1);
	struct ctl_grant grant = world_begin(&w, &behind, CTL_OP_REPLICATE, "latest");
	cr_assert_eq(grant.source_sid, seed.sid);
	struct world_member again = world_published(&w, far_too, "again", "1");
	reads_from(&first, "latest", again.sid);
	grant = world_begin(&w, &m, CTL_OP_UPDATE, "latest");
	cr_assert(grant.source_sid == again.sid || grant.source_sid == first.sid);
}

Test(refsrv_seed, update__on_the_seeds_host__reads_the_complete_copy_of_another)
{
	struct world_member m = world_member(&w, far, "m", 0, 1);
	struct world_member again = world_published(&w, far_too, "again", "1");
	reads_from(&m, "latest", again.sid);
}

/* As long as nothing in the datacenter is complete. */
Test(refsrv_seed, replicate__on_the_seeds_host__reads_behind_it)
{
	struct world_member m = world_member(&w, far, "m", 0, 1);
	struct ctl_grant grant = world_begin(&w, &m, CTL_OP_REPLICATE, "latest");
	cr_assert_eq(grant.source_sid, seed.sid);
}

/* The trainer is idle, and beyond the link that the bytes have crossed. */
Test(refsrv_seed, source_given_up__its_reader_stays_in_the_datacenter)
{
	finished(&seed, leg);
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	struct ctl_grant grant = world_begin(&w, &m, CTL_OP_UPDATE, "latest");
	cr_assert_eq(grant.source_sid, seed.sid);
	world_call(&w, &seed, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_part drain = world_take_drain(&w, &seed);
	cr_assert_not(world_has(&w, far_too, CTL_EV_REROUTE, m.sid));
	finished(&m, grant.leg);
	cr_assert_eq(world_drain_done(&w, far, &drain), 0);
	succeeded(&seed);
}

/* A version of two shards, and its seed, which fills on both hosts of the far datacenter. */
static void
begin_seed_of_two(struct world_member ret_seed[2])
{
	const uint32_t hosts[2] = {far, far_too};
	struct world_member t[2];

	for (uint32_t i = 0; i < 2; i++)
		t[i] = world_member(&w, home, "t", i, 2);
	call_both(t, CTL_OP_PUBLISH, "2");
	succeeded_both(t);
	for (uint32_t i = 0; i < 2; i++)
		ret_seed[i] = world_member(&w, hosts[i], "s", i, 2);
	call_both(ret_seed, CTL_OP_UPDATE, "2");
	prepared_both(ret_seed);
}

/* Read by a group of the far datacenter, and by one that is only half there. */
Test(refsrv_seed, group__skips_when_all_of_it_is_near_the_seed)
{
	struct world_member s[2], m[2];
	uint32_t near[2] = {far_too, far}, half[2] = {far, home};
	begin_seed_of_two(s);
	cr_assert(world_has(&w, far, CTL_EV_GO, s[0].sid));
	for (uint32_t i = 0; i < 2; i++)
		m[i] = world_member(&w, near[i], "m", i, 2);
	for (uint32_t i = 0; i < 2; i++) {
		world_call(&w, &m[i], CTL_OP_UPDATE, "2", TH_FOREVER);
		cr_assert_not(world_outcome(&w, &m[i]).updated);
	}
	for (uint32_t i = 0; i < 2; i++)
		m[i] = world_member(&w, half[i], "half", i, 2);
	world_call(&w, &m[0], CTL_OP_UPDATE, "2", TH_FOREVER);
	cr_assert(world_has(&w, far, CTL_EV_PLAN, m[0].sid));
}

/* Half of what is complete is near; but a member would read over the link, which the seed has. */
Test(refsrv_seed, group__reads_behind_the_seed_though_a_half_is_near)
{
	struct world_member s[2], x[2], m[2];
	uint32_t half[2] = {far_too, home};
	struct ctl_grant grants[2];
	begin_seed_of_two(s);
	for (uint32_t i = 0; i < 2; i++)
		x[i] = world_member(&w, half[i], "x", i, 2);
	call_both(x, CTL_OP_PUBLISH, "2");
	succeeded_both(x);
	for (uint32_t i = 0; i < 2; i++)
		m[i] = world_member(&w, world_agent_in(&w, "far"), "m", i, 2);
	begin_both(m, "2", grants);
	for (uint32_t i = 0; i < 2; i++)
		cr_assert_eq(grants[i].source_sid, s[i].sid);
}

Test(refsrv_seed, seed_fails__the_next_is_the_seed)
{
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	finds_nothing_new(&m);
	cr_assert_eq(world_close(&w, &seed, true), 0);
	reads_from(&m, "latest", trainer.sid);
}

Test(refsrv_seed, newer_version_meanwhile__the_seed_ends_and_then_jumps)
{
	world_call(&w, &trainer, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_part drain = world_take_drain(&w, &trainer);
	struct world_member other = world_published(&w, home, "other", "2");
	world_published(&w, home, "third", "3");
	cr_assert_not(world_has(&w, far, CTL_EV_CANCEL, seed.sid), "it is not abandoned");
	world_finish(&w, &seed, leg);
	cr_assert_eq(world_outcome(&w, &seed).version.version, 1);
	cr_assert_eq(world_drain_done(&w, home, &drain), 0);
	world_call(&w, &seed, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_event plan;
	cr_assert(world_take(&w, far, CTL_EV_PLAN, seed.sid, &plan));
	cr_assert_eq(plan.u.plan.version.version, 3, "not the one between");
	(void)other;
}

Test(refsrv_seed, no_time_to_skip__reads_behind_the_seed_at_once)
{
	world_fini(&w);
	begin(0);
	leg = world_begin(&w, &seed, CTL_OP_UPDATE, "latest").leg;
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	reads_from(&m, "latest", seed.sid);
}

/* ---- several update in the same instant: all are planned when the first of them goes -------- */

#define READERS 4u
static struct world_member readers[READERS];
static struct world_member next;

static void
is_planned(struct world_member *m, enum ctl_op_kind kind, const char *spec)
{
	struct ctl_event plan;

	world_call(&w, m, kind, spec, TH_FOREVER);
	cr_assert(world_take(&w, m->agent, CTL_EV_PLAN, m->sid, &plan));
	cr_assert_eq(plan.u.plan.version.version, 2);
}

/* Each holds version 1, and is planned for 2, which is beyond the slow link. */
static void
setup_burst(void)
{
	begin(SKIP);
	for (uint32_t i = 0; i < READERS; i++) {
		char name[8] = {'r', (char)('0' + i)};
		readers[i] = world_published(&w, i % 2 == 0 ? far : far_too, name, "1");
	}
	next = world_published(&w, home, "next", "2");
	for (uint32_t i = 0; i < READERS; i++)
		is_planned(&readers[i], CTL_OP_UPDATE, "latest");
}

TestSuite(refsrv_seed_burst, .init = setup_burst, .fini = teardown);

static struct ctl_grant
goes(const struct world_member *m)
{
	cr_assert_eq(world_prepared(&w, m, 0), 0);
	return world_go(&w, m);
}

/* It was planned, and has what it had. */
static void
goes_back(const struct world_member *m)
{
	struct ctl_event undrain;

	cr_assert_eq(world_prepared(&w, m, 0), 0);
	cr_assert_not(world_has(&w, m->agent, CTL_EV_GO, m->sid), "nothing is overwritten");
	cr_assert(world_take(&w, m->agent, CTL_EV_UNDRAIN, m->sid, &undrain));
	struct ctl_ev_outcome outcome = world_outcome(&w, m);
	cr_assert_eq(outcome.code, 0);
	cr_assert_not(outcome.updated);
	cr_assert_eq(outcome.version.version, 1);
}

Test(refsrv_seed_burst, the_first_to_go_is_the_seed__the_others_find_nothing_new)
{
	struct ctl_grant grant = goes(&readers[2]);
	cr_assert_eq(grant.source_sid, next.sid);
	for (uint32_t i = 0; i < READERS; i++) {
		if (i != 2)
			goes_back(&readers[i]);
	}
	world_finish(&w, &readers[2], grant.leg);
	cr_assert(world_outcome(&w, &readers[2]).updated);
	grant = world_begin(&w, &readers[0], CTL_OP_UPDATE, "latest");
	cr_assert_eq(grant.source_sid, readers[2].sid);
	cr_assert_eq(world_flags(&w, home, "r1", false), world_flags(&w, home, "trainer", false),
		"what it holds is listed as before");
}

Test(refsrv_seed_burst, seed_is_complete_when_it_may_go__reads_from_it)
{
	struct ctl_grant grant = goes(&readers[1]);
	world_finish(&w, &readers[1], grant.leg);
	cr_assert_eq(goes(&readers[0]).source_sid, readers[1].sid);
}

Test(refsrv_seed_burst, seed_dies__the_next_to_go_is_the_seed)
{
	goes(&readers[0]);
	cr_assert_eq(world_close(&w, &readers[0], true), 0);
	cr_assert_eq(goes(&readers[1]).source_sid, next.sid);
	goes_back(&readers[2]);
}

Test(refsrv_seed_burst, seed_gets_nothing__reads_behind_it)
{
	goes(&readers[0]);
	goes_back(&readers[1]);
	world_sleep(&w, 6 * SEC);
	cr_assert_eq(goes(&readers[2]).source_sid, readers[0].sid);
}

Test(refsrv_seed_burst, newer_version_meanwhile__is_planned_for_it)
{
	struct world_member newest;
	struct ctl_event event;

	goes(&readers[0]);
	newest = world_published(&w, home, "newest", "3");
	cr_assert_eq(world_prepared(&w, &readers[1], 0), 0);
	cr_assert(world_take(&w, far_too, CTL_EV_UNDRAIN, readers[1].sid, &event));
	cr_assert(world_take(&w, far_too, CTL_EV_PLAN, readers[1].sid, &event));
	cr_assert_eq(event.u.plan.version.version, 3);
	cr_assert(event.u.plan.drain_old);
	struct ctl_request request = {.kind = CTL_PREPARED};
	request.u.prepared.sid = readers[1].sid;
	request.u.prepared.op_seq = readers[1].seq;
	request.u.prepared.plan_no = event.u.plan.plan_no;
	cr_assert_eq(world_request(&w, far_too, &request), 0);
	cr_assert_eq(world_go(&w, &readers[1]).source_sid, newest.sid);
}

Test(refsrv_seed_burst, replicate__reads_behind_the_seed)
{
	struct world_member m = world_member(&w, far_too, "m", 0, 1);
	is_planned(&m, CTL_OP_REPLICATE, "latest");
	goes(&readers[0]);
	cr_assert_eq(goes(&m).source_sid, readers[0].sid);
}

/* Nothing comes over a link: the first to go holds up nobody. */
Test(refsrv_seed_burst, where_the_source_is__all_go)
{
	struct world_member m[2];

	for (uint32_t i = 0; i < 2; i++) {
		m[i] = world_member(&w, world_agent(&w), i == 0 ? "m0" : "m1", 0, 1);
		is_planned(&m[i], CTL_OP_UPDATE, "latest");
	}
	goes(&readers[0]);
	for (uint32_t i = 0; i < 2; i++)
		goes(&m[i]);
}

/* Its first member was planned before there was a seed, its last one calls afterwards. */
Test(refsrv_seed_burst, group_with_a_late_member__one_outcome)
{
	uint32_t where[2] = {far, far_too};
	struct world_member from[2], s[2], m[2];

	for (uint32_t i = 0; i < 2; i++)
		from[i] = world_member(&w, home, "from", i, 2);
	call_both(from, CTL_OP_PUBLISH, "5");
	succeeded_both(from);
	for (uint32_t i = 0; i < 2; i++) {
		s[i] = world_member(&w, where[i], "s", i, 2);
		m[i] = world_member(&w, where[i], "m", i, 2);
	}
	world_call(&w, &m[0], CTL_OP_UPDATE, "5", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &m[0], 0), 0);
	call_both(s, CTL_OP_UPDATE, "5");
	prepared_both(s);
	for (uint32_t i = 0; i < 2; i++)
		world_go(&w, &s[i]);
	cr_assert_not(world_ended(&w, &m[0]));
	world_call(&w, &m[1], CTL_OP_UPDATE, "5", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &m[1], 0), 0);
	for (uint32_t i = 0; i < 2; i++) {
		struct ctl_ev_outcome outcome = world_outcome(&w, &m[i]);
		cr_assert_eq(outcome.code, 0);
		cr_assert_not(outcome.updated);
		cr_assert_not(world_has(&w, m[i].agent, CTL_EV_GO, m[i].sid));
	}
}
