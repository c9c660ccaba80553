/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader - see reader.h: the acceptor's side and what the keeper does for it.
 */
#include "transport/rdma/leg/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "transport/rdma/leg/reader_own.h"
#include "transport/rdma/memory/region.h"

#define NO_CHUNK UINT32_MAX
#define STREAM_MAX_NS INT64_C(100000000) /* before a leg begins by data connections */
#define STREAM_BYTES_PER_NS 1            /* it waits no longer than those would take */

struct reader *
reader_of(struct leg_in_path *path)
{
	return loop_container(path, struct reader, path);
}

struct loop *
reader_acceptor(const struct reader *reader)
{
	return reader->leg->transport->acceptor;
}

int64_t
reader_patience_ns(const struct reader *reader)
{
	return reader->leg->transport->config.hello_ns;
}

/* What setup has made is freed by the keeper. */
static void
to_keeper(struct reader *reader)
{
	TH_ASSERT(!reader->at_keeper);
	reader->at_keeper = true;
	loop_post(rdma_keeper(reader->rdma), &reader->free_task);
}

#define ENDS (1u << READER_LEAVING | 1u << READER_DRAINING | 1u << READER_CLOSING)

void
reader_enter(struct reader *reader, enum reader_state state, int64_t until_ns, const char *why)
{
	static const char *const names[] = {"new", "waiting", "staying", "making", "offered",
		"mapping", "connecting", "running", "leaving", "draining", "over", "closing"};
	static const uint16_t may[] = {/* a mask of where each may go */
		[READER_NEW] = 1u << READER_WAITING | ENDS,
		[READER_WAITING] = 1u << READER_STAYING | 1u << READER_MAKING | ENDS,
		[READER_STAYING] = ENDS,
		[READER_MAKING] = 1u << READER_OFFERED | ENDS,
		[READER_OFFERED] = 1u << READER_MAPPING | ENDS,
		[READER_MAPPING] = 1u << READER_CONNECTING | ENDS,
		[READER_CONNECTING] = 1u << READER_RUNNING | ENDS,
		[READER_RUNNING] = ENDS,
		[READER_LEAVING] = 1u << READER_DRAINING | 1u << READER_CLOSING,
		[READER_DRAINING] = 1u << READER_OVER | 1u << READER_CLOSING,
		[READER_OVER] = 1u << READER_CLOSING,
		[READER_CLOSING] = 0};
	TH_ASSERT(may[reader->state] >> state & 1);
	log_debug("rdma", "reader leg=%" PRIu64 " source=%s state=%s was=%s why='%s'",
		reader->leg->id, reader->leg->peer, names[state], names[reader->state], why);
	reader->state = state;
	reader->deadline_ns = until_ns;
	leg_in_look(reader->leg);
}

static bool
reader_required(const struct reader *reader)
{
	return (reader->leg->flags & TRANSPORT_REQUIRE_RDMA) != 0;
}

/* ---- the way back to data connections ----------------------------------------------------- */

static bool
lanes_left(const struct reader *reader)
{
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		if (reader->lanes[i].lane && !reader->lanes[i].closed)
			return true;
	}
	return false;
}

static bool
reader_queues_left(const struct reader *reader)
{
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		if (reader->lanes[i].made)
			return true;
	}
	return false;
}

/* Of ours nothing is left that could write, and the source has shown that it lives. */
void
reader_leave_if_done(struct reader *reader)
{
	if (reader->state != READER_DRAINING || reader->at_keeper || lanes_left(reader))
		return;
	if (reader_queues_left(reader)) {
		to_keeper(reader);
		return;
	}
	reader_enter(reader, READER_OVER, INT64_MAX, "nothing of it is left");
	(void)reader_stage_close(reader);
	leg_in_stream(reader->leg);
}

static void
fail_required(struct reader *reader)
{
	struct th_err err;
	(void)th_fail(&err, TH_E_NO_PATH, "RDMA is required and there is none: %s",
		reader->leg->fallback.text);
	if (reader->ours)
		leg_in_fail_ours(reader->leg, TH_E_NO_PATH, err.text);
	else
		leg_in_fail(reader->leg, TH_E_NO_PATH, err.text);
}

