/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_tensors - the GPU memory of a registration: what its tensors lie in, how the agent is given
 * it, and whether it is still what was registered.
 *
 * The driver is looked for when the first tensor of the process says that it lies on a GPU, and no
 * context is ever created: the framework's are used. A set is under the lock of its handle.
 */
#ifndef TH_LIBTHC_GPU_TENSORS_H
#define TH_LIBTHC_GPU_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/cuda/cuda_memory.h"

struct thc_shard;
struct checked_tensor;
struct checked_tensors;

struct gpu_range { /* what one dma-buf spans */
	uint64_t start, end;
};

struct gpu_part { /* of one GPU */
	struct cuda_memory memory;
	uint64_t first_serial; /* of its pieces, in their order; behind them those of the ranges */
	struct gpu_range *ranges; /* owns */
	size_t num_ranges;
	char no_nic[200]; /* why there is no dma-buf for the first range that has none */
};

struct gpu_set {
	struct gpu_part *parts; /* owns */
	size_t count;
};

/* The process's driver, opened once: 0, or THC_E_MEMORY_KIND with a sentence in err. */
TH_MUST_USE int gpu_driver(const struct cuda **ret_cuda, struct th_err *err);

/* Of a tensor with bytes on a GPU: its pieces are found, and its way chosen. 0 or a code with a
 * sentence that names it. */
TH_MUST_USE int gpu_add(struct gpu_set *set, struct checked_tensor *tensor);
void gpu_free(struct gpu_set *set); /* legal on a zeroed one */

/* The piece that a tensor of the set begins in, and its serial. */
const struct cuda_piece *gpu_find(
	const struct gpu_set *set, int device, uint64_t address, uint64_t *ret_serial);

/*
 * Gives the agent what the tensors of WAY_GPU lie in: a handle for each piece, and where a NIC may
 * reach it a dma-buf for each range. What becomes of the dma-bufs is no failure. Under the lock.
 */
TH_MUST_USE int gpu_send(struct thc_shard *shard, struct gpu_set *set,
	struct checked_tensors *checked, int64_t until_ns);
/* The agent lets go of it; it may be given it again. */
void gpu_forget(struct thc_shard *shard, struct gpu_set *set);

/*
 * 0; or a code with the address that it is about and the end of a sentence: THC_E_STALE_MEMORY, it
 * is not what was registered; THC_E_MEMORY_KIND, the driver fails. A call of the driver for each
 * piece, up to half a microsecond (openucx/ucx 2362). All of them, and before anything is asked of
 * the agent: a piece that was mapped anew would be published with the bytes and digests of what was
 * there before, and no reader could tell.
 */
TH_MUST_USE int gpu_look(const struct gpu_set *set, uint64_t *ret_at, struct th_err *err);

/* How the agent and its NICs reach a tensor, for thc_memory_path. */
void gpu_path(const struct thc_shard *shard, int device, uint64_t address, char *ret_text,
	size_t text_bytes);

#endif
