/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel - what a kernel of the libcuda.so.1 of the tests is made of: the source that the GPU's
 * text was compiled from, compiled for the CPU, and device memory that it reaches.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_KERNEL_H
#define TH_TESTS_SUPPORT_CUDA_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cuda/driver.h"

#define KERNEL_ARGUMENTS_MAX 4u /* of 8 bytes */

struct kernel {
	const char *name;
	unsigned threads_max; /* of a block */
	unsigned num_arguments;
	/* On the thread of the stream, without the lock. */
	void (*run)(const uint64_t *arguments, unsigned blocks, unsigned threads);
};

extern const struct kernel kernel_leaf_digests, kernel_gather;

/*
 * Where bytes of device memory are that one load or store touches, aligned to their number. What is
 * not there, or not for this GPU, fails the launch; then it is some other bytes.
 */
void *kernel_memory(CUdeviceptr address, bool write);

#endif
