/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/cuda/gather: ranges arrive whole, and no byte beside them changes, wherever
 * they lie. The kernel's own source runs here, on the CPU; on a real GPU (gpus_here.h) its PTX.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/cuda/gpus_here.h"
#include "tests/support/cuda/people.h"
#include "tests/support/rng.h"
#include "transport/cuda/helper/gather.h"

#define MIB ((size_t)1 << 20)
#define ROOM (4 * MIB)
#define PAGE 4096u

static struct machine *machine; /* NULL: the GPU is real */
static struct cuda cuda;
static struct th_err err;
static struct gpu_gather *gather;
static struct gpu_gather_batch *batch;
static CUstream stream;
static CUdeviceptr from, to;     /* ROOM bytes each */
static uint8_t *source, *target; /* what from holds, and what to should hold */
static struct th_rng rng;

#define OK(call) cr_assert_eq((call), CUDA_SUCCESS, "%s", #call)
#define GOOD(call) cr_assert_eq((call), 0, "%s: %s", #call, err.text)

static void
fill(uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i += 8) {
		uint64_t word = th_rng_u64(&rng);
		memcpy(bytes + i, &word, 8);
	}
}

static void
setup(void)
{
	machine = gpus_here_open(1, 64 * MIB);
	cuda = cuda_ready(0);
	GOOD(gpu_gather_open(&cuda, 0, &gather, &err));
	GOOD(gpu_gather_batch_new(gather, &batch, &err));
	OK(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	OK(test_cuda.cuMemAlloc(&from, ROOM));
	OK(test_cuda.cuMemAlloc(&to, ROOM));
	source = aligned_alloc(PAGE, ROOM);
	target = aligned_alloc(PAGE, ROOM);
	cr_assert(source && target);
	th_rng_init_number(&rng, 11);
	fill(source, ROOM);
	fill(target, ROOM);
	OK(test_cuda.cuMemcpyHtoD(from, source, ROOM));
	OK(test_cuda.cuMemcpyHtoD(to, target, ROOM));
}

static void
teardown(void)
{
	gpu_gather_batch_free(batch);
	gpu_gather_close(gather);
	OK(cuda.cuMemFree(from));
	OK(cuda.cuMemFree(to));
	OK(cuda.cuStreamDestroy(stream));
	if (machine) {
		cr_assert_eq(machine_holds(machine, getpid(), HELD_MODULES), 0);
		cr_assert_eq(machine_holds(machine, getpid(), HELD_ALLOCATIONS), 0);
		cr_assert_eq(machine_holds(machine, getpid(), HELD_HOST), 0);
	}
	free(source);
	free(target);
	gpus_here_close();
}

static void
add(uint64_t to_at, uint64_t from_at, uint64_t bytes)
{
	cr_assert(gpu_gather_add(batch, to + to_at, from + from_at, bytes));
	memcpy(target + to_at, source + from_at, bytes);
}

static void
run(void)
{
	GOOD(gpu_gather_launch(batch, stream, &err));
	OK(cuda.cuStreamSynchronize(stream));
	gpu_gather_begin(batch);
}

/* All of it, so also what lies between the ranges. */
static void
expect_target(void)
{
	static uint8_t have[ROOM];
	OK(test_cuda.cuMemcpyDtoH(have, to, ROOM));
	for (size_t i = 0; i < ROOM; i++)
		cr_assert_eq(have[i], target[i], "byte %zu", i);
}

/* So far. Nobody counts what a real driver is asked for. */
static void
expect_launches(unsigned count)
{
	if (machine)
		cr_assert_eq(machine_calls(machine, getpid(), CALL_cuLaunchKernel), count);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

Test(cuda_gather, copy__every_alignment_of_both_ends__arrives_and_nothing_else, .init = setup,
	.fini = teardown)
{
	static const uint64_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 127, 130};
	for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
		for (uint64_t i = 0; i < 256; i++)
			add((l * 256 + i) * 256 + i % 16, i * 512 + i / 16, lengths[l]);
		run();
	}
	expect_target();
}

