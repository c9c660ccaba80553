/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_tables - tables of nodes, workers, transfers, models, versions, replicas (see
 * cluster_tables.h).
 */
#include "tools/thctl/cluster_tables.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"

static struct value
version_value(struct th_version version)
{
	return th_version_none(version) ? value_none() : value_number(version.version);
}

static struct value
lineage_value(struct th_version version)
{
	return th_version_none(version) ? value_none() : value_number(version.lineage);
}

static bool
cluster_tables_is_wanted(const char *name, const char *model)
{
	return !model || strcmp(name, model) == 0;
}

void
cluster_nodes(struct document *document, const struct ctl_inspection *inspection)
{
	static const struct column columns[] = {
		{"node", "NODE", false},
		{"datacenter", "DATACENTER", false},
		{"state", "STATE", false},
		{"draining", "DRAINING", false},
		{"workers", "WORKERS", false},
		{"transfers_in", "IN", false},
		{"transfers_out", "OUT", false},
		{"silent_ns", "SILENT", false},
		{"address", "ADDRESS", true},
		{"spot", "SPOT", true},
	};

	document_table(document, "nodes", columns, TH_ARRAY_LEN(columns));
	for (uint32_t i = 0; i < inspection->num_nodes; i++) {
		const struct ctl_node_info *node = &inspection->nodes[i];
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(node->node),
			value_text(node->datacenter),
			value_text(node->state),
			value_flag(node->draining),
			value_number(node->members),
			value_number(node->legs_in),
			value_number(node->legs_out),
			value_duration(node->silent_ns),
			value_text(node->address),
			value_flag(node->spot),
		};
		document_row(document, row);
	}
}

struct value
cluster_flags(uint32_t flags)
{
	static const struct {
		uint32_t flag;
		const char *name;
	} names[] = {
		{CTL_OPEN_SPOT, "spot"},
		{CTL_OPEN_REQUIRE_RDMA, "require-rdma"},
		{CTL_OPEN_SEED, "offload-seed"},
		{CTL_OPEN_NO_MEMORY_FD, "no-memory-fd"},
		{CTL_OPEN_STAGED, "staged"},
		{CTL_OPEN_PREFETCH, "prefetch"},
	};
	char text[96] = "";
	size_t used = 0;

	for (size_t i = 0; i < TH_ARRAY_LEN(names); i++) {
		if ((flags & names[i].flag) != 0)
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s",
				used > 0 ? "," : "", names[i].name);
	}
	return value_text(text);
}

void
cluster_workers(
	struct document *document, const struct ctl_inspection *inspection, const char *model)
{
	static const struct column columns[] = {
		{"model", "MODEL", false},
		{"replica", "REPLICA", false},
		{"shard", "SHARD", false},
		{"num_shards", "SHARDS", false},
		{"node", "NODE", false},
		{"group", "GROUP", false},
		{"copy", "COPY", false},
		{"version", "VERSION", false},
		{"done", "DONE", false},
		{"bytes", "SIZE", false},
		{"why", "WHY", false},
		{"lineage", "LINEAGE", true},
		{"session", "SESSION", true},
		{"ready", "READY", true},
		{"flags", "FLAGS", true},
	};

	document_table(document, "workers", columns, TH_ARRAY_LEN(columns));
	for (uint32_t i = 0; i < inspection->num_members; i++) {
		const struct ctl_member_info *member = &inspection->members[i];
		if (!cluster_tables_is_wanted(member->model, model))
			continue;
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(member->model),
			value_text(member->replica),
			value_number(member->shard),
			value_number(member->num_shards),
			value_text(member->node),
			value_text(member->state),
			value_text(member->copy),
			version_value(member->version),
			value_ratio(member->chunks_done, member->chunks_total),
			value_bytes(member->bytes),
			value_text(member->why),
			lineage_value(member->version),
			value_number(member->sid),
			version_value(member->ready),
			cluster_flags(member->flags),
		};
		document_row(document, row);
	}
}

void
cluster_transfers(
	struct document *document, const struct ctl_inspection *inspection, const char *model)
{
	static const struct column columns[] = {
		{"model", "MODEL", false},
		{"version", "VERSION", false},
		{"shard", "SHARD", false},
		{"source", "SOURCE", false},
		{"reader", "READER", false},
		{"done", "DONE", false},
		{"path", "PATH", false},
		{"rate", "RATE", false},
		{"age_ns", "AGE", false},
		{"why", "WHY", false},
		{"source_node", "SOURCE NODE", true},
		{"reader_node", "READER NODE", true},
		{"lineage", "LINEAGE", true},
		{"leg", "LEG", true},
	};

