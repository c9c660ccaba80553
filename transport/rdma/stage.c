/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage - see stage.h.
 *
 * A slab is IN USE (users > 0), idle (in the list), or retired: its region is released, and the
 * memory goes when no device knows it any more and no user is left. slab_release may run on a
 * thread of the crew, which cannot wake others, so it retires nothing: the keeper's clock and
 * stage_take do.
 */
#include "transport/rdma/stage.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "transport/crew.h"
#include "transport/loop.h"
#include "transport/rdma/packed.h"
#include "transport/rdma/pages.h"
#include "transport/rdma/rdma.h"
#include "transport/rdma/region.h"
#include "transport/unmap.h"

#define IDLE_NS INT64_C(30000000000) /* then a slab is given back */
#define LOOK_NS INT64_C(5000000000)
#define AGAIN_NS INT64_C(10000000000) /* a registration that failed on a rail is tried again */

struct slab {
	struct stage *stage;   /* there as long as the slab */
	uint8_t *data;         /* owns: pages_map */
	struct region *region; /* owns: a reference, until it is retired */
	uint32_t dirty;        /* atomic mask: slots that somebody wrote to */
	/* Guarded by the stage's lock. */
	TAILQ_ENTRY(slab) idle_entry;
	LIST_ENTRY(slab) entry;
	uint32_t users;
	bool is_idle, condemned, retired;
	bool registered; /* a device may know the memory */
	int64_t made_ns, idle_ns;
	struct unmap unmap; /* in the end */
};

TAILQ_HEAD(idle_slabs, slab);
LIST_HEAD(slabs, slab);

struct stage {
	struct rdma *rdma;     /* borrows, until stage_close */
	uint64_t budget_bytes; /* immutable */
	struct loop_task wake_task;
	pthread_mutex_t lock; /* of all that follows */
	struct slabs slabs;
	struct idle_slabs idle; /* the one that came last is the first */
	uint64_t num_slabs, num_in_use, num_refused;
	bool closed, left; /* left: stage_free was called */
};

static void
destroy(struct stage *stage)
{
	pthread_mutex_destroy(&stage->lock);
	free(stage);
}

/* On any thread. It counts until here. */
static void
unmapped(void *arg)
{
	struct slab *slab = arg;
	struct stage *stage = slab->stage;
	free(slab);
	pthread_mutex_lock(&stage->lock);
	stage->num_slabs--;
	bool last = stage->left && stage->num_slabs == 0;
	pthread_mutex_unlock(&stage->lock);
	if (last)
		destroy(stage);
}

/* Under the lock, which it gives up. If the slab is not needed by anybody, it goes. */
static void
unlock_and_settle(struct stage *stage, struct slab *slab)
{
	bool goes = slab->retired && slab->users == 0 && !slab->registered;
	if (goes)
		LIST_REMOVE(slab, entry);
	pthread_mutex_unlock(&stage->lock);
	if (goes)
		unmap_start(&slab->unmap, slab->data, SLAB_BYTES, unmapped, slab);
}

/* On the keeper's thread. */
static void
gone(void *arg)
{
	struct slab *slab = arg;
	pthread_mutex_lock(&slab->stage->lock);
	slab->registered = false;
	unlock_and_settle(slab->stage, slab);
}

/* Under the lock. Whoever gets it back releases the region without the lock. */
static struct region *
retire(struct stage *stage, struct slab *slab)
{
	if (slab->is_idle)
		TAILQ_REMOVE(&stage->idle, slab, idle_entry);
	slab->is_idle = false;
	slab->retired = true;
	return slab->region;
}

/* ---- taking ------------------------------------------------------------------------------- */

/* Whether a leg can do something with it: not if its registration failed, and one that some rail
 * does not know is replaced now and then. */
static bool
is_good(const struct slab *slab, uint32_t usable, int64_t now_ns)
{
	uint32_t served = region_ready(slab->region) | region_waiting(slab->region);
	if ((served & usable) == usable)
		return true;
	return (served & usable) != 0 && now_ns < slab->made_ns + AGAIN_NS;
}

