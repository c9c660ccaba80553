/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shuttle_gpu - copies between two parts of this agent that lie on GPUs, and digests of one: chunk
 * by chunk, by the GPUs alone. No byte comes to the host. Several chunks are under way, so that a
 * GPU has the next one before it is done with the last.
 *
 * A chunk whose copy is not what was published is looked at again at the source: only when that is
 * not it either has the worker changed it. The same look tells whose memory it was that a copy
 * failed with, where nothing else does.
 *
 * A GPU that does not reach the other says so, and then all that is left goes through the host by
 * ferries; so does a part with a chunk on more than one GPU.
 *
 * All on the shuttle's mover, but for `done`, which is on the GPU's thread. What is still under way
 * when nobody can see its outcome any more is left behind, and the last of it frees all.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/err.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "transport/cuda/spans.h"
#include "transport/shuttle_own.h"

#define LANES 16u
#define COPIES 8u /* under way; small requests for digests, more */

enum lane_state {
	LANE_FREE,
	LANE_BUSY, /* a GPU has it */
	LANE_DONE, /* guarded, from here to there */
};

struct lane {
	struct gpu_request request;
	struct shuttle_gpu *gpu;
	enum lane_state state; /* guarded by the lock */
	bool looking;          /* at the source, after a copy that failed or did not match */
	uint32_t chunk;
	struct spans from, to;
	int code; /* of the copy */
	char why[GPU_TEXT_BYTES];
	struct th_hash copied; /* ... and its digest */
};

struct shuttle_gpu {
	struct shuttle *shuttle;
	uint32_t num_lanes;
	uint32_t hashed; /* chunks whose digests the part has */
	bool leaving;    /* by ferries from here on */
	pthread_mutex_t lock;
	bool abandoned; /* guarded, as busy: the shuttle may be gone */
	uint32_t busy;
	struct lane lanes[LANES];
};

static enum lane_state
state_of(struct lane *lane)
{
	pthread_mutex_lock(&lane->gpu->lock);
	enum lane_state state = lane->state;
	pthread_mutex_unlock(&lane->gpu->lock);
	return state;
}

static void
destroy(struct shuttle_gpu *gpu)
{
	for (uint32_t i = 0; i < gpu->num_lanes; i++) {
		spans_fini(&gpu->lanes[i].from);
		spans_fini(&gpu->lanes[i].to);
	}
	pthread_mutex_destroy(&gpu->lock);
	free(gpu);
}

/* On the GPU's thread. Posted under the lock: without it the shuttle could be gone by then. */
static void
done(struct gpu_request *request)
{
	struct lane *lane = loop_container(request, struct lane, request);
	struct shuttle_gpu *gpu = lane->gpu;
	pthread_mutex_lock(&gpu->lock);
	lane->state = LANE_DONE;
	bool last = --gpu->busy == 0 && gpu->abandoned;
	if (!gpu->abandoned)
		loop_post(gpu->shuttle->loop, &gpu->shuttle->kick_task);
	pthread_mutex_unlock(&gpu->lock);
	if (last)
		destroy(gpu);
}

static void
submit(struct lane *lane, enum gpu_run_op op)
{
	struct shuttle *shuttle = lane->gpu->shuttle;
	lane->request = (struct gpu_request){.op = op,
		.from = lane->from.spans,
		.num_from = lane->from.count,
		.bytes = chunk_bytes(xfer_part_table(shuttle->source), lane->chunk),
		.hashes = shuttle->verify,
		.done = done};
	if (op == GPU_COPY) {
		lane->request.to = lane->to.spans;
		lane->request.num_to = lane->to.count;
	}
	pthread_mutex_lock(&lane->gpu->lock);
	lane->state = LANE_BUSY;
	lane->gpu->busy++;
	pthread_mutex_unlock(&lane->gpu->lock);
	gpu_submit(&lane->request);
}

