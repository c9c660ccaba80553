/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_control - verb control: how long the calls take that move little or nothing, and an
 * unpublish while readers are under way.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ipc/base/clock.h"
#include "ipc/base/units.h"
#include "tools/bench/thbench_daemons.h"
#include "tools/bench/thbench_worker.h"

#define SMALL_BYTES (UINT64_C(1) << 20)
#define LARGE_BYTES (UINT64_C(512) << 20)
#define ROUNDS 300u
#define DRAIN_ROUNDS 7u
#define READERS 4u
#define MS 1e6
#define GOAL_MS 1.0
#define BEGIN_NS INT64_C(30000000000) /* for a leg to move its first byte */

struct control {
	struct bench *bench;
	struct field field;
	struct worker publisher, readers[READERS];
	uint32_t num_readers;
	uint64_t version;
};

static int
control_call(struct control *control, struct worker *worker, enum worker_command what,
	uint64_t number, struct answer *ret_answer, struct th_err *err)
{
	const struct command command = {.command = what, .number = number};

	return worker_call(control->bench, worker, &command, ret_answer, err);
}

/* A worker with memory, and its one handle at an agent of its own. */
static int
control_add_member(struct control *control, struct worker *worker, const char *name, uint64_t bytes,
	struct th_err *err)
{
	struct bench *bench = control->bench;
	const struct command alloc = {
		.command = WORKER_ALLOC, .bytes = bytes, .number = worker == &control->publisher};
	struct command join = {.command = WORKER_JOIN,
		.bytes = bytes,
		.tensor_bytes = bench->options.tensor_bytes,
		.model = "control"};
	const struct bench_daemon *agent;

	snprintf(join.replica, sizeof(join.replica), "%s", name);
	int rc = worker_start(bench, name, worker, err);
	if (rc == 0)
		rc = worker_call(bench, worker, &alloc, NULL, err);
	if (rc == 0)
		rc = field_agent(bench, &control->field, name, NULL, &place_here, &agent, err);
	if (rc < 0)
		return rc;
	snprintf(join.agent, sizeof(join.agent), "%s", agent->runtime);
	return worker_call(bench, worker, &join, NULL, err);
}

static int
thbench_control_start(
	struct control *control, uint32_t num_readers, uint64_t bytes, struct th_err *err)
{
	char name[32];

	control->num_readers = num_readers;
	int rc = field_start(control->bench, &control->field, &place_here, err);
	if (rc == 0)
		rc = control_add_member(control, &control->publisher, "publisher", bytes, err);
	for (uint32_t i = 0; i < num_readers && rc == 0; i++) {
		snprintf(name, sizeof(name), "reader-%u", i);
		rc = control_add_member(control, &control->readers[i], name, bytes, err);
	}
	return rc;
}

static void
control_stop(struct control *control)
{
	for (uint32_t i = 0; i < READERS; i++)
		worker_stop(&control->readers[i]);
	worker_stop(&control->publisher);
	field_stop(&control->field);
}

/* ---- calls that move little ------------------------------------------------------------------ */

enum figure {
	PUBLISH,
	UPDATE_NEW,
	UPDATE_IDLE,
	UNPUBLISH,
	FIGURES,
};

static const struct {
	const char *key, *title;
	bool goal;
} figures[FIGURES] = {
	{"publish", "publish", true},
	{"update_new", "update to a new version of 1 MiB", false},
	{"update_idle", "update with nothing new", true},
	{"unpublish", "unpublish without readers", true},
};

static double
taken_ms(const struct answer *answer)
{
	return (double)(answer->end_ns - answer->begin_ns) / MS;
}

static int
thbench_control_one_round(struct control *control, struct section *section, struct th_err *err)
{
	struct worker *publisher = &control->publisher, *reader = &control->readers[0];
	struct answer answers[FIGURES];

	int rc = control_call(
		control, publisher, WORKER_PUBLISH, ++control->version, &answers[PUBLISH], err);
	if (rc == 0)
		rc = control_call(control, reader, WORKER_UPDATE, 0, &answers[UPDATE_NEW], err);
	if (rc == 0)
		rc = control_call(control, reader, WORKER_UPDATE, 0, &answers[UPDATE_IDLE], err);
	if (rc == 0)
		rc = control_call(
			control, publisher, WORKER_UNPUBLISH, 0, &answers[UNPUBLISH], err);
	if (rc < 0)
		return rc;
	if (answers[UPDATE_NEW].updated != 1 || answers[UPDATE_IDLE].updated != 0)
		return th_fail(err, TH_E_PROTOCOL, "an update did not find what it had to");
	for (uint32_t i = 0; i < FIGURES; i++)
		section_add(section, i, taken_ms(&answers[i]));
	return 0;
}

