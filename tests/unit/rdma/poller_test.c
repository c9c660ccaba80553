/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/rdma/poller: the thread around a rail; fake devices without virtual time. */
#include "transport/rdma/engine/poller.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/poller_rig.h"

#define MIB (UINT64_C(1) << 20)
#define CHUNKS POLLER_RIG_CHUNKS
#define PATIENCE_NS INT64_C(60000000000)

static bool
has_all(const struct poller_rig *rig)
{
	return memcmp(rig->memory[0], rig->memory[1], POLLER_RIG_BYTES) == 0;
}

static void
end(struct poller_lane *lane)
{
	lane_close(lane->lane);
	poller_rig_wait(lane->rig, &lane->closed, 1);
}

static void
nap(long ns)
{
	nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

Test(poller, a_leg__all_bytes_and_nothing_left)
{
	struct poller_rig rig;
	struct poller_lane lane;
	struct lane_counters counters;
	poller_rig_init(&rig);
	poller_rig_open(&rig, &lane);
	poller_rig_wait(&rig, &rig.num_landed, CHUNKS);
	cr_assert(has_all(&rig));
	lane_counters(lane.lane, &counters);
	cr_assert_eq(counters.bytes, POLLER_RIG_BYTES);
	cr_assert_eq(counters.doorbells, POLLER_RIG_BYTES / MIB);
	end(&lane);
	poller_rig_fence(&lane);
	poller_rig_fini(&rig);
}

Test(poller, asleep__each_kick_and_each_completion_wakes_it)
{
	struct poller_rig rig;
	struct poller_lane lane;
	poller_rig_init(&rig);
	rig.limit = 0;
	poller_rig_open(&rig, &lane);
	poller_rig_wait_asleep(&rig, 0);
	for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
		/* Odd ones come when it has gone to sleep waiting for them. */
		uint64_t before = poller_rig_sleeps(&rig);
		fake_rdma_hold(rig.devices[0], chunk % 2);
		poller_rig_push(&lane, chunk + 1);
		if (chunk % 2)
			poller_rig_wait_asleep(&rig, before);
		fake_rdma_hold(rig.devices[0], false);
		poller_rig_wait(&rig, &rig.num_landed, chunk + 1);
		poller_rig_wait_asleep(&rig, before + chunk % 2);
	}
	cr_assert(has_all(&rig));
	end(&lane);
	poller_rig_fence(&lane);
	poller_rig_fini(&rig);
}

static struct poller_rig late;
static bool woken; /* the poller's: an event has used up what was armed */
static const struct verbs_ops *real;

/* What is held back comes once behind the arming, and from then on between the last look and it. */
static int
arm_late(struct verbs_cq *cq)
{
	if (woken)
		fake_rdma_let(late.devices[0], UINT32_MAX);
	int rc = real->cq_arm(cq);
	if (!woken && fake_rdma_let(late.devices[0], UINT32_MAX) > 0)
		woken = true;
	return rc;
}

Test(poller, completion_just_before_it_arms__found_by_the_second_look)
{
	struct poller_lane lane;
	struct fake_rdma *fake = fake_rdma_new(false);
	real = fake_rdma_verbs(fake_rdma_host(fake)).ops;
	fake_rdma_free(fake);
	struct verbs_ops ops = *real;
	ops.cq_arm = arm_late;
	poller_rig_init_with(&late, &ops);
	poller_rig_wait_asleep(&late, 0);
	fake_rdma_hold(late.devices[0], true);
	poller_rig_open(&late, &lane);
	poller_rig_wait(&late, &late.num_landed, CHUNKS);
	cr_assert(has_all(&late));
	end(&lane);
	poller_rig_fence(&lane);
	poller_rig_fini(&late);
}

Test(poller, kicks_and_completions_at_any_moment__none_is_lost)
{
	struct poller_rig rig;
	struct poller_lane lane;
	poller_rig_init(&rig);
	rig.limit = 0;
	poller_rig_open(&rig, &lane);
	uint32_t rounds = getenv("TH_LONG") && *getenv("TH_LONG") == '1' ? 20000 : 300;
	for (uint32_t round = 0; round < rounds; round++) {
		poller_rig_again(&rig);
		/* Around the moment in which it goes to sleep. */
		nap(round * 997 % 80000);
		fake_rdma_hold(rig.devices[0], round % 3 == 0);
		poller_rig_push(&lane, 1);
		nap(round * 577 % 40000);
		fake_rdma_hold(rig.devices[0], false);
		poller_rig_wait(&rig, &rig.num_landed, 1);
		poller_rig_push(&lane, 0);
	}
	end(&lane);
	poller_rig_fence(&lane);
	poller_rig_fini(&rig);
}

Test(poller, source_fences_in_the_middle__rest_goes_back_and_comes_by_another_lane)
{
	struct poller_rig rig;
	struct poller_lane lane, other;
	poller_rig_init(&rig);
	fake_rdma_hold(rig.devices[0], true);
	poller_rig_open(&rig, &lane);
	int64_t deadline_ns = th_now_ns() + PATIENCE_NS;
	for (uint32_t let = 0; let < 6; let += fake_rdma_let(rig.devices[0], 1))
		cr_assert_lt(th_now_ns(), deadline_ns);
	poller_rig_fence(&lane);
	fake_rdma_hold(rig.devices[0], false);
	lane_break(lane.lane, VERBS_GONE, "tried");
	poller_rig_wait(&rig, &rig.broken, 1);
	cr_assert_eq(rig.status, VERBS_GONE);
	end(&lane);
	poller_rig_open(&rig, &other);
	poller_rig_wait(&rig, &rig.num_landed, CHUNKS);
	cr_assert(has_all(&rig));
	end(&other);
	poller_rig_fence(&other);
	poller_rig_fini(&rig);
}

Test(poller, device_lost_while_asleep__lanes_break_and_close)
{
	struct poller_rig rig;
	struct poller_lane lanes[3];
	poller_rig_init(&rig);
	fake_rdma_hold(rig.devices[0], true);
	for (uint32_t i = 0; i < 3; i++)
		poller_rig_open(&rig, &lanes[i]);
	poller_rig_wait_asleep(&rig, poller_rig_sleeps(&rig));
	poller_lose(rig.poller, VERBS_OTHER, "the device is gone");
	poller_rig_wait(&rig, &rig.broken, 3);
	for (uint32_t i = 0; i < 3; i++) {
		end(&lanes[i]);
		poller_rig_fence(&lanes[i]);
	}
	poller_rig_fini(&rig);
}

Test(poller, lanes_come_and_go__nothing_left)
{
	struct poller_rig rig;
	poller_rig_init(&rig);
	for (uint32_t round = 0; round < 40; round++) {
		struct poller_lane lanes[4];
		poller_rig_again(&rig);
		for (uint32_t i = 0; i < 4; i++)
			poller_rig_open(&rig, &lanes[i]);
		for (uint32_t i = 0; i < 4; i++)
			lane_kick(lanes[i].lane);
		for (uint32_t i = 0; i < 4; i++) {
			end(&lanes[i]);
			poller_rig_fence(&lanes[i]);
		}
	}
	poller_rig_fini(&rig);
}
