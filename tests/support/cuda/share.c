/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share - legacy handles of memory for other processes, and memory pools.
 *
 * Of pools only what a library that meets them needs: no reuse between streams, no limits.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "tests/support/cuda/calls.h"
#include "tests/support/cuda/gpu.h"

#define LEGACY_MAGIC 0x6c65676163793031ull
#define POOL_MAGIC 0x706f6f6c70747231ull
#define POOLS_MAX 256u

struct ticket { /* what is in a legacy handle, and in what a pool's pointer is told by */
	uint64_t magic, generation, object, bytes;
	uint32_t offset; /* of a block that is opened as a whole */
	int chunk, device;
	pid_t owner;
};
_Static_assert(sizeof(struct ticket) <= CU_IPC_HANDLE_SIZE, "a handle has 64 bytes");

struct CUmemPoolHandle_st {
	bool alive, imported, is_default;
	int device, types, object; /* object: -1: not exported */
	uint64_t generation;       /* of the object */
	unsigned readers, writers;
};

static struct CUmemPoolHandle_st pools[POOLS_MAX];

/* ---- legacy --------------------------------------------------------------------------------- */

CUresult
cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	ENTER(cuIpcGetMemHandle);
	if (!gpu_context())
		return gpu_no_context();
	pthread_mutex_lock(&gpu.lock);
	const struct region *region = gpu_region_at(address);
	if (!handle || !region || region->kind != REGION_LEGACY)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	struct ticket ticket = {.magic = LEGACY_MAGIC,
		.generation = region->generation,
		.bytes = region->block ? MACHINE_GRANULARITY : region->bytes,
		.offset = (uint32_t)gpu_region_offset(region),
		.chunk = region->chunk,
		.device = region->device,
		.owner = gpu.pid};
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ticket, sizeof(ticket));
	return gpu_leave(CUDA_SUCCESS);
}

/* The chunk that the ticket is about, as long as it is that one and its owner has not freed it. */
static CUresult
check_ticket(const struct ticket *ticket, uint64_t magic)
{
	if (ticket->magic != magic || ticket->chunk < 0 ||
		ticket->chunk >= (int)MACHINE_CHUNKS_MAX || !gpu_is_device(ticket->device))
		return CUDA_ERROR_INVALID_VALUE;
	const struct machine_chunk *chunk = &gpu.machine.page->chunks[ticket->chunk];
	if (chunk->generation != ticket->generation || chunk->address == 0 ||
		!machine_alive(&gpu.machine, ticket->chunk))
		return CUDA_ERROR_INVALID_HANDLE;
	return CUDA_SUCCESS;
}

/* The memory of the ticket at an address of ours. The machine is locked. */
static CUresult
import(const struct ticket *ticket, struct region *region, CUdeviceptr *ret_address)
{
	region->base = gpu_reserve(ticket->bytes, MACHINE_PAGE);
	if (!region->base)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region->bytes = ticket->bytes;
	region->device = ticket->device;
	region->chunk = ticket->chunk;
	region->opens = 1;
	gpu_region_add(region);
	gpu_count(HELD_IMPORTS, 1);
	*ret_address = region->base;
	return CUDA_SUCCESS;
}

static CUresult
open_legacy(const struct ticket *ticket, CUcontext context, CUdeviceptr *ret_address)
{
	for (size_t i = 0; i < gpu.num_regions; i++) {
		struct region *region = &gpu.regions[i];
		if (region->kind != REGION_IPC || region->generation != ticket->generation)
			continue;
		if (region->context != context)
			return CUDA_ERROR_ALREADY_MAPPED;
		region->opens++;
		*ret_address = region->base + ticket->offset;
		return CUDA_SUCCESS;
	}
	if (!(gpu.machine.page->devices[context->device].peers >> ticket->device & 1u))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	struct region region = {.kind = REGION_IPC,
		.context = context,
		.readers = 1u << context->device | 1u << ticket->device,
		.writers = 1u << context->device | 1u << ticket->device};
	CUresult result = import(ticket, &region, ret_address);
	if (result == CUDA_SUCCESS)
		*ret_address += ticket->offset;
	return result;
}

CUresult
cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	ENTER(cuIpcOpenMemHandle);
	CUcontext context = gpu_context();
	struct ticket ticket;
	memcpy(&ticket, &handle, sizeof(ticket));
	if (!context)
		return gpu_no_context();
	if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&gpu.lock);
	int lock = machine_lock(&gpu.machine);
	CUresult result = check_ticket(&ticket, LEGACY_MAGIC);
	if (ticket.magic == LEGACY_MAGIC && ticket.owner == gpu.pid)
		result = CUDA_ERROR_INVALID_CONTEXT; /* one's own */
	if (result == CUDA_SUCCESS)
		result = open_legacy(&ticket, context, address);
	machine_unlock(lock);
	return gpu_leave(result);
}

