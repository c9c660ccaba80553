/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_stress - workers come and go, read, write, copy and hash on two GPUs by many threads, while
 * the processes of both die again and again: each request is done, or says why not, and what was
 * done is right.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "tests/support/cuda/scripted_gpu.h"
#include "tests/support/rng.h"
#include "transport/hash/digest.h"

#define MIB ((uint64_t)1 << 20)
#define BASE UINT64_C(0x7f0000000000)
#define PATIENCE_NS INT64_C(60000000000)
#define WORKERS 4u
#define PIECES 4u
#define AREA_BYTES (4 * MIB) /* of one worker in the GPU's memory */
#define AT_ONCE 6u
#define BLOCKS (WORKERS * (AT_ONCE - 1) + 1) /* whoever waits has some: fewer, and all would */

static struct script *script;
static struct gpus *gpus;
static const uint8_t uuids[2][16] = {"the first GPU", "the second GPU"};
static unsigned num_done, num_failed; /* atomic */

struct worker {
	pthread_t thread;
	unsigned index, rounds;
	uint64_t at; /* in the GPU's memory */
};

struct task {
	struct gpu_request request;
	struct gpu_chunk chunks[GPU_RUN_CHUNKS_MAX];
	struct gpu_span to, from;
	pthread_mutex_t *lock;
	pthread_cond_t *changed;
	bool over;
};

static void
done(struct gpu_request *request)
{
	struct task *task = (struct task *)request;
	pthread_mutex_t *lock = task->lock;
	pthread_mutex_lock(lock);
	task->over = true;
	pthread_cond_broadcast(task->changed);
	pthread_mutex_unlock(lock);
}

struct grant {
	struct gpus_waiter waiter;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint8_t *data;
};

static void
granted(struct gpus_waiter *waiter, uint8_t *data)
{
	struct grant *grant = (struct grant *)waiter;
	pthread_mutex_lock(&grant->lock);
	grant->data = data;
	pthread_cond_signal(&grant->changed);
	pthread_mutex_unlock(&grant->lock);
}

static uint8_t *
take_block(void)
{
	struct grant grant = {.waiter = {.granted = granted},
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER};
	uint8_t *data = gpus_block_take(gpus, &grant.waiter);
	if (data)
		return data;
	pthread_mutex_lock(&grant.lock);
	while (!grant.data)
		pthread_cond_wait(&grant.changed, &grant.lock);
	pthread_mutex_unlock(&grant.lock);
	return grant.data;
}

static struct gpu_space *
join(const struct worker *worker, unsigned gpu)
{
	struct th_err err = {0};
	char label[32];
	snprintf(label, sizeof(label), "m/r/%u", worker->index);
	struct gpu_space *space = gpu_space_new(gpus, uuids[gpu], label, &err);
	TH_ASSERT(space);
	for (unsigned i = 0; i < PIECES; i++) {
		uint64_t bytes = AREA_BYTES / PIECES, at = worker->at + i * bytes;
		struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = bytes, .id = at};
		memcpy(handle.uuid, uuids[gpu], 16);
		TH_ASSERT(gpu_space_add(space, &handle, BASE + at, -1, NULL, &err) == 0);
	}
	return space;
}

/* Of any lengths, together as many bytes. */
static void
cut(struct task *task, struct th_rng *rng)
{
	uint32_t left = task->request.bytes, count = 0;
	uint32_t most = 1 + (uint32_t)th_rng_below(rng, GPU_RUN_CHUNKS_MAX);
	while (left > 0) {
		uint32_t bytes = 1 + (uint32_t)th_rng_below(rng, left);
		if (count + 1 == most)
			bytes = left;
		task->chunks[count++].bytes = bytes;
		left -= bytes;
	}
	task->request.chunks = task->chunks;
	task->request.num_chunks = count;
}

/* The lower half of the worker's memory is read, the upper one is written by whoever comes. */
static void
submit(const struct worker *worker, struct th_rng *rng, struct gpu_space *space, struct task *task)
{
	uint32_t bytes = 1 + (uint32_t)th_rng_below(rng, 100000);
	uint64_t from = worker->at + th_rng_below(rng, AREA_BYTES / 2 - bytes);
	uint64_t to = worker->at + AREA_BYTES / 2 + th_rng_below(rng, AREA_BYTES / 2 - bytes);
	task->from = (struct gpu_span){space, BASE + from, bytes};
	task->to = (struct gpu_span){space, BASE + to, bytes};
	task->over = false;
	task->request = (struct gpu_request){.op = (enum gpu_run_op)(1 + th_rng_below(rng, 4)),
		.bytes = bytes,
		.hashes = true,
		.done = done};
	if (task->request.op != GPU_WRITE) {
		task->request.from = &task->from;
		task->request.num_from = 1;
	}
	if (task->request.op == GPU_WRITE || task->request.op == GPU_COPY) {
		task->request.to = &task->to;
		task->request.num_to = 1;
	}
	if (task->request.op == GPU_READ || task->request.op == GPU_WRITE) {
		task->request.data = take_block();
		memset(task->request.data, (int)worker->index, bytes);
	} else if (th_rng_below(rng, 2) == 0) {
		cut(task, rng);
	}
	gpu_submit(&task->request);
}

