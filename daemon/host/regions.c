/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regions - see regions.h. Main thread only.
 */
#include "daemon/host/regions.h"

#include <inttypes.h>

#include "daemon/host/offload.h"
#include "daemon/host/room.h"
#include "ipc/base/checked.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "transport/rdma/packed.h"

/* As xfer_part_set_no_rdma wants them. */
#define NO_ROOM "its host has no room for a buffer for its small tensors"
#define NOT_FILLED "its memory was not filled yet, and its host has no room to register it as it is"

uint32_t
regions_near_all(void *arg, const void *data, uint64_t bytes)
{
	(void)arg;
	(void)data;
	(void)bytes;
	return UINT32_MAX;
}

static bool
is_large(const struct tensors *tensors, uint32_t row)
{
	return tensors->manifest.rows[row].bytes >= MANIFEST_SMALL_BYTES;
}

/* One row that no NIC reaches is enough: then the shard goes another way, all of it. */
static bool
all_mapped(const struct tensors *tensors)
{
	for (uint32_t row = 0; row < tensors->manifest.num_rows; row++) {
		if (tensors->manifest.rows[row].bytes > 0 && !tensors->places[row].data)
			return false;
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

static bool
cover_large(const struct regions *regions, struct tensors *tensors, struct memory_set *memory,
	const char *label)
{
	uint32_t refused = 0; /* the last one: it is asked about once, not for each row */
	bool all = true;
	for (uint32_t row = 0; row < tensors->manifest.num_rows; row++) {
		struct xfer_place *place = &tensors->places[row];
		uint32_t id = tensors->memory_ids[row];
		if (!is_large(tensors, row) || place->region)
			continue;
		struct memory *object = id != refused ? memory_object(memory, id) : NULL;
		if (!object || !cover_object(regions, object, label, tensors->told)) {
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
	if (!regions->rails || tensors->covered)
		return;
	tensors->no_rdma = NULL;
	tensors->covered = !all_mapped(tensors) || (cover_large(regions, tensors, memory, label) &&
							   cover_small(regions, tensors, label));
	tensors->told = true;
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
