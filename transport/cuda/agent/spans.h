/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spans - where bytes of a part lie in the memory of GPUs, as requests to these name it, with
 * references of that memory for as long as a request runs.
 */
#ifndef TH_TRANSPORT_CUDA_AGENT_SPANS_H
#define TH_TRANSPORT_CUDA_AGENT_SPANS_H

#include <stdbool.h>

#include "transport/cuda/agent/gpus.h"
#include "transport/part/xfer_part.h"

struct fd_memory;

struct spans {
	struct gpu_span *spans;    /* owns */
	struct fd_memory **access; /* owns: the array, and a reference of each */
	uint32_t *rows;            /* owns: of the part's manifest */
	uint32_t count, room;
};

void spans_fini(struct spans *spans);
/* Only the first ones. */
void spans_cut(struct spans *spans, uint32_t count);
/* Bytes of one piece of a GPU's row. */
void spans_add(struct spans *spans, const struct xfer_piece *piece);
/* Of a whole chunk of a touchable part. False: it does not lie on one GPU. */
bool spans_chunk(struct spans *spans, struct xfer_part *part, uint32_t chunk);
/* Of the spans [first, first + count), with which a request failed: which row it was. UINT32_MAX:
 * that is not known. */
uint32_t spans_lost(const struct spans *spans, uint32_t first, uint32_t count);

#endif
