/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waiters - very many threads in thc_wait, for wait_test.py: `waiters MODEL HANDLES THREADS`, with
 * THREADS for each of HANDLES handles. Says "open" when all handles are there.
 *
 * A line "VERSION MS" on standard input: every thread waits until a replica with that version is
 * ready, or for so many milliseconds. "looked" is said when every predicate has run once, and
 * "ended CODE=COUNT... runs=COUNT" when all calls have returned. Ends with standard input.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "libthc/thc.h"

#define STACK_BYTES (1u << 20) /* a thousand default stacks are too much for some machines */
#define CODES 32               /* 0, the codes of thc.h, and the last for any other */

struct waiter {
	pthread_t thread;
	struct thc_shard *shard;
	uint64_t round;
	bool looked;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t round_now, version;
static int64_t timeout_ms;
static uint32_t num_waiters, num_looked, num_ended, codes[CODES];
static bool over;
static atomic_uint_fast64_t runs;

static void
die(const char *what)
{
	fprintf(stderr, "waiters: %s: %s\n", what, thc_errmsg());
	exit(1);
}

static bool
is_there(const struct thc_listing *listing)
{
	for (uint32_t v = 0; v < listing->num_versions; v++) {
		if (listing->versions[v].version != version)
			continue;
		for (uint32_t r = 0; r < listing->versions[v].num_replicas; r++)
			if ((listing->versions[v].replicas[r].flags & THC_REPLICA_READY) != 0)
				return true;
	}
	return false;
}

static int
predicate(const struct thc_listing *listing, void *arg)
{
	struct waiter *waiter = arg;

	atomic_fetch_add(&runs, 1);
	if (!waiter->looked) {
		waiter->looked = true;
		pthread_mutex_lock(&lock);
		if (++num_looked == num_waiters) {
			printf("looked\n");
			fflush(stdout);
		}
		pthread_mutex_unlock(&lock);
	}
	return is_there(listing);
}

static void
count_end(int rc)
{
	int code = rc == 0 ? 0 : -5000 - rc;

	pthread_mutex_lock(&lock);
	codes[code >= 0 && code < CODES ? code : CODES - 1]++;
	if (++num_ended == num_waiters) {
		printf("ended");
		for (int i = 0; i < CODES; i++)
			if (codes[i] > 0)
				printf(" %d=%" PRIu32, i, codes[i]);
		printf(" runs=%" PRIu64 "\n", (uint64_t)atomic_load(&runs));
		fflush(stdout);
	}
	pthread_mutex_unlock(&lock);
}

static void *
wait_rounds(void *arg)
{
	struct waiter *waiter = arg;

	for (;;) {
		pthread_mutex_lock(&lock);
		while (!over && waiter->round == round_now)
			pthread_cond_wait(&changed, &lock);
		waiter->round = round_now;
		int64_t for_ms = timeout_ms;
		bool end = over;
		pthread_mutex_unlock(&lock);
		if (end)
			return NULL;
		waiter->looked = false;
		count_end(thc_wait(waiter->shard, predicate, waiter, for_ms));
	}
}

int
main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	uint32_t handles = (uint32_t)atoi(argv[2]), threads = (uint32_t)atoi(argv[3]);
	struct thc_shard **shards = calloc(handles, sizeof(*shards));
	struct waiter *waiters = calloc((size_t)handles * threads, sizeof(*waiters));
	pthread_attr_t attr;

	num_waiters = handles * threads;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	for (uint32_t i = 0; i < handles; i++) {
		char replica[32];
		struct thc_open_opts opts = THC_OPEN_OPTS_INIT;
		snprintf(replica, sizeof(replica), "waiter%" PRIu32, i);
		opts.model = argv[1];
		opts.replica = replica;
		opts.num_shards = 1;
		if (thc_open(&opts, 30000, &shards[i]) < 0)
			die("open");
	}
	for (uint32_t i = 0; i < num_waiters; i++) {
		waiters[i].shard = shards[i % handles];
		if (pthread_create(&waiters[i].thread, &attr, wait_rounds, &waiters[i]) != 0)
			die("thread");
	}
	printf("open\n");
	fflush(stdout);
	uint64_t next_version;
	int64_t next_ms;
	while (scanf("%" SCNu64 " %" SCNd64, &next_version, &next_ms) == 2) {
		pthread_mutex_lock(&lock);
		version = next_version;
		timeout_ms = next_ms;
		num_looked = num_ended = 0;
		for (int i = 0; i < CODES; i++)
			codes[i] = 0;
		atomic_store(&runs, 0);
		round_now++;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	pthread_mutex_lock(&lock);
	over = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	for (uint32_t i = 0; i < num_waiters; i++)
		pthread_join(waiters[i].thread, NULL);
	for (uint32_t i = 0; i < handles; i++)
		(void)thc_close(shards[i], THC_CLOSE_ABANDON, 10000);
	pthread_attr_destroy(&attr);
	free(waiters);
	free(shards);
	return 0;
}
