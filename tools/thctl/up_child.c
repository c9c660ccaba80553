/* SPDX-License-Identifier: Apache-2.0 */
/*
 * up_child - see up_child.h. By fork and not posix_spawn, which cannot ask the kernel for a signal
 * when the parent ends; this process has one thread.
 */
#include "tools/thctl/up_child.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "tools/thctl/output.h"
#include "tools/thctl/thctl.h"

static void __attribute__((noreturn))
up_child_become(const char *const *argv, pid_t parent, int said, int log)
{
	union {
		const char *const *in;
		char *const *out; /* the type of execv, which does not write to it */
	} same = {.in = argv};
	sigset_t none;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	/* It may have ended before that. */
	if (getppid() != parent)
		_exit(126);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* Who asked this process for news of its life did not ask its children. */
	unsetenv("NOTIFY_SOCKET");
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(said, STDOUT_FILENO) < 0 ||
		dup2(log, STDERR_FILENO) < 0)
		_exit(126);
	execv(argv[0], same.out);
	fprintf(stderr, "error main cannot be started: %s\n", th_strerror(-errno));
	_exit(127);
}

/* ---- what it says --------------------------------------------------------------------------- */

static void
take_said(struct up_child *child, const char *line)
{
	if (child->life != UP_STARTING || strncmp(line, "ready ", strlen("ready ")) != 0)
		return;
	snprintf(child->ready, sizeof(child->ready), "%s", line);
	child->life = UP_READY;
}

/* That all goes well is no news. */
static void
take_log(struct up_child *child, const char *line)
{
	snprintf(child->last[child->num_lines++ % UP_LAST_LINES], UP_LINE_BYTES, "%s", line);
	if (strncmp(line, "info ", 5) == 0 || strncmp(line, "debug ", 6) == 0)
		return;
	char *harmless = output_harmless(line);
	fprintf(stderr, "%s: %s\n", child->name, harmless);
	free(harmless);
}

static void
take_lines(struct up_child *child, struct up_lines *lines,
	void (*take)(struct up_child *, const char *))
{
	char *line = lines->line, *end;

	lines->line[lines->used] = '\0';
	while ((end = strchr(line, '\n'))) {
		*end = '\0';
		take(child, line);
		line = end + 1;
	}
	lines->used = strlen(line);
	memmove(lines->line, line, lines->used + 1);
	/* A line that has no room is cut into several. */
	if (lines->used == sizeof(lines->line) - 1) {
		take(child, lines->line);
		lines->used = 0;
	}
}

