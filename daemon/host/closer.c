/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closer - see closer.h.
 *
 * The threads are started when all that there are have something to do. They are never joined, so
 * what they share is not in struct host: one that waits in close() ends with the process.
 */
#include "daemon/host/closer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/host/launch.h"
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct entry *first, **last = &first; /* guarded by lock */
static uint32_t queued, closing, threads;    /* guarded by lock */

static void
close_entry(const struct entry *entry)
{
	static const struct linger no_linger = {0};
	/* No socket, mostly; nobody needs to wait for what one has not sent. */
	(void)setsockopt(entry->fd, SOL_SOCKET, SO_LINGER, &no_linger, sizeof(no_linger));
	(void)close(entry->fd); /* there is nobody who could do anything about a failure */
	if (!entry->closed)
		return;
	/* Its worker hears that nobody has it: a process that is just being started had a copy. */
	launch_await();
	entry->closed(entry->arg);
}

static void *
run(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!first)
			pthread_cond_wait(&work, &lock);
		struct entry *entry = first;
		first = entry->next;
		if (!first)
			last = &first;
		queued--;
		closing++;
		pthread_mutex_unlock(&lock);
		close_entry(entry);
		free(entry);
		pthread_mutex_lock(&lock);
		closing--;
	}
	return NULL;
}

/* True: somebody is there to close one more. */
static bool
start_thread(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	if (threads - closing > queued || threads == THREADS_MAX)
		return true;
	if (pthread_attr_init(&attributes) != 0)
		return threads > 0;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (pthread_create(&thread, &attributes, run, NULL) == 0) {
		pthread_setname_np(thread, "th-close"); /* it is there: it waits for the lock */
		threads++;
	}
	pthread_attr_destroy(&attributes);
	return threads > 0;
}

/* Once, under the lock: the first that waits has waited for long. */
static void
look_for_long(int64_t now_ns)
{
	static bool told;
	if (told || threads < THREADS_MAX || !first || now_ns - first->queued_ns < LONG_NS)
		return;
	told = true;
	log_warn("closer",
		"descriptors of workers take long to close threads=%u; no more are started",
		threads);
}

void
closer_close_then(int fd, void (*closed)(void *arg), void *arg)
{
	const struct entry own = {.queued_ns = th_now_ns(), .fd = fd, .closed = closed, .arg = arg};
	struct entry *entry = malloc(sizeof(*entry));
	pthread_mutex_lock(&lock);
	bool taken = entry && start_thread();
	look_for_long(own.queued_ns);
	if (taken) {
		*entry = own;
		*last = entry;
		last = &entry->next;
		queued++;
		pthread_cond_signal(&work);
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
closer_close(int fd)
{
	closer_close_then(fd, NULL, NULL);
}

uint64_t
closer_waiting(void)
{
	pthread_mutex_lock(&lock);
	uint64_t waiting = (uint64_t)queued + closing;
	pthread_mutex_unlock(&lock);
	return waiting;
}
