/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leg_out - see leg_out.h.
 */
#include "transport/leg/leg_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/random.h"

#define BROKE_TEXT "the reader broke the data protocol"

static struct leg_out *
leg_out_leg_of(struct control *control)
{
	return loop_container(control, struct leg_out, control);
}

/* The only writer of its state. why is for people. */
static void
leg_out_enter(struct leg_out *leg, enum leg_out_state state, const char *why)
{
	static const char *const names[] = {
		"expected", "serving", "changed", "told", "ending", "ended"};
	static const uint8_t may[] = {/* a mask of where each may go */
		[LEG_OUT_EXPECTED] =
			1u << LEG_OUT_SERVING | 1u << LEG_OUT_ENDING | 1u << LEG_OUT_ENDED,
		[LEG_OUT_SERVING] = 1u << LEG_OUT_CHANGED | 1u << LEG_OUT_ENDING,
		[LEG_OUT_CHANGED] = 1u << LEG_OUT_TOLD | 1u << LEG_OUT_ENDING,
		[LEG_OUT_TOLD] = 1u << LEG_OUT_ENDING,
		[LEG_OUT_ENDING] = 1u << LEG_OUT_ENDED,
		[LEG_OUT_ENDED] = 0};
	TH_ASSERT(may[leg->state] >> state & 1);
	log_debug("transport", "leg out leg=%" PRIu64 " reader=%s state=%s was=%s why='%s'",
		leg->id, leg->peer, names[state], names[leg->state], why);
	leg->state = state;
}

/* The prefix grew: who waits for it may go on, and the reader is told. Any thread, short. */
static void
part_grew(void *arg)
{
	struct leg_out *leg = arg;
	leg_out_nudge(leg);
	LEG_TELL_PATHS(leg, grew);
}

bool
leg_out_streams(const struct leg_out *leg)
{
	struct leg_out_path *path = leg->paths[leg->num_paths - 1];
	return path->ops->moves(path);
}

/* ---- the end ------------------------------------------------------------------------------ */

static void
leg_out_end(struct leg_out *leg, int code, const char *text, bool reset)
{
	enum leg_out_state was = leg->state;
	if (was >= LEG_OUT_ENDING)
		return;
	leg_out_enter(leg, LEG_OUT_ENDING, text);
	leg->result.code = was == LEG_OUT_TOLD ? TH_E_CONTRACT
			   : leg->lost_code    ? leg->lost_code
					       : code;
	leg->result.transfer_ns = (uint64_t)(th_now_ns() - leg->started_ns);
	snprintf(leg->result.text, sizeof(leg->result.text), "%s%s%s", leg->peer,
		leg->peer[0] ? ": " : "", text);
	if (was != LEG_OUT_EXPECTED)
		xfer_part_unwatch(leg->part, part_grew, leg);
	stream_close(&leg->control.stream, reset);
	LEG_TELL_PATHS(leg, close, reset);
	leg_out_settle(leg);
}

void
leg_out_settle(struct leg_out *leg)
{
	if (leg->state != LEG_OUT_ENDING)
		return;
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		if (!leg->paths[i]->ops->gone(leg->paths[i]))
			return;
	}
	leg_out_enter(leg, LEG_OUT_ENDED, "nothing is under way");
	loop_post(leg->transport->acceptor, &leg->last_task);
}

/* With its last event. */
static void
leg_out_give_back(struct leg_out *leg)
{
	tickets_end(&leg->transport->tickets, &leg->grant);
	control_fini(&leg->control);
	free(leg->asked);
	xfer_part_release(leg->part);
	leg->part = NULL;
	events_post(&leg->transport->events, &leg->last_node);
}

void
leg_out_fence(struct leg_out *leg)
{
	if (leg->state >= LEG_OUT_ENDING) {
		leg_out_settle(leg); /* the transport may be closing */
		return;
	}
	if (leg->state == LEG_OUT_EXPECTED) {
		/* Nothing is under way for it. */
		leg_out_enter(leg, LEG_OUT_ENDED, "nobody has come");
		leg->result.code = TH_E_CANCELLED;
		leg_out_give_back(leg);
		return;
	}
	count_up(&leg->transport->counters.legs_fenced, 1);
	/* A reset: what the kernel has queued shall not arrive any more either. */
	leg_out_end(leg, TH_E_CANCELLED, "fenced", true);
}

