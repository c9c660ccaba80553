/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner - see owner.h. The way is walked by descriptors, one name after the other, so that what is
 * looked at is what is gone through.
 */
#include "ipc/sock/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/path.h"

#define LINKS_MAX 40   /* as the kernel's */
#define WAY_BYTES 2048 /* a socket address has 108; links and the current folder may add to it */

struct way {
	uid_t self, listener;
	const char *path; /* borrows */
	struct th_err *err;
	int dir;               /* owns: the directory that the walk has come to */
	struct owner_sight at; /* what that directory is */
	char name[WAY_BYTES];  /* its name, for sentences */
	char rest[WAY_BYTES];  /* what is still to be gone */
	int links;
};

static bool
trusted(uid_t self, uid_t agent, uid_t uid)
{
	return uid == 0 || uid == self || uid == agent;
}

const char *
owner_step_wrong(uid_t self, uid_t agent, const struct owner_sight *directory,
	const struct owner_sight *next)
{
	if (!trusted(self, agent, directory->uid))
		return "belongs to another user";
	if ((directory->mode & (S_IWGRP | S_IWOTH)) == 0)
		return NULL;
	if ((directory->mode & S_ISVTX) == 0)
		return "may be written by others";
	return trusted(self, agent, next->uid)
		       ? NULL
		       : "may be written by others, and the next of the path is not root's or "
			 "this user's";
}

/* ---- sentences ------------------------------------------------------------------------------ */

static int
owner_fail(const struct way *way, int code)
{
	return th_fail(way->err, code, "the way to %s cannot be looked at behind %.150s: %s",
		way->path, way->name, th_strerror(code));
}

static int
deny_directory(const struct way *way, const char *wrong)
{
	return th_fail(way->err, TH_E_DENIED,
		"%s: uid %u listens there, and directory %.150s (uid %u, mode %04o) %s, so it may "
		"be no agent; run the agent as this user, or in a directory that only root and "
		"the agent's user may write, all the way, as /run/tensorhub",
		way->path, (unsigned)way->listener, way->name, (unsigned)way->at.uid,
		(unsigned)(way->at.mode & 07777), wrong);
}

static int
deny_socket(const struct way *way, uid_t owner)
{
	return th_fail(way->err, TH_E_DENIED,
		"%s belongs to uid %u, and uid %u listens there, in directory %.150s of uid %u: it "
		"may be no agent; an agent's socket and directory are its user's, or start it as "
		"this user or root",
		way->path, (unsigned)owner, (unsigned)way->listener, way->name,
		(unsigned)way->at.uid);
}

/* ---- the walk ------------------------------------------------------------------------------- */

/* Takes dir. */
static int
owner_arrive(struct way *way, int dir, const char *name)
{
	char *end = strrchr(way->name, '/');
	struct stat st;

	th_fd_close(&way->dir);
	way->dir = dir;
	if (fstat(dir, &st) < 0)
		return owner_fail(way, -errno);
	way->at = (struct owner_sight){st.st_uid, st.st_mode};
	if (strcmp(name, "/") == 0 || (strcmp(name, "..") == 0 && end == way->name)) {
		(void)snprintf(way->name, sizeof(way->name), "/");
	} else if (strcmp(name, "..") == 0) {
		*end = '\0';
	} else {
		size_t used = strcmp(way->name, "/") == 0 ? 0 : strlen(way->name);
		(void)snprintf(way->name + used, sizeof(way->name) - used, "/%s", name);
	}
	return 0;
}

