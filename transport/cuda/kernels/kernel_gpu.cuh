/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_gpu - what clang needs to make a GPU's code of a kernel, and the functions that touch its
 * memory.
 */
#define _Static_assert static_assert
#define GPU_CODE static inline __attribute__((device, always_inline))
#define GPU_TABLE static __attribute__((constant))
#define GPU_PRAGMA(text) _Pragma(#text)
#define GPU_UNROLL(count) GPU_PRAGMA(unroll count)
#define GPU_MEMORY __attribute__((address_space(1)))

#include "transport/cuda/kernels/kernel_memory.h"

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
