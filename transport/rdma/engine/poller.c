/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poller - see poller.h. One turn: run what was posted, step the rail, and when nothing has
 * happened for long enough, sleep.
 *
 * Nothing is lost between looking for the last time and sleeping: the completion queue is armed
 * before that look, and who posts a task after it finds the sleeping flag set.
 */
#include "transport/rdma/engine/poller.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "transport/part/sigbus.h"
#include "transport/rdma/device/cpus.h"

struct poller {
	struct rail rail; /* the thread's, once it runs */
	struct verbs verbs;
	struct verbs_cq *cq; /* owns */
	struct loop *keeper; /* borrows */
	int cq_fd;           /* borrows */
	int wake_fd;         /* owns */
	int64_t idle_ns, spin_ns;
	bool yields; /* others want this core */
	char pci[VERBS_PCI_BYTES];
	bool stopping;
	pthread_t thread;
	pthread_mutex_t lock;
	struct loop_task *head, **tail; /* guarded by lock */
	bool pending;                   /* atomic: there are tasks; pairs with sleeping */
	bool sleeping;                  /* atomic: who posts writes to wake_fd */
	struct loop_task stop_task, lose_task;
	enum verbs_status lose_status;   /* guarded by lock */
	const char *lose_why;            /* guarded by lock */
	struct poller_counters counters; /* written by the thread only, read by any */
};

/* ---- tasks --------------------------------------------------------------------------------- */

static void
poller_post(void *arg, struct loop_task *task)
{
	struct poller *poller = arg;
	if (__atomic_exchange_n(&task->queued, true, __ATOMIC_ACQ_REL))
		return;
	task->next = NULL;
	pthread_mutex_lock(&poller->lock);
	*poller->tail = task;
	poller->tail = &task->next;
	__atomic_store_n(&poller->pending, true, __ATOMIC_SEQ_CST);
	bool wakes = __atomic_exchange_n(&poller->sleeping, false, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&poller->lock);
	if (wakes) {
		uint64_t one = 1;
		/* Fails only when the counter is full, and then the poller is awake anyway. */
		ssize_t written = write(poller->wake_fd, &one, sizeof(one));
		(void)written;
	}
}

/* Whether there were any. */
static bool
poller_run_tasks(struct poller *poller)
{
	if (!__atomic_load_n(&poller->pending, __ATOMIC_SEQ_CST))
		return false;
	pthread_mutex_lock(&poller->lock);
	struct loop_task *task = poller->head;
	poller->head = NULL;
	poller->tail = &poller->head;
	__atomic_store_n(&poller->pending, false, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&poller->lock);
	bool any = task != NULL;
	while (task) {
		struct loop_task *next = task->next;
		/* From here on it may be posted again: what it is to see was written before. */
		(void)__atomic_exchange_n(&task->queued, false, __ATOMIC_ACQ_REL);
		task->run(task);
		task = next;
	}
	return any;
}

/* ---- around the rail ----------------------------------------------------------------------- */

static int64_t
now_ns(void *arg)
{
	(void)arg;
	return th_now_ns();
}

/* On the keeper's thread. */
static void
poller_run_free(struct loop_task *task)
{
	struct lane *lane = loop_container(task, struct lane, free_task);
	const struct verbs_ops *ops = lane->rail->verbs.ops;
	for (uint32_t i = 0; i < lane->num_qps; i++) {
		int rc = ops->qp_free(lane->qps[i].qp);
		if (rc < 0)
			log_error("rdma", "a queue pair cannot be destroyed: %s", th_strerror(rc));
		/* The kernel frees all of a device that is gone. */
		if (rc < 0 && rc != -EIO && rc != -ENODEV)
			lane->stuck = true;
	}
	poller_post(lane->rail->arg, &lane->freed_task);
}

static void
poller_free_qps(void *arg, struct lane *lane)
{
	struct poller *poller = arg;
	lane->free_task.run = poller_run_free;
	loop_post(poller->keeper, &lane->free_task);
}

static const struct rail_around around = {
	.post = poller_post, .now_ns = now_ns, .free_qps = poller_free_qps};