/* To LEAVING, or DRAINING when the source knows. */
static void
reader_do_leave(struct reader *reader, enum reader_state state, bool ours, const char *why)
{
	struct leg_in *leg = reader->leg;
	if (reader->state >= READER_LEAVING)
		return;
	reader->ours = ours;
	leg_in_fall_back(leg, why);
	log_warn("rdma", "a leg does without RDMA leg=%" PRIu64 " source=%s why='%s'%s", leg->id,
		leg->peer, why, reader_required(reader) ? ", so it fails" : "");
	/* Who is to be blamed must be known first, or the next leg would try the same again. */
	if (reader_required(reader) && (reader->num_blamed == 0 || state == READER_DRAINING)) {
		fail_required(reader);
		return;
	}
	reader_stop_taking(reader);
	for (uint32_t i = 0; !reader->at_keeper && i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		if (lane->lane && !lane->broken)
			lane_break(lane->lane, VERBS_FLUSHED, "the leg leaves RDMA");
	}
	/* A source that is gone must not cost more than one stall more. */
	reader_enter(reader, state,
		th_deadline_ns(th_now_ns(),
			th_min_i64(reader_patience_ns(reader), leg->transport->config.stall_ns)),
		why);
	if (state == READER_LEAVING) {
		size_t bytes = strlen(leg->fallback.text);
		struct frame frame = {.kind = FRAME_RDMA_DECLINE,
			.leg = leg->id,
			.count = 0u - (uint32_t)TH_E_NO_PATH,
			.bytes = bytes};
		leg_in_put(leg, &frame, (const uint8_t *)leg->fallback.text);
		leg_in_wake(leg);
	}
	reader_leave_if_done(reader);
}

void
reader_leave(struct reader *reader, const char *why)
{
	reader_do_leave(reader, READER_LEAVING, false, why);
}

/* The source has said so itself. */
static void
reader_leave_told(struct reader *reader, const char *why)
{
	reader_do_leave(reader, READER_DRAINING, false, why);
}

void
reader_leave_ours(struct reader *reader, const char *why)
{
	reader_do_leave(reader, READER_LEAVING, true, why);
}

/* ---- the end ------------------------------------------------------------------------------ */

/* Then the leg lasts until the agent ends. */
static bool
is_stuck(const struct reader *reader)
{
	bool stuck = false;
	for (uint32_t i = 0; i < reader->num_lanes; i++)
		stuck = stuck || reader->lanes[i].stuck;
	return stuck && !reader->leg->transport->closing;
}

static bool
reader_gone(struct leg_in_path *path)
{
	const struct reader *reader = reader_of(path);
	return reader->state == READER_CLOSING && !reader->at_keeper && reader->checks_closed &&
	       !lanes_left(reader) && !reader_queues_left(reader) && !is_stuck(reader) &&
	       (!reader->stage.slab || reader->stage.closed);
}

void
reader_settle(struct reader *reader)
{
	if (reader->state != READER_CLOSING || reader->at_keeper)
		return;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		if (lane->lane && !lane->closing) {
			lane->closing = true;
			lane_close(lane->lane);
		}
	}
	if (reader_queues_left(reader))
		to_keeper(reader);
	else if (reader_stage_close(reader) && reader_gone(&reader->path))
		leg_in_settle(reader->leg);
}

static uint64_t
bytes_of(struct reader *reader)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		if (lane->lane && !lane->closing)
			(void)reader_look_at_bytes(lane);
		bytes += lane->seen_bytes;
	}
	return bytes;
}

