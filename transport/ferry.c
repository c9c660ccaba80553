/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry - see ferry.h.
 *
 * The lock is held by the thread but for the calls that may get stuck (access.h), and for hashing.
 * So whoever holds it can say "no more": from then on the thread touches nothing but its block, and
 * frees both. What is mapped is copied in steps, so that nobody waits long for the lock.
 *
 * A block stays in one list from ferry_submit to ferry_take, in that order, and counts who still
 * works on it. One that is abandoned is dropped by the last of them.
 */
#include "transport/ferry.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
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
	uint32_t references; /* the user's, the thread's */
	bool abandoned;
	struct xfer_part *part; /* borrows: the user's reference, until it abandons */
	struct loop *loop;      /* likewise */
	struct loop_task *done;
	struct ferry_block *first, **last; /* submitted, and not taken */
	struct ferry_block *next;          /* of those, the thread's next one */
	uint32_t under_way;                /* of those, not finished */
	/* The user's. */
	struct ferry_block *spare; /* own: those that are not out */
	uint32_t num_blocks;       /* made */
	uint32_t num_out;
};

static void
drop_all(struct ferry_block *block)
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

/* Gives up the lock, and one reference. Blocks are dropped without the lock. */
static void
leave(struct ferry *ferry, struct ferry_block *dropped)
{
	bool over = --ferry->references == 0;
	pthread_mutex_unlock(&ferry->lock);
	drop_all(dropped);
	if (!over)
		return;
	TH_ASSERT(!ferry->first && !ferry->spare);
	pthread_cond_destroy(&ferry->work);
	pthread_mutex_destroy(&ferry->lock);
	free(ferry);
}

/* Under the lock: takes blocks out of the list that nobody works on. */
static struct ferry_block *
take_out(struct ferry *ferry)
{
	struct ferry_block *out = NULL, **link = &ferry->first;
	while (*link) {
		struct ferry_block *block = *link;
		if (block->pending > 0) {
			link = &block->next;
			continue;
		}
		*link = block->next;
		block->next = out;
		out = block;
	}
	ferry->last = link;
	return out;
}

/* Under the lock: one of those who work on the block has finished. */
static void
finish(struct ferry *ferry, struct ferry_block *block)
{
	TH_ASSERT(block->pending > 0);
	if (--block->pending > 0 || ferry->abandoned)
		return;
	ferry->under_way--;
	loop_post(ferry->loop, ferry->done);
}

/* ---- the thread --------------------------------------------------------------------------- */

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
		struct ferry_block *block = ferry->next;
		if (!block) {
			pthread_cond_wait(&ferry->work, &ferry->lock);
			continue;
		}
		ferry->next = block->next;
		block->code = carry(ferry, block);
		finish(ferry, block);
	}
	leave(ferry, take_out(ferry));
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

static struct ferry_block *
new_block(void)
{
	void *memory = NULL;
	if (posix_memalign(&memory, 64, sizeof(struct own_block)) != 0)
		abort();
	struct own_block *own = memory;
	own->block = (struct ferry_block){.data = own->data, .drop = drop_own};
	return &own->block;
}

struct ferry_block *
ferry_spare(struct ferry *ferry)
{
	struct ferry_block *block = ferry->spare;
	if (block) {
		ferry->spare = block->next;
	} else if (ferry->num_blocks < FERRY_BLOCKS) {
		block = new_block();
		ferry->num_blocks++;
	}
	ferry->num_out += block != NULL;
	return block;
}

void
ferry_put_back(struct ferry *ferry, struct ferry_block *block)
{
	TH_ASSERT(ferry->num_out > 0);
	ferry->num_out--;
	block->next = ferry->spare;
	ferry->spare = block;
}

bool
ferry_idle(const struct ferry *ferry)
{
	return ferry->num_out == 0;
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
	ferry->references = 2;
	ferry->writes = writes;
	ferry->part = part;
	ferry->loop = loop;
	ferry->done = done;
	ferry->last = &ferry->first;
	fds[count++] = loop_wake_fd(loop);
	int rc = crew_start(ferry_main, ferry, fds, count);
	if (rc < 0) {
		ferry->references = 1;
		ferry_abandon(ferry);
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
	block->pending = 1;
	pthread_mutex_lock(&ferry->lock);
	*ferry->last = block;
	ferry->last = &block->next;
	if (!ferry->next)
		ferry->next = block;
	ferry->under_way++;
	pthread_cond_signal(&ferry->work);
	pthread_mutex_unlock(&ferry->lock);
}

struct ferry_block *
ferry_take(struct ferry *ferry)
{
	pthread_mutex_lock(&ferry->lock);
	struct ferry_block *block = ferry->first;
	if (block && block->pending > 0)
		block = NULL;
	if (block) {
		ferry->first = block->next;
		if (!ferry->first)
			ferry->last = &ferry->first;
	}
	pthread_mutex_unlock(&ferry->lock);
	return block;
}

bool
ferry_busy(struct ferry *ferry)
{
	pthread_mutex_lock(&ferry->lock);
	bool busy = ferry->under_way > 0;
	pthread_mutex_unlock(&ferry->lock);
	return busy;
}

void
ferry_abandon(struct ferry *ferry)
{
	if (!ferry)
		return;
	struct ferry_block *spare = ferry->spare;
	ferry->spare = NULL;
	__atomic_store_n(&ferry->hurry, true, __ATOMIC_RELAXED);
	pthread_mutex_lock(&ferry->lock);
	ferry->abandoned = true;
	for (struct ferry_block *block = ferry->next; block; block = block->next)
		block->pending--;
	ferry->next = NULL;
	pthread_cond_signal(&ferry->work);
	leave(ferry, take_out(ferry));
	drop_all(spare);
}
