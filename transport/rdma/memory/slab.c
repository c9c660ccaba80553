/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slab - see stage.h: one by itself.
 *
 * A slab is IN USE (users > 0), idle (in the list), or retired: its region is released, and the
 * memory goes when nobody knows it any more and no user is left. slab_release may run on a
 * thread of the crew, which cannot wake others, so it retires nothing: the keeper's clock and
 * stage_take do. One on a GPU no such thread ever has: it is retired by the last who releases it.
 *
 *   on a GPU:  MAKING (its process makes it) -> REGISTERING -> READY
 *              either of the first two -> LEAVING (no rail knows it) -> READY, as the host's
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "transport/loop/crew.h"
#include "transport/part/packed.h"
#include "transport/part/pinned_pages.h"
#include "transport/rdma/memory/region.h"
#include "transport/rdma/memory/stage_own.h"
#include "transport/rdma/rdma.h"

#define ALL_RAILS UINT32_MAX

/* On any thread. It counts until here. */
static void
slab_unmapped(void *arg)
{
	struct slab *slab = arg;
	struct stage *stage = slab->stage;
	free(slab);
	pthread_mutex_lock(&stage->lock);
	stage->num_slabs--;
	bool last = stage->left && stage->num_slabs == 0;
	pthread_mutex_unlock(&stage->lock);
	if (last)
		stage_destroy(stage);
}

/* Under the lock, which it gives up. If the slab is not needed by anybody, it goes. */
static void
unlock_and_settle(struct stage *stage, struct slab *slab)
{
	bool goes = slab->retired && slab->users == 0 && slab->known_to == 0 &&
		    slab->state == SLAB_READY;
	if (goes) {
		LIST_REMOVE(slab, entry);
		stage->num_on_gpus -= slab->space != NULL;
	}
	pthread_mutex_unlock(&stage->lock);
	if (!goes)
		return;
	gpu_space_release(slab->space);
	if (slab->data)
		unmap_start(&slab->unmap, slab->data, SLAB_BYTES, slab_unmapped, slab);
	else
		slab_unmapped(slab);
}

static void go_to_host(struct slab *slab);

/* Devices do not know it any more: on the keeper's thread. */
static void
slab_gone(void *arg)
{
	struct slab *slab = arg;
	pthread_mutex_lock(&slab->stage->lock);
	slab->known_to--;
	bool leaves = slab->state == SLAB_LEAVING;
	if (!leaves)
		unlock_and_settle(slab->stage, slab);
	else
		pthread_mutex_unlock(&slab->stage->lock);
	if (leaves)
		go_to_host(slab);
}

/* GPUs' processes do not: on any thread but one of the crew. */
static void
host_gone(void *arg)
{
	struct slab *slab = arg;
	th_fd_close(&slab->fd);
	slab_gone(slab);
}

void
slab_let_go(struct known known)
{
	region_release(known.region);
	gpus_host_release(known.host);
}

struct known
slab_retire(struct slab *slab)
{
	if (slab->is_idle)
		TAILQ_REMOVE(&slab->stage->idle, slab, idle_entry);
	slab->is_idle = false;
	slab->retired = true;
	return (struct known){slab->region, slab->host};
}

/* ---- on the host -------------------------------------------------------------------------- */

/* Memory for it, which GPUs reach if there are some. False: there is none. */
static bool
map_host(struct slab *slab)
{
	if (!slab->gpus ||
		pinned_pages_map_file("thagentd-gpu-slab", SLAB_BYTES, &slab->fd, &slab->data) < 0)
		slab->data = pinned_pages_map(SLAB_BYTES);
	return slab->data;
}

/* Nobody else has it, or under the lock: nothing in here waits. */
static void
offer_host(struct slab *slab)
{
	const struct region_user user = {.arg = slab, .gone = slab_gone};
	const struct region_memory memory = {
		.data = slab->data, .dmabuf_fd = -1, .bytes = SLAB_BYTES};
	slab->region =
		region_new(rdma_rails(slab->stage->rdma), &memory, ALL_RAILS, SHARD_ACCESS, &user);
	slab->known_to++;
	if (slab->fd < 0)
		return;
	slab->host = gpus_host_new(slab->gpus, &(struct gpus_host_memory){.fd = slab->fd,
						       .data = slab->data,
						       .bytes = SLAB_BYTES,
						       .gone = host_gone,
						       .arg = slab});
	slab->known_to++;
}