/* The reader is told why, so that it need not guess: another source may do better. */
static void
say_lost(struct leg_out *leg, int code, uint32_t row)
{
	char text[TH_CTL_TEXT_BYTES];
	bool limit = code == TH_E_LIMIT;
	(void)part_lost_text(leg->part, "the memory of this copy can not be read any more", text);
	if (limit)
		snprintf(text, sizeof(text), LIMIT_TEXT);
	struct frame frame = {.kind = FRAME_REFUSED,
		.leg = leg->reader_leg,
		.count = 0u - (uint32_t)th_code_or(code, TH_E_STALE_MEMORY),
		.bytes = strlen(text)};
	if (leg->state >= LEG_OUT_ENDING)
		return;
	leg->result.row = row;
	leg->lost_code = limit ? code : TH_E_STALE_MEMORY;
	if (leg->control.out_bytes + frame.bytes <= FRAME_PAYLOAD_MAX) {
		control_put(&leg->control, &frame, (const uint8_t *)text);
		stream_wake(&leg->control.stream);
	}
	leg_out_end(leg, leg->lost_code, text, false); /* unless the wake-up has ended it */
}

void
leg_out_fail(struct leg_out *leg, const char *text)
{
	leg_out_end(leg, TH_E_PROTOCOL, text, true);
}

void
leg_out_lost(struct leg_out *leg, int code, uint32_t row)
{
	if (code == TH_E_PROTOCOL)
		leg_out_fail(leg, BROKE_TEXT);
	else
		say_lost(leg, code, row);
}

void
leg_out_changed(struct leg_out *leg, uint32_t chunk)
{
	if (!__atomic_exchange_n(&leg->changed, true, __ATOMIC_RELAXED)) {
		leg->changed_chunk = chunk;
		loop_post(leg->transport->acceptor, &leg->changed_task);
	}
}

static void
leg_out_run_last(struct loop_task *task)
{
	struct leg_out *leg = loop_container(task, struct leg_out, last_task);
	struct transport *transport = leg->transport;
	LIST_REMOVE(leg, entry);
	leg->result.bytes_moved = __atomic_load_n(&leg->bytes_sent, __ATOMIC_RELAXED);
	LEG_TELL_PATHS(leg, say, &leg->result);
	LEG_TELL_PATHS(leg, free);
	leg->num_paths = 0;
	leg_out_give_back(leg);
	acceptor_left(transport);
}

static bool
leg_out_fill_last(struct event_node *node, struct transport_event *ret_event)
{
	struct leg_out *leg = loop_container(node, struct leg_out, last_node);
	*ret_event = leg->result;
	free(leg);
	return true;
}

static bool
leg_out_fill_began(struct event_node *node, struct transport_event *ret_event)
{
	ret_event->kind = TRANSPORT_BEGAN;
	ret_event->leg = loop_container(node, struct leg_out, began_node)->id;
	return true;
}

/* Says how it is now, if that is news. */
static bool
fill_stall(struct event_node *node, struct transport_event *ret_event)
{
	struct leg_out *leg = loop_container(node, struct leg_out, stall_node);
	bool stalled = __atomic_load_n(&leg->stalled, __ATOMIC_ACQUIRE);
	if (stalled == leg->stall_reported)
		return false;
	leg->stall_reported = stalled;
	ret_event->kind = stalled ? TRANSPORT_STALLED : TRANSPORT_RESUMED;
	ret_event->leg = leg->id;
	ret_event->bytes_moved = __atomic_load_n(&leg->bytes_sent, __ATOMIC_RELAXED);
	memcpy(ret_event->transport, "tcp", 4);
	return true;
}

static bool
leg_out_fill_changed(struct event_node *node, struct transport_event *ret_event)
{
	struct leg_out *leg = loop_container(node, struct leg_out, changed_node);
	ret_event->kind = TRANSPORT_CHANGED;
	ret_event->leg = leg->id;
	ret_event->chunk = leg->changed_chunk;
	memcpy(ret_event->transport, "tcp", 4);
	return true;
}

