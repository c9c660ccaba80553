/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ipc/plan: pieces and owners by hand, each refusal, limits, hostile boxes. */
#include "ipc/plan/plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/plan/plan_internal.h"
#include "tests/support/plan_rig.h"

static struct plan *
plan_as(struct plan_rig *rig, uint32_t shard, uint32_t num_shards)
{
	struct th_err err = {0};
	struct plan *plan = NULL;
	cr_assert_eq(plan_rig_plan(rig, shard, num_shards, &err, &plan), 0, "%s", err.text);
	const char *wrong = plan_rig_replay(rig, plan);
	cr_assert_null(wrong, "%s", wrong);
	return plan;
}

static void
refuse(struct plan_rig *rig, int code, const char *word)
{
	struct th_err err = {0};
	struct plan *plan = NULL;
	int rc = plan_rig_plan(rig, 0, 1, &err, &plan);
	cr_assert_eq(rc, code, "%d '%s' for %s", rc, err.text, word);
	cr_assert(strstr(err.text, word), "'%s' lacks '%s'", err.text, word);
	cr_assert_null(plan);
	plan_rig_free(rig);
}

static void
publish_rows(struct plan_rig *rig, const char *name, uint64_t whole, uint32_t ranks)
{
	for (uint32_t i = 0; i < ranks; i++)
		plan_rig_publish(
			rig, i, name, RIG_BF16, 2, DIMS(plan_chunk(whole, ranks, i), {8, 0, 8}));
}

/* ---- pieces -------------------------------------------------------------------------------- */

Test(plan, fsdp__ten_rows_on_four_ranks__three_three_three_one)
{
	struct plan_rig rig = {0};
	static const uint64_t bytes[] = {48, 48, 48, 16};
	publish_rows(&rig, "w", 10, 4);
	plan_rig_want(&rig, "w", RIG_BF16, 2, DIMS({10, 0, 10}, {8, 0, 8}));
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->num_pieces, 4);
	cr_assert_eq(plan->num_sources, 4);
	for (uint32_t i = 0, at = 0; i < 4; at += (uint32_t)bytes[i++]) {
		cr_assert_eq(plan->pieces[i].shard, i);
		cr_assert_eq(plan->pieces[i].at, at);
		cr_assert_eq(plan->pieces[i].run, bytes[i]);
		cr_assert_eq(plan->pieces[i].runs, 1);
		cr_assert_eq(plan->sources[i].bytes, bytes[i]);
		cr_assert_eq(plan->sources[i].shortest, bytes[i]);
	}
	cr_assert_eq(plan->bytes_in, 160);
	cr_assert_eq(plan->bytes_own, 160);
	cr_assert_eq(plan->by_length[5].runs, 3); /* 48 bytes */
	cr_assert_eq(plan->by_length[4].bytes, 16);
	plan_free(plan);
	plan_rig_free(&rig);
}

/* torch: 5 rows on 4 ranks are 2, 2, 1 and none, and 2 rows leave two ranks without any. */
Test(plan, zero_size_shards__have_no_part)
{
	struct plan_rig rig = {0};
	for (uint32_t i = 0; i < 4; i++) {
		plan_rig_publish(&rig, i, "a", RIG_F32, 1, DIMS(plan_chunk(5, 4, i)));
		plan_rig_publish(&rig, i, "b", RIG_F32, 1, DIMS(plan_chunk(2, 4, i)));
	}
	cr_assert_eq(plan_chunk(5, 4, 3).size, 0);
	plan_rig_want(&rig, "a", RIG_F32, 1, DIMS({5, 0, 5}));
	plan_rig_want(&rig, "b", RIG_F32, 1, DIMS({2, 0, 2}));
	plan_rig_want(&rig, "b", RIG_F32, 1, DIMS({2, 2, 0}));
	plan_rig_want(&rig, "nobody", RIG_F32, 1, DIMS({9, 9, 0}));
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->num_pieces, 5);
	cr_assert_eq(plan->first[3], 5);
	plan_free(plan);
	plan_rig_free(&rig);
}

Test(plan, columns__one_run_a_row)
{
	struct plan_rig rig = {0};
	publish_rows(&rig, "w", 8, 2);
	plan_rig_want(&rig, "w", RIG_BF16, 2, DIMS({8, 0, 8}, {8, 4, 4}));
	struct plan *plan = plan_as(&rig, 1, 2);
	cr_assert_eq(plan->num_pieces, 2);
	const struct plan_piece *piece = &plan->pieces[1];
	cr_assert_eq(piece->num_loops, 1);
	cr_assert_eq(plan->loops[piece->loop].count, 4);
	cr_assert_eq(plan->loops[piece->loop].source_step, 16);
	cr_assert_eq(plan->loops[piece->loop].step, 8);
	cr_assert_eq(piece->source_at, 8);
	cr_assert_eq(piece->at, 32);
	cr_assert_eq(piece->run, 8);
	cr_assert_eq(piece->runs, 4);
	cr_assert_eq(plan->boxes[piece->box], 4);
	cr_assert_eq(plan->boxes[piece->box + 1], 4);
	plan_free(plan);
	plan_rig_free(&rig);
}

