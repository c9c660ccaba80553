/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_channel - the rings of all sessions: submissions in, completions, progress and the line out.
 *
 * One worker can fill its ring without end, so a ring with more to say waits in a queue and each
 * wake-up takes a bounded number of submissions, a few of each ring in turn. Main thread only.
 */
#ifndef TH_DAEMON_HOST_WORKER_RING_CHANNEL_H
#define TH_DAEMON_HOST_WORKER_RING_CHANNEL_H

#include <stdint.h>

#include "daemon/core/agent_core.h"

struct host;
struct host_session;
struct tensors;
struct th_err;

/* Of the loop: the worker rang. arg is the session. */
void operations_rung(void *arg, uint32_t events);
void operations_enqueue(struct host_session *session); /* there may be submissions: look in turn */
void operations_unqueue(struct host_session *session);
/* Takes submissions of the rings in the queue; true when more wait. */
bool operations_run(struct host *host);

/* The end of the operation in a slot, as the core or the shell says. */
void operations_complete(struct host_session *session, const struct agent_action *action);
/* Of the operation that the worker waits for: what it follows has no slot. */
void operations_progress(struct host_session *session, uint64_t done_bytes, uint64_t total_bytes);
/* What is touched first is paid for: by the worker, before this agent comes. 0, or a code. */
int operations_has_pages(const struct tensors *tensors, bool destination, struct th_err *err);

void operations_start_line(struct host_session *session);
void operations_line(struct host_session *session, const struct agent_line *line);
void operations_heartbeat(struct host *host, int64_t now_ns); /* in the lines of all sessions */

#endif
