/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock - see clock.h. CLOCK_MONOTONIC stands still while the machine is suspended: a suspended
 * host has not been silent, it was not there. Any thread.
 */
#include "ipc/base/clock.h"

#include <time.h>

#include "ipc/base/assert.h"

int64_t
th_now_ns(void)
{
	struct timespec now;

	/* Cannot fail for this clock and a valid pointer. */
	TH_ASSERT(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
