/* SPDX-License-Identifier: Apache-2.0 */
/*
 * import - opens and closes a worker's GPU memory.
 */
#include "transport/cuda/import.h"

#include <errno.h>
#include <string.h>

static int
refuse(const struct cuda *cuda, CUresult result, const char *call, struct th_err *err)
{
	return th_fail(err, result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : TH_E_MEMORY_KIND,
		"a worker's GPU memory cannot be opened: %s says %s", call,
		cuda_result_name(cuda, result));
}

int
import_device(const struct cuda *cuda, const uint8_t uuid[16], struct th_err *err)
{
	int count = 0;
	CUresult result = cuda->cuDeviceGetCount(&count);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, "cuDeviceGetCount", err);
	for (int device = 0; device < count; device++) {
		CUuuid own;
		if (cuda->cuDeviceGetUuid(&own, device) == CUDA_SUCCESS &&
			memcmp(own.bytes, uuid, sizeof(own.bytes)) == 0)
			return device;
	}
	return th_fail(err, TH_E_NOT_AVAILABLE,
		"none of the %d GPUs that the agent sees is the worker's: give it all GPUs "
		"(NVIDIA_VISIBLE_DEVICES=all)",
		count);
}

/* ---- the kinds ------------------------------------------------------------------------------ */

/* What was opened has as many bytes as the worker says. */
static int
check_bytes(const struct cuda *cuda, const struct cuda_handle *handle, CUdeviceptr address,
	struct th_err *err)
{
	CUdeviceptr base = 0;
	size_t bytes = 0;
	CUresult result = cuda->cuMemGetAddressRange(&base, &bytes, address);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, "cuMemGetAddressRange", err);
	if (base != address || bytes < handle->bytes)
		return th_fail(err, TH_E_PROTOCOL,
			"a worker's handle says %llu bytes of GPU memory and opens %zu",
			(unsigned long long)handle->bytes, bytes);
	return 0;
}

static int
open_legacy(const struct cuda *cuda, const struct cuda_handle *handle, struct cuda_import *import,
	struct th_err *err)
{
	CUipcMemHandle data;
	memcpy(&data, handle->data, sizeof(data));
	CUresult result = cuda->cuIpcOpenMemHandle(
		&import->address, data, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, "cuIpcOpenMemHandle", err);
	int rc = check_bytes(cuda, handle, import->address, err);
	if (rc < 0)
		cuda->cuIpcCloseMemHandle(import->address);
	return rc;
}

static CUresult
open_access(const struct cuda *cuda, int device, CUdeviceptr address, uint64_t bytes)
{
	const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	return cuda->cuMemSetAccess(address, bytes, &access, 1);
}

/* The mapping alone keeps the memory: the handle goes at once, either way. */
static int
open_chunk(const struct cuda *cuda, int device, const struct cuda_handle *handle, int fd,
	struct cuda_import *import, struct th_err *err)
{
	CUmemGenericAllocationHandle chunk = 0;
	CUdeviceptr address = 0;
	const char *call = "cuMemImportFromShareableHandle";
	bool mapped = false;
	CUresult result = cuda->cuMemImportFromShareableHandle(
		&chunk, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, call, err);
	call = "cuMemAddressReserve";
	result = cuda->cuMemAddressReserve(&address, handle->bytes, 0, 0, 0);
	if (result == CUDA_SUCCESS) {
		call = "cuMemMap"; /* no more than the chunk has */
		result = cuda->cuMemMap(address, handle->bytes, 0, chunk, 0);
		mapped = result == CUDA_SUCCESS;
	}
	if (result == CUDA_SUCCESS) {
		call = "cuMemSetAccess";
		result = open_access(cuda, device, address, handle->bytes);
	}
	cuda->cuMemRelease(chunk);
	if (result == CUDA_SUCCESS) {
		import->address = address;
		return 0;
	}
	if (mapped)
		cuda->cuMemUnmap(address, handle->bytes);
	if (address)
		cuda->cuMemAddressFree(address, handle->bytes);
	return refuse(cuda, result, call, err);
}

