/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_setup - see queue_setup.h. Turns wait in one list, the one that was asked for first at its
 * head.
 */
#include "transport/rdma/engine/queue_setup.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "transport/part/sigbus.h"

#define HOST_BYTES 64u
#define HOSTS_MAX 256u /* those without a turn that were met longest ago are forgotten */

TAILQ_HEAD(turns, setup_turn);
TAILQ_HEAD(hosts, setup_host);

struct setup_host {
	TAILQ_ENTRY(setup_host) entry;
	char name[HOST_BYTES];
	int64_t cost_ns;    /* its last turn, or half of what this was before if that is more */
	uint32_t num_turns; /* waiting or running */
	uint32_t num_running;
};

struct setup {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	pthread_t threads[SETUP_THREADS];
	uint32_t num_threads;
	/* Guarded. */
	struct turns turns; /* that wait */
	struct hosts hosts; /* the last met first */
	uint32_t num_hosts;
	uint32_t num_long; /* running turns of hosts whose turns were not short */
	bool ending;
};

/* ---- hosts, under the lock ---------------------------------------------------------------- */

static void
forget_one(struct setup *setup)
{
	struct setup_host *host;
	TAILQ_FOREACH_REVERSE(host, &setup->hosts, hosts, entry)
	{
		if (host->num_turns > 0)
			continue;
		TAILQ_REMOVE(&setup->hosts, host, entry);
		setup->num_hosts--;
		free(host);
		return;
	}
}

/* All ports of a peer are one host. */
static struct setup_host *
meet(struct setup *setup, const char *peer)
{
	const char *colon = strrchr(peer, ':');
	size_t bytes = colon ? (size_t)(colon - peer) : strlen(peer);
	char name[HOST_BYTES] = {0};
	struct setup_host *host;
	memcpy(name, peer, bytes < HOST_BYTES ? bytes : HOST_BYTES - 1);
	TAILQ_FOREACH(host, &setup->hosts, entry)
	{
		if (strcmp(host->name, name) == 0)
			break;
	}
	if (host) {
		TAILQ_REMOVE(&setup->hosts, host, entry);
	} else {
		if (setup->num_hosts >= HOSTS_MAX)
			forget_one(setup);
		host = th_calloc(1, sizeof(*host));
		memcpy(host->name, name, sizeof(name));
		host->cost_ns = SETUP_UNKNOWN_NS;
		setup->num_hosts++;
	}
	TAILQ_INSERT_HEAD(&setup->hosts, host, entry);
	return host;
}

/* ---- whose turn it is, under the lock ----------------------------------------------------- */

static int64_t
rank(const struct setup_host *host)
{
	return host->cost_ns < SETUP_SHORT_NS ? 0 : host->cost_ns;
}

static bool
may_run(const struct setup *setup, const struct setup_host *host)
{
	return host->num_running < SETUP_OF_HOST &&
	       (rank(host) == 0 || setup->num_long < SETUP_THREADS - 1);
}

/* NULL: none; then one is late at *ret_next_ns. Time that passes because the machine is busy makes
 * none late. */
static struct setup_turn *
queue_setup_choose(const struct setup *setup, int64_t now_ns, int64_t *ret_next_ns)
{
	struct setup_turn *turn, *best = NULL;
	*ret_next_ns = INT64_MAX;
	TAILQ_FOREACH(turn, &setup->turns, entry)
	{
		bool may = may_run(setup, turn->host);
		if (turn->hurried || (!may && now_ns >= turn->until_ns))
			return turn;
		if (!may)
			*ret_next_ns = th_min_i64(*ret_next_ns, turn->until_ns);
		else if (!best || rank(turn->host) < rank(best->host))
			best = turn;
	}
	return best;
}

