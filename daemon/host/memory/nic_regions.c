/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_regions - see nic_regions.h. Main thread only.
 */
#include "daemon/host/memory/nic_regions.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/memory/host_pool.h"
#include "daemon/host/memory/mem_available.h"
#include "ipc/base/checked.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/part/fd_memory.h"
#include "transport/part/packed.h"
#include "transport/rdma/device/rail_places.h"

/* As xfer_part_set_no_rdma wants them. */
#define NO_ROOM "its host has no room for a buffer for its small tensors"
#define NO_DMABUF "its GPU memory has no dma-buf"
#define NOT_FILLED "its memory was not filled yet, and its host has no room to register it as it is"

static bool
is_large(const struct tensors *tensors, uint32_t row)
{
	return tensors->manifest.rows[row].bytes >= MANIFEST_SMALL_BYTES;
}

/* What a shard is covered with. */
struct cover {
	const struct regions *regions;
	struct tensors *tensors;
	struct memory_set *memory;
	const char *label;
	struct memory **dmabufs; /* owns */
	uint32_t num_dmabufs;
};

static bool
lies_on_gpu(const struct cover *cover, uint32_t row)
{
	const struct xfer_place *place = &cover->tensors->places[row];
	return place->access && !place->data && fd_memory_space(place->access);
}

static struct memory *
dmabuf_of(const struct cover *cover, uint32_t row)
{
	return memory_dmabuf_of(cover->dmabufs, cover->num_dmabufs,
		cover->tensors->places[row].place, cover->tensors->manifest.rows[row].bytes);
}

/*
 * One row that no NIC reaches is enough: then the shard goes another way, all of it. Small ones of
 * GPUs go through the packed buffer as all others do.
 */
static bool
all_reached(const struct cover *cover)
{
	struct tensors *tensors = cover->tensors;
	for (uint32_t row = 0; row < tensors->manifest.num_rows; row++) {
		if (tensors->manifest.rows[row].bytes == 0 || tensors->places[row].data)
			continue;
		if (!lies_on_gpu(cover, row))
			return false;
		if (is_large(tensors, row) && !dmabuf_of(cover, row)) {
			tensors->no_rdma = NO_DMABUF;
			return false;
		}
	}
	return true;
}

/* ---- the packed buffer ----------------------------------------------------------------------- */

/*
 * All buffers together take at most half of what there would be without them: a shard of nothing
 * but small tensors needs as much again as it is large.
 */
static bool
is_room_for_packed(const struct regions *regions, uint64_t bytes)
{
	uint64_t all, used = packed_size_all();
	if (!th_add_u64(room_now(regions->root), used, &all))
		return true;
	return used <= all / 2 && bytes <= all / 2 - used;
}

/* Whether there is nothing left to do about it. */
static bool
cover_small(const struct regions *regions, struct tensors *tensors, const char *label)
{
	char size[TH_UNITS_BYTES];
	uint64_t bytes = packed_bytes(tensors->table);
	if (bytes == 0 || tensors->packed)
		return true;
	struct packed *packed =
		is_room_for_packed(regions, bytes) ? packed_new(tensors->table) : NULL;
	if (!packed) {
		tensors->no_rdma = NO_ROOM;
		if (!tensors->told)
			log_warn("rdma",
				"%s: its small tensors need a buffer of %s, and all such buffers "
				"may take half of the memory that is available; all of it goes "
				"through the agent's own buffers",
				label, th_print_size_short(bytes, size));
		return false;
	}
	packed_register(packed, regions->rails,
		regions->near(regions->arg, packed_data(packed), packed_size(packed)));
	tensors->packed = packed;
	return true;
}

/* ---- a worker's memory ----------------------------------------------------------------------- */

