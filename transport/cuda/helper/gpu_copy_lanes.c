/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_copy_lanes - the lanes on which a GPU's process moves and hashes bytes.
 */
#include "transport/cuda/helper/gpu_copy_lanes.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/log.h"
#include "transport/cuda/helper/gpu_move.h"
#include "transport/cuda/helper/module.h"
#include "transport/hash/digest.h"

#define KINDS (GPU_HASH + 1u) /* by enum gpu_run_op */
#define LANES_OF_KIND 2u
#define BATCHES_MAX 3u /* of a lane, under way: one that is being woken for, and two behind it */
#define BATCH_CHUNKS_MAX GPU_RUN_CHUNKS_MAX /* a full run is a batch: 64 MiB, some 50 us of HBM */
/* Over PCIe. More runs are not taken: who asked for the first one waits. */
#define BATCH_HOST_BYTES_MAX (2u << 20)
#define BATCH_RANGES_MAX GPU_RANGES_MAX /* what a batch of digests has room for at least */

struct batch {
	CUevent event;
	struct copy_run *runs; /* own, until done */
	uint8_t *scratch;      /* owns; pinned where the driver does; of CHUNK_BYTES_MAX, or NULL */
	CUdeviceptr scratch_on_gpu;      /* 0: no kernel reaches it */
	struct gpu_gather_batch *gather; /* owns; NULL until it is needed */
	struct gpu_hash_batch *hashes;   /* owns; all batches of a lane have one, or none has */
	bool hashed;                     /* some of the runs, by the GPU */
	CUresult result;                 /* of asking for the event */
};

struct copy_lane {
	struct copies *copies;
	struct kind *kind;
	CUstream stream;
	struct batch batches[BATCHES_MAX]; /* a ring */
	unsigned oldest, num_batches;
	CUresult broken; /* it has no stream */
	const char *broken_call;
	bool hashes;                        /* has what it takes to hash on the GPU */
	struct th_err hashes_why;           /* why it has not, where the GPU could; else 0 */
	bool gathers;                       /* has what it takes to copy many ranges by a launch */
	struct gpu_gather_batch *gathering; /* asking: where small ranges go; NULL: nowhere */
	struct copy_span to[GPU_RANGES_MAX], from[GPU_RANGES_MAX]; /* of one chunk */
};

struct kind {
	enum gpu_run_op op;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct copy_run *first, **last; /* that no lane has taken */
	unsigned idle;                  /* lanes that wait for more */
	struct copy_lane lanes[LANES_OF_KIND];
	unsigned num_lanes;
};

struct copies {
	struct copies_config config;
	struct kind kinds[KINDS];
};

/* Once. */
static void
fail_with(struct copy_run *run, const char *text)
{
	if (run->code != 0)
		return;
	run->code = -EIO;
	snprintf(run->text, sizeof(run->text), "%.*s", (int)sizeof(run->text) - 1, text);
}

static void
gpu_copy_lanes_fail(
	const struct copies *copies, struct copy_run *run, const char *call, CUresult result)
{
	char text[GPU_TEXT_BYTES];
	snprintf(text, sizeof(text), "a copy of GPU memory failed: %s says %s", call,
		cuda_result_name(copies->config.cuda, result));
	fail_with(run, text);
}

/* ---- asking --------------------------------------------------------------------------------- */

static void
ask_move(struct copy_lane *lane, struct copy_run *run, const struct move *move)
{
	const char *call = "";
	CUresult result =
		move_ask(lane->copies->config.cuda, lane->stream, lane->gathering, move, &call);
	if (result != CUDA_SUCCESS)
		gpu_copy_lanes_fail(lane->copies, run, call, result);
}

/* What READ, WRITE and COPY are without their digest. */
static struct move
move_of(const struct copy_run *run)
{
	return (struct move){.op = run->op,
		.to = run->to,
		.from = run->from,
		.bytes = run->bytes,
		.data = run->data,
		.data_on_gpu = run->data_on_gpu};
}