struct slab *
slab_new(struct stage *stage, struct gpus *gpus)
{
	struct slab *slab = th_calloc(1, sizeof(*slab));
	*slab = (struct slab){
		.stage = stage, .gpus = gpus, .fd = -1, .users = 1, .made_ns = th_now_ns()};
	if (!map_host(slab)) {
		free(slab);
		return NULL;
	}
	offer_host(slab);
	return slab;
}

/* ---- on a GPU (the keeper's thread, but where said) --------------------------------------- */

/* What the GPU does not give, the host does. */
static void
go_to_host(struct slab *slab)
{
	struct stage *stage = slab->stage;
	struct gpu_space *space = slab->space;
	bool any = map_host(slab);
	pthread_mutex_lock(&stage->lock);
	slab->space = NULL;
	stage->num_on_gpus--;
	if (any && !slab->retired)
		offer_host(slab);
	else
		th_fd_close(&slab->fd);
	slab->made_ns = th_now_ns();
	slab->state = SLAB_READY;
	unlock_and_settle(stage, slab);
	gpu_space_release(space);
}

static void
slab_registered(void *arg, struct region *region)
{
	struct slab *slab = arg;
	struct stage *stage = slab->stage;
	struct region *dropped = NULL;
	/* The host's is registered with all rails, so with others than those near to the GPU. */
	uint32_t usable = rdma_usable(stage->rdma), ready = region_ready(region);
	bool good = (ready & (usable != 0 ? usable : ready)) != 0;
	pthread_mutex_lock(&stage->lock);
	if (good)
		stage_note_some(stage, slab->gpu);
	if (slab->retired || good) {
		slab->state = SLAB_READY;
	} else {
		stage_note_none(stage, slab->gpu, ready != 0); /* its port may come back */
		slab->state = SLAB_LEAVING;
		dropped = slab->region;
		slab->region = NULL;
	}
	unlock_and_settle(stage, slab);
	region_release(dropped);
}

/* It comes from the GPU's process, which may be broken: nobody waits for its end. */
static void
close_dmabuf(int fd, void (*closed)(void *arg), void *arg)
{
	const struct slab *slab = arg; /* of region_user */
	slab->close_fd(fd, NULL, NULL);
	closed(arg);
}

/* It may be retired by now, but is not freed: it is MAKING. */
static void
slab_run_made(struct loop_task *task)
{
	struct slab *slab = loop_container(task, struct slab, made_task);
	struct stage *stage = slab->stage;
	struct region_memory memory = {
		.dmabuf_fd = -1, .close_fd = close_dmabuf, .bytes = SLAB_BYTES};
	const struct region_user user = {
		.arg = slab, .settled = slab_registered, .gone = slab_gone};
	if (slab->made_code == 0 && !gpu_space_is_lost(slab->space))
		memory.dmabuf_fd = gpu_space_take_dmabuf(slab->space, &slab->close_fd);
	uint32_t mask = stage->near ? stage->near(stage->near_arg, slab->gpu) : ALL_RAILS;
	pthread_mutex_lock(&stage->lock);
	if (memory.dmabuf_fd < 0) {
		stage_note_none(stage, slab->gpu, false);
		pthread_mutex_unlock(&stage->lock);
		go_to_host(slab);
	} else if (slab->retired) {
		slab->state = SLAB_READY;
		slab->close_fd(memory.dmabuf_fd, NULL, NULL);
		unlock_and_settle(stage, slab);
	} else {
		slab->state = SLAB_REGISTERING;
		slab->known_to++;
		memory.quiet = stage_had_none(stage, slab->gpu);
		slab->region =
			region_new(rdma_rails(stage->rdma), &memory, mask, SHARD_ACCESS, &user);
		pthread_mutex_unlock(&stage->lock);
	}
}

void
slab_say_none(bool told, const char *why)
{
	log_at(told ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, "rdma",
		"a GPU has no memory for copies, the host does why='%s'", why);
}

/* On the GPU's thread. When the stage is closed, there may be no keeper any more. */
static void
slab_made(void *arg, const struct th_err *result)
{
	struct slab *slab = arg;
	struct stage *stage = slab->stage;
	pthread_mutex_lock(&stage->lock);
	bool told = stage_had_none(stage, slab->gpu);
	slab->made_code = result->code;
	if (stage->closed) {
		slab->state = SLAB_READY;
		unlock_and_settle(stage, slab);
	} else {
		loop_post(rdma_keeper(stage->rdma), &slab->made_task);
		pthread_mutex_unlock(&stage->lock);
	}
	if (result->code < 0)
		slab_say_none(told, result->text);
}

