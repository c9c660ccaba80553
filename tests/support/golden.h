/* SPDX-License-Identifier: Apache-2.0 */
/*
 * golden - one manifest whose encoding, hashes, chunk table and digests are known as literals.
 *
 * The literals come from an independent computation: a Python script that packs the rows with
 * struct, hashes with the xxhash package (xxh3_128_intdigest; xxh3_64_intdigest of every 64 KiB,
 * those as little-endian 8 bytes through xxh3_128_intdigest again) and cuts chunks by the text of
 * the format: rows under 2 MiB greedily into 4 MiB, each other row by itself every 4 MiB.
 * Never replace them by what this program prints.
 */
#ifndef TH_TESTS_SUPPORT_GOLDEN_H
#define TH_TESTS_SUPPORT_GOLDEN_H

#include <stdint.h>
#include <stdlib.h>

#include "ipc/proto/manifest.h"

enum { /* of enum thc_dtype */
	GOLDEN_U8 = 1,
	GOLDEN_F16 = 6,
	GOLDEN_BF16 = 7,
	GOLDEN_I32 = 8,
	GOLDEN_F32 = 10,
	GOLDEN_F8_E5M2 = 15,
	GOLDEN_F4 = 20,
};

#define GOLDEN_GIVEN 11
#define GOLDEN_ROWS 10
#define GOLDEN_CHUNKS 5
#define GOLDEN_BLOB_BYTES 420
#define GOLDEN_SHARD_BYTES 10485819

/* In no order at all; tie.b is tied to tie.a. */
static const struct manifest_row golden_given[GOLDEN_GIVEN] = {
	{.name = "tie.b", .dtype = GOLDEN_I32, .ndim = 1, .local_shape = {4}},
	{.name = "g.half", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {2097151}},
	{.name = "e.long", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {4194305}},
	{.name = "b.small", .dtype = GOLDEN_BF16, .ndim = 2, .local_shape = {3, 5}},
	{.name = "a.scalar", .dtype = GOLDEN_F32, .ndim = 0},
	{.name = "empty", .dtype = GOLDEN_F16, .ndim = 2, .local_shape = {0, 7}},
	{.name = "d.just_large", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {2097152}},
	{.name = "c.just_small", .dtype = GOLDEN_U8, .ndim = 1, .local_shape = {2097151}},
	{.name = "f4", .dtype = GOLDEN_F4, .ndim = 1, .local_shape = {3}},
	{.name = "s.part",
		.dtype = GOLDEN_F8_E5M2,
		.ndim = 2,
		.local_shape = {2, 4},
		.global_shape = {8, 4},
		.offset = {4, 0}},
	{.name = "tie.a", .dtype = GOLDEN_I32, .ndim = 1, .local_shape = {4}},
};
static const uint32_t golden_alias_of[GOLDEN_GIVEN] = {10, UINT32_MAX, UINT32_MAX, UINT32_MAX,
	UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};

static inline int
golden_build(struct manifest *ret_manifest)
{
	return manifest_build(
		golden_given, GOLDEN_GIVEN, golden_alias_of, NULL, NULL, ret_manifest);
}

/* The content that the digests are of. */
static inline void
golden_fill(uint32_t row, uint8_t *data, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		data[i] = (uint8_t)(i * 167 + (i >> 8) * 13 + row * 29 + (i >> 16) * 7);
}

#endif
