/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dial - connecting to a unix socket before a deadline. Any thread.
 */
#ifndef TH_LIBTHC_DIAL_H
#define TH_LIBTHC_DIAL_H

#include <stdint.h>

#include "ipc/base/checked.h"

#define DIAL_PATH_MAX 107 /* bytes of a socket address */

/*
 * A connected socket (close-on-exec, non-blocking) of this type, or -errno: -ETIMEDOUT,
 * -ENAMETOOLONG, -ENOENT, -ECONNREFUSED, -EACCES...
 */
TH_MUST_USE int dial_unix(const char *path, int type, int64_t deadline_ns);
/* Waits for events (of poll) on fd: 0, -ETIMEDOUT or -errno. A hang-up counts as an event. */
TH_MUST_USE int dial_wait(int fd, short events, int64_t deadline_ns);

#endif
