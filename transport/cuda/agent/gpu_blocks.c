/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_blocks - see gpu_blocks.h.
 */
#include "transport/cuda/agent/gpu_blocks.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/fd.h"
#include "ipc/base/units.h"
#include "transport/cuda/agent/gpus_own.h"
#include "transport/loop/crew.h"
#include "transport/part/pinned_pages.h"

#define SLICE_BYTES_MIN (UINT64_C(16) << 20) /* pinned at once, in a few ms */
#define SLICES_MAX 64u

struct blocks {
	/* Immutable, once they are made. */
	uint64_t budget_bytes, slice_bytes;
	uint32_t num_blocks;
	pthread_mutex_t lock;   /* of all that follows */
	uint8_t *memory;        /* owns; NULL: not made yet, as the next two */
	int fd;                 /* owns */
	struct gpus_host *host; /* owns */
	uint32_t num_carved;    /* blocks that had somebody: the first ones */
	uint32_t *free;         /* owns: the one that came last is used next */
	uint32_t num_free;
	bool *used; /* owns */
	uint32_t num_used, num_processes;
	struct gpus_waiter *waiters, **waiters_last;
	uint64_t num_waits;
	uint64_t bytes_copied; /* atomic: of no lock */
};

int
blocks_new(uint64_t budget_bytes, struct th_err *err, struct blocks **ret_blocks)
{
	char budget[TH_UNITS_BYTES];
	uint64_t count = budget_bytes / GPUS_BLOCK_BYTES;
	if (count == 0 || count > UINT32_MAX)
		return th_fail(err, TH_E_INVALID,
			"gpu.staging is %s: it must be at least 512KiB and at most 2048TiB",
			th_print_size(budget_bytes, budget));
	struct blocks *blocks = th_calloc(1, sizeof(*blocks));
	uint64_t share = (budget_bytes + SLICES_MAX - 1) / SLICES_MAX;
	share = (share + SLICE_BYTES_MIN - 1) / SLICE_BYTES_MIN * SLICE_BYTES_MIN;
	blocks->budget_bytes = budget_bytes;
	blocks->num_blocks = (uint32_t)count;
	blocks->slice_bytes = share;
	blocks->fd = -1;
	blocks->waiters_last = &blocks->waiters;
	pthread_mutex_init(&blocks->lock, NULL);
	*ret_blocks = blocks;
	return 0;
}

static uint64_t
all_bytes(const struct blocks *blocks)
{
	return (uint64_t)blocks->num_blocks * GPUS_BLOCK_BYTES;
}

void
blocks_free(struct blocks *blocks)
{
	if (!blocks)
		return;
	TH_ASSERT(blocks->num_used == 0 && !blocks->waiters);
	host_free(blocks->host);
	if (blocks->memory)
		(void)munmap(blocks->memory, all_bytes(blocks));
	th_fd_close(&blocks->fd);
	free(blocks->free);
	free(blocks->used);
	pthread_mutex_destroy(&blocks->lock);
	free(blocks);
}

static int
make_memory(struct blocks *blocks)
{
	uint64_t bytes = all_bytes(blocks);
	int rc = pinned_pages_map_file("thagentd-gpu-staging", bytes, &blocks->fd, &blocks->memory);
	if (rc < 0)
		return rc;
	blocks->host = host_make(blocks->fd, blocks->memory, bytes, blocks->slice_bytes);
	blocks->free = th_calloc(blocks->num_blocks, sizeof(blocks->free[0]));
	blocks->used = th_calloc(blocks->num_blocks, sizeof(blocks->used[0]));
	return 0;
}

int
blocks_prepare(struct blocks *blocks, struct th_err *err)
{
	int rc = 0;
	TH_ASSERT(!crew_on_thread());
	pthread_mutex_lock(&blocks->lock);
	if (!blocks->memory)
		rc = make_memory(blocks);
	pthread_mutex_unlock(&blocks->lock);
	if (rc < 0)
		return th_fail(
			err, rc, "memory for gpu.staging could not be made: %s", th_strerror(rc));
	return 0;
}

/* ---- taking and giving --------------------------------------------------------------------- */

/* Under the lock. */
static uint8_t *
block_at(struct blocks *blocks, uint32_t block)
{
	return blocks->memory + (uint64_t)block * GPUS_BLOCK_BYTES;
}

/* Under the lock. Who does not wait leaves a quarter, so whoever waits is never overtaken. */
static bool
may_have(const struct blocks *blocks, const struct gpus_waiter *waiter)
{
	uint32_t free = blocks->num_blocks - blocks->num_used;
	uint32_t reserve = waiter ? 0 : th_max_u32(blocks->num_blocks / 4, 1);
	return free > reserve;
}

