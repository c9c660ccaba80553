/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem_available - see mem_available.h. The limits are those of control groups, of version 2 or 1: a
 * group, and every group above it. Its page cache counts as free, because the kernel drops that
 * first. Any thread.
 */
#include "daemon/host/memory/mem_available.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"

#define PATH_BYTES 4096
#define LINE_BYTES 4352

struct names { /* of the files of one version */
	const char *mount, *limit, *usage, *inactive, *active;
};

static const struct names version_2 = {
	"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ", "active_file "};
static const struct names version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
	"memory.usage_in_bytes", "total_inactive_file ", "total_active_file "};

/* The number behind prefix in the first line that begins with it; false: there is none. */
static bool
find_number(const char *path, const char *prefix, uint64_t *ret_number)
{
	char line[LINE_BYTES];
	size_t length = strlen(prefix);
	bool found = false;
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		char *end;
		if (strncmp(line, prefix, length) != 0)
			continue;
		unsigned long long number = strtoull(line + length, &end, 10);
		if (end == line + length)
			break; /* "max" */
		*ret_number = number;
		found = true;
	}
	(void)fclose(file);
	return found;
}

static bool
read_of_group(const char *group, const char *file, const char *prefix, uint64_t *ret_number)
{
	char path[PATH_BYTES + 64];
	int length = snprintf(path, sizeof(path), "%s/%s", group, file);
	return length > 0 && (size_t)length < sizeof(path) && find_number(path, prefix, ret_number);
}

static uint64_t
room_of_group(const struct names *names, const char *group)
{
	uint64_t limit, usage, inactive = 0, active = 0;
	if (!read_of_group(group, names->limit, "", &limit) ||
		!read_of_group(group, names->usage, "", &usage))
		return UINT64_MAX;
	(void)read_of_group(group, "memory.stat", names->inactive, &inactive);
	(void)read_of_group(group, "memory.stat", names->active, &active);
	uint64_t cache = inactive > UINT64_MAX - active ? usage : inactive + active;
	uint64_t held = usage - th_min_u64(usage, cache);
	return limit - th_min_u64(limit, held);
}

/* From the group up to the root. */
static uint64_t
room_of_path(const char *root, const struct names *names, const char *path)
{
	char group[PATH_BYTES];
	uint64_t room = UINT64_MAX;
	int length = snprintf(group, sizeof(group), "%s%s%s", root, names->mount, path);
	size_t least = strlen(root) + strlen(names->mount);
	if (length < 0 || (size_t)length >= sizeof(group))
		return UINT64_MAX;
	for (;;) {
		room = th_min_u64(room, room_of_group(names, group));
		char *slash = strrchr(group, '/');
		if (!slash || slash < group + least)
			return room;
		*slash = '\0';
	}
}

/* A line of /proc/self/cgroup: "0::/path", or "4:cpu,memory:/path". */
static uint64_t
room_of_line(const char *root, char *line)
{
	char *controllers = strchr(line, ':');
	char *path = controllers ? strchr(controllers + 1, ':') : NULL;
	if (!path)
		return UINT64_MAX;
	*path++ = '\0';
	path[strcspn(path, "\n")] = '\0';
	controllers++;
	if (controllers[0] == '\0')
		return room_of_path(root, &version_2, path);
	char *at = controllers, *one;
	while ((one = strsep(&at, ","))) {
		if (strcmp(one, "memory") == 0)
			return room_of_path(root, &version_1, path);
	}
	return UINT64_MAX;
}

static uint64_t
room_of_groups(const char *root)
{
	char path[PATH_BYTES], line[LINE_BYTES];
	uint64_t room = UINT64_MAX;
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	FILE *file = fopen(path, "re");
	if (!file)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), file))
		room = th_min_u64(room, room_of_line(root, line));
	(void)fclose(file);
	return room;
}

uint64_t
room_now(const char *root)
{
	char path[PATH_BYTES];
	uint64_t kibibytes, room = UINT64_MAX;
	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	if (find_number(path, "MemAvailable:", &kibibytes) && kibibytes < UINT64_MAX / 1024)
		room = kibibytes * 1024;
	return th_min_u64(room, room_of_groups(root));
}
