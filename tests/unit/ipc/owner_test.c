/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of ipc/sock/owner: who may listen where a worker looks for its agent. Who looks and who
 * listens is given; as root the files get another owner, elsewhere they are this user's and the
 * others are made up.
 */
#include "ipc/sock/owner.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/sock/listener.h"

#define ME 1000u
#define AGENT 998u
#define STRANGER 1001u

/* ---- the rule of one step ------------------------------------------------------------------- */

Test(owner, step__who_owns_it_and_who_may_write__decide)
{
	static const struct {
		uid_t agent, directory;
		mode_t mode;
		uid_t next;
		const char *wrong;
	} rows[] = {
		{ME, 0, 0755, 0, NULL},
		{ME, ME, 0700, ME, NULL},
		/* Root made it for the agent. */
		{ME, 0, 0755, AGENT, NULL},
		{ME, AGENT, 0755, AGENT, "belongs to another user"},
		{ME, STRANGER, 0700, ME, "belongs to another user"},
		{ME, 0, 0775, 0, "may be written by others"},
		{ME, 0, 0757, 0, "may be written by others"},
		{ME, ME, 02770, ME, "may be written by others"},
		/* As /tmp is: nobody takes away what is another's. */
		{ME, 0, 01777, 0, NULL},
		{ME, 0, 01777, ME, NULL},
		{ME, 0, 01777, AGENT, "may be written by others, and the next"},
		{ME, 0, 01775, STRANGER, "may be written by others, and the next"},
		/* The directory of the socket. */
		{AGENT, AGENT, 0755, AGENT, NULL},
		{AGENT, AGENT, 0750, 0, NULL},
		{AGENT, AGENT, 0770, AGENT, "may be written by others"},
		{AGENT, AGENT, 01777, AGENT, NULL},
		{AGENT, AGENT, 01777, STRANGER, "may be written by others, and the next"},
		{AGENT, STRANGER, 0755, AGENT, "belongs to another user"},
	};

	for (size_t i = 0; i < TH_ARRAY_LEN(rows); i++) {
		const struct owner_sight directory = {rows[i].directory, rows[i].mode};
		const struct owner_sight next = {rows[i].next, S_IFSOCK | 0660};
		const char *wrong = owner_step_wrong(ME, rows[i].agent, &directory, &next);

		if (rows[i].wrong == NULL)
			cr_assert_null(wrong, "row %zu: %s", i, wrong);
		else
			cr_assert(wrong != NULL && strstr(wrong, rows[i].wrong) == wrong,
				"row %zu: %s", i, wrong);
	}
}

/* ---- the way -------------------------------------------------------------------------------- */

static char top[64], run[96], path[128];
static uid_t owner; /* of all that lies below top, and never root */
static int listening = -1;
static struct th_err err;

static void
give(const char *what)
{
	if (geteuid() == 0)
		cr_assert_eq(lchown(what, owner, (gid_t)-1), 0);
}

/* top/run/agent.fds, all of them the owner's. */
static void
setup(void)
{
	owner = geteuid() == 0 ? STRANGER : geteuid();
	strcpy(top, "/tmp/th-owner-XXXXXX");
	cr_assert_not_null(mkdtemp(top));
	cr_assert_eq(chmod(top, 0755), 0);
	snprintf(run, sizeof(run), "%s/run", top);
	snprintf(path, sizeof(path), "%s/agent.fds", run);
	cr_assert_eq(mkdir(run, 0755), 0);
	listening = listener_open(path, SOCK_SEQPACKET, (gid_t)-1, &err);
	cr_assert_geq(listening, 0, "%s", err.text);
	give(path);
	give(run);
	give(top);
}

static void
teardown(void)
{
	char link[128];

	snprintf(link, sizeof(link), "%s/link", top);
	(void)unlink(link);
	(void)unlink(path);
	(void)rmdir(run);
	(void)rmdir(top);
	th_fd_close(&listening);
}

TestSuite(owner_way, .init = setup, .fini = teardown);

static void
denied(uid_t self, uid_t listener, const char *where, const char *word)
{
	cr_assert_eq(owner_check_of(self, listener, where, &err), TH_E_DENIED, "%s", err.text);
	cr_assert_not_null(strstr(err.text, where), "no %s in: %s", where, err.text);
	cr_assert_not_null(strstr(err.text, word), "no '%s' in: %s", word, err.text);
}

