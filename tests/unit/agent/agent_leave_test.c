/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of an agent: it asks the server what must not be lost, and ends when nothing is waited
 * for, or its time is over. A drain by an operator is remembered for the next server.
 */
#include "tests/unit/agent/agent_fixture.h"

static struct ctl_blocker blockers[2];

TestSuite(agent_leave, .init = setup_attached, .fini = teardown);

static void
leave(int64_t timeout_ns)
{
	rig_step(&rig,
		&(struct agent_event){.kind = AGENT_EV_LEAVE, .u.leave_timeout_ns = timeout_ns});
}

static void
blocked(void)
{
	strcpy(blockers[0].text, "version 7 of m has its only copy here");
	strcpy(blockers[1].text, "a transfer runs");
	rig.admin = (struct ctl_admin_reply){
		.state = "draining", .num_blockers = 9, .num_told = 2, .blockers = blockers};
}

Test(agent_leave, nothing_here__ends_at_once)
{
	leave(SEC);
	cr_assert_eq(rig_last(&rig, AGENT_LEFT)->u.left.code, 0);
	cr_assert_eq(rig_requests(&rig, CTL_ADMIN), 0);
}

Test(agent_leave, server_says_empty__ends)
{
	rig_ready(&rig, 1);
	leave(SEC);
	const struct ctl_admin *admin = &rig_request(&rig, CTL_ADMIN)->u.admin;
	cr_assert_eq(admin->verb, CTL_ADMIN_DRAIN);
	cr_assert(admin->leaving);
	cr_assert_not(admin->look);
	cr_assert_eq(rig_count(&rig, AGENT_LEFT), 1);
	cr_assert_eq(rig_last(&rig, AGENT_LEFT)->u.left.code, 0);
	rig_sleep(&rig, 10 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_LEFT), 1, "once");
	cr_assert_eq(rig_requests(&rig, CTL_ADMIN), 1, "and asks no more");
}

Test(agent_leave, blocked__asks_again_until_it_is_not)
{
	rig_ready(&rig, 1);
	blocked();
	leave(30 * SEC);
	rig_sleep(&rig, 5 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_LEFT), 0);
	/* Why is told once, not at each of them, and when it is another number. */
	cr_assert_eq(rig_count(&rig, AGENT_STAYS), 1);
	cr_assert_eq(rig_last(&rig, AGENT_STAYS)->u.left.num_blockers, 9);
	cr_assert_str_eq(rig_last(&rig, AGENT_STAYS)->u.left.texts[1], "a transfer runs");
	cr_assert_gt(rig_requests(&rig, CTL_ADMIN), 40);
	cr_assert_lt(rig_requests(&rig, CTL_ADMIN), 60);
	rig.admin.num_blockers = rig.admin.num_told = 1;
	rig_sleep(&rig, SEC);
	cr_assert_eq(rig_count(&rig, AGENT_STAYS), 2);
	cr_assert_eq(rig_last(&rig, AGENT_STAYS)->u.left.num_texts, 1);
	rig.admin = (struct ctl_admin_reply){.state = "empty"};
	rig_sleep(&rig, SEC);
	cr_assert_eq(rig_last(&rig, AGENT_LEFT)->u.left.code, 0);
}

Test(agent_leave, blocked_for_too_long__says_what_is_left)
{
	rig_ready(&rig, 1);
	blocked();
	leave(3 * SEC);
	rig_sleep(&rig, 3 * SEC - 10 * MS);
	cr_assert_eq(rig_count(&rig, AGENT_LEFT), 0);
	rig_sleep(&rig, 20 * MS);
	const struct agent_action *left = rig_last(&rig, AGENT_LEFT);
	cr_assert_eq(left->u.left.code, TH_E_TIMEOUT);
	cr_assert_eq(left->u.left.num_blockers, 9);
	cr_assert_eq(left->u.left.num_texts, 2);
	cr_assert_str_eq(left->u.left.texts[0], "version 7 of m has its only copy here");
}

