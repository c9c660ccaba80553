/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent core and a server that knows nothing: what is said of a session in each of its states,
 * what goes on meanwhile, and what of the former server no longer counts.
 */
#include <stdio.h>

#include "ipc/base/name.h"
#include "tests/unit/agent/agent_fixture.h"

static void
setup(void)
{
	rig_init(&rig);
	rig_attach(&rig);
	rig.num_shards = 2; /* of one alone what is given up needs no server: agent_alone_test */
	sid = rig_ready(&rig, 1);
}

TestSuite(agent_rejoin, .init = setup, .fini = teardown);

static void
simple(enum agent_event_kind kind)
{
	rig_step(&rig, &(struct agent_event){.kind = kind, .session = 1});
}

/* The server is lost, and this is said of session 1. */
static const struct ctl_rejoin *
said(void)
{
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 1);
	const struct ctl_rejoin *rejoin = &rig_request(&rig, CTL_REJOIN)->u.rejoin;
	cr_assert_eq(rejoin->sid, sid);
	cr_assert_eq(rejoin->group_inc, 1000 + sid);
	cr_assert_str_eq(rejoin->open.model, "m");
	cr_assert_str_eq(rejoin->open.replica, "b");
	return rejoin;
}

/* The place of the first request of this kind among all that were sent; -1: none was. */
static int
sent_at(enum ctl_request_kind kind)
{
	for (uint32_t i = 0; i < rig.num_sent; i++) {
		if (rig.sent[i].request.kind == kind)
			return (int)i;
	}
	return -1;
}

static uint64_t
published(void)
{
	gen = rig_publish(&rig, 1, sid, "5");
	struct agent_event hashed = {.kind = AGENT_EV_HASHED, .session = 1};

	hashed.u.hash.gen = gen;
	hashed.u.hash.content = (struct th_hash){.lo = 4, .hi = 2};
	rig_step(&rig, &hashed);
	return gen;
}

static void
holds(const struct ctl_rejoin *rejoin, uint64_t version, uint64_t part_gen)
{
	cr_assert_eq(rejoin->held.version, version);
	cr_assert_eq(rejoin->gen, part_gen);
	cr_assert_not(rejoin->gone || rejoin->went);
}

/* ---- when ---- */

Test(agent_rejoin, first_server__nothing_is_said)
{
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN) + rig_requests(&rig, CTL_REJOINED), 0);
}

Test(agent_rejoin, the_same_server__nothing_is_said)
{
	rig_clear(&rig);
	rig.unknown = true; /* it has forgotten the attachment only: it is not fresh */
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_ATTACH), 1);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN) + rig_requests(&rig, CTL_REJOINED), 0);
}

Test(agent_rejoin, another_server_that_is_not_fresh__all_is_said)
{
	rig_clear(&rig);
	rig.server_inc++;
	rig.unknown = true;
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 1);
}

Test(agent_rejoin, inventory__ends_when_all_of_it_is_answered)
{
	rig_ready(&rig, 2);
	rig_ready(&rig, 3);
	rig.held = 1u << CTL_REJOIN;
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 3);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 0);
	rig_answer(&rig, CTL_REJOIN);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1);
	cr_assert_eq(rig_request(&rig, CTL_REJOINED)->u.rejoined.num_sessions, 3);
	rig_sleep(&rig, 10 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1, "once");
}

Test(agent_rejoin, its_group_has_another_number_now__the_next_server_hears_that_one)
{
	rig.group_inc = 77;
	said();
	rig_lost(&rig);
	cr_assert_eq(rig_request(&rig, CTL_REJOIN)->u.rejoin.group_inc, 77);
	cr_assert_eq(rig_request(&rig, CTL_REJOIN)->u.rejoin.sid, sid);
}

Test(agent_rejoin, filled_with_attributes__kept_and_said_as_its_publisher_would)
{
	rig_submit(&rig, 1, 0, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 1, false));
	struct ctl_event go = rig_go(sid, 1, 7);
	go.u.go.attributes = (struct th_hash){.lo = 3, .hi = 9};
	rig_event(&rig, go);
	cr_assert_eq(rig_last(&rig, AGENT_ATTRIBUTES)->u.attributes.lo, 3);
	const struct ctl_rejoin *rejoin = said();
	cr_assert(rejoin->went);
	cr_assert_eq(rejoin->attributes.hi, 9, "also while it is being filled");
	rig_leg(&rig, AGENT_EV_LEG_DONE, 1, 0);
	rig_event(&rig, rig_outcome(sid, 1, 0, 17));
	rejoin = said();
	cr_assert_eq(rejoin->held.version, 17);
	cr_assert_eq(rejoin->attributes.lo, 3);
	/* The next one has the same, and then none: what is kept follows. */
	rig_clear(&rig);
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	go = rig_go(sid, 2, 8);
	rig_event(&rig, go);
	cr_assert_eq(rig_last(&rig, AGENT_ATTRIBUTES)->u.attributes.lo, 0);
}

