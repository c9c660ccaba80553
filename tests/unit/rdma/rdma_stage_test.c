/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/rdma/stage: the pool of slabs, on a fake device. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/rng.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/memory/region.h"
#include "transport/rdma/memory/stage_own.h"
#include "transport/rdma/rdma.h"

#define LATER_NS INT64_C(60000000000)

struct setup {
	struct fake_rdma *fake;
	struct verbs_device *device, *second; /* NULL: there is one */
	struct rdma *rdma;
	struct stage *stage;
};

static bool no_memory;

uint8_t *__real_pinned_pages_map(uint64_t bytes);
uint8_t *__wrap_pinned_pages_map(uint64_t bytes);

uint8_t *
__wrap_pinned_pages_map(uint64_t bytes)
{
	return no_memory ? NULL : __real_pinned_pages_map(bytes);
}

static struct setup
start_rails(uint64_t slabs, uint32_t rails)
{
	struct setup s = {.fake = fake_rdma_new(false)};
	struct fake_host *host = fake_rdma_host(s.fake);
	s.device = fake_rdma_device(host, NULL);
	s.second = rails > 1 ? fake_rdma_device(host, NULL) : NULL;
	const struct rdma_config config = {.verbs = fake_rdma_verbs(host),
		.stage_bytes = slabs == 0 ? RDMA_NO_STAGE : slabs * SLAB_BYTES};
	cr_assert_eq(rdma_open(&config, &s.rdma), 0);
	s.stage = rdma_stage(s.rdma);
	cr_assert_not_null(s.stage);
	/* What comes after it is registered for the test. */
	struct region_key key;
	for (uint32_t rail = 0; rail < rails; rail++) {
		while (!rdma_scratch(s.rdma, rail, &key))
			(void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	}
	return s;
}

static struct setup
start(uint64_t slabs)
{
	return start_rails(slabs, 1);
}

static void
finish(struct setup *s)
{
	rdma_close(s->rdma);
	fake_rdma_free(s->fake);
}

static struct slab *
take(struct setup *s)
{
	struct th_err err = {0};
	struct slab *slab = NULL;
	cr_assert_eq(stage_take(s->stage, NULL, &err, &slab), 0, "%s", err.text);
	return slab;
}

static void
expect_refused(struct setup *s, const char *words)
{
	struct th_err err = {0};
	struct slab *slab = NULL;
	cr_assert_eq(stage_take(s->stage, NULL, &err, &slab), TH_E_NO_PATH);
	cr_assert_null(slab);
	cr_assert(strstr(err.text, words), "%s", err.text);
	cr_assert(strstr(err.text, "rdma.stage"), "%s", err.text);
}

static struct stage_status
status_of(struct setup *s)
{
	struct stage_status status;
	stage_status(s->stage, &status);
	return status;
}

static void
wait_settled(const struct slab *slab)
{
	while (region_waiting(slab_region(slab)) != 0)
		(void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void
wait_slabs(struct setup *s, uint64_t count)
{
	while (status_of(s).bytes != count * SLAB_BYTES)
		(void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

Test(rdma_stage, take__registered_with_every_slot_apart)
{
	struct setup s = start(1);
	struct slab *slab = take(&s);
	wait_settled(slab);
	cr_assert_eq(region_ready(slab_region(slab)), 1);
	cr_assert_eq(region_bytes(slab_region(slab)), SLAB_BYTES);
	for (uint32_t i = 0; i < STAGE_SLOTS; i++) {
		struct region_key key;
		cr_assert(region_mr(slab_region(slab), 0, slab_slot_at(i), &key));
		cr_assert_geq(key.bytes, CHUNK_BYTES_MAX);
		cr_assert_eq(slab_slot(slab, i), slab_slot(slab, 0) + i * CHUNK_BYTES_MAX);
		slab_slot(slab, i)[CHUNK_BYTES_MAX - 1] = 1;
	}
	slab_release(slab);
	finish(&s);
}

Test(rdma_stage, take__as_many_as_the_budget_has__then_a_sentence)
{
	struct setup s = start(2);
	struct slab *a = take(&s), *b = take(&s);
	expect_refused(&s, "64MiB");
	struct stage_status status = status_of(&s);
	cr_assert_eq(status.budget_bytes, 2 * SLAB_BYTES);
	cr_assert_eq(status.bytes, 2 * SLAB_BYTES);
	cr_assert_eq(status.bytes_in_use, 2 * SLAB_BYTES);
	cr_assert_eq(status.refused, 1);
	wait_settled(a);
	slab_release(a);
	cr_assert_eq(status_of(&s).bytes_in_use, SLAB_BYTES);
	cr_assert_eq(take(&s), a, "the one that is there");
	slab_release(a);
	slab_release(b);
	finish(&s);
}

Test(rdma_stage, take__nothing_to_spend__a_sentence)
{
	struct setup s = start(0);
	expect_refused(&s, "copies nothing");
	finish(&s);
}

/* What a former leg had there is not READ by the next one's peer. */
Test(rdma_stage, clear__after_another_leg__zeros)
{
	struct setup s = start(1);
	struct slab *slab = take(&s);
	wait_settled(slab);
	memset(slab_slot(slab, 3), 7, CHUNK_BYTES_MAX);
	slab_release(slab);
	slab = take(&s);
	slab_clear(slab);
	const uint8_t *data = slab_slot(slab, 3);
	for (uint32_t i = 0; i < CHUNK_BYTES_MAX; i += 4095)
		cr_assert_eq(data[i], 0);
	slab_release(slab);
	finish(&s);
}

Test(rdma_stage, retained__by_a_thread_that_is_stuck__nobody_elses)
{
	struct setup s = start(1);
	struct slab *slab = take(&s);
	wait_settled(slab);
	(void)slab_retain(slab);
	slab_release(slab); /* the leg has ended */
	expect_refused(&s, "in use");
	slab_release(slab);
	cr_assert_eq(take(&s), slab);
	slab_release(slab);
	finish(&s);
}

/* The agent ends meanwhile: then the memory is the thread's alone. */
Test(rdma_stage, retained__beyond_the_end__written_to_and_released)
{
	struct setup s = start(1);
	struct slab *slab = take(&s);
	uint8_t *data = slab_slot(slab, 0);
	finish(&s);
	memset(data, 1, CHUNK_BYTES_MAX);
	slab_release(slab);
}

Test(rdma_stage, condemned__never_taken_again)
{
	struct setup s = start(1);
	struct slab *slab = take(&s);
	slab_condemn(slab);
	slab_release(slab);
	expect_refused(&s, "in use");
	cr_assert_eq(status_of(&s).bytes_in_use, SLAB_BYTES);
	finish(&s);
}

Test(rdma_stage, idle_for_a_while__given_back)
{
	struct setup s = start(2);
	struct slab *a = take(&s), *b = take(&s);
	wait_settled(b);
	slab_release(b);
	int64_t now_ns = th_now_ns();
	cr_assert_lt(stage_tick(s.stage, now_ns), INT64_MAX);
	cr_assert_eq(status_of(&s).bytes, 2 * SLAB_BYTES);
	cr_assert_lt(stage_tick(s.stage, now_ns + LATER_NS), INT64_MAX);
	wait_slabs(&s, 1);
	slab_release(a);
	stage_tick(s.stage, now_ns + 2 * LATER_NS);
	wait_slabs(&s, 0);
	cr_assert_eq(stage_tick(s.stage, now_ns + 3 * LATER_NS), INT64_MAX);
	struct fake_counters counters;
	fake_rdma_counters(s.device, &counters);
	cr_assert_eq(counters.regs, 3, "with what probes land in");
	finish(&s);
}

/* Too little may be locked, say: the next leg tries anew. */
Test(rdma_stage, registration_fails__another_slab_next_time)
{
	struct setup s = start(1);
	fake_rdma_refuse(s.device, FAKE_REG, 1, -ENOMEM);
	struct slab *slab = take(&s);
	struct th_err err = {0};
	wait_settled(slab);
	cr_assert_eq(region_ready(slab_region(slab)), 0);
	cr_assert_eq(region_state(slab_region(slab), 0, &err), REGION_FAILED);
	slab_release(slab);
	/* Its memory counts until no device can know it. */
	struct slab *next = NULL;
	while (stage_take(s.stage, NULL, &err, &next) < 0)
		(void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	wait_settled(next);
	cr_assert_eq(region_ready(slab_region(next)), 1);
	slab_release(next);
	finish(&s);
}

/* Although it came back last, and the budget is used up. */
Test(rdma_stage, idle_one_that_no_rail_knows__makes_room_and_another_one_is_taken)
{
	struct setup s = start(2);
	struct slab *good = take(&s);
	wait_settled(good);
	fake_rdma_refuse(s.device, FAKE_REG, 1, -EINVAL);
	struct slab *bad = take(&s);
	wait_settled(bad);
	slab_release(good);
	slab_release(bad);
	cr_assert_eq(take(&s), good);
	wait_slabs(&s, 1);
	slab_release(good);
	finish(&s);
}

static struct slab *
idle_with_one_rail_of_two(struct setup *s)
{
	fake_rdma_refuse(s->second, FAKE_REG, 1, -EINVAL);
	struct slab *slab = take(s);
	wait_settled(slab);
	cr_assert_eq(region_ready(slab_region(slab)), 1);
	slab->made_ns -= LATER_NS;
	slab_release(slab);
	return slab;
}

Test(rdma_stage, idle_one_that_a_rail_does_not_know__replaced_where_there_is_room)
{
	struct setup s = start_rails(2, 2);
	(void)idle_with_one_rail_of_two(&s);
	struct slab *slab = take(&s);
	wait_settled(slab);
	cr_assert_eq(region_ready(slab_region(slab)), 3);
	wait_slabs(&s, 1);
	slab_release(slab);
	finish(&s);
	s = start_rails(1, 2);
	slab = idle_with_one_rail_of_two(&s);
	cr_assert_eq(take(&s), slab);
	slab_release(slab);
	finish(&s);
}

Test(rdma_stage, gpus_that_have_none_and_have_some_again__push_no_other_out)
{
	static const uint8_t none[16] = "none", some[16] = "some";
	struct setup s = start(1);
	stage_note_none(s.stage, none, false);
	for (uint32_t i = 0; i < 2 * GPUS_MAX; i++) {
		stage_note_none(s.stage, some, false);
		stage_note_some(s.stage, some);
		cr_assert(stage_had_none(s.stage, none));
		cr_assert_not(stage_had_none(s.stage, some));
	}
	finish(&s);
}

/* For one that all rails know. */
Test(rdma_stage, no_memory_for_another_one__the_idle_one_serves)
{
	struct setup s = start_rails(2, 2);
	struct slab *slab = idle_with_one_rail_of_two(&s);
	no_memory = true;
	cr_assert_eq(take(&s), slab);
	expect_refused(&s, "no memory");
	cr_assert_eq(status_of(&s).bytes, SLAB_BYTES);
	cr_assert_eq(status_of(&s).bytes_in_use, SLAB_BYTES);
	slab_release(slab);
	finish(&s);
}

static void *
take_and_release(void *arg)
{
	struct setup *s = arg;
	struct th_rng rng;
	th_rng_init_number(&rng, (uint64_t)(uintptr_t)pthread_self());
	for (uint32_t round = 0; round < 200; round++) {
		struct th_err err;
		struct slab *slab;
		if (stage_take(s->stage, NULL, &err, &slab) < 0)
			continue;
		uint8_t *mine = slab_slot(slab, 0);
		*mine = (uint8_t)round;
		(void)slab_retain(slab);
		slab_clear(slab);
		slab_release(slab);
		if (th_rng_below(&rng, 8) == 0)
			stage_tick(s->stage, th_now_ns() + LATER_NS);
		slab_release(slab);
	}
	return NULL;
}

Test(rdma_stage, many_threads__each_has_its_own)
{
	struct setup s = start(3);
	pthread_t threads[4];
	for (uint32_t i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, take_and_release, &s), 0);
	for (uint32_t i = 0; i < 4; i++)
		cr_assert_eq(pthread_join(threads[i], NULL), 0);
	cr_assert_eq(status_of(&s).bytes_in_use, 0);
	finish(&s);
}
