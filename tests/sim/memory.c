/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory - shards as arrays of tokens. Whoever may write a memory does so at once and with garbage,
 * so that a byte that is read where none may be is a byte that is wrong.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

struct memory *
memory_new(bool shared)
{
	struct memory *memory = th_calloc(1, sizeof(*memory));

	memory->shared = shared;
	memory->mapped = 1;
	memory->next = world.memories;
	world.memories = memory;
	return memory;
}

void
memory_scribble(struct memory *memory, const char *who)
{
	check_scribble(memory, who);
	for (uint32_t i = 0; i < world.options.chunks; i++) {
		for (uint32_t k = 0; k < CHUNK_TOKENS; k++)
			memory->tokens[i][k] = th_rng_u64(&world.rng[RNG_WORK]);
	}
}

void
memory_unmap(struct memory *memory)
{
	if (--memory->mapped > 0)
		return;
	memory_scribble(memory, "its next owner");
	memory->right = MEMORY_NOBODYS;
}

static uint64_t
token(const struct content *content, uint32_t chunk, uint32_t k)
{
	uint64_t state = content->version * UINT64_C(0x2545f4914f6cdd1d) + content->lineage * 131 +
			 content->model * 31 + content->shard * 7 + content->variant * 1000003 +
			 chunk * 65537 + k * UINT64_C(0x10000000001);

	return th_splitmix64(&state);
}

void
memory_write(struct memory *memory, const struct content *content)
{
	for (uint32_t i = 0; i < world.options.chunks; i++) {
		for (uint32_t k = 0; k < CHUNK_TOKENS; k++)
			memory->tokens[i][k] = token(content, i, k);
	}
}

uint32_t
memory_compare(const struct memory *memory, const struct content *content)
{
	for (uint32_t i = 0; i < world.options.chunks; i++) {
		for (uint32_t k = 0; k < CHUNK_TOKENS; k++) {
			if (memory->tokens[i][k] != token(content, i, k))
				return i;
		}
	}
	return UINT32_MAX;
}

uint64_t
chunk_digest(const uint64_t tokens[CHUNK_TOKENS])
{
	uint64_t hash = CHUNK_TOKENS;

	for (uint32_t k = 0; k < CHUNK_TOKENS; k++) {
		hash = (hash ^ tokens[k]) * UINT64_C(0x9fb21c651e98df25);
		hash ^= hash >> 32;
	}
	return hash;
}
