/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory - see memory.h. Main thread only.
 */
#include "daemon/host/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/checked.h"

static const char *
kind_name(uint32_t kind)
{
	switch (kind) {
	case FDMSG_MEMFD:
		return "a memfd";
	case FDMSG_FILE:
		return "a file";
	case FDMSG_PROCESS:
		return "private memory of the process";
	case FDMSG_DMABUF:
		return "a dma-buf";
	case FDMSG_VMM:
		return "a GPU memory handle";
	default:
		return "memory of an unknown kind";
	}
}

/* Only a file that cannot shrink may be mapped: an access beyond a truncated end is SIGBUS here. */
static int
check_seals(int fd, struct th_err *err)
{
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return th_fail(err, TH_E_MEMORY_KIND,
			"the descriptor is no memfd: it has no seals (%s); allocate with "
			"thc_alloc, or import a memfd made with MFD_ALLOW_SEALING",
			th_strerror(-errno));
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return th_fail(err, TH_E_MEMORY_KIND,
			"the memfd is sealed against writing; leave F_SEAL_WRITE and "
			"F_SEAL_FUTURE_WRITE off");
	if (!(seals & F_SEAL_SHRINK) && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
		return th_fail(err, TH_E_MEMORY_KIND,
			"the memfd does not take F_SEAL_SHRINK (%s); make it with "
			"MFD_ALLOW_SEALING and leave F_SEAL_SEAL off",
			th_strerror(-errno));
	return 0;
}

/* Checks the range against the file and widens it to whole pages (huge ones for hugetlb). */
static int
place(const struct fdmsg_memory *message, const struct stat *st, struct th_err *err,
	uint64_t *ret_start, size_t *ret_bytes)
{
	uint64_t size = st->st_size < 0 ? 0 : (uint64_t)st->st_size;
	if (message->bytes == 0)
		return th_fail(err, TH_E_INVALID, "a memory object of no bytes");
	if (!th_range_fits(message->offset, message->bytes, size))
		return th_fail(err, TH_E_INVALID,
			"memory object: %" PRIu64 " bytes from offset %" PRIu64
			" are not in a file of %" PRIu64 " bytes",
			message->bytes, message->offset, size);
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	if (st->st_blksize > 0 && th_is_power_of_two_u64((uint64_t)st->st_blksize))
		page = th_max_u64(page, (uint64_t)st->st_blksize);
	uint64_t start = message->offset & ~(page - 1);
	uint64_t end;
	if (!th_align_up_u64(message->offset + message->bytes, page, &end) ||
		end - start > (uint64_t)PTRDIFF_MAX)
		return th_fail(err, TH_E_INVALID, "memory object: %" PRIu64 " bytes are too many",
			message->bytes);
	*ret_start = start;
	*ret_bytes = (size_t)(end - start);
	return 0;
}

static int
reserve(struct memory_set *set, uint32_t objects_max, struct th_err *err)
{
	if (set->count >= objects_max)
		return th_fail(err, TH_E_LIMIT,
			"a worker may share at most %" PRIu32
			" memory objects at a time (limit.memory_objects); forget some, or "
			"allocate "
			"fewer and larger ones",
			objects_max);
	if (set->count < set->capacity)
		return 0;
	uint32_t capacity = set->capacity ? 2 * set->capacity : 8;
	struct memory *objects = reallocarray(set->objects, capacity, sizeof(*objects));
	if (!objects)
		return th_fail(err, -ENOMEM, "the agent is out of memory");
	set->objects = objects;
	set->capacity = capacity;
	return 0;
}

/* Both sums are what was let in here, so neither is beyond its limit. */
static int
check_sum(const struct memory_set *set, uint64_t mapped_by_all, uint64_t map_bytes,
	struct th_err *err)
{
	if (map_bytes > MEMORY_BYTES_MAX - set->mapped_bytes)
		return th_fail(err, TH_E_LIMIT,
			"a worker may share at most %" PRIu64
			" bytes of memory; this would be %" PRIu64 " more than the %" PRIu64
			" that it shares; share only what is registered",
			MEMORY_BYTES_MAX, map_bytes, set->mapped_bytes);
	if (map_bytes > MEMORY_BYTES_MAX_ALL - mapped_by_all)
		return th_fail(err, TH_E_LIMIT,
			"the workers of this host share %" PRIu64
			" bytes of memory, and the agent maps at most %" PRIu64
			"; 'thctl status' names them",
			mapped_by_all, MEMORY_BYTES_MAX_ALL);
	return 0;
}

int
memory_add(struct memory_set *set, const struct fdmsg_memory *message, int fd, uint32_t objects_max,
	uint64_t mapped_by_all, struct th_err *err, uint32_t *ret_id)
{
	if (message->kind != FDMSG_MEMFD)
		return th_fail(err, TH_E_MEMORY_KIND,
			"%s can not be shared with this agent yet; allocate with thc_alloc, or "
			"import a memfd with thc_import",
			kind_name(message->kind));
	int rc = check_seals(fd, err);
	if (rc < 0)
		return rc;
	struct stat st;
	if (fstat(fd, &st) < 0)
		return th_fail(err, -errno, "fstat of a memory object: %s", th_strerror(-errno));
	uint64_t start = 0;
	size_t map_bytes = 0;
	rc = place(message, &st, err, &start, &map_bytes);
	if (rc < 0)
		return rc;
	rc = check_sum(set, mapped_by_all, map_bytes, err);
	if (rc == 0)
		rc = reserve(set, objects_max, err);
	if (rc < 0)
		return rc;
	void *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
	if (map == MAP_FAILED)
		return th_fail(err, errno == ENOMEM ? -ENOMEM : TH_E_MEMORY_KIND,
			"mapping %zu bytes of a memfd: %s", map_bytes, th_strerror(-errno));
	/* A child of the agent has no business in a worker's memory, and a core file neither. */
	(void)madvise(map, map_bytes, MADV_DONTFORK);
	(void)madvise(map, map_bytes, MADV_DONTDUMP);
	set->objects[set->count++] = (struct memory){
		.id = ++set->last_id,
		.dev = (uint64_t)st.st_dev,
		.ino = (uint64_t)st.st_ino,
		.base = message->base,
		.offset = message->offset,
		.bytes = message->bytes,
		.data = (uint8_t *)map + (message->offset - start),
		.map = map,
		.map_bytes = map_bytes,
	};
	set->mapped_bytes += map_bytes;
	*ret_id = set->last_id;
	return 0;
}

/* Ids are given in ascending order and the array keeps it: a registration looks up every row. */
static struct memory *
find(const struct memory_set *set, uint32_t id)
{
	uint32_t low = 0, high = set->count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (set->objects[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	bool found = low < set->count && set->objects[low].id == id && !set->objects[low].forgotten;
	return found ? &set->objects[low] : NULL;
}

const struct memory *
memory_find(const struct memory_set *set, uint32_t id)
{
	return find(set, id);
}

static void
unmap(struct memory_set *set, uint32_t index)
{
	struct memory *object = &set->objects[index];
	munmap(object->map, object->map_bytes);
	set->mapped_bytes -= object->map_bytes;
	set->count--;
	memmove(object, object + 1, (set->count - index) * sizeof(*object));
}

int
memory_forget(struct memory_set *set, uint32_t id, bool in_use)
{
	struct memory *object = find(set, id);
	if (!object)
		return TH_E_INVALID;
	if (in_use)
		object->forgotten = true;
	else
		unmap(set, (uint32_t)(object - set->objects));
	return 0;
}

void
memory_sweep(struct memory_set *set)
{
	for (uint32_t i = set->count; i-- > 0;) {
		if (set->objects[i].forgotten)
			unmap(set, i);
	}
}

void
memory_fini(struct memory_set *set)
{
	while (set->count > 0)
		unmap(set, set->count - 1);
	free(set->objects);
	*set = (struct memory_set){0};
}
