/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stamp - whether a file that others read through us is still the one that it was.
 *
 * A file that is published is mapped, not copied, and a promise was given that it does not change.
 * Nothing keeps others from writing to it, so its size and its time of modification are looked at.
 * That it is removed or replaced by a rename does not matter: what was opened stays.
 */
#ifndef TH_TOOLS_FILE_STAMP_H
#define TH_TOOLS_FILE_STAMP_H

#include <stdint.h>
#include <time.h>

#include "ipc/base/err.h"

struct stamp {
	uint64_t bytes;
	struct timespec modified;
};

/* 0, or -errno with a sentence. path is for sentences. */
int stamp_take(int fd, const char *path, struct th_err *err, struct stamp *ret_stamp);
/* 0 while nothing has changed; TH_E_CONTRACT with a sentence that says what. */
int stamp_check(const struct stamp *stamp, int fd, const char *path, struct th_err *err);

#endif
