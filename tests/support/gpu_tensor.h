/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_tensor - bytes of GPU 0 as a tensor, for tests of libthc.
 */
#ifndef TH_TESTS_SUPPORT_GPU_TENSOR_H
#define TH_TESTS_SUPPORT_GPU_TENSOR_H

#include "ipc/cuda/driver.h"
#include "libthc/thc.h"

static inline struct thc_tensor
tensor_at(const char *name, CUdeviceptr address, uint64_t bytes)
{
	return (struct thc_tensor){.name = name,
		.data = (void *)(uintptr_t)address,
		.bytes = bytes,
		.dtype = THC_U8,
		.device = 0,
		.ndim = 1,
		.local_shape = {bytes}};
}

static inline int
register_at(struct thc_shard *shard, CUdeviceptr address, uint64_t bytes, int64_t timeout_ms)
{
	const struct thc_tensor tensor = tensor_at("weight", address, bytes);

	return thc_register(shard, &tensor, 1, sizeof(tensor), timeout_ms);
}

#endif
