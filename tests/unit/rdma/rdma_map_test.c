/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/rdma/map: a whole shard READ by what a source says of it, with memory in
 * several regions and regions in several pieces; and what a source must not say.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/transport/transport_rig.h"
#include "transport/part/packed.h"
#include "transport/part/sigbus.h"
#include "transport/rdma/memory/read_map.h"
#include "transport/rdma/memory/region.h"

#define PATIENCE_NS INT64_C(60000000000)
#define PIECES_MAX 16u
#define SOURCE 0u /* whose rail and lane that is */
#define READER 1u

/* The small ones make three chunks; of the others the first has exactly 2 MiB. */
static const uint64_t sizes[] = {1, 0, 70000, 2 * MIB - 1, 65536, 2 * MIB - 1, 2 * MIB - 1, 3,
	2 * MIB, 4 * MIB + 1, 4 * MIB, 9 * MIB + 4097, 2 * MIB + 1};
#define COUNT (sizeof(sizes) / sizeof(sizes[0]))
#define FIRST_LARGE 8u
#define LAST_OF_FIRST_REGION 10u

struct end { /* one of two shards of the same layout */
	struct rig_shard shard;
	struct packed *packed;
	struct region *regions[2];
	struct xfer_part *part;
	struct place *places;
};

static struct fake_rdma *fake;
static struct verbs_device *devices[2];
static struct loop *keeper;
static struct rails *rails;
static struct extents extents;
static struct end source, reader;
static uint32_t num_regions; /* atomic */

/* ---- helpers -------------------------------------------------------------------------------- */

static void
region_gone(void *arg)
{
	__atomic_sub_fetch((uint32_t *)arg, 1, __ATOMIC_RELAXED);
}

static struct region *
new_region(uint8_t *data, uint64_t bytes)
{
	const struct region_memory memory = {.data = data, .dmabuf_fd = -1, .bytes = bytes};
	const struct region_user user = {.arg = &num_regions, .gone = region_gone};
	__atomic_add_fetch(&num_regions, 1, __ATOMIC_RELAXED);
	return region_new(rails, &memory, 3, SHARD_ACCESS, &user);
}

static void
wait_ready(struct region *region)
{
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (region_waiting(region) != 0) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(100);
	}
	cr_assert_eq(region_ready(region), 3);
}

/* The first region ends with a row, and the second begins there, within a page. */
static void
end_open(struct end *end, uint64_t fill)
{
	struct xfer_place places[COUNT] = {0};
	rig_shard_init(&end->shard, sizes, COUNT, fill);
	struct rig_shard *shard = &end->shard;
	uint64_t border = (uint64_t)(shard->tensors[LAST_OF_FIRST_REGION] - shard->memory) +
			  sizes[LAST_OF_FIRST_REGION];
	end->regions[0] = new_region(shard->memory, border);
	end->regions[1] = new_region(shard->memory + border, shard->bytes - border);
	end->packed = packed_new(shard->table);
	packed_register(end->packed, rails, 3);
	for (uint32_t row = 0; row < COUNT; row++) {
		if (sizes[row] == 0)
			continue;
		uint64_t at = (uint64_t)(shard->tensors[row] - shard->memory);
		places[row].data = shard->tensors[row];
		if (row < FIRST_LARGE)
			continue;
		places[row].region = end->regions[at >= border];
		places[row].region_at = at >= border ? at - border : at;
	}
	end->part = xfer_part_new_places(shard->table, places, COUNT, true, NULL, NULL);
	cr_assert_eq(xfer_part_set_packed(end->part, end->packed), 0);
	wait_ready(end->regions[0]);
	wait_ready(end->regions[1]);
	wait_ready(packed_region(end->packed));
}

static void
end_close(struct end *end)
{
	places_free(&extents, end->places);
	xfer_part_release(end->part);
	packed_release(end->packed);
	region_release(end->regions[0]);
	region_release(end->regions[1]);
}

/* Devices that register so much at once. */
static void
open_with(uint64_t mr_bytes_max)
{
	struct rails_config config = rails_config_default();
	const struct rails_user user = {0};
	struct th_err err;
	const struct fake_device_config device = {.mr_bytes_max = mr_bytes_max};
	fake = fake_rdma_new(false);
	struct fake_host *host = fake_rdma_host(fake);
	for (uint32_t i = 0; i < 2; i++)
		devices[i] = fake_rdma_device(host, &device);
	cr_assert_eq(sigbus_install(), 0);
	cr_assert_eq(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &keeper), 0);
	cr_assert_eq(rails_new(fake_rdma_verbs(host), &config, keeper, &user, &rails), 0);
	end_open(&source, 77);
	end_open(&reader, 0);
	cr_assert_eq(extents_init(&extents, source.shard.table), 0);
	cr_assert_eq(places_init(&extents, source.part, &err, &source.places), 0);
	cr_assert_eq(places_init(&extents, reader.part, &err, &reader.places), 0);
}

