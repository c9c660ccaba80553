/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/rdma/packed: where chunks of small tensors lie in their buffer, and how they
 * come into it and out of it.
 */
#include "transport/part/packed.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "tests/support/transport/transport_rig.h"
#include "transport/hash/digest.h"
#include "transport/leg/chunk_ledger.h"
#include "transport/part/sigbus.h"

/* In the order of the manifest: the small ones make three chunks, the others four. */
static const uint64_t sizes[] = {1, 0, 70000, 2 * MIB - 1, 65536, 2 * MIB - 1, 2 * MIB - 1, 3,
	2 * MIB, 4 * MIB + 1, 4 * MIB};
#define COUNT (sizeof(sizes) / sizeof(sizes[0]))
#define SMALL 8u /* rows */

/* ---- helpers -------------------------------------------------------------------------------- */

struct world {
	struct rig_shard shard;
	struct packed *packed;
	struct xfer_part *part;
};

static void
world_init(struct world *world, const uint64_t *rows, uint32_t count, uint64_t fill, bool verify)
{
	rig_shard_init(&world->shard, rows, count, fill);
	world->packed = packed_new(world->shard.table);
	world->part = rig_part(&world->shard, verify);
	cr_assert(world->packed);
	cr_assert_eq(sigbus_install(), 0);
	cr_assert_eq(xfer_part_set_packed(world->part, world->packed), 0);
}

static void
world_fini(struct world *world)
{
	xfer_part_release(world->part);
	packed_release(world->packed);
	rig_shard_fini(&world->shard);
}

static const uint8_t *
packed_chunk(const struct world *world, uint32_t chunk)
{
	return packed_data(world->packed) + packed_at(world->shard.table, chunk);
}

/* Whether the buffer has the bytes of the rows, one behind the other. */
static bool
chunk_is_packed(const struct world *world, uint32_t chunk)
{
	const struct chunk_table *table = world->shard.table;
	const uint8_t *at = packed_chunk(world, chunk);
	for (uint32_t r = table->first[chunk]; r < table->first[chunk + 1]; r++) {
		const struct chunk_range *range = &table->ranges[r];
		cr_assert_eq(range->offset, 0);
		if (memcmp(at, world->shard.tensors[range->row], range->bytes) != 0)
			return false;
		at += range->bytes;
	}
	return true;
}

/* A NIC moves what is packed at one end to where it is packed at the other. */
static void
read_chunk(const struct world *from, struct world *to, uint32_t chunk)
{
	const struct chunk_table *table = to->shard.table;
	memcpy(packed_data(to->packed) + packed_at(table, chunk), packed_chunk(from, chunk),
		chunk_bytes(table, chunk));
}

static enum transport_event_kind
hash(struct xfer_part *part, uint32_t threads, uint32_t *ret_row)
{
	const struct transport_config config = {.hash_threads = threads};
	struct transport *transport;
	struct transport_event event;
	struct th_err err;
	cr_assert_eq(transport_open(&config, &err, &transport), 0);
	cr_assert_eq(transport_hash(transport, 1, part), 0);
	struct pollfd poll_fd = {.fd = transport_fd(transport), .events = POLLIN};
	do {
		cr_assert_eq(poll(&poll_fd, 1, 30000), 1);
	} while (transport_poll(transport, &event, 1) == 0);
	if (ret_row)
		*ret_row = event.row;
	transport_close(transport);
	return event.kind;
}

/* ---- where ---------------------------------------------------------------------------------- */

Test(packed, at__chunks_begin_at_lines_and_do_not_meet)
{
	uint64_t rows[600];
	for (uint32_t i = 0; i < 600; i++)
		rows[i] = i % 7 == 0 ? 0 : i * 30011 % (2 * MIB);
	struct rig_shard shard;
	rig_shard_init(&shard, rows, 600, 0);
	const struct chunk_table *table = shard.table;
	cr_assert_gt(table->num_small, 50);
	cr_assert_eq(table->num_small, table->num_chunks);
	cr_assert_eq(packed_at(table, 0), 0);
	for (uint32_t c = 0; c < table->num_small; c++) {
		cr_assert_eq(packed_at(table, c) % 64, 0);
		uint64_t end = packed_at(table, c) + chunk_bytes(table, c);
		uint64_t next =
			c + 1 < table->num_small ? packed_at(table, c + 1) : packed_bytes(table);
		cr_assert(end <= next && next < end + 128);
	}
	rig_shard_fini(&shard);
}

