/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/unmap: what is large is unmapped where nobody waits for it, in slices.
 */
#include "transport/part/unmap.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "tests/support/transport/held_unmap.h"

#define MIB ((size_t)1 << 20)
#define GIB (1024 * MIB)
#define LARGE (32 * MIB)
#define PATIENCE_NS INT64_C(60000000000)

static bool no_threads; /* atomic */

int __real_pthread_create(
	pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *arg);
int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *arg);

int
__wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *arg)
{
	if (__atomic_load_n(&no_threads, __ATOMIC_RELAXED))
		return EAGAIN;
	return __real_pthread_create(thread, attributes, start, arg);
}

/* What it takes from the host is the address space. */
static void *
map(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	cr_assert_neq(at, MAP_FAILED);
	return at;
}

static uint32_t order; /* atomic */

/* arg: when it was done: 1, 2, ... */
static void
done(void *arg)
{
	uint32_t *when = arg;
	__atomic_store_n(when, __atomic_add_fetch(&order, 1, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
}

static uint32_t
is_done(const uint32_t *when)
{
	return __atomic_load_n(when, __ATOMIC_ACQUIRE);
}

static void
wait_done(const uint32_t *when)
{
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (is_done(when) == 0) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(200);
	}
}

static uint32_t
threads(void)
{
	uint32_t count = 0;
	DIR *folder = opendir("/proc/self/task");
	cr_assert_not_null(folder);
	for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder))
		count += entry->d_name[0] != '.';
	closedir(folder);
	return count;
}

Test(unmap, small__within_the_call__also_while_a_large_one_takes_its_time)
{
	static struct unmap large, small;
	uint32_t large_when = 0, small_when = 0;
	void *large_at = map(LARGE), *small_at = map(UNMAP_AWAY_BYTES - 4096);
	held_unmap_begin(UNMAP_AWAY_BYTES);
	unmap_start(&large, large_at, LARGE, done, &large_when);
	cr_assert(held_unmap_wait(1));
	unmap_start(&small, small_at, UNMAP_AWAY_BYTES - 4096, done, &small_when);
	cr_assert_eq(is_done(&small_when), 1);
	cr_assert_not(held_unmap_is_mapped(small_at));
	cr_assert_eq(is_done(&large_when), 0);
	cr_assert(held_unmap_is_mapped(large_at));
	held_unmap_end();
	wait_done(&large_when);
	cr_assert_not(held_unmap_is_mapped(large_at));
}

Test(unmap, several__a_slice_each_in_turn)
{
	static struct unmap first, second;
	uint32_t first_when = 0, second_when = 0;
	void *first_at = map(GIB + 4096), *second_at = map(LARGE);
	held_unmap_begin(UNMAP_AWAY_BYTES);
	unmap_start(&first, first_at, GIB + 4096, done, &first_when);
	cr_assert(held_unmap_wait(1));
	unmap_start(&second, second_at, LARGE, done, &second_when);
	held_unmap_end();
	wait_done(&first_when);
	cr_assert_eq(is_done(&second_when), 1);
	cr_assert_eq(is_done(&first_when), 2);
	for (size_t at = 0; at < GIB + 4096; at += 256 * MIB)
		cr_assert_not(held_unmap_is_mapped((char *)first_at + at));
	cr_assert_not(held_unmap_is_mapped(second_at));
	cr_assert_eq(held_unmap_calls(257 * MIB), 0, "others could not map for so long");
}

Test(unmap, idle__no_thread_is_left__the_next_has_another)
{
	static struct unmap unmap;
	uint32_t before = threads();
	for (uint32_t i = 0; i < 100; i++) {
		uint32_t when = 0;
		unmap_start(&unmap, map(LARGE), LARGE, done, &when);
		wait_done(&when);
	}
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (threads() > before) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(200);
	}
}

Test(unmap, no_thread__within_the_call)
{
	static struct unmap unmap;
	uint32_t when = 0;
	void *at = map(GIB);
	__atomic_store_n(&no_threads, true, __ATOMIC_RELAXED);
	unmap_start(&unmap, at, GIB, done, &when);
	cr_assert_eq(is_done(&when), 1);
	cr_assert_not(held_unmap_is_mapped(at));
	/* It was no more than one moment. */
	__atomic_store_n(&no_threads, false, __ATOMIC_RELAXED);
	when = 0;
	unmap_start(&unmap, map(LARGE), LARGE, done, &when);
	wait_done(&when);
}

Test(unmap, pages_larger_than_a_slice__as_a_whole)
{
	void *at = map(2 * GIB);
	held_unmap_refuse(1, GIB, EINVAL);
	unmap_here(at, 2 * GIB);
	cr_assert_not(held_unmap_is_mapped(at));
	cr_assert_not(held_unmap_is_mapped((char *)at + GIB));
}

Test(unmap, refused__stays_mapped_and_is_not_done__the_next_is)
{
	static struct unmap refused, next;
	uint32_t refused_when = 0, next_when = 0;
	void *at = map(GIB);
	held_unmap_refuse(LARGE + 1, SIZE_MAX, ENOMEM);
	unmap_start(&refused, at, GIB, done, &refused_when);
	unmap_start(&next, map(LARGE), LARGE, done, &next_when);
	wait_done(&next_when);
	cr_assert_eq(is_done(&refused_when), 0);
	cr_assert(held_unmap_is_mapped(at));
}
