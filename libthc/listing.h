/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listing - the snapshot of a model that thc_list and thc_wait ask the agent for.
 */
#ifndef TH_LIBTHC_LISTING_H
#define TH_LIBTHC_LISTING_H

#include "libthc/internal.h"

/* Under the lock, which is given back meanwhile. group_op_seq 0: the current one. */
TH_MUST_USE int listing_get(struct thc_shard *shard, uint64_t group_op_seq, int64_t deadline_ns,
	struct thc_listing **ret_listing);

#endif