struct slab *
slab_new_on_gpu(
	struct stage *stage, struct gpus *gpus, struct gpu_space *space, const uint8_t gpu[16])
{
	struct slab *slab = th_calloc(1, sizeof(*slab));
	*slab = (struct slab){.stage = stage,
		.space = space,
		.gpus = gpus,
		.fd = -1,
		.state = SLAB_MAKING,
		.users = 1,
		.made_task.run = slab_run_made};
	memcpy(slab->gpu, gpu, sizeof(slab->gpu));
	return slab;
}

void
slab_make(struct slab *slab)
{
	gpu_space_settle(slab->space, slab_made, slab);
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
	struct known known = {0};
	pthread_mutex_lock(&stage->lock);
	TH_ASSERT(slab->users > 0);
	slab->users--;
	if (slab->users == 0 && !slab->condemned) {
		stage->num_in_use--;
		if (!slab->retired && (slab->space || !slab->region)) {
			TH_ASSERT(!crew_on_thread());
			known = slab_retire(slab);
		} else if (!slab->retired) {
			slab->is_idle = true;
			slab->idle_ns = th_now_ns();
			TAILQ_INSERT_HEAD(&stage->idle, slab, idle_entry);
		}
	}
	unlock_and_settle(stage, slab);
	slab_let_go(known);
}

void
slab_condemn(struct slab *slab)
{
	pthread_mutex_lock(&slab->stage->lock);
	slab->condemned = true;
	pthread_mutex_unlock(&slab->stage->lock);
}

uint32_t
slab_rails(struct slab *slab, uint32_t *ret_waiting)
{
	struct stage *stage = slab->stage;
	pthread_mutex_lock(&stage->lock);
	struct region *region = slab->state == SLAB_READY ? slab->region : NULL;
	*ret_waiting = slab->state != SLAB_READY ? ALL_RAILS : region ? region_waiting(region) : 0;
	uint32_t ready = region ? region_ready(region) : 0;
	pthread_mutex_unlock(&stage->lock);
	return ready;
}

bool
slab_is_made(struct slab *slab)
{
	pthread_mutex_lock(&slab->stage->lock);
	bool slab_made = slab->state == SLAB_READY;
	pthread_mutex_unlock(&slab->stage->lock);
	return slab_made;
}

void
slab_why(struct slab *slab, struct th_err *ret_err)
{
	struct th_err err = {0};
	bool failed = false;
	pthread_mutex_lock(&slab->stage->lock);
	struct region *region = slab->region ? region_retain(slab->region) : NULL;
	pthread_mutex_unlock(&slab->stage->lock);
	for (uint32_t rail = 0; region && rail < RAILS_MAX && !failed; rail++)
		failed = region_state(region, rail, &err) == REGION_FAILED;
	region_release(region);
	*ret_err = err;
	if (!region)
		(void)th_fail(ret_err, TH_E_NO_PATH, "there is no memory for it");
}

void
slab_clear(struct slab *slab)
{
	uint32_t dirty = __atomic_exchange_n(&slab->dirty, 0, __ATOMIC_ACQ_REL);
	for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
		if (slab->data && (dirty >> i & 1) != 0)
			memset(slab->data + slab_slot_at(i), 0, CHUNK_BYTES_MAX);
	}
}

struct region *
slab_region(const struct slab *slab)
{
	return slab->region;
}

struct gpu_space *
slab_space(const struct slab *slab)
{
	return slab->space;
}

struct gpus_host *
slab_host(const struct slab *slab)
{
	return slab->host;
}

bool
slab_lost(const struct slab *slab)
{
	return slab->space && gpu_space_is_lost(slab->space);
}

uint8_t *
slab_slot(struct slab *slab, uint32_t slot)
{
	TH_ASSERT(slab->data);
	return slab->data + slab_slot_use(slab, slot);
}

uint64_t
slab_slot_at(uint32_t slot)
{
	return (uint64_t)slot * CHUNK_BYTES_MAX;
}

uint64_t
slab_slot_use(struct slab *slab, uint32_t slot)
{
	TH_ASSERT(slot < STAGE_SLOTS);
	__atomic_fetch_or(&slab->dirty, UINT32_C(1) << slot, __ATOMIC_RELEASE);
	return slab_slot_at(slot);
}
