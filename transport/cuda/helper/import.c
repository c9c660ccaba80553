/* SPDX-License-Identifier: Apache-2.0 */
/*
 * import - opens and closes a worker's GPU memory.
 */
#include "transport/cuda/helper/import.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>
#include <utlist.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"

struct import_pool {
	CUmemoryPool pool;
	unsigned uses;
	struct import_pool *prev, *next;
};

struct import_pointer {
	struct pointer_key {
		CUmemoryPool pool; /* owns one use of it */
		CUmemPoolPtrExportData data;
	} key;
	CUdeviceptr address;
	unsigned uses;
	UT_hash_handle hh, hh_address;
};

void
import_pools_init(struct import_pools *pools)
{
	pools->first = NULL;
	pools->by_data = pools->by_address = NULL;
	pthread_mutex_init(&pools->lock, NULL);
}

static int
import_refuse(const struct cuda *cuda, CUresult result, const char *call, struct th_err *err)
{
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return th_fail(err, -ENOMEM,
			"a worker's GPU memory cannot be opened, the GPU has no room for it in the "
			"agent's process: %s says %s",
			call, cuda_result_name(cuda, result));
	return th_fail(err, TH_E_MEMORY_KIND, "a worker's GPU memory cannot be opened: %s says %s",
		call, cuda_result_name(cuda, result));
}

static int
refuse_own(const struct cuda *cuda, CUresult result, const char *call, struct th_err *err)
{
	return th_fail(err, result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : TH_E_MEMORY_KIND,
		"the agent has no memory of its own on the GPU: %s says %s", call,
		cuda_result_name(cuda, result));
}

/* What was opened in vain and cannot be closed is held until the process ends: -EIO. */
static int
import_undone(
	const struct cuda *cuda, CUresult result, const char *call, int rc, struct th_err *err)
{
	if (result == CUDA_SUCCESS || rc == -EIO) /* the first one counts */
		return rc;
	return th_fail(err, -EIO, "GPU memory that was opened in vain cannot be closed: %s says %s",
		call, cuda_result_name(cuda, result));
}

int
import_device(const struct cuda *cuda, const uint8_t uuid[16], struct th_err *err)
{
	int count = 0;
	CUresult failed = CUDA_SUCCESS, result = cuda->cuDeviceGetCount(&count);
	if (result != CUDA_SUCCESS)
		return import_refuse(cuda, result, "cuDeviceGetCount", err);
	for (int device = 0; device < count; device++) {
		CUuuid own;
		result = cuda->cuDeviceGetUuid(&own, device);
		if (result != CUDA_SUCCESS)
			failed = result;
		else if (memcmp(own.bytes, uuid, sizeof(own.bytes)) == 0)
			return device;
	}
	if (failed != CUDA_SUCCESS) /* it may be that one */
		return import_refuse(cuda, failed, "cuDeviceGetUuid", err);
	return th_fail(err, TH_E_NOT_AVAILABLE,
		"none of the %d GPUs that the agent sees is the worker's: a container of the agent "
		"needs all GPUs (NVIDIA_VISIBLE_DEVICES=all), and instances of MIG are not shared",
		count);
}

/* ---- the kinds ------------------------------------------------------------------------------ */

/* What was opened has as many bytes as the worker says. A small allocation may be a part of one
 * that the driver shares as a whole. */
static int
import_check_bytes(const struct cuda *cuda, const struct cuda_handle *handle, CUdeviceptr address,
	struct th_err *err)
{
	CUdeviceptr base = 0;
	size_t bytes = 0;
	CUresult result = cuda->cuMemGetAddressRange(&base, &bytes, address);
	if (result != CUDA_SUCCESS)
		return import_refuse(cuda, result, "cuMemGetAddressRange", err);
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
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return import_refuse(cuda, result, "cuIpcOpenMemHandle", err);
	if (result != CUDA_SUCCESS)
		return th_fail(err, TH_E_MEMORY_KIND,
			"a worker's GPU memory cannot be opened: cuIpcOpenMemHandle says %s; in "
			"containers both need the host's PID and IPC namespaces, or memory that is "
			"not cudaMalloc's",
			cuda_result_name(cuda, result));
	int rc = import_check_bytes(cuda, handle, import->address, err);
	if (rc < 0)
		rc = import_undone(cuda, cuda->cuIpcCloseMemHandle(import->address),
			"cuIpcCloseMemHandle", rc, err);
	return rc;
}

static CUresult
open_access(const struct cuda *cuda, int device, CUdeviceptr address, uint64_t bytes)
{
	const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	return cuda->cuMemSetAccess(address, bytes, &access, 1);
}

typedef int (*refuse_fn)(
	const struct cuda *cuda, CUresult result, const char *call, struct th_err *err);

