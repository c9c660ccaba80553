/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drivers - libcuda.so.1 as it may be and should not: compiled once for each DRIVER.
 *
 *   1  of CUDA 11.4: the cuGetProcAddress that is asked for is not there
 *   2  of CUDA 12.2, and one call is not there
 *   3  the toolkit's stub: everything returns CUDA_ERROR_STUB_LIBRARY
 *   4  of CUDA 13.0, whole; it returns what it was asked for, and no call does anything
 *   5  as 4, and says that it is of CUDA 11.8
 */
#include <stdint.h>
#include <string.h>

#include "ipc/cuda/driver.h"

#define EXPORT __attribute__((visibility("default")))

static const int versions[] = {0, 11040, 12020, 13000, 13000, 11080};

EXPORT CUresult cuDriverGetVersion(int *version);

EXPORT CUresult
cuDriverGetVersion(int *version)
{
	if (DRIVER == 3)
		return CUDA_ERROR_STUB_LIBRARY;
	*version = versions[DRIVER];
	return CUDA_SUCCESS;
}

#if DRIVER > 1
static CUresult
no_name(CUresult result, const char **name)
{
	*name = result == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : NULL;
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult
nothing(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **address, int version,
	unsigned long long flags, CUdriverProcAddressQueryResult *found);

EXPORT CUresult
cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long long flags,
	CUdriverProcAddressQueryResult *found)
{
	if (DRIVER == 3)
		return CUDA_ERROR_STUB_LIBRARY;
	*address = NULL;
	*found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (DRIVER == 2 && strcmp(name, "cuMemPoolDestroy") == 0)
		return CUDA_SUCCESS;
	*found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	if (version > 13000 || version < 2000 || flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM)
		return CUDA_ERROR_NOT_FOUND;
	*found = CU_GET_PROC_ADDRESS_SUCCESS;
	*address = strcmp(name, "cuGetErrorName") == 0 ? (void *)(uintptr_t)no_name
						       : (void *)(uintptr_t)nothing;
	return CUDA_SUCCESS;
}
#endif
