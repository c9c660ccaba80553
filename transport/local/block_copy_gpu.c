/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_copy_gpu - copies between two parts of this agent that lie on GPUs, and digests of one:
 * chunk by chunk, by the GPUs alone. No byte comes to the host. And copies between GPUs and memory
 * of the agent that they reach, as offloaded copies: the GPU moves the bytes to where they belong,
 * and no thread of the agent touches one. Several requests are under way, so that a GPU has the
 * next one before it is done with the last.
 *
 * What GPUs do among themselves is faster than the agent asks for chunks: a request is for a
 * *group* of them, of as many as there are now. A leg's first ones are small, and so are the first
 * ones after it had caught up with its source: who reads behind it begins with the first chunk.
 *
 * A chunk whose copy is not what was published is looked at again at the source: only when that is
 * not it either has the worker changed it. The same look tells whose memory it was that a copy
 * failed with, where nothing else does. Looks are at one chunk after another: so are digests that
 * failed as a group.
 *
 * A GPU that does not reach the other says so, and then all that is left goes through the host by
 * ferries; so does a part with a chunk on more than one GPU, or in more than one place of the host.
 *
 * All on the block_copy's mover, but for `done`, which is on the GPU's thread. What is still under
 * way when nobody can see its outcome any more is left behind, and the last of it frees all.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/err.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "transport/cuda/agent/spans.h"
#include "transport/local/block_copy_own.h"

#define LANES 16u
#define COPIES 8u /* under way; more where CPUs hash, and of small requests for digests */

enum lane_state {
	LANE_FREE,
	LANE_BUSY, /* a GPU has it */
	LANE_DONE, /* guarded, from here to there */
};

struct block_lane {
	struct gpu_request request;
	struct block_copy_gpu *gpu;
	enum lane_state state;                       /* guarded by the lock */
	struct gpu_chunk chunks[GPU_RUN_CHUNKS_MAX]; /* of the request; then those not arrived */
	uint32_t numbers[GPU_RUN_CHUNKS_MAX];        /* their numbers in the part */
	uint32_t count;
	uint32_t at;  /* all before it are over and done with, or being looked at */
	bool looking; /* at that one */
	struct spans from, to;
	uint8_t *data; /* in place of the one that lies on the host */
	struct gpus_host *host;
	int code; /* of the copy */
	char why[GPU_TEXT_BYTES];
	struct th_hash copied; /* what was copied of the chunk that is looked at */
};

struct block_copy_gpu {
	struct block_copy *block_copy;
	enum gpu_run_op op; /* what is done with a chunk */
	uint32_t num_lanes;
	uint32_t group, group_max; /* chunks of the next request */
	uint32_t hashed;           /* chunks whose digests the part has */
	bool leaving;              /* by ferries from here on */
	pthread_mutex_t lock;
	bool abandoned; /* guarded, as busy: the block_copy may be gone */
	uint32_t busy;
	struct block_lane lanes[LANES];
};

static enum lane_state
block_copy_gpu_state_of(struct block_lane *lane)
{
	pthread_mutex_lock(&lane->gpu->lock);
	enum lane_state state = lane->state;
	pthread_mutex_unlock(&lane->gpu->lock);
	return state;
}

static void
block_copy_gpu_destroy(struct block_copy_gpu *gpu)
{
	for (uint32_t i = 0; i < gpu->num_lanes; i++) {
		spans_fini(&gpu->lanes[i].from);
		spans_fini(&gpu->lanes[i].to);
	}
	pthread_mutex_destroy(&gpu->lock);
	free(gpu);
}

/* On the GPU's thread. Posted under the lock: without it the block_copy could be gone by then. */
static void
block_copy_gpu_done(struct gpu_request *request)
{
	struct block_lane *lane = loop_container(request, struct block_lane, request);
	struct block_copy_gpu *gpu = lane->gpu;
	pthread_mutex_lock(&gpu->lock);
	lane->state = LANE_DONE;
	bool last = --gpu->busy == 0 && gpu->abandoned;
	if (!gpu->abandoned)
		loop_post(gpu->block_copy->loop, &gpu->block_copy->kick_task);
	pthread_mutex_unlock(&gpu->lock);
	if (last)
		block_copy_gpu_destroy(gpu);
}

