/* SPDX-License-Identifier: Apache-2.0 */
/*
 * orderly_end - the orderly end: SIGTERM or SIGINT, and at once at the second one.
 *
 * Nothing new is taken, and the core asks the server what must not be lost; what runs may end, and
 * the last copies of retained versions move to other hosts; then the sessions are closed and the
 * process goes. What is left behind when the time is over is said. Main thread only.
 */
#ifndef TH_DAEMON_HOST_ORDERLY_END_H
#define TH_DAEMON_HOST_ORDERLY_END_H

#include <stdbool.h>
#include <stdint.h>

struct agent_action;
struct host;

void stop_signal(void *arg, int number); /* of the loop: arg is the host */
/* The core waits for nothing more, or has no time left. */
/* What it still waits for, for the log. */
void stop_stays(const struct agent_action *action);
void stop_left(struct host *host, const struct agent_action *action);
/* True when there is nothing left to wait for, or no time. */
bool stop_finished(struct host *host, int64_t now_ns);
/* Of the process. */
int stop_exit_status(const struct host *host);

#endif
