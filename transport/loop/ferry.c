/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry - see ferry.h.
 *
 * The lock is held by the thread but for the calls that may get stuck (fd_memory.h), and for
 * hashing. So whoever holds it can say "no more": from then on the thread touches nothing but its
 * block, and frees both. What is mapped is copied in steps, so that nobody waits long for the lock.
 *
 * Where the part has rows of GPUs, the thread leaves those out and a haul has them. The calls about
 * GPUs are made without the lock: those who wait for memory there are called with a lock held.
 *
 * A block stays in one list from ferry_submit to ferry_take, in that order, and counts who still
 * works on it. One that is abandoned is dropped by the last of them.
 */
#include "transport/loop/ferry.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/cuda/agent/haul.h"
#include "transport/loop/crew.h"
#include "transport/part/fd_memory.h"
#include "transport/part/sigbus.h"

struct ferry {
	pthread_mutex_t lock;
	pthread_cond_t work;
	bool writes;       /* immutable, as the next two */
	bool has_thread;   /* some rows are no GPU's */
	struct gpus *gpus; /* NULL: no row is a GPU's */
	bool hurry;        /* atomic: somebody waits for the lock to abandon it */
	/* Guarded by lock. */
	uint32_t references; /* the user's, the thread's, one of each haul that is not done */
	bool abandoned;
	struct xfer_part *part; /* borrows: the user's reference, until it abandons */
	struct loop *loop;      /* likewise */
	struct loop_task *done;
	struct ferry_block *first, **last; /* submitted, and not taken */
	struct ferry_block *next;          /* of those, the thread's next one */
	uint32_t under_way;                /* of those, not finished */
	char limit[GPU_TEXT_BYTES];        /* why the first one failed for the agent's sake */
	/* The user's. */
	struct ferry_block *spare; /* own: those that are not out, and no GPU's */
	uint32_t num_out;
};

static void
ferry_drop_all(struct ferry_block *block)
{
	while (block) {
		struct ferry_block *next = block->next;
		haul_free(block->haul);
		block->haul = NULL;
		block->drop(block);
		block = next;
	}
}

/* Under the lock. What is copied or hashed now is for nobody. */
static bool
ferry_is_over(const struct ferry *ferry)
{
	return ferry->abandoned || __atomic_load_n(&ferry->hurry, __ATOMIC_RELAXED);
}

/* Gives up the lock, and one reference. Blocks are dropped without the lock. */
static void
ferry_leave(struct ferry *ferry, struct ferry_block *dropped)
{
	bool over = --ferry->references == 0;
	pthread_mutex_unlock(&ferry->lock);
	ferry_drop_all(dropped);
	if (!over)
		return;
	TH_ASSERT(!ferry->first && !ferry->spare);
	pthread_cond_destroy(&ferry->work);
	pthread_mutex_destroy(&ferry->lock);
	free(ferry);
}

/* Under the lock: takes blocks out of the list that nobody works on. */
static struct ferry_block *
ferry_take_out(struct ferry *ferry)
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
ferry_finish(struct ferry *ferry, struct ferry_block *block, int code, uint32_t row)
{
	TH_ASSERT(block->pending > 0);
	if (code < 0 && block->code == 0) {
		block->code = code;
		block->row = row;
	}
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
		return sigbus_copy(piece->data, data, piece->bytes);
	if (!piece->access)
		return sigbus_copy(data, piece->data, piece->bytes);
	struct fd_memory *access = fd_memory_retain(piece->access);
	pthread_mutex_unlock(&ferry->lock);
	int rc = ferry->writes ? fd_memory_write(access, piece->place, data, piece->bytes)
			       : fd_memory_read(access, piece->place, data, piece->bytes);
	fd_memory_release(access);
	pthread_mutex_lock(&ferry->lock);
	return rc;
}

