/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leg_in - see leg_in.h.
 */
#include "transport/leg/leg_in.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/log.h"

#define DIGESTS_AT_ONCE 256u /* decoded on the stack */

static struct leg_in *
leg_in_leg_of(struct control *control)
{
	return loop_container(control, struct leg_in, control);
}

/* The only writer of its state. why is for people. */
static void
leg_in_enter(struct leg_in *leg, enum leg_in_state state, const char *why)
{
	static const char *const names[] = {"connecting", "asking", "running", "ending", "ended"};
	static const uint8_t may[] = {/* a mask of where each may go */
		[LEG_IN_CONNECTING] = 1u << LEG_IN_ASKING | 1u << LEG_IN_ENDING,
		[LEG_IN_ASKING] = 1u << LEG_IN_RUNNING | 1u << LEG_IN_ENDING,
		[LEG_IN_RUNNING] = 1u << LEG_IN_ENDING,
		[LEG_IN_ENDING] = 1u << LEG_IN_ENDED,
		[LEG_IN_ENDED] = 0};
	TH_ASSERT(may[leg->state] >> state & 1);
	log_debug("transport", "leg in leg=%" PRIu64 " source=%s state=%s was=%s why='%s'", leg->id,
		leg->peer, names[state], names[leg->state], why);
	leg->state = state;
}

static struct leg_in_path *
stream_of(const struct leg_in *leg)
{
	TH_ASSERT(leg->num_paths > 0);
	return leg->paths[leg->num_paths - 1];
}

bool
leg_in_streams(const struct leg_in *leg)
{
	struct leg_in_path *path = stream_of(leg);
	return path->ops->moves(path);
}

/* The one that fetches and that the source does not see move. NULL: none. */
static struct leg_in_path *
unseen_of(const struct leg_in *leg)
{
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		struct leg_in_path *path = leg->paths[i];
		if (path->ops->progress && path->ops->moves(path))
			return path;
	}
	return NULL;
}

/* ---- the end ------------------------------------------------------------------------------ */

static void
leg_in_end(struct leg_in *leg, enum transport_event_kind kind)
{
	leg_in_enter(leg, LEG_IN_ENDING, kind == TRANSPORT_DONE ? "all is here" : leg->result.text);
	leg->result.kind = kind;
	if (leg->running_ns != 0)
		leg->result.transfer_ns = (uint64_t)(th_now_ns() - leg->running_ns);
	stream_close(&leg->control.stream, kind != TRANSPORT_DONE);
	chunk_ledger_look_stop(&leg->ledger);
	if (!unseen_of(leg))
		__atomic_store_n(&leg->way, LEG_BY_TCP, __ATOMIC_RELAXED);
	LEG_TELL_PATHS(leg, close, kind == TRANSPORT_DONE);
	leg_in_settle(leg);
}

void
leg_in_settle(struct leg_in *leg)
{
	if (leg->state != LEG_IN_ENDING)
		return;
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		if (!leg->paths[i]->ops->gone(leg->paths[i]))
			return;
	}
	leg_in_enter(leg, LEG_IN_ENDED, "nothing is under way");
	loop_post(leg->transport->acceptor, &leg->last_task);
}

static void
leg_in_do_fail(struct leg_in *leg, int code, bool source_failed, const char *text)
{
	if (leg->state >= LEG_IN_ENDING)
		return;
	leg->result.code = code;
	leg->result.source_failed = source_failed;
	struct th_err err;
	(void)th_fail(&err, code, "%s %s: %s; %" PRIu32 " of %" PRIu32 " chunks are verified",
		source_failed ? "source" : "reading from", leg->peer, text,
		xfer_part_prefix(leg->part), xfer_part_table(leg->part)->num_chunks);
	memcpy(leg->result.text, err.text, sizeof(leg->result.text));
	count_up(&leg->transport->counters.legs_failed, 1);
	leg_in_end(leg, TRANSPORT_FAILED);
}

void
leg_in_fail(struct leg_in *leg, int code, const char *text)
{
	leg_in_do_fail(leg, code, true, text);
}

