/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list - the snapshot of a model that thc_list, thc_wait and thc_op_listing ask the agent for.
 */
#ifndef TH_LIBTHC_LIST_H
#define TH_LIBTHC_LIST_H

#include "libthc/libthc_own.h"

struct listing_question {
	uint64_t group_op_seq; /* of the grouped list whose snapshot it is; 0: none              */
	uint64_t generation;   /* one fetched before will do when it is this or later; 0: now    */
};

/* Under the lock, which is given back meanwhile. */
TH_MUST_USE int listing_get(struct thc_shard *shard, const struct listing_question *question,
	int64_t deadline_ns, struct thc_listing **ret_listing);

#endif
