/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf - transport/cuda/leaf_kernel.h on a CPU: the threads of a block one after the other, each
 * step for all of them before the next.
 */
#include <stdint.h>

#include "tests/support/cuda/kernel.h"
#include "transport/cuda/leaf_task.h"

#define GPU_CODE static inline
#define GPU_TABLE static
#define GPU_UNROLL(count)
#include "transport/cuda/leaf_kernel.h"

static inline struct pair
gpu_load(uint64_t address)
{
	return *(const struct pair *)kernel_memory(address, false);
}

static inline uint8_t
gpu_load_byte(uint64_t address)
{
	return *(const uint8_t *)kernel_memory(address, false);
}

static inline void
gpu_store(uint64_t address, uint64_t value)
{
	*(uint64_t *)kernel_memory(address, true) = value;
}

static inline void
gpu_store_pair(uint64_t address, struct pair value)
{
	*(struct pair *)kernel_memory(address, true) = value;
}

static inline void
gpu_store_byte(uint64_t address, uint8_t value)
{
	*(uint8_t *)kernel_memory(address, true) = value;
}

static void
run_block(uint64_t task, uint64_t value, unsigned threads)
{
	static _Thread_local struct leaf_shared shared; /* too large for a stack */
	struct leaf leaf;
	for (uint32_t thread = 0; thread < threads; thread++)
		leaf_begin(thread, task, &shared);
	for (uint32_t thread = 0; thread < threads; thread++)
		leaf = leaf_list(thread, &shared);
	if (leaf_is_short(&leaf)) {
		for (uint32_t thread = 0; thread < threads; thread++)
			leaf_copy_short(thread, &leaf, &shared);
		return;
	}
	for (uint32_t thread = 0; thread < threads; thread++)
		leaf_sum(thread, &leaf, &shared);
	for (uint32_t thread = 0; thread < threads; thread++)
		leaf_chain(thread, &leaf, &shared);
	for (uint32_t thread = 0; thread < threads; thread++)
		leaf_end(thread, &leaf, &shared, value);
}

static void
run(const uint64_t *arguments, unsigned blocks, unsigned threads)
{
	for (unsigned block = 0; block < blocks; block++)
		run_block(arguments[0] + block * sizeof(struct leaf_task),
			arguments[1] + block * sizeof(uint64_t), threads);
}

const struct kernel kernel_leaf_digests = {
	.name = LEAF_KERNEL,
	.threads_max = LEAF_KERNEL_THREADS,
	.num_arguments = 2,
	.run = run,
};