static bool
cover_object(const struct regions *regions, struct memory *object, const char *label, bool told)
{
	char size[TH_UNITS_BYTES], room[TH_UNITS_BYTES];
	if (object->region)
		return true;
	uint64_t missing = memory_missing(object);
	uint64_t now = missing > 0 ? room_now(regions->root) : 0;
	now -= th_min_u64(now, memory_populating());
	if (missing > now / 2) {
		if (!told)
			log_info("rdma",
				"%s: not registered yet: %s of its memory have no page, and %s "
				"are available to this agent; it is tried again when they are "
				"published",
				label, th_print_size_short(missing, size),
				th_print_size_short(now, room));
		return false;
	}
	memory_register(object, regions->rails,
		regions->near(regions->arg, object->map, object->map_bytes));
	return true;
}

/* It is known as soon as the GPU's process has begun. */
uint32_t
regions_near_gpu(const struct regions *regions, const uint8_t uuid[16])
{
	struct gpu_status statuses[GPUS_MAX];
	uint32_t count = regions->gpus ? gpus_status(regions->gpus, statuses, GPUS_MAX) : 0;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t pci;
		if (memcmp(statuses[i].uuid, uuid, sizeof(statuses[i].uuid)) == 0 &&
			place_pci(statuses[i].pci, &pci))
			return regions->near_pci(regions->arg, pci);
	}
	return UINT32_MAX;
}

static void
cover_gpu_row(const struct cover *cover, uint32_t row)
{
	struct xfer_place *place = &cover->tensors->places[row];
	struct memory *object = dmabuf_of(cover, row);
	if (!object->region)
		memory_register(object, cover->regions->rails,
			regions_near_gpu(
				cover->regions, gpu_space_uuid(fd_memory_space(place->access))));
	place->region = object->region;
	place->region_at = place->place - object->base;
}

static bool
cover_large(const struct cover *cover)
{
	struct tensors *tensors = cover->tensors;
	uint32_t refused = 0; /* the last one: it is asked about once, not for each row */
	bool all = true;
	for (uint32_t row = 0; row < tensors->manifest.num_rows; row++) {
		struct xfer_place *place = &tensors->places[row];
		uint32_t id = tensors->memory_ids[row];
		if (!is_large(tensors, row) || place->region)
			continue;
		if (lies_on_gpu(cover, row)) {
			cover_gpu_row(cover, row);
			all = all && place->region;
			continue;
		}
		struct memory *object = id != refused ? memory_object(cover->memory, id) : NULL;
		if (!object || !cover_object(cover->regions, object, cover->label, tensors->told)) {
			refused = id;
			all = false;
			tensors->no_rdma = NOT_FILLED;
			continue;
		}
		place->region = object->region;
		place->region_at = (uint64_t)(place->data - (uint8_t *)object->map);
	}
	return all;
}

void
regions_cover(const struct regions *regions, struct tensors *tensors, struct memory_set *memory,
	const char *label)
{
	struct cover cover = {
		.regions = regions, .tensors = tensors, .memory = memory, .label = label};
	if (!regions->rails || tensors->covered)
		return;
	tensors->no_rdma = NULL;
	if (tensors->gpus != 0)
		cover.dmabufs = memory_dmabufs(memory, &cover.num_dmabufs);
	tensors->covered = !all_reached(&cover) ||
			   (cover_large(&cover) && cover_small(regions, tensors, label));
	tensors->told = true;
	free(cover.dmabufs);
}

/* ---- an offloaded copy ----------------------------------------------------------------------- */

void
regions_cover_offload(
	const struct regions *regions, struct tensors *tensors, struct offload_memory *memory)
{
	bool any = false;
	if (!regions->rails || tensors->covered)
		return;
	tensors->no_rdma = NULL;
	for (uint32_t row = 0; row < tensors->manifest.num_rows; row++)
		any = any || is_large(tensors, row);
	if (any && !offload_region(memory))
		offload_register(memory, regions->rails,
			regions->near(regions->arg, offload_data(memory), offload_bytes(memory)));
	for (uint32_t row = 0; row < tensors->manifest.num_rows; row++) {
		struct xfer_place *place = &tensors->places[row];
		if (!is_large(tensors, row))
			continue;
		place->region = offload_region(memory);
		place->region_at = (uint64_t)(place->data - offload_data(memory));
	}
	tensors->covered = cover_small(regions, tensors, "an offloaded copy");
	tensors->told = true;
}
