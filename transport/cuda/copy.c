/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy - the lanes on which a GPU's process moves and hashes bytes.
 */
#include "transport/cuda/copy.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "transport/digest.h"

#define KINDS (GPU_HASH + 1u) /* by enum gpu_run_op */
#define LANES_OF_KIND 2u
#define BATCHES_MAX 3u /* of a lane, under way: one that is being woken for, and two behind it */
#define BATCH_RUNS_MAX 16u
#define BATCH_BYTES_MAX (2u << 20) /* more runs are not taken: who asked for the first one waits */
#define BATCH_RANGES_MAX GPU_RANGES_MAX /* what a batch of digests has room for at least */

struct batch {
	CUevent event;
	struct copy_run *runs; /* own, until done */
	uint8_t *scratch;      /* owns; pinned where the driver does; of CHUNK_BYTES_MAX, or NULL */
	struct gpu_hash_batch *hashes; /* owns; all batches of a lane have one, or none has */
	bool hashed;                   /* some of the runs, by the GPU */
	CUresult result;               /* of asking for the event */
};

struct lane {
	struct copies *copies;
	struct kind *kind;
	CUstream stream;
	struct batch batches[BATCHES_MAX]; /* a ring */
	unsigned oldest, num_batches;
	CUresult broken; /* it has no stream */
	bool hashes;     /* has what it takes to hash on the GPU */
};

struct kind {
	enum gpu_run_op op;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct copy_run *first, **last; /* that no lane has taken */
	unsigned idle;                  /* lanes that wait for more */
	struct lane lanes[LANES_OF_KIND];
	unsigned num_lanes;
};

struct copies {
	struct copies_config config;
	struct kind kinds[KINDS];
};

static void
fail(const struct copies *copies, struct copy_run *run, const char *call, CUresult result)
{
	if (run->code != 0)
		return;
	run->code = -EIO;
	snprintf(run->text, sizeof(run->text), "a copy of GPU memory failed: %s says %s", call,
		cuda_result_name(copies->config.cuda, result));
}

/* ---- asking --------------------------------------------------------------------------------- */

/* Between the spans, one behind the other, and host memory. */
static void
ask_host(struct lane *lane, struct copy_run *run, bool to_host, const struct copy_span *spans,
	uint32_t count, uint8_t *data)
{
	const struct cuda *cuda = lane->copies->config.cuda;
	for (uint32_t i = 0; i < count; i++) {
		CUresult result = to_host ? cuda->cuMemcpyDtoHAsync(data, spans[i].address,
						    spans[i].bytes, lane->stream)
					  : cuda->cuMemcpyHtoDAsync(spans[i].address, data,
						    spans[i].bytes, lane->stream);
		if (result != CUDA_SUCCESS) {
			fail(lane->copies, run, to_host ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync",
				result);
			return;
		}
		data += spans[i].bytes;
	}
}

/* The address of a peer's memory is as good as one of our own: it was opened for this GPU. */
static void
ask_copy(struct lane *lane, struct copy_run *run)
{
	const struct copy_span *to = run->to, *from = run->from;
	uint64_t to_at = 0, from_at = 0, left = run->bytes;
	while (left > 0) {
		uint64_t part = to->bytes - to_at, other = from->bytes - from_at;
		part = part < other ? part : other;
		CUresult result = lane->copies->config.cuda->cuMemcpyDtoDAsync(
			to->address + to_at, from->address + from_at, part, lane->stream);
		if (result != CUDA_SUCCESS) {
			fail(lane->copies, run, "cuMemcpyDtoDAsync", result);
			return;
		}
		left -= part;
		to_at += part;
		from_at += part;
		if (to_at == to->bytes) {
			to++;
			to_at = 0;
		}
		if (from_at == from->bytes) {
			from++;
			from_at = 0;
		}
	}
}

/* Each batch has one run that needs it at most. */
static uint8_t *
scratch_of(const struct lane *lane, struct batch *batch)
{
	if (batch->scratch)
		return batch->scratch;
	void *data = mmap(
		NULL, CHUNK_BYTES_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED)
		return NULL;
	madvise(data, CHUNK_BYTES_MAX, MADV_DONTDUMP);
	/* Not pinned is slow, and right. */
	lane->copies->config.cuda->cuMemHostRegister(
		data, CHUNK_BYTES_MAX, CU_MEMHOSTREGISTER_PORTABLE);
	batch->scratch = data;
	return data;
}

static bool
is_hashed_by_gpu(const struct lane *lane, const struct copy_run *run)
{
	return run->hashes && lane->hashes && run->op != GPU_READ;
}

static bool
needs_scratch(const struct lane *lane, const struct copy_run *run)
{
	return run->hashes && !is_hashed_by_gpu(lane, run) &&
	       (run->op == GPU_COPY || run->op == GPU_HASH);
}

