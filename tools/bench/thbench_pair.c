/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_pair - verb pair: a shard from one agent to another over TCP, unverified and verified,
 * against raw two-process copies of the same memory in the same rounds.
 */
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
#include "ipc/base/units.h"
#include "tools/bench/thbench_child.h"
#include "tools/bench/thbench_duo.h"

#define PAIR_BYTES (UINT64_C(4) << 30)
#define CURVE_FIRST (UINT64_C(8) << 20)
#define CURVE_LAST (UINT64_C(8) << 30)
#define SHAPE_BYTES (UINT64_C(5) << 30)
#define SHAPE_TENSORS 5u
#define TINY_TENSORS 50000u
#define TINY_BYTES 1024u
#define ROUNDS 7u
#define MIB (1024.0 * 1024.0)
#define IPERF_LEAST_BYTES (UINT64_C(256) << 20) /* what is over too soon has no rate */
#define IPERF_LIMIT_NS INT64_C(120000000000)

enum slot { /* of handles */
	SLOT_PLAIN,
	SLOT_FULL,
};

struct agents {
	const struct bench_daemon *plain[2], *full[2];
};

struct pair {
	struct bench *bench;
	struct duo duo;
	struct agents agents;
};

/* ---- iperf3, where it is installed ----------------------------------------------------------- */

/*
 * On loopback: a server for one client, and that client, each time. Its buffers stay in the cache:
 * it says what the sockets can do, not what moving memory costs.
 */
static bool
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

/*
 * GB/s of so many bytes by so many connections, blocks of 1 MiB, cubic; 0 when it did not say.
 * Fails only when a signal came to us.
 */
static int
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
		th_max_u64(bytes, IPERF_LEAST_BYTES)); /* of all together */
	snprintf(count_text, sizeof(count_text), "%u", connections);
	char *text = child_start(&server, server_argv, -1) == 0
			     ? child_text(bench, &server, "listening", IPERF_LIMIT_NS)
			     : NULL;
	bool serves = text && strstr(text, "listening");
	free(text);
	text = serves && child_start(&client, client_argv, -1) == 0
		       ? child_text(bench, &client, NULL, IPERF_LIMIT_NS)
		       : NULL;
	double rate = iperf_rate_of(text);
	free(text);
	child_stop(&client, 0);
	child_stop(&server, 0);
	*ret_rate = rate;
	return bench_go_on(bench, err);
}

/* ---- the pair -------------------------------------------------------------------------------- */

static int
start_agents(struct pair *pair, struct th_err *err)
{
	struct bench *bench = pair->bench;
	struct field *field = &pair->duo.field;
	char connections[48];
	const char *plain[] = {"--verify", "off", NULL, NULL, NULL};
	const char *full[] = {NULL, NULL, NULL};

	if (bench->options.connections > 0) {
		snprintf(connections, sizeof(connections), "leg.connections=%u",
			bench->options.connections);
		plain[2] = full[0] = "-o";
		plain[3] = full[1] = connections;
	}
	int rc = field_agent(
		bench, field, "plain-a", plain, &place_here, &pair->agents.plain[0], err);
	if (rc == 0)
		rc = field_agent(
			bench, field, "plain-b", plain, &place_here, &pair->agents.plain[1], err);
	if (rc == 0)
		rc = field_agent(
			bench, field, "full-a", full, &place_here, &pair->agents.full[0], err);
	if (rc == 0)
		rc = field_agent(
			bench, field, "full-b", full, &place_here, &pair->agents.full[1], err);
	return rc;
}

static int
publish(struct pair *pair, const char *model, const struct shape *shape, struct th_err *err)
{
	const struct agents *agents = &pair->agents;
	char name[32];

	snprintf(name, sizeof(name), "plain-%s", model);
	int rc = duo_publish(pair->bench, &pair->duo, SLOT_PLAIN, name, agents->plain[0],
		agents->plain[1], shape, err);
	snprintf(name, sizeof(name), "full-%s", model);
	if (rc == 0)
		rc = duo_publish(pair->bench, &pair->duo, SLOT_FULL, name, agents->full[0],
			agents->full[1], shape, err);
	return rc;
}

static int
thbench_pair_forget(struct pair *pair, struct th_err *err)
{
	int rc = duo_forget(pair->bench, &pair->duo, SLOT_PLAIN, err);

	return rc < 0 ? rc : duo_forget(pair->bench, &pair->duo, SLOT_FULL, err);
}

/* ---- one size ------------------------------------------------------------------------------- */

#define WAYS 4u
#define VERIFIED 3u /* the series of a verified leg */

/* judged: the goals are those of large shards. */
static void
thbench_pair_describe(struct pair *pair, struct section *section, const struct shape *shape,
	struct way *ways, bool judged)
{
	enum goal goal = judged ? GOAL_AT_LEAST : GOAL_NONE;
	const struct bench_options *options = &pair->bench->options;
	uint32_t send, file, plain, full;