/* So many of the lane's chunks, from the one that it is at on. */
static void
block_copy_gpu_submit(struct block_lane *lane, enum gpu_run_op op, uint32_t count)
{
	lane->request = (struct gpu_request){.op = op,
		.from = lane->from.spans,
		.num_from = lane->from.count,
		.hashes = lane->gpu->block_copy->verify,
		.chunks = &lane->chunks[lane->at],
		.num_chunks = count,
		.done = block_copy_gpu_done};
	for (uint32_t i = 0; i < count; i++)
		lane->request.bytes += lane->request.chunks[i].bytes;
	if (op == GPU_COPY || op == GPU_WRITE) {
		lane->request.to = lane->to.spans;
		lane->request.num_to = lane->to.count;
	}
	if (op == GPU_READ || op == GPU_WRITE) {
		lane->request.data = lane->data;
		lane->request.host = lane->host;
	}
	pthread_mutex_lock(&lane->gpu->lock);
	lane->state = LANE_BUSY;
	lane->gpu->busy++;
	pthread_mutex_unlock(&lane->gpu->lock);
	gpu_submit(&lane->request);
}

static void
free_lane(struct block_lane *lane)
{
	spans_fini(&lane->from);
	spans_fini(&lane->to);
	lane->state = LANE_FREE;
	lane->looking = false;
	lane->count = lane->at = 0;
}

/* ---- what was done ------------------------------------------------------------------------- */

static void
block_copy_gpu_leave(struct block_lane *lane, const char *why)
{
	struct block_copy *block_copy = lane->gpu->block_copy;
	if (!lane->gpu->leaving)
		block_copy_explain(block_copy, why);
	lane->gpu->leaving = true;
	for (uint32_t i = 0; i < lane->count && block_copy->part && !block_copy->ending; i++)
		chunk_ledger_give_back(&block_copy->ledger, lane->numbers[i]);
}

static void
arrived(struct block_lane *lane, uint32_t number, const struct th_hash *digest)
{
	struct block_copy *block_copy = lane->gpu->block_copy;
	if (!block_copy->ending)
		block_copy_arrived(block_copy, number, digest);
}

static void
fail_source(struct block_lane *lane)
{
	struct block_copy *block_copy = lane->gpu->block_copy;
	log_warn("gpu", "memory of a worker is not reached why='%s'", lane->request.text);
	xfer_part_set_lost(block_copy->source, lane->request.code, lane->request.text);
	block_copy_fail(
		block_copy, TH_E_STALE_MEMORY, spans_lost(&lane->from, 0, lane->from.count), true);
}

static void
fail_own(struct block_lane *lane)
{
	struct block_copy *block_copy = lane->gpu->block_copy;
	log_warn("gpu", "memory of a worker is not reached why='%s'", lane->why);
	xfer_part_set_lost(block_copy->part, lane->code, lane->why);
	block_copy_fail(block_copy, lane->code, UINT32_MAX, false);
}

static bool
is_published(struct block_lane *lane, const struct th_hash *digest)
{
	struct xfer_part *source = lane->gpu->block_copy->source;
	return th_hash_equal(*digest, *xfer_part_digest(source, lane->numbers[lane->at]));
}

/* It is the agent's own memory, and a moment's work in a case that should not be. */
static void
block_copy_gpu_look_at_host(struct block_lane *lane)
{
	if (lane->code < 0) {
		fail_own(lane);
		return;
	}
	const struct th_hash digest = digest_of(lane->data, lane->request.bytes);
	if (!is_published(lane, &digest))
		block_copy_changed(lane->gpu->block_copy, lane->numbers[0]);
	else
		arrived(lane, lane->numbers[0], &lane->chunks[0].digest);
}

