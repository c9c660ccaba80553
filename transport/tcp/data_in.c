/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_in - a data connection at the reader: asks for chunks, receives them in blocks that stay in
 * cache, hashes each on its way to the part's memory. Memory that is not mapped gets the same bytes
 * from the block in which they were hashed.
 *
 * Runs on its mover. A few chunks are kept asked for, so that the source always has the next one.
 * The source answers in the order asked; anything else breaks the leg.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "transport/part/sigbus.h"
#include "transport/tcp/tcp.h"

#define REUSED_AT_ONCE 2u /* chunks, before the mover looks at its other connections */
#define BLOCK_BYTES (256u << 10)
#define BLOCKS_MAX 64u /* of the process: 16 MiB */
#define RANGES 16u

static struct data_in *
data_in_conn_of(struct stream *stream)
{
	return loop_container(stream, struct data_in, stream);
}

/* ---- asking ------------------------------------------------------------------------------- */

static void
data_in_put(struct data_in *conn, const struct frame *frame, const uint8_t *payload)
{
	if (conn->out_sent > 0) {
		memmove(conn->out, conn->out + conn->out_sent, conn->out_bytes - conn->out_sent);
		conn->out_bytes -= conn->out_sent;
		conn->out_sent = 0;
	}
	TH_ASSERT(conn->out_bytes + FRAME_BYTES + frame->bytes <= sizeof(conn->out));
	frame_encode(frame, conn->out + conn->out_bytes);
	conn->out_bytes += FRAME_BYTES;
	if (payload)
		memcpy(conn->out + conn->out_bytes, payload, frame->bytes);
	conn->out_bytes += (uint32_t)frame->bytes;
}

/*
 * A source that itself still receives is as fast as its own source, so what it has is asked for
 * by one connection, in order and ahead of it. Were it shared by several, chunks would come side by
 * side, each so many times later, and so at each hop of a chain. The others help where the source
 * is further ahead than the first one asks: then this leg is what is slow.
 */
static uint32_t
ask_limit(const struct data_in *conn)
{
	uint32_t has = __atomic_load_n(&conn->leg->source_prefix, __ATOMIC_RELAXED);
	if (conn->leads || has == xfer_part_table(conn->leg->part)->num_chunks)
		return UINT32_MAX;
	return has < conn->window_most ? 0 : has - conn->window_most;
}

/* Does the part have the bytes of this chunk already? */
static bool
reuse(struct data_in *conn, uint32_t chunk)
{
	struct leg_in *leg = conn->leg;
	int result;
	if (!leg->ledger.hashes_here)
		return false;
	bool here = chunk_ledger_reuse(&leg->ledger, chunk, &result);
	/* Meanwhile the source was not asked for anything: it is not the one that was slow. */
	leg_in_lives(leg, th_now_ns());
	leg_in_counted(leg, result);
	return here;
}

/* Nothing is asked for, nothing is on its way to the part. */
static bool
is_idle(const struct data_in *conn)
{
	return conn->num_asked == 0 && !conn->in_body && (!conn->ferry || ferry_idle(conn->ferry));
}

static enum tcp_in_state
tcp_state(const struct data_in *conn)
{
	return __atomic_load_n(&conn->tcp->state, __ATOMIC_ACQUIRE);
}

/* Of a leg whose data connections retire: says so when nothing is left to do. */
static void
data_in_rest(struct data_in *conn)
{
	if (tcp_state(conn) == TCP_IN_RETIRING && is_idle(conn))
		loop_post(conn->leg->transport->acceptor, &conn->idle_task);
}

static void
data_in_ask(struct data_in *conn)
{
	uint32_t limit = ask_limit(conn), chunk, reused = 0;
	bool moving = tcp_state(conn) == TCP_IN_MOVING;
	while (moving && conn->num_asked < conn->window && capped_may_ask(conn)) {
		if (!chunk_ledger_take(&conn->leg->ledger, limit, &chunk)) {
			capped_asked(conn, 0);
			break;
		}
		if (reuse(conn, chunk)) {
			if (++reused < REUSED_AT_ONCE)
				continue;
			loop_post(conn->loop, &conn->kick_task);
			break;
		}
		capped_asked(conn, chunk_bytes(xfer_part_table(conn->leg->part), chunk));
		conn->asked[(conn->asked_head + conn->num_asked++) % WINDOW_MAX] = chunk;
		__atomic_store_n(&conn->owed, conn->num_asked, __ATOMIC_RELAXED);
		struct frame frame = {
			.kind = FRAME_READ, .leg = conn->leg->id, .first = chunk, .count = 1};
		data_in_put(conn, &frame, NULL);
	}
	data_in_rest(conn);
	stream_wake(&conn->stream);
}

