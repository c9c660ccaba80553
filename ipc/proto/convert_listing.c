/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_listing - listings and inspections: the replies that have many entries. Pure.
 */
#include <errno.h>

#include "ipc/base/name.h"
#include "ipc/proto/convert_internal.h"

/* ---- out ---------------------------------------------------------------------------------- */

size_t
convert_listing_messages(const struct ctl_listing *listing)
{
	size_t messages = 2;

	for (uint32_t i = 0; i < listing->num_versions; i++)
		messages += 2 + (size_t)listing->versions[i].num_replicas;
	return messages;
}

static Tensorhub__V1__VersionInfo *
out_version_info(struct convert_arena *arena, const struct ctl_version_info *info)
{
	Tensorhub__V1__VersionInfo *message =
		convert_message(arena, &tensorhub__v1__version_info__descriptor);

	message->version = convert_out_version(arena, info->version);
	message->retained = info->retained;
	message->n_replicas = info->num_replicas;
	message->replicas = convert_pointers(arena, info->num_replicas);
	for (uint32_t i = 0; i < info->num_replicas; i++) {
		const struct ctl_replica_info *replica = &info->replicas[i];
		Tensorhub__V1__ReplicaInfo *out =
			convert_message(arena, &tensorhub__v1__replica_info__descriptor);

		out->name = convert_out_text(replica->name);
		out->datacenter = convert_out_text(replica->datacenter);
		out->num_shards = replica->num_shards;
		out->flags = replica->flags;
		out->chunks_done = replica->chunks_done;
		out->chunks_total = replica->chunks_total;
		message->replicas[i] = out;
	}
	return message;
}

Tensorhub__V1__Listing *
convert_out_listing(struct convert_arena *arena, const struct ctl_listing *listing)
{
	Tensorhub__V1__Listing *message =
		convert_message(arena, &tensorhub__v1__listing__descriptor);

	message->generation = listing->generation;
	message->page = convert_out_page(arena, listing->page);
	message->n_versions = listing->num_versions;
	message->versions = convert_pointers(arena, listing->num_versions);
	for (uint32_t i = 0; i < listing->num_versions; i++)
		message->versions[i] = out_version_info(arena, &listing->versions[i]);
	return message;
}

size_t
convert_inspection_messages(const struct ctl_inspection *inspection)
{
	return 2 + CTL_COUNTERS_MAX + (size_t)inspection->num_nodes +
	       3 * (size_t)inspection->num_members + 2 * (size_t)inspection->num_transfers;
}

static Tensorhub__V1__NodeInfo *
out_node(struct convert_arena *arena, const struct ctl_node_info *node)
{
	Tensorhub__V1__NodeInfo *message =
		convert_message(arena, &tensorhub__v1__node_info__descriptor);

	message->node = convert_out_text(node->node);
	message->datacenter = convert_out_text(node->datacenter);
	message->address = convert_out_text(node->address);
	message->state = convert_out_text(node->state);
	message->spot = node->spot;
	message->draining = node->draining;
	message->members = node->members;
	message->legs_in = node->legs_in;
	message->legs_out = node->legs_out;
	message->silent_ns = node->silent_ns;
	return message;
}

static Tensorhub__V1__MemberInfo *
out_member(struct convert_arena *arena, const struct ctl_member_info *member)
{
	Tensorhub__V1__MemberInfo *message =
		convert_message(arena, &tensorhub__v1__member_info__descriptor);

	message->model = convert_out_text(member->model);
	message->replica = convert_out_text(member->replica);
	message->node = convert_out_text(member->node);
	message->shard = member->shard;
	message->num_shards = member->num_shards;
	message->sid = member->sid;
	message->state = convert_out_text(member->state);
	message->copy = convert_out_text(member->copy);
	message->version = convert_out_version(arena, member->version);
	message->bytes = member->bytes;
	message->chunks_done = member->chunks_done;
	message->chunks_total = member->chunks_total;
	message->flags = member->flags;
	message->ready = convert_out_version(arena, member->ready);
	message->why = convert_out_text(member->why);
	return message;
}

static Tensorhub__V1__TransferInfo *
out_transfer(struct convert_arena *arena, const struct ctl_transfer_info *transfer)
{
	Tensorhub__V1__TransferInfo *message =
		convert_message(arena, &tensorhub__v1__transfer_info__descriptor);

	message->model = convert_out_text(transfer->model);
	message->version = convert_out_version(arena, transfer->version);
	message->leg = transfer->leg;
	message->shard = transfer->shard;
	message->source_replica = convert_out_text(transfer->source_replica);
	message->source_node = convert_out_text(transfer->source_node);
	message->reader_replica = convert_out_text(transfer->reader_replica);
	message->reader_node = convert_out_text(transfer->reader_node);
	message->chunks_done = transfer->chunks_done;
	message->chunks_total = transfer->chunks_total;
	message->age_ns = transfer->age_ns;
	message->path = convert_out_text(transfer->path.name);
	message->rate = transfer->path.rate;
	message->why = convert_out_text(transfer->path.why);
	return message;
}

