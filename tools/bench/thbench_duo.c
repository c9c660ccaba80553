/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_duo - see thbench_duo.h.
 */
#include "tools/bench/thbench_duo.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench/thbench_raw.h"

#define OWN_BYTES (UINT64_C(512) << 20) /* daemons, page tables */

int
duo_start(struct bench *bench, struct duo *duo, uint64_t bytes, struct th_err *err)
{
	struct command alloc = {.command = WORKER_ALLOC, .bytes = bytes, .number = 1};
	struct answer answer;

	*duo = (struct duo){.bytes = bytes, .connections = bench->options.connections};
	int rc = bench_need_memory(bench, 2 * bytes + OWN_BYTES, "this", err);
	if (rc == 0)
		rc = worker_start(bench, "publisher", &duo->source, err);
	if (rc == 0)
		rc = worker_start(bench, "reader", &duo->reader, err);
	if (rc == 0)
		rc = field_start(bench, &duo->field, &place_here, err);
	if (rc < 0)
		return rc;
	bench_progress(bench, "filling memory");
	rc = worker_ask(&duo->source, &alloc, err);
	alloc.number = 0;
	if (rc == 0)
		rc = worker_ask(&duo->reader, &alloc, err);
	if (rc == 0)
		rc = worker_answer(bench, &duo->source, &answer, err);
	if (rc == 0) {
		duo->source_memfd = (int)(int64_t)answer.number;
		rc = worker_answer(bench, &duo->reader, NULL, err);
	}
	if (rc == 0 && duo->source_memfd < 0)
		rc = th_fail(err, -EBADF, "the file behind thc_alloc's memory was not found");
	return rc;
}

void
duo_stop(struct duo *duo)
{
	worker_stop(&duo->reader);
	worker_stop(&duo->source);
	field_stop(&duo->field);
}

static int
thbench_duo_join(struct bench *bench, struct worker *worker, const struct command *like,
	const char *replica, const struct bench_daemon *agent, struct th_err *err)
{
	struct command command = *like;

	snprintf(command.replica, sizeof(command.replica), "%s", replica);
	snprintf(command.agent, sizeof(command.agent), "%s", agent->runtime);
	return worker_call(bench, worker, &command, NULL, err);
}

int
duo_publish(struct bench *bench, struct duo *duo, uint32_t slot, const char *model,
	const struct bench_daemon *from, const struct bench_daemon *to, const struct shape *shape,
	struct th_err *err)
{
	const struct command publish = {.command = WORKER_PUBLISH, .slot = slot, .number = 1};
	struct command command = {.command = WORKER_JOIN,
		.slot = slot,
		.bytes = shape->bytes,
		.tensor_bytes = shape->tensor_bytes,
		.tiny = shape->tiny};

	snprintf(command.model, sizeof(command.model), "%s", model);
	int rc = thbench_duo_join(bench, &duo->source, &command, "publisher", from, err);
	if (rc == 0)
		rc = thbench_duo_join(bench, &duo->reader, &command, "reader", to, err);
	if (rc == 0)
		rc = worker_call(bench, &duo->source, &publish, NULL, err);
	return rc;
}

int
duo_forget(struct bench *bench, struct duo *duo, uint32_t slot, struct th_err *err)
{
	const struct command command = {.command = WORKER_CLOSE, .slot = slot};
	int rc = worker_call(bench, &duo->reader, &command, NULL, err);

	return rc < 0 ? rc : worker_call(bench, &duo->source, &command, NULL, err);
}

/* ---- one transfer --------------------------------------------------------------------------- */

static int
run_raw(struct bench *bench, struct duo *duo, bool file, uint64_t bytes, int64_t *ret_ns,
	struct th_err *err)
{
	struct command command = {.command = WORKER_RECEIVE,
		.bytes = bytes,
		.tensor_bytes = bench->options.block,
		.number = file ? 1 : 0};
	struct answer sent, received;

	int rc = worker_ask(&duo->reader, &command, err);
	command.command = WORKER_SEND;
	if (rc == 0)
		rc = worker_ask(&duo->source, &command, err);
	if (rc == 0)
		rc = worker_answer(bench, &duo->reader, &received, err);
	if (rc == 0)
		rc = worker_answer(bench, &duo->source, &sent, err);
	if (rc < 0)
		return rc;
	*ret_ns = received.end_ns - sent.begin_ns;
	return 0;
}

/* From the call to its return, which is what a caller waits; then the version is given up. */
static int
run_leg(struct bench *bench, struct duo *duo, const struct way *way, uint64_t bytes,
	int64_t *ret_ns, struct th_err *err)
{
	const struct command pull = {.command = WORKER_REPLICATE, .slot = way->slot, .number = 1};
	const struct command drop = {.command = WORKER_UNPUBLISH, .slot = way->slot};
	struct answer answer;

	int rc = worker_call(bench, &duo->reader, &pull, &answer, err);
	if (rc == 0)
		rc = worker_call(bench, &duo->reader, &drop, NULL, err);
	if (rc < 0)
		return rc;
	/* Something cleverer than moving all bytes would be another measurement. */
	if (answer.bytes_moved < bytes || strcmp(answer.transport, way->transport) != 0)
		return th_fail(err, TH_E_PROTOCOL,
			"a leg moved %" PRIu64 " of %" PRIu64 " bytes by %s", answer.bytes_moved,
			bytes, answer.transport);
	*ret_ns = answer.end_ns - answer.begin_ns;
	return 0;
}

