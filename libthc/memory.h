/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory - the memory of this process that agents can be given: thc_alloc'd and imported objects.
 *
 * One registry for the process, because memory outlives handles. Any thread; its lock is the last
 * in the order of internal.h.
 */
#ifndef TH_LIBTHC_MEMORY_H
#define TH_LIBTHC_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"

struct memory_object {
	uint64_t
		serial; /* 1, 2, ...; never used again */
	uintptr_t start;
	uint64_t bytes;
	int fd; /* owned by the registry; stays open while the object is acquired */
	uint64_t fd_offset;
	bool allocated; /* by thc_alloc, not imported */
	bool direct; /* a memfd that cannot shrink */
};

/* The object in which all of [start, start + bytes) lies, copied. False: there is none. */
bool memory_find(uintptr_t start, uint64_t bytes, struct memory_object *ret_object);
/* While acquired it is neither freed nor forgotten. -ENOENT: it is gone already. */
TH_MUST_USE int memory_acquire(uintptr_t start, uint64_t serial);
void memory_release(uintptr_t start, uint64_t serial);

/* Around fork. */
void memory_lock(void);
void memory_unlock(void);

#endif
