/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, sessions: hello, attach, beats, events, remembered replies, opening, registering, limits,
 * listings, watches, inspection.
 */
#include <stdio.h>

#include "server/core/route/ticket.h"
#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_session, .init = setup_empty, .fini = teardown);

/* ---- hello and attach ---- */

Test(refsrv_session, hello__ranges_overlap__highest_common)
{
	struct ctl_request request = {.kind = CTL_HELLO, .u.hello = {1, 9}};
	cr_assert_eq(world_repeat(&w, 0, &request), 0);
	cr_assert_eq(w.reply.u.hello.protocol, TH_PROTOCOL_MAX);
	cr_assert_eq(w.reply.u.hello.server_inc, 77);
}

Test(refsrv_session, hello__no_overlap__protocol_names_both_ranges)
{
	struct ctl_request request = {.kind = CTL_HELLO, .u.hello = {5, 9}};
	cr_assert_eq(world_repeat(&w, 0, &request), TH_E_PROTOCOL);
	cr_assert(says("5 to 9") && says("2 to 2"));
}

Test(refsrv_session, request__agent_unknown__told_to_attach)
{
	struct ctl_request request = {.kind = CTL_BEAT, .agent_inc = 5, .request_no = 1};
	cr_assert_eq(world_repeat(&w, 0, &request), TH_E_NO_SERVER);
	cr_assert(w.reply.unknown_agent);
}

Test(refsrv_session, list__from_no_agent__answered_but_not_for_a_group)
{
	struct ctl_request request = {.kind = CTL_LIST, .request_no = 1};
	strcpy(request.u.list.model, "m");
	cr_assert_eq(world_repeat(&w, 0, &request), 0);
	cr_assert_eq(w.reply.u.list.num_versions, 0);
	request.u.list.sid = 1;
	request.u.list.op_seq = 1;
	cr_assert_eq(world_repeat(&w, 0, &request), TH_E_NO_SERVER);
	cr_assert(w.reply.unknown_agent);
}

Test(refsrv_session, attach__new_then_again__fresh_only_once)
{
	new_agents(1);
	cr_assert(w.reply.u.attach.fresh);
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert_not(w.reply.u.attach.fresh);
}

Test(refsrv_session, attach__same_node_while_alive__refused)
{
	new_agents(1);
	cr_assert_eq(world_restart(&w, a), TH_E_STATE);
	cr_assert(says("node0") && says("node0:7000"));
}

Test(refsrv_session, attach__same_node_when_suspect__replaces_the_old_life)
{
	new_agents(2);
	struct world_member m0 = world_member(&w, a, "r", 0, 2);
	struct world_member m1 = world_member(&w, b, "r", 1, 2);
	(void)m0;
	w.agents[a].silent = true;
	world_sleep(&w, 4 * SEC);
	cr_assert_eq(world_restart(&w, a), 0);
	cr_assert(w.reply.u.attach.fresh);
	taken(&m1, CTL_EV_BROKEN);
}

Test(refsrv_session, attach__bad_name__refused)
{
	struct ctl_request request = {.kind = CTL_ATTACH, .agent_inc = 5, .request_no = 1};
	strcpy(request.u.attach.node, "a\nb");
	strcpy(request.u.attach.datacenter, "dc");
	strcpy(request.u.attach.data_address, "h:1");
	cr_assert_eq(world_repeat(&w, 0, &request), TH_E_INVALID);
	memset(request.u.attach.node, 'x', sizeof(request.u.attach.node));
	request.request_no++;
	cr_assert_eq(world_repeat(&w, 0, &request), TH_E_INVALID);
}

/* ---- beats ---- */

