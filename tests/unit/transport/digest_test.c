/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/digest: known values (see tests/support/golden.h), pieces of all sizes, copies
 * that are hashed on the way, as this CPU does it and as one without AVX2 would; and of nt_copy.
 */
#include "transport/hash/digest.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/name.h"
#include "tests/support/golden.h"
#include "tests/support/rng.h"
#include "transport/hash/nt_copy.h"

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

/* ---- every way of hashing ------------------------------------------------------------------ */

Test(leaf, hash__any_number__same_either_way)
{
	uint8_t *data = content();
	for (uint32_t count = 0; count <= 11; count++) {
		uint64_t fast[11] = {0}, plain[11] = {0};
		leaf_hash(data + 3, count, fast);
		leaf_force_plain(true);
		cr_assert_str_neq(leaf_kind(), "avx2");
		leaf_hash(data + 3, count, plain);
		leaf_force_plain(false);
		cr_assert_eq(memcmp(fast, plain, sizeof(fast)), 0, "%u leaves", count);
		cr_assert_eq(fast[0] == fast[1] && count > 1, false);
	}
	free(data);
}

static void
copy_random_pieces(bool plain)
{
	uint8_t *data = content();
	uint8_t *copy = malloc(CHUNK_BYTES_MAX + 64);
	struct th_rng rng;
	th_rng_init_number(&rng, 11);
	leaf_force_plain(plain);
	for (int round = 0; round < 120; round++) {
		size_t i = (size_t)th_rng_below(&rng, KNOWN);
		uint64_t piece_max = UINT64_C(1) << (8 + th_rng_below(&rng, 15));
		/* Whole lines, and not. */
		uint8_t *to = copy + (th_rng_below(&rng, 2) ? 0 : th_rng_below(&rng, 64));
		to += (size_t)(-(uintptr_t)copy & 63);
		to = to + known[i].bytes > copy + CHUNK_BYTES_MAX + 64 ? copy : to;
		struct digest digest;
		digest_init(&digest);
		memset(copy, 0, CHUNK_BYTES_MAX + 64);
		for (size_t at = 0; at < known[i].bytes;) {
			size_t piece = (size_t)th_rng_below(&rng, piece_max + 1);
			if (round % 3 == 0)
				piece = CHUNK_BYTES_MAX;
			if (piece > known[i].bytes - at)
				piece = known[i].bytes - at;
			digest_copy(&digest, to + at, data + at, piece);
			at += piece;
		}
		cr_assert(th_hash_equal(digest_final(&digest), known[i].digest));
		cr_assert_eq(memcmp(to, data, known[i].bytes), 0);
		cr_assert(to + known[i].bytes == copy + CHUNK_BYTES_MAX + 64 ||
				  to[known[i].bytes] == 0,
			"not a byte more");
	}
	leaf_force_plain(false);
	free(data);
	free(copy);
}

Test(digest, copy__random_pieces__same_digest_and_bytes)
{
	copy_random_pieces(false);
}

Test(digest, copy__without_avx2__same_digest_and_bytes)
{
	copy_random_pieces(true);
}

static struct {
	uint64_t *words;
	bool stop; /* atomic */
} scribble;

#define SCRIBBLE_BYTES (8 * DIGEST_LEAF_BYTES)

/* Between threads on purpose: another process would do it. */
__attribute__((no_sanitize("thread"))) static void *
scribbler(void *arg)
{
	for (uint64_t i = 0; !__atomic_load_n(&scribble.stop, __ATOMIC_RELAXED); i++)
		__atomic_add_fetch(
			&scribble.words[i * 37 % (SCRIBBLE_BYTES / 8)], 1, __ATOMIC_RELAXED);
	return arg;
}

/* Whatever the writer does: never the digest of one thing and the bytes of another. */
__attribute__((no_sanitize("thread"))) static void
copy_under_a_writer(bool plain, size_t shift)
{
	uint8_t *data = content();
	uint8_t *memory = aligned_alloc(64, SCRIBBLE_BYTES + 64);
	uint8_t *copy = memory + shift;
	pthread_t thread;
	scribble.words = (void *)data;
	scribble.stop = false;
	leaf_force_plain(plain);
	cr_assert_eq(pthread_create(&thread, NULL, scribbler, NULL), 0);
	for (int round = 0; round < 200; round++) {
		struct digest digest;
		digest_init(&digest);
		digest_copy(&digest, copy, data, SCRIBBLE_BYTES);
		cr_assert(th_hash_equal(digest_final(&digest), digest_of(copy, SCRIBBLE_BYTES)));
	}
	__atomic_store_n(&scribble.stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	leaf_force_plain(false);
	free(data);
	free(memory);
}

Test(digest, copy__source_is_written_meanwhile__digest_of_what_was_stored)
{
	copy_under_a_writer(false, 0);
	copy_under_a_writer(false, 3);
}

Test(digest, copy__without_avx2_and_source_is_written__digest_of_what_was_stored)
{
	copy_under_a_writer(true, 0);
}

static void
copy_any_size_and_place(void)
{
	uint8_t *data = content();
	uint8_t *copy = malloc(300000);
	struct th_rng rng;
	th_rng_init_number(&rng, 9);
	for (int round = 0; round < 400; round++) {
		size_t from = (size_t)th_rng_below(&rng, 200), to = (size_t)th_rng_below(&rng, 200);
		size_t bytes = (size_t)th_rng_below(&rng, UINT64_C(1) << th_rng_below(&rng, 19));
		memset(copy, 0xa5, 300000);
		nt_copy(copy + to, data + from, bytes);
		cr_assert_eq(memcmp(copy + to, data + from, bytes), 0);
		cr_assert(to == 0 || copy[to - 1] == 0xa5);
		cr_assert_eq(copy[to + bytes], 0xa5);
	}
	free(data);
	free(copy);
}

Test(nt_copy, any_size_and_place__same_bytes_and_no_more)
{
	copy_any_size_and_place();
}

Test(nt_copy, without_avx512__same_bytes_and_no_more)
{
	nt_copy_force_narrow(true);
	copy_any_size_and_place();
}
