/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_view - the rows of a view: may they be, under which names, and which box of the published
 * tensor each one wants. Pure.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/plan/plan_internal.h"

#define FP8_BLOCK 128u

enum { /* of enum thc_dtype */
	F16 = 6,
	BF16 = 7,
	F32 = 10,
	F8_E4M3 = 14,
};

const char *
plan_box_print(const struct plan_box *box, uint32_t ndim, char ret_text[PLAN_BOX_TEXT])
{
	size_t at = 0;
	ret_text[0] = '\0';
	for (uint32_t d = 0; d < ndim; d++)
		at += (size_t)snprintf(ret_text + at, PLAN_BOX_TEXT - at,
			"%s[%" PRIu64 ", %" PRIu64 ")", d ? "x" : "", box->lo[d],
			box->lo[d] + box->size[d]);
	return ndim ? ret_text : "its one element";
}

static const char *
source_name(const struct plan_row *row)
{
	return row->convert.of ? row->convert.of : row->form.name;
}

/* ---- strides ------------------------------------------------------------------------------- */

/*
 * Elements do not meet when each dimension steps over all that those of smaller steps span. Sorts
 * at most eight dimensions by insertion.
 */
static int
check_strides(const struct plan_row *row, uint32_t bits, struct th_err *err)
{
	const struct manifest_row *form = &row->form;
	uint32_t by_step[MANIFEST_DIMS_MAX], count = 0;
	uint64_t span = 1, total;
	for (uint32_t d = 0; d < form->ndim; d++) {
		if (form->local_shape[d] == 1)
			continue;
		uint32_t at = count++;
		for (; at > 0 && row->stride[by_step[at - 1]] > row->stride[d]; at--)
			by_step[at] = by_step[at - 1];
		by_step[at] = d;
	}
	if (form->ndim > 0 && form->local_shape[form->ndim - 1] > 1 &&
		row->stride[form->ndim - 1] != 1)
		return th_fail(err, TH_E_INVALID,
			"tensor '%s': its last dimension has the stride %" PRIu64
			"; it must be contiguous",
			form->name, row->stride[form->ndim - 1]);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t step = row->stride[by_step[i]];
		if (step < span)
			return th_fail(err, TH_E_INVALID,
				"tensor '%s': by the stride %" PRIu64 " of dimension %" PRIu32
				" its elements overlap",
				form->name, step, by_step[i]);
		if (!th_mul_u64(step, form->local_shape[by_step[i]] - 1, &total) ||
			!th_add_u64(total, span, &span))
			goto too_long;
	}
	if (th_mul_u64(span, bits, &total) && total <= INT64_MAX)
		return 0;
too_long:
	return th_fail(err, TH_E_INVALID,
		"tensor '%s': its strides span more than 63 bits of memory", form->name);
}

static int
take_strides(struct plan_want *want, struct th_err *err)
{
	const struct plan_row *row = want->row;
	bool given = false;
	for (uint32_t d = 0; d < row->form.ndim; d++)
		given = given || row->stride[d] != 0;
	if (want->bytes == 0)
		return 0;
	if (!given) {
		plan_row_major(row->form.local_shape, row->form.ndim, want->stride);
		return 0;
	}
	memcpy(want->stride, row->stride, sizeof(want->stride));
	return check_strides(row, manifest_dtype_bits(row->form.dtype), err);
}

/* ---- rows ---------------------------------------------------------------------------------- */

static int
check_convert(const struct plan_row *row, struct th_err *err)
{
	const struct plan_convert *convert = &row->convert;
	bool fp8 = convert->scheme >= PLAN_FP8_BLOCK && convert->scheme <= PLAN_FP8_CHANNEL;
	bool has_block = convert->block[0] != 0 || convert->block[1] != 0;
	if (convert->scheme > PLAN_FP8_CHANNEL)
		return th_fail(err, TH_E_INVALID, "tensor '%s' has the unknown conversion %" PRIu32,
			row->form.name, convert->scheme);
	if (convert->scheme == PLAN_AS_PUBLISHED && (convert->of || convert->scales || has_block))
		return th_fail(err, TH_E_INVALID,
			"tensor '%s' has of, scales or block, and no conversion", row->form.name);
	if (convert->scales && !fp8)
		return th_fail(err, TH_E_INVALID,
			"tensor '%s' holds scales of a conversion that has none", row->form.name);
	if (has_block &&
		(convert->block[0] == 0 || convert->block[1] == 0 ||
			convert->scheme < PLAN_FP8_BLOCK || convert->scheme == PLAN_FP8_CHANNEL))
		return th_fail(err, TH_E_INVALID,
			"tensor '%s': a block is two numbers above 0, of a conversion by blocks",
			row->form.name);
	if (!convert->of)
		return 0;
	return manifest_check_name(convert->of, strlen(convert->of), "tensor", err);
}