static void
reader_close_path(struct leg_in_path *path, bool done)
{
	struct reader *reader = reader_of(path);
	/* What came since then shows that the source lived on. */
	if (reader->num_blamed > 0)
		(void)bytes_of(reader);
	bool waited = leg_in_streams(reader->leg) && reader->state < READER_LEAVING;
	reader_enter(reader, READER_CLOSING, INT64_MAX, "the leg has ended");
	if (done && waited)
		leg_in_fall_back(reader->leg,
			"it began while memory was still being registered, and ended before it "
			"could move to RDMA");
	reader_stop_taking(reader);
	if (reader->at_keeper)
		setup_hurry(rdma_setup(reader->rdma), &reader->turn);
	check_list_close(&reader->checks);
	reader_settle(reader);
}

static void
reader_checks_closed(struct check_list *list)
{
	struct reader *reader = loop_container(list, struct reader, checks);
	loop_post(reader_acceptor(reader), &reader->checks_closed_task);
}

static void
reader_run_checks_closed(struct loop_task *task)
{
	struct reader *reader = loop_container(task, struct reader, checks_closed_task);
	reader->checks_closed = true;
	reader_settle(reader);
}

/* ---- more to fetch ------------------------------------------------------------------------ */

void
reader_kick_lanes(struct reader *reader)
{
	if (reader->state != READER_RUNNING)
		return;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		if (lane->lane && !lane->closing)
			lane_kick(lane->lane);
	}
}

void
reader_kick(struct leg_in_path *path)
{
	struct reader *reader = reader_of(path);
	if (reader->state != READER_RUNNING)
		return;
	reader_kick_lanes(reader);
	if (reader->stage.num_source > 0)
		leg_in_wake(reader->leg);
}

static void
reader_refill(struct leg_in_path *path)
{
	struct reader *reader = reader_of(path);
	if (reader->state == READER_RUNNING)
		reader_stage_ask(reader);
}

/* ---- the talk ----------------------------------------------------------------------------- */

static int
reader_on_decline(struct reader *reader, const struct frame *frame, const uint8_t *payload)
{
	char text[TH_CTL_TEXT_BYTES + 1];
	struct th_err why;
	if (reader->state > READER_LEAVING)
		return TH_E_PROTOCOL;
	control_sentence(payload, (size_t)frame->bytes, text);
	(void)th_fail(&why, TH_E_NO_PATH, "the source says: %s", text);
	if (reader->state != READER_LEAVING) {
		reader_leave_told(reader, why.text);
	} else if (reader_required(reader)) {
		fail_required(reader);
	} else {
		reader_enter(reader, READER_DRAINING, INT64_MAX, "the source has left, too");
		reader_leave_if_done(reader);
	}
	return 0;
}

/* ---- chunks that did not match ------------------------------------------------------------ */

/* One question at a time. */
static void
reader_ask(struct reader *reader)
{
	struct leg_in *leg = reader->leg;
	if (reader->state == READER_CLOSING || reader->doubtful != NO_CHUNK ||
		!reader_next_doubt(reader, &reader->doubtful))
		return;
	struct frame frame = {
		.kind = FRAME_CHECK, .leg = leg->id, .first = reader->doubtful, .count = 1};
	leg_in_put(leg, &frame, NULL);
	leg_in_wake(leg);
}

static void
run_doubt(struct loop_task *task)
{
	reader_ask(loop_container(task, struct reader, doubt_task));
}

/* It is as it was published: what came was damaged on its way, and counts as that. */
static int
reader_on_check(struct reader *reader, const struct frame *frame)
{
	uint32_t chunk = reader->doubtful;
	if (chunk == NO_CHUNK || frame->first != chunk)
		return TH_E_PROTOCOL;
	reader->doubtful = NO_CHUNK;
	reader_mismatched(reader, chunk);
	reader_ask(reader);
	return 0;
}

static void
run_failed(struct loop_task *task)
{
	struct reader *reader = loop_container(task, struct reader, failed_task);
	if (reader->state != READER_CLOSING)
		leg_in_fail_by(reader->leg, reader->failed_code, reader->failed_own);
}

