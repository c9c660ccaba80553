/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng - see rng.h. After the reference code of xoshiro256++ 1.0 and splitmix64, which are in the
 * public domain. Pure.
 */
#include "ipc/base/rng.h"

#include "ipc/base/assert.h"

static uint64_t
rotate_left(uint64_t value, unsigned int bits)
{
	return (value << bits) | (value >> (64 - bits));
}

uint64_t
th_splitmix64(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

void
th_rng_init_number(struct th_rng *rng, uint64_t number)
{
	for (int i = 0; i < 4; i++)
		rng->state[i] = th_splitmix64(&number);
}

void
th_rng_init(struct th_rng *rng, const uint64_t seed[4])
{
	if ((seed[0] | seed[1] | seed[2] | seed[3]) == 0) {
		th_rng_init_number(rng, 0);
		return;
	}
	for (int i = 0; i < 4; i++)
		rng->state[i] = seed[i];
}

uint64_t
th_rng_u64(struct th_rng *rng)
{
	uint64_t *s = rng->state;
	uint64_t result = rotate_left(s[0] + s[3], 23) + s[0];
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotate_left(s[3], 45);
	return result;
}

uint64_t
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

void
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
