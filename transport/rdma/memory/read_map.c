/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_map - see read_map.h. Pure but for its memory.
 */
#include "transport/rdma/memory/read_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/err.h"
#include "transport/leg/frame.h"
#include "transport/part/packed.h"
#include "transport/part/xfer_part.h"
#include "transport/rdma/memory/region.h"

/* ---- extents ------------------------------------------------------------------------------ */

int
extents_init(struct extents *extents, const struct chunk_table *table)
{
	uint32_t count = table->num_small > 0;
	for (uint32_t c = table->num_small; c < table->num_chunks; c++)
		count += table->ranges[table->first[c]].offset == 0;
	*extents = (struct extents){0};
	extents->list = calloc(count ? count : 1, sizeof(extents->list[0]));
	if (!extents->list)
		return -ENOMEM;
	if (table->num_small > 0)
		extents->list[extents->count++] =
			(struct extent){.row = EXTENT_PACKED, .bytes = packed_bytes(table)};
	for (uint32_t c = table->num_small; c < table->num_chunks; c++) {
		const struct chunk_range *range = &table->ranges[table->first[c]];
		if (range->offset == 0)
			extents->list[extents->count++] =
				(struct extent){.row = range->row, .first_chunk = c};
		extents->list[extents->count - 1].bytes += range->bytes;
	}
	extents->table = table;
	return 0;
}

void
extents_fini(struct extents *extents)
{
	free(extents->list);
	*extents = (struct extents){0};
}

uint32_t
extents_find(const struct extents *extents, uint32_t chunk, uint64_t *ret_offset)
{
	const struct chunk_table *table = extents->table;
	if (chunk < table->num_small) {
		*ret_offset = packed_at(table, chunk);
		return 0;
	}
	uint32_t low = 0, high = extents->count;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		if (extents->list[middle].first_chunk <= chunk)
			low = middle;
		else
			high = middle;
	}
	*ret_offset = table->ranges[table->first[chunk]].offset;
	return low;
}

/* ---- a peer's ----------------------------------------------------------------------------- */

static int
init(struct map *map, uint32_t num_lanes, uint32_t num_keys, uint32_t num_extents)
{
	*map = (struct map){
		.num_lanes = num_lanes, .num_keys = num_keys, .num_extents = num_extents};
	map->keys = calloc(num_keys, sizeof(map->keys[0]));
	map->extents = calloc(num_extents ? num_extents : 1, sizeof(map->extents[0]));
	if (map->keys && map->extents)
		return 0;
	map_fini(map);
	return -ENOMEM;
}

int
map_init(struct map *map, const struct extents *extents, uint32_t num_lanes, uint32_t num_keys)
{
	return init(map, num_lanes, num_keys, extents->count);
}

int
map_init_slots(struct map *map, uint32_t num_lanes, uint32_t num_slots)
{
	return init(map, num_lanes, num_slots, 0);
}

void
map_fini(struct map *map)
{
	free(map->keys);
	free(map->extents);
	*map = (struct map){0};
}

int
map_add_keys(struct map *map, uint32_t first, uint32_t count, uint64_t bytes, const uint8_t *data)
{
	if (first != map->have_keys || !th_range_fits(first, count, map->num_keys) ||
		bytes != (uint64_t)count * wire_key_bytes(map->num_lanes))
		return TH_E_PROTOCOL;
	map->have_keys += count;
	return wire_decode_keys(data, count, map->num_lanes, map->keys + first);
}

int
map_add_extents(struct map *map, uint32_t first, uint32_t count, const uint8_t *data)
{
	if (first != map->have_extents || !th_range_fits(first, count, map->num_extents))
		return TH_E_PROTOCOL;
	map->have_extents += count;
	return wire_decode_extents(data, count, map->extents + first);
}

bool
map_whole(const struct map *map)
{
	return map->have_keys == map->num_keys && map->have_extents == map->num_extents;
}

/* A place within the keys. */
struct spot {
	uint32_t key;
	uint64_t address;
	uint64_t left; /* to the end of its key */
};

static bool
spot_init(struct spot *spot, const struct map *map, uint32_t key, uint64_t address)
{
	if (key >= map->num_keys || address < map->keys[key].address)
		return false;
	uint64_t inside = address - map->keys[key].address;
	if (inside > map->keys[key].bytes)
		return false;
	*spot = (struct spot){.key = key, .address = address};
	spot->left = map->keys[key].bytes - inside;
	return true;
}

/* There are always bytes left afterwards. False: it goes on nowhere. */
static bool
spot_enter(struct spot *spot, const struct map *map)
{
	if (spot->left > 0)
		return true;
	if (spot->key + 1 >= map->num_keys || map->keys[spot->key + 1].address != spot->address)
		return false;
	spot->left = map->keys[++spot->key].bytes; /* not 0 */
	return true;
}