Test(packed, small__less_than_two_mebibytes)
{
	const uint64_t none[] = {2 * MIB, 2 * MIB, 9 * MIB, 0};
	const uint64_t one[] = {2 * MIB - 1, 2 * MIB};
	const uint64_t empty[] = {0, 0};
	struct rig_shard shard;
	rig_shard_init(&shard, none, 4, 0);
	cr_assert_eq(shard.table->num_small, 0);
	cr_assert_eq(packed_bytes(shard.table), 0);
	rig_shard_fini(&shard);
	rig_shard_init(&shard, one, 2, 0);
	cr_assert_eq(shard.table->num_small, 1);
	cr_assert(packed_bytes(shard.table) >= 2 * MIB - 1);
	rig_shard_fini(&shard);
	rig_shard_init(&shard, empty, 2, 0);
	cr_assert_eq(shard.table->num_small, 0);
	cr_assert_eq(packed_bytes(shard.table), 0);
	rig_shard_fini(&shard);
}

Test(packed, part__without_small_rows_or_not_mapped__has_none)
{
	const uint64_t large[] = {2 * MIB, 5 * MIB};
	struct world world;
	world_init(&world, large, 2, 1, true);
	cr_assert_null(xfer_part_packing(world.part));
	cr_assert_not(packed_has(world.part, 0));
	cr_assert_eq(packed_prefix(world.part), 0);
	world_fini(&world);
	world_init(&world, sizes, COUNT, 1, true);
	rig_shard_to_file(&world.shard);
	struct xfer_part *mixed = rig_part_of(&world.shard, RIG_MIXED, false);
	cr_assert_eq(xfer_part_set_packed(mixed, world.packed), 0);
	cr_assert_null(xfer_part_packing(mixed));
	xfer_part_advance(mixed, 5);
	cr_assert_eq(packed_prefix(mixed), 5);
	cr_assert_eq(packed_fill(mixed, 9), 0);
	xfer_part_release(mixed);
	world_fini(&world);
}

/* ---- at a publisher ------------------------------------------------------------------------- */

Test(packed, hash__fills_the_buffer_and_the_digests_are_the_same)
{
	struct world world;
	world_init(&world, sizes, COUNT, 7, true);
	struct xfer_part *plain = rig_part(&world.shard, true);
	rig_add_digests(plain);
	cr_assert_eq(world.shard.table->num_small, 3);
	cr_assert_eq(packed_prefix(world.part), 0);
	cr_assert_eq(hash(world.part, 3, NULL), TRANSPORT_HASHED);
	const uint32_t num_chunks = world.shard.table->num_chunks;
	cr_assert_eq(packed_prefix(world.part), num_chunks);
	for (uint32_t c = 0; c < num_chunks; c++) {
		cr_assert(th_hash_equal(
			*xfer_part_digest(world.part, c), *xfer_part_digest(plain, c)));
		cr_assert_eq(packed_has(world.part, c), c < 3);
		cr_assert(c >= 3 || chunk_is_packed(&world, c));
	}
	/* There is nothing left to do. */
	cr_assert_eq(packed_fill(world.part, 9), 0);
	xfer_part_release(plain);
	world_fini(&world);
}

