/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, retention: which versions are claimed, by whom and for how long. What follows from it is
 * in refsrv_offload_test.
 */
#include <stdio.h>

#include "server/core/retain/retain.h"
#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_retain, .init = setup_three, .fini = teardown);

static bool
retained(uint64_t lineage, uint64_t version)
{
	cr_assert_eq(world_list(&w, a, "m"), 0);
	for (uint32_t i = 0; i < w.reply.u.list.num_versions; i++) {
		const struct ctl_version_info *info = &w.reply.u.list.versions[i];
		if (info->version.lineage == lineage && info->version.version == version)
			return info->retained;
	}
	cr_assert_fail("version (%u, %u) is not listed", (unsigned)lineage, (unsigned)version);
	return false;
}

/* A group of one that claims; it holds nothing. */
static struct world_member
claimant(uint32_t agent, const char *replica, const char *rules)
{
	w.retain = rules;
	struct world_member m = world_member(&w, agent, replica, 0, 1);
	w.retain = NULL;
	return m;
}

static struct world_member
publisher(const char *version)
{
	char name[16];
	struct world_member m;

	snprintf(name, sizeof(name), "p%s", version);
	m = world_member(&w, b, name, 0, 1);
	world_publish(&w, &m, version);
	return m;
}

/* ---- what the rules name ---- */

Test(refsrv_retain, no_claim__nothing_is_retained)
{
	publisher("7");
	cr_assert_not(retained(1, 7));
}

Test(refsrv_retain, latest__until_its_successor_is_published)
{
	claimant(a, "k", "latest");
	publisher("7");
	cr_assert(retained(1, 7));
	struct world_member m = world_member(&w, b, "next", 0, 2);
	world_call(&w, &m, CTL_OP_PUBLISH, "8", TH_FOREVER);
	cr_assert(retained(1, 7), "the successor is not published by one of two members");
	publisher("9");
	cr_assert_not(retained(1, 7));
	cr_assert(retained(1, 9));
}

Test(refsrv_retain, latest_k__is_numeric)
{
	claimant(a, "k", "latest-2,latest-1");
	publisher("5");
	publisher("7");
	publisher("8");
	cr_assert_not(retained(1, 5), "8 - 2 is 6, which is not there");
	cr_assert(retained(1, 7));
	cr_assert_not(retained(1, 8));
	publisher("10");
	cr_assert(retained(1, 8));
	cr_assert_not(retained(1, 7));
}

Test(refsrv_retain, latest_k__below_zero__names_nothing)
{
	claimant(a, "k", "latest-9");
	publisher("5");
	cr_assert_not(retained(1, 5));
}

Test(refsrv_retain, number__whatever_is_latest)
{
	claimant(a, "k", "5");
	publisher("4");
	publisher("5");
	publisher("9");
	cr_assert_not(retained(1, 4));
	cr_assert(retained(1, 5));
	cr_assert_not(retained(1, 9));
}

Test(refsrv_retain, republished_older_version__does_not_move_latest)
{
	claimant(a, "k", "latest");
	publisher("9");
	publisher("4");
	cr_assert(retained(1, 9));
	cr_assert_not(retained(1, 4));
}

Test(refsrv_retain, another_lineage__names_nothing_of_the_lower_one)
{
	struct world_member m = {.agent = b, .num_shards = 1};
	claimant(a, "k", "latest,5");
	publisher("5");
	cr_assert(retained(1, 5));
	cr_assert_eq(world_open(&w, b, "m", "run2", 0, 1, 2, &m.sid), 0);
	cr_assert_eq(world_register(&w, b, m.sid, 0), 0);
	world_publish(&w, &m, "1");
	cr_assert_not(retained(1, 5));
	cr_assert(retained(2, 1));
}

Test(refsrv_retain, latest_is_gone__the_one_before_is_latest_again)
{
	claimant(a, "k", "latest");
	publisher("7");
	struct world_member m = publisher("8");
	cr_assert_not(retained(1, 7));
	cr_assert_eq(world_close(&w, &m, true), 0);
	world_drained(&w, &m);
	cr_assert(retained(1, 7));
}

Test(refsrv_retain, claims_of_many__are_added_up)
{
	claimant(a, "k1", "latest");
	claimant(a, "k2", "latest-1");
	claimant(b, "k3", "3");
	publisher("3");
	publisher("6");
	publisher("7");
	publisher("5");
	cr_assert(retained(1, 3));
	cr_assert_not(retained(1, 5));
	cr_assert(retained(1, 6));
	cr_assert(retained(1, 7));
}