static int
owner_enter(struct way *way, const char *name)
{
	int dir = openat(way->dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return dir < 0 ? owner_fail(way, -errno) : owner_arrive(way, dir, name);
}

/* The next name of the rest; empty: there is none. */
static void
take_name(struct way *way, char ret_name[NAME_MAX + 1])
{
	char *begin = way->rest + strspn(way->rest, "/");
	size_t length = strcspn(begin, "/");

	/* A longer one would not have been connected to; cut, it is not found either. */
	(void)snprintf(ret_name, NAME_MAX + 1, "%.*s", (int)length, begin);
	begin += length;
	begin += strspn(begin, "/");
	memmove(way->rest, begin, strlen(begin) + 1);
}

static int
owner_follow(struct way *way, int link)
{
	char text[WAY_BYTES], rest[WAY_BYTES];
	ssize_t length = readlinkat(link, "", text, sizeof(text) - 1);

	if (length < 0)
		return owner_fail(way, -errno);
	if ((size_t)length == sizeof(text) - 1)
		return owner_fail(way, -ENAMETOOLONG);
	text[length] = '\0';
	if (++way->links > LINKS_MAX)
		return owner_fail(way, -ELOOP);
	int written = snprintf(rest, sizeof(rest), "%s/%s", text, way->rest);
	if (written < 0 || (size_t)written >= sizeof(rest))
		return owner_fail(way, -ENAMETOOLONG);
	/* Behind the last name there is none. */
	if (way->rest[0] == '\0')
		rest[written - 1] = '\0';
	memcpy(way->rest, rest, (size_t)written + 1);
	return text[0] == '/' ? owner_enter(way, "/") : 0;
}

/* The last of the way: the socket. */
static int
judge_socket(const struct way *way, const struct owner_sight *socket)
{
	const char *wrong = owner_step_wrong(way->self, way->listener, &way->at, socket);

	if (wrong != NULL)
		return deny_directory(way, wrong);
	if (way->listener != 0 && way->listener != way->at.uid)
		return deny_socket(way, socket->uid);
	if (!S_ISSOCK(socket->mode) || !trusted(way->self, way->listener, socket->uid))
		return deny_socket(way, socket->uid);
	return 0;
}

/* 1: the socket is reached, and all is well. */
static int
owner_step(struct way *way)
{
	char name[NAME_MAX + 1];
	struct stat st;

	take_name(way, name);
	if (strcmp(name, ".") == 0)
		return 0;
	if (strcmp(name, "..") == 0)
		return owner_enter(way, name);
	int next = openat(way->dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (next < 0)
		return owner_fail(way, -errno);
	int rc = fstat(next, &st) < 0 ? owner_fail(way, -errno) : 0;
	const struct owner_sight sight = {st.st_uid, st.st_mode};
	if (rc == 0 && way->rest[0] == '\0' && !S_ISLNK(st.st_mode)) {
		rc = judge_socket(way, &sight);
		th_fd_close(&next);
		return rc < 0 ? rc : 1;
	}
	const char *wrong =
		rc == 0 ? owner_step_wrong(way->self, way->self, &way->at, &sight) : NULL;
	if (wrong != NULL)
		rc = deny_directory(way, wrong);
	if (rc == 0 && S_ISLNK(st.st_mode))
		rc = owner_follow(way, next);
	else if (rc == 0)
		return owner_arrive(way, next, name);
	th_fd_close(&next);
	return rc;
}

int
owner_check_of(uid_t self, uid_t listener, const char *path, struct th_err *err)
{
	struct way way = {.self = self,
		.listener = listener,
		.path = path,
		.err = err,
		.dir = -1,
		.name = "/"};

	if (listener == self)
		return 0;
	int rc = th_path_absolute(path, way.rest, sizeof(way.rest));
	rc = rc < 0 ? owner_fail(&way, rc) : owner_enter(&way, "/");
	while (rc == 0)
		rc = owner_step(&way);
	th_fd_close(&way.dir);
	return rc < 0 ? rc : 0;
}

int
owner_check(int sock, const char *path, struct th_err *err)
{
	struct ucred listener;
	socklen_t size = sizeof(listener);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &listener, &size) < 0)
		return th_fail(err, -errno, "who listens at %s cannot be told: %s", path,
			th_strerror(-errno));
	return owner_check_of(geteuid(), listener.uid, path, err);
}