void
leg_in_fail_ours(struct leg_in *leg, int code, const char *text)
{
	leg_in_do_fail(leg, code, false, text);
}

void
leg_in_pass_points(const struct leg_in *leg, uint32_t chunk)
{
	uint32_t num_chunks = xfer_part_table(leg->part)->num_chunks;
	if (chunk == 0)
		TH_FP(leg_in_first_chunk);
	if (chunk == num_chunks / 2)
		TH_FP(leg_in_half);
	if (chunk == num_chunks - 1)
		TH_FP(leg_in_last_chunk);
}

/* How far it is, if that is news. One at a time: a source that does not read gets no more. */
static void
put_alive(struct leg_in *leg)
{
	uint32_t num_chunks = xfer_part_table(leg->part)->num_chunks;
	uint32_t looks = th_min_u32(chunk_ledger_num_looked(&leg->ledger), num_chunks);
	struct leg_in_path *unseen = unseen_of(leg);
	struct leg_in_progress progress;
	uint8_t payload[FRAME_ALIVE_BYTES];
	struct frame frame = {.kind = FRAME_ALIVE, .leg = leg->id, .count = looks};
	if (leg->control.out_sent != leg->control.out_bytes)
		return;
	if (unseen) {
		unseen->ops->progress(unseen, &progress);
		frame.first = xfer_part_prefix(leg->part);
		frame.count += th_min_u32(progress.chunks, num_chunks);
		frame.bytes = FRAME_ALIVE_BYTES;
		if (frame.count == leg->chunks_said && frame.first == leg->prefix_said &&
			progress.bytes == leg->bytes_said)
			return;
		leg->chunks_said = frame.count;
		leg->prefix_said = frame.first;
		leg->bytes_said = progress.bytes;
		frame_encode_alive(progress.bytes, payload);
	} else if (looks <= leg->looks_said) {
		return;
	} else {
		leg->looks_said = looks;
	}
	control_put(&leg->control, &frame, payload);
}

static void
leg_in_complete(struct leg_in *leg)
{
	if (leg->state >= LEG_IN_ENDING)
		return;
	struct frame frame = {.kind = FRAME_BYE, .leg = leg->id};
	TH_FP(leg_in_bye);
	put_alive(leg);
	control_put(&leg->control, &frame, NULL);
	stream_wake(&leg->control.stream);
	/* The source may be gone by now, and the wake-up may have told: all bytes are here. */
	if (leg->state < LEG_IN_ENDING)
		leg_in_end(leg, TRANSPORT_DONE);
}

/* A connection ended: a failure of the leg, unless everything is here already. */
static void
fail_by(struct leg_in *leg, int code)
{
	if (leg->state == LEG_IN_RUNNING &&
		xfer_part_prefix(leg->part) == xfer_part_table(leg->part)->num_chunks)
		leg_in_complete(leg);
	else if (code == TH_E_CHECKSUM)
		leg_in_fail(leg, code, "its bytes do not match the published digests");
	else if (code == TH_E_PROTOCOL)
		leg_in_fail(leg, code, "it broke the data protocol");
	else if (code == STREAM_EOF)
		leg_in_fail(leg, TH_E_NO_PATH, "it closed the connection");
	else
		leg_in_fail(leg, TH_E_NO_PATH, th_strerror(code));
}

void
leg_in_stop(struct leg_in *leg)
{
	leg_in_settle(leg); /* the transport may be closing */
	if (leg->state >= LEG_IN_ENDING)
		return;
	leg->result.code = TH_E_CANCELLED;
	snprintf(leg->result.text, sizeof(leg->result.text), "stopped");
	leg_in_end(leg, TRANSPORT_STOPPED);
}

/* Chunks that were held back for their digests need not wait for them any more. */
void
leg_in_drop_donor(struct leg_in *leg)
{
	if (chunk_ledger_drop_donor(&leg->ledger))
		events_post(&leg->transport->events, &leg->donor_node);
	if (leg->state == LEG_IN_RUNNING)
		leg_in_kick(leg);
}

