/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts that are written about, as plans: 32 trainers in two kinds of mesh, pipeline stages to
 * two engines, fused and renamed tensors, and the table of training and inference configurations
 * that the peer-to-peer transfer of SGLang was measured with. Tensors are small; the layouts are
 * theirs.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/plan/plan.h"
#include "ipc/plan/plan_internal.h"
#include "tests/support/plan_rig.h"

#define HIDDEN 64

static struct plan *
plan_as(struct plan_rig *rig, uint32_t shard, uint32_t num_shards)
{
	struct th_err err = {0};
	struct plan *plan = NULL;
	cr_assert_eq(plan_rig_plan(rig, shard, num_shards, &err, &plan), 0, "%s", err.text);
	const char *wrong = plan_rig_replay(rig, plan);
	cr_assert_null(wrong, "%s", wrong);
	cr_assert_eq(plan->bytes_in, plan->bytes_own);
	return plan;
}

static const char *
name_of(char text[64], uint32_t layer, const char *what, int expert)
{
	if (expert < 0)
		snprintf(text, 64, "layers.%02u.%s.weight", layer, what);
	else
		snprintf(text, 64, "layers.%02u.experts.%d.%s.weight", layer, expert, what);
	return text;
}

/*
 * ---- (a) FSDP=2, PP=2, EP=8 ---------------------------------------------------------------------
 * Ranks 0 to 31 are (fsdp, pp, ep), ep last. A stage's dense parameters are sharded over the 8
 * ranks of ep and the same over fsdp; experts belong to a rank of ep, and are sharded over fsdp.
 */

enum { A_RANKS = 32, A_LAYERS = 4, A_EXPERTS = 16, A_READERS = 8 };

static void
publish_a(struct plan_rig *rig)
{
	char name[64];
	for (uint32_t rank = 0; rank < A_RANKS; rank++) {
		uint32_t fsdp = rank / 16, stage = rank / 8 % 2, ep = rank % 8;
		for (uint32_t layer = stage * 2; layer < stage * 2 + 2; layer++) {
			plan_rig_publish(rig, rank, name_of(name, layer, "q_proj", -1), RIG_BF16, 2,
				DIMS(plan_chunk(HIDDEN, 8, ep), {HIDDEN, 0, HIDDEN}));
			plan_rig_publish(rig, rank, name_of(name, layer, "o_proj", -1), RIG_BF16, 2,
				DIMS(plan_chunk(HIDDEN, 8, ep), {HIDDEN, 0, HIDDEN}));
			for (int e = (int)ep * 2; e < (int)ep * 2 + 2; e++)
				plan_rig_publish(rig, rank, name_of(name, layer, "down_proj", e),
					RIG_BF16, 2,
					DIMS(plan_chunk(HIDDEN, 2, fsdp), {16, 0, 16}));
		}
	}
}

Test(plan_golden, a__two_groups_of_meshes__no_rank_is_idle)
{
	struct plan_rig rig = {0};
	uint64_t sent[A_RANKS] = {0}, experts[A_RANKS] = {0}, own = 0;
	char name[64];
	publish_a(&rig);
	for (uint32_t reader = 0; reader < A_READERS; reader++) {
		for (uint32_t layer = 0; layer < A_LAYERS; layer++) {
			plan_rig_want(&rig, name_of(name, layer, "q_proj", -1), RIG_BF16, 2,
				DIMS(plan_chunk(HIDDEN, 8, reader), {HIDDEN, 0, HIDDEN}));
			plan_rig_want(&rig, name_of(name, layer, "o_proj", -1), RIG_BF16, 2,
				DIMS({HIDDEN, 0, HIDDEN}, plan_chunk(HIDDEN, 8, reader)));
			for (int e = (int)reader * 2; e < (int)reader * 2 + 2; e++)
				plan_rig_want(&rig, name_of(name, layer, "down_proj", e), RIG_BF16,
					2, DIMS({HIDDEN, 0, HIDDEN}, {16, 0, 16}));
		}
		struct plan *plan = plan_as(&rig, reader, A_READERS);
		own += plan->bytes_own;
		for (uint32_t i = 0; i < plan->num_pieces; i++) {
			const struct plan_piece *piece = &plan->pieces[i];
			const char *from = rig.rows[piece->row].form.name;
			cr_assert_eq(piece->shard / 8 % 2, (uint32_t)(from[8] - '0') / 2);
			sent[piece->shard] += piece->bytes;
			if (strstr(from, "experts"))
				experts[piece->shard] += piece->bytes;
			else
				cr_assert_eq(piece->shard / 16, reader % 2);
		}
		plan_free(plan);
		plan_rig_clear_view(&rig);
	}
	/* Of experts each rank sends its half of two experts in two layers. */
	for (uint32_t rank = 0; rank < A_RANKS; rank++) {
		cr_assert_eq(experts[rank], 2 * 2 * HIDDEN / 2 * 16 * 2);
		cr_assert_gt(sent[rank], experts[rank]);
	}
	cr_assert_eq(own, A_LAYERS * (2 * HIDDEN * HIDDEN + A_EXPERTS * HIDDEN * 16) * 2);
	plan_rig_free(&rig);
}

