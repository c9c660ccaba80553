/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent core and its server: attaching, repeating, order, silence, restart; opening and
 * registering; watches. The server is a script (tests/support/core/agent_rig.h).
 */
#include "tests/unit/agent/agent_fixture.h"

static void
setup(void)
{
	rig_init(&rig);
}

TestSuite(agent_link, .init = setup, .fini = teardown);

Test(agent_link, start__server_there__hello_attach_poll_beat)
{
	rig_attach(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_HELLO), 1);
	cr_assert_eq(rig_requests(&rig, CTL_ATTACH), 1);
	cr_assert_eq(rig_requests(&rig, CTL_POLL), 1);
	cr_assert_eq(rig_requests(&rig, CTL_BEAT), 1);
	cr_assert(rig_last(&rig, AGENT_SERVER_STATE)->u.server.attached);
}

Test(agent_link, start__no_server__tries_again_slower_and_attaches_when_it_comes)
{
	rig.cut = true;
	rig_step(&rig, &(struct agent_event){.kind = AGENT_EV_TICK});
	rig_sleep(&rig, 10 * SEC);
	cr_assert_not(agent_core_attached(rig.agent));
	/* At 0, 50 and 150 ms, then every 200 ms. */
	cr_assert_eq(rig_sendings(&rig, CTL_HELLO), 3 + 49);
	cr_assert_eq(rig_requests(&rig, CTL_HELLO), 1, "a repeat keeps its number");
	rig.cut = false;
	rig_sleep(&rig, SEC);
	cr_assert(agent_core_attached(rig.agent));
}

Test(agent_link, attached__time_passes__one_beat_a_second)
{
	rig_attach(&rig);
	rig_clear(&rig);
	rig_sleep(&rig, 10 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_BEAT), 10);
}

Test(agent_link, hello__other_protocol__not_attached_with_both_ranges)
{
	rig.refused[CTL_HELLO] = TH_E_PROTOCOL;
	rig_tick(&rig);
	cr_assert_not(agent_core_attached(rig.agent));
	cr_assert_str_eq(rig_last(&rig, AGENT_SERVER_STATE)->u.server.text, "refused by the rig");
}

Test(agent_link, hello__other_cluster__not_attached_until_it_is_the_same)
{
	strcpy(rig.cluster, "blue");
	rig_tick(&rig);
	rig_sleep(&rig, SEC);
	cr_assert_not(agent_core_attached(rig.agent));
	const char *text = rig_last(&rig, AGENT_SERVER_STATE)->u.server.text;
	cr_assert(strstr(text, "server is of cluster blue, this agent of cluster red"), "%s", text);
	cr_assert_eq(rig_requests(&rig, CTL_ATTACH), 0);
	strcpy(rig.cluster, "red");
	rig_sleep(&rig, SEC);
	cr_assert(agent_core_attached(rig.agent));
	cr_assert_str_eq(rig_request(&rig, CTL_HELLO)->u.hello.cluster, "red");
	cr_assert_str_eq(rig_request(&rig, CTL_ATTACH)->u.attach.cluster, "red");
}

/* Who it is does not concern a server that it is not attached to. */
Test(agent_link, secret__in_all_requests_but_hello)
{
	struct th_secret none = {0}, secret;

	memset(&secret, 's', sizeof(secret));
	rig_attach(&rig);
	cr_assert_arr_eq(&rig_request(&rig, CTL_HELLO)->secret, &none, sizeof(none));
	cr_assert_arr_eq(&rig_request(&rig, CTL_ATTACH)->secret, &secret, sizeof(secret));
	cr_assert_arr_eq(&rig_request(&rig, CTL_POLL)->secret, &secret, sizeof(secret));
	cr_assert_arr_eq(&rig_request(&rig, CTL_BEAT)->secret, &secret, sizeof(secret));
}

Test(agent_link, request__unanswered__sent_again_with_the_same_number)
{
	rig_attach(&rig);
	rig.held = 1u << CTL_OPEN;
	struct agent_event event = {.kind = AGENT_EV_OPEN, .session = 1};
	strcpy(event.u.open.model, "m");
	strcpy(event.u.open.replica, "r");
	event.u.open.num_shards = 1;
	rig_step(&rig, &event);
	rig_sleep(&rig, 4 * SEC);
	cr_assert_eq(rig_sendings(&rig, CTL_OPEN), 2);
	cr_assert_eq(rig_requests(&rig, CTL_OPEN), 1);
	cr_assert(agent_core_attached(rig.agent), "beats are answered");
	rig_answer(&rig, CTL_OPEN);
	cr_assert_eq(rig_count(&rig, AGENT_OPENED), 1, "both answers, one OPENED");
}