Test(refsrv_session, beat__missing__suspect_then_dead_then_unknown)
{
	new_agents(1);
	w.agents[a].silent = true;
	world_sleep(&w, 2900 * MS);
	cr_assert_str_eq(node_state(a), "active");
	world_sleep(&w, 200 * MS);
	cr_assert_str_eq(node_state(a), "suspect");
	world_sleep(&w, 6 * SEC);
	cr_assert_str_eq(node_state(a), "suspect");
	world_sleep(&w, SEC);
	cr_assert_str_eq(node_state(a), "dead");
	struct ctl_request request = {.kind = CTL_BEAT};
	cr_assert_eq(world_request(&w, a, &request), TH_E_NO_SERVER);
	cr_assert(w.reply.unknown_agent);
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert(w.reply.u.attach.fresh);
	cr_assert_str_eq(node_state(a), "active");
}

Test(refsrv_session, beat__after_suspicion__active_again)
{
	new_agents(1);
	w.agents[a].silent = true;
	world_sleep(&w, 5 * SEC);
	cr_assert_str_eq(node_state(a), "suspect");
	w.agents[a].silent = false;
	world_sleep(&w, 2 * SEC);
	cr_assert_str_eq(node_state(a), "active");
}

Test(refsrv_session, beat__server_stood_still__nobody_is_suspected)
{
	new_agents(1);
	struct refsrv_out out;
	w.now_ns += 60 * SEC; /* stopped for a minute: no tick, no beat was heard */
	refsrv_tick(w.server, w.now_ns, &out);
	cr_assert_str_eq(node_state(a), "active");
}

Test(refsrv_session, beat__many_fall_silent_together__death_is_held_back)
{
	uint32_t agents[4];
	for (uint32_t i = 0; i < 4; i++)
		agents[i] = world_agent(&w);
	for (uint32_t i = 0; i < 3; i++)
		w.agents[agents[i]].silent = true;
	world_sleep(&w, 20 * SEC);
	cr_assert_str_eq(node_state(agents[0]), "suspect");
	world_sleep(&w, 11 * SEC);
	cr_assert_str_eq(node_state(agents[0]), "dead");
	cr_assert_str_eq(node_state(agents[3]), "active");
}

/* ---- events ---- */

static void
poll(uint32_t agent, uint64_t last, uint64_t token, struct refsrv_out *ret_out)
{
	struct ctl_request request = {
		.kind = CTL_POLL,
		.agent_inc = w.agents[agent].inc,
		.secret = world_secret(w.agents[agent].inc),
		.attach_no = w.agents[agent].attach_no,
		.u.poll.last_event = last,
	};
	refsrv_step(w.server, w.now_ns, token, &request, ret_out);
}

Test(refsrv_session, poll__nothing_happens__answered_empty_after_the_hold)
{
	new_agents(1);
	struct refsrv_out out;
	w.agents[a].deaf = true;
	poll(a, 0, 900, &out);
	poll(a, 0, 901, &out); /* the newer answers the older */
	cr_assert_eq(out.num_replies, 1);
	cr_assert_eq(out.replies[0].token, 900);
	cr_assert_eq(out.replies[0].reply.u.poll.num_events, 0);
	refsrv_tick(w.server, w.now_ns + 900 * MS, &out);
	cr_assert_eq(out.num_replies, 0);
	refsrv_tick(w.server, w.now_ns + 1000 * MS, &out);
	cr_assert_eq(out.num_replies, 1);
	cr_assert_eq(out.replies[0].token, 901);
}

Test(refsrv_session, poll__event_not_acknowledged__sent_again)
{
	new_agents(1);
	struct world_member m = world_member(&w, a, "r", 0, 1);
	struct refsrv_out out;
	w.agents[a].deaf = true;
	poll(a, 0, 900, &out);
	cr_assert_eq(world_op(&w, a, m.sid, 1, CTL_OP_PUBLISH, "1", TH_FOREVER), 0);
	for (int i = 0; i < 2; i++) {
		poll(a, 0, 901, &out);
		cr_assert_eq(out.num_replies, 1);
		cr_assert_eq(out.replies[0].reply.u.poll.num_events, 1);
		/* The first has come with the OPEN. */
		cr_assert_eq(out.replies[0].reply.u.poll.events[0].number, 2);
	}
	poll(a, 2, 902, &out);
	cr_assert_eq(out.num_replies, 0);
	poll(a, 5, 903, &out);
	cr_assert_eq(out.replies[0].reply.code, TH_E_INVALID);
}

