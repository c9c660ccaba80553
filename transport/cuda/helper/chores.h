/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chores - calls of the driver that may wait, away from the thread that takes messages.
 *
 * Opening a worker's memory takes the driver up to milliseconds, pinning staging memory longer, and
 * closing may wait for all that the GPU has been asked. A thread does chores in their order; the
 * owner collects what is over. It lives as long as the process.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_CHORES_H
#define TH_TRANSPORT_CUDA_HELPER_CHORES_H

#include <pthread.h>

#include "ipc/cuda/driver.h"

struct chore {
	struct chore *next; /* the thread's */
	void *arg;
	void (*work)(struct chore *chore); /* on the thread, the context current */
	void (*over)(struct chore *chore); /* on the owner's; may free the chore */
};

struct chores {
	const struct cuda *cuda; /* borrows */
	CUcontext context;
	int wake_fd; /* borrows: an eventfd that the owner polls */
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct chore *first, **last;           /* to do */
	struct chore *over_first, **over_last; /* to collect */
};

/* 0 or -errno: no thread. */
int chores_start(struct chores *chores, const struct cuda *cuda, CUcontext context, int wake_fd);
void chores_add(struct chores *chores, struct chore *chore);
/* Calls over for what is over, in the order of chores_add; true: for some. */
bool chores_collect(struct chores *chores);

#endif
