/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_copy_own - the structure of block_copy.c, by ferries, and block_copy_gpu.c, where GPUs do
 * all of it.
 */
#ifndef TH_TRANSPORT_LOCAL_BLOCK_COPY_OWN_H
#define TH_TRANSPORT_LOCAL_BLOCK_COPY_OWN_H

#include "transport/loop/ferry.h"
#include "transport/transport_own.h"

struct block_copy_gpu;

struct block_copy {
	LIST_ENTRY(block_copy) entry; /* guarded by the list's lock */
	struct block_copies *block_copies;
	uint64_t id;              /* of the leg, or the tag */
	struct xfer_part *source; /* owns: a reference, until the last event */
	struct xfer_part *part;   /* likewise; NULL: only digests are wanted */
	bool verify;
	struct loop *loop;
	bool stop; /* atomic */
	struct loop_task kick_task, leave_task, last_task;
	/* Mover. */
	bool started, ending, ended;
	struct chunk_ledger ledger; /* of part */
	struct ferry *reads, *writes;
	struct ferry
		*blocks; /* that of the two whose blocks go round: GPUs reach them, if need be */
	struct block_copy_gpu *gpu; /* owns; NULL: by ferries */
	bool by_gpu;                /* atomic: no byte of it comes to the host */
	bool why_told;              /* atomic: why is there, and stays as it is */
	bool reading;               /* some of chunk is to be submitted yet */
	uint32_t chunk, next_chunk;
	struct xfer_cursor cursor;
	struct digest digest;
	int64_t started_ns;
	uint64_t verify_ns, bytes_moved; /* bytes_moved: atomic */
	/* Shell, once posted. */
	struct event_node progress_node, changed_node, last_node;
	uint32_t changed_chunk; /* written before changed_node is posted */
	struct transport_event result;
	char why[TH_CTL_TEXT_BYTES]; /* GPUs do not do it alone */
};

/* ---- block_copy.c, for the other; mover ---- */

/* The next chunk, into chunk. False: none now. */
bool block_copy_next_chunk(struct block_copy *block_copy);
/* Memory is not reached any more, at which row (UINT32_MAX: not known). */
void block_copy_fail(struct block_copy *block_copy, int code, uint32_t row, bool source_failed);
/* The bytes of a chunk lie in the part; digest is of them. */
void block_copy_arrived(
	struct block_copy *block_copy, uint32_t chunk, const struct th_hash *digest);
/* The source is not what was published; ends by that. */
void block_copy_changed(struct block_copy *block_copy, uint32_t chunk);
/* A chunk of a part that is only hashed; in order. */
void block_copy_hashed(struct block_copy *block_copy, uint32_t chunk, const struct th_hash *digest);
void block_copy_moved(struct block_copy *block_copy, uint64_t bytes);
/* Why GPUs do not do it alone; once. */
void block_copy_explain(struct block_copy *block_copy, const char *why);

/* ---- block_copy_gpu.c; mover ---- */

/* Whether both sides lie on GPUs, or one where GPUs reach it. Then it goes that way. */
bool block_copy_gpu_start(struct block_copy *block_copy);
/* Takes what was done and submits more. False: it can go on by ferries only; nothing is under way
 * any more, and what was is to be done again. */
bool block_copy_gpu_run(struct block_copy *block_copy);
bool block_copy_gpu_busy(struct block_copy *block_copy); /* GPUs still work for it */
/* What is under way harms nobody, and is left behind. */
void block_copy_gpu_free(struct block_copy *block_copy);

#endif
