/* SPDX-License-Identifier: Apache-2.0 */
/*
 * up_dir - see up_dir.h.
 */
#include "tools/thctl/up_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/path.h"
#include "ipc/sock/agent_dir.h"

#define LOCK_FILE "up.lock"
#define SIGN_BYTES 512

static void
file_in(const struct up_dir *dir, const char *name, char ret_path[PATH_MAX])
{
	int length = snprintf(ret_path, PATH_MAX, "%s/%s", dir->path, name);

	/* Another file must not be meant; an empty name is none. */
	if (length < 0 || length >= PATH_MAX)
		ret_path[0] = '\0';
}

/* ---- which ---------------------------------------------------------------------------------- */

/* 0 when it is there or was made. */
static int
up_dir_make(struct up_dir *dir, const char *path, mode_t mode)
{
	int length = snprintf(dir->path, sizeof(dir->path), "%s", path);

	dir->goes = false;
	if (length < 0 || (size_t)length >= sizeof(dir->path))
		return -ENAMETOOLONG;
	if (mkdir(path, mode) == 0)
		dir->goes = true;
	else if (errno != EEXIST)
		return -errno;
	return 0;
}

static int
choose_own(struct up_dir *dir, struct th_err *err)
{
	struct agent_dir places[AGENT_DIR_PLACES];
	char passed[SIGN_BYTES - 128] = "";
	size_t used = 0;

	agent_dir_places(geteuid(), getenv("XDG_RUNTIME_DIR"), places);
	for (int i = 0; i < AGENT_DIR_PLACES; i++) {
		const char *why;
		if (places[i].path[0] == '\0' || (geteuid() == 0 && places[i].own))
			continue;
		int rc = agent_dir_look(&places[i], geteuid(), &why);
		if (rc == 0 || rc == -ENOENT) {
			rc = up_dir_make(dir, places[i].path, places[i].own ? 0700 : 0750);
			why = th_strerror(rc);
		}
		/* Somebody else may have made it after the look. */
		if (rc == 0)
			rc = agent_dir_look(&places[i], geteuid(), &why);
		if (rc == 0 && access(places[i].path, W_OK) < 0) {
			rc = -errno;
			why = th_strerror(rc);
		}
		if (rc == 0) {
			dir->goes |= places[i].own;
			return 0;
		}
		int length = snprintf(passed + used, sizeof(passed) - used, "%s%s (%s)",
			used > 0 ? ", " : "", places[i].path, why);
		used = th_min_u64(used + (size_t)th_max_i64(length, 0), sizeof(passed) - 1);
	}
	return th_fail(err, TH_E_DENIED,
		"this user may use no directory where workers look for an agent: %s; name one of "
		"its own: thctl up -r DIR",
		passed);
}

static int
choose_named(struct up_dir *dir, const char *named, struct th_err *err)
{
	char path[PATH_MAX];
	int rc = th_path_absolute(named, path, sizeof(path));

	if (rc == 0)
		rc = up_dir_make(dir, path, 0750);
	return rc < 0 ? th_fail(err, rc,
				"the directory %s cannot be made: %s; make the one above it, or "
				"choose another with -r",
				named, th_strerror(rc))
		      : 0;
}

/* ---- who has it ----------------------------------------------------------------------------- */

static void
print_time(time_t at, char ret_text[32])
{
	struct tm tm;

	ret_text[0] = '\0';
	if (localtime_r(&at, &tm) != NULL)
		(void)strftime(ret_text, 32, "%Y-%m-%d %H:%M:%S", &tm);
}

static int
taken_by(const struct up_dir *dir, const char *who, struct th_err *err)
{
	return th_fail(err, TH_E_STATE,
		"in %s there is already %s; use it (thctl -r %s status), end it, or choose another "
		"directory with -r",
		dir->path, who, dir->path);
}

static int
taken_by_its_sign(const struct up_dir *dir, int lock, struct th_err *err)
{
	char who[SIGN_BYTES];
	ssize_t length = pread(lock, who, sizeof(who) - 1, 0);

	who[length > 0 ? length : 0] = '\0';
	return taken_by(dir, length > 0 ? who : "a thctl up that begins", err);
}

