/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig_gpus - shards of the rig in the memory of GPUs that are files (cuda/machine.h), which the
 * real processes of the GPUs read and write. Shards lie on the GPUs by turns. The test makes that
 * memory, fills it and reads it by the driver's calls alone.
 */
#ifndef TH_TESTS_SUPPORT_RIG_GPUS_H
#define TH_TESTS_SUPPORT_RIG_GPUS_H

#include "ipc/cuda/memory.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/transport_rig.h"
#include "transport/cuda/gpus.h"

#define RIG_GPUS 2u

/* Of shards from now on; never CUDA_KIND_CLOSED. */
extern enum cuda_kind rig_gpus_kind;
/* Sets rig_gpus. Once in a process: a driver has the same GPUs for ever. */
void rig_gpus_init(uint64_t staging_bytes, bool hash_on_cpu);
/* After the last shard and transport. Nobody has any of the GPUs' memory then but this process. */
void rig_gpus_fini(void);
struct machine *rig_gpus_machine(void);
/* The process of a GPU; 0: there is none now. */
pid_t rig_gpus_pid(unsigned gpu);
/* Processes that were started so far. */
uint64_t rig_gpus_starts(void);

#endif
