/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_reader - reads listings of a world's server in parts, at random, and judges them.
 *
 * A listing must be the model's state, replica by replica, at the moment at which its reading
 * began, however much changes until the last part has come. Generations never fall, and two
 * listings of the same generation have the same versions, replicas and flags.
 */
#ifndef TH_TESTS_SUPPORT_CORE_REFSRV_READER_H
#define TH_TESTS_SUPPORT_CORE_REFSRV_READER_H

#include "ipc/base/answer_pages.h"
#include "tests/support/core/refsrv_world.h"

#define READER_REPLICAS_MAX 64u

struct reader_row {
	struct th_version version;
	struct ctl_replica_info info;
};

struct reader {
	struct world *w;
	bool reading;
	uint32_t agent;
	struct pages pages;
	uint32_t num_expected, num_taken;
	struct reader_row expected[READER_REPLICAS_MAX];
	uint64_t generation; /* of the listing that is being read */
	/* The last one that was begun. */
	uint64_t last_generation;
	uint32_t num_last;
	struct reader_row last[READER_REPLICAS_MAX];
	uint64_t num_whole, num_in_parts, num_lost;
};

/* The next part, or a new listing of "m"; the agent must be attached. Aborts when it is wrong. */
void reader_step(struct reader *reader, uint32_t agent);

#endif
