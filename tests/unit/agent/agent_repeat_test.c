/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent core and lost messages: what waits for what, and what the server may forget.
 */
#include "tests/unit/agent/agent_fixture.h"

TestSuite(agent_repeat, .init = setup_attached, .fini = teardown);

static void
open_shard(uint64_t session, uint32_t shard)
{
	struct agent_event event = {.kind = AGENT_EV_OPEN, .session = session};

	strcpy(event.u.open.model, "m");
	strcpy(event.u.open.replica, "r");
	event.u.open.shard = shard;
	event.u.open.num_shards = 2;
	rig_step(&rig, &event);
}

static bool
opened(uint64_t session)
{
	for (uint32_t i = 0; i < rig.num_actions; i++) {
		if (rig.actions[i].kind == AGENT_OPENED && rig.actions[i].session == session)
			return rig.actions[i].u.answer.code == 0;
	}
	return false;
}

/*
 * Both members of a replica die while their OPENs are under way, and no answer comes. Each OPEN
 * must be repeated, or nobody knows what there is to close.
 */
Test(agent_repeat, open__both_workers_die_and_the_answers_are_lost__both_repeated_and_closed)
{
	rig.cut = true;
	open_shard(1, 0);
	open_shard(2, 1);
	rig_session(&rig, 1, AGENT_EV_LOST);
	rig_session(&rig, 2, AGENT_EV_LOST);
	rig_clear(&rig);
	rig.cut = false;
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 2);
	/* And the next worker finds the replica free. */
	open_shard(3, 0);
	cr_assert(opened(3));
}

Test(agent_repeat, open__again_while_the_old_one_is_unknown__after_its_close)
{
	rig.held = 1u << CTL_OPEN;
	open_shard(1, 0);
	rig_session(&rig, 1, AGENT_EV_LOST);
	open_shard(2, 0);
	cr_assert_eq(rig_requests(&rig, CTL_OPEN), 1);
	rig.held = 1u << CTL_CLOSE;
	rig_answer(&rig, CTL_OPEN);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	cr_assert_eq(rig_requests(&rig, CTL_OPEN), 1);
	rig.held = 0;
	rig_answer(&rig, CTL_CLOSE);
	cr_assert(opened(2));
}

/* The server may forget what is below; what is under way is sent again under its number. */
Test(agent_repeat, answered_below__names_the_oldest_under_way)
{
	sid = rig_ready(&rig, 1);
	cr_assert_eq(rig_request(&rig, CTL_REGISTER)->answered_below,
		rig_request(&rig, CTL_REGISTER)->request_no);
	rig.held = 1u << CTL_OPEN;
	open_shard(2, 0);
	uint64_t open_no = rig_request(&rig, CTL_OPEN)->request_no;
	rig_publish(&rig, 1, sid, "1");
	cr_assert_eq(rig_request(&rig, CTL_OP)->answered_below, open_no);
	rig.held = 0;
	rig_answer(&rig, CTL_OPEN);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_gt(rig_request(&rig, CTL_BEAT)->answered_below, open_no);
}
