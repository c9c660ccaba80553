/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf - see leaf.h. The vector code is XXH3's loop for long inputs, by its specification
 * (xxhash_spec.md of version 0.8, "XXH3 algorithm description"; frozen since), for the one length
 * that a whole leaf has: 63 blocks of 16 stripes of 64 bytes with a scramble after each, 15
 * stripes, and the last 64 bytes once more with another key.
 *
 * What is hashed is what is stored: each byte is loaded once, and that register is both added to
 * the sum and stored. Hashing the source and then copying it would let a writer in between pass
 * with the digest of other bytes; hashing the destination afterwards reads it back from memory,
 * and costs half the rate. Neither finds a bit that memory loses later.
 */
#include "transport/hash/leaf.h"

#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#ifdef TH_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define WITH_AVX2 1
#include <immintrin.h>
#endif

static bool forced_plain;

static void
plain_hash(const uint8_t *data, uint32_t count, uint64_t *ret_values)
{
	for (uint32_t i = 0; i < count; i++)
		ret_values[i] = XXH3_64bits(data + (size_t)i * LEAF_BYTES, LEAF_BYTES);
}

/* The leaf is hashed where it was copied to, while it is in cache. */
static void
plain_copy(uint8_t *to, const uint8_t *from, uint32_t count, uint64_t *ret_values)
{
	for (uint32_t i = 0; i < count; i++) {
		size_t at = (size_t)i * LEAF_BYTES;
		memcpy(to + at, from + at, LEAF_BYTES);
		ret_values[i] = XXH3_64bits(to + at, LEAF_BYTES);
	}
}

#ifdef WITH_AVX2

#define LANES 4u /* leaves at once */
#define STRIPE_BYTES 64u
#define BLOCK_STRIPES 16u
#define BLOCK_BYTES (BLOCK_STRIPES * STRIPE_BYTES)
#define AHEAD_BYTES 512u /* the CPU's own prefetch stops at each page */
#define KEY_SCRAMBLE 128u
#define KEY_LAST 121u
#define KEY_MERGE 11u
#define PRIME32_1 UINT64_C(0x9e3779b1)
#define PRIME64_1 UINT64_C(0x9e3779b185ebca87)
#define PRIME_AVALANCHE UINT64_C(0x165667919e3779f9)

#define AVX2 __attribute__((noinline, target("avx2")))
#define AVX2_INLINE static inline __attribute__((always_inline, target("avx2")))

/* The default secret, as little-endian words: a constant of XXH3. */
static const uint64_t secret[24] = {0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de,
	0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8,
	0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471,
	0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
	0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17,
	0x9e68d429265516d3, 0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45,
	0x7e404bbbcafbd7af};

/* Where the eight sums begin. */
static const uint64_t start[8] = {0xc2b2ae3d, PRIME64_1, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
	0x85ebca77c2b2ae63, 0x85ebca77, 0x27d4eb2f165667c5, PRIME32_1};

struct leaf_lane {
	__m256i low, high; /* four sums each */
};

AVX2_INLINE __m256i
load(const void *at, size_t offset)
{
	return _mm256_loadu_si256((const void *)((const uint8_t *)at + offset));
}

AVX2_INLINE void
begin(struct leaf_lane *lane)
{
	lane->low = load(start, 0);
	lane->high = load(start, 32);
}

AVX2_INLINE __m256i
add(__m256i sum, __m256i data, __m256i key)
{
	__m256i keyed = _mm256_xor_si256(data, key);
	__m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
	__m256i swapped = _mm256_shuffle_epi32(data, 0x4e);
	return _mm256_add_epi64(sum, _mm256_add_epi64(swapped, product));
}

/* Where stripes go. All of it is known when compiled. */
enum store { STORE_NOT, STORE_STREAM, STORE_KEEP };

AVX2_INLINE void
add_stripe(struct leaf_lane *lane, const uint8_t *from, uint8_t *to, enum store store,
	__m256i key_low, __m256i key_high)
{
	_mm_prefetch((const char *)from + AHEAD_BYTES, _MM_HINT_T0);
	__m256i low = load(from, 0);
	__m256i high = load(from, 32);
	if (store != STORE_NOT) {
		/* From here on the registers are all there is: no second load of the source. */
		__asm__("" : "+x"(low), "+x"(high));
	}
	if (store == STORE_STREAM) {
		_mm256_stream_si256((void *)to, low);
		_mm256_stream_si256((void *)(to + 32), high);
	} else if (store == STORE_KEEP) {
		_mm256_storeu_si256((void *)to, low);
		_mm256_storeu_si256((void *)(to + 32), high);
	}
	lane->low = add(lane->low, low, key_low);
	lane->high = add(lane->high, high, key_high);
}