/* At the next chunk at the source. False: there is none, or no need. */
static bool
block_copy_gpu_look(struct block_lane *lane)
{
	struct block_copy *block_copy = lane->gpu->block_copy;
	if (block_copy->ending || lane->at == lane->count)
		return false;
	if (lane->gpu->op == GPU_WRITE) {
		block_copy_gpu_look_at_host(lane);
		return false;
	}
	spans_fini(&lane->from);
	(void)spans_chunk(&lane->from, block_copy->source, lane->numbers[lane->at]);
	lane->copied = lane->chunks[lane->at].digest;
	lane->looking = true;
	block_copy_gpu_submit(lane, GPU_HASH, 1);
	return true;
}

/* Chunks that match arrive, the others stay with the lane. */
static void
take_right(struct block_lane *lane)
{
	const struct block_copy *block_copy = lane->gpu->block_copy;
	uint32_t wrong = 0;
	for (lane->at = 0; lane->at < lane->count; lane->at++) {
		const struct gpu_chunk *chunk = &lane->chunks[lane->at];
		uint32_t number = lane->numbers[lane->at];
		if (!block_copy->verify || is_published(lane, &chunk->digest)) {
			arrived(lane, number, &chunk->digest);
			continue;
		}
		lane->chunks[wrong] = *chunk;
		lane->numbers[wrong++] = number;
	}
	lane->at = 0;
	lane->count = wrong;
}

/* A copy. True: the lane goes on. */
static bool
take_copy(struct block_lane *lane)
{
	const struct gpu_request *request = &lane->request;
	if (request->code == TH_E_MEMORY_KIND) {
		block_copy_gpu_leave(lane, request->text);
		return false;
	}
	memcpy(lane->why, request->text, sizeof(lane->why));
	lane->code = request->code;
	if (request->code == 0) {
		block_copy_moved(lane->gpu->block_copy, request->bytes);
		take_right(lane);
	}
	return block_copy_gpu_look(lane);
}

/* The source was looked at. Likewise. */
static bool
take_look(struct block_lane *lane)
{
	struct block_copy *block_copy = lane->gpu->block_copy;
	uint32_t number = lane->numbers[lane->at];
	bool failed = lane->request.code < 0 || lane->code < 0;
	bool same = !failed && is_published(lane, &lane->chunks[lane->at].digest);
	bool last = ++lane->at == lane->count;
	if (block_copy->ending)
		return false;
	if (lane->request.code < 0)
		fail_source(lane);
	else if (lane->code < 0 && last)
		fail_own(lane);
	else if (lane->code == 0 && !same)
		block_copy_changed(block_copy, number);
	else if (lane->code == 0)
		arrived(lane, number, &lane->copied);
	return block_copy_gpu_look(lane);
}

/* Likewise. */
static bool
take_hash(struct block_lane *lane)
{
	struct block_copy_gpu *gpu = lane->gpu;
	const struct gpu_request *request = &lane->request;
	if (gpu->block_copy->ending || gpu->leaving)
		return false;
	if (request->code == TH_E_MEMORY_KIND) {
		block_copy_gpu_leave(lane, request->text);
		return false;
	}
	if (request->code < 0 && request->num_chunks == 1) {
		fail_source(lane);
		return false;
	}
	for (uint32_t i = 0; i < request->num_chunks && request->code == 0; i++, lane->at++) {
		gpu->hashed = lane->numbers[lane->at] + 1;
		block_copy_hashed(
			gpu->block_copy, lane->numbers[lane->at], &lane->chunks[lane->at].digest);
	}
	return block_copy_gpu_look(lane);
}

