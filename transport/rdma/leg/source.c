/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source - see source.h. The acceptor's, but for what setup, the keeper and th-check run.
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
#include "transport/rdma/memory/region.h"
#include "transport/rdma/rdma.h"

#define FILL_AT_ONCE 4u /* chunks */
#define CHECKS_OF_ONE 3u

static struct loop *
source_acceptor(const struct source *source)
{
	return source->leg->transport->acceptor;
}

static struct source *
source_of(struct leg_out_path *path)
{
	return loop_container(path, struct source, path);
}

/* ---- the end ------------------------------------------------------------------------------ */

static bool
source_queues_left(const struct source *source)
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
	       !source_queues_left(source) && (!held || source->leg->transport->closing);
}

/* A source that closes or leaves: takes it as far as it goes. */
static void
source_settle(struct source *source)
{
	if (source->at_keeper || (!source->closing && source->state != SOURCE_LEAVING))
		return;
	if (source_queues_left(source)) {
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
source_run_freed(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, freed_task);
	source->at_keeper = false;
	source_settle(source);
}

static void
source_checks_closed(struct check_list *list)
{
	struct source *source = loop_container(list, struct source, checks);
	loop_post(source_acceptor(source), &source->checks_closed_task);
}

static void
source_run_checks_closed(struct loop_task *task)
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
source_on_decline(struct source *source, const struct frame *frame, const uint8_t *payload)
{
	char text[TH_CTL_TEXT_BYTES + 1];
	if (source->state >= SOURCE_LEAVING)
		return 0;
	control_sentence(payload, (size_t)frame->bytes, text);
	source_leave(source, text);
	return 0;
}

/* ---- what the reader is told -------------------------------------------------------------- */

static void
put_rails(struct source *source)
{
	struct leg_out *leg = source->leg;
	uint8_t payload[WIRE_RAILS_MAX * WIRE_RAIL_BYTES];
	struct frame frame = {.kind = FRAME_RDMA_RAILS,
		.leg = leg->reader_leg,
		.count = source->num_rails,
		.bytes = (uint64_t)source->num_rails * WIRE_RAIL_BYTES};
	wire_encode_rails(source->named, source->num_rails, payload);
	leg_out_put(leg, &frame, payload);
}

static void
put_accept(struct source *source)
{
	struct leg_out *leg = source->leg;
	struct wire_lane lanes[WIRE_LANES_MAX];
	const struct staging *staging = &source->staging;
	uint8_t payload[WIRE_LANES_MAX * WIRE_LANE_BYTES + TH_CTL_TEXT_BYTES];
	size_t lanes_bytes = (size_t)source->num_lanes * WIRE_LANE_BYTES;
	size_t why_bytes = staging->slab ? strlen(staging->why) : 0;
	for (uint32_t i = 0; i < source->num_lanes; i++)
		lanes[i] = (struct wire_lane){.rail = source->lanes[i].offered.rail,
			.made = source->lanes[i].made,
			.end = source->lanes[i].queues.own};
	struct frame frame = {.kind = FRAME_RDMA_ACCEPT,
		.flags = staging->slab ? FRAME_STAGES : 0,
		.leg = leg->reader_leg,
		.first = source->map.num_keys,
		.count = source->num_lanes,
		.bytes = lanes_bytes + why_bytes};
	wire_encode_lanes(lanes, source->num_lanes, payload);
	memcpy(payload + lanes_bytes, staging->why, why_bytes);
	leg_out_put(leg, &frame, payload);
}

/* The buffer is empty, and takes one frame of any size. */
static void
put_keys(struct source *source)
{
	uint32_t count = th_min_u32(source->map.num_keys - source->keys_told, WIRE_KEYS_AT_ONCE);
	struct frame frame = {.kind = FRAME_RDMA_KEYS,
		.leg = source->leg->reader_leg,
		.first = source->keys_told,
		.count = count,
		.bytes = (uint64_t)count * wire_key_bytes(source->num_lanes)};
	wire_encode_keys(source->map.keys + source->keys_told, count, source->num_lanes,
		leg_out_room(source->leg));
	leg_out_put(source->leg, &frame, NULL);
	source->keys_told += count;
	if (source->staging.slab && source->keys_told == source->map.num_keys)
		source->state = SOURCE_SERVING; /* slots have no extents */
}

static void
put_extents(struct source *source)
{
	uint32_t count =
		th_min_u32(source->map.num_extents - source->extents_told, WIRE_EXTENTS_AT_ONCE);
	struct frame frame = {.kind = FRAME_RDMA_MAP,
		.leg = source->leg->reader_leg,
		.first = source->extents_told,
		.count = count,
		.bytes = (uint64_t)count * WIRE_EXTENT_BYTES};
	wire_encode_extents(
		source->map.extents + source->extents_told, count, leg_out_room(source->leg));
	leg_out_put(source->leg, &frame, NULL);
	source->extents_told += count;
	if (source->extents_told == source->map.num_extents)
		source->state = SOURCE_SERVING;
}

static void
put_decline(struct source *source)
{
	struct leg_out *leg = source->leg;
	size_t bytes = strlen(source->why.text);
	struct frame frame = {.kind = FRAME_RDMA_DECLINE,
		.leg = leg->reader_leg,
		.count = 0u - (uint32_t)TH_E_NO_PATH,
		.bytes = bytes};
	leg_out_put(leg, &frame, (const uint8_t *)source->why.text);
}

static void
source_put_check(struct source *source)
{
	struct frame frame = {.kind = FRAME_CHECK,
		.leg = source->leg->reader_leg,
		.first = source->checked,
		.count = 1};
	leg_out_put(source->leg, &frame, NULL);
	source->checked = SOURCE_NO_CHUNK;
}

/* The control connection's buffer is empty: puts the next frame in, if there is one. */
static bool
source_refill(struct leg_out_path *path)
{
	struct source *source = source_of(path);
	if (source->closing)
		return false;
	if (source->say_decline) {
		source->say_decline = false;
		put_decline(source);
	} else if (source->say_rails) {
		source->say_rails = false;
		put_rails(source);
	} else if (source->say_accept) {
		source->say_accept = false;
		put_accept(source);
	} else if (source->say_check) {
		source->say_check = false;
		source_put_check(source);
	} else if (source->state == SOURCE_TELLING && !source->at_keeper &&
		   source->keys_told < source->map.num_keys) {
		put_keys(source);
	} else if (source->state == SOURCE_TELLING) {
		put_extents(source);
	} else if (staging_refill(&source->staging)) {
		return true;
	} else {
		return false;
	}
	return true;
}

/* ---- the rails ---------------------------------------------------------------------------- */

/* Where it lies. */
static int
reach(struct source *source, struct th_err *err)
{
	const struct extents *extents = &source->extents;
	uint32_t waiting;
	int rc = places_init(extents, source->leg->part, err, &source->places);
	if (rc == 0 && (places_ready(extents, source->places, &waiting) | waiting) == 0)
		return places_why(extents, source->places, err);
	if (rc == 0)
		rc = check_list_init(&source->checks, rdma_checks(source->rdma, source->leg->part),
			extents->table->num_chunks + 1);
	source->has_checks = rc == 0;
	return rc;
}

/* By a copy, which may need memory that is to be registered first. */
static int
stage(struct source *source, const char *why, struct th_err *err)
{
	struct leg_out *leg = source->leg;
	int rc = staging_init(&source->staging, leg, why, err);
	if (rc < 0)
		return rc;
	places_free(&source->extents, source->places);
	source->places = NULL;
	source->await = (struct await){.begun_ns = th_now_ns()};
	log_info("rdma", "a leg is served out of copies leg=%" PRIu64 " reader=%s why='%s'",
		leg->id, leg->peer, source->staging.why);
	return 0;
}

/* What the part needs, where it lies or staged. 0, or a code and why it cannot be READ. */
static int
source_prepare(struct source *source, struct th_err *err)
{
	struct transport *transport = source->leg->transport;
	if (transport->config.rate_out != 0 || transport->config.rate_out_peer != 0)
		return th_fail(err, TH_E_NO_PATH,
			"its agent has a cap on what leaves, which READs do not keep to");
	if (rdma_usable(source->rdma) == 0)
		return th_fail(err, TH_E_NO_PATH, "none of its rails is up");
	int rc = extents_init(&source->extents, xfer_part_table(source->leg->part));
	if (rc == 0)
		rc = reach(source, err);
	if (rc == TH_E_NO_PATH && source->takes_staged)
		rc = stage(source, err->text, err);
	return rc;
}

/* RAILS or DECLINE do not follow at once: memory must be registered first. */
static bool
source_later(const struct source *source)
{
	uint32_t waiting;
	if (source->why.text[0])
		return false;
	/* Slots are few, and ready soon. */
	if (!source->places)
		return !slab_is_made(source->staging.slab);
	uint32_t usable = rdma_usable(source->rdma);
	uint32_t ready = places_ready(&source->extents, source->places, &waiting);
	/* On rails that are down: it will be copied, once that is made. */
	if (((ready | waiting) & usable) == 0)
		return usable != 0 && source->takes_staged;
	return (waiting & usable) != 0;
}

/* One that went down just now has no address, which a reader would take for a broken protocol. */
static void
name_rail(struct source *source, uint32_t rail)
{
	struct rail_status status;
	struct wire_rail *named = &source->named[source->num_rails];
	rail_status(rdma_rails(source->rdma), rail, &status);
	if (status.state != RAIL_UP)
		return;
	*named = (struct wire_rail){.link = status.port.link, .lid = status.port.lid};
	memcpy(named->gid, status.gid.raw, VERBS_GID_BYTES);
	snprintf(named->name, sizeof(named->name), "%.31s", status.name);
	source->rails[source->num_rails++] = rail;
}

/* Of what is READ. */
static uint32_t
ready_rails(struct source *source, uint32_t *ret_waiting)
{
	if (!source->staging.slab)
		return places_ready(&source->extents, source->places, ret_waiting);
	return slab_rails(source->staging.slab, ret_waiting);
}

/* What cannot be READ where it lies may still be copied. */
static void
say_none(struct source *source, uint32_t waiting, uint32_t usable)
{
	const char *why = waiting != 0  ? "its memory is still being registered"
			  : usable == 0 ? "none of its rails is up"
					: "its memory is registered on no rail that is up";
	struct th_err err = {0};
	if (source->staging.slab && usable != 0) {
		staging_explain(&source->staging, &err);
		source_leave(source, err.text);
	} else if (usable == 0 || !source->takes_staged) {
		source_leave(source, why);
	} else if (stage(source, why, &err) < 0) {
		source_leave(source, err.text);
	}
}

/* RAILS, once enough of the memory is registered. */
static void
source_name_rails(struct source *source, int64_t now_ns)
{
	uint32_t waiting, usable = rdma_usable(source->rdma);
	uint32_t ready = ready_rails(source, &waiting) & usable;
	waiting &= usable;
	if (await_more(&source->await, ready, waiting, now_ns))
		return;
	if (ready == 0) {
		say_none(source, waiting, usable);
		return;
	}
	for (uint32_t rail = 0; rail < RAILS_MAX && source->num_rails < WIRE_RAILS_MAX; rail++) {
		if (ready & (UINT32_C(1) << rail))
			name_rail(source, rail);
	}
	if (source->num_rails == 0) {
		source_leave(source, "its rails went down");
		return;
	}
	source->state = SOURCE_NAMED;
	source->say_rails = true;
	source->deadline_ns = now_ns + AWAIT_MAX_NS; /* the reader's memory may take as long */
	leg_out_wake(source->leg);
}

/* ---- the offer ---------------------------------------------------------------------------- */

static int
make_map(struct source *source, const uint32_t *rails)
{
	if (source->staging.slab)
		return staging_map(&source->staging, rails, source->num_lanes, &source->map,
			&source->made_why);
	if (map_own(&source->map, &source->extents, source->places, rails, source->num_lanes) == 0)
		return 0;
	return th_fail(&source->made_why, TH_E_NO_PATH,
		"its memory is registered in too many pieces, or not any more");
}

static void
source_run_make(struct setup_turn *turn, bool late)
{
	struct source *source = loop_container(turn, struct source, make_turn);
	struct rails *rails = rdma_rails(source->rdma);
	uint32_t used[WIRE_LANES_MAX], first = 0;
	bool any = false;
	int64_t until_ns = th_now_ns() + QUEUES_TURN_NS;
	if (late)
		(void)th_fail(&source->made_why, TH_E_NO_PATH, "its agent " SETUP_LATE);
	for (uint32_t i = 0; i < source->num_lanes && !late; i++) {
		struct source_lane *lane = &source->lanes[i];
		used[i] = lane->rail;
		if (__atomic_load_n(&source->ending, __ATOMIC_RELAXED) || th_now_ns() >= until_ns)
			continue;
		int rc = queues_new(rails, lane->rail, NULL, 1, &lane->queues, &source->made_why);
		if (rc == 0) {
			rc = queues_connect(rails, &lane->queues, &lane->offered.end,
				ENDPOINT_SOURCE, source->leg->peer, &source->made_why);
			/* Nobody knows of them: nothing is lost when this fails. */
			if (rc < 0)
				(void)queues_free(rails, &lane->queues);
		}
		lane->made = rc == 0;
		first = lane->made && !any ? i : first;
		any = any || lane->made;
	}
	/* Of what has no queue pairs no key is told: its device may be lost. */
	for (uint32_t i = 0; any && i < source->num_lanes; i++)
		used[i] = source->lanes[i].made ? used[i] : used[first];
	any = any && make_map(source, used) == 0;
	source->map.have_keys = any ? source->map.have_keys : 0;
	loop_post(source_acceptor(source), &source->made_task);
}

static void
source_run_made(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, made_task);
	source->at_keeper = false;
	source_settle(source);
	if (source->closing || source->state != SOURCE_MAKING)
		return;
	if (source->map.have_keys == 0) {
		source_leave(source, source->made_why.text);
		return;
	}
	source->state = SOURCE_TELLING;
	source->say_accept = true;
	leg_out_look(source->leg);
}

