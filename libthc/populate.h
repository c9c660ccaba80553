/* SPDX-License-Identifier: Apache-2.0 */
/*
 * populate - has the kernel make the pages of memory that an agent is to reach.
 *
 * Whoever touches a page first has it on the account of its control group, and near to its own CPU.
 * That shall be the worker, and not the agent that reads or fills its tensors. So the pages are
 * there before the agent is, and no later touch can fail for want of one. Any thread.
 */
#ifndef TH_LIBTHC_POPULATE_H
#define TH_LIBTHC_POPULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "libthc/register.h"

struct thc_shard;

struct populate_memory { /* a shared mapping of a file that lies in memory */
	uintptr_t start; /* of a page */
	uint64_t bytes;
	int fd;             /* borrows */
	uint64_t fd_offset; /* of start */
	bool written;       /* it can be, by this mapping */
};

/*
 * 0; -ETIMEDOUT without all of them; -ENOMEM, also where the file system or the pool has no more;
 * or -errno. Beyond the limit of a control group the kernel ends a process of it, as ever.
 */
TH_MUST_USE int populate_all(const struct populate_memory *memory, int64_t until_ns);
/*
 * Those below tensors in imported files that have holes: 0, or a code with a sentence. Under the
 * lock of the handle, which is given back meanwhile; the objects are held, and it is exclusive.
 */
TH_MUST_USE int populate_imported(
	struct thc_shard *shard, const struct checked_tensors *checked, int64_t until_ns);

#endif
