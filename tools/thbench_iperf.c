/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_iperf - see thbench_iperf.h. A server for one client, and that client, each time.
 */
#include "tools/thbench_iperf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define LEAST_BYTES (UINT64_C(256) << 20) /* what is over too soon has no rate */
#define OUTPUT_MAX (4u << 20)
#define LIMIT_NS INT64_C(120000000000)

bool
iperf_there(void)
{
	const char *path = getenv("PATH");
	char folder[512];

	while (path && *path) {
		int length = (int)strcspn(path, ":");
		snprintf(folder, sizeof(folder), "%.*s/iperf3", length, path);
		if (access(folder, X_OK) == 0)
			return true;
		path += length + (path[length] == ':');
	}
	return false;
}

/* A port that was free a moment ago. */
static int
free_port(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	int port = -EADDRINUSE, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
		getsockname(fd, (struct sockaddr *)&address, &bytes) == 0)
		port = ntohs(address.sin_port);
	th_fd_close(&fd);
	return port;
}

static pid_t
launch(char *const *argv, int *ret_out)
{
	int out[2];

	if (pipe2(out, O_CLOEXEC) < 0)
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);
		if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out[1], STDOUT_FILENO) < 0 ||
			dup2(null, STDERR_FILENO) < 0)
			_exit(126);
		execvp(argv[0], argv);
		_exit(127);
	}
	th_fd_close(&out[1]);
	if (pid < 0)
		th_fd_close(&out[0]);
	*ret_out = out[0];
	return pid;
}

static void
finish(pid_t pid)
{
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
}

/* Until its end, or until `until` stands in it. The caller frees it; NULL: not in time. */
static char *
read_output(struct bench *bench, int out, const char *until)
{
	char *text = th_calloc(1, OUTPUT_MAX);
	int64_t end_ns = th_now_ns() + LIMIT_NS;

	for (size_t used = 0; used < OUTPUT_MAX - 1;) {
		struct pollfd polls[2] = {
			{.fd = out, .events = POLLIN}, {.fd = bench->stop.fd, .events = POLLIN}};
		(void)poll(polls, 2, 1000);
		if (th_now_ns() > end_ns || bench_go_on(bench, NULL) < 0)
			break;
		if (polls[0].revents == 0)
			continue;
		ssize_t got = read(out, text + used, OUTPUT_MAX - 1 - used);
		if (got <= 0)
			return text;
		used += (size_t)got;
		if (until && strstr(text, until))
			return text;
	}
	free(text);
	return NULL;
}

static double
rate_of(const char *text)
{
	json_t *root = text ? json_loads(text, 0, NULL) : NULL;
	const json_t *end = json_object_get(root, "end");
	const json_t *received = json_object_get(end, "sum_received");
	const json_t *sent = json_object_get(end, "sum_sent");
	double bits = json_number_value(json_object_get(received, "bits_per_second"));

	/* A receiver that was told of the end before it had counted says nothing. */
	if (bits <= 0.0)
		bits = json_number_value(json_object_get(sent, "bits_per_second"));

	json_decref(root);
	return bits / 8.0 / GB;
}

int
iperf_run(struct bench *bench, uint64_t bytes, uint32_t connections, double *ret_rate,
	struct th_err *err)
{
	char port_text[16], bytes_text[32], count_text[16];
	char name[] = "iperf3", p[] = "-p", s[] = "-s", one[] = "-1", flush[] = "--forceflush";
	char c[] = "-c", host[] = "127.0.0.1", cc[] = "-C", cubic[] = "cubic", l[] = "-l";
	char block[] = "1M", big_p[] = "-P", n[] = "-n", json[] = "-J", bind_to[] = "-B";
	char *const server_argv[] = {name, s, one, p, port_text, bind_to, host, flush, NULL};
	char *const client_argv[] = {name, c, host, p, port_text, cc, cubic, l, block, big_p,
		count_text, n, bytes_text, json, NULL};
	int out = -1, port = free_port();

	*ret_rate = 0.0;
	if (port < 0)
		return 0;
	snprintf(port_text, sizeof(port_text), "%d", port);
	snprintf(bytes_text, sizeof(bytes_text), "%" PRIu64,
		th_max_u64(bytes, LEAST_BYTES)); /* of all together */
	snprintf(count_text, sizeof(count_text), "%u", connections);
	pid_t server = launch(server_argv, &out);
	char *text = server > 0 ? read_output(bench, out, "listening") : NULL;
	bool serves = text && strstr(text, "listening");
	free(text);
	text = NULL;
	int client_out = -1;
	pid_t client = serves ? launch(client_argv, &client_out) : -1;
	if (client > 0)
		text = read_output(bench, client_out, NULL);
	double rate = rate_of(text);
	free(text);
	th_fd_close(&client_out);
	th_fd_close(&out);
	finish(client);
	finish(server);
	*ret_rate = rate;
	return bench_go_on(bench, err);
}