	document_table(document, "transfers", columns, TH_ARRAY_LEN(columns));
	for (uint32_t i = 0; i < inspection->num_transfers; i++) {
		const struct ctl_transfer_info *transfer = &inspection->transfers[i];
		if (!cluster_tables_is_wanted(transfer->model, model))
			continue;
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(transfer->model),
			version_value(transfer->version),
			value_number(transfer->shard),
			value_text(transfer->source_replica),
			value_text(transfer->reader_replica),
			value_ratio(transfer->chunks_done, transfer->chunks_total),
			value_text(transfer->path.name),
			transfer->path.name[0] != '\0' ? value_rate(transfer->path.rate)
						       : value_none(),
			value_duration(transfer->age_ns),
			value_text(transfer->path.why),
			value_text(transfer->source_node),
			value_text(transfer->reader_node),
			lineage_value(transfer->version),
			value_number(transfer->leg),
		};
		document_row(document, row);
	}
}

void
cluster_counters(struct document *document, const struct ctl_inspection *inspection)
{
	static const struct column columns[] = {
		{"name", "COUNTER", false},
		{"value", "VALUE", false},
	};

	document_table(document, "counters", columns, TH_ARRAY_LEN(columns));
	document_table_wide(document);
	for (uint32_t i = 0; i < inspection->num_counters; i++) {
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(inspection->counters[i].name),
			value_number(inspection->counters[i].value),
		};
		document_row(document, row);
	}
}

/* ---- models --------------------------------------------------------------------------------- */

static int
cluster_tables_compare_names(const void *left, const void *right)
{
	return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sorts and keeps one of each. */
static uint32_t
unique_names(const char **names, uint32_t count)
{
	uint32_t kept = 0;

	qsort(names, count, sizeof(names[0]), cluster_tables_compare_names);
	for (uint32_t i = 0; i < count; i++) {
		if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0)
			names[kept++] = names[i];
	}
	return kept;
}

const char **
cluster_model_names(const struct ctl_inspection *inspection, uint32_t *ret_count)
{
	const char **names = th_calloc(inspection->num_members, sizeof(names[0]));

	for (uint32_t i = 0; i < inspection->num_members; i++)
		names[i] = inspection->members[i].model;
	*ret_count = unique_names(names, inspection->num_members);
	return names;
}

static uint32_t
cluster_tables_count_ready(const struct ctl_version_info *version)
{
	uint32_t ready = 0;

	for (uint32_t i = 0; i < version->num_replicas; i++)
		ready += (version->replicas[i].flags & (uint32_t)CTL_REPLICA_READY) != 0;
	return ready;
}

/* Ascending, so the last one with a ready copy. */
static struct th_version
latest_of(const struct ctl_listing *listing)
{
	struct th_version latest = {.version = TH_NO_VERSION};

	for (uint32_t i = 0; i < listing->num_versions; i++) {
		if (cluster_tables_count_ready(&listing->versions[i]) > 0)
			latest = listing->versions[i].version;
	}
	return latest;
}

struct counts { /* of one model */
	const char *model;
	uint64_t workers, replicas;
	UT_hash_handle hh;
};

static int
by_model_and_replica(const void *left, const void *right)
{
	const struct ctl_member_info *a = *(const struct ctl_member_info *const *)left;
	const struct ctl_member_info *b = *(const struct ctl_member_info *const *)right;
	int order = strcmp(a->model, b->model);

	return order != 0 ? order : strcmp(a->replica, b->replica);
}

/* Of all models at once: there may be thousands of both. */
static struct counts *
count_members(const struct ctl_inspection *inspection)
{
	uint32_t count = inspection->num_members;
	const struct ctl_member_info **sorted = th_calloc(count, sizeof(sorted[0]));
	struct counts *all = NULL, *last = NULL;

	for (uint32_t i = 0; i < count; i++)
		sorted[i] = &inspection->members[i];
	qsort(sorted, count, sizeof(sorted[0]), by_model_and_replica);
	for (uint32_t i = 0; i < count; i++) {
		if (!last || strcmp(last->model, sorted[i]->model) != 0) {
			last = th_calloc(1, sizeof(*last));
			last->model = sorted[i]->model;
			HASH_ADD_KEYPTR(hh, all, last->model, strlen(last->model), last);
		}
		last->replicas += last->workers == 0 ||
				  strcmp(sorted[i - 1]->replica, sorted[i]->replica) != 0;
		last->workers++;
	}
	free(sorted);
	return all;
}

static void
counts_free(struct counts *all)
{
	struct counts *one, *next;

	HASH_ITER(hh, all, one, next)
	{
		HASH_DEL(all, one);
		free(one);
	}
}

