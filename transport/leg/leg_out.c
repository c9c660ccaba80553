/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leg_out - the source's side of a leg to another agent: welcome, progress for the reader, the
 * stall clock, the end. Its bytes go by data connections (data_out.c) or RDMA (rdma/leg/source.h).
 *
 * Acceptor only, but for leg_out_new and the fill functions (shell) and the watcher (whoever
 * advances the part). How a leg ends: transport_own.h.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/fd.h"
#include "ipc/base/random.h"
#include "transport/rdma/leg/rdma_wire.h"
#include "transport/tcp/tcp.h"

/* Of what a reader sends: a sentence, or its ends of lanes. */
#define OUT_PAYLOAD_MAX                                                                            \
	(WIRE_LANES_MAX * WIRE_LANE_BYTES > TH_CTL_TEXT_BYTES ? WIRE_LANES_MAX * WIRE_LANE_BYTES   \
							      : TH_CTL_TEXT_BYTES)

static struct leg_out *
leg_of(struct control *control)
{
	return loop_container(control, struct leg_out, control);
}

/* The prefix grew: who waits for it may go on, and the reader is told. Any thread, short. */
static void
part_grew(void *arg)
{
	struct leg_out *leg = arg;
	loop_post(leg->transport->acceptor, &leg->progress_task);
	pthread_mutex_lock(&leg->lock);
	for (uint32_t i = 0; i < leg->num_conns; i++) {
		struct data_out *conn = leg->conns[i];
		if (!conn->closing && __atomic_load_n(&conn->waiting, __ATOMIC_SEQ_CST))
			loop_post(conn->loop, &conn->kick_task);
	}
	pthread_mutex_unlock(&leg->lock);
}

/* ---- the end ------------------------------------------------------------------------------ */

/* A kick that is posted after the close would find the connection freed: none is from here on. */
static void
close_conn(struct data_out *conn, bool reset)
{
	if (conn->closing)
		return;
	pthread_mutex_lock(&conn->leg->lock);
	conn->closing = true;
	pthread_mutex_unlock(&conn->leg->lock);
	conn->reset = reset;
	loop_post(conn->loop, &conn->close_task);
}

static void
leg_out_end(struct leg_out *leg, int code, const char *text, bool reset)
{
	if (leg->ending)
		return;
	leg->ending = true;
	leg->result.code = leg->said_changed ? TH_E_CONTRACT
			   : leg->lost_code  ? leg->lost_code
					     : code;
	leg->result.transfer_ns = (uint64_t)(th_now_ns() - leg->started_ns);
	snprintf(leg->result.text, sizeof(leg->result.text), "%s%s%s", leg->peer,
		leg->peer[0] ? ": " : "", text);
	if (leg->watching)
		xfer_part_unwatch(leg->part, part_grew, leg);
	stream_close(&leg->control.stream, reset);
	for (uint32_t i = 0; i < leg->num_conns; i++)
		close_conn(leg->conns[i], reset);
	const char *copy = source_copies(leg->source);
	if (copy)
		snprintf(leg->result.copy, sizeof(leg->result.copy), "%s", copy);
	if (source_serves(leg->source))
		memcpy(leg->result.transport, copy ? "rdma-copy" : "rdma", copy ? 10 : 5);
	source_close(leg->source);
	leg_out_settle(leg);
}

void
leg_out_settle(struct leg_out *leg)
{
	if (!leg->ending || leg->settled || leg->num_conns > 0 || !source_gone(leg->source))
		return;
	leg->settled = true;
	loop_post(leg->transport->acceptor, &leg->last_task);
}