Tensorhub__V1__Inspection *
convert_out_inspection(struct convert_arena *arena, const struct ctl_inspection *inspection)
{
	Tensorhub__V1__Inspection *message =
		convert_message(arena, &tensorhub__v1__inspection__descriptor);

	message->server_inc = inspection->server_inc;
	message->uptime_ns = inspection->uptime_ns;
	message->page = convert_out_page(arena, inspection->page);
	message->serving = inspection->serving;
	message->epoch = inspection->epoch;
	message->server_text = convert_out_text(inspection->server_text);
	message->n_nodes = inspection->num_nodes;
	message->nodes = convert_pointers(arena, inspection->num_nodes);
	for (uint32_t i = 0; i < inspection->num_nodes; i++)
		message->nodes[i] = out_node(arena, &inspection->nodes[i]);
	message->n_members = inspection->num_members;
	message->members = convert_pointers(arena, inspection->num_members);
	for (uint32_t i = 0; i < inspection->num_members; i++)
		message->members[i] = out_member(arena, &inspection->members[i]);
	message->n_transfers = inspection->num_transfers;
	message->transfers = convert_pointers(arena, inspection->num_transfers);
	for (uint32_t i = 0; i < inspection->num_transfers; i++)
		message->transfers[i] = out_transfer(arena, &inspection->transfers[i]);
	message->n_counters = inspection->num_counters;
	message->counters = convert_pointers(arena, inspection->num_counters);
	for (uint32_t i = 0; i < inspection->num_counters; i++) {
		Tensorhub__V1__ServerCounter *counter =
			convert_message(arena, &tensorhub__v1__server_counter__descriptor);
		counter->name = convert_out_text(inspection->counters[i].name);
		counter->value = inspection->counters[i].value;
		message->counters[i] = counter;
	}
	return message;
}

/* ---- in ----------------------------------------------------------------------------------- */

static void *
in_array(struct convert_in *in, size_t count, size_t size)
{
	void *array = convert_alloc_array(in->arena, count, size);

	if (array == NULL)
		convert_in_fail(in, -ENOMEM, "entries", "do not fit in memory");
	return array;
}

static void
in_version_info(struct convert_in *in, const Tensorhub__V1__VersionInfo *message,
	struct ctl_version_info *ret_info)
{
	struct ctl_replica_info *replicas = in_array(in, message->n_replicas, sizeof(*replicas));

	if (replicas == NULL)
		return;
	convert_in_version(message->version, &ret_info->version);
	convert_in_check(in, !th_version_none(ret_info->version), "version", "is missing");
	for (size_t i = 0; i < message->n_replicas; i++) {
		const Tensorhub__V1__ReplicaInfo *replica = message->replicas[i];

		convert_in_name(in, "replica", replica->name, TH_NAME_MAX, replicas[i].name);
		convert_in_name(
			in, "datacenter", replica->datacenter, TH_NAME_MAX, replicas[i].datacenter);
		replicas[i].num_shards = replica->num_shards;
		replicas[i].flags = replica->flags;
		replicas[i].chunks_done = replica->chunks_done;
		replicas[i].chunks_total = replica->chunks_total;
	}
	ret_info->retained = message->retained;
	ret_info->num_replicas = (uint32_t)message->n_replicas;
	ret_info->replicas = replicas;
}

void
convert_in_listing(struct convert_in *in, const Tensorhub__V1__Listing *message,
	struct ctl_listing *ret_listing)
{
	struct ctl_version_info *versions = in_array(in, message->n_versions, sizeof(*versions));

	if (versions == NULL)
		return;
	for (size_t i = 0; i < message->n_versions && in->code == 0; i++)
		in_version_info(in, message->versions[i], &versions[i]);
	convert_in_page(in, message->page, &ret_listing->page);
	ret_listing->generation = message->generation;
	ret_listing->num_versions = (uint32_t)message->n_versions;
	ret_listing->versions = versions;
}

static void
in_node(struct convert_in *in, const Tensorhub__V1__NodeInfo *message,
	struct ctl_node_info *ret_node)
{
	convert_in_name(in, "node", message->node, TH_NAME_MAX, ret_node->node);
	convert_in_name_or_empty(
		in, "datacenter", message->datacenter, TH_NAME_MAX, ret_node->datacenter);
	convert_in_name_or_empty(
		in, "address", message->address, TH_ADDRESS_MAX, ret_node->address);
	convert_in_word(in, "state", message->state, &ret_node->state);
	ret_node->spot = message->spot;
	ret_node->draining = message->draining;
	ret_node->members = message->members;
	ret_node->legs_in = message->legs_in;
	ret_node->legs_out = message->legs_out;
	ret_node->silent_ns = message->silent_ns;
}

