/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm - physical memory by handles, reserved addresses, mappings, and descriptors of both kinds.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "tests/support/cuda/calls.h"
#include "tests/support/cuda/gpu.h"

#define HANDLE_BASE 0x7600000000ull /* no small number, so that no index passes for a handle */

struct handle {
	unsigned refs, maps; /* it is gone when both are 0 */
	int chunk;
	CUmemAllocationProp properties;
};

struct reservation {
	CUdeviceptr base;
	size_t bytes;
};

static struct handle *handles;
static size_t num_handles;
static struct reservation *reservations;
static size_t num_reservations;

/* ---- handles -------------------------------------------------------------------------------- */

static struct handle *
handle_of(CUmemGenericAllocationHandle number)
{
	if (number < HANDLE_BASE || number >= HANDLE_BASE + num_handles)
		return NULL;
	struct handle *handle = &handles[number - HANDLE_BASE];
	return handle->refs ? handle : NULL;
}

static CUmemGenericAllocationHandle
add_handle(int chunk, const CUmemAllocationProp *properties)
{
	handles = th_realloc(handles, num_handles + 1, sizeof(*handles));
	handles[num_handles] =
		(struct handle){.refs = 1, .chunk = chunk, .properties = *properties};
	gpu_count(HELD_HANDLES, 1);
	return HANDLE_BASE + num_handles++;
}

static void
settle_handle(struct handle *handle)
{
	if (handle->refs || handle->maps)
		return;
	gpu_drop(handle->chunk);
	handle->chunk = -1;
}

const CUmemAllocationProp *
gpu_properties(const struct region *region)
{
	return region->kind == REGION_VMM ? &handles[region->handle - HANDLE_BASE].properties
					  : NULL;
}

static CUresult
check_properties(const CUmemAllocationProp *properties)
{
	if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
		properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!gpu_is_device(properties->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

CUresult
cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
	CUmemAllocationGranularity_flags option)
{
	ENTER(cuMemGetAllocationGranularity);
	(void)option;
	CUresult result = check_properties(properties);
	if (result == CUDA_SUCCESS)
		*bytes = MACHINE_GRANULARITY;
	return result;
}

CUresult
cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *properties, unsigned long long flags)
{
	ENTER(cuMemCreate);
	CUresult result = check_properties(properties);
	if (result != CUDA_SUCCESS)
		return result;
	int device = properties->location.id, chunk = -1;
	if (flags != 0 || bytes == 0 || bytes % MACHINE_GRANULARITY != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if ((int)properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED; /* no fabric here */
	if (gpu_lost(device) != CUDA_SUCCESS)
		return gpu_lost(device);
	struct machine_chunk form = {.device = device,
		.kind = MACHINE_VMM,
		.bytes = bytes,
		.types = (int)properties->requestedHandleTypes,
		.rdma = properties->allocFlags.gpuDirectRDMACapable != 0,
		.owner = gpu.pid};
	pthread_mutex_lock(&gpu.lock);
	result = gpu_take(&form, &chunk);
	if (result == CUDA_SUCCESS)
		*handle = add_handle(chunk, properties);
	return gpu_leave(result);
}

CUresult
cuMemRelease(CUmemGenericAllocationHandle number)
{
	ENTER(cuMemRelease);
	pthread_mutex_lock(&gpu.lock);
	struct handle *handle = handle_of(number);
	if (!handle)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	handle->refs--;
	gpu_count(HELD_HANDLES, -1);
	settle_handle(handle);
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	ENTER(cuMemRetainAllocationHandle);
	pthread_mutex_lock(&gpu.lock);
	const struct region *region = gpu_region_at((CUdeviceptr)(uintptr_t)address);
	if (!region || region->kind != REGION_VMM)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	handles[region->handle - HANDLE_BASE].refs++;
	gpu_count(HELD_HANDLES, 1);
	*handle = region->handle;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *properties, CUmemGenericAllocationHandle number)
{
	ENTER(cuMemGetAllocationPropertiesFromHandle);
	pthread_mutex_lock(&gpu.lock);
	const struct handle *handle = handle_of(number);
	if (!handle)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	*properties = handle->properties;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle number,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	ENTER(cuMemExportToShareableHandle);
	pthread_mutex_lock(&gpu.lock);
	const struct handle *handle = handle_of(number);
	if (!handle || !shareable || flags != 0 ||
		type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
		!((int)handle->properties.requestedHandleTypes & (int)type))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	const struct machine_chunk *chunk = &gpu.machine.page->chunks[handle->chunk];
	struct machine_piece piece = {chunk->offset, chunk->bytes};
	int fd = machine_export(
		&gpu.machine, chunk->device, &piece, 1, EXPORT_CHUNK | (unsigned)handle->chunk);
	if (fd < 0)
		return gpu_leave(fd == -EMFILE ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_UNKNOWN);
	*(int *)shareable = fd;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type)
{
	ENTER(cuMemImportFromShareableHandle);
	uint64_t number = 0;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&gpu.lock);
	int device = machine_number(&gpu.machine, (int)(intptr_t)shareable, &number);
	if (device < 0 || EXPORT_KIND(number) != EXPORT_CHUNK ||
		EXPORT_INDEX(number) >= MACHINE_CHUNKS_MAX)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	/* The descriptor holds it, so it is there. */
	int index = (int)EXPORT_INDEX(number);
	const struct machine_chunk *chunk = &gpu.machine.page->chunks[index];
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = (CUmemAllocationHandleType)chunk->types,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.allocFlags.gpuDirectRDMACapable = chunk->rdma};
	gpu_hold(index);
	*handle = add_handle(index, &properties);
	return gpu_leave(CUDA_SUCCESS);
}