/* Under the lock, left for the turn itself. */
static void
queue_setup_take(struct setup *setup, struct setup_turn *turn, int64_t now_ns)
{
	struct setup_host *host = turn->host;
	bool late = turn->hurried || !may_run(setup, host), is_long = !late && rank(host) > 0;
	TAILQ_REMOVE(&setup->turns, turn, entry);
	turn->waits = false;
	host->num_running += !late;
	setup->num_long += is_long;
	pthread_mutex_unlock(&setup->lock);
	turn->run(turn, late); /* it may be freed in here */
	int64_t took_ns = th_now_ns() - now_ns;
	pthread_mutex_lock(&setup->lock);
	host->num_turns--;
	host->num_running -= !late;
	setup->num_long -= is_long;
	if (!late)
		host->cost_ns = th_max_i64(took_ns, host->cost_ns / 2);
	/* More than one may have waited for this: we take one, another thread looks too. */
	if (!TAILQ_EMPTY(&setup->turns))
		pthread_cond_signal(&setup->moved);
}

static void *
queue_setup_run(void *arg)
{
	struct setup *setup = arg;
	pthread_mutex_lock(&setup->lock);
	while (!setup->ending) {
		int64_t next_ns, now_ns = th_now_ns();
		struct setup_turn *turn = queue_setup_choose(setup, now_ns, &next_ns);
		struct timespec until = {.tv_sec = (time_t)(next_ns / 1000000000),
			.tv_nsec = (long)(next_ns % 1000000000)};
		if (turn)
			queue_setup_take(setup, turn, now_ns);
		else if (next_ns == INT64_MAX)
			pthread_cond_wait(&setup->moved, &setup->lock);
		else
			pthread_cond_timedwait(&setup->moved, &setup->lock, &until);
	}
	pthread_mutex_unlock(&setup->lock);
	return NULL;
}

/* ---- asking ------------------------------------------------------------------------------- */

void
setup_post(struct setup *setup, struct setup_turn *turn, const char *peer, int64_t wait_ns)
{
	pthread_mutex_lock(&setup->lock);
	turn->host = meet(setup, peer);
	turn->host->num_turns++;
	turn->until_ns = th_deadline_ns(th_now_ns(), wait_ns);
	turn->waits = true;
	turn->hurried = false;
	TAILQ_INSERT_TAIL(&setup->turns, turn, entry);
	pthread_cond_signal(&setup->moved);
	pthread_mutex_unlock(&setup->lock);
}

void
setup_hurry(struct setup *setup, struct setup_turn *turn)
{
	pthread_mutex_lock(&setup->lock);
	if (turn->waits) {
		turn->hurried = true;
		pthread_cond_signal(&setup->moved);
	}
	pthread_mutex_unlock(&setup->lock);
}

/* ---- open, close -------------------------------------------------------------------------- */

int
setup_new(struct setup **ret_setup)
{
	struct setup *setup = th_calloc(1, sizeof(*setup));
	pthread_condattr_t attr;
	sigset_t all, before;
	int rc = 0;
	TAILQ_INIT(&setup->turns);
	TAILQ_INIT(&setup->hosts);
	pthread_mutex_init(&setup->lock, NULL);
	pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&setup->moved, &attr);
	pthread_condattr_destroy(&attr);
	sigbus_mask(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (rc == 0 && setup->num_threads < SETUP_THREADS) {
		pthread_t *thread = &setup->threads[setup->num_threads];
		rc = -pthread_create(thread, NULL, queue_setup_run, setup);
		if (rc < 0)
			break;
		setup->num_threads++;
		pthread_setname_np(*thread, "th-rdma-setup");
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc < 0) {
		setup_free(setup);
		return rc;
	}
	*ret_setup = setup;
	return 0;
}

void
setup_free(struct setup *setup)
{
	if (!setup)
		return;
	pthread_mutex_lock(&setup->lock);
	TH_ASSERT(TAILQ_EMPTY(&setup->turns));
	setup->ending = true;
	pthread_cond_broadcast(&setup->moved);
	pthread_mutex_unlock(&setup->lock);
	for (uint32_t i = 0; i < setup->num_threads; i++)
		pthread_join(setup->threads[i], NULL);
	while (!TAILQ_EMPTY(&setup->hosts)) {
		struct setup_host *host = TAILQ_FIRST(&setup->hosts);
		TAILQ_REMOVE(&setup->hosts, host, entry);
		free(host);
	}
	pthread_cond_destroy(&setup->moved);
	pthread_mutex_destroy(&setup->lock);
	free(setup);
}
