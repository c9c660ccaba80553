/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage - see stage.h: the pool. Each slab by itself is in slab.c.
 */
#include "transport/rdma/memory/stage.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "transport/loop/crew.h"
#include "transport/part/xfer_part.h"
#include "transport/rdma/memory/region.h"
#include "transport/rdma/memory/stage_own.h"
#include "transport/rdma/rdma.h"

#define IDLE_NS INT64_C(30000000000)      /* then a slab is given back */
#define LOOKS 6                           /* while it waits for that */
#define AGAIN_NS INT64_C(10000000000)     /* a registration that failed on a rail is tried again */
#define NONE_MAX_NS INT64_C(300000000000) /* so is a GPU that has had none, in the end */

/* ---- taking ------------------------------------------------------------------------------- */

/* Under the lock. Its index; GPUS_MAX: it had some, or was not asked. */
static uint32_t
find_none(const struct stage *stage, const uint8_t gpu[16])
{
	uint32_t i = 0;
	while (i < GPUS_MAX &&
		(stage->none[i].pause_ns == 0 || memcmp(stage->none[i].gpu, gpu, 16) != 0))
		i++;
	return i;
}

/* Under the lock: for a GPU that is not there yet. A free one, or else any. */
static struct no_slabs *
add_none(struct stage *stage)
{
	uint32_t i = 0;
	while (i < GPUS_MAX && stage->none[i].pause_ns != 0)
		i++;
	return &stage->none[i < GPUS_MAX ? i : stage->next_none++ % GPUS_MAX];
}

void
stage_note_none(struct stage *stage, const uint8_t gpu[16], bool passes)
{
	uint32_t i = find_none(stage, gpu);
	int64_t now_ns = th_now_ns(), pause_ns = AGAIN_NS;
	struct no_slabs *none = i < GPUS_MAX ? &stage->none[i] : add_none(stage);
	if (i < GPUS_MAX && now_ns < none->until_ns)
		return; /* several legs have tried at once */
	if (i < GPUS_MAX && !passes)
		pause_ns = th_min_i64(2 * none->pause_ns, NONE_MAX_NS);
	*none = (struct no_slabs){.until_ns = now_ns + pause_ns, .pause_ns = pause_ns};
	memcpy(none->gpu, gpu, sizeof(none->gpu));
}

void
stage_note_some(struct stage *stage, const uint8_t gpu[16])
{
	uint32_t i = find_none(stage, gpu);
	if (i < GPUS_MAX)
		stage->none[i].pause_ns = 0;
}

bool
stage_had_none(const struct stage *stage, const uint8_t gpu[16])
{
	return find_none(stage, gpu) < GPUS_MAX;
}

/* Under the lock. */
static bool
may_be_on(const struct stage *stage, const uint8_t gpu[16])
{
	uint32_t i = find_none(stage, gpu);
	return i == GPUS_MAX || th_now_ns() >= stage->none[i].until_ns;
}

/* What a leg can do with an idle one. */
enum worth {
	WORTH_NOTHING, /* no rail that is up knows it, or will */
	WORTH_LITTLE,  /* some do not, for long: it is replaced where there is room */
	WORTH_MUCH,
	WORTH_ALL, /* the same, and GPUs reach it if they are to */
};

static enum worth
worth_of(const struct slab *slab, bool for_gpus, uint32_t usable, int64_t now_ns)
{
	uint32_t served = region_ready(slab->region) | region_waiting(slab->region);
	bool all = (served & usable) == usable;
	if (!all && (served & usable) == 0)
		return WORTH_NOTHING;
	if (!all && now_ns >= slab->made_ns + AGAIN_NS)
		return WORTH_LITTLE;
	return (slab->host != NULL) == for_gpus ? WORTH_ALL : WORTH_MUCH;
}

/* Under the lock. The best, of several the one that came last; NULL: there is none. ret_bad: one
 * that is to be retired in any case, or NULL. */