/*
 * ---- (b) PP=4, 32 trainers, two engines of 16 ---------------------------------------------------
 */

Test(plan_golden, b__one_source_in_each_stage__the_same_for_both_engines)
{
	struct plan_rig rig = {0};
	uint32_t readers_of[32] = {0};
	char name[64];
	for (uint32_t rank = 0; rank < 32; rank++)
		for (uint32_t layer = rank / 8 * 2; layer < rank / 8 * 2 + 2; layer++)
			plan_rig_publish(&rig, rank, name_of(name, layer, "q_proj", -1), RIG_BF16,
				2, DIMS({HIDDEN, 0, HIDDEN}, {HIDDEN, 0, HIDDEN}));
	for (uint32_t reader = 0; reader < 16; reader++) {
		for (uint32_t layer = 0; layer < 8; layer++)
			plan_rig_want(&rig, name_of(name, layer, "q_proj", -1), RIG_BF16, 2,
				DIMS(plan_chunk(HIDDEN, 16, reader), {HIDDEN, 0, HIDDEN}));
		struct plan *plan = plan_as(&rig, reader, 16);
		cr_assert_eq(plan->num_sources, 4);
		for (uint32_t stage = 0; stage < 4; stage++) {
			cr_assert_eq(plan->sources[stage].shard, stage * 8 + reader % 8);
			readers_of[plan->sources[stage].shard]++;
		}
		/* The second engine has the same rows, indices and numbers. */
		struct plan *second = plan_as(&rig, reader, 16);
		cr_assert_eq(second->num_pieces, plan->num_pieces);
		cr_assert_arr_eq(
			second->pieces, plan->pieces, plan->num_pieces * sizeof(plan->pieces[0]));
		plan_free(second);
		plan_free(plan);
		plan_rig_clear_view(&rig);
	}
	for (uint32_t rank = 0; rank < 32; rank++)
		cr_assert_eq(readers_of[rank], 2);
	plan_rig_free(&rig);
}

/*
 * ---- (c) renames and fusion ---------------------------------------------------------------------
 */

/*
 * experts.3.down_proj of FSDP-4 is the fourth of w2_weight [experts, hidden, width / 2], by
 * columns.
 */
Test(plan_golden, c__experts_down_proj_into_w2_weight)
{
	struct plan_rig rig = {0};
	char name[64];
	for (uint32_t rank = 0; rank < 4; rank++)
		for (int e = 0; e < 5; e++)
			plan_rig_publish(&rig, rank, name_of(name, 0, "down_proj", e), RIG_BF16, 2,
				DIMS(plan_chunk(10, 4, rank), {32, 0, 32}));
	for (int e = 0; e < 5; e++)
		plan_rig_want(&rig, name_of(name, 0, "down_proj", e), RIG_BF16, 2,
			DIMS({10, 0, 10}, {32, 16, 16}));
	struct plan *plan = plan_as(&rig, 1, 2);
	static const uint64_t rows[] = {3, 3, 3, 1};
	for (uint32_t i = 0; i < 4; i++) {
		const struct plan_piece *piece = &plan->pieces[plan->first[3] + i];
		cr_assert_eq(piece->shard, i);
		cr_assert_eq(piece->source_row, 3);
		cr_assert_eq(piece->source_at, 32);
		cr_assert_eq(piece->at, 3 * i * 32);
		cr_assert_eq(piece->run, 32);
		cr_assert_eq(piece->runs, rows[i]);
	}
	plan_free(plan);
	plan_rig_free(&rig);
}

