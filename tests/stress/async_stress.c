/* SPDX-License-Identifier: Apache-2.0 */
/*
 * async_stress - no wake-up of thc_fd or of a waiting call is lost, in a million operations
 * (by default a part of them). Plain main, so that it runs under ThreadSanitizer.
 *
 * All threads use one handle: two submit operations and see their ends in turn by an edge of
 * thc_fd, by its level, in thc_op_wait or in a blocking call, or free them at once; one cancels;
 * two sit in thc_wait, where one of them takes the doorbell for all; one learns of events by edges
 * of thc_fd alone. The main thread is the source of the events and of the changes that thc_wait
 * sees, and goes on only when all have seen the last. Who waits does so for LOST_MS: a lost wake-up
 * shows as a wait that ends with nothing.
 */
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "libthc/thc.h"
#include "tests/support/libthc/fake_agent.h"

#ifdef __SANITIZE_THREAD__
#define OPERATIONS 80000u
#else
#define OPERATIONS 50000u
#endif
#define OPERATIONS_LONG 1000000u
#define OPERATIONS_AN_EVENT 50u
#define LOST_MS 30000 /* nobody is off its CPU for that long */

enum way { EDGE, LEVEL, WAIT, BLOCK, FREE }; /* how the end of an operation is seen */

static struct fake_agent agent;
static struct thc_shard *shard;
static char *memory;
static unsigned operations;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned submitted, ended, allowed; /* operations; main raises the last */
static unsigned reported[SHM_EV_COUNT];    /* bits that thc_shard_events gave */
static uint64_t seen[2];                   /* generations, by the threads in thc_wait */
static struct thc_op *to_cancel;           /* NULL: the canceller has done it */
static bool stop;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* one operation of a handle at a time */
static unsigned ends_seen[FREE + 1], cancelled;          /* by way; under turn */

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			(void)fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition,  \
				thc_errmsg());                                                     \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static void
sleep_on_changed(void)
{
	struct timespec until;

	CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
	until.tv_sec += 2 * LOST_MS / 1000;
	CHECK(pthread_cond_timedwait(&changed, &lock, &until) == 0);
}

static int
edges_new(void)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};
	int set = epoll_create1(EPOLL_CLOEXEC);

	CHECK(set >= 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, thc_fd(shard), &event) == 0);
	return set;
}

static void
edge(int set)
{
	struct epoll_event event;

	CHECK(epoll_wait(set, &event, 1, LOST_MS) == 1);
}

/* ---- operations ---------------------------------------------------------------------------- */