struct copy_cursor { /* in the spans of one side */
	const struct copy_span *span;
	uint64_t at; /* in it */
};

/* The next bytes as spans of their own: how many. */
static uint32_t
take_spans(struct copy_cursor *cursor, uint64_t bytes, struct copy_span *ret_spans)
{
	uint32_t count = 0;
	while (bytes > 0) {
		const struct copy_span *span = cursor->span;
		uint64_t part = th_min_u64(bytes, span->bytes - cursor->at);
		ret_spans[count++] = (struct copy_span){span->address + cursor->at, part};
		bytes -= part;
		cursor->at += part;
		if (cursor->at == span->bytes)
			*cursor = (struct copy_cursor){.span = span + 1};
	}
	return count;
}

/* Each batch has one run that needs it at most. */
static uint8_t *
scratch_of(const struct copy_lane *lane, struct batch *batch)
{
	if (batch->scratch)
		return batch->scratch;
	void *data = mmap(
		NULL, CHUNK_BYTES_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED)
		return NULL;
	madvise(data, CHUNK_BYTES_MAX, MADV_DONTDUMP);
	/* Not pinned is slow, and right. */
	(void)gpu_pin(lane->copies->config.cuda, data, CHUNK_BYTES_MAX, &batch->scratch_on_gpu);
	batch->scratch = data;
	return data;
}

/*
 * By a kernel that has each byte in a register once (gpu_hash.h): it reaches all of it, by leaves.
 */
static bool
is_read_by_kernel(const struct copy_run *run)
{
	return run->data_on_gpu != 0 && run->num_from == 1 && run->bytes % DIGEST_LEAF_BYTES == 0 &&
	       (run->data_on_gpu | run->from[0].address) % 16 == 0;
}

static bool
is_hashed_by_gpu(const struct copy_lane *lane, const struct copy_run *run)
{
	return run->hashes && lane->hashes && (run->op != GPU_READ || is_read_by_kernel(run));
}

static bool
needs_scratch(const struct copy_lane *lane, const struct copy_run *run)
{
	return run->hashes && !is_hashed_by_gpu(lane, run) && run->op != GPU_READ;
}

/*
 * A chunk of it, to memory where the CPU hashes it: what has arrived, not what was sent. data NULL:
 * no memory.
 */
static struct move
read_back_of(
	struct copy_lane *lane, struct batch *batch, const struct copy_run *run, uint32_t chunk)
{
	uint8_t *scratch = scratch_of(lane, batch);
	struct copy_cursor cursor = {.span = run->op == GPU_HASH ? run->from : run->to};
	for (uint32_t i = 0; i <= chunk; i++)
		(void)take_spans(&cursor, run->chunk_bytes[i], lane->from);
	return (struct move){.op = GPU_READ,
		.from = lane->from,
		.bytes = run->chunk_bytes[chunk],
		.data = scratch,
		.data_on_gpu = batch->scratch_on_gpu};
}

/* The launch that hashes it makes it, or knows what it does not make. */
static bool
is_copied_by_hash(const struct copy_lane *lane, const struct copy_run *run)
{
	return (run->op == GPU_COPY || run->op == GPU_READ) && is_hashed_by_gpu(lane, run);
}

/* How many small ranges it is asked for by itself. */
static uint32_t
small_of(struct copy_lane *lane, struct batch *batch, const struct copy_run *run)
{
	if (is_copied_by_hash(lane, run) || (run->op == GPU_HASH && !needs_scratch(lane, run)))
		return 0;
	const struct move move =
		run->op == GPU_HASH ? read_back_of(lane, batch, run, 0) : move_of(run);
	return move_small(&move);
}

static int
add_hash(struct copy_lane *lane, struct batch *batch, uint32_t num_to, uint32_t num_from)
{
	if (num_to > 0 && num_from > 0)
		return gpu_hash_add_copy(batch->hashes, lane->to, num_to, lane->from, num_from);
	if (num_to > 0)
		return gpu_hash_add(batch->hashes, lane->to, num_to);
	return gpu_hash_add(batch->hashes, lane->from, num_from);
}

