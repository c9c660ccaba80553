/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/cuda/hash: the GPU's digests are the CPU's, of any length, anywhere, in any
 * pieces. The kernel's own source runs here, on the CPU; on a real GPU (gpus_here.h) its PTX does.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/name.h"
#include "tests/support/cuda/gpus_here.h"
#include "tests/support/cuda/people.h"
#include "tests/support/rng.h"
#include "transport/cuda/gpu_wire.h"
#include "transport/cuda/helper/gpu_hash.h"
#include "transport/cuda/helper/module.h"
#include "transport/hash/digest.h"

#define MIB ((size_t)1 << 20)
#define ROOM (16 * MIB)
#define CHUNK ((uint64_t)CHUNK_BYTES_MAX)

static struct machine *machine; /* NULL: the GPU is real */
static struct cuda cuda;
static struct th_err err;
static struct gpu_hash *hash;
static CUstream stream;
static CUdeviceptr memory; /* ROOM bytes */
static uint8_t *bytes;     /* the same */
static struct th_rng rng;

#define OK(call) cr_assert_eq((call), CUDA_SUCCESS, "%s", #call)
#define GOOD(call) cr_assert_eq((call), 0, "%s: %s", #call, err.text)

static void
setup(void)
{
	machine = gpus_here_open(1, 64 * MIB);
	cuda = cuda_ready(0);
	GOOD(gpu_hash_open(&cuda, 0, &hash, &err));
	OK(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	OK(test_cuda.cuMemAlloc(&memory, ROOM));
	bytes = malloc(ROOM);
	cr_assert(bytes);
	th_rng_init_number(&rng, 11);
	for (size_t i = 0; i < ROOM; i += 8) {
		uint64_t word = th_rng_u64(&rng);
		memcpy(bytes + i, &word, 8);
	}
	OK(test_cuda.cuMemcpyHtoD(memory, bytes, ROOM));
}

static void
teardown(void)
{
	gpu_hash_close(hash);
	OK(cuda.cuMemFree(memory));
	OK(cuda.cuStreamDestroy(stream));
	if (machine) {
		cr_assert_eq(machine_holds(machine, getpid(), HELD_MODULES), 0);
		cr_assert_eq(machine_holds(machine, getpid(), HELD_ALLOCATIONS), 0);
		cr_assert_eq(machine_holds(machine, getpid(), HELD_HOST), 0);
	}
	free(bytes);
	gpus_here_close();
}

/* Nobody counts what a real driver is asked for. */
static void
expect_calls(int call, unsigned count)
{
	if (machine)
		cr_assert_eq(machine_calls(machine, getpid(), call), count);
}

static struct gpu_hash_batch *
batch_of(uint32_t chunks)
{
	struct gpu_hash_batch *batch = NULL;
	GOOD(gpu_hash_batch_new(hash, chunks, &batch, &err));
	return batch;
}

static void
run(struct gpu_hash_batch *batch)
{
	const struct move move = gpu_hash_moves(batch);
	const char *call = "";
	OK(move_ask(&cuda, stream, NULL, &move, &call));
	GOOD(gpu_hash_launch(batch, stream, &err));
	OK(cuda.cuStreamSynchronize(stream));
}

/* What the CPU says of ranges of memory. */
static struct th_hash
expected(const struct copy_span *ranges, uint32_t count)
{
	struct digest digest;
	digest_init(&digest);
	for (uint32_t i = 0; i < count; i++)
		digest_update(&digest, bytes + (ranges[i].address - memory), ranges[i].bytes);
	return digest_final(&digest);
}

static void
expect(const struct gpu_hash_batch *batch, int number, const struct copy_span *ranges,
	uint32_t count)
{
	struct th_hash want = expected(ranges, count);
	struct th_hash have = gpu_hash_value(batch, (uint32_t)number);
	cr_assert(th_hash_equal(have, want), "chunk %d of %u ranges from %llu, %llu bytes", number,
		count, ranges[0].address - memory, (unsigned long long)ranges[0].bytes);
}

/* ---- values --------------------------------------------------------------------------------- */

Test(cuda_hash, value__edges_of_lengths_anywhere__is_the_cpus, .init = setup, .fini = teardown)
{
	static const uint64_t lengths[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63,
		64, 65, 127, 128, 129, 239, 240, 241, 242, 255, 256, 257, 511, 512, 513, 1023, 1024,
		1025, 1087, 1088, 1089, 2047, 2048, 2049, 63 * 1024, 63 * 1024 + 1, 65471, 65472,
		65473, 65535, 65536, 65537, 65536 + 240, 65536 + 241, 131071, 131072, 131073};
	static const uint64_t starts[] = {0, 1, 4, 7, 8, 9, 15, 16, 513};
	struct gpu_hash_batch *batch = batch_of(GPU_HASH_CHUNKS_MAX);
	for (size_t s = 0; s < sizeof(starts) / sizeof(starts[0]); s++) {
		const size_t count = sizeof(lengths) / sizeof(lengths[0]);
		struct copy_span ranges[sizeof(lengths) / sizeof(lengths[0])];
		gpu_hash_begin(batch);
		for (size_t i = 0; i < count; i++) {
			ranges[i] = (struct copy_span){memory + i * 200000 + starts[s], lengths[i]};
			cr_assert_eq(gpu_hash_add(batch, &ranges[i], 1), (int)i);
		}
		run(batch);
		for (size_t i = 0; i < count; i++)
			expect(batch, (int)i, &ranges[i], 1);
	}
	gpu_hash_batch_free(batch);
}

Test(cuda_hash, value__whole_chunks__is_the_cpus, .init = setup, .fini = teardown)
{
	const struct copy_span ranges[] = {{memory, CHUNK}, {memory + CHUNK, CHUNK - 1},
		{memory + 2 * CHUNK + 3, CHUNK - 65536 - 100}, {memory + 40, CHUNK}};
	struct gpu_hash_batch *batch = batch_of(4);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(gpu_hash_add(batch, &ranges[i], 1), i);
	run(batch);
	for (int i = 0; i < 4; i++)
		expect(batch, i, &ranges[i], 1);
	gpu_hash_batch_free(batch);
}

/* Returns how many; of all bytes together, each of which may be there twice. */
static uint32_t
random_ranges(struct copy_span *ranges, uint64_t all)
{
	static const uint32_t alignments[] = {1, 2, 4, 16, 512};
	uint64_t longest = UINT64_C(1) << (4 + th_rng_below(&rng, 18));
	uint32_t count = 0;
	while (all > 0 && count < GPU_RANGES_MAX) {
		uint64_t length = th_rng_below(&rng, longest + 1);
		uint64_t alignment = alignments[th_rng_below(&rng, 5)];
		uint64_t at = th_rng_below(&rng, ROOM - CHUNK) / alignment * alignment;
		if (length > all || count == GPU_RANGES_MAX - 1)
			length = all;
		if (th_rng_below(&rng, 4) == 0) /* behind the one before */
			at = count == 0
				     ? 0
				     : ranges[count - 1].address - memory + ranges[count - 1].bytes;
		if (at + length > ROOM)
			at = 0;
		ranges[count++] = (struct copy_span){memory + at, length};
		all -= length;
	}
	return count;
}

Test(cuda_hash, value__random_ranges__is_the_cpus, .init = setup, .fini = teardown)
{
	static struct copy_span ranges[8][GPU_RANGES_MAX];
	uint32_t counts[8], most = 0;
	struct gpu_hash_batch *batch = batch_of(8);
	for (int round = 0; round < 12; round++) {
		int numbers[8];
		gpu_hash_begin(batch);
		for (int i = 0; i < 8; i++) {
			uint64_t all = th_rng_below(&rng, 4) == 0 ? th_rng_below(&rng, 300)
								  : th_rng_below(&rng, 600000);
			counts[i] = random_ranges(ranges[i], all);
			most = counts[i] > most ? counts[i] : most;
			numbers[i] = gpu_hash_add(batch, ranges[i], counts[i]);
		}
		run(batch);
		cr_assert_eq(numbers[0], 0);
		for (int i = 0; i < 8; i++)
			if (numbers[i] >= 0)
				expect(batch, numbers[i], ranges[i], counts[i]);
	}
	cr_assert_eq(most, GPU_RANGES_MAX);
	gpu_hash_batch_free(batch);
}

Test(cuda_hash, value__chunk_of_many_ranges_on_gpu__is_the_cpus, .init = setup, .fini = teardown)
{
	static struct copy_span ranges[GPU_RANGES_MAX];
	struct gpu_hash_batch *batch = batch_of(1);
	for (uint32_t i = 0; i < GPU_RANGES_MAX; i++) /* no two meet, and no leaf ends with one */
		ranges[i] = (struct copy_span){
			memory + (GPU_RANGES_MAX - 1 - i) * UINT64_C(8200) + i % 32,
			CHUNK / GPU_RANGES_MAX - 1 - i % 2};
	for (int round = 0; round < 2; round++) { /* an emptied batch is as a new one */
		cr_assert_eq(gpu_hash_add(batch, ranges, GPU_RANGES_MAX), 0);
		cr_assert_eq(gpu_hash_add(batch, ranges, 1), -1);
		run(batch);
		expect(batch, 0, ranges, GPU_RANGES_MAX);
		gpu_hash_begin(batch);
	}
	gpu_hash_batch_free(batch);
}

Test(cuda_hash, value__bytes_at_both_ends_of_memory__reads_no_others, .init = setup,
	.fini = teardown)
{
	static const uint64_t lengths[] = {1, 17, 241, 1025, 65536, 65537};
	struct gpu_hash_batch *batch = batch_of(6);
	CUdeviceptr small[6];
	struct copy_span ranges[6];
	for (int i = 0; i < 6; i++) {
		OK(test_cuda.cuMemAlloc(&small[i], lengths[i] + 3));
		OK(test_cuda.cuMemcpyHtoD(small[i] + 3, bytes, lengths[i]));
		ranges[i] = (struct copy_span){small[i] + 3, lengths[i]};
		cr_assert_eq(gpu_hash_add(batch, &ranges[i], 1), i);
	}
	run(batch);
	for (int i = 0; i < 6; i++) {
		struct th_hash want = digest_of(bytes, lengths[i]);
		cr_assert(th_hash_equal(gpu_hash_value(batch, (uint32_t)i), want));
		OK(cuda.cuMemFree(small[i]));
	}
	gpu_hash_batch_free(batch);
}

Test(cuda_hash, value__what_the_stream_writes_before__is_hashed, .init = setup, .fini = teardown)
{
	struct gpu_hash_batch *batch = batch_of(1);
	const struct copy_span range = {memory, 100000};
	OK(cuda.cuMemcpyDtoDAsync(memory, memory + MIB, 100000, stream));
	cr_assert_eq(gpu_hash_add(batch, &range, 1), 0);
	run(batch);
	struct th_hash want = digest_of(bytes + MIB, 100000);
	cr_assert(th_hash_equal(gpu_hash_value(batch, 0), want));
	gpu_hash_batch_free(batch);
}

Test(cuda_hash, batch__without_bytes__needs_no_launch, .init = setup, .fini = teardown)
{
	struct gpu_hash_batch *batch = batch_of(2);
	const struct copy_span range = {memory, 0};
	cr_assert_eq(gpu_hash_add(batch, NULL, 0), 0);
	cr_assert_eq(gpu_hash_add(batch, &range, 1), 1);
	run(batch);
	struct th_hash want = digest_of("", 0);
	cr_assert(th_hash_equal(gpu_hash_value(batch, 0), want));
	cr_assert(th_hash_equal(gpu_hash_value(batch, 1), want));
	expect_calls(CALL_cuLaunchKernel, 0);
	gpu_hash_batch_free(batch);
}

Test(cuda_hash, add__batch_without_room__says_so, .init = setup, .fini = teardown)
{
	static struct copy_span ranges[GPU_RANGES_MAX];
	for (uint32_t i = 0; i < GPU_RANGES_MAX; i++)
		ranges[i] = (struct copy_span){memory + i * UINT64_C(100), 10};
	struct gpu_hash_batch *batch = batch_of(3);
	cr_assert_eq(gpu_hash_add(batch, ranges, GPU_RANGES_MAX), 0);
	cr_assert_eq(gpu_hash_add(batch, ranges, GPU_RANGES_MAX), -1);
	cr_assert_eq(gpu_hash_add(batch, ranges, 100), 1);
	cr_assert_eq(gpu_hash_add(batch, ranges, 1), 2);
	cr_assert_eq(gpu_hash_add(batch, ranges, 1), -1);
	run(batch);
	expect(batch, 0, ranges, GPU_RANGES_MAX);
	expect(batch, 1, ranges, 100);
	expect(batch, 2, ranges, 1);
	gpu_hash_batch_free(batch);
}

/* ---- copies --------------------------------------------------------------------------------- */

/* What lies in the second half of memory now is what is expected of it. */
static void
expect_copied(const struct copy_span *to, uint32_t num_to, const struct copy_span *from,
	uint32_t num_from)
{
	static uint8_t want[CHUNK_BYTES_MAX], have[CHUNK_BYTES_MAX];
	size_t at = 0, all = 0;
	for (uint32_t i = 0; i < num_from; i++) {
		memcpy(want + all, bytes + (from[i].address - memory), from[i].bytes);
		all += from[i].bytes;
	}
	for (uint32_t i = 0; i < num_to; i++) {
		OK(test_cuda.cuMemcpyDtoH(have + at, to[i].address, to[i].bytes));
		at += to[i].bytes;
	}
	cr_assert_eq(at, all);
	cr_assert_eq(memcmp(have, want, all), 0);
}

Test(cuda_hash, copy__plain_leaves__are_read_once, .init = setup, .fini = teardown)
{
	/* Of the cuts on either side none is within a leaf but those that lie behind each other. */
	const struct copy_span from[] = {
		{memory, 100}, {memory + 100, CHUNK / 2 - 100}, {memory + 5 * MIB, CHUNK / 2}};
	const struct copy_span to[] = {{memory + 8 * MIB, CHUNK - MIB}, {memory + 9 * MIB - 64, 0},
		{memory + 14 * MIB + 16, MIB}};
	struct gpu_hash_batch *batch = batch_of(1);
	cr_assert_eq(gpu_hash_add_copy(batch, to, 3, from, 3), 0);
	run(batch);
	expect(batch, 0, from, 3);
	expect_copied(to, 3, from, 3);
	expect_calls(CALL_cuMemcpyDtoDAsync, 0);
	gpu_hash_batch_free(batch);
}

Test(cuda_hash, copy__leaves_that_are_not_plain__are_moved_first, .init = setup, .fini = teardown)
{
	/* Six leaves, of which one is cut, and a short one. */
	const struct copy_span from[] = {{memory, 200000}, {memory + MIB + 8, 193216 + 9}};
	const struct copy_span to = {memory + 8 * MIB, 393216 + 9};
	struct gpu_hash_batch *batch = batch_of(1);
	cr_assert_eq(gpu_hash_add_copy(batch, &to, 1, from, 2), 0);
	run(batch);
	expect(batch, 0, from, 2);
	expect_copied(&to, 1, from, 2);
	expect_calls(CALL_cuMemcpyDtoDAsync, 2);
	gpu_hash_batch_free(batch);
}

/* The same bytes, cut anew, and where nothing else lies; from is left alone. */
static uint32_t
random_targets(struct copy_span *ranges, uint64_t all)
{
	uint64_t at = ROOM / 2 + th_rng_below(&rng, 33);
	uint32_t count = 0;
	while (all > 0) {
		uint64_t length = th_rng_below(&rng, 2) ? th_rng_below(&rng, 200)
							: th_rng_below(&rng, 300000);
		if (length > all || count == GPU_RANGES_MAX - 1)
			length = all;
		ranges[count++] = (struct copy_span){memory + at, length};
		at += length + th_rng_below(&rng, 2) * 16;
		all -= length;
	}
	return count;
}

Test(cuda_hash, copy__random_ranges__arrives_and_is_hashed, .init = setup, .fini = teardown)
{
	static struct copy_span from[GPU_RANGES_MAX], to[GPU_RANGES_MAX];
	struct gpu_hash_batch *batch = batch_of(1);
	for (int round = 0; round < 40; round++) {
		uint64_t all = th_rng_below(&rng, 700000);
		uint32_t num_from = random_ranges(from, all), num_to = random_targets(to, all);
		for (uint32_t i = 0; i < num_from; i++) /* of the lower half */
			from[i].address = memory + (from[i].address - memory) % (ROOM / 2 - MIB);
		gpu_hash_begin(batch);
		cr_assert_eq(gpu_hash_add_copy(batch, to, num_to, from, num_from), 0);
		run(batch);
		expect(batch, 0, from, num_from);
		expect_copied(to, num_to, from, num_from);
	}
	gpu_hash_batch_free(batch);
}

/* ---- what is refused, and what fails -------------------------------------------------------- */

static void
expect_refusal(int code, const char *sentence)
{
	struct gpu_hash *other = NULL;
	cr_assert_eq(gpu_hash_open(&cuda, 0, &other, &err), code, "%d: %s", err.code, err.text);
	cr_assert(strstr(err.text, sentence), "%s", err.text);
	cr_assert_null(other);
}

Test(cuda_hash, open__old_gpu__is_refused, .init = setup, .fini = teardown)
{
	ONLY_ON_FILES();
	machine->page->devices[0].capability = 61;
	expect_refusal(TH_E_NOT_AVAILABLE,
		"cannot make digests: it is of compute capability 6, 7.0 is needed");
}

Test(cuda_hash, open__driver_that_does_not_compile__is_refused, .init = setup, .fini = teardown)
{
	ONLY_ON_FILES();
	int plan = machine_plan(machine, FAULT_RESULT, 0, CALL_cuModuleLoadData, 0,
		CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
	expect_refusal(
		TH_E_NOT_AVAILABLE, "cuModuleLoadData says CUDA_ERROR_JIT_COMPILER_NOT_FOUND");
	machine_lift(machine, plan);
	plan = machine_plan(
		machine, FAULT_RESULT, 0, CALL_cuModuleGetFunction, 0, CUDA_ERROR_NOT_FOUND);
	expect_refusal(TH_E_NOT_AVAILABLE, "cuModuleGetFunction says CUDA_ERROR_NOT_FOUND");
	machine_lift(machine, plan);
	plan = machine_plan(
		machine, FAULT_RESULT, 0, CALL_cuModuleLoadData, 0, CUDA_ERROR_OUT_OF_MEMORY);
	expect_refusal(-EIO, "CUDA_ERROR_OUT_OF_MEMORY");
	machine_lift(machine, plan);
}

Test(cuda_hash, batch_new__no_memory__leaves_nothing, .init = setup, .fini = teardown)
{
	ONLY_ON_FILES();
	struct gpu_hash_batch *batch = NULL;
	int plan = machine_plan(
		machine, FAULT_RESULT, 0, CALL_cuMemHostRegister, 0, CUDA_ERROR_OUT_OF_MEMORY);
	cr_assert_eq(gpu_hash_batch_new(hash, 1, &batch, &err), -ENOMEM);
	cr_assert(strstr(err.text, "cuMemHostRegister says CUDA_ERROR_OUT_OF_MEMORY"), "%s",
		err.text);
	machine_lift(machine, plan);
	plan = machine_plan(
		machine, FAULT_RESULT, 0, CALL_cuMemHostGetDevicePointer, 0, CUDA_ERROR_UNKNOWN);
	cr_assert_eq(gpu_hash_batch_new(hash, 1, &batch, &err), -EIO);
	machine_lift(machine, plan);
	cr_assert_null(batch);
}

/* A GPU may still write there. */
Test(cuda_hash, table__that_the_driver_does_not_unpin__stays_mapped, .init = setup,
	.fini = teardown)
{
	ONLY_ON_FILES();
	struct gpu_table table;
	unsigned char there;
	cr_assert_eq(gpu_table_new(&cuda, 4096, "nothing", &table, &err), 0, "%s", err.text);
	int plan = machine_plan(
		machine, FAULT_RESULT, 0, CALL_cuMemHostUnregister, 0, CUDA_ERROR_INVALID_VALUE);
	gpu_table_free(&cuda, &table);
	cr_assert_eq(machine_met(machine, plan), 1);
	cr_assert_eq(mincore(table.host, 4096, &there), 0);
	machine_lift(machine, plan);
	gpu_table_free(&cuda, &table);
	cr_assert_lt(mincore(table.host, 4096, &there), 0);
}

Test(cuda_hash, launch__call_that_fails__is_said, .init = setup, .fini = teardown)
{
	ONLY_ON_FILES();
	struct gpu_hash_batch *batch = batch_of(1);
	const struct copy_span from = {memory + 1, 100000};
	cr_assert_eq(gpu_hash_add(batch, &from, 1), 0);
	int plan = machine_plan(
		machine, FAULT_RESULT, 0, CALL_cuLaunchKernel, 0, CUDA_ERROR_LAUNCH_FAILED);
	cr_assert_eq(gpu_hash_launch(batch, stream, &err), -EIO);
	cr_assert(strstr(err.text, "cuLaunchKernel says CUDA_ERROR_LAUNCH"), "%s", err.text);
	machine_lift(machine, plan);
	run(batch);
	expect(batch, 0, &from, 1);
	gpu_hash_batch_free(batch);
}

Test(cuda_hash, launch__memory_that_is_gone__fails_the_stream, .init = setup, .fini = teardown)
{
	ONLY_ON_FILES();
	struct gpu_hash_batch *batch = batch_of(1);
	CUdeviceptr gone = 0;
	OK(test_cuda.cuMemAlloc(&gone, MIB));
	OK(cuda.cuMemFree(gone));
	const struct copy_span range = {gone, 100000};
	cr_assert_eq(gpu_hash_add(batch, &range, 1), 0);
	GOOD(gpu_hash_launch(batch, stream, &err));
	cr_assert_eq(cuda.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	/* As after this error on a GPU: all that is left is to end. */
	OK(cuda.cuStreamDestroy(stream));
	OK(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	gpu_hash_batch_free(batch);
}