static void
cancel_by_another(struct thc_op *op)
{
	pthread_mutex_lock(&lock);
	to_cancel = op;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void
await_canceller(void)
{
	pthread_mutex_lock(&lock);
	while (to_cancel != NULL)
		sleep_on_changed();
	pthread_mutex_unlock(&lock);
}

static void *
canceller_main(void *arg)
{
	pthread_mutex_lock(&lock);
	while (!stop) {
		struct thc_op *op = to_cancel;
		if (op == NULL) {
			pthread_cond_wait(&changed, &lock);
			continue;
		}
		pthread_mutex_unlock(&lock);
		CHECK(thc_op_cancel(op) == 0);
		pthread_mutex_lock(&lock);
		to_cancel = NULL;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	return arg;
}

/* One that was freed while it ran may not have ended yet, which is no failure. */
static struct thc_op *
submit(const char *version)
{
	struct thc_op *op = NULL;
	int64_t until = th_now_ns() + LOST_MS * INT64_C(1000000);
	int rc;

	while ((rc = thc_update_submit(shard, version, LOST_MS, &op)) == THC_E_STATE) {
		CHECK(th_now_ns() < until);
		(void)sched_yield();
	}
	CHECK(rc == 0);
	return op;
}

static int
end_of(struct thc_op *op, enum way way, int edges)
{
	struct pollfd level = {.fd = thc_fd(shard), .events = POLLIN};
	uint64_t done = 0, total = 0;
	int rc = 0;

	CHECK(thc_op_progress(op, &done, &total) == 0 && done <= total);
	switch (way) {
	case EDGE:
		while ((rc = thc_op_done(op)) == 0)
			edge(edges);
		break;
	case LEVEL:
		while ((rc = thc_op_done(op)) == 0)
			CHECK(poll(&level, 1, LOST_MS) == 1);
		break;
	case WAIT:
	case BLOCK:
	case FREE:
	default:
		rc = thc_op_wait(op, LOST_MS, NULL);
		rc = rc == 0 ? 1 : rc;
		break;
	}
	CHECK(thc_op_progress(op, &done, &total) == 0 && done == 500 && total == 1000);
	return rc;
}

static void
one_operation(unsigned number, int edges)
{
	struct thc_result result = THC_RESULT_INIT;
	enum way way = number % 64 == 33 ? FREE : number % 4;
	char version[16];

	/* An odd one runs until it is cancelled. */
	bool runs = number % 17 == 6;
	(void)snprintf(version, sizeof(version), "%u", 2 * number + (runs ? 1 : 0));
	if (way == BLOCK && !runs) {
		int rc = thc_update(shard, version, LOST_MS, &result);
		CHECK(rc == THC_E_STATE || (rc == 0 && result.version == 2 * number));
	} else {
		struct thc_op *op = submit(version);
		if (way == FREE) {
			thc_op_free(op);
		} else {
			if (runs)
				cancel_by_another(op);
			CHECK(end_of(op, way, edges) == (runs ? THC_E_CANCELLED : 1));
			if (runs)
				await_canceller();
			cancelled += runs ? 1 : 0;
			thc_op_free(op);
		}
	}
	ends_seen[way]++;
}

static void *
submitter_main(void *arg)
{
	int edges = edges_new();

	pthread_mutex_lock(&lock);
	while (submitted < operations) {
		if (submitted == allowed) {
			sleep_on_changed();
			continue;
		}
		unsigned number = ++submitted;
		pthread_mutex_unlock(&lock);
		pthread_mutex_lock(&turn);
		one_operation(number, edges);
		pthread_mutex_unlock(&turn);
		pthread_mutex_lock(&lock);
		ended++;
		if (ended == allowed)
			pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	(void)close(edges);
	return arg;
}

/* ---- events and changes -------------------------------------------------------------------- */

static void *
events_main(void *arg)
{
	int edges = edges_new();

	pthread_mutex_lock(&lock);
	while (!stop) {
		pthread_mutex_unlock(&lock);
		edge(edges);
		uint32_t mask = thc_shard_events(shard);
		pthread_mutex_lock(&lock);
		for (unsigned i = 0; i < SHM_EV_COUNT; i++)
			if ((mask & 1u << i) != 0)
				reported[i]++;
		if (mask != 0)
			pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	(void)close(edges);
	return arg;
}

static int
is_newer(const struct thc_listing *listing, void *arg)
{
	uint64_t *generation = arg;

	if (listing->generation <= *generation)
		return 0;
	*generation = listing->generation;
	return 1;
}

static void *
waiter_main(void *arg)
{
	uint64_t *shown = arg, generation = 0;

	pthread_mutex_lock(&lock);
	while (!stop) {
		pthread_mutex_unlock(&lock);
		CHECK(thc_wait(shard, is_newer, &generation, 2 * LOST_MS) == 0);
		pthread_mutex_lock(&lock);
		*shown = generation;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* One event and one change; returns when all who are to see them have. */
static void
news(unsigned number)
{
	unsigned counter = number % SHM_EV_COUNT;

	fake_agent_lock(&agent);
	agent.line.events[counter]++;
	if (number % 4 < 2)
		fake_agent_line(&agent);
	fake_agent_change(&agent);
	uint64_t generation = agent.generation;
	if (number % 4 >= 2)
		fake_agent_line(&agent);
	fake_agent_unlock(&agent);
	pthread_mutex_lock(&lock);
	while (reported[counter] <= number / SHM_EV_COUNT || seen[0] < generation ||
		seen[1] < generation)
		sleep_on_changed();
	CHECK(reported[counter] == number / SHM_EV_COUNT + 1); /* each is told once */
	pthread_mutex_unlock(&lock);
}

static void
open_one(void)
{
	struct thc_open_opts opts = THC_OPEN_OPTS_INIT;
	const struct thc_tensor tensor = {"w", memory, 24, THC_F32, THC_HOST, 2, {2, 3}, {0}, {0}};

	opts.model = "llama";
	opts.replica = "trainer";
	opts.agent = agent.dir;
	CHECK(thc_open(&opts, LOST_MS, &shard) == 0);
	CHECK(thc_register(shard, &tensor, 1, sizeof(tensor), LOST_MS) == 0);
}

int
main(void)
{
	const char *long_text = getenv("TH_LONG");
	void *(*const mains[])(void *) = {submitter_main, submitter_main, canceller_main,
		events_main, waiter_main, waiter_main};
	void *const args[] = {NULL, NULL, NULL, NULL, &seen[0], &seen[1]};
	pthread_t threads[TH_ARRAY_LEN(mains)];
	int64_t start = th_now_ns();
	unsigned number = 0;

	operations =
		long_text != NULL && strcmp(long_text, "1") == 0 ? OPERATIONS_LONG : OPERATIONS;
	fake_agent_start(&agent);
	agent.operation = FAKE_HOLD_ODD;
	CHECK(thc_alloc(4096, 0, (void **)&memory) == 0);
	open_one();
	for (size_t i = 0; i < TH_ARRAY_LEN(mains); i++)
		CHECK(pthread_create(&threads[i], NULL, mains[i], args[i]) == 0);
	/* Half of the news comes beside operations, half when nothing else would wake anybody. */
	while (number * OPERATIONS_AN_EVENT < operations) {
		pthread_mutex_lock(&lock);
		while (number % 2 == 0 && ended < allowed)
			sleep_on_changed();
		pthread_mutex_unlock(&lock);
		news(number++);
		pthread_mutex_lock(&lock);
		allowed = number * OPERATIONS_AN_EVENT;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	for (size_t i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	pthread_mutex_lock(&lock);
	stop = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	fake_agent_lock(&agent);
	fake_agent_change(&agent);
	agent.line.events[0]++;
	fake_agent_line(&agent);
	fake_agent_unlock(&agent);
	for (size_t i = 2; i < TH_ARRAY_LEN(mains); i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(thc_close(shard, 0, LOST_MS) == 0);
	CHECK(thc_free(memory) == 0);
	fake_agent_stop(&agent);
	(void)printf(
		"%u operations, %u cancelled, %u events in %.1f s; ends seen by an edge %u, by "
		"the level %u, in thc_op_wait %u, in a call %u, freed %u\n",
		operations, cancelled, number, (double)(th_now_ns() - start) / 1e9, ends_seen[EDGE],
		ends_seen[LEVEL], ends_seen[WAIT], ends_seen[BLOCK], ends_seen[FREE]);
	return 0;
}
