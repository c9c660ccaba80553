/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cores_world - messages between the cores, and time. See cores_world.h.
 */
#include "tests/support/cores_world.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "server/core/hash.h"

struct world world;

uint64_t
world_chance(uint64_t bound)
{
	return th_rng_below(&world.rng, bound);
}

static struct item *
later(enum item_kind kind, uint32_t node, int64_t delay_ns)
{
	struct item *item = th_calloc(1, sizeof(*item)), **at = &world.items;

	item->kind = kind;
	item->node = node;
	item->due_ns = world.now_ns + delay_ns;
	item->order = ++world.last_order;
	while (*at != NULL && (*at)->due_ns <= item->due_ns)
		at = &(*at)->next;
	item->next = *at;
	*at = item;
	return item;
}

struct agent_event *
world_tell(uint32_t node, enum agent_event_kind kind, uint64_t session)
{
	struct agent_event *event = &later(TO_AGENT, node, (int64_t)world_chance(2 * MS))->event;

	event->kind = kind;
	event->session = session;
	return event;
}

struct worker *
world_worker(uint64_t session)
{
	uint32_t i = 0;

	while (i < GROUPS * SHARDS &&
		world.groups[i / SHARDS].workers[i % SHARDS].session != session)
		i++;
	TH_ASSERT(i < GROUPS * SHARDS);
	return &world.groups[i / SHARDS].workers[i % SHARDS];
}

/* ---- messages ------------------------------------------------------------------------ */

void
world_cut(uint32_t node, int64_t ns)
{
	world.cut_until_ns[node] = world.now_ns + ns;
}

static void
answer(uint32_t node, uint64_t tag, const struct ctl_reply *reply)
{
	struct item *item = later(TO_AGENT, node, (int64_t)world_chance(3 * MS));

	if (world.now_ns < world.cut_until_ns[node])
		reply = NULL;
	item->event.kind = reply == NULL ? AGENT_EV_NO_REPLY : AGENT_EV_REPLY;
	item->event.u.reply.tag = tag;
	if (reply == NULL)
		return;
	item->reply = *reply;
	item->event.u.reply.reply = &item->reply;
	if (reply->kind == CTL_POLL && reply->code == 0 && reply->u.poll.num_events > 0) {
		item->events = th_memdup(
			reply->u.poll.events, reply->u.poll.num_events * sizeof(struct ctl_event));
		item->reply.u.poll.events = item->events;
	}
}

static void
server_said(const struct refsrv_out *out)
{
	refsrv_check(world.server);
	world.server_next_ns = out->next_ns;
	for (uint32_t i = 0; i < out->num_replies; i++) {
		for (uint32_t k = 0; k < world.num_waiting; k++) {
			if (world.waiting[k].token != out->replies[i].token)
				continue;
			answer(world.waiting[k].node, world.waiting[k].tag, &out->replies[i].reply);
			world.waiting[k] = world.waiting[--world.num_waiting];
			break;
		}
	}
}

static void
to_server(const struct item *item)
{
	struct refsrv_out out;

	uint64_t token = ++world.last_token;
	if (!item->unanswered) {
		cr_assert_lt(world.num_waiting, WAITING_MAX);
		world.waiting[world.num_waiting++] =
			(struct waiting){.token = token, .tag = item->tag, .node = item->node};
	}
	refsrv_step(world.server, world.now_ns, token, &item->request, &out);
	server_said(&out);
}

void
world_send(uint32_t node, const struct agent_action *action)
{
	uint64_t luck = world_chance(100);
	bool lost = luck < world.loss_percent / 2 || world.now_ns < world.cut_until_ns[node];
	bool deaf = !lost && luck < world.loss_percent;
	bool twice = !lost && world_chance(200) < world.loss_percent;

	if (lost || deaf)
		answer(node, action->u.send.tag, NULL);
	for (int i = lost ? 2 : twice ? 0 : 1; i < 2; i++) {
		struct item *item = later(TO_SERVER, node, (int64_t)world_chance(3 * MS));
		item->request = *action->u.send.request;
		item->tag = action->u.send.tag;
		item->unanswered = deaf || i == 0;
		if (item->request.kind == CTL_BEAT)
			shell_beat_legs(node, item);
	}
}

void
world_put(const struct worker *worker, struct th_hash *ret_key)
{
	const uint64_t data[2] = {1, worker->shard};
	struct refsrv_out out;
	struct ctl_request put = {.kind = CTL_MANIFEST_PUT,
		.agent_inc = NODE_INC(worker->node),
		.request_no = agent_request_no(world.agents[worker->node]),
		.attach_no = agent_attach_no(world.agents[worker->node])};

	*ret_key = hash_bytes(data, sizeof(data));
	put.u.manifest_put = (struct ctl_blob_part){.key = *ret_key,
		.total_bytes = sizeof(data),
		.data = (const uint8_t *)data,
		.data_bytes = sizeof(data)};
	refsrv_step(world.server, world.now_ns, ++world.last_token, &put, &out);
	server_said(&out);
}

