/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma_path - which pairs of rails are left alone, for how long, and whose word that is.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "transport/rdma/leg/rail_pairs.h"

#define SECOND INT64_C(1000000000)
#define NEAR "10.0.0.1:7000"
#define FAR "10.0.0.2:7000"

static struct paths *paths;
static struct wire_rail peer;

static void
setup(void)
{
	paths = paths_new();
	peer = (struct wire_rail){
		.link = VERBS_LINK_ETHERNET, .gid = {[10] = 0xff, 0xff, 10, 77, 0, 1}};
	snprintf(peer.name, sizeof(peer.name), "mlx5_0/1");
}

static void
teardown(void)
{
	paths_free(paths);
}

TestSuite(rdma_path, .init = setup, .fini = teardown);

static void
fail_at(int64_t now_ns)
{
	path_failed(paths, 0, &peer, NEAR, "its first READ does not come back", now_ns);
}

Test(rdma_path, fails_again_and_again__twice_as_long_each_time_up_to_300_s)
{
	static const int64_t pauses_s[] = {30, 60, 120, 240, 300, 300};
	int64_t now_ns = SECOND;
	for (size_t i = 0; i < sizeof(pauses_s) / sizeof(pauses_s[0]); i++) {
		fail_at(now_ns);
		int64_t end_ns = now_ns + pauses_s[i] * SECOND;
		cr_assert(path_paused(paths, 0, &peer, NEAR, end_ns - 1), "pause %zu", i);
		cr_assert_not(path_paused(paths, 0, &peer, NEAR, end_ns), "pause %zu", i);
		now_ns = end_ns;
	}
}

Test(rdma_path, legs_side_by_side_fail__counts_as_one_failure)
{
	fail_at(SECOND);
	fail_at(2 * SECOND);
	cr_assert_not(path_paused(paths, 0, &peer, NEAR, 31 * SECOND));
}

Test(rdma_path, success__pause_is_over_and_the_next_one_short)
{
	fail_at(SECOND);
	fail_at(31 * SECOND);
	path_proved(paths, 0, &peer, NEAR, 92 * SECOND);
	cr_assert_not(path_paused(paths, 0, &peer, NEAR, 92 * SECOND));
	fail_at(100 * SECOND);
	cr_assert_not(path_paused(paths, 0, &peer, NEAR, 130 * SECOND));
}

Test(rdma_path, other_rail_or_other_host_with_that_address__not_paused)
{
	fail_at(SECOND);
	cr_assert(path_paused(paths, 0, &peer, NEAR, SECOND));
	cr_assert_not(path_paused(paths, 1, &peer, NEAR, SECOND));
	/* It only says that it has this address. */
	cr_assert_not(path_paused(paths, 0, &peer, FAR, SECOND));
	peer.gid[15]++;
	cr_assert_not(path_paused(paths, 0, &peer, NEAR, SECOND));
}

Test(rdma_path, success_of_who_says_the_same_address__does_not_end_the_pause)
{
	fail_at(SECOND);
	path_proved(paths, 0, &peer, FAR, 2 * SECOND);
	cr_assert(path_paused(paths, 0, &peer, NEAR, 2 * SECOND));
}

Test(rdma_path, more_than_fit__those_used_longest_ago_are_forgotten)
{
	static struct path list[PATHS_MAX];
	fail_at(SECOND);
	for (uint32_t rail = 1; rail <= PATHS_MAX; rail++)
		path_proved(paths, rail, &peer, NEAR, 2 * SECOND);
	path_moved(paths, PATHS_MAX, &peer, NEAR, 4096);
	cr_assert_not(path_paused(paths, 0, &peer, NEAR, SECOND));
	cr_assert_eq(paths_list(paths, list, PATHS_MAX), PATHS_MAX);
	cr_assert_eq(list[0].rail, PATHS_MAX);
	cr_assert_eq(list[0].bytes, 4096);
	cr_assert_eq(list[PATHS_MAX - 1].rail, 1);
}