void
cluster_models(struct document *document, const struct ctl_inspection *inspection,
	const struct cluster_model *models, uint32_t count)
{
	static const struct column columns[] = {
		{"model", "MODEL", false},
		{"latest", "LATEST", false},
		{"versions", "VERSIONS", false},
		{"replicas", "REPLICAS", false},
		{"workers", "WORKERS", false},
		{"lineage", "LINEAGE", true},
	};

	struct counts *all = count_members(inspection);
	document_table(document, "models", columns, TH_ARRAY_LEN(columns));
	for (uint32_t i = 0; i < count; i++) {
		const struct cluster_model *model = &models[i];
		struct counts none = {0}, *found = NULL;
		HASH_FIND_STR(all, model->name, found);
		if (!found)
			found = &none;
		struct th_version latest = latest_of(&model->listing);
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(model->name),
			version_value(latest),
			value_number(model->listing.num_versions),
			value_number(found->replicas),
			value_number(found->workers),
			lineage_value(latest),
		};
		document_row(document, row);
	}
	counts_free(all);
}

/* ---- versions ------------------------------------------------------------------------------- */

#define BROUGHT_KEY_BYTES (TH_NAME_MAX + 48)

struct brought { /* workers for whom versions are brought: of a model, or those with a version */
	char key[BROUGHT_KEY_BYTES];
	uint64_t workers;
	UT_hash_handle hh;
};

/* Version none: of the model. */
static struct brought *
brought_find(struct brought *all, const char *model, struct th_version version,
	char ret_key[BROUGHT_KEY_BYTES])
{
	struct brought *found = NULL;

	snprintf(ret_key, BROUGHT_KEY_BYTES, "%" PRIu64 " %" PRIu64 " %s", version.lineage,
		version.version, model);
	HASH_FIND_STR(all, ret_key, found);
	return found;
}

static uint64_t
brought_count(struct brought *all, const char *model, struct th_version version)
{
	char key[BROUGHT_KEY_BYTES];
	const struct brought *found = brought_find(all, model, version, key);

	return found ? found->workers : 0;
}

static void
brought_add(struct brought **all, const char *model, struct th_version version)
{
	char key[BROUGHT_KEY_BYTES];
	struct brought *found = brought_find(*all, model, version, key);

	if (!found) {
		found = th_calloc(1, sizeof(*found));
		memcpy(found->key, key, sizeof(key));
		HASH_ADD_STR(*all, key, found);
	}
	found->workers++;
}

/* Who has installed it already has it, too. */
static struct brought *
count_brought(const struct ctl_inspection *inspection)
{
	const struct th_version none = {.version = TH_NO_VERSION};
	struct brought *all = NULL;

	for (uint32_t i = 0; i < inspection->num_members; i++) {
		const struct ctl_member_info *member = &inspection->members[i];
		if ((member->flags & (CTL_OPEN_PREFETCH | CTL_OPEN_SEED)) == 0)
			continue;
		brought_add(&all, member->model, none);
		bool holds = strcmp(member->copy, "ready") == 0;
		if (!th_version_none(member->ready))
			brought_add(&all, member->model, member->ready);
		if (holds && th_version_compare(member->version, member->ready) != 0)
			brought_add(&all, member->model, member->version);
	}
	return all;
}

static void
brought_free(struct brought *all)
{
	struct brought *one, *next;

	HASH_ITER(hh, all, one, next)
	{
		HASH_DEL(all, one);
		free(one);
	}
}

void
cluster_versions(struct document *document, const struct ctl_inspection *inspection,
	const struct cluster_model *models, uint32_t count)
{
	const struct th_version none = {.version = TH_NO_VERSION};
	static const struct column columns[] = {
		{"model", "MODEL", false},
		{"version", "VERSION", false},
		{"replicas", "REPLICAS", false},
		{"ready", "READY", false},
		{"retained", "RETAINED", false},
		{"prefetched", "PREFETCHED", false},
		{"prefetching", "OF", false},
		{"lineage", "LINEAGE", true},
	};

	struct brought *brought = count_brought(inspection);
	document_table(document, "versions", columns, TH_ARRAY_LEN(columns));
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t j = 0; j < models[i].listing.num_versions; j++) {
			const struct ctl_version_info *version = &models[i].listing.versions[j];
			const struct value row[TH_ARRAY_LEN(columns)] = {
				value_text(models[i].name),
				version_value(version->version),
				value_number(version->num_replicas),
				value_number(cluster_tables_count_ready(version)),
				value_flag(version->retained),
				value_number(
					brought_count(brought, models[i].name, version->version)),
				value_number(brought_count(brought, models[i].name, none)),
				lineage_value(version->version),
			};
			document_row(document, row);
		}
	}
	brought_free(brought);
}

/* ---- replicas ------------------------------------------------------------------------------- */

static const char *
replica_state(uint32_t flags)
{
	if (flags & (uint32_t)CTL_REPLICA_DRAINING)
		return "draining";
	if (flags & (uint32_t)CTL_REPLICA_OFFLOAD)
		return "offload";
	return flags & (uint32_t)CTL_REPLICA_READY ? "ready" : "filling";
}

