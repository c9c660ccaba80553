/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names - what this project uses of the CUDA driver, as lists: numbers, types, calls.
 *
 * Only macros, so that a test can read the lists beside NVIDIA's cuda.h and compare. The names are
 * NVIDIA's: who knows the interface can read our code, and the other way round. Numbers and forms
 * are facts of a binary interface that never change once released; a later form of a call gets a
 * new version.
 */
#ifndef TH_IPC_CUDA_NAMES_H
#define TH_IPC_CUDA_NAMES_H

#define CUDA_RESULTS(X)                                                                            \
	X(CUDA_SUCCESS, 0)                                                                         \
	X(CUDA_ERROR_INVALID_VALUE, 1)                                                             \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                             \
	X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                           \
	X(CUDA_ERROR_DEINITIALIZED, 4)                                                             \
	X(CUDA_ERROR_STUB_LIBRARY, 34)                                                             \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                                                       \
	X(CUDA_ERROR_NO_DEVICE, 100)                                                               \
	X(CUDA_ERROR_INVALID_DEVICE, 101)                                                          \
	X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                         \
	X(CUDA_ERROR_MAP_FAILED, 205)                                                              \
	X(CUDA_ERROR_ALREADY_MAPPED, 208)                                                          \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                                       \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                                       \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                                                 \
	X(CUDA_ERROR_INVALID_PTX, 218)                                                             \
	X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221)                                                  \
	X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)                                                 \
	X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223)                                                \
	X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                                        \
	X(CUDA_ERROR_INVALID_HANDLE, 400)                                                          \
	X(CUDA_ERROR_NOT_FOUND, 500)                                                               \
	X(CUDA_ERROR_NOT_READY, 600)                                                               \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                         \
	X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)                                             \
	X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708)                                                  \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                                                    \
	X(CUDA_ERROR_TOO_MANY_PEERS, 711)                                                          \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                          \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                                              \
	X(CUDA_ERROR_LAUNCH_FAILED, 719)                                                           \
	X(CUDA_ERROR_NOT_PERMITTED, 800)                                                           \
	X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                           \
	X(CUDA_ERROR_SYSTEM_NOT_READY, 802)                                                        \
	X(CUDA_ERROR_UNKNOWN, 999)

#define CUDA_POINTER_ATTRIBUTES(X)                                                                 \
	X(CU_POINTER_ATTRIBUTE_CONTEXT, 1)                                                         \
	X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                                                     \
	X(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 6)                                                     \
	X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)                                                       \
	X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)                                                      \
	X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                                                  \
	X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10)                                     \
	X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)                                               \
	X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12)                                                     \
	X(CU_POINTER_ATTRIBUTE_MAPPED, 13)                                                         \
	X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14)                                           \
	X(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, 15)                                     \
	X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17)                                                 \
	X(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 18)                                                   \
	X(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 19)                                              \
	X(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, 20)

#define CUDA_DEVICE_ATTRIBUTES(X)                                                                  \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 20)                                                    \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                        \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                        \
	X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                            \
	X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)                    \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110)                        \
	X(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 115)                                         \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 116)                                      \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 118)                                \
	X(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 119)                                 \
	X(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 124)

#define CUDA_MEMORY_TYPES(X)                                                                       \
	X(CU_MEMORYTYPE_HOST, 1)                                                                   \
	X(CU_MEMORYTYPE_DEVICE, 2)

#define CUDA_HANDLE_TYPES(X)                                                                       \
	X(CU_MEM_HANDLE_TYPE_NONE, 0)                                                              \
	X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                                             \
	X(CU_MEM_HANDLE_TYPE_FABRIC, 8)

#define CUDA_LOCATION_TYPES(X)                                                                     \
	X(CU_MEM_LOCATION_TYPE_INVALID, 0)                                                         \
	X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                                          \
	X(CU_MEM_LOCATION_TYPE_HOST, 2)                                                            \
	X(CU_MEM_LOCATION_TYPE_HOST_NUMA, 3)

#define CUDA_ALLOCATION_TYPES(X)                                                                   \
	X(CU_MEM_ALLOCATION_TYPE_INVALID, 0)                                                       \
	X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)