static void
add_hashes(struct copy_lane *lane, struct batch *batch, struct copy_run *run)
{
	const struct copy_span host = {run->data_on_gpu, run->bytes};
	struct copy_cursor to = {.span = run->op == GPU_READ ? &host : run->to};
	struct copy_cursor from = {.span = run->from};
	for (uint32_t i = 0; i < run->num_chunks; i++) {
		uint32_t num_to = 0, num_from = 0, bytes = run->chunk_bytes[i];
		if (run->op != GPU_HASH)
			num_to = take_spans(&to, bytes, lane->to);
		if (run->num_from > 0)
			num_from = take_spans(&from, bytes, lane->from);
		int number = add_hash(lane, batch, num_to, num_from);
		TH_ASSERT(number >= 0); /* take leaves what has no room */
		if (i == 0)
			run->hash = (uint32_t)number;
	}
	batch->hashed = true;
}

/* What the table has until now. */
static void
launch_gather(struct copy_lane *lane, struct batch *batch)
{
	struct th_err err = {0};
	if (!lane->gathering || gpu_gather_launch(lane->gathering, lane->stream, &err) == 0)
		return;
	for (struct copy_run *run = batch->runs; run; run = run->next)
		fail_with(run, err.text);
}

/* Small ranges of the batch go by a launch from here on, if they are many. */
static void
want_gather(struct copy_lane *lane, struct batch *batch, uint32_t small)
{
	struct th_err why;
	if (small < MOVE_SMALL_MIN || lane->gathering || !lane->gathers)
		return;
	if (!batch->gather)
		lane->gathers = gpu_gather_batch_new(
					lane->copies->config.gather, &batch->gather, &why) == 0;
	if (batch->gather)
		gpu_gather_begin(batch->gather);
	else
		log_warn("gpu", "small tensors are slower to copy why='%s'", why.text);
	lane->gathering = batch->gather;
}

static void
begin_gather(struct copy_lane *lane, struct batch *batch)
{
	uint32_t small = 0;
	for (const struct copy_run *run = batch->runs; run && lane->gathers; run = run->next)
		small += small_of(lane, batch, run);
	want_gather(lane, batch, small);
}

/* What the launch that hashes copies does not make of them. */
static void
ask_hash_moves(struct copy_lane *lane, struct batch *batch)
{
	const char *call = "";
	if (!batch->hashed)
		return;
	const struct move move = gpu_hash_moves(batch->hashes);
	want_gather(lane, batch, move_small(&move));
	CUresult result =
		move_ask(lane->copies->config.cuda, lane->stream, lane->gathering, &move, &call);
	for (struct copy_run *run = batch->runs; run && result != CUDA_SUCCESS; run = run->next)
		if (is_copied_by_hash(lane, run))
			gpu_copy_lanes_fail(lane->copies, run, call, result);
}

static void
launch_hashes(struct copy_lane *lane, struct batch *batch)
{
	struct th_err err = {0};
	if (!batch->hashed || gpu_hash_launch(batch->hashes, lane->stream, &err) == 0)
		return;
	for (struct copy_run *run = batch->runs; run; run = run->next)
		if (is_hashed_by_gpu(lane, run))
			fail_with(run, err.text);
}

static void
ask_read_back(struct copy_lane *lane, struct batch *batch, struct copy_run *run, uint32_t chunk)
{
	const struct move move = read_back_of(lane, batch, run, chunk);
	if (!move.data) {
		fail_with(run, "the process of a GPU has no memory to hash in");
		return;
	}
	launch_gather(lane, batch);
	if (run->code == 0)
		ask_move(lane, run, &move);
}

static void
gpu_copy_lanes_ask(struct copy_lane *lane, struct batch *batch, struct copy_run *run)
{
	if (lane->broken != CUDA_SUCCESS) {
		gpu_copy_lanes_fail(lane->copies, run, lane->broken_call, lane->broken);
		run->lost = true; /* nothing is asked, but nothing will ever work */
		return;
	}
	const struct move move = move_of(run);
	if (run->op != GPU_HASH && !is_copied_by_hash(lane, run))
		ask_move(lane, run, &move);
	if (is_hashed_by_gpu(lane, run) && run->code == 0)
		add_hashes(lane, batch, run);
	if (needs_scratch(lane, run) && run->code == 0)
		ask_read_back(lane, batch, run, 0);
}