static uint32_t
data_in_send_want(struct stream *stream, struct iovec *ret_ranges)
{
	struct data_in *conn = data_in_conn_of(stream);
	if (conn->out_sent == conn->out_bytes)
		return 0;
	ret_ranges[0] =
		(struct iovec){conn->out + conn->out_sent, conn->out_bytes - conn->out_sent};
	return 1;
}

static int
data_in_send_sent(struct stream *stream, size_t bytes)
{
	data_in_conn_of(stream)->out_sent += (uint32_t)bytes;
	return 0;
}

/* A chunk lies in the part. 0, or the connection is broken by that. */
static int
data_in_arrived(struct data_in *conn, uint32_t chunk, const struct th_hash *digest)
{
	struct leg_in *leg = conn->leg;
	int result = chunk_ledger_arrived(&leg->ledger, chunk, leg->verify ? digest : NULL);
	if (result < 0)
		return result;
	leg_in_counted(leg, result);
	if (!(result & LEDGER_COMPLETE))
		data_in_ask(conn);
	return 0;
}

static void
data_in_broken(struct stream *stream, int code)
{
	struct data_in *conn = data_in_conn_of(stream);
	/* What the kernel cannot write to is our memory, not the connection. */
	if (code == -EFAULT) {
		code = TH_E_STALE_MEMORY;
		conn->own = true;
	}
	conn->code = code;
	loop_post(conn->leg->transport->acceptor, &conn->broken_task);
}

/* Closes the connection for the reason in code. */
static void
data_in_break(struct data_in *conn, int code, bool own)
{
	if (conn->stream.fd < 0)
		return;
	conn->own = own;
	stream_close(&conn->stream, false);
	data_in_broken(&conn->stream, code);
}

/* ---- receiving into a block --------------------------------------------------------------- */

/*
 * Where the part is mapped, bytes are received into one block that stays in cache, and go from
 * there to their place past the caches, hashed on the way. That is one copy more, and yet less work
 * than receiving in place: the kernel copies with ordinary stores, which fetch each line of the
 * destination from memory before they overwrite it, and hashing there reads it a third time,
 * through pages of its own. Measured on two cores with 1 GiB over loopback: 0.27 s of CPU for a
 * verified GiB in place of 0.35, as much as a plain socket copy takes that verifies nothing. Blocks
 * of 256 KiB: smaller ones cost calls, larger ones leave the second-level cache of some CPUs. The
 * blocks of all connections are bounded. Who comes when there is none receives in place.
 */

static void
data_in_block_open(struct data_in *conn)
{
	uint32_t *num_blocks = &conn->leg->transport->num_blocks;
	if (__atomic_add_fetch(num_blocks, 1, __ATOMIC_RELAXED) <= BLOCKS_MAX)
		conn->block = aligned_alloc(4096, BLOCK_BYTES);
	if (!conn->block)
		__atomic_sub_fetch(num_blocks, 1, __ATOMIC_RELAXED);
}

static void
data_in_block_close(struct data_in *conn)
{
	if (!conn->block)
		return;
	free(conn->block);
	conn->block = NULL;
	__atomic_sub_fetch(&conn->leg->transport->num_blocks, 1, __ATOMIC_RELAXED);
}

static void
data_in_block_want(struct data_in *conn, struct iovec *ret_range)
{
	size_t whole = th_min_size(BLOCK_BYTES, conn->cursor.left);
	*ret_range = (struct iovec){conn->block + conn->block_bytes, whole - conn->block_bytes};
}

