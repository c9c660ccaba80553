/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_out - a data connection at the source: takes requests for chunks and sends them straight
 * from the part's memory, or from the blocks that a ferry read of it.
 *
 * Runs on its mover. A request beyond the part's prefix waits here until the part's watcher kicks;
 * nothing polls.
 *
 * What the end of a leg proves. By send() the kernel copies, so when the stream is closed no byte
 * of the part is read for it any more. By sendfile it only takes references to the pages, and reads
 * them when they go out, or on the same host when the reader's recv copies them: that can be after
 * the close. So the end of such a leg proves less: that nobody who reads the pages later will take
 * what he then finds for the published version. This is enough for the memory to be written, and it
 * holds because sendfile is used only for a reader that said it counts no chunk without the
 * publisher's digest, hashed where the bytes have arrived, after the last read of the page. A leg
 * that ended by the reader's word has nothing queued: all that was sent is verified. One that is
 * fenced, or ends in any other way, closes by a reset, which drops what is queued here; what the
 * reader's kernel holds already may be torn and fails its digest, as any damage does. Such a chunk
 * cannot be taken for a breach of contract: who asks for it again finds the connection closed.
 * A reader that lied about verifying harms itself, and may see some later bytes of memory that it
 * was allowed to read: megabytes at most, those that were in flight.
 */
#include <errno.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/fd.h"
#include "ipc/base/name.h"
#include "transport/tcp/tcp.h"

#define FILE_BYTES_MIN (64u << 10)  /* of one piece: less is gathered and copied */
#define FILE_BLOCK_BYTES (4u << 20) /* of one call: nothing is to stay in cache */

static struct data_out *
data_out_conn_of(struct stream *stream)
{
	return loop_container(stream, struct data_out, stream);
}

/* ---- chunks ------------------------------------------------------------------------------- */

/* True when the chunk may be sent. Otherwise the part's watcher will kick this connection. */
static bool
data_out_may_send(struct data_out *conn, uint32_t chunk)
{
	struct leg_out *leg = conn->leg;
	if (chunk >= xfer_part_prefix(leg->part)) {
		/* First say that we wait, then look again: see xfer_part_advance. */
		bool waited = __atomic_exchange_n(&conn->waiting, true, __ATOMIC_SEQ_CST);
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (chunk >= xfer_part_prefix(leg->part)) {
			if (!waited)
				leg_out_nudge(leg);
			return false;
		}
	}
	/* What the reader was told to wait for ends here, and its clock runs again. */
	if (__atomic_load_n(&conn->waiting, __ATOMIC_RELAXED)) {
		leg_out_lives(leg);
		__atomic_store_n(&conn->waiting, false, __ATOMIC_SEQ_CST);
	}
	return true;
}

/* The next frame to be sent. */
static void
data_out_header(struct data_out *conn, uint32_t chunk)
{
	struct leg_out *leg = conn->leg;
	struct frame frame = {.kind = FRAME_DATA,
		.leg = leg->reader_leg,
		.first = chunk,
		.count = 1,
		.bytes = chunk_bytes(xfer_part_table(leg->part), chunk)};
	frame_encode(&frame, conn->header);
	conn->header_sent = 0;
	conn->chunk = chunk;
#ifdef TH_FAULTS
	conn->flip = leg_out_flips(leg, chunk);
#endif
}

/* For tests: moments of a leg, when the kernel has all bytes of this chunk. */
static void
data_out_pass_points(const struct data_out *conn)
{
	uint32_t num_chunks = xfer_part_table(conn->leg->part)->num_chunks;
	if (conn->chunk == 0)
		TH_FP(leg_out_first_chunk);
	if (conn->chunk == num_chunks / 2)
		TH_FP(leg_out_half);
	if (conn->chunk == num_chunks - 1)
		TH_FP(leg_out_last_chunk);
}

/* The part's memory failed: nothing more is sent, and the acceptor ends the leg. */
static void
data_out_break(struct data_out *conn, int code, uint32_t row)
{
	if (conn->code != 0)
		return;
	conn->own = true;
	conn->row = row;
	conn->code = code;
	loop_post(conn->leg->transport->acceptor, &conn->broken_task);
}