Test(packed, hash__stopped_in_between__goes_on_and_begins_nothing_twice)
{
	struct world world;
	struct th_hash digest, again;
	uint32_t row;
	bool stop = true;
	world_init(&world, sizes, COUNT, 9, true);
	cr_assert_eq(packed_hash(world.part, 0, &stop, &digest, &row), 0);
	stop = false;
	cr_assert_eq(packed_hash(world.part, 0, &stop, &digest, &row), 1);
	cr_assert(chunk_is_packed(&world, 0));
	/* The job ended before the part got to know it: the next one takes what is there. */
	cr_assert_eq(packed_hash(world.part, 0, NULL, &again, &row), 1);
	cr_assert(th_hash_equal(digest, again));
	cr_assert_eq(hash(world.part, 1, NULL), TRANSPORT_HASHED);
	cr_assert(th_hash_equal(digest, *xfer_part_digest(world.part, 0)));
	world_fini(&world);
}

Test(packed, hash__a_page_that_is_gone__names_the_tensor)
{
	const uint64_t rows[] = {30000, 20000, 40000, 50000};
	struct world world;
	uint32_t row = 77;
	world_init(&world, rows, 4, 3, true);
	rig_shard_to_file(&world.shard);
	/* The file ends in the third tensor. */
	uint64_t end = (uint64_t)(world.shard.tensors[3] - world.shard.memory) - 4096 * 2;
	cr_assert_eq(ftruncate(world.shard.fd, (off_t)(end / 4096 * 4096)), 0);
	cr_assert_eq(hash(world.part, 1, &row), TRANSPORT_HASH_FAILED);
	cr_assert_eq(row, 2);
	cr_assert(xfer_part_failed(world.part));
	cr_assert_eq(packed_prefix(world.part), 0);
	world_fini(&world);
}

/* ---- at a reader ---------------------------------------------------------------------------- */

Test(packed, landed__is_scattered_hashed_and_served_on)
{
	struct world source, reader;
	struct th_hash digest;
	world_init(&source, sizes, COUNT, 11, true);
	world_init(&reader, sizes, COUNT, 0, true);
	cr_assert_eq(hash(source.part, 1, NULL), TRANSPORT_HASHED);
	/* In any order; nothing counts before the part does. */
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t chunk = 2 - i;
		read_chunk(&source, &reader, chunk);
		cr_assert_eq(packed_landed(reader.part, chunk, &digest), 0);
		cr_assert(th_hash_equal(digest, *xfer_part_digest(source.part, chunk)));
		cr_assert_eq(packed_prefix(reader.part), 0);
	}
	for (uint32_t row = 0; row < SMALL; row++)
		cr_assert_eq(
			memcmp(source.shard.tensors[row], reader.shard.tensors[row], sizes[row]),
			0);
	xfer_part_add_digests(reader.part, 0, xfer_part_digest(source.part, 0), 5);
	xfer_part_advance(reader.part, 2);
	cr_assert_eq(packed_prefix(reader.part), 2);
	xfer_part_advance(reader.part, 5);
	cr_assert_eq(packed_prefix(reader.part), 5);
	/* A third one reads it from here. */
	struct world third;
	world_init(&third, sizes, COUNT, 0, false);
	read_chunk(&reader, &third, 1);
	cr_assert_eq(packed_landed(third.part, 1, NULL), 0);
	cr_assert_eq(memcmp(packed_chunk(&third, 1), packed_chunk(&source, 1),
			     chunk_bytes(source.shard.table, 1)),
		0);
	world_fini(&third);
	world_fini(&reader);
	world_fini(&source);
}

Test(packed, landed__where_a_page_is_gone__is_a_result)
{
	struct world world;
	world_init(&world, sizes, COUNT, 0, true);
	rig_shard_to_file(&world.shard);
	cr_assert_eq(ftruncate(world.shard.fd, 4096), 0);
	cr_assert_eq(packed_landed(world.part, 1, NULL), TH_E_STALE_MEMORY);
	world_fini(&world);
}

