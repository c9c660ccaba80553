/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Group operations in the agent core: what may be called when, deadlines, cancelling, and the way
 * of replicate and update through PLAN, PREPARED, GO and their legs.
 */
#include "tests/unit/agent/agent_fixture.h"

TestSuite(agent_call, .init = setup_ready, .fini = teardown);

static int
call(uint32_t slot, uint32_t kind, const char *spec)
{
	rig_submit(&rig, 1, slot, kind, spec, TH_FOREVER);
	return code_of(slot);
}

static void
cancel(uint32_t slot)
{
	rig_step(&rig, &(struct agent_event){
			       .kind = AGENT_EV_CANCEL, .session = 1, .u.cancel_slot = slot});
}

static void
outcome(uint64_t op_seq, int code, uint64_t version)
{
	struct ctl_event event = rig_outcome(sid, op_seq, code, version);

	event.u.outcome.updated = code == 0;
	rig_event(&rig, event);
}

/* ---- what may be called when --------------------------------------------------------- */

Test(agent_call, submit__before_register__state_except_list)
{
	rig_open(&rig, 2);
	rig_submit(&rig, 2, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(rig_complete(&rig, 2, 0)->u.complete.code, TH_E_STATE);
	rig_submit(&rig, 2, 1, CTL_OP_REPLICATE, "1", TH_FOREVER);
	cr_assert_eq(rig_complete(&rig, 2, 1)->u.complete.code, TH_E_STATE);
	rig_submit(&rig, 2, 2, CTL_OP_LIST, "", TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1);
}

Test(agent_call, submit__second_operation__state_and_the_first_goes_on)
{
	rig_submit(&rig, 1, 0, CTL_OP_REPLICATE, "1", TH_FOREVER);
	cr_assert_eq(call(1, CTL_OP_UPDATE, "latest"), TH_E_STATE);
	outcome(1, TH_E_VERSION_LOST, TH_NO_VERSION);
	cr_assert_eq(code_of(0), TH_E_VERSION_LOST);
	cr_assert_str_eq(rig_complete(&rig, 1, 0)->u.complete.text, "the cause");
}

Test(agent_call, submit__crosses_close__cancelled)
{
	rig.held = 1u << CTL_CLOSE;
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(call(0, CTL_OP_PUBLISH, "1"), TH_E_CANCELLED);
	cr_assert_eq(call(1, AGENT_SUBMIT_WATCH, "1"), TH_E_CANCELLED);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_call, submit__bad_form__invalid)
{
	cr_assert_eq(call(0, CTL_OP_PUBLISH, "latest"), TH_E_INVALID);
	cr_assert_eq(call(1, CTL_OP_REPLICATE, "latest-0"), TH_E_INVALID);
	cr_assert_eq(call(2, 99, "1"), TH_E_INVALID);
	struct agent_event submit = {.kind = AGENT_EV_SUBMIT,
		.session = 1,
		.u.submit = {.slot = 3, .kind = CTL_OP_PUBLISH, .flags = 1, .spec = "1"}};
	rig_step(&rig, &submit);
	cr_assert_eq(code_of(3), TH_E_INVALID);
	memset(submit.u.submit.spec, '1', sizeof(submit.u.submit.spec));
	submit.u.submit.flags = 0;
	submit.u.submit.slot = 4;
	rig_step(&rig, &submit);
	cr_assert_eq(code_of(4), TH_E_INVALID);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_call, publish__holding__state)
{
	rig_publish(&rig, 1, sid, "1");
	cr_assert_eq(call(0, CTL_OP_PUBLISH, "2"), TH_E_STATE);
}

Test(agent_call, unpublish__nothing_held__state)
{
	cr_assert_eq(call(0, CTL_OP_UNPUBLISH, ""), TH_E_STATE);
}

/* ---- numbers, deadlines, cancelling -------------------------------------------------- */

Test(agent_call, op__refused__number_is_not_used_up)
{
	rig.refused[CTL_OP] = TH_E_LIMIT;
	cr_assert_eq(call(0, CTL_OP_PUBLISH, "1"), TH_E_LIMIT);
	rig.refused[CTL_OP] = 0;
	rig_clear(&rig);
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 1);
}