static int
run_copy(struct bench *bench, struct duo *duo, const struct way *way, uint64_t bytes,
	int64_t *ret_ns, struct th_err *err)
{
	const struct command command = {.command = WORKER_COPY,
		.slot = way->slot,
		.bytes = bytes,
		.number = bench->options.threads};
	struct answer answer;
	int rc = worker_call(bench, &duo->reader, &command, &answer, err);

	if (rc == 0)
		*ret_ns = answer.end_ns - answer.begin_ns;
	return rc;
}

/* Once; GB/s. The reader's memory is other than the source's before. */
static int
thbench_duo_run(struct bench *bench, struct duo *duo, const struct way *way, uint64_t bytes,
	double *ret_rate, struct th_err *err)
{
	const struct command mess = {.command = WORKER_MESS, .bytes = bytes};
	int64_t ns = 0;
	int rc = worker_call(bench, &duo->reader, &mess, NULL, err);

	if (rc < 0)
		return rc;
	switch (way->kind) {
	case WAY_RAW_SEND:
	case WAY_RAW_SENDFILE:
		rc = run_raw(bench, duo, way->kind == WAY_RAW_SENDFILE, bytes, &ns, err);
		break;
	case WAY_LEG:
		rc = run_leg(bench, duo, way, bytes, &ns, err);
		break;
	case WAY_COPY:
		rc = run_copy(bench, duo, way, bytes, &ns, err);
		break;
	}
	if (rc == 0)
		*ret_rate = bench_rate(bytes, ns);
	return rc;
}

int
duo_warm(struct bench *bench, struct duo *duo, const struct way *way, uint64_t bytes,
	struct th_err *err)
{
	const struct command sum = {.command = WORKER_SUM, .bytes = bytes};
	struct answer sent, received;
	double rate;

	int rc = thbench_duo_run(bench, duo, way, bytes, &rate, err);
	if (rc == 0)
		rc = worker_call(bench, &duo->source, &sum, &sent, err);
	if (rc == 0)
		rc = worker_call(bench, &duo->reader, &sum, &received, err);
	if (rc == 0 && sent.number != received.number)
		rc = th_fail(err, TH_E_CHECKSUM, "what arrived is not what was sent");
	return rc;
}

int
duo_round(struct bench *bench, struct duo *duo, struct section *section, const struct way *ways,
	uint32_t count, uint64_t bytes, uint32_t round, struct th_err *err)
{
	double rate;

	for (uint32_t i = 0; i < count; i++) {
		const struct way *way = &ways[round % 2 == 0 ? i : count - 1 - i];
		int rc = thbench_duo_run(bench, duo, way, bytes, &rate, err);
		if (rc < 0)
			return rc;
		section_add(section, way->series, rate);
		bench_progress(bench, "round %u: %s, %.2f GB/s", round + 1,
			section->series[way->series].title, rate);
	}
	return 0;
}

int
duo_measure(struct bench *bench, struct duo *duo, struct section *section, const struct way *ways,
	uint32_t count, uint64_t bytes, uint32_t rounds, struct th_err *err)
{
	int rc = 0;

	for (uint32_t round = 0; round < rounds && rc == 0; round++)
		rc = duo_round(bench, duo, section, ways, count, bytes, round, err);
	return rc;
}

/* ---- the raw copy's connections ------------------------------------------------------------- */

/* One connection of a leg is for control, the others carry data. */
static int
observe(struct bench *bench, struct duo *duo, uint32_t slot, const struct bench_daemon *agent,
	uint32_t *ret_connections, struct th_err *err)
{
	const struct command pull = {.command = WORKER_REPLICATE, .slot = slot, .number = 1};
	const struct command drop = {.command = WORKER_UNPUBLISH, .slot = slot};
	struct pollfd readable = {.fd = duo->reader.sock, .events = POLLIN};
	uint32_t seen[RAW_CONNECTIONS_MAX + 2] = {0}, usual = 0;

	int rc = worker_ask(&duo->reader, &pull, err);
	while (rc == 0 && poll(&readable, 1, 1) == 0) {
		uint32_t count = field_connections(agent);
		if (count < TH_ARRAY_LEN(seen))
			seen[count]++;
		rc = bench_go_on(bench, err);
	}
	/* The usual number: while a leg begins there are fewer, when it begins anew more. */
	for (uint32_t i = 2; i < TH_ARRAY_LEN(seen); i++) {
		if (seen[i] > 0 && (usual == 0 || seen[i] > seen[usual]))
			usual = i;
	}
	if (rc == 0)
		rc = worker_answer(bench, &duo->reader, NULL, err);
	if (rc == 0)
		rc = worker_call(bench, &duo->reader, &drop, NULL, err);
	/* Too short to be seen: what the agents take by default. */
	if (usual == 0)
		usual = 1 + (bench->cpus <= 4 ? 2 : 4);
	*ret_connections = usual - 1;
	return rc;
}

int
duo_connect(struct bench *bench, struct duo *duo, uint32_t slot, const struct bench_daemon *agent,
	struct th_err *err)
{
	struct command command = {.command = WORKER_LISTEN};
	struct answer answer;
	int rc = 0;

	if (duo->connections == 0)
		rc = observe(bench, duo, slot, agent, &duo->connections, err);
	if (rc == 0)
		rc = worker_call(bench, &duo->source, &command, &answer, err);
	if (rc < 0)
		return rc;
	command = (struct command){.command = WORKER_CONNECT,
		.number = answer.number,
		.tensor_bytes = duo->connections};
	rc = worker_call(bench, &duo->reader, &command, NULL, err);
	command = (struct command){.command = WORKER_ACCEPT, .number = duo->connections};
	return rc < 0 ? rc : worker_call(bench, &duo->source, &command, NULL, err);
}
