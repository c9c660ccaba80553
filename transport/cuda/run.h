/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run - one RUN of the agent in the process of a GPU: the message, checked, and what it holds until
 * it is done.
 *
 * The agent may be broken: of a message that no agent sends there is no run. One that does not fit
 * to what is open now is a run with a failure, for the agent cannot know all of it.
 */
#ifndef TH_TRANSPORT_CUDA_RUN_H
#define TH_TRANSPORT_CUDA_RUN_H

#include "transport/cuda/areas.h"
#include "transport/cuda/copy.h"
#include "transport/cuda/imports.h"

struct run_use {
	uint64_t worker, piece;
};

struct run {
	struct copy_run copy; /* first: the lanes know no more of it */
	struct run *next;
	struct gpu_run message;
	const struct gpu_range *ranges; /* own: to, then from */
	struct copy_span *spans;        /* own */
	struct run_use *uses;           /* own: of pieces */
	uint32_t num_uses;
	struct area *area;
};

/* NULL with a sentence: no agent sends that. The caller frees it. */
struct run *run_new(const void *message, size_t bytes, struct th_err *err);

/* Finds where its bytes lie and holds it. 0, or with a sentence in the run: TH_E_STALE_MEMORY,
 * TH_E_PROTOCOL; what it holds is let go by run_end either way. */
int run_begin(struct run *run, struct imports *imports, struct areas *areas);

/* Lets all of it go: 0, or TH_E_MEMORY_KIND with a sentence where memory had to be closed. */
int run_end(struct run *run, struct imports *imports, struct areas *areas, struct th_err *err);

#endif