Test(agent_call, op__outcome_before_its_reply__counts)
{
	rig.held = 1u << CTL_OP;
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	outcome(1, 0, 1);
	cr_assert_eq(code_of(0), 0);
	rig_submit(&rig, 1, 1, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	rig_answer(&rig, CTL_OP);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 2);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 1);
}

Test(agent_call, op__waited_for_the_server__sends_what_is_left_of_its_time)
{
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", 60 * SEC);
	rig_sleep(&rig, 10 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0, "what is not sent is certain not to begin");
	rig.mute = false;
	rig_sleep(&rig, 4 * SEC);
	const struct ctl_request *op = rig_request(&rig, CTL_OP);
	cr_assert_leq(op->u.op.timeout_ns, 50 * SEC);
	cr_assert_geq(op->u.op.timeout_ns, 46 * SEC);
	cr_assert_str_eq(op->u.op.spec, "1");
}

Test(agent_call, update__no_server__at_once)
{
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(call(0, CTL_OP_UPDATE, "latest"), TH_E_NO_SERVER);
}

Test(agent_call, replicate__server_gone_and_never_sent__no_server_at_its_deadline)
{
	rig.unknown = true;
	rig.refused[CTL_HELLO] = TH_E_LIMIT;
	rig_sleep(&rig, 2 * SEC);
	cr_assert_not(agent_core_attached(rig.agent));
	rig_submit(&rig, 1, 0, CTL_OP_REPLICATE, "latest", 5 * SEC);
	rig_sleep(&rig, 5 * SEC - MS);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_sleep(&rig, MS);
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
	cr_assert_eq(rig_complete(&rig, 1, 0)->u.complete.op_seq, 0);
	/* And nothing of it is left to be sent. */
	rig.refused[CTL_HELLO] = 0;
	rig_sleep(&rig, 2 * SEC);
	cr_assert(agent_core_attached(rig.agent));
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_call, publish__server_back_before_the_deadline__done)
{
	rig.unknown = true;
	rig.refused[CTL_HELLO] = TH_E_LIMIT;
	rig_sleep(&rig, 2 * SEC);
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", 30 * SEC);
	rig.refused[CTL_HELLO] = 0;
	rig_sleep(&rig, 2 * SEC);
	cr_assert_lt(rig_request(&rig, CTL_OP)->u.op.timeout_ns, 30 * SEC);
	outcome(1, 0, 1);
	cr_assert_eq(code_of(0), 0);
}

Test(agent_call, op__sent_and_server_gone__waits_for_its_real_outcome)
{
	rig.mute = true;
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", 5 * SEC);
	rig_sleep(&rig, 60 * SEC);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig.mute = false;
	rig_sleep(&rig, 4 * SEC);
	outcome(1, TH_E_TIMEOUT, TH_NO_VERSION);
	cr_assert_eq(code_of(0), TH_E_TIMEOUT);
}

Test(agent_call, cancel__never_sent__ends_here)
{
	rig.unknown = true;
	rig.refused[CTL_HELLO] = TH_E_LIMIT;
	rig_sleep(&rig, 2 * SEC);
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	cancel(0);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
}

Test(agent_call, cancel__sent__asks_the_server_once_and_the_outcome_decides)
{
	rig_submit(&rig, 1, 0, CTL_OP_REPLICATE, "1", TH_FOREVER);
	cancel(0);
	cancel(0);
	cancel(9);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	outcome(1, TH_E_CANCELLED, TH_NO_VERSION);
	cr_assert_eq(code_of(0), TH_E_CANCELLED);
}

Test(agent_call, cancel__after_go__too_late)
{
	rig_filling(&rig, 1, sid, 1, 7);
	cancel(61);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 0);
}

Test(agent_call, list__grouped__tells_its_number_and_generation)
{
	rig_submit(&rig, 1, 0, CTL_OP_LIST, "", TH_FOREVER);
	struct ctl_event done = rig_outcome(sid, 1, 0, TH_NO_VERSION);
	done.u.outcome.generation = 12;
	rig_event(&rig, done);
	cr_assert_eq(rig_complete(&rig, 1, 0)->u.complete.op_seq, 1);
	cr_assert_eq(rig_complete(&rig, 1, 0)->u.complete.generation, 12);
}