static void
close_all(void)
{
	end_close(&source);
	end_close(&reader);
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (__atomic_load_n(&num_regions, __ATOMIC_RELAXED) > 0 || packed_size_all() > 0) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(100);
	}
	rails_free(rails);
	loop_free(keeper);
	extents_fini(&extents);
	rig_shard_fini(&source.shard);
	rig_shard_fini(&reader.shard);
	fake_rdma_free(fake);
}

/* What the source says, as it arrives. */
static void
tell(struct map *ret_map, const uint32_t *lanes, uint32_t num_lanes)
{
	struct map own;
	cr_assert_eq(map_own(&own, &extents, source.places, lanes, num_lanes), 0);
	cr_assert(map_whole(&own));
	uint64_t key_bytes = (uint64_t)own.num_keys * wire_key_bytes(num_lanes);
	uint8_t *keys = th_calloc(1, key_bytes);
	uint8_t *list = th_calloc(own.num_extents, WIRE_EXTENT_BYTES);
	wire_encode_keys(own.keys, own.num_keys, num_lanes, keys);
	wire_encode_extents(own.extents, own.num_extents, list);
	cr_assert_eq(map_init(ret_map, &extents, num_lanes, own.num_keys), 0);
	/* In two frames each. */
	uint32_t half = own.num_keys / 2;
	uint64_t half_bytes = (uint64_t)half * wire_key_bytes(num_lanes);
	if (half > 0)
		cr_assert_eq(map_add_keys(ret_map, 0, half, half_bytes, keys), 0);
	cr_assert_eq(map_add_keys(ret_map, half, own.num_keys - half, key_bytes - half_bytes,
			     keys + half_bytes),
		0);
	cr_assert_not(map_whole(ret_map));
	cr_assert_eq(map_add_extents(ret_map, 0, 1, list), 0);
	cr_assert_eq(map_add_extents(ret_map, 1, own.num_extents - 1, list + WIRE_EXTENT_BYTES), 0);
	cr_assert(map_whole(ret_map));
	cr_assert_eq(map_check(ret_map, &extents), 0);
	free(keys);
	free(list);
	map_fini(&own);
}

/* What a device knows by that key, which has all of these bytes. */
static uint8_t *
at_device(uint32_t rail, uint32_t key, uint64_t address, uint64_t bytes)
{
	const struct fake_seen *seen = fake_rdma_seen(devices[rail]);
	const struct fake_reg *reg = seen->regs, *end = reg + seen->num_regs;
	cr_assert_leq(seen->num_regs, FAKE_SEEN_MAX);
	while (reg < end && reg->key != key)
		reg++;
	cr_assert_lt(reg, end);
	cr_assert_geq(address, reg->iova);
	cr_assert_leq(address - reg->iova + bytes, reg->bytes);
	return (uint8_t *)reg->data + (address - reg->iova);
}

static uint32_t
pieces_of(const struct map *map, uint32_t lane, uint32_t rail, uint32_t chunk,
	struct lane_piece *ret_pieces, uint32_t pieces_max)
{
	const struct map_read read = {.chunk = chunk,
		.lane = lane,
		.rail = rail,
		.own = places_chunk(&extents, reader.places, chunk)};
	return map_pieces(map, &extents, &read, ret_pieces, pieces_max);
}

/* Returns how many READs it would have been at least. */
static uint32_t
read_chunk(const struct map *map, uint32_t lane, uint32_t source_rail, uint32_t chunk)
{
	struct lane_piece pieces[PIECES_MAX];
	uint64_t bytes = 0;
	uint32_t count = pieces_of(map, lane, READER, chunk, pieces, PIECES_MAX);
	cr_assert_gt(count, 0);
	for (uint32_t i = 0; i < count; i++) {
		const struct lane_piece *piece = &pieces[i];
		const uint8_t *from =
			at_device(source_rail, piece->rkey, piece->remote, piece->bytes);
		uint8_t *to = at_device(READER, piece->lkey, piece->local, piece->bytes);
		memcpy(to, from, piece->bytes);
		bytes += piece->bytes;
	}
	cr_assert_eq(bytes, chunk_bytes(reader.shard.table, chunk));
	if (packed_has(reader.part, chunk))
		cr_assert_eq(packed_landed(reader.part, chunk, NULL), 0);
	return count;
}

