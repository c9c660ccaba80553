/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma - see rdma.h.
 */
#include "transport/rdma/rdma.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/loop/mover_loop.h"
#include "transport/part/sigbus.h"
#include "transport/part/xfer_part.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/engine/checks.h"
#include "transport/rdma/engine/lane.h"
#include "transport/rdma/engine/poller.h"
#include "transport/rdma/engine/queue_setup.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/memory/region.h"
#include "transport/rdma/memory/stage.h"

#define SCRATCH_BYTES 4096u
#define GPU_THREADS 2u /* of checks: while one is woken, the other one has the GPU at work */
#define GPU_SETS_MAX 4u
#define REGIONS_POLL_NS 1000000
#define REGIONS_WAIT_NS INT64_C(10000000000)

LIST_HEAD(rdma_lanes, rdma_lane);

struct gpu_checks {
	struct th_hash set;    /* xfer_part_gpu_set */
	struct checks *checks; /* owns; NULL: not made */
};

struct rdma {
	struct rdma_config config;
	struct loop *keeper;
	struct setup *setup; /* NULL: there are no rails */
	struct rails *rails;
	/* Own; NULL: it could not be made, or its device is away. The keeper's, which changes it
	 * only while nobody holds the rail. */
	struct poller *pollers[RAILS_MAX];
	uint32_t polled; /* atomic mask: rails with a poller that is of use */
	struct paths *paths;
	struct checks *checks;
	/* Guarded: each made for its first leg. */
	struct gpu_checks one_gpu[GPUS_MAX], several_gpus[GPU_SETS_MAX];
	struct stage *stage; /* owns */
	void *scratch;       /* owns: mmap */
	struct region *scratch_region;
	pthread_mutex_t lock;
	struct rdma_lanes lanes;                /* guarded */
	struct rail_counters former[RAILS_MAX]; /* guarded: of pollers that went */
	struct loop_task pause_task;            /* the keeper waits until all is open */
	sem_t is_paused, is_open;
	bool ending; /* the keeper's: there is nothing to look at by the clock any more */
};

/* ---- what happens to rails ---------------------------------------------------------------- */

static void
break_lanes(
	struct rdma *rdma, uint32_t rail, uint32_t qpn, enum verbs_status status, const char *why)
{
	struct rdma_lane *lane;
	pthread_mutex_lock(&rdma->lock);
	LIST_FOREACH(lane, &rdma->lanes, entry)
	{
		bool same = qpn == 0 || lane->qpns[0] == qpn || lane->qpns[1] == qpn;
		if (lane->rail == rail && same)
			lane_break(lane->lane, status, why);
	}
	pthread_mutex_unlock(&rdma->lock);
}

static void
rdma_lose(struct rdma *rdma, uint32_t rail, enum verbs_status status, const char *why)
{
	uint32_t bit = UINT32_C(1) << rail;
	if (__atomic_fetch_and(&rdma->polled, ~bit, __ATOMIC_ACQUIRE) & bit)
		poller_lose(rdma->pollers[rail], status, why);
}

/* On the keeper's thread, as the next two. A changed address is as bad as a port that is down. */
static void
rdma_changed(void *arg, uint32_t rail)
{
	struct rdma *rdma = arg;
	struct rails *rails = rdma->rails;
	uint32_t bit = UINT32_C(1) << rail;
	if (!(rails_there(rails) & bit))
		rdma_lose(rdma, rail, VERBS_LOCAL, "our device is gone");
	else if (!(rails_up(rails) & bit))
		break_lanes(rdma, rail, 0, VERBS_LOCAL, "our port is down");
	else
		break_lanes(rdma, rail, 0, VERBS_LOCAL, "our port's address has changed");
}

static void
completions_lost(void *arg, uint32_t rail)
{
	rdma_lose(arg, rail, VERBS_LOCAL, "our completion queue overran");
}

static void
queue_failed(void *arg, uint32_t rail, uint32_t qpn)
{
	break_lanes(arg, rail, qpn, VERBS_OTHER, "a queue pair failed");
}