/* What waits goes to its place. */
static int
empty_block(struct data_in *conn)
{
	struct leg_in *leg = conn->leg;
	const uint8_t *from = conn->block;
	struct iovec ranges[RANGES];
	int rc = 0;
	while (rc == 0 && conn->block_bytes > 0) {
		uint32_t count = xfer_cursor_next(
			&conn->cursor, leg->part, conn->block_bytes, ranges, RANGES);
		for (uint32_t i = 0; rc == 0 && i < count; i++) {
			size_t piece = ranges[i].iov_len;
			void *to = ranges[i].iov_base;
			rc = leg->verify ? sigbus_digest_copy(&conn->digest, to, from, piece)
					 : sigbus_nt_copy(to, from, piece);
			from += piece;
			conn->block_bytes -= (uint32_t)piece;
			xfer_cursor_skip(&conn->cursor, leg->part, piece);
		}
	}
	return rc;
}

/* So many bytes more are in it. 0, or the part's memory failed. */
static int
data_in_block_got(struct data_in *conn, size_t bytes)
{
	size_t whole = th_min_size(BLOCK_BYTES, conn->cursor.left);
	conn->block_bytes += (uint32_t)bytes;
	TH_ASSERT(conn->block_bytes <= whole);
	int rc = conn->block_bytes == whole ? empty_block(conn) : 0;
	conn->own = rc < 0;
	return rc;
}

/* ---- receiving for a ferry ---------------------------------------------------------------- */

/*
 * Where it is not mapped, bytes are received into blocks and hashed there, and a ferry writes the
 * very same bytes to the part. A chunk has arrived when its last block is written. When all blocks
 * are under way the connection takes no more: that is our own memory's fault, not the source's.
 */

/* The part's prefix grew, or its worker is gone: then a write under way is not waited for. */
static void
data_in_copy_part_changed(void *arg)
{
	struct data_in *conn = arg;
	if (xfer_part_orphaned(conn->leg->part))
		loop_post(conn->loop, &conn->ferry_task);
}

static void
data_in_run_ferry(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, ferry_task);
	struct ferry_block *block;
	if (conn->closing) {
		if (conn->ferry)
			conn->close_task.run(&conn->close_task);
		return;
	}
	while ((block = ferry_take(conn->ferry)) != NULL) {
		int rc = block->code;
		bool own = rc < 0;
		if (rc == 0 && block->last)
			rc = data_in_arrived(conn, block->chunk, &block->digest);
		ferry_put_back(conn->ferry, block);
		if (rc < 0) {
			data_in_break(conn, rc, own);
			return;
		}
	}
	/* It looks for a block again: there may be one, or not yet. */
	if (__atomic_load_n(&conn->held, __ATOMIC_RELAXED)) {
		__atomic_store_n(&conn->held, false, __ATOMIC_RELAXED);
		stream_want(&conn->stream);
	}
	data_in_rest(conn);
}

static int
data_in_copy_open(struct data_in *conn)
{
	conn->ferry_task.run = data_in_run_ferry;
	int rc = ferry_new(conn->leg->part, true, conn->loop, &conn->ferry_task, &conn->ferry);
	if (rc < 0)
		return rc;
	conn->watching = true;
	xfer_part_watch(conn->leg->part, data_in_copy_part_changed, conn);
	return 0;
}

static uint32_t
data_in_copy_want(struct data_in *conn, struct iovec *ret_ranges)
{
	if (!conn->filling) {
		struct ferry_block *block = ferry_spare(conn->ferry);
		if (!block) {
			__atomic_store_n(&conn->held, true, __ATOMIC_RELAXED);
			return 0;
		}
		block->cursor = conn->cursor;
		block->chunk = conn->asked[conn->asked_head];
		block->bytes = 0;
		conn->filling = block;
	}
	struct ferry_block *block = conn->filling;
	ret_ranges[0] = (struct iovec){block->data + block->bytes,
		th_min_size(FERRY_BYTES - block->bytes, conn->cursor.left)};
	return 1;
}

/* What came for the block in filling, of which digest has taken account. */
static void
data_in_copy_got(struct data_in *conn, size_t bytes)
{
	struct ferry_block *block = conn->filling;
	block->bytes += (uint32_t)bytes;
	block->last = conn->cursor.left == 0;
	if (!block->last && block->bytes < FERRY_BYTES)
		return;
	if (block->last && conn->leg->verify)
		block->digest = digest_final(&conn->digest);
	conn->filling = NULL;
	ferry_submit(conn->ferry, block);
}