Test(refsrv_retain, another_model__is_not_claimed)
{
	struct world_member m = {.agent = b, .num_shards = 1};
	claimant(a, "k", "latest");
	cr_assert_eq(world_open(&w, b, "other", "p", 0, 1, 1, &m.sid), 0);
	cr_assert_eq(world_register(&w, b, m.sid, 0), 0);
	world_publish(&w, &m, "1");
	cr_assert_eq(world_list(&w, a, "other"), 0);
	cr_assert_not(w.reply.u.list.versions[0].retained);
}

/* ---- successors ---- */

static void
restart_world(uint32_t successor_copies)
{
	struct refsrv_config config;
	refsrv_config_default(&config);
	config.successor_copies = successor_copies;
	world_fini(&w);
	world_init(&w, &config);
	new_agents(3);
}

Test(refsrv_retain, successor_copies__two_copies_on_two_nodes_replace_it)
{
	restart_world(2);
	claimant(a, "k", "latest");
	publisher("7");
	publisher("8");
	cr_assert(retained(1, 7), "one copy of the successor is not enough");
	cr_assert(retained(1, 8), "it is the latest as well");
	struct world_member reader = world_member(&w, c, "r", 0, 1);
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "8");
	cr_assert(retained(1, 7), "not while it is being received");
	world_finish(&w, &reader, grant.leg);
	cr_assert_not(retained(1, 7));
	cr_assert(retained(1, 8));
}

Test(refsrv_retain, successor_copies__two_on_one_node_are_one)
{
	restart_world(2);
	claimant(a, "k", "latest");
	publisher("7");
	publisher("8");
	struct world_member twin = world_member(&w, b, "twin", 0, 1);
	world_publish(&w, &twin, "8");
	cr_assert(retained(1, 7), "both copies of 8 would go with one host");
}

Test(refsrv_retain, successor_copies__spot_does_not_count)
{
	restart_world(2);
	claimant(a, "k", "latest");
	publisher("7");
	publisher("8");
	w.spot = true;
	uint32_t d = world_agent(&w);
	w.spot = false;
	struct world_member reader = world_member(&w, d, "r", 0, 1);
	world_replicate(&w, &reader, "8");
	cr_assert(retained(1, 7));
}

/* ---- who claims, and how long ---- */

Test(refsrv_retain, close__ends_the_claim)
{
	struct world_member m = claimant(a, "k", "latest");
	publisher("7");
	cr_assert(retained(1, 7));
	cr_assert_eq(world_close(&w, &m, false), 0);
	cr_assert_not(retained(1, 7));
}

Test(refsrv_retain, close__others_with_the_same_rules_still_claim)
{
	struct world_member m = claimant(a, "k1", "latest,3");
	claimant(b, "k2", "3,latest");
	publisher("7");
	cr_assert_eq(world_close(&w, &m, false), 0);
	cr_assert(retained(1, 7));
}

Test(refsrv_retain, close_of_one_member__ends_the_claim_of_its_group)
{
	struct world_member m[2];
	w.retain = "latest";
	m[0] = world_member(&w, a, "k", 0, 2);
	m[1] = world_member(&w, b, "k", 1, 2);
	w.retain = NULL;
	publisher("7");
	cr_assert(retained(1, 7));
	cr_assert_eq(world_close(&w, &m[0], false), 0);
	cr_assert_not(retained(1, 7));
	cr_assert_eq(world_close(&w, &m[1], true), 0);
	cr_assert_not(retained(1, 7), "it is not claimed again by a death");
}

Test(refsrv_retain, crash__claim_outlives_it_by_grace)
{
	struct world_member m = claimant(a, "k", "latest");
	publisher("7");
	cr_assert_eq(world_close(&w, &m, true), 0);
	world_sleep(&w, 599 * SEC);
	cr_assert(retained(1, 7));
	world_sleep(&w, 2 * SEC);
	cr_assert_not(retained(1, 7));
}

Test(refsrv_retain, crash_of_the_agent__claim_outlives_it)
{
	claimant(c, "k", "latest");
	publisher("7");
	w.agents[c].silent = true;
	world_sleep(&w, 15 * SEC);
	cr_assert(retained(1, 7));
	world_sleep(&w, 610 * SEC);
	cr_assert_not(retained(1, 7));
}

