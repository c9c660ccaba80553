/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks - see blocks.h.
 */
#include "transport/cuda/blocks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/fd.h"
#include "ipc/base/units.h"
#include "transport/crew.h"

#define SLAB_BYTES_MIN (UINT64_C(16) << 20) /* pinned at once, in a few ms */
#define SLABS_MAX 64u
_Static_assert(SLABS_MAX < GPU_AREAS_MAX, "one area more, for what is hashed here (jobs.c)");

struct blocks {
	/* Immutable, once they are made. */
	uint64_t budget_bytes, slab_bytes;
	uint32_t num_blocks, num_slabs;
	pthread_mutex_t lock; /* of all that follows */
	uint8_t *memory;      /* owns: all slabs, one behind the other; NULL: not made yet */
	int fds[SLABS_MAX];   /* own */
	uint32_t num_carved;  /* blocks that had somebody: the first ones */
	uint32_t *free;       /* owns: the one that came last is used next */
	uint32_t num_free;
	bool *used; /* owns */
	uint32_t num_used, num_processes;
	struct gpus_waiter *waiters, **waiters_last;
	uint64_t num_waits;
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
	uint64_t share = (budget_bytes + SLABS_MAX - 1) / SLABS_MAX;
	share = (share + SLAB_BYTES_MIN - 1) / SLAB_BYTES_MIN * SLAB_BYTES_MIN;
	blocks->budget_bytes = budget_bytes;
	blocks->num_blocks = (uint32_t)count;
	blocks->slab_bytes = share;
	blocks->num_slabs = (uint32_t)((count * GPUS_BLOCK_BYTES + share - 1) / share);
	blocks->waiters_last = &blocks->waiters;
	for (uint32_t i = 0; i < SLABS_MAX; i++)
		blocks->fds[i] = -1;
	pthread_mutex_init(&blocks->lock, NULL);
	*ret_blocks = blocks;
	return 0;
}

static uint64_t
slab_bytes(const struct blocks *blocks, uint32_t slab)
{
	uint64_t at = slab * blocks->slab_bytes;
	return th_min_u64(blocks->slab_bytes, (uint64_t)blocks->num_blocks * GPUS_BLOCK_BYTES - at);
}

static void
drop_memory(struct blocks *blocks, uint8_t *memory)
{
	(void)munmap(memory, blocks->num_slabs * blocks->slab_bytes);
	for (uint32_t i = 0; i < SLABS_MAX; i++)
		th_fd_close(&blocks->fds[i]);
}

void
blocks_free(struct blocks *blocks)
{
	if (!blocks)
		return;
	TH_ASSERT(blocks->num_used == 0 && !blocks->waiters);
	if (blocks->memory)
		drop_memory(blocks, blocks->memory);
	free(blocks->free);
	free(blocks->used);
	pthread_mutex_destroy(&blocks->lock);
	free(blocks);
}

/* A page of it can go only with the last who has it, whatever the GPU's process does to it. */
static int
make_slab(struct blocks *blocks, uint32_t slab, uint8_t *at)
{
	uint64_t bytes = slab_bytes(blocks, slab);
	int fd = memfd_create("thagentd-gpu-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	blocks->fds[slab] = fd;
	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return -errno;
	return 0;
}

static int
make_slabs(struct blocks *blocks, uint8_t **ret_memory)
{
	uint64_t bytes = blocks->num_slabs * blocks->slab_bytes;
	int rc = 0;
	void *memory =
		mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return -errno;
	for (uint32_t i = 0; rc == 0 && i < blocks->num_slabs; i++)
		rc = make_slab(blocks, i, (uint8_t *)memory + i * blocks->slab_bytes);
	if (rc < 0) {
		drop_memory(blocks, memory);
		return rc;
	}
	(void)madvise(memory, bytes, MADV_DONTDUMP);
	(void)madvise(memory, bytes, MADV_DONTFORK);
	*ret_memory = memory;
	return 0;
}

int
blocks_prepare(struct blocks *blocks, struct th_err *err)
{
	int rc = 0;
	TH_ASSERT(!crew_on_thread());
	pthread_mutex_lock(&blocks->lock);
	if (!blocks->memory) {
		rc = make_slabs(blocks, &blocks->memory);
		if (rc == 0) {
			blocks->free = th_calloc(blocks->num_blocks, sizeof(blocks->free[0]));
			blocks->used = th_calloc(blocks->num_blocks, sizeof(blocks->used[0]));
		}
	}
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
blocks_take(struct blocks *blocks, struct gpus_waiter *waiter)
{
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
blocks_cancel(struct blocks *blocks, struct gpus_waiter *waiter)
{
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

/* Under the lock: no page of any slab is wanted by anybody. */
static void
settle(struct blocks *blocks)
{
	if (blocks->num_used > 0 || blocks->num_processes > 0 || blocks->num_carved == 0)
		return;
	for (uint32_t i = 0; i < blocks->num_slabs; i++)
		(void)madvise(blocks->memory + i * blocks->slab_bytes, slab_bytes(blocks, i),
			MADV_REMOVE);
	blocks->num_carved = blocks->num_free = 0;
}

void
blocks_give(struct blocks *blocks, uint8_t *data)
{
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
		settle(blocks);
	}
	pthread_mutex_unlock(&blocks->lock);
}

void
blocks_status(struct blocks *blocks, struct gpus_stage_status *ret_status)
{
	pthread_mutex_lock(&blocks->lock);
	*ret_status = (struct gpus_stage_status){.budget_bytes = blocks->budget_bytes,
		.bytes = (uint64_t)blocks->num_carved * GPUS_BLOCK_BYTES,
		.bytes_in_use = (uint64_t)blocks->num_used * GPUS_BLOCK_BYTES,
		.waits = blocks->num_waits};
	pthread_mutex_unlock(&blocks->lock);
}

/* ---- for the processes --------------------------------------------------------------------- */

void
blocks_where(struct blocks *blocks, const uint8_t *data, uint64_t bytes, uint32_t *ret_area,
	uint64_t *ret_at)
{
	pthread_mutex_lock(&blocks->lock);
	const uint8_t *memory = blocks->memory;
	pthread_mutex_unlock(&blocks->lock);
	TH_ASSERT(memory && data >= memory);
	uint64_t at = (uint64_t)(data - memory);
	uint64_t area = at / blocks->slab_bytes;
	TH_ASSERT(area < blocks->num_slabs);
	TH_ASSERT(
		th_range_fits(at % blocks->slab_bytes, bytes, slab_bytes(blocks, (uint32_t)area)));
	*ret_area = (uint32_t)area;
	*ret_at = at % blocks->slab_bytes;
}

int
blocks_fd(struct blocks *blocks, uint32_t area, uint64_t *ret_bytes)
{
	TH_ASSERT(!crew_on_thread() && area < blocks->num_slabs);
	*ret_bytes = slab_bytes(blocks, area);
	return blocks->fds[area];
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
	settle(blocks);
	pthread_mutex_unlock(&blocks->lock);
}
