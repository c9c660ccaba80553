/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane - see lane.h: chunks into slices, slices into batches, and what becomes of them.
 */
#include "transport/rdma/engine/lane.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/assert.h"
#include "transport/rdma/engine/rail.h"

static uint32_t
lane_under_way(const struct lane_qp *qp)
{
	return (uint16_t)(qp->posted - qp->done);
}

static const char *
lane_describe(enum verbs_status status)
{
	switch (status) {
	case VERBS_FLUSHED:
		return "a queue pair failed";
	case VERBS_ACCESS:
		return "the source's memory is not readable any more";
	case VERBS_LOCAL:
		return "the device refused a request or our memory";
	case VERBS_GONE:
		return "the source's device does not answer";
	case VERBS_OK:
	case VERBS_OTHER:
		break;
	}
	return "the device reported an error";
}

/* ---- the end ------------------------------------------------------------------------------- */

static void
set_hungry(struct lane *lane, bool hungry)
{
	if (lane->hungry == hungry)
		return;
	lane->hungry = hungry;
	if (hungry)
		lane->rail->num_wanting--;
	else
		lane->rail->num_wanting++;
}

static void
lane_free_qps(struct lane *lane)
{
	if (lane->freeing)
		return;
	lane->freeing = true;
	lane->rail->around->free_qps(lane->rail->arg, lane);
}

/* Nothing of it writes any more: the chunks are others' from here on. */
static void
lane_give_back(struct lane *lane)
{
	rail_count(&lane->rail->counters.broken, 1);
	for (uint32_t i = 0; i < lane->num_chunks; i++) {
		if (!lane->chunks[i].taken)
			continue;
		lane->chunks[i].taken = false;
		rail_count(&lane->rail->counters.chunks_back, 1);
		lane->user->give_back(lane->arg, lane->chunks[i].chunk);
	}
	lane->user->broken(lane->arg, lane->status, lane->why);
}

/* Its requests may write for ever: the chunks are nobody's. */
static void
lane_keep(struct lane *lane)
{
	rail_count(&lane->rail->counters.broken, !lane->closing);
	if (lane->user->stuck)
		lane->user->stuck(lane->arg);
	if (!lane->closing)
		lane->user->broken(lane->arg, VERBS_LOCAL,
			"a queue pair can be neither drained nor destroyed");
}

/* What it asked for is part of the window again. */
static void
count_again(struct lane *lane)
{
	lane->rail->late_bytes -= lane->late_bytes;
	lane->late_bytes = 0;
}

/* What the rail counts as outstanding and will never come. */
static void
forget_requests(struct lane *lane)
{
	count_again(lane);
	for (uint32_t i = 0; i < lane->num_qps; i++) {
		struct lane_qp *qp = &lane->qps[i];
		for (; lane_under_way(qp) > 0; qp->done++) {
			lane->rail->out_bytes -= qp->slots[qp->done % LANE_DEPTH_MAX].bytes;
			lane->rail->out_reads--;
		}
	}
	lane->out_bytes = 0;
}

/* Takes an ending lane as far as it goes. May free it. */
static void
lane_settle(struct lane *lane)
{
	if (lane->state == LANE_ENDING) {
		bool waits = false;
		for (uint32_t i = 0; i < lane->num_qps; i++)
			waits = waits || lane_under_way(&lane->qps[i]) > 0;
		if (waits && !lane->freed)
			return;
		forget_requests(lane);
		lane->state = LANE_ENDED;
		lane->deadline_ns = INT64_MAX;
		lane_free_qps(lane);
		/* What has come back writes no more, whatever becomes of its queue pair. */
		if (waits && lane->stuck)
			lane_keep(lane);
		else if (!lane->closing)
			lane_give_back(lane);
	}
	if (lane->state != LANE_ENDED || !lane->closing)
		return;
	if (!lane->closed) {
		lane->closed = true;
		lane->user->closed(lane->arg);
	}
	/* It may still be told to break, by who has not heard of its end. */
	if (lane->freed && !lane->dismissed) {
		lane->dismissed = true;
		rail_dismiss(lane->rail, lane);
	}
}

