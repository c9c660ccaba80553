/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, life and death of agents: a connection that ends is the first sign, silence the last.
 */
#include "tests/unit/server/refsrv_fixture.h"

static uint32_t d;

static void
setup(void)
{
	world_init(&w, NULL);
	new_agents(3);
	d = world_agent(&w);
	world_sleep(&w, 2 * SEC); /* each has beaten: by which connection is known */
}

TestSuite(refsrv_life, .init = setup, .fini = teardown);

Test(refsrv_life, gone__not_back__suspect_at_once_and_dead_after_two_seconds)
{
	dies(a);
	cr_assert_str_eq(node_state(a), "suspect");
	world_sleep(&w, 19 * SEC / 10);
	cr_assert_str_eq(node_state(a), "suspect");
	world_sleep(&w, SEC / 5);
	cr_assert_str_eq(node_state(a), "dead");
	cr_assert_str_eq(node_state(b), "active");
}

Test(refsrv_life, gone__beats_again__active_and_nothing_is_lost)
{
	struct world_member s = world_member(&w, a, "s", 0, 1);
	world_publish(&w, &s, "1");
	world_gone(&w, a);
	cr_assert_str_eq(node_state(a), "suspect");
	world_sleep(&w, 15 * SEC / 10); /* its next beat, by another connection */
	cr_assert_str_eq(node_state(a), "active");
	world_sleep(&w, 5 * SEC);
	cr_assert_str_eq(node_state(a), "active");
	struct world_member r = world_member(&w, b, "r", 0, 1);
	world_replicate(&w, &r, "1");
}

Test(refsrv_life, gone__an_older_connection__says_nothing)
{
	struct refsrv_out out;
	uint64_t old = w.agents[a].connection;
	w.agents[a].connection = ++w.last_connection;
	world_sleep(&w, 2 * SEC); /* beats by the new one */
	refsrv_gone(w.server, w.now_ns, old, &out);
	cr_assert_str_eq(node_state(a), "active");
	/* One that nobody has beaten by, and none at all. */
	refsrv_gone(w.server, w.now_ns, 4711, &out);
	refsrv_gone(w.server, w.now_ns, 0, &out);
	cr_assert_str_eq(node_state(a), "active");
}

Test(refsrv_life, gone__attached_again__is_there)
{
	w.agents[a].silent = true;
	world_gone(&w, a);
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert_not(w.reply.u.attach.fresh);
	world_sleep(&w, 5 * SEC / 2);
	cr_assert_str_eq(node_state(a), "active"); /* silent for less than lease.suspect */
}

Test(refsrv_life, gone__new_process_of_the_node__need_not_wait)
{
	struct world_member s = world_member(&w, a, "s", 0, 1);
	world_publish(&w, &s, "1");
	dies(a);
	cr_assert_eq(world_restart(&w, a), 0);
	cr_assert_eq(refsrv_inspect(w.server, w.now_ns)->num_members, 0);
}

Test(refsrv_life, gone__server_stood_still__the_time_does_not_count)
{
	dies(a);
	/* Nothing was heard for a minute because the server itself was stopped. */
	w.now_ns += 60 * SEC;
	struct refsrv_out out;
	refsrv_tick(w.server, w.now_ns, &out);
	w.next_ns = out.next_ns;
	w.beat_ns = w.now_ns;
	cr_assert_str_eq(node_state(a), "suspect");
	cr_assert_str_eq(node_state(b), "active");
	world_sleep(&w, 5 * SEC / 2);
	cr_assert_str_eq(node_state(a), "dead");
}

Test(refsrv_life, gone__many_together__held_back_like_silence)
{
	dies(a);
	dies(b);
	dies(c);
	world_sleep(&w, 20 * SEC);
	cr_assert_str_eq(node_state(a), "suspect");
	/* Two come back: it is not many any more. */
	w.agents[a].silent = w.agents[b].silent = false;
	world_sleep(&w, 4 * SEC);
	cr_assert_str_eq(node_state(a), "active");
	cr_assert_str_eq(node_state(c), "dead");
}

Test(refsrv_life, gone__many_together__dead_when_the_hold_ends)
{
	dies(a);
	dies(b);
	dies(c);
	world_sleep(&w, 31 * SEC);
	cr_assert_str_eq(node_state(a), "dead");
	cr_assert_str_eq(node_state(c), "dead");
	cr_assert_str_eq(node_state(d), "active");
}