static int
reader_take_frame(struct leg_in_path *path, const struct frame *frame, const uint8_t *payload)
{
	struct reader *reader = reader_of(path);
	if (frame->kind == FRAME_RDMA_DECLINE)
		return reader_on_decline(reader, frame, payload);
	if (frame->kind == FRAME_CHECK)
		return reader_on_check(reader, frame);
	if (frame->kind == FRAME_STAGED && reader->state == READER_RUNNING)
		return reader_stage_staged(reader, frame->first, frame->count);
	return reader_setup_frame(reader, frame, payload);
}

/* ---- waiting ------------------------------------------------------------------------------ */

/*
 * A reader waits for the source's rails, and for memory of either end that is still being
 * registered. That takes seconds where there is much of it, so the leg goes by data connections
 * meanwhile, unless it must not.
 */

/* Memory that takes its time to be registered: the leg goes on without. */
static void
begin_to_stream(struct reader *reader)
{
	struct leg_in *leg = reader->leg;
	log_info("rdma",
		"a leg begins by TCP until %s memory is registered leg=%" PRIu64 " source=%s",
		reader->num_rails > 0 ? "our own" : "the source's", leg->id, leg->peer);
	leg_in_stream(leg);
}

/* A source that registers says that it waits: one that says nothing is no more. */
static int64_t
patient_until(const struct reader *reader)
{
	int64_t patience_ns = reader_patience_ns(reader), since_ns = reader->await.begun_ns;
	if (reader->later || reader->num_rails > 0) {
		patience_ns = th_max_i64(patience_ns, reader->leg->transport->config.stall_ns);
		since_ns = reader->heard_ns;
	}
	return th_max_i64(since_ns, reader->late_ns) + patience_ns;
}

static void
judge_silence(struct reader *reader, int64_t now_ns)
{
	/* Its word may lie in our socket. */
	if (now_ns >= patient_until(reader))
		leg_in_hear(reader->leg);
	if (reader->state != READER_WAITING)
		return;
	if (now_ns >= patient_until(reader))
		reader_leave(reader, reader->num_rails > 0 ? "the source says nothing any more"
							   : "the source does not name its rails");
	else if (now_ns >= reader->await.begun_ns + AWAIT_MAX_NS)
		reader_leave(reader, "the source's memory is still being registered");
}

static int64_t
reader_tick_waiting(struct reader *reader, int64_t now_ns)
{
	struct leg_in *leg = reader->leg;
	int64_t next_ns = INT64_MAX;
	if (reader->num_rails > 0)
		reader_offer(reader, now_ns);
	/* Those who stream have their own clock. */
	if (reader->state == READER_WAITING && !leg_in_streams(leg))
		judge_silence(reader, now_ns);
	if (reader->state != READER_WAITING)
		return now_ns;
	if (!leg_in_streams(leg) && now_ns >= reader->stream_ns)
		begin_to_stream(reader);
	if (reader->num_rails > 0)
		next_ns = await_next(&reader->await, now_ns);
	if (!leg_in_streams(leg))
		next_ns = th_min_i64(
			await_next(&reader->await, now_ns), th_max_i64(reader->stream_ns, now_ns));
	return next_ns;
}

/* How long it may wait for memory: as long as it would take by TCP, but never long. Slots are few,
 * and ready soon. */
static int64_t
stream_after_ns(const struct reader *reader)
{
	if (reader->stage.slab)
		return STREAM_MAX_NS;
	uint64_t bytes = xfer_part_table(reader->leg->part)->bytes / STREAM_BYTES_PER_NS;
	return (int64_t)th_min_u64(bytes, STREAM_MAX_NS);
}

static void
reader_start(struct leg_in_path *path, unsigned welcome_flags)
{
	struct reader *reader = reader_of(path);
	if (!(welcome_flags & FRAME_OFFERS_RDMA)) {
		reader_leave_told(reader, "the source's agent has no RDMA");
		return;
	}
	reader->await.begun_ns = reader->heard_ns = th_now_ns();
	reader->later = (welcome_flags & FRAME_RDMA_LATER) != 0;
	reader->stream_ns = INT64_MAX;
	uint32_t waiting;
	(void)reader_ready(reader, &waiting);
	if (!reader_required(reader) &&
		(reader->later || (waiting & rdma_usable(reader->rdma)) != 0))
		reader->stream_ns = reader->await.begun_ns + stream_after_ns(reader);
	reader_enter(reader, READER_WAITING, INT64_MAX, "welcome");
}