/* Goes to LANE_ENDING. settle is the caller's. */
static void
lane_end(struct lane *lane, enum verbs_status status, const char *why)
{
	struct rail *rail = lane->rail;
	if (lane->state >= LANE_ENDING)
		return;
	rail_unready(rail, lane);
	set_hungry(lane, true);
	lane->status = status;
	lane->why = why;
	lane->state = LANE_ENDING;
	/* What it says does not matter: what is posted comes back, or the queue pairs go. */
	for (uint32_t i = 0; i < lane->num_qps; i++)
		(void)rail->verbs.ops->qp_fail(lane->qps[i].qp);
	if (rail->lost)
		lane_free_qps(lane);
	else
		rail_expire_at(rail, lane, rail->around->now_ns(rail->arg) + RAIL_DRAIN_NS);
}

void
lane_lose(struct lane *lane)
{
	lane_end(lane, lane->rail->lost_status, lane->rail->lost_why);
	lane_free_qps(lane);
	lane_settle(lane);
}

void
lane_expire(struct lane *lane)
{
	lane->deadline_ns = INT64_MAX;
	if (lane->state == LANE_ENDING) {
		rail_count(&lane->rail->counters.given_up, 1);
		lane_free_qps(lane);
	} else if (lane->state == LANE_RUNNING && !lane->hungry) {
		rail_ready(lane->rail, lane);
	}
}

/* ---- chunks -------------------------------------------------------------------------------- */

static void
land(struct lane *lane, struct lane_chunk *chunk)
{
	chunk->taken = false;
	rail_count(&lane->counters.chunks, 1);
	rail_count(&lane->rail->counters.chunks, 1);
	if (!lane->closing)
		lane->user->landed(lane->arg, chunk->chunk);
}

/* Past what has been cut of the current chunk; its end ends it. */
static void
lane_advance(struct lane *lane)
{
	while (lane->piece < lane->num_pieces && lane->at == lane->pieces[lane->piece].bytes) {
		lane->piece++;
		lane->at = 0;
	}
	if (lane->piece < lane->num_pieces)
		return;
	struct lane_chunk *chunk = &lane->chunks[lane->entry];
	lane->entry = LANE_NO_ENTRY;
	chunk->cut = true;
	if (chunk->slices == 0)
		land(lane, chunk);
}

/* False: there is none, or the lane ends by it. */
static bool
lane_next_chunk(struct lane *lane)
{
	uint32_t entry = 0, chunk;
	while (lane->chunks[entry].taken)
		entry++;
	TH_ASSERT(entry < lane->num_chunks);
	if (!lane->user->take(lane->arg, &chunk))
		return false;
	lane->chunks[entry] = (struct lane_chunk){.chunk = chunk, .taken = true};
	lane->num_pieces = lane->user->pieces(lane->arg, chunk, lane->pieces, LANE_PIECES_MAX);
	TH_ASSERT(lane->num_pieces <= LANE_PIECES_MAX);
	if (lane->num_pieces == 0) {
		lane_end(lane, VERBS_LOCAL, "a chunk's memory is not registered on both devices");
		return false;
	}
	lane->entry = entry;
	lane->piece = 0;
	lane->at = 0;
	lane_advance(lane);
	return true;
}

/* Adds one slice to the batch. False: there is nothing to cut. */
static bool
lane_cut(struct lane *lane)
{
	while (lane->entry == LANE_NO_ENTRY) {
		if (!lane_next_chunk(lane))
			return false;
	}
	const struct lane_piece *piece = &lane->pieces[lane->piece];
	uint32_t bytes = th_min_u32(piece->bytes - lane->at, lane->rail->slice_bytes);
	lane->batch[lane->num_batch] = (struct verbs_read){
		.local = piece->local + lane->at,
		.remote = piece->remote + lane->at,
		.lkey = piece->lkey,
		.rkey = piece->rkey,
		.bytes = bytes,
	};
	lane->batch_entries[lane->num_batch] = lane->entry;
	lane->num_batch++;
	lane->chunks[lane->entry].slices++;
	lane->at += bytes;
	lane_advance(lane);
	return true;
}

/* ---- posting ------------------------------------------------------------------------------- */

/* Slices of one batch: the lane's window holds one of each queue pair. */
static uint32_t
batch_slices(const struct lane *lane)
{
	uint32_t most = th_min_u32(lane->rail->batch, lane->depth);
	uint64_t each = lane->window_bytes / lane->num_qps / lane->rail->slice_bytes;
	return (uint32_t)th_max_u64(th_min_u64(each, most), 1);
}

