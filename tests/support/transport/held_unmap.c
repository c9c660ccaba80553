/* SPDX-License-Identifier: Apache-2.0 */
/*
 * held_unmap - see held_unmap.h.
 */
#include "tests/support/transport/held_unmap.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#define PATIENCE_S 30
#define CALLS 64u

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	size_t bytes; /* 0: nobody waits */
	uint32_t held;
	size_t refuse_from, refuse_to;
	int code;
	size_t calls[CALLS];
	uint32_t num_calls;
} hold = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);

int
__wrap_munmap(void *at, size_t bytes)
{
	pthread_mutex_lock(&hold.lock);
	hold.calls[hold.num_calls++ % CALLS] = bytes;
	if (hold.bytes != 0 && bytes >= hold.bytes) {
		hold.held++;
		pthread_cond_broadcast(&hold.changed);
		while (hold.bytes != 0)
			pthread_cond_wait(&hold.changed, &hold.lock);
		hold.held--;
	}
	int code = bytes >= hold.refuse_from && bytes < hold.refuse_to ? hold.code : 0;
	pthread_mutex_unlock(&hold.lock);
	if (code == 0)
		return __real_munmap(at, bytes);
	errno = code;
	return -1;
}

void
held_unmap_begin(size_t bytes)
{
	pthread_mutex_lock(&hold.lock);
	hold.bytes = bytes;
	pthread_mutex_unlock(&hold.lock);
}

bool
held_unmap_wait(uint32_t count)
{
	struct timespec until;
	int rc = 0;
	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&hold.lock);
	while (hold.held < count && rc == 0)
		rc = pthread_cond_timedwait(&hold.changed, &hold.lock, &until);
	bool there = hold.held >= count;
	pthread_mutex_unlock(&hold.lock);
	return there;
}

void
held_unmap_end(void)
{
	pthread_mutex_lock(&hold.lock);
	hold.bytes = 0;
	pthread_cond_broadcast(&hold.changed);
	pthread_mutex_unlock(&hold.lock);
}

void
held_unmap_refuse(size_t from, size_t to, int code)
{
	pthread_mutex_lock(&hold.lock);
	hold.refuse_from = from;
	hold.refuse_to = to;
	hold.code = code;
	pthread_mutex_unlock(&hold.lock);
}

uint32_t
held_unmap_calls(size_t bytes)
{
	uint32_t count = 0;
	pthread_mutex_lock(&hold.lock);
	for (uint32_t i = 0; i < hold.num_calls && i < CALLS; i++)
		count += hold.calls[i] >= bytes;
	pthread_mutex_unlock(&hold.lock);
	return count;
}

bool
held_unmap_is_mapped(const void *data)
{
	unsigned char there;
	return mincore((void *)(uintptr_t)data, 4096, &there) == 0;
}
