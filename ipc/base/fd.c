/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd - see fd.h. Any thread.
 */
#include "ipc/base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

void
th_fd_close(int *fd)
{
	int saved = errno;

	if (*fd < 0)
		return;
	/*
	 * Not repeated on EINTR: Linux has freed the number by then and another thread may have
	 * it. EBADF is no reason to abort: libthc lives in processes that close what is not theirs.
	 */
	(void)close(*fd);
	*fd = -1;
	errno = saved;
}

int
th_fd_move(int *fd)
{
	int moved = *fd;

	*fd = -1;
	return moved;
}

int
th_fd_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	return 0;
}

/* lseek would ask a file system that is a process (FUSE), and wait for who else seeks. */
int
th_fd_bytes(int fd, uint64_t *ret_bytes)
{
	struct statx st;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, &st) < 0)
		return -errno;
	*ret_bytes = st.stx_size;
	return 0;
}
