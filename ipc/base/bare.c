/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bare - see bare.h.
 */
#include "ipc/base/bare.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif

/* Of this process, below BARE_BELOW: what the main thread has is had through it. -1: nothing is. */
static int process_fd = -1;

static int
bare_do_fetch(int fd)
{
	return (int)syscall(SYS_pidfd_getfd, process_fd, fd, 0);
}

/* A filter of system calls may know the first and not the second (container runtimes do). */
static bool
open_process(void)
{
	process_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int fd = process_fd >= 0 && process_fd < BARE_BELOW ? bare_do_fetch(process_fd) : -1;
	if (fd >= 0) {
		(void)close(fd);
		return true;
	}
	if (process_fd >= 0)
		(void)close(process_fd);
	process_fd = -1;
	return false;
}

int
bare_reserve(void)
{
	int fd;
	if (!open_process())
		return 0;
	do /* a file would have to be there */
		fd = fcntl(process_fd, F_DUPFD_CLOEXEC, 0);
	while (fd >= 0 && fd < BARE_BELOW);
	if (fd < 0)
		return -errno;
	(void)close(fd);
	return 0;
}

bool
bare_begin(void)
{
	return process_fd >= 0 &&
	       syscall(SYS_close_range, BARE_BELOW, ~0u, CLOSE_RANGE_UNSHARE) == 0;
}

int
bare_fetch(int fd)
{
	int got = fd < BARE_BELOW ? fd : bare_do_fetch(fd);
	if (got < 0)
		return -errno;
	/* The other copy stays: to close it may take as long as its maker likes. */
	return got == fd || dup3(got, fd, O_CLOEXEC) >= 0 ? 0 : -errno;
}

void
bare_clear(void)
{
	(void)syscall(SYS_close_range, BARE_BELOW, ~0u, 0);
}
