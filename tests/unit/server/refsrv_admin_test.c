/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, operators: a node is drained and undrained, a replica is evicted, events are read.
 */
#include <stdio.h>

#include "server/core/refsrv_state.h"
#include "server/core/view/event_log.h"
#include "tests/unit/server/refsrv_fixture.h"

static struct ctl_admin_reply *admin = &w.reply.u.admin;

TestSuite(refsrv_admin, .init = setup_three, .fini = teardown);

static int
ask(struct ctl_admin what)
{
	struct ctl_request request = {.kind = CTL_ADMIN, .u.admin = what};

	return world_request(&w, c, &request);
}

static int
of_node(enum ctl_admin_verb verb, uint32_t agent, bool look)
{
	struct ctl_admin what = {.verb = verb, .look = look};

	memcpy(what.node, w.agents[agent].node, sizeof(w.agents[agent].node));
	memcpy(what.from, "a test", 7);
	return ask(what);
}

static void
drain(uint32_t agent)
{
	cr_assert_eq(of_node(CTL_ADMIN_DRAIN, agent, false), 0, "%s", w.reply.text);
}

static const char *
state_of(uint32_t agent)
{
	cr_assert_eq(of_node(CTL_ADMIN_DRAIN, agent, true), 0, "%s", w.reply.text);
	return admin->state;
}

static int
leave(uint32_t agent)
{
	struct ctl_request request = {
		.kind = CTL_ADMIN, .u.admin = {.verb = CTL_ADMIN_DRAIN, .leaving = true}};

	memcpy(request.u.admin.node, w.agents[agent].node, sizeof(w.agents[agent].node));
	return world_request(&w, agent, &request);
}

/* ---- drain ---- */

Test(refsrv_admin, idle_node__is_empty_at_once_and_told_so)
{
	struct ctl_event event;

	cr_assert_str_eq(state_of(a), "active", "a look changes nothing");
	cr_assert_not(world_logged(&w, "drained"));
	drain(a);
	cr_assert_str_eq(admin->state, "empty");
	cr_assert_eq(admin->num_blockers, 0);
	cr_assert_str_eq(state_of(a), "empty");
	cr_assert(world_logged(&w, "node node0 is being drained: a test"));
	cr_assert(world_logged(&w, "node node0 is empty"));
	cr_assert(world_take(&w, a, CTL_EV_NODE, 0, &event));
	cr_assert(event.u.node.draining);
	drain(a);
	cr_assert_not(world_has(&w, a, CTL_EV_NODE, 0), "twice is once");
}

Test(refsrv_admin, unknown_node__is_refused)
{
	struct ctl_admin what = {.verb = CTL_ADMIN_DRAIN};

	memcpy(what.node, "nowhere", 8);
	cr_assert_eq(ask(what), TH_E_NOT_AVAILABLE);
	what.look = true;
	cr_assert_eq(ask(what), TH_E_NOT_AVAILABLE);
	what.verb = CTL_ADMIN_UNDRAIN;
	cr_assert_eq(ask(what), TH_E_NOT_AVAILABLE);
	what.node[0] = '\0';
	cr_assert_eq(ask(what), TH_E_INVALID);
	what.verb = 77;
	cr_assert_eq(ask(what), TH_E_INVALID);
}

Test(refsrv_admin, transfers__are_named_and_end_by_themselves)
{
	struct world_member p = world_published(&w, a, "p", "1"),
			    r = world_member(&w, b, "r", 0, 1);
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");

	drain(a);
	cr_assert_str_eq(admin->state, "draining");
	cr_assert_eq(admin->num_blockers, 1);
	cr_assert_eq(admin->num_told, 1);
	cr_assert_eq(admin->legs_out, 1);
	cr_assert_eq(admin->members, 1);
	cr_assert_str_eq(admin->blockers[0].kind, "transfer");
	cr_assert_not(admin->blockers[0].stays);
	cr_assert(strstr(admin->blockers[0].text, "replica r on node node1 reads shard 0"));
	drain(b);
	cr_assert_str_eq(admin->state, "draining");
	cr_assert(
		strstr(admin->blockers[0].text, "is being filled with version 1 from node node0"));
	cr_assert_not(world_logged(&w, "node node0 is empty"));
	world_finish(&w, &r, grant.leg);
	world_sleep(&w, 2 * SEC);
	cr_assert(world_logged(&w, "node node0 is empty"));
	cr_assert(world_logged(&w, "node node1 is empty"));
	cr_assert_str_eq(state_of(a), "empty");
	cr_assert(strstr(admin->text, "open handles of workers here: 1;"));
	(void)p;
}