/* Three dimensions, the outer two of which lie without a gap at both ends: one loop, not two. */
Test(plan, outer_dimensions__are_one_loop)
{
	struct plan_rig rig = {0};
	plan_rig_publish(&rig, 0, "w", RIG_U8, 3, DIMS({4, 0, 4}, {6, 0, 6}, {10, 0, 10}));
	plan_rig_want(&rig, "w", RIG_U8, 3, DIMS({4, 0, 4}, {6, 0, 6}, {10, 2, 5}));
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->pieces[0].num_loops, 1);
	cr_assert_eq(plan->loops[0].count, 24);
	plan_free(plan);
	plan_rig_free(&rig);
}

Test(plan, stride__column_block_inside_of_a_wider_tensor)
{
	struct plan_rig rig = {0};
	publish_rows(&rig, "w", 6, 3);
	struct plan_row *row = plan_rig_want(&rig, "w", RIG_BF16, 2, DIMS({6, 0, 6}, {8, 0, 8}));
	row->stride[0] = 20;
	row->stride[1] = 1;
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->num_pieces, 3);
	cr_assert_eq(plan->pieces[2].at, 4 * 20 * 2);
	cr_assert_eq(plan->pieces[2].run, 16);
	cr_assert_eq(plan->pieces[2].runs, 2);
	plan_free(plan);
	plan_rig_free(&rig);
}

/*
 * Rows of a larger step may stand before those of a smaller; strides of a size of 1 do not count.
 */
Test(plan, stride__any_order_and_sizes_of_one)
{
	struct plan_rig rig = {0};
	plan_rig_publish(&rig, 0, "w", RIG_U8, 4, DIMS({3, 0, 3}, {4, 0, 4}, {1, 0, 1}, {2, 0, 2}));
	struct plan_row *row = plan_rig_want(
		&rig, "w", RIG_U8, 4, DIMS({3, 0, 3}, {4, 0, 4}, {1, 0, 1}, {2, 0, 2}));
	memcpy(row->stride, (uint64_t[]){3, 11, 0, 1}, 4 * sizeof(uint64_t));
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->pieces[0].runs, 12);
	plan_free(plan);
	plan_rig_free(&rig);
}

Test(plan, scalar__is_one_element_of_equal_owners)
{
	struct plan_rig rig = {0};
	for (uint32_t i = 0; i < 3; i++)
		plan_rig_publish(&rig, i, "s", RIG_F32, 0, NULL);
	plan_rig_want(&rig, "s", RIG_F32, 0, NULL);
	struct plan *plan = plan_as(&rig, 4, 5);
	cr_assert_eq(plan->num_pieces, 1);
	cr_assert_eq(plan->pieces[0].shard, 1); /* 4 mod 3 */
	cr_assert_eq(plan->pieces[0].bytes, 4);
	plan_free(plan);
	plan_rig_free(&rig);
}

/* Shard(0) x Shard(1) of a 2 x 3 mesh to rows: six boxes, each reader meets three. */
Test(plan, two_dimensions__every_box_of_the_row_of_the_mesh)
{
	struct plan_rig rig = {0};
	for (uint32_t i = 0; i < 6; i++)
		plan_rig_publish(&rig, i, "w", RIG_F32, 2,
			DIMS(plan_chunk(10, 2, i / 3), plan_chunk(7, 3, i % 3)));
	for (uint32_t reader = 0; reader < 2; reader++) {
		plan_rig_want(&rig, "w", RIG_F32, 2, DIMS(plan_chunk(10, 2, reader), {7, 0, 7}));
		struct plan *plan = plan_as(&rig, reader, 2);
		cr_assert_eq(plan->num_pieces, 3);
		for (uint32_t i = 0; i < 3; i++)
			cr_assert_eq(plan->pieces[i].shard, reader * 3 + i);
		plan_free(plan);
		plan_rig_clear_view(&rig);
	}
	plan_rig_free(&rig);
}

