/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list - thc_list, thc_list_submit: the agent's answer as a listing of thc.h. The texts stay where
 * protobuf put them; the listing owns the message.
 */
#include "libthc/list.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "ipc/base/answer_pages.h"
#include "ipc/base/name.h"
#include "ipc/proto/tensorhub.pb-c.h"

struct owned {
	struct thc_listing listing; /* first: thc_listing_free gets its address */
	size_t num_replies;
	Tensorhub__V1__Reply **replies; /* owns: its parts, in order */
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

static struct thc_replica_info
replica_of(const Tensorhub__V1__ReplicaInfo *info)
{
	return (struct thc_replica_info){.name = info->name,
		.datacenter = info->datacenter,
		.num_shards = info->num_shards,
		.flags = info->flags,
		.progress = progress_of(info)};
}

static bool
same_version(const struct thc_version_info *version, const Tensorhub__V1__Version *with)
{
	return with != NULL && version->lineage == with->lineage &&
	       version->version == with->version;
}

/* A version goes on in the next part when it is the first of it again. */
static void
list_fill(struct owned *owned)
{
	struct thc_version_info *version = NULL;
	size_t num_versions = 0, num_replicas = 0;

	for (size_t part = 0; part < owned->num_replies; part++) {
		const Tensorhub__V1__Listing *message = owned->replies[part]->list;
		for (size_t v = 0; v < message->n_versions; v++) {
			const Tensorhub__V1__VersionInfo *from = message->versions[v];
			if (v > 0 || version == NULL || !same_version(version, from->version)) {
				version = &owned->versions[num_versions++];
				*version = (struct thc_version_info){
					.lineage =
						from->version != NULL ? from->version->lineage : 0,
					.version =
						from->version != NULL ? from->version->version : 0,
					.retained = from->retained ? 1 : 0,
					.replicas = &owned->replicas[num_replicas],
				};
			}
			for (size_t r = 0; r < from->n_replicas; r++)
				owned->replicas[num_replicas++] = replica_of(from->replicas[r]);
			version->num_replicas += (uint32_t)from->n_replicas;
		}
	}
	owned->listing = (struct thc_listing){.struct_size = sizeof(struct thc_listing),
		.generation = owned->replies[0]->list->generation,
		.num_versions = (uint32_t)num_versions,
		.version_bytes = sizeof(struct thc_version_info),
		.replica_bytes = sizeof(struct thc_replica_info),
		.versions = owned->versions};
}

/* The counts are bounded: of one part by the size of a message, of all by pages_take. */
static int
convert(struct owned *owned)
{
	size_t num_versions = 0, num_replicas = 0;

	for (size_t part = 0; part < owned->num_replies; part++) {
		const Tensorhub__V1__Listing *message = owned->replies[part]->list;
		num_versions += message->n_versions;
		for (size_t v = 0; v < message->n_versions; v++)
			num_replicas += message->versions[v]->n_replicas;
	}
	owned->versions = calloc(num_versions + 1, sizeof(*owned->versions));
	owned->replicas = calloc(num_replicas + 1, sizeof(*owned->replicas));
	if (owned->versions == NULL || owned->replicas == NULL)
		return shim_fail(-ENOMEM, "out of memory for a listing");
	list_fill(owned);
	return 0;
}

static int
list_keep(struct owned *owned, Tensorhub__V1__Reply *reply)
{
	Tensorhub__V1__Reply **replies =
		realloc(owned->replies, (owned->num_replies + 1) * sizeof(*replies));

	if (replies == NULL) {
		documents_free(reply);
		return shim_fail(-ENOMEM, "out of memory for a listing");
	}
	owned->replies = replies;
	owned->replies[owned->num_replies++] = reply;
	return 0;
}

static void
list_forget(struct owned *owned)
{
	for (size_t part = 0; part < owned->num_replies; part++)
		documents_free(owned->replies[part]);
	owned->num_replies = 0;
}

/* Each is named as a replica may be: people are shown these names. *ret_entries: how many. */
static int
check_replicas(const Tensorhub__V1__Listing *part, uint64_t *ret_entries)
{
	uint64_t entries = 0;

	for (size_t v = 0; v < part->n_versions; v++) {
		const Tensorhub__V1__VersionInfo *version = part->versions[v];
		for (size_t r = 0; r < version->n_replicas; r++)
			if (!th_name_valid(version->replicas[r]->name, TH_NAME_MAX) ||
				!th_name_valid(version->replicas[r]->datacenter, TH_NAME_MAX))
				return shim_fail(THC_E_PROTOCOL,
					"the agent's listing has a replica or datacenter whose "
					"name is none");
		entries += version->n_replicas;
	}
	*ret_entries = entries;
	return 0;
}

/* 1: there is more. */
static int
list_get_part(struct thc_shard *shard, const struct listing_question *question, int64_t deadline_ns,
	struct pages *pages, struct owned *owned)
{
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	Tensorhub__V1__List body;
	Tensorhub__V1__Page page;
	Tensorhub__V1__Reply *reply = NULL;
	uint64_t entries = 0;

