/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_pause - verb pause: for how long an update holds its caller that installs a version, with
 * and without THC_PREFETCH, against a copy of the same memory; and how long the trainer's unpublish
 * takes while a host fetches the version.
 *
 * A trainer and a rollout at agents of their own, over TCP. The rollout has two handles, one with
 * the flag, whose tensors are the same memory, so only one of them holds a version at a time.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/units.h"
#include "tools/bench/thbench_duo.h"

#define PAUSE_BYTES (UINT64_C(4) << 30)
#define SPARE_BYTES (UINT64_C(64) << 20) /* of the rollout's agent, beyond one copy */
#define OWN_BYTES (UINT64_C(512) << 20)
#define ROUNDS 7u
#define MS 1e6
#define COPY_SHARE 0.9 /* of the copy's rate an install has to reach, */
#define REST_MS 50.0   /* and what it may take besides */

enum slot { /* of handles */
	SLOT_WIRE,
	SLOT_FETCHED,
};

enum figure { /* of the section's series, all in ms */
	COPY,
	LIMIT,
	UPDATE_FETCHED,
	UPDATE_WIRE,
	FETCH,
	UNPUBLISH,
	UNPUBLISH_FETCH,
	FIGURES,
};

struct pause {
	struct bench *bench;
	struct duo duo;
	struct shape shape;
	uint64_t version;
	bool checked; /* what an update has installed is compared with what was published */
	double ms[FIGURES];
};

static int
pause_call(struct pause *pause, struct worker *worker, enum worker_command what, uint32_t slot,
	struct answer *ret_answer, struct th_err *err)
{
	const struct command command = {.command = what,
		.slot = slot,
		.bytes = pause->shape.bytes,
		.number = what == WORKER_COPY ? pause->bench->options.threads : pause->version};

	return worker_call(pause->bench, worker, &command, ret_answer, err);
}

static double
pause_ms(int64_t begin_ns, int64_t end_ns)
{
	return (double)(end_ns - begin_ns) / MS;
}

/* ---- before the rounds ---------------------------------------------------------------------- */

static int
pause_join(struct pause *pause, struct worker *worker, const struct bench_daemon *agent,
	uint32_t slot, struct th_err *err)
{
	struct command join = {.command = WORKER_JOIN,
		.slot = slot,
		.bytes = pause->shape.bytes,
		.tensor_bytes = pause->shape.tensor_bytes,
		.prefetch = slot == SLOT_FETCHED && worker == &pause->duo.reader};

	snprintf(join.model, sizeof(join.model), "%s", slot == SLOT_WIRE ? "wire" : "fetched");
	snprintf(join.replica, sizeof(join.replica), "%s", agent->name);
	snprintf(join.agent, sizeof(join.agent), "%s", agent->runtime);
	return worker_call(pause->bench, worker, &join, NULL, err);
}

static int
pause_prepare(struct pause *pause, struct th_err *err)
{
	struct bench *bench = pause->bench;
	struct duo *duo = &pause->duo;
	char limit[24];
	const char *const room[] = {"--offload-limit", limit, NULL};
	const struct bench_daemon *trainer, *rollout;

	snprintf(limit, sizeof(limit), "%" PRIu64, pause->shape.bytes + SPARE_BYTES);
	int rc = field_agent(bench, &duo->field, "trainer", NULL, &place_here, &trainer, err);
	if (rc == 0)
		rc = field_agent(bench, &duo->field, "rollout", room, &place_here, &rollout, err);
	for (uint32_t slot = SLOT_WIRE; slot <= SLOT_FETCHED && rc == 0; slot++) {
		rc = pause_join(pause, &duo->source, trainer, slot, err);
		if (rc == 0)
			rc = pause_join(pause, &duo->reader, rollout, slot, err);
	}
	if (rc < 0)
		return rc;
	const struct command map = {.command = WORKER_MAP,
		.number = (uint64_t)duo->source.pid,
		.slot = (uint32_t)duo->source_memfd,
		.bytes = pause->shape.bytes};
	rc = worker_call(bench, &duo->reader, &map, NULL, err);
	/* Who holds nothing has its host fetch for it once it has called update. */
	const struct command first = {.command = WORKER_UPDATE, .slot = SLOT_FETCHED};
	return rc < 0 ? rc : worker_call(bench, &duo->reader, &first, NULL, err);
}