Test(packed, drop__what_did_not_match_is_not_served)
{
	struct world source, reader;
	world_init(&source, sizes, COUNT, 13, false);
	world_init(&reader, sizes, COUNT, 0, false);
	xfer_part_advance(source.part, 7);
	cr_assert_eq(packed_fill(source.part, 9), 0);
	/* Chunk 0 landed damaged, and then came over another way. */
	for (uint32_t c = 0; c < 3; c++) {
		read_chunk(&source, &reader, c);
		packed_data(reader.packed)[5] ^= c == 0;
		cr_assert_eq(packed_landed(reader.part, c, NULL), 0);
	}
	packed_drop(reader.part, 0);
	packed_drop(reader.part, 6); /* no chunk of the buffer: nothing */
	memcpy(reader.shard.memory, source.shard.memory, source.shard.bytes);
	xfer_part_advance(reader.part, 7);
	cr_assert_eq(packed_prefix(reader.part), 0);
	cr_assert_eq(packed_fill(reader.part, 1), 1);
	cr_assert_eq(packed_prefix(reader.part), 7);
	cr_assert(chunk_is_packed(&reader, 0));
	world_fini(&reader);
	world_fini(&source);
}

/* Whether it was the chunk is not known when the leg ends; the next one brings it another way. */
Test(packed, landed__and_the_leg_ends_before_it_counts__is_not_served)
{
	struct world source, reader;
	struct transport_counters counters = {0};
	struct chunk_ledger ledger;
	uint32_t chunk;
	world_init(&source, sizes, COUNT, 15, true);
	world_init(&reader, sizes, COUNT, 0, true);
	cr_assert_eq(hash(source.part, 1, NULL), TRANSPORT_HASHED);
	const struct th_hash *digests = xfer_part_digest(source.part, 0);
	cr_assert_eq(chunk_ledger_init(&ledger, reader.part, &counters), 0);
	cr_assert_eq(chunk_ledger_digests(&ledger, 0, digests, 7), 0);
	cr_assert(chunk_ledger_take(&ledger, 7, &chunk));
	read_chunk(&source, &reader, chunk);
	packed_data(reader.packed)[5] ^= 1;
	cr_assert_eq(packed_landed(reader.part, chunk, NULL), 0);
	chunk_ledger_fini(&ledger);
	cr_assert_eq(chunk_ledger_init(&ledger, reader.part, &counters), 0);
	cr_assert(chunk_ledger_take(&ledger, 7, &chunk));
	cr_assert_eq(chunk, 0);
	memcpy(reader.shard.memory, source.shard.memory, source.shard.bytes);
	cr_assert_eq(chunk_ledger_arrived(&ledger, chunk, &digests[0]), LEDGER_GREW);
	cr_assert_eq(packed_prefix(reader.part), 0);
	cr_assert_eq(packed_fill(reader.part, 1), 0);
	cr_assert_eq(packed_prefix(reader.part), 1);
	cr_assert(chunk_is_packed(&reader, 0));
	chunk_ledger_fini(&ledger);
	world_fini(&reader);
	world_fini(&source);
}

/* ---- what came another way ------------------------------------------------------------------ */

Test(packed, fill__in_order_as_far_as_the_part_is__and_says_so)
{
	struct world world;
	uint32_t told = 0;
	world_init(&world, sizes, COUNT, 17, false);
	xfer_part_watch(world.part, rig_count_news, &told);
	cr_assert_eq(packed_fill(world.part, 9), 0);
	cr_assert_eq(told, 0);
	xfer_part_advance(world.part, 2);
	cr_assert_eq(told, 1);
	cr_assert_eq(packed_prefix(world.part), 0);
	cr_assert_eq(packed_fill(world.part, 1), 1);
	cr_assert_eq(told, 2);
	cr_assert_eq(packed_prefix(world.part), 1);
	cr_assert_eq(packed_fill(world.part, 9), 0);
	cr_assert_eq(packed_prefix(world.part), 2);
	cr_assert_eq(packed_fill(world.part, 9), 0);
	cr_assert_eq(told, 3);
	xfer_part_advance(world.part, 7);
	cr_assert_eq(packed_prefix(world.part), 2);
	cr_assert_eq(packed_fill(world.part, 9), 0);
	cr_assert_eq(packed_prefix(world.part), 7);
	for (uint32_t c = 0; c < 3; c++)
		cr_assert(chunk_is_packed(&world, c));
	xfer_part_unwatch(world.part, rig_count_news, &told);
	world_fini(&world);
}

