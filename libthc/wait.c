/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait - thc_wait: list, ask the predicate, sleep until the generation is another one.
 *
 * Nothing is missed: the watch is submitted with the generation of the listing that the predicate
 * saw, so a change in between ends it at once.
 */
#include <inttypes.h>
#include <stdio.h>

#include "libthc/listing.h"

static int
no_longer(void)
{
	return shim_fail(THC_E_TIMEOUT, "predicate: was not true before the deadline");
}

/* Sleeps until the generation of the listing is not this one. */
static int
watch(struct thc_shard *shard, uint64_t generation, int64_t deadline_ns)
{
	struct op_request request = {
		.kind = SHM_WATCH, .internal = true, .deadline_ns = deadline_ns};
	struct thc_op *op = NULL;

	(void)snprintf(request.spec, sizeof(request.spec), "%" PRIu64, generation);
	int rc = op_submit(shard, &request, &op);
	if (rc == 0)
		rc = op_complete(op, deadline_ns, NULL, NULL);
	return rc;
}

/* 1: the predicate is true, 0: not yet. */
static int
look(struct thc_shard *shard, thc_predicate predicate, void *arg, int64_t deadline_ns,
	uint64_t *ret_generation)
{
	struct thc_listing *listing = NULL;
	int rc = listing_get(shard, 0, deadline_ns, &listing);

	if (rc < 0)
		return rc;
	pthread_mutex_unlock(&shard->lock);
	rc = predicate(listing, arg) != 0 ? 1 : 0;
	pthread_mutex_lock(&shard->lock);
	*ret_generation = listing->generation;
	thc_listing_free(listing);
	return rc;
}

int
thc_wait(struct thc_shard *shard, thc_predicate predicate, void *arg, int64_t timeout_ms)
{
	int64_t deadline_ns = 0;
	int rc = 0;

	if (predicate == NULL)
		return shim_fail(THC_E_INVALID, "predicate: is NULL");
	rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, 0);
	if (rc < 0)
		return rc;
	for (;;) {
		uint64_t generation = 0;
		rc = look(shard, predicate, arg, deadline_ns, &generation);
		if (rc != 0)
			break;
		if (deadline_left(deadline_ns) == 0) {
			rc = no_longer();
			break;
		}
		rc = watch(shard, generation, deadline_ns);
		/* At the deadline it is looked at once more: a change may have come with it. */
		if (rc < 0 && rc != THC_E_TIMEOUT)
			break;
		if (rc == THC_E_TIMEOUT && deadline_left(deadline_ns) > 0)
			break; /* the agent takes no submissions */
	}
	shard_leave(shard);
	return rc > 0 ? 0 : rc;
}
