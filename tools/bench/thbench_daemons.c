/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_daemons - starting, asking and ending the daemons (see thbench_daemons.h).
 */
#include "tools/bench/thbench_daemons.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "tools/find_daemon.h"

#define READY_NS INT64_C(30000000000)
#define END_NS INT64_C(10000000000) /* for a daemon to end in order */
#define LOOK_NS 2000000
#define ARGUMENTS_MAX 48

/* ---- one process ---------------------------------------------------------------------------- */

const struct place place_here = {.host = "127.0.0.1"};

int
daemons_enter(pid_t netns)
{
	char path[64];

	if (netns == 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)netns);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	int rc = fd < 0 || setns(fd, CLONE_NEWNET) < 0 ? -errno : 0;
	th_fd_close(&fd);
	return rc;
}

static void
pause_a_little(void)
{
	const struct timespec look = {.tv_nsec = LOOK_NS};

	nanosleep(&look, NULL);
}

/* What stands in the environment for a daemon would change what is measured. */
static void
drop_settings(void)
{
	for (char **at = environ; *at;) {
		char name[128];
		size_t length = strcspn(*at, "=");
		bool ours = strncmp(*at, "THAGENTD_", 9) == 0 ||
			    strncmp(*at, "THSERVERD_", 10) == 0 ||
			    strncmp(*at, "NOTIFY_SOCKET=", 14) == 0;
		if (ours && length < sizeof(name)) {
			memcpy(name, *at, length);
			name[length] = '\0';
			unsetenv(name);
			at = environ;
		} else {
			at++;
		}
	}
}

static void __attribute__((noreturn))
thbench_daemons_become(const char *path, const char *const *argv, pid_t netns, int out, int log)
{
	const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	char *arguments[ARGUMENTS_MAX] = {NULL};

	/* Ctrl-C is for the parent, which then ends us in order. */
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	drop_settings();
	for (uint32_t i = 0; argv[i] && i + 1 < ARGUMENTS_MAX; i++)
		arguments[i] = strdup(argv[i]);
	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
		dup2(log, STDERR_FILENO) < 0 || daemons_enter(netns) < 0)
		_exit(126);
	execv(path, arguments);
	_exit(127);
}

static void
print_log(const struct field *field, const char *name)
{
	char path[256], line[512];

	snprintf(path, sizeof(path), "%s/%s.log", field->dir, name);
	FILE *log = fopen(path, "re");
	while (log && fgets(line, sizeof(line), log))
		fprintf(stderr, "  %s: %s", name, line);
	if (log)
		fclose(log);
}

/* The value of KEY= in a line of such words. */
static void
take_word(const char *line, const char *key, char *ret_value, size_t bytes)
{
	size_t length = strlen(key);

	ret_value[0] = '\0';
	for (const char *at = strstr(line, key); at; at = strstr(at + 1, key)) {
		if (at == line || at[-1] != ' ' || at[length] != '=')
			continue;
		at += length + 1;
		snprintf(ret_value, bytes, "%.*s", (int)strcspn(at, " \n"), at);
		return;
	}
}

/* Until its line `ready ...` has come. */
static int
wait_ready(struct bench *bench, const struct field *field, const char *name, int out,
	char *ret_line, size_t bytes, struct th_err *err)
{
	int64_t end_ns = th_now_ns() + READY_NS;
	size_t used = 0;

	while (used == 0 || ret_line[used - 1] != '\n') {
		struct pollfd polls[2] = {
			{.fd = out, .events = POLLIN}, {.fd = bench->stop.fd, .events = POLLIN}};
		if (th_now_ns() > end_ns)
			return th_fail(err, -ETIMEDOUT, "%s is not ready after 30 s", name);
		if (poll(polls, 2, 100) < 0 && errno != EINTR)
			return th_fail(
				err, -errno, "cannot wait for %s: %s", name, strerror(errno));
		int rc = bench_go_on(bench, err);
		if (rc < 0)
			return rc;
		if (polls[0].revents == 0)
			continue;
		ssize_t got = read(out, ret_line + used, bytes - 1 - used);
		if (got <= 0) {
			print_log(field, name);
			return th_fail(
				err, -ECHILD, "%s ended at once; what it said is above", name);
		}
		used += (size_t)got;
		ret_line[used] = '\0';
	}
	if (strncmp(ret_line, "ready ", 6) != 0)
		return th_fail(err, TH_E_PROTOCOL, "%s did not say that it is ready", name);
	return 0;
}

