/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_run - one RUN of the agent in the process of a GPU: the message, checked, and what it holds
 * until it is done.
 *
 * The agent may be broken: of a message that no agent sends there is no run. One that does not fit
 * to what is open now is a run with a failure, for the agent cannot know all of it.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_GPU_RUN_H
#define TH_TRANSPORT_CUDA_HELPER_GPU_RUN_H

#include "transport/cuda/helper/areas.h"
#include "transport/cuda/helper/gpu_copy_lanes.h"
#include "transport/cuda/helper/imports.h"

struct run {
	struct copy_run copy; /* first: the lanes know no more of it */
	struct run *next;
	struct gpu_run message;
	const struct gpu_range *ranges; /* own: to, then from */
	struct copy_span *spans;        /* own */
	struct imports_entry **holds;   /* own the uses; of each range: the piece */
	uint32_t num_holds;
	struct area *area;
};

/* NULL with a sentence: no agent sends that. The caller frees it. */
struct run *run_new(const void *message, size_t bytes, struct th_err *err);

/* Holds what its bytes lie in. 0, or with a sentence in it: TH_E_STALE_MEMORY, TH_E_PROTOCOL, or
 * TH_E_MEMORY_KIND: its area is not mapped. */
int run_hold(struct run *run, struct imports *imports, struct areas *areas);
/* 0: it can be copied; 1: something of it is not open yet; or as run_hold. */
int run_place(struct run *run);
/* Lets all of it go and frees it. */
void run_free(struct run *run, struct imports *imports);

#endif
