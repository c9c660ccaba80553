/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_cast - verb cast: conversions of types by one thread, with each set of instructions that
 * this CPU has, against memcpy of what they read.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/clock.h"
#include "ipc/base/units.h"
#include "tools/bench/thbench.h"
#include "tools/bench/thbench_copy.h"
#include "transport/cast/cast.h"

#define CAST_BYTES (UINT64_C(512) << 20)
#define COLUMNS UINT64_C(4096)
#define ROUNDS 7u
#define GOAL 0.5 /* fp8-block of BF16 with AVX2 */

static const char *const kinds[] = {"plain", "avx2", "avx512"};

static const struct casting {
	const char *key, *title;
	struct cast cast;
	uint32_t size; /* bytes of an element that is read */
} castings[] = {
	{"fp8_block", "fp8-block of BF16", {CAST_FP8_BLOCK, CAST_BF16, CAST_F8_E4M3, {0, 0}}, 2},
	{"fp8_block_f32", "fp8-block of F32", {CAST_FP8_BLOCK, CAST_F32, CAST_F8_E4M3, {0, 0}}, 4},
	{"fp8_channel", "fp8-channel of BF16", {CAST_FP8_CHANNEL, CAST_BF16, CAST_F8_E4M3, {0, 0}},
		2},
	{"narrow", "round of F32 to BF16", {CAST_ROUND, CAST_F32, CAST_BF16, {0, 0}}, 4},
	{"widen", "round of BF16 to F32", {CAST_ROUND, CAST_BF16, CAST_F32, {0, 0}}, 2},
};
#define CASTINGS TH_ARRAY_LEN(castings)

struct area {
	uint8_t *from, *to; /* own bytes, and twice as many */
	float *scales;
	uint64_t bytes;
};

/* Weights of usual sizes: signs and mantissas are random, exponents are around 2^-6. */
static void
fill(uint8_t *data, uint64_t bytes, uint32_t size)
{
	uint64_t random = 1;

	for (uint64_t i = 0; i < bytes; i += size) {
		random = random * UINT64_C(6364136223846793005) + 1;
		const uint32_t bits = (uint32_t)(random >> 32 & 0x81ffffff) + 0x3b800000u;
		memcpy(data + i, (const uint8_t *)&bits + 4 - size, size);
	}
}

static double
rate_of(const struct area *area, const struct casting *casting)
{
	const uint64_t rows = area->bytes / casting->size / COLUMNS;
	const struct cast_box box = {
		.ndim = 2, .global_shape = {rows, COLUMNS}, .shape = {rows, COLUMNS}};
	const struct cast_memory memory = {
		.from = area->from, .to = area->to, .scales = area->scales};
	int64_t begin_ns = th_now_ns();

	cast_run(&casting->cast, &box, &memory);
	return bench_rate(rows * COLUMNS * casting->size, th_now_ns() - begin_ns);
}

static double
copy_rate(const struct area *area)
{
	int64_t begin_ns = th_now_ns();

	copy_run(COPY_MEMCPY, area->to, area->from, area->bytes, 1);
	return bench_rate(area->bytes, th_now_ns() - begin_ns);
}

static int
thbench_cast_measure(struct bench *bench, struct section *section, const struct area *area,
	const struct casting *casting, uint32_t rounds, struct th_err *err)
{
	const uint32_t copy = section_series(section, "memcpy", "memcpy of what is read", "GB/s");
	uint32_t series[TH_ARRAY_LEN(kinds)];
	bool here[TH_ARRAY_LEN(kinds)];
	char key[64], title[128];

	for (uint32_t i = 0; i < TH_ARRAY_LEN(kinds); i++) {
		here[i] = cast_force(kinds[i]);
		if (!here[i]) {
			section_note(section, "this CPU does not have %s", kinds[i]);
			continue;
		}
		series[i] = section_series(section, kinds[i], kinds[i], "GB/s");
		snprintf(key, sizeof(key), "%s_to_memcpy", kinds[i]);
		snprintf(title, sizeof(title), "%s to memcpy", kinds[i]);
		const bool wanted = casting == castings && strcmp(kinds[i], "avx2") == 0;
		section_ratio(section, key, title, series[i], copy,
			wanted ? GOAL_AT_LEAST : GOAL_NONE, wanted ? GOAL : 0.0);
	}
	for (uint32_t round = 0; round < rounds; round++) {
		section_add(section, copy, copy_rate(area));
		for (uint32_t i = 0; i < TH_ARRAY_LEN(kinds); i++) {
			if (here[i] && cast_force(kinds[i]))
				section_add(section, series[i], rate_of(area, casting));
			int rc = bench_go_on(bench, err);
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

static int
cast_all(struct bench *bench, const struct area *area, uint32_t rounds, struct th_err *err)
{
	char size[TH_UNITS_BYTES];
	int rc = 0;

	for (uint32_t i = 0; i < CASTINGS && rc == 0; i++) {
		struct section *section =
			report_section(&bench->report, "cast", "%s, %s, one thread",
				castings[i].title, th_print_size_short(area->bytes, size));
		section_fact_text(
			section, "scheme", "scheme", cast_scheme_name(castings[i].cast.scheme));
		section_fact_text(section, "case", "case", castings[i].key);
		section_fact(section, "bytes", "bytes that are read", (double)area->bytes, "B");
		section_fact(section, "columns", "columns", (double)COLUMNS, "");
		if (i == 0 || castings[i].size != castings[i - 1].size)
			fill(area->from, area->bytes, castings[i].size);
		rc = thbench_cast_measure(bench, section, area, &castings[i], rounds, err);
	}
	cast_force(NULL);
	return rc;
}

static int
thbench_cast_run(struct bench *bench, struct th_err *err)
{
	const struct bench_options *options = &bench->options;
	const uint64_t wanted = options->bytes > 0 ? options->bytes : CAST_BYTES;
	/* Whole rows, and of blocks of 128 whole ones. */
	const uint64_t bytes = wanted / (COLUMNS * 4 * 128) * (COLUMNS * 4 * 128);
	const uint32_t rounds = options->rounds > 0 ? options->rounds : ROUNDS;
	struct area area = {.bytes = bytes};

	if (bytes == 0)
		return th_fail(
			err, TH_E_INVALID, "--bytes: a measurement of cast takes 2 MiB or more");
	int rc = bench_need_memory(bench, 3 * bytes, "this", err);
	if (rc < 0)
		return rc;
	const uint64_t scales_bytes = bytes / 2 / COLUMNS * sizeof(float);
	uint8_t *memory = mmap(NULL, 3 * bytes + scales_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return th_fail(err, -errno, "no memory of this size: %s", strerror(errno));
	area.from = memory;
	area.to = memory + bytes;
	area.scales = (float *)(void *)(memory + 3 * bytes);
	memset(area.to, 1, 2 * bytes + scales_bytes);
	rc = cast_all(bench, &area, rounds, err);
	munmap(memory, 3 * bytes + scales_bytes);
	return rc;
}

const struct bench_verb bench_cast = {
	.name = "cast",
	.summary = "conversions of types, against memcpy",
	.run = thbench_cast_run,
};
