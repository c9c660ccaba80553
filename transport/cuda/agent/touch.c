/* SPDX-License-Identifier: Apache-2.0 */
/*
 * touch - see touch.h.
 *
 * Pieces on a GPU are collected into one request as long as they are on the same one; its bytes
 * go through a block of pinned memory (gpus.h), since the agent's own buffers are not known there.
 */
#include "transport/cuda/agent/touch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/cuda/agent/spans.h"
#include "transport/loop/mover_loop.h"
#include "transport/part/fd_memory.h"
#include "transport/part/sigbus.h"

/* ---- waiting ------------------------------------------------------------------------------- */

struct wait {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done;      /* guarded by lock */
	uint8_t *block; /* likewise */
	struct gpus_waiter waiter;
	struct gpu_request request;
	struct spans spans; /* owns: of the request */
};

static struct wait *
touch_wait_new(void)
{
	struct wait *wait = th_calloc(1, sizeof(*wait));
	pthread_mutex_init(&wait->lock, NULL);
	pthread_cond_init(&wait->changed, NULL);
	return wait;
}

static void
wait_free(struct wait *wait)
{
	spans_fini(&wait->spans);
	pthread_cond_destroy(&wait->changed);
	pthread_mutex_destroy(&wait->lock);
	free(wait);
}

static void
touch_granted(struct gpus_waiter *waiter, uint8_t *data)
{
	struct wait *wait = loop_container(waiter, struct wait, waiter);
	pthread_mutex_lock(&wait->lock);
	wait->block = data;
	pthread_cond_signal(&wait->changed);
	pthread_mutex_unlock(&wait->lock);
}

static void
wait_block(struct wait *wait, struct gpus *gpus)
{
	wait->waiter.granted = touch_granted;
	wait->block = NULL;
	uint8_t *block = gpus_block_take(gpus, &wait->waiter);
	pthread_mutex_lock(&wait->lock);
	if (block)
		wait->block = block;
	while (!wait->block)
		pthread_cond_wait(&wait->changed, &wait->lock);
	pthread_mutex_unlock(&wait->lock);
}

static void
request_done(struct gpu_request *request)
{
	struct wait *wait = loop_container(request, struct wait, request);
	pthread_mutex_lock(&wait->lock);
	wait->done = true;
	pthread_cond_signal(&wait->changed);
	pthread_mutex_unlock(&wait->lock);
}

static int
wait_request(struct wait *wait)
{
	wait->done = false;
	wait->request.done = request_done;
	gpu_submit(&wait->request);
	pthread_mutex_lock(&wait->lock);
	while (!wait->done)
		pthread_cond_wait(&wait->changed, &wait->lock);
	pthread_mutex_unlock(&wait->lock);
	return wait->request.code;
}

/* ---- pieces -------------------------------------------------------------------------------- */

/* The next pieces that lie on one GPU, at most so many bytes: how many. The cursor moves on. */
static uint64_t
touch_collect(struct wait *wait, struct xfer_part *part, struct xfer_cursor *cursor, uint64_t bytes)
{
	struct fd_memory *access = NULL;
	uint64_t done = 0;
	spans_fini(&wait->spans);
	while (done < bytes) {
		struct xfer_piece piece;
		xfer_cursor_piece(cursor, part, bytes - done, &piece);
		if (piece.data || (access && piece.access != access))
			break;
		access = piece.access;
		spans_add(&wait->spans, &piece);
		xfer_cursor_skip(cursor, part, piece.bytes);
		done += piece.bytes;
	}
	return done;
}

/* Why is known here; which row, where that can be told. */
static int
lost(const struct wait *wait, struct xfer_part *part, uint32_t *ret_row)
{
	xfer_part_set_lost(part, wait->request.code, wait->request.text);
	*ret_row = spans_lost(&wait->spans, 0, wait->spans.count);
	return TH_E_STALE_MEMORY;
}

/* What was collected, through a block. */
static int
touch_carry(struct wait *wait, struct xfer_part *part, uint64_t bytes, uint8_t *to,
	const uint8_t *from, uint32_t *ret_row)
{
	struct spans *spans = &wait->spans;
	struct gpus *gpus = fd_memory_gpus(spans->access[0]);
	struct gpu_request *request = &wait->request;
	wait_block(wait, gpus);
	*request = (struct gpu_request){
		.op = to ? GPU_READ : GPU_WRITE, .data = wait->block, .bytes = (uint32_t)bytes};
	if (to) {
		request->from = spans->spans;
		request->num_from = spans->count;
	} else {
		request->to = spans->spans;
		request->num_to = spans->count;
		memcpy(wait->block, from, bytes);
	}
	int rc = wait_request(wait);
	if (rc == 0 && to)
		memcpy(to, wait->block, bytes);
	if (rc < 0)
		rc = lost(wait, part, ret_row);
	gpus_block_give(gpus, wait->block);
	return rc;
}