Test(agent_call, publish__attributes__travel_with_it)
{
	rig_step(&rig,
		&(struct agent_event){
			.kind = AGENT_EV_ATTRIBUTES, .session = 1, .u.attributes = {.lo = 9}});
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.attributes.lo, 9);
}

Test(agent_call, publish__done__hashing_starts_and_line_comes_before_the_answer)
{
	rig_publish(&rig, 1, sid, "3");
	const struct agent_action *part = rig_last(&rig, AGENT_PART_NEW);
	cr_assert(part->u.part.published);
	cr_assert_eq(part->u.part.gen, 1);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.held.version, 3);
	cr_assert_not(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate);
	cr_assert_lt(rig_at(&rig, AGENT_LINE), rig_at(&rig, AGENT_COMPLETE));
}

/* ---- replicate and update ------------------------------------------------------------ */

/* A leg that ends well, and what the digests of its source come to. */
static void
leg_brings(uint64_t leg, uint64_t content)
{
	struct agent_event done = {.kind = AGENT_EV_LEG_DONE,
		.u.leg = {.leg = leg,
			.chunks_verified = RIG_CHUNKS,
			.overwrote = true,
			.content = {.lo = content, .hi = 1}}};
	rig_step(&rig, &done);
}

/* The leg of an operation whose GO says this content; 0: it does not say. */
static uint64_t
filling(uint64_t content)
{
	struct ctl_event go = rig_go(sid, 1, 7);

	rig_submit(&rig, 1, 61, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 1, false));
	if (content != 0)
		go.u.go.content = (struct th_hash){.lo = content, .hi = 1};
	rig_event(&rig, go);
	return rig_last(&rig, AGENT_PULL)->u.leg.leg;
}

Test(agent_call, leg__brings_what_the_publisher_has_said__done)
{
	leg_brings(filling(5), 5);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, 0);
	outcome(1, 0, 17);
	cr_assert_eq(code_of(61), 0);
}

Test(agent_call, leg__brings_other_digests_than_the_publishers__fails_and_is_read_by_nobody)
{
	uint64_t leg = filling(5);
	rig_reader(&rig, sid, 1, 50);
	leg_brings(leg, 6);
	const struct ctl_leg_end *end = &rig_request(&rig, CTL_LEG_END)->u.leg_end;
	cr_assert_eq(end->code, TH_E_CHECKSUM);
	cr_assert_not(end->source_failed, "no other source mends what is here");
	cr_assert(end->overwrote);
	cr_assert(strstr(end->text, "replica trainer") != NULL, "%s", end->text);
	cr_assert_eq(rig_count(&rig, AGENT_FENCE), 1);
	outcome(1, TH_E_CHECKSUM, TH_NO_VERSION);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0, "its reader is still there");
	rig_out(&rig, AGENT_EV_OUT_ENDED, rig_last(&rig, AGENT_FENCE)->u.leg.leg);
	cr_assert_eq(code_of(61), TH_E_CHECKSUM);
}

Test(agent_call, leg__content_comes_with_a_reroute__counts)
{
	uint64_t leg = filling(0);
	struct ctl_event reroute = rig_reroute(sid, 1, 7, 8);
	reroute.u.reroute.content = (struct th_hash){.lo = 5, .hi = 1};
	rig_event(&rig, reroute);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	leg_brings(rig_last(&rig, AGENT_PULL)->u.leg.leg, 6);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, TH_E_CHECKSUM);
}

Test(agent_call, leg__nobody_has_said_the_content__the_server_compares)
{
	leg_brings(filling(0), 6);
	const struct ctl_leg_end *end = &rig_request(&rig, CTL_LEG_END)->u.leg_end;
	cr_assert_eq(end->code, 0);
	cr_assert_eq(end->content.lo, 6);
}

