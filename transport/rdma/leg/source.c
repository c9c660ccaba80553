/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source - see source.h.
 */
#include "transport/rdma/leg/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "transport/part/packed.h"
#include "transport/rdma/leg/source_own.h"
#include "transport/rdma/rdma.h"

#define FILL_AT_ONCE 4u /* chunks */
#define CHECKS_OF_ONE 3u

struct loop *
source_acceptor(const struct source *source)
{
	return source->leg->transport->acceptor;
}

struct source *
source_of(struct leg_out_path *path)
{
	return loop_container(path, struct source, path);
}

/* ---- the end ------------------------------------------------------------------------------ */

static bool
queues_left(const struct source *source)
{
	for (uint32_t i = 0; i < source->num_lanes; i++) {
		if (source->lanes[i].made)
			return true;
	}
	return false;
}

static void
source_run_free(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, free_task);
	for (uint32_t i = 0; i < source->num_lanes; i++) {
		struct source_lane *lane = &source->lanes[i];
		int rc = lane->made ? queues_free(rdma_rails(source->rdma), &lane->queues) : 0;
		lane->made = false;
		if (rc == 0)
			continue;
		source->stuck = true;
		log_error("rdma",
			"cannot destroy queue pairs of a leg, so its memory stays taken "
			"leg=%" PRIu64 " why='%s'",
			source->leg->id, th_strerror(rc));
	}
	loop_post(source_acceptor(source), &source->freed_task);
}

/* The leg goes on by data connections, where each chunk may be asked for as often as ever. */
static void
end_staging(struct source *source)
{
	if (!source->staging.slab)
		return;
	staging_fini(&source->staging, source->stuck);
	leg_out_ask_anew(source->leg);
}

static bool
source_gone(struct leg_out_path *path)
{
	const struct source *source = source_of(path);
	/* Of what is staged no queue pair knows where it came from. */
	bool held = source->stuck && !source->staging.slab;
	return source->closing && !source->at_keeper && source->checks_closed &&
	       !queues_left(source) && (!held || source->leg->transport->closing);
}

void
source_settle(struct source *source)
{
	if (source->at_keeper || (!source->closing && source->state != SOURCE_LEAVING))
		return;
	if (queues_left(source)) {
		source->at_keeper = true;
		loop_post(rdma_keeper(source->rdma), &source->free_task);
	} else if (!source->closing) {
		end_staging(source);
		source->state = SOURCE_OVER;
		source->say_decline = true;
		leg_out_look(source->leg);
	} else if (source_gone(&source->path)) {
		leg_out_settle(source->leg);
	}
}

void
source_leave(struct source *source, const char *why)
{
	struct leg_out *leg = source->leg;
	if (source->state >= SOURCE_LEAVING || source->closing)
		return;
	source->state = SOURCE_LEAVING;
	staging_stop(&source->staging);
	(void)th_fail(&source->why, TH_E_NO_PATH, "%s", why);
	count_up(&leg->transport->counters.rdma_declines, 1);
	log_warn("rdma", "a leg is served without RDMA leg=%" PRIu64 " reader=%s why='%s'", leg->id,
		leg->peer, why);
	source_settle(source);
}

static void
run_freed(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, freed_task);
	source->at_keeper = false;
	source_settle(source);
}

static void
checks_closed(struct check_list *list)
{
	struct source *source = loop_container(list, struct source, checks);
	loop_post(source_acceptor(source), &source->checks_closed_task);
}

static void
run_checks_closed(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, checks_closed_task);
	source->checks_closed = true;
	source_settle(source);
}

static void
source_close_path(struct leg_out_path *path, bool reset)
{
	struct source *source = source_of(path);
	(void)reset;
	source->closing = true;
	staging_stop(&source->staging);
	__atomic_store_n(&source->ending, true, __ATOMIC_RELAXED);
	if (source->at_keeper)
		setup_hurry(rdma_setup(source->rdma), &source->make_turn);
	if (source->has_checks)
		check_list_close(&source->checks);
	else
		source->checks_closed = true;
	source_settle(source);
}

/* The reader does without; an answer to our own DECLINE is not needed, so none is sent. */
static int
on_decline(struct source *source, const struct frame *frame, const uint8_t *payload)
{
	char text[TH_CTL_TEXT_BYTES + 1];
	if (source->state >= SOURCE_LEAVING)
		return 0;
	control_sentence(payload, (size_t)frame->bytes, text);
	source_leave(source, text);
	return 0;
}

/* ---- what the reader says of itself ------------------------------------------------------- */