	section_fact(section, "bytes", "bytes of a shard", (double)shape->bytes, "B");
	section_fact(
		section, "tensor_bytes", "bytes of a tensor", (double)shape->tensor_bytes, "B");
	section_fact(section, "connections", "connections of a leg, and of the raw copy",
		pair->duo.connections, "");
	section_fact(section, "block", "block of the raw copy", (double)options->block, "B");
	section_fact_text(section, "congestion_control", "congestion control", "cubic");
	send = section_series(section, "raw_send", "raw copy, send()", "GB/s");
	file = section_series(
		section, "raw_sendfile", "raw copy, sendfile() from the memfd", "GB/s");
	plain = section_series(section, "tcp_unverified", "leg, unverified", "GB/s");
	full = section_series(section, "tcp_verified", "leg, verified", "GB/s");
	ways[0] = (struct way){.kind = WAY_RAW_SEND, .series = send};
	ways[1] = (struct way){
		.kind = WAY_LEG, .slot = SLOT_PLAIN, .series = plain, .transport = "tcp"};
	ways[2] = (struct way){.kind = WAY_RAW_SENDFILE, .series = file};
	ways[3] = (struct way){
		.kind = WAY_LEG, .slot = SLOT_FULL, .series = full, .transport = "tcp"};
	section_ratio(section, "unverified_to_raw_send", "unverified to raw send()", plain, send,
		goal, 0.97);
	section_ratio(
		section, "verified_to_raw_send", "verified to raw send()", full, send, goal, 1.0);
	section_ratio(section, "verified_to_raw_sendfile", "verified to raw sendfile()", full, file,
		goal, 0.85);
}

static int
warm_all(struct pair *pair, const struct way *ways, uint64_t bytes, struct th_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < WAYS && rc == 0; i++)
		rc = duo_warm(pair->bench, &pair->duo, &ways[i], bytes, err);
	return rc;
}

/* ---- the main figure ------------------------------------------------------------------------ */

static int
run_iperf(struct pair *pair, uint64_t bytes, struct samples *samples, struct th_err *err)
{
	static const uint32_t counts[] = {1, 2, 4};
	double best = 0.0;

	for (uint32_t i = 0; i < TH_ARRAY_LEN(counts); i++) {
		double rate;
		int rc = iperf_run(pair->bench, bytes, counts[i], &rate, err);
		if (rc < 0)
			return rc;
		best = rate > best ? rate : best;
	}
	if (best > 0.0)
		samples_add(samples, best);
	bench_progress(pair->bench, "iperf3, its best: %.2f GB/s", best);
	return 0;
}

static void
add_iperf(struct section *section, const struct samples *samples)
{
	if (samples->count == 0) {
		section_note(
			section, "iperf3 is not installed, or gives no rate (apt install iperf3)");
		return;
	}
	uint32_t series = section_series(
		section, "iperf3", "iperf3 -C cubic -l 1M -P 1,2,4, its best", "GB/s");
	for (uint32_t i = 0; i < samples->count; i++)
		section_add(section, series, samples->values[i]);
	section_ratio(section, "verified_to_iperf3", "verified to iperf3", VERIFIED, series,
		GOAL_NONE, 0.0);
}

static void
pair_add_memory(struct pair *pair, struct section *section, uint32_t used, uint32_t allowed)
{
	const struct bench_daemon *all[] = {pair->agents.plain[0], pair->agents.plain[1],
		pair->agents.full[0], pair->agents.full[1]};
	uint64_t most = 0;

	for (uint32_t i = 0; i < TH_ARRAY_LEN(all); i++)
		most = th_max_u64(most, field_memory(all[i]));
	section_add(section, used, (double)most / MIB);
	section_add(section, allowed, 64.0 + (double)pair->duo.bytes / 1000.0 / MIB);
}

static int
measure_main(struct pair *pair, const struct shape *shape, uint32_t rounds, struct th_err *err)
{
	struct bench *bench = pair->bench;
	bool has_iperf = iperf_there();
	struct samples iperf = {0};
	struct way ways[WAYS];
	char size[TH_UNITS_BYTES];

	int rc = publish(pair, "main", shape, err);
	if (rc == 0)
		rc = duo_connect(bench, &pair->duo, SLOT_FULL, pair->agents.full[0], err);
	if (rc < 0)
		return rc;
	struct section *section = report_section(&bench->report, "pair",
		"%s from one agent to another over TCP, both on this machine",
		th_print_size_short(shape->bytes, size));
	thbench_pair_describe(pair, section, shape, ways, true);
	uint32_t used = section_series(
		section, "agent_memory", "memory of an agent's own, the largest", "MiB");
	uint32_t allowed = section_series(
		section, "memory_bound", "64 MiB + 0.1 % of what is registered", "MiB");
	section_ratio(section, "memory_to_bound", "memory to the bound", used, allowed,
		GOAL_AT_MOST, 1.0);
	rc = warm_all(pair, ways, shape->bytes, err);
	for (uint32_t round = 0; round < rounds && rc == 0; round++) {
		rc = duo_round(bench, &pair->duo, section, ways, WAYS, shape->bytes, round, err);
		if (rc == 0 && has_iperf)
			rc = run_iperf(pair, shape->bytes, &iperf, err);
		pair_add_memory(pair, section, used, allowed);
	}
	if (rc == 0)
		add_iperf(section, &iperf);
	samples_free(&iperf);
	return rc < 0 ? rc : thbench_pair_forget(pair, err);
}

