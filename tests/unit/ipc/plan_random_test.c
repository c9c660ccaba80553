/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Properties of ipc/plan over random meshes, placements, views and boxes: each destination byte is
 * written once and equal to a copy by hand, and a plan exists exactly when somebody has each
 * element.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/plan/plan.h"
#include "ipc/plan/plan_internal.h"
#include "tests/support/plan_rig.h"
#include "tests/support/rng.h"

#define BOXES 16

enum placement {
	REPLICATE,
	SHARD,   /* as torch chunks it */
	STRIDED, /* chunked in two first, and each of these by the ranks */
};

struct axis {
	uint32_t ranks, dim;
	enum placement placement;
};

struct boxes {
	uint32_t count;
	struct plan_dim dims[BOXES][MANIFEST_DIMS_MAX];
};

static struct plan_dim
chunk_of(struct plan_dim dim, uint32_t ranks, uint32_t rank)
{
	struct plan_dim part = plan_chunk(dim.size, ranks, rank);
	return (struct plan_dim){dim.whole, dim.lo + part.lo, part.size};
}

/* The boxes of one rank. */
static void
place(struct boxes *boxes, uint32_t ndim, const struct axis *axes, uint32_t num_axes, uint32_t rank)
{
	for (uint32_t a = 0; a < num_axes; a++) {
		uint32_t at = rank % axes[a].ranks, d = axes[a].dim, count = boxes->count;
		rank /= axes[a].ranks;
		if (axes[a].placement == REPLICATE || ndim == 0)
			continue;
		for (uint32_t i = 0; i < count; i++) {
			struct plan_dim whole = boxes->dims[i][d];
			if (axes[a].placement == SHARD || boxes->count == BOXES) {
				boxes->dims[i][d] = chunk_of(whole, axes[a].ranks, at);
				continue;
			}
			memcpy(boxes->dims[boxes->count], boxes->dims[i], sizeof(boxes->dims[i]));
			boxes->dims[i][d] = chunk_of(chunk_of(whole, 2, 0), axes[a].ranks, at);
			boxes->dims[boxes->count++][d] =
				chunk_of(chunk_of(whole, 2, 1), axes[a].ranks, at);
		}
	}
}

static uint32_t
random_mesh(struct th_rng *rng, uint32_t ndim, struct axis axes[3])
{
	uint32_t count = (uint32_t)th_rng_below(rng, 4);
	for (uint32_t a = 0; a < count; a++)
		axes[a] = (struct axis){1 + (uint32_t)th_rng_below(rng, 4),
			ndim ? (uint32_t)th_rng_below(rng, ndim) : 0,
			(enum placement)th_rng_below(rng, 3)};
	return count;
}

static uint32_t
ranks_of(const struct axis *axes, uint32_t count)
{
	uint32_t ranks = 1;
	for (uint32_t a = 0; a < count; a++)
		ranks *= axes[a].ranks;
	return ranks;
}

static void
random_strides(struct th_rng *rng, struct plan_row *row)
{
	uint64_t step = 1;
	if (th_rng_below(rng, 2))
		return;
	for (uint32_t d = row->form.ndim; d-- > 0;) {
		row->stride[d] = step;
		step = step * row->form.local_shape[d] + th_rng_below(rng, 3);
	}
}

static const uint32_t dtypes[] = {RIG_U8, RIG_BF16, RIG_F32};

