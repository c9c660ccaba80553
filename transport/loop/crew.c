/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew - see crew.h. What the threads share is static: one that is stuck outlives all else.
 */
#include "transport/loop/crew.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/stranger_fd.h"
#include "transport/part/sigbus.h"

#define STACK_BYTES (256u << 10)

struct start {
	void (*run)(void *arg);
	void *arg;
	int *fds; /* owns */
	uint32_t count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static uint32_t running; /* guarded by lock */
static __thread bool on_thread;

static void *
crew_main(void *arg)
{
	struct start start = *(struct start *)arg;
	free(arg);
	on_thread = true;
	pthread_setname_np(pthread_self(), "th-crew");
	stranger_bare_keep(start.fds, start.count);
	free(start.fds);
	start.run(start.arg);
	pthread_mutex_lock(&lock);
	running--;
	pthread_cond_broadcast(&ended);
	pthread_mutex_unlock(&lock);
	return NULL;
}

static bool
crew_reserve(void)
{
	pthread_mutex_lock(&lock);
	bool room = running < CREW_MAX;
	running += room;
	pthread_mutex_unlock(&lock);
	return room;
}

static void
unreserve(void)
{
	pthread_mutex_lock(&lock);
	running--;
	pthread_mutex_unlock(&lock);
}

int
crew_start(void (*run)(void *arg), void *arg, int *fds, uint32_t count)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t mask, before;
	struct start *start = malloc(sizeof(*start));
	if (!start || !crew_reserve()) {
		free(fds);
		free(start);
		return start ? TH_E_LIMIT : -ENOMEM;
	}
	*start = (struct start){.run = run, .arg = arg, .fds = fds, .count = count};
	sigbus_mask(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, &before);
	int rc = pthread_attr_init(&attributes);
	if (rc == 0) {
		pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attributes, STACK_BYTES);
		rc = pthread_create(&thread, &attributes, crew_main, start);
		pthread_attr_destroy(&attributes);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0) {
		unreserve();
		free(fds);
		free(start);
	}
	return -rc;
}

bool
crew_on_thread(void)
{
	return on_thread;
}

uint32_t
crew_count(void)
{
	pthread_mutex_lock(&lock);
	uint32_t count = running;
	pthread_mutex_unlock(&lock);
	return count;
}

bool
crew_wait(int64_t deadline_ns)
{
	bool late = false;
	pthread_mutex_lock(&lock);
	while (running > 0 && !late) {
		struct timespec until;
		int64_t left_ns = deadline_ns - th_now_ns();
		clock_gettime(CLOCK_REALTIME, &until);
		int64_t at_ns = until.tv_nsec + (left_ns > 0 ? left_ns : 0);
		until.tv_sec += at_ns / 1000000000;
		until.tv_nsec = at_ns % 1000000000;
		late = left_ns <= 0;
		if (!late)
			(void)pthread_cond_timedwait(&ended, &lock, &until);
	}
	bool all = running == 0;
	pthread_mutex_unlock(&lock);
	return all;
}
