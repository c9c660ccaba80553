/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of tools/find_daemon: in which order a daemon is looked for from a program's folder.
 */
#include "tools/find_daemon.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"

static char top[64], bin[96];
static struct th_err err;

static void
setup(void)
{
	strcpy(top, "/tmp/th-daemon-XXXXXX");
	cr_assert_not_null(mkdtemp(top));
	snprintf(bin, sizeof(bin), "%s/bin", top);
	cr_assert_eq(mkdir(bin, 0755), 0);
	cr_assert_eq(setenv("PATH", "", 1), 0);
}

static int
remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

static void
teardown(void)
{
	(void)nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(find_daemon, .init = setup, .fini = teardown);

/* An executable of this name in top/folder. */
static void
put(const char *folder, const char *name, mode_t mode)
{
	char path[256];

	for (const char *slash = folder; slash; slash = strchr(slash + 1, '/')) {
		const char *end = strchr(slash + 1, '/');
		size_t length = end ? (size_t)(end - folder) : strlen(folder);
		snprintf(path, sizeof(path), "%s/%.*s", top, (int)length, folder);
		cr_assert(mkdir(path, 0755) == 0 || errno == EEXIST);
	}
	snprintf(path, sizeof(path), "%s/%s/%s", top, folder, name);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fchmod(fd, mode), 0);
	th_fd_close(&fd);
}

static void
expect_at(const char *name, const char *folder)
{
	char path[256], wanted[256];

	cr_assert_eq(find_daemon(bin, name, path, sizeof(path), &err), 0, "%s", err.text);
	snprintf(wanted, sizeof(wanted), "%s%s/%s", top, folder, name);
	cr_assert_str_eq(path, wanted);
}

Test(find_daemon, order__is_beside_build_sbin_path_libexec)
{
	char path[256];

	cr_assert_eq(find_daemon(bin, "thagentd", path, sizeof(path), &err), -ENOENT);
	cr_assert_not_null(strstr(err.text, bin), "%s", err.text);
	put("libexec/tensorhub", "thagentd", 0755);
	expect_at("thagentd", "/bin/../libexec/tensorhub");
	put("elsewhere", "thagentd", 0755);
	snprintf(path, sizeof(path), "/nowhere::%s/elsewhere", top);
	cr_assert_eq(setenv("PATH", path, 1), 0);
	expect_at("thagentd", "/elsewhere");
	put("sbin", "thagentd", 0755);
	expect_at("thagentd", "/bin/../sbin");
	put("daemon", "thagentd", 0755);
	expect_at("thagentd", "/bin/../daemon");
	put("bin", "thagentd", 0755);
	expect_at("thagentd", "/bin");
}

Test(find_daemon, server__has_another_folder_in_the_build)
{
	put("daemon", "thserverd", 0755);
	put("server", "thserverd", 0755);
	expect_at("thserverd", "/bin/../server");
}

Test(find_daemon, file_that_cannot_be_run__is_passed_over)
{
	put("bin", "thagentd", 0644);
	put("sbin", "thagentd", 0755);
	expect_at("thagentd", "/bin/../sbin");
}

Test(find_daemon, own_folder__is_where_this_program_lies)
{
	char folder[256], path[300];

	find_own_folder(folder, sizeof(folder));
	snprintf(path, sizeof(path), "%s/unit_find_daemon", folder);
	cr_assert_eq(access(path, X_OK), 0, "%s", path);
}
