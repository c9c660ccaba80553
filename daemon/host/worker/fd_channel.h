/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_channel - the descriptor socket of one session: HELLO, OPEN, MEMORY, FORGET, CLOSE and the
 * answers.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_WORKER_FD_CHANNEL_H
#define TH_DAEMON_HOST_WORKER_FD_CHANNEL_H

#include <stdint.h>

#include "ipc/base/err.h"

struct host;
struct host_session;

/* Of the loop: arg is the session. */
void worker_readable(void *arg, uint32_t events);
void worker_ended(void *arg, uint32_t events);
/* Of the loop: somebody connects to agent.fds; arg is the host. */
void worker_connects(void *arg, uint32_t events);
/* Again, after the listener was paused because there were no descriptors left. */
void worker_resume_listener(struct host *host);
/* A descriptor kept for a word to who connects when there is no other. */
void worker_take_spare(struct host *host);

/* An OPEN has waited for a server that does not come. */
void worker_no_server(struct host_session *session);

/* What the core says. */
void worker_opened(struct host_session *session, int code, const char *text);
/* The session is over but for its close: every other call answers this. */
void worker_end(struct host_session *session, int code, const char *text);
void worker_closed(struct host_session *session, int code, const char *text);
void worker_say_closed(struct host_session *session, int code, const char *text);

#endif