/* Other shards of its group may come back from agents that keep theirs. */
Test(agent_rejoin, sessions_end_with_their_server__gone)
{
	rig_reset_at_loss();
	teardown();
	setup();
	published();
	cr_assert(said()->gone);
	cr_assert_not(said()->died);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1);
	rig_submit(&rig, 1, 4, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(code_of(4), TH_E_GROUP_BROKEN);
}

/* ---- what is held ---- */

Test(agent_rejoin, nothing_registered__open_and_nothing_held)
{
	simple(AGENT_EV_UNREGISTER);
	const struct ctl_rejoin *rejoin = said();
	cr_assert_not(rejoin->registered || rejoin->hashed);
	cr_assert_eq(rejoin->next_op_seq, 1);
	cr_assert_eq(rejoin->num_outcomes, 0);
	holds(rejoin, TH_NO_VERSION, 0);
}

Test(agent_rejoin, registered__with_what)
{
	const struct ctl_rejoin *rejoin = said();
	cr_assert(rejoin->registered);
	cr_assert(th_hash_equal(rejoin->reg.layout, RIG_LAYOUT));
	cr_assert_eq(rejoin->reg.num_chunks, RIG_CHUNKS);
	holds(rejoin, TH_NO_VERSION, 0);
}

Test(agent_rejoin, published__its_version_and_how_that_ended)
{
	gen = published();
	const struct ctl_rejoin *rejoin = said();
	holds(rejoin, 5, gen);
	cr_assert(rejoin->hashed);
	cr_assert(th_hash_equal(rejoin->content, (struct th_hash){.lo = 4, .hi = 2}));
	cr_assert_eq(rejoin->next_op_seq, gen + 1);
	cr_assert_eq(rejoin->num_outcomes, 1);
	cr_assert_eq(rejoin->outcomes[0].op_seq, gen);
	cr_assert_eq(rejoin->outcomes[0].kind, CTL_OP_PUBLISH);
	cr_assert_eq(rejoin->outcomes[0].code, 0);
	cr_assert_eq(rejoin->outcomes[0].version.version, 5);
	cr_assert_str_eq(rejoin->outcomes[0].spec, "5");
	cr_assert_not(rejoin->outcomes[0].went);
	/* Nobody notices. */
	cr_assert_eq(rig_count(&rig, AGENT_LINE) + rig_count(&rig, AGENT_PART_END), 0);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_rejoin, published_and_not_hashed__content_follows_in_its_lane)
{
	gen = rig_publish(&rig, 1, sid, "5");
	rig.held = 1u << CTL_REJOIN;
	cr_assert_not(said()->hashed);
	rig_hashed(&rig, AGENT_EV_HASHED, 1, gen);
	cr_assert_eq(rig_requests(&rig, CTL_CONTENT), 0, "not before it knows the session");
	rig_answer(&rig, CTL_REJOIN);
	cr_assert_eq(rig_request(&rig, CTL_CONTENT)->u.content.gen, gen);
}

Test(agent_rejoin, refused_content__said)
{
	published();
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_CONFLICT, .u.conflict.sid = sid});
	cr_assert(said()->refused);
}

Test(agent_rejoin, replicated__its_version)
{
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_filling(&rig, 1, sid, 1, 7), 0);
	rig_event(&rig, rig_outcome(sid, 1, 0, 17));
	const struct ctl_rejoin *rejoin = said();
	holds(rejoin, 17, 1);
	cr_assert(rejoin->hashed);
	cr_assert(rejoin->outcomes[0].went);
}

