/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region - device addresses with memory behind them, kept by address.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "tests/support/cuda/gpu.h"

CUdeviceptr
gpu_reserve(size_t bytes, size_t alignment)
{
	bytes = (bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
	size_t room = bytes + alignment;
	char *memory =
		mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return 0;
	uintptr_t from = (uintptr_t)memory, base = (from + alignment - 1) / alignment * alignment;
	if (base > from)
		munmap(memory, base - from);
	if (base + bytes < from + room)
		munmap((void *)(base + bytes), from + room - base - bytes);
	return base;
}

void
gpu_unreserve(CUdeviceptr base, size_t bytes)
{
	munmap((void *)(uintptr_t)base, bytes);
}

/* The index of the first region that ends behind the address. */
static size_t
find(CUdeviceptr address)
{
	size_t from = 0, to = gpu.num_regions;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (gpu.regions[middle].base + gpu.regions[middle].bytes > address)
			to = middle;
		else
			from = middle + 1;
	}
	return from;
}

struct region *
gpu_region_from(CUdeviceptr address)
{
	size_t index = find(address);
	return index < gpu.num_regions ? &gpu.regions[index] : NULL;
}

struct region *
gpu_region_at(CUdeviceptr address)
{
	struct region *region = gpu_region_from(address);
	return region && region->base <= address ? region : NULL;
}

struct region *
gpu_region_add(const struct region *region)
{
	if (gpu.num_regions == gpu.room_regions) {
		gpu.room_regions = gpu.room_regions ? 2 * gpu.room_regions : 64;
		gpu.regions = th_realloc(gpu.regions, gpu.room_regions, sizeof(*gpu.regions));
	}
	size_t index = find(region->base);
	memmove(&gpu.regions[index + 1], &gpu.regions[index],
		(gpu.num_regions - index) * sizeof(*gpu.regions));
	gpu.num_regions++;
	gpu.regions[index] = *region;
	gpu.regions[index].id = ++gpu.ids;
	if (region->chunk >= 0) {
		gpu_hold(region->chunk);
		gpu.regions[index].generation = gpu.machine.page->chunks[region->chunk].generation;
	}
	return &gpu.regions[index];
}

void
gpu_region_remove(struct region *region)
{
	if (region->chunk >= 0)
		gpu_drop(region->chunk);
	size_t index = (size_t)(region - gpu.regions);
	gpu.num_regions--;
	memmove(region, region + 1, (gpu.num_regions - index) * sizeof(*region));
}

void
gpu_region_free(struct region *region)
{
	const struct region was = *region;
	const struct region *next = gpu_region_from(was.base + was.bytes);
	if (was.block &&
		(gpu_region_from(was.block) != region || (next && next->block == was.block))) {
		gpu_region_remove(region); /* the others' block stays */
		return;
	}
	if (was.kind == REGION_LEGACY) /* its handles open nothing any more */
		gpu.machine.page->chunks[was.chunk].address = 0;
	gpu_region_remove(region);
	if (was.block)
		gpu_block_end(was.block);
	else
		gpu_unreserve(was.base, was.bytes);
}

uint64_t
gpu_region_offset(const struct region *region)
{
	return region->block ? region->base - region->block : 0;
}

void
gpu_hold(int chunk)
{
	if (gpu.holds[chunk]++ == 0)
		TH_ASSERT(machine_hold(&gpu.machine, chunk) == 0);
}

void
gpu_drop(int chunk)
{
	if (--gpu.holds[chunk] > 0)
		return;
	int lock = machine_lock(&gpu.machine);
	machine_drop(&gpu.machine, chunk);
	machine_unlock(lock);
}

CUresult
gpu_take(const struct machine_chunk *form, int *ret_chunk)
{
	int lock = machine_lock(&gpu.machine);
	*ret_chunk = machine_take(&gpu.machine, form);
	machine_unlock(lock);
	if (*ret_chunk < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	gpu.holds[*ret_chunk] = 1;
	return CUDA_SUCCESS;
}

CUresult
gpu_allocate(const struct machine_chunk *form, struct region *region, size_t alignment,
	CUdeviceptr *ret_address)
{
	CUresult result = gpu_take(form, &region->chunk);
	if (result != CUDA_SUCCESS)
		return result;
	region->base = gpu_reserve(region->bytes, alignment);
	if (region->base) {
		gpu.machine.page->chunks[region->chunk].address = region->base;
		gpu_region_add(region);
		gpu_count(HELD_ALLOCATIONS, 1);
		*ret_address = region->base;
	} else {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	gpu_drop(region->chunk); /* the region holds it */
	return result;
}

void
gpu_regions_of(CUcontext context)
{
	for (size_t i = gpu.num_regions; i-- > 0;) {
		struct region region = gpu.regions[i];
		if (region.context != context)
			continue;
		gpu_count(region.kind == REGION_IPC ? HELD_IMPORTS : HELD_ALLOCATIONS, -1);
		gpu_region_free(&gpu.regions[i]);
	}
}

CUresult
gpu_spans(CUdeviceptr address, size_t bytes, int device, bool write, struct span **ret_spans,
	size_t *ret_count)
{
	struct span *spans = NULL;
	size_t count = 0, room = 0;
	while (bytes > 0) {
		const struct region *region = gpu_region_at(address);
		if (!region || !((write ? region->writers : region->readers) >> device & 1u)) {
			free(spans);
			return CUDA_ERROR_INVALID_VALUE;
		}
		size_t from = (size_t)(address - region->base);
		size_t part = region->bytes - from < bytes ? region->bytes - from : bytes;
		if (count == room) {
			room = room ? 2 * room : 4;
			spans = th_realloc(spans, room, sizeof(*spans));
		}
		spans[count++] =
			region->chunk < 0
				? (struct span){.file = -1,
					  .host = (char *)(uintptr_t)address,
					  .bytes = part}
				: (struct span){.file = gpu.machine.files[region->device],
					  .offset = gpu.machine.page->chunks[region->chunk].offset +
						    gpu_region_offset(region) + from,
					  .bytes = part};
		/* One allocation does not run on into another; mapped chunks do. */
		if (part < bytes && region->kind != REGION_VMM) {
			free(spans);
			return CUDA_ERROR_INVALID_VALUE;
		}
		address += part;
		bytes -= part;
	}
	*ret_spans = spans;
	*ret_count = count;
	return CUDA_SUCCESS;
}