Test(agent_link, session__several_requests__one_in_flight)
{
	rig_attach(&rig);
	rig_ready(&rig, 1);
	rig.held = 1u << CTL_OP;
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	rig_step(&rig, &(struct agent_event){.kind = AGENT_EV_CANCEL, .session = 1});
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 0);
	rig_answer(&rig, CTL_OP);
	cr_assert_eq(rig_requests(&rig, CTL_CANCEL), 1);
}

Test(agent_link, sessions__one_waits__the_other_does_not)
{
	rig_attach(&rig);
	rig_ready(&rig, 1);
	rig.held = 1u << CTL_OP;
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	rig_open(&rig, 2);
	cr_assert_eq(rig_count(&rig, AGENT_OPENED), 2);
}

Test(agent_link, server__silent__not_attached_and_back_without_attaching_again)
{
	rig_attach(&rig);
	rig.mute = true;
	rig_clear(&rig);
	rig_sleep(&rig, 3 * SEC + MS);
	cr_assert_not(agent_core_attached(rig.agent));
	cr_assert_not(rig_last(&rig, AGENT_SERVER_STATE)->u.server.attached);
	rig.mute = false;
	rig_sleep(&rig, 4 * SEC);
	cr_assert(agent_core_attached(rig.agent));
	cr_assert_eq(rig_requests(&rig, CTL_ATTACH), 0);
	cr_assert_eq(rig_count(&rig, AGENT_SERVER_STATE), 2);
}

