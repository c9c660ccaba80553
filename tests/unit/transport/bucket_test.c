/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/tcp/bucket. */
#include "transport/tcp/bucket.h"

#include <criterion/criterion.h>

#define MS INT64_C(1000000)
#define SEC (1000 * MS)
#define START (100 * SEC)

static struct bucket bucket;

static void
fill(void)
{
	bucket = (struct bucket){.rate = 1000};
}

TestSuite(bucket, .init = fill);

Test(bucket, take__what_it_holds_at_once__then_at_the_rate)
{
	/* 50 ms hold 50 bytes. The request that empties it is not cut: 100 more are owed. */
	cr_assert_eq(bucket_take(&bucket, 150, START), 0);
	cr_assert_eq(bucket_take(&bucket, 1, START), START + 100 * MS);
	cr_assert_eq(bucket_take(&bucket, 1, START + 99 * MS), START + 100 * MS);
	cr_assert_eq(bucket_take(&bucket, 200, START + 100 * MS), 0);
	cr_assert_eq(bucket_take(&bucket, 1, START + 100 * MS), START + 300 * MS);
}

Test(bucket, take__after_a_long_rest__no_more_than_it_holds)
{
	cr_assert_eq(bucket_take(&bucket, 50, START), 0);
	cr_assert_eq(bucket_take(&bucket, 50, START + 3600 * SEC), 0);
	cr_assert_eq(bucket_take(&bucket, 10, START + 3600 * SEC), 0, "the last one may owe");
	cr_assert_eq(bucket_take(&bucket, 1, START + 3600 * SEC), START + 3600 * SEC + 10 * MS);
}

Test(bucket, take__always_when_it_may__the_rate_and_not_more)
{
	uint64_t taken = 0;
	for (int64_t now_ns = START; now_ns < START + 10 * SEC; now_ns += MS)
		taken += bucket_take(&bucket, 70, now_ns) == 0 ? 70 : 0;
	cr_assert_leq(taken, 10000 + 50 + 70);
	cr_assert_geq(taken, 10000 - 70);
}

Test(bucket, give__what_was_not_needed__is_there_again)
{
	cr_assert_eq(bucket_take(&bucket, 1050, START), 0);
	bucket_give(&bucket, 1000);
	cr_assert_eq(bucket_take(&bucket, 10, START), 0);
	cr_assert_eq(bucket_take(&bucket, 1, START), START + 10 * MS);
}
