/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_memory - the memory of this process that was made known: thc_alloc'd and imported objects,
 * and how the agent reaches each.
 *
 * One registry for the process, because memory outlives handles. Any thread; its lock has
 * its place in the order of libthc_own.h.
 */
#ifndef TH_LIBTHC_OWN_MEMORY_H
#define TH_LIBTHC_OWN_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"

enum memory_way {
	WAY_NONE,    /* no bytes */
	WAY_MAPPED,  /* the agent maps the descriptor: a memfd that cannot shrink */
	WAY_FILE,    /* it reads and writes the descriptor */
	WAY_PROCESS, /* by its address, through /proc/self/mem */
	WAY_GPU,     /* its GPU process opens the memory (gpu_tensors.h) */
	WAY_COPIED,  /* GPU memory that the agent does not open: it has a copy in host memory */
};

struct memory_object {
	uint64_t serial; /* 1, 2, ...; never used again */
	uintptr_t start;
	uint64_t bytes;
	enum memory_way way;
	int fd; /* owned by the registry; open while the object is acquired; -1 for WAY_PROCESS */
	uint64_t fd_offset;
	bool allocated;     /* by thc_alloc, not imported */
	bool read_only;     /* the descriptor cannot be written */
	const char *reason; /* static: why it is not mapped */
};

enum memory_place { MEMORY_OUTSIDE, MEMORY_PARTLY, MEMORY_INSIDE };
/* Of [start, start + bytes) and the objects; the object inside which all of it lies is copied. */
enum memory_place memory_find(uintptr_t start, uint64_t bytes, struct memory_object *ret_object);
/* As of thc_alloc, of libthc's own, and without pages; -errno. */
TH_MUST_USE int memory_new(uint64_t bytes, struct memory_object *ret_object);
/* Makes them, without the lock: see populate.h. */
TH_MUST_USE int memory_populate(const struct memory_object *object, int64_t until_ns);
void memory_end(uintptr_t start, uint64_t serial); /* whoever was given it */
/* While acquired it is neither freed nor forgotten. -ENOENT: it is gone already. */
TH_MUST_USE int memory_acquire(uintptr_t start, uint64_t serial);
void memory_release(uintptr_t start, uint64_t serial);
/* The first of count serials for what is not in this registry. */
uint64_t memory_serials(uint64_t count);

/* Around fork. */
void memory_lock(void);
void memory_unlock(void);
void memory_forked(void); /* in the child, between both */

#endif