/* _StridedShard: FSDP shards what tensor parallel ranks hold, so a shard has several boxes. */
Test(plan, strided_shard__several_boxes_of_one_name_in_a_shard)
{
	struct plan_rig rig = {0};
	for (uint32_t i = 0; i < 4; i++)
		for (uint32_t box = 0; box < 2; box++)
			plan_rig_publish(&rig, i, "w", RIG_U8, 1, DIMS({16, i * 2 + box * 8, 2}));
	plan_rig_want(&rig, "w", RIG_U8, 1, DIMS({16, 3, 11}));
	struct plan *plan = plan_as(&rig, 0, 1);
	static const uint32_t shard[] = {1, 2, 3, 0, 1, 2};
	cr_assert_eq(plan->num_pieces, 6);
	for (uint32_t i = 0; i < 6; i++)
		cr_assert_eq(plan->pieces[i].shard, shard[i]);
	cr_assert_eq(plan->pieces[4].source_row, 1);
	plan_free(plan);
	plan_rig_free(&rig);
}

Test(plan, tied__second_name_resolves_to_its_row)
{
	struct plan_rig rig = {0};
	plan_rig_publish(&rig, 0, "head", RIG_U8, 1, DIMS({4, 0, 4}));
	struct manifest_alias alias = {.name = "tail", .row = 0};
	rig.shards[0].aliases = &alias;
	rig.shards[0].num_aliases = 1;
	struct planner *planner;
	struct plan *plan;
	plan_rig_want(&rig, "tail", RIG_U8, 1, DIMS({4, 0, 4}));
	rig.view.num_shards = 1;
	cr_assert_eq(planner_new(&rig.view, NULL, &planner), 0);
	cr_assert_eq(planner_add(planner, &rig.shards[0], NULL), 0);
	cr_assert_eq(planner_finish(planner, NULL, &plan), 0);
	cr_assert_eq(plan->num_pieces, 1);
	cr_assert_eq(plan->pieces[0].source_row, 0);
	plan_free(plan);
	planner_free(planner);
	plan_rig_free(&rig);
}

Test(plan, tied_here_only__is_refused)
{
	struct plan_rig rig = {0};
	plan_rig_publish(&rig, 0, "head", RIG_U8, 1, DIMS({4, 0, 4}));
	plan_rig_publish(&rig, 0, "tail", RIG_U8, 1, DIMS({4, 0, 4}));
	plan_rig_want(&rig, "head", RIG_U8, 1, DIMS({4, 0, 4}));
	struct manifest_alias alias = {.name = "tail", .row = 0};
	rig.view.aliases = &alias;
	rig.view.num_aliases = 1;
	refuse(&rig, TH_E_LAYOUT, "'tail' is published by itself");
}

/* ---- owners -------------------------------------------------------------------------------- */

static uint32_t
owner_of(struct plan_rig *rig, uint32_t reader, uint32_t readers, uint32_t row)
{
	struct plan *plan = plan_as(rig, reader, readers);
	uint32_t shard = plan->pieces[plan->first[row]].shard;
	plan_free(plan);
	return shard;
}

Test(plan, owners__reader_r_takes_r_mod_o__and_goes_round_its_own)
{
	struct plan_rig rig = {0};
	char name[2] = "a";
	for (uint32_t i = 0; i < 6; i++)
		for (char c = 'a'; c < 'e'; c++) {
			name[0] = c;
			plan_rig_publish(&rig, i, name, RIG_U8, 1, DIMS({4, 0, 4}));
		}
	for (char c = 'a'; c < 'e'; c++) {
		name[0] = c;
		plan_rig_want(&rig, name, RIG_U8, 1, DIMS({4, 0, 4}));
	}
	for (uint32_t reader = 0; reader < 8; reader++)
		for (uint32_t row = 0; row < 4; row++)
			cr_assert_eq(owner_of(&rig, reader, 8, row), reader % 6);
	/* 6 owners, 4 readers: 0 has 0 and 4, 1 has 1 and 5, 2 has 2, 3 has 3. */
	static const uint32_t own[4][4] = {{0, 4, 0, 4}, {1, 5, 1, 5}, {2, 2, 2, 2}, {3, 3, 3, 3}};
	for (uint32_t reader = 0; reader < 4; reader++)
		for (uint32_t row = 0; row < 4; row++)
			cr_assert_eq(owner_of(&rig, reader, 4, row), own[reader][row]);
	plan_rig_free(&rig);
}

Test(plan, owners__equal_boxes_of_one_shard_count_once)
{
	struct plan_rig rig = {0};
	for (uint32_t i = 0; i < 5; i++)
		plan_rig_publish(&rig, 0, "w", RIG_U8, 1, DIMS({4, 0, 4}));
	plan_rig_publish(&rig, 1, "w", RIG_U8, 1, DIMS({4, 0, 4}));
	plan_rig_want(&rig, "w", RIG_U8, 1, DIMS({4, 0, 4}));
	cr_assert_eq(owner_of(&rig, 1, 2, 0), 1);
	plan_rig_free(&rig);
}