static void
gpu_copy_lanes_ask_all(struct copy_lane *lane, struct copy_run *runs)
{
	const struct cuda *cuda = lane->copies->config.cuda;
	struct batch *batch = &lane->batches[(lane->oldest + lane->num_batches++) % BATCHES_MAX];
	batch->runs = runs;
	batch->result = CUDA_SUCCESS;
	batch->hashed = false;
	if (lane->hashes)
		gpu_hash_begin(batch->hashes);
	if (lane->broken == CUDA_SUCCESS)
		begin_gather(lane, batch);
	for (struct copy_run *run = runs; run; run = run->next)
		gpu_copy_lanes_ask(lane, batch, run);
	ask_hash_moves(lane, batch);
	launch_gather(lane, batch);
	lane->gathering = NULL;
	launch_hashes(lane, batch);
	if (lane->broken == CUDA_SUCCESS)
		batch->result = cuda->cuEventRecord(batch->event, lane->stream);
}

/* ---- the end of it -------------------------------------------------------------------------- */

/* Some of a batch that was refused may be under way: also then it is waited for. */
static CUresult
gpu_copy_lanes_wait_for(struct copy_lane *lane, const struct batch *batch, const char **ret_call)
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

/*
 * The first chunk of a run is where the CPU can hash it; others are fetched now. The agent asks for
 * one at a time where the GPU hashes nothing, so that only a lane without memory comes to that.
 */
static void
hash_here(struct copy_lane *lane, struct batch *batch, struct copy_run *run)
{
	const struct cuda *cuda = lane->copies->config.cuda;
	const uint8_t *data = needs_scratch(lane, run) ? batch->scratch : run->data;
	run->digests[0] = digest_of(data, run->chunk_bytes[0]);
	for (uint32_t i = 1; i < run->num_chunks && run->code == 0; i++) {
		ask_read_back(lane, batch, run, i);
		CUresult result = cuda->cuStreamSynchronize(lane->stream);
		if (result != CUDA_SUCCESS) {
			gpu_copy_lanes_fail(lane->copies, run, "cuStreamSynchronize", result);
			run->lost = true;
		}
		if (run->code == 0)
			run->digests[i] = digest_of(data, run->chunk_bytes[i]);
	}
}

/* What becomes of the bytes when nothing of the batch is under way any more. */
static void
hash_run(struct copy_lane *lane, struct batch *batch, struct copy_run *run)
{
	if (is_hashed_by_gpu(lane, run)) {
		for (uint32_t i = 0; i < run->num_chunks; i++)
			run->digests[i] = gpu_hash_value(batch->hashes, run->hash + i);
		return;
	}
	hash_here(lane, batch, run);
	if (run->code == 0 && lane->hashes_why.code != 0)
		snprintf(run->text, sizeof(run->text), "%.*s", (int)sizeof(run->text) - 1,
			lane->hashes_why.text);
}

static void
finish_oldest(struct copy_lane *lane)
{
	struct batch *batch = &lane->batches[lane->oldest];
	const char *call = NULL;
	CUresult result = gpu_copy_lanes_wait_for(lane, batch, &call);
	struct copy_run *run = batch->runs, *next;
	for (; run; run = next) {
		next = run->next; /* it is not ours any more when it is done */
		if (result != CUDA_SUCCESS) {
			gpu_copy_lanes_fail(lane->copies, run, call, result);
			run->lost = true;
		}
		if (run->code == 0 && run->hashes)
			hash_run(lane, batch, run);
		lane->copies->config.done(lane->copies->config.arg, run);
	}
	lane->oldest = (lane->oldest + 1) % BATCHES_MAX;
	lane->num_batches--;
}

/* ---- a lane --------------------------------------------------------------------------------- */