void
rdma_lane_add(struct rdma *rdma, struct rdma_lane *lane)
{
	pthread_mutex_lock(&rdma->lock);
	LIST_INSERT_HEAD(&rdma->lanes, lane, entry);
	pthread_mutex_unlock(&rdma->lock);
	/* What happened to the rail before is not told again. */
	if (!(rdma_usable(rdma) & (UINT32_C(1) << lane->rail)))
		lane_break(lane->lane, VERBS_LOCAL, "our port is down");
}

void
rdma_lane_remove(struct rdma *rdma, struct rdma_lane *lane)
{
	pthread_mutex_lock(&rdma->lock);
	LIST_REMOVE(lane, entry);
	pthread_mutex_unlock(&rdma->lock);
}

static int64_t
keeper_tick(void *arg, int64_t now_ns)
{
	struct rdma *rdma = arg;
	if (rdma->ending)
		return INT64_MAX;
	int64_t stage_ns = rdma->stage ? stage_tick(rdma->stage, now_ns) : INT64_MAX;
	return th_min_i64(stage_ns, rdma->rails ? rails_tick(rdma->rails, now_ns) : INT64_MAX);
}

/* ---- open --------------------------------------------------------------------------------- */

static int
open_scratch(struct rdma *rdma)
{
	void *data = mmap(
		NULL, SCRATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED)
		return -errno;
	struct region_memory memory = {.data = data, .dmabuf_fd = -1, .bytes = SCRATCH_BYTES};
	static const struct region_user nobody;
	rdma->scratch = data;
	rdma->scratch_region =
		region_new(rdma->rails, &memory, UINT32_MAX, VERBS_LOCAL_WRITE, &nobody);
	return 0;
}

static int
open_poller(struct rdma *rdma, uint32_t rail)
{
	char name[24];
	snprintf(name, sizeof(name), "th-rail-%u", rail);
	struct poller_config config = {.name = name,
		.verbs = rdma->config.verbs,
		.device = rail_device(rdma->rails, rail),
		.keeper = rdma->keeper,
		.window_bytes = rdma->config.window_bytes,
		.slice_bytes = rdma->config.slice_bytes,
		.answer_ns = rails_answer_ns(rdma->rails)};
	struct poller *poller;
	int rc = poller_new(&config, &poller);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&rdma->lock);
	rdma->pollers[rail] = poller;
	pthread_mutex_unlock(&rdma->lock);
	__atomic_fetch_or(&rdma->polled, UINT32_C(1) << rail, __ATOMIC_RELEASE);
	return 0;
}

static void
open_pollers(struct rdma *rdma)
{
	for (uint32_t i = 0; i < rails_count(rdma->rails); i++) {
		int rc = open_poller(rdma, i);
		if (rc < 0)
			log_warn("rdma", "a rail is of no use rail=%s why='%s'",
				rail_name(rdma->rails, i), th_strerror(rc));
	}
}

/* ---- a device that was lost (the keeper's thread) ----------------------------------------- */

static void
rdma_add_counters(struct rail_counters *sum, struct poller *poller)
{
	struct rail_counters counters;
	rail_counters(poller_rail(poller), &counters);
	rail_counters_add(sum, &counters);
}

/* The queue pairs of its lanes were freed on this thread before. */
static void
closing(void *arg, uint32_t rail)
{
	struct rdma *rdma = arg;
	__atomic_fetch_and(&rdma->polled, ~(UINT32_C(1) << rail), __ATOMIC_ACQ_REL);
	pthread_mutex_lock(&rdma->lock);
	struct poller *poller = rdma->pollers[rail];
	if (poller)
		rdma_add_counters(&rdma->former[rail], poller);
	rdma->pollers[rail] = NULL;
	pthread_mutex_unlock(&rdma->lock);
	poller_free(poller);
}

static int
rdma_opened(void *arg, uint32_t rail)
{
	return open_poller(arg, rail);
}

static uint32_t
choose_threads(void)
{
	cpu_set_t set;
	uint32_t cpus = 1;
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		cpus = (uint32_t)CPU_COUNT(&set);
	return cpus < 8 ? 2 : cpus < 32 ? 4 : 8;
}

