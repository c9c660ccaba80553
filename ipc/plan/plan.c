/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan - from a view and the published shards to a plan: what is asked for is found by name, what
 * meets it is kept, and at the end each row is covered and counted. Pure.
 *
 * Names are looked up by a cursor first, because manifests are in one order and those of a group
 * repeat each other, and by halves otherwise: no choice of names makes that slow.
 */
#include "ipc/plan/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/plan/plan_internal.h"

void *
plan_push(struct plan_vector *vector, size_t item_bytes)
{
	if (vector->count == vector->room) {
		size_t room = vector->room ? vector->room + vector->room / 2 : 64;
		void *items = realloc(vector->items, room * item_bytes);
		if (!items)
			return NULL;
		vector->items = items;
		vector->room = room;
	}
	return memset((char *)vector->items + vector->count++ * item_bytes, 0, item_bytes);
}

int
plan_steps(struct planner *planner, uint64_t steps, const char *name, struct th_err *err)
{
	planner->steps += steps;
	if (planner->steps <= PLAN_STEPS_MAX)
		return 0;
	return th_fail(err, TH_E_LIMIT,
		"the plan takes more than %" PRIu64 " comparisons of boxes, at tensor '%s'; "
		"register fewer rows of one name",
		PLAN_STEPS_MAX, name);
}

int
planner_new(const struct plan_view *view, struct th_err *err, struct planner **ret_planner)
{
	struct planner *planner = calloc(1, sizeof(*planner));
	if (!planner)
		return th_fail(err, -ENOMEM, "no memory for a plan");
	planner->view = view;
	int rc = plan_view_check(planner, err);
	if (rc < 0) {
		planner_free(planner);
		return rc;
	}
	*ret_planner = planner;
	return 0;
}

void
planner_free(struct planner *planner)
{
	if (!planner)
		return;
	free(planner->wants);
	free(planner->names);
	free(planner->order);
	free(planner->owners.items);
	free(planner->numbers.items);
	free(planner->classes.items);
	free(planner->holes.items);
	free(planner->parts.items);
	free(planner->loops.items);
	free(planner->boxes.items);
	free(planner->pieces.items);
	free(planner);
}

uint64_t
planner_memory(const struct planner *planner)
{
	uint64_t rows = (uint64_t)planner->view->count + planner->view->num_aliases;
	return sizeof(*planner) + rows * (sizeof(struct plan_want) + sizeof(struct plan_name)) +
	       planner->owners.room * sizeof(struct plan_owner) +
	       planner->owners.count * (sizeof(struct plan_owner) + sizeof(uint32_t)) +
	       (planner->numbers.room + planner->numbers.count) * sizeof(uint64_t) +
	       planner->classes.room * sizeof(struct plan_class) +
	       planner->holes.room * sizeof(struct plan_box) +
	       planner->parts.room * sizeof(struct plan_part);
}

/* ---- published rows ------------------------------------------------------------------------ */

static uint32_t
find_name(struct planner *planner, const char *name)
{
	uint32_t low = 0, high = planner->num_names;
	if (planner->cursor < high && strcmp(planner->names[planner->cursor].name, name) == 0)
		return planner->cursor++;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		int order = strcmp(planner->names[middle].name, name);
		if (order == 0) {
			planner->cursor = middle + 1;
			return middle;
		}
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return PLAN_NONE;
}

static int
plan_check_form(
	struct planner *planner, uint32_t index, const struct manifest_row *row, struct th_err *err)
{
	struct plan_name *name = &planner->names[index];
	if (!name->seen) {
		name->seen = true;
		name->dtype = row->dtype;
		name->ndim = row->ndim;
		memcpy(name->global, row->global_shape, row->ndim * sizeof(name->global[0]));
		return plan_view_resolve(planner, index, err);
	}
	if (row->dtype == name->dtype && row->ndim == name->ndim &&
		memcmp(row->global_shape, name->global, row->ndim * sizeof(name->global[0])) == 0)
		return 0;
	return th_fail(err, TH_E_LAYOUT,
		"tensor '%s' of shard %" PRIu32
		" has another type or global shape than in a shard before it",
		name->name, planner->num_shards);
}

static int
keep(struct planner *planner, uint32_t name, const struct manifest_row *row, uint32_t shard_row)
{
	uint32_t box = (uint32_t)planner->numbers.count; /* 16 * PLAN_SOURCE_ROWS_MAX at most */
	struct plan_owner *owner = plan_push(&planner->owners, sizeof(*owner));
	if (!owner)
		return -ENOMEM;
	*owner = (struct plan_owner){
		.name = name, .shard = planner->num_shards, .row = shard_row, .box = box};
	for (uint32_t i = 0; i < plan_box_numbers(row->ndim); i++) {
		uint64_t *number = plan_push(&planner->numbers, sizeof(*number));
		if (!number)
			return -ENOMEM;
		if (row->ndim > 0)
			*number = i < row->ndim ? row->offset[i] : row->local_shape[i - row->ndim];
	}
	planner->names[name].num_sources++;
	return 0;
}