/* ---- out of blocks ------------------------------------------------------------------------ */

/*
 * Where the part is not mapped, a ferry reads ahead into blocks, and the connection sends those.
 * They are submitted, come back and are sent in the order of the chunks that were asked for. When
 * the connection closes, a read that is stuck is left behind: what it reads goes nowhere.
 */

/*
 * The next chunk to read. While blocks are still to be sent its being beyond the prefix is nothing
 * that the reader waits for yet.
 */
static bool
data_out_next_chunk(struct data_out *conn)
{
	if (conn->num_asked == 0)
		return false;
	uint32_t chunk = conn->asked[conn->asked_head];
	if (ferry_idle(conn->ferry) ? !data_out_may_send(conn, chunk)
				    : chunk >= xfer_part_prefix(conn->leg->part))
		return false;
	conn->asked_head = (conn->asked_head + 1) % WINDOW_MAX;
	conn->num_asked--;
	conn->feed_chunk = chunk;
	xfer_cursor_init(&conn->feed_cursor, conn->leg->part, chunk);
	conn->feeding = true;
	return true;
}

static void
data_out_copy_feed(struct data_out *conn)
{
	struct ferry_block *block;
	while (conn->stream.fd >= 0 && (conn->feeding || data_out_next_chunk(conn)) &&
		(block = ferry_spare(conn->ferry)) != NULL) {
		struct xfer_cursor *cursor = &conn->feed_cursor;
		block->cursor = *cursor;
		block->chunk = conn->feed_chunk;
		block->first =
			cursor->left == chunk_bytes(xfer_part_table(conn->leg->part), block->chunk);
		block->bytes = th_min_u32(cursor->left, FERRY_BYTES);
		block->last = block->bytes == cursor->left;
		block->used = 0;
		xfer_cursor_skip(cursor, conn->leg->part, block->bytes);
		conn->feeding = cursor->left > 0;
		ferry_submit(conn->ferry, block);
	}
}

/* The block at the head is a chunk's first: its frame goes before it. */
static void
begin_block(struct data_out *conn)
{
	if (conn->ready && conn->ready->first)
		data_out_header(conn, conn->ready->chunk);
}

/*
 * A chunk that is asked for again is hashed again, as in data_out_still_published, here in the
 * blocks that are sent: the last of them is not, when they are not what was published.
 */
static bool
data_out_copy_still_published(struct data_out *conn, const struct ferry_block *block)
{
	struct leg_out *leg = conn->leg;
	/* Decided at its first block: another question may come while it is on its way. */
	if (block->first) {
		conn->hashing = leg->verify &&
				__atomic_load_n(&leg->asked[block->chunk], __ATOMIC_RELAXED) > 1;
		digest_init(&conn->digest);
	}
	if (!conn->hashing)
		return true;
	digest_update(&conn->digest, block->data, block->bytes);
	if (!block->last)
		return true;
	struct th_hash now = digest_final(&conn->digest);
	return th_hash_equal(now, *xfer_part_digest(leg->part, block->chunk));
}

static void
data_out_run_ferry(struct loop_task *task)
{
	struct data_out *conn = loop_container(task, struct data_out, ferry_task);
	struct ferry_block *block;
	while (conn->ferry && (block = ferry_take(conn->ferry)) != NULL) {
		bool was_empty = !conn->ready;
		*conn->ready_last = block;
		conn->ready_last = &block->next;
		block->next = NULL;
		if (was_empty)
			begin_block(conn);
		if (block->code < 0) {
			data_out_break(conn, block->code, block->row);
			return;
		}
		if (!data_out_copy_still_published(conn, block)) {
			leg_out_changed(conn->leg, block->chunk);
			return;
		}
	}
	if (!conn->ferry)
		return;
	data_out_copy_feed(conn);
	stream_wake(&conn->stream);
}

static int
data_out_copy_open(struct data_out *conn)
{
	conn->ferry_task.run = data_out_run_ferry;
	conn->ready_last = &conn->ready;
	conn->header_sent = FRAME_BYTES;
	return ferry_new(conn->leg->part, false, conn->loop, &conn->ferry_task, &conn->ferry);
}