/* What may be asked for from now on, if the link stays as it was for this request. */
static void
learn_window(struct lane *lane, const struct lane_slot *slot)
{
	const struct rail *rail = lane->rail;
	if (rail->answer_ns == 0 || slot->entry == LANE_NO_ENTRY)
		return;
	int64_t took_ns = th_max_i64(rail->stepped_ns - slot->posted_ns, 1);
	double fits = (double)slot->out_bytes * (double)(rail->answer_ns / 2) / (double)took_ns;
	uint64_t least = (uint64_t)lane->num_qps * rail->slice_bytes;
	lane->window_bytes = fits < (double)rail->window_bytes
				     ? th_max_u64((uint64_t)fits, least)
				     : th_max_u64(rail->window_bytes, least);
}

/* Posts them as they are: the last is signalled. Returns what post_reads did; what lies in the
 * queue is counted as under way in any case. */
static int
lane_post(struct lane *lane, uint32_t index, struct verbs_read *reads, const uint32_t *entries,
	uint32_t num_reads)
{
	struct rail *rail = lane->rail;
	struct lane_qp *qp = &lane->qps[index];
	for (uint32_t i = 0; i < num_reads; i++) {
		uint16_t position = (uint16_t)(qp->posted + i);
		reads[i].id = rail_id(lane->stamp, lane->index, index, position);
		reads[i].signalled = i + 1 == num_reads;
	}
	int rc = rail->verbs.ops->post_reads(qp->qp, reads, num_reads);
	if (rc < 0)
		return rc;
	if (rc > 0)
		num_reads = th_min_u32(num_reads, (uint32_t)rc);
	int64_t now_ns = rail->around->now_ns(rail->arg);
	if (lane->out_bytes == 0)
		lane->moved_ns = now_ns;
	for (uint32_t i = 0; i < num_reads; i++) {
		lane->out_bytes += reads[i].bytes;
		qp->slots[qp->posted++ % LANE_DEPTH_MAX] = (struct lane_slot){
			.bytes = reads[i].bytes,
			.entry = entries[i],
			.posted_ns = now_ns,
			.out_bytes = lane->out_bytes,
		};
		rail->out_bytes += reads[i].bytes;
	}
	rail->out_reads += num_reads;
	rail_count(&lane->counters.doorbells, 1);
	rail_count(&rail->counters.doorbells, 1);
	rail_count(&lane->counters.signalled, rc == 0);
	rail_count(&rail->counters.signalled, rc == 0);
	return rc;
}

static uint32_t
roomiest(const struct lane *lane)
{
	uint32_t best = 0;
	for (uint32_t i = 1; i < lane->num_qps; i++) {
		if (lane_under_way(&lane->qps[i]) < lane_under_way(&lane->qps[best]))
			best = i;
	}
	return best;
}

/* The device took nothing. */
static enum lane_turn
lane_refused(struct lane *lane, int rc)
{
	struct rail *rail = lane->rail;
	int64_t now_ns = rail->around->now_ns(rail->arg);
	rail_count(&rail->counters.refused, 1);
	if (lane->refused_ns == INT64_MAX)
		lane->refused_ns = now_ns;
	if ((rc != -ENOMEM && rc != -EAGAIN) || now_ns - lane->refused_ns >= RAIL_PATIENCE_NS) {
		lane_end(lane, VERBS_LOCAL, "the device takes no requests");
		lane_settle(lane);
		return LANE_OVER;
	}
	rail_expire_at(rail, lane, now_ns + RAIL_REFUSED_NS);
	return LANE_FULL;
}

