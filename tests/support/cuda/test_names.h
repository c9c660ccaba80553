/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_names - calls of the driver that only tests make, as ipc/cuda/names.h has the others.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_TEST_NAMES_H
#define TH_TESTS_SUPPORT_CUDA_TEST_NAMES_H

#include "ipc/cuda/names.h"

#define CUDA_TEST_CALLS(X)                                                                         \
	X(cuGetErrorString, 6000, (CUresult result, const char **text))                            \
	X(cuCtxCreate, 3020, (CUcontext * context, unsigned flags, CUdevice device))               \
	X(cuCtxDestroy, 4000, (CUcontext context))                                                 \
	X(cuCtxSynchronize, 2000, (void))                                                          \
	X(cuCtxEnablePeerAccess, 4000, (CUcontext peer, unsigned flags))                           \
	X(cuPointerSetAttribute, 6000,                                                             \
		(const void *value, CUpointer_attribute attribute, CUdeviceptr address))           \
	X(cuMemGetInfo, 3020, (size_t * free_bytes, size_t * total_bytes))                         \
	X(cuMemAlloc, 3020, (CUdeviceptr * address, size_t bytes))                                 \
	X(cuMemGetAllocationGranularity, 10020,                                                    \
		(size_t * bytes, const CUmemAllocationProp *properties,                            \
			CUmemAllocationGranularity_flags option))                                  \
	X(cuMemGetAllocationPropertiesFromHandle, 10020,                                           \
		(CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle))           \
	X(cuMemPoolCreate, 11020, (CUmemoryPool * pool, const CUmemPoolProps *properties))         \
	X(cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool * pool, CUdevice device))                \
	X(cuMemAllocFromPoolAsync, 11020,                                                          \
		(CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream))         \
	X(cuMemFreeAsync, 11020, (CUdeviceptr address, CUstream stream))                           \
	X(cuMemAllocManaged, 6000, (CUdeviceptr * address, size_t bytes, unsigned flags))          \
	X(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned flags))               \
	X(cuEventDestroy, 4000, (CUevent event))                                                   \
	X(cuEventQuery, 2000, (CUevent event))                                                     \
	X(cuMemcpyHtoD, 3020, (CUdeviceptr to, const void *from, size_t bytes))                    \
	X(cuMemcpyDtoH, 3020, (void *to, CUdeviceptr from, size_t bytes))                          \
	X(cuMemcpyDtoD, 3020, (CUdeviceptr to, CUdeviceptr from, size_t bytes))                    \
	X(cuMemcpyPeerAsync, 4000,                                                                 \
		(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,   \
			size_t bytes, CUstream stream))

#define CUDA_ALL_CALLS(X) CUDA_CALLS(X) CUDA_TEST_CALLS(X)

#endif
