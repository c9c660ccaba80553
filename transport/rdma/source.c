/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source - see source.h.
 */
#include "transport/rdma/source.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "transport/rdma/checks.h"
#include "transport/rdma/map.h"
#include "transport/rdma/packed.h"
#include "transport/rdma/queues.h"
#include "transport/rdma/rdma.h"
#include "transport/rdma/region.h"
#include "transport/rdma/wire.h"
#include "transport/tcp.h"

#define REGISTER_WAIT_NS INT64_C(1500000000) /* less than a reader waits for RAILS */
#define ALL_RAILS_NS INT64_C(300000000)      /* to wait for the rest when some rails are ready */
#define REGISTER_NS INT64_C(10000000)        /* between looks at registrations */
#define OFFER_NS INT64_C(4000000000)         /* of a reader that has been told the rails */
#define FILL_AT_ONCE 4u                      /* chunks */
#define CHECKS_OF_ONE 3u
#define NO_CHUNK UINT32_MAX

enum source_state {
	SOURCE_WAITING,
	SOURCE_NAMED,
	SOURCE_MAKING,
	SOURCE_TELLING,
	SOURCE_SERVING,
	SOURCE_LEAVING,
	SOURCE_OVER,
};

enum source_check { SOURCE_CHECK, SOURCE_FILL };

struct source_lane {
	uint32_t rail; /* ours */
	struct wire_lane offered;
	struct queues queues; /* owns */
	bool made;
};

struct source {
	struct leg_out *leg; /* borrows: outlives it */
	struct rdma *rdma;
	struct extents extents;
	struct place *places; /* owns; NULL: there is a reason to decline */
	struct check_list checks;
	bool has_checks;
	/* Keeper while it has the source (at_keeper), else porter. */
	struct source_lane lanes[WIRE_LANES_MAX];
	uint32_t num_lanes;
	struct map map;
	bool stuck; /* a queue pair could not be freed */
	/* Porter. */
	enum source_state state;
	bool at_keeper, closing, checks_closed;
	int64_t started_ns, deadline_ns;
	uint32_t rails[WIRE_RAILS_MAX], num_rails; /* as told */
	struct wire_rail named[WIRE_RAILS_MAX];    /* those, as they were when chosen */
	bool say_rails, say_accept, say_decline, say_check;
	uint32_t keys_told, extents_told;
	struct th_err why; /* for DECLINE */
	uint32_t reader_prefix, reader_chunks;
	uint64_t reader_bytes;
	uint32_t checked; /* chunk that the reader asked about; NO_CHUNK: none */
	struct loop_task make_task, free_task; /* porter -> keeper */
	struct loop_task made_task, freed_task;
	/* Checks -> porter. */
	struct loop_task checked_task, lost_task, checks_closed_task;
	int checked_code; /* written before checked_task is posted */
	bool filling;     /* atomic: a fill is under way, or waits */
	bool ending;      /* atomic: a fill shall stop */
};

static struct loop *
porter_of(const struct source *source)
{
	return source->leg->transport->porter;
}

static void
wake(struct source *source)
{
	source->leg->deadline_ns = 0;
	loop_tick_at(porter_of(source), 0);
	stream_wake(&source->leg->control.stream);
}

static void
to_keeper(struct source *source, struct loop_task *task)
{
	TH_ASSERT(!source->at_keeper);
	source->at_keeper = true;
	bool frees = task == &source->free_task;
	loop_post(frees ? rdma_keeper(source->rdma) : rdma_setup(source->rdma), task);
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
run_free(struct loop_task *task)
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
	loop_post(porter_of(source), &source->freed_task);
}

static void
settle(struct source *source)
{
	if (source->at_keeper || (!source->closing && source->state != SOURCE_LEAVING))
		return;
	if (queues_left(source)) {
		to_keeper(source, &source->free_task);
	} else if (!source->closing) {
		source->state = SOURCE_OVER;
		source->say_decline = true;
		wake(source);
	} else if (source_gone(source)) {
		leg_out_settle(source->leg);
	}
}

/* No RDMA any more in this leg; the reader is told once the queue pairs are gone. */
static void
leave(struct source *source, const char *why)
{
	struct leg_out *leg = source->leg;
	if (source->state >= SOURCE_LEAVING || source->closing)
		return;
	source->state = SOURCE_LEAVING;
	(void)th_fail(&source->why, TH_E_NO_PATH, "%s", why);
	count_up(&leg->transport->counters.rdma_declines, 1);
	log_warn("rdma", "a leg is served without RDMA leg=%" PRIu64 " reader=%s why='%s'", leg->id,
		leg->peer, why);
	settle(source);
}