/* A copy is made by the launch, too. */
static void
add_hash(struct batch *batch, struct copy_run *run)
{
	int number = -1;
	if (run->op == GPU_COPY)
		number = gpu_hash_add_copy(
			batch->hashes, run->to, run->num_to, run->from, run->num_from);
	else if (run->op == GPU_WRITE)
		number = gpu_hash_add(batch->hashes, run->to, run->num_to);
	else
		number = gpu_hash_add(batch->hashes, run->from, run->num_from);
	TH_ASSERT(number >= 0); /* take leaves what has no room */
	run->hash = (uint32_t)number;
	batch->hashed = true;
}

static void
launch_hashes(struct lane *lane, struct batch *batch)
{
	struct th_err err = {0};
	if (!batch->hashed || gpu_hash_launch(batch->hashes, lane->stream, &err) == 0)
		return;
	for (struct copy_run *run = batch->runs; run; run = run->next) {
		if (!is_hashed_by_gpu(lane, run) || run->code != 0)
			continue;
		run->code = -EIO;
		snprintf(
			run->text, sizeof(run->text), "%.*s", (int)sizeof(run->text) - 1, err.text);
	}
}

static void
ask(struct lane *lane, struct batch *batch, struct copy_run *run)
{
	if (lane->broken != CUDA_SUCCESS) {
		fail(lane->copies, run, "cuStreamCreate", lane->broken);
		run->lost = true; /* nothing is asked, but nothing will ever work */
		return;
	}
	if (run->op == GPU_READ)
		ask_host(lane, run, true, run->from, run->num_from, run->data);
	else if (run->op == GPU_WRITE)
		ask_host(lane, run, false, run->to, run->num_to, run->data);
	else if (run->op == GPU_COPY && !is_hashed_by_gpu(lane, run))
		ask_copy(lane, run);
	if (is_hashed_by_gpu(lane, run) && run->code == 0)
		add_hash(batch, run);
	if (!needs_scratch(lane, run) || run->code != 0)
		return;
	uint8_t *scratch = scratch_of(lane, batch);
	if (!scratch) {
		run->code = -EIO;
		snprintf(run->text, sizeof(run->text),
			"the process of a GPU has no memory to hash in");
	} else if (run->op == GPU_COPY) { /* what has arrived, not what was sent */
		ask_host(lane, run, true, run->to, run->num_to, scratch);
	} else {
		ask_host(lane, run, true, run->from, run->num_from, scratch);
	}
}

static void
ask_all(struct lane *lane, struct copy_run *runs)
{
	const struct cuda *cuda = lane->copies->config.cuda;
	struct batch *batch = &lane->batches[(lane->oldest + lane->num_batches++) % BATCHES_MAX];
	batch->runs = runs;
	batch->result = CUDA_SUCCESS;
	batch->hashed = false;
	if (lane->hashes)
		gpu_hash_begin(batch->hashes);
	for (struct copy_run *run = runs; run; run = run->next)
		ask(lane, batch, run);
	launch_hashes(lane, batch);
	if (lane->broken == CUDA_SUCCESS)
		batch->result = cuda->cuEventRecord(batch->event, lane->stream);
}

/* ---- the end of it -------------------------------------------------------------------------- */

/* Some of a batch that was refused may be under way: also then it is waited for. */
static CUresult
wait_for(struct lane *lane, const struct batch *batch, const char **ret_call)
{
	const struct cuda *cuda = lane->copies->config.cuda;
	if (lane->broken != CUDA_SUCCESS)
		return CUDA_SUCCESS; /* nothing was asked */
	if (batch->result == CUDA_SUCCESS) {
		*ret_call = "cuEventSynchronize";
		return cuda->cuEventSynchronize(batch->event);
	}
	*ret_call = "cuStreamSynchronize";
	return cuda->cuStreamSynchronize(lane->stream);
}

static void
finish_oldest(struct lane *lane)
{
	struct batch *batch = &lane->batches[lane->oldest];
	const char *call = NULL;
	CUresult result = wait_for(lane, batch, &call);
	struct copy_run *run = batch->runs, *next;
	for (; run; run = next) {
		next = run->next; /* it is not ours any more when it is done */
		if (result != CUDA_SUCCESS) {
			fail(lane->copies, run, call, result);
			run->lost = true;
		}
		if (run->code == 0 && is_hashed_by_gpu(lane, run))
			run->digest = gpu_hash_value(batch->hashes, run->hash);
		else if (run->code == 0 && run->hashes)
			run->digest = digest_of(
				needs_scratch(lane, run) ? batch->scratch : run->data, run->bytes);
		lane->copies->config.done(lane->copies->config.arg, run);
	}
	lane->oldest = (lane->oldest + 1) % BATCHES_MAX;
	lane->num_batches--;
}

/* ---- a lane --------------------------------------------------------------------------------- */

