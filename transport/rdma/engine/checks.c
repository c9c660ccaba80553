/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checks - see checks.h.
 */
#include "transport/rdma/engine/checks.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "transport/part/sigbus.h"

#define THREADS_MAX 16u
#define NONE UINT32_MAX

TAILQ_HEAD(check_lists, check_list);

struct checks {
	pthread_mutex_t lock;
	pthread_cond_t wanted;
	struct check_lists lists; /* guarded: those with something to do, the next one first */
	bool ending;              /* guarded */
	pthread_t threads[THREADS_MAX];
	uint32_t num_threads;
};

/* Under the lock. */
static void
checks_enqueue(struct check_list *list)
{
	if (list->queued || list->head == NONE)
		return;
	list->queued = true;
	TAILQ_INSERT_TAIL(&list->checks->lists, list, entry);
	pthread_cond_signal(&list->checks->wanted);
}

/* Under the lock. */
static bool
checks_is_over(const struct check_list *list)
{
	return list->closing && list->busy == 0;
}

/* Under the lock, left for the check itself. */
static void
checks_work(struct checks *checks)
{
	struct check_list *list = TAILQ_FIRST(&checks->lists);
	TAILQ_REMOVE(&checks->lists, list, entry);
	list->queued = false;
	uint32_t chunk = list->head;
	uint8_t what = list->what[chunk];
	list->head = list->next[chunk];
	if (list->head == NONE)
		list->tail = NONE;
	checks_enqueue(list);
	list->busy++;
	pthread_mutex_unlock(&checks->lock);
	list->check(list, chunk, what);
	pthread_mutex_lock(&checks->lock);
	list->busy--;
	if (checks_is_over(list)) {
		pthread_mutex_unlock(&checks->lock);
		list->closed(list);
		pthread_mutex_lock(&checks->lock);
	}
}

static void *
checks_run(void *arg)
{
	struct checks *checks = arg;
	pthread_mutex_lock(&checks->lock);
	for (;;) {
		if (!TAILQ_EMPTY(&checks->lists))
			checks_work(checks);
		else if (checks->ending)
			break;
		else
			pthread_cond_wait(&checks->wanted, &checks->lock);
	}
	pthread_mutex_unlock(&checks->lock);
	return NULL;
}

int
checks_new(uint32_t threads, struct checks **ret_checks)
{
	struct checks *checks = th_calloc(1, sizeof(*checks));
	sigset_t all, before;
	int rc = 0;
	pthread_mutex_init(&checks->lock, NULL);
	pthread_cond_init(&checks->wanted, NULL);
	TAILQ_INIT(&checks->lists);
	sigbus_mask(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (uint32_t i = 0; i < th_min_u32(threads, THREADS_MAX) && rc == 0; i++) {
		char name[16];
		rc = -pthread_create(&checks->threads[i], NULL, checks_run, checks);
		if (rc < 0)
			break;
		checks->num_threads++;
		snprintf(name, sizeof(name), "th-check-%u", i);
		pthread_setname_np(checks->threads[i], name);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc < 0) {
		checks_free(checks);
		return rc;
	}
	*ret_checks = checks;
	return 0;
}

void
checks_free(struct checks *checks)
{
	if (!checks)
		return;
	pthread_mutex_lock(&checks->lock);
	TH_ASSERT(TAILQ_EMPTY(&checks->lists));
	checks->ending = true;
	pthread_cond_broadcast(&checks->wanted);
	pthread_mutex_unlock(&checks->lock);
	for (uint32_t i = 0; i < checks->num_threads; i++)
		pthread_join(checks->threads[i], NULL);
	pthread_cond_destroy(&checks->wanted);
	pthread_mutex_destroy(&checks->lock);
	free(checks);
}

/* ---- a leg's ------------------------------------------------------------------------------ */

int
check_list_init(struct check_list *list, struct checks *checks, uint32_t num_chunks)
{
	list->checks = checks;
	list->next = calloc(num_chunks, sizeof(list->next[0]));
	list->what = calloc(num_chunks, sizeof(list->what[0]));
	list->head = list->tail = NONE;
	list->busy = 0;
	list->queued = list->closing = false;
	if (list->next && list->what)
		return 0;
	check_list_fini(list);
	return -ENOMEM;
}

void
check_list_fini(struct check_list *list)
{
	free(list->next);
	free(list->what);
	list->next = NULL;
	list->what = NULL;
}

void
check_list_put(struct check_list *list, uint32_t chunk, uint8_t what)
{
	pthread_mutex_lock(&list->checks->lock);
	if (!list->closing) {
		list->what[chunk] = what;
		list->next[chunk] = NONE;
		if (list->tail == NONE)
			list->head = chunk;
		else
			list->next[list->tail] = chunk;
		list->tail = chunk;
		checks_enqueue(list);
	}
	pthread_mutex_unlock(&list->checks->lock);
}

void
check_list_close(struct check_list *list)
{
	struct checks *checks = list->checks;
	pthread_mutex_lock(&checks->lock);
	list->closing = true;
	if (list->queued)
		TAILQ_REMOVE(&checks->lists, list, entry);
	list->queued = false;
	list->head = list->tail = NONE;
	bool over = checks_is_over(list);
	pthread_mutex_unlock(&checks->lock);
	if (over)
		list->closed(list);
}

bool
check_list_busy(struct check_list *list)
{
	pthread_mutex_lock(&list->checks->lock);
	bool busy = list->head != NONE || list->busy > 0;
	pthread_mutex_unlock(&list->checks->lock);
	return busy;
}
