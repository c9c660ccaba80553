/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_hosts - see thbench_hosts.h.
 */
#include "tools/bench/thbench_hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/fd.h"

#define SWITCH_ADDRESS "10.78.0.254"
#define WORDS_MAX 24u
#define LINE_BYTES 256

static bool
program_there(const char *name)
{
	static const char *const folders[] = {"/sbin", "/usr/sbin", "/bin", "/usr/bin"};
	char path[64];

	for (uint32_t i = 0; i < TH_ARRAY_LEN(folders); i++) {
		snprintf(path, sizeof(path), "%s/%s", folders[i], name);
		if (access(path, X_OK) == 0)
			return true;
	}
	return false;
}

/* ---- namespaces ------------------------------------------------------------------------------ */

static void __attribute__((noreturn)) hold(int told)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Only as a place: it never does anything. */
	if (unshare(CLONE_NEWNET) < 0 || write(told, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

/* 0 when namespaces are not given to us. */
static pid_t
new_namespace(void)
{
	int told[2];
	char byte;

	if (pipe2(told, O_CLOEXEC) < 0)
		return 0;
	pid_t pid = fork();
	if (pid == 0)
		hold(told[1]);
	th_fd_close(&told[1]);
	bool holds = pid > 0 && read(told[0], &byte, 1) == 1;
	th_fd_close(&told[0]);
	if (pid > 0 && !holds)
		waitpid(pid, NULL, 0);
	return holds ? pid : 0;
}

static void
thbench_hosts_drop(struct place *place)
{
	if (place->netns > 0) {
		kill(place->netns, SIGKILL);
		waitpid(place->netns, NULL, 0);
	}
	*place = (struct place){0};
}

/* Words separated by single spaces, in this namespace. */
static int run_in(pid_t netns, struct th_err *err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int
run_in(pid_t netns, struct th_err *err, const char *format, ...)
{
	char line[LINE_BYTES], shown[LINE_BYTES], *words[WORDS_MAX + 1] = {NULL}, *at = line;
	va_list arguments;
	int status = 0;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	memcpy(shown, line, sizeof(shown));
	for (uint32_t i = 0; i < WORDS_MAX && at; i++)
		words[i] = strsep(&at, " ");
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (daemons_enter(netns) == 0)
			execvp(words[0], words);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return th_fail(err, -errno, "%s: %s", shown, strerror(errno));
	if (status != 0)
		return th_fail(err, -EIO, "'%s' failed in a network namespace", shown);
	return 0;
}

static int
add_switch(struct hosts *hosts, struct th_err *err)
{
	pid_t netns = hosts->at_switch.netns;

	int rc = run_in(netns, err, "ip link add br0 type bridge");
	if (rc == 0)
		rc = run_in(netns, err, "ip addr add %s/24 dev br0", SWITCH_ADDRESS);
	if (rc == 0)
		rc = run_in(netns, err, "ip link set lo up");
	return rc < 0 ? rc : run_in(netns, err, "ip link set br0 up");
}

static int
limit(pid_t netns, const char *device, uint64_t link, struct th_err *err)
{
	return run_in(netns, err,
		"tc qdisc replace dev %s root tbf rate %" PRIu64 "bit burst 256k latency 50ms",
		device, 8 * link);
}

static int
add_host(struct hosts *hosts, uint32_t host, uint64_t link, struct th_err *err)
{
	pid_t at_switch = hosts->at_switch.netns, netns = hosts->places[host].netns;
	uint32_t port = host + 1;
	char name[16];

	int rc = run_in(at_switch, err, "ip link add p%u type veth peer name eth0 netns %d", port,
		(int)netns);
	if (rc == 0)
		rc = run_in(at_switch, err, "ip link set p%u master br0 up", port);
	if (rc == 0)
		rc = run_in(netns, err, "ip link set lo up");
	if (rc == 0)
		rc = run_in(netns, err, "ip addr add %s/24 dev eth0", hosts->places[host].host);
	if (rc == 0)
		rc = run_in(netns, err, "ip link set eth0 up");
	snprintf(name, sizeof(name), "p%u", port);
	if (rc == 0)
		rc = limit(at_switch, name, link, err);
	return rc < 0 ? rc : limit(netns, "eth0", link, err);
}

static int
add_hosts(struct hosts *hosts, uint32_t count, uint64_t link, struct th_err *err)
{
	hosts->at_switch = (struct place){.host = SWITCH_ADDRESS, .netns = new_namespace()};
	if (hosts->at_switch.netns == 0)
		return th_fail(err, -EPERM, "this user gets no network namespaces here");
	int rc = add_switch(hosts, err);
	for (; hosts->count < count && rc == 0; hosts->count++) {
		uint32_t i = hosts->count;
		snprintf(hosts->names[i], sizeof(hosts->names[i]), "10.78.0.%u", i + 1);
		hosts->places[i] =
			(struct place){.host = hosts->names[i], .netns = new_namespace()};
		rc = hosts->places[i].netns > 0
			     ? add_host(hosts, i, link, err)
			     : th_fail(err, -EPERM, "no further network namespace");
	}
	return rc;
}

int
hosts_start(
	struct bench *bench, struct hosts *hosts, uint32_t count, uint64_t link, struct th_err *err)
{
	struct th_err own = {0};

	memset(hosts, 0, sizeof(*hosts));
	if (geteuid() != 0)
		th_fail(&own, -EPERM, "network namespaces need root");
	else if (!program_there("ip") || !program_there("tc"))
		th_fail(&own, -ENOENT, "network namespaces need ip and tc (apt install iproute2)");
	else
		(void)add_hosts(hosts, count, link, &own);
	if (own.code < 0) {
		/* A kernel without bridges or limits, a container: measured without them then. */
		hosts_stop(hosts);
		snprintf(hosts->why, sizeof(hosts->why), "%s", own.text);
	}
	int rc = bench_go_on(bench, err);
	if (rc < 0)
		hosts_stop(hosts);
	return rc;
}

void
hosts_stop(struct hosts *hosts)
{
	for (uint32_t i = 0; i < HOSTS_MAX; i++)
		thbench_hosts_drop(&hosts->places[i]);
	thbench_hosts_drop(&hosts->at_switch);
	hosts->count = 0;
}

const struct place *
hosts_place(const struct hosts *hosts, uint32_t host)
{
	return hosts->count == 0 ? &place_here : &hosts->places[host];
}

uint64_t
hosts_sent_bytes(const struct hosts *hosts, uint32_t host)
{
	char path[64], line[512];
	uint64_t sent = 0;

	if (hosts->count == 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/net/dev", (int)hosts->places[host].netns);
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		/* Eight counters of what was received stand before it. */
		if (sscanf(line, " eth0: %*u %*u %*u %*u %*u %*u %*u %*u %" SCNu64, &sent) == 1)
			break;
	}
	if (file)
		fclose(file);
	return sent;
}
