/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What strangers say to the server, over the wire and through the converter: nobody else is
 * disturbed. Each refusal has a code, a sentence and a counter.
 */
#include <stdlib.h>

#include "ipc/proto/convert.h"
#include "server/core/cluster/epoch.h"
#include "server/core/model/model.h"
#include "server/core/rejoin/rejoin.h"
#include "tests/support/core/refsrv_former.h"
#include "tests/unit/server/refsrv_fixture.h"

#define OTHER_LIFE 1234u /* of a server that is not this one */

TestSuite(refsrv_trust, .init = setup_empty, .fini = teardown);

/* The code of its reply, or of the converter's refusal. */
static int
send(const struct ctl_request *request)
{
	struct convert_arena arena = {0};
	struct ctl_request got;
	struct th_err err = {0};
	uint8_t *data;
	size_t bytes;

	cr_assert_eq(ctl_request_pack(request, &data, &bytes), 0);
	int rc = ctl_request_unpack(data, bytes, &arena, &err, &got);
	cr_assert_eq(rc != 0, err.text[0] != '\0');
	if (rc == 0)
		rc = world_repeat(&w, 0, &got);
	free(data);
	convert_arena_free(&arena);
	return rc;
}

static struct ctl_request
attach_of(uint64_t inc, const char *node)
{
	struct ctl_request request = {.kind = CTL_ATTACH, .agent_inc = inc, .request_no = 1};

	strcpy(request.u.attach.node, node);
	strcpy(request.u.attach.datacenter, "dc1");
	strcpy(request.u.attach.data_address, "evil:1");
	return request;
}

static uint64_t
counter(const char *name)
{
	const struct ctl_inspection *now = refsrv_inspect(w.server, w.now_ns);

	for (uint32_t i = 0; i < now->num_counters; i++) {
		if (strcmp(now->counters[i].name, name) == 0)
			return now->counters[i].value;
	}
	cr_assert(false, "there is no counter %s", name);
	return 0;
}

static bool
works(uint32_t agent)
{
	struct ctl_request beat = {.kind = CTL_BEAT};

	return world_request(&w, agent, &beat) == 0;
}

/* ---- epochs ---------------------------------------------------------------------------------- */

/* What an agent says when it was attached to another server, of this epoch. */
static int
comes_with(uint64_t inc, const char *node, uint32_t epoch)
{
	struct ctl_request request = attach_of(inc, node);

	request.u.attach.server_inc = OTHER_LIFE;
	request.u.attach.epoch = epoch;
	return send(&request);
}

Test(refsrv_trust, epoch_that_no_life_explains__is_refused_and_nobody_has_it)
{
	new_agents(1);

	world_sleep(&w, 4 * SEC);
	cr_assert_eq(comes_with(666, "evil", TH_EPOCH_MAX - 1), TH_E_INVALID);
	cr_assert(strstr(w.reply.text, "epoch 8388606"), "%s", w.reply.text);
	cr_assert(strstr(w.reply.text, "restart it"), "%s", w.reply.text);
	cr_assert_eq(counter("refused_epochs"), 1);
	cr_assert(works(a));
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert_eq(w.agents[a].epoch, 1);
}

Test(refsrv_trust, again_and_again__the_bound_does_not_move)
{
	world_agent(&w);
	world_sleep(&w, 4 * SEC);
	cr_assert_eq(comes_with(666, "evil", 1 + EPOCH_LEAP), 0, "lives explain it");
	cr_assert_eq(comes_with(667, "evil2", 2 + EPOCH_LEAP), TH_E_INVALID);
	cr_assert_eq(comes_with(668, "evil3", 1 + EPOCH_LEAP), 0);
	cr_assert_eq(comes_with(669, "evil4", 2 + EPOCH_LEAP), TH_E_INVALID);
	cr_assert_eq(counter("refused_epochs"), 2);
	cr_assert_eq(refsrv_inspect(w.server, w.now_ns)->epoch, 2 + EPOCH_LEAP);
}

Test(refsrv_trust, empty_server__believes_those_who_come_first)
{
	new_agents(1); /* it has had no server before */

	cr_assert_eq(w.agents[a].epoch, 1);
	cr_assert_eq(comes_with(5, "n5", 1000000), 0);
	cr_assert_eq(w.reply.u.attach.epoch, 1000001);
	world_sleep(&w, 4 * SEC);
	cr_assert_eq(comes_with(6, "n6", 1000000), 0);
	cr_assert_eq(comes_with(7, "n7", 1000002 + EPOCH_LEAP), TH_E_INVALID);
}

