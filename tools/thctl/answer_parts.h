/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer_parts - a long answer (a listing, an inspection) put together from its parts.
 *
 * Pure: whoever asks hands the parts over. A shortage of memory ends the process.
 */
#ifndef TH_TOOLS_THCTL_ANSWER_PARTS_H
#define TH_TOOLS_THCTL_ANSWER_PARTS_H

#include "ipc/base/ctl.h"

struct parts_listing { /* starts as { 0 } */
	uint64_t generation;
	uint32_t num_versions, num_replicas, versions_max, replicas_max;
	struct ctl_version_info *versions; /* owns */
	struct ctl_replica_info *replicas; /* owns */
};

/* Copies; a version that goes on from the part before becomes one again. */
void parts_add_listing(struct parts_listing *all, const struct ctl_listing *part);
void parts_drop_listing(struct parts_listing *all);
/* What was put together; points into it. */
struct ctl_listing parts_whole_listing(struct parts_listing *all);

struct parts_inspection {            /* starts as { 0 } */
	struct ctl_inspection whole; /* its arrays are owned; texts stay the parts' */
	uint32_t nodes_max, members_max, transfers_max;
};

void parts_add_inspection(struct parts_inspection *all, const struct ctl_inspection *part);
void parts_drop_inspection(struct parts_inspection *all);

#endif