Test(agent_call, replicate__whole_way__done_with_its_result)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	cr_assert_not(rig_last(&rig, AGENT_PART_NEW)->u.part.published);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	const struct ctl_leg_end *end = &rig_request(&rig, CTL_LEG_END)->u.leg_end;
	cr_assert_eq(end->leg, 7);
	cr_assert_eq(end->code, 0);
	cr_assert_eq(end->chunks_verified, RIG_CHUNKS);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	outcome(1, 0, 17);
	const struct agent_action *done = rig_complete(&rig, 1, 61);
	cr_assert_eq(done->u.complete.code, 0);
	cr_assert_eq(done->u.complete.result.version.version, 17);
	cr_assert(done->u.complete.result.updated);
	cr_assert_eq(done->u.complete.result.bytes_moved, 100);
	cr_assert_str_eq(done->u.complete.result.source, "trainer");
	cr_assert_str_eq(done->u.complete.result.transport, "tcp");
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.held.version, 17);
}

Test(agent_call, update__nothing_new__zero_and_the_old_is_held)
{
	rig_publish(&rig, 1, sid, "3");
	rig_clear(&rig);
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_event done = rig_outcome(sid, 2, 0, 3);
	rig_event(&rig, done);
	cr_assert_eq(code_of(0), 0);
	cr_assert_not(rig_complete(&rig, 1, 0)->u.complete.result.updated);
	cr_assert_eq(rig_complete(&rig, 1, 0)->u.complete.result.version.version, 3);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
}

Test(agent_call, plan__other_layout__explains_and_touches_nothing)
{
	rig_publish(&rig, 1, sid, "3");
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_event plan = rig_plan(sid, 2, true);
	plan.u.plan.layout.lo++;
	rig_event(&rig, plan);
	cr_assert_eq(rig_last(&rig, AGENT_EXPLAIN)->u.explain.op_seq, 2);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 0);
	struct agent_event explained = {.kind = AGENT_EV_EXPLAINED, .session = 1};
	explained.u.explained.op_seq = 2;
	strcpy(explained.u.explained.text, "tensor w has another shape");
	rig_step(&rig, &explained);
	rig_step(&rig, &explained);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 1);
	const struct ctl_prepared *prepared = &rig_request(&rig, CTL_PREPARED)->u.prepared;
	cr_assert_eq(prepared->code, TH_E_LAYOUT);
	cr_assert_str_eq(prepared->text, "tensor w has another shape");
	cr_assert_eq(rig_count(&rig, AGENT_HASH_STOP), 0, "the old part is served on");
	outcome(2, TH_E_LAYOUT, TH_NO_VERSION);
	cr_assert_eq(rig_complete(&rig, 1, 0)->u.complete.result.version.version, 3);
}

Test(agent_call, update__old_part_has_a_reader__prepared_when_it_has_ended)
{
	gen = rig_publish(&rig, 1, sid, "3");
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	rig_hashed(&rig, AGENT_EV_HASHED, 1, gen);
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, 0);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.held.version, 3, "still");
	rig_event(&rig, rig_go(sid, 2, 8));
	cr_assert_eq(rig_last(&rig, AGENT_PART_END)->u.part.gen, gen);
	cr_assert_eq(rig_last(&rig, AGENT_PART_NEW)->u.part.gen, 2);
	cr_assert_lt(rig_at(&rig, AGENT_PART_END), rig_at(&rig, AGENT_PART_NEW));
	cr_assert_lt(rig_at(&rig, AGENT_PART_NEW), rig_at(&rig, AGENT_PULL));
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.held.version, TH_NO_VERSION);
	cr_assert_lt(rig_at(&rig, AGENT_LINE), rig_at(&rig, AGENT_PULL));
}

Test(agent_call, update__fails_before_go__old_part_is_served_again)
{
	gen = rig_publish(&rig, 1, sid, "3");
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	cr_assert_eq(rig_count(&rig, AGENT_HASH_STOP), 1);
	rig_hashed(&rig, AGENT_EV_HASH_STOPPED, 1, gen);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, 0);
	rig_event(&rig, rig_undrain(sid, gen));
	outcome(2, TH_E_TIMEOUT, TH_NO_VERSION);
	cr_assert_eq(code_of(0), TH_E_TIMEOUT);
	cr_assert_eq(rig_last(&rig, AGENT_HASH)->u.part.gen, gen);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.held.version, 3);
	rig_reader(&rig, sid, gen, 51);
}

