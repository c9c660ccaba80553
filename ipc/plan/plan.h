/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan - what a shard of a view reads, from which published shards, and where each byte goes.
 *
 * A plan is a function of the reader's rows, its index and number of shards, and the published
 * manifests, and of nothing else: every agent, libthc's dry run and thctl get the same one. It
 * names published shards and rows by index; which copy a shard is read from, and at which address a
 * row begins, is known to others. Pure: memory and strings only. One owner.
 *
 * What is given is hostile. It is checked whole, and time and memory are bounded by the limits
 * below, whatever the names and boxes are.
 */
#ifndef TH_IPC_PLAN_PLAN_H
#define TH_IPC_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "ipc/proto/manifest.h"

#define PLAN_ROWS_MAX 262144u              /* of one shard, names of tied tensors included */
#define PLAN_SOURCE_ROWS_MAX (4u << 20)    /* of all published shards */
#define PLAN_PIECES_MAX (4u << 20)         /* of one plan */
#define PLAN_STEPS_MAX (UINT64_C(1) << 28) /* comparisons of boxes; 1 M plain rows take 1 M */

/* The numbers of enum thc_convert_scheme; 0 is none. */
enum plan_scheme {
	PLAN_AS_PUBLISHED = 0,
	PLAN_ROUND = 1,
	PLAN_FP8_BLOCK,
	PLAN_FP8_BLOCK_POW2,
	PLAN_FP8_CHANNEL,
};

struct plan_convert {
	uint32_t scheme;   /* enum plan_scheme */
	bool scales;       /* the row holds the scales of the tensor "of" */
	const char *of;    /* the published tensor; NULL: the row's own name */
	uint32_t block[2]; /* rows, columns; 0, 0: 128, 128 */
};

/* A row of a view: several may have one name. */
struct plan_row {
	struct manifest_row
		form; /* bytes is derived; a global shape of zeros means the local one */
	/*
	 * In elements, from one index of a dimension to the next; all zero: row-major, contiguous.
	 */
	uint64_t stride[MANIFEST_DIMS_MAX];
	struct plan_convert convert;
};

struct plan_view {
	const struct plan_row *rows;          /* borrows */
	const struct manifest_alias *aliases; /* borrows */
	uint32_t count, num_aliases;
	uint32_t shard, num_shards; /* which reader this is, of how many */
};

/* Where the bytes of a piece become those of the row. */
enum plan_place {
	PLAN_COPY,      /* nowhere: they are what was published */
	PLAN_AT_SOURCE, /* before they travel */
	PLAN_AT_READER, /* in its window */
};

/* One of the nested loops around a run, the outermost first. Steps in bytes. */
struct plan_loop {
	uint64_t count, source_step, step;
};

/*
 * A box of one published row that is one box of the reader's row: runs of one length. In the
 * logical row-major bytes of the source's row they begin at source_at and its steps, in the
 * reader's memory at "at" behind the first byte of the row and its steps. Scales that are made at
 * the source have no run there (source_run 0): the box says what they are of. Those that are made
 * at the reader have none in the row (run 0): they are of the blocks that the box touches.
 */
struct plan_piece {
	uint32_t row;               /* of the reader */
	uint32_t shard, source_row; /* published */
	enum plan_place place;
	uint32_t num_loops;
	uint32_t loop;            /* the first, in plan.loops */
	uint32_t box;             /* in plan.boxes: ndim starts in the whole, then ndim lengths */
	uint64_t source_at, at;   /* bytes */
	uint64_t source_run, run; /* bytes of one run, as published and as registered */
	uint64_t runs;
	uint64_t bytes; /* that travel */
};

/* What one published shard sends. */
struct plan_source {
	uint32_t shard, converts;   /* converts: pieces that are converted there */
	uint64_t bytes, runs;       /* that travel */
	uint64_t shortest, longest; /* run that travels, in bytes */
};

struct plan_runs { /* those of 2^k to 2^(k+1) - 1 bytes */
	uint64_t runs, bytes;
};
#define PLAN_RUN_CLASSES 64

struct plan {
	/*
	 * By row; within it by box, and so by place. Of a row with "shared" the pieces at the
	 * reader are those of its tensor's row.
	 */
	struct plan_piece *pieces;
	struct plan_loop *loops;
	uint64_t *boxes;
	struct plan_source *sources; /* by shard; only those that are read from */
	uint32_t *first;             /* of row i: pieces first[i] .. first[i + 1] - 1 */
	uint32_t *shared; /* of a row of scales: the row that stages its blocks; UINT32_MAX: none */
	uint32_t num_rows, num_pieces, num_sources, num_loops;
	uint32_t overlaps; /* rows that meet published boxes which overlap and are not the same */
	uint64_t num_boxes;
	uint64_t bytes_in, bytes_own; /* that travel to this shard; that its rows hold */
	uint64_t staged;              /* of bytes_in: what is converted here */
	uint64_t window_least;        /* bytes of the largest block that is converted here */
	struct plan_runs by_length[PLAN_RUN_CLASSES];
};

struct planner;

/*
 * The view is borrowed until planner_free. TH_E_INVALID and a sentence that names the row: a form
 * that manifest_build refuses, strides whose elements meet or whose last dimension has gaps, an
 * unknown conversion, a shard that is none of num_shards; TH_E_LIMIT.
 */
int planner_new(const struct plan_view *view, struct th_err *err, struct planner **ret_planner);
/*
 * The published shards, from 0 on, one after the other; nothing of them is kept but numbers. Names
 * may stand several times. TH_E_INVALID: a row that is none. TH_E_LAYOUT: two forms of one name,
 * one that the view does not fit. TH_E_LIMIT. Nothing but planner_free may follow a failure.
 */
int planner_add(struct planner *planner, const struct manifest *shard, struct th_err *err);
/*
 * Once. TH_E_LAYOUT names the tensor and the first hole of its box that nobody has published, or
 * why its runs are no whole bytes; TH_E_LIMIT; -ENOMEM.
 */
int planner_finish(struct planner *planner, struct th_err *err, struct plan **ret_plan);
/* Bytes that it has allocated for itself at most, without the plan. For figures. */
uint64_t planner_memory(const struct planner *planner);
uint64_t plan_memory(const struct plan *plan);
void planner_free(struct planner *planner); /* NULL: nothing */
void plan_free(struct plan *plan);          /* NULL: nothing */

#endif
