/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig_fake_gpus - shards of the rig on GPUs of fake_gpus.h.
 */
#ifndef TH_TESTS_SUPPORT_GPU_RIG_FAKE_GPUS_H
#define TH_TESTS_SUPPORT_GPU_RIG_FAKE_GPUS_H

#include "tests/support/gpu/fake_gpus.h"
#include "tests/support/transport/transport_pair.h"
#include "tests/support/transport/transport_rig.h"

/* Sets rig_gpus. */
void rig_fake_gpus_init(uint64_t staging_bytes);
#define RIG_FAKE_GPUS 6
/* A part with a letter for each row: on GPU '0' to '5', or mapped, 'm'. */
struct xfer_part *rig_fake_part(struct rig_shard *shard, const char *rows, bool verify);
/* After the last shard and transport: nothing of them is left. */
void rig_fake_gpus_fini(void);
/* Chunks that the GPUs were asked for by this op. */
uint32_t rig_fake_count(enum gpu_run_op op);

/* Of a pair that was the only one. */
static inline void
pair_finish_on_gpus(struct pair *p)
{
	pair_finish(p);
	rig_fake_gpus_fini();
}

#endif