/* The mapping alone keeps the memory: the handle goes at once, either way. */
static int
map_chunk(const struct cuda *cuda, int device, CUmemGenericAllocationHandle chunk,
	struct cuda_import *import, refuse_fn refuses, struct th_err *err)
{
	CUdeviceptr address = 0;
	bool mapped = false;
	const char *call = "cuMemAddressReserve";
	CUresult result = cuda->cuMemAddressReserve(&address, import->bytes, 0, 0, 0);
	if (result == CUDA_SUCCESS) {
		call = "cuMemMap"; /* no more than the chunk has */
		result = cuda->cuMemMap(address, import->bytes, 0, chunk, 0);
		mapped = result == CUDA_SUCCESS;
	}
	if (result == CUDA_SUCCESS) {
		call = "cuMemSetAccess";
		result = open_access(cuda, device, address, import->bytes);
	}
	int rc = result == CUDA_SUCCESS ? 0 : refuses(cuda, result, call, err);
	rc = import_undone(cuda, cuda->cuMemRelease(chunk), "cuMemRelease", rc, err);
	if (rc == 0) {
		import->address = address;
		return 0;
	}
	if (mapped)
		rc = import_undone(
			cuda, cuda->cuMemUnmap(address, import->bytes), "cuMemUnmap", rc, err);
	if (address)
		rc = import_undone(cuda, cuda->cuMemAddressFree(address, import->bytes),
			"cuMemAddressFree", rc, err);
	return rc;
}

