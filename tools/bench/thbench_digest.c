/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_digest - verb digest: the digests of chunks, and the hashes that they may be made of,
 * against reading the same memory.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "ipc/base/clock.h"
#include "ipc/base/units.h"
#include "tools/bench/thbench.h"
#include "tools/bench/thbench_copy.h"
#include "transport/hash/digest.h"

#define DIGEST_BYTES (UINT64_C(1) << 30)
#define CACHED_BYTES (UINT64_C(256) << 10) /* a block right after it was received */
#define CHUNK (UINT64_C(4) << 20)
#define ROUNDS 7u

/* The library's dispatching symbols, where it has them (weak: they are not in every build). */
XXH64_hash_t XXH3_64bits_dispatch(const void *data, size_t bytes) __attribute__((weak));

enum kernel {
	KERNEL_READ,
	KERNEL_DIGEST,
	KERNEL_XXH3_64,
	KERNEL_XXH3_64_DISPATCH,
	KERNEL_XXH3_128,
	KERNELS,
};

static const struct {
	const char *key, *title;
} kernels[KERNELS] = {
	{"read", "reading only"},
	{"digest", "digest of chunks of 4 MiB"},
	{"xxh3_64", "XXH3-64 of 64 KiB leaves, plain symbol"},
	{"xxh3_64_dispatch", "XXH3-64 of 64 KiB leaves, dispatching symbol"},
	{"xxh3_128", "XXH3-128 of 64 KiB leaves, plain symbol"},
};

struct hashing {
	enum kernel kernel;
	const uint8_t *data;
};

static _Atomic uint64_t sink; /* or the compiler finds that nobody wants the values */

static uint64_t
hash_one(enum kernel kernel, const uint8_t *data, uint64_t bytes)
{
	switch (kernel) {
	case KERNEL_XXH3_64:
		return XXH3_64bits(data, bytes);
	case KERNEL_XXH3_64_DISPATCH:
		return XXH3_64bits_dispatch(data, bytes);
	case KERNEL_XXH3_128:
		return XXH3_128bits(data, bytes).low64;
	case KERNEL_DIGEST:
		return digest_of(data, bytes).lo;
	case KERNEL_READ:
	case KERNELS:
		copy_run(COPY_READ, NULL, data, bytes, 1);
		break;
	}
	return 0;
}

static void
hash_part(void *arg, uint64_t at, uint64_t bytes)
{
	const struct hashing *hashing = arg;
	const uint64_t step = hashing->kernel == KERNEL_READ || hashing->kernel == KERNEL_DIGEST
				      ? CHUNK
				      : DIGEST_LEAF_BYTES;
	uint64_t sum = 0;

	for (uint64_t i = 0; i < bytes; i += step)
		sum += hash_one(
			hashing->kernel, hashing->data + at + i, th_min_u64(step, bytes - i));
	sink += sum;
}

static double
from_memory(enum kernel kernel, const uint8_t *data, uint64_t bytes, uint32_t threads)
{
	struct hashing hashing = {.kernel = kernel, .data = data};
	int64_t begin_ns = th_now_ns();

	copy_parallel(threads, bytes, hash_part, &hashing);
	return bench_rate(bytes, th_now_ns() - begin_ns);
}

static double
from_cache(enum kernel kernel, const uint8_t *data, uint64_t bytes)
{
	uint64_t block = th_min_u64(CACHED_BYTES, bytes), done = 0, sum = 0;
	int64_t begin_ns = th_now_ns();

	for (; done < bytes; done += block)
		sum += hash_one(kernel, data, block);
	sink += sum;
	return bench_rate(done, th_now_ns() - begin_ns);
}

struct place {
	const char *key, *title;
	uint32_t threads; /* 0: one, from the cache */
};

static int
thbench_digest_measure(struct bench *bench, struct section *section, const uint8_t *data,
	uint64_t bytes, const struct place *place, uint32_t rounds, struct th_err *err)
{
	uint32_t series[KERNELS];
	bool has_dispatch = XXH3_64bits_dispatch != NULL;
	char key[64], title[128];

	for (int i = 0; i < KERNELS; i++) {
		if (i == KERNEL_XXH3_64_DISPATCH && !has_dispatch)
			continue;
		snprintf(key, sizeof(key), "%s_%s", kernels[i].key, place->key);
		series[i] = section_series(section, key, kernels[i].title, "GB/s");
		if (i == KERNEL_READ)
			continue;
		snprintf(key, sizeof(key), "%s_%s_to_read", kernels[i].key, place->key);
		snprintf(title, sizeof(title), "%s to reading", kernels[i].key);
		section_ratio(section, key, title, series[i], series[KERNEL_READ], GOAL_NONE, 0.0);
	}
	for (uint32_t round = 0; round < rounds; round++) {
		for (int i = 0; i < KERNELS; i++) {
			enum kernel kernel = (enum kernel)(round % 2 == 0 ? i : KERNELS - 1 - i);
			if (kernel == KERNEL_XXH3_64_DISPATCH && !has_dispatch)
				continue;
			double rate = place->threads == 0
					      ? from_cache(kernel, data, bytes)
					      : from_memory(kernel, data, bytes, place->threads);
			section_add(section, series[kernel], rate);
			int rc = bench_go_on(bench, err);
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

static int
thbench_digest_run(struct bench *bench, struct th_err *err)
{
	const struct bench_options *options = &bench->options;
	uint64_t bytes = options->bytes > 0 ? options->bytes : DIGEST_BYTES;
	uint32_t rounds = options->rounds > 0 ? options->rounds : ROUNDS;
	char size[TH_UNITS_BYTES];

	int rc = bench_need_memory(bench, bytes, "this", err);
	if (rc < 0)
		return rc;
	uint8_t *data =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED)
		return th_fail(err, -errno, "no memory of this size: %s", strerror(errno));
	memset(data, 3, bytes);
	const struct place places[] = {
		{"one", "one thread, from memory", 1},
		{"all", "a thread for each CPU, from memory", options->threads},
		{"cached", "one thread, 256 KiB from the cache", 0},
	};
	for (uint32_t i = 0; i < TH_ARRAY_LEN(places) && rc == 0; i++) {
		struct section *section = report_section(&bench->report, "digest", "%s of %s",
			places[i].title, th_print_size_short(bytes, size));
		section_fact(section, "bytes", "bytes", (double)bytes, "B");
		section_fact(section, "threads", "threads",
			places[i].threads > 0 ? places[i].threads : 1, "");
		section_fact_text(section, "loads", "loads of reading only", copy_width());
		if (XXH3_64bits_dispatch == NULL)
			section_note(section, "this libxxhash has no dispatching symbols");
		rc = thbench_digest_measure(bench, section, data, bytes, &places[i], rounds, err);
	}
	munmap(data, bytes);
	return rc;
}

const struct bench_verb bench_digest = {
	.name = "digest",
	.summary = "digests of chunks, against reading memory",
	.run = thbench_digest_run,
};