Test(agent_rejoin, outcomes__the_last_of_them_in_order)
{
	uint64_t seq = 0;
	for (uint32_t i = 0; i < TH_OUTCOMES_MAX + 5; i++) {
		rig_submit(&rig, 1, 2, CTL_OP_UPDATE, "latest", TH_FOREVER);
		rig_event(&rig, rig_outcome(sid, ++seq, 0, TH_NO_VERSION));
		rig_clear(&rig);
	}
	const struct ctl_rejoin *rejoin = said();
	cr_assert_eq(rejoin->next_op_seq, seq + 1);
	cr_assert_eq(rejoin->num_outcomes, TH_OUTCOMES_MAX);
	for (uint32_t i = 0; i < TH_OUTCOMES_MAX; i++)
		cr_assert_eq(rejoin->outcomes[i].op_seq, seq - TH_OUTCOMES_MAX + 1 + i);
}

/* ---- readers ---- */

Test(agent_rejoin, readers__go_on_and_are_counted_as_before)
{
	gen = published();
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	holds(said(), 5, gen);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 0);
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig_event(&rig, rig_drain(sid, gen, 9));
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done.drain_no, 9);
}

Test(agent_rejoin, reader__fenced_by_its_old_number)
{
	gen = published();
	rig_reader(&rig, sid, gen, 50);
	said();
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_FENCE, .u.fence_leg = 50});
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 1);
}

Test(agent_rejoin, draining__served_again_until_it_is_asked_for_again)
{
	gen = published();
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig_event(&rig, rig_drain(sid, gen, 3));
	const struct ctl_rejoin *rejoin = said();
	holds(rejoin, 5, gen);
	cr_assert_eq(rejoin->next_op_seq, gen + 1);
	const struct ctl_op *op = &rig_request(&rig, CTL_OP)->u.op;
	cr_assert_eq(op->op_seq, gen + 1);
	cr_assert_eq(op->kind, CTL_OP_UNPUBLISH);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0, "the old DRAIN is void");
	rig_reader(&rig, sid, gen, 51);
}

/* ---- operations without GO ---- */

Test(agent_rejoin, operation__unanswered__called_again_under_its_number)
{
	rig.held = 1u << CTL_OP | 1u << CTL_REJOIN;
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "5", TH_FOREVER);
	const struct ctl_rejoin *rejoin = said();
	cr_assert_eq(rejoin->next_op_seq, 1);
	holds(rejoin, TH_NO_VERSION, 0);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0, "not before it knows the session");
	rig.held = 0;
	rig_answer(&rig, CTL_REJOIN);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 1);
	rig_event(&rig, rig_outcome(sid, 1, 0, 5));
	cr_assert_eq(code_of(0), 0);
}

Test(agent_rejoin, operation__cancelled_before__cancelled_again_behind_it)
{
	rig_submit(&rig, 1, 0, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	simple(AGENT_EV_CANCEL);
	said();
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	cr_assert_gt(sent_at(CTL_CANCEL), sent_at(CTL_OP));
	cr_assert_gt(sent_at(CTL_OP), sent_at(CTL_REJOIN));
}

Test(agent_rejoin, operation__never_sent__ends_here_when_it_is_cancelled)
{
	rig.cut = true;
	rig_sleep(&rig, 5 * SEC);
	rig_submit(&rig, 1, 0, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	rig.cut = false;
	rig.held = 1u << CTL_REJOIN;
	said();
	simple(AGENT_EV_CANCEL);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
	rig_answer(&rig, CTL_REJOIN);
	cr_assert_eq(rig_requests(&rig, CTL_OP) + rig_requests(&rig, CTL_CANCEL), 0);
}

Test(agent_rejoin, operation__taken_by_the_former_and_refused__ended_and_its_number_unused)
{
	rig_submit(&rig, 1, 0, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	rig.refused[CTL_OP] = TH_E_STATE;
	said();
	cr_assert_eq(code_of(0), TH_E_STATE);
	rig.refused[CTL_OP] = 0;
	rig_submit(&rig, 1, 1, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 1);
}

/* update waits for no server: its worker has been answered, and the next server may know it. */
Test(agent_rejoin, planned__asked_again_cancelled_and_declined)
{
	gen = published();
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, gen + 1, true));
	holds(said(), 5, gen);
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, gen + 1);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 0, "the old PLAN is void");
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	rig_reader(&rig, sid, gen, 51);
	rig_event(&rig, rig_plan(sid, gen + 1, true));
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, TH_E_CANCELLED);
}

