/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operators - see operators.h. Main thread only.
 */
#include "daemon/host/status/operators.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/fd.h"
#include "ipc/base/name.h"
#include "ipc/base/utf8.h"
#include "ipc/sock/listener.h"

#define LISTENER 1u /* of the server of documents: agent.ipc is 0 */
#define USER_NAME_MAX 64
#define USER_BYTES 4096          /* of a line of passwd */
#define GROUP_BYTES (256u << 10) /* of a line of group, with all members */

/* ---- who may connect ------------------------------------------------------------------------ */

static int
operators_find_group(const char *name, struct th_err *err, gid_t *ret_gid)
{
	char *entry = th_calloc(1, GROUP_BYTES), *end;
	struct group group, *found = NULL;
	int rc = getgrnam_r(name, &group, entry, GROUP_BYTES, &found);

	free(entry);
	if (found) {
		*ret_gid = group.gr_gid;
		return 0;
	}
	unsigned long number = strtoul(name, &end, 10);
	if (name[0] >= '0' && name[0] <= '9' && *end == '\0' && number < (gid_t)-1) {
		*ret_gid = (gid_t)number;
		return 0;
	}
	return th_fail(err, TH_E_INVALID, "admin.group: there is no group \"%s\"%s%s", name,
		rc != 0 ? ": " : "", rc != 0 ? strerror(rc) : "");
}

/* By descriptor: whoever may write the directory gets no other file given away. */
static int
give_to_group(const char *path, const char *name, struct th_err *err)
{
	char by_fd[32];
	struct stat st;
	gid_t gid = 0;
	int rc = operators_find_group(name, err, &gid);

	if (rc < 0)
		return rc;
	int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return th_fail(err, -errno, "%s: %s", path, th_strerror(-errno));
	snprintf(by_fd, sizeof(by_fd), "/proc/self/fd/%d", fd);
	if (fstat(fd, &st) < 0)
		rc = -errno;
	else if (!S_ISSOCK(st.st_mode))
		rc = -ENOTSOCK;
	else if (fchownat(fd, "", (uid_t)-1, gid, AT_EMPTY_PATH) < 0 || chmod(by_fd, 0660) < 0)
		rc = -errno;
	th_fd_close(&fd);
	return rc < 0 ? th_fail(err, rc,
				"admin.group: %s cannot be given to group \"%s\": %s; the agent's "
				"user must be a member of it (SupplementaryGroups= of its unit)",
				path, name, th_strerror(rc))
		      : 0;
}

int
operators_listen(struct net_server *server, const char *path, const char *group, struct th_err *err)
{
	char url[NET_URL_BYTES], real[NET_URL_BYTES];
	int rc = listener_clear(path, err);

	if (rc < 0)
		return rc;
	snprintf(url, sizeof(url), "ipc://%.200s", path);
	/* The group comes later: until then nobody of another one gets in. */
	rc = net_server_listen(server, url, 0600, err, real);
	if (rc == 0 && group[0] != '\0')
		rc = give_to_group(path, group, err);
	return rc;
}

bool
operators_asks(const struct net_peer *peer)
{
	return peer->local && peer->listener == LISTENER;
}

/* ---- who it was ----------------------------------------------------------------------------- */

/*
 * Of /etc/passwd alone: other sources of names are asked over the network, for which nobody here
 * can wait. Those users have their number.
 */
static bool
find_user(uid_t uid, char ret_name[USER_NAME_MAX + 1])
{
	char entry[USER_BYTES];
	struct passwd user, *found = NULL;
	FILE *file = fopen("/etc/passwd", "re");

	if (!file)
		return false;
	while (fgetpwent_r(file, &user, entry, sizeof(entry), &found) == 0 && found &&
		found->pw_uid != uid)
		continue;
	bool known = found && found->pw_uid == uid && th_name_valid(found->pw_name, USER_NAME_MAX);
	if (known)
		snprintf(ret_name, USER_NAME_MAX + 1, "%s", found->pw_name);
	fclose(file);
	return known;
}

void
operators_sign(const struct net_peer *peer, const char *node, struct ctl_admin *admin)
{
	char user[USER_NAME_MAX + 1] = "";
	bool known = find_user(peer->uid, user);

	snprintf(admin->from, sizeof(admin->from), "uid %u%s%s%s pid %d on %s", (unsigned)peer->uid,
		known ? " (" : "", user, known ? ")" : "", (int)peer->pid, node);
	admin->from[th_utf8_cut(admin->from, strlen(admin->from))] = '\0';
	/* Only the agent itself ends with its node. */
	admin->leaving = false;
}