static void
block_copy_gpu_take(struct block_copy_gpu *gpu)
{
	for (uint32_t i = 0; i < gpu->num_lanes; i++) {
		struct block_lane *lane = &gpu->lanes[i];
		if (block_copy_gpu_state_of(lane) != LANE_DONE)
			continue;
		if (lane->looking ? !take_look(lane) : !take_copy(lane))
			free_lane(lane);
	}
}

/* Digests are handed on in order. */
static void
take_hashes(struct block_copy_gpu *gpu)
{
	bool found = true;
	while (found) {
		found = false;
		for (uint32_t i = 0; i < gpu->num_lanes; i++) {
			struct block_lane *lane = &gpu->lanes[i];
			bool over = gpu->block_copy->ending || gpu->leaving;
			if (block_copy_gpu_state_of(lane) != LANE_DONE ||
				(!over && lane->numbers[lane->at] != gpu->hashed))
				continue;
			if (!take_hash(lane))
				free_lane(lane);
			found = true;
		}
	}
}

/* ---- what is next -------------------------------------------------------------------------- */

static struct block_lane *
block_copy_gpu_find_free(struct block_copy_gpu *gpu)
{
	for (uint32_t i = 0; i < gpu->num_lanes; i++) {
		if (block_copy_gpu_state_of(&gpu->lanes[i]) == LANE_FREE)
			return &gpu->lanes[i];
	}
	return NULL;
}

/* One piece of memory that GPUs reach: a request, and a digest, are of no more. */
static bool
find_host(struct block_lane *lane, struct xfer_part *part, uint32_t chunk)
{
	struct xfer_cursor cursor;
	uint64_t bytes = 0;
	xfer_cursor_init(&cursor, part, chunk);
	while (cursor.left > 0) {
		struct xfer_piece piece;
		xfer_cursor_piece(&cursor, part, cursor.left, &piece);
		if (bytes == 0) {
			lane->data = piece.data;
			lane->host = piece.host;
		} else if (piece.data != lane->data + bytes || piece.host != lane->host) {
			return false;
		}
		bytes += piece.bytes;
		xfer_cursor_skip(&cursor, part, piece.bytes);
	}
	return true;
}

/* NULL, or why a request cannot have it, with what the lane has. */
static const char *
find_chunk(struct block_lane *lane, uint32_t chunk)
{
	struct block_copy *block_copy = lane->gpu->block_copy;
	enum gpu_run_op op = lane->gpu->op;
	struct xfer_part *source = block_copy->source, *part = block_copy->part;
	if ((op != GPU_WRITE && !spans_chunk(&lane->from, source, chunk)) ||
		((op == GPU_WRITE || op == GPU_COPY) && !spans_chunk(&lane->to, part, chunk)))
		return "a chunk of it lies on more than one GPU; keep small tensors on one";
	if ((op == GPU_WRITE && !find_host(lane, source, chunk)) ||
		(op == GPU_READ && !find_host(lane, part, chunk)))
		return "a chunk of it lies in more than one place of the host's memory";
	return NULL;
}

/* The block_copy's chunk. False: the lane is not for it. */
static bool
add_chunk(struct block_lane *lane)
{
	struct block_copy *block_copy = lane->gpu->block_copy;
	uint32_t chunk = block_copy->chunk, from = lane->from.count, to = lane->to.count;
	const char *why = find_chunk(lane, chunk);
	if (why && lane->count > 0) { /* it may be on another GPU, as the first one of a lane */
		spans_cut(&lane->from, from);
		spans_cut(&lane->to, to);
		block_copy->reading = true;
		return false;
	}
	lane->numbers[lane->count] = chunk;
	lane->chunks[lane->count++].bytes = chunk_bytes(xfer_part_table(block_copy->source), chunk);
	if (why)
		block_copy_gpu_leave(lane, why);
	return !why;
}