Test(agent_rejoin, prepared__is_so_no_more)
{
	published();
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 1);
	holds(said(), 5, 1);
	/* Served again, and a GO on the strength of the old word is refused. */
	rig_reader(&rig, sid, 1, 50);
	rig_event(&rig, rig_go(sid, 2, 60));
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, TH_E_PROTOCOL);
}

Test(agent_rejoin, ended_for_another__its_end_is_taken_in)
{
	published();
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	said();
	rig_event(&rig, rig_drain(sid, 1, 4));
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(code_of(0), 0);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.held.version, TH_NO_VERSION);
}

/* ---- operations after GO ---- */

Test(agent_rejoin, filling__runs_on_under_the_old_number)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	const struct ctl_rejoin *rejoin = said();
	cr_assert(rejoin->went);
	cr_assert_eq(rejoin->op_seq, 1);
	cr_assert_eq(rejoin->next_op_seq, 2);
	cr_assert_eq(rejoin->kind, CTL_OP_REPLICATE);
	cr_assert_str_eq(rejoin->spec, "latest");
	cr_assert_eq(rejoin->leg, 7);
	cr_assert_eq(rejoin->source_sid, 999);
	cr_assert_eq(rejoin->source_gen, 1);
	cr_assert_eq(rejoin->chunks, 0);
	cr_assert_not(rejoin->done || rejoin->leg_stops || rejoin->cancelled || rejoin->hashed);
	cr_assert_eq(rejoin->held.version, TH_NO_VERSION);
	cr_assert_eq(rig_requests(&rig, CTL_OP) + rig_count(&rig, AGENT_STOP), 0);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 7);
	rig_event(&rig, rig_outcome(sid, 1, 0, 17));
	cr_assert_eq(code_of(61), 0);
}

Test(agent_rejoin, filling__its_end_follows_behind)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig.held = 1u << CTL_REJOIN;
	cr_assert_eq(said()->leg, 7);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	cr_assert_eq(rig_requests(&rig, CTL_LEG_END), 0);
	rig_answer(&rig, CTL_REJOIN);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 7);
}

Test(agent_rejoin, filling__source_lost_before__how_far_it_was)
{
	rig.held = 1u << CTL_LEG_END;
	rig_leg(&rig, AGENT_EV_LEG_FAILED, rig_filling(&rig, 1, sid, 1, 7), TH_E_NO_PATH);
	const struct ctl_rejoin *rejoin = said();
	cr_assert(rejoin->went);
	cr_assert_eq(rejoin->leg, 0);
	cr_assert_eq(rejoin->chunks, 4);
	rig_event(&rig, rig_reroute(sid, 1, 0, 70));
	cr_assert_eq(rig_last(&rig, AGENT_PULL)->u.leg.grant.leg, 70);
}

Test(agent_rejoin, filling__gives_way_to_another__that_one_is_forgotten)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_event(&rig, rig_reroute(sid, 1, 7, 8));
	const struct ctl_rejoin *rejoin = said();
	cr_assert_eq(rejoin->leg, 7);
	cr_assert(rejoin->leg_stops);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 0, "the server of now names another");
	cr_assert_eq(rig_requests(&rig, CTL_LEG_END), 1);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 7);
}

Test(agent_rejoin, filled__waits_for_its_outcome)
{
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_filling(&rig, 1, sid, 1, 7), 0);
	const struct ctl_rejoin *rejoin = said();
	cr_assert(rejoin->went);
	cr_assert(rejoin->done);
	cr_assert(rejoin->hashed);
	cr_assert_eq(rejoin->chunks, RIG_CHUNKS);
	cr_assert_eq(rejoin->leg, 0);
	rig_event(&rig, rig_outcome(sid, 1, 0, 17));
	cr_assert_eq(code_of(61), 0);
}

Test(agent_rejoin, being_cancelled__said)
{
	rig_filling(&rig, 1, sid, 1, 7);
	rig_event(&rig,
		(struct ctl_event){.kind = CTL_EV_CANCEL, .u.cancel = {.sid = sid, .op_seq = 1}});
	const struct ctl_rejoin *rejoin = said();
	cr_assert(rejoin->went);
	cr_assert(rejoin->cancelled);
	cr_assert(rejoin->leg_stops);
	cr_assert_eq(rejoin->leg, 7);
}