/* ---- addresses ------------------------------------------------------------------------------ */

bool
gpu_reservation(CUdeviceptr address, CUdeviceptr *ret_base, size_t *ret_bytes)
{
	for (size_t i = 0; i < num_reservations; i++) {
		if (address < reservations[i].base ||
			address >= reservations[i].base + reservations[i].bytes)
			continue;
		*ret_base = reservations[i].base;
		*ret_bytes = reservations[i].bytes;
		return true;
	}
	return false;
}

static bool
any_region_in(CUdeviceptr address, size_t bytes)
{
	const struct region *next = gpu_region_from(address);
	return next && next->base < address + bytes;
}

CUresult
cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
	unsigned long long flags)
{
	ENTER(cuMemAddressReserve);
	(void)hint;
	if (flags != 0 || bytes == 0 || bytes % HOST_PAGE != 0 ||
		(alignment & (alignment - 1)) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&gpu.lock);
	CUdeviceptr base = gpu_reserve(
		bytes, alignment > MACHINE_GRANULARITY ? alignment : MACHINE_GRANULARITY);
	if (!base)
		return gpu_leave(CUDA_ERROR_OUT_OF_MEMORY);
	reservations = th_realloc(reservations, num_reservations + 1, sizeof(*reservations));
	reservations[num_reservations++] = (struct reservation){base, bytes};
	gpu_count(HELD_RESERVATIONS, 1);
	*address = base;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	ENTER(cuMemAddressFree);
	pthread_mutex_lock(&gpu.lock);
	for (size_t i = 0; i < num_reservations; i++) {
		if (reservations[i].base != address)
			continue;
		if (reservations[i].bytes != bytes || any_region_in(address, bytes))
			break;
		reservations[i] = reservations[--num_reservations];
		gpu_unreserve(address, bytes);
		gpu_count(HELD_RESERVATIONS, -1);
		return gpu_leave(CUDA_SUCCESS);
	}
	return gpu_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult
cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle number,
	unsigned long long flags)
{
	ENTER(cuMemMap);
	CUdeviceptr base = 0;
	size_t room = 0;
	pthread_mutex_lock(&gpu.lock);
	struct handle *handle = handle_of(number);
	if (!handle || flags != 0 || offset != 0 || bytes == 0 ||
		bytes % MACHINE_GRANULARITY != 0 || address % MACHINE_GRANULARITY != 0 ||
		bytes > gpu.machine.page->chunks[handle->chunk].bytes ||
		!gpu_reservation(address, &base, &room) || bytes > base + room - address ||
		any_region_in(address, bytes))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	struct region region = {.base = address,
		.bytes = bytes,
		.kind = REGION_VMM,
		.device = gpu.machine.page->chunks[handle->chunk].device,
		.chunk = handle->chunk,
		.handle = number};
	handle->maps++;
	gpu_region_add(&region);
	gpu_count(HELD_MAPPINGS, 1);
	return gpu_leave(CUDA_SUCCESS);
}

/* Whole mappings, one behind the other, cover the range. */
static bool
is_covered(CUdeviceptr address, size_t bytes)
{
	CUdeviceptr at = address;
	while (at < address + bytes) {
		const struct region *region = gpu_region_at(at);
		if (!region || region->kind != REGION_VMM || region->base != at)
			return false;
		at = region->base + region->bytes;
	}
	return bytes > 0 && at == address + bytes;
}