/* ---- what its paths tell ------------------------------------------------------------------ */

static void
look_again(struct leg_out *leg)
{
	leg->deadline_ns = 0;
	loop_tick_at(leg->transport->acceptor, 0);
}

void
leg_out_look(struct leg_out *leg)
{
	look_again(leg);
	leg_out_wake(leg);
}

void
leg_out_nudge(struct leg_out *leg)
{
	loop_post(leg->transport->acceptor, &leg->progress_task);
}

uint32_t
leg_out_asked(struct leg_out *leg, uint32_t chunk)
{
	return __atomic_add_fetch(&leg->asked[chunk], 1, __ATOMIC_RELAXED);
}

void
leg_out_ask_anew(struct leg_out *leg)
{
	for (uint32_t c = 0; c < xfer_part_table(leg->part)->num_chunks; c++)
		__atomic_store_n(&leg->asked[c], 0, __ATOMIC_RELAXED);
}

void
leg_out_lives(struct leg_out *leg)
{
	__atomic_store_n(&leg->last_sent_ns, th_now_ns(), __ATOMIC_RELAXED);
}

void
leg_out_sent(struct leg_out *leg, uint64_t bytes)
{
	leg_out_lives(leg);
	count_up(&leg->bytes_sent, bytes);
	count_up(&leg->transport->counters.bytes_out, bytes);
	if (__atomic_load_n(&leg->stalled, __ATOMIC_RELAXED) &&
		__atomic_exchange_n(&leg->stalled, false, __ATOMIC_ACQ_REL)) {
		events_post(&leg->transport->events, &leg->stall_node);
		leg_out_nudge(leg); /* its clock runs again */
	}
}

#ifdef TH_FAULTS
bool
leg_out_flips(struct leg_out *leg, uint32_t chunk)
{
	const struct fault *fault = &leg->transport->fault;
	return fault->flip && chunk == fault->flip_chunk &&
	       (!__atomic_exchange_n(&leg->flipped, true, __ATOMIC_RELAXED) || fault->flip_always);
}
#endif

/* ---- control connection ------------------------------------------------------------------- */

void
leg_out_alive(struct leg_out *leg, uint64_t bytes)
{
	count_up(&leg->bytes_sent, bytes);
	count_up(&leg->transport->counters.bytes_out, bytes);
	leg->excused_ns = th_now_ns();
	if (__atomic_exchange_n(&leg->stalled, false, __ATOMIC_ACQ_REL))
		events_post(&leg->transport->events, &leg->stall_node);
	look_again(leg);
}

/* Each chunk excuses it once. */
static int
leg_out_on_alive(struct leg_out *leg, uint32_t looks)
{
	if (looks <= leg->looks || looks > xfer_part_table(leg->part)->num_chunks)
		return TH_E_PROTOCOL;
	leg->looks = looks;
	leg_out_alive(leg, 0);
	return 0;
}

static int
leg_out_handle(struct control *control, const struct frame *frame, const uint8_t *payload)
{
	struct leg_out *leg = leg_out_leg_of(control);
	if (frame->leg != leg->reader_leg)
		return TH_E_PROTOCOL;
	if (frame->kind == FRAME_ALIVE && frame->bytes == 0)
		return leg_out_on_alive(leg, frame->count);
	if (frame->kind == FRAME_BYE) {
		TH_FP(leg_out_bye);
		leg_out_end(leg, 0, "the reader has all it wanted", false);
		return 0;
	}
	for (uint32_t i = 0; i < leg->num_paths && leg->state < LEG_OUT_ENDING; i++) {
		if (leg->paths[i]->ops->frame_kinds >> frame->kind & 1)
			return leg->paths[i]->ops->frame(leg->paths[i], frame, payload);
	}
	return TH_E_PROTOCOL;
}

static void
leg_out_broken(struct control *control, int code)
{
	struct leg_out *leg = leg_out_leg_of(control);
	if (code == TH_E_PROTOCOL)
		leg_out_fail(leg, BROKE_TEXT);
	else
		leg_out_end(leg, TH_E_NO_PATH, "the reader is gone", true);
}

