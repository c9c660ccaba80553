/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/chunk: the golden table with its digests, and the edges of the cutting rule.
 */
#include "transport/part/chunk.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/name.h"
#include "tests/support/golden.h"
#include "tests/support/rng.h"
#include "transport/hash/digest.h"
#include "transport/part/xfer_part.h"

static const uint64_t golden_start[GOLDEN_CHUNKS + 1] = {
	0, 2097187, 4194362, 6291514, 10485818, GOLDEN_SHARD_BYTES};
static const uint32_t golden_first[GOLDEN_CHUNKS + 1] = {0, 4, 7, 8, 9, 10};
static const struct chunk_range golden_ranges[10] = {
	{0, 0, 4},
	{1, 0, 30},
	{2, 0, 2097151},
	{4, 0, 2},
	{5, 0, 2097151},
	{6, 0, 8},
	{7, 0, 16},
	{8, 0, 2097152},
	{9, 0, 4194304},
	{9, 4194304, 1},
};
static const struct th_hash golden_digests[GOLDEN_CHUNKS] = {
	{0x1a72dcaab4975a62, 0x997479b7db1b1be7},
	{0x23c8f0791a30b55d, 0x8b35b36418ef31eb},
	{0x1636983ad2dd4ecc, 0x7cc54e35cc6c3cc1},
	{0x56fbf452ebef6891, 0x8415918b8782e1d4},
	{0x62eaf9643cea9819, 0xa024b538b06cc037},
};

static struct chunk_table *
table_of(const struct manifest_row *rows, uint32_t count)
{
	struct manifest manifest;
	struct th_err err;
	cr_assert_eq(manifest_build(rows, count, NULL, NULL, &err, &manifest), 0, "%s", err.text);
	struct chunk_table *table = chunk_table_new(&manifest);
	manifest_free(&manifest);
	cr_assert(table);
	return table;
}

Test(chunk, table__golden_manifest__known_table)
{
	struct manifest manifest;
	cr_assert_eq(golden_build(&manifest), 0);
	struct chunk_table *table = chunk_table_new(&manifest);
	cr_assert_eq(table->num_chunks, GOLDEN_CHUNKS);
	cr_assert_eq(table->bytes, GOLDEN_SHARD_BYTES);
	for (uint32_t c = 0; c <= GOLDEN_CHUNKS; c++) {
		cr_assert_eq(table->start[c], golden_start[c]);
		cr_assert_eq(table->first[c], golden_first[c]);
	}
	for (uint32_t r = 0; r < 10; r++) {
		cr_assert_eq(table->ranges[r].row, golden_ranges[r].row);
		cr_assert_eq(table->ranges[r].offset, golden_ranges[r].offset);
		cr_assert_eq(table->ranges[r].bytes, golden_ranges[r].bytes);
	}
	chunk_table_release(table);
	manifest_free(&manifest);
}

Test(chunk, table__golden_content__known_digests)
{
	struct manifest manifest;
	uint8_t *tensors[GOLDEN_ROWS];
	cr_assert_eq(golden_build(&manifest), 0);
	struct chunk_table *table = chunk_table_new(&manifest);
	for (uint32_t r = 0; r < GOLDEN_ROWS; r++) {
		tensors[r] = malloc(manifest.rows[r].bytes + 1);
		golden_fill(r, tensors[r], manifest.rows[r].bytes);
	}
	struct xfer_part *part = xfer_part_new(table, tensors, GOLDEN_ROWS, true, NULL, NULL);
	for (uint32_t c = 0; c < table->num_chunks; c++) {
		struct xfer_cursor cursor;
		struct digest digest;
		struct iovec piece;
		digest_init(&digest);
		xfer_cursor_init(&cursor, part, c);
		/* An odd block, so that pieces end anywhere. */
		while (xfer_cursor_next(&cursor, part, 99991, &piece, 1) == 1) {
			digest_update(&digest, piece.iov_base, piece.iov_len);
			xfer_cursor_skip(&cursor, part, piece.iov_len);
		}
		cr_assert(th_hash_equal(digest_final(&digest), golden_digests[c]), "chunk %u", c);
	}
	xfer_part_release(part);
	for (uint32_t r = 0; r < GOLDEN_ROWS; r++)
		free(tensors[r]);
	chunk_table_release(table);
	manifest_free(&manifest);
}

