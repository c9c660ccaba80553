/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_lane - what the lanes of a leg ask and tell, on their rails' threads, and what is done
 * with a chunk that has landed, on the threads of checks.
 */
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/name.h"
#include "transport/cuda/agent/touch.h"
#include "transport/part/packed.h"
#include "transport/rdma/leg/reader_own.h"

/* ---- what to fetch ------------------------------------------------------------------------ */

/* Chunks that the part may have already are looked at first: not here, that would be slow. What
 * GPUs look at the ledger hands out when they have. */
bool
reader_next(struct reader *reader, uint32_t limit, uint32_t *ret_chunk)
{
	struct chunk_ledger *ledger = &reader->leg->ledger;
	uint32_t chunk;
	if (!ledger->hashes_here)
		return chunk_ledger_take(ledger, limit, ret_chunk);
	bool found = reader->num_ready > 0;
	if (found) {
		*ret_chunk = reader->ready[0];
		memmove(reader->ready, reader->ready + 1,
			--reader->num_ready * sizeof(reader->ready[0]));
	}
	while (reader->num_ready + reader->num_looking < READER_LOOKS_MAX &&
		chunk_ledger_take(ledger, limit, &chunk)) {
		reader->num_looking++;
		check_list_put(&reader->checks, chunk, READER_LOOK);
	}
	return found;
}

static bool
take_from_ledger(struct reader *reader, uint32_t limit, uint32_t *ret_chunk)
{
	pthread_mutex_lock(&reader->lock);
	bool found = !reader->stopping && reader_next(reader, limit, ret_chunk);
	pthread_mutex_unlock(&reader->lock);
	return found;
}

static bool
reader_lane_take(void *arg, uint32_t *ret_chunk)
{
	struct reader_lane *lane = arg;
	struct reader *reader = lane->reader;
	struct leg_in *leg = reader->leg;
	uint32_t limit = __atomic_load_n(&leg->source_prefix, __ATOMIC_ACQUIRE);
	bool found;
	if (__atomic_load_n(&reader->stopping, __ATOMIC_RELAXED))
		return false;
	if (reader_stages(reader))
		found = reader_stage_take(reader, limit, ret_chunk);
	else
		found = take_from_ledger(reader, limit, ret_chunk);
	if (found)
		__atomic_add_fetch(&lane->num_taken, 1, __ATOMIC_RELAXED);
	return found;
}

static uint32_t
pieces(void *arg, uint32_t chunk, struct lane_piece *ret_pieces, uint32_t pieces_max)
{
	struct reader_lane *lane = arg;
	struct reader *reader = lane->reader;
	struct map_read read = {.chunk = chunk, .lane = lane->index, .rail = lane->rail};
	if (reader_stages(reader))
		reader_stage_place(reader, &read);
	else
		read.own = places_chunk(&reader->extents, reader->places, chunk);
	if (!reader->stage.slab)
		__atomic_store_n(&reader->touched, true, __ATOMIC_RELAXED);
	return map_pieces(&reader->map, &reader->extents, &read, ret_pieces, pieces_max);
}

static void
reader_lane_give_back(void *arg, uint32_t chunk)
{
	struct reader_lane *lane = arg;
	__atomic_sub_fetch(&lane->num_taken, 1, __ATOMIC_RELAXED);
	if (reader_stages(lane->reader))
		reader_stage_give_back(lane->reader, chunk);
	else
		chunk_ledger_give_back(&lane->reader->leg->ledger, chunk);
}

void
reader_stop_taking(struct reader *reader)
{
	pthread_mutex_lock(&reader->lock);
	__atomic_store_n(&reader->stopping, true, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < reader->num_ready; i++)
		chunk_ledger_give_back(&reader->leg->ledger, reader->ready[i]);
	reader->num_ready = 0;
	reader_stage_stop(reader);
	pthread_mutex_unlock(&reader->lock);
}

/* ---- what has come ------------------------------------------------------------------------ */

void
reader_fail(struct reader *reader, int code, bool own)
{
	if (__atomic_exchange_n(&reader->failed, true, __ATOMIC_ACQ_REL))
		return;
	reader->failed_code = code;
	reader->failed_own = own;
	loop_post(reader->leg->transport->acceptor, &reader->failed_task);
}

void
reader_arrived(struct reader *reader, uint32_t chunk, const struct th_hash *digest)
{
	int result = chunk_ledger_arrived(&reader->leg->ledger, chunk, digest);
	if (result < 0)
		reader_fail(reader, result, false);
	else
		leg_in_counted(reader->leg, result);
}

void
reader_mismatched(struct reader *reader, uint32_t chunk)
{
	int result = chunk_ledger_mismatched(&reader->leg->ledger, chunk);
	if (result < 0)
		reader_fail(reader, result, false);
	else
		leg_in_counted(reader->leg, result);
}

