/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_in_copy - a data connection at the reader whose part is not mapped: bytes are received into
 * blocks and hashed there, and a ferry writes the very same bytes to the part.
 *
 * Runs on its mover. A chunk has arrived when its last block is written. When all blocks are under
 * way the connection takes no more: that is our own memory's fault, not the source's.
 */
#include "transport/tcp/tcp.h"

/* The part's prefix grew, or its worker is gone: then a write under way is not waited for. */
static void
data_in_copy_part_changed(void *arg)
{
	struct data_in *conn = arg;
	if (xfer_part_orphaned(conn->leg->part))
		loop_post(conn->loop, &conn->ferry_task);
}

static void
run_ferry(struct loop_task *task)
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

int
data_in_copy_open(struct data_in *conn)
{
	conn->ferry_task.run = run_ferry;
	int rc = ferry_new(conn->leg->part, true, conn->loop, &conn->ferry_task, &conn->ferry);
	if (rc < 0)
		return rc;
	conn->watching = true;
	xfer_part_watch(conn->leg->part, data_in_copy_part_changed, conn);
	return 0;
}

uint32_t
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

void
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

bool
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