/* ---- by size and by shape ------------------------------------------------------------------- */

static int
measure_shape(struct pair *pair, const char *title, const char *model, const struct shape *shape,
	uint32_t rounds, struct th_err *err)
{
	struct bench *bench = pair->bench;
	struct way ways[WAYS];

	int rc = publish(pair, model, shape, err);
	if (rc < 0)
		return rc;
	struct section *section = report_section(&bench->report, "pair", "%s", title);
	thbench_pair_describe(pair, section, shape, ways, false);
	bench_progress(bench, "%s", title);
	rc = warm_all(pair, ways, shape->bytes, err);
	if (rc == 0)
		rc = duo_measure(bench, &pair->duo, section, ways, WAYS, shape->bytes, rounds, err);
	return rc < 0 ? rc : thbench_pair_forget(pair, err);
}

static int
measure_curve(struct pair *pair, uint32_t rounds, struct th_err *err)
{
	char size[TH_UNITS_BYTES], title[96], model[24];
	int rc = 0;

	for (uint64_t bytes = CURVE_FIRST; bytes <= pair->duo.bytes && rc == 0; bytes *= 2) {
		const struct shape shape = {
			.bytes = bytes, .tensor_bytes = pair->bench->options.tensor_bytes};
		snprintf(title, sizeof(title), "curve, %s in tensors of 50 MB",
			th_print_size(bytes, size));
		snprintf(model, sizeof(model), "curve-%" PRIu64, bytes >> 20);
		rc = measure_shape(pair, title, model, &shape, rounds, err);
	}
	return rc;
}

static int
measure_shapes(struct pair *pair, uint32_t rounds, struct th_err *err)
{
	uint64_t bytes = pair->duo.bytes;
	uint32_t tiny = (uint32_t)th_min_u64(TINY_TENSORS, bytes / 2 / TINY_BYTES);
	const struct {
		const char *title, *model;
		struct shape shape;
	} shapes[] = {
		{"shape, 5 large tensors (of 1 GiB in 5 GiB)", "large",
			{bytes, (bytes + SHAPE_TENSORS - 1) / SHAPE_TENSORS, 0}},
		{"shape, the same bytes in tensors of 50 MB", "usual",
			{bytes, pair->bench->options.tensor_bytes, 0}},
		{"shape, 50,000 tensors of 1 KiB", "tiny",
			{(uint64_t)tiny * TINY_BYTES, bytes, tiny}},
		{"shape, the same bytes in one tensor", "one",
			{(uint64_t)tiny * TINY_BYTES, bytes, 0}},
		{"shape, 50,000 tensors of 1 KiB and 5 large ones in one shard", "mixed",
			{bytes, (bytes + SHAPE_TENSORS - 1) / SHAPE_TENSORS, tiny}},
	};
	int rc = 0;

	for (uint32_t i = 0; i < TH_ARRAY_LEN(shapes) && rc == 0; i++)
		rc = measure_shape(
			pair, shapes[i].title, shapes[i].model, &shapes[i].shape, rounds, err);
	return rc;
}

/* How large the two memories are: as what is asked for needs, or as much as there is. */
static uint64_t
choose_bytes(const struct bench *bench, uint64_t main_bytes)
{
	const struct bench_options *options = &bench->options;
	uint64_t bytes = main_bytes, available = bench_memory_available();

	if (options->bytes > 0)
		return bytes;
	if (options->shapes)
		bytes = th_max_u64(bytes, SHAPE_BYTES);
	if (options->curve)
		bytes = th_max_u64(bytes, CURVE_LAST);
	while (bytes > main_bytes && available > 0 && 2 * bytes + (UINT64_C(1) << 30) > available)
		bytes /= 2;
	return bytes;
}

static int
thbench_pair_run(struct bench *bench, struct th_err *err)
{
	const struct bench_options *options = &bench->options;
	struct pair pair = {.bench = bench};
	const struct shape shape = {.bytes = options->bytes > 0 ? options->bytes : PAIR_BYTES,
		.tensor_bytes = options->tensor_bytes};
	uint32_t rounds = options->rounds > 0 ? options->rounds : ROUNDS;

	int rc = duo_start(bench, &pair.duo, choose_bytes(bench, shape.bytes), err);
	if (rc == 0)
		rc = start_agents(&pair, err);
	if (rc == 0)
		rc = measure_main(&pair, &shape, rounds, err);
	if (rc == 0 && options->curve)
		rc = measure_curve(&pair, rounds, err);
	if (rc == 0 && options->shapes)
		rc = measure_shapes(&pair, rounds, err);
	duo_stop(&pair.duo);
	return rc;
}

const struct bench_verb bench_pair = {
	.name = "pair",
	.summary = "a shard from one agent to another over TCP, against raw copies",
	.run = thbench_pair_run,
};
