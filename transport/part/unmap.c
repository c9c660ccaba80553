/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unmap - see unmap.h. The thread ends when the queue is empty; the next mapping starts another.
 */
#include "transport/part/unmap.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "ipc/base/err.h"
#include "ipc/base/log.h"

/* The kernel keeps others from mapping for as long as one takes: a few milliseconds. */
#define SLICE_BYTES ((size_t)256 << 20)
#define STACK_BYTES ((size_t)128 << 10)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct unmap *first, **last = &first; /* guarded by lock */
static bool running;                         /* guarded by lock: the thread looks here again */

/* True: some of it is left. */
static bool
slice(struct unmap *unmap)
{
	size_t bytes = unmap->bytes < SLICE_BYTES ? unmap->bytes : SLICE_BYTES;
	int rc = munmap(unmap->map, bytes);
	if (rc < 0 && bytes < unmap->bytes) {
		/* Its pages are larger than a slice; then there are not many. */
		bytes = unmap->bytes;
		rc = munmap(unmap->map, bytes);
	}
	if (rc < 0) {
		log_error("memory", "munmap of %zu bytes: %s: they stay mapped", bytes,
			th_strerror(-errno));
		return false;
	}
	unmap->map += bytes;
	unmap->bytes -= bytes;
	if (unmap->bytes > 0)
		return true;
	if (unmap->done)
		unmap->done(unmap->arg);
	return false;
}

/* Under the lock. */
static void
unmap_append(struct unmap *unmap)
{
	unmap->next = NULL;
	*last = unmap;
	last = &unmap->next;
}

static void *
unmap_run(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	while (first) {
		struct unmap *unmap = first;
		first = unmap->next;
		if (!first)
			last = &first;
		pthread_mutex_unlock(&lock);
		bool more = slice(unmap);
		pthread_mutex_lock(&lock);
		if (more)
			unmap_append(unmap);
	}
	running = false;
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* Under the lock. */
static bool
unmap_start_thread(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	if (pthread_attr_init(&attributes) != 0)
		return false;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	int rc = pthread_create(&thread, &attributes, unmap_run, NULL);
	pthread_attr_destroy(&attributes);
	if (rc != 0)
		return false;
	pthread_setname_np(thread, "th-unmap"); /* it is there: it waits for the lock */
	return true;
}

void
unmap_start(struct unmap *unmap, void *map, size_t bytes, void (*done)(void *arg), void *arg)
{
	bool away = bytes >= UNMAP_AWAY_BYTES;
	*unmap = (struct unmap){.map = map, .bytes = bytes, .done = done, .arg = arg};
	if (away) {
		pthread_mutex_lock(&lock);
		if (!running)
			running = unmap_start_thread();
		away = running;
		if (away)
			unmap_append(unmap);
		pthread_mutex_unlock(&lock);
		if (!away)
			log_warn("memory", "no thread unmaps %zu bytes: others wait for it", bytes);
	}
	while (!away && slice(unmap))
		continue;
}

void
unmap_here(void *map, size_t bytes)
{
	struct unmap unmap = {.map = map, .bytes = bytes};
	while (slice(&unmap))
		continue;
}