Test(cuda_gather, copy__edges_of_lengths_anywhere__arrives_and_nothing_else, .init = setup,
	.fini = teardown)
{
	static const uint64_t lengths[] = {0, 1, 240, 511, 512, 513, 2047, 2048, 2049, 4096,
		GPU_GATHER_PIECE_BYTES - 1, GPU_GATHER_PIECE_BYTES, GPU_GATHER_PIECE_BYTES + 1,
		3 * GPU_GATHER_PIECE_BYTES + 5};
	static const uint64_t starts[] = {0, 1, 8, 15, 16, 48, 112, 127};
	uint64_t at = 0;
	for (size_t s = 0; s < sizeof(starts) / sizeof(starts[0]); s++) {
		for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
			add(at + starts[s], at / 2 + starts[(s + l) % 8], lengths[l]);
			at += (lengths[l] + 300) / 128 * 128;
		}
	}
	run();
	expect_target();
	expect_launches(1);
}

Test(cuda_gather, copy__random_ranges__arrives_and_nothing_else, .init = setup, .fini = teardown)
{
	for (int round = 0; round < 20; round++) {
		uint64_t at = th_rng_below(&rng, 100);
		uint32_t count = (uint32_t)th_rng_below(&rng, 600);
		for (uint32_t i = 0; i < count; i++) {
			uint64_t bytes = th_rng_below(&rng, th_rng_below(&rng, 8) ? 100 : 20000);
			if (at + bytes > ROOM)
				break;
			add(at, th_rng_below(&rng, ROOM - bytes), bytes);
			at += bytes + th_rng_below(&rng, 3) * th_rng_below(&rng, 40);
		}
		run();
	}
	expect_target();
}

Test(cuda_gather, copy__ranges_at_both_ends_of_memory__touches_no_other, .init = setup,
	.fini = teardown)
{
	static const uint64_t lengths[] = {1, 13, 17, 100, 2049, 65536};
	for (int i = 0; i < 6; i++) {
		CUdeviceptr small = 0, other = 0;
		static uint8_t have[65536];
		OK(test_cuda.cuMemAlloc(&small, lengths[i] + 3));
		OK(test_cuda.cuMemAlloc(&other, lengths[i] + 8));
		OK(test_cuda.cuMemcpyHtoD(small + 3, source, lengths[i]));
		cr_assert(gpu_gather_add(batch, other + 8, small + 3, lengths[i]));
		run();
		OK(test_cuda.cuMemcpyDtoH(have, other + 8, lengths[i]));
		cr_assert_eq(memcmp(have, source, lengths[i]), 0);
		OK(cuda.cuMemFree(small));
		OK(cuda.cuMemFree(other));
	}
}

