/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover_events - see mover_events.h.
 */
#include "transport/mover_events.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "transport/transport.h"

#define SOON_NS 5000000l

/* What to arm it with, or to disarm it, which also forgets that it has fired. */
static const struct itimerspec soon = {.it_value.tv_nsec = SOON_NS}, never;

static int
mover_events_watch(struct events *events, int fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	if (fd < 0 || epoll_ctl(events->fd, EPOLL_CTL_ADD, fd, &event) < 0)
		return -errno;
	return 0;
}

int
events_init(struct events *events)
{
	*events = (struct events){.now_fd = -1, .soon_fd = -1};
	events->tail = &events->head;
	pthread_mutex_init(&events->lock, NULL);
	events->fd = epoll_create1(EPOLL_CLOEXEC);
	if (events->fd < 0)
		return -errno;
	events->now_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int rc = mover_events_watch(events, events->now_fd);
	if (rc < 0)
		return rc;
	events->soon_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	return mover_events_watch(events, events->soon_fd);
}

static struct event_node *
mover_events_take(struct events *events)
{
	pthread_mutex_lock(&events->lock);
	struct event_node *node = events->head;
	if (node) {
		events->head = node->next;
		if (!events->head)
			events->tail = &events->head;
		node->queued = false;
	} else {
		/*
		 * Under the lock: an event posted after this makes the descriptor readable again.
		 */
		uint64_t posts;
		if (events->called) {
			ssize_t got = read(events->now_fd, &posts, sizeof(posts));
			(void)got;
		}
		if (events->armed)
			(void)timerfd_settime(events->soon_fd, 0, &never, NULL);
		events->called = events->armed = false;
	}
	pthread_mutex_unlock(&events->lock);
	return node;
}

void
events_fini(struct events *events)
{
	if (events->fd < 0)
		return;
	struct transport_event dropped;
	for (struct event_node *node = mover_events_take(events); node;
		node = mover_events_take(events))
		node->fill(node, &dropped);
	th_fd_close(&events->soon_fd);
	th_fd_close(&events->now_fd);
	th_fd_close(&events->fd);
	pthread_mutex_destroy(&events->lock);
}

/* Under the lock. */
static void
mover_events_add(struct events *events, struct event_node *node)
{
	if (node->queued)
		return;
	node->queued = true;
	node->next = NULL;
	*events->tail = node;
	events->tail = &node->next;
}

void
events_post(struct events *events, struct event_node *node)
{
	pthread_mutex_lock(&events->lock);
	mover_events_add(events, node);
	if (!events->called) {
		uint64_t one = 1;
		ssize_t written = write(events->now_fd, &one, sizeof(one));
		(void)written; /* fails only when the counter is full: readable all the same */
		events->called = true;
	}
	pthread_mutex_unlock(&events->lock);
}

void
events_post_soon(struct events *events, struct event_node *node)
{
	pthread_mutex_lock(&events->lock);
	mover_events_add(events, node);
	if (!events->called && !events->armed) {
		(void)timerfd_settime(events->soon_fd, 0, &soon, NULL);
		events->armed = true;
	}
	pthread_mutex_unlock(&events->lock);
}

uint32_t
events_take(struct events *events, struct transport_event *ret_events, uint32_t count)
{
	uint32_t taken = 0;
	while (taken < count) {
		struct event_node *node = mover_events_take(events);
		if (!node)
			break;
		memset(&ret_events[taken], 0, sizeof(ret_events[taken]));
		if (node->fill(node, &ret_events[taken]))
			taken++;
	}
	return taken;
}
