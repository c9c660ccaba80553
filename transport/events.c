/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events - see events.h.
 */
#include "transport/events.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "transport/transport.h"

int
events_init(struct events *events)
{
	*events = (struct events){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	if (events->fd < 0)
		return -errno;
	events->tail = &events->head;
	pthread_mutex_init(&events->lock, NULL);
	return 0;
}

static struct event_node *
take(struct events *events)
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
		ssize_t got = read(events->fd, &posts, sizeof(posts));
		(void)got;
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
	for (struct event_node *node = take(events); node; node = take(events))
		node->fill(node, &dropped);
	th_fd_close(&events->fd);
	pthread_mutex_destroy(&events->lock);
}

void
events_post(struct events *events, struct event_node *node)
{
	pthread_mutex_lock(&events->lock);
	bool was_empty = !events->head;
	if (!node->queued) {
		node->queued = true;
		node->next = NULL;
		*events->tail = node;
		events->tail = &node->next;
	}
	if (was_empty) {
		uint64_t one = 1;
		ssize_t written = write(events->fd, &one, sizeof(one));
		(void)written; /* fails only when the counter is full: readable all the same */
	}
	pthread_mutex_unlock(&events->lock);
}

uint32_t
events_take(struct events *events, struct transport_event *ret_events, uint32_t count)
{
	uint32_t taken = 0;
	while (taken < count) {
		struct event_node *node = take(events);
		if (!node)
			break;
		memset(&ret_events[taken], 0, sizeof(ret_events[taken]));
		if (node->fill(node, &ret_events[taken]))
			taken++;
	}
	return taken;
}
