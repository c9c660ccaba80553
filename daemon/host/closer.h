/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closer - closes descriptors that strangers sent, where nobody waits for it.
 *
 * The last close() of a file can take as long as its maker likes: a socket that lingers over unsent
 * bytes, a file of a file system that the maker serves. A worker may send either. So what came over
 * a socket and is not known to be a memfd is closed here, by threads of which a hostile worker can
 * stop a few and no more than that. Any thread.
 */
#ifndef TH_DAEMON_HOST_CLOSER_H
#define TH_DAEMON_HOST_CLOSER_H

#include <stdint.h>

/* Takes fd; does not wait for it. */
void closer_close(int fd);
/* ... and calls closed(arg) when it is closed: on another thread, or here. closed may be NULL. */
void closer_close_then(int fd, void (*closed)(void *arg), void *arg);
/* Descriptors that are being closed, or wait for it, now. */
uint64_t closer_waiting(void);

#endif