/* To memory of the agent's, or from it: one of the two. */
static int
touch_move(struct xfer_part *part, struct xfer_cursor *cursor, uint8_t *to, const uint8_t *from,
	uint64_t bytes, uint32_t *ret_row)
{
	struct wait *wait = touch_wait_new();
	int rc = 0;
	while (rc == 0 && bytes > 0) {
		struct xfer_piece piece;
		xfer_cursor_piece(cursor, part, bytes, &piece);
		uint64_t moved = piece.bytes;
		*ret_row = piece.row;
		if (piece.data) {
			rc = to ? sigbus_copy(to, piece.data, moved)
				: sigbus_copy(piece.data, from, moved);
			xfer_cursor_skip(cursor, part, moved);
		} else {
			moved = touch_collect(
				wait, part, cursor, th_min_u64(bytes, GPUS_BLOCK_BYTES));
			rc = touch_carry(wait, part, moved, to, from, ret_row);
		}
		bytes -= moved;
		to += to ? moved : 0;
		from += from ? moved : 0;
	}
	wait_free(wait);
	return rc;
}

int
touch_gather(struct xfer_part *part, struct xfer_cursor *cursor, uint8_t *to, uint64_t bytes,
	uint32_t *ret_row)
{
	return touch_move(part, cursor, to, NULL, bytes, ret_row);
}

int
touch_scatter(struct xfer_part *part, struct xfer_cursor *cursor, const uint8_t *from,
	uint64_t bytes, uint32_t *ret_row)
{
	return touch_move(part, cursor, NULL, from, bytes, ret_row);
}

/* ---- digests ------------------------------------------------------------------------------- */

/* Of a chunk that lies in several places: here, block by block. */
static int
digest_here(struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest, uint32_t *ret_row)
{
	uint8_t *block = th_realloc(NULL, 1, GPUS_BLOCK_BYTES); /* not zeroed */
	struct xfer_cursor cursor;
	struct digest digest;
	int rc = 0;
	digest_init(&digest);
	xfer_cursor_init(&cursor, part, chunk);
	while (rc == 0 && cursor.left > 0) {
		uint32_t bytes = th_min_u32(cursor.left, GPUS_BLOCK_BYTES);
		rc = touch_gather(part, &cursor, block, bytes, ret_row);
		if (rc == 0)
			digest_update(&digest, block, bytes);
	}
	free(block);
	if (rc == 0)
		*ret_digest = digest_final(&digest);
	return rc;
}

int
touch_digest(struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest, uint32_t *ret_row)
{
	uint32_t bytes = chunk_bytes(xfer_part_table(part), chunk);
	struct wait *wait = touch_wait_new();
	struct xfer_cursor cursor;
	xfer_cursor_init(&cursor, part, chunk);
	int rc = 1;
	if (touch_collect(wait, part, &cursor, bytes) == bytes) {
		wait->request = (struct gpu_request){.op = GPU_HASH,
			.from = wait->spans.spans,
			.num_from = wait->spans.count,
			.bytes = bytes,
			.hashes = true};
		rc = wait_request(wait);
		*ret_digest = wait->request.digest;
		if (rc < 0)
			rc = lost(wait, part, ret_row);
	}
	wait_free(wait);
	return rc == 1 ? digest_here(part, chunk, ret_digest, ret_row) : rc;
}

/* Whether all of it behind the cursor lies on other GPUs. */
static bool
is_last_on(struct xfer_part *part, struct xfer_cursor cursor, const uint8_t *uuid)
{
	while (cursor.left > 0) {
		struct xfer_piece piece;
		xfer_cursor_piece(&cursor, part, cursor.left, &piece);
		struct gpu_space *space = piece.data ? NULL : fd_memory_space(piece.access);
		if (space && memcmp(gpu_space_uuid(space), uuid, 16) == 0)
			return false;
		xfer_cursor_skip(&cursor, part, piece.bytes);
	}
	return true;
}

int
touch_flush(struct xfer_part *part, uint32_t chunk)
{
	struct xfer_cursor cursor;
	int rc = 0;
	xfer_cursor_init(&cursor, part, chunk);
	while (rc == 0 && cursor.left > 0) {
		struct xfer_piece piece;
		uint8_t last[16];
		xfer_cursor_piece(&cursor, part, cursor.left, &piece);
		uint32_t count = (uint32_t)th_min_u64(piece.bytes, sizeof(last));
		struct xfer_cursor at = cursor;
		xfer_cursor_skip(&at, part, piece.bytes - count);
		xfer_cursor_skip(&cursor, part, piece.bytes);
		struct gpu_space *space = piece.data ? NULL : fd_memory_space(piece.access);
		uint32_t row;
		if (space && is_last_on(part, cursor, gpu_space_uuid(space)))
			rc = touch_gather(part, &at, last, count, &row);
	}
	return rc;
}