Test(refsrv_admin, many_transfers__all_counted_some_told)
{
	enum { READERS = 70 };
	static struct world_member r[READERS];
	struct world_member p = world_published(&w, a, "p", "1");

	for (uint32_t i = 0; i < READERS; i++) {
		char name[8];
		snprintf(name, sizeof(name), "r%u", i);
		r[i] = world_member(&w, b, name, 0, 1);
		world_begin(&w, &r[i], CTL_OP_REPLICATE, "1");
	}
	drain(b);
	cr_assert_eq(admin->num_blockers, READERS);
	cr_assert_eq(admin->num_told, CTL_BLOCKERS_MAX);
	(void)p;
}

Test(refsrv_admin, open_there__is_refused_with_the_way_out)
{
	uint64_t sid;

	drain(a);
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 1, 1, &sid), TH_E_STATE);
	cr_assert(strstr(w.reply.text, "thctl undrain"));
	cr_assert_eq(world_open(&w, b, "m", "r", 0, 1, 1, &sid), 0);
}

Test(refsrv_admin, what_is_open_there__goes_on)
{
	struct world_member p = world_member(&w, a, "p", 0, 1), r = world_member(&w, a, "r", 0, 1);

	drain(a);
	world_publish(&w, &p, "1");
	world_replicate(&w, &r, "1");
}

Test(refsrv_admin, source_there__only_where_there_is_no_other)
{
	struct world_member p = world_published(&w, a, "p", "1"),
			    r = world_member(&w, c, "r", 0, 1);
	struct world_member s = world_member(&w, b, "s", 0, 1);

	drain(a);
	struct ctl_grant grant = world_begin(&w, &s, CTL_OP_REPLICATE, "1");
	cr_assert_str_eq(grant.source_node, "node0", "there is no other");
	finished(&s, grant.leg);
	/* Older and idle, but drained. */
	grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");
	cr_assert_str_eq(grant.source_node, "node1");
	(void)p;
}

Test(refsrv_admin, leaving__nothing_new_is_read_there)
{
	struct world_member p = world_published(&w, a, "p", "1"),
			    r = world_member(&w, b, "r", 0, 1);
	struct ctl_event event;

	cr_assert_eq(leave(a), 0);
	cr_assert_str_eq(admin->state, "empty");
	world_call(&w, &r, CTL_OP_REPLICATE, "1", TH_FOREVER);
	if (world_take(&w, b, CTL_EV_PLAN, r.sid, &event))
		cr_assert_eq(world_prepared(&w, &r, 0), 0);
	cr_assert_not(world_has(&w, b, CTL_EV_GO, r.sid));
	/* Another host publishes it as well. */
	struct world_member q = world_published(&w, c, "q", "1");
	if (world_take(&w, b, CTL_EV_PLAN, r.sid, &event))
		cr_assert_eq(world_prepared(&w, &r, 0), 0);
	cr_assert_str_eq(world_go(&w, &r).source_node, "node2");
	(void)p;
	(void)q;
}

Test(refsrv_admin, leaving__a_running_transfer_goes_on_there)
{
	struct world_member p = world_published(&w, a, "p", "1"),
			    r = world_member(&w, b, "r", 0, 1);
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");

	cr_assert_eq(leave(a), 0);
	cr_assert_str_eq(admin->state, "draining");
	world_finish(&w, &r, grant.leg);
	cr_assert_eq(leave(a), 0);
	cr_assert_str_eq(admin->state, "empty");
	(void)p;
}

/* ---- last copies ---- */

static void
restart_world(uint64_t offload_bytes)
{
	world_fini(&w);
	world_init(&w, NULL);
	w.offload_bytes = offload_bytes;
	new_agents(3);
	w.retain = "latest";
}

