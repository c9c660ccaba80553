/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_bench - how long a view is planned, and in how much memory: 2,000 tensors of 512 shards,
 * which are 1 M published rows, in the ways they are sharded and read.
 *
 * plan_bench [SHARDS [TENSORS [ROUNDS]]]
 *
 * Each line: the median, and the most and least, of ROUNDS; memory of the planner and of the plan.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/splitmix.h"
#include "ipc/plan/plan.h"

#define BF16 7u
#define NAME_BYTES 64
#define ROUNDS_MAX 64
#define WIDTH 4096u

enum sharding { ROWS, MESH, SHUFFLED, REPLICAS };
static const char *const shardings[] = {
	"by rows", "by a mesh of 2 dimensions", "by rows, ranks shuffled", "8 replicas by rows"};

enum reading { WHOLE, TP_ROWS, TP_COLUMNS };
static const char *const readings[] = {"whole tensors", "1/8 by rows", "1/8 by columns"};

struct world {
	uint32_t shards, tensors;
	char (*names)[NAME_BYTES]; /* in canonical order, shared by all shards */
	uint32_t *ranks;           /* shuffled */
	struct manifest_row *rows;
	struct plan_row *wants;
};

static void
cut(struct manifest_row *row, uint32_t dim, uint32_t parts, uint32_t part)
{
	uint64_t whole = row->global_shape[dim], step = (whole + parts - 1) / parts;
	row->offset[dim] = th_min_u64(whole, step * part);
	row->local_shape[dim] = th_min_u64(step, whole - row->offset[dim]);
}

static struct manifest_row
whole_row(const struct world *world, uint32_t tensor)
{
	return (struct manifest_row){.name = world->names[tensor],
		.dtype = BF16,
		.ndim = 2,
		.local_shape = {WIDTH, WIDTH},
		.global_shape = {WIDTH, WIDTH}};
}

static struct manifest
publish(struct world *world, enum sharding sharding, uint32_t shard)
{
	uint32_t side = 1;
	while (side * side * 2 <= world->shards)
		side *= 2;
	for (uint32_t i = 0; i < world->tensors; i++) {
		struct manifest_row *row = &world->rows[i];
		*row = whole_row(world, i);
		if (sharding == ROWS)
			cut(row, 0, world->shards, shard);
		else if (sharding == SHUFFLED)
			cut(row, 0, world->shards, world->ranks[shard]);
		else if (sharding == REPLICAS)
			cut(row, 0, th_max_u32(world->shards / 8, 1), shard / 8);
		else {
			cut(row, 0, world->shards / side, shard / side);
			cut(row, 1, side, shard % side);
		}
	}
	return (struct manifest){.rows = world->rows, .num_rows = world->tensors};
}

/* Returns nanoseconds of the planner alone; making the shards' rows is not counted. */
static int64_t
run(struct world *world, enum sharding sharding, enum reading reading, struct plan **ret_plan,
	uint64_t *ret_memory)
{
	struct planner *planner;
	struct th_err err;
	for (uint32_t i = 0; i < world->tensors; i++) {
		world->wants[i] = (struct plan_row){.form = whole_row(world, i)};
		if (reading != WHOLE)
			cut(&world->wants[i].form, reading == TP_COLUMNS, 8, 3);
	}
	struct plan_view view = {.rows = world->wants,
		.count = world->tensors,
		.shard = reading == WHOLE ? 0 : 3,
		.num_shards = reading == WHOLE ? 1 : 8};
	int64_t start = th_now_ns(), spent;
	TH_ASSERT(planner_new(&view, &err, &planner) == 0);
	spent = th_now_ns() - start;
	for (uint32_t shard = 0; shard < world->shards; shard++) {
		struct manifest manifest = publish(world, sharding, shard);
		start = th_now_ns();
		TH_ASSERT(planner_add(planner, &manifest, &err) == 0);
		spent += th_now_ns() - start;
	}
	start = th_now_ns();
	TH_ASSERT(planner_finish(planner, &err, ret_plan) == 0);
	spent += th_now_ns() - start;
	*ret_memory = planner_memory(planner);
	planner_free(planner);
	return spent;
}

static int
compare_times(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return x < y ? -1 : x > y;
}

static void
measure(struct world *world, enum sharding sharding, enum reading reading, uint32_t rounds)
{
	int64_t times[ROUNDS_MAX];
	struct plan *plan = NULL;
	uint64_t memory = 0, plan_bytes = 0;
	uint32_t pieces = 0;
	for (uint32_t i = 0; i < rounds; i++) {
		times[i] = run(world, sharding, reading, &plan, &memory);
		plan_bytes = plan_memory(plan);
		pieces = plan->num_pieces;
		TH_ASSERT(plan->bytes_in == plan->bytes_own);
		plan_free(plan);
	}
	qsort(times, rounds, sizeof(times[0]), compare_times);
	printf("%-26s %-15s %7.3f s (%.3f to %.3f)  %8" PRIu32
	       " pieces  %6.1f MiB, plan %6.1f MiB\n",
		shardings[sharding], readings[reading], (double)times[rounds / 2] / 1e9,
		(double)times[0] / 1e9, (double)times[rounds - 1] / 1e9, pieces,
		(double)memory / 0x1p20, (double)plan_bytes / 0x1p20);
}

static void
fill(struct world *world)
{
	uint64_t seed = 1;
	world->names = th_calloc(world->tensors, NAME_BYTES);
	world->rows = th_calloc(world->tensors, sizeof(world->rows[0]));
	world->wants = th_calloc(world->tensors, sizeof(world->wants[0]));
	world->ranks = th_calloc(world->shards, sizeof(world->ranks[0]));
	for (uint32_t i = 0; i < world->tensors; i++)
		snprintf(world->names[i], NAME_BYTES,
			"model.layers.%06" PRIu32 ".mlp.up_proj.weight", i);
	for (uint32_t i = 0; i < world->shards; i++) {
		uint32_t other = (uint32_t)(th_splitmix64(&seed) % (i + 1));
		world->ranks[i] = world->ranks[other];
		world->ranks[other] = i;
	}
}

int
main(int argc, char **argv)
{
	struct world world = {.shards = argc > 1 ? (uint32_t)atoi(argv[1]) : 512,
		.tensors = argc > 2 ? (uint32_t)atoi(argv[2]) : 2000};
	uint32_t rounds = argc > 3 ? (uint32_t)atoi(argv[3]) : 5;
	if (world.shards == 0 || world.shards > TH_SHARDS_MAX || world.tensors == 0 ||
		rounds == 0 || rounds > ROUNDS_MAX) {
		fputs("plan_bench [SHARDS [TENSORS [ROUNDS]]]\n", stderr);
		return 2;
	}
	fill(&world);
	printf("%" PRIu32 " published rows, %" PRIu32 " rounds\n", world.shards * world.tensors,
		rounds);
	for (int sharding = ROWS; sharding <= REPLICAS; sharding++)
		for (int reading = WHOLE; reading <= TP_COLUMNS; reading++)
			measure(&world, (enum sharding)sharding, (enum reading)reading, rounds);
	free(world.names);
	free(world.rows);
	free(world.wants);
	free(world.ranks);
	return 0;
}
