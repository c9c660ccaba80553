/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_copy - GPU memory that the agent does not open, as no other process can map it or its
 * handle was of no use there, has a copy of itself in host memory, which is what the agent is
 * given. The worker's own calls copy: out before a publish is submitted, in before the end of a
 * replicate or an update is told. thc_memory_path says "worker-copy".
 *
 * What is to be copied in is kept as a debt of the handle until somebody has paid it: who waits for
 * the operation, or thc_resolve, or the next operation. It can be paid in parts. Until then the
 * version is the agent's, and thc_held_version does not tell of it. Under the lock of the handle,
 * which is given back while bytes move; one thread at a time moves some.
 */
#ifndef TH_LIBTHC_WORKER_COPY_H
#define TH_LIBTHC_WORKER_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "libthc/gpu_copy.h"
#include "libthc/own_memory.h"

struct thc_shard;
struct thc_op;
struct checked_tensors;

struct shadow {
	struct memory_object object; /* serial 0: no tensor of the registration needs it */
	struct copied_span *spans;   /* owns */
	size_t count;
	struct gpu_copy copy;        /* the one that goes on */
	uint64_t pinned;             /* bytes from its start */
	char not_pinned[160];        /* why the rest is not */
	char why[TH_SENTENCE_BYTES]; /* why the agent does not reach what another process can map */
	bool copying;                /* a thread does, without the lock */
	/* What the agent held when the operation that runs was submitted. */
	uint64_t lineage_before, version_before;
};

/*
 * Finds places for the tensors of WAY_COPIED, and memory for them all; they get their object. 0, or
 * -errno with a sentence. It is pinned as far as time allows: that it is not is no failure.
 */
TH_MUST_USE int shadow_new(
	struct shadow *shadow, struct checked_tensors *checked, int64_t until_ns);
/* The agent lets go of it, and so does this process. */
void shadow_free(struct thc_shard *shard);

/* Before a publish: the bytes of the GPU are in the copy. 0, or a code with a sentence. */
TH_MUST_USE int shadow_out(struct thc_shard *shard, int64_t until_ns);

/* Of an operation that has just ended well. */
void shadow_ended(struct thc_op *op);
/*
 * What an operation that ended well has brought is in GPU memory: 0. -ETIMEDOUT without a sentence:
 * not all of it yet. THC_E_CANCELLED: it never will be, the handle is closed or has given the
 * version up. Or a code with a sentence.
 */
TH_MUST_USE int shadow_settle(struct thc_op *op, int64_t until_ns);
/* The same, of whatever ended last. */
TH_MUST_USE int shadow_settle_all(struct thc_shard *shard, int64_t until_ns);
/* For thc_memory_path. unreached: another process could map it. */
void shadow_path(
	const struct shadow *shadow, int device, bool unreached, char *ret_text, size_t text_bytes);
/* The version that the agent holds is not, or not wholly, in GPU memory. */
bool shadow_behind(struct thc_shard *shard, uint64_t lineage, uint64_t version);

#endif