/* Another agent is asked for a copy, has it and keeps it. */
static void
moves_to(uint32_t agent)
{
	struct ctl_ev_reserve reserve;
	struct world_member o;

	cr_assert(world_reserve(&w, agent, &reserve), "node%u is asked", agent);
	cr_assert_eq(world_accept(&w, agent, &reserve, &o), 0, "%s", w.reply.text);
	struct ctl_grant grant = world_filling(&w, &o);
	cr_assert_str_eq(state_of(a), "draining");
	world_finish(&w, &o, grant.leg);
}

Test(refsrv_admin, last_retained_copy__moves_to_another_node)
{
	restart_world(UINT64_MAX);
	struct world_member p = world_published(&w, a, "p", "1");
	drain(a);
	cr_assert_str_eq(admin->state, "draining");
	cr_assert_eq(admin->num_blockers, 1);
	cr_assert(strstr(admin->blockers[0].text, "version 1 of m is retained and only here"));
	cr_assert_not(admin->blockers[0].stays);
	world_sleep(&w, 2 * SEC);
	cr_assert_str_eq(state_of(a), "draining");
	cr_assert_str_eq(admin->blockers[0].kind, "moving");
	cr_assert_not(world_has(&w, a, CTL_EV_RESERVE, 0), "not on the node itself");
	moves_to(b);
	world_sleep(&w, SEC);
	cr_assert_str_eq(state_of(a), "empty");
	(void)p;
}

Test(refsrv_admin, last_retained_copy__of_an_agent_that_ends__moves_too)
{
	restart_world(UINT64_MAX);
	struct world_member p = world_published(&w, a, "p", "1");
	cr_assert_eq(leave(a), 0);
	cr_assert_str_eq(admin->state, "draining");
	world_sleep(&w, 2 * SEC);
	moves_to(b);
	cr_assert_eq(leave(a), 0);
	cr_assert_str_eq(admin->state, "empty");
	(void)p;
}

/* Two publish one version and both nodes are to go: who is second may have all that stays of it. */
static void
published_by_two(uint64_t second)
{
	restart_world(0);
	w.hash_late = true;
	struct world_member p = world_published(&w, a, "p", "1"),
			    q = world_member(&w, b, "q", 0, 1);
	cr_assert_eq(world_content(&w, &p, 1), 0);
	drain(a);
	drain(b);
	cr_assert_str_eq(admin->state, "empty");
	world_publish(&w, &q, "1");
	cr_assert_str_eq(state_of(b), "draining", "whether it has the same bytes is not known");
	cr_assert_eq(admin->num_blockers, 1);
	cr_assert_str_eq(admin->blockers[0].kind, "last-copy");
	cr_assert_not(admin->blockers[0].stays, "its agent hashes it: this ends by itself");
	cr_assert(strstr(admin->blockers[0].text, "whether"), "%s", admin->blockers[0].text);
	cr_assert_eq(world_content(&w, &q, second), 0);
}

Test(refsrv_admin, last_retained_copy__second_publisher_not_known_yet__has_the_same_bytes)
{
	published_by_two(1);
	cr_assert_str_eq(state_of(b), "draining");
	cr_assert_str_eq(admin->blockers[0].kind, "last-copy");
	cr_assert(strstr(admin->blockers[0].text, "retained and only"));
}

Test(refsrv_admin, last_retained_copy__second_publisher_not_known_yet__has_other_bytes)
{
	published_by_two(2);
	cr_assert_str_eq(state_of(b), "empty");
}

Test(refsrv_admin, last_retained_copy__no_memory_anywhere__does_not_end_by_itself)
{
	restart_world(0);
	struct world_member p = world_published(&w, a, "p", "1");
	drain(a);
	world_sleep(&w, 2 * SEC);
	cr_assert_str_eq(state_of(a), "draining");
	cr_assert_str_eq(admin->blockers[0].kind, "last-copy");
	cr_assert(admin->blockers[0].stays);
	cr_assert(strstr(admin->blockers[0].text, "does not end by itself"));
	/* A replica elsewhere will do. */
	struct world_member r = world_member(&w, b, "r", 0, 1);
	world_replicate(&w, &r, "1");
	cr_assert_str_eq(state_of(a), "empty");
	/* But not when both nodes are to be emptied. */
	drain(b);
	cr_assert_str_eq(admin->state, "draining");
	cr_assert_str_eq(state_of(a), "draining");
	(void)p;
}