/* One name of a published row. */
static int
take(struct planner *planner, const char *name, const struct manifest_row *row, uint32_t shard_row,
	bool tied, struct th_err *err)
{
	if (!name)
		return th_fail(err, TH_E_INVALID, "a tensor of shard %" PRIu32 " has no name",
			planner->num_shards);
	uint32_t index = find_name(planner, name);
	if (index == PLAN_NONE)
		return 0;
	if (planner->names[index].row == PLAN_NONE) {
		if (tied)
			return 0;
		return th_fail(err, TH_E_LAYOUT,
			"tensor '%s' is published by itself, and here it is tied to another; "
			"register one of the two names",
			name);
	}
	int rc = plan_check_form(planner, index, row, err);
	if (rc < 0 || row->bytes == 0)
		return rc;
	const struct plan_box *hull = &planner->names[index].hull;
	if (!plan_box_meets(hull, row->offset, row->local_shape, row->ndim))
		return 0;
	rc = keep(planner, index, row, shard_row);
	return rc < 0 ? th_fail(err, rc, "no memory to plan tensor '%s'", name) : 0;
}

int
planner_add(struct planner *planner, const struct manifest *shard, struct th_err *err)
{
	int rc = 0;
	if (planner->num_shards >= TH_SHARDS_MAX)
		return th_fail(err, TH_E_LIMIT, "more than %d shards are published", TH_SHARDS_MAX);
	if (shard->num_rows > PLAN_ROWS_MAX || shard->num_aliases > PLAN_ROWS_MAX - shard->num_rows)
		return th_fail(err, TH_E_LIMIT,
			"shard %" PRIu32 " has %" PRIu32 " rows and %" PRIu32
			" tied names; a shard has at most %u",
			planner->num_shards, shard->num_rows, shard->num_aliases, PLAN_ROWS_MAX);
	planner->source_rows += (uint64_t)shard->num_rows + shard->num_aliases;
	if (planner->source_rows > PLAN_SOURCE_ROWS_MAX)
		return th_fail(err, TH_E_LIMIT,
			"%" PRIu64 " rows are published by the first %" PRIu32
			" shards; a view is planned from at most %u",
			planner->source_rows, planner->num_shards + 1, PLAN_SOURCE_ROWS_MAX);
	planner->cursor = 0;
	for (uint32_t i = 0; i < shard->num_rows && rc == 0; i++) {
		struct manifest_row row = shard->rows[i];
		if (row.name)
			rc = manifest_check_row(&row, err);
		if (rc == 0 && row.bytes > MANIFEST_BYTES_MAX)
			rc = th_fail(err, TH_E_LIMIT, "tensor '%s' has more than %" PRIu64 " bytes",
				row.name, MANIFEST_BYTES_MAX);
		if (rc == 0)
			rc = take(planner, row.name, &row, i, false, err);
	}
	for (uint32_t i = 0; i < shard->num_aliases && rc == 0; i++) {
		const struct manifest_alias *alias = &shard->aliases[i];
		if (alias->row >= shard->num_rows) {
			rc = th_fail(err, TH_E_INVALID,
				"a tied name of shard %" PRIu32 " is that of no row",
				planner->num_shards);
			continue;
		}
		struct manifest_row row = shard->rows[alias->row];
		rc = manifest_check_row(&row, err);
		if (rc == 0)
			rc = take(planner, alias->name, &row, alias->row, true, err);
	}
	planner->num_shards++;
	return rc;
}

/* ---- the plan ------------------------------------------------------------------------------ */

/*
 * Of O equal owners reader r of R takes r mod O; where there are more owners than readers, it goes
 * round its own, r, r + R, r + 2R..., row by row. Scales go with their tensor.
 */
static uint32_t
choose_owner(const struct planner *planner, uint32_t row, uint32_t class_index)
{
	const struct plan_class *class =
		(const struct plan_class *)planner->classes.items + class_index;
	uint32_t reader = planner->view->shard, readers = planner->view->num_shards;
	uint32_t shared = planner->wants[row].shared, at = reader % class->count;
	if (class->count > readers) {
		uint32_t own = (class->count - reader + readers - 1) / readers;
		at = reader + readers * ((shared == PLAN_NONE ? row : shared) % own);
	}
	return planner->order[class->first + at];
}

static int
plan_one_row(struct planner *planner, uint32_t row, struct th_err *err)
{
	const struct plan_want *want = &planner->wants[row];
	const struct plan_name *name = &planner->names[want->name];
	if (want->bytes == 0)
		return 0;
	if (!name->seen)
		return th_fail(err, TH_E_LAYOUT,
			"tensor '%s' is registered here and not published; views have the "
			"published names",
			name->name);
	int rc = plan_cover_row(planner, row, err);
	for (size_t i = 0; i < planner->parts.count && rc == 0; i++) {
		const struct plan_part *part = (const struct plan_part *)planner->parts.items + i;
		rc = plan_runs_emit(planner, row, &part->box,
			choose_owner(planner, row, part->class_index), err);
	}
	return rc;
}

