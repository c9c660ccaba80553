/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect - see inspect.h.
 */
#include "server/core/view/inspect.h"

#include <string.h>

#include "ipc/base/assert.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/standby.h"
#include "server/core/model/copy.h"
#include "server/core/view/snapshot.h"

static void
describe_node(
	const struct refsrv *server, const struct agent *agent, struct ctl_node_info *ret_info)
{
	memcpy(ret_info->node, agent->info.node, sizeof(ret_info->node));
	memcpy(ret_info->datacenter, agent->info.datacenter, sizeof(ret_info->datacenter));
	memcpy(ret_info->address, agent->info.data_address, sizeof(ret_info->address));
	ret_info->state = agent_state_name(agent->state);
	ret_info->spot = agent->info.spot;
	ret_info->draining = agent->draining || agent->leaving;
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

/* A worker is there because it wants to be. */
static const char *
why_it_is_there(const struct group *group)
{
	const struct offload *offload = group->offload;

	if (offload == NULL)
		return group->reservation == 0 ? "" : "given up";
	switch (offload->why) {
	case OFFLOAD_GIVEN_UP:
		return "last copy";
	case OFFLOAD_RESCUE:
		return "spot hosts";
	case OFFLOAD_DRAIN:
		return "drain";
	case OFFLOAD_REJOINED:
		return "former server";
	case OFFLOAD_FETCH:
		return offload->pinned ? "prefetch" : "seed";
	case OFFLOAD_BORROW:
		return "borrow";
	}
	return "?";
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
	ret_info->flags = member->flags;
	ret_info->ready = group->fetch.ready;
	ret_info->why = why_it_is_there(group);
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
	ret_info->path = leg->path;
}

struct room { /* the arrays of an inspection */
	uint32_t num_nodes, num_members, num_transfers;
	struct ctl_node_info *nodes;
	struct ctl_member_info *members;
	struct ctl_transfer_info *transfers;
};

static struct room
room_of(const struct refsrv *server)
{
	return (struct room){
		.num_nodes = HASH_COUNT(server->agents),
		.num_members = HASH_COUNT(server->members),
		.num_transfers = HASH_COUNT(server->legs),
	};
}

static void
add_counter(struct ctl_inspection *inspection, const char *name, uint64_t value)
{
	struct ctl_counter *counter = &inspection->counters[inspection->num_counters++];

	TH_ASSERT(inspection->num_counters <= CTL_COUNTERS_MAX);
	memcpy(counter->name, name, strlen(name) + 1);
	counter->value = value;
}

static void
inspect_add_counters(const struct refsrv *server, struct ctl_inspection *inspection)
{
	add_counter(inspection, "requests", server->counters.requests);
	add_counter(inspection, "polls", server->counters.polls);
	add_counter(inspection, "beats", server->counters.beats);
	add_counter(inspection, "lists", server->counters.lists);
	add_counter(inspection, "watches", server->counters.watches);
	add_counter(inspection, "watches_open", server->counters.watches_open);
	add_counter(inspection, "changes_told", server->counters.changed);
	add_counter(inspection, "snapshots_made", server->counters.snapshots);
	add_counter(inspection, "snapshot_bytes", server->snapshot_bytes);
	add_counter(inspection, "manifest_bytes", server->blob_bytes);
	add_counter(inspection, "versions_at_risk", server->num_at_risk);
	add_counter(inspection, "refused_epochs", server->counters.refused_epochs);
	add_counter(inspection, "refused_clusters", server->counters.refused_clusters);
	add_counter(inspection, "refused_secrets", server->counters.refused_secrets);
}

static void
inspect_fill(struct refsrv *server, const struct room *room, struct ctl_inspection *ret_inspection)
{
	struct ctl_node_info *node = room->nodes;
	struct ctl_member_info *member_info = room->members;
	struct ctl_transfer_info *transfer = room->transfers;
	struct agent *agent, *next_agent;
	struct member *member, *next_member;
	struct leg *leg, *next_leg;

	*ret_inspection = (struct ctl_inspection){
		.server_inc = server->config.server_inc,
		.uptime_ns = server->now_ns - server->started_ns,
		.num_nodes = room->num_nodes,
		.num_members = room->num_members,
		.num_transfers = room->num_transfers,
		.nodes = room->nodes,
		.members = room->members,
		.transfers = room->transfers,
	};
	inspect_add_counters(server, ret_inspection);
	standby_describe(server, ret_inspection);
	HASH_ITER(hh, server->agents, agent, next_agent)
	{
		describe_node(server, agent, node++);
	}
	HASH_ITER(hh, server->members, member, next_member)
	{
		describe_member(member, member_info++);
	}
	HASH_ITER(hh, server->legs, leg, next_leg)
	{
		describe_leg(server, leg, transfer++);
	}
}

void
inspect_build(struct refsrv *server, struct ctl_inspection *ret_inspection)
{
	struct room room = room_of(server);

	room.nodes = refsrv_scratch(server, room.num_nodes, sizeof(*room.nodes));
	room.members = refsrv_scratch(server, room.num_members, sizeof(*room.members));
	room.transfers = refsrv_scratch(server, room.num_transfers, sizeof(*room.transfers));
	inspect_fill(server, &room, ret_inspection);
}

/* Kept, because one message cannot hold it. */
static int
inspect_keep(struct refsrv *server, uint64_t owner, const struct ctl_inspection *now,
	struct ctl_inspection *ret_part, struct th_err *err)
{
	struct ctl_inspection *all;
	struct snapshot *snapshot;
	uint64_t node_bytes = now->num_nodes * (uint64_t)sizeof(now->nodes[0]);
	uint64_t member_bytes = now->num_members * (uint64_t)sizeof(now->members[0]);
	uint64_t transfer_bytes = now->num_transfers * (uint64_t)sizeof(now->transfers[0]);
	int rc = snapshot_new(
		server, owner, NULL, node_bytes + member_bytes + transfer_bytes, err, &snapshot);

	if (rc != 0)
		return rc;
	all = &snapshot->u.inspection;
	*all = *now;
	all->nodes = memcpy(snapshot + 1, now->nodes, node_bytes);
	all->members = memcpy((char *)(snapshot + 1) + node_bytes, now->members, member_bytes);
	all->transfers = memcpy(
		(char *)(snapshot + 1) + node_bytes + member_bytes, now->transfers, transfer_bytes);
	return snapshot_inspection_part(server, snapshot, 0, ret_part, err);
}

int
inspect_request(struct refsrv *server, const struct ctl_request *request,
	struct ctl_inspection *ret_inspection, struct th_err *err)
{
	const struct ctl_page *page = &request->u.inspect;
	struct ctl_inspection now;
	struct snapshot *snapshot;

	if (page->snapshot != 0) {
		int rc = snapshot_find(server, page->snapshot, NULL, err, &snapshot);
		return rc != 0 ? rc
			       : snapshot_inspection_part(
					 server, snapshot, page->next, ret_inspection, err);
	}
	inspect_build(server, &now);
	if (!snapshot_is_whole(server, snapshot_inspection_bytes(&now)))
		return inspect_keep(server, request->agent_inc, &now, ret_inspection, err);
	*ret_inspection = now;
	return 0;
}