/* One tensor from one mesh to another. */
static void
reshard(struct th_rng *rng, uint32_t ndim, uint32_t dtype, uint32_t to)
{
	struct plan_rig rig = {0};
	struct axis from_axes[3], to_axes[3];
	struct plan_dim whole[MANIFEST_DIMS_MAX] = {0};
	for (uint32_t d = 0; d < ndim; d++) {
		uint64_t size = th_rng_below(rng, 16) ? 1 + th_rng_below(rng, 11) : 0;
		whole[d] = (struct plan_dim){size, 0, size};
	}
	uint32_t from = random_mesh(rng, ndim, from_axes), into = random_mesh(rng, ndim, to_axes);
	for (uint32_t rank = 0; rank < ranks_of(from_axes, from); rank++) {
		struct boxes boxes = {.count = 1};
		memcpy(boxes.dims[0], whole, sizeof(whole));
		place(&boxes, ndim, from_axes, from, rank);
		for (uint32_t i = 0; i < boxes.count; i++)
			plan_rig_publish(&rig, rank, "w", dtype, ndim, boxes.dims[i]);
	}
	uint32_t readers = ranks_of(to_axes, into);
	for (uint32_t reader = 0; reader < readers; reader++) {
		struct boxes boxes = {.count = 1};
		struct th_err err = {0};
		struct plan *plan;
		memcpy(boxes.dims[0], whole, sizeof(whole));
		place(&boxes, ndim, to_axes, into, reader);
		for (uint32_t i = 0; i < boxes.count; i++) {
			struct plan_row *row = plan_rig_want(&rig, "w", to, ndim, boxes.dims[i]);
			row->convert.scheme = to == dtype ? PLAN_AS_PUBLISHED : PLAN_ROUND;
			random_strides(rng, row);
		}
		cr_assert_eq(plan_rig_plan(&rig, reader, readers, &err, &plan), 0, "%s", err.text);
		const char *wrong = plan_rig_replay(&rig, plan);
		cr_assert_null(wrong, "%s", wrong);
		if (to == dtype)
			cr_assert_eq(plan->bytes_in, plan->bytes_own);
		cr_assert_eq(plan->overlaps, 0);
		plan_free(plan);
		plan_rig_clear_view(&rig);
	}
	plan_rig_free(&rig);
}

Test(plan_random, meshes__every_byte_once_and_right)
{
	struct th_rng rng;
	th_rng_init_number(&rng, 1);
	for (uint32_t i = 0; i < 600; i++) {
		uint32_t dtype = dtypes[th_rng_below(&rng, 3)], to = dtype;
		if (dtype != RIG_U8 && th_rng_below(&rng, 3) == 0)
			to = dtype == RIG_F32 ? RIG_BF16 : RIG_F32;
		reshard(&rng, (uint32_t)th_rng_below(&rng, 5), dtype, to);
	}
}

/* ---- boxes of any kind --------------------------------------------------------------------- */

static struct plan_dim
random_dim(struct th_rng *rng, uint64_t whole)
{
	uint64_t lo = th_rng_below(rng, whole), size = 1 + th_rng_below(rng, whole - lo);
	return (struct plan_dim){whole, lo, size};
}

static bool
has(const struct plan_dim *dims, const uint64_t *at, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (at[d] < dims[d].lo || at[d] >= dims[d].lo + dims[d].size)
			return false;
	return true;
}

/* By hand: does somebody have each element of the box? */
static bool
covered(const struct plan_dim *want, uint32_t ndim, struct plan_dim all[][3], uint32_t count)
{
	uint64_t elements = 1;
	for (uint32_t d = 0; d < ndim; d++)
		elements *= want[d].size;
	for (uint64_t i = 0; i < elements; i++) {
		uint64_t at[3], rest = i;
		bool found = false;
		for (uint32_t d = 0; d < ndim; d++) {
			at[d] = want[d].lo + rest % want[d].size;
			rest /= want[d].size;
		}
		for (uint32_t b = 0; b < count && !found; b++)
			found = has(all[b], at, ndim);
		if (!found)
			return false;
	}
	return true;
}

Test(plan_random, any_boxes__plan_or_hole_as_by_hand)
{
	struct th_rng rng;
	uint32_t plans = 0, holes = 0;
	th_rng_init_number(&rng, 2);
	for (uint32_t i = 0; i < 3000; i++) {
		struct plan_rig rig = {0};
		struct plan_dim all[40][3], want[3];
		uint32_t ndim = 1 + (uint32_t)th_rng_below(&rng, 3);
		uint32_t count = 1 + (uint32_t)th_rng_below(&rng, 40);
		uint64_t whole[3];
		struct th_err err = {0};
		struct plan *plan = NULL;
		for (uint32_t d = 0; d < ndim; d++)
			whole[d] = 1 + th_rng_below(&rng, 7);
		for (uint32_t b = 0; b < count; b++) {
			for (uint32_t d = 0; d < ndim; d++)
				all[b][d] = random_dim(&rng, whole[d]);
			plan_rig_publish(
				&rig, (uint32_t)th_rng_below(&rng, 5), "w", RIG_BF16, ndim, all[b]);
		}
		for (uint32_t d = 0; d < ndim; d++)
			want[d] = random_dim(&rng, whole[d]);
		random_strides(&rng, plan_rig_want(&rig, "w", RIG_BF16, ndim, want));
		bool is_covered = covered(want, ndim, all, count);
		int rc = plan_rig_plan(&rig, (uint32_t)th_rng_below(&rng, 3), 3, &err, &plan);
		cr_assert_eq(rc, is_covered ? 0 : TH_E_LAYOUT, "%s", err.text);
		if (rc == 0) {
			const char *wrong = plan_rig_replay(&rig, plan);
			cr_assert_null(wrong, "%s", wrong);
			cr_assert_eq(plan->bytes_in, plan->bytes_own);
			plans++;
		} else {
			cr_assert(strstr(err.text, "nobody has published"), "%s", err.text);
			holes++;
		}
		plan_free(plan);
		plan_rig_free(&rig);
	}
	cr_assert_gt(plans, 500);
	cr_assert_gt(holes, 500);
}

