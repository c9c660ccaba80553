/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of daemon/host/launch: what a new process of a GPU has, and has not. It is this program
 * again, which is asked before main what it is.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/host/move/gpu_spawn.h"
#include "ipc/base/fd.h"

#define SEEN_FDS 64
#define FINE 42

struct seen {
	bool open[SEEN_FDS];
	bool null[3];
	bool blocks_term, blocks_int, blocks_hup, blocks_usr1;
	bool has_visible, has_path; /* in its environment, after launch_tidy */
	char mps[32];
};

static void
look(struct seen *seen)
{
	struct stat null, st;
	sigset_t blocked;
	for (int fd = 0; fd < SEEN_FDS; fd++)
		seen->open[fd] = fcntl(fd, F_GETFD) >= 0;
	launch_tidy();
	for (int fd = 0; fd < 3; fd++)
		seen->null[fd] = stat("/dev/null", &null) == 0 && fstat(fd, &st) == 0 &&
				 st.st_rdev == null.st_rdev && S_ISCHR(st.st_mode);
	sigprocmask(SIG_SETMASK, NULL, &blocked);
	seen->blocks_term = sigismember(&blocked, SIGTERM) == 1;
	seen->blocks_int = sigismember(&blocked, SIGINT) == 1;
	seen->blocks_hup = sigismember(&blocked, SIGHUP) == 1;
	seen->blocks_usr1 = sigismember(&blocked, SIGUSR1) == 1;
	const char *mps = getenv("CUDA_MPS_PIPE_DIRECTORY");
	snprintf(seen->mps, sizeof(seen->mps), "%s", mps ? mps : "");
	seen->has_visible = getenv("CUDA_VISIBLE_DEVICES") != NULL;
	seen->has_path = getenv("PATH") != NULL;
}

/* What a process of a GPU does: it says what it sees, and ends with its socket. */
__attribute__((constructor)) static void
be_the_child(int argc, char **argv)
{
	static struct seen seen;
	char byte;
	if (argc != 2 || strcmp(argv[1], LAUNCH_OPTION) != 0)
		return;
	look(&seen);
	if (send(LAUNCH_SOCK, &seen, sizeof(seen), MSG_NOSIGNAL) != sizeof(seen))
		_exit(1);
	_exit(recv(LAUNCH_SOCK, &byte, 1, 0) == 0 ? FINE : 2);
}

/* Its number, with what it saw. */
static pid_t
start(int *ret_sock, int lifeline, struct seen *ret_seen)
{
	struct th_err err = {0};
	int ends[2];
	pid_t pid = 0;
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	cr_assert_eq(launch(LAUNCH_SELF, ends[1], lifeline, &err, &pid), 0, "%s", err.text);
	cr_assert_gt(pid, 0);
	th_fd_close(&ends[1]);
	cr_assert_eq(recv(ends[0], ret_seen, sizeof(*ret_seen), 0), sizeof(*ret_seen));
	*ret_sock = ends[0];
	return pid;
}

static void
finish(pid_t pid, int sock)
{
	int status = 0;
	th_fd_close(&sock);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == FINE, "status %d", status);
}

static short
state_of(int lifeline)
{
	struct pollfd poll_fd = {.fd = lifeline, .events = POLLIN};
	cr_assert_geq(poll(&poll_fd, 1, 0), 0);
	return poll_fd.revents;
}

Test(daemon_launch, child__has_its_two_descriptors_and_no_other, .timeout = 60)
{
	struct seen seen;
	int lifeline[2], sock = -1, leaked = dup(STDERR_FILENO);
	sigset_t blocked;
	cr_assert_eq(pipe2(lifeline, O_CLOEXEC), 0);
	cr_assert_geq(leaked, 0);
	cr_assert_lt(leaked, SEEN_FDS);
	/* What the agent's threads block is not what its process blocks. */
	sigfillset(&blocked);
	cr_assert_eq(sigprocmask(SIG_SETMASK, &blocked, NULL), 0);
	pid_t pid = start(&sock, lifeline[1], &seen);
	/* Also what exec would have left, so that it is not exec that closes the others. */
	cr_assert_eq(fcntl(leaked, F_GETFD), 0);
	for (int fd = 0; fd < SEEN_FDS; fd++)
		cr_assert_eq(seen.open[fd], fd <= LAUNCH_LIFELINE, "descriptor %d", fd);
	cr_assert(seen.null[0] && seen.null[1]);
	cr_assert(seen.blocks_term && seen.blocks_int && seen.blocks_hup);
	cr_assert_not(seen.blocks_usr1);
	finish(pid, sock);
}