Test(agent_call, plan__another_takes_its_place__prepared_for_both)
{
	gen = rig_publish(&rig, 1, sid, "3");
	rig_hashed(&rig, AGENT_EV_HASHED, 1, gen);
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.plan_no, 0);
	struct ctl_event second = rig_plan(sid, 2, true);
	second.u.plan.plan_no = 1;
	second.u.plan.layout = (struct th_hash){.lo = 1, .hi = 1};
	rig_event(&rig, rig_undrain(sid, gen));
	rig_event(&rig, second);
	cr_assert_eq(rig_last(&rig, AGENT_EXPLAIN)->u.explain.op_seq, 2, "it is looked at anew");
	/* A third comes while the second is explained, which then says nothing any more. */
	uint64_t out = rig_reader(&rig, sid, gen, 50);
	second.u.plan.plan_no = 2;
	second.u.plan.layout = RIG_LAYOUT;
	rig_event(&rig, second);
	struct agent_event explained = {.kind = AGENT_EV_EXPLAINED, .session = 1};
	explained.u.explained.op_seq = 2;
	rig_step(&rig, &explained);
	cr_assert_eq(rig_requests(&rig, CTL_PREPARED), 1, "the old part is read again");
	rig_event(&rig, rig_go(sid, 2, 8));
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 0, "what was said to the first is no proof");
	rig_out(&rig, AGENT_EV_OUT_ENDED, out);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.plan_no, 2);
	cr_assert_eq(rig_request(&rig, CTL_PREPARED)->u.prepared.code, 0);
	/* An older one again, as repeated by a server: no effect. */
	second.u.plan.plan_no = 1;
	rig_event(&rig, second);
	rig_event(&rig, rig_go(sid, 2, 9));
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 1);
}

Test(agent_call, go__before_prepared__not_a_byte_is_overwritten)
{
	gen = rig_publish(&rig, 1, sid, "3");
	rig_reader(&rig, sid, gen, 50);
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(sid, 2, true));
	rig_event(&rig, rig_go(sid, 2, 8));
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 0);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, TH_E_PROTOCOL);
}

Test(agent_call, leg__source_failed__another_goes_on_and_results_add_up)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_leg(&rig, AGENT_EV_LEG_FAILED, leg, TH_E_NO_PATH);
	const struct ctl_leg_end *end = &rig_request(&rig, CTL_LEG_END)->u.leg_end;
	cr_assert(end->source_failed);
	cr_assert_eq(end->code, TH_E_NO_PATH);
	cr_assert_eq(end->chunks_verified, 4);
	rig_event(&rig, rig_reroute(sid, 1, 0, 8));
	cr_assert_eq(rig_last(&rig, AGENT_PULL)->u.leg.grant.leg, 8);
	cr_assert_neq(rig_last(&rig, AGENT_PULL)->u.leg.leg, leg);
	rig_leg(&rig, AGENT_EV_LEG_DONE, rig_last(&rig, AGENT_PULL)->u.leg.leg, 0);
	outcome(1, 0, 17);
	cr_assert_eq(rig_complete(&rig, 1, 61)->u.complete.result.bytes_moved, 200);
	cr_assert_eq(rig_complete(&rig, 1, 61)->u.complete.result.transfer_ns, 10);
}

Test(agent_call, reroute__leg_runs__stops_it_first)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_event(&rig, rig_reroute(sid, 1, 7, 8));
	cr_assert_eq(rig_last(&rig, AGENT_STOP)->u.leg.leg, leg);
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 1);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 2);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 7);
	cr_assert_neq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, 0);
}

Test(agent_call, reroute__twice_while_stopping__the_last_counts_and_each_leg_ends)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_event(&rig, rig_reroute(sid, 1, 7, 8));
	rig_event(&rig, rig_reroute(sid, 1, 8, 9));
	cr_assert_eq(rig_count(&rig, AGENT_STOP), 1);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 8);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(rig_last(&rig, AGENT_PULL)->u.leg.grant.leg, 9);
	cr_assert_eq(rig_requests(&rig, CTL_LEG_END), 2);
}

Test(agent_call, reroute__crosses_leg_done__ended_unbegun)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	rig_event(&rig, rig_reroute(sid, 1, 7, 8));
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 1);
	cr_assert_eq(rig_requests(&rig, CTL_LEG_END), 2);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 8);
	cr_assert_neq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, 0);
	outcome(1, 0, 17);
	cr_assert_eq(code_of(61), 0);
}