/* A group of what is there now: never waits for more, nor takes more ranges than a message. */
static bool
block_copy_gpu_fill(struct block_lane *lane)
{
	struct block_copy_gpu *gpu = lane->gpu;
	struct block_copy *block_copy = gpu->block_copy;
	bool fits = true, dry = false;
	while (fits && lane->count < gpu->group && !block_copy->ending &&
		lane->from.count + lane->to.count < GPU_RANGES_MAX) {
		dry = !block_copy->reading && !block_copy_next_chunk(block_copy);
		if (dry)
			break;
		block_copy->reading = false;
		fits = add_chunk(lane);
	}
	if (lane->count == gpu->group)
		gpu->group = th_min_u32(2 * gpu->group, gpu->group_max);
	else if (dry)
		gpu->group = 1;
	if (lane->count > 0 && !block_copy->ending && !gpu->leaving)
		return true;
	free_lane(lane);
	return false;
}

static void
block_copy_gpu_feed(struct block_copy_gpu *gpu)
{
	struct block_lane *lane;
	while (!gpu->block_copy->ending && !gpu->leaving &&
		(lane = block_copy_gpu_find_free(gpu)) != NULL && block_copy_gpu_fill(lane))
		block_copy_gpu_submit(lane, gpu->op, lane->count);
}

bool
block_copy_gpu_start(struct block_copy *block_copy)
{
	bool source, part = false;
	enum gpu_run_op op;
	(void)xfer_part_gpus(block_copy->source, &source);
	if (block_copy->part)
		(void)xfer_part_gpus(block_copy->part, &part);
	if (source && (part || !block_copy->part))
		op = part ? GPU_COPY : GPU_HASH;
	else if (source && xfer_part_for_gpus(block_copy->part))
		op = GPU_READ;
	else if (part && xfer_part_for_gpus(block_copy->source))
		op = GPU_WRITE;
	else
		return false;
	struct block_copy_gpu *gpu = th_calloc(1, sizeof(*gpu));
	pthread_mutex_init(&gpu->lock, NULL);
	gpu->block_copy = block_copy;
	gpu->op = op;
	gpu->num_lanes = op == GPU_COPY || op == GPU_WRITE ? COPIES : LANES;
	gpu->group = 1;
	gpu->group_max = op == GPU_COPY || op == GPU_HASH ? GPU_RUN_CHUNKS_MAX : 1;
	gpu->hashed = block_copy->next_chunk;
	for (uint32_t i = 0; i < gpu->num_lanes; i++)
		gpu->lanes[i].gpu = gpu;
	block_copy->gpu = gpu;
	__atomic_store_n(&block_copy->by_gpu, op == GPU_COPY || op == GPU_HASH, __ATOMIC_RELAXED);
	return true;
}

bool
block_copy_gpu_run(struct block_copy *block_copy)
{
	struct block_copy_gpu *gpu = block_copy->gpu;
	if (block_copy->part)
		block_copy_gpu_take(gpu);
	else
		take_hashes(gpu);
	block_copy_gpu_feed(gpu);
	if (!gpu->leaving || block_copy_gpu_busy(block_copy))
		return true;
	block_copy->next_chunk = gpu->hashed;
	block_copy->reading = block_copy->reading && block_copy->part;
	__atomic_store_n(&block_copy->by_gpu, false, __ATOMIC_RELAXED);
	return false;
}

bool
block_copy_gpu_busy(struct block_copy *block_copy)
{
	struct block_copy_gpu *gpu = block_copy->gpu;
	for (uint32_t i = 0; gpu && i < gpu->num_lanes; i++) {
		if (block_copy_gpu_state_of(&gpu->lanes[i]) != LANE_FREE)
			return true;
	}
	return false;
}

void
block_copy_gpu_free(struct block_copy *block_copy)
{
	struct block_copy_gpu *gpu = block_copy->gpu;
	if (!gpu)
		return;
	block_copy->gpu = NULL;
	pthread_mutex_lock(&gpu->lock);
	gpu->abandoned = true;
	bool busy = gpu->busy > 0;
	pthread_mutex_unlock(&gpu->lock);
	if (!busy)
		block_copy_gpu_destroy(gpu);
}
