/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot - see snapshot.h.
 *
 * A part is a run of entries whose bytes on the wire cannot be more than config.part_bytes. The
 * bounds count every field at its longest, because this core does not know the encoding.
 */
#include "server/core/view/snapshot.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"

#define SECOND_NS INT64_C(1000000000)
#define IDLE_NS (10 * SECOND_NS) /* a reader that asks for no further part has gone        */
#define AGE_NS (60 * SECOND_NS)  /* nobody takes so long for what is bounded in bytes      */
#define PER_OWNER_MAX 16u        /* the oldest gives way: one asker must not drive all out */

/* A number of 64 bits takes 10 bytes and its tag; a text its tag, its length and itself. */
#define NUMBER_BYTES 11u
#define TEXT_BYTES 4u
#define HEAD_BYTES 256u /* of the envelope, and what an answer has once */

/* ---- the table ------------------------------------------------------------------------------ */

static void
snapshot_drop(struct refsrv *server, struct snapshot *snapshot)
{
	TH_ASSERT(snapshot->references == 0);
	server->snapshot_bytes -= snapshot->bytes;
	HASH_DELETE(hh, server->snapshots, snapshot);
	free(snapshot);
}

/* The one that has not been read for the longest; only_of: of this owner. NULL: all are held. */
static struct snapshot *
oldest(const struct refsrv *server, const uint64_t *only_of, uint32_t *ret_count)
{
	struct snapshot *found = NULL;

	*ret_count = 0;
	for (struct snapshot *one = server->snapshots; one != NULL; one = one->hh.next) {
		if (one->references > 0 || (only_of != NULL && one->owner != *only_of))
			continue;
		++*ret_count;
		if (found == NULL || one->used_ns < found->used_ns)
			found = one;
	}
	return found;
}

static int
snapshot_make_room(struct refsrv *server, uint64_t owner, uint64_t bytes, struct th_err *err)
{
	uint32_t count;
	struct snapshot *victim = oldest(server, &owner, &count);

	if (count >= PER_OWNER_MAX)
		snapshot_drop(server, victim);
	while (server->snapshot_bytes + bytes > server->config.snapshot_bytes_max) {
		victim = oldest(server, NULL, &count);
		if (victim == NULL || bytes > server->config.snapshot_bytes_max)
			return th_fail(err, TH_E_LIMIT,
				"a listing needs %" PRIu64 " bytes for its snapshot, and %" PRIu64
				" are held for groups whose members have not all moved on; the "
				"limit is %" PRIu64 " (limit.snapshot_bytes): call again later",
				bytes, server->snapshot_bytes, server->config.snapshot_bytes_max);
		snapshot_drop(server, victim);
	}
	return 0;
}

int
snapshot_new(struct refsrv *server, uint64_t owner, const char *model, uint64_t array_bytes,
	struct th_err *err, struct snapshot **ret_snapshot)
{
	uint64_t bytes = sizeof(struct snapshot) + array_bytes;
	int rc = snapshot_make_room(server, owner, bytes, err);

	if (rc != 0)
		return rc;
	struct snapshot *snapshot = th_calloc(1, bytes);
	/* Random at the start of this life: a number of an earlier one means nothing here. */
	if (++server->last_snapshot == 0)
		++server->last_snapshot;
	snapshot->id = server->last_snapshot;
	snapshot->owner = owner;
	snapshot->bytes = bytes;
	snapshot->made_ns = snapshot->used_ns = server->now_ns;
	snapshot->inspection = model == NULL;
	if (model != NULL)
		memcpy(snapshot->model, model, strnlen(model, TH_NAME_MAX));
	server->snapshot_bytes += bytes;
	server->counters.snapshots++;
	HASH_ADD(hh, server->snapshots, id, sizeof(snapshot->id), snapshot);
	refsrv_wake_at(server, th_deadline_ns(server->now_ns, IDLE_NS));
	*ret_snapshot = snapshot;
	return 0;
}

int
snapshot_find(struct refsrv *server, uint64_t id, const char *model, struct th_err *err,
	struct snapshot **ret_snapshot)
{
	struct snapshot *snapshot = NULL;

