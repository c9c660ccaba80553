/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path - see path.h.
 */
#include "ipc/base/path.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

int
th_path_absolute(const char *path, char *ret_path, size_t bytes)
{
	char folder[PATH_MAX] = "";
	if (path[0] != '/') {
		if (getcwd(folder, sizeof(folder) - 1) == NULL)
			return -errno;
		if (folder[0] != '/') /* "(unreachable)/...", from another root */
			return -ENOENT;
	}
	const char *between = path[0] == '/' || folder[1] == '\0' ? "" : "/";
	int length = snprintf(ret_path, bytes, "%s%s%s", folder, between, path);
	return length < 0 || (size_t)length >= bytes ? -ENAMETOOLONG : 0;
}
