/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop - the orderly end: SIGTERM or SIGINT, and at once at the second one.
 *
 * Nothing new is taken; the copies of this host are withdrawn, so that the server plans no more
 * readers for them; transfers that run may end; then the process goes. Main thread only.
 */
#ifndef TH_DAEMON_HOST_STOP_H
#define TH_DAEMON_HOST_STOP_H

#include <stdbool.h>
#include <stdint.h>

struct host;

void stop_signal(void *arg, int number); /* of the loop: arg is the host */
/* True when there is nothing left to wait for, or no time. */
bool stop_finished(struct host *host, int64_t now_ns);

#endif