/* The worst that can happen: all agents, and so the next server, have the highest there is. */
Test(refsrv_trust, highest_epoch__shuts_nobody_out)
{
	uint64_t sids[4];

	cr_assert_eq(comes_with(5, "n5", TH_EPOCH_MAX), 0);
	cr_assert_eq(w.reply.u.attach.epoch, TH_EPOCH_MAX);
	new_agents(1);
	cr_assert_eq(w.agents[a].epoch, TH_EPOCH_MAX);
	for (uint64_t i = 0; i < 4; i++) {
		char replica[] = {(char)('r' + i), '\0'};
		cr_assert_eq(world_open(&w, a, "m", replica, 0, 1, 1, &sids[i]), 0);
		cr_assert_eq(comes_with(10 + i, replica, TH_EPOCH_MAX), 0);
		for (uint64_t k = 0; k < i; k++)
			cr_assert_neq(sids[k], sids[i], "numbers are given once");
	}
	world_sleep(&w, 4 * SEC);
	cr_assert_eq(comes_with(6, "n6", TH_EPOCH_MAX), 0);
	cr_assert_eq(comes_with(7, "n7", 3), 0);
}

/* ---- clusters -------------------------------------------------------------------------------- */

static void
of_cluster(const char *name)
{
	struct refsrv_config config;

	world_fini(&w);
	refsrv_config_default(&config);
	strcpy(config.cluster, name);
	world_init(&w, &config);
}

static int
hello_of(const char *cluster, uint64_t server_inc)
{
	struct ctl_request request = {.kind = CTL_HELLO, .request_no = 1};

	request.u.hello.protocol_min = TH_PROTOCOL_MIN;
	request.u.hello.protocol_max = TH_PROTOCOL_MAX;
	request.u.hello.server_inc = server_inc;
	strcpy(request.u.hello.cluster, cluster);
	return send(&request);
}

Test(refsrv_trust, another_cluster__is_refused_with_both_names)
{
	of_cluster("red");
	struct ctl_request request = attach_of(5, "n5");

	strcpy(request.u.attach.cluster, "blue");
	cr_assert_eq(send(&request), TH_E_DENIED);
	cr_assert(strstr(w.reply.text, "agent n5 is of cluster blue"), "%s", w.reply.text);
	cr_assert(strstr(w.reply.text, "server of cluster red"), "%s", w.reply.text);
	cr_assert_eq(hello_of("blue", 0), TH_E_DENIED);
	cr_assert_eq(hello_of("blue", 99), TH_E_DENIED, "of a server");
	cr_assert_eq(counter("refused_clusters"), 3);
	cr_assert_eq(refsrv_inspect(w.server, w.now_ns)->num_nodes, 0);

	cr_assert_eq(hello_of("red", 0), 0);
	cr_assert_str_eq(w.reply.u.hello.cluster, "red");
	strcpy(request.u.attach.cluster, "red");
	cr_assert_eq(send(&request), 0);
	cr_assert_eq(hello_of("", 0), 0, "none goes with any");
}

Test(refsrv_trust, no_cluster__takes_all)
{
	cr_assert_eq(hello_of("blue", 0), 0);
	cr_assert_str_eq(w.reply.u.hello.cluster, "");
}

/* ---- an agent's name ------------------------------------------------------------------------- */

/* All that another agent may know of this one, and more, but its secret. */
static struct ctl_request
in_the_name_of(uint32_t agent, enum ctl_request_kind kind)
{
	return (struct ctl_request){
		.kind = kind,
		.agent_inc = w.agents[agent].inc,
		.attach_no = w.agents[agent].attach_no,
		.request_no = w.agents[agent].request_no + 100,
		.answered_below = w.agents[agent].request_no + 100,
	};
}

static int
attach_in_the_name_of(uint32_t agent, uint64_t server_inc, const struct th_secret *secret)
{
	struct ctl_request request = in_the_name_of(agent, CTL_ATTACH);

	strcpy(request.u.attach.node, w.agents[agent].node);
	strcpy(request.u.attach.datacenter, "dc1");
	strcpy(request.u.attach.data_address, "evil:1");
	request.u.attach.server_inc = server_inc;
	if (secret != NULL)
		request.secret = *secret;
	return send(&request);
}

