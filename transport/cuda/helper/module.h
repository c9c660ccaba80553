/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module - one of our kernels in the driver of a GPU, which compiles it from its PTX when it is
 * opened, and the host memory that tells it what to do.
 *
 * A thread that has the GPU's context current.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_MODULE_H
#define TH_TRANSPORT_CUDA_HELPER_MODULE_H

#include <stdint.h>

#include "ipc/cuda/driver.h"

struct gpu_module {
	CUmodule module; /* owns */
	CUfunction kernel;
};

struct gpu_table {          /* pinned host memory that the kernel reads and writes itself */
	uint8_t *host;      /* owns, mapped; NULL: nothing */
	CUdeviceptr device; /* the same, as the GPU sees it */
	size_t bytes;
	bool pinned;
};

/*
 * 0, or with a sentence, which begins with what the GPU cannot do without it: TH_E_NOT_AVAILABLE
 * where the GPU or its driver does not run the text, else -EIO.
 */
int gpu_module_open(const struct cuda *cuda, int device, const char *text, const char *kernel,
	const char *without, struct gpu_module *ret_module, struct th_err *err);
/* Waits for what runs of it. */
void gpu_module_close(const struct cuda *cuda, struct gpu_module *module);

/* What cuMemHostRegister says. *ret_on_gpu: where kernels find the memory; 0: they do not, though
 * it may be pinned. */
CUresult gpu_pin(const struct cuda *cuda, void *host, size_t bytes, CUdeviceptr *ret_on_gpu);

/* 0, -ENOMEM or -EIO with a sentence that begins likewise. */
int gpu_table_new(const struct cuda *cuda, size_t bytes, const char *without,
	struct gpu_table *ret_table, struct th_err *err);
/* Not while a kernel uses it. */
void gpu_table_free(const struct cuda *cuda, struct gpu_table *table);

#endif
