/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_kernel - gather_kernel.h for a GPU. gather_kernel.ptx is what clang makes of it;
 * kernel_ptx.py says how, and compares.
 */
#include "transport/cuda/kernels/kernel_gpu.cuh"

#include "transport/cuda/kernels/gather_kernel.h"

/* As many thread blocks as one likes: they share the tasks. */
extern "C" __attribute__((global, launch_bounds(GATHER_KERNEL_THREADS))) void
th_gather(uint64_t tasks, uint64_t count)
{
	const uint32_t warps_of_block = GATHER_KERNEL_THREADS / GATHER_WARP;
	const uint32_t thread = __nvvm_read_ptx_sreg_tid_x();
	const uint32_t warp =
		__nvvm_read_ptx_sreg_ctaid_x() * warps_of_block + thread / GATHER_WARP;
	const uint32_t warps = __nvvm_read_ptx_sreg_nctaid_x() * warps_of_block;
	gather_run(thread % GATHER_WARP, warp, warps, tasks, (uint32_t)count);
}