Test(packed, fill__another_part_of_the_same_buffer__begins_anew)
{
	struct world world;
	world_init(&world, sizes, COUNT, 19, false);
	xfer_part_advance(world.part, 7);
	cr_assert_eq(packed_fill(world.part, 9), 0);
	xfer_part_release(world.part);
	/* The next version lies in the same memory. */
	world.shard.tensors[0][0] ^= 1;
	world.part = rig_part(&world.shard, false);
	cr_assert_eq(xfer_part_set_packed(world.part, world.packed), 0);
	xfer_part_advance(world.part, 7);
	cr_assert_eq(packed_prefix(world.part), 0);
	cr_assert_not(chunk_is_packed(&world, 0));
	cr_assert_eq(packed_fill(world.part, 9), 0);
	cr_assert(chunk_is_packed(&world, 0));
	world_fini(&world);
}

Test(packed, fill__a_page_that_is_gone__is_a_result)
{
	struct world world;
	world_init(&world, sizes, COUNT, 3, false);
	rig_shard_to_file(&world.shard);
	cr_assert_eq(ftruncate(world.shard.fd, 4096), 0);
	xfer_part_advance(world.part, 7);
	cr_assert_eq(packed_fill(world.part, 9), TH_E_STALE_MEMORY);
	cr_assert_eq(packed_fill(world.part, 9), TH_E_STALE_MEMORY);
	cr_assert_eq(packed_prefix(world.part), 0);
	world_fini(&world);
}

static void *
fill_main(void *arg)
{
	struct xfer_part *part = arg;
	while (packed_prefix(part) < xfer_part_table(part)->num_chunks) {
		int rc = packed_fill(part, 1);
		TH_ASSERT(rc >= 0);
		/* Also who is not first sees it grow. */
		usleep(50);
	}
	return NULL;
}

Test(packed, fill__by_many_threads_while_the_part_grows)
{
	static uint64_t rows[20000];
	struct world world;
	pthread_t threads[4];
	for (uint32_t i = 0; i < 20000; i++)
		rows[i] = 500 + i % 1000;
	world_init(&world, rows, 20000, 23, false);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, fill_main, world.part), 0);
	uint32_t num_chunks = world.shard.table->num_chunks;
	for (uint32_t c = 1; c <= num_chunks; c++) {
		xfer_part_advance(world.part, c);
		usleep(200);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t c = 0; c < num_chunks; c++)
		cr_assert(chunk_is_packed(&world, c));
	world_fini(&world);
}

/* ---- a second look -------------------------------------------------------------------------- */

Test(packed, check__tells_who_has_done_what)
{
	struct world world;
	world_init(&world, sizes, COUNT, 29, true);
	cr_assert_eq(packed_check(world.part, 0), TH_E_PROTOCOL);
	cr_assert_eq(hash(world.part, 1, NULL), TRANSPORT_HASHED);
	for (uint32_t c = 0; c < 7; c++)
		cr_assert_eq(packed_check(world.part, c), 0);
	cr_assert_eq(packed_check(world.part, 7), TH_E_PROTOCOL);
	/* The copy is damaged, the tensors are not. */
	packed_data(world.packed)[packed_at(world.shard.table, 1)] ^= 1;
	cr_assert_not(chunk_is_packed(&world, 1));
	cr_assert_eq(packed_check(world.part, 1), 0);
	cr_assert(chunk_is_packed(&world, 1));
	cr_assert_eq(packed_prefix(world.part), 7);
	/* The worker writes: of a large row it is seen; of a small one readers get what was. */
	world.shard.tensors[8][0] ^= 1;
	cr_assert_eq(packed_check(world.part, 3), TH_E_CONTRACT);
	world.shard.tensors[0][0] ^= 1;
	cr_assert_eq(packed_check(world.part, 0), 0);
	packed_data(world.packed)[0] ^= 1;
	cr_assert_eq(packed_check(world.part, 0), TH_E_CONTRACT);
	world_fini(&world);
}