/* All that is there now. */
static void
read_lines(struct up_child *child, struct up_lines *lines,
	void (*take)(struct up_child *, const char *))
{
	while (lines->fd >= 0) {
		ssize_t got = read(lines->fd, lines->line + lines->used,
			sizeof(lines->line) - 1 - lines->used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			return;
		if (got <= 0) {
			loop_remove(child->loop, &lines->source);
			th_fd_close(&lines->fd);
			return;
		}
		lines->used += (size_t)got;
		take_lines(child, lines, take);
	}
}

static void
said_ready(void *arg, uint32_t events)
{
	struct up_child *child = arg;

	(void)events;
	read_lines(child, &child->said, take_said);
}

static void
log_ready(void *arg, uint32_t events)
{
	struct up_child *child = arg;

	(void)events;
	read_lines(child, &child->log, take_log);
}

static void
child_ended(void *arg, uint32_t events)
{
	struct up_child *child = arg;

	(void)events;
	if (waitpid(child->pid, &child->status, WNOHANG) != child->pid)
		return;
	loop_remove(child->loop, &child->source);
	/* Not up to the end of the pipe: what it has started may have that open. */
	read_lines(child, &child->log, take_log);
	child->life = UP_ENDED;
}

/* ---- its life ------------------------------------------------------------------------------- */

static int
watch(struct up_child *child)
{
	child->pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
	int rc = child->pidfd < 0 ? -errno : 0;

	if (rc == 0)
		rc = loop_add(
			child->loop, &child->source, child->pidfd, EPOLLIN, child_ended, child);
	if (rc == 0)
		rc = loop_add(child->loop, &child->said.source, child->said.fd, EPOLLIN, said_ready,
			child);
	if (rc == 0)
		rc = loop_add(
			child->loop, &child->log.source, child->log.fd, EPOLLIN, log_ready, child);
	return rc;
}

static int
up_child_fork(struct up_child *child, const char *const *argv)
{
	int said[2] = {-1, -1}, log[2] = {-1, -1};
	pid_t self = getpid();
	int rc = 0;

	/* Also its ends: a daemon does not wait for whoever reads its log. */
	if (pipe2(said, O_CLOEXEC | O_NONBLOCK) < 0 || pipe2(log, O_CLOEXEC | O_NONBLOCK) < 0)
		rc = -errno;
	if (rc == 0) {
		child->pid = fork();
		if (child->pid == 0)
			up_child_become(argv, self, said[1], log[1]);
		rc = child->pid < 0 ? -errno : 0;
	}
	if (rc == 0) {
		child->said.fd = th_fd_move(&said[0]);
		child->log.fd = th_fd_move(&log[0]);
		rc = watch(child);
		if (rc < 0) {
			(void)kill(child->pid, SIGKILL);
			(void)waitpid(child->pid, &child->status, 0);
		}
	}
	th_fd_close(&said[0]);
	th_fd_close(&said[1]);
	th_fd_close(&log[0]);
	th_fd_close(&log[1]);
	return rc;
}

int
up_child_start(struct up_child *child, const char *name, const char *const *argv,
	struct event_loop *loop, struct th_err *err)
{
	*child = (struct up_child){.name = name,
		.pidfd = -1,
		.source.fd = -1,
		.loop = loop,
		.said = {.fd = -1, .source.fd = -1},
		.log = {.fd = -1, .source.fd = -1}};
	int rc = up_child_fork(child, argv);
	if (rc == 0) {
		child->life = UP_STARTING;
		return 0;
	}
	up_child_fini(child);
	return th_fail(err, rc, "the %s cannot be started: %s", name, th_strerror(rc));
}

bool
up_child_runs(const struct up_child *child)
{
	return child->life == UP_STARTING || child->life == UP_READY;
}

void
up_child_value(const struct up_child *child, const char *key, char *ret_value, size_t bytes)
{
	size_t length = strlen(key);

	ret_value[0] = '\0';
	for (const char *at = strchr(child->ready, ' '); at; at = strchr(at + 1, ' ')) {
		if (strncmp(at + 1, key, length) != 0 || at[1 + length] != '=')
			continue;
		at += 1 + length + 1;
		snprintf(ret_value, bytes, "%.*s", (int)strcspn(at, " "), at);
		return;
	}
}

void
up_child_signal(const struct up_child *child, int number)
{
	/* It is waited for only here, so its number is nobody else's. */
	if (up_child_runs(child))
		(void)kill(child->pid, number);
}

void
up_child_say_end(const struct up_child *child)
{
	size_t first = child->num_lines > UP_LAST_LINES ? child->num_lines - UP_LAST_LINES : 0;
	const char *colon = child->num_lines > 0 ? "; the last of its log:" : "; it logged nothing";

	if (WIFSIGNALED(child->status))
		thctl_say("up: the %s (pid %d) was ended by signal %d (%s)%s", child->name,
			(int)child->pid, WTERMSIG(child->status),
			strsignal(WTERMSIG(child->status)), colon);
	else
		thctl_say("up: the %s (pid %d) has ended with exit status %d%s", child->name,
			(int)child->pid, WEXITSTATUS(child->status), colon);
	for (size_t i = first; i < child->num_lines; i++) {
		char *harmless = output_harmless(child->last[i % UP_LAST_LINES]);
		fprintf(stderr, "  %s\n", harmless);
		free(harmless);
	}
}

void
up_child_fini(struct up_child *child)
{
	if (child->loop == NULL)
		return;
	loop_remove(child->loop, &child->source);
	loop_remove(child->loop, &child->said.source);
	loop_remove(child->loop, &child->log.source);
	th_fd_close(&child->said.fd);
	th_fd_close(&child->log.fd);
	th_fd_close(&child->pidfd);
}