static int
plan_view_take_row(struct planner *planner, uint32_t index, struct th_err *err)
{
	const struct plan_row *row = &planner->view->rows[index];
	struct plan_want *want = &planner->wants[index];
	struct manifest_row form = row->form;
	bool whole = true;
	if (!form.name)
		return th_fail(err, TH_E_INVALID, "a tensor has no name");
	int rc = manifest_check_name(form.name, strlen(form.name), "tensor", err);
	if (rc < 0)
		return rc;
	for (uint32_t d = 0; d < form.ndim && d < MANIFEST_DIMS_MAX; d++)
		whole = whole && form.global_shape[d] == 0;
	if (whole)
		memcpy(form.global_shape, form.local_shape, sizeof(form.global_shape));
	rc = manifest_check_row(&form, err);
	if (rc == 0)
		rc = check_convert(row, err);
	if (rc < 0)
		return rc;
	if (form.bytes > MANIFEST_BYTES_MAX || planner->bytes_own > MANIFEST_BYTES_MAX - form.bytes)
		return th_fail(err, TH_E_LIMIT,
			"the shard is larger than %" PRIu64 " bytes with tensor '%s'",
			MANIFEST_BYTES_MAX, form.name);
	planner->bytes_own += form.bytes;
	want->row = row;
	want->bytes = form.bytes;
	want->next = want->shared = PLAN_NONE;
	memcpy(want->global, form.global_shape, sizeof(want->global));
	return take_strides(want, err);
}

struct entry {
	const char *name;
	uint32_t row; /* PLAN_NONE: an alias, which sorts behind rows */
};

static int
plan_view_compare_entries(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	if (order != 0)
		return order;
	return x->row < y->row ? -1 : x->row > y->row;
}

/* Rows of one name are a list, in their order. */
static int
take_names(struct planner *planner, const struct entry *entries, uint32_t count, struct th_err *err)
{
	uint32_t last = PLAN_NONE;
	for (uint32_t i = 0; i < count; i++) {
		const struct entry *entry = &entries[i];
		if (i > 0 && strcmp(entries[i - 1].name, entry->name) == 0) {
			if (entry->row == PLAN_NONE)
				return th_fail(err, TH_E_INVALID,
					"two tensors have the name '%s', and one of them is tied",
					entry->name);
			planner->wants[last].next = entry->row;
		} else {
			planner->names[planner->num_names++] =
				(struct plan_name){.name = entry->name, .row = entry->row};
		}
		last = entry->row;
		if (last != PLAN_NONE)
			planner->wants[last].name = planner->num_names - 1;
	}
	return 0;
}