static int
measure_calls(struct bench *bench, uint32_t rounds, struct th_err *err)
{
	struct control control = {.bench = bench};
	char key[48], title[96];

	int rc = thbench_control_start(&control, 1, SMALL_BYTES, err);
	if (rc == 0) {
		struct section *section = report_section(&bench->report, "control",
			"calls that move little or nothing, two agents and the server here");
		for (uint32_t i = 0; i < FIGURES; i++)
			section_series(section, figures[i].key, figures[i].title, "ms");
		uint32_t goal = section_series(section, "goal", "what they may take", "ms");
		section_add(section, goal, GOAL_MS);
		for (uint32_t i = 0; i < FIGURES; i++) {
			if (!figures[i].goal)
				continue;
			snprintf(key, sizeof(key), "%s_to_goal", figures[i].key);
			snprintf(title, sizeof(title), "%s, to 1 ms", figures[i].title);
			section_ratio(section, key, title, i, goal, GOAL_AT_MOST, 1.0);
		}
		for (uint32_t round = 0; round < rounds && rc == 0; round++)
			rc = thbench_control_one_round(&control, section, err);
	}
	control_stop(&control);
	return rc;
}

/* ---- unpublish while readers are under way --------------------------------------------------- */

/* Until each leg has moved something: an unpublish before that would leave it without a source. */
static int
wait_begun(struct control *control, struct th_err *err)
{
	const struct timespec look = {.tv_nsec = 100000};
	int64_t end_ns = th_now_ns() + BEGIN_NS;

	for (uint32_t i = 0; i < control->num_readers; i++) {
		while (!worker_has_begun(&control->readers[i])) {
			int rc = bench_go_on(control->bench, err);
			if (rc < 0)
				return rc;
			if (th_now_ns() > end_ns)
				return th_fail(err, TH_E_TIMEOUT, "a reader does not begin");
			nanosleep(&look, NULL);
		}
	}
	return 0;
}

static int
drain_round(struct control *control, struct section *section, uint64_t bytes, struct th_err *err)
{
	const struct command mess = {.command = WORKER_MESS, .bytes = bytes};
	const struct command follow = {.command = WORKER_FOLLOW, .number = control->version + 1};
	struct answer unpublished, pulled;
	double slowest_ms = 0.0;
	uint32_t count = control->num_readers;
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = worker_call(control->bench, &control->readers[i], &mess, NULL, err);
	if (rc == 0)
		rc = control_call(control, &control->publisher, WORKER_PUBLISH, ++control->version,
			NULL, err);
	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = worker_ask(&control->readers[i], &follow, err);
	if (rc == 0)
		rc = wait_begun(control, err);
	if (rc == 0)
		rc = control_call(
			control, &control->publisher, WORKER_UNPUBLISH, 0, &unpublished, err);
	for (uint32_t i = 0; i < count && rc == 0; i++) {
		rc = worker_answer(control->bench, &control->readers[i], &pulled, err);
		if (rc == 0 && taken_ms(&pulled) > slowest_ms)
			slowest_ms = taken_ms(&pulled);
	}
	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = control_call(control, &control->readers[i], WORKER_UNPUBLISH, 0, NULL, err);
	if (rc < 0)
		return rc;
	section_add(section, 0, taken_ms(&unpublished));
	section_add(section, 1, slowest_ms);
	return 0;
}

static int
measure_drain(
	struct bench *bench, uint32_t readers, uint64_t bytes, uint32_t rounds, struct th_err *err)
{
	struct control control = {.bench = bench};
	char size[TH_UNITS_BYTES];

	bench_progress(bench, "unpublish with %u under way", readers);
	int rc = bench_need_memory(bench, (readers + 1) * bytes, "this", err);
	if (rc == 0)
		rc = thbench_control_start(&control, readers, bytes, err);
	if (rc == 0) {
		struct section *section = report_section(&bench->report, "control",
			"unpublish with %u readers of %s under way", readers,
			th_print_size_short(bytes, size));
		section_fact(section, "readers", "readers", readers, "");
		section_fact(section, "bytes", "bytes of a shard", (double)bytes, "B");
		uint32_t unpublish = section_series(section, "unpublish", "unpublish", "ms");
		uint32_t leg = section_series(section, "slowest_leg", "slowest leg", "ms");
		section_ratio(section, "unpublish_to_leg", "unpublish to the slowest leg",
			unpublish, leg, GOAL_AT_MOST, 1.0);
		for (uint32_t round = 0; round < rounds && rc == 0; round++)
			rc = drain_round(&control, section, bytes, err);
	}
	control_stop(&control);
	return rc;
}

static int
thbench_control_run(struct bench *bench, struct th_err *err)
{
	const struct bench_options *options = &bench->options;
	uint64_t bytes = options->bytes > 0 ? options->bytes : LARGE_BYTES;
	uint32_t rounds = options->rounds > 0 ? options->rounds : DRAIN_ROUNDS;

	int rc = measure_calls(bench, options->rounds > 0 ? options->rounds : ROUNDS, err);
	if (rc == 0)
		rc = measure_drain(bench, 1, bytes, rounds, err);
	if (rc == 0)
		rc = measure_drain(bench, READERS, bytes, rounds, err);
	return rc;
}

const struct bench_verb bench_control = {
	.name = "control",
	.summary = "calls that move little or nothing, and unpublish under readers",
	.run = thbench_control_run,
};