static bool
anybody_waits(const struct leg_out *leg)
{
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		if (leg->paths[i]->ops->waits(leg->paths[i]))
			return true;
	}
	return false;
}

/* Not the reader's fault and not the way's: it should try another source, not this one again. */
static void
say_changed(struct leg_out *leg)
{
	char text[TH_CTL_TEXT_BYTES];
	snprintf(text, sizeof(text), "chunk %" PRIu32 " is not what was published any more",
		leg->changed_chunk);
	struct frame frame = {.kind = FRAME_REFUSED,
		.leg = leg->reader_leg,
		.count = 0u - (uint32_t)TH_E_CHECKSUM,
		.bytes = strlen(text)};
	control_put(&leg->control, &frame, (const uint8_t *)text);
	leg_out_enter(leg, LEG_OUT_TOLD, text);
}

uint8_t *
leg_out_room(struct leg_out *leg)
{
	return leg->control.out + leg->control.out_bytes + FRAME_BYTES;
}

void
leg_out_put(struct leg_out *leg, const struct frame *frame, const uint8_t *payload)
{
	control_put(&leg->control, frame, payload);
}

void
leg_out_wake(struct leg_out *leg)
{
	stream_wake(&leg->control.stream);
}

/* A path has something to say, which goes first. */
static bool
refill_by_path(struct leg_out *leg)
{
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		struct leg_out_path *path = leg->paths[i];
		if (path->ops->refill && path->ops->refill(path))
			return true;
	}
	return false;
}

/* What all paths can serve. */
static uint32_t
leg_out_prefix_of(const struct leg_out *leg)
{
	uint32_t prefix = xfer_part_prefix(leg->part);
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		struct leg_out_path *path = leg->paths[i];
		if (path->ops->prefix)
			prefix = path->ops->prefix(path, prefix);
	}
	return prefix;
}

/* The next PROGRESS, if there is news or it is time to say again that we wait. */
static void
leg_out_refill(struct control *control)
{
	struct leg_out *leg = leg_out_leg_of(control);
	if (__atomic_load_n(&leg->changed, __ATOMIC_RELAXED)) {
		if (leg->state == LEG_OUT_CHANGED)
			say_changed(leg);
		return;
	}
	if (refill_by_path(leg))
		return;
	/* Prefix first: the digests of all chunks below it are known then. */
	uint32_t prefix = leg_out_prefix_of(leg);
	uint32_t known = leg->verify ? xfer_part_digest_count(leg->part) : 0;
	uint32_t count = th_min_u32(known - leg->digests_sent, FRAME_DIGESTS_MAX);
	uint32_t say = leg->verify ? th_min_u32(prefix, leg->digests_sent + count) : prefix;
	bool waiting = anybody_waits(leg);
	if (count == 0 && say == leg->prefix_sent && waiting == leg->said_waiting && !leg->beat)
		return;
	struct frame frame = {.kind = FRAME_PROGRESS,
		.flags = waiting ? FRAME_WAITING : 0,
		.leg = leg->reader_leg,
		.first = leg->digests_sent,
		.count = say,
		.bytes = (uint64_t)count * 16};
	frame_encode(&frame, control->out);
	if (count > 0)
		frame_encode_digests(xfer_part_digest(leg->part, leg->digests_sent), count,
			control->out + FRAME_BYTES);
	control->out_bytes = FRAME_BYTES + count * 16;
	leg->prefix_sent = say;
	leg->digests_sent += count;
	leg->said_waiting = waiting;
	leg->beat = false;
	leg->last_progress_ns = th_now_ns();
}

static void
run_progress(struct loop_task *task)
{
	struct leg_out *leg = loop_container(task, struct leg_out, progress_task);
	if (leg->state >= LEG_OUT_ENDING)
		return;
	if (xfer_part_failed(leg->part)) {
		say_lost(leg, TH_E_STALE_MEMORY, UINT32_MAX);
		return;
	}
	LEG_TELL_PATHS(leg, nudged);
	leg_out_look(leg);
}

