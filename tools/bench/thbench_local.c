/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_local - verb local: a shard from one worker to another of the same agent, unverified and
 * verified, against copies between the same two memories by all CPUs.
 */
#include "ipc/base/units.h"
#include "tools/bench/thbench_duo.h"

#define LOCAL_BYTES (UINT64_C(4) << 30)
#define ROUNDS 7u
#define WAYS 4u

enum slot { /* of handles */
	SLOT_PLAIN,
	SLOT_FULL,
};

static int
thbench_local_prepare(
	struct bench *bench, struct duo *duo, const struct shape *shape, struct th_err *err)
{
	const char *const plain[] = {"--verify", "off", NULL};
	const struct bench_daemon *agent;

	int rc = field_agent(bench, &duo->field, "plain", plain, &place_here, &agent, err);
	if (rc == 0)
		rc = duo_publish(bench, duo, SLOT_PLAIN, "plain", agent, agent, shape, err);
	if (rc == 0)
		rc = field_agent(bench, &duo->field, "full", NULL, &place_here, &agent, err);
	if (rc == 0)
		rc = duo_publish(bench, duo, SLOT_FULL, "full", agent, agent, shape, err);
	if (rc < 0)
		return rc;
	const struct command map = {.command = WORKER_MAP,
		.number = (uint64_t)duo->source.pid,
		.slot = (uint32_t)duo->source_memfd,
		.bytes = shape->bytes};
	return worker_call(bench, &duo->reader, &map, NULL, err);
}

static void
thbench_local_describe(
	struct bench *bench, struct section *section, const struct shape *shape, struct way *ways)
{
	section_fact(section, "bytes", "bytes of a shard", (double)shape->bytes, "B");
	section_fact(
		section, "tensor_bytes", "bytes of a tensor", (double)shape->tensor_bytes, "B");
	section_fact(section, "threads", "threads of a copy", bench->options.threads, "");
	section_fact_text(section, "stores", "stores of the non-temporal copy", copy_width());
	uint32_t stream = section_series(section, "copy_stream", "non-temporal copy", "GB/s");
	uint32_t plain = section_series(section, "local_unverified", "leg, unverified", "GB/s");
	uint32_t memcpy_series = section_series(section, "copy_memcpy", "memcpy", "GB/s");
	uint32_t full = section_series(section, "local_verified", "leg, verified", "GB/s");
	ways[0] = (struct way){.kind = WAY_COPY, .slot = COPY_STREAM, .series = stream};
	ways[1] = (struct way){
		.kind = WAY_LEG, .slot = SLOT_PLAIN, .series = plain, .transport = "local"};
	ways[2] = (struct way){.kind = WAY_COPY, .slot = COPY_MEMCPY, .series = memcpy_series};
	ways[3] = (struct way){
		.kind = WAY_LEG, .slot = SLOT_FULL, .series = full, .transport = "local"};
	section_ratio(section, "unverified_to_stream", "unverified to the non-temporal copy", plain,
		stream, GOAL_AT_LEAST, 0.9);
	section_ratio(section, "verified_to_stream", "verified to the non-temporal copy", full,
		stream, GOAL_AT_LEAST, 0.7);
	section_ratio(section, "verified_to_memcpy", "verified to memcpy", full, memcpy_series,
		GOAL_NONE, 0.0);
}

static int
thbench_local_run(struct bench *bench, struct th_err *err)
{
	const struct bench_options *options = &bench->options;
	struct duo duo;
	struct way ways[WAYS];
	const struct shape shape = {.bytes = options->bytes > 0 ? options->bytes : LOCAL_BYTES,
		.tensor_bytes = options->tensor_bytes};
	char size[TH_UNITS_BYTES];

	int rc = duo_start(bench, &duo, shape.bytes, err);
	if (rc == 0)
		rc = thbench_local_prepare(bench, &duo, &shape, err);
	if (rc == 0) {
		struct section *section = report_section(&bench->report, "local",
			"%s from one worker to another of the same agent",
			th_print_size_short(shape.bytes, size));
		thbench_local_describe(bench, section, &shape, ways);
		for (uint32_t i = 0; i < WAYS && rc == 0; i++)
			rc = duo_warm(bench, &duo, &ways[i], shape.bytes, err);
		if (rc == 0)
			rc = duo_measure(bench, &duo, section, ways, WAYS, shape.bytes,
				options->rounds > 0 ? options->rounds : ROUNDS, err);
	}
	duo_stop(&duo);
	return rc;
}

const struct bench_verb bench_local = {
	.name = "local",
	.summary = "a shard between two workers of one agent, against copies of memory",
	.run = thbench_local_run,
};