/* All of it, over both lanes by turns. Returns how many pieces there were. */
static uint32_t
read_all(void)
{
	const uint32_t lanes[] = {READER, SOURCE};
	struct map map;
	uint32_t pieces = 0, num_chunks = source.shard.table->num_chunks;
	struct th_hash digest;
	uint32_t row;
	for (uint32_t c = 0; c < source.shard.table->num_small; c++)
		cr_assert_eq(packed_hash(source.part, c, NULL, &digest, &row), 1);
	tell(&map, lanes, 2);
	for (uint32_t c = 0; c < num_chunks; c++)
		pieces += read_chunk(&map, c % 2, lanes[c % 2], c);
	cr_assert(rig_shards_equal(&source.shard, &reader.shard));
	map_fini(&map);
	return pieces;
}

/* ---- READs ---------------------------------------------------------------------------------- */

Test(rdma_map, extents__one_for_all_small_rows_and_one_for_each_other)
{
	open_with(UINT64_MAX);
	uint64_t offset;
	cr_assert_eq(extents.count, 1 + COUNT - FIRST_LARGE);
	cr_assert_eq(extents.list[0].row, EXTENT_PACKED);
	cr_assert_eq(extents.list[0].bytes, packed_bytes(source.shard.table));
	for (uint32_t e = 1; e < extents.count; e++) {
		cr_assert_eq(extents.list[e].row, FIRST_LARGE + e - 1);
		cr_assert_eq(extents.list[e].bytes, sizes[FIRST_LARGE + e - 1]);
	}
	cr_assert_eq(extents_find(&extents, 2, &offset), 0);
	cr_assert_eq(offset, packed_at(source.shard.table, 2));
	/* Chunks 3; 4, 5; 6; 7, 8, 9; 10. */
	cr_assert_eq(extents_find(&extents, 3, &offset), 1);
	cr_assert_eq(offset, 0);
	cr_assert_eq(extents_find(&extents, 5, &offset), 2);
	cr_assert_eq(offset, 4 * MIB);
	cr_assert_eq(extents_find(&extents, 9, &offset), 4);
	cr_assert_eq(offset, 8 * MIB);
	cr_assert_eq(extents_find(&extents, 10, &offset), 5);
	close_all();
}

Test(rdma_map, read__a_region_of_one_piece__a_piece_a_chunk)
{
	open_with(UINT64_MAX);
	cr_assert_eq(region_pieces(source.regions[0]), 1);
	cr_assert_eq(read_all(), source.shard.table->num_chunks);
	close_all();
}

Test(rdma_map, read__regions_of_several_pieces__no_piece_crosses_a_border)
{
	open_with(3 * MIB / 2);
	cr_assert_gt(region_pieces(source.regions[1]), 6);
	cr_assert_gt(region_pieces(packed_region(source.packed)), 3);
	cr_assert_gt(read_all(), 2 * source.shard.table->num_chunks);
	close_all();
}

Test(rdma_map, pieces__more_than_there_is_room_for__it_cannot_be_read)
{
	const uint32_t lanes[] = {SOURCE};
	struct lane_piece pieces[2];
	struct map map;
	open_with(3 * MIB / 2);
	tell(&map, lanes, 1);
	cr_assert_eq(pieces_of(&map, 0, READER, 6, pieces, 2), 0);
	/* On a rail that does not know the memory neither. */
	cr_assert_eq(pieces_of(&map, 0, 2, 3, pieces, 2), 0);
	map_fini(&map);
	close_all();
}

/* ---- what cannot be served ------------------------------------------------------------------ */