/* Boxes that overlap and are not the same: the first owner has what both have. */
Test(plan, overlap__first_owner_has_each_element)
{
	struct plan_rig rig = {0};
	plan_rig_publish(&rig, 0, "w", RIG_U8, 1, DIMS({12, 4, 8}));
	plan_rig_publish(&rig, 1, "w", RIG_U8, 1, DIMS({12, 0, 8}));
	plan_rig_want(&rig, "w", RIG_U8, 1, DIMS({12, 0, 12}));
	struct plan *plan = plan_as(&rig, 1, 2);
	cr_assert_eq(plan->overlaps, 1);
	cr_assert_eq(plan->num_pieces, 2);
	cr_assert_eq(plan->pieces[0].shard, 1);
	cr_assert_eq(plan->pieces[0].run, 4);
	cr_assert_eq(plan->pieces[1].shard, 0);
	cr_assert_eq(plan->pieces[1].run, 8);
	plan_free(plan);
	plan_rig_free(&rig);
}

/* Four boxes around a fifth, which no straight cut divides. */
Test(plan, pinwheel__is_covered)
{
	struct plan_rig rig = {0};
	plan_rig_publish(&rig, 0, "w", RIG_U8, 2, DIMS({3, 0, 1}, {3, 0, 2}));
	plan_rig_publish(&rig, 1, "w", RIG_U8, 2, DIMS({3, 0, 2}, {3, 2, 1}));
	plan_rig_publish(&rig, 2, "w", RIG_U8, 2, DIMS({3, 2, 1}, {3, 1, 2}));
	plan_rig_publish(&rig, 3, "w", RIG_U8, 2, DIMS({3, 1, 2}, {3, 0, 1}));
	plan_rig_want(&rig, "w", RIG_U8, 2, DIMS({3, 0, 3}, {3, 0, 3}));
	struct plan *plan;
	struct th_err err = {0};
	cr_assert_eq(plan_rig_plan(&rig, 0, 1, &err, &plan), TH_E_LAYOUT);
	cr_assert(strstr(err.text, "[1, 2)x[1, 2)"), "%s", err.text);
	plan_rig_publish(&rig, 4, "w", RIG_U8, 2, DIMS({3, 1, 1}, {3, 1, 1}));
	plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->overlaps, 0);
	plan_free(plan);
	plan_rig_free(&rig);
}

/* ---- holes and differences ----------------------------------------------------------------- */

Test(plan, hole__names_tensor_and_box)
{
	struct plan_rig rig = {0};
	plan_rig_publish(&rig, 0, "layer.w", RIG_BF16, 2, DIMS({10, 0, 3}, {8, 0, 8}));
	plan_rig_publish(&rig, 1, "layer.w", RIG_BF16, 2, DIMS({10, 6, 4}, {8, 0, 8}));
	plan_rig_want(&rig, "layer.w", RIG_BF16, 2, DIMS({10, 1, 8}, {8, 2, 4}));
	refuse(&rig, TH_E_LAYOUT, "'layer.w': nobody has published [3, 6)x[2, 6)");
}

/* The volumes of what is there add up to the whole, and there is a hole. */
Test(plan, hole__overlap_of_the_same_size_does_not_fill_it)
{
	struct plan_rig rig = {0};
	plan_rig_publish(&rig, 0, "w", RIG_U8, 1, DIMS({12, 0, 6}));
	plan_rig_publish(&rig, 1, "w", RIG_U8, 1, DIMS({12, 3, 6}));
	plan_rig_want(&rig, "w", RIG_U8, 1, DIMS({12, 0, 12}));
	refuse(&rig, TH_E_LAYOUT, "[9, 12)");
}

Test(plan, differences__say_which)
{
	static const struct plan_dim two[] = {{4, 0, 4}, {8, 0, 8}};
	for (int i = 0; i < 6; i++) {
		struct plan_rig rig = {0};
		const char *word;
		plan_rig_publish(&rig, 0, "w", RIG_BF16, 2, two);
		switch (i) {
		case 0:
			plan_rig_want(&rig, "v", RIG_BF16, 2, two);
			word = "'v' is registered here and not published";
			break;
		case 1:
			plan_rig_want(&rig, "w", RIG_F32, 2, two);
			word = "'w' is BF16 at the source and F32 here";
			break;
		case 2:
			plan_rig_want(&rig, "w", RIG_BF16, 1, DIMS({32, 0, 32}));
			word = "'w' has 2 dimensions at the source and 1 here";
			break;
		case 3:
			plan_rig_want(&rig, "w", RIG_BF16, 2, DIMS({4, 0, 4}, {9, 0, 8}));
			word = "'w' has the global shape 9 in dimension 1, and 8 is";
			break;
		case 4:
			plan_rig_publish(&rig, 1, "w", RIG_F32, 2, two);
			plan_rig_want(&rig, "w", RIG_BF16, 2, two);
			word = "of shard 1 has another type or global shape";
			break;
		default:
			plan_rig_want(&rig, "w", RIG_F32, 2, two)->convert.scheme = PLAN_FP8_BLOCK;
			word = "its conversion does not make";
		}
		refuse(&rig, TH_E_LAYOUT, word);
	}
}

