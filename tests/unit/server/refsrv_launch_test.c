/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, launches: a group that is launched again replaces what is left of the old launch, which
 * cannot come back.
 */
#include <stdio.h>

#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_launch, .init = setup_empty, .fini = teardown);

Test(refsrv_launch, another_one__replaces_the_group_and_its_members_are_told)
{
	new_agents(2);
	uint64_t old, other, sid;
	struct ctl_event event;
	cr_assert_eq(world_launch(&w, a, "r", 0, 2, "job-1", &old), 0);
	cr_assert_eq(world_launch(&w, b, "r", 1, 2, "job-1", &other), 0);
	cr_assert_eq(world_launch(&w, b, "r", 0, 2, "job-1", &sid), TH_E_GROUP_MISMATCH);
	/* The shard of a worker that is dead, or not noticed to be. */
	cr_assert_eq(world_launch(&w, b, "r", 0, 2, "job-2", &sid), 0);
	cr_assert(world_take(&w, a, CTL_EV_BROKEN, old, &event));
	cr_assert_not_null(strstr(event.u.broken.text, "job-2 replaces launch job-1"));
	cr_assert(world_take(&w, b, CTL_EV_BROKEN, other, &event));
	/* Another number of shards is its own affair. */
	cr_assert_eq(world_launch(&w, b, "r", 0, 3, "job-3", &sid), 0);
}

Test(refsrv_launch, replaced_one__cannot_come_back)
{
	new_agents(2);
	uint64_t sid;
	cr_assert_eq(world_launch(&w, a, "r", 0, 2, "job-1", &sid), 0);
	cr_assert_eq(world_launch(&w, b, "r", 0, 2, "job-2", &sid), 0);
	cr_assert_eq(world_launch(&w, a, "r", 1, 2, "job-1", &sid), TH_E_GROUP_MISMATCH);
	cr_assert(says("replaced by launch job-2") && says("node0"));
	cr_assert_eq(world_launch(&w, b, "r", 0, 2, "job-3", &sid), 0);
	cr_assert_eq(world_launch(&w, a, "r", 1, 2, "job-1", &sid), TH_E_GROUP_MISMATCH);
	cr_assert_eq(world_launch(&w, a, "r", 1, 2, "job-2", &sid), TH_E_GROUP_MISMATCH);
	cr_assert_eq(world_launch(&w, a, "r", 1, 2, "job-3", &sid), 0);
	cr_assert_eq(world_launch(&w, a, "other", 1, 2, "job-1", &sid), 0);
}

Test(refsrv_launch, many__the_last_sixteen_cannot_come_back)
{
	new_agents(1);
	struct world_member m = {.agent = a};
	char name[16];
	uint64_t sid;
	for (int i = 0; i <= 17; i++) {
		uint64_t before = m.sid;
		snprintf(name, sizeof(name), "job-%d", i);
		cr_assert_eq(world_launch(&w, a, "r", 0, 2, name, &m.sid), 0);
		if (i > 0) /* what is left of a launch remembers those before it */
			cr_assert_eq(
				world_close(&w, &(struct world_member){.agent = a, .sid = before},
					true),
				0);
	}
	for (int i = 1; i <= 16; i++) {
		snprintf(name, sizeof(name), "job-%d", i);
		cr_assert_eq(world_launch(&w, a, "r", 1, 2, name, &sid), TH_E_GROUP_MISMATCH);
	}
	cr_assert_eq(world_launch(&w, a, "r", 1, 2, "job-0", &sid), 0, "forgotten: it is new");
}

Test(refsrv_launch, group_broken__the_same_launch_opens_again_an_older_one_does_not)
{
	new_agents(2);
	struct world_member m = {.agent = b};
	uint64_t sid;
	cr_assert_eq(world_launch(&w, a, "r", 0, 2, "job-1", &sid), 0);
	cr_assert_eq(world_launch(&w, b, "r", 0, 2, "job-2", &m.sid), 0);
	cr_assert_eq(world_launch(&w, a, "r", 1, 2, "job-2", &sid), 0);
	cr_assert_eq(world_close(&w, &m, true), 0);
	cr_assert_eq(world_launch(&w, a, "r", 0, 2, "job-1", &sid), TH_E_GROUP_MISMATCH);
	cr_assert_eq(world_launch(&w, b, "r", 0, 2, "job-2", &sid), 0);
}

Test(refsrv_launch, only_some_members_give_one__mismatch)
{
	new_agents(2);
	uint64_t sid;
	cr_assert_eq(world_launch(&w, a, "r", 0, 2, "job-1", &sid), 0);
	cr_assert_eq(world_launch(&w, b, "r", 1, 2, "", &sid), TH_E_GROUP_MISMATCH);
	cr_assert(says("open with a launch_id") && says("without one"));
	cr_assert_eq(world_launch(&w, a, "s", 0, 2, "", &sid), 0);
	cr_assert_eq(world_launch(&w, b, "s", 1, 2, "job-1", &sid), TH_E_GROUP_MISMATCH);
	cr_assert(says("open without a launch_id"));
	cr_assert_eq(world_launch(&w, b, "t", 0, 1, "a\tb", &sid), TH_E_INVALID);
}

Test(refsrv_launch, many__the_last_sixteen_are_remembered)
{
	new_agents(1);
	char id[32];
	uint64_t sid;
	for (unsigned i = 0; i < 30; i++) {
		snprintf(id, sizeof(id), "job-%u", i);
		cr_assert_eq(world_launch(&w, a, "r", 0, 1, id, &sid), 0, "%s", id);
	}
	cr_assert_eq(world_launch(&w, a, "r", 0, 1, "job-13", &sid), TH_E_GROUP_MISMATCH);
	cr_assert_eq(world_launch(&w, a, "r", 0, 1, "job-28", &sid), TH_E_GROUP_MISMATCH);
	cr_assert_eq(world_launch(&w, a, "r", 0, 1, "job-29", &sid), TH_E_GROUP_MISMATCH);
	cr_assert(says("is open on node"));
}
