/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf_task - what the GPU is told about a leaf to hash: the form of a table in its memory, which
 * hash.c writes and the kernel (leaf_kernel.h) reads.
 */
#ifndef TH_TRANSPORT_CUDA_LEAF_TASK_H
#define TH_TRANSPORT_CUDA_LEAF_TASK_H

#include <stdint.h>

#define LEAF_KERNEL "th_leaf_digests"
#define LEAF_KERNEL_THREADS 256 /* of a leaf */
/* A leaf that is no longer is hashed by the CPU: XXH3 has other forms for so few bytes. */
#define LEAF_SHORT_BYTES 240

struct leaf_task {        /* aligned to 16, as all that the kernel loads */
	uint64_t address; /* of one piece that is the whole leaf */
	uint32_t bytes;   /* 1 .. 64 KiB */
	uint32_t pieces;  /* of the list */
	uint64_t list;    /* of more than one piece: where they are */
	uint64_t to;      /* the value, 8 bytes; of a short leaf the bytes themselves */
	/* Where a whole leaf of one piece is copied to; 0: nowhere. Both are aligned to 16. */
	uint64_t copy;
	uint64_t reserved;
};

struct leaf_piece { /* one behind the other */
	uint64_t address;
	uint32_t start; /* in the leaf */
	uint32_t bytes; /* never 0 */
};

_Static_assert(sizeof(struct leaf_task) == 48, "as the kernel loads it");
_Static_assert(sizeof(struct leaf_piece) == 16, "as the kernel loads it");

#endif