/* ---- hostile ------------------------------------------------------------------------------- */

static struct plan_row
good_row(void)
{
	return (struct plan_row){.form = {.name = "w",
					 .dtype = RIG_BF16,
					 .ndim = 2,
					 .local_shape = {4, 8},
					 .global_shape = {4, 8}}};
}

static void
refuse_row(const struct plan_row *row, int code, const char *word)
{
	struct plan_view view = {.rows = row, .count = 1, .num_shards = 1};
	struct planner *planner = NULL;
	struct th_err err = {0};
	cr_assert_eq(planner_new(&view, &err, &planner), code, "'%s' for %s", err.text, word);
	cr_assert(strstr(err.text, word), "'%s' lacks '%s'", err.text, word);
}

Test(plan, view__bad_rows__are_refused)
{
	struct plan_row row = good_row();
	row.form.name = "";
	refuse_row(&row, TH_E_INVALID, "empty name");
	row = good_row();
	row.form.ndim = 9;
	refuse_row(&row, TH_E_INVALID, "9 dimensions");
	row = good_row();
	row.form.dtype = 99;
	refuse_row(&row, TH_E_INVALID, "unknown dtype");
	row = good_row();
	row.form.offset[1] = UINT64_MAX;
	refuse_row(&row, TH_E_INVALID, "reaches out");
	row = good_row();
	row.form.local_shape[0] = row.form.global_shape[0] = UINT64_C(1) << 61;
	refuse_row(&row, TH_E_INVALID, "63 bits");
	row = good_row();
	row.form.local_shape[0] = row.form.global_shape[0] = UINT64_C(1) << 41;
	refuse_row(&row, TH_E_LIMIT, "larger than");
	row = good_row();
	row.stride[0] = 7;
	row.stride[1] = 1;
	refuse_row(&row, TH_E_INVALID, "overlap");
	row.stride[0] = 16;
	row.stride[1] = 2;
	refuse_row(&row, TH_E_INVALID, "must be contiguous");
	row.stride[0] = UINT64_MAX / 2;
	row.stride[1] = 1;
	refuse_row(&row, TH_E_INVALID, "63 bits of memory");
}

Test(plan, view__bad_conversions__are_refused)
{
	struct plan_row row = good_row();
	row.convert.scheme = 77;
	refuse_row(&row, TH_E_INVALID, "unknown conversion 77");
	row = good_row();
	row.convert.of = "v";
	refuse_row(&row, TH_E_INVALID, "no conversion");
	row = good_row();
	row.convert.scheme = PLAN_ROUND;
	row.convert.scales = true;
	refuse_row(&row, TH_E_INVALID, "that has none");
	row = good_row();
	row.convert.scheme = PLAN_FP8_BLOCK;
	row.convert.block[1] = 64;
	refuse_row(&row, TH_E_INVALID, "two numbers above 0");
}

Test(plan, view__bad_group_and_ties__are_refused)
{
	struct plan_row row = good_row();
	struct planner *planner = NULL;
	struct manifest_alias alias = {.name = "w", .row = 0};
	struct plan_view view = {.rows = &row, .count = 1, .shard = 2, .num_shards = 2};
	cr_assert_eq(planner_new(&view, NULL, &planner), TH_E_INVALID);
	view.num_shards = TH_SHARDS_MAX + 1;
	cr_assert_eq(planner_new(&view, NULL, &planner), TH_E_INVALID);
	view.num_shards = 3;
	view.aliases = &alias;
	view.num_aliases = 1;
	cr_assert_eq(planner_new(&view, NULL, &planner), TH_E_INVALID); /* the name of a row */
	alias.name = "v";
	alias.row = 1;
	cr_assert_eq(planner_new(&view, NULL, &planner), TH_E_INVALID);
	view.count = PLAN_ROWS_MAX;
	cr_assert_eq(planner_new(&view, NULL, &planner), TH_E_LIMIT);
	cr_assert_null(planner);
}

