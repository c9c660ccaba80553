/* SPDX-License-Identifier: Apache-2.0 */
/* memlock - see memlock.h. */
#include "transport/rdma/device/memlock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/units.h"

#define CAP_IPC_LOCK_BIT 14
#define KIB 1024u
#define TEXT_BYTES 8192u

/* The number behind a name at the start of a line; 0 when there is none. */
static uint64_t
number_after(const char *text, const char *name, int base)
{
	size_t bytes = strlen(name);
	for (const char *line = text; line; line = strchr(line, '\n')) {
		if (*line == '\n')
			line++;
		if (strncmp(line, name, bytes) == 0)
			return strtoull(line + bytes, NULL, base);
	}
	return 0;
}

struct memlock
memlock_parse(const char *status, const char *uid_map, uint64_t limit_bytes)
{
	uint64_t inside = 1, outside = 1, count = 0;
	bool host = sscanf(uid_map, "%" SCNu64 " %" SCNu64 " %" SCNu64, &inside, &outside,
			    &count) == 3 &&
		    inside == 0 && outside == 0 && count == UINT32_MAX;
	uint64_t effective = number_after(status, "CapEff:", 16);
	return (struct memlock){
		.limit_bytes = limit_bytes,
		.locked_bytes = number_after(status, "VmPin:", 10) * KIB,
		.exempt = host && (effective >> CAP_IPC_LOCK_BIT & 1) != 0,
	};
}

static int
read_text(const char *path, char *ret_text, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	size_t have = 0;
	ssize_t got = 1;
	while (got > 0 && have + 1 < bytes) {
		got = read(fd, ret_text + have, bytes - 1 - have);
		have += got > 0 ? (size_t)got : 0;
	}
	int rc = got < 0 ? -errno : 0;
	ret_text[have] = '\0';
	th_fd_close(&fd);
	return rc;
}

int
memlock_read(struct memlock *ret_memlock)
{
	char status[TEXT_BYTES], uid_map[256];
	struct rlimit limit;
	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0)
		return -errno;
	int rc = read_text("/proc/self/status", status, sizeof(status));
	if (rc < 0)
		return rc;
	/* A kernel without user namespaces has no such file. */
	if (read_text("/proc/self/uid_map", uid_map, sizeof(uid_map)) < 0)
		snprintf(uid_map, sizeof(uid_map), "0 0 %u", UINT32_MAX);
	*ret_memlock = memlock_parse(status, uid_map,
		limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : (uint64_t)limit.rlim_cur);
	return 0;
}

bool
memlock_unlimited(const struct memlock *memlock)
{
	return memlock->exempt || memlock->limit_bytes == UINT64_MAX;
}

static bool
memlock_is_over(const struct memlock *memlock, uint64_t bytes)
{
	uint64_t sum;
	return !memlock_unlimited(memlock) &&
	       (!th_add_u64(memlock->locked_bytes, bytes, &sum) || sum > memlock->limit_bytes);
}

int
memlock_explain(const struct memlock_case *failed, struct th_err *ret_err)
{
	char bytes[TH_UNITS_BYTES], limit[TH_UNITS_BYTES], locked[TH_UNITS_BYTES];
	const struct memlock *memlock = &failed->memlock;
	th_print_size_short(failed->bytes, bytes);
	if (failed->mrs_max > 0 && failed->mrs >= failed->mrs_max)
		return th_fail(ret_err, TH_E_LIMIT,
			"%s cannot register %s: all of the device's %u memory regions are in use: "
			"register fewer and larger allocations",
			failed->rail, bytes, failed->mrs_max);
	/* Memory of another device is not the process's. */
	if (failed->code == -ENOMEM && !failed->dmabuf && memlock_is_over(memlock, failed->bytes))
		return th_fail(ret_err, TH_E_LIMIT,
			"%s cannot lock %s of memory: RLIMIT_MEMLOCK is %s, of which %s are in "
			"use, and "
			"each device counts by itself: " MEMLOCK_REMEDY,
			failed->rail, bytes, th_print_size_short(memlock->limit_bytes, limit),
			th_print_size_short(memlock->locked_bytes, locked));
	switch (failed->code) {
	case -ENOMEM:
		return th_fail(ret_err, failed->code,
			"%s cannot register %s: the device or the kernel has no memory left for "
			"its "
			"page tables: larger pages need smaller ones",
			failed->rail, bytes);
	case -EFAULT:
		return th_fail(ret_err, failed->code,
			"%s cannot register %s: its pages are not there, or may not be written",
			failed->rail, bytes);
	case -EOPNOTSUPP:
	case -EPROTONOSUPPORT:
		return th_fail(ret_err, failed->code,
			"%s cannot register %s: the device's driver does not take this kind of "
			"memory%s",
			failed->rail, bytes, failed->dmabuf ? " (dma-buf)" : "");
	default:
		return th_fail(ret_err, failed->code, "%s cannot register %s: %s", failed->rail,
			bytes, th_strerror(failed->code));
	}
}
