/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, what agents are told of the rules of a model: all of them, at once; less of them later.
 */
#include <stdio.h>

#include "server/core/retain/retain_notice.h"
#include "tests/support/core/refsrv_former.h"
#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_rules, .init = setup_two, .fini = teardown);

static struct world_member
opens(uint32_t agent, const char *replica, const char *rules)
{
	w.retain = rules;
	struct world_member m = world_member(&w, agent, replica, 0, 1);
	w.retain = NULL;
	return m;
}

/* The next thing that the agent is told of the rules of "m", and which of them several claim. */
static void
told_shared(uint32_t agent, const char *rules, const char *shared)
{
	struct ctl_event event;

	cr_assert(world_take(&w, agent, CTL_EV_RULES, 0, &event), "nothing, not %s", rules);
	cr_assert_str_eq(event.u.rules.shared, shared);
	cr_assert_str_eq(event.u.rules.model, "m");
	cr_assert_eq(event.u.rules.all, strcmp(rules, "all") == 0);
	cr_assert_str_eq(event.u.rules.rules, event.u.rules.all ? "" : rules);
}

static void
told(uint32_t agent, const char *rules)
{
	told_shared(agent, rules, "");
}

static void
told_no_more(uint32_t agent)
{
	cr_assert_not(world_has(&w, agent, CTL_EV_RULES, 0));
}

Test(refsrv_rules, open__told_what_there_is)
{
	opens(a, "p", NULL);
	told(a, "");
	opens(a, "k", "7,latest-1,latest");
	told(a, "latest,latest-1,7");
	told_no_more(a);
	opens(b, "q", NULL);
	told(b, "latest,latest-1,7");
	told_no_more(a);
}

Test(refsrv_rules, others_open__told_at_once_what_is_new)
{
	opens(a, "p", NULL);
	opens(b, "k", "latest");
	told(a, "");
	told(a, "latest");
	opens(b, "l", NULL);
	told_no_more(a);
	opens(b, "n", "18446744073709551614,latest-1");
	told(a, "latest,latest-1,18446744073709551614");
	told_no_more(a);
}

Test(refsrv_rules, several_claim_one__told_at_once__and_later_that_it_is_over)
{
	opens(a, "p", "latest,7");
	told(a, "latest,7");
	struct world_member k = opens(b, "k", "latest,7");
	told_shared(a, "latest,7", "latest,7");
	struct world_member l = opens(b, "l", "7,8");
	told_shared(a, "latest,7,8", "latest,7");
	cr_assert_eq(world_close(&w, &k, false), 0);
	world_sleep(&w, RULES_SHRINK_NS - 10 * MS);
	told_no_more(a);
	world_sleep(&w, 20 * MS);
	told_shared(a, "latest,7,8", "7");
	cr_assert_eq(world_close(&w, &l, false), 0);
	world_sleep(&w, RULES_SHRINK_NS + 10 * MS);
	told(a, "latest,7");
	told_no_more(a);
}

Test(refsrv_rules, a_group_comes_again_after_a_crash__claimed_twice_until_the_grace_is_over)
{
	struct world_member p = opens(a, "p", "latest");
	opens(b, "k", NULL);
	told(b, "latest");
	cr_assert_eq(world_close(&w, &p, true), 0);
	told_no_more(b);
	opens(a, "p", "latest");
	told_shared(b, "latest", "latest");
	world_sleep(&w, w.config.grace_ns + 2 * RULES_SHRINK_NS);
	told(b, "latest");
	told_no_more(b);
}