Test(cuda_gather, copy__host_memory__both_ways, .init = setup, .fini = teardown)
{
	CUdeviceptr host = 0;
	OK(cuda.cuMemHostRegister(target, ROOM, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuda.cuMemHostGetDevicePointer(&host, target, 0));
	for (uint64_t i = 0; i < 500; i++)
		cr_assert(gpu_gather_add(batch, host + i * 1000, from + i * 1024 + i % 7, 1000));
	run();
	for (uint64_t i = 0; i < 500; i++)
		cr_assert_eq(memcmp(target + i * 1000, source + i * 1024 + i % 7, 1000), 0);
	for (uint64_t i = 0; i < 500; i++)
		cr_assert(gpu_gather_add(batch, to + i * 1024, host + i * 1000, 1000));
	run();
	OK(test_cuda.cuMemcpyDtoH(source, to, 500 * 1024));
	for (uint64_t i = 0; i < 500; i++)
		cr_assert_eq(memcmp(source + i * 1024, target + i * 1000, 1000), 0);
	OK(cuda.cuMemHostUnregister(target));
}

/* ---- batches -------------------------------------------------------------------------------- */

Test(cuda_gather, launch__again__copies_only_what_was_added_since, .init = setup, .fini = teardown)
{
	GOOD(gpu_gather_launch(batch, stream, &err));
	expect_launches(0); /* nothing to do */
	add(5, 7, 1000);
	GOOD(gpu_gather_launch(batch, stream, &err));
	OK(cuda.cuStreamSynchronize(stream));
	/* Were it copied again, that would be seen. */
	memset(target + 5, 1, 1000);
	OK(test_cuda.cuMemcpyHtoD(to + 5, target + 5, 1000));
	add(9000, 3, 50);
	GOOD(gpu_gather_launch(batch, stream, &err));
	GOOD(gpu_gather_launch(batch, stream, &err));
	OK(cuda.cuStreamSynchronize(stream));
	expect_target();
	expect_launches(2);
}

Test(cuda_gather, add__batch_without_room__says_so, .init = setup, .fini = teardown)
{
	for (uint64_t i = 0; i < GPU_GATHER_PIECES_MAX - 2; i++)
		add(i * 16, i * 32, 9);
	cr_assert_not(gpu_gather_add(batch, to, from, 2 * GPU_GATHER_PIECE_BYTES + 1));
	add(1 * MIB, 2 * MIB, 2 * GPU_GATHER_PIECE_BYTES);
	cr_assert_not(gpu_gather_add(batch, to, from, 1));
	run();
	expect_target();
	add(3 * MIB, 0, 100);
	run();
	expect_target();
}

/* ---- what is refused, and what fails -------------------------------------------------------- */

Test(cuda_gather, open__gpu_or_driver_that_cannot__is_refused, .init = setup, .fini = teardown)
{
	ONLY_ON_FILES();
	struct gpu_gather *other = NULL;
	machine->page->devices[0].capability = 61;
	cr_assert_eq(gpu_gather_open(&cuda, 0, &other, &err), TH_E_NOT_AVAILABLE);
	cr_assert(strstr(err.text, "cannot copy many ranges at once: it is of compute capability "
				   "6, 7.0 is needed"),
		"%s", err.text);
	machine->page->devices[0].capability = 90;
	int plan = machine_plan(machine, FAULT_RESULT, 0, CALL_cuModuleLoadData, 0,
		CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
	cr_assert_eq(gpu_gather_open(&cuda, 0, &other, &err), TH_E_NOT_AVAILABLE);
	machine_lift(machine, plan);
	cr_assert_null(other);
}

Test(cuda_gather, batch_new__no_memory__leaves_nothing, .init = setup, .fini = teardown)
{
	ONLY_ON_FILES();
	struct gpu_gather_batch *other = NULL;
	int held = machine_holds(machine, getpid(), HELD_HOST);
	int plan = machine_plan(
		machine, FAULT_RESULT, 0, CALL_cuMemHostRegister, 0, CUDA_ERROR_OUT_OF_MEMORY);
	cr_assert_eq(gpu_gather_batch_new(gather, &other, &err), -ENOMEM);
	cr_assert(strstr(err.text, "cuMemHostRegister says CUDA_ERROR_OUT_OF_MEMORY"), "%s",
		err.text);
	machine_lift(machine, plan);
	plan = machine_plan(
		machine, FAULT_RESULT, 0, CALL_cuMemHostGetDevicePointer, 0, CUDA_ERROR_UNKNOWN);
	cr_assert_eq(gpu_gather_batch_new(gather, &other, &err), -EIO);
	machine_lift(machine, plan);
	cr_assert_null(other);
	cr_assert_eq(machine_holds(machine, getpid(), HELD_HOST), held);
}

Test(cuda_gather, launch__call_that_fails__is_said, .init = setup, .fini = teardown)
{
	ONLY_ON_FILES();
	add(0, 0, 100);
	int plan = machine_plan(
		machine, FAULT_RESULT, 0, CALL_cuLaunchKernel, 0, CUDA_ERROR_LAUNCH_FAILED);
	cr_assert_eq(gpu_gather_launch(batch, stream, &err), -EIO);
	cr_assert(strstr(err.text, "cuLaunchKernel says CUDA_ERROR_LAUNCH"), "%s", err.text);
	machine_lift(machine, plan);
	run();
	expect_target();
}

static void
expect_stream_fails(void)
{
	GOOD(gpu_gather_launch(batch, stream, &err));
	cr_assert_eq(cuda.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	/* As after this error on a GPU: all that is left is to end. */
	OK(cuda.cuStreamDestroy(stream));
	OK(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	gpu_gather_begin(batch);
}

Test(cuda_gather, launch__memory_that_the_gpu_does_not_reach__fails_the_stream, .init = setup,
	.fini = teardown)
{
	ONLY_ON_FILES();
	CUdeviceptr gone = 0;
	OK(test_cuda.cuMemAlloc(&gone, MIB));
	OK(cuda.cuMemFree(gone));
	cr_assert(gpu_gather_add(batch, to, gone, 100));
	expect_stream_fails();
	/* Pinned, and even at its own address: but not mapped. */
	OK(cuda.cuMemHostRegister(source, ROOM, CU_MEMHOSTREGISTER_PORTABLE));
	cr_assert(gpu_gather_add(batch, to, (CUdeviceptr)(uintptr_t)source, 100));
	expect_stream_fails();
	OK(cuda.cuMemHostUnregister(source));
}