/* False: a write is under way that must end first; then close_task runs again. */
static bool
data_in_copy_close(struct data_in *conn)
{
	if (!conn->ferry)
		return true;
	conn->closing = true;
	if (ferry_busy(conn->ferry) && !xfer_part_orphaned(conn->leg->part))
		return false;
	if (conn->watching)
		xfer_part_unwatch(conn->leg->part, data_in_copy_part_changed, conn);
	conn->watching = false;
	ferry_abandon(conn->ferry);
	conn->ferry = NULL;
	ferry_block_drop(conn->filling);
	return true;
}

/* ---- receiving ---------------------------------------------------------------------------- */

static uint32_t
data_in_recv_want(struct stream *stream, struct iovec *ret_ranges)
{
	struct data_in *conn = data_in_conn_of(stream);
	if (!conn->in_body) {
		ret_ranges[0] = (struct iovec){conn->header + conn->have, FRAME_BYTES - conn->have};
		return 1;
	}
	if (conn->ferry)
		return data_in_copy_want(conn, ret_ranges);
	if (conn->block) {
		data_in_block_want(conn, ret_ranges);
		return 1;
	}
	return xfer_cursor_next(
		&conn->cursor, conn->leg->part, LOOP_BLOCK_BYTES, ret_ranges, LOOP_RANGES_MAX);
}

/* Whether the READ of the chunk that must come now is all gone to the source. */
static bool
was_asked(const struct data_in *conn)
{
	uint32_t unsent = conn->out_bytes - conn->out_sent;
	return conn->num_asked > (unsent + FRAME_BYTES - 1) / FRAME_BYTES;
}

/*
 * A whole header: is it of the chunk that must come now? An answer before its question is refused
 * too: from a source that never reads, the READs would fill our buffer for them.
 */
static int
data_in_begin_chunk(struct data_in *conn)
{
	struct leg_in *leg = conn->leg;
	struct frame frame;
	int rc = frame_decode(conn->header, &frame);
	if (rc < 0)
		return rc;
	if (frame.kind != FRAME_DATA || frame.leg != leg->id || !was_asked(conn) ||
		frame.first != conn->asked[conn->asked_head] ||
		frame.bytes != chunk_bytes(xfer_part_table(leg->part), frame.first))
		return TH_E_PROTOCOL;
	conn->have = 0;
	conn->in_body = true;
	xfer_cursor_init(&conn->cursor, leg->part, frame.first);
	xfer_part_map_chunk(leg->part, frame.first);
	digest_init(&conn->digest);
	if (conn->window < conn->window_most) {
		conn->window++;
		data_in_ask(conn);
	}
	return 0;
}

static int
end_chunk(struct data_in *conn)
{
	uint32_t chunk = conn->asked[conn->asked_head];
	leg_in_pass_points(conn->leg, chunk);
	conn->in_body = false;
	conn->asked_head = (conn->asked_head + 1) % WINDOW_MAX;
	conn->num_asked--;
	__atomic_store_n(&conn->owed, conn->num_asked, __ATOMIC_RELAXED);
	if (conn->ferry)
		return 0; /* it has arrived when its last block is written */
	struct th_hash digest = {0};
	if (conn->leg->verify)
		digest = digest_final(&conn->digest);
	return data_in_arrived(conn, chunk, &digest);
}

static int
data_in_hash(struct data_in *conn, const struct iovec *ranges, size_t bytes)
{
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && bytes > 0; i++) {
		size_t piece = th_min_size(bytes, ranges[i].iov_len);
		rc = sigbus_digest(&conn->digest, ranges[i].iov_base, piece);
		bytes -= piece;
	}
	conn->own = rc < 0;
	return rc;
}

