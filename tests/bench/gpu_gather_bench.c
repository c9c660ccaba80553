/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_gather_bench - small tensors over the bus, as a GPU's process copies them
 * (transport/cuda/helper/gpu_move.h): by one launch, and by a call of the driver each.
 *
 *   gpu_gather_bench [--fake]
 *
 * Bytes are compared first. Prints an object of JSON: for both directions and some sizes of ranges,
 * medians in us from asking for a chunk (4 MiB, or 500 ranges) until it is there. Where there is no
 * GPU it says so and exits with 77; --fake as of gpu_digest_bench.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/test_calls.h"
#include "transport/cuda/helper/gpu_move.h"
#include "transport/part/chunk.h"

#define NOT_HERE 77
#define RANGES 500u
#define APART 64u /* between one range and the next */
#define ROOM (CHUNK_BYTES_MAX + 512u * APART)
#define ROUNDS 15

static struct cuda cuda;
static struct th_err err;
static struct gpu_gather *gather;
static struct gpu_gather_batch *batch;
static CUstream stream;
static CUdeviceptr gpu, host_on_gpu;
static uint8_t *host;
static struct copy_span spans[RANGES];

static void
must(CUresult result, const char *call)
{
	if (result == CUDA_SUCCESS)
		return;
	fprintf(stderr, "gpu_gather_bench: %s says %s\n", call, cuda_result_name(&cuda, result));
	exit(1);
}
#define MUST(call) must((call), #call)

static int
open_gpu(void)
{
	CUcontext context = NULL;
	int count = 0;
	if (cuda_open(&cuda, &err) < 0 || cuda.cuInit(0) != CUDA_SUCCESS ||
		cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
		return NOT_HERE;
	test_calls_find(&cuda);
	MUST(cuda.cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuda.cuCtxSetCurrent(context));
	if (gpu_gather_open(&cuda, 0, &gather, &err) < 0 ||
		gpu_gather_batch_new(gather, &batch, &err) < 0)
		return NOT_HERE;
	MUST(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	MUST(test_cuda.cuMemAlloc(&gpu, ROOM));
	host = aligned_alloc(4096, ROOM);
	TH_ASSERT(host);
	MUST(cuda.cuMemHostRegister(host, ROOM, CU_MEMHOSTREGISTER_DEVICEMAP));
	MUST(cuda.cuMemHostGetDevicePointer(&host_on_gpu, host, 0));
	return 0;
}

/* In us. */
static double
run(enum gpu_run_op op, uint64_t bytes, bool launches)
{
	const struct move move = {.op = op,
		.to = spans,
		.from = spans,
		.bytes = bytes,
		.data = host,
		.data_on_gpu = host_on_gpu};
	const char *call = "";
	int64_t begin_ns = th_now_ns();
	gpu_gather_begin(batch);
	must(move_ask(&cuda, stream, launches ? batch : NULL, &move, &call), call);
	TH_ASSERT(gpu_gather_launch(batch, stream, &err) == 0);
	MUST(cuda.cuStreamSynchronize(stream));
	return (double)(th_now_ns() - begin_ns) / 1e3;
}

/* There by calls and back by a launch, and the other way round. */
static void
check(uint64_t bytes)
{
	for (int launches = 0; launches < 2; launches++) {
		for (uint64_t i = 0; i < bytes; i++)
			host[i] = (uint8_t)(i * 7 + i / 251);
		run(GPU_WRITE, bytes, launches == 1);
		memset(host, 0, bytes);
		run(GPU_READ, bytes, launches == 0);
		for (uint64_t i = 0; i < bytes; i++)
			TH_ASSERT(host[i] == (uint8_t)(i * 7 + i / 251));
	}
}

static int
by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static double
median(enum gpu_run_op op, uint64_t bytes, bool launches)
{
	double times[ROUNDS];
	for (int i = 0; i < ROUNDS; i++)
		times[i] = run(op, bytes, launches);
	qsort(times, ROUNDS, sizeof(times[0]), by_size);
	return times[ROUNDS / 2];
}

static void
measure(uint64_t bytes, bool is_last)
{
	uint64_t count = CHUNK_BYTES_MAX / bytes < RANGES ? CHUNK_BYTES_MAX / bytes : RANGES;
	for (uint64_t i = 0; i < count; i++)
		spans[i] = (struct copy_span){gpu + i * (bytes + APART), bytes};
	check(count * bytes);
	printf("\"%llu\": {\"ranges\": %llu, ", (unsigned long long)bytes,
		(unsigned long long)count);
	printf("\"read_calls\": %.1f, ", median(GPU_READ, count * bytes, false));
	printf("\"read_launch\": %.1f, ", median(GPU_READ, count * bytes, true));
	printf("\"write_calls\": %.1f, ", median(GPU_WRITE, count * bytes, false));
	printf("\"write_launch\": %.1f}%s", median(GPU_WRITE, count * bytes, true),
		is_last ? "}\n" : ", ");
}

int
main(int argc, char **argv)
{
	static const uint64_t sizes[] = {64, 1000, 8192, 8193, 32768, MOVE_SMALL_BYTES - 16};
	static struct machine machine;
	bool fake = argc > 1 && strcmp(argv[1], "--fake") == 0;
	if (fake)
		machine_new(&machine, 1, UINT64_C(64) << 20);
	int rc = open_gpu();
	if (rc == 0) {
		printf("{");
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			measure(sizes[i], i + 1 == sizeof(sizes) / sizeof(sizes[0]));
		gpu_gather_batch_free(batch);
		gpu_gather_close(gather);
		MUST(cuda.cuMemHostUnregister(host));
		MUST(cuda.cuMemFree(gpu));
		MUST(cuda.cuStreamDestroy(stream));
		free(host);
		cuda_close(&cuda);
	} else {
		fprintf(stderr, "gpu_gather_bench: there is no GPU to measure: %s\n", err.text);
	}
	if (fake)
		machine_remove(&machine);
	return rc;
}
