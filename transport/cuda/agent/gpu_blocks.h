/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_blocks - host memory that the processes of all GPUs pin: the agent's staging for GPU memory.
 *
 * A host memory (gpus.h) in a file that keeps its size (pinned_pages.h) is made with the first
 * worker; a page is taken when a block is first used, and all are given back when no process runs
 * that could have pinned them. Who finds no block free waits in a queue that nobody overtakes.
 *
 * Taking and giving: gpus.h. Any thread, one of a crew too, but for blocks_prepare: it is about
 * descriptors.
 */
#ifndef TH_TRANSPORT_CUDA_AGENT_GPU_BLOCKS_H
#define TH_TRANSPORT_CUDA_AGENT_GPU_BLOCKS_H

#include "transport/cuda/agent/gpus.h"

struct blocks;

/* 0, or TH_E_INVALID: a budget that is less than one block. */
int blocks_new(uint64_t budget_bytes, struct th_err *err, struct blocks **ret_blocks);
void blocks_free(struct blocks *blocks); /* NULL: nothing */
/* Before the first block is taken; again is harmless. 0 or -errno with a sentence. */
int blocks_prepare(struct blocks *blocks, struct th_err *err);

struct gpus_host *blocks_host(struct blocks *blocks); /* borrowed: all blocks lie in it */

/* A process may pin some of it from now on; it does not any more. */
void blocks_process_begins(struct blocks *blocks);
void blocks_process_ended(struct blocks *blocks);

#endif