static int
thbench_daemons_start(struct bench *bench, struct field *field, const char *program,
	const char *const *argv, pid_t netns, struct bench_daemon *ret_daemon, char *ret_line,
	size_t bytes, struct th_err *err)
{
	char path[320], log_path[256];
	int out[2];

	int rc = find_daemon(bench->program_dir, program, path, sizeof(path), err);
	if (rc < 0)
		return rc;
	snprintf(log_path, sizeof(log_path), "%s/%s.log", field->dir, ret_daemon->name);
	int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log < 0)
		return th_fail(err, -errno, "%s: %s", log_path, strerror(errno));
	if (pipe2(out, O_CLOEXEC) < 0) {
		rc = -errno;
		th_fd_close(&log);
		return th_fail(err, rc, "no pipe: %s", th_strerror(rc));
	}
	pid_t pid = fork();
	if (pid == 0)
		thbench_daemons_become(path, argv, netns, out[1], log);
	rc = pid < 0 ? -errno : 0;
	th_fd_close(&out[1]);
	th_fd_close(&log);
	if (rc < 0) {
		th_fd_close(&out[0]);
		return th_fail(err, rc, "no process for %s: %s", program, th_strerror(rc));
	}
	ret_daemon->pid = pid;
	rc = wait_ready(bench, field, ret_daemon->name, out[0], ret_line, bytes, err);
	th_fd_close(&out[0]);
	return rc;
}

/* ---- the field ------------------------------------------------------------------------------ */

int
field_start(struct bench *bench, struct field *field, const struct place *place, struct th_err *err)
{
	const char *base = getenv("TMPDIR");
	char listen[64];
	const char *const argv[] = {"thserverd", "-c", "/dev/null", "-l", listen, NULL};
	char line[512];

	snprintf(listen, sizeof(listen), "tcp://%.40s:0", place->host);
	*field = (struct field){.daemons = th_calloc(FIELD_DAEMONS_MAX, sizeof(field->daemons[0]))};
	/* A longer one would leave no room for the addresses of sockets. */
	if (!base || *base != '/' || strlen(base) > 48)
		base = "/tmp";
	snprintf(field->dir, sizeof(field->dir), "%s/thbench-XXXXXX", base);
	if (!mkdtemp(field->dir)) {
		int rc = th_fail(err, -errno, "%s: %s", field->dir, strerror(errno));
		field->dir[0] = '\0';
		field_stop(field);
		return rc;
	}
	struct bench_daemon *server = &field->daemons[field->num_daemons++];
	snprintf(server->name, sizeof(server->name), "server");
	int rc = thbench_daemons_start(
		bench, field, "thserverd", argv, place->netns, server, line, sizeof(line), err);
	if (rc < 0) {
		field_stop(field);
		return rc;
	}
	take_word(line, "listen", field->url, sizeof(field->url));
	return 0;
}