enum lane_turn
lane_turn(struct lane *lane)
{
	/* One that was refused is posted whole. */
	uint32_t batch = th_max_u32(batch_slices(lane), lane->num_batch);
	uint64_t batch_bytes = (uint64_t)batch * lane->rail->slice_bytes;
	uint32_t index = roomiest(lane);
	if (lane->late_bytes > 0)
		return LANE_FULL;
	if (lane->depth - lane_under_way(&lane->qps[index]) < batch)
		return LANE_FULL;
	if (lane->out_bytes > 0 && lane->out_bytes + batch_bytes > lane->window_bytes)
		return LANE_FULL;
	while (lane->num_batch < batch && lane_cut(lane))
		continue;
	if (lane->state != LANE_RUNNING) {
		lane_settle(lane);
		return LANE_OVER;
	}
	if (lane->num_batch == 0) {
		set_hungry(lane, true);
		return LANE_HUNGRY;
	}
	int rc = lane_post(lane, index, lane->batch, lane->batch_entries, lane->num_batch);
	if (rc < 0)
		return lane_refused(lane, rc);
	if (rc > 0) {
		lane_end(lane, VERBS_LOCAL, "the device took some requests of a batch and failed");
		lane_settle(lane);
		return LANE_OVER;
	}
	lane->num_batch = 0;
	lane->refused_ns = INT64_MAX;
	return LANE_POSTED;
}

/* ---- completions --------------------------------------------------------------------------- */

static void
lane_run(struct lane *lane)
{
	lane->state = LANE_RUNNING;
	set_hungry(lane, false);
	rail_ready(lane->rail, lane);
	if (lane->user->proved && !lane->closing)
		lane->user->proved(lane->arg);
}

static void
pop(struct lane *lane, struct lane_qp *qp, bool good)
{
	struct rail *rail = lane->rail;
	const struct lane_slot *slot = &qp->slots[qp->done++ % LANE_DEPTH_MAX];
	rail->out_bytes -= slot->bytes;
	rail->out_reads--;
	lane->out_bytes -= slot->bytes;
	if (!good)
		return;
	rail_count(&lane->counters.reads, 1);
	rail_count(&rail->counters.reads, 1);
	if (slot->entry == LANE_NO_ENTRY) {
		if (--lane->probes == 0 && lane->state == LANE_PROBING)
			lane_run(lane);
		return;
	}
	rail_count(&lane->counters.bytes, slot->bytes);
	rail_count(&rail->counters.bytes, slot->bytes);
	struct lane_chunk *chunk = &lane->chunks[slot->entry];
	if (--chunk->slices == 0 && chunk->cut)
		land(lane, chunk);
}

void
lane_done(struct lane *lane, uint32_t index, uint16_t position, enum verbs_status status)
{
	struct lane_qp *qp = index < lane->num_qps ? &lane->qps[index] : NULL;
	if (!qp || (uint16_t)(position - qp->done) >= lane_under_way(qp)) {
		rail_count(&lane->rail->counters.strange, 1);
		return;
	}
	count_again(lane);
	lane->moved_ns = lane->rail->stepped_ns;
	/* An error says nothing about those before it that were not signalled: devices differ. */
	qp->bad = qp->bad || status != VERBS_OK;
	if (!qp->bad)
		learn_window(lane, &qp->slots[position % LANE_DEPTH_MAX]);
	for (uint32_t i = (uint16_t)(position - qp->done) + 1u; i > 0; i--)
		pop(lane, qp, !qp->bad);
	if (qp->bad)
		lane_end(lane, status, lane_describe(status));
	if (lane->state >= LANE_ENDING)
		lane_settle(lane);
	else if (lane->state == LANE_RUNNING && !lane->hungry)
		rail_ready(lane->rail, lane);
}

/* ---- messages ------------------------------------------------------------------------------ */

static void
on_start(struct loop_task *task)
{
	struct lane *lane = loop_container(task, struct lane, start_task);
	if (lane->state != LANE_NEW)
		return;
	rail_admit(lane->rail, lane);
	if (lane->rail->lost) {
		lane_lose(lane);
		return;
	}
	if (lane->probe.bytes == 0) {
		lane_run(lane);
		return;
	}
	lane->state = LANE_PROBING;
	lane->probes = lane->num_qps;
	static const uint32_t no_entry = LANE_NO_ENTRY;
	struct verbs_read probe = {
		.local = lane->probe.local,
		.remote = lane->probe.remote,
		.lkey = lane->probe.lkey,
		.rkey = lane->probe.rkey,
		.bytes = lane->probe.bytes,
	};
	for (uint32_t i = 0; i < lane->num_qps; i++) {
		if (lane_post(lane, i, &probe, &no_entry, 1) != 0) {
			lane_end(lane, VERBS_LOCAL, "the device takes no requests");
			lane_settle(lane);
			return;
		}
	}
}

