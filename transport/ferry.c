/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry - see ferry.h.
 *
 * The lock is held by the thread but for the calls that may get stuck (access.h), and for hashing.
 * So whoever holds it can say "no more": from then on the thread touches nothing but its block, and
 * frees both. What is mapped is copied in steps, so that nobody waits long for the lock.
 */
#include "transport/ferry.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "transport/access.h"
#include "transport/crew.h"
#include "transport/guard.h"

struct ferry {
	pthread_mutex_t lock;
	pthread_cond_t work;
	bool writes; /* immutable */
	bool hurry;  /* atomic: somebody waits for the lock to abandon it */
	/* Guarded by lock. */
	bool abandoned;
	struct xfer_part *part; /* borrows: the user's reference, until it abandons */
	struct loop *loop;      /* likewise */
	struct loop_task *done;
	struct ferry_block *first, **last; /* submitted */
	struct ferry_block *finished, **finished_last;
	bool busy; /* the thread has a block */
};

static void
free_blocks(struct ferry_block *block)
{
	while (block) {
		struct ferry_block *next = block->next;
		block->drop(block);
		block = next;
	}
}

/* Under the lock. What is copied or hashed now is for nobody. */
static bool
is_over(const struct ferry *ferry)
{
	return ferry->abandoned || __atomic_load_n(&ferry->hurry, __ATOMIC_RELAXED);
}

/* By whoever comes last: the thread, or the user when the thread never ran. */
static void
destroy(struct ferry *ferry)
{
	free_blocks(ferry->first);
	free_blocks(ferry->finished);
	pthread_cond_destroy(&ferry->work);
	pthread_mutex_destroy(&ferry->lock);
	free(ferry);
}

/* One piece of one tensor. Under the lock, given up for what may get stuck. */
static int
carry_piece(struct ferry *ferry, const struct xfer_piece *piece, uint8_t *data)
{
	if (!piece->access && ferry->writes)
		return guard_copy(piece->data, data, piece->bytes);
	if (!piece->access)
		return guard_copy(data, piece->data, piece->bytes);
	struct access *access = access_retain(piece->access);
	pthread_mutex_unlock(&ferry->lock);
	int rc = ferry->writes ? access_write(access, piece->place, data, piece->bytes)
			       : access_read(access, piece->place, data, piece->bytes);
	access_release(access);
	pthread_mutex_lock(&ferry->lock);
	return rc;
}

/* Under the lock. */
static int
carry(struct ferry *ferry, struct ferry_block *block)
{
	struct xfer_cursor cursor = block->cursor;
	uint32_t at = 0;
	int rc = 0;
	while (rc == 0 && at < block->bytes && !is_over(ferry)) {
		struct xfer_piece piece;
		uint32_t bytes = th_min_u32(block->bytes - at, FERRY_BYTES);
		xfer_cursor_piece(&cursor, ferry->part, bytes, &piece);
		rc = carry_piece(ferry, &piece, block->data + at);
		block->row = piece.row;
		if (rc == 0 && !ferry->abandoned)
			xfer_cursor_skip(&cursor, ferry->part, piece.bytes);
		at += (uint32_t)piece.bytes;
	}
	if (rc < 0 || !block->hashes || is_over(ferry))
		return rc;
	pthread_mutex_unlock(&ferry->lock);
	block->digest = digest_of(block->data, block->bytes);
	pthread_mutex_lock(&ferry->lock);
	return 0;
}

static void
ferry_main(void *arg)
{
	struct ferry *ferry = arg;
	pthread_mutex_lock(&ferry->lock);
	while (!ferry->abandoned) {
		struct ferry_block *block = ferry->first;
		if (!block) {
			pthread_cond_wait(&ferry->work, &ferry->lock);
			continue;
		}
		ferry->first = block->next;
		if (!ferry->first)
			ferry->last = &ferry->first;
		block->next = NULL;
		ferry->busy = true;
		block->code = carry(ferry, block);
		ferry->busy = false;
		*ferry->finished_last = block;
		ferry->finished_last = &block->next;
		if (!ferry->abandoned)
			loop_post(ferry->loop, ferry->done);
	}
	pthread_mutex_unlock(&ferry->lock);
	destroy(ferry);
}

/* ---- blocks ------------------------------------------------------------------------------- */

struct own_block {
	struct ferry_block block;
	_Alignas(64) uint8_t data[FERRY_BYTES];
};

static void
drop_own(struct ferry_block *block)
{
	free(loop_container(block, struct own_block, block));
}

struct ferry_block *
ferry_block_new(void)
{
	void *memory = NULL;
	if (posix_memalign(&memory, 64, sizeof(struct own_block)) != 0)
		abort();
	struct own_block *own = memory;
	own->block = (struct ferry_block){.data = own->data, .drop = drop_own};
	return &own->block;
}

void
ferry_block_drop(struct ferry_block *block)
{
	if (block)
		block->drop(block);
}

/* ---- the user's side ---------------------------------------------------------------------- */

int
ferry_new(struct xfer_part *part, bool writes, struct loop *loop, struct loop_task *done,
	struct ferry **ret_ferry)
{
	struct ferry *ferry = th_calloc(1, sizeof(*ferry));
	uint32_t count;
	int *fds = xfer_part_descriptors(part, 1, &count);
	pthread_mutex_init(&ferry->lock, NULL);
	pthread_cond_init(&ferry->work, NULL);
	ferry->writes = writes;
	ferry->part = part;
	ferry->loop = loop;
	ferry->done = done;
	ferry->last = &ferry->first;
	ferry->finished_last = &ferry->finished;
	fds[count++] = loop_wake_fd(loop);
	int rc = crew_start(ferry_main, ferry, fds, count);
	if (rc < 0) {
		destroy(ferry);
		return rc;
	}
	*ret_ferry = ferry;
	return 0;
}

void
ferry_submit(struct ferry *ferry, struct ferry_block *block)
{
	block->next = NULL;
	block->code = 0;
	pthread_mutex_lock(&ferry->lock);
	*ferry->last = block;
	ferry->last = &block->next;
	pthread_cond_signal(&ferry->work);
	pthread_mutex_unlock(&ferry->lock);
}

struct ferry_block *
ferry_take(struct ferry *ferry)
{
	pthread_mutex_lock(&ferry->lock);
	struct ferry_block *block = ferry->finished;
	if (block) {
		ferry->finished = block->next;
		if (!ferry->finished)
			ferry->finished_last = &ferry->finished;
	}
	pthread_mutex_unlock(&ferry->lock);
	return block;
}

bool
ferry_busy(struct ferry *ferry)
{
	pthread_mutex_lock(&ferry->lock);
	bool busy = ferry->busy || ferry->first;
	pthread_mutex_unlock(&ferry->lock);
	return busy;
}

void
ferry_abandon(struct ferry *ferry)
{
	if (!ferry)
		return;
	__atomic_store_n(&ferry->hurry, true, __ATOMIC_RELAXED);
	pthread_mutex_lock(&ferry->lock);
	ferry->abandoned = true;
	pthread_cond_signal(&ferry->work);
	pthread_mutex_unlock(&ferry->lock);
}
