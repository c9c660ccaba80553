/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_closer - closes descriptors that strangers sent, where nobody waits for it.
 *
 * close() can take as long as the maker of a file likes: the last one of a socket that lingers over
 * unsent bytes, each of a file of a file system that the maker serves (ipc/base/bare.h). A worker
 * may send either. So what came over a socket and is not known to be a memfd is closed here, by
 * threads that a hostile worker can stop, and nothing else of the agent with them. Any thread.
 */
#ifndef TH_DAEMON_HOST_MEMORY_FD_CLOSER_H
#define TH_DAEMON_HOST_MEMORY_FD_CLOSER_H

#include <stdint.h>

/* Takes fd; does not wait for it. */
void closer_close(int fd);
/*
 * Of what a driver hands out (fd_kind.h): does not wait for a stranger's, whoever has
 * sent that. Calls closed(arg) when it is closed: on another thread, or here. closed may be NULL.
 */
void closer_close_drivers(int fd, void (*closed)(void *arg), void *arg);
/* Descriptors that are being closed, or wait for it, now. */
uint64_t closer_waiting(void);

#endif
