/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shuttle_own - the structure of shuttle.c, by ferries, and shuttle_gpu.c, where GPUs do all of it.
 */
#ifndef TH_TRANSPORT_SHUTTLE_OWN_H
#define TH_TRANSPORT_SHUTTLE_OWN_H

#include "transport/ferry.h"
#include "transport/internal.h"

struct shuttle_gpu;

struct shuttle {
	LIST_ENTRY(shuttle) entry; /* guarded by the list's lock */
	struct shuttles *shuttles;
	uint64_t id;              /* of the leg, or the tag */
	struct xfer_part *source; /* owns: a reference, until the last event */
	struct xfer_part *part;   /* likewise; NULL: only digests are wanted */
	bool verify;
	struct loop *loop;
	bool stop; /* atomic */
	struct loop_task kick_task, leave_task, last_task;
	/* Mover. */
	bool started, ending, ended;
	struct intake intake; /* of part */
	struct ferry *reads, *writes;
	struct ferry
		*blocks; /* that of the two whose blocks go round: GPUs reach them, if need be */
	struct shuttle_gpu *gpu; /* owns; NULL: by ferries */
	bool by_gpu;             /* atomic: no byte of it comes to the host */
	bool why_told;           /* atomic: why is there, and stays as it is */
	bool reading;            /* some of chunk is to be submitted yet */
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

/* ---- shuttle.c, for the other; mover ---- */

/* The next chunk, into chunk. False: none now. */
bool shuttle_next_chunk(struct shuttle *shuttle);
/* How it ends; only the first counts. */
void shuttle_end(struct shuttle *shuttle, enum transport_event_kind kind, int code,
	bool source_failed, const char *text);
/* Memory is not reached any more, at which row (UINT32_MAX: not known). */
void shuttle_fail(struct shuttle *shuttle, int code, uint32_t row, bool source_failed);
/* The bytes of a chunk lie in the part; digest is of them. */
void shuttle_arrived(struct shuttle *shuttle, uint32_t chunk, const struct th_hash *digest);
/* The source is not what was published; ends by that. */
void shuttle_changed(struct shuttle *shuttle, uint32_t chunk);
/* A chunk of a part that is only hashed; in order. */
void shuttle_hashed(struct shuttle *shuttle, uint32_t chunk, const struct th_hash *digest);
void shuttle_moved(struct shuttle *shuttle, uint64_t bytes);
/* Why GPUs do not do it alone; once. */
void shuttle_explain(struct shuttle *shuttle, const char *why);

/* ---- shuttle_gpu.c; mover ---- */

/* Whether both sides lie on GPUs, or one where GPUs reach it. Then it goes that way. */
bool shuttle_gpu_start(struct shuttle *shuttle);
/* Takes what was done and submits more. False: it can go on by ferries only; nothing is under way
 * any more, and what was is to be done again. */
bool shuttle_gpu_run(struct shuttle *shuttle);
bool shuttle_gpu_busy(struct shuttle *shuttle); /* GPUs still work for it */
/* What is under way harms nobody, and is left behind. */
void shuttle_gpu_free(struct shuttle *shuttle);

#endif