Test(refsrv_trust, attach_in_the_name_of_another__is_refused_and_changes_nothing)
{
	new_agents(2);
	struct world_member m = world_published(&w, a, "r", "1");
	struct th_secret close = world_secret(w.agents[a].inc);
	char address[TH_ADDRESS_MAX + 1];

	(void)m;
	strcpy(address, refsrv_inspect(w.server, w.now_ns)->nodes[0].address);
	close.bytes[15] ^= 1;
	cr_assert_eq(attach_in_the_name_of(a, 77, NULL), TH_E_DENIED);
	cr_assert(strstr(w.reply.text, "node0"), "%s", w.reply.text);
	cr_assert_not(w.reply.unknown_agent);
	cr_assert_eq(attach_in_the_name_of(a, 77, &close), TH_E_DENIED);
	/* As if it had been elsewhere meanwhile, which gives up what it holds. */
	cr_assert_eq(attach_in_the_name_of(a, 5, NULL), TH_E_DENIED);
	cr_assert_eq(attach_in_the_name_of(a, 0, NULL), TH_E_DENIED);
	cr_assert_eq(counter("refused_secrets"), 4);
	cr_assert_str_eq(refsrv_inspect(w.server, w.now_ns)->nodes[0].address, address);
	cr_assert(works(a) && works(b));
	cr_assert_eq(world_list(&w, b, "m"), 0);
	cr_assert_eq(w.reply.u.list.num_versions, 1);
	/* It has the numbers that it had: none was taken from it. */
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert_not(w.reply.u.attach.fresh);
}

Test(refsrv_trust, requests_in_the_name_of_another__have_no_effect)
{
	new_agents(1);
	struct world_member m = world_published(&w, a, "r", "1");
	struct ctl_request request = in_the_name_of(a, CTL_CLOSE);

	request.u.close.sid = m.sid;
	cr_assert_eq(send(&request), TH_E_DENIED);
	request = in_the_name_of(a, CTL_POLL);
	request.u.poll.last_event = w.agents[a].last_event + 1000;
	cr_assert_eq(send(&request), TH_E_DENIED);
	request = in_the_name_of(a, CTL_BEAT);
	cr_assert_eq(send(&request), TH_E_DENIED);
	/* Of numbers so high or low that the server loses track of the agent. */
	request = in_the_name_of(a, CTL_OPEN);
	request.answered_below = 0;
	request.request_no = 1;
	strcpy(request.u.open.model, "m");
	strcpy(request.u.open.replica, "evil");
	request.u.open.num_shards = 1;
	cr_assert_eq(send(&request), TH_E_DENIED);
	cr_assert_eq(counter("refused_secrets"), 4);
	cr_assert(works(a));
	cr_assert_eq(world_list(&w, a, "m"), 0);
	cr_assert_eq(w.reply.u.list.num_versions, 1);
}

/* It is given up, and comes back: nobody else has taken its place meanwhile. */
Test(refsrv_trust, agent_is_held_for_dead__its_name_is_still_its_own)
{
	new_agents(1);

	w.agents[a].silent = true;
	world_sleep(&w, 11 * SEC);
	cr_assert_eq(attach_in_the_name_of(a, 0, NULL), TH_E_DENIED);
	w.agents[a].silent = false;
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert(w.reply.u.attach.fresh);
}

/* Its answer was lost: the agent has no more to prove itself by than when it began. */
Test(refsrv_trust, answer_to_attach_is_lost__the_agent_attaches_again)
{
	new_agents(1);

	w.agents[a].attach_no = 0;
	w.agents[a].attached = false;
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert(works(a));
}

/* Of a release that had no secrets: as it was. */
Test(refsrv_trust, agent_without_a_secret__is_served)
{
	struct ctl_request request = attach_of(5, "n5");

	cr_assert_eq(send(&request), 0);
	request.request_no++;
	request.attach_no = w.reply.u.attach.attach_no;
	request.u.attach.server_inc = 77;
	cr_assert_eq(send(&request), 0);
	cr_assert_not(w.reply.u.attach.fresh);
}

/* ---- warming --------------------------------------------------------------------------------- */

static bool
is_warming(const char *model)
{
	return model_warming(w.server, model_find(w.server, model));
}