/* 8 heads of 4 in 2 groups; the reader's fused tensor has of each group its q, then k, then v. */
Test(plan_golden, c__grouped_heads_into_qkv__several_rows_of_one_name)
{
	enum { HEAD = 4, WIDTH = 8, GROUPS = 2, QUERIES = 4 };
	struct plan_rig rig = {0};
	for (uint32_t rank = 0; rank < 2; rank++) {
		plan_rig_publish(&rig, rank, "q_proj", RIG_BF16, 2,
			DIMS(plan_chunk(GROUPS * QUERIES * HEAD, 2, rank), {WIDTH, 0, WIDTH}));
		plan_rig_publish(&rig, rank, "k_proj", RIG_BF16, 2,
			DIMS(plan_chunk(GROUPS * HEAD, 2, rank), {WIDTH, 0, WIDTH}));
		plan_rig_publish(&rig, rank, "v_proj", RIG_BF16, 2,
			DIMS(plan_chunk(GROUPS * HEAD, 2, rank), {WIDTH, 0, WIDTH}));
	}
	for (uint64_t group = 0; group < GROUPS; group++) {
		plan_rig_want(&rig, "q_proj", RIG_BF16, 2,
			DIMS({GROUPS * QUERIES * HEAD, group * QUERIES * HEAD, QUERIES * HEAD},
				{WIDTH, 0, WIDTH}));
		plan_rig_want(&rig, "k_proj", RIG_BF16, 2,
			DIMS({GROUPS * HEAD, group * HEAD, HEAD}, {WIDTH, 0, WIDTH}));
		plan_rig_want(&rig, "v_proj", RIG_BF16, 2,
			DIMS({GROUPS * HEAD, group * HEAD, HEAD}, {WIDTH, 0, WIDTH}));
	}
	struct plan *plan = plan_as(&rig, 0, 1);
	cr_assert_eq(plan->num_pieces, 6);
	for (uint32_t i = 0; i < 6; i++) {
		cr_assert_eq(plan->pieces[i].row, i);
		cr_assert_eq(plan->pieces[i].shard, i / 3);
		cr_assert_eq(plan->pieces[i].source_row, i % 3);
		cr_assert_eq(plan->pieces[i].at, 0);
		cr_assert_eq(plan->pieces[i].run, (i % 3 ? 1 : QUERIES) * HEAD * WIDTH * 2);
	}
	plan_free(plan);
	plan_rig_free(&rig);
}

/*
 * ---- (d) the table ------------------------------------------------------------------------------
 * A rank is (stage, data parallel, context parallel, tensor parallel), the last first. Experts
 * belong to the rank of a stage by its number mod EP, and each is whole there.
 */

struct config {
	const char *model;
	uint32_t ranks, tp, pp, cp, ep; /* training */
	uint32_t readers, reader_ep;    /* inference: TP is all readers */
	bool moe;
};

static const struct config configs[] = {
	{"GLM-Z1-9B-0414", 8, 2, 1, 2, 1, 4, 1, false},
	{"Moonlight-16B-A3B", 8, 2, 1, 1, 8, 8, 8, true},
	{"GLM-4.7-9B-Flash", 8, 4, 1, 1, 8, 4, 4, true},
	{"Qwen3-30B-A3B", 16, 4, 1, 1, 8, 8, 8, true},
	{"GLM-4.5-Air", 32, 1, 4, 1, 8, 8, 8, true},
	{"Qwen3-235B-A22B", 64, 4, 4, 2, 16, 32, 32, true},
	{"GLM-5", 128, 4, 8, 2, 16, 64, 64, true},
	{"Kimi-K2-fp8", 256, 8, 8, 4, 32, 32, 32, true},
};