/* Under the lock. NULL: there is none; ret_bad is one to be retired, if there is one. */
static struct slab *
take_idle(struct stage *stage, struct slab **ret_bad)
{
	uint32_t usable = rdma_usable(stage->rdma);
	int64_t now_ns = th_now_ns();
	struct slab *slab = TAILQ_FIRST(&stage->idle);
	*ret_bad = NULL;
	if (slab && !is_good(slab, usable, now_ns)) {
		*ret_bad = slab;
		return NULL;
	}
	if (slab) {
		TAILQ_REMOVE(&stage->idle, slab, idle_entry);
		slab->is_idle = false;
	}
	return slab;
}

static void
run_wake(struct loop_task *task)
{
	struct stage *stage = loop_container(task, struct stage, wake_task);
	loop_tick_at(rdma_keeper(stage->rdma), 0);
}

static int
make(struct stage *stage, struct th_err *err, struct slab **ret_slab)
{
	struct slab *slab = th_calloc(1, sizeof(*slab));
	slab->data = pages_map(SLAB_BYTES);
	if (!slab->data) {
		free(slab);
		return th_fail(err, TH_E_NO_PATH,
			"there is no memory for another slab of rdma.stage (32 MiB)");
	}
	const struct region_user user = {.arg = slab, .gone = gone};
	const struct region_memory memory = {
		.data = slab->data, .dmabuf_fd = -1, .bytes = SLAB_BYTES};
	slab->stage = stage;
	slab->users = 1;
	slab->registered = true;
	slab->made_ns = th_now_ns();
	slab->region =
		region_new(rdma_rails(stage->rdma), &memory, UINT32_MAX, SHARD_ACCESS, &user);
	*ret_slab = slab;
	return 0;
}

static int
refuse(struct stage *stage, struct th_err *err)
{
	char budget[TH_UNITS_BYTES];
	if (stage->budget_bytes < SLAB_BYTES)
		return th_fail(err, TH_E_NO_PATH,
			"its agent copies nothing for RDMA (rdma.stage is %s, and one leg needs "
			"32MiB)",
			th_print_size(stage->budget_bytes, budget));
	return th_fail(err, TH_E_NO_PATH,
		"all %s that its agent has for copies are in use (rdma.stage)",
		th_print_size(stage->budget_bytes, budget));
}

int
stage_take(struct stage *stage, struct th_err *err, struct slab **ret_slab)
{
	struct slab *bad;
	struct region *retired = NULL;
	TH_ASSERT(!crew_on_thread());
	pthread_mutex_lock(&stage->lock);
	TH_ASSERT(!stage->closed);
	struct slab *slab = take_idle(stage, &bad);
	bool room = (stage->num_slabs + 1) * SLAB_BYTES <= stage->budget_bytes;
	if (bad)
		retired = retire(stage, bad);
	if (slab) {
		slab->users = 1;
		stage->num_in_use++;
	} else if (room) {
		stage->num_slabs++;
		stage->num_in_use++;
	} else {
		stage->num_refused++;
	}
	pthread_mutex_unlock(&stage->lock);
	region_release(retired);
	*ret_slab = slab;
	if (slab)
		return 0;
	int rc = room ? make(stage, err, ret_slab) : refuse(stage, err);
	if (!room)
		return rc;
	pthread_mutex_lock(&stage->lock);
	if (rc == 0) {
		LIST_INSERT_HEAD(&stage->slabs, *ret_slab, entry);
	} else {
		stage->num_slabs--;
		stage->num_in_use--;
		stage->num_refused++;
	}
	pthread_mutex_unlock(&stage->lock);
	loop_post(rdma_keeper(stage->rdma), &stage->wake_task);
	return rc;
}

/* ---- having ------------------------------------------------------------------------------- */

struct slab *
slab_retain(struct slab *slab)
{
	pthread_mutex_lock(&slab->stage->lock);
	TH_ASSERT(slab->users > 0);
	slab->users++;
	pthread_mutex_unlock(&slab->stage->lock);
	return slab;
}