static void
fail_stale(struct leg_in *leg)
{
	char text[TH_CTL_TEXT_BYTES];
	int code = part_lost_text(leg->part, "our own memory can not be written any more", text);
	leg_in_do_fail(leg, code, false, text);
}

void
leg_in_fail_by(struct leg_in *leg, int code, bool own)
{
	if (leg->state >= LEG_IN_ENDING)
		return;
	if (!own)
		fail_by(leg, code);
	else if (code == TH_E_STALE_MEMORY)
		fail_stale(leg);
	else if (code == TH_E_MEMORY_KIND)
		leg_in_do_fail(leg, code, false,
			"a descriptor of our own memory has O_APPEND: the bytes would go to the "
			"end of the file");
	else
		leg_in_do_fail(leg, th_code_or(code, TH_E_STALE_MEMORY), false,
			code == TH_E_LIMIT ? LIMIT_TEXT : th_strerror(code));
}

void
leg_in_broken(struct leg_in *leg, int code, bool own)
{
	/* The source may have said why: its word is in the control connection by then. */
	if (!own && leg->state == LEG_IN_RUNNING && code != TH_E_CHECKSUM && code != TH_E_PROTOCOL)
		leg_in_hear(leg);
	leg_in_fail_by(leg, code, own);
}

static void
say_way(const struct leg_in *leg, enum leg_way way, struct transport_event *ret_event)
{
	static const char *const names[] = {"tcp", "rdma", "rdma-copy"};
	snprintf(ret_event->transport, sizeof(ret_event->transport), "%s", names[way]);
	if (way == LEG_BY_RDMA_COPY)
		snprintf(ret_event->copy, sizeof(ret_event->copy), "%s", leg->copy.text);
}

static void
leg_in_run_last(struct loop_task *task)
{
	struct leg_in *leg = loop_container(task, struct leg_in, last_task);
	struct transport *transport = leg->transport;
	LIST_REMOVE(leg, entry);
	leg->result.bytes_moved = __atomic_load_n(&leg->bytes_moved, __ATOMIC_RELAXED);
	leg->result.bytes_reused = leg->ledger.reuse.bytes;
	leg->result.bytes_donated = leg->ledger.donor.bytes;
	leg->result.verify_ns = __atomic_load_n(&leg->verify_ns, __ATOMIC_RELAXED);
	leg->result.overwrote = leg->result.bytes_moved > 0 || leg->ledger.donor.touched;
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		struct leg_in_path *path = leg->paths[i];
		if (path->ops->touched && path->ops->touched(path))
			leg->result.overwrote = true;
	}
	snprintf(leg->result.fallback, sizeof(leg->result.fallback), "%s", leg->fallback.text);
	say_way(leg, leg->way, &leg->result);
	LEG_TELL_PATHS(leg, free);
	leg->num_paths = 0;
	control_fini(&leg->control);
	chunk_ledger_fini(&leg->ledger);
	xfer_part_release(leg->part);
	leg->part = NULL;
	events_post(&transport->events, &leg->last_node);
	acceptor_left(transport);
}

static bool
leg_in_fill_progress(struct event_node *node, struct transport_event *ret_event)
{
	struct leg_in *leg = loop_container(node, struct leg_in, progress_node);
	ret_event->kind = TRANSPORT_PROGRESS;
	ret_event->leg = leg->id;
	ret_event->bytes_moved = __atomic_load_n(&leg->bytes_moved, __ATOMIC_RELAXED);
	say_way(leg, __atomic_load_n(&leg->way, __ATOMIC_ACQUIRE), ret_event);
	if (__atomic_load_n(&leg->fallback_told, __ATOMIC_ACQUIRE))
		snprintf(
			ret_event->fallback, sizeof(ret_event->fallback), "%s", leg->fallback.text);
	return true;
}

