/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener - see listener.h.
 */
#include "ipc/sock/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"

/* A worker connects once in its life; a burst is a whole host's workers at start-up. */
#define BACKLOG 1024

int
listener_lock_dir(const char *dir, struct th_err *err)
{
	char path[PATH_MAX];

	if (mkdir(dir, 0750) < 0 && errno != EEXIST)
		return th_fail(err, -errno,
			"runtime directory %s cannot be made: %s; make its parent or choose "
			"another with -r",
			dir, th_strerror(-errno));
	int length = snprintf(path, sizeof(path), "%s/agent.lock", dir);
	if (length < 0 || (size_t)length >= sizeof(path))
		return th_fail(
			err, -ENAMETOOLONG, "runtime directory: the path is too long: %s", dir);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
	if (fd < 0)
		return th_fail(err, -errno, "lock file %s cannot be opened: %s", path,
			th_strerror(-errno));
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		int code = -errno;
		th_fd_close(&fd);
		if (code == -EWOULDBLOCK)
			return th_fail(err, TH_E_STATE,
				"another agent serves %s; stop it or choose another directory with "
				"-r",
				dir);
		return th_fail(
			err, code, "lock file %s cannot be locked: %s", path, th_strerror(code));
	}
	return fd;
}

static int
set_address(const char *path, struct sockaddr_un *ret_address, struct th_err *err)
{
	size_t length = strlen(path);

	if (length == 0 || length >= sizeof(ret_address->sun_path))
		return th_fail(err, TH_E_INVALID,
			"socket path %s: has %zu bytes, a socket address takes 1 to %zu; choose a "
			"shorter "
			"runtime directory",
			path, length, sizeof(ret_address->sun_path) - 1);
	memset(ret_address, 0, sizeof(*ret_address));
	ret_address->sun_family = AF_UNIX;
	memcpy(ret_address->sun_path, path, length + 1);
	return 0;
}

/* A socket file listens when connecting gives anything but a refusal. */
static int
listener_probe(const struct sockaddr_un *address, int type)
{
	int sock = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (sock < 0)
		return -errno;
	int rc = connect(sock, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;
	th_fd_close(&sock);
	return rc;
}

int
listener_clear(const char *path, struct th_err *err)
{
	struct sockaddr_un address;
	struct stat st;
	int rc = set_address(path, &address, err);

	if (rc < 0)
		return rc;
	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0
				       : th_fail(err, -errno, "socket path %s: %s", path,
						 th_strerror(-errno));
	if (!S_ISSOCK(st.st_mode))
		return th_fail(err, -EEXIST,
			"socket path %s: there is a file that is no socket; "
			"move it away",
			path);
	rc = listener_probe(&address, SOCK_STREAM);
	if (rc == -EPROTOTYPE) /* the file is of a socket of another type */
		rc = listener_probe(&address, SOCK_SEQPACKET);
	if (rc == -ENOENT)
		return 0;
	if (rc != -ECONNREFUSED)
		return th_fail(err, TH_E_STATE,
			"another agent serves %s; stop it or choose another directory with -r",
			path);
	if (unlink(path) < 0 && errno != ENOENT)
		return th_fail(err, -errno, "stale socket %s cannot be removed: %s", path,
			th_strerror(-errno));
	return 0;
}

int
listener_open(const char *path, int type, gid_t gid, struct th_err *err)
{
	struct sockaddr_un address;
	int rc = set_address(path, &address, err);

	if (rc == 0)
		rc = listener_clear(path, err);
	if (rc < 0)
		return rc;
	int sock = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (sock < 0)
		return th_fail(err, -errno, "socket for %s: %s", path, th_strerror(-errno));
	/* The mode is set before listen: until then a connect is refused, whoever comes. */
	if (bind(sock, (const struct sockaddr *)&address, sizeof(address)) < 0)
		rc = th_fail(
			err, -errno, "socket %s cannot be bound: %s", path, th_strerror(-errno));
	else if ((gid != (gid_t)-1 && chown(path, (uid_t)-1, gid) < 0) || chmod(path, 0660) < 0 ||
		 listen(sock, BACKLOG) < 0) {
		rc = th_fail(err, -errno, "socket %s: %s", path, th_strerror(-errno));
		(void)unlink(path);
	}
	if (rc < 0) {
		th_fd_close(&sock);
		return rc;
	}
	return sock;
}

int
listener_accept(int listener)
{
	int sock;

	do {
		sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	} while (sock < 0 && (errno == EINTR || errno == ECONNABORTED));
	return sock < 0 ? -errno : sock;
}