static void
to_agent(uint32_t node, const struct agent_event *event)
{
	struct agent_actions out;

	agent_step(world.agents[node], world.now_ns, event, &out);
	agent_check(world.agents[node]);
	world.agent_next_ns[node] = out.next_ns;
	for (uint32_t i = 0; i < out.count; i++)
		shell_act(node, &out.actions[i]);
}

/* ---- the world ----------------------------------------------------------------------- */

static void
server_start(void)
{
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.server_inc = ++world.server_inc;
	for (size_t i = 0; i < TH_ARRAY_LEN(config.seed); i++)
		config.seed[i] = th_rng_u64(&world.rng);
	world.server = refsrv_new(&config, world.now_ns);
	world.server_next_ns = world.now_ns;
}

void
world_restart_server(void)
{
	refsrv_free(world.server);
	while (world.num_waiting > 0) {
		struct waiting *last = &world.waiting[--world.num_waiting];
		answer(last->node, last->tag, NULL);
	}
	server_start();
}

void
world_start(uint64_t seed)
{
	memset(&world, 0, sizeof(world));
	th_rng_init_number(&world.rng, seed);
	world.now_ns = SEC;
	world.next_version = 1;
	world.groups = th_calloc(GROUPS, sizeof(*world.groups));
	server_start();
	for (uint32_t i = 0; i < NODES; i++) {
		struct agent_config config = {.agent_inc = NODE_INC(i)};
		agent_config_default(&config);
		snprintf(config.attach.node, sizeof(config.attach.node), "node%u", i);
		snprintf(config.attach.datacenter, sizeof(config.attach.datacenter), "dc");
		snprintf(config.attach.data_address, sizeof(config.attach.data_address),
			"10.0.0.%u:1", i + 1);
		world.agents[i] = agent_new(&config, world.now_ns);
	}
	for (uint32_t i = 0; i < GROUPS * SHARDS; i++) {
		struct worker *worker = &world.groups[i / SHARDS].workers[i % SHARDS];
		worker->group = i / SHARDS;
		worker->shard = i % SHARDS;
		worker->node = (worker->group + worker->shard) % NODES;
	}
}

void
world_step(void)
{
	struct refsrv_out out;

	world.now_ns += MS;
	while (world.items != NULL && world.items->due_ns <= world.now_ns) {
		struct item *item = world.items;
		world.items = item->next;
		if (item->kind == TO_SERVER)
			to_server(item);
		else
			to_agent(item->node, &item->event);
		free(item->events);
		free(item);
	}
	if (world.server_next_ns <= world.now_ns) {
		refsrv_tick(world.server, world.now_ns, &out);
		server_said(&out);
	}
	for (uint32_t i = 0; i < NODES; i++) {
		if (world.agent_next_ns[i] <= world.now_ns)
			to_agent(i, &(struct agent_event){.kind = AGENT_EV_TICK});
	}
	shell_move();
	for (uint32_t i = 0; i < GROUPS; i++) {
		if (!world.stopping)
			shell_group_open(&world.groups[i]);
		for (uint32_t k = 0; k < SHARDS; k++)
			shell_worker_run(&world.groups[i].workers[k]);
	}
}

static bool
all_closed(void)
{
	struct agent_session_info info;

	for (uint32_t i = 0; i < NODES; i++) {
		if (agent_session_at(world.agents[i], 0, &info))
			return false;
	}
	for (uint32_t i = 0; i < GROUPS * SHARDS; i++) {
		if (world.groups[i / SHARDS].workers[i % SHARDS].state != W_CLOSED)
			return false;
	}
	return true;
}

/* The faults end, everybody closes: nothing may be left anywhere. */
void
world_stop(void)
{
	int64_t end = world.now_ns + 30 * SEC;

	world.stopping = true;
	world.loss_percent = world.death_permille = 0;
	memset(world.cut_until_ns, 0, sizeof(world.cut_until_ns));
	while (!all_closed() && world.now_ns < end)
		world_step();
	cr_assert(all_closed(), "a session does not end");
	for (int i = 0; i < 3000; i++)
		world_step();
	const struct ctl_inspection *left = refsrv_inspect(world.server, world.now_ns);
	cr_assert_eq(left->num_members, 0);
	cr_assert_eq(left->num_transfers, 0);
	for (uint32_t i = 0; i < LEGS_MAX; i++)
		cr_assert(!world.legs[i].used || world.legs[i].over);
	for (uint32_t i = 0; i < NODES; i++)
		agent_free(world.agents[i]);
	refsrv_free(world.server);
	while (world.items != NULL) {
		struct item *first = world.items;
		world.items = first->next;
		free(first->events);
		free(first);
	}
	free(world.groups);
}
