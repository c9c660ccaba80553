/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chores - a thread for the driver's slow calls.
 */
#include "transport/cuda/helper/chores.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static void
chores_put(struct chore ***last, struct chore *chore)
{
	chore->next = NULL;
	**last = chore;
	*last = &chore->next;
}

static void *
chores_run(void *arg)
{
	struct chores *chores = arg;
	const uint64_t one = 1;
	/* Where it fails so does each chore's first call. */
	chores->cuda->cuCtxSetCurrent(chores->context);
	pthread_mutex_lock(&chores->lock);
	for (;;) {
		struct chore *chore = chores->first;
		if (!chore) {
			pthread_cond_wait(&chores->more, &chores->lock);
			continue;
		}
		chores->first = chore->next;
		if (!chores->first)
			chores->last = &chores->first;
		pthread_mutex_unlock(&chores->lock);
		chore->work(chore);
		pthread_mutex_lock(&chores->lock);
		chores_put(&chores->over_last, chore);
		if (write(chores->wake_fd, &one, sizeof(one)) < 0)
			continue; /* it is readable already */
	}
	return NULL;
}

int
chores_start(struct chores *chores, const struct cuda *cuda, CUcontext context, int wake_fd)
{
	pthread_t thread;
	sigset_t all, before;
	memset(chores, 0, sizeof(*chores));
	chores->cuda = cuda;
	chores->context = context;
	chores->wake_fd = wake_fd;
	chores->last = &chores->first;
	chores->over_last = &chores->over_first;
	pthread_mutex_init(&chores->lock, NULL);
	pthread_cond_init(&chores->more, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = pthread_create(&thread, NULL, chores_run, chores);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc == 0)
		pthread_detach(thread);
	return -rc;
}

void
chores_add(struct chores *chores, struct chore *chore)
{
	pthread_mutex_lock(&chores->lock);
	chores_put(&chores->last, chore);
	pthread_cond_signal(&chores->more);
	pthread_mutex_unlock(&chores->lock);
}

bool
chores_collect(struct chores *chores)
{
	pthread_mutex_lock(&chores->lock);
	struct chore *chore = chores->over_first, *next;
	chores->over_first = NULL;
	chores->over_last = &chores->over_first;
	pthread_mutex_unlock(&chores->lock);
	bool any = chore != NULL;
	for (; chore; chore = next) {
		next = chore->next;
		chore->over(chore);
	}
	return any;
}
