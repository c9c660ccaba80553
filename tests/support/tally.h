/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tally - counters that callbacks of other threads move, and a test that waits for them.
 */
#ifndef TH_TESTS_SUPPORT_TALLY_H
#define TH_TESTS_SUPPORT_TALLY_H

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define TALLY_PATIENCE_S 60

struct tally { /* guards the counters, which are their owner's */
	pthread_mutex_t lock;
	pthread_cond_t moved;
};

static inline void
tally_init(struct tally *tally)
{
	pthread_mutex_init(&tally->lock, NULL);
	pthread_cond_init(&tally->moved, NULL);
}

static inline void
tally_fini(struct tally *tally)
{
	pthread_cond_destroy(&tally->moved);
	pthread_mutex_destroy(&tally->lock);
}

static inline void
tally_add(struct tally *tally, uint32_t *counter)
{
	pthread_mutex_lock(&tally->lock);
	++*counter;
	pthread_cond_broadcast(&tally->moved);
	pthread_mutex_unlock(&tally->lock);
}

/* Until counter is at least count; fails the test when that takes too long. */
static inline void
tally_wait(struct tally *tally, const uint32_t *counter, uint32_t count)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += TALLY_PATIENCE_S;
	pthread_mutex_lock(&tally->lock);
	while (*counter < count)
		cr_assert_eq(pthread_cond_timedwait(&tally->moved, &tally->lock, &until), 0);
	pthread_mutex_unlock(&tally->lock);
}

#endif