CUresult
cuIpcCloseMemHandle(CUdeviceptr address)
{
	ENTER(cuIpcCloseMemHandle);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	pthread_mutex_lock(&gpu.lock);
	struct region *region = gpu_region_at(address);
	/* What was opened of a block may have begun anywhere in it. */
	if (!region || region->kind != REGION_IPC ||
		(region->base != address && region->bytes != MACHINE_GRANULARITY))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	if (region->context != context)
		return gpu_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (--region->opens > 0)
		return gpu_leave(CUDA_SUCCESS);
	CUresult result = gpu_wait_device(context->device);
	region = gpu_region_at(address);
	if (!region)
		return gpu_leave(result);
	gpu_region_free(region);
	gpu_count(HELD_IMPORTS, -1);
	return gpu_leave(result);
}

/* ---- pools ---------------------------------------------------------------------------------- */

static bool
is_pool(CUmemoryPool pool)
{
	return pool >= pools && pool < pools + POOLS_MAX && pool->alive;
}

static bool
is_used(CUmemoryPool pool)
{
	bool used = pool->alive;
	for (size_t i = 0; i < gpu.num_regions && !used; i++)
		used = gpu.regions[i].pool == pool;
	return used;
}

static CUmemoryPool
free_pool(void)
{
	static unsigned turn; /* what was destroyed is refused for as long as can be */
	for (unsigned i = 0; i < POOLS_MAX; i++) {
		CUmemoryPool pool = &pools[turn++ % POOLS_MAX];
		if (!is_used(pool))
			return pool;
	}
	return NULL;
}

static CUmemoryPool
add_pool(int device, int types)
{
	CUmemoryPool pool = free_pool();
	if (!pool)
		return NULL;
	*pool = (struct CUmemPoolHandle_st){.alive = true,
		.device = device,
		.types = types,
		.object = -1,
		.readers = 1u << device,
		.writers = 1u << device};
	gpu_count(HELD_POOLS, 1);
	return pool;
}

CUresult
cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	ENTER(cuMemPoolCreate);
	if (!pool || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
		properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		!gpu_is_device(properties->location.id))
		return CUDA_ERROR_INVALID_VALUE;
	const struct machine_device *device = &gpu.machine.page->devices[properties->location.id];
	if (!device->pools || (int)properties->handleTypes & ~device->pool_types)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&gpu.lock);
	CUmemoryPool added = add_pool(properties->location.id, (int)properties->handleTypes);
	if (!added)
		return gpu_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*pool = added;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemPoolDestroy(CUmemoryPool pool)
{
	ENTER(cuMemPoolDestroy);
	pthread_mutex_lock(&gpu.lock);
	if (!is_pool(pool) || pool->is_default)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	pool->alive = false; /* what was taken of it stays until it is freed */
	gpu_count(HELD_POOLS, -1);
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	ENTER(cuDeviceGetDefaultMemPool);
	static CUmemoryPool defaults[MACHINE_DEVICES_MAX];
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&gpu.lock);
	if (!defaults[device]) {
		defaults[device] = add_pool(device, 0); /* it cannot be exported */
		defaults[device]->is_default = true;
		gpu_count(HELD_POOLS, -1); /* nobody has to destroy it */
	}
	*pool = defaults[device];
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
	ENTER(cuMemPoolSetAccess);
	pthread_mutex_lock(&gpu.lock);
	if (!is_pool(pool) || !access)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++) {
		int device = access[i].location.id;
		if (!gpu_is_device(device) ||
			!(gpu.machine.page->devices[device].peers >> pool->device & 1u))
			return gpu_leave(CUDA_ERROR_INVALID_DEVICE);
		if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return gpu_leave(CUDA_ERROR_NOT_SUPPORTED);
		pool->readers |= 1u << device;
		pool->writers |= 1u << device;
	}
	for (size_t i = 0; i < gpu.num_regions; i++)
		if (gpu.regions[i].pool == pool) {
			gpu.regions[i].readers = pool->readers;
			gpu.regions[i].writers = pool->writers;
		}
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	ENTER(cuMemAllocFromPoolAsync);
	(void)stream; /* it is there at once */
	if (!gpu_context())
		return gpu_no_context();
	pthread_mutex_lock(&gpu.lock);
	if (!is_pool(pool) || pool->imported || bytes == 0)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	struct machine_chunk form = {.device = pool->device,
		.kind = MACHINE_POOL,
		.bytes = bytes,
		.types = pool->types,
		.owner = gpu.pid};
	struct region region = {.bytes = bytes,
		.kind = REGION_POOL,
		.device = pool->device,
		.pool = pool,
		.readers = pool->readers,
		.writers = pool->writers};
	return gpu_leave(gpu_allocate(&form, &region, MACHINE_PAGE, address));
}

