/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_memory - how the kernels of the GPU touch memory: 16 bytes at a time wherever that can be.
 *
 * Who includes a kernel defines the first five functions: kernel_gpu.cuh for a GPU, the driver for
 * tests for a CPU.
 */
#ifndef TH_TRANSPORT_CUDA_KERNELS_KERNEL_MEMORY_H
#define TH_TRANSPORT_CUDA_KERNELS_KERNEL_MEMORY_H

#include <stdint.h>

struct pair { /* 16 bytes: two words that XXH3 swaps with each other */
	uint64_t low, high;
};

/* Of 16 bytes at a multiple of 16; of a byte. */
GPU_CODE struct pair gpu_load(uint64_t address);
GPU_CODE uint8_t gpu_load_byte(uint64_t address);
GPU_CODE void gpu_store(uint64_t address, uint64_t value);
GPU_CODE void gpu_store_pair(uint64_t address, struct pair value);
GPU_CODE void gpu_store_byte(uint64_t address, uint8_t value);

/* The 16 bytes from the shift-th on, below 16, of 32. bits: of shift, modulo 8, by 8. */
GPU_CODE struct pair
gpu_join(struct pair first, struct pair second, uint32_t shift, uint32_t bits)
{
	struct pair out;
	uint64_t low = shift < 8 ? first.low : first.high;
	uint64_t middle = shift < 8 ? first.high : second.low;
	uint64_t high = shift < 8 ? second.low : second.high;
	out.low = bits == 0 ? low : low >> bits | middle << (64 - bits);
	out.high = bits == 0 ? middle : middle >> bits | high << (64 - bits);
	return out;
}

/* 16 bytes from anywhere. Both loads have bytes of ours in them; of aligned ones they are one. */
GPU_CODE struct pair
gpu_load_any(uint64_t address)
{
	uint32_t shift = (uint32_t)address & 15u, bits = 8u * (shift & 7u);
	struct pair first = gpu_load(address - shift);
	struct pair second = gpu_load(address - shift + (shift ? 16u : 0u));
	return gpu_join(first, second, shift, bits);
}

#endif