Test(refsrv_session, poll__many_events__at_most_the_limit_in_one_reply)
{
	new_agents(1);
	struct world_member m = world_member(&w, a, "r", 0, 1);
	struct refsrv_out out;
	w.agents[a].deaf = true;
	for (uint64_t i = 1; i <= TH_EVENTS_MAX + 6; i++)
		cr_assert_eq(world_op(&w, a, m.sid, i, CTL_OP_LIST, "", TH_FOREVER), 0);
	poll(a, 0, 901, &out);
	/* The standing POLL was answered with the first; this is the same again. */
	const struct refsrv_reply *last = &out.replies[out.num_replies - 1];
	cr_assert_eq(last->reply.u.poll.num_events, TH_EVENTS_MAX);
	/* One more has come with the OPEN. */
	poll(a, TH_EVENTS_MAX + 1, 902, &out);
	cr_assert_eq(out.replies[0].reply.u.poll.num_events, 6);
	cr_assert_eq(out.replies[0].reply.u.poll.events[0].number, TH_EVENTS_MAX + 2);
}

Test(refsrv_session, poll__requester_forgotten__never_answered)
{
	new_agents(1);
	struct refsrv_out out;
	w.agents[a].deaf = true;
	poll(a, 0, 900, &out);
	refsrv_forget(w.server, 900);
	refsrv_tick(w.server, w.now_ns + 2 * SEC, &out);
	cr_assert_eq(out.num_replies, 0);
}

/* ---- at most once ---- */

Test(refsrv_session, repeat__state_changing_request__same_reply_one_effect)
{
	new_agents(1);
	struct ctl_request request = {.kind = CTL_OPEN, .u.open.num_shards = 1};
	strcpy(request.u.open.model, "m");
	strcpy(request.u.open.replica, "r");
	cr_assert_eq(world_request(&w, a, &request), 0);
	uint64_t sid = w.reply.u.open.sid;
	cr_assert_eq(world_repeat(&w, a, &request), 0);
	cr_assert_eq(w.reply.u.open.sid, sid);
	cr_assert_eq(w.reply.u.open.next_op_seq, 1);
	request.request_no++;
	cr_assert_eq(world_repeat(&w, a, &request), TH_E_GROUP_MISMATCH);
	char text[TH_CTL_TEXT_BYTES];
	strcpy(text, w.reply.text);
	cr_assert_eq(world_repeat(&w, a, &request), TH_E_GROUP_MISMATCH);
	cr_assert_str_eq(w.reply.text, text);
}

Test(refsrv_session, repeat__number_used_for_another_request__invalid)
{
	new_agents(1);
	struct ctl_request request = {.kind = CTL_UNREGISTER};
	cr_assert_eq(world_request(&w, a, &request), TH_E_STATE);
	request.kind = CTL_CANCEL;
	cr_assert_eq(world_repeat(&w, a, &request), TH_E_INVALID);
}

Test(refsrv_session, repeat__older_than_the_window__refused)
{
	new_agents(1);
	struct ctl_request first = {.kind = CTL_UNREGISTER}, request = first;
	cr_assert_eq(world_request(&w, a, &first), TH_E_STATE);
	for (int i = 0; i < 200; i++)
		world_request(&w, a, &request);
	cr_assert_eq(world_repeat(&w, a, &first), TH_E_STATE);
	cr_assert(says("older than the server remembers"));
}

/* ---- open and register ---- */

