/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stamp - by fstat (see stamp.h).
 */
#include "tools/file/stamp.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

int
stamp_take(int fd, const char *path, struct th_err *err, struct stamp *ret_stamp)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return th_fail(err, -errno, "cannot look at %s: %s", path, strerror(errno));
	*ret_stamp = (struct stamp){.bytes = (uint64_t)st.st_size, .modified = st.st_mtim};
	return 0;
}

int
stamp_check(const struct stamp *stamp, int fd, const char *path, struct th_err *err)
{
	struct stamp now;

	int rc = stamp_take(fd, path, err, &now);
	if (rc < 0)
		return rc;
	if (now.bytes != stamp->bytes)
		return th_fail(err, TH_E_CONTRACT,
			"%s was changed while it was in use: it had %" PRIu64
			" bytes and has %" PRIu64 "; write a new file and publish that",
			path, stamp->bytes, now.bytes);
	if (now.modified.tv_sec != stamp->modified.tv_sec ||
		now.modified.tv_nsec != stamp->modified.tv_nsec)
		return th_fail(err, TH_E_CONTRACT,
			"%s was written to while it was in use; write a new file and publish that",
			path);
	return 0;
}
