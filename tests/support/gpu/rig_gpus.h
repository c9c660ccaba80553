/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig_gpus - shards of the rig in the memory of GPUs, which the real processes of the GPUs read and
 * write: of those that are files, or of this machine's (cuda/gpus_here.h). The test makes that
 * memory, fills it and reads it by the driver's calls alone. Shards lie on two GPUs by turns; on
 * one where there is only one, or no other that it reaches.
 *
 * On real GPUs no device of fake_rdma.h takes their dma-bufs, since only a NIC can: legs go through
 * slabs of the host's.
 */
#ifndef TH_TESTS_SUPPORT_GPU_RIG_GPUS_H
#define TH_TESTS_SUPPORT_GPU_RIG_GPUS_H

#include "ipc/cuda/cuda_memory.h"
#include "tests/support/cuda/gpus_here.h"
#include "tests/support/transport/transport_rig.h"
#include "transport/cuda/agent/gpus.h"

#define RIG_GPUS 2u

/* Of shards from now on; never CUDA_KIND_CLOSED. */
extern enum cuda_kind rig_gpus_kind;
extern unsigned rig_gpus_most; /* how many of them shards lie on; RIG_GPUS */
/* Sets rig_gpus. Once in a process: a driver has the same GPUs for ever. */
void rig_gpus_init(uint64_t staging_bytes, bool hash_on_cpu);
/* After the last shard and transport. Nobody has any of the GPUs' memory then but this process. */
void rig_gpus_fini(void);
/* On so many shards lie: 1 or RIG_GPUS. Before rig_gpus_init as well, and so is the next. */
unsigned rig_gpus_count(void);
/* Why the GPUs of this machine have no memory of that kind that others can open; NULL: they have.
 * Those that are files have every kind. */
const char *rig_gpus_lack(enum cuda_kind kind);
/* Fails the process where the GPUs are real. */
struct machine *rig_gpus_machine(void);
/* The process of a GPU; 0: there is none now. */
pid_t rig_gpus_pid(unsigned gpu);
/* Processes that were started so far. */
uint64_t rig_gpus_starts(void);

/* First in a Criterion test. */
#define RIG_GPUS_NEED(kind)                                                                        \
	do {                                                                                       \
		const char *lack = rig_gpus_lack(kind);                                            \
		if (lack)                                                                          \
			cr_skip_test("%s", lack);                                                  \
	} while (0)

#endif