Test(rdma_map, places__what_is_not_registered__has_its_sentence)
{
	struct place *places = NULL;
	struct th_err err;
	open_with(UINT64_MAX);
	/* No regions; no buffer; not mapped. */
	struct xfer_part *part = rig_part(&source.shard, true);
	cr_assert_eq(places_init(&extents, part, &err, &places), TH_E_NO_PATH);
	cr_assert(strstr(err.text, "packed"), "%s", err.text);
	cr_assert_eq(xfer_part_set_packed(part, source.packed), 0);
	cr_assert_eq(places_init(&extents, part, &err, &places), TH_E_NO_PATH);
	cr_assert(strstr(err.text, "not registered"), "%s", err.text);
	/* Who made it may know more. */
	xfer_part_set_no_rdma(part, "it rains");
	cr_assert_eq(places_init(&extents, part, &err, &places), TH_E_NO_PATH);
	cr_assert_str_eq(err.text, "it rains");
	xfer_part_release(part);
	rig_shard_to_file(&source.shard);
	part = rig_part_of(&source.shard, RIG_MIXED, true);
	cr_assert_eq(places_init(&extents, part, &err, &places), TH_E_NO_PATH);
	cr_assert_gt(strlen(err.text), 10);
	xfer_part_release(part);
	cr_assert_null(places);
	close_all();
}

Test(rdma_map, places__ready_where_all_of_them_are)
{
	uint32_t waiting = 7;
	open_with(UINT64_MAX);
	cr_assert_eq(places_ready(&extents, source.places, &waiting), 3);
	cr_assert_eq(waiting, 0);
	close_all();
}

Test(rdma_map, places__registered_nowhere__the_reason_is_the_registrations)
{
	struct th_err err;
	open_with(UINT64_MAX);
	cr_assert_eq(places_why(&extents, source.places, &err), TH_E_NO_PATH);
	cr_assert(strstr(err.text, "no rail serves"), "%s", err.text);
	for (uint32_t i = 0; i < 2; i++)
		fake_rdma_refuse(devices[i], FAKE_REG, FAKE_ALWAYS, -ENOMEM);
	struct region *failed = new_region(source.shard.memory, MIB);
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (region_waiting(failed) != 0) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(100);
	}
	struct region *good = source.places[2].region;
	source.places[2].region = failed;
	cr_assert_eq(places_why(&extents, source.places, &err), TH_E_NO_PATH);
	cr_assert(strstr(err.text, "fake0/1"), "%s", err.text);
	source.places[2].region = good;
	region_release(failed);
	close_all();
}

/* ---- hostile sources ------------------------------------------------------------------------ */

Test(rdma_map, add__out_of_order_or_too_many__is_refused)
{
	uint8_t data[4 * 64] = {0};
	struct map map;
	open_with(UINT64_MAX);
	uint32_t bytes = wire_key_bytes(1);
	for (uint32_t i = 0; i < 4; i++)
		data[i * bytes + 8] = 1; /* of bytes */
	cr_assert_eq(map_init(&map, &extents, 1, 3), 0);
	cr_assert_eq(map_add_keys(&map, 1, 1, bytes, data), TH_E_PROTOCOL);
	cr_assert_eq(map_add_keys(&map, 0, 4, 4 * bytes, data), TH_E_PROTOCOL);
	cr_assert_eq(map_add_keys(&map, 0, 1, bytes - 8, data), TH_E_PROTOCOL);
	cr_assert_eq(map_add_keys(&map, 0, 3, 3 * bytes, data), 0);
	cr_assert_eq(map_add_keys(&map, 3, 1, bytes, data), TH_E_PROTOCOL);
	cr_assert_eq(map_add_extents(&map, 0, extents.count + 1, data), TH_E_PROTOCOL);
	cr_assert_eq(map_add_extents(&map, 1, 1, data), TH_E_PROTOCOL);
	map_fini(&map);
	close_all();
}

Test(rdma_map, check__an_extent_outside_of_its_keys__is_refused)
{
	const uint32_t lanes[] = {SOURCE};
	struct map map;
	open_with(3 * MIB / 2);
	tell(&map, lanes, 1);
	for (uint32_t e = 0; e < extents.count; e++) {
		struct wire_extent good = map.extents[e];
		const struct wire_key *key = &map.keys[good.key];
		const uint64_t wrong[] = {0, key->address - 1, key->address + key->bytes + 1,
			UINT64_MAX, UINT64_MAX - extents.list[e].bytes + 1};
		for (uint32_t i = key->address == 0 ? 2 : 0; i < 5; i++) {
			if (wrong[i] == good.address || (i == 0 && key->address == 0))
				continue;
			map.extents[e].address = wrong[i];
			cr_assert_eq(map_check(&map, &extents), TH_E_PROTOCOL, "%u %u", e, i);
		}
		map.extents[e] = good;
		map.extents[e].key = map.num_keys;
		cr_assert_eq(map_check(&map, &extents), TH_E_PROTOCOL);
		map.extents[e].key = UINT32_MAX;
		cr_assert_eq(map_check(&map, &extents), TH_E_PROTOCOL);
		map.extents[e] = good;
	}
	cr_assert_eq(map_check(&map, &extents), 0);
	/* A gap between two pieces, and one piece after the last. */
	struct wire_key *second = &map.keys[map.extents[0].key + 1];
	second->address += 4096;
	cr_assert_eq(map_check(&map, &extents), TH_E_PROTOCOL);
	second->address -= 4096;
	second->bytes -= 1;
	cr_assert_eq(map_check(&map, &extents), TH_E_PROTOCOL);
	map_fini(&map);
	close_all();
}