static void
on_kick(struct loop_task *task)
{
	struct lane *lane = loop_container(task, struct lane, kick_task);
	if (lane->state != LANE_RUNNING || !lane->hungry)
		return;
	set_hungry(lane, false);
	rail_ready(lane->rail, lane);
}

static void
on_break(struct loop_task *task)
{
	struct lane *lane = loop_container(task, struct lane, break_task);
	lane_end(lane, __atomic_load_n(&lane->break_status, __ATOMIC_RELAXED),
		__atomic_load_n(&lane->break_why, __ATOMIC_RELAXED));
	lane_settle(lane);
}

static void
lane_on_close(struct loop_task *task)
{
	struct lane *lane = loop_container(task, struct lane, close_task);
	TH_ASSERT(!lane->closing);
	lane->closing = true;
	lane_end(lane, VERBS_FLUSHED, "closed");
	lane_settle(lane);
}

static void
on_freed(struct loop_task *task)
{
	struct lane *lane = loop_container(task, struct lane, freed_task);
	lane->freed = true;
	lane_settle(lane);
}

static void
post_task(struct lane *lane, struct loop_task *task)
{
	lane->rail->around->post(lane->rail->arg, task);
}

int
lane_new(struct rail *rail, const struct lane_config *config, struct lane **ret_lane)
{
	TH_ASSERT(config->num_qps > 0 && config->num_qps <= LANE_QPS_MAX);
	TH_ASSERT(config->depth > 0 && config->depth <= LANE_DEPTH_MAX);
	uint32_t requests = config->num_qps * config->depth;
	uint32_t num_chunks = requests + LANE_BATCH + 1;
	struct lane *lane = calloc(1, sizeof(*lane) + num_chunks * sizeof(lane->chunks[0]));
	if (!lane)
		return -ENOMEM;
	if (!rail_reserve(rail, requests)) {
		free(lane);
		return -ENOSPC;
	}
	lane->rail = rail;
	lane->user = config->user;
	lane->arg = config->arg;
	lane->hungry = true;
	lane->index = RAIL_LANES_MAX;
	lane->depth = config->depth;
	lane->num_qps = config->num_qps;
	lane->deadline_ns = INT64_MAX;
	lane->refused_ns = INT64_MAX;
	lane->probe = config->probe;
	lane->entry = LANE_NO_ENTRY;
	lane->start_task.run = on_start;
	lane->kick_task.run = on_kick;
	lane->break_task.run = on_break;
	lane->close_task.run = lane_on_close;
	lane->freed_task.run = on_freed;
	for (uint32_t i = 0; i < config->num_qps; i++)
		lane->qps[i].qp = config->qps[i];
	lane->num_chunks = num_chunks;
	/* Until something has come: half a batch of each queue pair. */
	uint64_t slices = (uint64_t)config->num_qps * (LANE_BATCH / 2);
	lane->window_bytes = rail->answer_ns == 0 ? UINT64_MAX : slices * rail->slice_bytes;
	*ret_lane = lane;
	return 0;
}

void
lane_start(struct lane *lane)
{
	post_task(lane, &lane->start_task);
}

void
lane_kick(struct lane *lane)
{
	post_task(lane, &lane->kick_task);
}

void
lane_break(struct lane *lane, enum verbs_status status, const char *why)
{
	__atomic_store_n(&lane->break_status, status, __ATOMIC_RELAXED);
	__atomic_store_n(&lane->break_why, why, __ATOMIC_RELAXED);
	post_task(lane, &lane->break_task);
}

void
lane_close(struct lane *lane)
{
	post_task(lane, &lane->close_task);
}

void
lane_counters(const struct lane *lane, struct lane_counters *ret_counters)
{
	*ret_counters = (struct lane_counters){
		.bytes = __atomic_load_n(&lane->counters.bytes, __ATOMIC_RELAXED),
		.reads = __atomic_load_n(&lane->counters.reads, __ATOMIC_RELAXED),
		.chunks = __atomic_load_n(&lane->counters.chunks, __ATOMIC_RELAXED),
		.doorbells = __atomic_load_n(&lane->counters.doorbells, __ATOMIC_RELAXED),
		.signalled = __atomic_load_n(&lane->counters.signalled, __ATOMIC_RELAXED),
	};
}