struct seen { /* a replica that has its row, by name */
	const char *replica;
	UT_hash_handle hh;
};

/* False: it was seen before. */
static bool
see(struct seen **all, const char *replica)
{
	struct seen *found = NULL;

	HASH_FIND_STR(*all, replica, found);
	if (found)
		return false;
	found = th_calloc(1, sizeof(*found));
	found->replica = replica;
	HASH_ADD_KEYPTR(hh, *all, found->replica, strlen(replica), found);
	return true;
}

static void
seen_free(struct seen *all)
{
	struct seen *one, *next;

	HASH_ITER(hh, all, one, next)
	{
		HASH_DEL(all, one);
		free(one);
	}
}

static const struct column replica_columns[] = {
	{"model", "MODEL", false},
	{"replica", "REPLICA", false},
	{"num_shards", "SHARDS", false},
	{"state", "STATE", false},
	{"version", "VERSION", false},
	{"done", "DONE", false},
	{"datacenter", "DATACENTER", false},
	{"spot", "SPOT", true},
	{"lineage", "LINEAGE", true},
};

static void
add_copies(struct document *document, const char *model, const struct ctl_version_info *version)
{
	for (uint32_t i = 0; i < version->num_replicas; i++) {
		const struct ctl_replica_info *replica = &version->replicas[i];
		const struct value row[TH_ARRAY_LEN(replica_columns)] = {
			value_text(model),
			value_text(replica->name),
			value_number(replica->num_shards),
			value_text(replica_state(replica->flags)),
			version_value(version->version),
			value_ratio(replica->chunks_done, replica->chunks_total),
			value_text(replica->datacenter),
			value_flag((replica->flags & (uint32_t)CTL_REPLICA_SPOT) != 0),
			lineage_value(version->version),
		};
		document_row(document, row);
	}
}

/* One row a replica that is not listed, not one a shard. */
static void
add_empty(struct document *document, const struct ctl_inspection *inspection,
	const struct cluster_model *model)
{
	const struct ctl_listing *listing = &model->listing;
	struct seen *seen = NULL;

	for (uint32_t i = 0; i < listing->num_versions; i++) {
		for (uint32_t j = 0; j < listing->versions[i].num_replicas; j++)
			see(&seen, listing->versions[i].replicas[j].name);
	}
	for (uint32_t i = 0; i < inspection->num_members; i++) {
		const struct ctl_member_info *member = &inspection->members[i];
		if (!cluster_tables_is_wanted(member->model, model->name) ||
			!see(&seen, member->replica))
			continue;
		const struct value row[TH_ARRAY_LEN(replica_columns)] = {
			value_text(model->name),
			value_text(member->replica),
			value_number(member->num_shards),
			value_text(strcmp(member->state, "live") == 0 ? "empty" : member->state),
		};
		document_row(document, row);
	}
	seen_free(seen);
}

void
cluster_replicas(struct document *document, const struct ctl_inspection *inspection,
	const struct cluster_model *models, uint32_t count)
{
	document_table(document, "replicas", replica_columns, TH_ARRAY_LEN(replica_columns));
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t j = 0; j < models[i].listing.num_versions; j++)
			add_copies(document, models[i].name, &models[i].listing.versions[j]);
		add_empty(document, inspection, &models[i]);
	}
}

/* ---- verdict -------------------------------------------------------------------------------- */

void
cluster_judge(struct document *document, const struct ctl_inspection *inspection)
{
	for (uint32_t i = 0; i < inspection->num_nodes; i++) {
		const struct ctl_node_info *node = &inspection->nodes[i];
		/* A drained node is to be switched off: that it is, is no news. */
		if (strcmp(node->state, "active") != 0 &&
			!(node->draining && strcmp(node->state, "dead") == 0))
			document_warn(document, "TH_NODE_SILENT", "thctl ls nodes",
				"node %s is %s: its agent sends no heartbeats", node->node,
				node->state);
	}
	for (uint32_t i = 0; i < inspection->num_members; i++) {
		const struct ctl_member_info *member = &inspection->members[i];
		if (strcmp(member->state, "broken") == 0)
			document_warn(document, "TH_GROUP_BROKEN", "thctl ls workers",
				"replica %s of model %s lost a member: shard %u on %s must be "
				"opened "
				"again",
				member->replica, member->model, member->shard, member->node);
	}
	for (uint32_t i = 0; i < inspection->num_counters; i++) {
		const struct ctl_counter *counter = &inspection->counters[i];
		if (strcmp(counter->name, "versions_at_risk") == 0 && counter->value > 0)
			document_warn(document, "TH_AT_RISK", "thctl events",
				"retained versions of which no host that stays has a copy, or "
				"has room for one: %" PRIu64,
				counter->value);
	}
}
