/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map_check - what lies behind the registered tensors in this process: that it is mapped, and still
 * the same as when it was registered.
 *
 * The agent reaches memory by ways that know nothing of a worker's munmap and mprotect: its own
 * mapping of a memfd, and /proc/self/mem, which writes through a protection. So the worker's own
 * mappings are looked at before each operation. Neighbouring tensors are one range, and what lies
 * in one mapping costs one question. Under the lock of the handle.
 */
#ifndef TH_LIBTHC_MAP_CHECK_H
#define TH_LIBTHC_MAP_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "libthc/register.h"

struct range { /* of bytes with one identity */
	uintptr_t start, end;
	uint64_t inode;  /* 0: no file */
	uint64_t origin; /* offset in the file less the address: the same for each part of a file */
	uint32_t major, minor;
	bool shared;
	bool read_only; /* the descriptor by which the agent reaches it */
};

struct ranges {
	struct range *list; /* owns; by address */
	size_t count;
};

/*
 * Of all tensors with bytes in host memory. 0, or THC_E_INVALID with a sentence when one is not
 * mapped; THC_E_STALE_MEMORY when that was imported or allocated. Without /proc: empty, unless a
 * tensor can only be reached by its address, which is -errno.
 */
TH_MUST_USE int ranges_new(const struct checked_tensors *checked, struct ranges *ret_ranges);
void ranges_free(struct ranges *ranges); /* legal on a zeroed one */

enum range_fault {
	RANGE_GONE = 1,  /* not mapped any more */
	RANGE_OTHER,     /* other memory lies there now */
	RANGE_READ_ONLY, /* the mapping, for a destination */
	RANGE_FD_READ_ONLY,
};
/* 0; an enum range_fault and the address where it was found; or -errno. Allocates nothing. */
TH_MUST_USE int ranges_check(const struct ranges *ranges, bool destination, uintptr_t *ret_at);

#endif
