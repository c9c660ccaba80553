/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_out_copy - a data connection at the source whose part is not mapped: a ferry reads ahead
 * into blocks, and the connection sends those.
 *
 * Runs on its mover. The blocks are submitted, come back and are sent in the order of the chunks
 * that were asked for. When the connection closes, a read that is stuck is left behind: what it
 * reads goes nowhere.
 */
#include "ipc/base/assert.h"
#include "ipc/base/name.h"
#include "transport/tcp/tcp.h"

/*
 * The next chunk to read. While blocks are still to be sent its being beyond the prefix is nothing
 * that the reader waits for yet.
 */
static bool
next_chunk(struct data_out *conn)
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

void
data_out_copy_feed(struct data_out *conn)
{
	struct ferry_block *block;
	while (conn->stream.fd >= 0 && (conn->feeding || next_chunk(conn)) &&
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
 * A chunk that is asked for again is hashed again, as in still_published, here in the blocks that
 * are sent: the last of them is not, when they are not what was published.
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
run_ferry(struct loop_task *task)
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
			data_out_changed(conn, block->chunk);
			return;
		}
	}
	if (!conn->ferry)
		return;
	data_out_copy_feed(conn);
	stream_wake(&conn->stream);
}

int
data_out_copy_open(struct data_out *conn)
{
	conn->ferry_task.run = run_ferry;
	conn->ready_last = &conn->ready;
	conn->header_sent = FRAME_BYTES;
	return ferry_new(conn->leg->part, false, conn->loop, &conn->ferry_task, &conn->ferry);
}

uint32_t
data_out_copy_want(struct data_out *conn, struct iovec *ret_ranges)
{
	struct ferry_block *block = conn->ready;
	ret_ranges[0] = (struct iovec){block->data + block->used, block->bytes - block->used};
	return 1;
}

void
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

void
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