uint8_t *
gpus_block_take(struct gpus *gpus, struct gpus_waiter *waiter)
{
	struct blocks *blocks = gpus->blocks;
	uint8_t *data = NULL;
	pthread_mutex_lock(&blocks->lock);
	TH_ASSERT(blocks->memory);
	if (may_have(blocks, waiter)) {
		uint32_t block = blocks->num_free > 0 ? blocks->free[--blocks->num_free]
						      : blocks->num_carved++;
		blocks->used[block] = true;
		blocks->num_used++;
		data = block_at(blocks, block);
	} else {
		if (waiter) {
			blocks->num_waits++;
			waiter->next = NULL;
			*blocks->waiters_last = waiter;
			blocks->waiters_last = &waiter->next;
		}
	}
	pthread_mutex_unlock(&blocks->lock);
	return data;
}

/* Under the lock. */
static void
unlink_waiter(struct blocks *blocks, struct gpus_waiter **at)
{
	struct gpus_waiter *waiter = *at;
	*at = waiter->next;
	if (!*at)
		blocks->waiters_last = at;
	waiter->next = NULL;
}

bool
gpus_block_cancel(struct gpus *gpus, struct gpus_waiter *waiter)
{
	struct blocks *blocks = gpus->blocks;
	pthread_mutex_lock(&blocks->lock);
	struct gpus_waiter **at = &blocks->waiters;
	while (*at && *at != waiter)
		at = &(*at)->next;
	bool waits = *at != NULL;
	if (waits)
		unlink_waiter(blocks, at);
	pthread_mutex_unlock(&blocks->lock);
	return waits;
}

/* Under the lock: whether no page of it is wanted by anybody. */
static void
gpu_blocks_settle(struct blocks *blocks)
{
	if (blocks->num_used > 0 || blocks->num_processes > 0 || blocks->num_carved == 0)
		return;
	(void)madvise(blocks->memory, all_bytes(blocks), MADV_REMOVE);
	blocks->num_carved = blocks->num_free = 0;
}

void
gpus_block_give(struct gpus *gpus, uint8_t *data)
{
	struct blocks *blocks = gpus->blocks;
	if (!data)
		return;
	pthread_mutex_lock(&blocks->lock);
	uint64_t offset = (uint64_t)(data - blocks->memory);
	uint32_t block = (uint32_t)(offset / GPUS_BLOCK_BYTES);
	TH_ASSERT(blocks->memory && offset % GPUS_BLOCK_BYTES == 0 && block < blocks->num_blocks);
	TH_ASSERT(blocks->used[block]);
	struct gpus_waiter *waiter = blocks->waiters;
	if (waiter) { /* it goes from one to the other */
		unlink_waiter(blocks, &blocks->waiters);
		waiter->granted(waiter, data);
	} else {
		blocks->num_used--;
		blocks->used[block] = false;
		blocks->free[blocks->num_free++] = block;
		gpu_blocks_settle(blocks);
	}
	pthread_mutex_unlock(&blocks->lock);
}

void
gpus_block_copied(struct gpus *gpus, uint64_t bytes)
{
	__atomic_fetch_add(&gpus->blocks->bytes_copied, bytes, __ATOMIC_RELAXED);
}

void
gpus_stage_status(struct gpus *gpus, struct gpus_stage_status *ret_status)
{
	struct blocks *blocks = gpus->blocks;
	pthread_mutex_lock(&blocks->lock);
	*ret_status = (struct gpus_stage_status){.budget_bytes = blocks->budget_bytes,
		.bytes = (uint64_t)blocks->num_carved * GPUS_BLOCK_BYTES,
		.bytes_in_use = (uint64_t)blocks->num_used * GPUS_BLOCK_BYTES,
		.waits = blocks->num_waits,
		.bytes_copied = __atomic_load_n(&blocks->bytes_copied, __ATOMIC_RELAXED)};
	pthread_mutex_unlock(&blocks->lock);
}

/* ---- for the processes --------------------------------------------------------------------- */

struct gpus_host *
blocks_host(struct blocks *blocks)
{
	pthread_mutex_lock(&blocks->lock);
	struct gpus_host *host = blocks->host;
	pthread_mutex_unlock(&blocks->lock);
	TH_ASSERT(host);
	return host;
}

void
blocks_process_begins(struct blocks *blocks)
{
	pthread_mutex_lock(&blocks->lock);
	blocks->num_processes++;
	pthread_mutex_unlock(&blocks->lock);
}

void
blocks_process_ended(struct blocks *blocks)
{
	pthread_mutex_lock(&blocks->lock);
	TH_ASSERT(blocks->num_processes > 0);
	blocks->num_processes--;
	gpu_blocks_settle(blocks);
	pthread_mutex_unlock(&blocks->lock);
}