static void
landed(void *arg, uint32_t chunk)
{
	struct reader_lane *lane = arg;
	struct reader *reader = lane->reader;
	struct leg_in *leg = reader->leg;
	uint64_t bytes = chunk_bytes(xfer_part_table(leg->part), chunk);
	leg_in_pass_points(leg, chunk);
	__atomic_sub_fetch(&lane->num_taken, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&reader->landed, 1, __ATOMIC_RELAXED);
	leg_in_moved(leg, bytes, th_now_ns());
	count_up(&leg->transport->counters.bytes_in_rdma, bytes);
	if (reader_stages(reader)) {
		count_up(&leg->transport->counters.bytes_in_copy, bytes);
		if (reader_stage_landed(reader, chunk))
			return;
	}
	/* What a NIC has written to a GPU is not seen there by itself. */
	if (reader->leg->verify || packed_has(leg->part, chunk) || !xfer_part_direct(leg->part))
		check_list_put(&reader->checks, chunk, READER_LANDED);
	else
		reader_arrived(reader, chunk, NULL);
}

void
reader_doubt(struct reader *reader, uint32_t chunk)
{
	count_up(&reader->leg->transport->counters.checksum_failures, 1);
	/* A source that stages looks at it by itself when it is asked for it once more. */
	if (reader->stage.num_source > 0) {
		reader_mismatched(reader, chunk);
		return;
	}
	pthread_mutex_lock(&reader->lock);
	reader->doubts[reader->num_doubts++] = chunk;
	pthread_mutex_unlock(&reader->lock);
	loop_post(reader->leg->transport->acceptor, &reader->doubt_task);
}

bool
reader_next_doubt(struct reader *reader, uint32_t *ret_chunk)
{
	pthread_mutex_lock(&reader->lock);
	bool found = reader->num_doubts > 0;
	if (found)
		*ret_chunk = reader->doubts[--reader->num_doubts];
	pthread_mutex_unlock(&reader->lock);
	return found;
}

static void
reader_lane_judge(struct reader *reader, uint32_t chunk)
{
	struct leg_in *leg = reader->leg;
	struct xfer_part *part = leg->part;
	const uint8_t *data = reader_stage_data(reader, chunk);
	struct th_hash digest = {0};
	const struct th_hash *verified = reader->leg->verify ? &digest : NULL;
	int64_t before_ns = th_now_ns();
	int rc = 0;
	if (data)
		digest = digest_of(data, chunk_bytes(xfer_part_table(part), chunk));
	else if (packed_has(part, chunk))
		rc = packed_landed(part, chunk, reader->leg->verify ? &digest : NULL);
	else if (reader->leg->verify)
		rc = part_digest(part, chunk, &digest);
	else
		rc = touch_flush(part, chunk);
	if (reader->leg->verify)
		leg_in_verified(leg, th_now_ns() - before_ns);
	/* What is READ lies below the prefix that the source has told, so its digest is known. */
	if (rc < 0)
		reader_fail(reader, rc, true);
	else if (reader->leg->verify && chunk < xfer_part_digest_count(part) &&
		 !th_hash_equal(digest, *xfer_part_digest(part, chunk))) {
		(void)reader_stage_judged(reader, chunk, false, NULL);
		reader_doubt(reader, chunk);
	} else if (!reader_stage_judged(reader, chunk, true, verified))
		reader_arrived(reader, chunk, verified);
}

/* Does the part have the bytes of this chunk already? */
static void
reader_lane_look(struct reader *reader, uint32_t chunk)
{
	struct leg_in *leg = reader->leg;
	int result;
	bool here = chunk_ledger_reuse(&leg->ledger, chunk, &result);
	leg_in_lives(leg, th_now_ns());
	pthread_mutex_lock(&reader->lock);
	reader->num_looking--;
	if (!here && reader->stopping)
		chunk_ledger_give_back(&leg->ledger, chunk);
	else if (!here)
		reader->ready[reader->num_ready++] = chunk;
	pthread_mutex_unlock(&reader->lock);
	leg_in_counted(reader->leg, result);
	leg_in_kick_soon(leg);
}

void
reader_check(struct check_list *list, uint32_t chunk, uint8_t what)
{
	struct reader *reader = loop_container(list, struct reader, checks);
	if (what == READER_LOOK)
		reader_lane_look(reader, chunk);
	else
		reader_lane_judge(reader, chunk);
}

/* ---- how the lane is ---------------------------------------------------------------------- */

static void
proved(void *arg)
{
	struct reader_lane *lane = arg;
	loop_post(lane->reader->leg->transport->acceptor, &lane->proved_task);
}

static void
reader_lane_broken(void *arg, enum verbs_status status, const char *why)
{
	struct reader_lane *lane = arg;
	lane->status = status;
	lane->why = why;
	loop_post(lane->reader->leg->transport->acceptor, &lane->broken_task);
}

static void
stuck(void *arg)
{
	((struct reader_lane *)arg)->stuck = true;
}

static void
reader_lane_closed(void *arg)
{
	struct reader_lane *lane = arg;
	rdma_lane_remove(lane->reader->rdma, &lane->entry);
	/* A queue pair that stays keeps its device from being closed. */
	if (lane->queues.held && !lane->stuck)
		rail_unhold(rdma_rails(lane->reader->rdma), lane->rail);
	lane->queues.held = false;
	loop_post(lane->reader->leg->transport->acceptor, &lane->closed_task);
}

const struct lane_user reader_lane_user = {
	.take = reader_lane_take,
	.pieces = pieces,
	.landed = landed,
	.give_back = reader_lane_give_back,
	.broken = reader_lane_broken,
	.stuck = stuck,
	.proved = proved,
	.closed = reader_lane_closed,
};