Test(agent_link, server__hangs_up__not_attached_at_once_and_back_with_its_first_answer)
{
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	rig_clear(&rig);
	rig_hang_up(&rig);
	cr_assert(strstr(rig_last(&rig, AGENT_SERVER_STATE)->u.server.text, "hung up"));
	rig_submit(&rig, 1, 0, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(code_of(0), TH_E_NO_SERVER);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_not(agent_core_attached(rig.agent));
	rig.cut = false;
	rig_sleep(&rig, 1100 * MS);
	cr_assert(agent_core_attached(rig.agent));
	cr_assert_eq(rig_requests(&rig, CTL_ATTACH), 0);
	rig_submit(&rig, 1, 1, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_event nothing_new = rig_outcome(sid, 1, 0, TH_NO_VERSION);
	rig_event(&rig, nothing_new);
	cr_assert_eq(code_of(1), 0);
}

/* What was on its way when it hung up is no sign of life. */
Test(agent_link, server__hangs_up__what_it_said_before_counts_but_does_not_attach)
{
	rig_attach(&rig);
	rig_ready(&rig, 1);
	rig.held = 1u << CTL_UNREGISTER;
	rig_session(&rig, 1, AGENT_EV_UNREGISTER);
	rig_clear(&rig);
	rig.held |= 1u << CTL_BEAT | 1u << CTL_HELLO;
	rig_hang_up(&rig); /* the POLL ends */
	rig.cut = false;
	rig.held |= 1u << CTL_POLL;
	rig_answer(&rig, CTL_UNREGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, 0);
	cr_assert_not(agent_core_attached(rig.agent));
}

Test(agent_link, session__nothing_new_is_sent_without_a_server)
{
	rig_attach(&rig);
	rig_ready(&rig, 1);
	rig_clear(&rig);
	rig.cut = rig.hangs_up = true;
	rig_tick(&rig);
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", 10 * SEC);
	rig_sleep(&rig, 5 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 0);
	rig.cut = false;
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1);
	cr_assert_leq(rig_request(&rig, CTL_OP)->u.op.timeout_ns, 5 * SEC);
}

Test(agent_link, server__forgot_agent_but_not_sessions__attaches_again_and_goes_on)
{
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	rig_clear(&rig);
	rig.unknown = true;
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	rig_sleep(&rig, SEC);
	cr_assert_eq(rig_requests(&rig, CTL_ATTACH), 1);
	cr_assert_eq(rig_requests(&rig, CTL_OP), 1, "again, with its number");
	cr_assert_eq(rig_sendings(&rig, CTL_OP), 2);
	struct ctl_event outcome = rig_outcome(sid, 1, 0, 1);
	rig_event(&rig, outcome);
	cr_assert_eq(code_of(0), 0);
}

static uint64_t
tag_of(enum ctl_request_kind kind)
{
	uint64_t tag = 0;

	for (uint32_t i = 0; i < rig.num_sent; i++) {
		if (rig.sent[i].request.kind == kind)
			tag = rig.sent[i].tag;
	}
	return tag;
}

/* An answer that was on its way when the agent attached again: the request is asked again. */
Test(agent_link, answer__to_a_former_attachment__says_nothing)
{
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	rig.held = 1u << CTL_OP;
	rig_submit(&rig, 1, 0, CTL_OP_PUBLISH, "1", TH_FOREVER);
	uint64_t tag = tag_of(CTL_OP), first = rig_request(&rig, CTL_OP)->attach_no;
	struct ctl_reply late = {.kind = CTL_OP,
		.request_no = rig_request(&rig, CTL_OP)->request_no,
		.code = TH_E_STATE};
	rig.held |= 1u << CTL_BEAT | 1u << CTL_WATCH;
	rig.unknown = true;
	rig_sleep(&rig, SEC + MS);
	rig.unknown = false;
	rig.held &= ~(1u << CTL_BEAT);
	rig_sleep(&rig, SEC);
	cr_assert_eq(rig.attach_no, 2);
	cr_assert_neq(rig_request(&rig, CTL_OP)->attach_no, first);
	rig_step(&rig, &(struct agent_event){
			       .kind = AGENT_EV_REPLY, .u.reply = {.tag = tag, .reply = &late}});
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig.held = 0;
	rig_answer(&rig, CTL_OP);
	struct ctl_event outcome = rig_outcome(sid, 1, 0, 1);
	rig_event(&rig, outcome);
	cr_assert_eq(code_of(0), 0);
}

Test(agent_link, attach__a_lower_epoch_than_before__is_not_accepted)
{
	rig_attach(&rig);
	rig.server_inc = 7;
	rig.unknown = rig.fresh = true;
	rig_sleep(&rig, 2 * SEC);
	cr_assert(agent_core_attached(rig.agent));
	cr_assert_eq(rig_request(&rig, CTL_ATTACH)->u.attach.server_inc, 1);
	rig.server_inc = 6;
	rig.unknown = rig.fresh = true;
	rig_sleep(&rig, 2 * SEC);
	cr_assert_not(agent_core_attached(rig.agent));
	cr_assert_eq(rig_request(&rig, CTL_ATTACH)->u.attach.epoch, 7);
	cr_assert(strstr(rig_last(&rig, AGENT_SERVER_STATE)->u.server.text, "epoch 6"));
	cr_assert(rig_last(&rig, AGENT_SERVER_STATE)->u.server.refused);
	cr_assert_eq(rig_last(&rig, AGENT_SERVER_STATE)->u.server.epoch, 7);
}

Test(agent_link, attach__refused__the_shell_hears_of_each_time)
{
	rig.refused[CTL_ATTACH] = TH_E_NO_SERVER;
	rig_tick(&rig);
	uint32_t before = rig_count(&rig, AGENT_SERVER_STATE);
	cr_assert_geq(before, 1);
	cr_assert(rig_last(&rig, AGENT_SERVER_STATE)->u.server.refused);
	/* Another server, perhaps: it is asked at once again. */
	rig_sleep(&rig, SEC);
	cr_assert_geq(rig_count(&rig, AGENT_SERVER_STATE), before + 4);
	rig.refused[CTL_ATTACH] = 0;
	rig_sleep(&rig, 300 * MS);
	cr_assert(agent_core_attached(rig.agent));
	cr_assert_not(rig_last(&rig, AGENT_SERVER_STATE)->u.server.refused);
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	cr_assert_not(agent_core_attached(rig.agent));
	cr_assert_not(rig_last(&rig, AGENT_SERVER_STATE)->u.server.refused, "silence is none");
}

Test(agent_link, server__restarted__sessions_are_broken_and_new_ones_open)
{
	rig_reset_at_loss();
	teardown();
	setup();
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	rig_publish(&rig, 1, sid, "5");
	rig_ready(&rig, 2);
	rig_submit(&rig, 2, 3, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	rig_clear(&rig);
	rig.unknown = rig.fresh = true;
	rig.server_inc = 2;
	rig_sleep(&rig, 2 * SEC);
	cr_assert(agent_core_attached(rig.agent));
	cr_assert_eq(rig_complete(&rig, 2, 3)->u.complete.code, TH_E_GROUP_BROKEN);
	cr_assert(strstr(rig_complete(&rig, 2, 3)->u.complete.text, "open it again") != NULL);
	rig_submit(&rig, 1, 4, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(code_of(4), TH_E_GROUP_BROKEN);
	/* The digests were being made: joined, then the part is over; what is held stays. */
	rig_hashed(&rig, AGENT_EV_HASH_STOPPED, 1, 1);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.held.version, 5);
	cr_assert(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.broken, 1);
	rig_clear(&rig);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 1);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0, "the server does not know it");
	rig_open(&rig, 3);
}

