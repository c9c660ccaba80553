/* SPDX-License-Identifier: Apache-2.0 */
/*
 * touch - bytes of a part, by the thread that asks: of mapped rows, and of rows in GPU memory.
 *
 * It waits for the GPU, never for a worker: a row behind a descriptor, whose worker may keep it
 * from answering, is a ferry's (ferry.h). How long a GPU may take is bounded by whoever kills its
 * process (gpus.h). For the threads that look at what NICs have moved, not for a mover or a poller.
 */
#ifndef TH_TRANSPORT_CUDA_AGENT_TOUCH_H
#define TH_TRANSPORT_CUDA_AGENT_TOUCH_H

#include "transport/hash/digest.h"
#include "transport/part/xfer_part.h"

/*
 * The digest of a chunk as it lies there: on the GPU, where all of it is on one. 0 or
 * TH_E_STALE_MEMORY and the row, as far as it is known, else UINT32_MAX.
 */
TH_MUST_USE int touch_digest(
	struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest, uint32_t *ret_row);

/*
 * A NIC has written a chunk into it, and nobody hashes that. On a GPU it is only in order for
 * kernels and for other NICs once the CPU has made a call of the driver about it (NVIDIA, GPUDirect
 * RDMA, "Synchronization and Memory Ordering"), so a few bytes of it are read, from each GPU that
 * it lies on. 0 or TH_E_STALE_MEMORY.
 */
TH_MUST_USE int touch_flush(struct xfer_part *part, uint32_t chunk);

/* The next bytes of a chunk, to or from memory of the agent's own; the cursor moves on. */
TH_MUST_USE int touch_gather(struct xfer_part *part, struct xfer_cursor *cursor, uint8_t *to,
	uint64_t bytes, uint32_t *ret_row);
TH_MUST_USE int touch_scatter(struct xfer_part *part, struct xfer_cursor *cursor,
	const uint8_t *from, uint64_t bytes, uint32_t *ret_row);

#endif