static uint32_t
data_out_copy_want(struct data_out *conn, struct iovec *ret_ranges)
{
	struct ferry_block *block = conn->ready;
	ret_ranges[0] = (struct iovec){block->data + block->used, block->bytes - block->used};
	return 1;
}

static void
data_out_copy_sent(struct data_out *conn, size_t bytes)
{
	struct ferry_block *block = conn->ready;
	TH_ASSERT(bytes <= block->bytes - block->used);
	block->used += (uint32_t)bytes;
	if (block->used < block->bytes)
		return;
	if (block->last)
		data_out_pass_points(conn);
	conn->ready = block->next;
	if (!conn->ready)
		conn->ready_last = &conn->ready;
	ferry_put_back(conn->ferry, block);
	begin_block(conn);
	data_out_copy_feed(conn);
}

static void
data_out_copy_close(struct data_out *conn)
{
	ferry_abandon(conn->ferry);
	conn->ferry = NULL;
	while (conn->ready) {
		struct ferry_block *next = conn->ready->next;
		ferry_block_drop(conn->ready);
		conn->ready = next;
	}
}

/* ---- requests ----------------------------------------------------------------------------- */

static uint32_t
data_out_recv_want(struct stream *stream, struct iovec *ret_ranges)
{
	struct data_out *conn = data_out_conn_of(stream);
	ret_ranges[0] = (struct iovec){conn->in + conn->have, FRAME_BYTES - conn->have};
	return 1;
}

static int
data_out_recv_got(struct stream *stream, const struct iovec *ranges, size_t bytes)
{
	struct data_out *conn = data_out_conn_of(stream);
	struct leg_out *leg = conn->leg;
	struct frame frame;
	(void)ranges;
	conn->have += (uint32_t)bytes;
	if (conn->have < FRAME_BYTES)
		return 0;
	conn->have = 0;
	int rc = frame_decode(conn->in, &frame);
	if (rc < 0)
		return rc;
	if (frame.kind != FRAME_READ || frame.leg != leg->reader_leg ||
		!th_range_fits(frame.first, frame.count, xfer_part_table(leg->part)->num_chunks) ||
		frame.count > WINDOW_MAX - conn->num_asked)
		return TH_E_PROTOCOL;
	for (uint32_t i = 0; i < frame.count; i++) {
		/* Each time it is asked for again it is hashed again: not as often as it likes. */
		if (leg_out_asked(leg, frame.first + i) > LEDGER_ATTEMPTS_MAX)
			return TH_E_PROTOCOL;
		conn->asked[(conn->asked_head + conn->num_asked++) % WINDOW_MAX] = frame.first + i;
	}
	if (conn->ferry)
		data_out_copy_feed(conn);
	stream_wake(stream);
	return 0;
}

/* ---- sending ------------------------------------------------------------------------------ */

/*
 * A chunk that is asked for again did not match at the reader. Either it was damaged on its way, or
 * the worker has written to what it had published. Nobody had the right to: while this connection
 * is open the leg has not ended, so no unpublish has been answered.
 */
static bool
data_out_still_published(struct data_out *conn, uint32_t chunk)
{
	struct leg_out *leg = conn->leg;
	struct th_hash now;
	if (!leg->verify || __atomic_load_n(&leg->asked[chunk], __ATOMIC_RELAXED) == 1)
		return true;
	int rc = part_digest(leg->part, chunk, &now);
	if (rc < 0)
		data_out_break(conn, rc, UINT32_MAX);
	else if (th_hash_equal(now, *xfer_part_digest(leg->part, chunk)))
		return true;
	else
		leg_out_changed(conn->leg, chunk);
	return false;
}

static bool
data_out_begin_chunk(struct data_out *conn)
{
	struct leg_out *leg = conn->leg;
	if (conn->num_asked == 0 || __atomic_load_n(&leg->changed, __ATOMIC_RELAXED) ||
		!data_out_may_send(conn, conn->asked[conn->asked_head]) ||
		!data_out_still_published(conn, conn->asked[conn->asked_head]))
		return false;
	data_out_header(conn, conn->asked[conn->asked_head]);
	conn->asked_head = (conn->asked_head + 1) % WINDOW_MAX;
	conn->num_asked--;
	xfer_cursor_init(&conn->cursor, leg->part, conn->chunk);
	conn->sending = true;
	return true;
}

