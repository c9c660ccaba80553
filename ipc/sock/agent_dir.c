/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_dir - see agent_dir.h.
 */
#include "ipc/sock/agent_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/err.h"

#define OTHERS_WRITE (S_IWGRP | S_IWOTH)
#define OTHERS_DO_ANYTHING (S_IRWXG | S_IRWXO)

void
agent_dir_places(uid_t self, const char *xdg, struct agent_dir ret_places[AGENT_DIR_PLACES])
{
	struct agent_dir *own = &ret_places[0], *tmp = &ret_places[1], *machine = &ret_places[2];

	memset(ret_places, 0, AGENT_DIR_PLACES * sizeof(ret_places[0]));
	own->own = tmp->own = true;
	own->closed = OTHERS_WRITE;
	tmp->closed = OTHERS_DO_ANYTHING;
	/* Cut short it would be another directory; no socket can lie in one that is as long. */
	if (xdg != NULL && xdg[0] == '/' &&
		snprintf(own->path, sizeof(own->path), "%s/tensorhub", xdg) >=
			(int)sizeof(own->path))
		own->path[0] = '\0';
	(void)snprintf(tmp->path, sizeof(tmp->path), "/tmp/tensorhub-%u", (unsigned)self);
	(void)snprintf(machine->path, sizeof(machine->path), "/run/tensorhub");
}

int
agent_dir_look(const struct agent_dir *place, uid_t self, const char **ret_why)
{
	struct stat st;
	/* A link to the machine's directory is fine, one that lies in /tmp is anybody's. */
	int rc = place->own ? lstat(place->path, &st) : stat(place->path, &st);

	*ret_why = "is not there";
	if (rc < 0 && (errno == ENOENT || errno == ENOTDIR))
		return -ENOENT;
	if (rc < 0) {
		*ret_why = th_strerror(-errno);
		return TH_E_DENIED;
	}
	*ret_why = "is no directory";
	if (!S_ISDIR(st.st_mode))
		return TH_E_DENIED;
	*ret_why = "belongs to another user";
	if (place->own && st.st_uid != self)
		return TH_E_DENIED;
	*ret_why = "is open to other users";
	if (place->own && (st.st_mode & place->closed) != 0)
		return TH_E_DENIED;
	*ret_why = "is there";
	return 0;
}

const struct agent_dir *
agent_dir_first(const struct agent_dir places[AGENT_DIR_PLACES], uid_t self,
	char ret_looked[AGENT_DIR_LOOKED_BYTES])
{
	const struct agent_dir *last = &places[AGENT_DIR_PLACES - 1];
	size_t used = 0;

	ret_looked[0] = '\0';
	for (const struct agent_dir *place = places; place <= last; place++) {
		const char *why;
		if (place->path[0] == '\0')
			continue;
		int rc = agent_dir_look(place, self, &why);
		/* Three paths and what is found of them always have room. */
		used += (size_t)snprintf(ret_looked + used, AGENT_DIR_LOOKED_BYTES - used,
			"%s%s (%s)", used > 0 ? ", " : "", place->path, why);
		if (rc == 0)
			return place;
	}
	return last;
}

void
agent_dir_find(struct agent_dir *ret_dir, char ret_looked[AGENT_DIR_LOOKED_BYTES])
{
	struct agent_dir places[AGENT_DIR_PLACES];

	agent_dir_places(geteuid(), getenv("XDG_RUNTIME_DIR"), places);
	*ret_dir = *agent_dir_first(places, geteuid(), ret_looked);
}