static bool
leg_in_fill_donor(struct event_node *node, struct transport_event *ret_event)
{
	struct leg_in *leg = loop_container(node, struct leg_in, donor_node);
	ret_event->kind = TRANSPORT_DONOR_LEFT;
	ret_event->leg = leg->id;
	return true;
}

static bool
leg_in_fill_last(struct event_node *node, struct transport_event *ret_event)
{
	struct leg_in *leg = loop_container(node, struct leg_in, last_node);
	*ret_event = leg->result;
	free(leg);
	return true;
}

/* ---- frames from the source --------------------------------------------------------------- */

static int
on_welcome(struct leg_in *leg, const struct frame *frame, const uint8_t *payload)
{
	const struct chunk_table *table = xfer_part_table(leg->part);
	struct frame_welcome welcome;
	frame_decode_welcome(payload, &welcome);
	if (leg->state != LEG_IN_ASKING || welcome.protocol != FRAME_PROTOCOL)
		return TH_E_PROTOCOL;
	if (frame->count != table->num_chunks || welcome.bytes != table->bytes) {
		leg_in_fail(leg, TH_E_LAYOUT, "its shard has other chunks than ours");
		return 0;
	}
	if (leg->verify && !(frame->flags & FRAME_DIGESTS)) {
		leg_in_fail(leg, TH_E_CHECKSUM,
			"it has no digests to verify against: its agent runs with --verify off, "
			"and ours with full");
		return 0;
	}
	memcpy(leg->key, welcome.key, sizeof(leg->key));
	leg_in_enter(leg, LEG_IN_RUNNING, "welcome");
	TH_FP(leg_in_welcome);
	leg->running_ns = leg->connecting_ns = th_now_ns();
	leg->deadline_ns = leg->running_ns;
	loop_tick_at(leg->transport->acceptor, leg->deadline_ns);
	if (xfer_part_prefix(leg->part) == table->num_chunks)
		leg_in_complete(leg);
	else if (leg->num_paths > 1)
		leg->paths[0]->ops->start(leg->paths[0], frame->flags);
	else
		leg_in_stream(leg);
	return 0;
}

void
leg_in_stream(struct leg_in *leg)
{
	struct leg_in_path *path = stream_of(leg);
	if (leg->state >= LEG_IN_ENDING || leg_in_streams(leg))
		return;
	leg->connecting_ns = th_now_ns();
	leg_in_look(leg);
	__atomic_store_n(&leg->joined_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&leg->way, LEG_BY_TCP, __ATOMIC_RELAXED);
	path->ops->start(path, 0);
	leg_in_kick(leg);
}

void
leg_in_retire(struct leg_in *leg)
{
	struct leg_in_path *path = stream_of(leg);
	if (!leg_in_streams(leg))
		return;
	path->ops->retire(path);
	leg_in_kick(leg);
}

static int
on_refused(struct leg_in *leg, const struct frame *frame, const uint8_t *payload)
{
	char text[TH_CTL_TEXT_BYTES + 1];
	size_t bytes = (size_t)frame->bytes;
	/* Also midway: a source that finds its memory changed, or gone. */
	if (leg->state != LEG_IN_ASKING && leg->state != LEG_IN_RUNNING)
		return TH_E_PROTOCOL;
	control_sentence(payload, bytes, text);
	int code = frame->count <= INT32_MAX ? -(int)frame->count : 0;
	bool known = code <= TH_E_INVALID && strcmp(th_errname(code), "?") != 0;
	char sentence[TH_CTL_TEXT_BYTES + 32];
	snprintf(sentence, sizeof(sentence), "%s: %s",
		leg->state == LEG_IN_ASKING ? "it refused" : "it gave up", text);
	leg_in_fail(leg, known ? code : TH_E_NO_PATH, sentence);
	return 0;
}

void
leg_in_kick(struct leg_in *leg)
{
	/* One that was posted before the end comes too late: what it would wake may be freed. */
	if (leg->state >= LEG_IN_ENDING)
		return;
	LEG_TELL_PATHS(leg, kick);
}

