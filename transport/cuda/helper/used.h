/* SPDX-License-Identifier: Apache-2.0 */
/*
 * used - how much of a GPU's memory is taken, by whomever: asked without a context, so that it can
 * be told what a context takes. NVIDIA's management library knows (libnvidia-ml.so.1, which comes
 * with the driver); where that is not, or the GPU has no memory of its own, nobody does.
 *
 * One thread.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_USED_H
#define TH_TRANSPORT_CUDA_HELPER_USED_H

#include <stdint.h>

struct used {
	void *library; /* owns; NULL: nobody knows */
	void *device;  /* borrows */
};

/* used_end is called either way. */
void used_begin(struct used *used, const uint8_t uuid[16]);
void used_end(struct used *used);
/* -1: not known. */
int64_t used_bytes(const struct used *used);

#endif
