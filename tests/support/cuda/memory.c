/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory - legacy and managed memory, registered host memory, and what an address is.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "tests/support/cuda/calls.h"
#include "tests/support/cuda/gpu.h"

#define ALL_DEVICES 0xffu

/* ---- allocations ---------------------------------------------------------------------------- */

CUresult
cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
	ENTER(cuMemAlloc);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	if (!address || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > gpu.machine.page->devices[context->device].bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&gpu.lock);
	struct machine_chunk form = {.device = context->device,
		.kind = MACHINE_LEGACY,
		.bytes = bytes,
		.rdma = true,
		.owner = gpu.pid};
	struct region region = {.bytes = bytes,
		.kind = REGION_LEGACY,
		.device = context->device,
		.context = context,
		.readers = ALL_DEVICES,
		.writers = ALL_DEVICES};
	return gpu_leave(
		bytes < MACHINE_GRANULARITY / 2
			? gpu_allocate_small(&form, &region, address)
			: gpu_allocate(&form, &region,
				  bytes >= MACHINE_GRANULARITY ? MACHINE_GRANULARITY : MACHINE_PAGE,
				  address));
}

CUresult
cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
	ENTER(cuMemAllocManaged);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	if (!address || bytes == 0 || flags != CU_MEM_ATTACH_GLOBAL)
		return CUDA_ERROR_INVALID_VALUE;
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct region region = {.base = (CUdeviceptr)(uintptr_t)memory,
		.bytes = bytes,
		.kind = REGION_MANAGED,
		.device = context->device,
		.chunk = -1,
		.context = context,
		.readers = ALL_DEVICES,
		.writers = ALL_DEVICES};
	pthread_mutex_lock(&gpu.lock);
	gpu_region_add(&region);
	gpu_count(HELD_ALLOCATIONS, 1);
	*address = region.base;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemFree(CUdeviceptr address)
{
	ENTER(cuMemFree);
	if (!gpu_context())
		return gpu_no_context();
	if (address == 0)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&gpu.lock);
	struct region *region = gpu_region_at(address);
	if (!region || region->base != address || region->kind == REGION_VMM ||
		region->kind == REGION_IPC)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	/* It waits for whatever may work with it. */
	CUresult result = gpu_wait_device(region->device);
	region = gpu_region_at(address);
	if (result != CUDA_SUCCESS || !region)
		return gpu_leave(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
	gpu_count(region->kind == REGION_IMPORT ? HELD_IMPORTS : HELD_ALLOCATIONS, -1);
	gpu_region_free(region);
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
	ENTER(cuMemGetInfo);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	uint64_t all = gpu.machine.page->devices[context->device].bytes;
	*total_bytes = all;
	*free_bytes = all - machine_used(&gpu.machine, context->device);
	return CUDA_SUCCESS;
}

/* ---- host memory ---------------------------------------------------------------------------- */

/* Where GPUs see it: not where the CPU does, as on those that cannot use the CPU's addresses. */
#define HOST_AT (UINT64_C(1) << 56)

static struct {
	char *data;
	size_t bytes;
	bool mapped; /* kernels reach it */
} * host;
static size_t num_host;

static CUdeviceptr
device_address(const char *data)
{
	return (CUdeviceptr)(uintptr_t)data + HOST_AT;
}

char *
gpu_host_at(CUdeviceptr address, CUdeviceptr *ret_from, CUdeviceptr *ret_to)
{
	for (size_t i = 0; i < num_host; i++) {
		*ret_from = device_address(host[i].data);
		*ret_to = device_address(host[i].data + host[i].bytes);
		if (host[i].mapped && address >= *ret_from && address < *ret_to)
			return host[i].data;
	}
	return NULL;
}

bool
gpu_is_pinned(const void *data, size_t bytes)
{
	for (size_t i = 0; i < num_host; i++)
		if ((const char *)data >= host[i].data &&
			(const char *)data + bytes <= host[i].data + host[i].bytes)
			return true;
	return false;
}

static bool
is_mapped(char *data, size_t bytes)
{
	uintptr_t from = (uintptr_t)data / HOST_PAGE * HOST_PAGE;
	return msync((void *)from, (uintptr_t)data + bytes - from, MS_ASYNC) == 0;
}

