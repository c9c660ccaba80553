/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_peers - verb peers: the same bytes by what people use instead, where it is installed.
 *
 * Each is a script (peers/peer_*.py) with a source and a reader process of its own; what they say
 * to us is in peer.py. One after the other, each in rounds with our verified leg and the raw copy:
 * most of them keep threads busy while they wait.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/fd.h"
#include "ipc/base/units.h"
#include "tools/bench/thbench_child.h"
#include "tools/bench/thbench_duo.h"

#define PEERS_BYTES (UINT64_C(1) << 30)
#define ROUNDS 7u
#define READY_NS INT64_C(180000000000) /* importing torch alone takes seconds */
#define ROUND_NS INT64_C(180000000000)
#define END_NS INT64_C(20000000000)
#define HURRY_NS INT64_C(3000000000)

enum slot { /* of handles */
	SLOT_TCP,
	SLOT_LOCAL,
};

struct peer {
	const char *key, *title, *script;
	const char *setting; /* of its environment; NULL: none */
	const char *packages;
	bool one_host; /* compared with a leg within an agent */
	double goal;   /* we are so many times as fast */
};

static const struct peer peers[] = {
	{"mooncake", "Mooncake transfer engine, TCP", "peer_mooncake.py", NULL,
		"mooncake-transfer-engine-non-cuda numpy (and apt install libibverbs1)", false,
		3.0},
	{"nixl_tcp", "NIXL and UCX, UCX_TLS=tcp", "peer_nixl.py", "UCX_TLS=tcp",
		"nixl nixl-cu13 torch numpy", false, 5.0},
	{"ray", "Ray object store, get and copy", "peer_ray.py", NULL, "ray numpy", false, 5.0},
	{"gloo", "torch.distributed, gloo broadcast", "peer_gloo.py", NULL, "torch numpy", false,
		1.6},
	{"nixl_host", "NIXL and UCX as they come on one host", "peer_nixl.py", NULL,
		"nixl nixl-cu13 torch numpy", true, 1.2},
};

/* Whether --peers names it, or is not given. */
static bool
peers_wanted(const struct bench *bench, const char *key)
{
	const char *at = bench->options.peers;
	size_t length = strlen(key);

	if (!at)
		return true;
	for (; *at; at += strcspn(at, ","), at += *at == ',') {
		if (strcspn(at, ",") == length && strncmp(at, key, length) == 0)
			return true;
	}
	return false;
}

/* In the build folder beside this program, installed in share. */
static int
find_script(const struct bench *bench, const char *name, char *ret_path, size_t bytes,
	struct th_err *err)
{
	const char *const places[] = {"peers", "../share/tensorhub/peers"};

	for (uint32_t i = 0; i < TH_ARRAY_LEN(places); i++) {
		snprintf(ret_path, bytes, "%s/%s/%s", bench->program_dir, places[i], name);
		if (access(ret_path, R_OK) == 0)
			return 0;
	}
	return th_fail(err, -ENOENT,
		"there is no peers/%s beside %s, nor in ../share/tensorhub; install it all", name,
		bench->program_dir);
}

/* ---- one script ------------------------------------------------------------------------------ */

static int
thbench_peers_launch(struct bench *bench, const struct peer *peer, uint64_t bytes, int log,
	struct child *child, struct th_err *err)
{
	char script[512], bytes_text[32], piece_text[32], setting[64];
	const char *python = bench->options.python ? bench->options.python : "python3";
	const char *argv[16] = {python, script, "--bytes", bytes_text, "--piece", piece_text, NULL};

	int rc = find_script(bench, peer->script, script, sizeof(script), err);
	if (rc < 0)
		return rc;
	snprintf(bytes_text, sizeof(bytes_text), "%" PRIu64, bytes);
	snprintf(piece_text, sizeof(piece_text), "%" PRIu64, bench->options.tensor_bytes);
	if (peer->setting) {
		snprintf(setting, sizeof(setting), "--set=%s", peer->setting);
		argv[6] = setting;
	}
	rc = child_start(child, argv, log);
	return rc < 0 ? th_fail(err, rc, "%s: %s", python, th_strerror(rc)) : 0;
}