/* ---- the thread ---------------------------------------------------------------------------- */

static void
relax(const struct poller *poller)
{
	if (poller->yields) {
		sched_yield();
		return;
	}
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void
poller_do_lose(struct poller *poller, const char *why)
{
	rail_lose(&poller->rail, VERBS_LOCAL, why);
}

static void
wait(struct poller *poller)
{
	struct rail *rail = &poller->rail;
	struct pollfd fds[] = {
		{.fd = poller->wake_fd, .events = POLLIN}, {.fd = poller->cq_fd, .events = POLLIN}};
	int64_t left_ns = INT64_MAX;
	if (rail_deadline(rail) != INT64_MAX)
		left_ns = th_max_i64(rail_deadline(rail) - th_now_ns(), 0);
	struct timespec left = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
	int got = ppoll(fds, rail->lost ? 1 : 2, left_ns == INT64_MAX ? NULL : &left, NULL);
	TH_ASSERT(got >= 0 || errno == EINTR);
	__atomic_store_n(&poller->sleeping, false, __ATOMIC_SEQ_CST);
	if (got <= 0)
		return;
	if (fds[0].revents) {
		uint64_t posts;
		ssize_t bytes = read(poller->wake_fd, &posts, sizeof(posts));
		(void)bytes; /* only empties the counter */
	}
	if (fds[1].revents & POLLIN)
		poller->verbs.ops->cq_quiet(poller->cq);
	else if (fds[1].revents)
		poller_do_lose(poller, "our device's completion channel failed");
}

static void
doze(struct poller *poller)
{
	struct rail *rail = &poller->rail;
	if (!rail->lost && poller->verbs.ops->cq_arm(poller->cq) < 0)
		poller_do_lose(poller, "our device's completion queue failed");
	__atomic_store_n(&poller->sleeping, true, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&poller->pending, __ATOMIC_SEQ_CST) || rail_step(rail, th_now_ns())) {
		__atomic_store_n(&poller->sleeping, false, __ATOMIC_SEQ_CST);
		return;
	}
	rail_count(&poller->counters.sleeps, 1);
	wait(poller);
}