/* Under the lock. */
static int
ferry_carry(struct ferry *ferry, struct ferry_block *block, uint32_t *ret_row)
{
	struct xfer_cursor cursor = block->cursor;
	uint32_t at = 0;
	int rc = 0;
	while (rc == 0 && at < block->bytes && !ferry_is_over(ferry)) {
		struct xfer_piece piece;
		uint32_t bytes = th_min_u32(block->bytes - at, FERRY_BYTES);
		xfer_cursor_piece(&cursor, ferry->part, bytes, &piece);
		*ret_row = piece.row;
		if (!piece.access || !fd_memory_space(piece.access))
			rc = carry_piece(ferry, &piece, block->data + at);
		if (rc == 0 && !ferry->abandoned)
			xfer_cursor_skip(&cursor, ferry->part, piece.bytes);
		at += (uint32_t)piece.bytes;
	}
	if (rc < 0 || !block->hashes || ferry->gpus || ferry_is_over(ferry))
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
		uint32_t row = UINT32_MAX;
		int rc = ferry_carry(ferry, block, &row);
		ferry_finish(ferry, block, rc, row);
	}
	ferry_leave(ferry, ferry_take_out(ferry));
}

/* ---- GPUs --------------------------------------------------------------------------------- */

/* Any thread, with no lock of ours. */
static void
hauled(void *arg)
{
	struct ferry_block *block = arg;
	struct ferry *ferry = block->ferry;
	const char *why;
	uint32_t row;
	int code = haul_result(block->haul, &row, &why);
	pthread_mutex_lock(&ferry->lock);
	/* Of one that is abandoned the memory may be gone by right. */
	bool lost = block->space && gpu_space_is_lost(block->space); /* no worker's */
	bool limit = code == TH_E_LIMIT;                             /* nor this */
	if (limit && !ferry->limit[0]) {
		log_warn("gpu", "a GPU does not reach memory of the agent why='%s'", why);
		snprintf(ferry->limit, sizeof(ferry->limit), "%s", why);
	}
	if (code < 0 && !ferry->abandoned && !lost && !limit) {
		log_warn("gpu", "memory of a worker is not reached code='%s' why='%s'",
			th_strerror(code), why);
		xfer_part_set_lost(ferry->part, code, why);
	}
	/* Of all but the GPU's own lines it is gone. */
	ferry_finish(ferry, block, code < 0 && !limit ? TH_E_STALE_MEMORY : code, row);
	ferry_leave(ferry, ferry->abandoned ? ferry_take_out(ferry) : NULL);
}

static void
haul(struct ferry *ferry, struct ferry_block *block)
{
	const struct haul_block what = {.part = ferry->part,
		.cursor = block->cursor,
		.data = block->data,
		.bytes = block->bytes,
		.writes = ferry->writes,
		.pinned = block->pinned,
		.host = block->host,
		.space = block->space,
		.at = block->at,
		.hashes = block->hashes,
		.done = hauled,
		.arg = block};
	block->haul = ferry->gpus ? haul_new(&what, ferry->loop) : NULL;
}

struct pinned_block {
	struct ferry_block block;
	struct gpus *gpus;
	struct fd_memory_left left;
};

static void
ferry_give(struct fd_memory_left *left)
{
	struct pinned_block *own = loop_container(left, struct pinned_block, left);
	gpus_block_give(own->gpus, own->block.data);
	free(own);
}

/*
 * Who gives a block of the GPUs' back may wake who waits for it, which takes descriptors that a
 * thread of the crew has not got.
 */
static void
drop_pinned(struct ferry_block *block)
{
	fd_memory_leave(&loop_container(block, struct pinned_block, block)->left);
}

/* NULL: there is none to be kept, and memory of our own does, with one copy more. */
static struct ferry_block *
pinned_spare(struct ferry *ferry)
{
	fd_memory_sweep();
	uint8_t *data = gpus_block_take(ferry->gpus, NULL);
	if (!data)
		return NULL;
	struct pinned_block *own = th_calloc(1, sizeof(*own));
	own->gpus = ferry->gpus;
	own->block.data = data;
	own->block.pinned = true;
	own->block.drop = drop_pinned;
	own->left.run = ferry_give;
	return &own->block;
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
	if (ferry->num_out == FERRY_BLOCKS)
		return NULL;
	ferry->num_out++;
	struct ferry_block *block = ferry->gpus ? pinned_spare(ferry) : NULL;
	if (block)
		return block;
	block = ferry->spare;
	if (!block)
		return new_block();
	ferry->spare = block->next;
	return block;
}