static int
got_body(struct data_in *conn, const struct iovec *ranges, size_t bytes)
{
	struct leg_in *leg = conn->leg;
	int64_t before_ns = th_now_ns(), now_ns = before_ns;
	int rc = 0;
	if (conn->block)
		rc = data_in_block_got(conn, bytes);
	else if (leg->verify)
		rc = data_in_hash(conn, ranges, bytes);
	if (leg->verify) {
		now_ns = th_now_ns();
		leg_in_verified(leg, now_ns - before_ns);
	}
	leg_in_moved(leg, bytes, now_ns);
	if (!conn->block)
		xfer_cursor_skip(&conn->cursor, leg->part, bytes);
	if (rc == 0 && conn->ferry)
		data_in_copy_got(conn, bytes);
	if (rc == 0 && conn->cursor.left == 0)
		rc = end_chunk(conn);
	return rc;
}

static int
data_in_recv_got(struct stream *stream, const struct iovec *ranges, size_t bytes)
{
	struct data_in *conn = data_in_conn_of(stream);
	if (conn->in_body)
		return got_body(conn, ranges, bytes);
	conn->have += (uint32_t)bytes;
	return conn->have == FRAME_BYTES ? data_in_begin_chunk(conn) : 0;
}

/* ---- life --------------------------------------------------------------------------------- */

static void
data_in_connected(struct stream *stream)
{
	struct data_in *conn = data_in_conn_of(stream);
	struct leg_in *leg = conn->leg;
	leg_in_joined(leg, th_now_ns());
	struct frame frame = {.kind = FRAME_JOIN, .leg = leg->id, .bytes = FRAME_KEY_BYTES};
	data_in_put(conn, &frame, leg->key);
	data_in_ask(conn);
}

static const struct stream_ops data_in_ops = {
	.bulk_in = true,
	.recv_want = data_in_recv_want,
	.recv_got = data_in_recv_got,
	.send_want = data_in_send_want,
	.send_sent = data_in_send_sent,
	.connected = data_in_connected,
	.broken = data_in_broken,
};

static void
data_in_run_open(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, open_task);
	int rc = xfer_part_direct(conn->leg->part) ? 0 : data_in_copy_open(conn);
	if (rc < 0) {
		conn->own = true;
		data_in_broken(&conn->stream, rc);
		return;
	}
	if (!conn->ferry)
		data_in_block_open(conn);
	int fd =
		socket_connect(&conn->leg->address, conn->leg->address_bytes, conn->leg->transport);
	rc = fd;
	if (fd >= 0)
		rc = stream_open(&conn->stream, conn->loop, &data_in_ops, fd, true);
	if (rc < 0)
		data_in_broken(&conn->stream, rc);
}

static void
data_in_run_kick(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, kick_task);
	if (conn->stream.fd >= 0 && !conn->stream.connecting)
		data_in_ask(conn);
}

static void
data_in_run_close(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, close_task);
	stream_close(&conn->stream, conn->reset);
	data_in_block_close(conn);
	if (data_in_copy_close(conn))
		loop_post(conn->loop, &conn->settle_task);
}

/* What was posted to this thread about the connection has run by now. */
static void
data_in_run_settle(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, settle_task);
	loop_post(conn->leg->transport->acceptor, &conn->gone_task);
}

static void
data_in_run_broken(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, broken_task);
	tcp_in_conn_broken(conn->tcp, conn);
}

static void
run_idle(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, idle_task);
	tcp_in_conn_idle(conn->tcp, conn);
}

static void
data_in_run_gone(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, gone_task);
	tcp_in_conn_gone(conn->tcp, conn);
}

struct data_in *
data_in_new(struct tcp_in *tcp, struct loop *loop, bool leads)
{
	struct data_in *conn = th_calloc(1, sizeof(*conn));
	conn->stream.fd = -1;
	conn->tcp = tcp;
	conn->leg = tcp->leg;
	conn->loop = loop;
	conn->leads = leads;
	conn->window = 1;
	conn->window_most = (tcp->leg->flags & TRANSPORT_FAR) ? WINDOW_MAX : WINDOW;
	capped_init(conn);
	conn->open_task.run = data_in_run_open;
	conn->kick_task.run = data_in_run_kick;
	conn->close_task.run = data_in_run_close;
	conn->settle_task.run = data_in_run_settle;
	conn->broken_task.run = data_in_run_broken;
	conn->idle_task.run = run_idle;
	conn->gone_task.run = data_in_run_gone;
	loop_post(loop, &conn->open_task);
	return conn;
}
