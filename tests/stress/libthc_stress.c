/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_stress - several threads in one handle against a scripted agent: operations, listings,
 * waits, questions and a thread that polls thc_fd; then close while others are inside, and several
 * threads that close at once while others go on calling. Plain main, so that it runs under
 * ThreadSanitizer. A lost wake-up shows as a call that takes longer than its deadline.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "libthc/thc.h"
#include "tests/support/libthc/fake_agent.h"

#define ROUNDS 200
#define CALLS 3000
#define SOON 20000

static struct fake_agent agent;
static struct thc_shard *shard;
static char *memory;

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			(void)fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition,  \
				thc_errmsg());                                                     \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static void
open_one(void)
{
	struct thc_open_opts opts = THC_OPEN_OPTS_INIT;
	const struct thc_tensor tensor = {"w", memory, 24, THC_F32, THC_HOST, 2, {2, 3}, {0}, {0}};

	opts.model = "llama";
	opts.replica = "trainer";
	opts.agent = agent.dir;
	CHECK(thc_open(&opts, SOON, &shard) == 0);
	CHECK(thc_register(shard, &tensor, 1, sizeof(tensor), SOON) == 0);
}

/* Blocking and submitted operations; another thread may have one running. */
static void *
operations(void *arg)
{
	struct thc_result result = THC_RESULT_INIT;

	for (int i = 0; i < CALLS; i++) {
		struct thc_op *op = NULL;
		int rc = thc_update(shard, "17", SOON, &result);
		CHECK(rc == THC_E_STATE || (rc == 0 && result.version == 17));
		rc = thc_replicate_submit(shard, "18", SOON, &op);
		if (rc == THC_E_STATE)
			continue;
		CHECK(rc == 0);
		if (i % 3 != 0)
			CHECK(thc_op_wait(op, SOON, &result) == 0 && result.version == 18);
		thc_op_free(op);
	}
	return arg;
}

static void *
listings(void *arg)
{
	for (int i = 0; i < CALLS; i++) {
		struct thc_listing *listing = NULL;
		CHECK(thc_list(shard, 0, SOON, &listing) == 0);
		CHECK(listing->num_versions == 1);
		thc_listing_free(listing);
		CHECK(thc_safe_to_mutate(shard) == 1);
		CHECK(thc_held_version(shard, NULL, NULL) == THC_E_NOT_AVAILABLE);
	}
	return arg;
}

static int
third_time(const struct thc_listing *listing, void *arg)
{
	int *calls = arg;

	return ++*calls == 3 && listing->num_versions == 1;
}

static void *
waits(void *arg)
{
	for (int i = 0; i < CALLS; i++) {
		int calls = 0;
		CHECK(thc_wait(shard, third_time, &calls, SOON) == 0);
		(void)thc_shard_events(shard);
	}
	return arg;
}

static void *
polls(void *arg)
{
	struct pollfd poll_fd = {.fd = thc_fd(shard), .events = POLLIN};

	CHECK(poll_fd.fd >= 0);
	for (int i = 0; i < CALLS; i++) {
		(void)poll(&poll_fd, 1, 1);
		(void)thc_shard_events(shard);
	}
	return arg;
}

static void *
holds(void *arg)
{
	struct thc_op *op = NULL;
	int rc = thc_update_submit(shard, "1", SOON, &op);

	CHECK(rc == 0 || rc == THC_E_STATE || rc == THC_E_CANCELLED);
	if (rc == 0) {
		rc = thc_op_wait(op, THC_FOREVER, NULL);
		CHECK(rc == THC_E_CANCELLED);
		thc_op_free(op);
	}
	return arg;
}

/* ---- calls of a handle that others close, or have closed ------------------------------------- */

static pthread_barrier_t all_here;
static atomic_uint closed;

static void *
closes(void *arg)
{
	(void)pthread_barrier_wait(&all_here);
	int rc = thc_close(shard, 0, SOON);
	CHECK(rc == 0 || rc == THC_E_STATE);
	if (rc == 0)
		atomic_fetch_add(&closed, 1u);
	CHECK(thc_close(shard, 0, SOON) == THC_E_STATE);
	return arg;
}

/* Each goes on until the handle is closed under it, and once more. */
static void *
asks(void *arg)
{
	int rc = 0;

	(void)pthread_barrier_wait(&all_here);
	do {
		rc = thc_held_version(shard, NULL, NULL);
		(void)thc_shard_events(shard);
	} while (rc == THC_E_NOT_AVAILABLE);
	CHECK(rc == THC_E_STATE);
	CHECK(thc_safe_to_mutate(shard) == THC_E_STATE);
	return arg;
}

static void *
lists(void *arg)
{
	struct thc_listing *listing = NULL;
	int rc = 0;

	(void)pthread_barrier_wait(&all_here);
	do {
		rc = thc_list(shard, 0, SOON, &listing);
		if (rc == 0)
			thc_listing_free(listing);
	} while (rc == 0 || rc == THC_E_CANCELLED);
	CHECK(rc == THC_E_STATE);
	CHECK(thc_fd(shard) == THC_E_STATE);
	return arg;
}

static void *
updates(void *arg)
{
	int rc = 0;

	(void)pthread_barrier_wait(&all_here);
	do
		rc = thc_update(shard, "17", SOON, NULL);
	while (rc == 0 || rc == THC_E_CANCELLED);
	CHECK(rc == THC_E_STATE);
	CHECK(thc_publish(shard, 1, SOON) == THC_E_STATE);
	return arg;
}

/* ---- the rounds ------------------------------------------------------------------------------ */

static void
script(enum fake_operation operation)
{
	fake_agent_lock(&agent);
	agent.operation = operation;
	fake_agent_unlock(&agent);
}

static void
run(void *(*const mains[])(void *), size_t count)
{
	pthread_t threads[8];

	for (size_t i = 0; i < count; i++)
		CHECK(pthread_create(&threads[i], NULL, mains[i], NULL) == 0);
	for (size_t i = 0; i < count; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

int
main(void)
{
	void *(*const busy[])(void *) = {operations, operations, listings, waits, waits, polls};
	void *(*const racing[])(void *) = {closes, asks, closes, lists, closes, updates};
	pthread_t holder;
	int64_t start = th_now_ns();

	fake_agent_start(&agent);
	CHECK(thc_alloc(4096, 0, (void **)&memory) == 0);
	open_one();
	run(busy, TH_ARRAY_LEN(busy));
	CHECK(thc_close(shard, 0, SOON) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		open_one();
		script(FAKE_HOLD);
		fake_agent_lock(&agent);
		unsigned submissions = agent.submissions;
		fake_agent_unlock(&agent);
		CHECK(pthread_create(&holder, NULL, holds, NULL) == 0);
		fake_agent_await(&agent, &agent.submissions, submissions + 1);
		CHECK(thc_close(shard, 0, SOON) == 0);
		CHECK(pthread_join(holder, NULL) == 0);
		script(FAKE_COMPLETE);
	}
	CHECK(pthread_barrier_init(&all_here, NULL, TH_ARRAY_LEN(racing)) == 0);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		open_one();
		run(racing, TH_ARRAY_LEN(racing));
		CHECK(atomic_load(&closed) == round);
	}
	CHECK(pthread_barrier_destroy(&all_here) == 0);
	CHECK(thc_free(memory) == 0);
	fake_agent_stop(&agent);
	CHECK(th_now_ns() - start < INT64_C(100000000000));
	return 0;
}