void
ferry_put_back(struct ferry *ferry, struct ferry_block *block)
{
	TH_ASSERT(ferry->num_out > 0);
	ferry->num_out--;
	if (block->pinned) {
		drop_pinned(block);
		return;
	}
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

static int
ferry_start_thread(struct ferry *ferry)
{
	uint32_t count;
	int *fds = xfer_part_descriptors(ferry->part, 1, &count);
	fds[count++] = loop_wake_fd(ferry->loop);
	ferry->references++;
	int rc = crew_start(ferry_main, ferry, fds, count);
	if (rc < 0)
		ferry->references--;
	return rc;
}

int
ferry_new(struct xfer_part *part, bool writes, struct loop *loop, struct loop_task *done,
	struct ferry **ret_ferry)
{
	struct ferry *ferry = th_calloc(1, sizeof(*ferry));
	bool on_gpus;
	pthread_mutex_init(&ferry->lock, NULL);
	pthread_cond_init(&ferry->work, NULL);
	ferry->references = 1;
	ferry->gpus = xfer_part_gpus(part, &on_gpus);
	ferry->has_thread = !on_gpus;
	ferry->writes = writes;
	ferry->part = part;
	ferry->loop = loop;
	ferry->done = done;
	ferry->last = &ferry->first;
	int rc = on_gpus ? 0 : ferry_start_thread(ferry);
	if (rc < 0)
		ferry_abandon(ferry);
	else
		*ret_ferry = ferry;
	return rc;
}

void
ferry_submit(struct ferry *ferry, struct ferry_block *block)
{
	block->next = NULL;
	block->code = 0;
	block->ferry = ferry;
	TH_ASSERT(!block->space || !ferry->has_thread);
	haul(ferry, block);
	block->pending = (ferry->has_thread ? 1u : 0u) + (block->haul ? 1u : 0u);
	TH_ASSERT(block->pending > 0);
	pthread_mutex_lock(&ferry->lock);
	*ferry->last = block;
	ferry->last = &block->next;
	if (!ferry->next && ferry->has_thread)
		ferry->next = block;
	ferry->under_way++;
	ferry->references += block->haul ? 1u : 0u;
	pthread_cond_signal(&ferry->work);
	pthread_mutex_unlock(&ferry->lock);
	if (block->haul)
		haul_start(block->haul);
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
	if (!block)
		return NULL;
	if (block->space && block->hashes)
		block->digest = haul_digest(block->haul);
	else if (ferry->gpus && block->hashes && block->code == 0)
		block->digest = digest_of(block->data, block->bytes);
	haul_free(block->haul);
	block->haul = NULL;
	return block;
}

void
ferry_limit(struct ferry *ferry, char *ret_why, size_t bytes)
{
	pthread_mutex_lock(&ferry->lock);
	snprintf(ret_why, bytes, "%s", ferry->limit);
	pthread_mutex_unlock(&ferry->lock);
}

bool
ferry_busy(struct ferry *ferry)
{
	pthread_mutex_lock(&ferry->lock);
	bool busy = ferry->under_way > 0;
	pthread_mutex_unlock(&ferry->lock);
	return busy;
}

/* Of blocks that nobody takes out meanwhile. */
static void
cancel_hauls(struct ferry *ferry)
{
	for (struct ferry_block *block = ferry->first; block; block = block->next) {
		if (block->haul)
			haul_cancel(block->haul);
	}
}

void
ferry_abandon(struct ferry *ferry)
{
	if (!ferry)
		return;
	struct ferry_block *spare = ferry->spare;
	ferry->spare = NULL;
	/* It may end in there, but nobody but us takes it out yet. */
	cancel_hauls(ferry);
	__atomic_store_n(&ferry->hurry, true, __ATOMIC_RELAXED);
	pthread_mutex_lock(&ferry->lock);
	ferry->abandoned = true;
	for (struct ferry_block *block = ferry->next; block; block = block->next)
		block->pending--;
	ferry->next = NULL;
	pthread_cond_signal(&ferry->work);
	ferry_leave(ferry, ferry_take_out(ferry));
	ferry_drop_all(spare);
}
