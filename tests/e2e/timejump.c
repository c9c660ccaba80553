/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timejump - put in front of a program with LD_PRELOAD: its wall clock jumps by a day, forwards
 * and back, twenty times a second. All other clocks are as they are.
 */
#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define DAY_S 86400
#define JUMP_NS 50000000

__attribute__((visibility("default"))) int
clock_gettime(clockid_t id, struct timespec *ret_now)
{
	struct timespec steady;
	long rc = syscall(SYS_clock_gettime, id, ret_now);

	if (rc != 0 || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
		return (int)rc;
	if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &steady) != 0)
		return -1;
	/* A day ahead, right, a day behind, and again. */
	long turn = steady.tv_sec * (1000000000 / JUMP_NS) + steady.tv_nsec / JUMP_NS;
	ret_now->tv_sec += (turn % 3 - 1) * DAY_S;
	return 0;
}

__attribute__((visibility("default"))) int
gettimeofday(struct timeval *restrict ret_now, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	*ret_now = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
	return 0;
}

__attribute__((visibility("default"))) time_t
time(time_t *ret_now)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return (time_t)-1;
	if (ret_now != NULL)
		*ret_now = now.tv_sec;
	return now.tv_sec;
}
