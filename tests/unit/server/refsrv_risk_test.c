/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, retention: who is told that a retained version may be lost, or is; when, and how often.
 */
#include <stdio.h>

#include "tests/unit/server/refsrv_fixture.h"

static uint32_t spot;

static void
begin(bool rescue_spot)
{
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.rescue_spot = rescue_spot;
	world_init(&w, &config);
	w.offload_bytes = UINT64_MAX;
	new_agents(2);
	w.spot = true;
	spot = world_agent(&w);
	w.spot = false;
	w.retain = "latest";
}

static void
setup(void)
{
	begin(true);
}

TestSuite(refsrv_risk, .init = setup, .fini = teardown);

/* It was told so once, with a sentence that has this in it. */
static void
told(const struct world_member *m, const char *text)
{
	struct ctl_event event = taken(m, CTL_EV_AT_RISK);
	cr_assert(strstr(event.u.at_risk.text, text) != NULL, "%s", event.u.at_risk.text);
	cr_assert_not(world_has(&w, m->agent, CTL_EV_AT_RISK, m->sid), "once");
}

static bool
is_told(const struct world_member *m)
{
	return world_has(&w, m->agent, CTL_EV_AT_RISK, m->sid);
}

static struct world_member
member_with(uint32_t agent, const char *replica, const char *retain)
{
	const char *before = w.retain;

	w.retain = retain;
	struct world_member m = world_member(&w, agent, replica, 0, 1);
	w.retain = before;
	return m;
}

/* The host itself is asked first, if it stays; then the other one. */
static void
all_refuse(void)
{
	struct ctl_ev_reserve reserve;
	uint32_t refusals = 0;

	for (bool any = true; any;) {
		any = false;
		for (uint32_t agent = a; agent <= b; agent++) {
			if (!world_reserve(&w, agent, &reserve))
				continue;
			cr_assert_eq(world_refuse(&w, agent, &reserve), 0);
			refusals++;
			any = true;
		}
	}
	cr_assert_eq(refusals, 2);
}

static uint64_t
counter(const char *name)
{
	struct ctl_request request = {.kind = CTL_INSPECT};

	cr_assert_eq(world_request(&w, b, &request), 0);
	const struct ctl_inspection *got = &w.reply.u.inspect;
	for (uint32_t i = 0; i < got->num_counters; i++) {
		if (strcmp(got->counters[i].name, name) == 0)
			return got->counters[i].value;
	}
	cr_assert_fail("there is no counter %s", name);
	return 0;
}

Test(refsrv_risk, spot__nobody_has_memory__holders_and_claimants_are_told_once)
{
	struct world_member m = world_published(&w, spot, "p", "7"),
			    same = member_with(a, "q", "latest"), number = member_with(a, "n", "7"),
			    other = member_with(b, "o", "latest-1,6"),
			    none = member_with(b, "r", NULL);

	world_sleep(&w, 1500 * MS);
	cr_assert_not(is_told(&m), "it is being copied");
	all_refuse();
	told(&m, "version 7 of m is retained");
	told(&same, "only spot hosts");
	told(&number, "node1");
	cr_assert_not(is_told(&other), "its rules name other versions");
	cr_assert_not(is_told(&none), "it neither holds nor retains it");
	/* Tried again and again: that is the same occurrence. */
	for (uint32_t i = 0; i < 3; i++) {
		world_sleep(&w, 11 * SEC);
		all_refuse();
		cr_assert_not(is_told(&m) || is_told(&same));
	}
}

Test(refsrv_risk, all_members_of_a_group_are_told)
{
	struct world_member m[2];

	m[0] = world_member(&w, spot, "p", 0, 2);
	m[1] = world_member(&w, a, "p", 1, 2);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_publish(&w, &m[1], "7");
	succeeded(&m[0]);
	struct ctl_ev_reserve reserve;
	world_sleep(&w, 1500 * MS);
	/* The spot host's shard finds no memory: the other one alone is no copy. */
	for (uint32_t agent = a; agent <= b; agent++) {
		while (world_reserve(&w, agent, &reserve)) {
			if (reserve.shard == 0)
				cr_assert_eq(world_refuse(&w, agent, &reserve), 0);
		}
	}
	told(&m[0], "only spot hosts");
	told(&m[1], "only spot hosts");
}

Test(refsrv_risk, over_and_again__is_another_occurrence)
{
	struct world_member m = world_published(&w, spot, "p", "7"), r = member_with(b, "r", NULL);

	world_sleep(&w, 1500 * MS);
	all_refuse();
	told(&m, "version 7");
	world_replicate(&w, &r, "7");
	world_sleep(&w, SEC);
	/* Its worker dies, and nobody can keep what it had: the spot host is alone again. */
	cr_assert_eq(world_close(&w, &r, true), 0);
	all_refuse();
	told(&m, "version 7");
	world_drained(&w, &r);
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 0, "the spot host has it");
}

Test(refsrv_risk, rescue_succeeds__nobody_is_told)
{
	struct ctl_ev_reserve reserve;
	struct world_member m = world_published(&w, spot, "p", "7"), o;

	world_sleep(&w, 1500 * MS);
	cr_assert(world_reserve(&w, a, &reserve));
	cr_assert_eq(world_accept(&w, a, &reserve, &o), 0);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	world_sleep(&w, 30 * SEC);
	cr_assert_not(is_told(&m));
	cr_assert_not(world_has(&w, a, CTL_EV_AT_RISK, 0), "nor the agent for its own copy");
}

