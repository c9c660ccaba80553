/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_handle - a piece of a worker's GPU memory as another process is given it.
 *
 * Made in the worker: fixed bytes, and a descriptor where the kind has one; both together open the
 * piece in the agent's GPU process (transport/cuda/helper/import.h). The descriptor of a dma-buf is
 * for the NIC alone. Each descriptor keeps the memory allocated until it is closed, whatever
 * becomes of the worker: who has used one closes it.
 *
 * Makes no context. Legacy memory and dma-bufs need one, whatever thread this is: it is current for
 * the one call (context.h). Descriptors of chunks and pools need none.
 */
#ifndef TH_IPC_CUDA_CUDA_HANDLE_H
#define TH_IPC_CUDA_CUDA_HANDLE_H

#include "ipc/cuda/cuda_memory.h"

#define CUDA_HANDLE_BYTES 64u
#define CUDA_UUID_TEXT_BYTES 41u /* "GPU-", 36 and a zero */

struct cuda_handle {
	uint32_t kind; /* enum cuda_kind; never CUDA_KIND_CLOSED */
	uint32_t reserved;
	uint64_t bytes; /* of the piece */
	uint64_t id;    /* the worker's, of the memory */
	uint8_t uuid[16];
	uint8_t data[CUDA_HANDLE_BYTES]; /* legacy, pool: the driver's; else zeroes */
};
_Static_assert(sizeof(struct cuda_handle) == 104, "it travels");
_Static_assert(sizeof(CUipcMemHandle) == CUDA_HANDLE_BYTES, "a legacy handle fits");
_Static_assert(sizeof(CUmemPoolPtrExportData) == CUDA_HANDLE_BYTES, "a pool's fits");

/* The name of a GPU, as nvidia-smi -L has it: ret_text. */
char *cuda_uuid_text(const uint8_t uuid[16], char ret_text[CUDA_UUID_TEXT_BYTES]);

/* 0, *ret_fd a descriptor (the caller's) or -1; or with a sentence TH_E_MEMORY_KIND, and
 * TH_E_STALE_MEMORY where its context has gone. */
int cuda_handle_make(const struct cuda *cuda, int device, const struct cuda_piece *piece,
	struct cuda_handle *ret_handle, int *ret_fd, struct th_err *err);

/*
 * Of [address, address + bytes), which may run on over pieces that are mapped behind each other.
 * The descriptor begins at the page that the address lies in: *ret_offset is the address in it. 0,
 * or with a sentence TH_E_MEMORY_KIND: the GPU or the memory gives none, or there is no context.
 */
int cuda_dmabuf_make(const struct cuda *cuda, int device, CUdeviceptr address, uint64_t bytes,
	int *ret_fd, uint64_t *ret_offset, struct th_err *err);

#endif