CUresult
cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	ENTER(cuMemFreeAsync);
	pthread_mutex_lock(&gpu.lock);
	const struct region *region = gpu_region_at(address);
	if (!region || region->base != address ||
		(region->kind != REGION_POOL && region->kind != REGION_IMPORT))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	return gpu_leave(gpu_queue_free(address, stream));
}

CUresult
cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type,
	unsigned long long flags)
{
	ENTER(cuMemPoolExportToShareableHandle);
	pthread_mutex_lock(&gpu.lock);
	if (!is_pool(pool) || pool->imported || flags != 0 ||
		type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(pool->types & (int)type))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	struct machine_piece piece;
	int lock = machine_lock(&gpu.machine);
	int number = machine_object_new(&gpu.machine, pool->device, &piece), fd = -1;
	if (number >= 0) {
		struct machine_object *object = &gpu.machine.page->objects[number];
		object->types = pool->types;
		if (pool->object < 0)
			pool->generation = object->generation;
		object->generation = pool->generation; /* each descriptor is of the same pool */
		pool->object = number;
		fd = machine_export(
			&gpu.machine, pool->device, &piece, 1, EXPORT_POOL | (unsigned)number);
	}
	machine_unlock(lock);
	if (fd < 0)
		return gpu_leave(CUDA_ERROR_OPERATING_SYSTEM);
	*(int *)shareable = fd;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	ENTER(cuMemPoolImportFromShareableHandle);
	uint64_t number = 0;
	if (!pool || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&gpu.lock);
	int device = machine_number(&gpu.machine, (int)(intptr_t)shareable, &number);
	if (device < 0 || EXPORT_KIND(number) != EXPORT_POOL ||
		EXPORT_INDEX(number) >= MACHINE_OBJECTS_MAX)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	const struct machine_object *object = &gpu.machine.page->objects[EXPORT_INDEX(number)];
	/* There is one in a process, and its end is the end of all imports (NVIDIA/cuda-python,
	 * cuda.core 1.4.0). */
	for (unsigned i = 0; i < POOLS_MAX; i++) {
		if (!pools[i].alive || !pools[i].imported ||
			pools[i].generation != object->generation)
			continue;
		*pool = &pools[i];
		return gpu_leave(CUDA_SUCCESS);
	}
	CUmemoryPool added = add_pool(device, object->types);
	if (!added)
		return gpu_leave(CUDA_ERROR_OUT_OF_MEMORY);
	added->imported = true;
	added->generation = object->generation;
	*pool = added;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
	ENTER(cuMemPoolExportPointer);
	pthread_mutex_lock(&gpu.lock);
	const struct region *region = gpu_region_at(address);
	if (!data || !region || region->kind != REGION_POOL || region->pool->object < 0)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	struct ticket ticket = {.magic = POOL_MAGIC,
		.generation = region->generation,
		.object = region->pool->generation,
		.bytes = region->bytes,
		.chunk = region->chunk,
		.device = region->device,
		.owner = gpu.pid};
	memset(data, 0, sizeof(*data));
	memcpy(data, &ticket, sizeof(ticket));
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	ENTER(cuMemPoolImportPointer);
	struct ticket ticket;
	memcpy(&ticket, data, sizeof(ticket));
	pthread_mutex_lock(&gpu.lock);
	if (!is_pool(pool) || !pool->imported || ticket.object != pool->generation)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	int lock = machine_lock(&gpu.machine);
	CUresult result = check_ticket(&ticket, POOL_MAGIC);
	/* Again it is the same one, and nobody counts: the first free is that of all (nvbug
	 * 5570902). */
	for (size_t i = 0; i < gpu.num_regions && result == CUDA_SUCCESS; i++) {
		if (gpu.regions[i].kind != REGION_IMPORT ||
			gpu.regions[i].generation != ticket.generation)
			continue;
		*address = gpu.regions[i].base;
		machine_unlock(lock);
		return gpu_leave(CUDA_SUCCESS);
	}
	struct region region = {.kind = REGION_IMPORT,
		.pool = pool,
		.readers = pool->readers,
		.writers = pool->writers};
	if (result == CUDA_SUCCESS)
		result = import(&ticket, &region, address);
	machine_unlock(lock);
	return gpu_leave(result);
}