static void
refuse_shard(const struct manifest *shard, int code, const char *word)
{
	struct plan_row row = good_row();
	struct plan_view view = {.rows = &row, .count = 1, .num_shards = 1};
	struct planner *planner;
	struct th_err err = {0};
	cr_assert_eq(planner_new(&view, &err, &planner), 0);
	cr_assert_eq(planner_add(planner, shard, &err), code, "'%s' for %s", err.text, word);
	cr_assert(strstr(err.text, word), "'%s' lacks '%s'", err.text, word);
	planner_free(planner);
}

Test(plan, published__bad_rows__are_refused_wanted_or_not)
{
	struct manifest_row row = good_row().form;
	struct manifest_alias alias = {.name = "t", .row = 1};
	struct manifest shard = {.rows = &row, .num_rows = 1};
	row.name = "other";
	row.ndim = UINT32_MAX;
	refuse_shard(&shard, TH_E_INVALID, "dimensions");
	row = good_row().form;
	row.offset[0] = 1;
	refuse_shard(&shard, TH_E_INVALID, "reaches out");
	row = good_row().form;
	row.local_shape[0] = row.global_shape[0] = UINT64_C(1) << 42;
	refuse_shard(&shard, TH_E_LIMIT, "bytes");
	row = good_row().form;
	row.name = NULL;
	refuse_shard(&shard, TH_E_INVALID, "no name");
	row = good_row().form;
	shard.aliases = &alias;
	shard.num_aliases = 1;
	refuse_shard(&shard, TH_E_INVALID, "no row");
	alias.row = 0;
	alias.name = NULL;
	refuse_shard(&shard, TH_E_INVALID, "no name");
	shard.num_rows = PLAN_ROWS_MAX;
	refuse_shard(&shard, TH_E_LIMIT, "at most 262144");
}

Test(plan, limits__rows_of_all_shards_and_shards)
{
	struct plan_row want = good_row();
	struct plan_view view = {.rows = &want, .count = 1, .num_shards = 1};
	struct manifest_row *rows = calloc(PLAN_ROWS_MAX, sizeof(rows[0]));
	struct manifest shard = {.rows = rows, .num_rows = PLAN_ROWS_MAX};
	struct planner *planner;
	struct th_err err = {0};
	for (uint32_t i = 0; i < PLAN_ROWS_MAX; i++) {
		rows[i] = good_row().form;
		rows[i].name = "other";
	}
	cr_assert_eq(planner_new(&view, NULL, &planner), 0);
	for (uint32_t i = 0; i < 16; i++)
		cr_assert_eq(planner_add(planner, &shard, &err), 0, "%s", err.text);
	shard.num_rows = 1;
	cr_assert_eq(planner_add(planner, &shard, &err), TH_E_LIMIT);
	cr_assert(strstr(err.text, "4194305 rows"), "%s", err.text);
	planner_free(planner);
	shard.num_rows = 0;
	cr_assert_eq(planner_new(&view, NULL, &planner), 0);
	for (uint32_t i = 0; i < TH_SHARDS_MAX; i++)
		cr_assert_eq(planner_add(planner, &shard, NULL), 0);
	cr_assert_eq(planner_add(planner, &shard, &err), TH_E_LIMIT);
	planner_free(planner);
	free(rows);
}

/* Every other element first, so that there are as many holes as boxes: it ends, with a sentence. */
Test(plan, limits__boxes_that_make_many_holes)
{
	enum { BOXES = 65536 };
	struct plan_row want = {.form = {.name = "w",
					.dtype = RIG_U8,
					.ndim = 2,
					.local_shape = {BOXES, 4},
					.global_shape = {BOXES, 4}}};
	struct plan_view view = {.rows = &want, .count = 1, .num_shards = 1};
	struct manifest_row *rows = calloc(2 * BOXES, sizeof(rows[0]));
	struct manifest shard = {.rows = rows, .num_rows = 2 * BOXES};
	struct planner *planner;
	struct plan *plan = NULL;
	struct th_err err = {0};
	for (uint32_t i = 0; i < BOXES; i++) {
		rows[i] = want.form;
		rows[i].local_shape[0] = rows[i].local_shape[1] = 1;
		rows[i].offset[0] = i;
		rows[i].offset[1] = 1 + i % 2;
		rows[BOXES + i] = rows[i];
		rows[BOXES + i].local_shape[1] = 2;
	}
	cr_assert_eq(planner_new(&view, NULL, &planner), 0);
	cr_assert_eq(planner_add(planner, &shard, NULL), 0);
	cr_assert_eq(planner_finish(planner, &err, &plan), TH_E_LIMIT, "%s", err.text);
	cr_assert(strstr(err.text, "comparisons of boxes"), "%s", err.text);
	cr_assert_null(plan);
	planner_free(planner);
	free(rows);
}

/* ---- less than a byte ---------------------------------------------------------------------- */

