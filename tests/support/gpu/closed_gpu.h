/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closed_gpu - GPU memory that no other process can map, as the sleep modes make it: for the tests
 * of libthc that copy it.
 */
#ifndef TH_TESTS_SUPPORT_GPU_CLOSED_GPU_H
#define TH_TESTS_SUPPORT_GPU_CLOSED_GPU_H

#include "ipc/base/assert.h"
#include "ipc/cuda/driver.h"
#include "tests/support/cuda/machine.h"

#define CLOSED_CHUNK ((uint64_t)MACHINE_GRANULARITY)
#define CLOSED_OK(call) TH_ASSERT((call) == CUDA_SUCCESS)

static inline void
closed_map(const struct cuda *cuda, CUdeviceptr range, uint64_t count)
{
	const CUmemAllocationProp form = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	for (uint64_t i = 0; i < count; i++) {
		CUmemGenericAllocationHandle handle = 0;
		CLOSED_OK(cuda->cuMemCreate(&handle, CLOSED_CHUNK, &form, 0));
		CLOSED_OK(cuda->cuMemMap(range + i * CLOSED_CHUNK, CLOSED_CHUNK, 0, handle, 0));
		CLOSED_OK(cuda->cuMemRelease(handle));
	}
	CLOSED_OK(cuda->cuMemSetAccess(range, count * CLOSED_CHUNK, &access, 1));
}

/* A range of count chunks that have no handle types. */
static inline CUdeviceptr
closed_new(const struct cuda *cuda, uint64_t count)
{
	CUdeviceptr range = 0;

	CLOSED_OK(cuda->cuMemAddressReserve(&range, count * CLOSED_CHUNK, 0, 0, 0));
	closed_map(cuda, range, count);
	return range;
}

#endif
