/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu - the inside of the libcuda.so.1 of the tests: what one process knows.
 *
 * A device address is an address of this process that nothing may touch: a page without access, as
 * on a GPU. What lies behind it is a part of a GPU's file, and copies read and write the file.
 *
 * One lock guards everything; whoever waits for a stream gives it away. What the driver refuses is
 * refused with the driver's result. cuda.h says which results a call may give; which of them it
 * gives is known where others met it (a handle of one's own process: 201, openucx/ucx 11603; memory
 * of cuMemCreate or a pool given to legacy IPC: 1, chelsea0x3b/cudarc 521) and assumed elsewhere.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_GPU_H
#define TH_TESTS_SUPPORT_CUDA_GPU_H

#include <pthread.h>

#include "tests/support/cuda/machine.h"

#define HOST_PAGE 4096u
#define GPU_CONTEXTS_MAX 256u
#define GPU_STREAMS_MAX 1024u

struct CUctx_st {
	int device;
	bool alive, primary;
	unsigned refs, flags, peers;
	int chunk; /* the memory that it takes itself */
};

enum region_kind {
	REGION_LEGACY = 1,
	REGION_VMM, /* one mapping of a chunk */
	REGION_POOL,
	REGION_IPC,    /* opened from a legacy handle */
	REGION_IMPORT, /* of a pool of another process */
	REGION_MANAGED,
};

struct region { /* device addresses with memory behind them */
	CUdeviceptr base;
	size_t bytes;
	enum region_kind kind;
	int device, chunk;
	CUcontext context; /* NULL: of none */
	CUmemoryPool pool;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr block;   /* the one that it is a part of; 0: of none */
	uint64_t generation; /* of the chunk */
	unsigned long long id;
	unsigned readers, writers; /* a bit for each GPU */
	unsigned opens;
	int sync_memops;
};

struct span {     /* a part of a GPU's memory, or of the host's */
	int file; /* -1: of the host */
	uint64_t offset;
	char *host;
	size_t bytes;
};

extern struct gpu {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct machine machine;
	struct machine_process *process;
	pid_t pid; /* that called cuInit; 0: none has */
	struct CUctx_st contexts[GPU_CONTEXTS_MAX];
	unsigned num_contexts;
	CUcontext primary[MACHINE_DEVICES_MAX];
	unsigned primary_flags[MACHINE_DEVICES_MAX];
	struct region *regions; /* by address */
	size_t num_regions, room_regions;
	unsigned holds[MACHINE_CHUNKS_MAX];
	unsigned long long ids;
} gpu;

/* ---- library.c: what every call begins with -------------------------------------------------- */

#define GPU_IDLE ((CUresult)-1) /* a planned fault: it returns at once, as if it had done it */
CUresult gpu_enter(int call);
#define ENTER(call)                                                                                \
	do {                                                                                       \
		CUresult enter_result = gpu_enter(CALL_##call);                                    \
		if (enter_result == GPU_IDLE)                                                      \
			return CUDA_SUCCESS;                                                       \
		if (enter_result != CUDA_SUCCESS)                                                  \
			return enter_result;                                                       \
	} while (0)

/* A planned fault of the stream's own work, and whether the GPU is lost. */
CUresult gpu_plan_met(int call);
CUresult gpu_lost(int device);

void gpu_count(enum machine_held held, int change);
bool gpu_is_device(CUdevice device);
static inline CUresult
gpu_leave(CUresult result)
{
	pthread_mutex_unlock(&gpu.lock);
	return result;
}

/* ---- context.c ------------------------------------------------------------------------------- */

/* The calling thread's, alive; NULL. */
CUcontext gpu_context(void);
bool gpu_is_context(CUcontext context);
CUresult gpu_no_context(void); /* why there is none */

/* ---- region.c: device addresses -------------------------------------------------------------- */

/* Whole pages of the host. 0: none left. */
CUdeviceptr gpu_reserve(size_t bytes, size_t alignment);
void gpu_unreserve(CUdeviceptr base, size_t bytes);
/* A copy with an id of its own; its chunk is held once more. */
struct region *gpu_region_add(const struct region *region);
void gpu_region_remove(struct region *region);
/* Frees what was allocated, and its addresses. */
void gpu_region_free(struct region *region);
/* Where the region begins in its chunk. */
uint64_t gpu_region_offset(const struct region *region);
struct region *gpu_region_at(CUdeviceptr address);
/* The first that is not before the address; NULL. */
struct region *gpu_region_from(CUdeviceptr address);
/* A chunk for a region, or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult gpu_take(const struct machine_chunk *form, int *ret_chunk);
/* Memory of this form behind addresses of its own; region has all but its base and chunk. */
CUresult gpu_allocate(const struct machine_chunk *form, struct region *region, size_t alignment,
	CUdeviceptr *ret_address);
void gpu_hold(int chunk);
void gpu_drop(int chunk);
/* Parts in order; device: who accesses. The caller frees them. */
CUresult gpu_spans(CUdeviceptr address, size_t bytes, int device, bool write,
	struct span **ret_spans, size_t *ret_count);
bool gpu_is_pinned(const void *data, size_t bytes);
/* Host memory that kernels reach by this address, which lies among these; NULL. */
char *gpu_host_at(CUdeviceptr address, CUdeviceptr *ret_from, CUdeviceptr *ret_to);
/* All memory that belongs to a context that ends. */
void gpu_regions_of(CUcontext context);

/* ---- block.c --------------------------------------------------------------------------------- */

/* As gpu_allocate. */
CUresult gpu_allocate_small(
	const struct machine_chunk *form, struct region *region, CUdeviceptr *ret_address);
/* No region of the block is left. */
void gpu_block_end(CUdeviceptr base);

/* ---- vmm.c ----------------------------------------------------------------------------------- */

/* The reservation that the address lies in. */
bool gpu_reservation(CUdeviceptr address, CUdeviceptr *ret_base, size_t *ret_bytes);
/* What a mapped chunk allows. */
const CUmemAllocationProp *gpu_properties(const struct region *region);

/* ---- stream.c -------------------------------------------------------------------------------- */

/* Waits until what was queued is done; -1 and NULL: all. With the lock. */
CUresult gpu_wait_device(int device);
void gpu_streams_end(CUcontext context);
/* After all before it on the stream; the lock is held. */
CUresult gpu_queue_free(CUdeviceptr address, CUstream stream);
/* The call comes after all before it on the stream, with a copy of the argument and without the
 * lock; what fails there loses the context. */
CUresult gpu_queue_call(CUresult (*call)(const void *argument, int device), const void *argument,
	size_t bytes, CUstream stream);

/* ---- kernel.c -------------------------------------------------------------------------------- */

void gpu_modules_end(CUcontext context);

#endif