Test(refsrv_admin, last_retained_copy__nobody_keeps_anything__said_at_once_and_once)
{
	restart_world(0);
	struct world_member p = world_published(&w, a, "p", "1");
	drain(a);
	cr_assert(admin->blockers[0].stays, "%s", admin->blockers[0].text);
	cr_assert(strstr(admin->blockers[0].text, "thctl evict --force"));
	/* A night of it does not push the rest out of the log. */
	world_sleep(&w, 600 * SEC);
	cr_assert_eq(world_logged(&w, "no agent can keep it"), 1);
	cr_assert_eq(world_logged(&w, "is being copied"), 1);
	cr_assert_eq(world_logged(&w, "at risk"), 1);
	(void)p;
}

Test(refsrv_admin, last_retained_copy__before_it_is_copied__is_to_be)
{
	restart_world(UINT64_MAX);
	struct world_member p = world_published(&w, a, "p", "1");
	drain(a);
	cr_assert_not(admin->blockers[0].stays);
	cr_assert(strstr(admin->blockers[0].text, "it is to be copied"));
	(void)p;
}

Test(refsrv_admin, version_that_nobody_retains__is_not_waited_for)
{
	restart_world(UINT64_MAX);
	w.retain = NULL;
	struct world_member p = world_published(&w, a, "p", "1");
	drain(a);
	cr_assert_str_eq(admin->state, "empty");
	(void)p;
}

Test(refsrv_admin, evicted_last_copy__is_copied_before_it_goes_unless_forced)
{
	struct ctl_ev_reserve reserve;
	struct ctl_admin what = {.verb = CTL_ADMIN_EVICT};

	restart_world(UINT64_MAX);
	struct world_member p = world_published(&w, a, "p", "1");
	strcpy(what.model, "m");
	strcpy(what.replica, "p");
	cr_assert_eq(ask(what), 0);
	cr_assert_str_eq(admin->state, "moving");
	world_sleep(&w, 10 * MS);
	cr_assert(world_reserve(&w, a, &reserve), "it is copied to host memory");
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, p.sid), "and stays until then");
	struct world_member q = world_published(&w, b, "q", "1");
	what.force = true;
	strcpy(what.replica, "q");
	cr_assert_eq(ask(what), 0);
	world_sleep(&w, 10 * MS);
	cr_assert(world_has(&w, b, CTL_EV_DRAIN, q.sid), "given up at once");
}

Test(refsrv_admin, agent_ends_with_a_last_copy__the_drain_says_what_was_lost)
{
	struct ctl_request request = {.kind = CTL_CLOSE};

	restart_world(0);
	struct world_member p = world_published(&w, a, "p", "1");
	drain(a);
	cr_assert_str_eq(admin->state, "draining");
	cr_assert_eq(admin->num_lost, 0);
	/* It was told to end, has waited as long as it may, and closes what its worker has not. */
	cr_assert_eq(leave(a), 0);
	request.u.close.sid = p.sid;
	request.u.close.abandon = true;
	request.u.close.timeout_ns = TH_FOREVER;
	cr_assert_eq(world_request(&w, a, &request), 0);
	w.agents[a].silent = true;
	world_sleep(&w, 12 * SEC);
	cr_assert_str_eq(state_of(a), "empty");
	cr_assert_eq(admin->num_lost, 1);
	cr_assert(strstr(admin->lost_text, "version 1 of m is lost, although it is retained"), "%s",
		admin->lost_text);
	/* Who takes the drain back has read it. */
	cr_assert_eq(of_node(CTL_ADMIN_UNDRAIN, a, false), 0);
	drain(a);
	cr_assert_eq(admin->num_lost, 0);
}

/* ---- how long it holds ---- */

