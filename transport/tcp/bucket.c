/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket - see bucket.h. Pure.
 */
#include "transport/tcp/bucket.h"

#include "ipc/base/checked.h"

static int64_t
bucket_cost_ns(const struct bucket *bucket, uint64_t bytes)
{
	return (int64_t)((double)bytes * 1e9 / (double)bucket->rate);
}

int64_t
bucket_take(struct bucket *bucket, uint64_t bytes, int64_t now_ns)
{
	if (bucket->paid_ns > now_ns)
		return bucket->paid_ns;
	bucket->paid_ns =
		th_max_i64(bucket->paid_ns, now_ns - BUCKET_NS) + bucket_cost_ns(bucket, bytes);
	return 0;
}

void
bucket_give(struct bucket *bucket, uint64_t bytes)
{
	bucket->paid_ns -= bucket_cost_ns(bucket, bytes);
}