	tensorhub__v1__list__init(&body);
	tensorhub__v1__page__init(&page);
	body.model = shard->model;
	body.op_seq = question->group_op_seq;
	body.generation = question->generation;
	page.snapshot = pages->ask.snapshot;
	page.next = pages->ask.next;
	body.page = page.snapshot != 0 ? &page : NULL;
	request.body_case = TENSORHUB__V1__REQUEST__BODY_LIST;
	request.list = &body;
	int rc = documents_call(
		shard, &request, TENSORHUB__V1__REPLY__BODY_LIST, deadline_ns, &reply);
	if (rc < 0) {
		if (!pages_restart(pages, rc))
			return rc;
		list_forget(owned);
		return 1;
	}
	rc = list_keep(owned, reply);
	if (rc < 0)
		return rc;
	const Tensorhub__V1__Listing *part = reply->list;
	rc = check_replicas(part, &entries);
	if (rc < 0)
		return rc;
	struct ctl_page came = {0};
	if (part->page != NULL)
		came = (struct ctl_page){part->page->snapshot, part->page->next};
	rc = pages_take(pages, came, entries, part->generation, errors_last());
	if (rc < 0)
		return shim_fail(THC_E_PROTOCOL,
			"the agent's listing does not fit together: a part is missing or of "
			"another one");
	return rc;
}

int
listing_get(struct thc_shard *shard, const struct listing_question *question, int64_t deadline_ns,
	struct thc_listing **ret_listing)
{
	struct owned *owned = calloc(1, sizeof(*owned));
	struct pages pages = {0};
	int rc = 0;

	if (owned == NULL)
		return shim_fail(-ENOMEM, "out of memory for a listing");
	do {
		rc = list_get_part(shard, question, deadline_ns, &pages, owned);
	} while (rc > 0);
	if (rc == 0)
		rc = convert(owned);
	if (rc < 0) {
		thc_listing_free(&owned->listing);
		return rc;
	}
	*ret_listing = &owned->listing;
	return 0;
}

/*
 * All members get one snapshot: the operation names it, the document fetches it. Until then it is
 * this handle's one operation: the server keeps the snapshot until every member calls the next.
 */
static int
list_group(struct thc_shard *shard, int64_t deadline_ns, struct thc_listing **ret_listing)
{
	const struct op_request request = {
		.kind = SHM_LIST, .internal = true, .deadline_ns = deadline_ns};
	struct listing_question question = {0};
	struct thc_op *op = NULL;
	int rc = op_submit(shard, &request, &op);

	if (rc < 0)
		return rc;
	shard->listing = true;
	rc = op_complete(op, deadline_ns, NULL, &question.group_op_seq);
	if (rc == 0)
		rc = listing_get(shard, &question, deadline_ns, ret_listing);
	shard->listing = false;
	return rc;
}

static int
list_check_flags(uint32_t flags)
{
	if ((flags & ~(uint32_t)THC_LIST_GROUP) != 0)
		return shim_fail(THC_E_INVALID, "flags: 0x%" PRIx32 " has unknown bits", flags);
	return 0;
}

int
thc_list(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms,
	struct thc_listing **ret_listing)
{
	const struct listing_question now = {0};
	int64_t deadline_ns = 0;
	int rc = list_check_flags(flags);

	if (rc < 0)
		return rc;
	if (ret_listing == NULL)
		return shim_fail(THC_E_INVALID, "ret_listing: is NULL");
	rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, (flags & THC_LIST_GROUP) != 0 ? ENTER_MEMBER : 0);
	if (rc < 0)
		return rc;
	if ((flags & THC_LIST_GROUP) != 0)
		rc = list_group(shard, deadline_ns, ret_listing);
	else
		rc = listing_get(shard, &now, deadline_ns, ret_listing);
	shard_leave(shard);
	return rc;
}

int
thc_list_submit(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms, struct thc_op **ret_op)
{
	struct op_request request = {.kind = SHM_LIST};
	struct thc_op *op = NULL;
	int rc = list_check_flags(flags);

	if (rc < 0)
		return rc;
	if ((flags & THC_LIST_GROUP) == 0)
		return shim_fail(THC_E_INVALID,
			"flags: lacks THC_LIST_GROUP; a list without it is no operation: call "
			"thc_list");
	if (ret_op == NULL)
		return shim_fail(THC_E_INVALID, "ret_op: is NULL");
	rc = deadline_of(timeout_ms, &request.deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, ENTER_MEMBER);
	if (rc < 0)
		return rc;
	rc = op_submit(shard, &request, &op);
	if (rc == 0)
		*ret_op = op;
	shard_leave(shard);
	return rc;
}

void
thc_listing_free(struct thc_listing *listing)
{
	struct owned *owned = (struct owned *)listing;

	if (owned == NULL)
		return;
	list_forget(owned);
	free(owned->replies);
	free(owned->versions);
	free(owned->replicas);
	free(owned);
}
