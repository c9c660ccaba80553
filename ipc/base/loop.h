/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop - a daemon's main loop: waits for descriptors, signals and one moment in time, and calls who
 * is responsible.
 *
 * A source is embedded in what it belongs to. It may be removed while a batch is dispatched, also
 * by another source's function; its memory must stay until loop_wait returns. Main thread only.
 */
#ifndef TH_IPC_BASE_LOOP_H
#define TH_IPC_BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"

struct loop_source {
	int fd; /* borrows; -1: not in the loop */
	void (*ready)(void *arg, uint32_t events);
	void *arg;
};

struct event_loop {
	int epoll_fd, timer_fd, signal_fd; /* owns */
	struct loop_source timer, signals;
	int64_t armed_ns; /* the timer goes off then; INT64_MAX: not set */
	void (*on_signal)(void *arg, int number);
	void *arg;
};

/*
 * Blocks SIGTERM, SIGINT and SIGHUP for this thread and those it will start; they come to
 * on_signal.
 */
TH_MUST_USE int loop_open(struct event_loop *loop, void (*on_signal)(void *arg, int number),
	void *arg, struct th_err *err);
void loop_close(struct event_loop *loop);

/* 0 or -errno. events: of epoll, level triggered. */
TH_MUST_USE int loop_add(struct event_loop *loop, struct loop_source *source, int fd,
	uint32_t events, void (*ready)(void *arg, uint32_t events), void *arg);
void loop_remove(struct event_loop *loop, struct loop_source *source); /* harmless when not in it */

/* loop_wait returns no later than this (INT64_MAX: no limit). */
void loop_arm(struct event_loop *loop, int64_t at_ns);
/* Waits (not when busy), then calls every ready source once. */
void loop_wait(struct event_loop *loop, bool busy);

#endif