/* Of a leg with late reads: whether the chunk goes on with enough bytes of one file. */
static bool
next_file(const struct data_out *conn, struct xfer_file *ret_file)
{
	return conn->tcp->late_reads && !conn->ferry && !conn->stream.no_file &&
	       xfer_cursor_file(&conn->cursor, conn->leg->part, FILE_BLOCK_BYTES, ret_file) &&
	       ret_file->bytes >= th_min_u64(FILE_BYTES_MIN, conn->cursor.left);
}

static bool
send_file(struct stream *stream, struct stream_file *ret_file)
{
	struct data_out *conn = data_out_conn_of(stream);
	struct xfer_file file;
	if (!conn->sending || conn->header_sent < FRAME_BYTES || !next_file(conn, &file))
		return false;
#ifdef TH_FAULTS
	if (conn->flip || fault_stalls(&conn->leg->transport->fault))
		return false;
#endif
	if (conn->code != 0 || __atomic_load_n(&conn->leg->changed, __ATOMIC_RELAXED))
		return false;
	*ret_file = (struct stream_file){file.fd, file.offset, file.bytes};
	conn->by_file = true;
	return true;
}

static uint32_t
data_out_send_want(struct stream *stream, struct iovec *ret_ranges)
{
	struct data_out *conn = data_out_conn_of(stream);
#ifdef TH_FAULTS
	if (fault_stalls(&conn->leg->transport->fault))
		return 0;
#endif
	if (conn->code != 0 || __atomic_load_n(&conn->leg->changed, __ATOMIC_RELAXED))
		return 0;
	if (conn->ferry ? !conn->ready : !conn->sending && !data_out_begin_chunk(conn))
		return 0;
	struct xfer_file file;
	uint32_t used = 0;
	conn->by_file = false;
	if (conn->header_sent < FRAME_BYTES)
		ret_ranges[used++] = (struct iovec){
			conn->header + conn->header_sent, FRAME_BYTES - conn->header_sent};
	stream->more = used > 0 && next_file(conn, &file);
	if (conn->ferry)
		used += data_out_copy_want(conn, ret_ranges + used);
	else if (!stream->more)
		used += xfer_cursor_next(&conn->cursor, conn->leg->part, LOOP_BLOCK_BYTES,
			ret_ranges + used, LOOP_RANGES_MAX - used);
#ifdef TH_FAULTS
	if (conn->flip && !stream->more) {
		/* The first byte of the chunk comes from here instead, alone. */
		struct iovec *first = &ret_ranges[conn->header_sent < FRAME_BYTES ? 1 : 0];
		conn->flipped = *(uint8_t *)first->iov_base ^ 1;
		*first = (struct iovec){&conn->flipped, 1};
		used = conn->header_sent < FRAME_BYTES ? 2 : 1;
	}
#endif
	return used;
}

static void
took(struct data_out *conn, size_t bytes)
{
	struct leg_out *leg = conn->leg;
	leg_out_sent(leg, bytes);
	if (conn->by_file) {
		__atomic_store_n(&conn->tcp->spliced, true, __ATOMIC_RELAXED);
		count_up(&leg->transport->counters.bytes_out_file, bytes);
	}
#ifdef TH_FAULTS
	fault_sent(&leg->transport->fault, bytes);
#endif
}

static int
data_out_send_sent(struct stream *stream, size_t bytes)
{
	struct data_out *conn = data_out_conn_of(stream);
	size_t header = th_min_size(bytes, FRAME_BYTES - conn->header_sent);
	conn->header_sent += (uint32_t)header;
	bytes -= header;
	if (bytes == 0)
		return 0;
	took(conn, bytes);
	conn->flip = false;
	if (conn->ferry) {
		data_out_copy_sent(conn, bytes);
		return 0;
	}
	xfer_cursor_skip(&conn->cursor, conn->leg->part, bytes);
	if (conn->cursor.left == 0) {
		conn->sending = false;
		data_out_pass_points(conn);
	}
	return 0;
}