static void
rdma_wait_for(sem_t *sem)
{
	while (sem_wait(sem) < 0)
		TH_ASSERT(errno == EINTR);
}

/* So nothing happens to rails and pollers that are not there yet. */
static void
run_pause(struct loop_task *task)
{
	struct rdma *rdma = loop_container(task, struct rdma, pause_task);
	sem_post(&rdma->is_paused);
	rdma_wait_for(&rdma->is_open);
}

int
rdma_open(const struct rdma_config *config, struct rdma **ret_rdma)
{
	struct rdma *rdma = th_calloc(1, sizeof(*rdma));
	struct rails_config standard = rails_config_default();
	const struct rails_user user = {.arg = rdma,
		.changed = rdma_changed,
		.completions_lost = completions_lost,
		.queue_failed = queue_failed,
		.closing = closing,
		.opened = rdma_opened};
	rdma->config = *config;
	rdma->config.rails = NULL;
	if (rdma->config.depth == 0)
		rdma->config.depth = LANE_DEPTH;
	rdma->config.depth = th_min_u32(rdma->config.depth, LANE_DEPTH_MAX);
	pthread_mutex_init(&rdma->lock, NULL);
	LIST_INIT(&rdma->lanes);
	sem_init(&rdma->is_paused, 0, 0);
	sem_init(&rdma->is_open, 0, 0);
	rdma->pause_task.run = run_pause;
	rdma->paths = paths_new();
	int rc = sigbus_install();
	if (rc == 0)
		rc = loop_new("th-rdma", LOOP_EPOLL, keeper_tick, rdma, &rdma->keeper);
	if (rc == 0) {
		loop_post(rdma->keeper, &rdma->pause_task);
		rdma_wait_for(&rdma->is_paused);
		rc = rails_new(config->verbs, config->rails ? config->rails : &standard,
			rdma->keeper, &user, &rdma->rails);
	}
	if (rc == 0 && rails_count(rdma->rails) > 0) {
		open_pollers(rdma);
		rc = open_scratch(rdma);
		if (rc == 0)
			rc = setup_new(&rdma->setup);
		uint64_t bytes = config->stage_bytes == 0               ? RDMA_STAGE_BYTES
				 : config->stage_bytes == RDMA_NO_STAGE ? 0
									: config->stage_bytes;
		rdma->stage = stage_new(rdma, bytes, config->stage_idle_ns);
	}
	if (rc == 0)
		rc = checks_new(config->check_threads ? config->check_threads : choose_threads(),
			&rdma->checks);
	sem_post(&rdma->is_open);
	if (rc < 0) {
		rdma_close(rdma);
		return rc;
	}
	*ret_rdma = rdma;
	return 0;
}

/* ---- close -------------------------------------------------------------------------------- */

struct barrier {
	struct loop_task task;
	struct rdma *rdma;
	sem_t done;
};

static void
run_barrier(struct loop_task *task)
{
	struct barrier *barrier = loop_container(task, struct barrier, task);
	barrier->rdma->ending = true;
	sem_post(&barrier->done);
}

/* What was posted to the keeper by now has run: the queue pairs of the last lanes are freed. Its
 * clock stands still from now on. */
static void
drain_keeper(struct rdma *rdma)
{
	struct barrier barrier = {.task.run = run_barrier, .rdma = rdma};
	sem_init(&barrier.done, 0, 0);
	loop_post(rdma->keeper, &barrier.task);
	while (sem_wait(&barrier.done) < 0 && errno == EINTR)
		continue;
	sem_destroy(&barrier.done);
}

/* Deregistering takes its time. False: somebody has not released his. */
static bool
wait_for_regions(struct rdma *rdma)
{
	int64_t until_ns = th_now_ns() + REGIONS_WAIT_NS;
	while (rails_regions(rdma->rails) > 0 && th_now_ns() < until_ns)
		(void)nanosleep(&(struct timespec){.tv_nsec = REGIONS_POLL_NS}, NULL);
	return rails_regions(rdma->rails) == 0;
}

