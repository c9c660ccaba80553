/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver - the CUDA driver's calls, by dlopen, as a table.
 *
 * Nothing is linked and nothing of NVIDIA's is needed to build. It stands in ipc because a worker's
 * library and the agent's GPU process both use it. Where the process has libcuda.so.1 already, as
 * every framework's has, that copy is taken: a second one would know nothing of its contexts.
 * The entries come from cuGetProcAddress with the version whose form is declared in names.h, never
 * from plain symbols, whose forms change from release to release.
 *
 * Opening makes no call that touches a GPU, not even cuInit. Any thread; the table is read-only
 * once it is open. The types and their names are the driver's.
 */
#ifndef TH_IPC_CUDA_DRIVER_H
#define TH_IPC_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include "ipc/base/err.h"
#include "ipc/cuda/names.h"

#define CUDA_LIBRARY "libcuda.so.1"
#define CUDA_VERSION_MIN 12000 /* what brought the cuGetProcAddress that says why it fails */

#define CUDA_ENUM(name, number) name = (number),
typedef enum { CUDA_RESULTS(CUDA_ENUM) } CUresult;
typedef enum { CUDA_POINTER_ATTRIBUTES(CUDA_ENUM) } CUpointer_attribute;
typedef enum { CUDA_DEVICE_ATTRIBUTES(CUDA_ENUM) } CUdevice_attribute;
typedef enum { CUDA_MEMORY_TYPES(CUDA_ENUM) } CUmemorytype;
typedef enum { CUDA_HANDLE_TYPES(CUDA_ENUM) } CUmemAllocationHandleType;
typedef enum { CUDA_LOCATION_TYPES(CUDA_ENUM) } CUmemLocationType;
typedef enum { CUDA_ALLOCATION_TYPES(CUDA_ENUM) } CUmemAllocationType;
typedef enum { CUDA_ACCESS_FLAGS(CUDA_ENUM) } CUmemAccess_flags;
typedef enum { CUDA_GRANULARITIES(CUDA_ENUM) } CUmemAllocationGranularity_flags;
typedef enum { CUDA_RANGE_HANDLE_TYPES(CUDA_ENUM) } CUmemRangeHandleType;
typedef enum { CUDA_QUERY_RESULTS(CUDA_ENUM) } CUdriverProcAddressQueryResult;
enum cuda_number { CUDA_NUMBERS(CUDA_ENUM) };
#undef CUDA_ENUM

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;

typedef struct {
	char bytes[16];
} CUuuid;

typedef struct {
	char reserved[CU_IPC_HANDLE_SIZE];
} CUipcMemHandle;

typedef struct {
	CUmemLocationType type;
	int id; /* of a device: its ordinal */
} CUmemLocation;

typedef struct {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes; /* a bit for each */
	CUmemLocation location;
	void *win32HandleMetaData; /* NULL */
	struct {
		unsigned char compressionType, gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct {
	CUmemAllocationType allocType;
	CUmemAllocationHandleType handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes; /* NULL */
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54]; /* zeroes */
} CUmemPoolProps;

typedef struct {
	unsigned char reserved[64];
} CUmemPoolPtrExportData;

struct cuda {
#define CUDA_ENTRY(name, version, arguments) CUresult(*name) arguments;
	CUDA_CALLS(CUDA_ENTRY)
#undef CUDA_ENTRY
	void *library;   /* owns one reference */
	bool was_loaded; /* the process had it before */
	int version;     /* of the driver: 13000 is CUDA 13.0 */
};

/*
 * 0, or with a sentence: -ENOENT where there is no libcuda.so.1 and so no GPU to speak of, -ENOSYS
 * where it is there and lacks something, -ENODEV where it is the toolkit's stub, which only links.
 */
int cuda_open(struct cuda *ret_cuda, struct th_err *err);

/* Gives the reference back. Never while a call runs; twice does nothing. */
void cuda_close(struct cuda *cuda);

/* "CUDA_ERROR_OUT_OF_MEMORY"; "an unknown CUDA error" for what the driver has no name for. */
const char *cuda_result_name(const struct cuda *cuda, CUresult result);

#endif