#define CUDA_ACCESS_FLAGS(X)                                                                       \
	X(CU_MEM_ACCESS_FLAGS_PROT_NONE, 0)                                                        \
	X(CU_MEM_ACCESS_FLAGS_PROT_READ, 1)                                                        \
	X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)

#define CUDA_GRANULARITIES(X)                                                                      \
	X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                                     \
	X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)

#define CUDA_RANGE_HANDLE_TYPES(X) X(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1)

#define CUDA_QUERY_RESULTS(X)                                                                      \
	X(CU_GET_PROC_ADDRESS_SUCCESS, 0)                                                          \
	X(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, 1)                                                 \
	X(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, 2)

/* Of arguments that are plain integers. */
#define CUDA_NUMBERS(X)                                                                            \
	X(CU_GET_PROC_ADDRESS_LEGACY_STREAM, 1)                                                    \
	X(CU_COMPUTEMODE_DEFAULT, 0)                                                               \
	X(CU_COMPUTEMODE_PROHIBITED, 2)                                                            \
	X(CU_COMPUTEMODE_EXCLUSIVE_PROCESS, 3)                                                     \
	X(CU_CTX_SCHED_BLOCKING_SYNC, 4)                                                           \
	X(CU_EVENT_DEFAULT, 0)                                                                     \
	X(CU_EVENT_BLOCKING_SYNC, 1)                                                               \
	X(CU_EVENT_DISABLE_TIMING, 2)                                                              \
	X(CU_IPC_HANDLE_SIZE, 64)                                                                  \
	X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)                                                   \
	X(CU_MEMHOSTREGISTER_PORTABLE, 1)                                                          \
	X(CU_MEMHOSTREGISTER_DEVICEMAP, 2)                                                         \
	X(CU_MEM_ATTACH_GLOBAL, 1)                                                                 \
	X(CU_STREAM_DEFAULT, 0)                                                                    \
	X(CU_STREAM_NON_BLOCKING, 1)

/* Types whose size and alignment the driver relies on. */
#define CUDA_TYPES(X)                                                                              \
	X(CUresult)                                                                                \
	X(CUdevice)                                                                                \
	X(CUdevice_attribute)                                                                      \
	X(CUdeviceptr)                                                                             \
	X(CUcontext)                                                                               \
	X(CUmodule)                                                                                \
	X(CUfunction)                                                                              \
	X(CUstream)                                                                                \
	X(CUevent)                                                                                 \
	X(CUmemoryPool)                                                                            \
	X(CUmemGenericAllocationHandle)                                                            \
	X(CUmemAllocationGranularity_flags)                                                        \
	X(CUmemAllocationHandleType)                                                               \
	X(CUmemAllocationProp)                                                                     \
	X(CUmemAllocationType)                                                                     \
	X(CUmemAccessDesc)                                                                         \
	X(CUmemAccess_flags)                                                                       \
	X(CUmemLocation)                                                                           \
	X(CUmemLocationType)                                                                       \
	X(CUmemPoolProps)                                                                          \
	X(CUmemPoolPtrExportData)                                                                  \
	X(CUmemRangeHandleType)                                                                    \
	X(CUmemorytype)                                                                            \
	X(CUpointer_attribute)                                                                     \
	X(CUipcMemHandle)                                                                          \
	X(CUuuid)                                                                                  \
	X(CUdriverProcAddressQueryResult)

/* All members of all structures. */
#define CUDA_MEMBERS(X)                                                                            \
	X(CUipcMemHandle, reserved)                                                                \
	X(CUuuid, bytes)                                                                           \
	X(CUmemLocation, type)                                                                     \
	X(CUmemLocation, id)                                                                       \
	X(CUmemAllocationProp, type)                                                               \
	X(CUmemAllocationProp, requestedHandleTypes)                                               \
	X(CUmemAllocationProp, location)                                                           \
	X(CUmemAllocationProp, win32HandleMetaData)                                                \
	X(CUmemAllocationProp, allocFlags.compressionType)                                         \
	X(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)                                    \
	X(CUmemAllocationProp, allocFlags.usage)                                                   \
	X(CUmemAllocationProp, allocFlags.reserved)                                                \
	X(CUmemAccessDesc, location)                                                               \
	X(CUmemAccessDesc, flags)                                                                  \
	X(CUmemPoolProps, allocType)                                                               \
	X(CUmemPoolProps, handleTypes)                                                             \
	X(CUmemPoolProps, location)                                                                \
	X(CUmemPoolProps, win32SecurityAttributes)                                                 \
	X(CUmemPoolProps, maxSize)                                                                 \
	X(CUmemPoolProps, usage)                                                                   \
	X(CUmemPoolProps, reserved)                                                                \
	X(CUmemPoolPtrExportData, reserved)