/* To the processors near its device: what it polls is written there. Not where they are few. */
static void
move_near(const struct poller *poller)
{
	cpu_set_t near, allowed;
	if (!cpus_near(poller->pci, &near) || sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return;
	CPU_AND(&near, &near, &allowed);
	if (CPU_COUNT(&near) > POLLER_FEW_CORES && !CPU_EQUAL(&near, &allowed) &&
		sched_setaffinity(0, sizeof(near), &near) < 0)
		log_debug("rdma", "a poller stays where it is: %s", th_strerror(-errno));
}

static void *
poller_main(void *arg)
{
	struct poller *poller = arg;
	move_near(poller);
	int64_t active_ns = th_now_ns();
	while (!poller->stopping) {
		bool ran = poller_run_tasks(poller);
		int64_t step_ns = th_now_ns();
		rail_count(&poller->counters.steps, 1);
		if (rail_step(&poller->rail, step_ns) || ran) {
			active_ns = step_ns;
			continue;
		}
		int64_t patience_ns = poller->rail.out_reads ? poller->spin_ns : poller->idle_ns;
		if (step_ns - active_ns < patience_ns) {
			relax(poller);
			continue;
		}
		doze(poller);
		active_ns = th_now_ns();
	}
	/* What the keeper has destroyed is let go once the completion queue is empty. */
	while (poller->rail.gone) {
		poller_run_tasks(poller);
		rail_step(&poller->rail, th_now_ns());
	}
	return NULL;
}

static void
poller_run_stop(struct loop_task *task)
{
	loop_container(task, struct poller, stop_task)->stopping = true;
}

static void
run_lose(struct loop_task *task)
{
	struct poller *poller = loop_container(task, struct poller, lose_task);
	pthread_mutex_lock(&poller->lock);
	enum verbs_status status = poller->lose_status;
	const char *why = poller->lose_why;
	pthread_mutex_unlock(&poller->lock);
	rail_lose(&poller->rail, status, why);
}

/* ---- its life ------------------------------------------------------------------------------ */

static bool
has_few_cores(void)
{
	cpu_set_t cpus;
	return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 &&
	       CPU_COUNT(&cpus) <= POLLER_FEW_CORES;
}

static int
poller_start(struct poller *poller)
{
	/* Signals are the main thread's business. */
	sigset_t all, before;
	sigbus_mask(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = -pthread_create(&poller->thread, NULL, poller_main, poller);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int
poller_new(const struct poller_config *config, struct poller **ret_poller)
{
	const struct verbs_ops *ops = config->verbs.ops;
	bool few = has_few_cores();
	struct rail_config rail;
	struct verbs_info info;
	ops->info(config->device, &info);
	struct poller *poller = calloc(1, sizeof(*poller));
	if (!poller)
		return -ENOMEM;
	uint32_t cq_depth = config->cq_depth ? config->cq_depth : RAIL_CQ_DEPTH;
	cq_depth = th_min_u32(cq_depth, info.cq_depth_max);
	poller->verbs = config->verbs;
	poller->keeper = config->keeper;
	poller->tail = &poller->head;
	poller->stop_task.run = poller_run_stop;
	poller->lose_task.run = run_lose;
	poller->yields = few;
	memcpy(poller->pci, info.pci, sizeof(poller->pci));
	poller->idle_ns = config->idle_ns ? config->idle_ns : POLLER_IDLE_NS;
	poller->spin_ns = config->spin_ns ? config->spin_ns
			  : few           ? POLLER_SPIN_FEW_NS
					  : POLLER_SPIN_NS;
	poller->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int rc = poller->wake_fd < 0 ? -errno : 0;
	if (rc == 0)
		rc = ops->cq_new(config->device, cq_depth, &poller->cq);
	if (rc < 0)
		goto out_free;
	poller->cq_fd = ops->cq_fd(poller->cq);
	rail = (struct rail_config){
		.verbs = config->verbs,
		.cq = poller->cq,
		.cq_depth = cq_depth,
		.window_bytes = config->window_bytes,
		.slice_bytes = config->slice_bytes,
		.answer_ns = config->answer_ns,
		.around = &around,
		.arg = poller,
	};
	rail_init(&poller->rail, &rail);
	pthread_mutex_init(&poller->lock, NULL);
	rc = poller_start(poller);
	if (rc < 0)
		goto out_cq;
	pthread_setname_np(poller->thread, config->name);
	*ret_poller = poller;
	return 0;

out_cq:
	pthread_mutex_destroy(&poller->lock);
	ops->cq_free(poller->cq);
out_free:
	th_fd_close(&poller->wake_fd);
	free(poller);
	return rc;
}

void
poller_free(struct poller *poller)
{
	if (!poller)
		return;
	poller_post(poller, &poller->stop_task);
	pthread_join(poller->thread, NULL);
	TH_ASSERT(!poller->head);
	rail_fini(&poller->rail);
	poller->verbs.ops->cq_free(poller->cq);
	pthread_mutex_destroy(&poller->lock);
	th_fd_close(&poller->wake_fd);
	free(poller);
}

struct rail *
poller_rail(struct poller *poller)
{
	return &poller->rail;
}

struct verbs_cq *
poller_cq(const struct poller *poller)
{
	return poller->cq;
}

void
poller_lose(struct poller *poller, enum verbs_status status, const char *why)
{
	pthread_mutex_lock(&poller->lock);
	poller->lose_status = status;
	poller->lose_why = why;
	pthread_mutex_unlock(&poller->lock);
	poller_post(poller, &poller->lose_task);
}

void
poller_counters(const struct poller *poller, struct poller_counters *ret_counters)
{
	*ret_counters = (struct poller_counters){
		.sleeps = __atomic_load_n(&poller->counters.sleeps, __ATOMIC_RELAXED),
		.steps = __atomic_load_n(&poller->counters.steps, __ATOMIC_RELAXED),
	};
}