static int
leg_in_take_digests(struct leg_in *leg, const struct frame *frame, const uint8_t *payload)
{
	struct th_hash digests[DIGESTS_AT_ONCE];
	uint32_t count = (uint32_t)(frame->bytes / 16);
	uint32_t num_chunks = xfer_part_table(leg->part)->num_chunks;
	if (!th_range_fits(frame->first, count, num_chunks))
		return TH_E_PROTOCOL;
	int all = 0;
	for (uint32_t at = 0; leg->verify && at < count; at += DIGESTS_AT_ONCE) {
		uint32_t piece = th_min_u32(DIGESTS_AT_ONCE, count - at);
		frame_decode_digests(payload + (size_t)at * 16, piece, digests);
		int result = chunk_ledger_digests(&leg->ledger, frame->first + at, digests, piece);
		if (result < 0)
			return result;
		all |= result;
	}
	if (all & LEDGER_GREW)
		events_post_soon(&leg->transport->events, &leg->progress_node);
	if (all & LEDGER_COMPLETE)
		leg_in_complete(leg);
	else if ((all & LEDGER_AGAIN) || (count > 0 && chunk_ledger_may_skip(&leg->ledger)))
		leg_in_kick(leg);
	return 0;
}

static int
on_progress(struct leg_in *leg, const struct frame *frame, const uint8_t *payload)
{
	uint32_t prefix = frame->count;
	if (leg->state != LEG_IN_RUNNING || prefix < leg->source_prefix ||
		prefix > xfer_part_table(leg->part)->num_chunks)
		return TH_E_PROTOCOL;
	bool grew = prefix > leg->source_prefix;
	__atomic_store_n(&leg->source_prefix, prefix, __ATOMIC_RELAXED);
	int rc = leg_in_take_digests(leg, frame, payload);
	if (rc < 0 || leg->state >= LEG_IN_ENDING)
		return rc;
	if (grew)
		LEG_TELL_PATHS(leg, grew);
	/* "I wait myself" excuses only what lies beyond its own prefix. */
	uint32_t missing = chunk_ledger_lowest_missing(&leg->ledger);
	bool owes = missing < xfer_part_table(leg->part)->num_chunks;
	if (((frame->flags & FRAME_WAITING) && missing >= prefix) || !owes)
		leg->excused_ns = th_now_ns();
	return 0;
}

static int
leg_in_handle(struct control *control, const struct frame *frame, const uint8_t *payload)
{
	struct leg_in *leg = leg_in_leg_of(control);
	if (frame->leg != leg->id)
		return TH_E_PROTOCOL;
	LEG_TELL_PATHS(leg, heard);
	if (frame->kind == FRAME_WELCOME)
		return on_welcome(leg, frame, payload);
	if (frame->kind == FRAME_REFUSED)
		return on_refused(leg, frame, payload);
	if (frame->kind == FRAME_PROGRESS)
		return on_progress(leg, frame, payload);
	for (uint32_t i = 0; i < leg->num_paths && leg->state == LEG_IN_RUNNING; i++) {
		if (leg->paths[i]->ops->frame_kinds >> frame->kind & 1)
			return leg->paths[i]->ops->frame(leg->paths[i], frame, payload);
	}
	return TH_E_PROTOCOL;
}

static void
leg_in_refill(struct control *control)
{
	struct leg_in *leg = leg_in_leg_of(control);
	LEG_TELL_PATHS(leg, refill);
}

static void
leg_in_do_broken(struct control *control, int code)
{
	fail_by(leg_in_leg_of(control), code);
}

void
leg_in_put(struct leg_in *leg, const struct frame *frame, const uint8_t *payload)
{
	control_put(&leg->control, frame, payload);
}

void
leg_in_wake(struct leg_in *leg)
{
	stream_wake(&leg->control.stream);
}

void
leg_in_hear(struct leg_in *leg)
{
	stream_look(&leg->control.stream);
}

/* ---- what its paths tell ------------------------------------------------------------------ */