#define D_LAYERS 16
#define D_EXPERTS 64

/* Columns, rows, and neither: the three ways to be parallel over tensors. */
static void
publish_d(struct plan_rig *rig, const struct config *config)
{
	char name[64];
	uint32_t stage_ranks = config->ranks / config->pp, layers = D_LAYERS / config->pp;
	for (uint32_t rank = 0; rank < config->ranks; rank++) {
		uint32_t stage = rank / stage_ranks, tp = rank % config->tp;
		uint32_t ep = rank % stage_ranks % config->ep;
		for (uint32_t layer = stage * layers; layer < (stage + 1) * layers; layer++) {
			plan_rig_publish(rig, rank, name_of(name, layer, "q_proj", -1), RIG_BF16, 2,
				DIMS(plan_chunk(HIDDEN, config->tp, tp), {HIDDEN, 0, HIDDEN}));
			plan_rig_publish(rig, rank, name_of(name, layer, "o_proj", -1), RIG_BF16, 2,
				DIMS({HIDDEN, 0, HIDDEN}, plan_chunk(HIDDEN, config->tp, tp)));
			plan_rig_publish(rig, rank, name_of(name, layer, "norm", -1), RIG_BF16, 1,
				DIMS({HIDDEN, 0, HIDDEN}));
			for (uint32_t e = 0; e < D_EXPERTS && config->moe; e++)
				if (e * config->ep / D_EXPERTS == ep)
					plan_rig_publish(rig, rank,
						name_of(name, layer, "down_proj", (int)e), RIG_BF16,
						2, DIMS({8, 0, 8}, {8, 0, 8}));
		}
	}
}

static void
want_d(struct plan_rig *rig, const struct config *config, uint32_t reader)
{
	char name[64];
	for (uint32_t layer = 0; layer < D_LAYERS; layer++) {
		plan_rig_want(rig, name_of(name, layer, "q_proj", -1), RIG_BF16, 2,
			DIMS(plan_chunk(HIDDEN, config->readers, reader), {HIDDEN, 0, HIDDEN}));
		plan_rig_want(rig, name_of(name, layer, "o_proj", -1), RIG_BF16, 2,
			DIMS({HIDDEN, 0, HIDDEN}, plan_chunk(HIDDEN, config->readers, reader)));
		plan_rig_want(rig, name_of(name, layer, "norm", -1), RIG_BF16, 1,
			DIMS({HIDDEN, 0, HIDDEN}));
		for (uint32_t e = 0; e < D_EXPERTS && config->moe; e++)
			if (e * config->reader_ep / D_EXPERTS == reader % config->reader_ep)
				plan_rig_want(rig, name_of(name, layer, "down_proj", (int)e),
					RIG_BF16, 2, DIMS({8, 0, 8}, {8, 0, 8}));
	}
}

/* Bytes into each reader are its own, and every trainer sends. */
Test(plan_golden, d__table__own_bytes_only_and_all_sources)
{
	for (size_t c = 0; c < TH_ARRAY_LEN(configs); c++) {
		const struct config *config = &configs[c];
		struct plan_rig rig = {0};
		uint64_t sent[PLAN_RIG_SHARDS] = {0}, most = 0, all = 0;
		uint32_t idle = 0;
		publish_d(&rig, config);
		for (uint32_t reader = 0; reader < config->readers; reader++) {
			want_d(&rig, config, reader);
			struct plan *plan = plan_as(&rig, reader, config->readers);
			for (uint32_t i = 0; i < plan->num_sources; i++)
				sent[plan->sources[i].shard] += plan->sources[i].bytes;
			plan_free(plan);
			plan_rig_clear_view(&rig);
		}
		for (uint32_t rank = 0; rank < config->ranks; rank++) {
			most = th_max_u64(most, sent[rank]);
			all += sent[rank];
			idle += sent[rank] == 0;
		}
		cr_assert_eq(idle, 0, "%s: %u of %u idle", config->model, idle, config->ranks);
		/* Where two owners have what one reader alone wants, one of them has all of it. */
		cr_assert_leq(most * config->ranks, 2 * all, "%s", config->model);
		plan_rig_free(&rig);
	}
}
