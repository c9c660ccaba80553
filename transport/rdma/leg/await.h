/* SPDX-License-Identifier: Apache-2.0 */
/*
 * await - for how long either end of a leg waits for memory to be registered. Pure.
 *
 * Large memory takes seconds. A leg goes by data connections meanwhile, so nothing is lost by
 * waiting for as long as it takes; the limit is for a device that never ends. Rails become ready
 * soon one after the other: the first one waits for the rest, since a leg offers once.
 */
#ifndef TH_TRANSPORT_RDMA_LEG_AWAIT_H
#define TH_TRANSPORT_RDMA_LEG_AWAIT_H

#include <stdbool.h>
#include <stdint.h>

#define AWAIT_MAX_NS INT64_C(300000000000)

struct await {
	int64_t begun_ns;
	int64_t ready_ns; /* since when there was a rail on which all is registered; 0: none yet */
};

/* Masks of rails that are up: all is registered there; something is under way yet. */
bool await_more(struct await *await, uint32_t ready, uint32_t waiting, int64_t now_ns);
/* When to look again. */
int64_t await_next(const struct await *await, int64_t now_ns);

#endif
