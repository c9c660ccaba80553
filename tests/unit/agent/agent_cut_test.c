/* SPDX-License-Identifier: Apache-2.0 */
/*
 * close while an operation runs, or goes on after its worker was told that no server is reachable:
 * it is cancelled, and the close is one like any other. What is retained is not given up for it.
 */
#include "tests/unit/agent/agent_fixture.h"

/* Session 1 holds version 3, which session 2 claims; the next operation of 1 has number 2. */
static void
setup(void)
{
	rig_init(&rig);
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	gen = rig_hold(&rig, 1, sid, "3");
	rig.retain = "latest";
	rig_ready(&rig, 2);
	rig_clear(&rig);
}

TestSuite(agent_cut, .init = setup, .fini = teardown);

/* The server takes its time: a close that it has answered waits for its DRAIN for a while only. */
static void
hang_up(void)
{
	rig.held = 1u << CTL_CLOSE;
	rig_hang_up(&rig);
}

static void
another_server(void)
{
	rig_clear(&rig);
	rig.unknown = rig.fresh = true;
	rig_back(&rig);
}

/* The worker was answered, the server still has the update. */
static void
haunt(void)
{
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	hang_up();
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
}

static void
nothing_given_up(void)
{
	cr_assert_eq(rig_count(&rig, AGENT_PART_END) + rig_count(&rig, AGENT_FREE), 0);
}

static void
refused_to_close(void)
{
	cr_assert_eq(rig_last(&rig, AGENT_CLOSED)->session, 1);
	cr_assert_eq(closed(), TH_E_NO_SERVER);
	nothing_given_up();
}

static void
asked_orderly(void)
{
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	cr_assert_not(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
	nothing_given_up();
}

static void
closed_by_its_drain(void)
{
	rig.held = 0;
	rig_answer(&rig, CTL_CLOSE);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 1);
}

/* ---- while there is no server --------------------------------------------------------------- */

Test(agent_cut, ghost__no_server__refused_at_its_deadline_and_open_as_before)
{
	haunt();
	worker_closes(1, false, 2 * SEC);
	rig_sleep(&rig, 2 * SEC - MS);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	rig_sleep(&rig, MS);
	refused_to_close();
	rig_clear(&rig);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0, "taken in silence");
	rig_out(&rig, AGENT_EV_OUT_ENDED, rig_reader(&rig, sid, gen, 60));
	rig_submit(&rig, 1, 1, CTL_OP_LIST, "", SEC);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 3);
}

Test(agent_cut, ghost__the_server_comes_back__closed_like_any_other)
{
	haunt();
	worker_closes(1, false, 60 * SEC);
	rig_clear(&rig);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	asked_orderly();
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	nothing_given_up();
	closed_by_its_drain();
}

Test(agent_cut, ghost__another_server__told_what_is_held_and_what_was_called)
{
	haunt();
	worker_closes(1, false, 60 * SEC);
	another_server();
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 2);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 2);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	asked_orderly();
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	closed_by_its_drain();
}

Test(agent_cut, ghost__abandoned__given_up)
{
	haunt();
	worker_closes(1, false, 0);
	refused_to_close();
	worker_closes(1, true, 0);
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 1);
}

Test(agent_cut, ghost__its_worker_dies__kept_for_the_next_server)
{
	haunt();
	rig_session(&rig, 1, AGENT_EV_LOST);
	rig_sleep(&rig, SEC);
	nothing_given_up();
	another_server();
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.died);
	nothing_given_up();
}

/* It was drained to make room; whether that was the end of it the server has not said. */
Test(agent_cut, planned__no_server__kept)
{
	uint64_t out = rig_reader(&rig, sid, gen, 50);

	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	hang_up();
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	worker_closes(1, false, 60 * SEC);
	nothing_given_up();
	another_server();
	asked_orderly();
	rig_out(&rig, AGENT_EV_OUT_ENDED, rig_reader(&rig, sid, gen, 60));
}

Test(agent_cut, prepared__no_server__kept)
{
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 1);
	hang_up();
	worker_closes(1, false, 60 * SEC);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
	nothing_given_up();
	another_server();
	asked_orderly();
}

