/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock_test - the clock is the monotonic one.
 */
#include "ipc/base/clock.h"

#include <criterion/criterion.h>
#include <time.h>

Test(clock, now__between_two_readings_of_the_system__lies_between)
{
	struct timespec before, after;

	clock_gettime(CLOCK_MONOTONIC, &before);
	int64_t now_ns = th_now_ns();
	clock_gettime(CLOCK_MONOTONIC, &after);
	cr_assert_geq(now_ns, (int64_t)before.tv_sec * 1000000000 + before.tv_nsec);
	cr_assert_leq(now_ns, (int64_t)after.tv_sec * 1000000000 + after.tv_nsec);
}