Test(agent_rejoin, outcome_came_while_a_leg_stops__over)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_event(&rig, rig_outcome(sid, 1, TH_E_DIRTY, TH_NO_VERSION));
	const struct ctl_rejoin *rejoin = said();
	holds(rejoin, TH_NO_VERSION, 0);
	cr_assert_eq(rejoin->next_op_seq, 2);
	cr_assert_eq(rejoin->num_outcomes, 1);
	cr_assert_eq(rejoin->outcomes[0].code, TH_E_DIRTY);
	cr_assert(rejoin->outcomes[0].went);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(code_of(61), TH_E_DIRTY);
}

Test(agent_rejoin, unpublished_while_a_reader_is_waited_for__held_no_more)
{
	gen = published();
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig_event(&rig, rig_outcome(sid, gen + 1, 0, TH_NO_VERSION));
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 1, "publish's");
	const struct ctl_rejoin *rejoin = said();
	holds(rejoin, TH_NO_VERSION, 0);
	cr_assert_eq(rejoin->next_op_seq, gen + 2);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(code_of(0), 0);
}

/* ---- what was under way besides ---- */

Test(agent_rejoin, register__unanswered__said_and_done)
{
	simple(AGENT_EV_UNREGISTER);
	rig.held = 1u << CTL_REGISTER;
	rig_session(&rig, 1, AGENT_EV_REGISTER);
	cr_assert(said()->registered);
	cr_assert_eq(rig_last(&rig, AGENT_REGISTERED)->u.answer.code, 0);
	cr_assert_eq(rig_requests(&rig, CTL_REGISTER), 0);
}

Test(agent_rejoin, unregister__unanswered__said_and_done)
{
	rig.held = 1u << CTL_UNREGISTER;
	simple(AGENT_EV_UNREGISTER);
	cr_assert_not(said()->registered);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, 0);
	cr_assert_eq(rig_requests(&rig, CTL_UNREGISTER), 0);
}

Test(agent_rejoin, what_was_to_be_told_to_the_former__is_not_told)
{
	rig.held = 1u << CTL_DRAIN_DONE;
	rig_event(&rig, rig_drain(sid, 77, 3)); /* of what is not here: beside the session's lane */
	said();
	rig.held = 0;
	rig_sleep(&rig, 5 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
}

/* ---- what is over ---- */

static const struct ctl_rejoin *
gone(bool died)
{
	const struct ctl_rejoin *rejoin = said();

	cr_assert(rejoin->gone);
	cr_assert_eq(rejoin->died, died);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1);
	return rejoin;
}

Test(agent_rejoin, broken__gone_and_its_handle_stays_broken)
{
	published();
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_BROKEN, .u.broken.sid = sid});
	gone(false);
	rig_submit(&rig, 1, 3, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(code_of(3), TH_E_GROUP_BROKEN);
	rig_lost(&rig);
	cr_assert(rig_request(&rig, CTL_REJOIN)->u.rejoin.gone, "to each server anew");
}

Test(agent_rejoin, closing__gone)
{
	published();
	rig.held = 1u << CTL_CLOSE;
	simple(AGENT_EV_CLOSE);
	gone(false);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0, "it says as much");
}

Test(agent_rejoin, worker_died__gone_and_why)
{
	gen = published();
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig.held = 1u << CTL_CLOSE;
	simple(AGENT_EV_LOST);
	gone(true);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
}

Test(agent_rejoin, close_is_on_its_way_and_the_session_is_gone__gone_and_why)
{
	rig.held = 1u << CTL_CLOSE;
	simple(AGENT_EV_LOST);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	gone(true);
	rig.held = 0;
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 0, "it was told");
}

Test(agent_rejoin, close_was_answered_and_the_session_is_gone__nothing)
{
	gen = published();
	rig.held = 1u << CTL_DRAIN_DONE;
	simple(AGENT_EV_CLOSE);
	rig_event(&rig, rig_drain(sid, gen, 3));
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 0);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1);
}

Test(agent_rejoin, gone__told_again_to_the_next_server_when_it_was_not_answered)
{
	rig.held = 1u << CTL_CLOSE | 1u << CTL_REJOIN;
	simple(AGENT_EV_LOST);
	rig_lost(&rig);
	rig_lost(&rig);
	const struct ctl_rejoin *rejoin = &rig_request(&rig, CTL_REJOIN)->u.rejoin;
	cr_assert(rejoin->gone && rejoin->died);
}

