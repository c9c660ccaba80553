/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, after a former server was lost: groups that were broken before come back with what they
 * hold, and the last copy of what is retained is copied elsewhere before it is given up.
 */
#include "tests/support/core/refsrv_former.h"
#include "tests/unit/server/refsrv_fixture.h"

static void
setup(void)
{
	world_init(&w, NULL);
	w.offload_bytes = UINT64_MAX;
	a = former_agent(&w);
	b = former_agent(&w);
	c = former_agent(&w);
}

TestSuite(refsrv_rejoin_broken, .init = setup, .fini = teardown);

/* A shard of two of what was broken, which holds version 7. */
static struct ctl_rejoin
broken_shard(uint32_t shard)
{
	struct ctl_rejoin said = former_holds("p", shard, 2, 7);

	said.gone = true;
	return said;
}

static struct world_member
back(uint32_t agent, uint32_t shard)
{
	struct ctl_rejoin said = broken_shard(shard);

	return former_back(&w, agent, &said);
}

/* Somebody claims the latest version. */
static void
retained(void)
{
	struct ctl_rejoin said = former_shard("k", 0, 1);

	strcpy(said.open.retain, "latest");
	former_back(&w, c, &said);
}

static void
copied(const struct world_member *m)
{
	struct world_member o[2] = {world_accepts(&w, a), world_accepts(&w, b)};

	taken(&o[0], CTL_EV_PLAN);
	cr_assert_eq(world_prepared(&w, &o[0], 0), 0);
	former_finish(&w, &o[1], world_filling(&w, &o[1]).leg, 1);
	former_finish(&w, &o[0], world_go(&w, &o[0]).leg, 1);
	for (uint32_t i = 0; i < 2; i++)
		world_drained(&w, &m[i]);
	cr_assert(former_listed(&w, 7));
}

Test(refsrv_rejoin_broken, last_copy__copied_before_it_goes)
{
	struct world_member m[2];
	retained();
	m[0] = back(a, 0);
	cr_assert_not(former_is_broken(&w, &m[0]), "the rest of it may come");
	m[1] = back(b, 1);
	cr_assert(former_is_broken(&w, &m[0]));
	cr_assert(former_is_broken(&w, &m[1]));
	former_all_said(&w);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m[0].sid));
	copied(m);
}

Test(refsrv_rejoin_broken, their_workers_close__copied_all_the_same)
{
	struct world_member m[2];
	retained();
	m[0] = back(a, 0);
	cr_assert_eq(world_close(&w, &m[0], false), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m[0].sid), "it waits for the rest");
	m[1] = back(b, 1);
	cr_assert_eq(world_close(&w, &m[1], true), 0);
	former_all_said(&w);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m[0].sid));
	copied(m);
}

Test(refsrv_rejoin_broken, one_was_not_told_before__copied_and_told)
{
	struct ctl_rejoin said = former_holds("p", 0, 2, 7);
	struct world_member m[2];
	retained();
	m[0] = former_back(&w, a, &said);
	m[1] = back(b, 1);
	former_broken(&w, &m[0], "broken before");
	former_all_said(&w);
	copied(m);
}

Test(refsrv_rejoin_broken, nobody_retains_it__drained)
{
	struct world_member m[2] = {back(a, 0), back(b, 1)};
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m[0].sid), "who claims it may come");
	former_all_said(&w);
	for (uint32_t i = 0; i < 2; i++)
		world_drained(&w, &m[i]);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_rejoin_broken, a_shard_holds_nothing__drained)
{
	struct ctl_rejoin gone = former_shard("p", 1, 2);
	retained();
	struct world_member m = back(a, 0);
	gone.gone = true;
	cr_assert_eq(former_rejoin(&w, b, &gone), 0);
	world_drained(&w, &m);
	cr_assert_not(former_listed(&w, 7));
}

Test(refsrv_rejoin_broken, shards_hold_different_versions__drained)
{
	struct ctl_rejoin said = broken_shard(1);
	retained();
	struct world_member m[2] = {back(a, 0)};
	said.held.version = 8;
	m[1] = former_back(&w, b, &said);
	for (uint32_t i = 0; i < 2; i++)
		world_drained(&w, &m[i]);
	cr_assert_not(former_listed(&w, 7) || former_listed(&w, 8));
}

Test(refsrv_rejoin_broken, a_shard_never_comes__drained_in_the_end)
{
	retained();
	struct world_member m = back(a, 0);
	former_all_said(&w);
	world_sleep(&w, 60 * SEC);
	cr_assert(former_is_broken(&w, &m));
	world_drained(&w, &m);
}

/* Its workers have opened again, as they were told to. */
static struct world_member
successor(void)
{
	struct ctl_rejoin said = former_holds("p", 0, 1, 8);

	said.sid += 1000;
	said.group_inc += 1000;
	return former_back(&w, c, &said);
}

Test(refsrv_rejoin_broken, another_group_has_its_name__both_come_back)
{
	struct world_member m[2], other;
	m[0] = back(a, 0);
	other = successor();
	m[1] = back(b, 1);
	cr_assert_not(former_is_broken(&w, &other));
	cr_assert(former_listed(&w, 7) && former_listed(&w, 8));
	former_all_said(&w);
	for (uint32_t i = 0; i < 2; i++)
		world_drained(&w, &m[i]);
}

Test(refsrv_rejoin_broken, another_group_came_first__both_come_back)
{
	struct world_member other = successor(), m[2] = {back(a, 0), back(b, 1)};
	cr_assert_not(former_is_broken(&w, &other));
	cr_assert(former_listed(&w, 7) && former_listed(&w, 8));
	former_all_said(&w);
	for (uint32_t i = 0; i < 2; i++)
		world_drained(&w, &m[i]);
}

Test(refsrv_rejoin_broken, its_name_is_opened_meanwhile__also_by_a_launch)
{
	uint64_t sid;
	back(a, 0);
	cr_assert_eq(world_launch(&w, c, "p", 0, 1, "again", &sid), 0);
	struct world_member m = back(b, 1);
	cr_assert(former_listed(&w, 7));
	cr_assert(former_is_broken(&w, &m));
	cr_assert_not(world_has(&w, c, CTL_EV_BROKEN, sid));
}
