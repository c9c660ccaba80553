/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answers - sends to the agent, at once or later.
 */
#include "transport/cuda/helper/answers.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/fd.h"
#include "transport/cuda/gpu_wire.h"

#define PAUSE_MS 10

struct answer {
	struct answer *next;
	size_t bytes;
	int fd; /* owns, or -1 */
	unsigned char message[];
};

void
answers_init(struct answers *answers, int sock, int wake_fd)
{
	memset(answers, 0, sizeof(*answers));
	answers->sock = sock;
	answers->wake_fd = wake_fd;
	answers->last = &answers->first;
	pthread_mutex_init(&answers->lock, NULL);
}

/* Under the lock. False: later. An agent that has gone is seen where messages are taken. */
static bool
answers_give(struct answers *answers, const void *message, size_t bytes, int fd)
{
	int rc = wire_send(answers->sock, message, bytes, fd);
	answers->refused = rc == -ENOBUFS;
	return rc != -EAGAIN && rc != -ENOBUFS;
}

void
answers_send(struct answers *answers, const void *message, size_t bytes)
{
	answers_send_fd(answers, message, bytes, -1);
}

void
answers_send_fd(struct answers *answers, const void *message, size_t bytes, int fd)
{
	const uint64_t one = 1;
	pthread_mutex_lock(&answers->lock);
	if (!answers->first && answers_give(answers, message, bytes, fd)) {
		pthread_mutex_unlock(&answers->lock);
		th_fd_close(&fd);
		return;
	}
	struct answer *answer = th_calloc(1, sizeof(*answer) + bytes);
	answer->bytes = bytes;
	answer->fd = fd;
	memcpy(answer->message, message, bytes);
	*answers->last = answer;
	answers->last = &answer->next;
	answers->waiting++;
	pthread_mutex_unlock(&answers->lock);
	if (write(answers->wake_fd, &one, sizeof(one)) < 0)
		return; /* it counts to a number that nobody reaches: it is readable already */
}

int
answers_wait(struct answers *answers, short *events)
{
	pthread_mutex_lock(&answers->lock);
	bool waits = answers->first != NULL, refused = answers->refused;
	pthread_mutex_unlock(&answers->lock);
	if (!waits)
		return -1;
	if (refused) /* the socket has room all the same */
		return PAUSE_MS;
	*events |= POLLOUT;
	return -1;
}

void
answers_flush(struct answers *answers)
{
	pthread_mutex_lock(&answers->lock);
	while (answers->first && answers_give(answers, answers->first->message,
					 answers->first->bytes, answers->first->fd)) {
		struct answer *answer = answers->first;
		answers->first = answer->next;
		answers->waiting--;
		th_fd_close(&answer->fd);
		free(answer);
	}
	if (!answers->first)
		answers->last = &answers->first;
	pthread_mutex_unlock(&answers->lock);
}