Test(refsrv_rules, before_the_outcome_of_what_is_published_later)
{
	struct ctl_event rules, outcome;
	struct world_member p = opens(a, "p", NULL);
	told(a, "");
	opens(b, "k", "latest");
	world_call(&w, &p, CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert(world_take(&w, a, CTL_EV_RULES, 0, &rules));
	cr_assert(world_take(&w, a, CTL_EV_OUTCOME, p.sid, &outcome));
	cr_assert_lt(rules.number, outcome.number);
}

Test(refsrv_rules, a_holder_closes__told_a_second_later)
{
	opens(a, "p", NULL);
	struct world_member k = opens(b, "k", "latest");
	told(a, "");
	told(a, "latest");
	cr_assert_eq(world_close(&w, &k, false), 0);
	world_sleep(&w, RULES_SHRINK_NS - 10 * MS);
	told_no_more(a);
	world_sleep(&w, 20 * MS);
	told(a, "");
	world_sleep(&w, 10 * SEC);
	told_no_more(a);
}

Test(refsrv_rules, a_holder_crashes__told_after_its_time_of_grace)
{
	opens(a, "p", NULL);
	struct world_member k = opens(b, "k", "latest");
	told(a, "");
	told(a, "latest");
	cr_assert_eq(world_close(&w, &k, true), 0);
	world_sleep(&w, w.config.grace_ns - SEC);
	told_no_more(a);
	world_sleep(&w, 2 * SEC + RULES_SHRINK_NS);
	told(a, "");
}

Test(refsrv_rules, more_than_fit__all)
{
	char rules[TH_SPEC_MAX + 1], names[2][16];

	opens(a, "p", NULL);
	told(a, "");
	struct world_member k[2];
	for (uint32_t i = 0; i <= TH_RETAIN_RULES_MAX; i++) {
		snprintf(rules, sizeof(rules), "%u", i + 1);
		snprintf(names[0], sizeof(names[0]), "k%u", i);
		struct world_member m = opens(b, names[0], rules);
		if (i < 2)
			k[i] = m;
	}
	struct ctl_event event;
	for (uint32_t i = 0; i < TH_RETAIN_RULES_MAX; i++) {
		cr_assert(world_take(&w, a, CTL_EV_RULES, 0, &event));
		cr_assert_not(event.u.rules.all);
	}
	told(a, "all");
	cr_assert_eq(world_close(&w, &k[0], false), 0);
	world_sleep(&w, 2 * RULES_SHRINK_NS);
	told(a, "2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17");
	cr_assert_eq(world_close(&w, &k[1], false), 0);
	world_sleep(&w, 2 * RULES_SHRINK_NS);
	told(a, "3,4,5,6,7,8,9,10,11,12,13,14,15,16,17");
	told_no_more(a);
}

/* Whoever opens and closes with ever other rules: what others hear of it is bounded by time. */
Test(refsrv_rules, rules_that_come_and_go__few_events)
{
	struct ctl_event event;
	char rules[TH_SPEC_MAX + 1];
	uint32_t count = 0;

	opens(a, "p", NULL);
	for (uint32_t i = 0; i < 150; i++) {
		snprintf(rules, sizeof(rules), "%u", i + 1);
		struct world_member k = opens(b, "k", rules);
		cr_assert_eq(world_close(&w, &k, false), 0);
		world_sleep(&w, 5 * MS);
	}
	while (world_take(&w, a, CTL_EV_RULES, 0, &event))
		count++;
	cr_assert_leq(count, 2 * (TH_RETAIN_RULES_MAX + 2));
	world_sleep(&w, 2 * RULES_SHRINK_NS);
	told(a, "");
}

Test(refsrv_rules, other_models_and_who_has_left__are_not_told)
{
	uint64_t sid;

	cr_assert_eq(world_open(&w, a, "other", "p", 0, 1, 1, &sid), 0);
	struct ctl_event event;
	cr_assert(world_take(&w, a, CTL_EV_RULES, 0, &event));
	cr_assert_str_eq(event.u.rules.model, "other");
	struct world_member m = opens(a, "q", NULL);
	told(a, "");
	cr_assert_eq(world_close(&w, &m, false), 0);
	opens(b, "k", "latest");
	told_no_more(a);
}

Test(refsrv_rules, a_new_server__all_until_the_agents_have_told)
{
	world_fini(&w);
	former_world(&w, &a, &b, NULL);
	struct ctl_rejoin said = former_holds("p", 0, 1, 7), other = former_holds("k", 0, 1, 7);
	former_back(&w, a, &said);
	told(a, "all");
	strcpy(other.open.retain, "latest");
	former_back(&w, b, &other);
	told(b, "all");
	told_no_more(a);
	former_all_said(&w);
	world_sleep(&w, 2 * RULES_SHRINK_NS);
	told(a, "latest");
	told(b, "latest");
}
