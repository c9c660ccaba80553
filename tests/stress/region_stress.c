/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region_stress - regions are made, looked at and released by several threads, while registrations
 * fail, addresses and links come and go, and a device is lost: for ThreadSanitizer. Afterwards
 * no device has memory of ours, and each region was said to be gone, once.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/assert.h"
#include "ipc/base/log.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/rng.h"
#include "transport/rdma/memory/region.h"

#define THREADS 4u
#define RAILS 3u
#define PIECE (UINT64_C(2) << 20)

static struct verbs_device *devices[RAILS];
static struct rails *rails;
static uint32_t rounds;
static uint32_t made, gone, settled, changed, playing = THREADS; /* atomic */

static void
on_settled(void *arg, struct region *region)
{
	(void)arg;
	TH_ASSERT(region_waiting(region) == 0);
	__atomic_fetch_add(&settled, 1, __ATOMIC_RELAXED);
}

static void
on_gone(void *arg)
{
	(void)arg;
	__atomic_fetch_add(&gone, 1, __ATOMIC_RELAXED);
}

static void
on_changed(void *arg, uint32_t rail)
{
	(void)arg;
	(void)rail;
	__atomic_fetch_add(&changed, 1, __ATOMIC_RELAXED);
}

static void
look(struct region *region, struct th_rng *rng)
{
	uint32_t rail = (uint32_t)th_rng_below(rng, RAILS);
	uint64_t offset = th_rng_below(rng, region_bytes(region) + 1);
	struct region_key key;
	struct th_err err = {0};
	if (region_mr(region, rail, offset, &key))
		TH_ASSERT(key.address == offset && key.bytes > 0 && key.rkey != 0);
	if (region_state(region, rail, &err) == REGION_FAILED)
		TH_ASSERT(err.text[0] != '\0');
	(void)region_ready(region);
}

static void *
play(void *arg)
{
	struct th_rng rng;
	struct region *held[4] = {0};
	th_rng_init_number(&rng, (uint64_t)(uintptr_t)arg);
	for (uint32_t i = 0; i < rounds; i++) {
		struct region **one = &held[th_rng_below(&rng, 4)];
		struct region_user user = {.settled = on_settled, .gone = on_gone};
		struct region_memory memory = {.data = (void *)(uintptr_t)PIECE,
			.bytes = 1 + th_rng_below(&rng, 3 * PIECE)};
		if (!*one) {
			__atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
			*one = region_new(rails, &memory, (uint32_t)th_rng_below(&rng, 8),
				VERBS_REMOTE_READ, &user);
		}
		struct region *mine = region_retain(*one);
		look(mine, &rng);
		if (th_rng_below(&rng, 2) == 0) {
			region_release(*one);
			*one = NULL;
		}
		look(mine, &rng);
		region_release(mine);
	}
	for (uint32_t i = 0; i < 4; i++)
		region_release(held[i]);
	__atomic_fetch_sub(&playing, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Links, addresses and refusals, one after the other. */
static void
disturb(struct th_rng *rng, uint32_t round)
{
	struct verbs_device *device = devices[round % RAILS];
	const struct verbs_gid gid = {.index = round % 8,
		.type = VERBS_GID_ROCE_V2,
		.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [14] = 7, [15] = (uint8_t)round}};
	fake_rdma_port_set(device, 1, th_rng_below(rng, 4) != 0);
	fake_rdma_set_gids(device, 1, &gid, 1);
	fake_rdma_refuse(device, FAKE_REG, th_rng_below(rng, 3) == 0 ? FAKE_ALWAYS : 0, -EFAULT);
	(void)rails_up(rails);
	nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

int
main(void)
{
	struct loop *keeper;
	struct rails_config config = rails_config_default();
	struct rails_user user = {.changed = on_changed};
	pthread_t threads[THREADS];
	struct th_rng rng;
	const char *is_long = getenv("TH_LONG");
	rounds = is_long && strcmp(is_long, "1") == 0 ? 200000 : 10000;
	th_rng_init_number(&rng, 1);
	log_set_level(LOG_LEVEL_ERROR); /* refusals are part of it */
	struct fake_rdma *fake = fake_rdma_new(false);
	struct fake_host *host = fake_rdma_host(fake);
	const struct fake_device_config device = {.mr_bytes_max = PIECE};
	for (uint32_t i = 0; i < RAILS; i++)
		devices[i] = fake_rdma_device(host, &device);
	TH_ASSERT(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &keeper) == 0);
	TH_ASSERT(rails_new(fake_rdma_verbs(host), &config, keeper, &user, &rails) == 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		TH_ASSERT(pthread_create(&threads[i], NULL, play, (void *)(i + 1)) == 0);
	for (uint32_t i = 0; __atomic_load_n(&playing, __ATOMIC_ACQUIRE) > 0; i++) {
		if (i == 100)
			fake_rdma_remove(devices[0]);
		disturb(&rng, i);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	while (rails_regions(rails) > 0)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	rails_free(rails);
	loop_free(keeper);
	TH_ASSERT(gone == made && settled == made && made > THREADS);
	fake_rdma_free(fake);
	printf("%u regions, %u changes of rails\n", made, changed);
	return 0;
}