static void
in_member(struct convert_in *in, const Tensorhub__V1__MemberInfo *message,
	struct ctl_member_info *ret_member)
{
	convert_in_name(in, "model", message->model, TH_NAME_MAX, ret_member->model);
	convert_in_name(in, "replica", message->replica, TH_NAME_MAX, ret_member->replica);
	convert_in_name(in, "node", message->node, TH_NAME_MAX, ret_member->node);
	convert_in_word(in, "state", message->state, &ret_member->state);
	convert_in_word(in, "copy", message->copy, &ret_member->copy);
	convert_in_version(message->version, &ret_member->version);
	ret_member->shard = message->shard;
	ret_member->num_shards = message->num_shards;
	ret_member->sid = message->sid;
	ret_member->bytes = message->bytes;
	ret_member->chunks_done = message->chunks_done;
	ret_member->chunks_total = message->chunks_total;
	ret_member->flags = message->flags;
	convert_in_version(message->ready, &ret_member->ready);
	convert_in_word(in, "why", message->why, &ret_member->why);
}

static void
in_transfer(struct convert_in *in, const Tensorhub__V1__TransferInfo *message,
	struct ctl_transfer_info *ret_transfer)
{
	convert_in_name(in, "model", message->model, TH_NAME_MAX, ret_transfer->model);
	convert_in_name_or_empty(in, "source_replica", message->source_replica, TH_NAME_MAX,
		ret_transfer->source_replica);
	convert_in_name_or_empty(
		in, "source_node", message->source_node, TH_NAME_MAX, ret_transfer->source_node);
	convert_in_name_or_empty(in, "reader_replica", message->reader_replica, TH_NAME_MAX,
		ret_transfer->reader_replica);
	convert_in_name_or_empty(
		in, "reader_node", message->reader_node, TH_NAME_MAX, ret_transfer->reader_node);
	convert_in_version(message->version, &ret_transfer->version);
	ret_transfer->leg = message->leg;
	ret_transfer->shard = message->shard;
	ret_transfer->chunks_done = message->chunks_done;
	ret_transfer->chunks_total = message->chunks_total;
	ret_transfer->age_ns = message->age_ns;
	convert_in_path(message->path, message->rate, message->why, &ret_transfer->path);
}

void
convert_in_inspection(struct convert_in *in, const Tensorhub__V1__Inspection *message,
	struct ctl_inspection *ret_inspection)
{
	struct ctl_node_info *nodes = in_array(in, message->n_nodes, sizeof(*nodes));
	struct ctl_member_info *members = in_array(in, message->n_members, sizeof(*members));
	struct ctl_transfer_info *transfers =
		in_array(in, message->n_transfers, sizeof(*transfers));

	if (nodes == NULL || members == NULL || transfers == NULL)
		return;
	for (size_t i = 0; i < message->n_nodes && in->code == 0; i++)
		in_node(in, message->nodes[i], &nodes[i]);
	for (size_t i = 0; i < message->n_members && in->code == 0; i++)
		in_member(in, message->members[i], &members[i]);
	for (size_t i = 0; i < message->n_transfers && in->code == 0; i++)
		in_transfer(in, message->transfers[i], &transfers[i]);
	*ret_inspection = (struct ctl_inspection){
		.server_inc = message->server_inc,
		.uptime_ns = message->uptime_ns,
		.num_nodes = (uint32_t)message->n_nodes,
		.num_members = (uint32_t)message->n_members,
		.num_transfers = (uint32_t)message->n_transfers,
		.nodes = nodes,
		.members = members,
		.transfers = transfers,
	};
	convert_in_page(in, message->page, &ret_inspection->page);
	ret_inspection->serving = message->serving;
	ret_inspection->epoch = message->epoch;
	convert_in_sentence(message->server_text, sizeof(ret_inspection->server_text),
		ret_inspection->server_text);
	/* A newer server may have more than this program has room for. */
	ret_inspection->num_counters = (uint32_t)th_min_u64(message->n_counters, CTL_COUNTERS_MAX);
	for (uint32_t i = 0; i < ret_inspection->num_counters; i++) {
		struct ctl_counter *counter = &ret_inspection->counters[i];
		convert_in_name(in, "counter", message->counters[i]->name,
			sizeof(counter->name) - 1, counter->name);
		counter->value = message->counters[i]->value;
	}
}
