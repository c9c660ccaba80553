/* SPDX-License-Identifier: Apache-2.0 */
/*
 * register - the check of what a caller wants to register, before anything is asked of the agent.
 * Pure, except that it looks into the registry of memory, and asks the CUDA driver of tensors on
 * GPUs.
 */
#ifndef TH_LIBTHC_REGISTER_H
#define TH_LIBTHC_REGISTER_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "ipc/proto/manifest.h"
#include "libthc/gpu_tensors.h"
#include "libthc/own_memory.h"
#include "libthc/thc.h"

struct checked_tensor {
	const char *name; /* borrowed from the caller */
	size_t index;     /* in the caller's order */
	uint64_t start;   /* address */
	uint64_t bytes;
	int device; /* THC_HOST, or the CUDA ordinal */
	enum memory_way way;
	struct memory_object object; /* serial 0: no bytes, or neither allocated nor imported */
	uint64_t copy_at;            /* of WAY_COPIED: its place in the object */
	bool unreached;              /* it was WAY_GPU before the agent could not reach it */
};

struct checked_tensors {
	size_t count;
	struct manifest_row *rows;      /* owns; in the caller's order, global shape filled in */
	struct checked_tensor *tensors; /* owns; likewise */
	struct gpu_set gpus;            /* owns: what those on GPUs lie in */
	bool gpu_given;                 /* the agent may have pieces of those, to be taken back */
	char why[TH_SENTENCE_BYTES];    /* unreached: why */
};

/*
 * 0, or a code with a sentence that names tensor and field: THC_E_INVALID, THC_E_LIMIT,
 * THC_E_MEMORY_KIND (not memory that an agent can be given), -ENOMEM. open_flags: of thc_open.
 */
int tensors_check(const struct thc_tensor *tensors, size_t count, size_t tensor_bytes,
	uint32_t open_flags, struct checked_tensors *ret_checked);
void tensors_checked_free(struct checked_tensors *checked); /* legal on a zeroed one */

#endif
