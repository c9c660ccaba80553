/* SPDX-License-Identifier: Apache-2.0 */
/*
 * haul - see haul.h.
 *
 * A *step* is one request: bytes that lie one behind the other in the block, and on one GPU. A
 * *lane* takes one step after the other; where the block is not pinned it has a block of the
 * staging meanwhile. Each lane that goes on does so in `done` of its request, on the GPU's thread.
 * Only one lane ever waits for a block, and only when no other has one. A block in own memory has
 * one step and needs none.
 */
#include "transport/cuda/agent/haul.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "transport/cuda/agent/spans.h"
#include "transport/part/chunk.h"
#include "transport/part/fd_memory.h"

#define LANES 3u /* one at each side, one on its way */

struct step {
	struct gpu_request request;
	struct haul_lane *lane;
	uint32_t at; /* in the block */
	uint32_t first;
};

struct haul_lane {
	struct gpus_waiter waiter;
	struct haul *haul;
	bool waited;   /* for a block: the starter's */
	uint8_t *data; /* owns: of the staging; NULL: the block is pinned */
};

struct haul {
	/* Immutable. */
	bool writes, pinned, hashes;
	uint8_t *data;
	struct gpus_host *host;
	struct gpu_span own; /* in place of data, if it has a space */
	struct gpus *gpus;
	struct loop *loop;
	void (*done)(void *arg);
	void *arg;
	struct spans spans;
	struct step *steps; /* owns */
	uint32_t num_steps;
	struct haul_lane lanes[LANES];
	struct loop_task go_task; /* the lane that waited has its block */
	pthread_mutex_t lock;
	/* Guarded by lock. */
	uint32_t next;   /* step */
	uint32_t active; /* lanes; steps of a pinned block */
	bool over;
	int code;
	uint32_t row;
	char why[GPU_TEXT_BYTES];
};

static void lane_go(struct haul_lane *lane);
static void run_go(struct loop_task *task);
static void step_done(struct gpu_request *request);

/* ---- steps -------------------------------------------------------------------------------- */

/* Whether a piece goes on where the last step ends. */
static bool
joins(const struct haul *haul, const struct step *step, const struct xfer_piece *piece, uint32_t at)
{
	const struct spans *spans = &haul->spans;
	const struct gpu_request *request = &step->request;
	uint64_t max = haul->own.space || haul->host ? CHUNK_BYTES_MAX : GPUS_BLOCK_BYTES;
	if (step->at + request->bytes != at || request->bytes + piece->bytes > max)
		return false;
	struct gpu_space *space = fd_memory_space(piece->access);
	struct gpu_space *last = spans->spans[spans->count - 1].space;
	return space == last || memcmp(gpu_space_uuid(space), gpu_space_uuid(last), 16) == 0;
}

static void
haul_add(struct haul *haul, uint32_t *room, const struct xfer_piece *piece, uint32_t at)
{
	struct step *step = haul->num_steps ? &haul->steps[haul->num_steps - 1] : NULL;
	if (!step || !joins(haul, step, piece, at)) {
		if (haul->num_steps == *room) {
			*room = *room ? 2 * *room : 2;
			haul->steps = th_realloc(haul->steps, *room, sizeof(haul->steps[0]));
		}
		step = &haul->steps[haul->num_steps++];
		*step = (struct step){.at = at, .first = haul->spans.count};
	}
	spans_add(&haul->spans, piece);
	step->request.bytes += (uint32_t)piece->bytes;
}

/* Once nothing moves in memory any more. */
static void
haul_complete(struct haul *haul)
{
	for (uint32_t i = 0; i < haul->num_steps; i++) {
		struct step *step = &haul->steps[i];
		struct gpu_request *request = &step->request;
		uint32_t end =
			i + 1 < haul->num_steps ? haul->steps[i + 1].first : haul->spans.count;
		const struct gpu_span *spans = &haul->spans.spans[step->first];
		request->op = haul->writes ? GPU_WRITE : GPU_READ;
		*(haul->writes ? &request->to : &request->from) = spans;
		*(haul->writes ? &request->num_to : &request->num_from) = end - step->first;
		request->done = step_done;
		if (haul->own.space) {
			TH_ASSERT(haul->num_steps == 1);
			request->op = GPU_COPY;
			*(haul->writes ? &request->from : &request->to) = &haul->own;
			*(haul->writes ? &request->num_from : &request->num_to) = 1;
			request->hashes = haul->hashes;
		} else {
			request->data = haul->data + step->at;
			request->host = haul->host;
		}
	}
}

static struct haul *
haul_begin(const struct haul_block *block)
{
	struct haul *haul = th_calloc(1, sizeof(*haul));
	haul->writes = block->writes;
	haul->pinned = block->pinned || block->space || block->host;
	haul->host = block->host;
	haul->hashes = block->hashes;
	haul->data = block->data;
	haul->own = (struct gpu_span){
		.space = block->space, .address = block->at, .bytes = block->bytes};
	haul->done = block->done;
	haul->arg = block->arg;
	return haul;
}

struct haul *
haul_new(const struct haul_block *block, struct loop *loop)
{
	struct haul *haul = NULL;
	struct xfer_cursor cursor = block->cursor;
	uint32_t room = 0;
	for (uint32_t at = 0; at < block->bytes;) {
		struct xfer_piece piece;
		uint32_t bytes = th_min_u32(block->bytes - at, GPUS_BLOCK_BYTES);
		xfer_cursor_piece(&cursor, block->part, bytes, &piece);
		if (piece.access && fd_memory_space(piece.access)) {
			if (!haul)
				haul = haul_begin(block);
			haul->gpus = fd_memory_gpus(piece.access);
			haul_add(haul, &room, &piece, at);
		}
		xfer_cursor_skip(&cursor, block->part, piece.bytes);
		at += (uint32_t)piece.bytes;
	}
	if (!haul)
		return NULL;
	pthread_mutex_init(&haul->lock, NULL);
	haul->loop = loop;
	haul->go_task.run = run_go;
	haul_complete(haul);
	return haul;
}

