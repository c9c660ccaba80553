/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_gpu - pieces of GPU memory among the memory objects of a worker (memory.h).
 *
 * A worker has a space on each GPU that it shares memory of (transport/cuda/agent/gpus.h): it comes
 * with the first piece and goes with the last one, and then nothing of the worker is open there.
 * What a piece is opened by is the driver's and the GPU process' business; here is checked what can
 * be without them. Main thread only.
 */
#ifndef TH_DAEMON_HOST_MEMORY_MEMORY_GPU_H
#define TH_DAEMON_HOST_MEMORY_MEMORY_GPU_H

#include "daemon/host/memory/memory.h"

struct gpus;

struct memory_gpu_limits {
	struct gpus *gpus;   /* NULL: GPU memory is not shared */
	const char *why_not; /* a sentence, when gpus is NULL */
	const char *label;   /* "model/replica/shard" */
	/* Whose addresses they are: two handles of one process have the same. */
	uint64_t process;
};

/*
 * As memory_add. A piece at the place of one that was forgotten takes its place, unless registered
 * (in_use) tensors may lie there.
 */
int memory_gpu_add(struct memory_set *set, const struct fdmsg_gpu *message, int *fd,
	const struct memory_limits *limits, const struct memory_gpu_limits *gpu_limits,
	bool registered, struct th_err *err, uint32_t *ret_id);

/* The worker's bytes from offset of the object on; they may be in others that follow it. */
bool memory_gpu_has(const struct memory *object, uint64_t offset, uint64_t bytes);

/*
 * The registration that they were for is over: all pieces and dma-bufs are forgotten. Until the
 * next sweep they stay.
 */
void memory_gpu_forget_all(struct memory_set *set);

/* Of memory.c: what only an object of a GPU has, is given back. */
void memory_gpu_drop(struct memory_set *set, struct memory *object);
/* A use more of the set's hold, which begins with the first. */
struct hold *memory_gpu_hold(struct memory_set *set);

/* "cudaMalloc", "chunks of a range"...: what an object is made of. */
const char *memory_gpu_kind(const struct memory *object);

#endif
