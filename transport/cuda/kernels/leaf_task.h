/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf_task - what the GPU is told about a leaf to hash: the form of a table in pinned host memory,
 * which gpu_hash.c writes and the kernel (leaf_kernel.h) reads.
 */
#ifndef TH_TRANSPORT_CUDA_KERNELS_LEAF_TASK_H
#define TH_TRANSPORT_CUDA_KERNELS_LEAF_TASK_H

#include <stdint.h>

#define LEAF_KERNEL "th_leaf_digests"
#define LEAF_KERNEL_THREADS 256 /* of a leaf */
/* A leaf that is no longer is hashed by the CPU: XXH3 has other forms for so few bytes. */
#define LEAF_SHORT_BYTES 240

/* A leaf is at most so many: of a chunk, but all of them may be in one leaf. */
#define LEAF_PIECES_MAX 512

struct leaf_task {        /* aligned to 16, as all that the kernel loads */
	uint64_t address; /* of the one piece; of a list of more */
	/* Where a whole leaf of one piece is copied to, 0: nowhere, and both are aligned to 16. Of
	 * a short leaf: where its bytes go. */
	uint64_t copy;
	uint32_t bytes, pieces;
	uint64_t reserved;
};

struct leaf_piece { /* one behind the other */
	uint64_t address;
	uint32_t start; /* in the leaf */
	uint32_t bytes; /* never 0 */
};

_Static_assert(sizeof(struct leaf_task) == 32, "one read over the bus");
_Static_assert(sizeof(struct leaf_piece) == 16, "as the kernel loads it");

#endif