/* Without it the CPU hashes. */
static void
open_hashes(struct lane *lane)
{
	struct gpu_hash *hash = lane->copies->config.hash;
	struct th_err why;
	lane->hashes = hash && lane->kind->op != GPU_READ;
	for (unsigned i = 0; i < BATCHES_MAX && lane->hashes; i++)
		lane->hashes = gpu_hash_batch_new(
				       hash, BATCH_RUNS_MAX, &lane->batches[i].hashes, &why) == 0;
	for (unsigned i = 0; i < BATCHES_MAX && !lane->hashes; i++) {
		gpu_hash_batch_free(lane->batches[i].hashes);
		lane->batches[i].hashes = NULL;
	}
}

static CUresult
open_lane(struct lane *lane)
{
	const struct cuda *cuda = lane->copies->config.cuda;
	int least = 0, greatest = 0;
	CUresult result = cuda->cuCtxSetCurrent(lane->copies->config.context);
	if (result == CUDA_SUCCESS)
		result = cuda->cuCtxGetStreamPriorityRange(&least, &greatest);
	if (result == CUDA_SUCCESS)
		result = cuda->cuStreamCreateWithPriority(
			&lane->stream, CU_STREAM_NON_BLOCKING, least);
	for (unsigned i = 0; i < BATCHES_MAX && result == CUDA_SUCCESS; i++)
		result = cuda->cuEventCreate(
			&lane->batches[i].event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	if (result == CUDA_SUCCESS)
		open_hashes(lane);
	return result;
}

/* Others would wait for the CPU. */
static bool
goes_alone(const struct lane *lane, const struct copy_run *run)
{
	return run->hashes && !is_hashed_by_gpu(lane, run);
}

/* The first that wait, as many as go together. With the lock; there is one. */
static struct copy_run *
take(struct lane *lane)
{
	struct kind *kind = lane->kind;
	struct copy_run *runs = kind->first, *last = runs, *next;
	uint64_t bytes = runs->bytes;
	uint32_t ranges = runs->num_to + runs->num_from;
	unsigned count = 1;
	while ((next = last->next) != NULL && count < BATCH_RUNS_MAX && !goes_alone(lane, runs) &&
		!goes_alone(lane, next)) {
		bytes += next->bytes;
		ranges += next->num_to + next->num_from;
		/* One launch for many chunks is as fast as memory; for one it mostly waits. */
		if ((bytes > BATCH_BYTES_MAX && !is_hashed_by_gpu(lane, next)) ||
			ranges > BATCH_RANGES_MAX)
			break;
		last = next;
		count++;
	}
	kind->first = last->next;
	if (!kind->first)
		kind->last = &kind->first;
	last->next = NULL;
	return runs;
}

static void *
run_lane(void *arg)
{
	struct lane *lane = arg;
	struct kind *kind = lane->kind;
	lane->broken = open_lane(lane);
	pthread_mutex_lock(&kind->lock);
	for (;;) {
		while (!kind->first && lane->num_batches == 0) {
			kind->idle++;
			pthread_cond_wait(&kind->more, &kind->lock);
			kind->idle--;
		}
		struct copy_run *runs = NULL;
		if (kind->first && lane->num_batches < BATCHES_MAX)
			runs = take(lane);
		pthread_mutex_unlock(&kind->lock);
		if (runs)
			ask_all(lane, runs);
		else
			finish_oldest(lane);
		pthread_mutex_lock(&kind->lock);
	}
	return NULL;
}

/* With the lock. The first lane of a kind is needed; without the others it is slower. */
static int
add_lane(struct copies *copies, struct kind *kind)
{
	struct lane *lane = &kind->lanes[kind->num_lanes];
	sigset_t all, before;
	lane->copies = copies;
	lane->kind = kind;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_t thread;
	int rc = pthread_create(&thread, NULL, run_lane, lane);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc == 0)
		kind->num_lanes++;
	return -rc;
}

/* ---- outside -------------------------------------------------------------------------------- */

struct copies *
copies_new(const struct copies_config *config)
{
	struct copies *copies = th_calloc(1, sizeof(*copies));
	copies->config = *config;
	for (unsigned i = 0; i < KINDS; i++) {
		struct kind *kind = &copies->kinds[i];
		kind->op = (enum gpu_run_op)i;
		kind->last = &kind->first;
		pthread_mutex_init(&kind->lock, NULL);
		pthread_cond_init(&kind->more, NULL);
	}
	return copies;
}

void
copies_add(struct copies *copies, struct copy_run *run)
{
	struct kind *kind = &copies->kinds[run->op];
	int rc = 0;
	pthread_mutex_lock(&kind->lock);
	/* Streams cost memory of the GPU: a lane begins when the others have work. */
	if (kind->idle == 0 && kind->num_lanes < LANES_OF_KIND)
		rc = add_lane(copies, kind);
	if (kind->num_lanes == 0) {
		pthread_mutex_unlock(&kind->lock);
		run->code = -EIO;
		snprintf(run->text, sizeof(run->text),
			"the process of a GPU has no thread for its copies: %s", strerror(-rc));
		copies->config.done(copies->config.arg, run);
		return;
	}
	run->next = NULL;
	*kind->last = run;
	kind->last = &run->next;
	pthread_cond_signal(&kind->more);
	pthread_mutex_unlock(&kind->lock);
}