static void
run_freed(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, freed_task);
	source->at_keeper = false;
	settle(source);
}

static void
checks_closed(struct check_list *list)
{
	struct source *source = loop_container(list, struct source, checks);
	loop_post(porter_of(source), &source->checks_closed_task);
}

static void
run_checks_closed(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, checks_closed_task);
	source->checks_closed = true;
	settle(source);
}

void
source_close(struct source *source)
{
	if (!source || source->closing)
		return;
	source->closing = true;
	__atomic_store_n(&source->ending, true, __ATOMIC_RELAXED);
	if (source->has_checks)
		check_list_close(&source->checks);
	else
		source->checks_closed = true;
	settle(source);
}

bool
source_gone(const struct source *source)
{
	if (!source)
		return true;
	return source->closing && !source->at_keeper && source->checks_closed &&
	       !queues_left(source) && (!source->stuck || source->leg->transport->closing);
}

/* ---- the offer ---------------------------------------------------------------------------- */

static void
run_make(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, make_task);
	struct rails *rails = rdma_rails(source->rdma);
	uint32_t used[WIRE_LANES_MAX];
	bool any = false;
	for (uint32_t i = 0; i < source->num_lanes; i++) {
		struct source_lane *lane = &source->lanes[i];
		used[i] = lane->rail;
		/* A peer that nobody finds costs a second: not for a leg that ends. */
		if (__atomic_load_n(&source->ending, __ATOMIC_RELAXED))
			continue;
		int rc = queues_new(rails, lane->rail, NULL, 1, &lane->queues, &source->why);
		if (rc == 0) {
			rc = queues_connect(rails, &lane->queues, &lane->offered.end,
				ENDPOINT_SOURCE, source->leg->peer, &source->why);
			/* Nobody knows of them: nothing is lost when this fails. */
			if (rc < 0)
				(void)queues_free(rails, &lane->queues);
		}
		lane->made = rc == 0;
		any = any || lane->made;
	}
	if (any && map_own(&source->map, &source->extents, source->places, used,
			   source->num_lanes) < 0) {
		(void)th_fail(&source->why, TH_E_NO_PATH,
			"its memory is registered in too many pieces, or not any more");
		any = false;
	}
	source->map.have_keys = any ? source->map.have_keys : 0;
	loop_post(porter_of(source), &source->made_task);
}

static void
run_made(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, made_task);
	struct th_err why = source->why;
	source->at_keeper = false;
	settle(source);
	if (source->closing || source->state != SOURCE_MAKING)
		return;
	if (source->map.have_keys == 0) {
		leave(source, why.text);
		return;
	}
	source->state = SOURCE_TELLING;
	source->say_accept = true;
	wake(source);
}

static int
on_offer(struct source *source, const struct frame *frame, const uint8_t *payload)
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
	source->state = SOURCE_MAKING;
	to_keeper(source, &source->make_task);
	return 0;
}

/* The reader does without; an answer to our own DECLINE is not needed, so none is sent. */
static int
on_decline(struct source *source, const struct frame *frame, const uint8_t *payload)
{
	char text[TH_CTL_TEXT_BYTES + 1];
	if (source->state >= SOURCE_LEAVING)
		return 0;
	control_sentence(payload, (size_t)frame->bytes, text);
	leave(source, text);
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
	count_up(&leg->bytes_sent, more);
	count_up(&leg->transport->counters.bytes_out, more);
	source->reader_prefix = frame->first;
	source->reader_chunks = frame->count;
	source->reader_bytes = bytes;
	leg_out_alive(leg);
	return 0;
}

static int
on_check(struct source *source, const struct frame *frame)
{
	struct leg_out *leg = source->leg;
	uint32_t chunk = frame->first;
	if (source->checked != NO_CHUNK || !source->has_checks || !leg->verify ||
		chunk >= leg->prefix_sent || source->state < SOURCE_SERVING ||
		__atomic_add_fetch(&leg->asked[chunk], 1, __ATOMIC_RELAXED) > CHECKS_OF_ONE)
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
		stream_wake(&leg->control.stream);
	} else if (code == TH_E_CONTRACT) {
		leg_out_changed(leg, source->checked);
	} else {
		leg_out_lost(leg, code);
	}
}

static void
run_lost(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, lost_task);
	if (!source->closing)
		leg_out_lost(source->leg, TH_E_STALE_MEMORY);
}

