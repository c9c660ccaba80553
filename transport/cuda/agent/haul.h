/* SPDX-License-Identifier: Apache-2.0 */
/*
 * haul - the rows of one block that lie in the memory of GPUs, as requests to these (gpus.h): to be
 * read into the block, or written from it.
 *
 * A block that lies in a block of the GPUs' staging, or in host memory that they reach, goes as it
 * is, all of it at once. One that lies elsewhere goes through such blocks, a few at a time, and
 * each byte of it is copied once more; this is done where the block is submitted and on the GPU's
 * thread. Such a block of the staging is held only while the GPU works with it, so nobody waits for
 * ever for one.
 *
 * One that lies in the agent's own memory on the GPU of its rows is one copy there.
 *
 * Keeps references of the worker's memory while requests run. Started once by the thread of a loop,
 * cancelled by the same.
 */
#ifndef TH_TRANSPORT_CUDA_AGENT_HAUL_H
#define TH_TRANSPORT_CUDA_AGENT_HAUL_H

#include "transport/cuda/agent/gpus.h"
#include "transport/loop/mover_loop.h"
#include "transport/part/xfer_part.h"

struct haul;

struct haul_block {
	struct xfer_part *part; /* borrows, for haul_new */
	struct xfer_cursor cursor;
	uint8_t *data;
	uint32_t bytes;
	bool writes;            /* to the GPUs */
	bool pinned;            /* data lies in a block of the GPUs' */
	struct gpus_host *host; /* data lies in this, if not pinned. Borrowed, until done */
	/* In place of data: own memory, where all rows are on its GPU. Borrowed, until done. */
	struct gpu_space *space;
	uint64_t at;
	bool hashes; /* the GPU hashes what it moves there */
	/* Once, when nothing of it is under way any more, as the last thing: any thread. */
	void (*done)(void *arg);
	void *arg;
};

/* NULL: none of the bytes are a GPU's. */
struct haul *haul_new(const struct haul_block *block, struct loop *loop);
void haul_start(struct haul *haul);
/* What was not begun is not begun any more; done still comes, or has come. */
void haul_cancel(struct haul *haul);
/*
 * When done. 0, or a code, the row whose memory it was (UINT32_MAX: not known which), and why.
 * TH_E_LIMIT: it was nobody's, but the GPU's process does not map that of the block.
 */
int haul_result(const struct haul *haul, uint32_t *ret_row, const char **ret_why);
struct th_hash haul_digest(const struct haul *haul);
void haul_free(struct haul *haul); /* NULL: nothing */

#endif