Test(refsrv_admin, agent_restarts__an_operators_drain_holds)
{
	struct ctl_event event;

	drain(a);
	world_sleep(&w, 100 * MS);
	w.agents[a].silent = true;
	world_sleep(&w, 4 * SEC);
	cr_assert_eq(world_restart(&w, a), 0);
	world_sleep(&w, 100 * MS);
	cr_assert_str_eq(state_of(a), "empty");
	cr_assert(world_take(&w, a, CTL_EV_NODE, 0, &event), "it is told again");
	uint64_t sid;
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 1, 1, &sid), TH_E_STATE);
}

Test(refsrv_admin, agent_restarts__its_own_leaving_is_over)
{
	uint64_t sid;

	cr_assert_eq(leave(a), 0);
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 1, 1, &sid), TH_E_STATE);
	cr_assert(strstr(w.reply.text, "thctl") == NULL, "no operator did it");
	cr_assert_eq(of_node(CTL_ADMIN_UNDRAIN, a, false), TH_E_STATE);
	w.agents[a].silent = true;
	world_sleep(&w, 4 * SEC);
	cr_assert_eq(world_restart(&w, a), 0);
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 1, 1, &sid), 0);
	cr_assert_str_eq(state_of(a), "active");
}

Test(refsrv_admin, undrain__new_work_comes_again)
{
	struct ctl_event event;
	uint64_t sid;

	drain(a);
	cr_assert(world_take(&w, a, CTL_EV_NODE, 0, &event));
	cr_assert_eq(of_node(CTL_ADMIN_UNDRAIN, a, false), 0);
	cr_assert_str_eq(admin->state, "active");
	world_sleep(&w, 10 * MS);
	cr_assert(world_take(&w, a, CTL_EV_NODE, 0, &event));
	cr_assert_not(event.u.node.draining);
	cr_assert_eq(world_open(&w, a, "m", "r", 0, 1, 1, &sid), 0);
	cr_assert(world_logged(&w, "not drained any more"));
	cr_assert_eq(of_node(CTL_ADMIN_UNDRAIN, a, false), 0, "twice is once");
	cr_assert(strstr(admin->text, "was not being drained"));
}

Test(refsrv_admin, dead_agent__can_be_drained_and_undrained)
{
	w.agents[a].silent = true;
	world_sleep(&w, 12 * SEC);
	drain(a);
	cr_assert_str_eq(admin->state, "empty");
	cr_assert(strstr(admin->text, "no agent of node node0 is attached"));
	cr_assert_eq(of_node(CTL_ADMIN_UNDRAIN, a, false), 0);
	cr_assert_str_eq(state_of(a), "active");
}

static void
attach_draining(uint64_t server_inc)
{
	struct ctl_request request = {.kind = CTL_ATTACH};

	memcpy(request.u.attach.node, w.agents[a].node, sizeof(w.agents[a].node));
	strcpy(request.u.attach.datacenter, "dc");
	strcpy(request.u.attach.data_address, "h:1");
	request.u.attach.draining = true;
	request.u.attach.server_inc = server_inc;
	cr_assert_eq(world_request(&w, a, &request), 0, "%s", w.reply.text);
	w.agents[a].attach_no = w.reply.u.attach.attach_no;
}

Test(refsrv_admin, drain_of_an_earlier_server__holds)
{
	attach_draining(w.config.server_inc + 1);
	cr_assert(world_logged(&w, "told so by an earlier server"));
	/* What it holds, and what others retain, is not known before all have said so. */
	cr_assert_str_eq(state_of(a), "draining");
	cr_assert_eq(admin->num_blockers, 1);
	cr_assert_str_eq(admin->blockers[0].kind, "collecting");
	cr_assert_not(admin->blockers[0].stays);
	cr_assert_not(world_logged(&w, "is empty"));
	struct ctl_request request = {.kind = CTL_REJOINED};
	cr_assert_eq(world_request(&w, a, &request), 0, "%s", w.reply.text);
	cr_assert_str_eq(state_of(a), "draining", "others may come");
	world_sleep(&w, 4 * SEC);
	cr_assert_str_eq(state_of(a), "empty");
	cr_assert(world_logged(&w, "is empty"));
	cr_assert(strstr(admin->text, "an earlier server"), "%s", admin->text);
}

