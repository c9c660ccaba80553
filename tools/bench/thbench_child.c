/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_child - see thbench_child.h.
 */
#include "tools/bench/thbench_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define TEXT_MAX (4u << 20)
#define ARGUMENTS_MAX 40u

static void __attribute__((noreturn))
thbench_child_become(const char *const *argv, int in, int out, int log)
{
	char *arguments[ARGUMENTS_MAX] = {NULL};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	/* Ctrl-C is for the parent, which then ends us. */
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint32_t i = 0; argv[i] && i + 1 < ARGUMENTS_MAX; i++)
		arguments[i] = strdup(argv[i]);
	if (null < 0 || dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
		dup2(log >= 0 ? log : null, STDERR_FILENO) < 0)
		_exit(126);
	execvp(arguments[0], arguments);
	_exit(127);
}

int
child_start(struct child *child, const char *const *argv, int log)
{
	int in[2], out[2];

	*child = (struct child){.in = -1, .out = -1};
	/* A socket, so that writing to one that has ended raises no signal. */
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) < 0)
		return -errno;
	if (pipe2(out, O_CLOEXEC) < 0) {
		int rc = -errno;
		th_fd_close(&in[0]);
		th_fd_close(&in[1]);
		return rc;
	}
	pid_t pid = fork();
	if (pid == 0)
		thbench_child_become(argv, in[1], out[1], log);
	int rc = pid < 0 ? -errno : 0;
	th_fd_close(&in[1]);
	th_fd_close(&out[1]);
	if (rc < 0) {
		th_fd_close(&in[0]);
		th_fd_close(&out[0]);
		return rc;
	}
	(void)setpgid(pid, pid); /* whoever of us comes first */
	*child = (struct child){
		.pid = pid, .in = in[0], .out = out[0], .text = th_calloc(1, TEXT_MAX)};
	return 0;
}

/* More of its output; false: there is none, or it is not waited for. */
static bool
more(struct bench *bench, struct child *child, int64_t end_ns)
{
	for (;;) {
		struct pollfd polls[2] = {{.fd = child->out, .events = POLLIN},
			{.fd = bench->stop.fd, .events = POLLIN}};
		(void)poll(polls, 2, 200);
		if (th_now_ns() > end_ns || bench_go_on(bench, NULL) < 0 ||
			child->used == TEXT_MAX - 1)
			return false;
		if (polls[0].revents == 0)
			continue;
		ssize_t got =
			read(child->out, child->text + child->used, TEXT_MAX - 1 - child->used);
		if (got <= 0)
			return false;
		child->used += (size_t)got;
		child->text[child->used] = '\0';
		return true;
	}
}

char *
child_line(struct bench *bench, struct child *child, int64_t limit_ns)
{
	int64_t end_ns = th_now_ns() + limit_ns;
	char *end;

	while (!(end = strchr(child->text, '\n'))) {
		if (!more(bench, child, end_ns))
			return NULL;
	}
	*end = '\0';
	char *line = th_strdup(child->text);
	child->used -= (size_t)(end + 1 - child->text);
	memmove(child->text, end + 1, child->used + 1);
	return line;
}

char *
child_text(struct bench *bench, struct child *child, const char *until, int64_t limit_ns)
{
	int64_t end_ns = th_now_ns() + limit_ns;

	while (!until || !strstr(child->text, until)) {
		if (!more(bench, child, end_ns))
			break;
	}
	if (th_now_ns() > end_ns || bench_go_on(bench, NULL) < 0)
		return NULL;
	return th_strdup(child->text);
}

int
child_say(struct child *child, const char *line)
{
	ssize_t bytes = (ssize_t)strlen(line);

	return send(child->in, line, (size_t)bytes, MSG_NOSIGNAL) == bytes ? 0 : -EPIPE;
}

void
child_pause(const struct child *child)
{
	(void)kill(-child->pid, SIGSTOP);
}

void
child_go_on(const struct child *child)
{
	(void)kill(-child->pid, SIGCONT);
}

void
child_stop(struct child *child, int64_t patience_ns)
{
	const struct timespec look = {.tv_nsec = 2000000};
	int64_t end_ns = th_now_ns() + patience_ns;

	if (child->pid <= 0)
		return;
	child_go_on(child);
	th_fd_close(&child->in);
	while (waitpid(child->pid, NULL, WNOHANG) == 0) {
		if (th_now_ns() >= end_ns)
			kill(-child->pid, SIGKILL);
		nanosleep(&look, NULL);
	}
	/* What it has left behind. */
	kill(-child->pid, SIGKILL);
	th_fd_close(&child->out);
	free(child->text);
	*child = (struct child){.in = -1, .out = -1};
}
