/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listing - thc_list: the agent's answer as a listing of thc.h. The texts stay where protobuf put
 * them; the listing owns the message.
 */
#include "libthc/listing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "ipc/proto/tensorhub.pb-c.h"

struct owned {
	struct thc_listing listing; /* first: thc_listing_free gets its address */
	Tensorhub__V1__Reply *reply;
	struct thc_version_info *versions;
	struct thc_replica_info *replicas; /* of all versions */
};

static double
progress_of(const Tensorhub__V1__ReplicaInfo *info)
{
	if (info->chunks_total == 0 || info->chunks_done >= info->chunks_total)
		return (info->flags & THC_REPLICA_READY) != 0 || info->chunks_total > 0 ? 1.0 : 0.0;
	return (double)info->chunks_done / (double)info->chunks_total;
}

static void
fill(struct owned *owned, const Tensorhub__V1__Listing *message)
{
	size_t next = 0;

	for (size_t v = 0; v < message->n_versions; v++) {
		const Tensorhub__V1__VersionInfo *from = message->versions[v];
		owned->versions[v] = (struct thc_version_info){
			.lineage = from->version != NULL ? from->version->lineage : 0,
			.version = from->version != NULL ? from->version->version : 0,
			.retained = from->retained ? 1 : 0,
			.num_replicas = (uint32_t)from->n_replicas,
			.replicas = &owned->replicas[next],
		};
		for (size_t r = 0; r < from->n_replicas; r++) {
			const Tensorhub__V1__ReplicaInfo *info = from->replicas[r];
			owned->replicas[next++] = (struct thc_replica_info){.name = info->name,
				.datacenter = info->datacenter,
				.num_shards = info->num_shards,
				.flags = info->flags,
				.progress = progress_of(info)};
		}
	}
	owned->listing = (struct thc_listing){.struct_size = sizeof(struct thc_listing),
		.generation = message->generation,
		.num_versions = (uint32_t)message->n_versions,
		.version_bytes = sizeof(struct thc_version_info),
		.replica_bytes = sizeof(struct thc_replica_info),
		.versions = owned->versions};
}

/* The counts are bounded by the size of a message, so the sum cannot overflow. */
static int
convert(Tensorhub__V1__Reply *reply, struct thc_listing **ret_listing)
{
	const Tensorhub__V1__Listing *message = reply->list;
	size_t num_replicas = 0;

	for (size_t v = 0; v < message->n_versions; v++)
		num_replicas += message->versions[v]->n_replicas;
	struct owned *owned = calloc(1, sizeof(*owned));
	if (owned != NULL) {
		owned->versions = calloc(message->n_versions + 1, sizeof(*owned->versions));
		owned->replicas = calloc(num_replicas + 1, sizeof(*owned->replicas));
	}
	if (owned == NULL || owned->versions == NULL || owned->replicas == NULL) {
		if (owned != NULL)
			thc_listing_free(&owned->listing);
		return shim_fail(-ENOMEM, "out of memory for a listing");
	}
	fill(owned, message);
	owned->reply = reply;
	*ret_listing = &owned->listing;
	return 0;
}

int
listing_get(struct thc_shard *shard, uint64_t group_op_seq, int64_t deadline_ns,
	struct thc_listing **ret_listing)
{
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	Tensorhub__V1__List body;
	Tensorhub__V1__Reply *reply = NULL;

	tensorhub__v1__list__init(&body);
	body.model = shard->model;
	body.op_seq = group_op_seq;
	request.body_case = TENSORHUB__V1__REQUEST__BODY_LIST;
	request.list = &body;
	int rc = documents_call(
		shard, &request, TENSORHUB__V1__REPLY__BODY_LIST, deadline_ns, &reply);
	if (rc < 0)
		return rc;
	rc = convert(reply, ret_listing);
	if (rc < 0)
		documents_free(reply);
	return rc;
}

/* All members get one snapshot: the operation names it, the document fetches it. */
static int
list_group(struct thc_shard *shard, int64_t deadline_ns, struct thc_listing **ret_listing)
{
	const struct op_request request = {
		.kind = SHM_LIST, .internal = true, .deadline_ns = deadline_ns};
	struct thc_op *op = NULL;
	uint64_t group_op_seq = 0;
	int rc = op_submit(shard, &request, &op);

	if (rc == 0)
		rc = op_complete(op, deadline_ns, NULL, &group_op_seq);
	if (rc == 0)
		rc = listing_get(shard, group_op_seq, deadline_ns, ret_listing);
	return rc;
}

int
thc_list(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms,
	struct thc_listing **ret_listing)
{
	int64_t deadline_ns = 0;
	int rc = 0;

	if ((flags & ~(uint32_t)THC_LIST_GROUP) != 0)
		return shim_fail(THC_E_INVALID, "flags: 0x%" PRIx32 " has unknown bits", flags);
	if (ret_listing == NULL)
		return shim_fail(THC_E_INVALID, "ret_listing: is NULL");
	rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, 0);
	if (rc < 0)
		return rc;
	if ((flags & THC_LIST_GROUP) != 0)
		rc = list_group(shard, deadline_ns, ret_listing);
	else
		rc = listing_get(shard, 0, deadline_ns, ret_listing);
	shard_leave(shard);
	return rc;
}

void
thc_listing_free(struct thc_listing *listing)
{
	struct owned *owned = (struct owned *)listing;

	if (owned == NULL)
		return;
	documents_free(owned->reply);
	free(owned->versions);
	free(owned->replicas);
	free(owned);
}