void
leg_out_fence(struct leg_out *leg)
{
	if (leg->ending) {
		leg_out_settle(leg); /* the transport may be closing */
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
	if (leg->ending)
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
leg_out_lost(struct leg_out *leg, int code, uint32_t row)
{
	if (code == TH_E_PROTOCOL)
		leg_out_end(leg, code, "the reader broke the data protocol", true);
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

void
leg_out_conn_broken(struct leg_out *leg, struct data_out *conn)
{
	if (conn->code == TH_E_PROTOCOL) {
		leg_out_end(leg, TH_E_PROTOCOL, "the reader broke the data protocol", true);
		return;
	}
	if (conn->own) {
		say_lost(leg, conn->code, conn->row);
		return;
	}
	/* The reader knows as well and judges: its control connection tells how it goes on. */
	close_conn(conn, false);
}

void
leg_out_conn_gone(struct leg_out *leg, struct data_out *conn)
{
	pthread_mutex_lock(&leg->lock);
	uint32_t i = 0;
	while (leg->conns[i] != conn)
		i++;
	leg->conns[i] = leg->conns[--leg->num_conns];
	pthread_mutex_unlock(&leg->lock);
	free(conn);
	pacing_divide(leg->transport);
	leg_out_settle(leg);
}

static void
leg_out_run_last(struct loop_task *task)
{
	struct leg_out *leg = loop_container(task, struct leg_out, last_task);
	struct transport *transport = leg->transport;
	LIST_REMOVE(leg, entry);
	leg->result.bytes_moved = __atomic_load_n(&leg->bytes_sent, __ATOMIC_RELAXED);
	if (__atomic_load_n(&leg->spliced, __ATOMIC_RELAXED))
		memcpy(leg->result.transport, "tcp sendfile", sizeof("tcp sendfile"));
	control_fini(&leg->control);
	source_free(leg->source);
	leg->source = NULL;
	free(leg->asked);
	pthread_mutex_destroy(&leg->lock);
	xfer_part_release(leg->part);
	leg->part = NULL;
	events_post(&transport->events, &leg->last_node);
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

/* ---- control connection ------------------------------------------------------------------- */

void
leg_out_alive(struct leg_out *leg)
{
	leg->excused_ns = th_now_ns();
	if (__atomic_exchange_n(&leg->stalled, false, __ATOMIC_ACQ_REL))
		events_post(&leg->transport->events, &leg->stall_node);
	leg->deadline_ns = 0;
	loop_tick_at(leg->transport->acceptor, 0);
}

/* Each chunk excuses it once. */
static int
on_alive(struct leg_out *leg, uint32_t looks)
{
	if (looks <= leg->looks || looks > xfer_part_table(leg->part)->num_chunks)
		return TH_E_PROTOCOL;
	leg->looks = looks;
	leg_out_alive(leg);
	return 0;
}

static int
leg_out_handle(struct control *control, const struct frame *frame, const uint8_t *payload)
{
	struct leg_out *leg = leg_of(control);
	if (frame->leg != leg->reader_leg)
		return TH_E_PROTOCOL;
	if (frame->kind == FRAME_ALIVE && frame->bytes == 0)
		return on_alive(leg, frame->count);
	if (frame->kind != FRAME_BYE)
		return source_frame(leg->source, frame, payload);
	TH_FP(leg_out_bye);
	leg_out_end(leg, 0, "the reader has all it wanted", false);
	return 0;
}

static void
leg_out_broken(struct control *control, int code)
{
	struct leg_out *leg = leg_of(control);
	if (code == TH_E_PROTOCOL)
		leg_out_end(leg, code, "the reader broke the data protocol", true);
	else
		leg_out_end(leg, TH_E_NO_PATH, "the reader is gone", true);
}

static bool
anybody_waits(const struct leg_out *leg)
{
	for (uint32_t i = 0; i < leg->num_conns; i++) {
		if (__atomic_load_n(&leg->conns[i]->waiting, __ATOMIC_SEQ_CST))
			return true;
	}
	return source_waits(leg->source, leg->prefix_sent);
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
	leg->said_changed = true;
}

/* The next PROGRESS, if there is news or it is time to say again that we wait. */
static void
leg_out_refill(struct control *control)
{
	struct leg_out *leg = leg_of(control);
	if (__atomic_load_n(&leg->changed, __ATOMIC_RELAXED)) {
		if (leg->change_known && !leg->said_changed)
			say_changed(leg);
		return;
	}
	if (source_refill(leg->source))
		return;
	/* Prefix first: the digests of all chunks below it are known then. */
	uint32_t prefix = source_prefix(leg->source, xfer_part_prefix(leg->part));
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
	if (leg->ending)
		return;
	if (xfer_part_failed(leg->part)) {
		say_lost(leg, TH_E_STALE_MEMORY, UINT32_MAX);
		return;
	}
	source_grew(leg->source);
	leg->deadline_ns = 0; /* somebody waits, or does no more: look again */
	loop_tick_at(leg->transport->acceptor, 0);
	stream_wake(&leg->control.stream);
}

/* The shell ends what serves the part; the reader is told why and leaves. */
static void
run_changed(struct loop_task *task)
{
	struct leg_out *leg = loop_container(task, struct leg_out, changed_task);
	if (leg->ending)
		return;
	leg->change_known = true;
	events_post(&leg->transport->events, &leg->changed_node);
	stream_wake(&leg->control.stream);
}

/* ---- the beginning ------------------------------------------------------------------------ */

struct leg_out *
leg_out_new(struct transport *transport, uint64_t id, struct xfer_part *part)
{
	struct leg_out *leg = th_calloc(1, sizeof(*leg));
	leg->transport = transport;
	leg->id = id;
	leg->part = xfer_part_retain(part);
	leg->verify = xfer_part_verify(part);
	pthread_mutex_init(&leg->lock, NULL);
	control_init(&leg->control, OUT_PAYLOAD_MAX,
		1u << FRAME_RDMA_OFFER | 1u << FRAME_RDMA_DECLINE | 1u << FRAME_ALIVE);
	leg->control.handle = leg_out_handle;
	leg->control.refill = leg_out_refill;
	leg->control.broken = leg_out_broken;
	leg->asked =
		th_calloc(th_max_u32(xfer_part_table(part)->num_chunks, 1), sizeof(leg->asked[0]));
	leg->changed_task.run = run_changed;
	leg->progress_task.run = run_progress;
	leg->last_task.run = leg_out_run_last;
	leg->stall_node.fill = fill_stall;
	leg->changed_node.fill = leg_out_fill_changed;
	leg->last_node.fill = leg_out_fill_last;
	leg->result.kind = TRANSPORT_ENDED;
	leg->result.leg = id;
	memcpy(leg->result.transport, "tcp", 4);
	return leg;
}

static bool
may_send_files(const struct transport *transport, int fd)
{
	if (transport->config.sendfile != TRANSPORT_SENDFILE_AUTO)
		return transport->config.sendfile == TRANSPORT_SENDFILE_YES;
	return !socket_same_host(fd);
}

void
leg_out_start(struct leg_out *leg, int fd, uint64_t reader_leg, unsigned hello_flags)
{
	struct transport *transport = leg->transport;
	const struct chunk_table *table = xfer_part_table(leg->part);
	LIST_INSERT_HEAD(&transport->legs_out, leg, entry);
	count_up(&transport->counters.legs_out, 1);
	leg->reader_leg = reader_leg;
	bool verifies = (hello_flags & FRAME_VERIFIES) != 0;
	leg->late_reads = verifies && leg->verify && fd >= 0 && may_send_files(transport, fd);
	leg->started_ns = th_now_ns();
	if (fd < 0) {
		leg_out_end(leg, TH_E_NO_PATH, "the reader was gone before it was served", false);
		return;
	}
	struct sockaddr_storage address = {0};
	socklen_t bytes = sizeof(address);
	if (getpeername(fd, (struct sockaddr *)&address, &bytes) == 0)
		socket_name(&address, leg->peer);
	struct frame_welcome welcome = {.bytes = table->bytes, .protocol = FRAME_PROTOCOL};
	th_random(leg->key, sizeof(leg->key));
	memcpy(welcome.key, leg->key, sizeof(leg->key));
	if (hello_flags & FRAME_TAKES_RDMA)
		leg->source = source_new(leg, (hello_flags & FRAME_TAKES_STAGED) != 0);
	struct frame frame = {.kind = FRAME_WELCOME,
		.flags = (uint8_t)((leg->verify ? FRAME_DIGESTS : 0) |
				   (leg->source ? FRAME_OFFERS_RDMA : 0) |
				   (source_later(leg->source) ? FRAME_RDMA_LATER : 0)),
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
	leg->watching = true;
	xfer_part_watch(leg->part, part_grew, leg);
	hasher_wanted(leg->transport->hasher);
	if (xfer_part_failed(leg->part))
		part_grew(leg);
	leg->excused_ns = leg->started_ns;
	loop_tick_at(transport->acceptor, 0);
	source_start(leg->source);
	if (!leg->ending)
		stream_wake(&leg->control.stream);
}

void
leg_out_join(struct leg_out *leg, int fd)
{
	if (leg->num_conns == CONNECTIONS_MAX) {
		th_fd_close(&fd);
		leg_out_end(leg, TH_E_PROTOCOL, "the reader opened too many connections", true);
		return;
	}
	struct data_out *conn = data_out_new(leg, acceptor_next_mover(leg->transport), fd);
	pthread_mutex_lock(&leg->lock);
	leg->conns[leg->num_conns++] = conn;
	pthread_mutex_unlock(&leg->lock);
	/* Not before: it may wait at once for a prefix whose watcher must know it. */
	data_out_start(conn);
	pacing_divide(leg->transport);
}

struct leg_out *
leg_out_find(struct transport *transport, uint64_t id)
{
	struct leg_out *leg;
	LIST_FOREACH(leg, &transport->legs_out, entry)
	{
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
		if (frame_key_equal(leg->key, key) && leg->reader_leg == reader_leg && !leg->ending)
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
beat(struct leg_out *leg, int64_t now_ns)
{
	int64_t period_ns = leg->transport->config.stall_ns / 3;
	leg->excused_ns = now_ns;
	if (__atomic_exchange_n(&leg->stalled, false, __ATOMIC_ACQ_REL))
		events_post(&leg->transport->events, &leg->stall_node);
	if (now_ns >= leg->last_progress_ns + period_ns) {
		leg->beat = true;
		stream_wake(&leg->control.stream);
		if (leg->ending)
			return INT64_MAX;
	}
	return th_max_i64(leg->last_progress_ns + period_ns, now_ns + period_ns / 4);
}

int64_t
leg_out_tick(struct leg_out *leg, int64_t now_ns)
{
	int64_t stall_ns = leg->transport->config.stall_ns;
	if (leg->ending)
		return INT64_MAX;
	if (now_ns < leg->deadline_ns)
		return leg->deadline_ns;
	int64_t next_ns = source_tick(leg->source, now_ns);
	if (leg->ending)
		return INT64_MAX;
	if (anybody_waits(leg)) {
		leg->deadline_ns = th_min_i64(beat(leg, now_ns), next_ns);
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