Test(refsrv_session, open__shards_out_of_range__invalid)
{
	new_agents(1);
	uint64_t sid;
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 0, 1, &sid), TH_E_INVALID);
	cr_assert_eq(world_open(&w, a, "m", "r", 2, 2, 1, &sid), TH_E_INVALID);
	cr_assert_eq(world_open(&w, a, "m", "r", 0, TH_SHARDS_MAX + 1, 1, &sid), TH_E_INVALID);
	cr_assert_eq(world_open(&w, a, "", "r", 0, 1, 1, &sid), TH_E_INVALID);
	cr_assert_eq(world_open(&w, a, "m", "", 0, 1, 1, &sid), TH_E_INVALID);
}

Test(refsrv_session, open__same_shard_twice__mismatch_names_both_nodes)
{
	new_agents(2);
	uint64_t sid;
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 2, 1, &sid), 0);
	cr_assert_eq(world_open(&w, b, "m", "r", 0, 2, 1, &sid), TH_E_GROUP_MISMATCH);
	cr_assert(says("node0") && says("node1"));
}

Test(refsrv_session, open__other_num_shards_or_lineage__mismatch)
{
	new_agents(2);
	uint64_t sid;
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 2, 1, &sid), 0);
	cr_assert_eq(world_open(&w, b, "m", "r", 1, 3, 1, &sid), TH_E_GROUP_MISMATCH);
	cr_assert(says("3 shards") && says("with 2"));
	cr_assert_eq(world_open(&w, b, "m", "r", 1, 2, 7, &sid), TH_E_GROUP_MISMATCH);
	cr_assert(says("lineage 7"));
	cr_assert_eq(world_open(&w, b, "other", "r", 1, 3, 7, &sid), 0);
}

Test(refsrv_session, open__group_broken__new_incarnation_counts_from_one)
{
	new_agents(2);
	struct world_member m0 = world_member(&w, a, "r", 0, 2);
	struct world_member m1 = world_member(&w, b, "r", 1, 2);
	world_call(&w, &m0, CTL_OP_LIST, "", TH_FOREVER);
	cr_assert_eq(world_close(&w, &m0, false), 0);
	uint64_t sid;
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 2, 1, &sid), 0);
	cr_assert_eq(w.reply.u.open.next_op_seq, 1);
	/* The member that stays belongs to the old one: what was decided before is still told. */
	world_call(&w, &m1, CTL_OP_LIST, "", TH_FOREVER);
	succeeded(&m1);
	world_call(&w, &m1, CTL_OP_PUBLISH, "1", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m1).code, TH_E_GROUP_BROKEN);
	cr_assert_eq(world_close(&w, &m1, false), 0);
	cr_assert_eq(world_open(&w, b, "m", "r", 1, 2, 1, &sid), 0);
}

Test(refsrv_session, register__manifest_not_there__refused)
{
	new_agents(1);
	struct ctl_request request = {.kind = CTL_REGISTER};
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 1, 1, &request.u.reg.sid), 0);
	request.u.reg.layout.lo = request.u.reg.manifest.lo = 4;
	cr_assert_eq(world_request(&w, a, &request), TH_E_NOT_AVAILABLE);
	request.u.reg.layout.lo = 0;
	cr_assert_eq(world_request(&w, a, &request), TH_E_INVALID);
}

Test(refsrv_session, register__while_published__state)
{
	new_agents(1);
	struct world_member m = world_member(&w, a, "r", 0, 1);
	cr_assert_eq(world_register(&w, a, m.sid, 3), 0); /* again is fine while it holds nothing */
	world_publish(&w, &m, "1");
	cr_assert_eq(world_register(&w, a, m.sid, 0), TH_E_STATE);
	struct ctl_request request = {.kind = CTL_UNREGISTER, .u.unregister_sid = m.sid};
	cr_assert_eq(world_request(&w, a, &request), TH_E_STATE);
	cr_assert(says("version 1"));
}

