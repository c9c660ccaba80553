/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answers - sends to the agent, at once or later.
 */
#include "transport/cuda/answers.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/alloc.h"

struct answer {
	struct answer *next;
	size_t bytes;
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

/* False: the socket is full. An agent that has gone is seen where messages are taken. */
static bool
give(const struct answers *answers, const void *message, size_t bytes)
{
	ssize_t sent;
	do
		sent = send(answers->sock, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent >= 0 || (errno != EAGAIN && errno != ENOBUFS);
}

void
answers_send(struct answers *answers, const void *message, size_t bytes)
{
	const uint64_t one = 1;
	pthread_mutex_lock(&answers->lock);
	if (!answers->first && give(answers, message, bytes)) {
		pthread_mutex_unlock(&answers->lock);
		return;
	}
	struct answer *answer = th_calloc(1, sizeof(*answer) + bytes);
	answer->bytes = bytes;
	memcpy(answer->message, message, bytes);
	*answers->last = answer;
	answers->last = &answer->next;
	answers->waiting++;
	pthread_mutex_unlock(&answers->lock);
	if (write(answers->wake_fd, &one, sizeof(one)) < 0)
		return; /* it counts to a number that nobody reaches: it is readable already */
}

void
answers_flush(struct answers *answers)
{
	pthread_mutex_lock(&answers->lock);
	while (answers->first && give(answers, answers->first->message, answers->first->bytes)) {
		struct answer *answer = answers->first;
		answers->first = answer->next;
		answers->waiting--;
		free(answer);
	}
	if (!answers->first)
		answers->last = &answers->first;
	pthread_mutex_unlock(&answers->lock);
}
