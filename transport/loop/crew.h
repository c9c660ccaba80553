/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew - threads that may be left behind.
 *
 * One that reads or writes a worker's memory can be stopped in the kernel by that worker for ever,
 * also beyond SIGKILL. Nobody joins these threads, nothing of the process hangs on one: what it
 * works on is its own or guarded by a lock that it does not hold meanwhile, and it has a table of
 * descriptors of its own with nothing in it but what it needs. So the process can end, and another
 * can have its sockets and its lock, while one is still stuck. Any thread.
 */
#ifndef TH_TRANSPORT_LOOP_CREW_H
#define TH_TRANSPORT_LOOP_CREW_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"

#define CREW_MAX 2048u

/*
 * run(arg) on a new thread that keeps the count descriptors in fds (sorted in here) open for
 * itself. fds belongs to the crew from then on, also after a failure. 0; TH_E_LIMIT: there are
 * CREW_MAX; or -errno.
 */
TH_MUST_USE int crew_start(void (*run)(void *arg), void *arg, int *fds, uint32_t count);
/* Whether this is such a thread: a descriptor that it closes stays open in the process. */
bool crew_on_thread(void);
uint32_t crew_count(void);
/* Until all threads have ended. False: not before the deadline. */
bool crew_wait(int64_t deadline_ns);

#endif
