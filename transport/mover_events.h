/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover_events - what the movers have to tell the shell.
 *
 * Nodes are embedded in what they are about, so that an event can always be delivered: there is no
 * allocation that could fail. A node that is queued is not queued again; what it says is asked when
 * the shell takes it. Posting: any thread. Taking: the shell's.
 *
 * What can wait is posted to be taken soon: a shell that is woken for every chunk takes a processor
 * from the movers, measured as 8 % of a copy by two cores.
 */
#ifndef TH_TRANSPORT_MOVER_EVENTS_H
#define TH_TRANSPORT_MOVER_EVENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"

struct transport_event;

struct event_node {
	struct event_node *next;
	bool queued; /* guarded by the lock of the queue */
	/* On the shell's thread. False: there is nothing to say any more. May free the node's
	 * owner. */
	bool (*fill)(struct event_node *node, struct transport_event *ret_event);
};

struct events {
	pthread_mutex_t lock;
	struct event_node *head, **tail; /* guarded by lock */
	bool called, armed;              /* guarded by lock: the descriptor below it is set */
	int fd;                          /* owns: an epoll of the two, readable: take */
	int now_fd;                      /* owns: an eventfd */
	int soon_fd;                     /* owns: a timerfd */
};

TH_MUST_USE int events_init(struct events *events);
void events_fini(struct events *events);
void events_post(struct events *events, struct event_node *node);
/* The same, within 5 ms. */
void events_post_soon(struct events *events, struct event_node *node);
uint32_t events_take(struct events *events, struct transport_event *ret_events, uint32_t count);

#endif