Test(plan, four_bits__runs_are_whole_bytes_or_the_end_of_both)
{
	struct plan_rig rig = {0};
	plan_rig_publish(&rig, 0, "even", RIG_F4, 2, DIMS({4, 0, 4}, {6, 0, 6}));
	plan_rig_publish(&rig, 0, "odd", RIG_F4, 2, DIMS({3, 0, 3}, {5, 0, 5}));
	plan_rig_want(&rig, "even", RIG_F4, 2, DIMS({4, 1, 2}, {6, 2, 4}));
	plan_rig_want(&rig, "odd", RIG_F4, 2, DIMS({3, 0, 3}, {5, 0, 5}));
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->pieces[0].run, 2);
	cr_assert_eq(plan->pieces[1].run, 8);
	plan_free(plan);
	plan_rig_clear_view(&rig);
	plan_rig_want(&rig, "odd", RIG_F4, 2, DIMS({3, 0, 1}, {5, 0, 5}));
	refuse(&rig, TH_E_LAYOUT, "'odd' is of F4");
	/* A run of two that begins within a byte; one whose next one does. */
	plan_rig_publish(&rig, 0, "odd", RIG_F4, 1, DIMS({6, 0, 6}));
	plan_rig_want(&rig, "odd", RIG_F4, 1, DIMS({6, 1, 2}));
	refuse(&rig, TH_E_LAYOUT, "'odd' is of F4");
	plan_rig_publish(&rig, 0, "odd", RIG_F4, 2, DIMS({3, 0, 3}, {5, 0, 5}));
	plan_rig_want(&rig, "odd", RIG_F4, 2, DIMS({3, 0, 3}, {5, 0, 2}));
	refuse(&rig, TH_E_LAYOUT, "'odd' is of F4");
}

/* ---- conversions --------------------------------------------------------------------------- */

Test(plan, round__where_fewer_bytes_travel)
{
	struct plan_rig rig = {0};
	for (uint32_t i = 0; i < 2; i++) {
		plan_rig_publish(&rig, i, "a", RIG_F32, 2, DIMS(plan_chunk(6, 2, i), {4, 0, 4}));
		plan_rig_publish(&rig, i, "b", RIG_BF16, 2, DIMS(plan_chunk(6, 2, i), {4, 0, 4}));
	}
	plan_rig_want(&rig, "a", RIG_BF16, 2, DIMS({6, 0, 6}, {4, 1, 2}))->convert.scheme =
		PLAN_ROUND;
	plan_rig_want(&rig, "b", RIG_F32, 2, DIMS({6, 0, 6}, {4, 0, 4}))->convert.scheme =
		PLAN_ROUND;
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->pieces[0].place, PLAN_AT_SOURCE);
	cr_assert_eq(plan->pieces[0].source_run, 8);
	cr_assert_eq(plan->pieces[0].run, 4);
	cr_assert_eq(plan->pieces[2].place, PLAN_AT_READER);
	cr_assert_eq(plan->bytes_in, 24 + 48);
	cr_assert_eq(plan->bytes_own, 24 + 96);
	cr_assert_eq(plan->staged, 48);
	cr_assert_eq(plan->window_least, 2); /* one element */
	cr_assert_eq(plan->sources[0].converts, 1);
	plan_free(plan);
	plan_rig_free(&rig);
}

static void
want_fp8(struct plan_rig *rig, struct plan_dim rows, struct plan_dim columns, uint32_t block)
{
	struct plan_convert convert = {.scheme = PLAN_FP8_BLOCK, .block = {block, block}};
	plan_rig_want(rig, "w", RIG_F8, 2, DIMS(rows, columns))->convert = convert;
	convert.scales = true;
	convert.of = "w";
	struct plan_dim scales[2] = {rows, columns};
	for (int i = 0; i < 2; i++) {
		uint64_t end = (scales[i].lo + scales[i].size + block - 1) / block;
		scales[i].lo /= block;
		scales[i].size = end - scales[i].lo;
		scales[i].whole = (scales[i].whole + block - 1) / block;
	}
	plan_rig_want(rig, "w_scale", RIG_F32, 2, scales)->convert = convert;
}

/* Ten rows by 3, 3, 3, 1 in blocks of 3: all blocks are whole, the last one at the tensor's end. */
Test(plan, fp8__whole_blocks_are_converted_at_the_source)
{
	struct plan_rig rig = {0};
	publish_rows(&rig, "w", 10, 4);
	want_fp8(&rig, (struct plan_dim){10, 0, 10}, (struct plan_dim){8, 3, 5}, 3);
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->num_pieces, 8);
	cr_assert_eq(plan->staged, 0);
	cr_assert_eq(plan->bytes_in, 10 * 5 + 4 * 2 * 4);
	cr_assert_eq(plan->bytes_in, plan->bytes_own);
	cr_assert_eq(plan->pieces[6].place, PLAN_AT_SOURCE);
	cr_assert_eq(plan->pieces[6].at, 16); /* third row of scales, two each */
	cr_assert_eq(plan->pieces[6].run, 8);
	plan_free(plan);
	plan_rig_free(&rig);
}