Test(agent_rejoin, gone__the_same_shard_is_opened_after_it)
{
	rig.held = 1u << CTL_CLOSE | 1u << CTL_REJOIN;
	simple(AGENT_EV_LOST);
	rig_lost(&rig);
	struct agent_event open = {.kind = AGENT_EV_OPEN, .session = 27};
	strcpy(open.u.open.model, "m");
	strcpy(open.u.open.replica, "b");
	open.u.open.num_shards = 1;
	rig_step(&rig, &open);
	cr_assert_eq(rig_requests(&rig, CTL_OPEN), 0);
	rig_answer(&rig, CTL_REJOIN);
	cr_assert_eq(rig_requests(&rig, CTL_OPEN), 1);
}

/* ---- answers ---- */

Test(agent_rejoin, refused__broken_with_the_servers_sentence)
{
	published();
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig.refused[CTL_REJOIN] = TH_E_GROUP_BROKEN;
	said();
	cr_assert_eq(code_of(0), TH_E_GROUP_BROKEN);
	cr_assert_str_eq(rig_complete(&rig, 1, 0)->u.complete.text, "refused by the rig");
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.broken, 1);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1);
}

Test(agent_rejoin, refused_while_filling__the_leg_is_stopped_first)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig.refused[CTL_REJOIN] = TH_E_GROUP_BROKEN;
	said();
	cr_assert_eq(rig_last(&rig, AGENT_STOP)->u.leg.leg, leg);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(code_of(61), TH_E_GROUP_BROKEN);
}

Test(agent_rejoin, closed_before_the_answer__closed_behind_it)
{
	published();
	rig.held = 1u << CTL_REJOIN;
	said();
	simple(AGENT_EV_CLOSE);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
	rig_answer(&rig, CTL_REJOIN);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 1);
	rig_event(&rig, rig_drain(sid, 1, 6));
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
}

Test(agent_rejoin, another_server_before_the_answer__all_is_said_to_that_one)
{
	published();
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig.held = 1u << CTL_REJOIN;
	said();
	struct rig_sent first = rig.sent[sent_at(CTL_REJOIN)];
	holds(said(), 5, 1);
	/* The former server's refusal comes late. */
	struct ctl_reply reply = {.kind = CTL_REJOIN,
		.request_no = first.request.request_no,
		.code = TH_E_GROUP_BROKEN,
		.text = "late"};
	struct agent_event late = {
		.kind = AGENT_EV_REPLY, .u.reply = {.tag = first.tag, .reply = &reply}};
	rig_step(&rig, &late);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 0);
	rig_answer(&rig, CTL_REJOIN);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(code_of(0), 0);
}

Test(agent_rejoin, unanswered__repeated_under_the_same_number)
{
	rig.held = 1u << CTL_REJOIN;
	said();
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(rig_sendings(&rig, CTL_REJOIN), 2);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 1);
	rig_answer(&rig, CTL_REJOIN);
	cr_assert_eq(rig_requests(&rig, CTL_REJOINED), 1);
}

/* ---- unpublished while there was no server: see alone.c ---- */

static void
alone(void)
{
	rig_fini(&rig);
	rig_init(&rig);
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	published();
}

static void
unpublish_alone(void)
{
	rig.cut = rig.hangs_up = true;
	rig_tick(&rig);
	rig_clear(&rig);
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", SEC);
	cr_assert_eq(code_of(0), 0);
	rig.cut = rig.hangs_up = false;
}

Test(agent_rejoin, unpublished_alone__held_no_more_and_the_next_operation_follows)
{
	alone();
	unpublish_alone();
	holds(said(), TH_NO_VERSION, 0);
	rig_submit(&rig, 1, 1, CTL_OP_PUBLISH, "6", TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_UNPUBLISH);
	rig_event(&rig, rig_outcome(sid, 2, 0, TH_NO_VERSION));
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_PUBLISH);
}

Test(agent_rejoin, unpublished_alone_behind_another__said_and_not_asked_for)
{
	alone();
	rig_submit(&rig, 1, 3, CTL_OP_UPDATE, "latest", TH_FOREVER);
	unpublish_alone();
	holds(said(), TH_NO_VERSION, 0);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_UPDATE);
	rig_event(&rig, rig_outcome(sid, 2, TH_E_CANCELLED, TH_NO_VERSION));
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1);
	rig_submit(&rig, 1, 1, CTL_OP_PUBLISH, "6", TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.kind, CTL_OP_PUBLISH);
}