Test(refsrv_session, session__of_another_agent__refused_everywhere)
{
	new_agents(2);
	struct world_member m = world_member(&w, a, "r", 0, 1);
	struct world_member theirs = m;
	theirs.agent = b;
	cr_assert_eq(world_register(&w, b, m.sid, 0), TH_E_STATE);
	cr_assert_eq(world_op(&w, b, m.sid, 1, CTL_OP_PUBLISH, "1", 0), TH_E_STATE);
	cr_assert_eq(world_prepared(&w, &theirs, 0), TH_E_STATE);
	cr_assert_eq(world_cancel(&w, &theirs), TH_E_STATE);
	cr_assert_eq(world_close(&w, &theirs, false), TH_E_STATE);
}

/* ---- limits ---- */

Test(refsrv_session, limits__each_is_named_with_its_value)
{
	struct refsrv_config config;
	world_fini(&w);
	refsrv_config_default(&config);
	config.agents_max = 2;
	config.members_max = 3;
	config.members_per_agent_max = 2;
	world_init(&w, &config);
	new_agents(2);
	uint64_t sid;
	cr_assert_eq(world_open(&w, a, "m", "r0", 0, 1, 1, &sid), 0);
	cr_assert_eq(world_open(&w, a, "m", "r1", 0, 1, 1, &sid), 0);
	cr_assert_eq(world_open(&w, a, "m", "r2", 0, 1, 1, &sid), TH_E_LIMIT);
	cr_assert(says("limit.members_per_agent") && says("2"));
	cr_assert_eq(world_open(&w, b, "m", "r3", 0, 1, 1, &sid), 0);
	cr_assert_eq(world_open(&w, b, "m", "r4", 0, 1, 1, &sid), TH_E_LIMIT);
	cr_assert(says("limit.members"));
	struct ctl_request request = {.kind = CTL_ATTACH, .agent_inc = 99, .request_no = 1};
	strcpy(request.u.attach.node, "third");
	strcpy(request.u.attach.datacenter, "dc");
	strcpy(request.u.attach.data_address, "h:1");
	cr_assert_eq(world_repeat(&w, 0, &request), TH_E_LIMIT);
	cr_assert(says("limit.agents"));
	/* A dead agent makes room. */
	w.agents[a].silent = true;
	world_sleep(&w, 11 * SEC);
	request.request_no++;
	cr_assert_eq(world_repeat(&w, 0, &request), 0);
}

/* ---- listing, watching, resolving, inspecting ---- */

Test(refsrv_session, list__replicas_sorted_by_name__with_flags_and_progress)
{
	new_agents(1);
	b = world_agent_in(&w, "dc2");
	struct world_member m0 = world_member(&w, a, "zeta", 0, 1);
	struct world_member m1 = world_member(&w, b, "alpha", 0, 1);
	cr_assert_eq(world_list(&w, a, "m"), 0);
	cr_assert_eq(w.reply.u.list.num_versions, 0);
	uint64_t generation = w.reply.u.list.generation;
	world_publish(&w, &m0, "4");
	struct ctl_grant grant = world_begin(&w, &m1, CTL_OP_REPLICATE, "4");
	struct ctl_leg_progress progress = {.leg = grant.leg, .chunks_verified = 6};
	struct ctl_request beat = {.kind = CTL_BEAT, .u.beat = {1, &progress}};
	cr_assert_eq(world_request(&w, b, &beat), 0);
	cr_assert_eq(world_list(&w, a, "m"), 0);
	const struct ctl_listing *list = &w.reply.u.list;
	cr_assert_gt(list->generation, generation);
	cr_assert_eq(list->num_versions, 1);
	cr_assert_eq(list->versions[0].version.lineage, 1);
	cr_assert_eq(list->versions[0].version.version, 4);
	cr_assert_eq(list->versions[0].num_replicas, 2);
	cr_assert_str_eq(list->versions[0].replicas[0].name, "alpha");
	cr_assert_str_eq(list->versions[0].replicas[0].datacenter, "dc2");
	cr_assert_eq(list->versions[0].replicas[0].flags, 0);
	cr_assert_eq(list->versions[0].replicas[0].chunks_done, 6);
	cr_assert_eq(list->versions[0].replicas[0].chunks_total, WORLD_CHUNKS);
	cr_assert_str_eq(list->versions[0].replicas[1].name, "zeta");
	cr_assert_eq(list->versions[0].replicas[1].flags, CTL_REPLICA_READY);
}

