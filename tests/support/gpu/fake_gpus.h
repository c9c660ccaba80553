/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_gpus - a second transport/cuda/agent/gpus.h for tests: GPUs whose memory is that of the
 * test's own process, at the same addresses, and which do what they are asked on one thread. No
 * process, no driver; whoever links it gets none of the real one.
 *
 * What is counted are chunks: a request of several is as many, and fails as a whole.
 *
 * Any thread.
 */
#ifndef TH_TESTS_SUPPORT_GPU_FAKE_GPUS_H
#define TH_TESTS_SUPPORT_GPU_FAKE_GPUS_H

#include "transport/cuda/agent/gpus.h"

/* Aborts without memory. Freed by gpus_free. */
struct gpus *fake_gpus_new(uint64_t staging_bytes);
/* Requests wait until it is false again. */
void fake_gpus_hold(struct gpus *gpus, bool hold);
/* From now on: this op fails with it, after so many more; 0: none does. */
void fake_gpus_fail(struct gpus *gpus, enum gpu_run_op op, int code, uint32_t after);
/* After so many of this op, so many have another digest than what they moved. */
void fake_gpus_flip(struct gpus *gpus, enum gpu_run_op op, uint32_t after, uint32_t count);
/* From now on none has memory of the agent's own; what there is of it is lost. Refused: at once. */
void fake_gpus_have_no_own(struct gpus *gpus);
void fake_gpus_refuse_own(struct gpus *gpus, bool refuse);
/* Until it is false again nobody is told whether he has it. */
void fake_gpus_hold_own(struct gpus *gpus, bool hold);
void fake_gpus_lose_own(struct gpus *gpus);
/* Of this op since the start; and in how many requests. */
uint32_t fake_gpus_count(struct gpus *gpus, enum gpu_run_op op);
uint32_t fake_gpus_requests(struct gpus *gpus, enum gpu_run_op op);
/* Under way, blocks out, and blocks that ever were. */
uint32_t fake_gpus_running(struct gpus *gpus);
uint32_t fake_gpus_blocks(struct gpus *gpus);
uint32_t fake_gpus_taken(struct gpus *gpus);
uint32_t fake_gpus_spaces(struct gpus *gpus);

#endif
