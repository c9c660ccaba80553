/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry - carries blocks between buffers and the memory of one part, for a user on a loop that must
 * not wait: of a part whose memory is not, or not all, mapped here.
 *
 * Blocks are told finished in the order submitted, by a task on the user's loop; several may be
 * under way. Rows in a GPU's memory are requests to that (cuda/agent/haul.h). Whatever else the
 * part has is done by one thread, which may get stuck in the worker's memory: then the user
 * abandons the ferry, and block and descriptor live on with the thread alone. A part that lies on
 * GPUs alone has no thread: nothing that is done for it here waits for a worker, so one for each
 * connection would only be one more hop, and a stack.
 *
 * A block that is read and abandoned harms nobody. One that is written can still land, so it is
 * abandoned only when no worker can see it any more (xfer_part_orphaned) or the process ends.
 *
 * Most blocks are the ferry's own (ferry_spare), with room for FERRY_BYTES; where GPUs have rows
 * they lie in memory that these reach (cuda/agent/gpus.h), as long as there is some. Nobody waits
 * for such a block here: agents that send to each other could wait for ever. Those of other users
 * lie where these say, in as much room as they need, in memory that several have. What keeps that
 * memory is let go by `drop`, after the thread has come back, so nobody else gets it meanwhile. A
 * block of one ferry may be submitted to another, and then goes back to the first. Of a part on one
 * GPU they may lie there, too: then the GPU copies, and hashes what it has copied.
 */
#ifndef TH_TRANSPORT_LOOP_FERRY_H
#define TH_TRANSPORT_LOOP_FERRY_H

#include "transport/hash/digest.h"
#include "transport/loop/mover_loop.h"
#include "transport/part/xfer_part.h"

#define FERRY_BYTES (512u << 10) /* of a block: it stays in cache between the two sides */
#define FERRY_BLOCKS 3u          /* of one ferry: one at each side, one on its way */

struct gpu_space;
struct gpus_host;

struct ferry_block {
	struct ferry_block *next;
	/* The ferry's: who has not finished with it, what GPUs do for it, who has it. */
	uint32_t pending;
	struct haul *haul;
	struct ferry *ferry;
	bool pinned;               /* data lies in a block of the GPUs' */
	struct xfer_cursor cursor; /* where in the part it begins */
	uint32_t chunk, bytes;
	bool first, last; /* of the chunk */
	int code; /* of the finished block: 0, or why not: fd_memory.h, sigbus.h; TH_E_LIMIT:
			     the agent's, and not the memory's */
	/* The row of the part's manifest where it failed; UINT32_MAX: it is not known. */
	uint32_t row;
	bool hashes; /* what was read, or copied, is hashed: into digest, else the user's */
	struct th_hash digest;
	uint32_t used;           /* the user's */
	uint8_t *data;           /* begins a line of the cache; NULL: it lies in space */
	struct gpu_space *space; /* borrows: the agent's own memory on the GPU of the part */
	uint64_t at;             /* where in space */
	struct gpus_host
		*host; /* borrows: data lies in it, and GPUs reach it; NULL: unless pinned */
	/* Frees the block. Any thread, one of the crew too: no waiting, no descriptors. */
	void (*drop)(struct ferry_block *block);
};

struct ferry;

/* done is posted to loop after each block. 0, TH_E_LIMIT (too many threads) or -errno. */
TH_MUST_USE int ferry_new(struct xfer_part *part, bool writes, struct loop *loop,
	struct loop_task *done, struct ferry **ret_ferry);
/*
 * One of its FERRY_BLOCKS, empty and the user's until it is put back, or dropped when the ferry has
 * been abandoned. NULL: all are out. All calls by one thread, but for drop.
 */
struct ferry_block *ferry_spare(struct ferry *ferry);
void ferry_put_back(struct ferry *ferry, struct ferry_block *block);
bool ferry_idle(const struct ferry *ferry);       /* none of them is out */
void ferry_block_drop(struct ferry_block *block); /* NULL: nothing */
/* The ferry has it until ferry_take. */
void ferry_submit(struct ferry *ferry, struct ferry_block *block);
struct ferry_block *ferry_take(struct ferry *ferry); /* the oldest finished one, or NULL */
/* Why a block failed with TH_E_LIMIT. */
void ferry_limit(struct ferry *ferry, char *ret_why, size_t bytes);
bool ferry_busy(struct ferry *ferry); /* a block is submitted and not finished */
/*
 * The end: frees all blocks that it has. When it returns done is not posted any more and the part
 * is not used, except by the one read or write that is stuck. NULL: nothing.
 */
void ferry_abandon(struct ferry *ferry);

#endif