static int
open_pool(const struct cuda *cuda, const struct cuda_handle *handle, int fd,
	struct cuda_import *import, struct th_err *err)
{
	CUmemPoolPtrExportData data;
	memcpy(&data, handle->data, sizeof(data));
	CUresult result = cuda->cuMemPoolImportFromShareableHandle(
		&import->pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, "cuMemPoolImportFromShareableHandle", err);
	result = cuda->cuMemPoolImportPointer(&import->address, import->pool, &data);
	int rc = result == CUDA_SUCCESS ? check_bytes(cuda, handle, import->address, err)
					: refuse(cuda, result, "cuMemPoolImportPointer", err);
	if (rc < 0 && result == CUDA_SUCCESS)
		cuda->cuMemFree(import->address);
	if (rc < 0)
		cuda->cuMemPoolDestroy(import->pool);
	return rc;
}

/* ---- both ends ------------------------------------------------------------------------------ */

static int
check(const struct cuda *cuda, int device, const struct cuda_handle *handle, int fd,
	struct th_err *err)
{
	bool takes_fd = handle->kind == CUDA_KIND_CHUNK || handle->kind == CUDA_KIND_CHUNKS ||
			handle->kind == CUDA_KIND_POOL;
	size_t total = 0;
	CUresult result = cuda->cuDeviceTotalMem(&total, device);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, "cuDeviceTotalMem", err);
	if ((!takes_fd && handle->kind != CUDA_KIND_LEGACY) || handle->reserved != 0)
		return th_fail(err, TH_E_PROTOCOL, "a worker's GPU memory is of no known kind (%u)",
			handle->kind);
	if (takes_fd != (fd >= 0))
		return th_fail(err, TH_E_PROTOCOL, "a worker's GPU memory came %s a descriptor",
			takes_fd ? "without" : "with");
	if (handle->bytes == 0 || handle->bytes > total)
		return th_fail(err, TH_E_PROTOCOL,
			"a worker's piece of GPU memory has %llu bytes, and the GPU %zu",
			(unsigned long long)handle->bytes, total);
	return 0;
}

int
import_new(const struct cuda *cuda, int device, const struct cuda_handle *handle, int fd,
	struct cuda_import *ret_import, struct th_err *err)
{
	struct cuda_import import = {.kind = (enum cuda_kind)handle->kind, .bytes = handle->bytes};
	int rc = check(cuda, device, handle, fd, err);
	if (rc < 0)
		return rc;
	if (handle->kind == CUDA_KIND_LEGACY)
		rc = open_legacy(cuda, handle, &import, err);
	else if (handle->kind == CUDA_KIND_POOL)
		rc = open_pool(cuda, handle, fd, &import, err);
	else
		rc = open_chunk(cuda, device, handle, fd, &import, err);
	if (rc == 0)
		*ret_import = import;
	return rc;
}

int
import_end(const struct cuda *cuda, struct cuda_import *import, struct th_err *err)
{
	CUresult first = CUDA_SUCCESS, second = CUDA_SUCCESS;
	if (!import->address)
		return 0;
	switch (import->kind) {
	case CUDA_KIND_LEGACY:
		first = cuda->cuIpcCloseMemHandle(import->address);
		break;
	case CUDA_KIND_CHUNK:
	case CUDA_KIND_CHUNKS:
		first = cuda->cuMemUnmap(import->address, import->bytes);
		second = cuda->cuMemAddressFree(import->address, import->bytes);
		break;
	case CUDA_KIND_POOL:
		first = cuda->cuMemFree(import->address);
		second = cuda->cuMemPoolDestroy(import->pool);
		break;
	case CUDA_KIND_CLOSED:
		break;
	}
	import->address = 0;
	import->pool = NULL;
	if (first == CUDA_SUCCESS)
		first = second;
	if (first == CUDA_SUCCESS)
		return 0;
	return th_fail(err, TH_E_MEMORY_KIND, "a worker's GPU memory cannot be closed: %s",
		cuda_result_name(cuda, first));
}
