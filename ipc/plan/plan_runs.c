/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_runs - a box that one owner has, as runs of bytes at the source and at the reader, cut where
 * a conversion is done elsewhere. Pure.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/plan/plan_internal.h"

/* A run and the loops around it, the innermost first; all in elements. */
struct walk {
	uint64_t run;
	uint32_t num_loops;
	struct plan_loop loops[MANIFEST_DIMS_MAX];
};

/* Dimensions that lie without a gap at both ends are one. */
static void
walk_box(const struct plan_box *box, uint32_t ndim, const uint64_t *source_stride,
	const uint64_t *stride, struct walk *ret_walk)
{
	struct walk walk = {.run = 1};
	for (uint32_t d = ndim; d-- > 0;) {
		uint64_t count = box->size[d];
		struct plan_loop *last = walk.num_loops ? &walk.loops[walk.num_loops - 1] : NULL;
		if (count == 1)
			continue;
		if (!last && source_stride[d] == walk.run && stride[d] == walk.run) {
			walk.run *= count;
		} else if (last && source_stride[d] == last->count * last->source_step &&
			   stride[d] == last->count * last->step) {
			last->count *= count;
		} else {
			walk.loops[walk.num_loops++] =
				(struct plan_loop){count, source_stride[d], stride[d]};
		}
	}
	*ret_walk = walk;
}

static int
fail_bits(const struct plan_want *want, struct th_err *err)
{
	return th_fail(err, TH_E_LAYOUT,
		"tensor '%s' is of %s, and a run of its box begins or ends within a byte; cut it "
		"at multiples of 8 bits",
		want->row->form.name, manifest_dtype_name(want->row->form.dtype));
}

/*
 * From elements to bytes. Elements of less than a byte must fill theirs: each run, and where it
 * begins; or there is one run, and it ends where the row ends at both ends.
 */
static int
to_bytes(const struct plan_want *want, struct walk *walk, uint32_t source_bits, uint32_t bits,
	uint64_t source_elements, struct plan_piece *piece, struct th_err *err)
{
	uint64_t odd = (piece->source_at * source_bits) | (piece->at * bits);
	for (uint32_t i = 0; i < walk->num_loops; i++) {
		struct plan_loop *loop = &walk->loops[i];
		odd |= (loop->source_step * source_bits) | (loop->step * bits);
		loop->source_step = loop->source_step * source_bits / 8;
		loop->step = loop->step * bits / 8;
	}
	if (odd % 8 != 0)
		return fail_bits(want, err);
	if (walk->run * bits % 8 != 0) {
		uint64_t elements = plan_box_volume(&want->box, want->row->form.ndim);
		if (walk->num_loops > 0 || piece->source_at + walk->run != source_elements ||
			piece->at + walk->run != elements)
			return fail_bits(want, err);
	}
	piece->source_at = piece->source_at * source_bits / 8;
	piece->at = piece->at * bits / 8;
	piece->source_run = (walk->run * source_bits + 7) / 8;
	piece->run = (walk->run * bits + 7) / 8;
	return 0;
}

static int
push_piece(struct planner *planner, const struct plan_want *want, const struct plan_box *box,
	const struct walk *walk, const struct plan_piece *made, struct th_err *err)
{
	uint32_t ndim = planner->names[want->name].ndim;
	size_t loop = planner->loops.count, at = planner->boxes.count;
	if (planner->pieces.count >= PLAN_PIECES_MAX)
		return th_fail(err, TH_E_LIMIT, "the plan has more than %u pieces, at tensor '%s'",
			PLAN_PIECES_MAX, want->row->form.name);
	struct plan_piece *piece = plan_push(&planner->pieces, sizeof(*piece));
	if (!piece)
		goto no_memory;
	*piece = *made;
	piece->num_loops = walk->num_loops;
	piece->loop = (uint32_t)loop;
	piece->box = (uint32_t)at;
	piece->runs = 1;
	for (uint32_t i = walk->num_loops; i-- > 0;) {
		struct plan_loop *next = plan_push(&planner->loops, sizeof(*next));
		if (!next)
			goto no_memory;
		*next = walk->loops[i];
		piece->runs *= next->count;
	}
	for (uint32_t i = 0; i < 2 * ndim; i++) {
		uint64_t *number = plan_push(&planner->boxes, sizeof(*number));
		if (!number)
			goto no_memory;
		*number = i < ndim ? box->lo[i] : box->size[i - ndim];
	}
	piece->bytes =
		piece->runs * (piece->place == PLAN_AT_READER ? piece->source_run : piece->run);
	return 0;
no_memory:
	return th_fail(err, -ENOMEM, "no memory to plan tensor '%s'", want->row->form.name);
}

/*
 * Scales that are made at the source: blocks of whole boxes, one number each. At the source the box
 * alone says what they are made of.
 */