static struct section *
pause_describe(struct pause *pause)
{
	static const struct {
		const char *key, *title;
	} figures[FIGURES] = {
		[COPY] = {"copy_stream", "non-temporal copy"},
		[LIMIT] = {"limit", "copy / 0.9 + 50 ms"},
		[UPDATE_FETCHED] = {"update_fetched", "update, with THC_PREFETCH"},
		[UPDATE_WIRE] = {"update_wire", "update, without"},
		[FETCH] = {"fetch", "publish until the host has it"},
		[UNPUBLISH] = {"unpublish", "unpublish that nobody reads"},
		[UNPUBLISH_FETCH] = {"unpublish_fetch", "unpublish during the fetch"},
	};
	char size[TH_UNITS_BYTES];
	const struct shape *shape = &pause->shape;
	struct section *section = report_section(&pause->bench->report, "pause",
		"an update that installs %s, published at another agent",
		th_print_size_short(shape->bytes, size));

	section_fact(section, "bytes", "bytes of a shard", (double)shape->bytes, "B");
	section_fact(
		section, "tensor_bytes", "bytes of a tensor", (double)shape->tensor_bytes, "B");
	section_fact(section, "threads", "threads of the copy", pause->bench->options.threads, "");
	section_fact_text(section, "stores", "stores of the copy", copy_width());
	for (uint32_t i = 0; i < FIGURES; i++)
		section_series(section, figures[i].key, figures[i].title, "ms");
	section_ratio(section, "fetched_to_limit", "update with THC_PREFETCH to its limit",
		UPDATE_FETCHED, LIMIT, GOAL_AT_MOST, 1.0);
	section_ratio(section, "fetched_to_copy", "... to the copy", UPDATE_FETCHED, COPY,
		GOAL_NONE, 0.0);
	section_ratio(section, "fetched_to_wire", "... to the update without", UPDATE_FETCHED,
		UPDATE_WIRE, GOAL_NONE, 0.0);
	section_ratio(section, "unpublish_to_fetch", "unpublish during the fetch to the fetch",
		UNPUBLISH_FETCH, FETCH, GOAL_NONE, 0.0);
	return section;
}

/* ---- a round -------------------------------------------------------------------------------- */

/* Each 64 KiB are other than those before, which the rollout has: nothing is reused. */
static int
pause_publish(struct pause *pause, uint32_t slot, struct answer *ret_answer, struct th_err *err)
{
	struct worker *trainer = &pause->duo.source;

	pause->version++;
	int rc = pause_call(pause, trainer, WORKER_MESS, 0, NULL, err);
	return rc < 0 ? rc : pause_call(pause, trainer, WORKER_PUBLISH, slot, ret_answer, err);
}

/* The rollout's update; then it gives the version up. */
static int
pause_update(struct pause *pause, uint32_t slot, struct answer *ret_answer, struct th_err *err)
{
	struct duo *duo = &pause->duo;
	struct answer sent, received;

	int rc = pause_call(pause, &duo->reader, WORKER_UPDATE, slot, ret_answer, err);
	if (rc == 0 && !pause->checked) {
		rc = pause_call(pause, &duo->source, WORKER_SUM, 0, &sent, err);
		if (rc == 0)
			rc = pause_call(pause, &duo->reader, WORKER_SUM, 0, &received, err);
		if (rc == 0 && sent.number != received.number)
			rc = th_fail(err, TH_E_CHECKSUM, "what was installed is not what was sent");
	}
	if (rc < 0)
		return rc;
	/* Something cleverer than installing all bytes would be another measurement. */
	uint64_t moved = slot == SLOT_WIRE ? ret_answer->bytes_moved : ret_answer->bytes_prefetched;
	if (ret_answer->updated != 1 || moved < pause->shape.bytes)
		return th_fail(err, TH_E_PROTOCOL,
			"an update took %" PRIu64 " of %" PRIu64 " bytes %s", moved,
			pause->shape.bytes,
			slot == SLOT_WIRE ? "over TCP" : "from what its agent had fetched");
	return pause_call(pause, &duo->reader, WORKER_UNPUBLISH, slot, NULL, err);
}

static int
run_wire(struct pause *pause, struct th_err *err)
{
	struct answer updated, unpublished;

	int rc = pause_publish(pause, SLOT_WIRE, NULL, err);
	if (rc == 0)
		rc = pause_update(pause, SLOT_WIRE, &updated, err);
	if (rc == 0)
		rc = pause_call(
			pause, &pause->duo.source, WORKER_UNPUBLISH, SLOT_WIRE, &unpublished, err);
	if (rc < 0)
		return rc;
	pause->ms[UPDATE_WIRE] = pause_ms(updated.begin_ns, updated.end_ns);
	pause->ms[UNPUBLISH] = pause_ms(unpublished.begin_ns, unpublished.end_ns);
	return 0;
}

