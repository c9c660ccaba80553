/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf_kernel - leaf_kernel.h for a GPU. leaf_kernel.ptx is what clang makes of it; kernel_ptx.py
 * says how, and compares.
 */
#include "transport/cuda/kernels/kernel_gpu.cuh"

#include "transport/cuda/kernels/leaf_kernel.h"

/* One thread block for each task; values: 8 bytes for each. */
extern "C" __attribute__((global, launch_bounds(LEAF_KERNEL_THREADS, 4))) void
th_leaf_digests(uint64_t tasks, uint64_t values)
{
	static __attribute__((shared)) struct leaf_shared shared;
	const uint32_t thread = __nvvm_read_ptx_sreg_tid_x();
	const uint64_t block = __nvvm_read_ptx_sreg_ctaid_x();
	leaf_begin(thread, tasks + block * sizeof(struct leaf_task), &shared);
	__syncthreads();
	struct leaf leaf = leaf_list(thread, &shared);
	if (leaf.pieces > 1)
		__syncthreads();
	if (leaf_is_short(&leaf)) {
		leaf_copy_short(thread, &leaf, &shared);
		return;
	}
	leaf_sum(thread, &leaf, &shared);
	__syncthreads();
	leaf_chain(thread, &leaf, &shared);
	__syncthreads();
	leaf_end(thread, &leaf, &shared, values + block * sizeof(uint64_t));
}
