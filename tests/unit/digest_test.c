/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/digest: known values (see tests/support/golden.h), pieces of all sizes. */
#include "transport/digest.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "ipc/base/name.h"
#include "ipc/base/rng.h"
#include "tests/support/golden.h"

static const struct {
	size_t bytes;
	struct th_hash digest;
} known[] = {
	{0, {0x6001c324468d497f, 0x99aa06d3014798d8}},
	{1, {0xfd65f7b51cbcd866, 0xe7fd9c6c7e46d858}},
	{65535, {0xcb6fb7aeb7168afd, 0xfb2dd00d9c2cb336}},
	{65536, {0xfb4a89a4a6a927d1, 0x9c6f7d9183e54118}},
	{65537, {0x0f68daecb71e7769, 0xb018070c2b2670ee}},
	{200000, {0xe4c6b2b188ab06f0, 0x100debc43b29ec60}},
	{4194304, {0x514cac2d511b0a47, 0x2c119a9af27be70f}},
};
#define KNOWN (sizeof(known) / sizeof(known[0]))

static uint8_t *
content(void)
{
	uint8_t *data = malloc(CHUNK_BYTES_MAX);
	cr_assert(data);
	golden_fill(0, data, CHUNK_BYTES_MAX);
	return data;
}

Test(digest, of__known_content__known_digest)
{
	uint8_t *data = content();
	for (size_t i = 0; i < KNOWN; i++) {
		struct th_hash digest = digest_of(data, known[i].bytes);
		cr_assert(th_hash_equal(digest, known[i].digest), "%zu bytes: %lx %lx",
			known[i].bytes, digest.lo, digest.hi);
	}
	free(data);
}

Test(digest, update__random_pieces__same_as_whole)
{
	uint8_t *data = content();
	struct th_rng rng;
	th_rng_init_number(&rng, 7);
	for (int round = 0; round < 200; round++) {
		size_t i = (size_t)th_rng_below(&rng, KNOWN);
		uint64_t piece_max = UINT64_C(1) << th_rng_below(&rng, 22);
		if (piece_max < 64 && known[i].bytes > 200000)
			piece_max = 64;
		struct digest digest;
		digest_init(&digest);
		for (size_t at = 0; at < known[i].bytes;) {
			size_t piece = (size_t)th_rng_below(&rng, piece_max + 1);
			if (piece > known[i].bytes - at)
				piece = known[i].bytes - at;
			digest_update(&digest, data + at, piece);
			at += piece;
		}
		cr_assert(th_hash_equal(digest_final(&digest), known[i].digest));
	}
	free(data);
}

Test(digest, update__one_byte_pieces_over_a_leaf_boundary__same_as_whole)
{
	uint8_t *data = content();
	struct digest digest;
	digest_init(&digest);
	for (size_t at = 0; at < 65537; at++)
		digest_update(&digest, data + at, 1);
	cr_assert(th_hash_equal(digest_final(&digest), known[4].digest));
	free(data);
}

Test(digest, init__after_use__starts_anew)
{
	uint8_t *data = content();
	struct digest digest;
	digest_init(&digest);
	digest_update(&digest, data, 100000);
	digest_init(&digest);
	digest_update(&digest, data, 65537);
	cr_assert(th_hash_equal(digest_final(&digest), known[4].digest));
	free(data);
}

Test(digest, of__one_flipped_bit__another_digest)
{
	uint8_t *data = content();
	struct th_rng rng;
	th_rng_init_number(&rng, 8);
	for (int round = 0; round < 100; round++) {
		uint64_t at = th_rng_below(&rng, 200000);
		uint8_t bit = (uint8_t)(1u << th_rng_below(&rng, 8));
		data[at] ^= bit;
		cr_assert(!th_hash_equal(digest_of(data, 200000), known[5].digest));
		data[at] ^= bit;
	}
	free(data);
}