static void
check(struct check_list *list, uint32_t chunk, uint8_t what)
{
	struct source *source = loop_container(list, struct source, checks);
	struct xfer_part *part = source->leg->part;
	int rc;
	if (what == SOURCE_CHECK) {
		source->checked_code = packed_check(part, chunk);
		loop_post(porter_of(source), &source->checked_task);
		return;
	}
	do {
		rc = packed_fill(part, FILL_AT_ONCE);
	} while (rc > 0 && !__atomic_load_n(&source->ending, __ATOMIC_RELAXED));
	__atomic_store_n(&source->filling, false, __ATOMIC_SEQ_CST);
	if (rc < 0)
		loop_post(porter_of(source), &source->lost_task);
	else
		loop_post(porter_of(source), &source->leg->progress_task);
}

void
source_grew(struct source *source)
{
	if (!source || source->closing || !source->has_checks || source->state >= SOURCE_LEAVING)
		return;
	struct xfer_part *part = source->leg->part;
	if (packed_prefix(part) < xfer_part_prefix(part) &&
		!__atomic_exchange_n(&source->filling, true, __ATOMIC_SEQ_CST))
		check_list_put(&source->checks, xfer_part_table(part)->num_chunks, SOURCE_FILL);
}

int
source_frame(struct source *source, const struct frame *frame, const uint8_t *payload)
{
	if (!source || source->closing)
		return TH_E_PROTOCOL;
	if (frame->kind == FRAME_RDMA_OFFER)
		return on_offer(source, frame, payload);
	if (frame->kind == FRAME_RDMA_DECLINE)
		return on_decline(source, frame, payload);
	if (frame->kind == FRAME_ALIVE)
		return on_alive(source, frame, payload);
	if (frame->kind == FRAME_CHECK)
		return on_check(source, frame);
	return TH_E_PROTOCOL;
}

/* ---- what we say -------------------------------------------------------------------------- */

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
	control_put(&leg->control, &frame, payload);
}

static void
put_accept(struct source *source)
{
	struct leg_out *leg = source->leg;
	struct wire_lane lanes[WIRE_LANES_MAX];
	uint8_t payload[WIRE_LANES_MAX * WIRE_LANE_BYTES];
	for (uint32_t i = 0; i < source->num_lanes; i++)
		lanes[i] = (struct wire_lane){.rail = source->lanes[i].offered.rail,
			.made = source->lanes[i].made,
			.end = source->lanes[i].queues.own};
	struct frame frame = {.kind = FRAME_RDMA_ACCEPT,
		.leg = leg->reader_leg,
		.first = source->map.num_keys,
		.count = source->num_lanes,
		.bytes = (uint64_t)source->num_lanes * WIRE_LANE_BYTES};
	wire_encode_lanes(lanes, source->num_lanes, payload);
	control_put(&leg->control, &frame, payload);
}

/* The buffer is empty, and takes one frame of any size. */
static void
put_keys(struct source *source)
{
	struct control *control = &source->leg->control;
	uint32_t count = th_min_u32(source->map.num_keys - source->keys_told, WIRE_KEYS_AT_ONCE);
	struct frame frame = {.kind = FRAME_RDMA_KEYS,
		.leg = source->leg->reader_leg,
		.first = source->keys_told,
		.count = count,
		.bytes = (uint64_t)count * wire_key_bytes(source->num_lanes)};
	wire_encode_keys(source->map.keys + source->keys_told, count, source->num_lanes,
		control->out + FRAME_BYTES);
	control_put(control, &frame, NULL);
	source->keys_told += count;
}

static void
put_extents(struct source *source)
{
	struct control *control = &source->leg->control;
	uint32_t count =
		th_min_u32(source->map.num_extents - source->extents_told, WIRE_EXTENTS_AT_ONCE);
	struct frame frame = {.kind = FRAME_RDMA_MAP,
		.leg = source->leg->reader_leg,
		.first = source->extents_told,
		.count = count,
		.bytes = (uint64_t)count * WIRE_EXTENT_BYTES};
	wire_encode_extents(
		source->map.extents + source->extents_told, count, control->out + FRAME_BYTES);
	control_put(control, &frame, NULL);
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
	control_put(&leg->control, &frame, (const uint8_t *)source->why.text);
}

static void
put_check(struct source *source)
{
	struct frame frame = {.kind = FRAME_CHECK,
		.leg = source->leg->reader_leg,
		.first = source->checked,
		.count = 1};
	control_put(&source->leg->control, &frame, NULL);
	source->checked = NO_CHUNK;
}

bool
source_refill(struct source *source)
{
	if (!source || source->closing)
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
		put_check(source);
	} else if (source->state == SOURCE_TELLING && !source->at_keeper &&
		   source->keys_told < source->map.num_keys) {
		put_keys(source);
	} else if (source->state == SOURCE_TELLING) {
		put_extents(source);
	} else {
		return false;
	}
	return true;
}

/* ---- the clock ---------------------------------------------------------------------------- */

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

