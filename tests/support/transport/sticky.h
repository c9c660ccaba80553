/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sticky - memory that a thread gets stuck in.
 *
 * A worker can make a read or write of its memory wait for ever (a page of a file system that it
 * serves, a file that it locks). Here the C library's calls do, for one descriptor, from a place
 * on, until they are let go. Any thread; a failed check aborts.
 */
#ifndef TH_TESTS_SUPPORT_TRANSPORT_STICKY_H
#define TH_TESTS_SUPPORT_TRANSPORT_STICKY_H

#include <stdint.h>

struct rig;
struct xfer_part;

/* Of a part of the kind RIG_FILE: from this byte of the file on. */
void sticky_make(const struct xfer_part *part, uint64_t from);
/* Until a thread is stuck. */
void sticky_wait(struct rig *rig);
/* Those that are stuck go on, and nobody gets stuck any more. */
void sticky_let_go(void);

#endif