static int
emit_scales(struct planner *planner, const struct plan_want *want, const struct plan_box *box,
	struct plan_piece *piece, struct th_err *err)
{
	const struct manifest_row *form = &want->row->form;
	uint32_t ndim = planner->names[want->name].ndim;
	struct plan_box scales = {0};
	struct walk walk;
	piece->at = 0;
	for (uint32_t d = 0; d < ndim; d++) {
		uint64_t block = d + 2 >= ndim ? want->block[d + 2 - ndim] : 1;
		uint64_t end = box->lo[d] + box->size[d];
		scales.lo[d] = box->lo[d] / block;
		scales.size[d] = end / block + (end % block != 0) - scales.lo[d];
		piece->at += (scales.lo[d] - form->offset[d]) * want->stride[d];
	}
	walk_box(&scales, ndim, want->stride, want->stride, &walk);
	for (uint32_t i = 0; i < walk.num_loops; i++) {
		walk.loops[i].source_step = 0;
		walk.loops[i].step *= 4;
	}
	piece->source_at = piece->source_run = 0;
	piece->at *= 4;
	piece->run = walk.run * 4;
	return push_piece(planner, want, box, &walk, piece, err);
}

static int
emit(struct planner *planner, uint32_t row, const struct plan_box *box, uint32_t owner_index,
	enum plan_place place, struct th_err *err)
{
	const struct plan_want *want = &planner->wants[row];
	const struct plan_name *name = &planner->names[want->name];
	const struct plan_owner *owner =
		(const struct plan_owner *)planner->owners.items + owner_index;
	const uint64_t *lo = plan_owner_box(planner, owner_index);
	uint64_t source_stride[MANIFEST_DIMS_MAX];
	bool scales = want->row->convert.scales;
	struct plan_piece piece = {
		.row = row, .shard = owner->shard, .source_row = owner->row, .place = place};
	struct walk walk;
	if (scales && place == PLAN_AT_SOURCE)
		return emit_scales(planner, want, box, &piece, err);
	uint64_t source_elements = plan_row_major(lo + name->ndim, name->ndim, source_stride);
	for (uint32_t d = 0; d < name->ndim; d++) {
		piece.source_at += (box->lo[d] - lo[d]) * source_stride[d];
		if (!scales)
			piece.at += (box->lo[d] - want->box.lo[d]) * want->stride[d];
	}
	walk_box(box, name->ndim, source_stride, scales ? source_stride : want->stride, &walk);
	uint32_t bits = manifest_dtype_bits(scales ? name->dtype : want->row->form.dtype);
	int rc = to_bytes(
		want, &walk, manifest_dtype_bits(name->dtype), bits, source_elements, &piece, err);
	if (rc < 0)
		return rc;
	if (scales) {
		piece.at = piece.run = 0;
		for (uint32_t i = 0; i < walk.num_loops; i++)
			walk.loops[i].step = 0;
	}
	return push_piece(planner, want, box, &walk, &piece, err);
}

/*
 * Blocks that the part holds whole are converted at the source, because fewer bytes travel then;
 * its rims are staged by the reader, who gets the rest of their blocks elsewhere.
 */
static int
emit_blocks(struct planner *planner, uint32_t row, const struct plan_box *box, uint32_t owner,
	struct th_err *err)
{
	const struct plan_want *want = &planner->wants[row];
	const struct plan_name *name = &planner->names[want->name];
	struct plan_box rest = *box;
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t d = name->ndim - 2 + i;
		uint64_t block = want->block[i], end = rest.lo[d] + rest.size[d];
		uint64_t first =
			rest.lo[d] % block ? rest.lo[d] - rest.lo[d] % block + block : rest.lo[d];
		uint64_t last = end == name->global[d] ? end : end - end % block;
		first = th_min_u64(first, end);
		last = th_max_u64(last, first);
		uint64_t cut[4] = {rest.lo[d], first, last, end};
		for (uint32_t side = 0; side < 3; side += 2) {
			struct plan_box rim = rest;
			rim.lo[d] = cut[side];
			rim.size[d] = cut[side + 1] - cut[side];
			if (rim.size[d] == 0 || want->shared != PLAN_NONE)
				continue;
			int rc = emit(planner, row, &rim, owner, PLAN_AT_READER, err);
			if (rc < 0)
				return rc;
		}
		rest.lo[d] = first;
		rest.size[d] = last - first;
		if (rest.size[d] == 0)
			return 0;
	}
	return emit(planner, row, &rest, owner, PLAN_AT_SOURCE, err);
}

int
plan_runs_emit(struct planner *planner, uint32_t row, const struct plan_box *box, uint32_t owner,
	struct th_err *err)
{
	const struct plan_want *want = &planner->wants[row];
	uint32_t scheme = want->row->convert.scheme;
	if (scheme == PLAN_AS_PUBLISHED)
		return emit(planner, row, box, owner, PLAN_COPY, err);
	if (scheme != PLAN_ROUND)
		return emit_blocks(planner, row, box, owner, err);
	bool narrows = manifest_dtype_bits(want->row->form.dtype) <
		       manifest_dtype_bits(planner->names[want->name].dtype);
	return emit(planner, row, box, owner, narrows ? PLAN_AT_SOURCE : PLAN_AT_READER, err);
}