	HASH_FIND(hh, server->snapshots, &id, sizeof(id), snapshot);
	if (snapshot == NULL || snapshot->inspection != (model == NULL) ||
		(model != NULL && strcmp(model, snapshot->model) != 0))
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"the server does not keep snapshot %" PRIu64 " any more: begin again", id);
	*ret_snapshot = snapshot;
	return 0;
}

struct snapshot *
snapshot_same(struct refsrv *server, const struct model *model)
{
	for (struct snapshot *one = server->snapshots; one != NULL; one = one->hh.next) {
		if (!one->inspection && one->revision == model->revision &&
			strcmp(one->model, model->name) == 0)
			return one;
	}
	return NULL;
}

void
snapshot_hold(struct snapshot *snapshot)
{
	snapshot->references++;
}

void
snapshot_let_go(struct refsrv *server, struct snapshot *snapshot)
{
	if (snapshot == NULL)
		return;
	TH_ASSERT(snapshot->references > 0);
	snapshot->references--;
	if (snapshot->references == 0 && snapshot->whole)
		snapshot_drop(server, snapshot); /* nobody comes for a second part */
	else
		refsrv_wake_at(server, th_deadline_ns(server->now_ns, IDLE_NS));
}

static int64_t
end_of(const struct snapshot *snapshot)
{
	return th_min_i64(th_deadline_ns(snapshot->made_ns, AGE_NS),
		th_deadline_ns(snapshot->used_ns, IDLE_NS));
}

void
snapshot_timers(struct refsrv *server)
{
	struct snapshot *snapshot, *next;

	HASH_ITER(hh, server->snapshots, snapshot, next)
	{
		if (snapshot->references > 0)
			continue;
		if (server->now_ns >= end_of(snapshot))
			snapshot_drop(server, snapshot);
		else
			refsrv_wake_at(server, end_of(snapshot));
	}
}

void
snapshot_free_all(struct refsrv *server)
{
	struct snapshot *snapshot, *next;

	HASH_ITER(hh, server->snapshots, snapshot, next)
	{
		snapshot_drop(server, snapshot);
	}
}

/* ---- parts ---------------------------------------------------------------------------------- */

bool
snapshot_is_whole(const struct refsrv *server, uint64_t bytes)
{
	return bytes <= server->config.part_bytes - HEAD_BYTES;
}

static uint64_t
text_bytes(const char *text)
{
	return TEXT_BYTES + strlen(text);
}

uint64_t
snapshot_version_bytes(void)
{
	return TEXT_BYTES + TEXT_BYTES + 3 * NUMBER_BYTES;
}

uint64_t
snapshot_replica_bytes(const struct ctl_replica_info *info)
{
	return TEXT_BYTES + text_bytes(info->name) + text_bytes(info->datacenter) +
	       4 * NUMBER_BYTES;
}

static uint64_t
node_bytes(const struct ctl_node_info *info)
{
	return TEXT_BYTES + text_bytes(info->node) + text_bytes(info->datacenter) +
	       text_bytes(info->address) + text_bytes(info->state) + 5 * NUMBER_BYTES;
}

static uint64_t
member_bytes(const struct ctl_member_info *info)
{
	return TEXT_BYTES + text_bytes(info->model) + text_bytes(info->replica) +
	       text_bytes(info->node) + text_bytes(info->state) + text_bytes(info->copy) +
	       text_bytes(info->why) + 2 * TEXT_BYTES + 11 * NUMBER_BYTES;
}

static uint64_t
transfer_bytes(const struct ctl_transfer_info *info)
{
	return TEXT_BYTES + text_bytes(info->model) + text_bytes(info->source_replica) +
	       text_bytes(info->source_node) + text_bytes(info->reader_replica) +
	       text_bytes(info->reader_node) + text_bytes(info->path.name) +
	       text_bytes(info->path.why) + TEXT_BYTES + 8 * NUMBER_BYTES;
}

uint64_t
snapshot_inspection_bytes(const struct ctl_inspection *inspection)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < inspection->num_nodes; i++)
		bytes += node_bytes(&inspection->nodes[i]);
	for (uint32_t i = 0; i < inspection->num_members; i++)
		bytes += member_bytes(&inspection->members[i]);
	for (uint32_t i = 0; i < inspection->num_transfers; i++)
		bytes += transfer_bytes(&inspection->transfers[i]);
	return bytes;
}