Test(agent_call, reroute__leg_done_crosses_stop__done_counts)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_event(&rig, rig_reroute(sid, 1, 7, 8));
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	cr_assert_eq(rig_count(&rig, AGENT_PULL), 1);
	cr_assert_eq(rig_requests(&rig, CTL_LEG_END), 2);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 8, "7 with 0 came before");
	outcome(1, 0, 17);
	cr_assert_eq(code_of(61), 0);
}

Test(agent_call, abort__after_go__leg_ends_then_dirty_until_replicate)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_CANCEL, .u.cancel = {sid, 1}});
	cr_assert_eq(rig_last(&rig, AGENT_STOP)->u.leg.leg, leg);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.code, TH_E_CANCELLED);
	cr_assert(rig_request(&rig, CTL_LEG_END)->u.leg_end.overwrote);
	outcome(1, TH_E_GROUP_BROKEN, TH_NO_VERSION);
	cr_assert_eq(code_of(61), TH_E_GROUP_BROKEN);
	cr_assert(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate);
	cr_assert_eq(call(0, CTL_OP_UPDATE, "latest"), TH_E_DIRTY);
	cr_assert_eq(call(1, CTL_OP_PUBLISH, "9"), TH_E_DIRTY);
	cr_assert_eq(call(2, AGENT_SUBMIT_WATCH, "9"), TH_E_DIRTY);
	rig_session(&rig, 1, AGENT_EV_UNREGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, TH_E_DIRTY);
	rig_clear(&rig);
	leg = rig_filling(&rig, 1, sid, 2, 9);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	outcome(2, 0, 18);
	cr_assert_eq(code_of(61), 0);
	rig_clear(&rig);
	rig_submit(&rig, 1, 3, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1, "clean again");
}

Test(agent_call, outcome__while_leg_runs__waits_for_its_end)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	outcome(1, TH_E_VERSION_LOST, TH_NO_VERSION);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	cr_assert_eq(rig_count(&rig, AGENT_STOP), 1);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(code_of(61), TH_E_VERSION_LOST);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
}

Test(agent_call, outcome__success_without_the_bytes__is_not_believed)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	outcome(1, 0, 17);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(code_of(61), TH_E_PROTOCOL);
	cr_assert_eq(rig_complete(&rig, 1, 61)->u.complete.result.version.version, TH_NO_VERSION);
}

Test(agent_call, leg__fails_without_blame__ends_the_operation_at_the_server)
{
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	struct agent_event failed = {.kind = AGENT_EV_LEG_FAILED,
		.u.leg = {.leg = leg, .code = TH_E_STALE_MEMORY, .text = "gone"}};
	rig_step(&rig, &failed);
	const struct ctl_leg_end *end = &rig_request(&rig, CTL_LEG_END)->u.leg_end;
	cr_assert_eq(end->code, TH_E_STALE_MEMORY);
	cr_assert_not(end->source_failed);
	cr_assert_not(end->overwrote);
	outcome(1, TH_E_STALE_MEMORY, TH_NO_VERSION);
	cr_assert_eq(code_of(61), TH_E_STALE_MEMORY);
	rig_clear(&rig);
	rig_submit(&rig, 1, 3, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1, "nothing was overwritten: not dirty");
}

Test(agent_call, broken__event__operation_and_later_ones_answer_it)
{
	rig_submit(&rig, 1, 0, CTL_OP_REPLICATE, "1", TH_FOREVER);
	struct ctl_event broken = {.kind = CTL_EV_BROKEN, .u.broken = {sid, "shard 1 is lost"}};
	rig_event(&rig, broken);
	outcome(1, TH_E_GROUP_BROKEN, TH_NO_VERSION);
	cr_assert_eq(code_of(0), TH_E_GROUP_BROKEN);
	cr_assert_eq(call(1, CTL_OP_PUBLISH, "1"), TH_E_GROUP_BROKEN);
	cr_assert_str_eq(rig_complete(&rig, 1, 1)->u.complete.text, "shard 1 is lost");
	cr_assert_eq(call(2, AGENT_SUBMIT_WATCH, "1"), TH_E_GROUP_BROKEN);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.broken, 1);
}