Test(refsrv_risk, rescue_is_off__told_at_once)
{
	world_fini(&w);
	begin(false);
	struct world_member m = world_published(&w, spot, "p", "7");
	world_sleep(&w, 500 * MS);
	cr_assert_not(is_told(&m), "another replica may come in a moment");
	world_sleep(&w, SEC);
	told(&m, "retain.rescue_spot");
}

Test(refsrv_risk, not_retained__nobody_is_told)
{
	w.retain = NULL;
	struct world_member m = world_published(&w, spot, "p", "7");
	world_sleep(&w, 30 * SEC);
	cr_assert_not(is_told(&m));
}

Test(refsrv_risk, drained_node__nowhere_to_go__told)
{
	struct ctl_request request = {.kind = CTL_ADMIN};
	struct ctl_ev_reserve reserve;
	struct world_member m = world_published(&w, a, "p", "7");

	request.u.admin.verb = CTL_ADMIN_DRAIN;
	strcpy(request.u.admin.node, w.agents[a].node);
	cr_assert_eq(world_request(&w, b, &request), 0);
	world_sleep(&w, 1500 * MS);
	cr_assert(world_reserve(&w, b, &reserve));
	cr_assert_not(is_told(&m));
	cr_assert_eq(world_refuse(&w, b, &reserve), 0);
	told(&m, "being drained");
	/* Operators see how many there are, and that there are none any more. */
	cr_assert_eq(counter("versions_at_risk"), 1);
	request.u.admin.verb = CTL_ADMIN_UNDRAIN;
	cr_assert_eq(world_request(&w, b, &request), 0);
	world_sleep(&w, 10 * MS);
	cr_assert_eq(counter("versions_at_risk"), 0);
}

Test(refsrv_risk, given_up__nobody_has_memory__the_call_fails_and_nothing_is_at_risk)
{
	struct world_member m = world_published(&w, a, "p", "7");

	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	all_refuse();
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_NOMEM_RETAIN);
	world_sleep(&w, 5 * SEC);
	cr_assert_not(is_told(&m), "its host stays");
}

/* ---- lost ---- */

Test(refsrv_risk, dead_worker__cannot_be_rescued__claimants_are_told)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    same = member_with(b, "q", "latest"), none = member_with(b, "r", NULL);

	cr_assert_eq(world_close(&w, &m, true), 0);
	cr_assert_not(is_told(&same), "it is being copied");
	all_refuse();
	told(&same, "is lost");
	cr_assert_not(is_told(&none));
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 1);
}

Test(refsrv_risk, dead_agent__claimants_are_told)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    same = member_with(b, "q", "latest"), none = member_with(b, "r", NULL);

	w.agents[a].silent = true;
	world_sleep(&w, 12 * SEC);
	told(&same, "is lost");
	cr_assert_not(is_told(&none));
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 1);
	cr_assert_eq(counter("versions_at_risk"), 0, "it is gone");
	(void)m;
}

Test(refsrv_risk, dead_agent__another_copy__nobody_is_told)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    r = world_member(&w, b, "r", 0, 1);

	world_replicate(&w, &r, "7");
	w.agents[a].silent = true;
	world_sleep(&w, 12 * SEC);
	cr_assert_not(is_told(&r));
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 0);
	(void)m;
}

/* Nobody has said yet what the second one's bytes are: it is listed when the first has gone. */
Test(refsrv_risk, dead_agent__another_copy_of_unknown_content__told_when_that_goes)
{
	uint32_t third = world_agent(&w);
	struct world_member m = world_published(&w, a, "p", "7"),
			    same = member_with(third, "r", "latest");

	w.hash_late = true;
	struct world_member second = world_published(&w, b, "q", "7");
	w.agents[a].silent = true;
	world_sleep(&w, 12 * SEC);
	cr_assert_not(is_told(&same));
	w.agents[b].silent = true;
	world_sleep(&w, 12 * SEC);
	told(&same, "is lost");
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 1);
	(void)m;
	(void)second;
}

Test(refsrv_risk, dead_agent_of_the_kept_copy__claimants_are_told)
{
	struct ctl_ev_reserve reserve;
	struct world_member m = world_published(&w, b, "p", "7"), o;

	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, b, &reserve));
	cr_assert_eq(world_refuse(&w, b, &reserve), 0);
	cr_assert(world_reserve(&w, a, &reserve));
	cr_assert_eq(world_accept(&w, a, &reserve, &o), 0);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	world_drained(&w, &m);
	succeeded(&m);
	w.agents[a].silent = true;
	world_sleep(&w, 12 * SEC);
	told(&m, "is lost");
}

Test(refsrv_risk, agent_dies_during_the_rescue__claimants_are_told)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    same = member_with(b, "q", "latest");

	cr_assert_eq(world_close(&w, &m, true), 0);
	w.agents[a].silent = true;
	world_sleep(&w, 12 * SEC);
	told(&same, "is lost");
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 1);
}

Test(refsrv_risk, closed_in_order__not_lost)
{
	struct world_member m = world_published(&w, a, "p", "7"), none = member_with(b, "r", NULL);

	cr_assert_eq(world_close(&w, &m, false), 0);
	world_sleep(&w, 12 * SEC);
	cr_assert_not(is_told(&none));
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 0);
}

Test(refsrv_risk, told_before__losing_it_is_the_same_occurrence)
{
	struct world_member m = world_published(&w, spot, "p", "7"),
			    same = member_with(b, "q", "latest");

	world_sleep(&w, 1500 * MS);
	all_refuse();
	told(&same, "only spot hosts");
	w.agents[spot].silent = true;
	world_sleep(&w, 12 * SEC);
	cr_assert_not(is_told(&same));
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 1);
	(void)m;
}