Test(agent_link, server__restarted_while_opening__opens_at_the_new_one)
{
	rig_attach(&rig);
	rig.held = 1u << CTL_OPEN;
	struct agent_event event = {.kind = AGENT_EV_OPEN, .session = 1};
	strcpy(event.u.open.model, "m");
	strcpy(event.u.open.replica, "r");
	event.u.open.num_shards = 1;
	rig_step(&rig, &event);
	rig.unknown = rig.fresh = true;
	rig_sleep(&rig, 2 * SEC);
	rig.held = 0;
	rig_answer(&rig, CTL_OPEN);
	cr_assert_eq(rig_last(&rig, AGENT_OPENED)->u.answer.code, 0);
	cr_assert_eq(rig_count(&rig, AGENT_OPENED), 1);
}

Test(agent_link, server__restarted_while_filling__leg_stops_before_the_answer)
{
	rig_reset_at_loss();
	teardown();
	setup();
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	uint64_t leg = rig_filling(&rig, 1, sid, 1, 7);
	rig_clear(&rig);
	rig.unknown = rig.fresh = true;
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_last(&rig, AGENT_STOP)->u.leg.leg, leg);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_leg(&rig, AGENT_EV_LEG_STOPPED, leg, 0);
	cr_assert_eq(code_of(61), TH_E_GROUP_BROKEN);
	cr_assert_eq(rig_count(&rig, AGENT_PART_END), 1);
	cr_assert_lt(rig_at(&rig, AGENT_PART_END), rig_at(&rig, AGENT_COMPLETE));
	cr_assert_eq(rig_requests(&rig, CTL_LEG_END), 0, "its number means nothing there");
}

Test(agent_link, event__repeated__acted_upon_once)
{
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	rig_publish(&rig, 1, sid, "1");
	rig_hashed(&rig, AGENT_EV_HASHED, 1, 1);
	struct ctl_event drain = rig_drain(sid, 1, 5);
	rig_event(&rig, drain);
	uint64_t number = rig.last_event;
	rig_event_numbered(&rig, &drain, number);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
}

Test(agent_link, event__gap__waits_for_what_is_missing)
{
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	rig_publish(&rig, 1, sid, "1");
	rig_hashed(&rig, AGENT_EV_HASHED, 1, 1);
	struct ctl_event drain = rig_drain(sid, 1, 5);
	drain.number = rig.last_event + 2;
	struct ctl_reply reply = {.kind = CTL_POLL};
	for (uint32_t i = 0; i < rig.num_sent; i++) {
		if (rig.sent[i].request.kind != CTL_POLL || rig.sent[i].answered)
			continue;
		rig.sent[i].answered = true;
		reply.request_no = rig.sent[i].request.request_no;
		reply.u.poll = (struct ctl_poll_reply){1, &drain};
		rig_step(&rig, &(struct agent_event){.kind = AGENT_EV_REPLY,
				       .u.reply = {rig.sent[i].tag, &reply}});
		break;
	}
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
	cr_assert_eq(rig_request(&rig, CTL_POLL)->u.poll.last_event, rig.last_event);
}

/* ---- opening and registering --------------------------------------------------------- */