/* ---- life --------------------------------------------------------------------------------- */

static void
data_out_broken(struct stream *stream, int code)
{
	struct data_out *conn = data_out_conn_of(stream);
	if (conn->code != 0)
		return; /* the acceptor knows */
	/* What the kernel cannot read is the part's memory, not the connection. */
	conn->own = code == -EFAULT;
	conn->row = UINT32_MAX;
	conn->code = conn->own ? TH_E_STALE_MEMORY : code;
	loop_post(conn->leg->transport->acceptor, &conn->broken_task);
}

static const struct stream_ops data_out_ops = {
	.recv_want = data_out_recv_want,
	.recv_got = data_out_recv_got,
	.send_want = data_out_send_want,
	.send_file = send_file,
	.send_sent = data_out_send_sent,
	.broken = data_out_broken,
};

static void
data_out_run_open(struct loop_task *task)
{
	struct data_out *conn = loop_container(task, struct data_out, open_task);
	int fd = th_fd_move(&conn->fd);
	int rc = xfer_part_direct(conn->leg->part) ? 0 : data_out_copy_open(conn);
	if (rc == 0)
		rc = stream_open(&conn->stream, conn->loop, &data_out_ops, fd, false);
	else
		th_fd_close(&fd);
	if (rc < 0)
		data_out_broken(&conn->stream, rc);
}

static void
data_out_run_kick(struct loop_task *task)
{
	struct data_out *conn = loop_container(task, struct data_out, kick_task);
	if (conn->ferry)
		data_out_copy_feed(conn);
	stream_wake(&conn->stream);
}

static void
run_pace(struct loop_task *task)
{
	struct data_out *conn = loop_container(task, struct data_out, pace_task);
	if (conn->stream.fd >= 0)
		socket_pace(conn->stream.fd, __atomic_load_n(&conn->rate, __ATOMIC_RELAXED));
}

/* Not after its close_task: that one is posted by the acceptor too, and the last but one. */
void
data_out_pace(struct data_out *conn, uint64_t rate)
{
	uint64_t before = __atomic_load_n(&conn->rate, __ATOMIC_RELAXED);
	if (conn->closing || before == rate || (before == 0 && rate == UINT64_MAX))
		return;
	__atomic_store_n(&conn->rate, rate, __ATOMIC_RELAXED);
	loop_post(conn->loop, &conn->pace_task);
}

static void
data_out_run_close(struct loop_task *task)
{
	struct data_out *conn = loop_container(task, struct data_out, close_task);
	stream_close(&conn->stream, conn->reset);
	data_out_copy_close(conn);
	loop_post(conn->loop, &conn->settle_task);
}

/* What was posted to this thread about the connection has run by now. */
static void
data_out_run_settle(struct loop_task *task)
{
	struct data_out *conn = loop_container(task, struct data_out, settle_task);
	loop_post(conn->leg->transport->acceptor, &conn->gone_task);
}

static void
data_out_run_broken(struct loop_task *task)
{
	struct data_out *conn = loop_container(task, struct data_out, broken_task);
	tcp_out_conn_broken(conn->tcp, conn);
}

static void
data_out_run_gone(struct loop_task *task)
{
	struct data_out *conn = loop_container(task, struct data_out, gone_task);
	tcp_out_conn_gone(conn->tcp, conn);
}

struct data_out *
data_out_new(struct tcp_out *tcp, struct loop *loop, int fd)
{
	struct data_out *conn = th_calloc(1, sizeof(*conn));
	conn->stream.fd = -1;
	conn->tcp = tcp;
	conn->leg = tcp->leg;
	conn->loop = loop;
	conn->fd = fd;
	conn->open_task.run = data_out_run_open;
	conn->kick_task.run = data_out_run_kick;
	conn->pace_task.run = run_pace;
	conn->close_task.run = data_out_run_close;
	conn->settle_task.run = data_out_run_settle;
	conn->broken_task.run = data_out_run_broken;
	conn->gone_task.run = data_out_run_gone;
	return conn;
}

void
data_out_start(struct data_out *conn)
{
	loop_post(conn->loop, &conn->open_task);
}
