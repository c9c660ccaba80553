/* SPDX-License-Identifier: Apache-2.0 */
/*
 * maps - the mappings of this process, as the kernel tells them. Takes no memory but its own
 * struct, so its cost does not grow with what it need not look at. Any thread, one each.
 */
#ifndef TH_LIBTHC_MAPS_H
#define TH_LIBTHC_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"

struct mapping {
	uintptr_t start, end;
	bool readable, writable, shared;
	uint64_t offset; /* in the file, of start */
	uint64_t inode;  /* 0: no file */
	uint32_t major, minor;
};

struct maps {
	int fd;     /* owns */
	bool query; /* the kernel answers for one address; otherwise all lines are read */
	bool any;   /* last is the latest answer */
	struct mapping last;
	size_t at, filled; /* of buffer: what was read and not looked at yet */
	char buffer[4096];
};

enum maps_flags { MAPS_TEXT = 1u }; /* as if the kernel were old */

TH_MUST_USE int maps_begin(struct maps *maps, unsigned flags); /* 0 or -errno */
/*
 * The first mapping that ends behind address, which is never below that of an earlier call: 1;
 * 0: there is none; or -errno.
 */
TH_MUST_USE int maps_find(struct maps *maps, uintptr_t address, struct mapping *ret_mapping);
void maps_end(struct maps *maps);

#endif