Test(agent_cut, never_sent__forgotten)
{
	hang_up();
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", 60 * SEC);
	worker_closes(1, false, 60 * SEC);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
	rig_clear(&rig);
	rig_back(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_OP) + rig_requests(&rig, CTL_CANCEL), 0);
	asked_orderly();
}

/* Its worker takes no refusal of that. */
Test(agent_cut, unpublish_by_force__given_up)
{
	struct agent_event one = {.kind = AGENT_EV_SUBMIT, .session = 1};
	uint64_t out = rig_reader(&rig, sid, gen, 50);

	hang_up();
	one.u.submit.kind = CTL_OP_UNPUBLISH;
	one.u.submit.flags = CTL_OP_FORCE;
	one.u.submit.timeout_ns = 60 * SEC;
	rig_step(&rig, &one);
	worker_closes(1, false, 60 * SEC);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(closed(), 0);
}

/* ---- with a server -------------------------------------------------------------------------- */

Test(agent_cut, unpublish__refused_to_close__open_as_before)
{
	struct ctl_event one = {.kind = CTL_EV_CLOSE_REFUSED};

	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	worker_closes(1, false, TH_FOREVER);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	asked_orderly();
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	one.u.close_refused.sid = sid;
	one.u.close_refused.code = TH_E_NOMEM_RETAIN;
	rig_event(&rig, one);
	cr_assert_eq(closed(), TH_E_NOMEM_RETAIN);
	nothing_given_up();
	rig_clear(&rig);
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", SEC);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 3);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.flags, 0, "nobody has let it go");
}

Test(agent_cut, unpublish__it_was_done__closed)
{
	rig.held = 1u << CTL_CLOSE;
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	worker_closes(1, false, TH_FOREVER);
	rig_event(&rig, rig_outcome(sid, 2, 0, 3));
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	rig.held = 0;
	rig_answer(&rig, CTL_CLOSE);
	cr_assert_eq(closed(), 0);
}

/* Its DRAIN has come, but the CANCEL may come before its end: then the server has it still. */
Test(agent_cut, unpublish__drained_and_cancelled__the_server_is_told_that_it_is_over)
{
	rig.held = 1u << CTL_CLOSE;
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig_event(&rig, rig_drain(sid, gen, 1));
	worker_closes(1, false, TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.unreadable);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
	rig_event(&rig, rig_undrain(sid, gen));
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	rig.held = 0;
	rig_answer(&rig, CTL_CLOSE);
	cr_assert_eq(closed(), 0);
}

Test(agent_cut, planned__restored__waits_for_what_the_server_says)
{
	uint64_t out = rig_reader(&rig, sid, gen, 50);

	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	worker_closes(1, false, TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, TH_E_CANCELLED);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	nothing_given_up();
	rig_event(&rig, rig_undrain(sid, gen));
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, 3));
	nothing_given_up();
	closed_by_its_drain();
}

/* The others were prepared, too: what it held is given up, and nothing takes its place. */
Test(agent_cut, prepared__go_was_on_its_way__not_a_byte_is_overwritten)
{
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	worker_closes(1, false, TH_FOREVER);
	nothing_given_up();
	rig_event(&rig, rig_go(sid, 2, 7));
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, TH_E_CANCELLED);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_GROUP_BROKEN, 3));
	cr_assert_eq(closed(), 0);
}

/* A later server knows from the others that it had its GO, and has not got round to ours. */
Test(agent_cut, prepared__cancelled_after_go_was_given_to_others__closed)
{
	struct ctl_event one = {.kind = CTL_EV_CANCEL};

	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	worker_closes(1, false, TH_FOREVER);
	nothing_given_up();
	one.u.cancel.sid = sid;
	one.u.cancel.op_seq = 2;
	rig_event(&rig, one);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 1);
}

Test(agent_cut, publish__takes_no_refusal)
{
	uint64_t other = rig_ready(&rig, 3);

	rig_submit(&rig, 3, 0, CTL_OP_PUBLISH, "4", TH_FOREVER);
	rig_session(&rig, 3, AGENT_EV_CLOSE);
	cr_assert_eq(rig_request(&rig, CTL_CLOSE)->u.close.sid, other);
	cr_assert(rig_request(&rig, CTL_CLOSE)->u.close.abandon);
}