static void
free_lane(struct lane *lane)
{
	spans_fini(&lane->from);
	spans_fini(&lane->to);
	lane->state = LANE_FREE;
	lane->looking = false;
}

/* ---- what was done ------------------------------------------------------------------------- */

static void
leave(struct lane *lane, const char *why)
{
	struct shuttle *shuttle = lane->gpu->shuttle;
	if (!lane->gpu->leaving)
		log_info("gpu", "what is between GPUs goes through the host why='%s'", why);
	lane->gpu->leaving = true;
	if (shuttle->part && !shuttle->ending)
		intake_give_back(&shuttle->intake, lane->chunk);
}

static void
arrived(struct lane *lane, const struct th_hash *digest)
{
	struct shuttle *shuttle = lane->gpu->shuttle;
	if (!shuttle->ending)
		shuttle_arrived(shuttle, lane->chunk, digest);
}

static void
fail_source(struct lane *lane)
{
	struct shuttle *shuttle = lane->gpu->shuttle;
	log_warn("gpu", "memory of a worker is not reached why='%s'", lane->request.text);
	xfer_part_set_lost(shuttle->source, lane->request.text);
	shuttle_fail(
		shuttle, lane->request.code, spans_lost(&lane->from, 0, lane->from.count), true);
}

/* A copy. True: the lane goes on. */
static bool
take_copy(struct lane *lane)
{
	struct shuttle *shuttle = lane->gpu->shuttle;
	const struct gpu_request *request = &lane->request;
	if (request->code == TH_E_MEMORY_KIND) {
		leave(lane, request->text);
		return false;
	}
	bool right = !shuttle->verify || th_hash_equal(request->digest,
						 *xfer_part_digest(shuttle->source, lane->chunk));
	if (request->code == 0)
		shuttle_moved(shuttle, request->bytes);
	if (request->code == 0 && right) {
		arrived(lane, &request->digest);
		return false;
	}
	if (shuttle->ending)
		return false;
	memcpy(lane->why, request->text, sizeof(lane->why));
	lane->code = request->code;
	lane->copied = request->digest;
	lane->looking = true;
	submit(lane, GPU_HASH);
	return true;
}

static void
fail_own(struct lane *lane)
{
	struct shuttle *shuttle = lane->gpu->shuttle;
	log_warn("gpu", "memory of a worker is not reached why='%s'", lane->why);
	xfer_part_set_lost(shuttle->part, lane->why);
	shuttle_fail(shuttle, lane->code, UINT32_MAX, false);
}

/* The source was looked at. */
static void
take_look(struct lane *lane)
{
	struct shuttle *shuttle = lane->gpu->shuttle;
	const struct gpu_request *request = &lane->request;
	if (shuttle->ending)
		return;
	if (request->code < 0)
		fail_source(lane);
	else if (lane->code < 0)
		fail_own(lane);
	else if (!th_hash_equal(request->digest, *xfer_part_digest(shuttle->source, lane->chunk)))
		shuttle_changed(shuttle, lane->chunk);
	else
		arrived(lane, &lane->copied);
}

static void
take_hash(struct lane *lane)
{
	struct shuttle *shuttle = lane->gpu->shuttle;
	const struct gpu_request *request = &lane->request;
	if (shuttle->ending || lane->gpu->leaving)
		return;
	if (request->code == TH_E_MEMORY_KIND) {
		leave(lane, request->text);
		return;
	}
	if (request->code < 0) {
		fail_source(lane);
		return;
	}
	lane->gpu->hashed = lane->chunk + 1;
	shuttle_hashed(shuttle, lane->chunk, &request->digest);
}

static void
take(struct shuttle_gpu *gpu)
{
	for (uint32_t i = 0; i < gpu->num_lanes; i++) {
		struct lane *lane = &gpu->lanes[i];
		if (state_of(lane) != LANE_DONE)
			continue;
		if (lane->looking)
			take_look(lane);
		else if (take_copy(lane))
			continue;
		free_lane(lane);
	}
}