AVX2_INLINE __m256i
scrambled(__m256i sum, __m256i key)
{
	const __m256i prime = _mm256_set1_epi64x((long long)PRIME32_1);
	sum = _mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47));
	sum = _mm256_xor_si256(sum, key);
	__m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(sum, 32), prime);
	return _mm256_add_epi64(_mm256_mul_epu32(sum, prime), _mm256_slli_epi64(upper, 32));
}

AVX2_INLINE void
scramble(struct leaf_lane *lane)
{
	lane->low = scrambled(lane->low, load(secret, KEY_SCRAMBLE));
	lane->high = scrambled(lane->high, load(secret, KEY_SCRAMBLE + 32));
}

static uint64_t
folded_product(uint64_t a, uint64_t b)
{
	__extension__ unsigned __int128 product = (unsigned __int128)a * b;
	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

AVX2_INLINE uint64_t
merged(const struct leaf_lane *lane)
{
	uint64_t sums[8], keys[8];
	_mm256_storeu_si256((void *)&sums[0], lane->low);
	_mm256_storeu_si256((void *)&sums[4], lane->high);
	memcpy(keys, (const uint8_t *)secret + KEY_MERGE, sizeof(keys));
	uint64_t value = LEAF_BYTES * PRIME64_1;
	for (uint32_t i = 0; i < 8; i += 2)
		value += folded_product(sums[i] ^ keys[i], sums[i + 1] ^ keys[i + 1]);
	value ^= value >> 37;
	value *= PRIME_AVALANCHE;
	return value ^ value >> 32;
}

/* One stripe of each of the leaves; those of the copy are stride apart. */
AVX2_INLINE void
add_row(struct leaf_lane *lanes, const uint8_t *from, uint8_t *to, size_t stride, enum store store,
	size_t key, bool four)
{
	__m256i key_low = load(secret, key);
	__m256i key_high = load(secret, key + 32);
	uint32_t count = four ? LANES : 1;
	if (store == STORE_NOT)
		stride = 0;
#pragma GCC unroll 4
	for (uint32_t i = 0; i < count; i++)
		add_stripe(&lanes[i], from + (size_t)i * LEAF_BYTES, to + i * stride, store,
			key_low, key_high);
}

/*
 * A copy that begins shift bytes into a line cannot be streamed as it comes. It goes through a
 * buffer that stays in the first-level cache: a block lies there as it lies in its lines, behind
 * what the block before has left of its last one. The buffer is ours: what is hashed is what is
 * in there.
 */
struct bounce {
	uint8_t lines[STRIPE_BYTES + BLOCK_BYTES] __attribute__((aligned(64)));
};

/* The block that goes to this place is in it: all whole lines, and what is before the first. */
AVX2_INLINE void
flush(struct bounce *bounce, uint8_t *to, size_t shift, bool first)
{
	uint8_t *out = to - shift;
	if (first)
		memcpy(to, bounce->lines + shift, STRIPE_BYTES - shift);
	for (size_t at = first ? STRIPE_BYTES : 0; at < BLOCK_BYTES; at += STRIPE_BYTES) {
		_mm256_stream_si256((void *)(out + at), load(bounce->lines, at));
		_mm256_stream_si256((void *)(out + at + 32), load(bounce->lines, at + 32));
	}
	memcpy(bounce->lines, bounce->lines + BLOCK_BYTES, STRIPE_BYTES);
}

/* One leaf, or four that follow each other; copied unless STORE_NOT. */
AVX2_INLINE void
run(const uint8_t *from, uint8_t *to, enum store store, bool four, uint64_t *ret_values)
{
	struct leaf_lane lanes[LANES];
	struct bounce bounces[LANES];
	size_t shift = store == STORE_KEEP ? (uintptr_t)to % STRIPE_BYTES : 0;
	size_t stride = store == STORE_KEEP ? sizeof(bounces[0]) : LEAF_BYTES;
	uint32_t count = four ? LANES : 1;
	for (uint32_t i = 0; i < count; i++)
		begin(&lanes[i]);
	for (size_t at = 0; at < LEAF_BYTES; at += BLOCK_BYTES) {
		bool last = at == LEAF_BYTES - BLOCK_BYTES;
		uint8_t *out = store == STORE_KEEP ? bounces[0].lines + shift : to + at;
		for (size_t i = 0; i < BLOCK_STRIPES; i++)
			add_row(lanes, from + at + i * STRIPE_BYTES, out + i * STRIPE_BYTES, stride,
				store, last && i == BLOCK_STRIPES - 1 ? KEY_LAST : 8 * i, four);
		for (uint32_t i = 0; i < count && store == STORE_KEEP; i++)
			flush(&bounces[i], to + at + (size_t)i * LEAF_BYTES, shift, at == 0);
		if (last)
			break;
#pragma GCC unroll 4
		for (uint32_t i = 0; i < count; i++)
			scramble(&lanes[i]);
	}
	for (uint32_t i = 0; i < count; i++) {
		if (store == STORE_KEEP)
			memcpy(to + (size_t)(i + 1) * LEAF_BYTES - shift, bounces[i].lines, shift);
		ret_values[i] = merged(&lanes[i]);
	}
}

AVX2_INLINE void
run_all(const uint8_t *from, uint8_t *to, enum store store, uint32_t count, uint64_t *ret_values)
{
	uint32_t done = 0;
	for (; count - done >= LANES; done += LANES) {
		size_t at = (size_t)done * LEAF_BYTES;
		run(from + at, to + at, store, true, ret_values + done);
	}
	for (; done < count; done++) {
		size_t at = (size_t)done * LEAF_BYTES;
		run(from + at, to + at, store, false, ret_values + done);
	}
}

AVX2 static void
avx2_hash(const uint8_t *data, uint32_t count, uint64_t *ret_values)
{
	uint8_t nowhere[1];
	run_all(data, nowhere, STORE_NOT, count, ret_values);
}

/* A function each: without optimization their buffers would add up on the stack. */
AVX2 static void
avx2_copy_to_lines(uint8_t *to, const uint8_t *from, uint32_t count, uint64_t *ret_values)
{
	run_all(from, to, STORE_STREAM, count, ret_values);
	_mm_sfence();
}

AVX2 static void
avx2_copy_anywhere(uint8_t *to, const uint8_t *from, uint32_t count, uint64_t *ret_values)
{
	run_all(from, to, STORE_KEEP, count, ret_values);
	_mm_sfence();
}

static void
avx2_copy(uint8_t *to, const uint8_t *from, uint32_t count, uint64_t *ret_values)
{
	if ((uintptr_t)to % STRIPE_BYTES == 0)
		avx2_copy_to_lines(to, from, count, ret_values);
	else
		avx2_copy_anywhere(to, from, count, ret_values);
}

static bool
has_avx2(void)
{
	return !forced_plain && __builtin_cpu_supports("avx2");
}

#else

static bool
has_avx2(void)
{
	return false;
}

static void
avx2_hash(const uint8_t *data, uint32_t count, uint64_t *ret_values)
{
	plain_hash(data, count, ret_values);
}

static void
avx2_copy(uint8_t *to, const uint8_t *from, uint32_t count, uint64_t *ret_values)
{
	plain_copy(to, from, count, ret_values);
}

#endif

void
leaf_hash(const void *data, uint32_t count, uint64_t *ret_values)
{
	if (has_avx2())
		avx2_hash(data, count, ret_values);
	else
		plain_hash(data, count, ret_values);
}

void
leaf_copy(void *to, const void *from, uint32_t count, uint64_t *ret_values)
{
	if (has_avx2())
		avx2_copy(to, from, count, ret_values);
	else
		plain_copy(to, from, count, ret_values);
}

const char *
leaf_kind(void)
{
	if (has_avx2())
		return "avx2";
#ifdef TH_XXHASH_DISPATCH
	return "dispatch";
#else
	return "plain";
#endif
}

void
leaf_force_plain(bool plain)
{
	forced_plain = plain;
}
