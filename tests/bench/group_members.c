/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group_members - what a group's operations cost its members, for group.py:
 *
 *   group_members ROUNDS TRAINER_AGENT READER_AGENT SIZE...
 *
 * One thread drives all members of a trainer group and of a reader group through the _submit forms.
 * Prints a line of medians for each size, in microseconds: publish, update with nothing new (one
 * member alone, and all), update with a small new version (from the last member's call to GO, and
 * from the first call to the last return), unpublish.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "libthc/thc.h"

#define MEMBERS_MAX 256u
#define ROUNDS_MAX 1000u
#define BYTES (64u << 10) /* of a member */
#define TIMEOUT_MS 60000

enum figure { PUBLISH, ONE_IDLE, ALL_IDLE, TO_GO, UPDATE, UNPUBLISH, FIGURES };

static struct thc_shard *shards[2][MEMBERS_MAX]; /* trainers, readers */
static struct thc_op *ops[MEMBERS_MAX];
static double taken[FIGURES][ROUNDS_MAX];

static void
check(int rc, const char *what)
{
	if (rc == 0)
		return;
	fprintf(stderr, "group_members: %s: %d %s\n", what, rc, thc_errmsg());
	exit(1);
}

static double
now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static struct thc_shard *
join(const char *agent, const char *replica, uint32_t index, uint32_t size)
{
	struct thc_open_opts opts = THC_OPEN_OPTS_INIT;
	struct thc_tensor tensor = {.name = "w", .bytes = BYTES, .dtype = THC_U8};
	struct thc_shard *shard;
	char model[32];

	snprintf(model, sizeof(model), "groups-of-%u", size);
	opts.model = model;
	opts.replica = replica;
	opts.shard = index;
	opts.num_shards = size;
	opts.agent = agent;
	check(thc_open(&opts, TIMEOUT_MS, &shard), "open");
	check(thc_alloc(BYTES, 0, &tensor.data), "alloc");
	tensor.device = THC_HOST;
	tensor.ndim = 1;
	tensor.local_shape[0] = BYTES;
	check(thc_register(shard, &tensor, 1, sizeof(tensor), TIMEOUT_MS), "register");
	return shard;
}

static void
submit_update(uint32_t member)
{
	check(thc_update_submit(shards[1][member], "latest", TIMEOUT_MS, &ops[member]), "update");
}

static void
wait_for(uint32_t member, int updated, struct thc_result *ret_result)
{
	*ret_result = (struct thc_result)THC_RESULT_INIT;
	check(thc_op_wait(ops[member], TIMEOUT_MS, ret_result), "wait");
	thc_op_free(ops[member]);
	if (ret_result->updated == updated)
		return;
	fprintf(stderr, "group_members: member %u: updated %d\n", member, ret_result->updated);
	exit(1);
}

static void
publish(uint32_t size, uint32_t round)
{
	struct thc_result result;
	double begin_us = now_us();

	for (uint32_t i = 0; i < size; i++)
		check(thc_publish_submit(shards[0][i], round + 1, TIMEOUT_MS, &ops[i]), "publish");
	for (uint32_t i = 0; i < size; i++)
		wait_for(i, 0, &result);
	taken[PUBLISH][round] = now_us() - begin_us;
}

static void
unpublish(uint32_t size, uint32_t round)
{
	struct thc_result result;
	double begin_us = now_us();

	for (uint32_t i = 0; i < size; i++)
		check(thc_unpublish_submit(shards[0][i], 0, TIMEOUT_MS, &ops[i]), "unpublish");
	for (uint32_t i = 0; i < size; i++)
		wait_for(i, 0, &result);
	taken[UNPUBLISH][round] = now_us() - begin_us;
}

static void
update(uint32_t size, uint32_t round)
{
	struct thc_result result;
	double begin_us = now_us();

	for (uint32_t i = 0; i < size; i++)
		submit_update(i);
	for (uint32_t i = 0; i < size; i++)
		wait_for(i, 1, &result);
	taken[UPDATE][round] = now_us() - begin_us;
	/* The last that called: what it waited for was GO alone. */
	taken[TO_GO][round] = (double)result.wait_ns / 1e3;
}

static void
idle(uint32_t size, uint32_t round)
{
	struct thc_result result;
	double begin_us = now_us();

	submit_update(0);
	wait_for(0, 0, &result);
	taken[ONE_IDLE][round] = now_us() - begin_us;
	for (uint32_t i = 1; i < size; i++) {
		submit_update(i);
		wait_for(i, 0, &result);
	}
	begin_us = now_us();
	for (uint32_t i = 0; i < size; i++)
		submit_update(i);
	for (uint32_t i = 0; i < size; i++)
		wait_for(i, 0, &result);
	taken[ALL_IDLE][round] = now_us() - begin_us;
}

static int
compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void
measure(uint32_t rounds, const char *const *agents, uint32_t size)
{
	for (uint32_t i = 0; i < size; i++) {
		shards[0][i] = join(agents[0], "trainer", i, size);
		shards[1][i] = join(agents[1], "reader", i, size);
	}
	for (uint32_t round = 0; round < rounds; round++) {
		publish(size, round);
		update(size, round);
		idle(size, round);
		unpublish(size, round);
	}
	printf("%u", size);
	for (int figure = 0; figure < FIGURES; figure++) {
		qsort(taken[figure], rounds, sizeof(taken[0][0]), compare);
		printf(" %.0f", taken[figure][rounds / 2]);
	}
	printf("\n");
	fflush(stdout);
	for (uint32_t i = 0; i < size; i++) {
		check(thc_close(shards[0][i], 0, TIMEOUT_MS), "close");
		check(thc_close(shards[1][i], 0, TIMEOUT_MS), "close");
	}
}

int
main(int argc, char **argv)
{
	uint32_t rounds = argc < 5 ? 0 : (uint32_t)strtoul(argv[1], NULL, 10);

	if (rounds == 0 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: group_members ROUNDS AGENT AGENT SIZE...\n");
		return 2;
	}
	for (int i = 4; i < argc; i++) {
		uint32_t size = (uint32_t)strtoul(argv[i], NULL, 10);
		if (size == 0 || size > MEMBERS_MAX)
			return 2;
		measure(rounds, (const char *const *)&argv[2], size);
	}
	return 0;
}
