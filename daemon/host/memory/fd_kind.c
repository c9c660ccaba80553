/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_kind - see fd_kind.h.
 */
#include "daemon/host/memory/fd_kind.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/fd.h"

/* What has seals is memory of the kernel's. */
static bool
is_memory(int fd)
{
	return fcntl(fd, F_GET_SEALS) >= 0;
}

bool
kernel_fd_is_dmabuf(int fd)
{
	char path[48], text[512];
	if (is_memory(fd))
		return true;
	/* The kernel's own words: of a dma-buf they say who exports it. */
	(void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	int info = open(path, O_RDONLY | O_CLOEXEC);
	if (info < 0)
		return false;
	ssize_t got = read(info, text, sizeof(text) - 1);
	th_fd_close(&info);
	text[got > 0 ? got : 0] = '\0';
	return strstr(text, "\nexp_name:") != NULL;
}

bool
kernel_fd_may_be_drivers(int fd)
{
	struct statx st;
	/* AT_STATX_DONT_SYNC takes it from the kernel's memory, whatever the file system. */
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) < 0)
		return false;
	return S_ISCHR(st.stx_mode) || kernel_fd_is_dmabuf(fd);
}