Test(refsrv_session, watch__changes__coalesced_and_the_last_is_told)
{
	new_agents(2);
	struct ctl_request watch = {.kind = CTL_WATCH};
	struct ctl_event event;
	strcpy(watch.u.watch.model, "m");
	cr_assert_eq(world_request(&w, b, &watch), 0);
	uint64_t before = w.reply.u.watch.generation;
	struct world_member m = world_member(&w, a, "r", 0, 1);
	world_publish(&w, &m, "1");
	cr_assert(world_take(&w, b, CTL_EV_CHANGED, 0, &event));
	cr_assert_gt(event.u.changed.generation, before);
	cr_assert_str_eq(event.u.changed.model, "m");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_part drain = world_take_drain(&w, &m);
	world_drain_done(&w, a, &drain);
	cr_assert_not(world_has(&w, b, CTL_EV_CHANGED, 0)); /* too soon after the first */
	world_sleep(&w, 30 * MS);
	cr_assert(world_take(&w, b, CTL_EV_CHANGED, 0, &event));
	cr_assert_not(world_has(&w, b, CTL_EV_CHANGED, 0));
	cr_assert_eq(world_list(&w, b, "m"), 0);
	cr_assert_eq(event.u.changed.generation, w.reply.u.list.generation);
}

Test(refsrv_session, watch__too_many_models__refused_until_one_is_given_up)
{
	new_agents(2);
	struct ctl_request watch = {.kind = CTL_WATCH};
	for (int i = 0; i < 1024; i++) {
		snprintf(watch.u.watch.model, sizeof(watch.u.watch.model), "m%d", i);
		cr_assert_eq(world_request(&w, b, &watch), 0);
	}
	cr_assert_eq(world_request(&w, b, &watch), 0); /* watched already */
	strcpy(watch.u.watch.model, "m");
	cr_assert_eq(world_request(&w, b, &watch), TH_E_LIMIT);
	cr_assert(says("1024"));
	cr_assert_eq(world_request(&w, a, &watch), 0);
	strcpy(watch.u.watch.model, "m0");
	watch.u.watch.stop = true;
	cr_assert_eq(world_request(&w, b, &watch), 0);
	strcpy(watch.u.watch.model, "m");
	watch.u.watch.stop = false;
	cr_assert_eq(world_request(&w, b, &watch), 0);
}

static int
resolve(uint32_t agent, const char *spec, uint32_t shard)
{
	struct ctl_request request = {.kind = CTL_RESOLVE, .u.resolve.shard = shard};
	strcpy(request.u.resolve.model, "m");
	strcpy(request.u.resolve.spec, spec);
	return world_request(&w, agent, &request);
}

Test(refsrv_session, resolve__names__in_the_highest_lineage_that_has_a_version)
{
	new_agents(1);
	struct world_member m5 = world_member(&w, a, "r5", 0, 1);
	struct world_member m3 = world_member(&w, a, "r3", 0, 1);
	cr_assert_eq(resolve(a, "latest", 0), TH_E_NOT_AVAILABLE);
	world_publish(&w, &m5, "5");
	world_publish(&w, &m3, "3"); /* lower than latest: accepted, latest stays */
	cr_assert_eq(resolve(a, "latest", 0), 0);
	cr_assert_eq(w.reply.u.resolve.version.version, 5);
	cr_assert_eq(w.reply.u.resolve.num_shards, 1);
	cr_assert_eq(w.reply.u.resolve.layout.lo, 1);
	cr_assert_eq(resolve(a, "latest-2", 0), 0);
	cr_assert_eq(w.reply.u.resolve.version.version, 3);
	cr_assert_eq(resolve(a, "latest-1", 0), TH_E_NOT_AVAILABLE);
	cr_assert_eq(resolve(a, "latest-9", 0), TH_E_NOT_AVAILABLE);
	cr_assert_eq(resolve(a, "3", 0), 0);
	cr_assert_eq(resolve(a, "3", 1), TH_E_INVALID);
	cr_assert_eq(resolve(a, "newest", 0), TH_E_INVALID);
	struct world_member m1 = {.agent = a};
	cr_assert_eq(world_open(&w, a, "m", "lineage2", 0, 1, 2, &m1.sid), 0);
	cr_assert_eq(world_register(&w, a, m1.sid, 0), 0);
	world_publish(&w, &m1, "1");
	cr_assert_eq(resolve(a, "latest", 0), 0);
	cr_assert_eq(w.reply.u.resolve.version.lineage, 2);
	cr_assert_eq(w.reply.u.resolve.version.version, 1);
	cr_assert_eq(resolve(a, "5", 0), TH_E_NOT_AVAILABLE); /* of the old lineage */
}

