/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_run_bench - what each chunk costs that a GPU copies for the agent, beyond the copy itself:
 * us a chunk, by how many chunks a request has; the best of some rounds.
 *
 *   [TH_GPU_HARDWARE=1] build/tests/bench/gpu_run_bench [CHUNKS]
 *
 * But for hardware the GPUs are files, and chunks so small that their bytes cost nothing: what is
 * left is what the agent and the GPU's process say to each other, and calls of a driver that do
 * nothing. As many requests are under way as block_copy_gpu.c has, and each that is done is asked
 * for again at once. Prints one object of JSON.
 */
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/units.h"
#include "tests/support/gpu/rig_gpus.h"

#define AT_ONCE 8u
#define CHUNK 4096u
#define ROUNDS 20u

static struct gpu_space *spaces[2];
static struct gpu_span to, from;
static uint64_t left; /* atomic: requests to ask for */
static sem_t over;

static void
ask(struct gpu_request *request)
{
	if ((int64_t)__atomic_fetch_sub(&left, 1, __ATOMIC_RELAXED) <= 0)
		sem_post(&over);
	else
		gpu_submit(request);
}

static void
done(struct gpu_request *request)
{
	TH_ASSERT(request->code == 0);
	ask(request);
}

static double
us_a_chunk(uint64_t count, uint32_t of_request, bool hashes)
{
	static struct gpu_request requests[AT_ONCE];
	static struct gpu_chunk chunks[AT_ONCE][GPU_RUN_CHUNKS_MAX];
	uint64_t num_requests = count / of_request + 1;
	__atomic_store_n(&left, num_requests, __ATOMIC_RELAXED);
	to.bytes = from.bytes = of_request * CHUNK;
	int64_t begin_ns = th_now_ns();
	for (unsigned i = 0; i < AT_ONCE; i++) {
		for (unsigned c = 0; c < of_request; c++)
			chunks[i][c].bytes = CHUNK;
		requests[i] = (struct gpu_request){.op = GPU_COPY,
			.to = &to,
			.num_to = 1,
			.from = &from,
			.num_from = 1,
			.bytes = (uint32_t)from.bytes,
			.hashes = hashes,
			.chunks = chunks[i],
			.num_chunks = of_request,
			.done = done};
		ask(&requests[i]);
	}
	for (unsigned i = 0; i < AT_ONCE; i++)
		sem_wait(&over);
	return (double)(th_now_ns() - begin_ns) / 1e3 / (double)(num_requests * of_request);
}

static double
best(uint64_t chunks, uint32_t of_request, bool hashes)
{
	double least = 1e9;
	for (unsigned i = 0; i < ROUNDS; i++) {
		double now = us_a_chunk(chunks / ROUNDS, of_request, hashes);
		least = now < least ? now : least;
	}
	return least;
}

int
main(int argc, char **argv)
{
	uint64_t chunks = 100000;
	if (argc > 2 || (argc > 1 && th_parse_size(argv[1], &chunks) < 0) || chunks < 1) {
		fprintf(stderr, "usage: gpu_run_bench [CHUNKS]\n");
		return 2;
	}
	rig_gpus_init(GPUS_BLOCK_BYTES, false);
	struct rig_shard shards[2] = {0};
	for (unsigned i = 0; i < 2; i++) {
		shards[i].bytes = GPU_RUN_CHUNKS_MAX * CHUNK;
		shards[i].memory = rig_gpus->allocate(shards[i].bytes, &shards[i].gpu);
		spaces[i] = rig_gpus->share(rig_gpus->gpus, &shards[i]);
	}
	from = (struct gpu_span){.space = spaces[0], .address = shards[0].gpu};
	to = (struct gpu_span){.space = spaces[1], .address = shards[1].gpu};
	sem_init(&over, 0, 0);
	us_a_chunk(AT_ONCE, 1, true);
	printf("{\"chunks\": %" PRIu64, chunks);
	for (uint32_t of_request = 1; of_request <= GPU_RUN_CHUNKS_MAX; of_request *= 2)
		printf(", \"copy_us_%u\": %.2f, \"copy_hashed_us_%u\": %.2f", of_request,
			best(chunks, of_request, false), of_request,
			best(chunks, of_request, true));
	printf("}\n");
	for (unsigned i = 0; i < 2; i++) {
		gpu_space_release(spaces[i]);
		rig_gpus->release(shards[i].memory, shards[i].bytes);
	}
	rig_gpus_fini();
	return 0;
}
