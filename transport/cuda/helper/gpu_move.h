/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_move - asks a GPU for bytes that lie in ranges: for each by a call of the driver, or for all
 * small ones by one launch (gather.h).
 *
 * A call is for the GPU's copy engines, which take nothing of its processors and fill the bus. But
 * it takes a CPU some 2 us, in which PCIe 4 carries 50 KB and PCIe 5 110: ranges that are shorter
 * wait for calls. A launch takes as long as two calls, and some 10 us until the last byte of it is
 * there. So small ranges go by a launch where there are many of them, by calls where there are few;
 * large ones always go by calls.
 *
 * A thread that has the GPU's context current.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_GPU_MOVE_H
#define TH_TRANSPORT_CUDA_HELPER_GPU_MOVE_H

#include "transport/cuda/gpu_wire.h"
#include "transport/cuda/helper/copy_span.h"
#include "transport/cuda/helper/gather.h"

#define MOVE_SMALL_BYTES (64u << 10) /* as many, or more, are a large range */
#define MOVE_SMALL_MIN 8u            /* of one batch: what calls take 16 us for */

/* As many bytes on both sides. Host memory is one range. */
struct move {
	enum gpu_run_op op;                /* READ, WRITE, COPY */
	const struct copy_span *to, *from; /* borrow; WRITE, COPY; READ, COPY */
	uint64_t bytes;
	uint8_t *data;           /* READ, WRITE: borrows */
	CUdeviceptr data_on_gpu; /* where kernels find it; 0: they do not */
};

/* How many small ranges it has that a launch could copy. */
uint32_t move_small(const struct move *move);
/*
 * Behind all that was queued on the stream. gather: small ranges are added to it, for a launch
 * later; NULL: none. What the driver says of the first call that it refuses: some may be queued.
 */
CUresult move_ask(const struct cuda *cuda, CUstream stream, struct gpu_gather_batch *gather,
	const struct move *move, const char **ret_call);

#endif