Test(refsrv_retain, crash__grace_begins_with_the_last_crash)
{
	struct world_member m = claimant(a, "k", "latest");
	publisher("7");
	cr_assert_eq(world_close(&w, &m, true), 0);
	world_sleep(&w, 300 * SEC);
	m = claimant(a, "k", "latest");
	cr_assert_eq(world_close(&w, &m, true), 0);
	world_sleep(&w, 500 * SEC);
	cr_assert(retained(1, 7));
	/* Who comes back in time and closes does not end what the crash has left. */
	m = claimant(a, "k", "latest");
	cr_assert_eq(world_close(&w, &m, false), 0);
	cr_assert(retained(1, 7));
	world_sleep(&w, 110 * SEC);
	cr_assert_not(retained(1, 7));
}

Test(refsrv_retain, other_rules_in_one_group__mismatch)
{
	struct world_member m = {.agent = b, .shard = 1, .num_shards = 2};
	w.retain = "latest,3";
	world_member(&w, a, "k", 0, 2);
	w.retain = "latest";
	cr_assert_eq(world_open(&w, b, "m", "k", 1, 2, 1, &m.sid), TH_E_GROUP_MISMATCH);
	cr_assert(strstr(w.reply.text, "retain \"latest\""), "%s", w.reply.text);
	w.retain = NULL;
	cr_assert_eq(world_open(&w, b, "m", "k", 1, 2, 1, &m.sid), TH_E_GROUP_MISMATCH);
	w.retain = "3,latest";
	cr_assert_eq(world_open(&w, b, "m", "k", 1, 2, 1, &m.sid), 0, "the same, in another order");
}

Test(refsrv_retain, bad_rules__are_refused_and_leave_nothing)
{
	uint64_t sid;
	w.retain = "latest,all";
	cr_assert_eq(world_open(&w, a, "new", "k", 0, 1, 1, &sid), TH_E_INVALID);
	cr_assert(strstr(w.reply.text, "\"all\""), "%s", w.reply.text);
	w.retain = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17";
	cr_assert_eq(world_open(&w, a, "new", "k", 0, 1, 1, &sid), TH_E_LIMIT);
	w.retain = NULL;
}

/* A worker opens with rules of its own, and dies. */
static int
crashes(const char *model, uint32_t number)
{
	struct world_member m = {.agent = a, .num_shards = 1};
	char rules[16];

	snprintf(rules, sizeof(rules), "%u", number);
	w.retain = rules;
	int rc = world_open(&w, a, model, "k", 0, 1, 1, &m.sid);
	w.retain = NULL;
	if (rc == 0)
		cr_assert_eq(world_close(&w, &m, true), 0);
	return rc;
}

Test(refsrv_retain, crashes_with_ever_other_rules__are_bounded)
{
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.grace_ns = 5 * SEC;
	world_fini(&w);
	world_init(&w, &config);
	new_agents(2);
	for (uint32_t i = 1; i <= RETAIN_CLAIMS_MAX; i++)
		cr_assert_eq(crashes("m", i), 0, "%u: %s", i, w.reply.text);
	cr_assert_eq(crashes("m", RETAIN_CLAIMS_MAX + 1), TH_E_LIMIT);
	cr_assert(strstr(w.reply.text, "retain.grace") && strstr(w.reply.text, "256"), "%s",
		w.reply.text);
	cr_assert_eq(crashes("m", 5), 0, "the same rules take no room");
	cr_assert_eq(crashes("other", RETAIN_CLAIMS_MAX + 1), 0, "each model has its own");
	claimant(b, "none", NULL);
	world_sleep(&w, 6 * SEC);
	cr_assert_eq(crashes("m", RETAIN_CLAIMS_MAX + 1), 0);
}

Test(refsrv_retain, crashes_in_ever_other_models__are_bounded)
{
	struct refsrv_config config;
	char model[16];

	refsrv_config_default(&config);
	config.members_max = 8;
	config.grace_ns = 5 * SEC;
	world_fini(&w);
	world_init(&w, &config);
	new_agents(1);
	for (uint32_t i = 0; i < 8; i++) {
		snprintf(model, sizeof(model), "m%u", i);
		cr_assert_eq(crashes(model, 1), 0);
	}
	cr_assert_eq(crashes("m8", 1), TH_E_LIMIT);
	cr_assert(strstr(w.reply.text, "limit.members"), "%s", w.reply.text);
	cr_assert_eq(crashes("m7", 1), 0);
	world_sleep(&w, 6 * SEC);
	cr_assert_eq(crashes("m8", 1), 0);
}