/*
 * name, the version of CUDA that brought the form that is meant, arguments. All return CUresult.
 * The version matters: by its plain name cuCtxCreate, say, has had four different forms.
 */
#define CUDA_CALLS(X)                                                                              \
	X(cuInit, 2000, (unsigned flags))                                                          \
	X(cuDriverGetVersion, 2020, (int *version))                                                \
	X(cuGetErrorName, 6000, (CUresult result, const char **name))                              \
	/* devices */                                                                              \
	X(cuDeviceGetCount, 2000, (int *count))                                                    \
	X(cuDeviceGet, 2000, (CUdevice * device, int ordinal))                                     \
	X(cuDeviceGetName, 2000, (char *name, int bytes, CUdevice device))                         \
	X(cuDeviceGetUuid, 11040, (CUuuid * uuid, CUdevice device))                                \
	X(cuDeviceGetPCIBusId, 4010, (char *name, int bytes, CUdevice device))                     \
	X(cuDeviceGetAttribute, 2000, (int *value, CUdevice_attribute attribute, CUdevice device)) \
	X(cuDeviceTotalMem, 3020, (size_t * bytes, CUdevice device))                               \
	X(cuDeviceCanAccessPeer, 4000, (int *can, CUdevice device, CUdevice peer))                 \
	/* contexts */                                                                             \
	X(cuDevicePrimaryCtxRetain, 7000, (CUcontext * context, CUdevice device))                  \
	X(cuDevicePrimaryCtxRelease, 11000, (CUdevice device))                                     \
	X(cuDevicePrimaryCtxSetFlags, 11000, (CUdevice device, unsigned flags))                    \
	X(cuDevicePrimaryCtxGetState, 7000, (CUdevice device, unsigned *flags, int *active))       \
	X(cuCtxPushCurrent, 4000, (CUcontext context))                                             \
	X(cuCtxPopCurrent, 4000, (CUcontext * context))                                            \
	X(cuCtxSetCurrent, 4000, (CUcontext context))                                              \
	X(cuCtxGetCurrent, 4000, (CUcontext * context))                                            \
	X(cuCtxGetDevice, 2000, (CUdevice * device))                                               \
	X(cuCtxGetStreamPriorityRange, 5050, (int *least, int *greatest))                          \
	/* what an address is */                                                                   \
	X(cuPointerGetAttribute, 4000,                                                             \
		(void *value, CUpointer_attribute attribute, CUdeviceptr address))                 \
	X(cuPointerGetAttributes, 7000,                                                            \
		(unsigned count, CUpointer_attribute *attributes, void **values,                   \
			CUdeviceptr address))                                                      \
	X(cuMemGetAddressRange, 3020, (CUdeviceptr * base, size_t * bytes, CUdeviceptr address))   \
	/* legacy memory, and its handles for other processes */                                   \
	X(cuMemFree, 3020, (CUdeviceptr address))                                                  \
	X(cuIpcGetMemHandle, 4010, (CUipcMemHandle * handle, CUdeviceptr address))                 \
	X(cuIpcOpenMemHandle, 11000,                                                               \
		(CUdeviceptr * address, CUipcMemHandle handle, unsigned flags))                    \
	X(cuIpcCloseMemHandle, 4010, (CUdeviceptr address))                                        \
	/* memory in physical chunks that are mapped to reserved addresses */                      \
	X(cuMemCreate, 10020,                                                                      \
		(CUmemGenericAllocationHandle * handle, size_t bytes,                              \
			const CUmemAllocationProp *properties, unsigned long long flags))          \
	X(cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))                              \
	X(cuMemRetainAllocationHandle, 11000,                                                      \
		(CUmemGenericAllocationHandle * handle, void *address))                            \
	X(cuMemExportToShareableHandle, 10020,                                                     \
		(void *shareable, CUmemGenericAllocationHandle handle,                             \
			CUmemAllocationHandleType type, unsigned long long flags))                 \
	X(cuMemImportFromShareableHandle, 10020,                                                   \
		(CUmemGenericAllocationHandle * handle, void *shareable,                           \
			CUmemAllocationHandleType type))                                           \
	X(cuMemAddressReserve, 10020,                                                              \
		(CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr hint,          \
			unsigned long long flags))                                                 \
	X(cuMemAddressFree, 10020, (CUdeviceptr address, size_t bytes))                            \
	X(cuMemMap, 10020,                                                                         \
		(CUdeviceptr address, size_t bytes, size_t offset,                                 \
			CUmemGenericAllocationHandle handle, unsigned long long flags))            \
	X(cuMemUnmap, 10020, (CUdeviceptr address, size_t bytes))                                  \
	X(cuMemSetAccess, 10020,                                                                   \
		(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count))  \
	X(cuMemGetHandleForAddressRange, 11070,                                                    \
		(void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,       \
			unsigned long long flags))                                                 \
	/* memory pools */                                                                         \
	X(cuMemPoolDestroy, 11020, (CUmemoryPool pool))                                            \
	X(cuMemPoolSetAccess, 11020,                                                               \
		(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count))                  \
	X(cuMemPoolExportToShareableHandle, 11020,                                                 \
		(void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type,               \
			unsigned long long flags))                                                 \
	X(cuMemPoolImportFromShareableHandle, 11020,                                               \
		(CUmemoryPool * pool, void *shareable, CUmemAllocationHandleType type,             \
			unsigned long long flags))                                                 \
	X(cuMemPoolExportPointer, 11020, (CUmemPoolPtrExportData * data, CUdeviceptr address))     \
	X(cuMemPoolImportPointer, 11020,                                                           \
		(CUdeviceptr * address, CUmemoryPool pool, CUmemPoolPtrExportData * data))         \
	/* host memory */                                                                          \
	X(cuMemHostRegister, 6050, (void *data, size_t bytes, unsigned flags))                     \
	X(cuMemHostUnregister, 4000, (void *data))                                                 \
	X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr * address, void *data, unsigned flags))    \
	/* streams and events */                                                                   \
	X(cuStreamCreateWithPriority, 5050, (CUstream * stream, unsigned flags, int priority))     \
	X(cuStreamDestroy, 4000, (CUstream stream))                                                \
	X(cuStreamQuery, 2000, (CUstream stream))                                                  \
	X(cuStreamSynchronize, 2000, (CUstream stream))                                            \
	X(cuEventCreate, 2000, (CUevent * event, unsigned flags))                                  \
	X(cuEventRecord, 2000, (CUevent event, CUstream stream))                                   \
	X(cuEventSynchronize, 2000, (CUevent event))                                               \
	/* copies */                                                                               \
	X(cuMemsetD8, 3020, (CUdeviceptr to, unsigned char value, size_t bytes))                   \
	X(cuMemcpyHtoDAsync, 3020,                                                                 \
		(CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                 \
	X(cuMemcpyDtoHAsync, 3020, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))    \
	X(cuMemcpyDtoDAsync, 3020,                                                                 \
		(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                 \
	/* kernels */                                                                              \
	X(cuModuleLoadData, 2000, (CUmodule * module, const void *image))                          \
	X(cuModuleUnload, 2000, (CUmodule module))                                                 \
	X(cuModuleGetFunction, 2000, (CUfunction * function, CUmodule module, const char *name))   \
	X(cuLaunchKernel, 4000,                                                                    \
		(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,           \
			unsigned block_x, unsigned block_y, unsigned block_z,                      \
			unsigned shared_bytes, CUstream stream, void **arguments, void **extra))

#endif