static int
open_code(uint32_t shard, uint32_t num_shards, uint32_t flags)
{
	struct agent_event event = {.kind = AGENT_EV_OPEN, .session = 77};

	strcpy(event.u.open.model, "m");
	strcpy(event.u.open.replica, "r");
	event.u.open.shard = shard;
	event.u.open.num_shards = num_shards;
	event.u.open.flags = flags;
	rig_step(&rig, &event);
	return rig_last(&rig, AGENT_OPENED)->u.answer.code;
}

Test(agent_link, open__what_is_not_offered__invalid_and_says_what)
{
	rig_attach(&rig);
	cr_assert_eq(open_code(0, 1, 1u << 0 | 1u << 6), TH_E_INVALID);
	cr_assert(strstr(rig_last(&rig, AGENT_OPENED)->u.answer.text, "0x40 of them") != NULL);
	cr_assert_eq(open_code(0, 1, 1u << 20), TH_E_INVALID);
	cr_assert_eq(open_code(2, 2, 0), TH_E_INVALID);
	cr_assert_eq(open_code(0, 0, 0), TH_E_INVALID);
	cr_assert_eq(rig_requests(&rig, CTL_OPEN), 0);
}

Test(agent_link, open__flags__the_server_is_told)
{
	const uint32_t flags = CTL_OPEN_SPOT | CTL_OPEN_PREFETCH | CTL_OPEN_SEED;

	rig_attach(&rig);
	cr_assert_eq(open_code(0, 1, flags), 0);
	cr_assert_eq(rig_request(&rig, CTL_OPEN)->u.open.flags, flags);
}

Test(agent_link, open__refused_by_the_server__session_is_gone)
{
	rig_attach(&rig);
	rig.refused[CTL_OPEN] = TH_E_GROUP_MISMATCH;
	cr_assert_eq(open_code(0, 1, 0), TH_E_GROUP_MISMATCH);
	struct agent_session_info info;
	cr_assert_not(agent_core_session_at(rig.agent, 0, &info));
}

Test(agent_link, open__too_many__limit)
{
	rig_attach(&rig);
	for (uint64_t i = 1; i <= 8; i++)
		rig_open(&rig, i);
	cr_assert_eq(open_code(0, 1, 0), TH_E_LIMIT);
	struct agent_session_info info;
	cr_assert(agent_core_session_at(rig.agent, 7, &info));
	cr_assert_eq(info.session, 8);
	cr_assert_str_eq(info.state, "open");
	cr_assert_str_eq(info.operation, "idle");
}

Test(agent_link, register__twice_or_while_holding__state)
{
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	rig_session(&rig, 1, AGENT_EV_REGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_REGISTERED)->u.answer.code, TH_E_STATE);
	rig_publish(&rig, 1, sid, "1");
	rig_session(&rig, 1, AGENT_EV_UNREGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, TH_E_STATE);
}

Test(agent_link, register__refused__may_be_tried_again)
{
	rig_attach(&rig);
	rig_open(&rig, 1);
	rig.refused[CTL_REGISTER] = TH_E_GROUP_MISMATCH;
	rig_session(&rig, 1, AGENT_EV_REGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_REGISTERED)->u.answer.code, TH_E_GROUP_MISMATCH);
	rig.refused[CTL_REGISTER] = 0;
	rig_session(&rig, 1, AGENT_EV_REGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_REGISTERED)->u.answer.code, 0);
	rig_session(&rig, 1, AGENT_EV_UNREGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, 0);
	rig_session(&rig, 1, AGENT_EV_UNREGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, TH_E_STATE);
}

Test(agent_link, register__no_server__says_so)
{
	rig_attach(&rig);
	rig_open(&rig, 1);
	rig.mute = true;
	rig_sleep(&rig, 4 * SEC);
	rig_session(&rig, 1, AGENT_EV_REGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_REGISTERED)->u.answer.code, TH_E_NO_SERVER);
}

/* ---- watches ------------------------------------------------------------------------- */

