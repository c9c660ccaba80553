/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bare - threads that have no copy of a stranger's descriptor.
 *
 * close() of each copy of a descriptor, not only of the last, asks the file system that it is of
 * (FLUSH of FUSE), and who serves that may keep the answer. A child has copies of all that its
 * parent has, and closes them before it is another program; so has a thread that makes the table of
 * descriptors its own. What is copied in spite of CLOSE_RANGE_UNSHARE are the first 64, which the
 * kernel keeps in one word: so they are taken before a stranger can send any.
 */
#ifndef TH_IPC_BASE_BARE_H
#define TH_IPC_BASE_BARE_H

#include <stdbool.h>

#include "ipc/base/checked.h"

#define BARE_BELOW 64 /* the numbers that no stranger's descriptor gets */

/* As the process begins, once. 0, or -errno: no descriptor is to be had. */
TH_MUST_USE int bare_reserve(void);

/*
 * The thread that calls has a table of its own from then on, with what lies below BARE_BELOW and no
 * more. False: it shares the process's as before, because nothing is reserved, or the kernel (5.9)
 * or a filter of system calls does not have it.
 */
bool bare_begin(void);

/* On such a thread: the process's descriptor fd, which gets the same number; below BARE_BELOW only
 * what was there before bare_begin. 0, or -errno. */
TH_MUST_USE int bare_fetch(int fd);

/* On such a thread: closes all that it has fetched. */
void bare_clear(void);

#endif