/* An agent that somebody has started by hand. */
static int
look_for_agent(const struct up_dir *dir, struct th_err *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred listener = {0};
	socklen_t size = sizeof(listener);
	char path[PATH_MAX], since[32], who[SIGN_BYTES];
	struct stat st;

	file_in(dir, "agent.fds", path);
	if (stat(path, &st) < 0 || strlen(path) >= sizeof(address.sun_path))
		return 0;
	memcpy(address.sun_path, path, strlen(path) + 1);
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (sock < 0)
		return th_fail(err, -errno, "a socket: %s", th_strerror(-errno));
	bool there = connect(sock, (const struct sockaddr *)&address, sizeof(address)) == 0;
	if (there)
		(void)getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &listener, &size);
	th_fd_close(&sock);
	if (!there)
		return 0;
	print_time(st.st_mtime, since);
	(void)snprintf(who, sizeof(who), "an agent (pid %d, since %s) that no thctl up has started",
		(int)listener.pid, since);
	return taken_by(dir, who, err);
}

/* Who ended between our open and our lock has removed the file that we locked. */
static bool
is_still_there(const char *path, int lock)
{
	struct stat there, locked;

	return stat(path, &there) == 0 && fstat(lock, &locked) == 0 &&
	       there.st_ino == locked.st_ino && there.st_dev == locked.st_dev;
}

static int
take_lock(struct up_dir *dir, struct th_err *err)
{
	char path[PATH_MAX];

	file_in(dir, LOCK_FILE, path);
	for (;;) {
		int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (lock < 0)
			return th_fail(err, -errno,
				"%s cannot be opened: %s; choose a directory of your own with -r",
				path, th_strerror(-errno));
		if (flock(lock, LOCK_EX | LOCK_NB) < 0) {
			int rc = errno == EWOULDBLOCK
					 ? taken_by_its_sign(dir, lock, err)
					 : th_fail(err, -errno, "%s cannot be locked: %s", path,
						   th_strerror(-errno));
			th_fd_close(&lock);
			return rc;
		}
		if (is_still_there(path, lock)) {
			dir->lock = lock;
			return 0;
		}
		th_fd_close(&lock);
	}
}

int
up_dir_take(const char *named, struct up_dir *ret_dir, struct th_err *err)
{
	*ret_dir = (struct up_dir){.lock = -1};
	int rc = named != NULL ? choose_named(ret_dir, named, err) : choose_own(ret_dir, err);

	if (rc == 0)
		rc = take_lock(ret_dir, err);
	if (rc < 0)
		return rc;
	rc = look_for_agent(ret_dir, err);
	if (rc < 0) {
		char path[PATH_MAX];
		file_in(ret_dir, LOCK_FILE, path);
		(void)unlink(path);
		th_fd_close(&ret_dir->lock);
		return rc;
	}
	/* What one that was killed has left there. */
	if (ftruncate(ret_dir->lock, 0) < 0)
		return th_fail(
			err, -errno, "up.lock in %s: %s", ret_dir->path, th_strerror(-errno));
	up_dir_sign(ret_dir, NULL);
	return 0;
}

void
up_dir_sign(const struct up_dir *dir, const char *server)
{
	char text[SIGN_BYTES], since[32];
	struct stat st;

	/* The second sign, with the server, has the moment of the first. */
	if (fstat(dir->lock, &st) < 0)
		return;
	print_time(server == NULL ? time(NULL) : st.st_mtime, since);
	int length =
		snprintf(text, sizeof(text), "a thctl up (pid %d, since %s%s%.300s)", (int)getpid(),
			since, server != NULL ? ", server " : "", server != NULL ? server : "");
	/* A longer text replaces a shorter one. On a full disk they are told less. */
	ssize_t ignored = pwrite(dir->lock, text, (size_t)length, 0);
	(void)ignored;
}

void
up_dir_leave(struct up_dir *dir)
{
	/* The agent's own files are there when it was killed. The lock goes last. */
	static const char *const names[] = {
		"agent.fds", "agent.ipc", "admin.ipc", "agent.lock", LOCK_FILE};

	if (dir->lock < 0)
		return;
	for (size_t i = 0; i < TH_ARRAY_LEN(names); i++) {
		char path[PATH_MAX];
		file_in(dir, names[i], path);
		(void)unlink(path);
	}
	/* What others have put there stays, and so does the directory. */
	if (dir->goes)
		(void)rmdir(dir->path);
	th_fd_close(&dir->lock);
}