/* The bytes of a run on its way, of which there are piece->runs. */
static uint64_t
travelling(const struct plan_piece *piece)
{
	return piece->place == PLAN_AT_READER ? piece->source_run : piece->run;
}

static void
count_piece(struct plan *plan, const struct plan_piece *piece, struct plan_source *source)
{
	uint64_t run = travelling(piece), bytes = piece->bytes;
	source->converts += piece->place == PLAN_AT_SOURCE;
	source->bytes += bytes;
	source->runs += piece->runs;
	if (source->shortest == 0 || run < source->shortest)
		source->shortest = run;
	source->longest = th_max_u64(source->longest, run);
	plan->bytes_in += bytes;
	if (piece->place == PLAN_AT_READER)
		plan->staged += bytes;
	struct plan_runs *runs = &plan->by_length[63 - __builtin_clzll(run)];
	runs->runs += piece->runs;
	runs->bytes += bytes;
}

/* As published; a block is not larger than what is wanted. */
static uint64_t
block_bytes(const struct planner *planner, const struct plan_want *want)
{
	const struct plan_name *name = &planner->names[want->name];
	uint64_t bytes = manifest_dtype_bits(name->dtype) / 8;
	for (uint32_t i = 0; i < 2 && name->ndim + i >= 2; i++)
		bytes *= th_min_u64(want->block[i], want->box.size[name->ndim - 2 + i]);
	return bytes;
}

static int
count_all(struct planner *planner, struct plan *plan)
{
	struct plan_source *all = calloc(planner->num_shards + 1u, sizeof(all[0]));
	if (!all)
		return -ENOMEM;
	for (uint32_t i = 0; i < plan->num_pieces; i++) {
		const struct plan_piece *piece = &plan->pieces[i];
		const struct plan_want *want = &planner->wants[piece->row];
		count_piece(plan, piece, &all[piece->shard]);
		if (piece->place == PLAN_AT_READER)
			plan->window_least =
				th_max_u64(plan->window_least, block_bytes(planner, want));
	}
	for (uint32_t i = 0; i < planner->num_shards; i++) {
		if (all[i].runs == 0)
			continue;
		all[plan->num_sources] = all[i];
		all[plan->num_sources++].shard = i;
	}
	plan->sources = all;
	return 0;
}

/* Never NULL, so that whoever reads a plan may point at the first of none. NULL: no memory. */
static void *
give(struct plan_vector *vector, size_t item_bytes)
{
	void *items = vector->items ? vector->items : calloc(1, item_bytes);
	*vector = (struct plan_vector){0};
	return items;
}

int
planner_finish(struct planner *planner, struct th_err *err, struct plan **ret_plan)
{
	uint32_t rows = planner->view->count;
	struct plan *plan = calloc(1, sizeof(*plan));
	int rc = plan ? plan_cover_prepare(planner, err) : -ENOMEM;
	if (rc == 0) {
		plan->first = calloc(rows + 1u, sizeof(plan->first[0]));
		plan->shared = calloc(rows + 1u, sizeof(plan->shared[0]));
		rc = plan->first && plan->shared ? 0 : -ENOMEM;
	}
	for (uint32_t i = 0; i < rows && rc == 0; i++) {
		rc = plan_one_row(planner, i, err);
		plan->first[i + 1] = (uint32_t)planner->pieces.count;
		plan->shared[i] = planner->wants[i].shared;
	}
	if (rc == 0) {
		plan->num_rows = rows;
		plan->bytes_own = planner->bytes_own;
		plan->overlaps = planner->overlaps;
		plan->num_pieces = (uint32_t)planner->pieces.count;
		plan->num_loops = (uint32_t)planner->loops.count;
		plan->num_boxes = planner->boxes.count;
		plan->pieces = give(&planner->pieces, sizeof(plan->pieces[0]));
		plan->loops = give(&planner->loops, sizeof(plan->loops[0]));
		plan->boxes = give(&planner->boxes, sizeof(plan->boxes[0]));
		rc = plan->pieces && plan->loops && plan->boxes ? count_all(planner, plan)
								: -ENOMEM;
	}
	if (rc == -ENOMEM)
		th_fail(err, rc, "no memory for the plan of %" PRIu32 " rows", rows);
	if (rc < 0) {
		plan_free(plan);
		return rc;
	}
	*ret_plan = plan;
	return 0;
}

uint64_t
plan_memory(const struct plan *plan)
{
	return sizeof(*plan) + plan->num_pieces * sizeof(plan->pieces[0]) +
	       plan->num_loops * sizeof(plan->loops[0]) + plan->num_boxes * sizeof(plan->boxes[0]) +
	       plan->num_rows * 2 * sizeof(plan->first[0]);
}

void
plan_free(struct plan *plan)
{
	if (!plan)
		return;
	free(plan->pieces);
	free(plan->loops);
	free(plan->boxes);
	free(plan->sources);
	free(plan->first);
	free(plan->shared);
	free(plan);
}
