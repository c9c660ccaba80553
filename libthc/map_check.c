/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map_check - see map_check.h. Anonymous memory has no identity but that it is anonymous: what was
 * unmapped and mapped again between two looks, as anonymous memory both times, is not told apart.
 */
#include "libthc/map_check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "ipc/base/log.h"
#include "libthc/libthc_own.h"
#include "libthc/maps.h"

struct builder {
	struct maps maps;
	struct ranges ranges;
	size_t capacity;
	uint64_t page_bytes;
	uintptr_t covered; /* up to here; tied tensors are looked at once */
};

static struct range
identity(const struct mapping *mapping)
{
	return (struct range){.inode = mapping->inode,
		.origin = mapping->inode != 0 ? mapping->offset - mapping->start : 0,
		.major = mapping->major,
		.minor = mapping->minor,
		.shared = mapping->shared};
}

static bool
same_identity(const struct range *a, const struct range *b)
{
	return a->inode == b->inode && a->origin == b->origin && a->major == b->major &&
	       a->minor == b->minor && a->shared == b->shared;
}

/* Adds a piece that lies in one mapping, to the last range when it goes on there. */
static int
map_check_append(struct builder *builder, const struct range *piece)
{
	struct ranges *ranges = &builder->ranges;
	struct range *last = ranges->count > 0 ? &ranges->list[ranges->count - 1] : NULL;

	/* A gap without a whole page in it cannot have another mapping than its neighbours. */
	uint64_t page = builder->page_bytes;
	if (last != NULL && last->read_only == piece->read_only && same_identity(last, piece) &&
		(piece->start <= last->end || piece->start / page <= (last->end - 1) / page + 1)) {
		if (piece->end > last->end)
			last->end = piece->end;
		return 0;
	}
	if (ranges->count == builder->capacity) {
		size_t wanted = builder->capacity == 0 ? 16 : 2 * builder->capacity;
		struct range *more = reallocarray(ranges->list, wanted, sizeof(*more));
		if (more == NULL)
			return shim_fail(-ENOMEM, "out of memory for %zu ranges", wanted);
		ranges->list = more;
		builder->capacity = wanted;
	}
	ranges->list[ranges->count++] = *piece;
	return 0;
}

static int
not_mapped(const struct checked_tensor *tensor, uintptr_t at)
{
	if (tensor->object.serial != 0)
		return shim_fail(THC_E_STALE_MEMORY,
			"tensors[%zu].data: '%s' lies in memory from %s of which nothing is mapped "
			"at %p any more",
			tensor->index, tensor->name,
			tensor->object.allocated ? "thc_alloc" : "thc_import", (void *)at);
	return shim_fail(THC_E_INVALID,
		"tensors[%zu].data: nothing is mapped at %p, where '%s' has bytes", tensor->index,
		(void *)at, tensor->name);
}

static int
add_tensor(struct builder *builder, const struct checked_tensor *tensor)
{
	uintptr_t at = (uintptr_t)tensor->start, end = at + (uintptr_t)tensor->bytes;
	struct mapping mapping;

	if (at < builder->covered)
		at = builder->covered;
	while (at < end) {
		int rc = maps_find(&builder->maps, at, &mapping);
		if (rc < 0)
			return shim_fail(rc, "reading /proc/self/maps: %s", th_strerror(rc));
		if (rc == 0 || mapping.start > at)
			return not_mapped(tensor, at);
		/* So it is where CUDA has put GPU memory. */
		if (tensor->way == WAY_PROCESS && !mapping.readable)
			return shim_fail(THC_E_INVALID,
				"tensors[%zu].data: what is mapped at %p, where '%s' has bytes, "
				"cannot be read; where it is GPU memory, device has to be the "
				"GPU's CUDA ordinal",
				tensor->index, (void *)at, tensor->name);
		struct range piece = identity(&mapping);
		piece.start = at;
		piece.end = end < mapping.end ? end : mapping.end;
		piece.read_only = tensor->way == WAY_FILE && tensor->object.read_only;
		rc = map_check_append(builder, &piece);
		if (rc < 0)
			return rc;
		at = piece.end;
		builder->covered = at;
	}
	return 0;
}

static int
by_start(const void *a, const void *b)
{
	const struct checked_tensor *const *x = a, *const *y = b;

	return (*x)->start < (*y)->start ? -1 : (*x)->start > (*y)->start ? 1 : 0;
}

/* All tensors with bytes, by address. */
static size_t
map_check_sort(const struct checked_tensors *checked, const struct checked_tensor **ret_sorted,
	bool *ret_by_address)
{
	size_t count = 0;
	bool in_order = true;

	for (size_t i = 0; i < checked->count; i++) {
		const struct checked_tensor *tensor = &checked->tensors[i];
		if (tensor->bytes == 0 || tensor->device != THC_HOST)
			continue;
		*ret_by_address = *ret_by_address || tensor->way == WAY_PROCESS;
		in_order =
			in_order && (count == 0 || ret_sorted[count - 1]->start <= tensor->start);
		ret_sorted[count++] = tensor;
	}
	if (!in_order)
		qsort(ret_sorted, count, sizeof(*ret_sorted), by_start);
	return count;
}

int
ranges_new(const struct checked_tensors *checked, struct ranges *ret_ranges)
{
	struct builder builder = {.page_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
	const struct checked_tensor **sorted = calloc(checked->count, sizeof(const void *));
	bool by_address = false;

	if (sorted == NULL)
		return shim_fail(-ENOMEM, "out of memory for %zu tensors", checked->count);
	size_t count = map_check_sort(checked, sorted, &by_address);
	int rc = maps_begin(&builder.maps, 0);
	if (rc < 0 && by_address) {
		rc = shim_fail(
			rc, "/proc/self/maps, to look at private memory: %s", th_strerror(rc));
	} else if (rc < 0) {
		log_warn("libthc", "memory cannot be checked without /proc/self/maps");
		rc = 0;
	} else {
		for (size_t i = 0; rc == 0 && i < count; i++)
			rc = add_tensor(&builder, sorted[i]);
		maps_end(&builder.maps);
	}
	free(sorted);
	if (rc < 0) {
		ranges_free(&builder.ranges);
		return rc;
	}
	*ret_ranges = builder.ranges;
	return 0;
}

void
ranges_free(struct ranges *ranges)
{
	free(ranges->list);
	*ranges = (struct ranges){0};
}

static int
check_one(struct maps *maps, const struct range *range, bool destination, uintptr_t *ret_at)
{
	uintptr_t at = range->start;
	struct mapping mapping;

	*ret_at = at;
	if (destination && range->read_only)
		return RANGE_FD_READ_ONLY;
	while (at < range->end) {
		int rc = maps_find(maps, at, &mapping);
		if (rc < 0)
			return rc;
		*ret_at = at;
		if (rc == 0 || mapping.start > at)
			return RANGE_GONE;
		const struct range now = identity(&mapping);
		if (!same_identity(range, &now))
			return RANGE_OTHER;
		if (destination && !mapping.writable)
			return RANGE_READ_ONLY;
		at = mapping.end;
	}
	return 0;
}

int
ranges_check(const struct ranges *ranges, bool destination, uintptr_t *ret_at)
{
	struct maps maps;

	if (ranges->count == 0)
		return 0;
	int rc = maps_begin(&maps, 0);
	if (rc < 0)
		return rc;
	for (size_t i = 0; rc == 0 && i < ranges->count; i++)
		rc = check_one(&maps, &ranges->list[i], destination, ret_at);
	maps_end(&maps);
	return rc;
}