Test(refsrv_admin, while_it_collects__a_node_that_has_said_all__is_not_empty)
{
	drain(b);
	w.agents[b].silent = true;
	world_sleep(&w, 12 * SEC);
	cr_assert_str_eq(state_of(b), "empty");
	/* One that comes later changes nothing: what others bring is not this node's. */
	attach_draining(w.config.server_inc + 1);
	cr_assert_str_eq(state_of(b), "empty");

	refsrv_free(w.server);
	w.config.server_inc++;
	w.server = refsrv_new(&w.config, w.now_ns);
	attach_draining(w.config.server_inc - 1);
	cr_assert_eq(world_attach(&w, c, "dc1"), 0);
	cr_assert_eq(world_attach(&w, b, "dc1"), 0);
	struct ctl_request request = {.kind = CTL_REJOINED};
	cr_assert_eq(world_request(&w, b, &request), 0, "%s", w.reply.text);
	drain(b);
	cr_assert_str_eq(state_of(b), "draining");
	cr_assert_str_eq(admin->blockers[0].kind, "collecting");
}

Test(refsrv_admin, who_asked_first__is_said_to_all)
{
	struct ctl_event event;

	drain(a);
	cr_assert_str_eq(admin->text, "asked for by a test");
	struct ctl_admin what = {.verb = CTL_ADMIN_DRAIN, .node = "node0", .from = "another"};
	cr_assert_eq(ask(what), 0);
	cr_assert_str_eq(admin->text, "asked for by a test");
	/* Also to the next agent of the node. */
	w.agents[a].silent = true;
	world_sleep(&w, 12 * SEC);
	cr_assert_eq(world_restart(&w, a), 0);
	cr_assert(world_take(&w, a, CTL_EV_NODE, 0, &event));
	cr_assert_str_eq(event.u.node.text, "a test");
}

Test(refsrv_admin, agent_that_was_told_to_end__its_end_is_no_alarm)
{
	world_sleep(&w, 2 * SEC);
	cr_assert_eq(leave(a), 0);
	w.agents[a].silent = true;
	world_gone(&w, a);
	world_sleep(&w, 5 * SEC);
	cr_assert(world_logged(&w, "agent node0 has ended, as it was told to"));
	cr_assert_not(world_logged(&w, "is dead"));
}

Test(refsrv_admin, drain_that_this_server_has_taken_back__does_not_return)
{
	attach_draining(w.config.server_inc);
	cr_assert_eq(of_node(CTL_ADMIN_DRAIN, a, true), 0);
	cr_assert_str_eq(admin->state, "active");
}

/* ---- evict ---- */

static int
evict(const char *replica, bool look, uint64_t group)
{
	struct ctl_admin what = {.verb = CTL_ADMIN_EVICT, .look = look, .group = group};

	strcpy(what.model, "m");
	strcpy(what.replica, replica);
	strcpy(what.from, "a test");
	return ask(what);
}

Test(refsrv_admin, evict__group_is_broken_with_its_own_code)
{
	struct world_member m[2] = {world_member(&w, a, "r", 0, 2), world_member(&w, b, "r", 1, 2)};

	cr_assert_eq(evict("r", true, 0), 0);
	cr_assert_str_eq(admin->state, "there");
	cr_assert_eq(admin->members, 2);
	cr_assert_neq(admin->group, 0);
	cr_assert(strstr(admin->text, "2 of 2 shards open and holds no version"));
	uint64_t group = admin->group;
	cr_assert_eq(evict("r", false, 0), 0);
	cr_assert_str_eq(admin->state, "evicted");
	cr_assert_eq(admin->group, group);
	for (int i = 0; i < 2; i++) {
		struct ctl_event event = taken(&m[i], CTL_EV_BROKEN);
		cr_assert(event.u.broken.evicted);
		cr_assert(strstr(event.u.broken.text, "evicted by an operator: a test"));
		world_call(&w, &m[i], CTL_OP_UPDATE, "latest", TH_FOREVER);
		cr_assert_eq(world_outcome(&w, &m[i]).code, TH_E_EVICTED);
	}
	cr_assert(world_logged(&w, "replica r of m was evicted"));
}

