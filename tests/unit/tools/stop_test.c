/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop_test - what a signal does before and after stop_patient, once and twice. Each case is a
 * process of its own, which tells what happened by a file and by how it ends.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/thctl/stop_signals.h"

#define FINE 42 /* of a child in which all was as it should be */

static int undone[2]; /* a pipe: a byte for each call of undo */

static void
undo(void)
{
	ssize_t put = write(undone[1], "u", 1);

	(void)put;
}

/* Runs body in a child; returns how it ended, as waitpid says it. */
static int
child(int (*body)(void), int *ret_undone)
{
	int status = 0;

	cr_assert_eq(pipe(undone), 0);
	pid_t pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0)
		_exit(body());
	close(undone[1]);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	char bytes[8];
	*ret_undone = (int)read(undone[0], bytes, sizeof(bytes));
	close(undone[0]);
	return status;
}

static bool
readable(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, 0) == 1;
}

static int
first_signal(void)
{
	struct stop stop;

	if (stop_begin(&stop, undo) < 0)
		return 1;
	raise(SIGTERM);
	return 2;
}

Test(stop, before_patient__undoes_and_ends_by_it)
{
	int count = 0;
	int status = child(first_signal, &count);

	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "%d", status);
	cr_assert_eq(count, 1);
}

static int
patient(void)
{
	struct stop stop;

	if (stop_begin(&stop, undo) < 0 || stop_seen(&stop) || readable(stop.fd))
		return 1;
	stop_patient(&stop);
	raise(SIGINT);
	if (!readable(stop.fd) || !stop_seen(&stop))
		return 2;
	/* Seen for good, but a poll sleeps again. */
	if (readable(stop.fd) || !stop_seen(&stop))
		return 3;
	return FINE;
}

Test(stop, patient__is_something_to_look_at)
{
	int count = 0;
	int status = child(patient, &count);

	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == FINE, "%d", status);
	cr_assert_eq(count, 0);
}

static int
second_signal(void)
{
	int rc = patient();

	if (rc != FINE)
		return rc;
	raise(SIGHUP);
	return 4;
}

Test(stop, second__undoes_and_ends_by_it)
{
	int count = 0;
	int status = child(second_signal, &count);

	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGHUP, "%d", status);
	cr_assert_eq(count, 1);
}

static int
blocked(void)
{
	struct stop stop;

	if (stop_begin(&stop, undo) < 0)
		return 1;
	stop_block(&stop);
	raise(SIGINT);
	undo(); /* what was to happen without an interruption */
	stop_unblock(&stop);
	return 2;
}

Test(stop, blocked__waits_for_the_end)
{
	int count = 0;
	int status = child(blocked, &count);

	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT, "%d", status);
	cr_assert_eq(count, 2);
}

static int
ignored(void)
{
	struct stop stop;

	signal(SIGINT, SIG_IGN);
	if (stop_begin(&stop, undo) < 0)
		return 1;
	raise(SIGINT);
	stop_patient(&stop);
	raise(SIGINT);
	if (stop_seen(&stop))
		return 2;
	stop_end(&stop);
	stop_end(&stop);
	raise(SIGINT);
	return FINE;
}

Test(stop, ignored_from_the_start__stays_ignored)
{
	int count = 0;
	int status = child(ignored, &count);

	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == FINE, "%d", status);
	cr_assert_eq(count, 0);
}
