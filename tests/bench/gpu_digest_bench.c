/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_digest_bench - what a GPU makes of transport/cuda/hash: digests of chunks in its memory, and
 * copies that are hashed on the way, against cuMemcpyDtoD of as many bytes.
 *
 *   gpu_digest_bench [--fake] [BYTES] [ROUNDS]
 *
 * Digests are compared with the CPU's first, of whole chunks and of bytes that begin and end
 * anywhere. Rounds of all kinds alternate. Prints one object of JSON: medians, rates in bytes a
 * second of what is hashed or copied (a copy moves twice as many). Where there is no GPU it says so
 * and exits with 77; --fake takes one of the tests' own (which must be the libcuda.so.1 that is
 * found): its figures mean nothing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/name.h"
#include "ipc/base/units.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/test_calls.h"
#include "tests/support/rng.h"
#include "transport/cuda/helper/gpu_hash.h"
#include "transport/hash/digest.h"

#define NOT_HERE 77
#define CHUNK ((uint64_t)CHUNK_BYTES_MAX)
#define BATCH 32u                          /* chunks */
#define CONTENT_BYTES (UINT64_C(16) << 20) /* and then again from its beginning */
#define ROUNDS_MAX 99u
#define SINGLES_MAX 99u
#define ODD_CHUNKS 32u

enum kind { DIGEST, COPY, COPY_HASHED, KINDS };

static struct cuda cuda;
static struct th_err err;
static struct gpu_hash *hash;
static CUstream stream;
static CUdeviceptr from, to;
static uint64_t bytes; /* of each; whole chunks */
static uint8_t *content;
static struct gpu_hash_batch *batches[1024];

static void
must(CUresult result, const char *call)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "gpu_digest_bench: %s says %s\n", call, cuda_result_name(&cuda, result));
	exit(1);
}
#define MUST(call) must((call), #call)

static void
good(int code)
{
	if (code == 0)
		return;
	fprintf(stderr, "gpu_digest_bench: %s\n", err.text);
	exit(1);
}

static int
no_gpu(const char *why)
{
	fprintf(stderr, "gpu_digest_bench: there is no GPU to measure: %s\n", why);
	return NOT_HERE;
}

/* ---- set up --------------------------------------------------------------------------------- */

