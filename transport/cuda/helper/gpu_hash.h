/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_hash - digests of chunks that lie in GPU memory, by the GPU itself: bit-identical to
 * digest.h.
 *
 * A *batch* is some chunks that one launch hashes: add them, launch it on a stream behind whatever
 * writes the bytes, wait for the stream, ask for the values. The GPU makes the digests of the
 * leaves; what it takes to make one of them, and the short last leaves, is the CPU's (gpu_hash.c).
 * One chunk alone is mostly waiting: the more chunks a batch has, the faster each is, up to some
 * 16. A batch whose bytes are there may run on a stream of priority 0, the lowest.
 *
 * The bytes may begin at any address. The last bytes of a range are read with up to 15 before and
 * behind them, never of another 16.
 *
 * A batch belongs to one thread at a time, which has the GPU's context current; batches of one GPU
 * may be at work on several threads at once. Nothing here waits for the GPU.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_GPU_HASH_H
#define TH_TRANSPORT_CUDA_HELPER_GPU_HASH_H

#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "ipc/cuda/driver.h"
#include "transport/cuda/helper/copy_span.h"
#include "transport/cuda/helper/gpu_move.h"

#define GPU_HASH_CHUNKS_MAX 64u /* of a batch */

struct gpu_hash;
struct gpu_hash_batch;

/*
 * Loads the kernel. 0, or with a sentence: TH_E_NOT_AVAILABLE where the GPU or its driver does not
 * run it (then the CPU has to make digests), else -EIO. cuda is borrowed.
 */
int gpu_hash_open(
	const struct cuda *cuda, int device, struct gpu_hash **ret_hash, struct th_err *err);
/* After its batches. NULL: nothing. */
void gpu_hash_close(struct gpu_hash *hash);

/*
 * Room for so many chunks, 1 .. GPU_HASH_CHUNKS_MAX: 12 KiB of pinned host memory for one, 6 KiB
 * for each other, and nothing of the GPU's. 0, -ENOMEM or -EIO with a sentence.
 */
int gpu_hash_batch_new(struct gpu_hash *hash, uint32_t chunks, struct gpu_hash_batch **ret_batch,
	struct th_err *err);
/* Not while it runs. NULL: nothing. */
void gpu_hash_batch_free(struct gpu_hash_batch *batch);

/* Empties it, as it is when new. Not while it runs. */
void gpu_hash_begin(struct gpu_hash_batch *batch);
/*
 * The bytes of one chunk, one range behind the other, at most CHUNK_BYTES_MAX in GPU_RANGES_MAX
 * ranges (gpu_wire.h). Returns its number in the batch; -1: there is no room for it (an empty batch
 * has room for any chunk).
 */
int gpu_hash_add(struct gpu_hash_batch *batch, const struct copy_span *ranges, uint32_t count);
/*
 * The same, and copies them on the way: the digest is of what was stored. As many bytes on each
 * side, which have none in common, or there is a bug of the caller. Leaves that lie in one piece on
 * both sides, at multiples of 16, are loaded once for both; others are moves.
 */
int gpu_hash_add_copy(struct gpu_hash_batch *batch, const struct copy_span *to, uint32_t num_to,
	const struct copy_span *from, uint32_t num_from);
/* What the stream has to be asked for before the launch. Borrowed, until the batch changes. */
struct move gpu_hash_moves(const struct gpu_hash_batch *batch);
/*
 * Behind all that was queued on the stream. Once, then the values are there as soon as the stream
 * has come past it. 0, or -EIO with a sentence: nothing of it is queued.
 */
int gpu_hash_launch(struct gpu_hash_batch *batch, CUstream stream, struct th_err *err);
/* Of a chunk of a batch that ran without a failure of its stream. */
struct th_hash gpu_hash_value(const struct gpu_hash_batch *batch, uint32_t chunk);

#endif
