/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find_daemon - see find_daemon.h. Start-up only.
 */
#include "tools/find_daemon.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>


void
find_own_folder(char *ret_folder, size_t bytes)
{
	ssize_t length = readlink("/proc/self/exe", ret_folder, bytes - 1);

	ret_folder[length > 0 ? length : 0] = '\0';
	char *slash = strrchr(ret_folder, '/');
	if (slash)
		*slash = '\0';
}

static bool
find_at(char *ret_path, size_t bytes, const char *folder, int folder_bytes, const char *below,
	const char *name)
{
	int length = snprintf(ret_path, bytes, "%.*s%s/%s", folder_bytes, folder, below, name);

	return length > 0 && (size_t)length < bytes && access(ret_path, X_OK) == 0;
}

int
find_daemon(const char *folder, const char *name, char *ret_path, size_t bytes, struct th_err *err)
{
	const char *room = strcmp(name, "thagentd") == 0 ? "/../daemon" : "/../server";
	const char *const near[] = {"", room, "/../sbin"};
	const char *const libexec[] = {"/../libexec/tensorhub", "/../lib/tensorhub"};
	const char *path = getenv("PATH");
	int own = (int)strlen(folder);

	for (size_t i = 0; own > 0 && i < TH_ARRAY_LEN(near); i++)
		if (find_at(ret_path, bytes, folder, own, near[i], name))
			return 0;
	while (path && *path) {
		int length = (int)strcspn(path, ":");
		/* An empty one means the folder of the process, which is not for programs. */
		if (length > 0 && find_at(ret_path, bytes, path, length, "", name))
			return 0;
		path += length + (path[length] == ':');
	}
	for (size_t i = 0; own > 0 && i < TH_ARRAY_LEN(libexec); i++)
		if (find_at(ret_path, bytes, folder, own, libexec[i], name))
			return 0;
	return th_fail(err, -ENOENT,
		"there is no %s beside %s, nor in %s, ../sbin, PATH or ../libexec/tensorhub; "
		"build or install it first",
		name, folder, room + 1);
}