/* What the agent was started with is not about the GPUs of its workers. */
Test(daemon_launch, child__sees_all_gpus_and_no_mps, .timeout = 60)
{
	struct seen seen;
	int lifeline[2], sock = -1;
	cr_assert_eq(pipe2(lifeline, O_CLOEXEC), 0);
	cr_assert_eq(setenv("CUDA_VISIBLE_DEVICES", "3", 1), 0);
	cr_assert_eq(setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps", 1), 0);
	pid_t pid = start(&sock, lifeline[1], &seen);
	cr_assert_not(seen.has_visible);
	cr_assert_str_eq(seen.mps, "/dev/null");
	cr_assert(seen.has_path, "all else is as it was");
	finish(pid, sock);
}

Test(daemon_launch, lifeline__hangs_up_with_the_last_that_has_it, .timeout = 60)
{
	struct seen seen;
	int lifeline[2], sock[2] = {-1, -1};
	pid_t pids[2];
	cr_assert_eq(pipe2(lifeline, O_CLOEXEC), 0);
	for (int i = 0; i < 2; i++)
		pids[i] = start(&sock[i], lifeline[1], &seen);
	cr_assert_eq(state_of(lifeline[0]), 0);
	th_fd_close(&lifeline[1]); /* as the end of the agent does */
	cr_assert_eq(state_of(lifeline[0]), 0);
	finish(pids[0], sock[0]);
	cr_assert_eq(state_of(lifeline[0]), 0);
	finish(pids[1], sock[1]);
	cr_assert_eq(state_of(lifeline[0]), POLLHUP);
	th_fd_close(&lifeline[0]);
}

/* In a process of its own: the test's library has 3 and 4 itself. */
static int
swapped(void)
{
	struct th_err err;
	struct seen seen;
	int ends[2], lifeline[2], status = 0;
	pid_t pid = 0;
	(void)close(LAUNCH_SOCK);
	(void)close(LAUNCH_LIFELINE);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0 ||
		pipe2(lifeline, O_CLOEXEC) < 0)
		return 1;
	int sock = fcntl(ends[0], F_DUPFD_CLOEXEC, 20);
	int other = fcntl(ends[1], F_DUPFD_CLOEXEC, 20);
	int line = fcntl(lifeline[1], F_DUPFD_CLOEXEC, 20);
	if (dup3(line, LAUNCH_SOCK, O_CLOEXEC) < 0 || dup3(other, LAUNCH_LIFELINE, O_CLOEXEC) < 0)
		return 2;
	if (launch(LAUNCH_SELF, LAUNCH_LIFELINE, LAUNCH_SOCK, &err, &pid) < 0)
		return 3;
	if (recv(sock, &seen, sizeof(seen), 0) != sizeof(seen) || shutdown(sock, SHUT_RDWR) < 0 ||
		waitpid(pid, &status, 0) != pid)
		return 4;
	return WIFEXITED(status) && WEXITSTATUS(status) == FINE ? FINE : 5;
}

Test(daemon_launch, numbers__the_very_ones_that_it_gets__make_no_difference, .timeout = 60)
{
	int status = 0;
	pid_t pid = fork();
	if (pid == 0)
		_exit(swapped());
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == FINE, "status %d", status);
}

Test(daemon_launch, program__that_is_not_there__is_said)
{
	struct th_err err = {0};
	int ends[2], lifeline[2];
	pid_t pid = 0;
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	cr_assert_eq(pipe2(lifeline, O_CLOEXEC), 0);
	cr_assert_eq(launch("/nonexistent/thagentd", ends[1], lifeline[1], &err, &pid), -ENOENT);
	cr_assert(strstr(err.text, "/nonexistent/thagentd"), "%s", err.text);
	cr_assert_eq(launch(LAUNCH_SELF, -1, lifeline[1], &err, &pid), -EBADF);
	cr_assert_eq(launch(LAUNCH_SELF, ends[1], -1, &err, &pid), -EBADF);
}
