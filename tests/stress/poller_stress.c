/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poller_stress - lanes are opened, kicked, broken, fenced and closed by several threads while
 * their poller runs and the device holds READs back: for ThreadSanitizer. All chunks must come,
 * each byte as it is.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/assert.h"
#include "tests/support/rdma/poller_rig.h"
#include "tests/support/rng.h"

#define THREADS 4

static struct poller_rig rig;
static bool done; /* atomic */
static uint32_t rounds;

static void
nap(struct th_rng *rng)
{
	long most_ns = 1L << th_rng_below(rng, 18);
	nanosleep(&(struct timespec){.tv_nsec = (long)th_rng_below(rng, (uint64_t)most_ns)}, NULL);
}

/* A leg: lanes one after the other. */
static void *
play(void *arg)
{
	struct th_rng rng;
	th_rng_init_number(&rng, (uint64_t)(uintptr_t)arg);
	for (uint32_t i = 0; i < rounds; i++) {
		struct poller_lane lane;
		struct lane_counters counters;
		bool fenced = false;
		poller_rig_open(&rig, &lane);
		for (uint64_t n = th_rng_below(&rng, 6); n > 0; n--) {
			nap(&rng);
			switch (th_rng_below(&rng, 5)) {
			case 0:
				lane_break(lane.lane, VERBS_OTHER, "tried");
				break;
			case 1:
				if (!fenced)
					poller_rig_fence(&lane);
				fenced = true;
				break;
			case 2:
				lane_counters(lane.lane, &counters);
				break;
			default:
				lane_kick(lane.lane);
				break;
			}
		}
		/* What it holds must go back: others wait for it. */
		lane_break(lane.lane, VERBS_OTHER, "enough");
		poller_rig_wait(&rig, &lane.broken, 1);
		lane_close(lane.lane);
		poller_rig_wait(&rig, &lane.closed, 1);
		if (!fenced)
			poller_rig_fence(&lane);
	}
	return NULL;
}

/* The device stutters. */
static void *
disturb(void *arg)
{
	struct th_rng rng;
	th_rng_init_number(&rng, (uint64_t)(uintptr_t)arg);
	while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
		struct rail_counters rail;
		struct poller_counters poller;
		fake_rdma_hold(rig.devices[0], th_rng_below(&rng, 2));
		fake_rdma_let(rig.devices[0], (uint32_t)th_rng_below(&rng, 8));
		rail_counters(poller_rail(rig.poller), &rail);
		poller_counters(rig.poller, &poller);
		nap(&rng);
	}
	fake_rdma_hold(rig.devices[0], false);
	return NULL;
}

int
main(void)
{
	const char *longer = getenv("TH_LONG");
	pthread_t threads[THREADS + 1];
	rounds = longer && *longer == '1' ? 3000 : 150;
	poller_rig_init(&rig);
	rig.endless = true;
	for (uintptr_t i = 0; i <= THREADS; i++)
		TH_ASSERT(pthread_create(&threads[i], NULL, i == THREADS ? disturb : play,
				  (void *)(i + 1)) == 0);
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	__atomic_store_n(&done, true, __ATOMIC_RELEASE);
	pthread_join(threads[THREADS], NULL);
	struct poller_lane last;
	rig.endless = false;
	poller_rig_open(&rig, &last);
	poller_rig_wait(&rig, &rig.num_landed, POLLER_RIG_CHUNKS);
	TH_ASSERT(memcmp(rig.memory[0], rig.memory[1], POLLER_RIG_BYTES) == 0);
	lane_close(last.lane);
	poller_rig_wait(&rig, &last.closed, 1);
	poller_rig_fence(&last);
	struct rail_counters rail;
	rail_counters(poller_rail(rig.poller), &rail);
	printf("%u lanes, %u broke, %u chunks went back\n", rig.closed, rig.broken, rig.num_back);
	TH_ASSERT(rail.strange == 0);
	poller_rig_fini(&rig);
	return 0;
}
