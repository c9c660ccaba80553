/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failpoint_test - what a failpoint does, and when. Only in builds with -Dfaults=true. Criterion
 * runs each test in a process of its own, so each has the state of a new one.
 */
#include "ipc/base/failpoint.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static void
path_of(const char *name, char ret_path[128])
{
	snprintf(ret_path, 128, "%s/%s", folder, name);
}

static void
make_folder(void)
{
	char path[128];
	snprintf(folder, sizeof(folder), "/tmp/th-failpoint-XXXXXX");
	cr_assert_not_null(mkdtemp(folder));
	path_of("reached", path);
	cr_assert_eq(mkfifo(path, 0600), 0);
	path_of("go", path);
	cr_assert_eq(mkfifo(path, 0600), 0);
	setenv("TH_FAILPOINT_DIR", folder, 1);
}

static void
remove_folder(void)
{
	static const char *const names[] = {"reached", "go", "arm"};
	char path[128];
	for (int i = 0; i < 3; i++) {
		path_of(names[i], path);
		unlink(path);
	}
	rmdir(folder);
}

static void
arm(const char *text)
{
	char path[128];
	path_of("arm", path);
	FILE *file = fopen(path, "w");
	cr_assert_not_null(file);
	fputs(text, file);
	fclose(file);
}

Test(failpoint, nothing_armed__goes_on)
{
	unsetenv("TH_FAILPOINT");
	unsetenv("TH_FAILPOINT_DIR");
	errno = EBUSY;
	cr_assert_eq(TH_FP_RC(agent_part_new), 0);
	TH_FP(server_op);
	cr_assert_eq(errno, EBUSY);
}

Test(failpoint, errno__fails_at_the_nth_hit_once)
{
	setenv("TH_FAILPOINT", "agent_part_new:errno=12:2,agent_takes_memory:errno=24", 1);
	cr_assert_eq(TH_FP_RC(agent_part_new), 0);
	cr_assert_eq(TH_FP_RC(agent_takes_memory), -24);
	cr_assert_eq(TH_FP_RC(agent_part_new), -12);
	cr_assert_eq(TH_FP_RC(agent_part_new), 0);
	cr_assert_eq(TH_FP_RC(agent_takes_memory), 0);
}

Test(failpoint, text_that_means_nothing__goes_on)
{
	setenv("TH_FAILPOINT", ",:,agent_part_new,agent_part_new:,agent_part_new:errno=5:x,::", 1);
	cr_assert_eq(TH_FP_RC(agent_part_new), 0);
	cr_assert_eq(TH_FP_RC(agent_part_new), 0);
}

Test(failpoint, file__counts_from_when_its_text_changes, .fini = remove_folder)
{
	make_folder();
	TH_FP(agent_part_new);
	arm("agent_part_new:errno=12:2\n");
	cr_assert_eq(TH_FP_RC(agent_part_new), 0);
	cr_assert_eq(TH_FP_RC(agent_part_new), -12);
	arm("agent_part_new:errno=11");
	cr_assert_eq(TH_FP_RC(agent_part_new), -11);
	arm("");
	cr_assert_eq(TH_FP_RC(agent_part_new), 0);
}

Test(failpoint, table__index_without_a_point__is_nothing)
{
	static const enum failpoint table[] = {[1] = FAILPOINT_server_op};
	setenv("TH_FAILPOINT", "server_op:exit", 1);
	TH_FP_OF(table, 0);
	TH_FP_OF(table, 7);
}

Test(failpoint, kill__ends_the_process, .signal = SIGKILL)
{
	setenv("TH_FAILPOINT", "server_op:kill", 1);
	TH_FP(server_op);
}

static void *
hit(void *arg)
{
	TH_FP(leg_in_half);
	*(int *)arg = 1;
	return NULL;
}

Test(failpoint, pause__is_reported_and_waits_for_go, .fini = remove_folder)
{
	pthread_t thread;
	char path[128], line[64] = "";
	int passed = 0;
	make_folder();
	path_of("reached", path);
	int reached = open(path, O_RDWR | O_NONBLOCK);
	cr_assert_geq(reached, 0);
	setenv("TH_FAILPOINT", "leg_in_half:pause", 1);
	cr_assert_eq(pthread_create(&thread, NULL, hit, &passed), 0);
	struct pollfd ready = {.fd = reached, .events = POLLIN};
	cr_assert_eq(poll(&ready, 1, 30000), 1);
	cr_assert_gt(read(reached, line, sizeof(line) - 1), 0);
	cr_assert_str_eq(line, "leg_in_half\n");
	/* Other threads and other points do not wait. */
	TH_FP(leg_in_half);
	TH_FP(leg_in_bye);
	cr_assert_eq(passed, 0);
	path_of("go", path);
	int go = open(path, O_WRONLY);
	cr_assert_geq(go, 0);
	pthread_join(thread, NULL);
	cr_assert_eq(passed, 1);
	close(go);
	close(reached);
}