/* The shell ends what serves the part; the reader is told why and leaves. */
static void
run_changed(struct loop_task *task)
{
	struct leg_out *leg = loop_container(task, struct leg_out, changed_task);
	if (leg->state >= LEG_OUT_ENDING)
		return;
	leg_out_enter(leg, LEG_OUT_CHANGED, "a chunk is not what was published any more");
	events_post(&leg->transport->events, &leg->changed_node);
	stream_wake(&leg->control.stream);
}

/* ---- the beginning ------------------------------------------------------------------------ */

struct leg_out *
leg_out_new(struct transport *transport, uint64_t id, const struct th_ticket *ticket,
	struct xfer_part *part, unsigned flags)
{
	struct leg_out *leg = th_calloc(1, sizeof(*leg));
	leg->transport = transport;
	leg->id = id;
	leg->flags = flags;
	leg->grant.ticket = *ticket;
	leg->part = xfer_part_retain(part);
	leg->verify = xfer_part_verify(part);
	leg->control.stream.fd = -1;
	leg->changed_task.run = run_changed;
	leg->progress_task.run = run_progress;
	leg->last_task.run = leg_out_run_last;
	leg->began_node.fill = leg_out_fill_began;
	leg->stall_node.fill = fill_stall;
	leg->changed_node.fill = leg_out_fill_changed;
	leg->last_node.fill = leg_out_fill_last;
	leg->result.kind = TRANSPORT_ENDED;
	leg->result.leg = id;
	memcpy(leg->result.transport, "tcp", 4);
	return leg;
}

static void
make_room(struct leg_out *leg)
{
	uint32_t payload_max = 0, payload_kinds = 0;
	for (const struct leg_out_path_ops *const *ops = leg_out_paths; *ops; ops++) {
		payload_max = th_max_u32(payload_max, (*ops)->payload_max);
		payload_kinds |= (*ops)->payload_kinds;
	}
	control_init(&leg->control, payload_max, payload_kinds);
	leg->control.handle = leg_out_handle;
	leg->control.refill = leg_out_refill;
	leg->control.broken = leg_out_broken;
	leg->asked = th_calloc(
		th_max_u32(xfer_part_table(leg->part)->num_chunks, 1), sizeof(leg->asked[0]));
}

/* What WELCOME shall say of them. */
static unsigned
leg_out_open_paths(struct leg_out *leg, unsigned hello_flags)
{
	unsigned flags = 0;
	for (const struct leg_out_path_ops *const *ops = leg_out_paths; *ops; ops++) {
		struct leg_out_path *path = (*ops)->open(leg, hello_flags, &flags);
		if (path)
			leg->paths[leg->num_paths++] = path;
	}
	return flags;
}

void
leg_out_start(struct leg_out *leg, int fd, uint64_t reader_leg, unsigned hello_flags)
{
	struct transport *transport = leg->transport;
	const struct chunk_table *table = xfer_part_table(leg->part);
	LIST_INSERT_HEAD(&transport->legs_out, leg, entry);
	count_up(&transport->counters.legs_out, 1);
	events_post(&transport->events, &leg->began_node);
	make_room(leg);
	leg->reader_leg = reader_leg;
	leg->started_ns = th_now_ns();
	if (fd < 0) {
		leg_out_end(leg, TH_E_NO_PATH, "the reader was gone before it was served", false);
		return;
	}
	struct sockaddr_storage address = {0};
	socklen_t bytes = sizeof(address);
	if (getpeername(fd, (struct sockaddr *)&address, &bytes) == 0)
		socket_name(&address, leg->peer);
	leg->same_host = socket_same_host(fd);
	struct frame_welcome welcome = {.bytes = table->bytes, .protocol = FRAME_PROTOCOL};
	th_random(leg->key, sizeof(leg->key));
	memcpy(welcome.key, leg->key, sizeof(leg->key));
	unsigned flags = leg_out_open_paths(leg, hello_flags);
	struct frame frame = {.kind = FRAME_WELCOME,
		.flags = (uint8_t)(flags | (leg->verify ? FRAME_DIGESTS : 0)),
		.leg = reader_leg,
		.count = table->num_chunks,
		.bytes = FRAME_WELCOME_BYTES};
	uint8_t payload[FRAME_WELCOME_BYTES];
	frame_encode_welcome(&welcome, payload);
	control_put(&leg->control, &frame, payload);
	int rc = control_open(&leg->control, transport->acceptor, fd, false);
	if (rc < 0) {
		leg_out_end(leg, rc, th_strerror(rc), false);
		return;
	}
	TH_FP(leg_out_hello);
	leg_out_enter(leg, LEG_OUT_SERVING, "hello");
	xfer_part_watch(leg->part, part_grew, leg);
	hasher_wanted(leg->transport->hasher);
	if (xfer_part_failed(leg->part))
		part_grew(leg);
	leg->excused_ns = leg->started_ns;
	loop_tick_at(transport->acceptor, 0);
	LEG_TELL_PATHS(leg, start);
	if (leg->state < LEG_OUT_ENDING)
		stream_wake(&leg->control.stream);
}