/* Digests are handed on in order. */
static void
take_hashes(struct shuttle_gpu *gpu)
{
	bool found = true;
	while (found) {
		found = false;
		for (uint32_t i = 0; i < gpu->num_lanes; i++) {
			struct lane *lane = &gpu->lanes[i];
			bool over = gpu->shuttle->ending || gpu->leaving;
			if (state_of(lane) != LANE_DONE || (!over && lane->chunk != gpu->hashed))
				continue;
			take_hash(lane);
			free_lane(lane);
			found = true;
		}
	}
}

/* ---- what is next -------------------------------------------------------------------------- */

static struct lane *
find_free(struct shuttle_gpu *gpu)
{
	for (uint32_t i = 0; i < gpu->num_lanes; i++) {
		if (state_of(&gpu->lanes[i]) == LANE_FREE)
			return &gpu->lanes[i];
	}
	return NULL;
}

static void
feed(struct shuttle_gpu *gpu)
{
	struct shuttle *shuttle = gpu->shuttle;
	struct lane *lane;
	while (!shuttle->ending && !gpu->leaving && (lane = find_free(gpu)) != NULL &&
		shuttle_next_chunk(shuttle)) {
		shuttle->reading = false;
		lane->chunk = shuttle->chunk;
		bool one_gpu =
			spans_chunk(&lane->from, shuttle->source, lane->chunk) &&
			(!shuttle->part || spans_chunk(&lane->to, shuttle->part, lane->chunk));
		if (one_gpu) {
			submit(lane, shuttle->part ? GPU_COPY : GPU_HASH);
			continue;
		}
		leave(lane, "a chunk of it lies on more than one GPU");
		free_lane(lane);
	}
}

bool
shuttle_gpu_start(struct shuttle *shuttle)
{
	bool source, part = true;
	(void)xfer_part_gpus(shuttle->source, &source);
	if (shuttle->part)
		(void)xfer_part_gpus(shuttle->part, &part);
	if (!source || !part)
		return false;
	struct shuttle_gpu *gpu = th_calloc(1, sizeof(*gpu));
	pthread_mutex_init(&gpu->lock, NULL);
	gpu->shuttle = shuttle;
	gpu->num_lanes = shuttle->part ? COPIES : LANES;
	gpu->hashed = shuttle->next_chunk;
	for (uint32_t i = 0; i < gpu->num_lanes; i++)
		gpu->lanes[i].gpu = gpu;
	shuttle->gpu = gpu;
	__atomic_store_n(&shuttle->by_gpu, true, __ATOMIC_RELAXED);
	return true;
}

bool
shuttle_gpu_run(struct shuttle *shuttle)
{
	struct shuttle_gpu *gpu = shuttle->gpu;
	if (shuttle->part)
		take(gpu);
	else
		take_hashes(gpu);
	feed(gpu);
	if (!gpu->leaving || shuttle_gpu_busy(shuttle))
		return true;
	shuttle->next_chunk = gpu->hashed;
	__atomic_store_n(&shuttle->by_gpu, false, __ATOMIC_RELAXED);
	return false;
}

bool
shuttle_gpu_busy(struct shuttle *shuttle)
{
	struct shuttle_gpu *gpu = shuttle->gpu;
	for (uint32_t i = 0; gpu && i < gpu->num_lanes; i++) {
		if (state_of(&gpu->lanes[i]) != LANE_FREE)
			return true;
	}
	return false;
}

void
shuttle_gpu_free(struct shuttle *shuttle)
{
	struct shuttle_gpu *gpu = shuttle->gpu;
	if (!gpu)
		return;
	shuttle->gpu = NULL;
	pthread_mutex_lock(&gpu->lock);
	gpu->abandoned = true;
	bool busy = gpu->busy > 0;
	pthread_mutex_unlock(&gpu->lock);
	if (!busy)
		destroy(gpu);
}