Test(chunk, table__no_rows_and_rows_without_bytes__no_chunks)
{
	struct manifest_row row = {.name = "e", .dtype = GOLDEN_U8, .ndim = 1};
	struct chunk_table *table = table_of(NULL, 0);
	cr_assert_eq(table->num_chunks, 0);
	cr_assert_eq(table->bytes, 0);
	cr_assert_eq(table->start[0], 0);
	chunk_table_release(table);
	table = table_of(&row, 1);
	cr_assert_eq(table->num_chunks, 0);
	chunk_table_release(table);
}

Test(chunk, table__small_rows_that_fill_a_chunk_exactly__one_chunk)
{
	struct manifest_row rows[5] = {
		{.name = "a", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {1u << 20}},
		{.name = "b", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {1u << 20}},
		{.name = "c", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {1u << 20}},
		{.name = "d", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {1u << 20}},
		{.name = "e", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {1}},
	};
	struct chunk_table *table = table_of(rows, 5);
	cr_assert_eq(table->num_chunks, 2);
	cr_assert_eq(chunk_bytes(table, 0), CHUNK_BYTES_MAX);
	cr_assert_eq(chunk_bytes(table, 1), 1);
	chunk_table_release(table);
}

Test(chunk, table__large_rows__cut_by_themselves)
{
	struct manifest_row rows[3] = {
		{.name = "a", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {3u << 20}},
		{.name = "b", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {8u << 20}},
		{.name = "c", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {1}},
	};
	struct chunk_table *table = table_of(rows, 3);
	cr_assert_eq(table->num_chunks, 4);
	cr_assert_eq(chunk_bytes(table, 0), 1);
	cr_assert_eq(chunk_bytes(table, 1), 3u << 20);
	cr_assert_eq(chunk_bytes(table, 2), 4u << 20);
	cr_assert_eq(chunk_bytes(table, 3), 4u << 20);
	chunk_table_release(table);
}

/* The rule as invariants, over random shards. */
Test(chunk, table__random_rows__every_byte_once_in_order)
{
	struct th_rng rng;
	th_rng_init_number(&rng, 21);
	for (int round = 0; round < 200; round++) {
		struct manifest_row rows[40] = {{0}};
		char names[40][16];
		uint32_t count = (uint32_t)th_rng_below(&rng, 41);
		for (uint32_t i = 0; i < count; i++) {
			snprintf(names[i], sizeof(names[i]), "t%u", i);
			rows[i].name = names[i];
			rows[i].dtype = GOLDEN_U8;
			rows[i].ndim = 1;
			rows[i].local_shape[0] =
				th_rng_below(&rng, UINT64_C(1) << th_rng_below(&rng, 25));
		}
		struct manifest manifest;
		cr_assert_eq(manifest_build(rows, count, NULL, NULL, NULL, &manifest), 0);
		struct chunk_table *table = chunk_table_new(&manifest);
		uint64_t bytes = 0;
		uint32_t row = 0;
		uint64_t offset = 0;
		for (uint32_t c = 0; c < table->num_chunks; c++) {
			cr_assert_eq(table->start[c], bytes);
			cr_assert_lt(table->first[c], table->first[c + 1]);
			for (uint32_t r = table->first[c]; r < table->first[c + 1]; r++) {
				const struct chunk_range *range = &table->ranges[r];
				while (offset == manifest.rows[row].bytes) {
					row++;
					offset = 0;
				}
				cr_assert_eq(range->row, row);
				cr_assert_eq(range->offset, offset);
				offset += range->bytes;
				bytes += range->bytes;
			}
			cr_assert_leq(chunk_bytes(table, c), CHUNK_BYTES_MAX);
		}
		cr_assert_eq(bytes, manifest.bytes);
		cr_assert_eq(table->start[table->num_chunks], manifest.bytes);
		chunk_table_release(table);
		manifest_free(&manifest);
	}
}