static void
break_group(void)
{
	rig_event(&rig,
		(struct ctl_event){.kind = CTL_EV_BROKEN, .u.broken = {sid, "shard 1 is lost"}});
	rig_clear(&rig);
}

/* The others have unpublished and closed before this member calls: its part is drained already. */
Test(agent_call, broken__unpublish_was_decided_before__its_outcome)
{
	gen = rig_publish(&rig, 1, sid, "1");
	rig_hashed(&rig, AGENT_EV_HASHED, 1, gen);
	rig_event(&rig, rig_drain(sid, gen, 4));
	break_group();
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(rig_request(&rig, CTL_OP)->u.op.op_seq, 2);
	outcome(2, 0, TH_NO_VERSION);
	cr_assert_eq(code_of(0), 0);
	cr_assert(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.held.version, TH_NO_VERSION);
	rig_clear(&rig);
	cr_assert_eq(call(1, CTL_OP_UNPUBLISH, ""), TH_E_GROUP_BROKEN, "nothing is held");
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
}

Test(agent_call, broken__unpublish_was_not_decided__the_server_says_broken)
{
	rig_publish(&rig, 1, sid, "1");
	break_group();
	rig_submit(&rig, 1, 0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	outcome(2, TH_E_GROUP_BROKEN, TH_NO_VERSION);
	cr_assert_eq(code_of(0), TH_E_GROUP_BROKEN);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 0, "what is held stays until close");
}

Test(agent_call, broken__unpublish_without_a_server__broken_at_once)
{
	rig_publish(&rig, 1, sid, "1");
	break_group();
	rig.mute = true;
	rig_sleep(&rig, 60 * SEC);
	cr_assert_eq(call(0, CTL_OP_UNPUBLISH, ""), TH_E_GROUP_BROKEN);
}

/* ---- within a host ------------------------------------------------------------------- */

static struct ctl_event
local_go(uint64_t reader_sid, uint64_t op_seq, uint64_t leg, uint64_t source_gen)
{
	struct ctl_event go = rig_go(reader_sid, op_seq, leg);

	go.u.go.grant.source_agent_inc = RIG_INC;
	go.u.go.grant.source_sid = sid;
	go.u.go.grant.source_gen = source_gen;
	return go;
}

static uint64_t
copying(uint64_t reader_sid, uint64_t part_gen)
{
	rig_submit(&rig, 2, 61, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(reader_sid, 1, false));
	rig_event(&rig, local_go(reader_sid, 1, 7, part_gen));
	const struct agent_action *copy = rig_last(&rig, AGENT_COPY);
	cr_assert_eq(copy->u.leg.source_session, 1);
	cr_assert_eq(copy->u.leg.source_gen, part_gen);
	return copy->u.leg.leg;
}

Test(agent_call, copy__source_drains__drained_when_the_copy_has_ended)
{
	gen = rig_publish(&rig, 1, sid, "3");
	rig_hashed(&rig, AGENT_EV_HASHED, 1, gen);
	uint64_t leg = copying(rig_ready(&rig, 2), gen);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

Test(agent_call, copy__fenced__stops_and_asks_for_another_source)
{
	gen = rig_publish(&rig, 1, sid, "3");
	uint64_t leg = copying(rig_ready(&rig, 2), gen);
	rig_event(&rig, (struct ctl_event){.kind = CTL_EV_FENCE, .u.fence_leg = 7});
	cr_assert_eq(rig_last(&rig, AGENT_STOP)->u.leg.leg, leg);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert(rig_request(&rig, CTL_LEG_END)->u.leg_end.source_failed);
}

Test(agent_call, copy__source_is_not_there__asks_for_another)
{
	uint64_t reader_sid = rig_ready(&rig, 2);
	rig_submit(&rig, 2, 61, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	rig_event(&rig, rig_plan(reader_sid, 1, false));
	rig_event(&rig, local_go(reader_sid, 1, 7, 5));
	cr_assert_eq(rig_count(&rig, AGENT_COPY), 0);
	cr_assert(rig_request(&rig, CTL_LEG_END)->u.leg_end.source_failed);
	cr_assert_eq(rig_request(&rig, CTL_LEG_END)->u.leg_end.leg, 7);
}
