/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent core, a broken group and a server that knows nothing: what is still held may be the
 * last copy of what somebody retains, so it stays until a server has said that it may go.
 */
#include "ipc/base/name.h"
#include "tests/unit/agent/agent_fixture.h"

static void
setup(void)
{
	rig_init(&rig);
	rig_attach(&rig);
	rig.num_shards = 2;
	sid = rig_ready(&rig, 1);
	rig.retain = "latest";
	rig_ready(&rig, 2);
	gen = rig_hold(&rig, 1, sid, "5");
}

TestSuite(agent_rejoin_broken, .init = setup, .fini = teardown);

static void
broken(void)
{
	rig_event(&rig,
		(struct ctl_event){.kind = CTL_EV_BROKEN, .u.broken = {sid, "shard 1 differs"}});
}

/* What the next server is told of session 1. */
static const struct ctl_rejoin *
said(void)
{
	rig_lost(&rig);
	for (uint32_t i = 0; i < rig.num_sent; i++) {
		const struct ctl_request *request = &rig.sent[i].request;
		if (request->kind == CTL_REJOIN && request->u.rejoin.sid == sid)
			return &request->u.rejoin;
	}
	cr_assert_fail("nothing is said of it");
	return NULL;
}

static void
says_that_it_holds(void)
{
	const struct ctl_rejoin *rejoin = said();

	cr_assert(rejoin->gone);
	cr_assert_eq(rejoin->held.version, 5);
	cr_assert_eq(rejoin->gen, gen);
	cr_assert(rejoin->registered && rejoin->hashed);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
}

Test(agent_rejoin_broken, open__what_it_holds_is_said_to_each_server_and_serves)
{
	broken();
	says_that_it_holds();
	says_that_it_holds();
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, rig_reader(&rig, sid, gen, 60));
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
}

Test(agent_rejoin_broken, open__its_worker_closes_later__one_close)
{
	broken();
	says_that_it_holds();
	worker_closes(1, false, TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0, "it may be being copied");
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
}

Test(agent_rejoin_broken, closing__what_it_holds_and_the_close_are_said)
{
	broken();
	worker_closes(1, false, TH_FOREVER);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	says_that_it_holds();
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.died);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(closed(), 0);
}

Test(agent_rejoin_broken, its_worker_dies__what_it_holds_and_why)
{
	broken();
	rig_session(&rig, 1, AGENT_EV_LOST);
	says_that_it_holds();
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.died);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 1);
}

/* There is nothing to go back to: who would be refused if it were not broken is let go. */
Test(agent_rejoin_broken, closing__no_server_comes__closed_at_its_deadline)
{
	broken();
	worker_closes(1, false, 2 * SEC);
	rig_hang_up(&rig);
	rig_sleep(&rig, 2 * SEC - 10 * MS);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_sleep(&rig, SEC);
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

Test(agent_rejoin_broken, closing__nobody_retains_it__closed_at_once)
{
	rig_session(&rig, 2, AGENT_EV_CLOSE);
	rig_clear(&rig);
	broken();
	worker_closes(1, false, TH_FOREVER);
	rig_hang_up(&rig);
	cr_assert_eq(closed(), 0);
}

Test(agent_rejoin_broken, being_drained__nothing_is_held)
{
	rig_reader(&rig, sid, gen, 60);
	broken();
	rig_event(&rig, rig_drain(sid, gen, 4));
	const struct ctl_rejoin *rejoin = said();
	cr_assert(rejoin->gone);
	cr_assert(th_version_none(rejoin->held), "the server has seen to it");
}

Test(agent_rejoin_broken, operation_under_way__fails_and_is_not_called_again)
{
	rig_submit(&rig, 1, 3, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	broken();
	says_that_it_holds();
	cr_assert_eq(code_of(3), TH_E_GROUP_BROKEN);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_rejoin_broken, refused__let_go_when_its_last_reader_has_ended)
{
	broken();
	rig.refused[CTL_REJOIN] = TH_E_GROUP_BROKEN;
	cr_assert(said()->gone);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	worker_closes(1, false, TH_FOREVER);
	cr_assert_eq(closed(), 0);
}