Test(agent_link, watch__many_slots__server_is_asked_once)
{
	rig_attach(&rig);
	rig.generation = 4;
	rig_open(&rig, 1);
	rig_open(&rig, 2);
	rig_submit(&rig, 1, 0, AGENT_SUBMIT_WATCH, "4", TH_FOREVER);
	rig_submit(&rig, 1, 1, AGENT_SUBMIT_WATCH, "4", TH_FOREVER);
	rig_submit(&rig, 2, 0, AGENT_SUBMIT_WATCH, "4", TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_WATCH), 1);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 0);
	rig_step(&rig,
		&(struct agent_event){.kind = AGENT_EV_CANCEL, .session = 1, .u.cancel_slot = 1});
	cr_assert_eq(code_of(1), TH_E_CANCELLED);
	struct ctl_event changed = {.kind = CTL_EV_CHANGED, .u.changed = {"m", 5}};
	rig_event(&rig, changed);
	cr_assert_eq(code_of(0), 0);
	cr_assert_eq(rig_complete(&rig, 2, 0)->u.complete.generation, 5);
	cr_assert_eq(rig_last(&rig, AGENT_LINE)->u.line.generation, 5);
}

Test(agent_link, watch__generation_is_another_already__completes_at_once)
{
	rig_attach(&rig);
	rig.generation = 4;
	rig_open(&rig, 1);
	rig_submit(&rig, 1, 0, AGENT_SUBMIT_WATCH, "3", TH_FOREVER);
	cr_assert_eq(code_of(0), 0);
}

/* Nobody watched any more when it was said: what comes next would never be heard. */
Test(agent_link, watch__change_of_a_watch_that_was_ended__server_is_asked_anew)
{
	rig_attach(&rig);
	rig.generation = 4;
	rig_open(&rig, 1);
	rig_submit(&rig, 1, 0, AGENT_SUBMIT_WATCH, "3", TH_FOREVER);
	rig.held = 1u << CTL_WATCH;
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	cr_assert(rig_request(&rig, CTL_WATCH)->u.watch.stop);
	rig_open(&rig, 2);
	struct ctl_event changed = {.kind = CTL_EV_CHANGED, .u.changed = {"m", 5}};
	rig_event(&rig, changed);
	rig_answer(&rig, CTL_WATCH);
	rig_submit(&rig, 2, 0, AGENT_SUBMIT_WATCH, "5", TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_WATCH), 3);
	cr_assert_not(rig_request(&rig, CTL_WATCH)->u.watch.stop);
}

Test(agent_link, watch__answer_to_one_that_is_being_ended__server_is_asked_anew)
{
	rig_attach(&rig);
	rig.generation = 4;
	rig_open(&rig, 1);
	rig.held = 1u << CTL_WATCH;
	rig_submit(&rig, 1, 0, AGENT_SUBMIT_WATCH, "4", TH_FOREVER);
	rig_session(&rig, 1, AGENT_EV_CLOSE);
	rig_open(&rig, 2);
	rig_answer(&rig, CTL_WATCH); /* it watches: its end is on its way */
	cr_assert(rig_request(&rig, CTL_WATCH)->u.watch.stop);
	rig_answer(&rig, CTL_WATCH);
	rig_submit(&rig, 2, 0, AGENT_SUBMIT_WATCH, "4", TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_WATCH), 3);
	cr_assert_not(rig_request(&rig, CTL_WATCH)->u.watch.stop);
}

/* News may overtake the answer that begins the watch. */
Test(agent_link, watch__change_before_its_answer__is_not_lost)
{
	rig_attach(&rig);
	rig.generation = 4;
	rig_open(&rig, 1);
	rig.held = 1u << CTL_WATCH;
	rig_submit(&rig, 1, 0, AGENT_SUBMIT_WATCH, "4", TH_FOREVER);
	struct ctl_event changed = {.kind = CTL_EV_CHANGED, .u.changed = {"m", 5}};
	rig_event(&rig, changed);
	rig_answer(&rig, CTL_WATCH);
	cr_assert_eq(code_of(0), 0);
	cr_assert_eq(rig_complete(&rig, 1, 0)->u.complete.generation, 5);
}

Test(agent_link, watch__deadline_or_no_number__timeout_or_invalid)
{
	rig_attach(&rig);
	rig_open(&rig, 1);
	rig_submit(&rig, 1, 0, AGENT_SUBMIT_WATCH, "latest", TH_FOREVER);
	cr_assert_eq(code_of(0), TH_E_INVALID);
	rig_submit(&rig, 1, 1, AGENT_SUBMIT_WATCH, "0", 5 * SEC);
	rig_sleep(&rig, 5 * SEC - MS);
	cr_assert_eq(rig_count(&rig, AGENT_COMPLETE), 1);
	rig_sleep(&rig, MS);
	cr_assert_eq(code_of(1), TH_E_TIMEOUT);
}