/* Prefix and chunks are bounded and grow, so a reader can seem alive for so long only. */
static int
on_alive(struct source *source, const struct frame *frame, const uint8_t *payload)
{
	struct leg_out *leg = source->leg;
	const struct chunk_table *table = xfer_part_table(leg->part);
	uint64_t bytes = frame_decode_alive(payload);
	if (frame->first > table->num_chunks || frame->count > 2 * table->num_chunks ||
		frame->first < source->reader_prefix || frame->count < source->reader_chunks ||
		(frame->first == source->reader_prefix && frame->count == source->reader_chunks &&
			bytes == source->reader_bytes) ||
		bytes < source->reader_bytes || bytes / 4 > table->bytes)
		return TH_E_PROTOCOL;
	uint64_t more = bytes - source->reader_bytes;
	source->reader_prefix = frame->first;
	source->reader_chunks = frame->count;
	source->reader_bytes = bytes;
	leg_out_alive(leg, more);
	return 0;
}

static int
on_check(struct source *source, const struct frame *frame)
{
	struct leg_out *leg = source->leg;
	uint32_t chunk = frame->first;
	if (source->checked != SOURCE_NO_CHUNK || !source->places || !leg->verify ||
		chunk >= leg->prefix_sent || source->state < SOURCE_SERVING ||
		leg_out_asked(leg, chunk) > CHECKS_OF_ONE)
		return TH_E_PROTOCOL;
	source->checked = chunk;
	check_list_put(&source->checks, chunk, SOURCE_CHECK);
	return 0;
}

static void
run_checked(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, checked_task);
	struct leg_out *leg = source->leg;
	int code = source->checked_code;
	if (source->closing)
		return;
	if (code == 0) {
		source->say_check = true;
		leg_out_wake(leg);
	} else if (code == TH_E_CONTRACT) {
		leg_out_changed(leg, source->checked);
	} else {
		leg_out_lost(leg, code, UINT32_MAX);
	}
}

static void
run_lost(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, lost_task);
	if (!source->closing)
		leg_out_lost(source->leg, TH_E_STALE_MEMORY, UINT32_MAX);
}

static void
source_do_check(struct check_list *list, uint32_t chunk, uint8_t what)
{
	struct source *source = loop_container(list, struct source, checks);
	struct xfer_part *part = source->leg->part;
	int rc;
	if (what == SOURCE_CHECK) {
		source->checked_code = packed_check(part, chunk);
		loop_post(source_acceptor(source), &source->checked_task);
		return;
	}
	do {
		rc = packed_fill(part, FILL_AT_ONCE);
	} while (rc > 0 && !__atomic_load_n(&source->ending, __ATOMIC_RELAXED));
	__atomic_store_n(&source->filling, false, __ATOMIC_SEQ_CST);
	if (rc < 0)
		loop_post(source_acceptor(source), &source->lost_task);
	else
		leg_out_nudge(source->leg);
}

/* What has come is packed, where it is READ from a copy that is packed. */
static void
source_fill(struct leg_out_path *path)
{
	struct source *source = source_of(path);
	if (source->closing || !source->places || source->state >= SOURCE_LEAVING)
		return;
	struct xfer_part *part = source->leg->part;
	/* What another leg's thread packs that one tells of. */
	if (packed_lacks(part) && !__atomic_exchange_n(&source->filling, true, __ATOMIC_SEQ_CST))
		check_list_put(&source->checks, xfer_part_table(part)->num_chunks, SOURCE_FILL);
}

static int
on_stage(struct source *source, const struct frame *frame)
{
	/* What was on its way when we left. */
	if (source->state >= SOURCE_LEAVING)
		return 0;
	if (!source->staging.slab || source->state != SOURCE_SERVING)
		return TH_E_PROTOCOL;
	int rc = staging_frame(&source->staging, frame);
	if (rc == 0 || rc == TH_E_PROTOCOL)
		return rc;
	source_leave(source, "its agent can start no more threads that copy");
	return 0;
}

static int
take_frame(struct leg_out_path *path, const struct frame *frame, const uint8_t *payload)
{
	struct source *source = source_of(path);
	if (source->closing)
		return TH_E_PROTOCOL;
	if (frame->kind == FRAME_RDMA_OFFER)
		return source_offer(source, frame, payload);
	if (frame->kind == FRAME_RDMA_DECLINE)
		return on_decline(source, frame, payload);
	if (frame->kind == FRAME_ALIVE)
		return on_alive(source, frame, payload);
	if (frame->kind == FRAME_CHECK)
		return on_check(source, frame);
	if (frame->kind == FRAME_STAGE)
		return on_stage(source, frame);
	return TH_E_PROTOCOL;
}

/* ---- the clock ---------------------------------------------------------------------------- */

static int64_t
source_tick(struct leg_out_path *path, int64_t now_ns)
{
	struct source *source = source_of(path);
	if (source->closing || source->state != SOURCE_WAITING)
		return INT64_MAX;
	source_name_rails(source, now_ns);
	if (source->closing || source->state != SOURCE_WAITING)
		return INT64_MAX;
	return await_next(&source->await, now_ns);
}

static uint32_t
prefix_of(struct leg_out_path *path, uint32_t prefix)
{
	const struct source *source = source_of(path);
	if (source->state >= SOURCE_LEAVING || !source->places)
		return prefix;
	return th_min_u32(prefix, packed_prefix(source->leg->part));
}

