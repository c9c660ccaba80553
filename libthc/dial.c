/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dial - see dial.h.
 */
#include "libthc/dial.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

/*
 * A non-blocking connect to a unix socket whose backlog is full fails and gives nothing to wait on;
 * a blocking one waits as long as SO_SNDTIMEO says.
 */
static int
set_limit(int sock, int64_t deadline_ns)
{
	struct timeval limit = {0};

	if (deadline_ns != INT64_MAX) {
		int64_t left_us = th_max_i64(deadline_ns - th_now_ns(), 0) / 1000;
		limit.tv_sec = left_us / 1000000;
		limit.tv_usec = left_us % 1000000;
		if (left_us == 0)
			limit.tv_usec = 1; /* 0 would be no limit */
	}
	return setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ? -errno : 0;
}

static int
connect_before(int sock, const struct sockaddr_un *address, int64_t deadline_ns)
{
	for (;;) {
		int rc = set_limit(sock, deadline_ns);
		if (rc < 0)
			return rc;
		if (connect(sock, (const struct sockaddr *)address, sizeof(*address)) == 0)
			return 0;
		if (errno == EAGAIN)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
		if (th_now_ns() >= deadline_ns)
			return -ETIMEDOUT;
	}
}

int
dial_unix(const char *path, int type, int64_t deadline_ns)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t length = strnlen(path, DIAL_PATH_MAX + 1);

	if (length == 0 || length > DIAL_PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, length);
	int sock = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -errno;
	int rc = connect_before(sock, &address, deadline_ns);
	if (rc == 0)
		rc = th_fd_nonblock(sock);
	if (rc < 0) {
		th_fd_close(&sock);
		return rc;
	}
	return sock;
}

int
dial_wait(int fd, short events, int64_t deadline_ns)
{
	for (;;) {
		struct pollfd poll_fd = {.fd = fd, .events = events};
		int64_t left = INT_MAX;
		if (deadline_ns != INT64_MAX)
			left = (th_max_i64(deadline_ns - th_now_ns(), 0) + 999999) / 1000000;
		int rc = poll(&poll_fd, 1, (int)th_min_i64(left, INT_MAX));
		if (rc > 0)
			return 0;
		if (rc < 0 && errno != EINTR)
			return -errno;
		if (deadline_ns != INT64_MAX && th_now_ns() >= deadline_ns)
			return -ETIMEDOUT;
	}
}