/* ---- the clock ---------------------------------------------------------------------------- */

/*
 * The source has not answered in time, as far as we have looked: its word may lie in our socket.
 * Where we come late ourselves (stopped, starved, suspended) it may not even have been able to.
 */
static void
look_before_giving_up(struct reader *reader, bool late, int64_t now_ns)
{
	if (now_ns < reader->deadline_ns)
		return;
	if (late)
		reader->deadline_ns =
			th_deadline_ns(now_ns, th_min_i64(reader_patience_ns(reader),
						       reader->leg->transport->config.stall_ns));
	leg_in_hear(reader->leg);
}

static int64_t
reader_tick(struct leg_in_path *path, bool late, int64_t now_ns)
{
	struct reader *reader = reader_of(path);
	/* What is left then is our own to end. */
	if (reader->state >= READER_DRAINING)
		return INT64_MAX;
	if (late)
		reader->late_ns = now_ns;
	look_before_giving_up(reader, late, now_ns);
	if (reader->state >= READER_DRAINING)
		return INT64_MAX;
	if (reader->state == READER_WAITING)
		return reader_tick_waiting(reader, now_ns);
	if (now_ns >= reader->deadline_ns && reader->state == READER_LEAVING)
		leg_in_fail(reader->leg, TH_E_NO_PATH, "it does not answer any more");
	else if (now_ns >= reader->deadline_ns)
		reader_leave(reader, "the source does not answer to the offer");
	if (reader->state != READER_RUNNING)
		return reader->deadline_ns;
	/* We come late ourselves (frozen, or starved): that is no stall of a path. */
	int64_t stall_ns = reader->leg->transport->config.stall_ns;
	int64_t period_ns = th_min_i64(stall_ns, READER_PROBE_NS) / 4;
	late = late || now_ns > reader->looked_ns + 2 * period_ns;
	reader->looked_ns = now_ns;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		if (late)
			reader->lanes[i].moved_ns = now_ns;
		reader_look_at_lane(&reader->lanes[i], now_ns);
	}
	return now_ns + period_ns;
}

static bool
reader_excuses(struct leg_in_path *path)
{
	struct reader *reader = reader_of(path);
	/* What our own memory has not taken yet. */
	if (reader_stage_writes(reader))
		return true;
	if (reader->state == READER_OVER)
		return false;
	if (reader->state != READER_RUNNING)
		return !leg_in_streams(reader->leg);
	if (check_list_busy(&reader->checks))
		return true;
	/* What was asked of a lane is that lane's to watch. */
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		const struct reader_lane *lane = &reader->lanes[i];
		if (lane->lane && !lane->broken &&
			(!lane->proved || __atomic_load_n(&lane->num_taken, __ATOMIC_RELAXED) > 0))
			return true;
	}
	return false;
}

static bool
reader_moves(struct leg_in_path *path)
{
	return reader_of(path)->state == READER_RUNNING;
}

static void
progress(struct leg_in_path *path, struct leg_in_progress *ret_progress)
{
	struct reader *reader = reader_of(path);
	ret_progress->chunks = __atomic_load_n(&reader->landed, __ATOMIC_RELAXED);
	ret_progress->bytes = bytes_of(reader);
}

static bool
touched(struct leg_in_path *path)
{
	return __atomic_load_n(&reader_of(path)->touched, __ATOMIC_RELAXED);
}

/* ---- the beginning ------------------------------------------------------------------------ */

static void
init_tasks(struct reader *reader)
{
	reader_setup_init(reader);
	reader_stage_init(reader);
	reader->doubt_task.run = run_doubt;
	reader->failed_task.run = run_failed;
	reader->checks_closed_task.run = reader_run_checks_closed;
	for (uint32_t i = 0; i < WIRE_LANES_MAX; i++) {
		reader->lanes[i].reader = reader;
		reader_watch_init(&reader->lanes[i]);
	}
}

