/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block - legacy memory that is small shares blocks of 2 MiB with other memory of its context.
 *
 * 512 bytes apart, and a legacy handle opens the block, at the offset of what it was made of; each
 * is an allocation by itself for whoever asks what lies at its address (ROCm/hip 2257, openucx/ucx
 * 11724). The driver does so below 2 MiB; here it is below 1 MiB.
 */
#include "ipc/base/assert.h"
#include "tests/support/cuda/gpu.h"

#define BLOCKS_MAX 64u
#define APART 512u

static struct block {
	CUcontext context; /* NULL: none */
	CUdeviceptr base;
	int chunk;
} blocks[BLOCKS_MAX];

/* Where so many bytes are free behind each other; 0. */
static CUdeviceptr
find_room(const struct block *block, size_t bytes)
{
	CUdeviceptr at = block->base, end = block->base + MACHINE_GRANULARITY;
	while (end - at >= bytes) {
		const struct region *next = gpu_region_from(at);
		if (!next || next->base >= at + bytes)
			return at;
		at = next->base + (next->bytes + APART - 1) / APART * APART;
	}
	return 0;
}

static CUresult
new_block(const struct machine_chunk *form, CUcontext context, struct block **ret_block)
{
	struct machine_chunk whole = *form;
	struct block *block = blocks;
	while (block->context && ++block < &blocks[BLOCKS_MAX])
		;
	TH_ASSERT(block < &blocks[BLOCKS_MAX]);
	whole.bytes = MACHINE_GRANULARITY;
	CUresult result = gpu_take(&whole, &block->chunk);
	if (result != CUDA_SUCCESS)
		return result;
	block->base = gpu_reserve(MACHINE_GRANULARITY, MACHINE_GRANULARITY);
	if (!block->base) {
		gpu_drop(block->chunk);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	block->context = context;
	gpu.machine.page->chunks[block->chunk].address = block->base;
	*ret_block = block;
	return CUDA_SUCCESS;
}

CUresult
gpu_allocate_small(
	const struct machine_chunk *form, struct region *region, CUdeviceptr *ret_address)
{
	struct block *block = NULL;
	CUdeviceptr at = 0;
	for (size_t i = 0; i < BLOCKS_MAX && at == 0; i++) {
		block = &blocks[i];
		if (block->context == region->context)
			at = find_room(block, region->bytes);
	}
	bool is_new = at == 0;
	if (is_new) {
		CUresult result = new_block(form, region->context, &block);
		if (result != CUDA_SUCCESS)
			return result;
		at = block->base;
	}
	region->base = at;
	region->chunk = block->chunk;
	region->block = block->base;
	gpu_region_add(region);
	gpu_count(HELD_ALLOCATIONS, 1);
	if (is_new)
		gpu_drop(block->chunk); /* the regions hold it */
	*ret_address = at;
	return CUDA_SUCCESS;
}

void
gpu_block_end(CUdeviceptr base)
{
	struct block *block = blocks;
	while (block->base != base && ++block < &blocks[BLOCKS_MAX])
		;
	TH_ASSERT(block < &blocks[BLOCKS_MAX]);
	gpu_unreserve(base, MACHINE_GRANULARITY);
	*block = (struct block){.context = NULL};
}