/* The trainer takes its version back while it is fetched, which is the worst moment. */
static int
run_fetched(struct pause *pause, struct th_err *err)
{
	struct bench *bench = pause->bench;
	struct duo *duo = &pause->duo;
	const uint64_t version = pause->version + 1;
	const struct command ready = {
		.command = WORKER_READY, .slot = SLOT_FETCHED, .number = version};
	struct answer published, unpublished, whole, updated;

	int rc = pause_publish(pause, SLOT_FETCHED, &published, err);
	if (rc == 0)
		rc = pause_call(pause, &duo->reader, WORKER_FETCHED, SLOT_FETCHED, NULL, err);
	if (rc == 0)
		rc = worker_ask(&duo->reader, &ready, err);
	if (rc == 0)
		rc = pause_call(
			pause, &duo->source, WORKER_UNPUBLISH, SLOT_FETCHED, &unpublished, err);
	if (rc == 0)
		rc = worker_answer(bench, &duo->reader, &whole, err);
	if (rc == 0)
		rc = pause_update(pause, SLOT_FETCHED, &updated, err);
	if (rc < 0)
		return rc;
	pause->ms[UNPUBLISH_FETCH] = pause_ms(unpublished.begin_ns, unpublished.end_ns);
	pause->ms[FETCH] = pause_ms(published.end_ns, whole.end_ns);
	pause->ms[UPDATE_FETCHED] = pause_ms(updated.begin_ns, updated.end_ns);
	return 0;
}

static int
run_stream(struct pause *pause, struct th_err *err)
{
	struct answer copied;
	int rc = pause_call(pause, &pause->duo.reader, WORKER_COPY, COPY_STREAM, &copied, err);

	if (rc < 0)
		return rc;
	pause->ms[COPY] = pause_ms(copied.begin_ns, copied.end_ns);
	pause->ms[LIMIT] = pause->ms[COPY] / COPY_SHARE + REST_MS;
	return 0;
}

/* A round of an odd number in reverse order. */
static int
pause_round(struct pause *pause, uint32_t round, struct th_err *err)
{
	static int (*const ways[])(struct pause *, struct th_err *) = {
		run_stream, run_wire, run_fetched};
	const uint32_t count = TH_ARRAY_LEN(ways);
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = ways[round % 2 == 0 ? i : count - 1 - i](pause, err);
	if (rc == 0)
		bench_progress(pause->bench,
			"round %u: copy %.0f ms, update with THC_PREFETCH %.0f ms, without %.0f ms",
			round, pause->ms[COPY], pause->ms[UPDATE_FETCHED], pause->ms[UPDATE_WIRE]);
	return rc;
}

static int
thbench_pause_run(struct bench *bench, struct th_err *err)
{
	const struct bench_options *options = &bench->options;
	const uint32_t rounds = options->rounds > 0 ? options->rounds : ROUNDS;
	struct pause pause = {.bench = bench,
		.shape = {.bytes = options->bytes > 0 ? options->bytes : PAUSE_BYTES,
			.tensor_bytes = options->tensor_bytes}};

	int rc = bench_need_memory(bench, 3 * pause.shape.bytes + OWN_BYTES, "this", err);
	if (rc < 0)
		return rc;
	rc = duo_start(bench, &pause.duo, pause.shape.bytes, err);
	if (rc == 0)
		rc = pause_prepare(&pause, err);
	if (rc == 0)
		rc = pause_round(&pause, 0, err); /* unmeasured: it touches all memory */
	pause.checked = true;
	if (rc == 0) {
		struct section *section = pause_describe(&pause);
		for (uint32_t round = 1; round <= rounds && rc == 0; round++) {
			rc = pause_round(&pause, round, err);
			for (uint32_t i = 0; i < FIGURES && rc == 0; i++)
				section_add(section, i, pause.ms[i]);
		}
	}
	duo_stop(&pause.duo);
	return rc;
}

const struct bench_verb bench_pause = {
	.name = "pause",
	.summary = "how long an update holds its caller, with THC_PREFETCH and without",
	.run = thbench_pause_run,
};