/* Without RDMA, and why: said in the log, counted and shown. */
static struct leg_in_path *
reader_refuse(struct leg_in *leg, const char *why)
{
	leg_in_fall_back(leg, why);
	log_info("rdma", "a leg does without RDMA leg=%" PRIu64 " source=%s why='%s'", leg->id,
		leg->peer, why);
	return NULL;
}

/* NICs reach our own memory, or will, or slots take its place. */
static int
reach_own(struct reader *reader, struct th_err *err)
{
	struct th_err why;
	uint32_t waiting;
	int rc = places_init(&reader->extents, reader->leg->part, &why, &reader->places);
	if (rc == 0 && (places_ready(&reader->extents, reader->places, &waiting) | waiting) == 0)
		rc = places_why(&reader->extents, reader->places, &why);
	return rc == TH_E_NO_PATH ? reader_stage_own(reader, why.text, err) : rc;
}

static void
reader_free_path(struct leg_in_path *path)
{
	struct reader *reader = reader_of(path);
	reader_stage_fini(reader);
	places_free(&reader->extents, reader->places);
	extents_fini(&reader->extents);
	map_fini(&reader->map);
	check_list_fini(&reader->checks);
	free(reader->doubts);
	pthread_mutex_destroy(&reader->lock);
	free(reader);
}

static struct leg_in_path *
reader_open_path(struct leg_in *leg)
{
	struct transport *transport = leg->transport;
	const struct chunk_table *table = xfer_part_table(leg->part);
	struct th_err err = {0};
	if (!transport->rdma || (leg->flags & TRANSPORT_NO_RDMA) || table->num_chunks == 0)
		return NULL;
	if (rdma_usable(transport->rdma) == 0)
		return reader_refuse(leg, "none of our own rails is up");
	struct reader *reader = th_calloc(1, sizeof(*reader));
	reader->path.ops = &reader_ops;
	reader->leg = leg;
	reader->rdma = transport->rdma;
	reader->deadline_ns = INT64_MAX;
	reader->doubtful = NO_CHUNK;
	reader->checks.check = reader_check;
	reader->checks.closed = reader_checks_closed;
	pthread_mutex_init(&reader->lock, NULL);
	init_tasks(reader);
	int rc = extents_init(&reader->extents, table);
	if (rc == 0)
		rc = reach_own(reader, &err);
	if (rc == 0)
		rc = check_list_init(&reader->checks, rdma_checks(transport->rdma, leg->part),
			table->num_chunks);
	if (rc == 0) {
		reader->doubts = calloc(table->num_chunks, sizeof(reader->doubts[0]));
		rc = reader->doubts ? 0 : -ENOMEM;
	}
	if (rc < 0) {
		reader_free_path(&reader->path);
		return reader_refuse(leg, err.text[0] ? err.text : th_strerror(rc));
	}
	return &reader->path;
}

const struct leg_in_path_ops reader_ops = {
	.hello_flags = FRAME_TAKES_RDMA | FRAME_TAKES_STAGED,
	.frame_kinds = 1u << FRAME_RDMA_RAILS | 1u << FRAME_RDMA_ACCEPT | 1u << FRAME_RDMA_KEYS |
		       1u << FRAME_RDMA_MAP | 1u << FRAME_RDMA_DECLINE | 1u << FRAME_CHECK |
		       1u << FRAME_STAGED,
	.open = reader_open_path,
	.start = reader_start,
	.frame = reader_take_frame,
	.heard = reader_heard,
	.kick = reader_kick,
	.grew = reader_kick,
	.refill = reader_refill,
	.tick = reader_tick,
	.excuses = reader_excuses,
	.moves = reader_moves,
	.progress = progress,
	.touched = touched,
	.close = reader_close_path,
	.gone = reader_gone,
	.free = reader_free_path,
};
