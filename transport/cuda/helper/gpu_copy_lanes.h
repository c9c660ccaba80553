/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_copy_lanes - moves and hashes bytes of a GPU, for its process.
 *
 * Each kind of work has lanes: a lane is a thread with a stream of its own, which takes what waits
 * for its kind, asks the driver for it, and sleeps until the GPU is done. Why so:
 *
 *   - The two directions over PCIe, and copies within the GPU, are different engines: a stream each
 *     lets them run at once. Two lanes a kind: while one is woken and asks for more, or hashes by
 *     the CPU, the other one's copies keep the engine busy.
 *   - Streams are non-blocking and of the lowest priority: no work of the default stream waits for
 *     ours, and a trainer's kernels go first.
 *   - A lane waits for an event by cuEventSynchronize, with blocking sync: the driver wakes it by
 *     an interrupt, and no core is spent on polling. Events of one stream come in order, so the
 *     oldest is the one to wait for. The price is the time from the interrupt to our thread, which
 *     several batches under way hide.
 *   - Every kind waits for the event, copies within the GPU too: for those no call of the driver
 *     waits for the GPU, the ones without Async neither (CUDA driver API, "API synchronization
 *     behavior"). After it the bytes are seen by whoever looks: the CPU, a NIC, kernels that start
 *     later, whatever process's they are.
 *   - Copies of one lane are asked for together, with one event behind them: small ones cost the
 *     driver more than the GPU, and many of them are one launch (gpu_move.h). Digests likewise,
 *     with
 *     one launch for all (gpu_hash.h). Chunks of a run that go on on both sides where the last one
 *     ended are one call of the driver.
 *   - A digest is of the bytes that arrived. The GPU makes it of those in its memory. A chunk that
 *     goes to the host it hashes while a kernel copies it, of what it stores there. The CPU would
 *     read all of it again: five threads for each GPU, and as much from the host's memory as the
 *     copies write to it, where eight GPUs at 55 GB/s leave nothing. The kernel stores lines of 128
 *     bytes, of which PCIe 5 takes 53 GB/s (24 more for each), where the copy engine's packets are
 *     larger: reckoned, not measured. On the bus each packet has a checksum of its own. What lies
 *     in several pieces, is not whole leaves at multiples of 16, or is out of a kernel's reach goes
 *     by the copy engine and is hashed by the CPU.
 *
 * It lives as long as the process.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_GPU_COPY_LANES_H
#define TH_TRANSPORT_CUDA_HELPER_GPU_COPY_LANES_H

#include "ipc/cuda/driver.h"
#include "transport/cuda/gpu_wire.h"
#include "transport/cuda/helper/gather.h"
#include "transport/cuda/helper/gpu_hash.h"

struct copy_run {
	struct copy_run *next; /* the lanes' */
	enum gpu_run_op op;
	bool hashes;
	uint32_t bytes;                    /* of each side */
	const struct copy_span *to, *from; /* borrow, until done */
	uint32_t num_to, num_from;
	const uint32_t *chunk_bytes; /* borrows, until done: of num_chunks, in their order */
	uint32_t num_chunks;         /* at most GPU_RUN_CHUNKS_MAX; READ, WRITE: 1 */
	uint8_t *data;               /* READ, WRITE: borrows, host memory, until done */
	CUdeviceptr data_on_gpu;     /* where kernels find it; 0: they do not */
	uint32_t hash; /* the lanes': its first chunk's number in a batch of digests */
	/* When done. */
	int code; /* 0, or -EIO: the driver failed */
	/* Nobody knows what the GPU still does: only the end of this process tells. */
	bool lost;
	struct th_hash digests[GPU_RUN_CHUNKS_MAX]; /* where it hashes: of its chunks */
	char text[GPU_TEXT_BYTES]; /* of code; else why the CPU made them, or empty */
};

struct copies_config {
	const struct cuda *cuda; /* borrows */
	CUcontext context;
	struct gpu_hash *hash;     /* borrows; NULL: digests are made by the CPU */
	struct gpu_gather *gather; /* borrows; NULL: each range is a call of the driver */
	void (*done)(void *arg, struct copy_run *run); /* on a lane's thread, which it holds up */
	void *arg;
};

struct copies;

struct copies *copies_new(const struct copies_config *config);
/* From one thread. It is done later, in any order. */
void copies_add(struct copies *copies, struct copy_run *run);

#endif