static void
say(uint64_t inc, const char *model, const char *replica)
{
	struct ctl_rejoin said = former_holds(replica, 0, 1, 7);
	struct ctl_request request = {.kind = CTL_REJOIN, .agent_inc = inc, .request_no = 2};

	request.attach_no = w.reply.u.attach.attach_no;
	strcpy(said.open.model, model);
	request.u.rejoin = said;
	cr_assert_eq(world_repeat(&w, 0, &request), 0, "%s", w.reply.text);
}

/* A world that has been there for a while: an agent with a copy of model m and one of model n. */
static uint32_t
steady_world(void)
{
	new_agents(1);
	uint64_t sid;

	world_published(&w, a, "r", "1");
	cr_assert_eq(world_open(&w, a, "n", "r", 0, 1, 1, &sid), 0);
	world_sleep(&w, 5 * SEC);
	return a;
}

Test(refsrv_trust, agent_of_another_cluster_moves_over__nobody_waits_for_it)
{
	a = steady_world();
	struct world_member r = world_member(&w, a, "reader", 0, 1);

	for (uint64_t i = 0; i < 5; i++) {
		char node[] = {'e', (char)('0' + i), '\0'};
		cr_assert_eq(comes_with(100 + i, node, 1), 0);
		cr_assert_not(is_warming("m"));
		cr_assert_not(is_warming("n"));
		world_sleep(&w, SEC);
	}
	world_replicate(&w, &r, "latest");
}

Test(refsrv_trust, late_agent_brings_a_model__that_one_is_warming_for_a_while)
{
	steady_world();
	cr_assert_eq(comes_with(100, "e", 1), 0);
	say(100, "m", "p");
	cr_assert(is_warming("m"));
	cr_assert_not(is_warming("n"));
	world_sleep(&w, 3 * SEC - MS);
	cr_assert(is_warming("m"));
	world_sleep(&w, MS);
	cr_assert_not(is_warming("m"));
}

/* It goes back and forth between two servers. */
Test(refsrv_trust, late_agent_comes_again__warms_nothing)
{
	struct ctl_request again = attach_of(100, "e");

	steady_world();
	cr_assert_eq(comes_with(100, "e", 1), 0);
	say(100, "m", "p");
	world_sleep(&w, 3 * SEC);
	again.request_no = 5;
	again.u.attach.server_inc = OTHER_LIFE + 1;
	again.u.attach.epoch = 2;
	cr_assert_eq(send(&again), 0);
	cr_assert(w.reply.u.attach.fresh);
	struct ctl_request request = {.kind = CTL_REJOIN, .agent_inc = 100, .request_no = 6};
	request.attach_no = w.reply.u.attach.attach_no;
	request.u.rejoin = former_holds("q", 0, 1, 7);
	cr_assert_eq(world_repeat(&w, 0, &request), 0);
	cr_assert_not(is_warming("m"));
}

Test(refsrv_trust, strangers_without_end__a_model_is_warming_for_33_seconds_at_most)
{
	uint32_t warm = 0;

	steady_world();
	for (uint64_t i = 0; i < 50; i++) {
		char node[] = {'e', (char)('0' + i), '\0'}, replica[] = {(char)('0' + i), '\0'};
		cr_assert_eq(comes_with(100 + i, node, 1), 0);
		say(100 + i, "m", replica);
		world_sleep(&w, SEC);
		warm += is_warming("m");
		cr_assert_not(is_warming("n"));
	}
	cr_assert(warm >= 30 && warm <= 33, "%u", warm);
}

/* What came when the server was new took nothing from what a model may take later. */
Test(refsrv_trust, model_of_a_new_server__may_be_warming_later)
{
	a = former_agent(&w);

	world_published(&w, a, "r", "1");
	cr_assert_eq(comes_with(100, "e", 1), 0);
	say(100, "m", "p");
	world_sleep(&w, 40 * SEC);
	cr_assert_not(is_warming("m"));
	cr_assert_eq(comes_with(101, "f", 1), 0);
	say(101, "m", "q");
	cr_assert(is_warming("m"));
}

Test(refsrv_trust, strangers_without_end__a_new_server_is_warming_for_33_seconds_at_most)
{
	uint32_t warm = 0;

	for (uint64_t i = 0; i < 50; i++) {
		char node[] = {'e', (char)('0' + i), '\0'};
		cr_assert_eq(comes_with(100 + i, node, 1), 0);
		world_sleep(&w, SEC);
		warm += w.server->warming;
	}
	cr_assert_eq(warm, 32);
}
