/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather - copies of many small ranges by one launch of a kernel, where each would be a call of the
 * driver: between GPU memory and GPU memory, or pinned host memory that the GPU reaches.
 *
 * A call such as cuMemcpyDtoHAsync takes a CPU some 2 us, whatever it copies, and the copy engine
 * begins each anew: 500 tensors of 8 KiB, a chunk, take 1 ms, which is 4 GB/s. A launch takes some
 * 4 us for all of them. cuMemcpyBatchAsync would be one call, too, but came with CUDA 12.8, and the
 * engine still begins each copy anew.
 *
 * The price is that processors of the GPU do it, while they may have other work: so a launch has
 * GPU_GATHER_BLOCKS thread blocks at most, whatever it copies. A chunk that comes in large ranges
 * is the copy engines' (gpu_copy_lanes.c decides).
 *
 * What the kernel stores in host memory is there for the CPU, and for a NIC, after an event behind
 * the launch, as after a copy: memory that is mapped asks for no more than that ("the application
 * must synchronize memory accesses using streams or events", CUDA C++ Programming Guide, "Mapped
 * Memory"). Host addresses are those of cuMemHostGetDevicePointer, and the registration has
 * CU_MEMHOSTREGISTER_DEVICEMAP.
 *
 * The same ranges may not be read and written by copies of one launch: they come in any order.
 *
 * A *batch* belongs to one thread at a time, which has the GPU's context current. Nothing here
 * waits for the GPU.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_GATHER_H
#define TH_TRANSPORT_CUDA_HELPER_GATHER_H

#include <stdint.h>

#include "ipc/base/err.h"
#include "ipc/cuda/driver.h"

/*
 * Of a launch at most. A processor has 8 warps of 32 threads then, each thread with 4 loads of 16
 * bytes on the way: 16 KiB, and 512 KiB in all. The bus wants 64 GB/s x 2 us = 128 KiB (PCIe 5 x16,
 * and a read of host memory across it), NVLink to a peer or to a CPU 450 GB/s x 1 us = 450 KiB.
 * More would only take more of the GPU: an H100 has 132 processors, each with room for 64 warps.
 */
#define GPU_GATHER_BLOCKS 32u
/* Longer ranges are cut, so that no warp has much more to do than another. */
#define GPU_GATHER_PIECE_BYTES 16384u
/* Of a batch: 64 KiB of pinned memory. */
#define GPU_GATHER_PIECES_MAX 2048u

struct gpu_gather;
struct gpu_gather_batch;

/* As gpu_hash_open (gpu_hash.h): TH_E_NOT_AVAILABLE where the GPU or its driver does not run it. */
int gpu_gather_open(
	const struct cuda *cuda, int device, struct gpu_gather **ret_gather, struct th_err *err);
/* After its batches. NULL: nothing. */
void gpu_gather_close(struct gpu_gather *gather);

/* 0, -ENOMEM or -EIO with a sentence. */
int gpu_gather_batch_new(
	struct gpu_gather *gather, struct gpu_gather_batch **ret_batch, struct th_err *err);
/* Not while it runs. NULL: nothing. */
void gpu_gather_batch_free(struct gpu_gather_batch *batch);

/* Empties it, as it is when new. Not while it runs. */
void gpu_gather_begin(struct gpu_gather_batch *batch);
/* Bytes at any addresses that this GPU reaches. False: there is no room for it. */
bool gpu_gather_add(
	struct gpu_gather_batch *batch, CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
/*
 * What was added since the last launch, behind all that was queued on the stream; nothing: no
 * launch. 0, or -EIO with a sentence: nothing of it is queued.
 */
int gpu_gather_launch(struct gpu_gather_batch *batch, CUstream stream, struct th_err *err);

#endif
