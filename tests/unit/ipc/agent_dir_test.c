/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of ipc/sock/agent_dir: in which order an agent's directory is looked for, and which counts
 * as not there. The places are folders below one of the test; who looks is given.
 */
#include "ipc/sock/agent_dir.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "ipc/base/fd.h"

static char top[64];
static struct agent_dir places[AGENT_DIR_PLACES];
static char looked[AGENT_DIR_LOOKED_BYTES];

/* As the real ones, in a folder of the test. None of them is there. */
static void
setup(void)
{
	static const char *const names[] = {"xdg", "tmp", "run"};

	strcpy(top, "/tmp/th-agent-dir-XXXXXX");
	cr_assert_not_null(mkdtemp(top));
	agent_dir_places(1000, "/run/user/1000", places);
	for (size_t i = 0; i < TH_ARRAY_LEN(names); i++)
		snprintf(places[i].path, sizeof(places[i].path), "%s/%s", top, names[i]);
}

static void
teardown(void)
{
	for (size_t i = 0; i < AGENT_DIR_PLACES; i++) {
		(void)rmdir(places[i].path);
		(void)unlink(places[i].path);
	}
	(void)rmdir(top);
}

TestSuite(agent_dir, .init = setup, .fini = teardown);

static void
make(size_t place, mode_t mode)
{
	cr_assert_eq(mkdir(places[place].path, 0700), 0);
	cr_assert_eq(chmod(places[place].path, mode), 0);
}

static void
expect_place(size_t place)
{
	cr_assert_eq(agent_dir_first(places, geteuid(), looked), &places[place], "%s", looked);
}

/* What is said of the place that is passed over for the machine's. */
static void
expect_passed_over(size_t place, const char *why)
{
	char text[200];

	make(2, 0755);
	expect_place(2);
	snprintf(text, sizeof(text), "%s (%s)", places[place].path, why);
	cr_assert_not_null(strstr(looked, text), "no '%s' in: %s", text, looked);
}

Test(agent_dir, places__are_the_users_then_the_machines)
{
	agent_dir_places(1000, "/run/user/1000", places);
	cr_assert_str_eq(places[0].path, "/run/user/1000/tensorhub");
	cr_assert_str_eq(places[1].path, "/tmp/tensorhub-1000");
	cr_assert_str_eq(places[2].path, "/run/tensorhub");
	cr_assert(places[0].own && places[1].own && !places[2].own);
}

Test(agent_dir, runtime_directory__unset_relative_or_too_long__is_none)
{
	char xdg[AGENT_DIR_BYTES];

	memset(xdg, 'x', sizeof(xdg));
	xdg[0] = '/';
	xdg[sizeof(xdg) - strlen("/tensorhub")] = '\0';
	const char *const none[] = {NULL, "", "run/user", xdg};
	for (size_t i = 0; i < TH_ARRAY_LEN(none); i++) {
		agent_dir_places(0, none[i], places);
		cr_assert_str_eq(places[0].path, "", "row %zu", i);
		cr_assert_str_eq(places[1].path, "/tmp/tensorhub-0");
	}
	/* One byte less has room. */
	xdg[strlen(xdg) - 1] = '\0';
	agent_dir_places(0, xdg, places);
	cr_assert_eq(strlen(places[0].path), AGENT_DIR_BYTES - 1);
}

Test(agent_dir, first__of_several_that_are_there__counts)
{
	make(2, 0755);
	expect_place(2);
	make(1, 0700);
	expect_place(1);
	/* A group may read it where no stranger has made it; thagentd -r makes it so. */
	make(0, 0750);
	expect_place(0);
	cr_assert_null(strstr(looked, places[1].path), "%s", looked);
}

Test(agent_dir, none_there__is_the_machines_and_all_are_named)
{
	expect_place(2);
	for (size_t i = 0; i < AGENT_DIR_PLACES; i++) {
		const char *named = strstr(looked, places[i].path);
		cr_assert_not_null(named, "%s", looked);
		cr_assert_eq(strncmp(named + strlen(places[i].path), " (is not there)", 15), 0,
			"%s", looked);
	}
	places[0].path[0] = '\0';
	expect_place(2);
	cr_assert_eq(strncmp(looked, places[1].path, strlen(places[1].path)), 0, "%s", looked);
}

Test(agent_dir, of_another_user__is_passed_over)
{
	const char *why;

	make(1, 0700);
	cr_assert_eq(agent_dir_look(&places[1], geteuid(), &why), 0);
	cr_assert_eq(agent_dir_look(&places[1], geteuid() + 1, &why), TH_E_DENIED);
	cr_assert_str_eq(why, "belongs to another user");
	/* The machine's is root's or the agent's. */
	make(2, 0755);
	cr_assert_eq(agent_dir_look(&places[2], geteuid() + 1, &why), 0);
	if (geteuid() != 0)
		return;
	cr_assert_eq(rmdir(places[2].path), 0);
	cr_assert_eq(chown(places[1].path, 65534, (gid_t)-1), 0);
	expect_passed_over(1, "belongs to another user");
}

Test(agent_dir, in_tmp_open_to_others__is_passed_over)
{
	static const mode_t modes[] = {0750, 0701, 0770, 0777, 01777, 0755};

	make(1, 0700);
	expect_place(1);
	for (size_t i = 0; i < TH_ARRAY_LEN(modes); i++) {
		cr_assert_eq(chmod(places[1].path, modes[i]), 0);
		expect_passed_over(1, "is open to other users");
		cr_assert_eq(rmdir(places[2].path), 0);
	}
}

Test(agent_dir, in_the_runtime_directory_writable_by_others__is_passed_over)
{
	make(0, 0770);
	expect_passed_over(0, "is open to other users");
}

Test(agent_dir, link__is_no_directory)
{
	char target[80];

	snprintf(target, sizeof(target), "%s/target", top);
	cr_assert_eq(mkdir(target, 0700), 0);
	cr_assert_eq(symlink(target, places[1].path), 0);
	expect_passed_over(1, "is no directory");
	cr_assert_eq(rmdir(target), 0);
	/* Also one that leads nowhere. */
	cr_assert_eq(rmdir(places[2].path), 0);
	expect_passed_over(1, "is no directory");
}

Test(agent_dir, file__is_no_directory)
{
	int fd = open(places[0].path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	cr_assert_geq(fd, 0);
	th_fd_close(&fd);
	expect_passed_over(0, "is no directory");
}

Test(agent_dir, find__is_by_the_environment)
{
	struct agent_dir dir;

	snprintf(places[0].path, sizeof(places[0].path), "%s/tensorhub", top);
	make(0, 0700);
	cr_assert_eq(setenv("XDG_RUNTIME_DIR", top, 1), 0);
	agent_dir_find(&dir, looked);
	cr_assert_str_eq(dir.path, places[0].path);
}
