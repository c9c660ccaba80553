/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_cpu - how the GPU's kernels (transport/cuda/kernels/kernel_memory.h) touch its memory when
 * a CPU runs them. Before any kernel is included.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_KERNEL_CPU_H
#define TH_TESTS_SUPPORT_CUDA_KERNEL_CPU_H

#include <stdint.h>

#include "tests/support/cuda/kernel.h"

#define GPU_CODE static inline
#define GPU_TABLE static
#define GPU_UNROLL(count)
#include "transport/cuda/kernels/kernel_memory.h"

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

#endif
