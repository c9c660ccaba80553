/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_closer - see fd_closer.h.
 *
 * The threads are started when all that there are have something to do. They are never joined, so
 * what they share is not in struct host: one that waits in close() ends with the process.
 */
#include "daemon/host/memory/fd_closer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/host/move/gpu_spawn.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"

#define THREADS_MAX 16
#define STACK_BYTES (64u << 10)
/* What waits for so long waits for closes that somebody holds up: hundreds are over sooner. */
#define LONG_NS INT64_C(2000000000)

struct entry {
	struct entry *next;
	int64_t queued_ns;
	int fd; /* owns */
	void (*closed)(void *arg);
	void *arg;
};

struct pool {
	const char *whose;
	bool told; /* guarded by lock: that it takes long */
	pthread_cond_t work;
	struct entry *first, **last;       /* guarded by lock */
	uint32_t queued, closing, threads; /* guarded by lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool strangers = {
	"workers", false, PTHREAD_COND_INITIALIZER, NULL, &strangers.first, 0, 0, 0};
static struct pool drivers = {
	"GPU drivers", false, PTHREAD_COND_INITIALIZER, NULL, &drivers.first, 0, 0, 0};

static void
close_entry(const struct entry *entry)
{
	static const struct linger no_linger = {0};
	/* No socket, mostly; nobody needs to wait for what one has not sent. */
	(void)setsockopt(entry->fd, SOL_SOCKET, SO_LINGER, &no_linger, sizeof(no_linger));
	(void)close(entry->fd); /* there is nobody who could do anything about a failure */
	if (!entry->closed)
		return;
	/* Its worker hears that nobody has it: a process that is just being started may have had a
	 * copy (gpu_spawn.h). */
	launch_await();
	entry->closed(entry->arg);
}

static void *
fd_closer_run(void *arg)
{
	struct pool *pool = arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!pool->first)
			pthread_cond_wait(&pool->work, &lock);
		struct entry *entry = pool->first;
		pool->first = entry->next;
		if (!pool->first)
			pool->last = &pool->first;
		pool->queued--;
		pool->closing++;
		pthread_mutex_unlock(&lock);
		close_entry(entry);
		free(entry);
		pthread_mutex_lock(&lock);
		pool->closing--;
	}
	return NULL;
}

/* True: somebody is there to close one more. */
static bool
fd_closer_start_thread(struct pool *pool)
{
	pthread_attr_t attributes;
	pthread_t thread;
	if (pool->threads - pool->closing > pool->queued || pool->threads == THREADS_MAX)
		return true;
	if (pthread_attr_init(&attributes) != 0)
		return pool->threads > 0;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (pthread_create(&thread, &attributes, fd_closer_run, pool) == 0) {
		pthread_setname_np(thread, "th-close"); /* it is there: it waits for the lock */
		pool->threads++;
	}
	pthread_attr_destroy(&attributes);
	return pool->threads > 0;
}

/* Once, under the lock: the first that waits has waited for long. */
static void
look_for_long(struct pool *pool, int64_t now_ns)
{
	if (pool->told || pool->threads < THREADS_MAX || !pool->first ||
		now_ns - pool->first->queued_ns < LONG_NS)
		return;
	pool->told = true;
	log_warn("closer", "descriptors of %s take long to close threads=%u; no more are started",
		pool->whose, pool->threads);
}

static void
close_in(struct pool *pool, int fd, void (*closed)(void *arg), void *arg)
{
	const struct entry own = {.queued_ns = th_now_ns(), .fd = fd, .closed = closed, .arg = arg};
	struct entry *entry = malloc(sizeof(*entry));
	pthread_mutex_lock(&lock);
	bool taken = entry && fd_closer_start_thread(pool);
	look_for_long(pool, own.queued_ns);
	if (taken) {
		*entry = own;
		*pool->last = entry;
		pool->last = &entry->next;
		pool->queued++;
		pthread_cond_signal(&pool->work);
	}
	pthread_mutex_unlock(&lock);
	if (!taken) {
		/* Kept open it would fill the table of descriptors, which stops the agent, too. */
		log_warn("closer", "no thread closes a worker's descriptor fd=%d", fd);
		free(entry);
		close_entry(&own);
	}
}

void
closer_close_drivers(int fd, void (*closed)(void *arg), void *arg)
{
	close_in(&drivers, fd, closed, arg);
}

void
closer_close(int fd)
{
	close_in(&strangers, fd, NULL, NULL);
}

uint64_t
closer_waiting(void)
{
	pthread_mutex_lock(&lock);
	uint64_t waiting =
		(uint64_t)strangers.queued + strangers.closing + drivers.queued + drivers.closing;
	pthread_mutex_unlock(&lock);
	return waiting;
}