void
leg_in_fall_back(struct leg_in *leg, const char *why)
{
	(void)th_fail(&leg->fallback, TH_E_NO_PATH, "%s", why);
	__atomic_store_n(&leg->fallback_told, true, __ATOMIC_RELEASE);
	count_up(&leg->transport->counters.rdma_fallbacks, 1);
}

void
leg_in_goes(struct leg_in *leg, enum leg_way way, const char *copy_why)
{
	if (copy_why)
		(void)th_fail(&leg->copy, TH_E_NO_PATH, "%s", copy_why);
	__atomic_store_n(&leg->way, way, __ATOMIC_RELEASE);
}

void
leg_in_joined(struct leg_in *leg, int64_t now_ns)
{
	int64_t never = 0;
	__atomic_compare_exchange_n(
		&leg->joined_ns, &never, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void
leg_in_lives(struct leg_in *leg, int64_t now_ns)
{
	__atomic_store_n(&leg->last_byte_ns, now_ns, __ATOMIC_RELAXED);
}

void
leg_in_moved(struct leg_in *leg, uint64_t bytes, int64_t now_ns)
{
	leg_in_lives(leg, now_ns);
	count_up(&leg->bytes_moved, bytes);
	xfer_part_moved(leg->part, bytes);
	count_up(&leg->transport->counters.bytes_in, bytes);
}

void
leg_in_verified(struct leg_in *leg, int64_t ns)
{
	count_up(&leg->verify_ns, (uint64_t)ns);
}

void
leg_in_counted(struct leg_in *leg, int result)
{
	if (result & LEDGER_DONOR_LEFT)
		events_post(&leg->transport->events, &leg->donor_node);
	if (result & LEDGER_GREW)
		events_post_soon(&leg->transport->events, &leg->progress_node);
	if (result & LEDGER_COMPLETE)
		loop_post(leg->transport->acceptor, &leg->complete_task);
	else if (result & LEDGER_AGAIN)
		leg_in_kick_soon(leg);
}

void
leg_in_kick_soon(struct leg_in *leg)
{
	loop_post(leg->transport->acceptor, &leg->kick_task);
}

static void
leg_in_run_kick(struct loop_task *task)
{
	leg_in_kick(loop_container(task, struct leg_in, kick_task));
}

/* ---- the beginning ------------------------------------------------------------------------ */

static void
fail_without_rdma(struct leg_in *leg)
{
	struct th_err err;
	th_fail(&err, TH_E_NO_PATH, "RDMA is required and there is none: %s",
		leg->fallback.text[0] ? leg->fallback.text : "this agent has none");
	leg_in_do_fail(leg, TH_E_NO_PATH, false, err.text);
}

/* What HELLO shall say of them. */
static uint8_t
leg_in_open_paths(struct leg_in *leg)
{
	uint8_t flags = 0;
	for (const struct leg_in_path_ops *const *ops = leg_in_paths; *ops; ops++) {
		struct leg_in_path *path = (*ops)->open(leg);
		if (!path)
			continue;
		leg->paths[leg->num_paths++] = path;
		flags |= path->ops->hello_flags;
	}
	return flags;
}

static void
leg_in_connected(struct control *control)
{
	struct leg_in *leg = leg_in_leg_of(control);
	uint8_t flags = leg_in_open_paths(leg);
	if (leg->num_paths == 1 && (leg->flags & TRANSPORT_REQUIRE_RDMA)) {
		fail_without_rdma(leg);
		return;
	}
	struct frame frame = {.kind = FRAME_HELLO,
		.flags = (uint8_t)(flags | (leg->verify ? FRAME_VERIFIES : 0)),
		.leg = leg->id,
		.bytes = FRAME_HELLO_BYTES};
	struct frame_hello hello = {
		.ticket = leg->ticket, .protocol = FRAME_PROTOCOL, .mode = FRAME_MODE_TCP};
	uint8_t payload[FRAME_HELLO_BYTES];
	TH_FP(leg_in_hello);
	frame_encode_hello(&hello, payload);
	control_put(control, &frame, payload);
	leg_in_enter(leg, LEG_IN_ASKING, "connected");
	/* The source gives its shell hello_ns to judge the ticket. */
	leg->deadline_ns =
		th_now_ns() + leg->transport->config.hello_ns + leg->transport->config.stall_ns;
	loop_tick_at(leg->transport->acceptor, leg->deadline_ns);
	stream_wake(&control->stream);
}

/* Meanwhile the source was not asked for anything: it is not the one that was slow. */
static void
run_looked(struct loop_task *task)
{
	struct leg_in *leg = loop_container(task, struct leg_in, looked_task);
	if (leg->state >= LEG_IN_ENDING)
		return;
	int result = chunk_ledger_looked(&leg->ledger);
	__atomic_store_n(&leg->last_byte_ns, th_now_ns(), __ATOMIC_RELAXED);
	if (result & LEDGER_GREW)
		events_post_soon(&leg->transport->events, &leg->progress_node);
	if (result & LEDGER_COMPLETE)
		leg_in_complete(leg);
	else if (result & LEDGER_AGAIN)
		leg_in_kick(leg);
}

static void
run_complete(struct loop_task *task)
{
	leg_in_complete(loop_container(task, struct leg_in, complete_task));
}

int
leg_in_new(struct transport *transport, uint64_t id, const char *address,
	const struct th_ticket *ticket, struct xfer_part *part, struct xfer_part *donor,
	unsigned flags, struct leg_in **ret_leg)
{
	struct leg_in *leg = th_calloc(1, sizeof(*leg));
	int rc = socket_parse(address, &leg->address, &leg->address_bytes);
	if (rc == 0)
		rc = chunk_ledger_init(&leg->ledger, part, &transport->counters);
	if (rc < 0) {
		free(leg);
		return rc;
	}
	leg->transport = transport;
	leg->id = id;
	leg->ticket = *ticket;
	leg->flags = flags;
	leg->part = xfer_part_retain(part);
	leg->verify = xfer_part_verify(part);
	socket_name(&leg->address, leg->peer);
	control_init(&leg->control, FRAME_PAYLOAD_MAX, UINT32_MAX);
	leg->control.handle = leg_in_handle;
	leg->control.refill = leg_in_refill;
	leg->control.broken = leg_in_do_broken;
	leg->control.connected = leg_in_connected;
	leg->complete_task.run = run_complete;
	leg->kick_task.run = leg_in_run_kick;
	leg->looked_task.run = run_looked;
	chunk_ledger_look(&leg->ledger, transport->acceptor, &leg->looked_task);
	chunk_ledger_set_donor(&leg->ledger, donor);
	leg->last_task.run = leg_in_run_last;
	leg->progress_node.fill = leg_in_fill_progress;
	leg->donor_node.fill = leg_in_fill_donor;
	leg->last_node.fill = leg_in_fill_last;
	leg->result.leg = id;
	*ret_leg = leg;
	return 0;
}

void
leg_in_start(struct leg_in *leg)
{
	struct transport *transport = leg->transport;
	LIST_INSERT_HEAD(&transport->legs_in, leg, entry);
	count_up(&transport->counters.legs_in, 1);
	leg->deadline_ns = th_now_ns() + CONNECT_NS;
	TH_FP(leg_in_connects);
	loop_tick_at(transport->acceptor, leg->deadline_ns);
	int fd = socket_connect(&leg->address, leg->address_bytes, transport);
	int rc = fd;
	if (fd >= 0)
		rc = control_open(&leg->control, transport->acceptor, fd, true);
	if (rc < 0)
		fail_by(leg, rc);
}

struct leg_in *
leg_in_find(struct transport *transport, uint64_t id)
{
	struct leg_in *leg;
	LIST_FOREACH(leg, &transport->legs_in, entry)
	{
		if (leg->id == id)
			return leg;
	}
	return NULL;
}

struct leg_in *
leg_in_next(struct leg_in *leg)
{
	return LIST_NEXT(leg, entry);
}

/* ---- the clock ---------------------------------------------------------------------------- */

void
leg_in_look(struct leg_in *leg)
{
	leg->deadline_ns = 0;
	loop_tick_at(leg->transport->acceptor, 0);
}

void
leg_in_excuse(struct leg_in *leg, int64_t now_ns)
{
	leg->excused_ns = now_ns;
}

static int64_t
check_stall(struct leg_in *leg, int64_t now_ns)
{
	int64_t stall_ns = leg->transport->config.stall_ns;
	int64_t joined_ns = __atomic_load_n(&leg->joined_ns, __ATOMIC_RELAXED);
	/* Before the first data connection stands, a lost SYN must be able to come again. */
	int64_t since_ns = joined_ns != 0 ? joined_ns : leg->connecting_ns + CONNECT_NS - stall_ns;
	since_ns = th_max_i64(since_ns, __atomic_load_n(&leg->last_byte_ns, __ATOMIC_RELAXED));
	bool excused = chunk_ledger_looking(&leg->ledger);
	for (uint32_t i = 0; i < leg->num_paths; i++)
		excused = excused || leg->paths[i]->ops->excuses(leg->paths[i]);
	if (excused)
		leg->excused_ns = now_ns;
	since_ns = th_max_i64(since_ns, leg->excused_ns);
	if (now_ns < since_ns + stall_ns)
		return since_ns + stall_ns;
	/* It was not asked for anything, for want of digests: now it is. */
	if (chunk_ledger_hurry(&leg->ledger)) {
		leg_in_kick(leg);
		leg->excused_ns = now_ns;
		return now_ns + stall_ns;
	}
	leg_in_fail(leg, TH_E_NO_PATH, "it sends nothing any more");
	return INT64_MAX;
}

/* A source that is asked for nothing must be able to tell that from a frozen reader. */
static int64_t
say_alive(struct leg_in *leg, int64_t now_ns)
{
	if (leg->state >= LEG_IN_ENDING || !(chunk_ledger_may_skip(&leg->ledger) || unseen_of(leg)))
		return INT64_MAX;
	put_alive(leg);
	stream_wake(&leg->control.stream);
	return now_ns + leg->transport->config.stall_ns / 3;
}

int64_t
leg_in_tick(struct leg_in *leg, int64_t now_ns)
{
	int64_t stall_ns = leg->transport->config.stall_ns;
	if (leg->state >= LEG_IN_ENDING)
		return INT64_MAX;
	if (now_ns < leg->deadline_ns)
		return leg->deadline_ns;
	/* We come late ourselves (frozen, or starved): that is not the source's stall. */
	bool late = leg->deadline_ns > 0 && now_ns > leg->deadline_ns + stall_ns / 4;
	if (late)
		leg->excused_ns = now_ns;
	if (leg->state != LEG_IN_RUNNING && late)
		return leg->deadline_ns = now_ns + stall_ns;
	if (leg->state == LEG_IN_ASKING)
		stream_look(&leg->control.stream); /* its answer may lie there */
	if (leg->state == LEG_IN_CONNECTING)
		leg_in_fail(leg, TH_E_NO_PATH, "it does not answer");
	else if (leg->state == LEG_IN_ASKING)
		leg_in_fail(leg, TH_E_NO_PATH, "it does not answer to the ticket");
	if (leg->state >= LEG_IN_ENDING)
		return INT64_MAX;
	int64_t next_ns = INT64_MAX;
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		struct leg_in_path *path = leg->paths[i];
		if (path->ops->tick)
			next_ns = th_min_i64(next_ns, path->ops->tick(path, late, now_ns));
		if (leg->state >= LEG_IN_ENDING)
			return INT64_MAX;
	}
	/* Not later than that: when the first connection stands, nobody looks anew. */
	leg->deadline_ns = th_min_i64(check_stall(leg, now_ns), now_ns + stall_ns);
	leg->deadline_ns = th_min_i64(leg->deadline_ns, say_alive(leg, now_ns));
	leg->deadline_ns = th_min_i64(leg->deadline_ns, next_ns);
	return leg->deadline_ns;
}
