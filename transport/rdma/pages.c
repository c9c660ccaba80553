/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages - see pages.h.
 */
#include "transport/rdma/pages.h"

#include <stddef.h>
#include <sys/mman.h>

#define HUGE_BYTES (UINT64_C(2) << 20)

uint8_t *
pages_map(uint64_t bytes)
{
	uint64_t slack = bytes >= HUGE_BYTES ? HUGE_BYTES : 0;
	void *map = mmap(
		NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	uint8_t *data = map;
	if (slack > 0) {
		uint64_t before = (HUGE_BYTES - (uintptr_t)map % HUGE_BYTES) % HUGE_BYTES;
		data += before;
		if (before > 0)
			(void)munmap(map, before);
		if (slack > before)
			(void)munmap(data + bytes, slack - before);
		(void)madvise(data, bytes, MADV_HUGEPAGE);
	}
	/* A child of the agent has no business in it, and a core file neither. */
	(void)madvise(data, bytes, MADV_DONTFORK);
	(void)madvise(data, bytes, MADV_DONTDUMP);
	return data;
}
