/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_iperf - see thbench_iperf.h. A server for one client, and that client, each time.
 */
#include "tools/bench/thbench_iperf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "tools/bench/thbench_child.h"

#define LEAST_BYTES (UINT64_C(256) << 20) /* what is over too soon has no rate */
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

static double
iperf_rate_of(const char *text)
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
	const char *const server_argv[] = {
		"iperf3", "-s", "-1", "-p", port_text, "-B", "127.0.0.1", "--forceflush", NULL};
	const char *const client_argv[] = {"iperf3", "-c", "127.0.0.1", "-p", port_text, "-C",
		"cubic", "-l", "1M", "-P", count_text, "-n", bytes_text, "-J", NULL};
	struct child server = {.in = -1, .out = -1}, client = server;
	int port = free_port();

	*ret_rate = 0.0;
	if (port < 0)
		return 0;
	snprintf(port_text, sizeof(port_text), "%d", port);
	snprintf(bytes_text, sizeof(bytes_text), "%" PRIu64,
		th_max_u64(bytes, LEAST_BYTES)); /* of all together */
	snprintf(count_text, sizeof(count_text), "%u", connections);
	char *text = child_start(&server, server_argv, -1) == 0
			     ? child_text(bench, &server, "listening", LIMIT_NS)
			     : NULL;
	bool serves = text && strstr(text, "listening");
	free(text);
	text = serves && child_start(&client, client_argv, -1) == 0
		       ? child_text(bench, &client, NULL, LIMIT_NS)
		       : NULL;
	double rate = iperf_rate_of(text);
	free(text);
	child_stop(&client, 0);
	child_stop(&server, 0);
	*ret_rate = rate;
	return bench_go_on(bench, err);
}
