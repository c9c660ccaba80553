/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer - the loop of a trainer: train, publish, let the rollouts read, take it back.
 *
 *     trainer SHARD NUM_SHARDS STEPS
 *
 * One process a shard: together they are one model-parallel group, which publishes as one. Each
 * holds its share of the rows of one matrix. A line on stdin ends a step; until then the weights
 * must not change, which is what publishing them promised. The other side is rollout.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <thc.h>

#define ROWS 4096u
#define COLUMNS 512u
#define TIMEOUT_MS 60000

static void
trainer_check(int rc)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "trainer: %s\n", thc_errmsg());
	exit(EXIT_FAILURE); /* the agent gives up what this process held */
}

/* Stands for the optimizer: every weight of a step has the same value. */
static void
train(float *weights, size_t count, uint64_t step)
{
	for (size_t i = 0; i < count; i++)
		weights[i] = (float)step;
}

int
main(int argc, char **argv)
{
	struct thc_open_opts opts = THC_OPEN_OPTS_INIT;
	struct thc_shard *shard;
	void *weights;

	if (argc != 4) {
		fprintf(stderr, "usage: trainer SHARD NUM_SHARDS STEPS\n");
		return 2;
	}
	opts.model = "example";
	opts.replica = "trainer";
	opts.shard = (uint32_t)strtoul(argv[1], NULL, 10);
	opts.num_shards = (uint32_t)strtoul(argv[2], NULL, 10);
	uint64_t steps = strtoull(argv[3], NULL, 10);
	if (opts.num_shards == 0 || ROWS % opts.num_shards != 0) {
		fprintf(stderr, "trainer: NUM_SHARDS must divide %u\n", ROWS);
		return 2;
	}
	uint64_t rows = ROWS / opts.num_shards;
	uint64_t bytes = rows * COLUMNS * sizeof(float);
	trainer_check(thc_alloc(bytes, 0, &weights));
	trainer_check(thc_open(&opts, TIMEOUT_MS, &shard));
	struct thc_tensor tensor = {
		.name = "layer.0.weight",
		.data = weights,
		.bytes = bytes,
		.dtype = THC_F32,
		.device = THC_HOST,
		.ndim = 2,
		.local_shape = {rows, COLUMNS},
		.global_shape = {ROWS, COLUMNS},
		.offset = {opts.shard * rows, 0},
	};
	trainer_check(thc_register(shard, &tensor, 1, sizeof(tensor), TIMEOUT_MS));
	for (uint64_t step = 1; step <= steps; step++) {
		train(weights, bytes / sizeof(float), step);
		trainer_check(thc_publish(shard, step, TIMEOUT_MS));
		printf("published %" PRIu64 "\n", step);
		fflush(stdout);
		/* Here the rollouts work, or this worker itself in a co-located set-up. */
		int c;
		while ((c = getchar()) != '\n' && c != EOF)
			;
		/* Returns when nobody reads any more: the next line may overwrite every byte. */
		trainer_check(thc_unpublish(shard, 0, THC_FOREVER));
	}
	trainer_check(thc_close(shard, 0, TIMEOUT_MS));
	trainer_check(thc_free(weights));
	return EXIT_SUCCESS;
}