static int
source_offer(struct source *source, const struct frame *frame, const uint8_t *payload)
{
	struct wire_lane lanes[WIRE_LANES_MAX];
	/* What was on its way when we left. */
	if (source->state >= SOURCE_LEAVING)
		return 0;
	if (source->state != SOURCE_NAMED || source->say_rails)
		return TH_E_PROTOCOL;
	int rc = wire_decode_lanes(payload, frame->count, lanes);
	for (uint32_t i = 0; rc == 0 && i < frame->count; i++) {
		struct th_err err;
		if (!lanes[i].made || lanes[i].rail >= source->num_rails)
			return TH_E_PROTOCOL;
		rc = endpoint_check(&lanes[i].end, &err);
		source->lanes[i].offered = lanes[i];
		source->lanes[i].rail = source->rails[lanes[i].rail];
	}
	if (rc < 0)
		return TH_E_PROTOCOL;
	source->num_lanes = frame->count;
	source->reader_stages = (frame->flags & FRAME_STAGES) != 0;
	source->state = SOURCE_MAKING;
	source->at_keeper = true;
	setup_post(rdma_setup(source->rdma), &source->make_turn, source->leg->peer,
		SETUP_OFFER_WAIT_NS);
	return 0;
}

static void
source_setup_init(struct source *source)
{
	source->make_turn.run = source_run_make;
	source->made_task.run = source_run_made;
}