struct cut {            /* a part that is being filled */
	uint64_t at;    /* the entry that comes next, of all kinds together */
	uint64_t first; /* of the part */
	uint64_t bytes, bytes_max;
	bool full;
};

static struct cut
cut_begin(const struct refsrv *server, uint64_t next)
{
	return (struct cut){.first = next, .bytes_max = server->config.part_bytes - HEAD_BYTES};
}

/* True: the entry belongs to the part. One always does, so that every part is progress. */
static bool
cut_takes(struct cut *cut, uint64_t bytes)
{
	if (cut->full)
		return false;
	if (cut->at < cut->first) {
		cut->at++;
		return false;
	}
	if (cut->at > cut->first && cut->bytes + bytes > cut->bytes_max) {
		cut->full = true;
		return false;
	}
	cut->at++;
	cut->bytes += bytes;
	return true;
}

static int
cut_end(const struct snapshot *snapshot, const struct cut *cut, struct ctl_page *ret_page,
	struct th_err *err)
{
	/* An empty one has one part, which is empty. */
	if (cut->at <= cut->first && cut->first > 0)
		return th_fail(err, TH_E_INVALID, "snapshot %" PRIu64 " has no entry %" PRIu64,
			snapshot->id, cut->first);
	*ret_page = (struct ctl_page){
		.snapshot = snapshot->whole ? 0 : snapshot->id,
		.next = cut->full ? cut->at : 0,
	};
	return 0;
}

int
snapshot_listing_part(struct refsrv *server, struct snapshot *snapshot, uint64_t next,
	struct ctl_listing *ret_part, struct th_err *err)
{
	const struct ctl_listing *all = &snapshot->u.listing;
	struct cut cut = cut_begin(server, next);
	struct ctl_version_info *versions =
		refsrv_scratch(server, all->num_versions, sizeof(*versions));
	uint32_t num_versions = 0;

	for (uint32_t v = 0; v < all->num_versions && !cut.full; v++) {
		const struct ctl_version_info *from = &all->versions[v];
		struct ctl_version_info *to = &versions[num_versions];
		if (cut.at + from->num_replicas <= cut.first) {
			cut.at += from->num_replicas;
			continue;
		}
		*to = *from;
		to->num_replicas = 0;
		for (uint32_t r = 0; r < from->num_replicas && !cut.full; r++) {
			uint64_t bytes = snapshot_replica_bytes(&from->replicas[r]);
			if (to->num_replicas == 0)
				bytes += snapshot_version_bytes();
			if (!cut_takes(&cut, bytes))
				continue;
			if (to->num_replicas++ == 0)
				to->replicas = &from->replicas[r];
		}
		num_versions += to->num_replicas > 0;
	}
	snapshot->used_ns = server->now_ns;
	*ret_part = (struct ctl_listing){
		.generation = all->generation,
		.num_versions = num_versions,
		.versions = versions,
	};
	return cut_end(snapshot, &cut, &ret_part->page, err);
}

int
snapshot_inspection_part(struct refsrv *server, struct snapshot *snapshot, uint64_t next,
	struct ctl_inspection *ret_part, struct th_err *err)
{
	const struct ctl_inspection *all = &snapshot->u.inspection;
	struct cut cut = cut_begin(server, next);
	struct ctl_inspection part = *all;

	part.num_nodes = part.num_members = part.num_transfers = 0;
	for (uint32_t i = 0; i < all->num_nodes && !cut.full; i++)
		if (cut_takes(&cut, node_bytes(&all->nodes[i])) && part.num_nodes++ == 0)
			part.nodes = &all->nodes[i];
	for (uint32_t i = 0; i < all->num_members && !cut.full; i++)
		if (cut_takes(&cut, member_bytes(&all->members[i])) && part.num_members++ == 0)
			part.members = &all->members[i];
	for (uint32_t i = 0; i < all->num_transfers && !cut.full; i++)
		if (cut_takes(&cut, transfer_bytes(&all->transfers[i])) &&
			part.num_transfers++ == 0)
			part.transfers = &all->transfers[i];
	snapshot->used_ns = server->now_ns;
	*ret_part = part;
	return cut_end(snapshot, &cut, &ret_part->page, err);
}