/* RAILS, once enough of the memory is registered. */
static void
name_rails(struct source *source, int64_t now_ns)
{
	uint32_t waiting, usable = rdma_usable(source->rdma);
	uint32_t ready = places_ready(&source->extents, source->places, &waiting) & usable;
	int64_t patience_ns = ready != 0 ? ALL_RAILS_NS : REGISTER_WAIT_NS;
	waiting &= usable;
	if (waiting != 0 && now_ns < source->started_ns + patience_ns)
		return;
	if (ready == 0) {
		leave(source, waiting != 0  ? "its memory is still being registered"
			      : usable == 0 ? "none of its rails is up"
					    : "its memory is registered on no rail that is up");
		return;
	}
	for (uint32_t rail = 0; rail < RAILS_MAX && source->num_rails < WIRE_RAILS_MAX; rail++) {
		if (ready & (UINT32_C(1) << rail))
			name_rail(source, rail);
	}
	if (source->num_rails == 0) {
		leave(source, "its rails went down");
		return;
	}
	source->state = SOURCE_NAMED, source->say_rails = true;
	source->deadline_ns = now_ns + OFFER_NS;
	stream_wake(&source->leg->control.stream);
}

int64_t
source_tick(struct source *source, int64_t now_ns)
{
	if (!source || source->closing || source->state != SOURCE_WAITING)
		return INT64_MAX;
	name_rails(source, now_ns);
	if (source->closing || source->state != SOURCE_WAITING)
		return INT64_MAX;
	return now_ns + REGISTER_NS;
}

uint32_t
source_prefix(const struct source *source, uint32_t prefix)
{
	if (!source || source->state >= SOURCE_LEAVING || !source->places)
		return prefix;
	return th_min_u32(prefix, packed_prefix(source->leg->part));
}

bool
source_waits(const struct source *source, uint32_t prefix)
{
	if (!source || source->state >= SOURCE_LEAVING)
		return false;
	if (source->state < SOURCE_SERVING)
		return source->state != SOURCE_NAMED || th_now_ns() < source->deadline_ns;
	return prefix < xfer_part_table(source->leg->part)->num_chunks &&
	       source->reader_prefix >= prefix;
}

bool
source_serves(const struct source *source)
{
	return source && source->state <= SOURCE_SERVING;
}

/* ---- the beginning ------------------------------------------------------------------------ */

static int
prepare(struct source *source, struct th_err *err)
{
	struct transport *transport = source->leg->transport;
	const struct chunk_table *table = xfer_part_table(source->leg->part);
	uint32_t waiting;
	if (transport->config.rate_out != 0 || transport->config.rate_out_peer != 0)
		return th_fail(err, TH_E_NO_PATH,
			"its agent has a cap on what leaves, which READs do not keep to");
	int rc = extents_init(&source->extents, table);
	if (rc == 0)
		rc = places_init(&source->extents, source->leg->part, err, &source->places);
	if (rc == 0 && (places_ready(&source->extents, source->places, &waiting) | waiting) == 0)
		return places_why(&source->extents, source->places, err);
	if (rc == 0)
		rc = check_list_init(
			&source->checks, rdma_checks(source->rdma), table->num_chunks + 1);
	source->has_checks = rc == 0;
	return rc;
}

struct source *
source_new(struct leg_out *leg)
{
	struct th_err err = {0};
	if (!leg->transport->rdma || xfer_part_table(leg->part)->num_chunks == 0)
		return NULL;
	struct source *source = th_calloc(1, sizeof(*source));
	source->leg = leg;
	source->rdma = leg->transport->rdma;
	source->checked = NO_CHUNK;
	source->checks.check = check;
	source->checks.closed = checks_closed;
	source->make_task.run = run_make;
	source->free_task.run = run_free;
	source->made_task.run = run_made;
	source->freed_task.run = run_freed;
	source->checked_task.run = run_checked;
	source->lost_task.run = run_lost;
	source->checks_closed_task.run = run_checks_closed;
	int rc = prepare(source, &err);
	if (rc < 0 && err.text[0] == '\0')
		(void)th_fail(&err, rc, "%s", th_strerror(rc));
	source->why = err;
	return source;
}

void
source_start(struct source *source)
{
	if (!source)
		return;
	source->started_ns = th_now_ns();
	if (source->why.text[0]) {
		struct th_err why = source->why;
		leave(source, why.text);
		return;
	}
	source_grew(source);
	name_rails(source, source->started_ns);
}

void
source_free(struct source *source)
{
	if (!source)
		return;
	places_free(&source->extents, source->places);
	extents_fini(&source->extents);
	map_fini(&source->map);
	if (source->has_checks)
		check_list_fini(&source->checks);
	free(source);
}