Test(refsrv_session, inspect__shows_nodes_members_transfers)
{
	new_agents(2);
	struct world_member m0 = world_member(&w, a, "src", 0, 1);
	struct world_member m1 = world_member(&w, b, "dst", 0, 1);
	world_publish(&w, &m0, "1");
	struct ctl_grant grant = world_begin(&w, &m1, CTL_OP_REPLICATE, "1");
	struct ctl_request request = {.kind = CTL_INSPECT};
	cr_assert_eq(world_request(&w, a, &request), 0);
	const struct ctl_inspection *all = &w.reply.u.inspect;
	cr_assert_eq(all->num_nodes, 2);
	cr_assert_eq(all->nodes[0].legs_out, 1);
	cr_assert_eq(all->nodes[1].legs_in, 1);
	cr_assert_eq(all->num_members, 2);
	cr_assert_str_eq(all->members[0].copy, "ready");
	cr_assert_str_eq(all->members[1].copy, "partial");
	cr_assert_str_eq(all->members[1].state, "live");
	cr_assert_eq(all->num_transfers, 1);
	cr_assert_str_eq(all->transfers[0].source_replica, "src");
	cr_assert_str_eq(all->transfers[0].reader_node, "node1");
	cr_assert_str_eq(all->transfers[0].path.name, "", "nobody has said");
	const struct ctl_path path = {"tcp", "no device", 12345};
	struct ctl_leg_progress progress = {grant.leg, 1, &path, 0};
	struct ctl_request beat = {.kind = CTL_BEAT, .u.beat = {1, &progress}};
	cr_assert_eq(world_request(&w, b, &beat), 0);
	progress.path = NULL; /* an older agent says nothing of it, and takes nothing back */
	cr_assert_eq(world_request(&w, b, &beat), 0);
	request = (struct ctl_request){.kind = CTL_INSPECT};
	cr_assert_eq(world_request(&w, a, &request), 0);
	cr_assert_str_eq(all->transfers[0].path.name, "tcp");
	cr_assert_str_eq(all->transfers[0].path.why, "no device");
	cr_assert_eq(all->transfers[0].path.rate, 12345);
}

/* ---- tickets ---- */

Test(refsrv_session, ticket__known_key_and_message__reference_value)
{
	/*
	 * SipHash-2-4-128, key 00 01 .. 0f, message 00 01 .. 17 (24 bytes); computed by another
	 * program that gives the published value for the empty message.
	 */
	const uint64_t seed[4] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908),
		UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
	const uint8_t expected[16] = {0x2d, 0xb4, 0x79, 0xae, 0x78, 0xbd, 0x50, 0xd8, 0x88, 0x2a,
		0x8a, 0x17, 0x8a, 0x61, 0x32, 0xad};
	struct th_ticket ticket = ticket_make(seed, UINT64_C(0x1716151413121110));
	cr_assert_eq(memcmp(ticket.bytes, expected, sizeof(expected)), 0);
}
