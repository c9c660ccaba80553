/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answers - what the process of a GPU says to the agent, in the order in which it says it.
 *
 * A message goes at once where the socket takes it; else it waits, and the process's own thread
 * sends it when there is room. Nobody waits for the agent here: it may be writing to us.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_ANSWERS_H
#define TH_TRANSPORT_CUDA_HELPER_ANSWERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct answer;

struct answers {
	int sock, wake_fd; /* borrow; wake_fd: an eventfd that the process's own thread polls */
	pthread_mutex_t lock;
	struct answer *first, **last; /* own */
	bool refused;                 /* the kernel had no room for the first one */
	_Atomic unsigned waiting;
};

void answers_init(struct answers *answers, int sock, int wake_fd);
/* Any thread. */
void answers_send(struct answers *answers, const void *message, size_t bytes);
/* With a descriptor, which is taken; -1: none. */
void answers_send_fd(struct answers *answers, const void *message, size_t bytes, int fd);
/*
 * What the process's own thread waits for before it flushes: POLLOUT is added to the events of the
 * socket, or nothing tells when, and so many ms are returned; -1: that is all. An answer that the
 * agent never gets is its to miss: it ends the process (gpus_config.hang_ns).
 */
int answers_wait(struct answers *answers, short *events);
void answers_flush(struct answers *answers);

#endif