/* ---- what the reader says of itself ------------------------------------------------------- */

/* Prefix and chunks are bounded and grow, so a reader can seem alive for so long only. */
static int
source_on_alive(struct source *source, const struct frame *frame, const uint8_t *payload)
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
source_on_check(struct source *source, const struct frame *frame)
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
source_run_lost(struct loop_task *task)
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
source_take_frame(struct leg_out_path *path, const struct frame *frame, const uint8_t *payload)
{
	struct source *source = source_of(path);
	if (source->closing)
		return TH_E_PROTOCOL;
	if (frame->kind == FRAME_RDMA_OFFER)
		return source_offer(source, frame, payload);
	if (frame->kind == FRAME_RDMA_DECLINE)
		return source_on_decline(source, frame, payload);
	if (frame->kind == FRAME_ALIVE)
		return source_on_alive(source, frame, payload);
	if (frame->kind == FRAME_CHECK)
		return source_on_check(source, frame);
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
source_prefix_of(struct leg_out_path *path, uint32_t prefix)
{
	const struct source *source = source_of(path);
	if (source->state >= SOURCE_LEAVING || !source->places)
		return prefix;
	return th_min_u32(prefix, packed_prefix(source->leg->part));
}

/* The reader has all there is, and waits for the rest; or it is not its turn. */
static bool
source_waits(struct leg_out_path *path)
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
	source->checks.closed = source_checks_closed;
	source->free_task.run = source_run_free;
	source->freed_task.run = source_run_freed;
	source_setup_init(source);
	source->checked_task.run = run_checked;
	source->lost_task.run = source_run_lost;
	source->checks_closed_task.run = source_run_checks_closed;
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
	.frame = source_take_frame,
	.refill = source_refill,
	.nudged = source_fill,
	.tick = source_tick,
	.prefix = source_prefix_of,
	.waits = source_waits,
	.moves = source_moves,
	.say = source_do_say,
	.close = source_close_path,
	.gone = source_gone,
	.free = source_free_path,
};
