/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollout - the loop of a rollout worker: pull by update.
 *
 *     rollout REPLICA SHARD NUM_SHARDS LAST
 *
 * One process a shard; all shards of a replica see the same version in the same round. Between two
 * batches of inference it asks whether there is a newer version, and goes on with what it has when
 * there is none. It ends with version LAST. The other side is trainer.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <thc.h>

#define ROWS 4096u
#define COLUMNS 512u
#define TIMEOUT_MS 60000

static void
rollout_check(int rc)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "rollout: %s\n", thc_errmsg());
	exit(EXIT_FAILURE); /* the agent gives up what this process held */
}

/* Stands for a batch of inference: looks whether all weights are of this one version. */
static void
generate(const float *weights, size_t count, uint64_t version)
{
	for (size_t i = 0; i < count; i++) {
		if (weights[i] < (float)version || weights[i] > (float)version) {
			fprintf(stderr, "rollout: weight %zu is not of version %" PRIu64 "\n", i,
				version);
			exit(EXIT_FAILURE);
		}
	}
}

int
main(int argc, char **argv)
{
	struct thc_open_opts opts = THC_OPEN_OPTS_INIT;
	struct thc_result result = THC_RESULT_INIT;
	struct thc_shard *shard;
	void *weights;

	if (argc != 5) {
		fprintf(stderr, "usage: rollout REPLICA SHARD NUM_SHARDS LAST\n");
		return 2;
	}
	opts.model = "example";
	opts.replica = argv[1];
	opts.shard = (uint32_t)strtoul(argv[2], NULL, 10);
	opts.num_shards = (uint32_t)strtoul(argv[3], NULL, 10);
	uint64_t last = strtoull(argv[4], NULL, 10);
	if (opts.num_shards == 0 || ROWS % opts.num_shards != 0) {
		fprintf(stderr, "rollout: NUM_SHARDS must divide %u\n", ROWS);
		return 2;
	}
	uint64_t rows = ROWS / opts.num_shards;
	uint64_t bytes = rows * COLUMNS * sizeof(float);
	rollout_check(thc_alloc(bytes, 0, &weights));
	rollout_check(thc_open(&opts, TIMEOUT_MS, &shard));
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
	rollout_check(thc_register(shard, &tensor, 1, sizeof(tensor), TIMEOUT_MS));
	/* The first weights: waits until there are any. */
	rollout_check(thc_replicate(shard, "latest", THC_FOREVER, &result));
	for (;;) {
		if (result.updated) {
			printf("version %" PRIu64 " from %s by %s\n", result.version, result.source,
				result.transport);
			fflush(stdout);
		}
		generate(weights, bytes / sizeof(float), result.version);
		if (result.version >= last)
			break;
		/* Overwrites the weights only when there is a newer version to take. */
		rollout_check(thc_update(shard, "latest", TIMEOUT_MS, &result));
	}
	rollout_check(thc_close(shard, 0, TIMEOUT_MS));
	rollout_check(thc_free(weights));
	return EXIT_SUCCESS;
}