Test(rdma_map, check__tiny_pieces__are_refused)
{
	struct map map;
	open_with(UINT64_MAX);
	/* One piece a byte, 1024 of them: the first row alone would take as many READs. */
	cr_assert_eq(map_init(&map, &extents, 1, 1024), 0);
	for (uint32_t k = 0; k < 1024; k++)
		map.keys[k] = (struct wire_key){.address = k, .bytes = k < 1023 ? 1 : UINT32_MAX};
	cr_assert_eq(map_check(&map, &extents), TH_E_PROTOCOL);
	/* As one it would do: how the keys lie is all that is wrong. */
	for (uint32_t e = 0; e < extents.count; e++)
		map.extents[e] = (struct wire_extent){.key = 1023, .address = 1023};
	cr_assert_eq(map_check(&map, &extents), 0);
	map_fini(&map);
	close_all();
}

/* ---- slots ---------------------------------------------------------------------------------- */

static void
open_slots(struct map *map, uint64_t bytes)
{
	const struct wire_key keys[] = {{.address = 4096, .bytes = 4 * MIB, .rkeys = {7, 8}},
		{.address = 64 * MIB + 1, .bytes = bytes, .rkeys = {9, 10}}};
	uint8_t data[2 * 64];
	open_with(3 * MIB / 2);
	wire_encode_keys(keys, 2, 2, data);
	cr_assert_eq(map_init_slots(map, 2, 2), 0);
	cr_assert_not(map_whole(map));
	cr_assert_eq(map_add_extents(map, 0, 1, data), TH_E_PROTOCOL);
	cr_assert_eq(map_add_keys(map, 0, 2, 2 * wire_key_bytes(2), data), 0);
	cr_assert(map_whole(map));
}

Test(rdma_map, slots__a_chunk_from_the_begin_of_one_to_anywhere_of_ours)
{
	struct lane_piece pieces[PIECES_MAX];
	struct map map;
	open_slots(&map, 4 * MIB);
	cr_assert_eq(map_check(&map, &extents), 0);
	/* Chunk 7 has 4 MiB; ours begins half a MiB before a border. */
	const struct map_read read = {.chunk = 7,
		.slot = 1,
		.lane = 1,
		.rail = READER,
		.own = {.region = reader.regions[1], .offset = MIB}};
	uint32_t count = map_pieces(&map, &extents, &read, pieces, PIECES_MAX);
	cr_assert_eq(count, 4);
	uint64_t at = 64 * MIB + 1;
	for (uint32_t i = 0; i < count; i++) {
		cr_assert_eq(pieces[i].rkey, 10);
		cr_assert_eq(pieces[i].remote, at);
		at += pieces[i].bytes;
	}
	cr_assert_eq(pieces[0].bytes, MIB / 2);
	cr_assert_eq(at, 68 * MIB + 1);
	/* Of small rows too, side by side. */
	const struct map_read small = {.chunk = 0, .rail = READER, .own = read.own};
	cr_assert_gt(map_pieces(&map, &extents, &small, pieces, PIECES_MAX), 0);
	cr_assert_eq(pieces[0].remote, 4096);
	cr_assert_eq(pieces[0].rkey, 7);
	const struct map_read none = {.chunk = 7, .slot = 2, .rail = READER, .own = read.own};
	cr_assert_eq(map_pieces(&map, &extents, &none, pieces, PIECES_MAX), 0);
	map_fini(&map);
	close_all();
}

Test(rdma_map, slots__one_without_room_for_each_chunk__is_refused)
{
	struct map map;
	open_slots(&map, 4 * MIB - 1);
	cr_assert_eq(map_check(&map, &extents), TH_E_PROTOCOL);
	map_fini(&map);
	close_all();
}
