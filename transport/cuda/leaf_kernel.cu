/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf_kernel - leaf_kernel.h for a GPU. leaf_kernel.ptx is what clang makes of it; leaf_ptx.py
 * says how, and compares.
 */
#define _Static_assert static_assert
#define GPU_CODE static inline __attribute__((device, always_inline))
#define GPU_TABLE static __attribute__((constant))
#define GPU_PRAGMA(text) _Pragma(#text)
#define GPU_UNROLL(count) GPU_PRAGMA(unroll count)
#define GPU_MEMORY __attribute__((address_space(1)))

#include "transport/cuda/leaf_task.h"
#include "transport/cuda/leaf_kernel.h"

typedef uint64_t two_words __attribute__((ext_vector_type(2)));

GPU_CODE struct pair
gpu_load(uint64_t address)
{
	two_words words = *(const GPU_MEMORY two_words *)address;
	struct pair pair = {words.x, words.y};
	return pair;
}

GPU_CODE uint8_t
gpu_load_byte(uint64_t address)
{
	return *(const GPU_MEMORY uint8_t *)address;
}

GPU_CODE void
gpu_store(uint64_t address, uint64_t value)
{
	*(GPU_MEMORY uint64_t *)address = value;
}

GPU_CODE void
gpu_store_pair(uint64_t address, struct pair value)
{
	two_words words = {value.low, value.high};
	*(GPU_MEMORY two_words *)address = words;
}

GPU_CODE void
gpu_store_byte(uint64_t address, uint8_t value)
{
	*(GPU_MEMORY uint8_t *)address = value;
}

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