int
plan_view_check(struct planner *planner, struct th_err *err)
{
	const struct plan_view *view = planner->view;
	uint32_t count = 0;
	if (view->num_shards == 0 || view->num_shards > TH_SHARDS_MAX ||
		view->shard >= view->num_shards)
		return th_fail(err, TH_E_INVALID,
			"shard %" PRIu32 " of %" PRIu32 " is none; a group has 1 to %d shards",
			view->shard, view->num_shards, TH_SHARDS_MAX);
	if (view->count > PLAN_ROWS_MAX || view->num_aliases > PLAN_ROWS_MAX - view->count)
		return th_fail(err, TH_E_LIMIT,
			"%" PRIu32 " rows and %" PRIu32 " tied names; a shard has at most %u",
			view->count, view->num_aliases, PLAN_ROWS_MAX);
	size_t slots = (size_t)view->count + view->num_aliases + 1;
	struct entry *entries = calloc(slots, sizeof(entries[0]));
	planner->wants = calloc(slots, sizeof(planner->wants[0]));
	planner->names = calloc(slots, sizeof(planner->names[0]));
	int rc = 0;
	if (!entries || !planner->wants || !planner->names)
		rc = th_fail(err, -ENOMEM, "no memory to plan %zu rows", slots - 1);
	for (uint32_t i = 0; i < view->count && rc == 0; i++) {
		rc = plan_view_take_row(planner, i, err);
		if (rc == 0)
			entries[count++] = (struct entry){source_name(&view->rows[i]), i};
	}
	for (uint32_t i = 0; i < view->num_aliases && rc == 0; i++) {
		const char *name = view->aliases[i].name;
		if (!name || view->aliases[i].row >= view->count)
			rc = th_fail(err, TH_E_INVALID, "a tied name is that of no row");
		else
			rc = manifest_check_name(name, strlen(name), "tensor", err);
		if (rc == 0)
			entries[count++] = (struct entry){name, PLAN_NONE};
	}
	if (rc == 0) {
		qsort(entries, count, sizeof(entries[0]), plan_view_compare_entries);
		rc = take_names(planner, entries, count, err);
	}
	free(entries);
	return rc;
}

/* ---- the published form -------------------------------------------------------------------- */

static bool
may_round(uint32_t from, uint32_t to)
{
	return (from == F32 && (to == F16 || to == BF16)) ||
	       (to == F32 && (from == F16 || from == BF16));
}

static int
check_types(const struct plan_want *want, const struct plan_name *name, struct th_err *err)
{
	const struct plan_row *row = want->row;
	uint32_t from = name->dtype, to = row->form.dtype;
	bool right;
	if (row->convert.scheme == PLAN_AS_PUBLISHED)
		right = from == to;
	else if (row->convert.scheme == PLAN_ROUND)
		right = may_round(from, to);
	else
		right = (from == F32 || from == F16 || from == BF16) &&
			to == (uint32_t)(row->convert.scales ? F32 : F8_E4M3);
	if (right)
		return 0;
	return th_fail(err, TH_E_LAYOUT, "tensor '%s' is %s at the source and %s here; %s",
		row->form.name, manifest_dtype_name(from), manifest_dtype_name(to),
		row->convert.scheme == PLAN_AS_PUBLISHED
			? "register the published type, or give a conversion"
			: "its conversion does not make the one of the other");
}

static uint64_t
blocks_of(uint64_t elements, uint64_t block)
{
	return elements / block + (elements % block != 0);
}

/* How many elements of dimension d one of the reader's stands for. */
static uint64_t
grain(const struct plan_want *want, uint32_t ndim, uint32_t d)
{
	return want->row->convert.scales && d + 2 >= ndim ? want->block[d + 2 - ndim] : 1;
}

static int
check_global(const struct plan_want *want, const struct plan_name *name, struct th_err *err)
{
	const struct manifest_row *form = &want->row->form;
	if (form->ndim != name->ndim)
		return th_fail(err, TH_E_LAYOUT,
			"tensor '%s' has %" PRIu32 " dimensions at the source and %" PRIu32
			" here; a view has those of the published tensor",
			form->name, name->ndim, form->ndim);
	for (uint32_t d = 0; d < name->ndim; d++) {
		uint64_t whole = blocks_of(name->global[d], grain(want, name->ndim, d));
		if (want->global[d] != whole)
			return th_fail(err, TH_E_LAYOUT,
				"tensor '%s' has the global shape %" PRIu64 " in dimension %" PRIu32
				", and %" PRIu64 " is what the source has%s",
				form->name, want->global[d], d, whole,
				want->row->convert.scales ? " of scales" : "");
	}
	return 0;
}

/* Blocks of the last two dimensions, and where the reader's box may cut. */
static int
take_blocks(struct plan_want *want, const struct plan_name *name, struct th_err *err)
{
	const struct plan_convert *convert = &want->row->convert;
	want->block[0] = want->block[1] = 1;
	if (convert->scheme <= PLAN_ROUND)
		return 0;
	if (name->ndim < 2)
		return th_fail(err, TH_E_LAYOUT,
			"tensor '%s' has %" PRIu32
			" dimensions; a conversion with scales needs two or more",
			want->row->form.name, name->ndim);
	if (convert->scheme == PLAN_FP8_CHANNEL) {
		want->block[1] = th_max_u64(name->global[name->ndim - 1], 1);
	} else {
		want->block[0] = convert->block[0] ? convert->block[0] : FP8_BLOCK;
		want->block[1] = convert->block[1] ? convert->block[1] : FP8_BLOCK;
	}
	return 0;
}