int
field_agent(struct bench *bench, struct field *field, const char *name, const char *const *options,
	const struct place *place, const struct bench_daemon **ret_agent, struct th_err *err)
{
	char line[512];
	const char *argv[ARGUMENTS_MAX] = {"thagentd", "-c", "/dev/null", "-o", "drain.timeout=2s"};
	uint32_t used = 5;

	if (field->num_daemons == FIELD_DAEMONS_MAX)
		return th_fail(err, TH_E_LIMIT, "more than %u daemons", FIELD_DAEMONS_MAX);
	struct bench_daemon *agent = &field->daemons[field->num_daemons];
	*agent = (struct bench_daemon){0};
	snprintf(agent->name, sizeof(agent->name), "%s", name);
	int length = snprintf(
		agent->runtime, sizeof(agent->runtime), "%.*s/%.30s", 90, field->dir, agent->name);
	TH_ASSERT(length > 0 && (size_t)length < sizeof(agent->runtime));
	argv[used++] = "-s";
	argv[used++] = field->url;
	argv[used++] = "-r";
	argv[used++] = agent->runtime;
	argv[used++] = "-n";
	argv[used++] = name;
	argv[used++] = "-d";
	argv[used++] = place->host;
	for (uint32_t i = 0; options && options[i] && used + 1 < ARGUMENTS_MAX; i++)
		argv[used++] = options[i];
	field->num_daemons++;
	int rc = thbench_daemons_start(
		bench, field, "thagentd", argv, place->netns, agent, line, sizeof(line), err);
	if (rc < 0)
		return rc;
	take_word(line, "data", agent->data, sizeof(agent->data));
	*ret_agent = agent;
	return 0;
}

void
field_kill(struct field *field, const struct bench_daemon *daemon)
{
	for (uint32_t i = 0; i < field->num_daemons; i++) {
		if (&field->daemons[i] != daemon || field->daemons[i].pid <= 0)
			continue;
		kill(daemon->pid, SIGKILL);
		waitpid(daemon->pid, NULL, 0);
		field->daemons[i].pid = 0;
	}
}

static int
remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

/* Agents first, last started first: then the server has nobody to wait for. */
void
field_stop(struct field *field)
{
	for (uint32_t i = field->num_daemons; i > 0; i--) {
		struct bench_daemon *daemon = &field->daemons[i - 1];
		if (daemon->pid > 0)
			kill(daemon->pid, SIGTERM);
	}
	int64_t end_ns = th_now_ns() + END_NS;
	for (uint32_t i = field->num_daemons; i > 0; i--) {
		struct bench_daemon *daemon = &field->daemons[i - 1];
		while (daemon->pid > 0 && waitpid(daemon->pid, NULL, WNOHANG) == 0) {
			if (th_now_ns() > end_ns)
				kill(daemon->pid, SIGKILL);
			pause_a_little();
		}
		daemon->pid = 0;
	}
	field->num_daemons = 0;
	if (field->dir[0] != '\0')
		(void)nftw(field->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	field->dir[0] = '\0';
	free(field->daemons);
	field->daemons = NULL;
}

/* ---- looking at an agent -------------------------------------------------------------------- */

static uint64_t
anonymous_bytes(pid_t pid)
{
	char path[64], line[256];
	uint64_t kib = 0;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1)
			break;
	}
	if (file)
		fclose(file);
	return kib * 1024;
}

/* Files in memory that it has open: not those of workers, which registered them. */
static uint64_t
memfd_bytes(pid_t pid)
{
	char path[64];
	uint64_t bytes = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *fds = opendir(path);
	struct dirent *entry;
	while (fds && (entry = readdir(fds))) {
		char target[128] = "";
		struct stat st;
		ssize_t length = readlinkat(dirfd(fds), entry->d_name, target, sizeof(target) - 1);
		if (length <= 0 || strncmp(target, "/memfd:", 7) != 0 ||
			strncmp(target, "/memfd:thc-memory", 17) == 0)
			continue;
		if (fstatat(dirfd(fds), entry->d_name, &st, 0) == 0)
			bytes += (uint64_t)st.st_blocks * 512;
	}
	if (fds)
		closedir(fds);
	return bytes;
}

uint64_t
field_memory(const struct bench_daemon *daemon)
{
	return daemon->pid > 0 ? anonymous_bytes(daemon->pid) + memfd_bytes(daemon->pid) : 0;
}

uint32_t
field_connections(const struct bench_daemon *daemon)
{
	char line[512];
	const char *colon = strrchr(daemon->data, ':');
	unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
	uint32_t count = 0;

	FILE *file = fopen("/proc/net/tcp", "re");
	while (file && fgets(line, sizeof(line), file)) {
		unsigned local_port, state;
		if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &local_port, &state) ==
				2 &&
			local_port == port && state == 1)
			count++;
	}
	if (file)
		fclose(file);
	return count;
}
