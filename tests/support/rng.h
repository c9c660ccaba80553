/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng - the only source of randomness in tests: a seed gives the same numbers everywhere.
 *
 * xoshiro256++ by Blackman and Vigna, after their reference code, which is in the public domain.
 * Pure; one owner.
 */
#ifndef TH_TESTS_SUPPORT_RNG_H
#define TH_TESTS_SUPPORT_RNG_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/assert.h"
#include "ipc/base/splitmix.h"

struct th_rng {
	uint64_t state[4];
};

static inline uint64_t
th_rng_rotate(uint64_t value, unsigned int bits)
{
	return (value << bits) | (value >> (64 - bits));
}

static inline void
th_rng_init_number(struct th_rng *rng, uint64_t number)
{
	for (int i = 0; i < 4; i++)
		rng->state[i] = th_splitmix64(&number);
}

/* An all-zero seed, with which the generator would stand still, is replaced by that of number 0. */
static inline void
th_rng_init(struct th_rng *rng, const uint64_t seed[4])
{
	if ((seed[0] | seed[1] | seed[2] | seed[3]) == 0) {
		th_rng_init_number(rng, 0);
		return;
	}
	for (int i = 0; i < 4; i++)
		rng->state[i] = seed[i];
}

static inline uint64_t
th_rng_u64(struct th_rng *rng)
{
	uint64_t *s = rng->state;
	uint64_t result = th_rng_rotate(s[0] + s[3], 23) + s[0];
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = th_rng_rotate(s[3], 45);
	return result;
}

/* Uniform in 0 .. bound-1; bound > 0. */
static inline uint64_t
th_rng_below(struct th_rng *rng, uint64_t bound)
{
	TH_ASSERT(bound > 0);
	/* Numbers below 2^64 mod bound would make the small results likelier. */
	uint64_t skip = (0 - bound) % bound;
	uint64_t number;

	do {
		number = th_rng_u64(rng);
	} while (number < skip);
	return number % bound;
}

static inline void
th_rng_bytes(struct th_rng *rng, void *ret_bytes, size_t count)
{
	uint8_t *bytes = ret_bytes;

	/* Byte by byte from the low end: the same on any machine. */
	for (size_t i = 0; i < count;) {
		uint64_t number = th_rng_u64(rng);
		for (size_t j = 0; j < 8 && i < count; j++, i++) {
			bytes[i] = (uint8_t)number;
			number >>= 8;
		}
	}
}

#endif
