/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_rdma - see status_rdma.h. Main thread only.
 */
#include "daemon/host/status/status_rdma.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/host/host.h"
#include "daemon/host/worker/doc_channel.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/device/gid.h"
#include "transport/rdma/device/memlock.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/memory/stage.h"
#include "transport/rdma/rdma.h"

#define STATUS_PATHS_MAX 64u /* those used last: all of a large cluster are no answer */

struct rail_storage {
	Tensorhub__V1__RailInfo info;
	struct rail_status status;
	char address[GID_TEXT_BYTES];
};

struct path_storage {
	Tensorhub__V1__PathInfo info;
	struct path path;
	char peer[GID_TEXT_BYTES];
};

struct status_rdma {
	Tensorhub__V1__RdmaInfo info;
	struct fabric fabric; /* a copy: its texts */
	uint32_t num_rails;
	struct rail_storage rails[RAILS_MAX];
	Tensorhub__V1__RailInfo *rail_list[RAILS_MAX];
	struct path_storage paths[STATUS_PATHS_MAX];
	Tensorhub__V1__PathInfo *path_list[STATUS_PATHS_MAX];
};

static const char *
link_text(enum verbs_link link)
{
	static const char *const names[] = {"", "infiniband", "ethernet"};
	return names[link];
}

static void
fill_rail(const struct host *host, uint32_t rail, struct rail_storage *storage)
{
	static const char *const states[] = {"down", "up", "gone"};
	const struct rail_status *status = &storage->status;
	Tensorhub__V1__RailInfo *info = &storage->info;
	struct fabric_rail counts;
	rail_status(host->regions.rails, rail, &storage->status);
	fabric_rail(host, rail, &counts);
	tensorhub__v1__rail_info__init(info);
	info->name = documents_text(status->name);
	info->pci = documents_text(status->pci);
	info->on_node = counts.node >= 0;
	info->node = counts.node >= 0 ? (uint32_t)counts.node : 0;
	info->state = documents_text(states[status->state]);
	info->why = documents_text(status->why[0] ? status->why : status->failed_why);
	info->link = documents_text(link_text(status->port.link));
	if (status->state == RAIL_UP) {
		info->address = documents_text(gid_text(status->gid.raw, storage->address));
		info->address_type = documents_text(gid_type_text(status->gid.type));
	}
	info->mtu = status->port.mtu_bytes;
	info->depth = th_min_u32(status->info.reads_out_max, host->options.rdma.depth);
	info->bits_per_second = status->port.bits_per_second;
	info->bytes_in = counts.bytes;
	info->reads = counts.reads;
	info->bytes_registered = status->bytes_registered;
	info->registrations = status->num_mrs;
	info->relaxed_ordering = status->info.relaxed_ordering;
	info->dma_buf = status->info.dmabuf;
	info->changes = status->changes;
}

static void
fill_path(const struct host *host, const struct path *path, struct path_storage *storage)
{
	Tensorhub__V1__PathInfo *info = &storage->info;
	storage->path = *path;
	tensorhub__v1__path_info__init(info);
	info->rail = documents_text(rail_name(host->regions.rails, path->rail));
	info->host = storage->path.host;
	info->peer = documents_text(gid_text(path->peer.gid, storage->peer));
	info->bytes = path->bytes;
	info->legs = path->legs;
	info->failures = path->failures;
	if (path->paused_until_ns != 0)
		info->paused_ns = th_max_i64(path->paused_until_ns - th_now_ns(), 0);
	info->why = storage->path.why;
}

static void
fill_paths(const struct host *host, struct status_rdma *status)
{
	struct path *paths = th_calloc(STATUS_PATHS_MAX, sizeof(*paths));
	struct rdma *rdma = transport_rdma(host->transport);
	uint32_t count = paths_list(rdma_paths(rdma), paths, STATUS_PATHS_MAX);
	for (uint32_t i = 0; i < count; i++) {
		fill_path(host, &paths[i], &status->paths[i]);
		status->path_list[i] = &status->paths[i].info;
	}
	status->info.paths = status->path_list;
	status->info.n_paths = count;
	free(paths);
}

static void
fill_stage(const struct host *host, Tensorhub__V1__RdmaInfo *info)
{
	struct rdma *rdma = transport_rdma(host->transport);
	struct stage_status status;
	if (!rdma || !rdma_stage(rdma))
		return;
	stage_status(rdma_stage(rdma), &status);
	info->stage_budget = status.budget_bytes;
	info->stage_bytes = status.bytes;
	info->stage_on_gpus = status.bytes_on_gpus;
	info->stage_in_use = status.bytes_in_use;
	info->stage_refused = status.refused;
}

struct status_rdma *
status_rdma_new(const struct host *host)
{
	struct status_rdma *status = th_calloc(1, sizeof(*status));
	Tensorhub__V1__RdmaInfo *info = &status->info;
	struct memlock memlock = {.limit_bytes = UINT64_MAX};
	status->fabric = host->fabric;
	tensorhub__v1__rdma_info__init(info);
	info->used = fabric_why_not(host) == NULL;
	info->why = status->fabric.why_not;
	struct transport_counters counters;
	transport_counters(host->transport, &counters);
	info->fallbacks = counters.rdma_fallbacks;
	info->last_fallback = status->fabric.last_fallback;
	info->copies = status->fabric.copies;
	info->last_copy = status->fabric.last_copy;
	fill_stage(host, info);
	if (memlock_read(&memlock) < 0)
		memlock.limit_bytes = UINT64_MAX;
	info->memlock_limit = memlock_unlimited(&memlock) ? UINT64_MAX : memlock.limit_bytes;
	info->memlock_used = memlock.locked_bytes;
	status->num_rails = host->regions.rails ? rails_count(host->regions.rails) : 0;
	info->rails = status->rail_list;
	info->n_rails = status->num_rails;
	for (uint32_t i = 0; i < status->num_rails; i++) {
		fill_rail(host, i, &status->rails[i]);
		status->rail_list[i] = &status->rails[i].info;
	}
	if (status->num_rails > 0)
		fill_paths(host, status);
	return status;
}

void
status_rdma_free(struct status_rdma *status)
{
	free(status);
}

Tensorhub__V1__RdmaInfo *
status_rdma_info(struct status_rdma *status)
{
	return &status->info;
}