struct leg_out *
leg_out_find(struct transport *transport, uint64_t id)
{
	struct ticket_grant *grant;
	LIST_FOREACH(grant, &transport->tickets.grants, entry)
	{
		struct leg_out *leg = loop_container(grant, struct leg_out, grant);
		if (leg->id == id)
			return leg;
	}
	return NULL;
}

struct leg_out *
leg_out_find_key(
	struct transport *transport, const uint8_t key[FRAME_KEY_BYTES], uint64_t reader_leg)
{
	struct leg_out *leg, *found = NULL;
	LIST_FOREACH(leg, &transport->legs_out, entry)
	{
		if (frame_key_equal(leg->key, key) && leg->reader_leg == reader_leg &&
			leg->state < LEG_OUT_ENDING)
			found = leg;
	}
	return found;
}

struct leg_out *
leg_out_next(struct leg_out *leg)
{
	return LIST_NEXT(leg, entry);
}

/* ---- the clock ---------------------------------------------------------------------------- */

/* Says again that we wait, so that the reader can tell waiting from frozen. */
static int64_t
leg_out_beat(struct leg_out *leg, int64_t now_ns)
{
	int64_t period_ns = leg->transport->config.stall_ns / 3;
	leg->excused_ns = now_ns;
	if (__atomic_exchange_n(&leg->stalled, false, __ATOMIC_ACQ_REL))
		events_post(&leg->transport->events, &leg->stall_node);
	if (now_ns >= leg->last_progress_ns + period_ns) {
		leg->beat = true;
		stream_wake(&leg->control.stream);
		if (leg->state >= LEG_OUT_ENDING)
			return INT64_MAX;
	}
	return th_max_i64(leg->last_progress_ns + period_ns, now_ns + period_ns / 4);
}

int64_t
leg_out_tick(struct leg_out *leg, int64_t now_ns)
{
	int64_t stall_ns = leg->transport->config.stall_ns;
	if (leg->state >= LEG_OUT_ENDING)
		return INT64_MAX;
	if (now_ns < leg->deadline_ns)
		return leg->deadline_ns;
	int64_t next_ns = INT64_MAX;
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		struct leg_out_path *path = leg->paths[i];
		if (path->ops->tick)
			next_ns = th_min_i64(next_ns, path->ops->tick(path, now_ns));
		if (leg->state >= LEG_OUT_ENDING)
			return INT64_MAX;
	}
	if (anybody_waits(leg)) {
		leg->deadline_ns = th_min_i64(leg_out_beat(leg, now_ns), next_ns);
		return leg->deadline_ns;
	}
	/* We come late ourselves: that is not the reader's stall. */
	if (leg->deadline_ns > 0 && now_ns > leg->deadline_ns + stall_ns / 4)
		leg->excused_ns = now_ns;
	int64_t since_ns =
		th_max_i64(leg->excused_ns, __atomic_load_n(&leg->last_sent_ns, __ATOMIC_RELAXED));
	leg->deadline_ns = since_ns + stall_ns;
	if (now_ns < leg->deadline_ns)
		return leg->deadline_ns;
	/* When it takes bytes again the mover says so and wakes this clock. */
	__atomic_store_n(&leg->stalled, true, __ATOMIC_RELEASE);
	events_post(&leg->transport->events, &leg->stall_node);
	leg->deadline_ns = INT64_MAX;
	return INT64_MAX;
}