void
haul_free(struct haul *haul)
{
	if (!haul)
		return;
	TH_ASSERT(haul->active == 0);
	spans_fini(&haul->spans);
	pthread_mutex_destroy(&haul->lock);
	free(haul->steps);
	free(haul);
}

int
haul_result(const struct haul *haul, uint32_t *ret_row, const char **ret_why)
{
	*ret_row = haul->row;
	*ret_why = haul->why;
	return haul->code;
}

struct th_hash
haul_digest(const struct haul *haul)
{
	return haul->steps[0].request.digest;
}

/* ---- lanes -------------------------------------------------------------------------------- */

/* One lane less. The haul may be freed in here. */
static void
haul_leave(struct haul *haul)
{
	pthread_mutex_lock(&haul->lock);
	TH_ASSERT(haul->active > 0);
	bool last = --haul->active == 0;
	pthread_mutex_unlock(&haul->lock);
	if (last)
		haul->done(haul->arg);
}

static void
haul_fail(struct haul *haul, const struct step *step)
{
	const struct gpu_request *request = &step->request;
	uint32_t count = haul->writes ? request->num_to : request->num_from;
	uint32_t row = spans_lost(&haul->spans, step->first, count);
	pthread_mutex_lock(&haul->lock);
	if (haul->code == 0) {
		haul->code = request->unmapped ? TH_E_LIMIT : request->code;
		haul->row = request->unmapped ? UINT32_MAX : row;
		memcpy(haul->why, request->text, sizeof(haul->why));
	}
	haul->over = true;
	pthread_mutex_unlock(&haul->lock);
}

static void
copy(struct haul *haul, uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	memcpy(to, from, bytes);
	gpus_block_copied(haul->gpus, bytes);
}

static void
step_done(struct gpu_request *request)
{
	struct step *step = loop_container(request, struct step, request);
	struct haul_lane *lane = step->lane;
	struct haul *haul = lane->haul;
	if (request->code < 0)
		haul_fail(haul, step);
	else if (lane->data && !haul->writes)
		copy(haul, haul->data + step->at, lane->data, request->bytes);
	if (lane->data)
		lane_go(lane);
	else
		haul_leave(haul);
}

/* Takes the next step; with none left the lane ends. */
static void
lane_go(struct haul_lane *lane)
{
	struct haul *haul = lane->haul;
	struct step *step = NULL;
	pthread_mutex_lock(&haul->lock);
	if (!haul->over && haul->next < haul->num_steps)
		step = &haul->steps[haul->next++];
	pthread_mutex_unlock(&haul->lock);
	if (!step) {
		gpus_block_give(haul->gpus, lane->data);
		lane->data = NULL;
		haul_leave(haul);
		return;
	}
	step->lane = lane;
	step->request.data = lane->data;
	if (haul->writes)
		copy(haul, lane->data, haul->data + step->at, step->request.bytes);
	gpu_submit(&step->request);
}

/* With a lock of the stage held. */
static void
haul_granted(struct gpus_waiter *waiter, uint8_t *data)
{
	struct haul_lane *lane = loop_container(waiter, struct haul_lane, waiter);
	lane->data = data; /* who reads it is posted to */
	loop_post(lane->haul->loop, &lane->haul->go_task);
}

static void
run_go(struct loop_task *task)
{
	struct haul *haul = loop_container(task, struct haul, go_task);
	lane_go(&haul->lanes[0]);
}

static void
start_pinned(struct haul *haul)
{
	uint32_t count = haul->num_steps;
	haul->active = count;
	haul->next = count;
	haul->lanes[0].haul = haul;
	for (uint32_t i = 0; i < count; i++)
		haul->steps[i].lane = &haul->lanes[0];
	for (uint32_t i = 0; i < count; i++)
		gpu_submit(&haul->steps[i].request);
}

/*
 * Blocks that are free now, for as many lanes as there is work for; if there is none, one lane
 * waits.
 */
static void
start_lanes(struct haul *haul)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < LANES; i++)
		haul->lanes[i] = (struct haul_lane){.haul = haul, .waiter.granted = haul_granted};
	while (count < LANES && count < haul->num_steps &&
		(haul->lanes[count].data = gpus_block_take(haul->gpus, NULL)) != NULL)
		count++;
	haul->active = th_max_u32(count, 1);
	if (count == 0) {
		uint8_t *data = gpus_block_take(haul->gpus, &haul->lanes[0].waiter);
		haul->lanes[0].waited = !data;
		if (!data)
			return;
		haul->lanes[0].data = data;
		count = 1;
	}
	for (uint32_t i = 0; i < count; i++)
		lane_go(&haul->lanes[i]);
}

void
haul_start(struct haul *haul)
{
	if (haul->pinned)
		start_pinned(haul);
	else
		start_lanes(haul);
}

void
haul_cancel(struct haul *haul)
{
	pthread_mutex_lock(&haul->lock);
	haul->over = true;
	pthread_mutex_unlock(&haul->lock);
	/* One that was granted a block by now gives it back. */
	struct haul_lane *lane = &haul->lanes[0];
	if (lane->waited && gpus_block_cancel(haul->gpus, &lane->waiter))
		haul_leave(haul);
}
