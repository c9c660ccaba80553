/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/host/operators: who may connect, and what is written of who asks. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/host/status/operators.h"
#include "ipc/base/fd.h"
#include "ipc/base/name.h"
#include "ipc/sock/listener.h"

static char dir[64], workers[96], path[128];
static struct net_server *server;
static struct th_err err;

static void
setup(void)
{
	char url[NET_URL_BYTES];

	strcpy(dir, "/tmp/th-operators-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	snprintf(workers, sizeof(workers), "ipc://%s/agent.ipc", dir);
	snprintf(path, sizeof(path), "%s/" OPERATORS_FILE, dir);
	cr_assert_eq(net_server_new(NULL, &err, &server), 0);
	cr_assert_eq(net_server_listen(server, workers, 0660, &err, url), 0);
}

static void
teardown(void)
{
	net_server_free(server);
	(void)unlink(path);
	(void)unlink(workers + strlen("ipc://"));
	(void)rmdir(dir);
}

TestSuite(daemon_operators, .init = setup, .fini = teardown, .timeout = 30);

static unsigned
mode_of(gid_t *ret_gid)
{
	struct stat st;

	cr_assert_eq(stat(path, &st), 0);
	*ret_gid = st.st_gid;
	return st.st_mode & 07777;
}

Test(daemon_operators, listen__no_group__is_the_agents_user_s_alone)
{
	gid_t gid;

	cr_assert_eq(operators_listen(server, path, "", &err), 0, "%s", err.text);
	cr_assert_eq(mode_of(&gid), 0600);
}

Test(daemon_operators, listen__own_group__may_connect)
{
	char number[16];
	gid_t gid;

	snprintf(number, sizeof(number), "%u", (unsigned)getgid());
	cr_assert_eq(operators_listen(server, path, number, &err), 0, "%s", err.text);
	cr_assert_eq(mode_of(&gid), 0660);
	cr_assert_eq(gid, getgid());
}

Test(daemon_operators, listen__no_such_group__is_refused_and_stays_closed)
{
	gid_t gid;

	cr_assert_eq(operators_listen(server, path, "no-such-group", &err), TH_E_INVALID);
	cr_assert_not_null(strstr(err.text, "no-such-group"), "%s", err.text);
	cr_assert_eq(mode_of(&gid), 0600);
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(operators_listen(server, path, "4294967295", &err), TH_E_INVALID);
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(operators_listen(server, path, "-1", &err), TH_E_INVALID);
}

Test(daemon_operators, listen__somebody_listens__says_so)
{
	int other = listener_open(path, SOCK_STREAM, (gid_t)-1, &err);

	cr_assert_geq(other, 0);
	cr_assert_eq(operators_listen(server, path, "", &err), TH_E_STATE);
	th_fd_close(&other);
}

Test(daemon_operators, asks__by_this_socket_and_known_to_the_kernel)
{
	cr_assert(operators_asks(&(struct net_peer){.local = true, .listener = 1}));
	cr_assert_not(operators_asks(&(struct net_peer){.local = true, .listener = 0}));
	cr_assert_not(operators_asks(&(struct net_peer){.local = true, .listener = UINT32_MAX}));
	cr_assert_not(operators_asks(&(struct net_peer){.local = false, .listener = 1}));
}

Test(daemon_operators, sign__name_of_the_request__is_dropped)
{
	struct ctl_admin admin = {
		.verb = CTL_ADMIN_DRAIN, .from = "uid 0 (root) pid 1 on host7", .leaving = true};

	/* Debian has these two users everywhere. */
	operators_sign(&(struct net_peer){.uid = 0, .pid = 4711}, "host7", &admin);
	cr_assert_str_eq(admin.from, "uid 0 (root) pid 4711 on host7");
	cr_assert_not(admin.leaving);
	operators_sign(&(struct net_peer){.uid = 65534, .pid = 3}, "host7", &admin);
	cr_assert_str_eq(admin.from, "uid 65534 (nobody) pid 3 on host7");
	operators_sign(&(struct net_peer){.uid = 3999999999u, .pid = 0}, "host7", &admin);
	cr_assert_str_eq(admin.from, "uid 3999999999 pid 0 on host7");
}

Test(daemon_operators, sign__long_name_of_a_node__is_cut_between_characters)
{
	struct ctl_admin admin = {0};
	char node[TH_NAME_MAX + 1];

	for (int odd = 0; odd < 2; odd++) {
		memset(node, 0, sizeof(node));
		node[0] = 'x';
		for (size_t i = (size_t)odd; i + 2 < sizeof(node); i += 2)
			memcpy(node + i, "\303\244", 2);
		operators_sign(&(struct net_peer){.uid = 3999999999u}, node, &admin);
		cr_assert(th_name_valid(admin.from, TH_NAME_MAX), "%s", admin.from);
		cr_assert_geq(strlen(admin.from), TH_NAME_MAX - 1u);
	}
}
