/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_limit - see fd_limit.h.
 */
#include "ipc/base/fd_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "ipc/base/log.h"

void
files_raise(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		log_warn("main", "the limit of open files stays as it is reason=\"%s\"",
			th_strerror(-errno));
}

uint64_t
files_limit(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) < 0 ? 1024 : limit.rlim_cur;
}

uint64_t
files_kept(void)
{
	return th_min_u64(FILES_KEPT_MAX, files_limit() / 4);
}

uint64_t
files_left_after(int fd)
{
	uint64_t limit = files_limit(), used = (uint64_t)fd + 1;

	return used < limit ? limit - used : 0;
}

uint64_t
files_left(int fd)
{
	int lowest = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (lowest < 0)
		return 0;
	uint64_t left = files_left_after(lowest) + 1;
	(void)close(lowest);
	return left;
}

void
files_look(struct files_watch *watch, int fd)
{
	uint64_t left = files_left(fd), kept = files_kept();

	if (!watch->few && left < kept) {
		watch->few = true;
		watch->times++;
		log_warn("main",
			"descriptors run short left=%" PRIu64 " limit=%" PRIu64
			"; new connections wait or are refused: raise LimitNOFILE= of the unit, "
			"or ulimit -n",
			left, files_limit());
	} else if (watch->few && left >= 2 * kept) {
		watch->few = false;
		log_info("main", "there are descriptors again left=%" PRIu64 " limit=%" PRIu64,
			left, files_limit());
	}
}
