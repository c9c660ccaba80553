/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock - the one clock. For shells only: a core is told the time.
 */
#ifndef TH_IPC_BASE_CLOCK_H
#define TH_IPC_BASE_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in ns; the same for all processes of one boot. */
int64_t th_now_ns(void);

#endif