/* ---- blocks -------------------------------------------------------------------------------- */

/* What a piece of scales or of their tensor stands for, in elements of the tensor, counted once. */
static void
count_box(const struct plan *plan, const struct plan_piece *piece, uint64_t columns, uint8_t *times)
{
	const uint64_t *box = plan->boxes + piece->box;
	for (uint64_t i = 0; i < box[2]; i++)
		for (uint64_t j = 0; j < box[3]; j++)
			times[(box[0] + i) * columns + box[1] + j]++;
}

static bool
is_whole(uint64_t lo, uint64_t size, uint64_t block, uint64_t whole)
{
	return lo % block == 0 && ((lo + size) % block == 0 || lo + size == whole);
}

/* Each element of the box is part of one piece; those converted at a source are whole blocks. */
Test(plan_random, blocks__whole_at_the_source_and_rims_once)
{
	struct th_rng rng;
	uint32_t rims = 0, whole_blocks = 0;
	th_rng_init_number(&rng, 3);
	for (uint32_t i = 0; i < 500; i++) {
		struct plan_rig rig = {0};
		struct plan *plan;
		struct th_err err = {0};
		uint64_t rows = 1 + th_rng_below(&rng, 20), columns = 1 + th_rng_below(&rng, 20);
		uint32_t block = 1 + (uint32_t)th_rng_below(&rng, 5), axis = i % 2;
		uint32_t ranks = 1 + (uint32_t)th_rng_below(&rng, 5);
		for (uint32_t r = 0; r < ranks; r++) {
			struct plan_dim dims[2] = {{rows, 0, rows}, {columns, 0, columns}};
			dims[axis] = plan_chunk(dims[axis].whole, ranks, r);
			plan_rig_publish(&rig, r, "w", RIG_BF16, 2, dims);
		}
		struct plan_convert convert = {.scheme = PLAN_FP8_BLOCK, .block = {block, block}};
		struct plan_dim all[2] = {{rows, 0, rows}, {columns, 0, columns}};
		plan_rig_want(&rig, "w", RIG_F8, 2, all)->convert = convert;
		convert.scales = true;
		convert.of = "w";
		struct plan_dim scales[2];
		for (int d = 0; d < 2; d++) {
			uint64_t blocks = (all[d].whole + block - 1) / block;
			scales[d] = (struct plan_dim){blocks, 0, blocks};
		}
		plan_rig_want(&rig, "s", RIG_F32, 2, scales)->convert = convert;
		cr_assert_eq(plan_rig_plan(&rig, 0, 1, &err, &plan), 0, "%s", err.text);
		const char *wrong = plan_rig_replay(&rig, plan);
		cr_assert_null(wrong, "%s", wrong);
		uint8_t times[400] = {0}, by_scales[400] = {0};
		for (uint32_t p = 0; p < plan->num_pieces; p++) {
			const struct plan_piece *piece = &plan->pieces[p];
			const uint64_t *box = plan->boxes + piece->box;
			count_box(plan, piece, columns, piece->row ? by_scales : times);
			bool at_source = piece->place == PLAN_AT_SOURCE;
			cr_assert(!at_source || (is_whole(box[0], box[2], block, rows) &&
							is_whole(box[1], box[3], block, columns)));
			cr_assert(at_source || piece->row == 0);
			rims += !at_source;
			whole_blocks += at_source;
		}
		for (uint64_t e = 0; e < rows * columns; e++) {
			cr_assert_eq(times[e], 1);
			cr_assert_leq(by_scales[e], 1);
		}
		plan_free(plan);
		plan_rig_free(&rig);
	}
	cr_assert_gt(rims, 100);
	cr_assert_gt(whole_blocks, 100);
}
