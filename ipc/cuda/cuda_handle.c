/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_handle - makes what another process opens a piece of GPU memory by.
 */
#include "ipc/cuda/cuda_handle.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/cuda/context.h"

char *
cuda_uuid_text(const uint8_t uuid[16], char ret_text[CUDA_UUID_TEXT_BYTES])
{
	size_t at = (size_t)snprintf(ret_text, CUDA_UUID_TEXT_BYTES, "GPU-");
	for (int i = 0; i < 16; i++) {
		const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
		at += (size_t)snprintf(
			ret_text + at, CUDA_UUID_TEXT_BYTES - at, "%s%02x", dash, uuid[i]);
	}
	return ret_text;
}

static int
handle_refuse(const struct cuda *cuda, CUresult result, const char *call,
	const struct cuda_piece *piece, struct th_err *err)
{
	return th_fail(err, TH_E_MEMORY_KIND,
		"no handle for the GPU memory at 0x%llx (%s): %s says %s", piece->base,
		cuda_kind_name(piece->kind), call, cuda_result_name(cuda, result));
}

static int
make_legacy(const struct cuda *cuda, int device, const struct cuda_piece *piece,
	struct cuda_handle *handle, struct th_err *err)
{
	struct cuda_context context;
	CUipcMemHandle made;
	int rc = cuda_context_enter(cuda, device, piece->base, &context, err);
	if (rc < 0)
		return rc;
	CUresult result = cuda->cuIpcGetMemHandle(&made, piece->base);
	cuda_context_leave(&context);
	if (result != CUDA_SUCCESS)
		return handle_refuse(cuda, result, "cuIpcGetMemHandle", piece, err);
	memcpy(handle->data, &made, sizeof(made));
	return 0;
}

static int
make_chunk(const struct cuda *cuda, const struct cuda_piece *piece, int *ret_fd, struct th_err *err)
{
	CUmemGenericAllocationHandle retained = 0;
	int fd = -1;
	CUresult result =
		cuda->cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)piece->base);
	if (result != CUDA_SUCCESS)
		return handle_refuse(cuda, result, "cuMemRetainAllocationHandle", piece, err);
	result = cuda->cuMemExportToShareableHandle(
		&fd, retained, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	cuda->cuMemRelease(retained);
	if (result != CUDA_SUCCESS)
		return handle_refuse(cuda, result, "cuMemExportToShareableHandle", piece, err);
	*ret_fd = fd;
	return 0;
}

static int
make_pool(const struct cuda *cuda, const struct cuda_piece *piece, struct cuda_handle *handle,
	int *ret_fd, struct th_err *err)
{
	CUmemoryPool pool = NULL;
	CUmemPoolPtrExportData made;
	int fd = -1;
	CUresult result = cuda->cuPointerGetAttribute(
		&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, piece->base);
	if (result != CUDA_SUCCESS)
		return handle_refuse(cuda, result, "cuPointerGetAttribute", piece, err);
	result = cuda->cuMemPoolExportToShareableHandle(
		&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result != CUDA_SUCCESS)
		return handle_refuse(cuda, result, "cuMemPoolExportToShareableHandle", piece, err);
	result = cuda->cuMemPoolExportPointer(&made, piece->base);
	if (result != CUDA_SUCCESS) {
		th_fd_close(&fd);
		return handle_refuse(cuda, result, "cuMemPoolExportPointer", piece, err);
	}
	memcpy(handle->data, &made, sizeof(made));
	*ret_fd = fd;
	return 0;
}

int
cuda_handle_make(const struct cuda *cuda, int device, const struct cuda_piece *piece,
	struct cuda_handle *ret_handle, int *ret_fd, struct th_err *err)
{
	struct cuda_handle handle;
	CUuuid uuid;
	int fd = -1, rc = 0;
	memset(&handle, 0, sizeof(handle));
	CUresult result = cuda->cuDeviceGetUuid(&uuid, device);
	if (result != CUDA_SUCCESS)
		return handle_refuse(cuda, result, "cuDeviceGetUuid", piece, err);
	memcpy(handle.uuid, &uuid, sizeof(handle.uuid));
	handle.kind = piece->kind;
	handle.bytes = piece->bytes;
	handle.id = piece->id;
	switch (piece->kind) {
	case CUDA_KIND_LEGACY:
		rc = make_legacy(cuda, device, piece, &handle, err);
		break;
	case CUDA_KIND_CHUNK:
	case CUDA_KIND_CHUNKS:
		rc = make_chunk(cuda, piece, &fd, err);
		break;
	case CUDA_KIND_POOL:
		rc = make_pool(cuda, piece, &handle, &fd, err);
		break;
	case CUDA_KIND_CLOSED:
		rc = th_fail(err, TH_E_MEMORY_KIND,
			"the GPU memory at 0x%llx was allocated without a handle type, so that no "
			"other process can map it",
			piece->base);
		break;
	}
	if (rc < 0)
		return rc;
	*ret_handle = handle;
	*ret_fd = fd;
	return 0;
}

int
cuda_dmabuf_make(const struct cuda *cuda, int device, CUdeviceptr address, uint64_t bytes,
	int *ret_fd, uint64_t *ret_offset, struct th_err *err)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	CUdeviceptr from = address / page * page, to = 0;
	struct cuda_context context;
	int supported = 0, fd = -1;
	CUresult result = cuda->cuDeviceGetAttribute(
		&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device);
	if (result != CUDA_SUCCESS || !supported)
		return th_fail(err, TH_E_MEMORY_KIND,
			"GPU %d gives no dma-buf descriptors: it takes the open kernel modules",
			device);
	if (bytes == 0 || bytes > UINT64_MAX - page ||
		__builtin_add_overflow(address, bytes + page - 1, &to))
		return th_fail(err, TH_E_INVALID, "0x%llx has no %llu bytes behind it", address,
			(unsigned long long)bytes);
	to = to / page * page;
	int rc = cuda_context_enter(cuda, device, address, &context, err);
	if (rc < 0)
		return rc;
	result = cuda->cuMemGetHandleForAddressRange(
		&fd, from, (size_t)(to - from), CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	cuda_context_leave(&context);
	if (result != CUDA_SUCCESS)
		return th_fail(err, TH_E_MEMORY_KIND,
			"no dma-buf for the %llu bytes of GPU memory at 0x%llx: %s",
			(unsigned long long)bytes, address, cuda_result_name(cuda, result));
	*ret_fd = fd;
	*ret_offset = address - from;
	return 0;
}
