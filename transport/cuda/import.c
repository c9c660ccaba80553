/* SPDX-License-Identifier: Apache-2.0 */
/*
 * import - opens and closes a worker's GPU memory.
 */
#include "transport/cuda/import.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"

struct import_pool {
	CUmemoryPool pool;
	unsigned uses;
	struct import_pool *prev, *next;
};

void
import_pools_init(struct import_pools *pools)
{
	pools->first = NULL;
	pthread_mutex_init(&pools->lock, NULL);
}

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

/* What was opened has as many bytes as the worker says. A small allocation may be a part of one
 * that the driver shares as a whole. */
static int
check_bytes(const struct cuda *cuda, const struct cuda_handle *handle, CUdeviceptr address,
	struct th_err *err)
{
	CUdeviceptr base = 0;
	size_t bytes = 0;
	CUresult result = cuda->cuMemGetAddressRange(&base, &bytes, address);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, "cuMemGetAddressRange", err);
	if (address < base || !th_range_fits(address - base, handle->bytes, bytes))
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

/* With the lock. */
static CUresult
release_pool(const struct cuda *cuda, struct import_pools *pools, CUmemoryPool pool)
{
	struct import_pool *it;
	DL_SEARCH_SCALAR(pools->first, it, pool, pool);
	TH_ASSERT(it);
	if (--it->uses > 0)
		return CUDA_SUCCESS;
	DL_DELETE(pools->first, it);
	free(it);
	return cuda->cuMemPoolDestroy(pool);
}

/* With the lock. */
static CUresult
import_pool(const struct cuda *cuda, struct import_pools *pools, int fd, CUmemoryPool *ret_pool)
{
	CUmemoryPool pool = NULL;
	struct import_pool *it;
	CUresult result = cuda->cuMemPoolImportFromShareableHandle(
		&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result != CUDA_SUCCESS)
		return result;
	DL_SEARCH_SCALAR(pools->first, it, pool, pool);
	if (!it) {
		it = th_calloc(1, sizeof(*it));
		it->pool = pool;
		DL_APPEND(pools->first, it);
	}
	it->uses++;
	*ret_pool = pool;
	return CUDA_SUCCESS;
}

/* With the lock. */
static int
open_in_pool(const struct cuda *cuda, int device, bool peer, const struct cuda_handle *handle,
	struct cuda_import *import, struct th_err *err)
{
	const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemPoolPtrExportData data;
	CUresult result = CUDA_SUCCESS;
	if (peer) /* an imported pool is its own GPU's, whatever it was to who exported it */
		result = cuda->cuMemPoolSetAccess(import->pool, &access, 1);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, "cuMemPoolSetAccess", err);
	memcpy(&data, handle->data, sizeof(data));
	result = cuda->cuMemPoolImportPointer(&import->address, import->pool, &data);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, "cuMemPoolImportPointer", err);
	int rc = check_bytes(cuda, handle, import->address, err);
	if (rc < 0)
		cuda->cuMemFree(import->address);
	return rc;
}

static int
open_pool(const struct cuda *cuda, int device, bool peer, struct import_pools *pools,
	const struct cuda_handle *handle, int fd, struct cuda_import *import, struct th_err *err)
{
	pthread_mutex_lock(&pools->lock);
	CUresult result = import_pool(cuda, pools, fd, &import->pool);
	int rc = result == CUDA_SUCCESS
			 ? open_in_pool(cuda, device, peer, handle, import, err)
			 : refuse(cuda, result, "cuMemPoolImportFromShareableHandle", err);
	if (rc < 0 && result == CUDA_SUCCESS)
		release_pool(cuda, pools, import->pool);
	pthread_mutex_unlock(&pools->lock);
	return rc;
}

/* ---- both ends ------------------------------------------------------------------------------ */

/* Another GPU's memory must be in this one's reach: that a driver refuses it otherwise, and how, is
 * not documented for all kinds. */
static int
check_peer(const struct cuda *cuda, int device, int memory, struct th_err *err)
{
	int can = 0;
	CUresult result = cuda->cuDeviceCanAccessPeer(&can, device, memory);
	if (result != CUDA_SUCCESS)
		return refuse(cuda, result, "cuDeviceCanAccessPeer", err);
	if (!can)
		return th_fail(err, TH_E_MEMORY_KIND,
			"GPU %d does not reach the memory of GPU %d: there is no peer access",
			device, memory);
	return 0;
}

static int
check(const struct cuda *cuda, int memory, const struct cuda_handle *handle, int fd,
	struct th_err *err)
{
	bool takes_fd = handle->kind == CUDA_KIND_CHUNK || handle->kind == CUDA_KIND_CHUNKS ||
			handle->kind == CUDA_KIND_POOL;
	size_t total = 0;
	CUresult result = cuda->cuDeviceTotalMem(&total, memory);
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
import_new(const struct cuda *cuda, int device, struct import_pools *pools,
	const struct cuda_handle *handle, int fd, struct cuda_import *ret_import,
	struct th_err *err)
{
	struct cuda_import import = {.kind = (enum cuda_kind)handle->kind, .bytes = handle->bytes};
	int memory = import_device(cuda, handle->uuid, err);
	if (memory < 0)
		return th_fail(err, TH_E_MEMORY_KIND,
			"a worker's memory is on none of the GPUs that the agent sees: give it all "
			"GPUs (NVIDIA_VISIBLE_DEVICES=all)");
	int rc = check(cuda, memory, handle, fd, err);
	if (rc == 0 && memory != device)
		rc = check_peer(cuda, device, memory, err);
	if (rc < 0)
		return rc;
	if (handle->kind == CUDA_KIND_LEGACY)
		rc = open_legacy(cuda, handle, &import, err);
	else if (handle->kind == CUDA_KIND_POOL)
		rc = open_pool(cuda, device, memory != device, pools, handle, fd, &import, err);
	else
		rc = open_chunk(cuda, device, handle, fd, &import, err);
	if (rc == 0)
		*ret_import = import;
	return rc;
}

int
import_end(const struct cuda *cuda, struct import_pools *pools, struct cuda_import *import,
	struct th_err *err)
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
		pthread_mutex_lock(&pools->lock);
		first = cuda->cuMemFree(import->address);
		second = release_pool(cuda, pools, import->pool);
		pthread_mutex_unlock(&pools->lock);
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
