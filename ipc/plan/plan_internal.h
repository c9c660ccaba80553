/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_internal - what the files of the planner share. Boxes are in elements of the published
 * tensor, with the number of dimensions of its name.
 */
#ifndef TH_IPC_PLAN_PLAN_INTERNAL_H
#define TH_IPC_PLAN_PLAN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/plan/plan.h"

#define PLAN_NONE UINT32_MAX

struct plan_box {
	uint64_t lo[MANIFEST_DIMS_MAX], size[MANIFEST_DIMS_MAX];
};

/* A row of the reader, checked. */
struct plan_want {
	const struct plan_row *row; /* borrows */
	uint32_t name;              /* index of plan_name */
	uint32_t next;              /* row of the same name; PLAN_NONE */
	uint32_t shared;            /* row of the tensor whose scales these are; PLAN_NONE */
	uint64_t bytes;
	uint64_t global[MANIFEST_DIMS_MAX];
	uint64_t stride[MANIFEST_DIMS_MAX]; /* elements of the reader's row */
	struct plan_box box;                /* published elements; known when the name was seen */
	uint64_t block[2];                  /* rows, columns that are converted together */
};

/* A name that the view asks for, and what is published under it. */
struct plan_name {
	const char *name; /* borrows */
	uint32_t row;     /* first of the view; PLAN_NONE: it is the second name of a tied tensor */
	bool seen;
	uint32_t dtype, ndim;
	uint64_t global[MANIFEST_DIMS_MAX];
	struct plan_box hull; /* around the boxes of its rows */
	uint32_t num_sources, first_source;
	uint32_t num_classes, first_class;
};

/*
 * A published row that may be read. Its box is the 2 * ndim numbers at box: starts, then lengths.
 */
struct plan_owner {
	uint32_t name, shard, row, box;
};
/* A scalar has one, which nobody reads, so that a box is never nowhere. */
static inline uint32_t
plan_box_numbers(uint32_t ndim)
{
	return ndim ? 2 * ndim : 1;
}

/* The owners of one box: equal, of different shards, in their order. */
struct plan_class {
	uint32_t first, count; /* in planner.order */
};

struct plan_part { /* of a row's box, and who has it */
	uint32_t class_index;
	struct plan_box box;
};

struct plan_vector {
	void *items; /* owns */
	size_t count, room;
};

struct planner {
	const struct plan_view *view; /* borrows */
	struct plan_want *wants;      /* owns; one a row */
	struct plan_name *names;      /* owns; by name bytewise */
	uint32_t num_names, cursor, num_shards;
	uint32_t overlaps; /* rows */
	uint64_t source_rows, steps, bytes_own;
	struct plan_vector owners;  /* struct plan_owner: as they come; then by name */
	struct plan_vector numbers; /* uint64_t: boxes of owners */
	struct plan_vector classes; /* struct plan_class */
	uint32_t *order;            /* owns; owners by name, box, shard */
	struct plan_vector holes;   /* struct plan_box: what of the row is not covered yet */
	struct plan_vector parts;   /* struct plan_part: of the row that is covered now */
	struct plan_vector loops;   /* struct plan_loop: of the plan */
	struct plan_vector boxes;   /* uint64_t: of the plan */
	struct plan_vector pieces;  /* struct plan_piece: of the plan */
};

/* The next item, zeroed; NULL: no memory. Moves the others. */
void *plan_push(struct plan_vector *vector, size_t item_bytes);

static inline bool
plan_box_meets(const struct plan_box *a, const uint64_t *lo, const uint64_t *size, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (a->lo[d] >= lo[d] + size[d] || lo[d] >= a->lo[d] + a->size[d])
			return false;
	return true;
}

static inline uint64_t
plan_box_volume(const struct plan_box *box, uint32_t ndim)
{
	uint64_t volume = 1;
	for (uint32_t d = 0; d < ndim; d++)
		volume *= box->size[d]; /* at most what the whole has, which was checked */
	return volume;
}

/* The strides of a row-major box, in elements; returns how many it has. */
static inline uint64_t
plan_row_major(const uint64_t *size, uint32_t ndim, uint64_t *ret_stride)
{
	uint64_t step = 1;
	for (uint32_t d = ndim; d-- > 0;) {
		ret_stride[d] = step;
		step *= size[d];
	}
	return step;
}

static inline const uint64_t *
plan_owner_box(const struct planner *planner, uint32_t owner)
{
	const struct plan_owner *owners = planner->owners.items;
	return (const uint64_t *)planner->numbers.items + owners[owner].box;
}

/* plan_view.c: fills wants and names; then, when a name is seen first, the boxes of its rows. */
int plan_view_check(struct planner *planner, struct th_err *err);
int plan_view_resolve(struct planner *planner, uint32_t name, struct th_err *err);
/* "[2, 3)x[0, 8)" */
#define PLAN_BOX_TEXT 400
const char *plan_box_print(const struct plan_box *box, uint32_t ndim, char ret_text[PLAN_BOX_TEXT]);

/* plan_cover.c: order and classes of all owners; the parts of one row, each element once. */
int plan_cover_prepare(struct planner *planner, struct th_err *err);
int plan_cover_row(struct planner *planner, uint32_t row, struct th_err *err);
/* Comparisons that hostile boxes can ask for are counted. */
int plan_steps(struct planner *planner, uint64_t steps, const char *name, struct th_err *err);

/* plan_runs.c: the pieces of one part of a row, from that owner. */
int plan_runs_emit(struct planner *planner, uint32_t row, const struct plan_box *box,
	uint32_t owner, struct th_err *err);

#endif