void
rdma_close(struct rdma *rdma)
{
	if (!rdma)
		return;
	TH_ASSERT(LIST_EMPTY(&rdma->lanes));
	checks_free(rdma->checks);
	for (uint32_t i = 0; i < GPUS_MAX; i++)
		checks_free(rdma->one_gpu[i].checks);
	for (uint32_t i = 0; i < GPU_SETS_MAX; i++)
		checks_free(rdma->several_gpus[i].checks);
	setup_free(rdma->setup);
	if (rdma->rails)
		rails_stop(rdma->rails); /* no poller comes or goes from now on */
	region_release(rdma->scratch_region);
	stage_close(rdma->stage);
	if (rdma->rails && !wait_for_regions(rdma)) {
		log_error("rdma", "memory is still registered at the end: left to the kernel");
		return;
	}
	if (rdma->keeper)
		drain_keeper(rdma);
	for (uint32_t i = 0; i < RAILS_MAX; i++) {
		if (rdma->pollers[i])
			poller_free(rdma->pollers[i]);
	}
	if (rdma->rails)
		rails_free(rdma->rails);
	if (rdma->keeper)
		loop_free(rdma->keeper);
	stage_free(rdma->stage);
	if (rdma->scratch)
		munmap(rdma->scratch, SCRATCH_BYTES);
	paths_free(rdma->paths);
	sem_destroy(&rdma->is_paused);
	sem_destroy(&rdma->is_open);
	pthread_mutex_destroy(&rdma->lock);
	free(rdma);
}

/* ---- what there is ------------------------------------------------------------------------ */

const struct rdma_config *
rdma_settings(const struct rdma *rdma)
{
	return &rdma->config;
}

struct loop *
rdma_keeper(const struct rdma *rdma)
{
	return rdma->keeper;
}

struct setup *
rdma_setup(const struct rdma *rdma)
{
	return rdma->setup;
}

struct rails *
rdma_rails(const struct rdma *rdma)
{
	return rdma->rails;
}

struct poller *
rdma_poller(const struct rdma *rdma, uint32_t rail)
{
	return rdma->pollers[rail];
}

void
rdma_rail_counters(struct rdma *rdma, uint32_t rail, struct rail_counters *ret_counters)
{
	pthread_mutex_lock(&rdma->lock);
	*ret_counters = rdma->former[rail];
	if (rdma->pollers[rail])
		rdma_add_counters(ret_counters, rdma->pollers[rail]);
	pthread_mutex_unlock(&rdma->lock);
}

struct paths *
rdma_paths(const struct rdma *rdma)
{
	return rdma->paths;
}

/* Under the lock. The ones of these GPUs, else the first free ones, else the last. */
static struct gpu_checks *
find_checks(struct gpu_checks *all, uint32_t count, struct th_hash set)
{
	uint32_t i = 0;
	while (i < count - 1 && all[i].checks && !th_hash_equal(all[i].set, set))
		i++;
	if (!all[i].checks)
		all[i].set = set;
	return &all[i];
}

struct checks *
rdma_checks(struct rdma *rdma, const struct xfer_part *part)
{
	struct th_hash set;
	uint32_t count = xfer_part_gpu_set(part, &set);
	if (count == 0)
		return rdma->checks;
	pthread_mutex_lock(&rdma->lock);
	struct gpu_checks *own = count == 1 ? find_checks(rdma->one_gpu, GPUS_MAX, set)
					    : find_checks(rdma->several_gpus, GPU_SETS_MAX, set);
	if (!own->checks && checks_new(GPU_THREADS * count, &own->checks) < 0)
		own->checks = NULL; /* another leg may find room for them */
	struct checks *checks = own->checks ? own->checks : rdma->checks;
	pthread_mutex_unlock(&rdma->lock);
	return checks;
}

struct stage *
rdma_stage(const struct rdma *rdma)
{
	return rdma->stage;
}

uint32_t
rdma_usable(const struct rdma *rdma)
{
	uint32_t polled = __atomic_load_n(&rdma->polled, __ATOMIC_RELAXED);
	return polled == 0 ? 0 : polled & rails_up(rdma->rails);
}

bool
rdma_scratch(const struct rdma *rdma, uint32_t rail, struct region_key *ret_key)
{
	return rdma->scratch_region && region_mr(rdma->scratch_region, rail, 0, ret_key);
}
