/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_former - see refsrv_former.h.
 */
#include "tests/support/core/refsrv_former.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"

#define SHARD_IDS 2048u /* of every replica */

uint64_t
former_id(uint64_t n)
{
	return ((uint64_t)FORMER_EPOCH << TH_EPOCH_SHIFT) + n;
}

static uint64_t
id_of(const char *replica, uint32_t shard)
{
	return former_id((uint64_t)(unsigned char)replica[0] * SHARD_IDS + 1 + shard);
}

uint32_t
former_agent(struct world *w)
{
	uint32_t index = w->num_agents++;
	struct world_agent *agent = &w->agents[index];

	TH_ASSERT(index < WORLD_AGENTS_MAX);
	agent->inc = ++w->last_inc;
	agent->connection = ++w->last_connection;
	agent->server_inc = 1234;
	agent->epoch = FORMER_EPOCH;
	snprintf(agent->node, sizeof(agent->node), "node%u", index);
	TH_ASSERT(world_attach(w, index, "dc1") == 0);
	return index;
}

int
former_said(struct world *w, uint32_t agent, uint32_t count)
{
	struct ctl_request request = {.kind = CTL_REJOINED};

	request.u.rejoined.num_sessions = count;
	return world_request(w, agent, &request);
}

void
former_world(struct world *w, uint32_t *ret_a, uint32_t *ret_b, uint32_t *ret_c)
{
	world_init(w, NULL);
	*ret_a = former_agent(w);
	*ret_b = former_agent(w);
	if (ret_c != NULL)
		*ret_c = former_agent(w);
}

void
former_all_said(struct world *w)
{
	for (uint32_t agent = 0; agent < w->num_agents; agent++)
		TH_ASSERT(former_said(w, agent, 0) == 0);
	world_sleep(w, 3 * SEC);
}

struct ctl_rejoin
former_shard(const char *replica, uint32_t shard, uint32_t num_shards)
{
	struct ctl_rejoin said = {
		.sid = id_of(replica, shard),
		.group_inc = id_of(replica, SHARD_IDS - 2),
		.open = {.model = "m", .shard = shard, .num_shards = num_shards, .lineage = 1},
		.registered = true,
		.reg = {.layout = {.lo = shard + 1, .hi = 1},
			.manifest = {.lo = shard + 1, .hi = 2},
			.bytes = 1000,
			.num_chunks = WORLD_CHUNKS},
		.next_op_seq = 1,
		.held = {.version = TH_NO_VERSION},
		.version = {.version = TH_NO_VERSION},
		.go = {.version = TH_NO_VERSION},
	};

	snprintf(said.open.replica, sizeof(said.open.replica), "%s", replica);
	return said;
}

struct ctl_rejoin
former_holds(const char *replica, uint32_t shard, uint32_t num_shards, uint64_t version)
{
	struct ctl_rejoin said = former_shard(replica, shard, num_shards);

	said.next_op_seq = 2;
	said.held = (struct th_version){1, version};
	said.gen = 1;
	said.hashed = true;
	said.content = (struct th_hash){.lo = 1, .hi = shard + 1};
	return said;
}

struct ctl_rejoin
former_fills(const char *replica, uint32_t shard, uint32_t num_shards, uint64_t version,
	uint64_t leg, const char *source)
{
	struct ctl_rejoin said = former_shard(replica, shard, num_shards);

	said.next_op_seq = 2;
	said.went = true;
	said.op_seq = 1;
	said.kind = CTL_OP_REPLICATE;
	snprintf(said.spec, sizeof(said.spec), "latest");
	said.version = (struct th_version){1, version};
	said.leg = leg;
	said.source_sid = id_of(source, shard);
	said.source_gen = 1;
	return said;
}

int
former_rejoin(struct world *w, uint32_t agent, const struct ctl_rejoin *said)
{
	struct ctl_request request = {.kind = CTL_REJOIN, .u.rejoin = *said};

	return world_request(w, agent, &request);
}

struct world_member
former_back(struct world *w, uint32_t agent, const struct ctl_rejoin *said)
{
	TH_ASSERT(former_rejoin(w, agent, said) == 0);
	return (struct world_member){
		.agent = agent,
		.shard = said->open.shard,
		.num_shards = said->open.num_shards,
		.sid = said->sid,
		.seq = said->next_op_seq - 1,
	};
}

void
former_finish(struct world *w, const struct world_member *m, uint64_t leg, uint64_t content)
{
	struct ctl_request request = {.kind = CTL_LEG_END};

	request.u.leg_end.leg = leg;
	request.u.leg_end.chunks_verified = WORLD_CHUNKS;
	if (content != 0)
		request.u.leg_end.content = (struct th_hash){.lo = content, .hi = m->shard + 1};
	TH_ASSERT(world_request(w, m->agent, &request) == 0);
}

bool
former_listed(struct world *w, uint64_t version)
{
	TH_ASSERT(world_list(w, 0, "m") == 0);
	for (uint32_t v = 0; v < w->reply.u.list.num_versions; v++) {
		if (w->reply.u.list.versions[v].version.version == version)
			return true;
	}
	return false;
}

bool
former_is_broken(const struct world *w, const struct world_member *m)
{
	return world_has(w, m->agent, CTL_EV_BROKEN, m->sid);
}

void
former_broken(struct world *w, const struct world_member *m, const char *why)
{
	struct ctl_event event;

	cr_assert(world_take(w, m->agent, CTL_EV_BROKEN, m->sid, &event), "not broken: %s", why);
	cr_assert(strstr(event.u.broken.text, "the reference server was lost"), "%s",
		event.u.broken.text);
	cr_assert(strstr(event.u.broken.text, why), "%s", event.u.broken.text);
}
