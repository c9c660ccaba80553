/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer - see peer.h.
 */
#include "ipc/sock/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/fd.h"

#ifndef SO_PEERPIDFD /* Linux 6.5; the C library's headers may be older than the kernel */
#define SO_PEERPIDFD 77
#endif

#define STAT_FIELD_START 22 /* of /proc/PID/stat, counted from 1: start time in clock ticks       */
#define STAT_FIELD_STATE 3  /* the first one behind the command name                              */

static int
read_start_time(pid_t pid, uint64_t *ret_ticks)
{
	char path[64], text[1024];

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t bytes = read(fd, text, sizeof(text) - 1);
	th_fd_close(&fd);
	if (bytes <= 0)
		return bytes < 0 ? -errno : -ESRCH;
	text[bytes] = '\0';
	/* The command name is in brackets and may contain anything, brackets too. */
	char *at = strrchr(text, ')');
	if (at == NULL)
		return -EPROTO;
	for (int field = STAT_FIELD_STATE - 1; field < STAT_FIELD_START; field++) {
		at = strchr(at + 1, ' ');
		if (at == NULL)
			return -EPROTO;
	}
	*ret_ticks = strtoull(at + 1, NULL, 10);
	return 0;
}

/* The C library has a function for it since 2.36, which workers' images are often older than. */
static int
open_pidfd(pid_t pid)
{
	return (int)syscall(SYS_pidfd_open, pid, 0u); /* close-on-exec by itself */
}

int
peer_pidfd_by_pid(pid_t pid)
{
	uint64_t before, after;
	int rc = read_start_time(pid, &before);

	if (rc < 0)
		return rc;
	int pidfd = open_pidfd(pid);
	if (pidfd < 0)
		return -errno;
	rc = read_start_time(pid, &after);
	if (rc == 0 && before != after)
		rc = -ESRCH;
	if (rc < 0) {
		th_fd_close(&pidfd);
		return rc;
	}
	return pidfd;
}

int
peer_identify(int sock, struct peer *ret_peer)
{
	struct ucred credentials;
	socklen_t size = sizeof(credentials);
	int pidfd = -1;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
		return -errno;
	size = sizeof(pidfd);
	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) < 0) {
		pidfd = -errno;
		if (errno == ENOPROTOOPT && credentials.pid > 0)
			pidfd = peer_pidfd_by_pid(credentials.pid);
		/* Its end would not be seen. */
		if (pidfd == -EMFILE || pidfd == -ENFILE)
			return pidfd;
	}
	ret_peer->uid = credentials.uid;
	ret_peer->gid = credentials.gid;
	ret_peer->pid = credentials.pid;
	ret_peer->pidfd = pidfd < 0 ? -1 : pidfd;
	return 0;
}

void
peer_fini(struct peer *peer)
{
	th_fd_close(&peer->pidfd);
}

int
peer_own_pidfd(void)
{
	int pidfd = open_pidfd(getpid());

	return pidfd < 0 ? -errno : pidfd;
}

bool
peer_pidfd_ended(int pidfd)
{
	struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};

	return poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLIN) != 0;
}
