/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, when a chain of readers becomes a tree: only where that is sooner over, and what each of
 * them reads from then.
 */
#include <stdio.h>

#include "tests/unit/server/refsrv_fixture.h"

#define READERS 15u
#define SOURCE READERS /* index of the publisher in what follows */

static struct world_member members[READERS + 1];
static uint32_t source_of[READERS]; /* the index of who reader i reads from */
static uint64_t legs[READERS];
static uint32_t moves;

static void
start(int32_t gain)
{
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.fan_gain = gain;
	world_init(&w, &config);
	for (uint32_t i = 0; i < WORLD_AGENTS_MAX; i++)
		world_agent(&w);
	world_sleep(&w, 2 * SEC);
	members[SOURCE] = world_member(&w, SOURCE, "source", 0, 1);
	world_publish(&w, &members[SOURCE], "1");
	moves = 0;
}

TestSuite(refsrv_fan, .fini = teardown);

static uint32_t
member_of(uint64_t sid)
{
	for (uint32_t i = 0; i <= READERS; i++) {
		if (members[i].sid == sid)
			return i;
	}
	cr_assert_fail("no such session");
	return 0;
}

/* What the server has told them since. */
static void
take_moves(void)
{
	struct ctl_event event;

	for (uint32_t i = 0; i < READERS && members[i].sid != 0; i++) {
		while (world_take(&w, members[i].agent, CTL_EV_REROUTE, members[i].sid, &event)) {
			cr_assert_eq(event.u.reroute.old_leg, legs[i]);
			/* Its old leg is over, as its agent says then. */
			cr_assert_eq(world_leg_end(&w, members[i].agent, legs[i], TH_E_CANCELLED,
					     true, 0),
				0);
			legs[i] = event.u.reroute.grant.leg;
			source_of[i] = member_of(event.u.reroute.grant.source_sid);
			moves++;
		}
	}
}

static void
join(uint32_t i, uint32_t agent)
{
	char name[16];

	snprintf(name, sizeof(name), "r%u", i);
	members[i] = world_member(&w, agent, name, 0, 1);
	struct ctl_grant grant = world_begin(&w, &members[i], CTL_OP_REPLICATE, "1");
	source_of[i] = member_of(grant.source_sid);
	legs[i] = grant.leg;
	take_moves();
}

static uint32_t
depth(uint32_t i)
{
	uint32_t hops = 0;

	for (; i != SOURCE; i = source_of[i])
		cr_assert_leq(++hops, READERS, "a circle");
	return hops;
}

static uint32_t
readers_of(uint32_t i, uint32_t count)
{
	uint32_t readers = 0;

	for (uint32_t j = 0; j < count; j++)
		readers += source_of[j] == i;
	return readers;
}

static void
progress(uint32_t i, uint32_t chunks)
{
	cr_assert_eq(beat(members[i].agent, legs[i], chunks), 0);
}

/* 10 chunks, so 15 readers are no reason yet: 10 + 14 chunk times, and 2 (10 + 3) in a tree. */
Test(refsrv_fan, few_readers__stay_a_chain)
{
	start(8);
	for (uint32_t i = 0; i < READERS; i++) {
		join(i, i);
		cr_assert_eq(source_of[i], i == 0 ? SOURCE : i - 1);
	}
	cr_assert_eq(moves, 0);
}

/* 4 + 10 hops would be saved by 14 readers if a tree cost nothing; with a gain of -4 it does. */
Test(refsrv_fan, more_readers_than_chunks__chain_is_cut_and_nobody_has_more_than_two)
{
	uint32_t deepest = 0;

	start(-4);
	for (uint32_t i = 0; i < 12; i++)
		join(i, i);
	cr_assert_eq(moves, 0, "12 hops - 2 * 3 - 10 chunks is no more than -4");
	join(12, 12);
	cr_assert_gt(moves, 0, "13 hops are");
	cr_assert_eq(readers_of(SOURCE, 13), 2);
	for (uint32_t i = 0; i < 13; i++) {
		cr_assert_leq(readers_of(i, 13), 2);
		deepest = depth(i) > deepest ? depth(i) : deepest;
	}
	cr_assert_leq(deepest, 5);
	/* Who comes now goes to the end of one. */
	uint32_t before = moves;
	join(13, 13);
	cr_assert_eq(readers_of(source_of[13], 14), 1);
	cr_assert_eq(moves, before);
	/* All of it ends well. */
	for (uint32_t i = 0; i < 14; i++)
		world_finish(&w, &members[i], legs[i]);
	for (uint32_t i = 0; i < 14; i++)
		succeeded(&members[i]);
}

Test(refsrv_fan, chain_is_well_under_way__nobody_is_slowed)
{
	start(-4);
	for (uint32_t i = 0; i < 12; i++) {
		join(i, i);
		progress(0, 6);
	}
	join(12, 12);
	join(13, 13);
	cr_assert_eq(moves, 0, "its end is nearer than that of a tree that begins now");
}

Test(refsrv_fan, readers_of_one_host__are_not_moved_off_it)
{
	start(-8);
	join(0, 0);
	for (uint32_t i = 1; i < READERS; i++) {
		join(i, 0);
		cr_assert_neq(source_of[i], SOURCE);
	}
	cr_assert_eq(moves, 0);
}

Test(refsrv_fan, a_pair_that_failed__is_not_made_again_by_a_cut)
{
	struct world_member early;

	start(-4);
	early = world_member(&w, 6, "early", 0, 1);
	struct ctl_grant grant = world_begin(&w, &early, CTL_OP_REPLICATE, "1");
	cr_assert_eq(world_leg_end(&w, 6, grant.leg, TH_E_NO_PATH, true, 0), 0);
	cr_assert_eq(world_close(&w, &early, true), 0);
	for (uint32_t i = 0; i < 13; i++)
		join(i, i);
	cr_assert_gt(moves, 0);
	/* It would be the one in the middle. */
	cr_assert_neq(source_of[6], SOURCE);
	for (uint32_t i = 0; i < 13; i++)
		cr_assert_leq(readers_of(i, 13), 2);
}