Test(owner_way, own_listener__anywhere__is_trusted)
{
	cr_assert_eq(owner_check_of(owner, owner, path, &err), 0);
	cr_assert_eq(chmod(run, 0777), 0);
	cr_assert_eq(owner_check_of(owner, owner, path, &err), 0);
}

Test(owner_way, directory_made_in_tmp_by_who_listens__is_denied)
{
	denied(owner + 1, owner, path, "/tmp (uid 0, mode 1777) may be written by others");
	/* Also where root listens: the owner of the directory could lead to any of root's. */
	denied(owner + 1, 0, path, "/tmp (uid 0, mode 1777)");
}

Test(owner_way, another_listens_in_ones_own_directory__is_denied)
{
	denied(owner, owner + 1, path, "belongs to uid");
	cr_assert_eq(chmod(run, 0777), 0);
	denied(owner, owner + 1, path, "may be written by others");
	cr_assert_eq(chmod(run, 01777), 0);
	denied(owner, owner + 1, path, "belongs to uid");
}

Test(owner_way, root_listens_in_ones_own_directory__is_trusted)
{
	cr_assert_eq(owner_check_of(owner, 0, path, &err), 0, "%s", err.text);
	cr_assert_eq(chmod(run, 0775), 0);
	denied(owner, 0, path, "may be written by others");
}

Test(owner_way, no_socket__is_denied)
{
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(mkdir(path, 0755), 0);
	give(path);
	denied(owner, 0, path, "belongs to uid");
	cr_assert_eq(rmdir(path), 0);
	cr_assert_eq(owner_check_of(owner, 0, path, &err), -ENOENT);
	cr_assert_not_null(strstr(err.text, path), "%s", err.text);
}

/* The link decides where to, so it counts as what it is, not only what it leads to. */
Test(owner_way, links__are_followed_and_looked_at)
{
	char link[128], by_link[160];

	snprintf(link, sizeof(link), "%s/link", top);
	snprintf(by_link, sizeof(by_link), "%s/agent.fds", link);
	cr_assert_eq(symlink("run", link), 0);
	give(link);
	cr_assert_eq(owner_check_of(owner, 0, by_link, &err), 0, "%s", err.text);
	denied(owner + 1, 0, by_link, "/tmp");
	cr_assert_eq(unlink(link), 0);
	cr_assert_eq(symlink(run, link), 0);
	give(link);
	cr_assert_eq(owner_check_of(owner, 0, by_link, &err), 0, "%s", err.text);
	cr_assert_eq(chmod(top, 0777), 0);
	denied(owner, 0, by_link, top);
	cr_assert_eq(chmod(top, 0755), 0);
	cr_assert_eq(unlink(link), 0);
	cr_assert_eq(symlink("link", link), 0);
	give(link);
	cr_assert_eq(owner_check_of(owner, 0, by_link, &err), -ELOOP);
	/* As the last of the way: to a directory that is looked at as well. */
	cr_assert_eq(unlink(link), 0);
	cr_assert_eq(symlink("run/../run/./agent.fds", link), 0);
	give(link);
	cr_assert_eq(owner_check_of(owner, 0, link, &err), 0, "%s", err.text);
	cr_assert_eq(chmod(run, 0777), 0);
	denied(owner, 0, link, "/run (uid");
}

Test(owner_way, relative__is_looked_at_from_the_root_on)
{
	cr_assert_eq(chdir(top), 0);
	cr_assert_eq(owner_check_of(owner, 0, "run/agent.fds", &err), 0, "%s", err.text);
	cr_assert_eq(owner_check_of(owner, 0, "run/../run//agent.fds", &err), 0, "%s", err.text);
	denied(owner + 1, 0, "run/agent.fds", "/tmp");
}

Test(owner_way, check__a_listener_of_this_process__is_trusted)
{
	int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), pair[2];

	cr_assert_geq(sock, 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	cr_assert_eq(owner_check(pair[0], path, &err), 0, "%s", err.text);
	/* Connected to nobody: there are no credentials. */
	cr_assert_neq(owner_check(sock, path, &err), 0);
	th_fd_close(&sock);
	th_fd_close(&pair[0]);
	th_fd_close(&pair[1]);
}