/* The reader has all there is, and waits for the rest; or it is not its turn. */
static bool
waits(struct leg_out_path *path)
{
	const struct source *source = source_of(path);
	uint32_t prefix = source->leg->prefix_sent;
	if (source->state >= SOURCE_LEAVING)
		return false;
	/* What comes by data connections meanwhile has its own clock. */
	if (source->state < SOURCE_SERVING)
		return !leg_out_streams(source->leg) &&
		       (source->state != SOURCE_NAMED || th_now_ns() < source->deadline_ns);
	return prefix < xfer_part_table(source->leg->part)->num_chunks &&
	       source->reader_prefix >= prefix;
}

static bool
source_moves(struct leg_out_path *path)
{
	return source_of(path)->state == SOURCE_SERVING;
}

/* Whether one of its ends copies, and why. */
static void
source_do_say(struct leg_out_path *path, struct transport_event *ret_event)
{
	const struct source *source = source_of(path);
	const char *copy = NULL;
	if (!source_moves(path))
		return;
	if (source->staging.slab)
		copy = source->staging.why;
	else if (source->reader_stages)
		copy = "the reader copies into its memory";
	memcpy(ret_event->transport, copy ? "rdma-copy" : "rdma", copy ? 10 : 5);
	if (copy)
		snprintf(ret_event->copy, sizeof(ret_event->copy), "%s", copy);
}

/* ---- the beginning ------------------------------------------------------------------------ */

/* For a reader that takes RDMA, and READs what is staged if it takes that. It may have a reason to
 * decline. */
static struct leg_out_path *
source_open_path(struct leg_out *leg, unsigned hello_flags, unsigned *ret_welcome_flags)
{
	struct th_err err = {0};
	if (!(hello_flags & FRAME_TAKES_RDMA) || !leg->transport->rdma ||
		xfer_part_table(leg->part)->num_chunks == 0)
		return NULL;
	struct source *source = th_calloc(1, sizeof(*source));
	source->path.ops = &source_ops;
	source->leg = leg;
	source->rdma = leg->transport->rdma;
	source->takes_staged = (hello_flags & FRAME_TAKES_STAGED) != 0;
	source->checked = SOURCE_NO_CHUNK;
	source->checks.check = source_do_check;
	source->checks.closed = checks_closed;
	source->free_task.run = source_run_free;
	source->freed_task.run = run_freed;
	source_setup_init(source);
	source->checked_task.run = run_checked;
	source->lost_task.run = run_lost;
	source->checks_closed_task.run = run_checks_closed;
	int rc = source_prepare(source, &err);
	if (rc < 0 && err.text[0] == '\0')
		(void)th_fail(&err, rc, "%s", th_strerror(rc));
	if (rc < 0)
		source->why = err;
	*ret_welcome_flags |= FRAME_OFFERS_RDMA | (source_later(source) ? FRAME_RDMA_LATER : 0u);
	return &source->path;
}

static void
source_start(struct leg_out_path *path)
{
	struct source *source = source_of(path);
	source->await.begun_ns = th_now_ns();
	if (source->why.text[0]) {
		struct th_err why = source->why;
		source_leave(source, why.text);
		return;
	}
	source_fill(path);
	source_name_rails(source, source->await.begun_ns);
}

static void
source_free_path(struct leg_out_path *path)
{
	struct source *source = source_of(path);
	staging_fini(&source->staging, source->stuck);
	places_free(&source->extents, source->places);
	extents_fini(&source->extents);
	map_fini(&source->map);
	if (source->has_checks)
		check_list_fini(&source->checks);
	free(source);
}

/* Of what a reader sends: a sentence, or its ends of lanes. */
#define PAYLOAD_MAX                                                                                \
	(WIRE_LANES_MAX * WIRE_LANE_BYTES > TH_CTL_TEXT_BYTES ? WIRE_LANES_MAX * WIRE_LANE_BYTES   \
							      : TH_CTL_TEXT_BYTES)

const struct leg_out_path_ops source_ops = {
	.frame_kinds = 1u << FRAME_RDMA_OFFER | 1u << FRAME_RDMA_DECLINE | 1u << FRAME_ALIVE |
		       1u << FRAME_CHECK | 1u << FRAME_STAGE,
	.payload_max = PAYLOAD_MAX,
	.payload_kinds = 1u << FRAME_RDMA_OFFER | 1u << FRAME_RDMA_DECLINE | 1u << FRAME_ALIVE,
	.open = source_open_path,
	.start = source_start,
	.frame = take_frame,
	.refill = source_refill,
	.nudged = source_fill,
	.tick = source_tick,
	.prefix = prefix_of,
	.waits = waits,
	.moves = source_moves,
	.say = source_do_say,
	.close = source_close_path,
	.gone = source_gone,
	.free = source_free_path,
};
