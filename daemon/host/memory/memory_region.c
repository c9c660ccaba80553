/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_region - what is mapped of workers' memory, registered with NICs, and its end: see
 * memory.h. Main thread, but for what says otherwise.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/host/memory/gpu_hold.h"
#include "daemon/host/memory/holes.h"
#include "daemon/host/memory/memory.h"
#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/stranger_fd.h"
#include "transport/part/fd_memory.h"
#include "transport/part/packed.h"
#include "transport/part/unmap.h"
#include "transport/rdma/memory/region.h"

/* Registered or given back, what becomes of it does not depend on the object any more. */
struct mapping {
	struct unmap unmap, nic_unmap;
	void *map; /* owns */
	void *nic; /* owns: the same pages, for the devices; NULL: there is none */
	size_t bytes;
	uint64_t missing; /* until it is registered or never will be */
};

static uint64_t unmapping, populating; /* atomic: bytes */

/* Of so many bytes of the file, as far as can be told: those that are there may be others. */
uint64_t
memory_missing_of(const struct stat *st, uint64_t bytes)
{
	uint64_t there = (uint64_t)th_max_i64(st->st_blocks, 0) * 512;
	uint64_t size = (uint64_t)th_max_i64(st->st_size, 0);
	return th_min_u64(bytes, size > there ? size - there : 0);
}

uint64_t
memory_missing(const struct memory *object)
{
	struct stat st;
	if (object->missing == 0 || !object->file || fstat(fd_memory_fd(object->file), &st) < 0)
		return object->missing;
	return memory_missing_of(&st, object->bytes);
}

uint64_t
memory_unmapping(void)
{
	return __atomic_load_n(&unmapping, __ATOMIC_RELAXED);
}

uint64_t
memory_populating(void)
{
	return __atomic_load_n(&populating, __ATOMIC_RELAXED);
}

/* On the keeper's thread. */
static void
mapping_settled(void *arg, struct region *region)
{
	struct mapping *mapping = arg;
	(void)region;
	__atomic_sub_fetch(&populating, mapping->missing, __ATOMIC_RELAXED);
	mapping->missing = 0;
}

/* On any thread. */
static void
mapping_unmapped(void *arg)
{
	struct mapping *mapping = arg;
	__atomic_sub_fetch(&unmapping, mapping->bytes, __ATOMIC_RELAXED);
	free(mapping);
}

/* On any thread. */
static void
nic_unmapped(void *arg)
{
	struct mapping *mapping = arg;
	unmap_start(&mapping->unmap, mapping->map, mapping->bytes, mapping_unmapped, mapping);
}

/* Counted until it is done. */
static void
mapping_give_back(struct mapping *mapping)
{
	if (mapping->nic)
		unmap_start(
			&mapping->nic_unmap, mapping->nic, mapping->bytes, nic_unmapped, mapping);
	else
		nic_unmapped(mapping);
}

/* On the keeper's thread. */
static void
mapping_gone(void *arg)
{
	struct mapping *mapping = arg;
	mapping_settled(mapping, NULL);
	mapping_give_back(mapping);
}

static void
register_dmabuf(struct memory *object, struct rails *rails, uint32_t mask)
{
	const struct region_user user = {
		.arg = object->hold, .stuck = hold_refused, .gone = hold_end};
	const struct region_memory memory = {.dmabuf_fd = th_fd_move(&object->dmabuf_fd),
		.dmabuf_offset = object->offset,
		.close_fd = stranger_close_drivers,
		.bytes = object->bytes};
	object->hold = NULL;
	object->region = region_new(rails, &memory, mask, SHARD_ACCESS, &user);
}

/*
 * A device is to write to what a shard receives, and it registers for that only what is mapped
 * writable, now or when it has been lost and comes back. So it has a mapping of its own of the same
 * pages, through which nobody else reaches them; its READs land where this agent has asked for.
 */
static void *
map_for_devices(const struct memory *object)
{
	void *nic = mremap(object->map, 0, object->map_bytes, MREMAP_MAYMOVE);
	if (nic == MAP_FAILED)
		return NULL;
	if (mprotect(nic, object->map_bytes, PROT_READ | PROT_WRITE) < 0) {
		(void)munmap(nic, object->map_bytes);
		return NULL;
	}
	holes_guard(nic, object->map_bytes);
	return nic;
}

void
memory_register(struct memory *object, struct rails *rails, uint32_t mask)
{
	if (object->dmabuf) {
		register_dmabuf(object, rails, mask);
		return;
	}
	struct mapping *mapping = th_calloc(1, sizeof(*mapping));
	*mapping = (struct mapping){.map = object->map,
		.nic = map_for_devices(object),
		.bytes = object->map_bytes,
		.missing = memory_missing(object)};
	const struct region_user user = {
		.arg = mapping, .settled = mapping_settled, .gone = mapping_gone};
	__atomic_add_fetch(&populating, mapping->missing, __ATOMIC_RELAXED);
	/* Without it, the registration fails for want of rights and says so, or has them. */
	const struct region_memory memory = {.data = mapping->nic ? mapping->nic : object->map,
		.dmabuf_fd = -1,
		.bytes = object->map_bytes};
	object->region = region_new(rails, &memory, mask, SHARD_ACCESS, &user);
}

void
memory_unmap(struct memory *object)
{
	__atomic_add_fetch(&unmapping, object->map_bytes, __ATOMIC_RELAXED);
	if (object->region) {
		region_release(object->region);
	} else if (object->map) {
		struct mapping *mapping = th_calloc(1, sizeof(*mapping));
		mapping->map = object->map;
		mapping->bytes = object->map_bytes;
		mapping_give_back(mapping);
	}
}