Test(agent_leave, no_server__what_nobody_keeps_is_not_waited_for)
{
	sid = rig_ready(&rig, 1);
	rig_publish(&rig, 1, sid, "3");
	rig.cut = true;
	rig_sleep(&rig, 5 * SEC);
	cr_assert_not(agent_core_attached(rig.agent));
	leave(30 * SEC);
	cr_assert_eq(rig_last(&rig, AGENT_LEFT)->u.left.code, 0);
}

Test(agent_leave, server_restarts_meanwhile__is_asked_again)
{
	rig_ready(&rig, 1);
	blocked();
	rig.held = 1u << CTL_ADMIN;
	leave(30 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_ADMIN), 1);
	rig.fresh = rig.unknown = true;
	rig.server_inc++;
	rig_sleep(&rig, 2 * SEC);
	cr_assert(rig_request(&rig, CTL_ATTACH)->u.attach.leaving);
	rig.held = 0;
	rig.admin = (struct ctl_admin_reply){.state = "empty"};
	rig_sleep(&rig, 5 * SEC);
	cr_assert_eq(rig_last(&rig, AGENT_LEFT)->u.left.code, 0);
}

Test(agent_leave, meanwhile__nothing_new_begins_but_a_version_may_be_given_up)
{
	sid = rig_ready(&rig, 1);
	rig_ready(&rig, 2);
	gen = rig_publish(&rig, 1, sid, "3");
	rig_hashed(&rig, AGENT_EV_HASHED, 1, gen);
	blocked();
	leave(30 * SEC);
	rig_submit(&rig, 2, 0, CTL_OP_PUBLISH, "4", TH_FOREVER);
	cr_assert_eq(rig_complete(&rig, 2, 0)->u.complete.code, TH_E_CANCELLED);
	rig_submit(&rig, 2, 1, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	cr_assert_eq(rig_complete(&rig, 2, 1)->u.complete.code, TH_E_CANCELLED);
	rig_submit(&rig, 2, 2, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(rig_complete(&rig, 2, 2)->u.complete.code, TH_E_CANCELLED);
	rig_clear(&rig);
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1, "unpublish is sent");
}

Test(agent_leave, drain_by_an_operator__is_told_to_the_next_server)
{
	struct ctl_event event = {.kind = CTL_EV_NODE, .u.node.draining = true};

	strcpy(event.u.node.text, "somebody");
	rig_event(&rig, event);
	cr_assert(rig_last(&rig, AGENT_NODE)->u.node.draining);
	cr_assert_str_eq(rig_last(&rig, AGENT_NODE)->u.node.text, "somebody");
	rig_clear(&rig);
	rig.fresh = rig.unknown = true;
	rig.server_inc++;
	rig_sleep(&rig, 3 * SEC);
	cr_assert(rig_request(&rig, CTL_ATTACH)->u.attach.draining);
	cr_assert_not(rig_request(&rig, CTL_ATTACH)->u.attach.leaving);
	event.u.node.draining = false;
	rig_event(&rig, event);
	cr_assert_not(rig_last(&rig, AGENT_NODE)->u.node.draining);
}

Test(agent_leave, evicted__event_and_code_say_so)
{
	sid = rig_ready(&rig, 1);
	struct ctl_event event = {.kind = CTL_EV_BROKEN, .u.broken = {.sid = sid, .evicted = true}};

	strcpy(event.u.broken.text, "evicted by an operator");
	rig_event(&rig, event);
	const struct agent_line *line = &rig_last(&rig, AGENT_LINE)->u.line;
	cr_assert_eq(line->evicted, 1);
	cr_assert_eq(line->broken, 0);
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(code_of(0), TH_E_EVICTED);
	cr_assert_str_eq(rig_complete(&rig, 1, 0)->u.complete.text, "evicted by an operator");
}
