/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect - see inspect.h.
 */
#include "server/core/inspect.h"

#include <string.h>

#include "server/core/agent.h"
#include "server/core/copy.h"

static void
describe_node(
	const struct refsrv *server, const struct agent *agent, struct ctl_node_info *ret_info)
{
	memcpy(ret_info->node, agent->info.node, sizeof(ret_info->node));
	memcpy(ret_info->datacenter, agent->info.datacenter, sizeof(ret_info->datacenter));
	memcpy(ret_info->address, agent->info.data_address, sizeof(ret_info->address));
	ret_info->state = agent_state_name(agent->state);
	ret_info->spot = agent->info.spot;
	ret_info->members = agent->num_members;
	ret_info->legs_in = agent->legs_in;
	ret_info->legs_out = agent->legs_out;
	ret_info->silent_ns = server->live_ns - agent->beat_live_ns;
}

static const char *
group_state_name(enum group_state state)
{
	switch (state) {
	case GROUP_FORMING:
		return "forming";
	case GROUP_LIVE:
		return "live";
	case GROUP_BROKEN:
		return "broken";
	}
	return "?";
}

static const char *
copy_state_name(const struct copy *copy)
{
	if (copy->draining)
		return "draining";
	return copy->state == COPY_READY ? "ready" : "partial";
}

static void
describe_member(const struct member *member, struct ctl_member_info *ret_info)
{
	const struct group *group = member->group;
	const struct part *part = copy_part_of(member);

	memcpy(ret_info->model, group->model->name, sizeof(ret_info->model));
	memcpy(ret_info->replica, group->replica, sizeof(ret_info->replica));
	memcpy(ret_info->node, member->agent->info.node, sizeof(ret_info->node));
	ret_info->shard = member->shard;
	ret_info->num_shards = group->num_shards;
	ret_info->sid = member->sid;
	ret_info->state = group_state_name(group->state);
	ret_info->copy = "none";
	ret_info->version.version = TH_NO_VERSION;
	if (member->registered) {
		ret_info->bytes = member->reg.bytes;
		ret_info->chunks_total = member->reg.num_chunks;
	}
	if (part != NULL) {
		ret_info->copy = copy_state_name(part->copy);
		ret_info->version = part->copy->version->id;
		ret_info->chunks_done = part->chunks_done;
		ret_info->chunks_total = part->copy->version->shards[part->shard].num_chunks;
	}
}

static void
describe_leg(const struct refsrv *server, const struct leg *leg, struct ctl_transfer_info *ret_info)
{
	const struct copy *copy = leg->dst->copy;

	memcpy(ret_info->model, copy->group->model->name, sizeof(ret_info->model));
	ret_info->version = copy->version->id;
	ret_info->leg = leg->id;
	ret_info->shard = leg->dst->shard;
	if (leg->src != NULL) {
		memcpy(ret_info->source_replica, leg->src->copy->group->replica,
			sizeof(ret_info->source_replica));
		memcpy(ret_info->source_node, leg->src->member->agent->info.node,
			sizeof(ret_info->source_node));
	}
	memcpy(ret_info->reader_replica, copy->group->replica, sizeof(ret_info->reader_replica));
	memcpy(ret_info->reader_node, leg->reader->agent->info.node, sizeof(ret_info->reader_node));
	ret_info->chunks_done = leg->dst->chunks_done;
	ret_info->chunks_total = copy->version->shards[leg->dst->shard].num_chunks;
	ret_info->age_ns = server->now_ns - leg->granted_ns;
}

void
inspect_build(struct refsrv *server, struct ctl_inspection *ret_inspection)
{
	uint32_t num_nodes = HASH_COUNT(server->agents);
	uint32_t num_members = HASH_COUNT(server->members);
	uint32_t num_transfers = HASH_COUNT(server->legs);
	struct ctl_node_info *nodes = refsrv_scratch(server, num_nodes, sizeof(*nodes));
	struct ctl_member_info *members = refsrv_scratch(server, num_members, sizeof(*members));
	struct ctl_transfer_info *transfers =
		refsrv_scratch(server, num_transfers, sizeof(*transfers));
	struct agent *agent, *next_agent;
	struct member *member, *next_member;
	struct leg *leg, *next_leg;

	*ret_inspection = (struct ctl_inspection){
		.server_inc = server->config.server_inc,
		.uptime_ns = server->now_ns - server->started_ns,
		.num_nodes = num_nodes,
		.num_members = num_members,
		.num_transfers = num_transfers,
		.nodes = nodes,
		.members = members,
		.transfers = transfers,
	};
	HASH_ITER(hh, server->agents, agent, next_agent)
	{
		describe_node(server, agent, nodes++);
	}
	HASH_ITER(hh, server->members, member, next_member)
	{
		describe_member(member, members++);
	}
	HASH_ITER(hh, server->legs, leg, next_leg)
	{
		describe_leg(server, leg, transfers++);
	}
}