void
slab_release(struct slab *slab)
{
	if (!slab)
		return;
	struct stage *stage = slab->stage;
	pthread_mutex_lock(&stage->lock);
	TH_ASSERT(slab->users > 0);
	slab->users--;
	if (slab->users == 0 && !slab->condemned) {
		stage->num_in_use--;
		if (!slab->retired) {
			slab->is_idle = true;
			slab->idle_ns = th_now_ns();
			TAILQ_INSERT_HEAD(&stage->idle, slab, idle_entry);
		}
	}
	unlock_and_settle(stage, slab);
}

void
slab_condemn(struct slab *slab)
{
	pthread_mutex_lock(&slab->stage->lock);
	slab->condemned = true;
	pthread_mutex_unlock(&slab->stage->lock);
}

void
slab_clear(struct slab *slab)
{
	uint32_t dirty = __atomic_exchange_n(&slab->dirty, 0, __ATOMIC_ACQ_REL);
	for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
		if (dirty >> i & 1)
			memset(slab->data + slab_slot_at(i), 0, CHUNK_BYTES_MAX);
	}
}

struct region *
slab_region(const struct slab *slab)
{
	return slab->region;
}

uint8_t *
slab_slot(struct slab *slab, uint32_t slot)
{
	TH_ASSERT(slot < STAGE_SLOTS);
	__atomic_fetch_or(&slab->dirty, UINT32_C(1) << slot, __ATOMIC_RELEASE);
	return slab->data + slab_slot_at(slot);
}

uint64_t
slab_slot_at(uint32_t slot)
{
	return (uint64_t)slot * CHUNK_BYTES_MAX;
}

/* ---- the pool ----------------------------------------------------------------------------- */

struct stage *
stage_new(struct rdma *rdma, uint64_t budget_bytes)
{
	struct stage *stage = th_calloc(1, sizeof(*stage));
	stage->rdma = rdma;
	stage->budget_bytes = budget_bytes;
	stage->wake_task.run = run_wake;
	LIST_INIT(&stage->slabs);
	TAILQ_INIT(&stage->idle);
	pthread_mutex_init(&stage->lock, NULL);
	return stage;
}

int64_t
stage_tick(struct stage *stage, int64_t now_ns)
{
	for (;;) {
		pthread_mutex_lock(&stage->lock);
		struct slab *slab = TAILQ_LAST(&stage->idle, idle_slabs);
		if (stage->closed || !slab || now_ns < slab->idle_ns + IDLE_NS)
			break;
		struct region *region = retire(stage, slab);
		pthread_mutex_unlock(&stage->lock);
		region_release(region);
	}
	bool any = !LIST_EMPTY(&stage->slabs) && !stage->closed;
	pthread_mutex_unlock(&stage->lock);
	return any ? now_ns + LOOK_NS : INT64_MAX;
}

void
stage_close(struct stage *stage)
{
	if (!stage)
		return;
	pthread_mutex_lock(&stage->lock);
	stage->closed = true;
	for (;;) {
		struct slab *slab;
		LIST_FOREACH(slab, &stage->slabs, entry)
		{
			if (!slab->retired)
				break;
		}
		if (!slab)
			break;
		struct region *region = retire(stage, slab);
		pthread_mutex_unlock(&stage->lock);
		region_release(region);
		pthread_mutex_lock(&stage->lock);
	}
	pthread_mutex_unlock(&stage->lock);
}

void
stage_free(struct stage *stage)
{
	if (!stage)
		return;
	pthread_mutex_lock(&stage->lock);
	stage->left = true;
	bool last = stage->num_slabs == 0;
	pthread_mutex_unlock(&stage->lock);
	if (last)
		destroy(stage);
}

void
stage_status(struct stage *stage, struct stage_status *ret_status)
{
	pthread_mutex_lock(&stage->lock);
	*ret_status = (struct stage_status){.budget_bytes = stage->budget_bytes,
		.bytes = stage->num_slabs * SLAB_BYTES,
		.bytes_in_use = stage->num_in_use * SLAB_BYTES,
		.refused = stage->num_refused};
	pthread_mutex_unlock(&stage->lock);
}