static struct slab *
find_idle(struct stage *stage, bool for_gpus, enum worth *ret_worth, struct slab **ret_bad)
{
	uint32_t usable = rdma_usable(stage->rdma);
	int64_t now_ns = th_now_ns();
	struct slab *slab, *best = NULL;
	*ret_worth = WORTH_NOTHING;
	*ret_bad = NULL;
	TAILQ_FOREACH(slab, &stage->idle, idle_entry)
	{
		enum worth worth = worth_of(slab, for_gpus, usable, now_ns);
		if (worth == WORTH_NOTHING)
			*ret_bad = slab;
		if (worth > *ret_worth) {
			*ret_worth = worth;
			best = slab;
		}
	}
	return best;
}

static void
run_wake(struct loop_task *task)
{
	struct stage *stage = loop_container(task, struct stage, wake_task);
	loop_tick_at(rdma_keeper(stage->rdma), 0);
}

/* Under the lock: of the budget. False: it is used up. */
static bool
stage_reserve(struct stage *stage)
{
	bool room = (stage->num_slabs + 1) * SLAB_BYTES <= stage->budget_bytes;
	TH_ASSERT(!stage->closed);
	stage->num_slabs += room;
	stage->num_in_use += room;
	return room;
}

/* What was reserved is this one, or nothing came of it (NULL). */
static void
settle_reserved(struct stage *stage, struct slab *slab)
{
	pthread_mutex_lock(&stage->lock);
	if (slab) {
		LIST_INSERT_HEAD(&stage->slabs, slab, entry);
		stage->num_on_gpus += slab->space != NULL;
	} else {
		stage->num_slabs--;
		stage->num_in_use--;
	}
	pthread_mutex_unlock(&stage->lock);
}

/* NULL: there is none just now. */
static struct slab *
take_on_gpu(struct stage *stage, const struct xfer_part *part, const uint8_t gpu[16])
{
	struct th_err err;
	struct slab *slab = NULL;
	pthread_mutex_lock(&stage->lock);
	bool may = may_be_on(stage, gpu) && stage_reserve(stage);
	pthread_mutex_unlock(&stage->lock);
	if (!may)
		return NULL;
	struct gpus *gpus = xfer_part_gpus(part, NULL);
	struct gpu_space *space =
		gpu_space_new_own(gpus, gpu, SLAB_BYTES, "a slab of rdma.stage", &err);
	if (space) {
		slab = slab_new_on_gpu(stage, gpus, space, gpu);
	} else {
		pthread_mutex_lock(&stage->lock);
		bool told = stage_had_none(stage, gpu);
		stage_note_none(stage, gpu, false);
		pthread_mutex_unlock(&stage->lock);
		slab_say_none(told, err.text);
	}
	settle_reserved(stage, slab);
	if (slab)
		slab_make(slab);
	return slab;
}

/* Under the lock. */
static void
use_idle(struct stage *stage, struct slab *slab)
{
	TAILQ_REMOVE(&stage->idle, slab, idle_entry);
	slab->is_idle = false;
	slab->users = 1;
	stage->num_in_use++;
}

/* Room is reserved. A new one, and then one that it replaces goes; where there is no memory for it,
 * what is idle serves as well as it can. NULL: there is none. */
static struct slab *
make_on_host(struct stage *stage, struct gpus *gpus)
{
	enum worth worth;
	struct slab *bad, *slab = slab_new(stage, gpus);
	struct known known = {0};
	settle_reserved(stage, slab);
	pthread_mutex_lock(&stage->lock);
	struct slab *idle = find_idle(stage, gpus, &worth, &bad);
	if (slab && worth == WORTH_LITTLE)
		known = slab_retire(idle);
	else if (!slab && idle)
		use_idle(stage, idle);
	pthread_mutex_unlock(&stage->lock);
	slab_let_go(known);
	return slab ? slab : idle;
}

/* NULL: there is no memory, or (ret_full) no budget. One that GPUs do not reach is no match for
 * them where another one may be made; a leg without GPUs is as well off with any. */
