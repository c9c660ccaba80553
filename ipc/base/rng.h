/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng - the only source of randomness in cores and tests: a seed gives the same numbers everywhere.
 *
 * xoshiro256++ by Blackman and Vigna. Not a cryptographic generator: who sees some outputs can
 * compute the others, so a secret comes from random.h, in a shell. Pure; one owner.
 */
#ifndef TH_IPC_BASE_RNG_H
#define TH_IPC_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

struct th_rng {
	uint64_t state[4];
};

/* The next number of a splitmix64 sequence: spreads one small seed over a whole state. */
uint64_t th_splitmix64(uint64_t *state);

/* An all-zero seed, with which the generator would stand still, is replaced by that of number 0. */
void th_rng_init(struct th_rng *rng, const uint64_t seed[4]);
void th_rng_init_number(struct th_rng *rng, uint64_t number);

uint64_t th_rng_u64(struct th_rng *rng);
/* Uniform in 0 .. bound-1; bound > 0. */
uint64_t th_rng_below(struct th_rng *rng, uint64_t bound);
void th_rng_bytes(struct th_rng *rng, void *ret_bytes, size_t count);

#endif
