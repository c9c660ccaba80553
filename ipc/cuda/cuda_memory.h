/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory - what lies behind the addresses of a worker's GPU tensors, as the driver tells it.
 *
 * Tensors share allocations, thousands a few: a piece is what one handle is made for, and a tensor
 * is a place in one piece, or in several that follow each other where an allocator maps many chunks
 * into one range (torch's expandable segments). The kind comes from the driver's attributes alone:
 * which allocator it was, or what a framework's settings say, is never asked.
 *
 * Creates no context, and asks in one of the framework's where there is one. Not thread safe: one
 * owner. Does not end the process when memory is short, for it runs in the worker's.
 */
#ifndef TH_IPC_CUDA_CUDA_MEMORY_H
#define TH_IPC_CUDA_CUDA_MEMORY_H

#include <stdint.h>

#include "ipc/cuda/driver.h"

enum cuda_kind {
	CUDA_KIND_LEGACY = 1, /* cudaMalloc: a legacy handle */
	CUDA_KIND_CHUNK,      /* cuMemCreate, and the chunk fills its range: a descriptor */
	CUDA_KIND_CHUNKS,     /* one of several places for chunks in a range: a descriptor each */
	CUDA_KIND_POOL,       /* cudaMallocAsync of a pool that can be exported */
	CUDA_KIND_CLOSED,     /* no other process can map it: the worker copies itself */
};

struct cuda_piece {
	CUdeviceptr base;
	uint64_t bytes;
	CUdeviceptr range; /* that it is mapped into; itself where nothing is mapped */
	uint64_t range_bytes;
	enum cuda_kind kind;
	bool mapped;           /* cuMemMap brought it here, and can bring another one */
	bool rdma;             /* a NIC may be given it by a dma-buf, whatever the kind */
	unsigned long long id; /* of the memory, never used again by this process */
};

struct cuda_memory {
	int device;                /* the ordinal of this process */
	struct cuda_piece *pieces; /* owns; by address, they do not overlap */
	size_t count, room;
};

void cuda_memory_init(struct cuda_memory *memory, int device);
void cuda_memory_end(struct cuda_memory *memory);

/*
 * Makes sure that all of [address, address + bytes) is in pieces; asks the driver only where it is
 * not yet. 0, or with a sentence: TH_E_INVALID for what is no memory of this GPU, TH_E_MEMORY_KIND
 * for managed memory and where the driver does not answer, -ENOMEM. What was added before a failure
 * stays.
 */
int cuda_memory_add(struct cuda_memory *memory, const struct cuda *cuda, CUdeviceptr address,
	uint64_t bytes, struct th_err *err);

/*
 * TH_E_MEMORY_KIND with a sentence: the piece is of another process's pool, opened here. Has a
 * descriptor meanwhile, which a child of fork would keep. Of mapped chunks the driver tells no such
 * thing: an imported one is a reference of its own, and is given away as such.
 */
int cuda_memory_check_pool(
	const struct cuda *cuda, int device, const struct cuda_piece *piece, struct th_err *err);

/* The piece that the address lies in; NULL. Until the next cuda_memory_add. */
const struct cuda_piece *cuda_memory_find(const struct cuda_memory *memory, CUdeviceptr address);

/* The first piece whose memory is not what it was when it was added (freed, asleep, or another one
 * at the same address; or the driver answers something else); NULL: all are. *ret_result is what
 * the driver said of it. One call of the driver a piece. */
const struct cuda_piece *cuda_memory_stale(
	const struct cuda_memory *memory, const struct cuda *cuda, CUresult *ret_result);

/* "cudaMalloc", "chunks of a range"... */
const char *cuda_kind_name(enum cuda_kind kind);

#endif
