/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool - the numbers that a stateful target has been told, to be used again: a fuzzer would not
 * guess them.
 */
#ifndef TH_TESTS_FUZZ_POOL_H
#define TH_TESTS_FUZZ_POOL_H

#include "tests/fuzz/input.h"

#define POOL_MAX 16u

struct pool { /* the last ones */
	uint64_t numbers[POOL_MAX];
	uint32_t count;
};

static inline void
pool_add(struct pool *pool, uint64_t number)
{
	for (uint32_t i = 0; i < POOL_MAX && i < pool->count; i++)
		if (pool->numbers[i] == number)
			return;
	pool->numbers[pool->count++ % POOL_MAX] = number;
}

/* Mostly one of them, else any number. */
static inline uint64_t
pool_pick(const struct pool *pool, struct input *input)
{
	uint32_t has = pool->count < POOL_MAX ? pool->count : POOL_MAX;
	uint8_t byte = input_byte(input);

	if (has == 0 || byte >= 0xf0)
		return input_number(input);
	return pool->numbers[byte % has];
}

#endif