static int
take_box(struct plan_want *want, const struct plan_name *name, struct th_err *err)
{
	const struct manifest_row *form = &want->row->form;
	uint64_t elements = 1;
	for (uint32_t d = 0; d < name->ndim; d++) {
		uint64_t block = d + 2 >= name->ndim ? want->block[d + 2 - name->ndim] : 1;
		uint64_t step = grain(want, name->ndim, d), whole = name->global[d];
		/*
		 * Both ends were found inside of the global shape, in blocks: no product overflows.
		 */
		uint64_t end = form->offset[d] + form->local_shape[d];
		uint64_t lo = form->offset[d] == want->global[d] ? whole : form->offset[d] * step;
		uint64_t hi = end == want->global[d] ? whole : end * step;
		if (lo % block != 0 || (hi % block != 0 && hi != whole))
			return th_fail(err, TH_E_LAYOUT,
				"tensor '%s' cuts a block of its conversion: in dimension %" PRIu32
				" it holds [%" PRIu64 ", %" PRIu64 "), and blocks are of %" PRIu64
				"; begin and end on a block, or at the tensor's end",
				form->name, d, lo, hi, block);
		want->box.lo[d] = lo;
		want->box.size[d] = hi - lo;
		/* Scales may be few, and of a tensor that is more than a host has. */
		if (!th_mul_u64(elements, hi - lo, &elements) ||
			(want->row->convert.scales && elements > MANIFEST_BYTES_MAX / 8))
			return th_fail(err, TH_E_LIMIT,
				"tensor '%s' is made of more than %" PRIu64 " elements", form->name,
				MANIFEST_BYTES_MAX / 8);
	}
	return 0;
}

static void
widen(struct plan_box *hull, const struct plan_box *box, uint32_t ndim, bool first)
{
	for (uint32_t d = 0; d < ndim; d++) {
		uint64_t lo = first ? box->lo[d] : th_min_u64(hull->lo[d], box->lo[d]);
		uint64_t hi = box->lo[d] + box->size[d];
		if (!first)
			hi = th_max_u64(hi, hull->lo[d] + hull->size[d]);
		hull->lo[d] = lo;
		hull->size[d] = hi - lo;
	}
}

/* Scales are made of what is staged for their tensor, where both want the same box. */
static int
find_shared(struct planner *planner, const struct plan_name *name, struct th_err *err)
{
	for (uint32_t i = name->row; i != PLAN_NONE; i = planner->wants[i].next) {
		struct plan_want *want = &planner->wants[i];
		if (!want->row->convert.scales || want->bytes == 0)
			continue;
		for (uint32_t j = name->row; j != PLAN_NONE && want->shared == PLAN_NONE;
			j = planner->wants[j].next) {
			const struct plan_want *other = &planner->wants[j];
			int rc = plan_steps(planner, 1, name->name, err);
			if (rc < 0)
				return rc;
			if (!other->row->convert.scales &&
				other->row->convert.scheme == want->row->convert.scheme &&
				memcmp(other->block, want->block, sizeof(want->block)) == 0 &&
				memcmp(&other->box, &want->box, sizeof(want->box)) == 0)
				want->shared = j;
		}
	}
	return 0;
}

int
plan_view_resolve(struct planner *planner, uint32_t index, struct th_err *err)
{
	struct plan_name *name = &planner->names[index];
	bool first = true;
	for (uint32_t i = name->row; i != PLAN_NONE; i = planner->wants[i].next) {
		struct plan_want *want = &planner->wants[i];
		int rc = check_types(want, name, err);
		if (rc == 0)
			rc = take_blocks(want, name, err);
		if (rc == 0)
			rc = check_global(want, name, err);
		if (rc == 0 && want->bytes == 0)
			continue;
		if (rc == 0)
			rc = take_box(want, name, err);
		if (rc < 0)
			return rc;
		widen(&name->hull, &want->box, name->ndim, first);
		first = false;
	}
	return find_shared(planner, name, err);
}