static void
spot_skip(struct spot *spot, uint64_t bytes)
{
	spot->address += bytes;
	spot->left -= bytes;
}

/* Tiny pieces would be many steps, and many READs. */
static bool
extent_fits(const struct map *map, const struct wire_extent *extent, uint64_t bytes)
{
	struct spot spot;
	uint64_t steps = bytes / MAP_PIECE_MIN + 2;
	if (!spot_init(&spot, map, extent->key, extent->address))
		return false;
	for (; bytes > 0; steps--) {
		if (steps == 0 || !spot_enter(&spot, map))
			return false;
		uint64_t piece = th_min_u64(bytes, spot.left);
		spot_skip(&spot, piece);
		bytes -= piece;
	}
	return true;
}

static int
read_map_check_slots(const struct map *map, const struct chunk_table *table)
{
	uint32_t largest = 0;
	for (uint32_t c = 0; c < table->num_chunks; c++)
		largest = th_max_u32(largest, chunk_bytes(table, c));
	for (uint32_t slot = 0; slot < map->num_keys; slot++) {
		if (map->keys[slot].bytes < largest)
			return TH_E_PROTOCOL;
	}
	return 0;
}

int
map_check(const struct map *map, const struct extents *extents)
{
	if (map->num_extents == 0)
		return read_map_check_slots(map, extents->table);
	for (uint32_t e = 0; e < extents->count; e++) {
		if (!extent_fits(map, &map->extents[e], extents->list[e].bytes))
			return TH_E_PROTOCOL;
	}
	return 0;
}

/* ---- our own ------------------------------------------------------------------------------ */

static const char *
place_of(const struct xfer_part *part, const struct extent *extent, struct place *ret_place)
{
	if (extent->row == EXTENT_PACKED) {
		struct packing *packing = xfer_part_packing(part);
		if (!packing)
			return "its small tensors are not packed side by side";
		ret_place->region = packed_region(packing_packed(packing));
		return ret_place->region ? NULL : "its packed small tensors are not registered";
	}
	ret_place->region = xfer_part_region(part, extent->row, &ret_place->offset);
	return ret_place->region ? NULL : "some of its memory is not registered for RDMA";
}

int
places_init(const struct extents *extents, const struct xfer_part *part, struct th_err *ret_err,
	struct place **ret_places)
{
	const char *known = xfer_part_no_rdma(part);
	if (!xfer_part_touchable(part))
		return th_fail(ret_err, TH_E_NO_PATH, "%s",
			known ? known
			      : "some of its memory is private to its process, which no NIC can "
				"reach");
	struct place *places = calloc(extents->count ? extents->count : 1, sizeof(places[0]));
	if (!places)
		return th_fail(ret_err, -ENOMEM, "out of memory");
	for (uint32_t e = 0; e < extents->count; e++) {
		const char *why = place_of(part, &extents->list[e], &places[e]);
		if (why) {
			places[e].region = NULL;
			places_free(extents, places);
			return th_fail(ret_err, TH_E_NO_PATH, "%s", known ? known : why);
		}
		(void)region_retain(places[e].region);
	}
	*ret_places = places;
	return 0;
}

void
places_free(const struct extents *extents, struct place *places)
{
	for (uint32_t e = 0; places && e < extents->count; e++)
		region_release(places[e].region);
	free(places);
}

uint32_t
places_ready(const struct extents *extents, const struct place *places, uint32_t *ret_waiting)
{
	uint32_t ready = UINT32_MAX, later = UINT32_MAX;
	for (uint32_t e = 0; e < extents->count; e++) {
		/* Neighbours mostly lie in one region. */
		if (e > 0 && places[e].region == places[e - 1].region)
			continue;
		uint32_t waiting = region_waiting(places[e].region);
		uint32_t now = region_ready(places[e].region);
		ready &= now;
		later &= now | waiting;
	}
	*ret_waiting = later & ~ready;
	return ready;
}

int
places_why(const struct extents *extents, const struct place *places, struct th_err *ret_err)
{
	for (uint32_t e = 0; e < extents->count; e++) {
		for (uint32_t rail = 0; rail < RAILS_MAX; rail++) {
			struct th_err err = {0};
			if (region_state(places[e].region, rail, &err) == REGION_FAILED)
				return th_fail(ret_err, TH_E_NO_PATH,
					"its memory could be registered on no rail: %s", err.text);
		}
	}
	return th_fail(ret_err, TH_E_NO_PATH, "no rail serves its memory");
}

static int
compare_regions(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)((const struct place *)a)->region;
	uintptr_t y = (uintptr_t)((const struct place *)b)->region;
	return (x > y) - (x < y);
}

/* One key: a piece of a region on all rails. */
static bool
read_map_key_of(const struct region *region, uint64_t offset, const uint32_t *rails,
	uint32_t num_rails, struct wire_key *ret_key)
{
	for (uint32_t r = 0; r < num_rails; r++) {
		struct region_key key;
		if (!region_mr(region, rails[r], offset, &key))
			return false;
		ret_key->address = key.address;
		ret_key->bytes = key.bytes;
		ret_key->rkeys[r] = key.rkey;
	}
	return true;
}