/* ---- what follows from it ---- */

Test(refsrv_life, source_gone__no_new_reader_of_it)
{
	struct world_member s = world_member(&w, a, "s", 0, 1), r = world_member(&w, b, "r", 0, 1);
	world_publish(&w, &s, "1");
	world_gone(&w, a);
	world_call(&w, &r, CTL_OP_REPLICATE, "1", TH_FOREVER);
	cr_assert_not(world_has(&w, b, CTL_EV_GO, r.sid));
	world_sleep(&w, 3 * SEC / 2); /* it was a hiccup */
	cr_assert_eq(world_prepared(&w, &r, 0), 0);
	cr_assert_eq(world_go(&w, &r).source_sid, s.sid);
}

Test(refsrv_life, source_killed__version_lost_in_two_seconds)
{
	struct world_member s = world_member(&w, a, "s", 0, 1), r = world_member(&w, b, "r", 0, 1);
	world_publish(&w, &s, "1");
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	dies(a);
	/* Its reader has seen the end of the data connection before. */
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_NO_PATH, true, 4), 0);
	cr_assert_not(world_ended(&w, &r));
	world_sleep(&w, 2 * SEC);
	cr_assert_eq(world_outcome(&w, &r).code, TH_E_VERSION_LOST);
}

Test(refsrv_life, source_killed__another_one_takes_over_at_once)
{
	struct world_member s0 = world_member(&w, a, "s0", 0, 1);
	struct world_member s1 = world_member(&w, c, "s1", 0, 1),
			    r = world_member(&w, b, "r", 0, 1);
	world_publish(&w, &s0, "1");
	world_publish(&w, &s1, "1");
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	cr_assert_eq(grant.source_sid, s0.sid);
	dies(a);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_NO_PATH, true, 4), 0);
	struct ctl_event event = taken(&r, CTL_EV_REROUTE);
	cr_assert_eq(event.u.reroute.grant.source_sid, s1.sid);
}

Test(refsrv_life, member_killed__the_others_learn_it_in_two_seconds)
{
	struct world_member r[2] = {world_member(&w, a, "r", 0, 2), world_member(&w, b, "r", 1, 2)};
	dies(a);
	world_sleep(&w, 2 * SEC);
	struct ctl_event event = taken(&r[1], CTL_EV_BROKEN);
	cr_assert(strstr(event.u.broken.text, "node0") != NULL);
	cr_assert(strstr(event.u.broken.text, "connection ended") != NULL);
}

/* C33: an agent that lives but does not poll must not fill the server's memory. */
Test(refsrv_life, events_not_fetched__given_up_at_the_limit)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);
	struct ctl_request request = {.kind = CTL_OP, .agent_inc = w.agents[a].inc};
	struct refsrv_out out = {0};
	world_publish(&w, &m, "1");
	w.agents[a].deaf = true;
	request.secret = world_secret(w.agents[a].inc);
	request.attach_no = w.agents[a].attach_no;
	request.u.op.sid = m.sid;
	request.u.op.op_seq = m.seq;
	request.u.op.kind = CTL_OP_UPDATE;
	request.u.op.timeout_ns = TH_FOREVER;
	strcpy(request.u.op.spec, "latest");
	/* Nothing new: one OUTCOME each. Not by world_request, which looks at all of them. */
	for (uint32_t i = 0; i < 65536; i++) {
		request.request_no = ++w.agents[a].request_no;
		request.answered_below = request.request_no;
		request.u.op.op_seq++;
		refsrv_step(w.server, w.now_ns, ++w.last_token, &request, &out);
		cr_assert_eq(out.replies[0].reply.code, 0);
	}
	cr_assert_str_neq(node_state(a), "dead");
	request.request_no = ++w.agents[a].request_no;
	request.u.op.op_seq++;
	refsrv_step(w.server, w.now_ns, ++w.last_token, &request, &out);
	refsrv_tick(w.server, w.now_ns, &out);
	cr_assert_str_eq(node_state(a), "dead");
	cr_assert_str_eq(node_state(b), "active");
	refsrv_check(w.server);
}