/* In blocks of 4 the shards cut: rows 3 and 6 to 9 are rims, which travel once for both rows. */
Test(plan, fp8__cut_blocks_are_staged_once_for_tensor_and_scales)
{
	struct plan_rig rig = {0};
	for (uint32_t i = 0; i < 2; i++)
		plan_rig_publish(&rig, i, "w", RIG_BF16, 2, DIMS({12, i * 6, 6}, {8, 0, 8}));
	want_fp8(&rig, (struct plan_dim){12, 0, 12}, (struct plan_dim){8, 0, 8}, 4);
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->shared[0], PLAN_NONE);
	cr_assert_eq(plan->shared[1], 0);
	/* Blocks 0 to 3 and 8 to 11 at the sources, two rows of each staged. */
	cr_assert_eq(plan->staged, 2 * 2 * 8 * 2);
	cr_assert_eq(plan->bytes_in, 8 * 8 + 2 * 2 * 4 + plan->staged);
	cr_assert_eq(plan->window_least, 4 * 4 * 2);
	plan_free(plan);
	plan_rig_free(&rig);
}

Test(plan, fp8__scales_alone__stage_by_themselves)
{
	struct plan_rig rig = {0};
	for (uint32_t i = 0; i < 2; i++)
		plan_rig_publish(&rig, i, "w", RIG_BF16, 2, DIMS({12, i * 6, 6}, {8, 0, 8}));
	struct plan_row *row = plan_rig_want(&rig, "s", RIG_F32, 2, DIMS({3, 1, 1}, {2, 0, 2}));
	row->convert = (struct plan_convert){
		.scheme = PLAN_FP8_BLOCK, .scales = true, .of = "w", .block = {4, 4}};
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->num_pieces, 2);
	cr_assert_eq(plan->pieces[0].place, PLAN_AT_READER);
	cr_assert_eq(plan->pieces[0].run, 0);
	cr_assert_eq(plan->pieces[0].source_at, 4 * 8 * 2);
	cr_assert_eq(plan->pieces[0].source_run, 2 * 8 * 2);
	cr_assert_eq(plan->bytes_in, 64);
	cr_assert_eq(plan->bytes_own, 8);
	plan_free(plan);
	plan_rig_free(&rig);
}

Test(plan, fp8_channel__columns_make_it_a_reader_matter)
{
	struct plan_rig rig = {0};
	for (uint32_t i = 0; i < 2; i++) {
		plan_rig_publish(&rig, i, "rows", RIG_F32, 2, DIMS({4, i * 2, 2}, {6, 0, 6}));
		plan_rig_publish(&rig, i, "columns", RIG_F32, 2, DIMS({4, 0, 4}, {6, i * 3, 3}));
	}
	plan_rig_want(&rig, "rows", RIG_F8, 2, DIMS({4, 1, 2}, {6, 0, 6}))->convert.scheme =
		PLAN_FP8_CHANNEL;
	plan_rig_want(&rig, "columns", RIG_F8, 2, DIMS({4, 1, 2}, {6, 0, 6}))->convert.scheme =
		PLAN_FP8_CHANNEL;
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->pieces[plan->first[0]].place, PLAN_AT_SOURCE);
	cr_assert_eq(plan->pieces[plan->first[1]].place, PLAN_AT_READER);
	cr_assert_eq(plan->bytes_in, 12 + 48);
	cr_assert_eq(plan->window_least, 24);
	plan_free(plan);
	plan_rig_free(&rig);
}

Test(plan, fp8__reader_that_cuts_a_block__is_refused)
{
	struct plan_rig rig = {0};
	publish_rows(&rig, "w", 10, 1);
	plan_rig_want(&rig, "w", RIG_F8, 2, DIMS({10, 0, 6}, {8, 0, 8}))->convert =
		(struct plan_convert){.scheme = PLAN_FP8_BLOCK_POW2, .block = {4, 4}};
	refuse(&rig, TH_E_LAYOUT, "cuts a block");
	publish_rows(&rig, "w", 10, 1);
	plan_rig_want(&rig, "s", RIG_F32, 2, DIMS({4, 0, 4}, {2, 0, 2}))->convert =
		(struct plan_convert){
			.scheme = PLAN_FP8_BLOCK, .scales = true, .of = "w", .block = {4, 4}};
	refuse(&rig, TH_E_LAYOUT, "3 is what the source has of scales");
}