static int
open_chunk(
	const struct cuda *cuda, int device, int fd, struct cuda_import *import, struct th_err *err)
{
	CUmemGenericAllocationHandle chunk = 0;
	CUresult result = cuda->cuMemImportFromShareableHandle(
		&chunk, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS)
		return import_refuse(cuda, result, "cuMemImportFromShareableHandle", err);
	return map_chunk(cuda, device, chunk, import, import_refuse, err);
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

/* With the lock. Takes the use of the pool, unless it fails. What the driver has at an address is
 * one import, whatever it was made of. */
static CUresult
import_pointer(const struct cuda *cuda, struct import_pools *pools, const struct pointer_key *key,
	struct import_pointer **ret_pointer)
{
	struct import_pointer *it;
	HASH_FIND(hh, pools->by_data, key, sizeof(*key), it);
	if (!it) {
		CUmemPoolPtrExportData data = key->data;
		CUdeviceptr address = 0;
		CUresult result = cuda->cuMemPoolImportPointer(&address, key->pool, &data);
		if (result != CUDA_SUCCESS)
			return result;
		HASH_FIND(hh_address, pools->by_address, &address, sizeof(address), it);
		if (!it) {
			it = th_calloc(1, sizeof(*it));
			it->key = *key;
			it->address = address;
			it->uses = 1;
			HASH_ADD(hh, pools->by_data, key, sizeof(it->key), it);
			HASH_ADD(hh_address, pools->by_address, address, sizeof(it->address), it);
			*ret_pointer = it;
			return CUDA_SUCCESS;
		}
	}
	it->uses++;
	*ret_pointer = it;
	return release_pool(cuda, pools, key->pool); /* the pointer has one: this is not the last */
}

/* With the lock. */
static CUresult
release_pointer(const struct cuda *cuda, struct import_pools *pools, struct import_pointer *pointer)
{
	if (--pointer->uses > 0)
		return CUDA_SUCCESS;
	HASH_DEL(pools->by_data, pointer);
	HASH_DELETE(hh_address, pools->by_address, pointer);
	CUresult first = cuda->cuMemFree(pointer->address);
	CUresult second = release_pool(cuda, pools, pointer->key.pool);
	free(pointer);
	return first == CUDA_SUCCESS ? second : first;
}

/* With the lock. Takes the use of the pool. */
static int
open_in_pool(const struct cuda *cuda, int device, bool peer, struct import_pools *pools,
	const struct cuda_handle *handle, CUmemoryPool pool, struct cuda_import *import,
	struct th_err *err)
{
	const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	struct pointer_key key = {.pool = pool};
	const char *call = "cuMemPoolSetAccess";
	CUresult result = CUDA_SUCCESS;
	memcpy(&key.data, handle->data, sizeof(key.data));
	if (peer) /* an imported pool is its own GPU's, whatever it was to who exported it */
		result = cuda->cuMemPoolSetAccess(pool, &access, 1);
	if (result == CUDA_SUCCESS) {
		call = "cuMemPoolImportPointer";
		result = import_pointer(cuda, pools, &key, &import->pointer);
	}
	if (result != CUDA_SUCCESS) {
		int rc = import_refuse(cuda, result, call, err);
		return import_undone(
			cuda, release_pool(cuda, pools, pool), "cuMemPoolDestroy", rc, err);
	}
	import->address = import->pointer->address;
	int rc = import_check_bytes(cuda, handle, import->address, err);
	if (rc < 0)
		rc = import_undone(
			cuda, release_pointer(cuda, pools, import->pointer), "cuMemFree", rc, err);
	return rc;
}

static int
open_pool(const struct cuda *cuda, int device, bool peer, struct import_pools *pools,
	const struct cuda_handle *handle, int fd, struct cuda_import *import, struct th_err *err)
{
	CUmemoryPool pool = NULL;
	pthread_mutex_lock(&pools->lock);
	CUresult result = import_pool(cuda, pools, fd, &pool);
	int rc = result == CUDA_SUCCESS
			 ? open_in_pool(cuda, device, peer, pools, handle, pool, import, err)
			 : import_refuse(cuda, result, "cuMemPoolImportFromShareableHandle", err);
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
		return import_refuse(cuda, result, "cuDeviceCanAccessPeer", err);
	if (!can)
		return th_fail(err, TH_E_MEMORY_KIND,
			"GPU %d does not reach the memory of GPU %d: there is no peer access "
			"(nvidia-smi topo -p2p r says why)",
			device, memory);
	return 0;
}

static int
import_check(const struct cuda *cuda, int memory, const struct cuda_handle *handle, int fd,
	struct th_err *err)
{
	bool takes_fd = handle->kind == CUDA_KIND_CHUNK || handle->kind == CUDA_KIND_CHUNKS ||
			handle->kind == CUDA_KIND_POOL;
	size_t total = 0;
	CUresult result = cuda->cuDeviceTotalMem(&total, memory);
	if (result != CUDA_SUCCESS)
		return import_refuse(cuda, result, "cuDeviceTotalMem", err);
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
	if (memory == TH_E_NOT_AVAILABLE)
		return th_fail(err, TH_E_MEMORY_KIND,
			"a worker's memory is on none of the GPUs that the agent sees: give it all "
			"GPUs (NVIDIA_VISIBLE_DEVICES=all)");
	if (memory < 0)
		return memory;
	int rc = import_check(cuda, memory, handle, fd, err);
	if (rc == 0 && memory != device)
		rc = check_peer(cuda, device, memory, err);
	if (rc < 0)
		return rc;
	if (handle->kind == CUDA_KIND_LEGACY)
		rc = open_legacy(cuda, handle, &import, err);
	else if (handle->kind == CUDA_KIND_POOL)
		rc = open_pool(cuda, device, memory != device, pools, handle, fd, &import, err);
	else
		rc = open_chunk(cuda, device, fd, &import, err);
	if (rc == 0)
		*ret_import = import;
	return rc;
}

/* ---- the process's own ---------------------------------------------------------------------- */

/* A peer may READ it: nothing that another process left there is to be seen. */
static int
clear(const struct cuda *cuda, const struct cuda_import *import, struct th_err *err)
{
	CUresult result = cuda->cuMemsetD8(import->address, 0, import->bytes);
	if (result != CUDA_SUCCESS)
		return refuse_own(cuda, result, "cuMemsetD8", err);
	result = cuda->cuStreamSynchronize(NULL);
	return result == CUDA_SUCCESS ? 0 : refuse_own(cuda, result, "cuStreamSynchronize", err);
}

static int
create(const struct cuda *cuda, int device, struct cuda_import *import, struct th_err *err)
{
	const CUmemAllocationProp form = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.allocFlags.gpuDirectRDMACapable = 1};
	CUmemGenericAllocationHandle chunk = 0;
	int supported = 0;
	CUresult result = cuda->cuDeviceGetAttribute(
		&supported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
	if (result != CUDA_SUCCESS || !supported)
		return th_fail(err, TH_E_MEMORY_KIND,
			"GPU %d has no memory by cuMemCreate that NICs reach", device);
	result = cuda->cuMemCreate(&chunk, import->bytes, &form, 0);
	if (result != CUDA_SUCCESS)
		return refuse_own(cuda, result, "cuMemCreate", err);
	return map_chunk(cuda, device, chunk, import, refuse_own, err);
}

int
import_own(const struct cuda *cuda, int device, uint64_t bytes, struct cuda_import *ret_import,
	int *ret_fd, struct th_err *err)
{
	struct cuda_import import = {.kind = CUDA_KIND_CHUNK, .bytes = bytes};
	uint64_t offset;
	int rc = create(cuda, device, &import, err);
	if (rc < 0)
		return rc;
	rc = clear(cuda, &import, err);
	if (rc == 0) /* it begins at a page: the offset is 0 */
		rc = cuda_dmabuf_make(cuda, device, import.address, bytes, ret_fd, &offset, err);
	struct th_err held;
	if (rc == 0)
		*ret_import = import;
	else if (import_end(cuda, NULL, &import, &held) < 0)
		rc = th_fail(err, -EIO, "%s", held.text);
	return rc;
}

/* ---- the end -------------------------------------------------------------------------------- */

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
		first = release_pointer(cuda, pools, import->pointer);
		pthread_mutex_unlock(&pools->lock);
		break;
	case CUDA_KIND_CLOSED:
		break;
	}
	import->address = 0;
	import->pointer = NULL;
	if (first == CUDA_SUCCESS)
		first = second;
	if (first == CUDA_SUCCESS)
		return 0;
	return th_fail(err, TH_E_MEMORY_KIND, "a worker's GPU memory cannot be closed: %s",
		cuda_result_name(cuda, first));
}
