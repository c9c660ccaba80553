/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stranger_fd - the whole defence against a descriptor whose close never returns.
 *
 * close() can take as long as the maker of a file likes: the last one of a socket that lingers over
 * unsent bytes, or of a pipe or socket that is written from a page of a file system that the maker
 * serves; and each close of a file of such a file system, for close() asks it (FLUSH of FUSE). A
 * worker may send any of them. So of what came over a socket
 *
 *   - what it is, is found out without a question to whoever serves it;
 *   - what is not known to be the kernel's own memory is closed by threads for that, which a
 *     hostile worker can stop, and nothing else of the process with them;
 *   - no other thread and no child has a copy, for it would close that, too. A child has copies of
 *     all that its parent has, and closes them before it is another program; so has a thread that
 *     makes the table of descriptors its own. What is copied in spite of CLOSE_RANGE_UNSHARE are
 *     the first 64, which the kernel keeps in one word: they are taken before a stranger can send
 *     any.
 *
 * Any thread, but where it is said.
 */
#ifndef TH_IPC_BASE_STRANGER_FD_H
#define TH_IPC_BASE_STRANGER_FD_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"

/* ---- what it is ------------------------------------------------------------------------------ */

/* A dma-buf, or memory that stands for one in tests. False also where /proc does not tell. */
bool stranger_is_dmabuf(int fd);
/*
 * What a driver may have handed out: of a device (NVIDIA's: nvidiactl), memory, or a dma-buf. It is
 * closed when it is closed. A socket is none: one with sockets on their way in it, nested deeply,
 * may be one that the kernel never sends on.
 */
bool stranger_may_be_drivers(int fd);

/* ---- who closes it --------------------------------------------------------------------------- */

/* Takes fd; does not wait for it. */
void stranger_close(int fd);
/*
 * Of what a driver hands out: does not wait for a stranger's, whoever has sent that. Calls
 * closed(arg) when it is closed, and no child has a copy: on another thread, or here. closed may be
 * NULL.
 */
void stranger_close_drivers(int fd, void (*closed)(void *arg), void *arg);
/* Descriptors that are being closed, or wait for it, now. */
uint64_t stranger_num_closing(void);

/* ---- who has no copy ------------------------------------------------------------------------- */

#define STRANGER_BELOW 64 /* the numbers that no stranger's descriptor gets */

/* As the process begins, once. 0, or -errno: no descriptor is to be had. */
TH_MUST_USE int stranger_reserve(void);

/*
 * The thread that calls has a table of its own from then on, with what lies below STRANGER_BELOW
 * and no more. False: it shares the process's as before, because nothing is reserved, or the kernel
 * (5.9) or a filter of system calls does not have it.
 */
bool stranger_bare_begin(void);
/* On such a thread: the process's descriptor fd, which gets the same number; below STRANGER_BELOW
 * only what was there before stranger_bare_begin. 0, or -errno. */
TH_MUST_USE int stranger_bare_fetch(int fd);
/* On such a thread: closes all that it has fetched. */
void stranger_bare_clear(void);

/*
 * The thread that calls keeps these descriptors of the process and no other; sorts fds. Where the
 * kernel or a filter has no table of its own for it, it shares the process's as any other.
 */
void stranger_bare_keep(int *fds, uint32_t count);

/* Around the start of a child by a thread that is not bare: until it has closed its copies. */
void stranger_copies_begin(void);
void stranger_copies_end(void);

#endif