static void
check(struct task *task)
{
	struct gpu_request *request = &task->request;
	const struct gpu_chunk whole = {.bytes = request->bytes, .digest = request->digest};
	const struct gpu_chunk *chunks = request->chunks ? request->chunks : &whole;
	if (request->code == 0) {
		__atomic_fetch_add(&num_done, 1, __ATOMIC_RELAXED);
		const uint8_t *data = request->op == GPU_WRITE
					      ? request->data
					      : script->memory + (task->from.address - BASE);
		for (uint32_t i = 0; i < (request->chunks ? request->num_chunks : 1); i++) {
			struct th_hash expected = digest_of(data, chunks[i].bytes);
			TH_ASSERT(expected.lo == chunks[i].digest.lo &&
				  expected.hi == chunks[i].digest.hi);
			data += chunks[i].bytes;
		}
		if (request->op == GPU_READ)
			TH_ASSERT(
				memcmp(request->data, script->memory + (task->from.address - BASE),
					request->bytes) == 0);
	} else {
		__atomic_fetch_add(&num_failed, 1, __ATOMIC_RELAXED);
		TH_ASSERT(request->code == TH_E_STALE_MEMORY && request->text[0]);
	}
	gpus_block_give(gpus, request->data);
}

static void
settled(void *arg, const struct th_err *result)
{
	(void)result;
	__atomic_fetch_add((unsigned *)arg, 1, __ATOMIC_RELAXED);
}

static unsigned num_settled; /* atomic */

static void
live(struct worker *worker, struct th_rng *rng)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
	struct task tasks[AT_ONCE];
	struct gpu_space *space = join(worker, (unsigned)th_rng_below(rng, 2));
	gpu_space_settle(space, settled, &num_settled);
	unsigned count = 1 + (unsigned)th_rng_below(rng, AT_ONCE);
	for (unsigned i = 0; i < count; i++) {
		tasks[i].lock = &lock;
		tasks[i].changed = &changed;
		submit(worker, rng, space, &tasks[i]);
	}
	for (unsigned i = 0; i < count; i++) {
		pthread_mutex_lock(&lock);
		while (!tasks[i].over)
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
		check(&tasks[i]);
	}
	gpu_space_release(space);
}

static void *
worker_main(void *arg)
{
	struct worker *worker = arg;
	struct th_rng rng;
	th_rng_init_number(&rng, worker->index);
	for (unsigned i = 0; i < worker->rounds; i++)
		live(worker, &rng);
	return NULL;
}

int
main(void)
{
	static struct worker workers[WORKERS];
	const char *is_long = getenv("TH_LONG");
	unsigned rounds = is_long && is_long[0] == '1' ? 5000 : 400;
	struct th_err err = {0};
	log_set_level(LOG_LEVEL_ERROR);
	script = script_new();
	script->dies_every = 61;
	for (size_t i = 0; i < SCRIPT_MEMORY_BYTES; i += 8)
		memcpy(script->memory + i, &i, 8);
	const struct gpus_config config = {.launch = script_launch,
		.arg = script,
		.staging_bytes = BLOCKS * GPUS_BLOCK_BYTES,
		.hang_ns = PATIENCE_NS,
		.leave_ns = PATIENCE_NS,
		.idle_ns = 1000000};
	TH_ASSERT(gpus_new(&config, &err, &gpus) == 0);
	for (unsigned i = 0; i < WORKERS; i++) {
		workers[i] = (struct worker){.index = i, .rounds = rounds, .at = i * AREA_BYTES};
		TH_ASSERT(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) == 0);
	}
	for (unsigned i = 0; i < WORKERS; i++)
		pthread_join(workers[i].thread, NULL);
	gpus_free(gpus);
	TH_ASSERT(num_settled == WORKERS * rounds);
	printf("%u requests done, %u failed, %u lives\n", num_done, num_failed, script->lives);
	TH_ASSERT(num_done > 10 * num_failed && script->lives > 10);
	script_free(script);
	return 0;
}
