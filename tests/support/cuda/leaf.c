/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf - transport/cuda/kernels/leaf_kernel.h on a CPU: the threads of a block one after the other,
 * each step for all of them before the next.
 */
#include "tests/support/cuda/kernel_cpu.h"
#include "transport/cuda/kernels/leaf_kernel.h"

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