CUresult
cuMemHostRegister(void *data, size_t bytes, unsigned flags)
{
	ENTER(cuMemHostRegister);
	if (!gpu_context())
		return gpu_no_context();
	if (!data || bytes == 0 ||
		(flags & ~(unsigned)(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)) ||
		!is_mapped(data, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&gpu.lock);
	for (size_t i = 0; i < num_host; i++)
		if ((char *)data < host[i].data + host[i].bytes &&
			host[i].data < (char *)data + bytes)
			return gpu_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	host = th_realloc(host, num_host + 1, sizeof(*host));
	host[num_host].data = data;
	host[num_host].bytes = bytes;
	host[num_host++].mapped = (flags & CU_MEMHOSTREGISTER_DEVICEMAP) != 0;
	gpu_count(HELD_HOST, 1);
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemHostUnregister(void *data)
{
	ENTER(cuMemHostUnregister);
	if (!gpu_context())
		return gpu_no_context();
	pthread_mutex_lock(&gpu.lock);
	for (size_t i = 0; i < num_host; i++) {
		if (host[i].data != data)
			continue;
		CUresult result = gpu_wait_device(-1);
		host[i] = host[--num_host];
		gpu_count(HELD_HOST, -1);
		return gpu_leave(result);
	}
	return gpu_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult
cuMemHostGetDevicePointer(CUdeviceptr *address, void *data, unsigned flags)
{
	ENTER(cuMemHostGetDevicePointer);
	if (!gpu_context())
		return gpu_no_context();
	pthread_mutex_lock(&gpu.lock);
	CUdeviceptr from, to;
	if (!address || flags != 0 || !gpu_host_at(device_address(data), &from, &to))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	*address = device_address(data);
	return gpu_leave(CUDA_SUCCESS);
}

/* ---- what an address is --------------------------------------------------------------------- */

CUresult
cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	ENTER(cuMemGetAddressRange);
	if (!gpu_context())
		return gpu_no_context();
	pthread_mutex_lock(&gpu.lock);
	const struct region *region = gpu_region_at(address);
	if (!region)
		return gpu_leave(CUDA_ERROR_NOT_FOUND);
	if (base)
		*base = region->base;
	if (bytes)
		*bytes = region->bytes; /* of one chunk only, where chunks are mapped */
	return gpu_leave(CUDA_SUCCESS);
}

struct place {                       /* of an address */
	const struct region *region; /* NULL: reserved only, or the host's */
	CUdeviceptr range;
	size_t range_bytes;
	bool pinned;
};

static bool
find_place(CUdeviceptr address, struct place *ret_place)
{
	struct place place = {.region = gpu_region_at(address)};
	bool reserved = gpu_reservation(address, &place.range, &place.range_bytes);
	if (place.region && !reserved) {
		place.range = place.region->base;
		place.range_bytes = place.region->bytes;
	}
	place.pinned = !place.region && !reserved && gpu_is_pinned((void *)(uintptr_t)address, 1);
	*ret_place = place;
	return place.region || reserved || place.pinned;
}

static int
types_of(const struct region *region)
{
	const CUmemAllocationProp *properties = gpu_properties(region);
	if (properties)
		return (int)properties->requestedHandleTypes;
	bool pool = region->kind == REGION_POOL || region->kind == REGION_IMPORT;
	return pool ? gpu.machine.page->chunks[region->chunk].types : 0;
}

static int
is_rdma(const struct region *region)
{
	if (region->kind != REGION_LEGACY && region->kind != REGION_VMM)
		return 0;
	return gpu.machine.page->chunks[region->chunk].rdma;
}

/* Sizes are those of cuda.h: int, unsigned long long, size_t, addresses. */
static CUresult
attribute_of(const struct place *place, CUpointer_attribute attribute, void *value)
{
	const struct region *region = place->region;
	bool legacy = region && region->kind == REGION_LEGACY;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)value = region ? region->context : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)value = place->pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(int *)value = region ? region->sync_memops : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)value = region ? region->id : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(int *)value = region && region->kind == REGION_MANAGED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)value = region ? region->device : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(int *)value = legacy;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)value = place->range;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)value = place->range_bytes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(int *)value = region != NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)value = region ? (unsigned long long)types_of(region) : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*(int *)value = region ? is_rdma(region) : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)value = region ? region->pool : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*(size_t *)value = region ? region->bytes : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*(CUdeviceptr *)value = region ? region->base : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*(unsigned long long *)value = region ? region->generation : 0;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult
cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	ENTER(cuPointerGetAttribute);
	struct place place;
	/* Met with the one or the other of them (kvcache-ai/Mooncake 2034). */
	if ((attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
		    attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
		    attribute == CU_POINTER_ATTRIBUTE_MAPPING_SIZE ||
		    attribute == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR) &&
		!gpu_context())
		return gpu_no_context();
	pthread_mutex_lock(&gpu.lock);
	if (!value || !find_place(address, &place))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	return gpu_leave(attribute_of(&place, attribute, value));
}

/* No error for what is no address of its: zeroes. */
static void
clear_attribute(CUpointer_attribute attribute, void *value)
{
	struct place place = {.region = NULL};
	attribute_of(&place, attribute, value);
	if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		*(unsigned *)value = 0;
}

/* cuda.h names what can be asked for among others: these it does not. */
static bool
is_asked_alone(CUpointer_attribute attribute)
{
	return attribute == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE ||
	       attribute == CU_POINTER_ATTRIBUTE_MAPPING_SIZE ||
	       attribute == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR ||
	       attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
}

CUresult
cuPointerGetAttributes(
	unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr address)
{
	ENTER(cuPointerGetAttributes);
	struct place place;
	CUresult result = CUDA_SUCCESS;
	pthread_mutex_lock(&gpu.lock);
	bool ours = find_place(address, &place);
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (is_asked_alone(attributes[i]))
			result = CUDA_ERROR_INVALID_VALUE;
		else if (ours)
			result = attribute_of(&place, attributes[i], values[i]);
		else
			clear_attribute(attributes[i], values[i]);
	}
	return gpu_leave(result);
}

CUresult
cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	ENTER(cuPointerSetAttribute);
	pthread_mutex_lock(&gpu.lock);
	struct region *region = gpu_region_at(address);
	if (!value || !region || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	region->sync_memops = *(const int *)value;
	return gpu_leave(CUDA_SUCCESS);
}
