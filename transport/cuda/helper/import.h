/* SPDX-License-Identifier: Apache-2.0 */
/*
 * import - a worker's GPU memory in the agent's GPU process.
 *
 * The process has a context of that GPU, and it is current for every call here. An import keeps the
 * memory allocated, whatever becomes of the worker, until it is ended or this process is: what the
 * driver does not let go of is given back by killing the process.
 *
 * What is opened is hostile: it comes from a worker. Its size is the driver's word, not the
 * worker's. Or it is new memory of the process's own, which NICs reach. One thread at a time for
 * each import.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_IMPORT_H
#define TH_TRANSPORT_CUDA_HELPER_IMPORT_H

#include <pthread.h>

#include "ipc/cuda/cuda_handle.h"

/*
 * The driver knows an imported pool once in a process: each further import gives the same pool, and
 * its destruction is that of all (met by NVIDIA/cuda-python, cuda.core 1.4.0). So pieces of one
 * pool share it here, and the last one destroys it. It is the same with a pointer of it, which two
 * handles of a worker may have registered: imported again it is the same one, and the first
 * cuMemFree is that of both (nvbug 5570902). Any thread.
 */
struct import_pools {
	pthread_mutex_t
		lock; /* also around the driver's calls: none imports what another destroys */
	struct import_pool *first;         /* own; utlist */
	struct import_pointer *by_data;    /* own; uthash */
	struct import_pointer *by_address; /* the same */
};

void import_pools_init(struct import_pools *pools);

struct cuda_import {
	enum cuda_kind kind;
	CUdeviceptr address; /* 0: nothing */
	uint64_t bytes;
	struct import_pointer *pointer; /* owns one use of it; of a pool */
};

/* The ordinal that this process has for the GPU, or TH_E_NOT_AVAILABLE. */
int import_device(const struct cuda *cuda, const uint8_t uuid[16], struct th_err *err);

/*
 * 0, or with a sentence: TH_E_PROTOCOL for what no worker makes, TH_E_MEMORY_KIND for what the
 * driver does not open, -ENOMEM where the GPU has no room. Memory of another GPU is opened for this
 * one, where it reaches that. fd is only borrowed: close it after the call. After a failure nothing
 * is left, but for -EIO: what was opened cannot be closed, and only the process's end frees it.
 */
int import_new(const struct cuda *cuda, int device, struct import_pools *pools,
	const struct cuda_handle *handle, int fd, struct cuda_import *ret_import,
	struct th_err *err);

/*
 * So many zeros of this GPU's own, and the caller's dma-buf of them. 0, TH_E_MEMORY_KIND where the
 * GPU has none that NICs reach, -ENOMEM, or -EIO as above. A NIC that knows the dma-buf keeps the
 * memory, too.
 */
int import_own(const struct cuda *cuda, int device, uint64_t bytes, struct cuda_import *ret_import,
	int *ret_fd, struct th_err *err);

/* Waits until the GPU has done what was asked of the memory. 0, or TH_E_MEMORY_KIND with the first
 * sentence: then the driver may hold some of it still, and only the process's end frees it. */
int import_end(const struct cuda *cuda, struct import_pools *pools, struct cuda_import *import,
	struct th_err *err);

#endif
