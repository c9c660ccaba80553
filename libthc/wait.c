/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait - thc_wait: list, ask the predicate, sleep until the generation is another one.
 *
 * Nothing is missed: the watch is submitted with the generation of the listing that the predicate
 * saw, so a change in between ends it at once. Threads of one handle that have seen the same
 * generation share one watch, so that any number of them may wait.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "libthc/list.h"

struct watch { /* of a handle; freed by the last that leaves it */
	uint64_t generation;
	struct thc_op *op;
	uint32_t users;
};

/* Which handles' predicates this thread is in: the innermost first. */
struct judging {
	const struct thc_shard *shard;
	const struct judging *outer;
};

static _Thread_local const struct judging *judging;

bool
wait_is_judging(const struct thc_shard *shard)
{
	for (const struct judging *one = judging; one != NULL; one = one->outer) {
		if (one->shard == shard)
			return true;
	}
	return false;
}

static int
watch_new(struct thc_shard *shard, uint64_t generation, struct watch **ret_watch)
{
	/* Without a deadline: it is for all who come, each with its own. */
	struct op_request request = {.kind = SHM_WATCH, .internal = true, .deadline_ns = INT64_MAX};
	struct watch *watch = calloc(1, sizeof(*watch));

	if (watch == NULL)
		return shim_fail(-ENOMEM, "out of memory for a watch");
	(void)snprintf(request.spec, sizeof(request.spec), "%" PRIu64, generation);
	int rc = op_submit(shard, &request, &watch->op);
	if (rc < 0) {
		free(watch);
		return rc;
	}
	watch->generation = generation;
	shard->watch = watch;
	*ret_watch = watch;
	return 0;
}

static void
watch_leave(struct thc_shard *shard, struct watch *watch)
{
	if (--watch->users > 0)
		return;
	if (shard->watch == watch)
		shard->watch = NULL;
	op_detach(watch->op);
	free(watch);
}

/* Sleeps until the generation of the listing is not this one, or the deadline: 0 in both cases. */
static int
sleep_until_changed(struct thc_shard *shard, uint64_t generation, int64_t deadline_ns)
{
	struct watch *watch = shard->watch;

	if (watch == NULL || watch->generation != generation || watch->op->done) {
		int rc = watch_new(shard, generation, &watch);
		if (rc < 0)
			return rc;
	}
	watch->users++;
	int rc = shard_await(shard, &watch->op->done, deadline_ns);
	if (rc == -ETIMEDOUT)
		rc = 0;
	else if (rc == 0)
		rc = op_outcome(watch->op);
	watch_leave(shard, watch);
	return rc;
}

/* 1: the predicate is true, 0: not yet. */
static int
wait_look(struct thc_shard *shard, thc_predicate predicate, void *arg, int64_t deadline_ns,
	uint64_t *generation)
{
	const struct listing_question question = {.generation = *generation};
	const struct judging here = {.shard = shard, .outer = judging};
	struct thc_listing *listing = NULL;
	int rc = listing_get(shard, &question, deadline_ns, &listing);

	if (rc < 0)
		return rc;
	pthread_mutex_unlock(&shard->lock);
	judging = &here;
	rc = predicate(listing, arg) != 0 ? 1 : 0;
	judging = here.outer;
	pthread_mutex_lock(&shard->lock);
	*generation = listing->generation;
	thc_listing_free(listing);
	return rc;
}

/* What the agent knew when the watch ended: a listing that was fetched since will do. */
static uint64_t
generation_now(struct thc_shard *shard)
{
	struct shm_line line;

	return ring_line_read(&shard->ring, &line) == 0 ? line.generation : 0;
}

int
thc_watch_submit(
	struct thc_shard *shard, uint64_t generation, int64_t timeout_ms, struct thc_op **ret_op)
{
	struct op_request request = {.kind = SHM_WATCH};
	struct thc_op *op = NULL;
	int rc = 0;

	if (ret_op == NULL)
		return shim_fail(THC_E_INVALID, "ret_op: is NULL");
	rc = deadline_of(timeout_ms, &request.deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, 0);
	if (rc < 0)
		return rc;
	(void)snprintf(request.spec, sizeof(request.spec), "%" PRIu64, generation);
	rc = op_submit(shard, &request, &op);
	if (rc == 0)
		*ret_op = op;
	shard_leave(shard);
	return rc;
}

int
thc_wait(struct thc_shard *shard, thc_predicate predicate, void *arg, int64_t timeout_ms)
{
	int64_t deadline_ns = 0;
	uint64_t generation = 0;
	int rc = 0;

	if (predicate == NULL)
		return shim_fail(THC_E_INVALID, "predicate: is NULL");
	rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, 0);
	if (rc < 0)
		return rc;
	for (;;) {
		rc = wait_look(shard, predicate, arg, deadline_ns, &generation);
		if (rc != 0)
			break;
		if (deadline_left(deadline_ns) == 0) {
			rc = shim_fail(
				THC_E_TIMEOUT, "predicate: was not true before the deadline");
			break;
		}
		rc = sleep_until_changed(shard, generation, deadline_ns);
		if (rc < 0)
			break;
		/* At the deadline it is looked at once more: a change may have come with it. */
		generation = deadline_left(deadline_ns) > 0 ? generation_now(shard) : 0;
	}
	shard_leave(shard);
	return rc > 0 ? 0 : rc;
}
