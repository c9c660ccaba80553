/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather - transport/cuda/kernels/gather_kernel.h on a CPU: the threads of all warps one after the
 * other, none of which waits for another.
 */
#include "tests/support/cuda/kernel_cpu.h"
#include "transport/cuda/kernels/gather_kernel.h"

static void
run(const uint64_t *arguments, unsigned blocks, unsigned threads)
{
	const uint32_t warps = blocks * threads / GATHER_WARP;
	for (uint32_t warp = 0; warp < warps; warp++)
		for (uint32_t lane = 0; lane < GATHER_WARP; lane++)
			gather_run(lane, warp, warps, arguments[0], (uint32_t)arguments[1]);
}

const struct kernel kernel_gather = {
	.name = GATHER_KERNEL,
	.threads_max = GATHER_KERNEL_THREADS,
	.num_arguments = 2,
	.run = run,
};
