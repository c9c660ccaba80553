/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_task - what the GPU is told about bytes to copy: the form of a table in pinned host
 * memory, which gather.c writes and the kernel (gather_kernel.h) reads.
 */
#ifndef TH_TRANSPORT_CUDA_KERNELS_GATHER_TASK_H
#define TH_TRANSPORT_CUDA_KERNELS_GATHER_TASK_H

#include <stdint.h>

#define GATHER_KERNEL "th_gather"
#define GATHER_KERNEL_THREADS 256
#define GATHER_WARP 32 /* threads, that copy a task */

struct gather_task { /* aligned to 16, as all that the kernel loads */
	uint64_t to, from;
	uint32_t bytes; /* never 0 */
	uint32_t reserved[3];
};

_Static_assert(sizeof(struct gather_task) == 32, "one read over the bus");

#endif