/* Without it the CPU hashes. */
static void
open_hashes(struct copy_lane *lane)
{
	struct gpu_hash *hash = lane->copies->config.hash;
	lane->hashes = hash != NULL;
	for (unsigned i = 0; i < BATCHES_MAX && lane->hashes; i++)
		lane->hashes = gpu_hash_batch_new(hash, BATCH_CHUNKS_MAX, &lane->batches[i].hashes,
				       &lane->hashes_why) == 0;
	for (unsigned i = 0; i < BATCHES_MAX && !lane->hashes; i++) {
		gpu_hash_batch_free(lane->batches[i].hashes);
		lane->batches[i].hashes = NULL;
	}
}

static CUresult
open_stream(struct copy_lane *lane, const char **ret_call)
{
	const struct cuda *cuda = lane->copies->config.cuda;
	int least = 0, greatest = 0;
	*ret_call = "cuCtxSetCurrent";
	CUresult result = cuda->cuCtxSetCurrent(lane->copies->config.context);
	if (result != CUDA_SUCCESS)
		return result;
	*ret_call = "cuCtxGetStreamPriorityRange";
	result = cuda->cuCtxGetStreamPriorityRange(&least, &greatest);
	if (result != CUDA_SUCCESS)
		return result;
	*ret_call = "cuStreamCreateWithPriority";
	result = cuda->cuStreamCreateWithPriority(&lane->stream, CU_STREAM_NON_BLOCKING, least);
	if (result != CUDA_SUCCESS)
		return result;
	*ret_call = "cuEventCreate";
	for (unsigned i = 0; i < BATCHES_MAX && result == CUDA_SUCCESS; i++)
		result = cuda->cuEventCreate(
			&lane->batches[i].event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	return result;
}

static void
open_lane(struct copy_lane *lane)
{
	lane->broken = open_stream(lane, &lane->broken_call);
	if (lane->broken != CUDA_SUCCESS)
		return;
	open_hashes(lane);
	lane->gathers = lane->copies->config.gather != NULL;
}

/* Others would wait for the CPU. */
static bool
goes_alone(const struct copy_lane *lane, const struct copy_run *run)
{
	return run->hashes && !is_hashed_by_gpu(lane, run);
}

/* The first that wait, as many as go together. With the lock; there is one. */
static struct copy_run *
gpu_copy_lanes_take(struct copy_lane *lane)
{
	struct kind *kind = lane->kind;
	struct copy_run *runs = kind->first, *last = runs, *next;
	uint64_t bytes = runs->bytes;
	uint32_t ranges = runs->num_to + runs->num_from, chunks = runs->num_chunks;
	bool by_host = kind->op == GPU_READ || kind->op == GPU_WRITE;
	while ((next = last->next) != NULL && !goes_alone(lane, runs) && !goes_alone(lane, next)) {
		bytes += next->bytes;
		ranges += next->num_to + next->num_from;
		chunks += next->num_chunks;
		/* One launch for many chunks is as fast as memory; for one it mostly waits. The bus
		 * is slower, and is not to wait for who asks for the next ones. */
		if ((by_host && bytes > BATCH_HOST_BYTES_MAX) || ranges > BATCH_RANGES_MAX ||
			chunks > BATCH_CHUNKS_MAX)
			break;
		last = next;
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
	struct copy_lane *lane = arg;
	struct kind *kind = lane->kind;
	open_lane(lane);
	pthread_mutex_lock(&kind->lock);
	for (;;) {
		while (!kind->first && lane->num_batches == 0) {
			kind->idle++;
			pthread_cond_wait(&kind->more, &kind->lock);
			kind->idle--;
		}
		struct copy_run *runs = NULL;
		if (kind->first && lane->num_batches < BATCHES_MAX)
			runs = gpu_copy_lanes_take(lane);
		pthread_mutex_unlock(&kind->lock);
		if (runs)
			gpu_copy_lanes_ask_all(lane, runs);
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
	struct copy_lane *lane = &kind->lanes[kind->num_lanes];
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