CUresult
cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	ENTER(cuMemUnmap);
	pthread_mutex_lock(&gpu.lock);
	if (!is_covered(address, bytes))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	CUresult result = gpu_wait_device(gpu_region_at(address)->device);
	if (result != CUDA_SUCCESS || !is_covered(address, bytes))
		return gpu_leave(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
	while (any_region_in(address, bytes)) {
		struct region *region = gpu_region_from(address);
		struct handle *handle = &handles[region->handle - HANDLE_BASE];
		gpu_region_remove(region);
		handle->maps--;
		gpu_count(HELD_MAPPINGS, -1);
		settle_handle(handle);
	}
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
	ENTER(cuMemSetAccess);
	pthread_mutex_lock(&gpu.lock);
	if (!access || count == 0 || !is_covered(address, bytes))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++) {
		int device = access[i].location.id;
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return gpu_leave(CUDA_ERROR_INVALID_VALUE);
		int memory = gpu_region_at(address)->device;
		if (!gpu_is_device(device) ||
			!(gpu.machine.page->devices[device].peers >> memory & 1u))
			return gpu_leave(CUDA_ERROR_INVALID_DEVICE);
		unsigned bit = 1u << device;
		for (struct region *region = gpu_region_at(address);
			region && region->base < address + bytes;
			region = gpu_region_from(region->base + region->bytes)) {
			region->readers &= ~bit;
			region->writers &= ~bit;
			if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
				region->readers |= bit;
			if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
				region->writers |= bit;
		}
	}
	return gpu_leave(CUDA_SUCCESS);
}

/* ---- dma-buf -------------------------------------------------------------------------------- */

/* What is asked for begins at a page of the host, which may be before what is in a block. */
static const struct region *
shared_at(CUdeviceptr address, size_t *ret_from)
{
	const struct region *region = gpu_region_from(address);
	if (!region || (region->block ? region->block : region->base) > address)
		return NULL;
	*ret_from = (size_t)(address - (region->block ? region->block : region->base));
	return region;
}

static CUresult
collect_pieces(CUdeviceptr address, size_t bytes, struct machine_piece *pieces, unsigned *ret_count,
	int *ret_device)
{
	size_t from = 0;
	const struct region *first = shared_at(address, &from);
	unsigned count = 0;
	if (!first)
		return CUDA_ERROR_INVALID_VALUE;
	while (bytes > 0) {
		const struct region *region = shared_at(address, &from);
		if (!region || count == MACHINE_PIECES_MAX || region->device != first->device ||
			region->kind != first->kind)
			return CUDA_ERROR_INVALID_VALUE;
		const struct machine_chunk *chunk = &gpu.machine.page->chunks[region->chunk];
		if (!chunk->rdma)
			return CUDA_ERROR_NOT_SUPPORTED;
		/* The last page is the driver's to round up. */
		size_t room = (region->kind == REGION_LEGACY ? chunk->bytes : region->bytes) - from;
		size_t part = room < bytes ? room : bytes;
		if (part < bytes && region->kind != REGION_VMM)
			return CUDA_ERROR_INVALID_VALUE;
		pieces[count++] = (struct machine_piece){chunk->offset + from, part};
		address += part;
		bytes -= part;
	}
	*ret_count = count;
	*ret_device = first->device;
	return CUDA_SUCCESS;
}

CUresult
cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes,
	CUmemRangeHandleType type, unsigned long long flags)
{
	ENTER(cuMemGetHandleForAddressRange);
	struct machine_piece pieces[MACHINE_PIECES_MAX + 1];
	unsigned count = 0;
	int device = 0;
	/* cuda.h names no such result; the driver gives it (openucx/ucx 11635). */
	if (!gpu_context())
		return gpu_no_context();
	if (!handle || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || bytes == 0 ||
		address % HOST_PAGE != 0 || bytes % HOST_PAGE != 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&gpu.lock);
	size_t from;
	const struct region *region = shared_at(address, &from);
	if (!region || (region->kind != REGION_LEGACY && region->kind != REGION_VMM))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	if (!gpu.machine.page->devices[region->device].dma_buf)
		return gpu_leave(CUDA_ERROR_NOT_SUPPORTED);
	CUresult result = collect_pieces(address, bytes, pieces, &count, &device);
	if (result != CUDA_SUCCESS)
		return gpu_leave(result);
	int lock = machine_lock(&gpu.machine);
	int number = machine_object_new(&gpu.machine, device, &pieces[count]);
	int fd = -1;
	if (number >= 0) {
		struct machine_object *object = &gpu.machine.page->objects[number];
		object->num_pieces = count;
		memcpy(object->pieces, pieces, count * sizeof(pieces[0]));
		fd = machine_export(
			&gpu.machine, device, pieces, count + 1, EXPORT_DMABUF | (unsigned)number);
	}
	machine_unlock(lock);
	if (fd < 0)
		return gpu_leave(CUDA_ERROR_OPERATING_SYSTEM);
	*(int *)handle = fd;
	return gpu_leave(CUDA_SUCCESS);
}
