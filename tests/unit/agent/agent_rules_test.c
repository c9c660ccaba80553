/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a group of one may give up while there is no server, by the rules of other hosts that a
 * server has told.
 */
#include <stdio.h>

#include "tests/unit/agent/agent_fixture.h"

/* Session 1 holds version 3, and may claim some itself. */
static void
setup_claiming(const char *rules)
{
	rig_init(&rig);
	rig.retain = rules;
	rig_attach(&rig);
	rig_hold(&rig, 1, rig_ready(&rig, 1), "3");
}

static void
setup(void)
{
	setup_claiming(NULL);
}

TestSuite(agent_rules, .init = setup, .fini = teardown);

/* What all retain of the model, as the server says. */
static void
several_retain(const char *model, const char *rules, const char *shared, bool all)
{
	struct ctl_event one = {.kind = CTL_EV_RULES};

	snprintf(one.u.rules.model, sizeof(one.u.rules.model), "%s", model);
	snprintf(one.u.rules.rules, sizeof(one.u.rules.rules), "%s", rules);
	snprintf(one.u.rules.shared, sizeof(one.u.rules.shared), "%s", shared);
	one.u.rules.all = all;
	rig_event(&rig, one);
}

static void
all_retain(const char *model, const char *rules, bool all)
{
	several_retain(model, rules, "", all);
}

static void
unpublish_waits(bool waits)
{
	rig_hang_up(&rig);
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "latest", SEC);
	rig_sleep(&rig, SEC + 300 * MS);
	cr_assert_eq(code_of(0), waits ? TH_E_NO_SERVER : 0);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), waits ? 0 : 1);
}

Test(agent_rules, retained_by_another_host__stays_until_the_deadline)
{
	all_retain("m", "latest", false);
	unpublish_waits(true);
	cr_assert(strstr(rig_complete(&rig, 1, 0)->u.complete.text, "THC_FORCE"));
}

Test(agent_rules, retained_by_another_host__a_number_and_a_relative_one)
{
	all_retain("m", "latest-1,17", false);
	unpublish_waits(true); /* the latest may be 4 by now */
	rig_clear(&rig);
	rig_back(&rig);
	all_retain("m", "2,4", false);
	unpublish_waits(false);
}

Test(agent_rules, retained_by_another_host__force__given_up)
{
	struct agent_event give_up = {.kind = AGENT_EV_SUBMIT, .session = 1};

	all_retain("m", "3", false);
	rig_hang_up(&rig);
	give_up.u.submit.kind = CTL_OP_UNPUBLISH;
	give_up.u.submit.timeout_ns = SEC;
	give_up.u.submit.flags = 1;
	rig_step(&rig, &give_up);
	cr_assert_eq(code_of(0), 0);
}

Test(agent_rules, more_rules_than_can_be_told__every_version_stays)
{
	all_retain("m", "", true);
	unpublish_waits(true);
}

Test(agent_rules, rules_that_cannot_be_read__every_version_stays)
{
	all_retain("m", "latest,,", false);
	unpublish_waits(true);
}

Test(agent_rules, rules_of_a_model_that_nobody_has_here__nothing)
{
	all_retain("other", "", true);
	unpublish_waits(false);
}

Test(agent_rules, rules_end__given_up)
{
	all_retain("m", "latest", false);
	all_retain("m", "", false);
	unpublish_waits(false);
}

Test(agent_rules, retained_by_another_host__the_rules_outlive_the_server)
{
	all_retain("m", "latest", false);
	rig_hang_up(&rig);
	rig.unknown = rig.fresh = true;
	rig_back(&rig);
	rig.unknown = rig.fresh = false;
	rig_clear(&rig);
	unpublish_waits(true); /* the new one has said nothing yet */
}

Test(agent_rules, retained_by_another_host__a_worker_dies__its_part_is_kept_for_the_server)
{
	all_retain("m", "latest", false);
	rig_hang_up(&rig);
	rig_session(&rig, 1, AGENT_EV_LOST);
	rig_sleep(&rig, SEC);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
	rig_sleep(&rig, 60 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
}

/* ---- what the closing group claims itself ---------------------------------------------------- */

static void
close_waits(bool waits)
{
	struct agent_event one = {.kind = AGENT_EV_CLOSE, .session = 1};

	rig_hang_up(&rig);
	one.u.close.timeout_ns = SEC;
	rig_step(&rig, &one);
	rig_sleep(&rig, SEC + 300 * MS);
	cr_assert_eq(closed(), waits ? TH_E_NO_SERVER : 0);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), waits ? 0 : 1);
}

static void
again_claiming(const char *rules)
{
	teardown();
	setup_claiming(rules);
}

Test(agent_rules, close__only_it_claims__needs_no_server)
{
	again_claiming("latest,3");
	several_retain("m", "latest,latest-1,3", "latest-1", false);
	all_retain("m", "latest,3,4", false);
	close_waits(false);
}

Test(agent_rules, close__others_claim_by_the_same_rule__waits)
{
	again_claiming("latest,3");
	several_retain("m", "latest,3", "3", false);
	close_waits(true);
}

Test(agent_rules, close__others_claim_by_another_rule__waits)
{
	again_claiming("latest");
	all_retain("m", "latest,3", false);
	close_waits(true);
}

Test(agent_rules, unpublish__only_it_claims__waits)
{
	again_claiming("latest");
	all_retain("m", "latest", false);
	unpublish_waits(true); /* its handle stays open, and so does its claim */
}

Test(agent_rules, shared_rules_that_cannot_be_read__every_version_stays)
{
	again_claiming("latest");
	several_retain("m", "latest", "latest,,", false);
	close_waits(true);
}