static struct slab *
take_on_host(struct stage *stage, struct gpus *gpus, bool *ret_full)
{
	enum worth worth;
	struct slab *bad;
	struct known known = {0};
	pthread_mutex_lock(&stage->lock);
	struct slab *slab = find_idle(stage, gpus, &worth, &bad);
	bool room = worth < (gpus ? WORTH_ALL : WORTH_MUCH) && stage_reserve(stage);
	if (bad)
		known = slab_retire(bad);
	if (slab && !room)
		use_idle(stage, slab);
	pthread_mutex_unlock(&stage->lock);
	slab_let_go(known);
	*ret_full = !slab && !room;
	return room ? make_on_host(stage, gpus) : slab;
}

static int
stage_refuse(struct stage *stage, bool full, struct th_err *err)
{
	char budget[TH_UNITS_BYTES];
	pthread_mutex_lock(&stage->lock);
	stage->num_refused++;
	pthread_mutex_unlock(&stage->lock);
	if (!full)
		return th_fail(err, TH_E_NO_PATH,
			"there is no memory for another slab of rdma.stage (32 MiB)");
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
stage_take(struct stage *stage, const struct xfer_part *part, struct th_err *err,
	struct slab **ret_slab)
{
	bool is_worth = part && xfer_part_table(part)->bytes >= SLAB_BYTES, full;
	const uint8_t *gpu = is_worth ? xfer_part_only_gpu(part) : NULL;
	TH_ASSERT(!crew_on_thread());
	struct slab *slab = gpu ? take_on_gpu(stage, part, gpu) : NULL;
	if (!slab)
		slab = take_on_host(stage, part ? xfer_part_gpus(part, NULL) : NULL, &full);
	if (!slab)
		return stage_refuse(stage, full, err);
	/* One on a GPU may become the host's, too. */
	loop_post(rdma_keeper(stage->rdma), &stage->wake_task);
	*ret_slab = slab;
	return 0;
}

/* ---- the pool ----------------------------------------------------------------------------- */

struct stage *
stage_new(struct rdma *rdma, uint64_t budget_bytes, int64_t idle_ns)
{
	struct stage *stage = th_calloc(1, sizeof(*stage));
	stage->rdma = rdma;
	stage->budget_bytes = budget_bytes;
	stage->idle_ns = idle_ns > 0 ? idle_ns : IDLE_NS;
	stage->wake_task.run = run_wake;
	LIST_INIT(&stage->slabs);
	TAILQ_INIT(&stage->idle);
	pthread_mutex_init(&stage->lock, NULL);
	return stage;
}

void
stage_set_near(struct stage *stage, uint32_t (*near)(void *arg, const uint8_t uuid[16]), void *arg)
{
	stage->near = near;
	stage->near_arg = arg;
}

int64_t
stage_tick(struct stage *stage, int64_t now_ns)
{
	for (;;) {
		pthread_mutex_lock(&stage->lock);
		struct slab *slab = TAILQ_LAST(&stage->idle, idle_slabs);
		if (stage->closed || !slab || now_ns < slab->idle_ns + stage->idle_ns)
			break;
		struct known known = slab_retire(slab);
		pthread_mutex_unlock(&stage->lock);
		slab_let_go(known);
	}
	bool any = !LIST_EMPTY(&stage->slabs) && !stage->closed;
	pthread_mutex_unlock(&stage->lock);
	return any ? now_ns + stage->idle_ns / LOOKS : INT64_MAX;
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
		struct known known = slab_retire(slab);
		pthread_mutex_unlock(&stage->lock);
		slab_let_go(known);
		pthread_mutex_lock(&stage->lock);
	}
	pthread_mutex_unlock(&stage->lock);
}

void
stage_destroy(struct stage *stage)
{
	pthread_mutex_destroy(&stage->lock);
	free(stage);
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
		stage_destroy(stage);
}

void
stage_status(struct stage *stage, struct stage_status *ret_status)
{
	pthread_mutex_lock(&stage->lock);
	*ret_status = (struct stage_status){.budget_bytes = stage->budget_bytes,
		.bytes = stage->num_slabs * SLAB_BYTES,
		.bytes_on_gpus = stage->num_on_gpus * SLAB_BYTES,
		.bytes_in_use = stage->num_in_use * SLAB_BYTES,
		.refused = stage->num_refused};
	pthread_mutex_unlock(&stage->lock);
}
