/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_job - a request on its way through a GPU's process: how far it has been said, and what of it
 * the next run says.
 *
 * A run has as many whole chunks as fit into its message, or a part of one. A chunk that takes
 * several runs has no digest by the process: one of what was read is made where it lies on the
 * host, one of a GPU's in the scratch area, into which it is read by a *pass* of its own, before
 * the rest of the job is said: always of what has arrived, never of what was sent.
 *
 * On the GPU's thread.
 */
#ifndef TH_TRANSPORT_CUDA_AGENT_GPU_JOB_H
#define TH_TRANSPORT_CUDA_AGENT_GPU_JOB_H

#include "transport/cuda/agent/gpus_own.h"

struct job {
	TAILQ_ENTRY(job) entry;
	struct job_list *list; /* that it is in */
	struct gpu_request *request;
	struct cut to, from; /* what is next: gpu_job.c's, as what follows */
	uint32_t chunk, end; /* to be said yet in this pass */
	uint32_t said;       /* bytes of that chunk */
	bool split;          /* the last chunk of the pass takes more than one run, and a digest */
	bool reads_back;     /* this pass: one chunk, into the scratch area */
	uint32_t runs;       /* under way */
	bool begun;          /* something of it, or for it, was said to this process */
	int code;            /* it has failed with it */
	bool unmapped;       /* it has failed as gpu_request.unmapped says */
	char text[GPU_TEXT_BYTES];
};

/* From the beginning, also again. */
void job_begin(struct job *job);
bool job_wants_digest(const struct job *job);
struct th_hash *job_digest(const struct job *job, uint32_t chunk);

struct job_room { /* for a run */
	uint32_t chunks;
	uint64_t bytes; /* less than those of a chunk: a part of it */
};
/*
 * The next run: what is in the sides, with its op, digests and chunks. 0; 1: none, but there is
 * another pass; or as sides_add. sides_drop either way.
 */
int job_cut(struct job *job, const struct job_room *room, struct sides *sides,
	struct gpu_run *ret_run, char *text);
/* That run was said. */
void job_said(struct job *job, const struct gpu_run *run, uint64_t bytes);
/* All runs of a pass are done. True: there is another one. */
bool job_settle(struct job *job, const uint8_t *scratch);

#endif
