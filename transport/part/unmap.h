/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unmap - gives mappings back where nobody waits for it.
 *
 * munmap takes about a second for a hundred gigabytes of small pages, and meanwhile no other thread
 * of the process can map anything. So what is large goes in slices, and by a thread of its own: the
 * threads that end a worker's or a leg's memory have others to serve. The thread is there while it
 * has something to do and is never waited for: what is left when the process ends, ends with it.
 *
 * Any thread.
 */
#ifndef TH_TRANSPORT_PART_UNMAP_H
#define TH_TRANSPORT_PART_UNMAP_H

#include <stddef.h>

/* What is smaller is unmapped at once. */
#define UNMAP_AWAY_BYTES ((size_t)16 << 20)

struct unmap { /* all its own; there until done */
	struct unmap *next;
	char *map;
	size_t bytes;
	void (*done)(void *arg);
	void *arg;
};

/*
 * done: it is not mapped any more; within the call, or on the thread, where nobody may wait. It is
 * not called if the kernel refuses, which is logged: that stays mapped. Large ones go on in turn, a
 * slice each.
 */
void unmap_start(struct unmap *unmap, void *map, size_t bytes, void (*done)(void *arg), void *arg);
/* Here and now, in the same slices. */
void unmap_here(void *map, size_t bytes);

#endif