static int
open_gpu(char *name, int name_bytes)
{
	CUcontext context = NULL;
	int count = 0;
	if (cuda_open(&cuda, &err) < 0)
		return no_gpu(err.text);
	CUresult result = cuda.cuInit(0);
	if (result != CUDA_SUCCESS || cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
		return no_gpu(result == CUDA_SUCCESS ? "the driver knows none"
						     : cuda_result_name(&cuda, result));
	MUST(cuda.cuDeviceGetName(name, name_bytes, 0));
	test_calls_find(&cuda);
	MUST(cuda.cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuda.cuCtxSetCurrent(context));
	if (gpu_hash_open(&cuda, 0, &hash, &err) < 0)
		return no_gpu(err.text);
	MUST(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	return 0;
}

static void
fill(void)
{
	struct th_rng rng;
	content = malloc(CONTENT_BYTES);
	TH_ASSERT(content);
	th_rng_init_number(&rng, 3);
	th_rng_bytes(&rng, content, CONTENT_BYTES);
	MUST(test_cuda.cuMemAlloc(&from, bytes));
	MUST(test_cuda.cuMemAlloc(&to, bytes));
	for (uint64_t at = 0; at < bytes; at += CONTENT_BYTES)
		MUST(test_cuda.cuMemcpyHtoD(
			from + at, content, th_min_u64(CONTENT_BYTES, bytes - at)));
	for (uint64_t i = 0; i * BATCH * CHUNK < bytes; i++)
		good(gpu_hash_batch_new(hash, BATCH, &batches[i], &err));
}

/* ---- are they right? ------------------------------------------------------------------------ */

static void
compare(const struct gpu_hash_batch *batch, uint32_t number, uint64_t at, uint64_t length)
{
	struct th_hash want = digest_of(content + at % CONTENT_BYTES, length);
	struct th_hash have = gpu_hash_value(batch, number);
	if (th_hash_equal(have, want))
		return;
	fprintf(stderr,
		"gpu_digest_bench: of %" PRIu64 " bytes from %" PRIu64
		" on the GPU makes another digest than the CPU\n",
		length, at);
	exit(1);
}

static void
check_odd(void)
{
	struct copy_span spans[ODD_CHUNKS];
	struct th_rng rng;
	th_rng_init_number(&rng, 5);
	gpu_hash_begin(batches[0]);
	for (uint32_t i = 0; i < ODD_CHUNKS; i++) {
		uint64_t length = th_rng_below(&rng, UINT64_C(1) << (i % 22 + 1));
		uint64_t at = th_rng_below(&rng, th_min_u64(CONTENT_BYTES, bytes) - length);
		spans[i] = (struct copy_span){from + at, length};
		TH_ASSERT(gpu_hash_add(batches[0], &spans[i], 1) == (int)i);
	}
	good(gpu_hash_launch(batches[0], stream, &err));
	MUST(cuda.cuStreamSynchronize(stream));
	for (uint32_t i = 0; i < ODD_CHUNKS; i++)
		compare(batches[0], i, spans[i].address - from, spans[i].bytes);
}

static void
check_all(void)
{
	for (uint64_t at = 0; at < bytes; at += CHUNK)
		compare(batches[at / CHUNK / BATCH], (uint32_t)(at / CHUNK % BATCH), at, CHUNK);
}

static void
check_copied(void)
{
	uint8_t *have = malloc(CHUNK);
	TH_ASSERT(have);
	for (uint64_t at = 0; at < bytes; at += CHUNK) {
		MUST(test_cuda.cuMemcpyDtoH(have, to + at, CHUNK));
		if (memcmp(have, content + at % CONTENT_BYTES, CHUNK) == 0)
			continue;
		fprintf(stderr, "gpu_digest_bench: a copy has other bytes\n");
		exit(1);
	}
	free(have);
}

/* ---- rounds --------------------------------------------------------------------------------- */

static void
run_batches(bool copies)
{
	for (uint64_t at = 0; at < bytes; at += CHUNK) {
		struct gpu_hash_batch *batch = batches[at / CHUNK / BATCH];
		const struct copy_span source = {from + at, CHUNK}, target = {to + at, CHUNK};
		if (at / CHUNK % BATCH == 0)
			gpu_hash_begin(batch);
		TH_ASSERT((copies ? gpu_hash_add_copy(batch, &target, 1, &source, 1)
				  : gpu_hash_add(batch, &source, 1)) >= 0);
		/* Whole and aligned: it makes all copies itself. */
		TH_ASSERT(gpu_hash_moves(batch).bytes == 0);
		if (at / CHUNK % BATCH == BATCH - 1 || at + CHUNK == bytes)
			good(gpu_hash_launch(batch, stream, &err));
	}
}

/* Bytes a second. */
static double
run(enum kind kind)
{
	int64_t begin_ns = th_now_ns();
	if (kind == COPY)
		MUST(cuda.cuMemcpyDtoDAsync(to, from, bytes, stream));
	else
		run_batches(kind == COPY_HASHED);
	MUST(cuda.cuStreamSynchronize(stream));
	return (double)bytes * 1e9 / (double)(th_now_ns() - begin_ns);
}

static int
by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static double
median(double *values, uint32_t count)
{
	qsort(values, count, sizeof(values[0]), by_size);
	return values[count / 2];
}

/* From asking until the value is there, in us. */
static double
run_single(void)
{
	double times[SINGLES_MAX];
	const uint32_t count = bytes < UINT64_C(1) << 30 ? 5 : SINGLES_MAX;
	const struct copy_span span = {from, CHUNK};
	for (uint32_t i = 0; i < count; i++) {
		int64_t begin_ns = th_now_ns();
		gpu_hash_begin(batches[0]);
		TH_ASSERT(gpu_hash_add(batches[0], &span, 1) == 0);
		good(gpu_hash_launch(batches[0], stream, &err));
		MUST(cuda.cuStreamSynchronize(stream));
		compare(batches[0], 0, 0, CHUNK);
		times[i] = (double)(th_now_ns() - begin_ns) / 1e3;
	}
	return median(times, count);
}

static void
measure(uint32_t rounds, const char *name)
{
	static double rates[KINDS][ROUNDS_MAX];
	check_odd();
	run(COPY);
	MUST(cuda.cuMemsetD8(to, 0, bytes));
	run(COPY_HASHED);
	check_all();
	check_copied();
	run(DIGEST);
	check_all();
	for (uint32_t round = 0; round < rounds; round++)
		for (int i = 0; i < KINDS; i++) {
			int kind = round % 2 == 0 ? i : KINDS - 1 - i;
			rates[kind][round] = run((enum kind)kind);
		}
	printf("{\"device\": \"%s\", \"bytes\": %" PRIu64 ", \"rounds\": %u, \"digest\": %.0f, "
	       "\"copy\": %.0f, \"copy_hashed\": %.0f, \"one_chunk_us\": %.1f}\n",
		name, bytes, rounds, median(rates[DIGEST], rounds), median(rates[COPY], rounds),
		median(rates[COPY_HASHED], rounds), run_single());
}

static void
close_gpu(void)
{
	for (uint64_t i = 0; i * BATCH * CHUNK < bytes; i++)
		gpu_hash_batch_free(batches[i]);
	gpu_hash_close(hash);
	MUST(cuda.cuMemFree(from));
	MUST(cuda.cuMemFree(to));
	MUST(cuda.cuStreamDestroy(stream));
	free(content);
	cuda_close(&cuda);
}

int
main(int argc, char **argv)
{
	static struct machine machine;
	bool fake = argc > 1 && strcmp(argv[1], "--fake") == 0;
	char name[128] = "";
	uint64_t rounds = 9;
	argv += fake;
	argc -= fake;
	bytes = UINT64_C(4) << 30;
	if (argc > 3 || (argc > 1 && th_parse_size(argv[1], &bytes) < 0) ||
		(argc > 2 && th_parse_size(argv[2], &rounds) < 0) || rounds < 1 ||
		rounds > ROUNDS_MAX || bytes < 2 * CHUNK || bytes / CHUNK > 1024 * BATCH) {
		fprintf(stderr, "usage: gpu_digest_bench [--fake] [BYTES [ROUNDS]]; 8 MiB or more, "
				"at most 99 rounds\n");
		return 2;
	}
	bytes -= bytes % CHUNK;
	if (fake)
		machine_new(&machine, 1, 2 * bytes + (UINT64_C(16) << 20));
	int rc = open_gpu(name, sizeof(name));
	if (rc == 0) {
		fill();
		measure((uint32_t)rounds, name);
		close_gpu();
	}
	if (fake)
		machine_remove(&machine);
	return rc;
}