/* Regions in the order of their addresses, each once, by `region`; its first key in `offset`. */
static uint32_t
list_regions(const struct extents *extents, const struct place *places, struct place *ret_list,
	uint64_t *ret_keys)
{
	uint32_t count = 0;
	uint64_t keys = 0;
	memcpy(ret_list, places, extents->count * sizeof(places[0]));
	qsort(ret_list, extents->count, sizeof(ret_list[0]), compare_regions);
	for (uint32_t e = 0; e < extents->count; e++) {
		if (count > 0 && ret_list[count - 1].region == ret_list[e].region)
			continue;
		ret_list[count++] = (struct place){.region = ret_list[e].region, .offset = keys};
		keys += region_pieces(ret_list[e].region);
	}
	*ret_keys = keys;
	return count;
}

static int
fill_own(struct map *map, const struct extents *extents, const struct place *places,
	const struct place *list, uint32_t count, const uint32_t *rails, uint32_t num_rails)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct region *region = list[i].region;
		for (uint32_t p = 0; p < region_pieces(region); p++) {
			if (!read_map_key_of(region, p * region_piece_bytes(region), rails,
				    num_rails, &map->keys[map->have_keys]))
				return TH_E_NO_PATH;
			map->have_keys++;
		}
	}
	for (uint32_t e = 0; e < extents->count; e++) {
		struct region_key at;
		const struct place *first =
			bsearch(&places[e], list, count, sizeof(list[0]), compare_regions);
		if (!region_mr(places[e].region, rails[0], places[e].offset, &at))
			return TH_E_NO_PATH;
		map->extents[e].key =
			(uint32_t)(first->offset +
				   places[e].offset / region_piece_bytes(first->region));
		map->extents[e].address = at.address;
	}
	map->have_extents = extents->count;
	return 0;
}

int
map_own(struct map *map, const struct extents *extents, const struct place *places,
	const uint32_t *rails, uint32_t num_rails)
{
	uint64_t keys;
	struct place *list = calloc(extents->count, sizeof(list[0]));
	if (!list)
		return -ENOMEM;
	uint32_t count = list_regions(extents, places, list, &keys);
	int rc = keys >= 1 && keys <= WIRE_KEYS_MAX ? 0 : TH_E_NO_PATH;
	if (rc == 0)
		rc = map_init(map, extents, num_rails, (uint32_t)keys);
	if (rc == 0) {
		rc = fill_own(map, extents, places, list, count, rails, num_rails);
		if (rc < 0)
			map_fini(map);
	}
	free(list);
	return rc;
}

/* ---- both --------------------------------------------------------------------------------- */

struct place
places_chunk(const struct extents *extents, const struct place *places, uint32_t chunk)
{
	uint64_t offset;
	const struct place *place = &places[extents_find(extents, chunk, &offset)];
	return (struct place){.region = place->region, .offset = place->offset + offset};
}

/* Where the chunk begins at the peer. */
static bool
spot_find(struct spot *spot, const struct map *map, const struct extents *extents,
	const struct map_read *read)
{
	uint64_t skip;
	if (map->num_extents == 0)
		return read->slot < map->num_keys &&
		       spot_init(spot, map, read->slot, map->keys[read->slot].address);
	const struct wire_extent *extent = &map->extents[extents_find(extents, read->chunk, &skip)];
	if (!spot_init(spot, map, extent->key, extent->address))
		return false;
	/* The chunk may begin some keys later. */
	while (skip > 0) {
		if (!spot_enter(spot, map))
			return false;
		uint64_t step = th_min_u64(skip, spot->left);
		spot_skip(spot, step);
		skip -= step;
	}
	return true;
}

uint32_t
map_pieces(const struct map *map, const struct extents *extents, const struct map_read *read,
	struct lane_piece *ret_pieces, uint32_t pieces_max)
{
	struct spot spot;
	struct place own = read->own;
	uint32_t left = chunk_bytes(extents->table, read->chunk), count = 0;
	if (!spot_find(&spot, map, extents, read))
		return 0;
	while (left > 0) {
		struct region_key key;
		if (count == pieces_max || !spot_enter(&spot, map) ||
			!region_mr(own.region, read->rail, own.offset, &key))
			return 0;
		uint32_t bytes = (uint32_t)th_min_u64(left, th_min_u64(key.bytes, spot.left));
		ret_pieces[count++] = (struct lane_piece){.local = key.address,
			.lkey = key.lkey,
			.remote = spot.address,
			.rkey = map->keys[spot.key].rkeys[read->lane],
			.bytes = bytes};
		spot_skip(&spot, bytes);
		own.offset += bytes;
		left -= bytes;
	}
	return count;
}
