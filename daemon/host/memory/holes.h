/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holes - keeps this process from making pages of workers' memory.
 *
 * A file in memory may have holes: bytes that no page stands behind. Who touches one gets a page on
 * the account of its own control group, which is the agent's, although the memory is the worker's.
 * libthc makes all pages before it shares memory, and two things hold whatever a worker does:
 *
 * What is mapped of it is registered with a userfaultfd that answers with SIGBUS, so that a touch
 * of a hole is what transport/part/sigbus.h makes a result of, and a system call that would write
 * to one fails with EFAULT. This has no gap in time.
 *
 * And before an operation each file is asked how many pages it has. Where there are fewer than its
 * tensors take, the operation is refused by a sentence, and nothing has changed. That is a question
 * of constant time. It does not find the hole of a file that has as many pages elsewhere, and
 * nothing here looks for it: the kernel does so under a lock that the worker can hold.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_MEMORY_HOLES_H
#define TH_DAEMON_HOST_MEMORY_HOLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/host/memory/memory_claims.h"

struct fd_memory;

struct holes_file {               /* a worker's file in which tensors lie */
	struct fd_memory *access; /* borrows: the memory object's */
	uint64_t dev, ino;
	uint64_t end;   /* of the last page that was counted */
	uint64_t bytes; /* of whole pages */
	uint32_t row;   /* the first tensor, of the manifest */
	bool mapped;
};

/* A mapping of a worker's file, new and not touched yet. */
void holes_guard(void *map, size_t bytes);

/*
 * Counts the pages of one more interval of a file: in the order of interval_compare. files has room
 * for one more than *count.
 */
void holes_count(struct holes_file *files, uint32_t *count, const struct interval *interval,
	struct fd_memory *access, bool mapped);
/*
 * The first file with fewer pages than were counted, and how many of its bytes are missing; NULL:
 * none. Holes in what is only read, and not mapped, harm nobody: reading makes no page.
 */
const struct holes_file *holes_find(
	const struct holes_file *files, uint32_t count, bool destination, uint64_t *ret_missing);

#endif