/* A text of the next line, which is an object; NULL: no such line. The caller frees it. */
static json_t *
peers_hear(struct bench *bench, struct child *child, int64_t limit_ns)
{
	char *line = child_line(bench, child, limit_ns);
	json_t *root = line ? json_loads(line, 0, NULL) : NULL;

	free(line);
	return root;
}

/* GB/s of one transfer; 0 when it has failed. While it is not its turn it stands still. */
static double
peer_round(struct bench *bench, struct child *child, uint64_t bytes)
{
	child_go_on(child);
	json_t *root = child_say(child, "go\n") == 0 ? peers_hear(bench, child, ROUND_NS) : NULL;
	child_pause(child);
	double seconds = json_number_value(json_object_get(root, "seconds"));

	json_decref(root);
	return seconds > 0.0 ? (double)bytes / seconds / GB : 0.0;
}

/* The last line that it said on stderr. The caller frees it. */
static char *
last_words(int log)
{
	char text[4096];
	ssize_t got = 0;
	off_t end = lseek(log, 0, SEEK_END);

	if (end > 0)
		got = pread(log, text, sizeof(text) - 1,
			end > (off_t)sizeof(text) - 1 ? end - (off_t)sizeof(text) + 1 : 0);
	while (got > 0 && (text[got - 1] == '\n' || text[got - 1] == '\r'))
		got--;
	text[got > 0 ? got : 0] = '\0';
	const char *last = strrchr(text, '\n');
	return th_strdup(last ? last + 1 : text);
}

/* ---- against us ------------------------------------------------------------------------------ */

struct contest {
	struct bench *bench;
	struct duo duo;
	uint64_t bytes;
	uint32_t rounds;
};

static int
play(struct contest *contest, const struct peer *peer, struct child *child, struct section *section,
	struct th_err *err)
{
	struct bench *bench = contest->bench;
	char key[48], title[128];
	struct way ways[2];

	uint32_t ours = section_series(section, peer->one_host ? "local_verified" : "tcp_verified",
		"leg, verified", "GB/s");
	uint32_t raw = section_series(section, peer->one_host ? "copy_stream" : "raw_send",
		peer->one_host ? "non-temporal copy" : "raw copy, send()", "GB/s");
	uint32_t theirs = section_series(section, peer->key, peer->title, "GB/s");
	ways[0] = (struct way){.kind = WAY_LEG,
		.slot = peer->one_host ? SLOT_LOCAL : SLOT_TCP,
		.series = ours,
		.transport = peer->one_host ? "local" : "tcp"};
	ways[1] = (struct way){.kind = peer->one_host ? WAY_COPY : WAY_RAW_SEND,
		.slot = COPY_STREAM,
		.series = raw};
	snprintf(key, sizeof(key), "verified_to_%s", peer->key);
	snprintf(title, sizeof(title), "verified leg to %s", peer->title);
	section_ratio(section, key, title, ours, theirs, GOAL_AT_LEAST, peer->goal);
	for (uint32_t round = 0; round < contest->rounds; round++) {
		/* Theirs before ours and after it in turn. */
		double rate = round % 2 == 0 ? peer_round(bench, child, contest->bytes) : 1.0;
		int rc = bench_go_on(bench, err);
		if (rc == 0 && rate > 0.0)
			rc = duo_round(bench, &contest->duo, section, ways, TH_ARRAY_LEN(ways),
				contest->bytes, round, err);
		if (rc == 0 && round % 2 == 1)
			rate = peer_round(bench, child, contest->bytes);
		if (rc == 0)
			rc = bench_go_on(bench, err);
		if (rc < 0)
			return rc;
		if (rate <= 0.0)
			return th_fail(
				err, -EPROTO, "%s broke off in round %u", peer->title, round + 1);
		section_add(section, theirs, rate);
		bench_progress(bench, "round %u: %s, %.2f GB/s", round + 1, peer->title, rate);
	}
	return 0;
}

