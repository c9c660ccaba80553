/* SPDX-License-Identifier: Apache-2.0 */
/* await - see await.h. */
#include "transport/rdma/leg/await.h"

#define REST_NS INT64_C(300000000) /* for the other rails */
#define LOOK_NS INT64_C(10000000)
#define LOOK_SLOW_NS INT64_C(50000000) /* after a second */
#define SLOW_NS INT64_C(1000000000)

bool
await_more(struct await *await, uint32_t ready, uint32_t waiting, int64_t now_ns)
{
	if (ready != 0 && await->ready_ns == 0)
		await->ready_ns = now_ns;
	if (waiting == 0)
		return false;
	return now_ns < (ready == 0 ? await->begun_ns + AWAIT_MAX_NS : await->ready_ns + REST_NS);
}

int64_t
await_next(const struct await *await, int64_t now_ns)
{
	return now_ns + (now_ns < await->begun_ns + SLOW_NS ? LOOK_NS : LOOK_SLOW_NS);
}
