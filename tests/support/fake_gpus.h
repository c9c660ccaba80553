/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_gpus - a second transport/cuda/gpus.h for tests: GPUs whose memory is that of the test's own
 * process, at the same addresses, and which do what they are asked on one thread. No process, no
 * driver; whoever links it gets none of the real one.
 *
 * Any thread.
 */
#ifndef TH_TESTS_SUPPORT_FAKE_GPUS_H
#define TH_TESTS_SUPPORT_FAKE_GPUS_H

#include "transport/cuda/gpus.h"

/* Aborts without memory. Freed by gpus_free. */
struct gpus *fake_gpus_new(uint64_t staging_bytes);
/* Requests wait until it is false again. */
void fake_gpus_hold(struct gpus *gpus, bool hold);
/* From now on: requests of this op fail with it, after so many more; 0: none do. */
void fake_gpus_fail(struct gpus *gpus, enum gpu_run_op op, int code, uint32_t after);
/* After so many of this op, so many have another digest than what they moved. */
void fake_gpus_flip(struct gpus *gpus, enum gpu_run_op op, uint32_t after, uint32_t count);
/* Requests of this op since the start. */
uint32_t fake_gpus_count(struct gpus *gpus, enum gpu_run_op op);
/* Requests under way, blocks out. */
uint32_t fake_gpus_running(struct gpus *gpus);
uint32_t fake_gpus_blocks(struct gpus *gpus);
uint32_t fake_gpus_spaces(struct gpus *gpus);

#endif