static int
contend(struct contest *contest, const struct peer *peer, struct th_err *err)
{
	struct bench *bench = contest->bench;
	struct child child = {.in = -1, .out = -1};
	char size[TH_UNITS_BYTES], log_path[128];

	struct section *section = report_section(&bench->report, "peers", "%s of %s", peer->title,
		th_print_size_short(contest->bytes, size));
	section_fact(section, "bytes", "bytes", (double)contest->bytes, "B");
	section_fact_text(section, "peer", "against", peer->key);
	snprintf(log_path, sizeof(log_path), "%s/%s.log", contest->duo.field.dir, peer->key);
	int log = open(log_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log < 0)
		return th_fail(err, -errno, "%s: %s", log_path, strerror(errno));
	bench_progress(bench, "%s starts", peer->title);
	int rc = thbench_peers_launch(bench, peer, contest->bytes, log, &child, err);
	json_t *ready = rc == 0 ? peers_hear(bench, &child, READY_NS) : NULL;
	const char *version = json_string_value(json_object_get(ready, "version"));
	if (rc == 0)
		rc = bench_go_on(bench, err);
	if (rc == 0 && !version) {
		char *words = last_words(log);
		section_note(section, "not measured: %s; pip install %s",
			*words ? words : "it ended", peer->packages);
		bench_progress(bench, "%s is not measured: %s", peer->title, words);
		free(words);
	} else if (rc == 0) {
		section_fact_text(section, "version", "its version", version);
		child_pause(&child);
		rc = play(contest, peer, &child, section, err);
	}
	json_decref(ready);
	/* Ray takes its time to end in order; who interrupts us does not want to wait for it. */
	child_stop(&child, bench_go_on(bench, NULL) < 0 ? HURRY_NS : END_NS);
	th_fd_close(&log);
	return rc;
}

static int
thbench_peers_prepare(struct contest *contest, struct th_err *err)
{
	struct bench *bench = contest->bench;
	struct duo *duo = &contest->duo;
	const struct shape shape = {
		.bytes = contest->bytes, .tensor_bytes = bench->options.tensor_bytes};
	const struct way warm[] = {
		{.kind = WAY_LEG, .slot = SLOT_TCP, .transport = "tcp"},
		{.kind = WAY_LEG, .slot = SLOT_LOCAL, .transport = "local"},
		{.kind = WAY_RAW_SEND},
	};
	const struct bench_daemon *a, *b;

	int rc = field_agent(bench, &duo->field, "a", NULL, &place_here, &a, err);
	if (rc == 0)
		rc = field_agent(bench, &duo->field, "b", NULL, &place_here, &b, err);
	if (rc == 0)
		rc = duo_publish(bench, duo, SLOT_TCP, "tcp", a, b, &shape, err);
	if (rc == 0)
		rc = duo_publish(bench, duo, SLOT_LOCAL, "local", a, a, &shape, err);
	if (rc == 0)
		rc = duo_connect(bench, duo, SLOT_TCP, a, err);
	const struct command map = {.command = WORKER_MAP,
		.number = (uint64_t)duo->source.pid,
		.slot = (uint32_t)duo->source_memfd,
		.bytes = shape.bytes};
	if (rc == 0)
		rc = worker_call(bench, &duo->reader, &map, NULL, err);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(warm) && rc == 0; i++)
		rc = duo_warm(bench, duo, &warm[i], shape.bytes, err);
	return rc;
}

static int
thbench_peers_run(struct bench *bench, struct th_err *err)
{
	const struct bench_options *options = &bench->options;
	struct contest contest = {.bench = bench,
		.bytes = options->bytes > 0 ? options->bytes : PEERS_BYTES,
		.rounds = options->rounds > 0 ? options->rounds : ROUNDS};

	int rc = duo_start(bench, &contest.duo, contest.bytes, err);
	if (rc == 0)
		rc = thbench_peers_prepare(&contest, err);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(peers) && rc == 0; i++) {
		if (peers_wanted(bench, peers[i].key))
			rc = contend(&contest, &peers[i], err);
	}
	duo_stop(&contest.duo);
	return rc;
}

const struct bench_verb bench_peers = {
	.name = "peers",
	.summary = "the same bytes by what people use instead, where it is installed",
	.run = thbench_peers_run,
};