Test(refsrv_admin, evict__its_members_open_again_and_are_left_alone)
{
	struct world_member m = world_member(&w, a, "r", 0, 1);

	cr_assert_eq(evict("r", false, 0), 0);
	uint64_t group = admin->group;
	cr_assert_eq(world_close(&w, &m, false), 0);
	world_sleep(&w, 10 * MS);
	struct world_member again = world_member(&w, a, "r", 0, 1);
	cr_assert_eq(evict("r", true, group), 0);
	cr_assert_str_eq(admin->state, "gone", "the question names the one that was");
	world_publish(&w, &again, "1");
}

Test(refsrv_admin, evict__running_readers_end)
{
	struct world_member p = world_published(&w, a, "p", "1"),
			    r = world_member(&w, b, "r", 0, 1);
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "1");

	cr_assert_eq(evict("p", false, 0), 0);
	uint64_t group = admin->group;
	cr_assert_eq(admin->legs_out, 1);
	world_finish(&w, &r, grant.leg);
	world_drained(&w, &p);
	cr_assert_eq(evict("p", true, group), 0);
	cr_assert_eq(admin->legs_out, 0);
}

Test(refsrv_admin, evict__operation_under_way_ends_with_the_code)
{
	struct world_member r = world_member(&w, a, "r", 0, 1);

	world_call(&w, &r, CTL_OP_REPLICATE, "1", TH_FOREVER);
	cr_assert_not(world_ended(&w, &r));
	cr_assert_eq(evict("r", false, 0), 0);
	cr_assert_eq(world_outcome(&w, &r).code, TH_E_EVICTED);
}

Test(refsrv_admin, evict__what_is_not_there__is_refused)
{
	world_member(&w, a, "r", 0, 1);
	cr_assert_eq(evict("other", false, 0), TH_E_NOT_AVAILABLE);
	cr_assert(strstr(w.reply.text, "thctl ls replicas"));
}

/* ---- events and operators ---- */

Test(refsrv_admin, events__come_in_parts_in_order)
{
	for (uint32_t i = 0; i < CTL_LOG_ENTRIES_MAX + 5; i++)
		event_log(w.server, EVENT_WARN, "m", "n", "event %u", i);
	cr_assert_eq(ask((struct ctl_admin){.verb = CTL_ADMIN_EVENTS}), 0);
	cr_assert_eq(admin->num_events, CTL_LOG_ENTRIES_MAX);
	cr_assert_eq(admin->events[0].number, 1);
	uint64_t after = admin->events[CTL_LOG_ENTRIES_MAX - 1].number;
	cr_assert_eq(after, CTL_LOG_ENTRIES_MAX);
	cr_assert_eq(ask((struct ctl_admin){.verb = CTL_ADMIN_EVENTS, .after = after}), 0);
	cr_assert_eq(admin->events[0].number, after + 1);
	cr_assert_str_eq(admin->events[0].severity, "warning");
	cr_assert_str_eq(admin->events[0].model, "m");
	cr_assert_eq(
		admin->last_event, admin->events[admin->num_events - 1].number, "these are all");
	cr_assert_eq(ask((struct ctl_admin){.verb = CTL_ADMIN_EVENTS, .after = UINT64_MAX}), 0);
	cr_assert_eq(admin->num_events, 0);
}

Test(refsrv_admin, operator__needs_no_agent)
{
	struct ctl_request request = {
		.kind = CTL_ADMIN, .request_no = 5, .u.admin = {.verb = CTL_ADMIN_EVENTS}};
	struct refsrv_out out;

	refsrv_step(w.server, w.now_ns, 4711, &request, &out);
	cr_assert_eq(out.replies[0].token, 4711);
	cr_assert_eq(out.replies[0].reply.code, 0);
	cr_assert_gt(out.replies[0].reply.u.admin.num_events, 0);
	request.agent_inc = 99;
	refsrv_step(w.server, w.now_ns, 4712, &request, &out);
	cr_assert(out.replies[0].reply.unknown_agent);
}
