/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_helper_small_test - the process of one GPU: many small ranges are one launch, and a call of
 * the driver each where that cannot be.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "ipc/base/name.h"
#include "tests/support/cuda/helper_rig.h"
#include "transport/cuda/helper/gpu_move.h"
#include "transport/hash/digest.h"

#define MIB ((uint64_t)1 << 20)
#define WORKER 7u
#define OTHER 8u
#define RANGES 500u
#define STEP (RIG_PIECE_BYTES / 512)

static struct machine machine;
static struct rig rig;
static struct rig_worker worker, other;
static struct gpu_range from[RANGES], to[RANGES];
static uint64_t bytes; /* of all ranges */

/* Of some bytes less than STEP each, all anywhere; as many on both sides, cut differently. */
static void
make_ranges(void)
{
	bytes = 0;
	for (uint32_t i = 0; i < RANGES; i++) {
		from[i] = (struct gpu_range){WORKER, 0, i * STEP + i % 19, STEP - 40 - i % 37};
		bytes += from[i].bytes;
	}
	for (uint32_t i = 0; i < RANGES; i++) {
		uint64_t part = from[RANGES - 1 - i].bytes;
		to[i] = (struct gpu_range){OTHER, 0, i * STEP + 3 + i % 16, part};
	}
}

static void
open_workers(void)
{
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	other = rig_worker_new(CUDA_KIND_CHUNKS, 0, 1);
	rig_worker_fill(&worker, 0, 1);
	rig_worker_fill(&other, 0, 2);
	rig_worker_open(&worker, &rig, WORKER);
	rig_worker_open(&other, &rig, OTHER);
	make_ranges();
}

static void
setup(void)
{
	machine_new(&machine, 1, 64 * MIB);
	rig_start(&rig, &machine, 0);
	open_workers();
}

/* Another process, with these flags. */
static struct gpu_ready
start_again(uint32_t flags)
{
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	rig_worker_kill(&worker);
	rig_worker_kill(&other);
	struct gpu_ready ready = rig_start_as(&rig, &machine, 0, flags);
	open_workers();
	return ready;
}

static void
teardown(void)
{
	rig_worker_kill(&worker);
	rig_worker_kill(&other);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	cr_assert_eq(machine_used(&machine, 0), 0);
	machine_remove(&machine);
}

static unsigned
count(int call)
{
	return machine_calls(&machine, rig.pid, call);
}

static unsigned
copies(void)
{
	return count(CALL_cuMemcpyDtoHAsync) + count(CALL_cuMemcpyHtoDAsync) +
	       count(CALL_cuMemcpyDtoDAsync);
}

static struct gpu_done
done(void)
{
	struct gpu_done got = rig_done(&rig);
	cr_assert_eq(got.code, 0, "%s", got.text);
	return got;
}

/* The bytes of from, one range behind the other. */
static const uint8_t *
wanted(void)
{
	static uint8_t data[RIG_PIECE_BYTES];
	uint64_t at = 0;
	for (uint32_t i = 0; i < RANGES; i++)
		for (uint64_t j = 0; j < from[i].bytes; j++)
			data[at++] = rig_byte(1, from[i].at + j);
	return data;
}

/* They lie in to, and between its ranges is what was there. */
static void
expect_in_to(void)
{
	static uint8_t piece[RIG_PIECE_BYTES];
	const uint8_t *data = wanted();
	for (uint64_t i = 0; i < RIG_PIECE_BYTES; i++)
		piece[i] = rig_byte(2, i);
	for (uint32_t i = 0; i < RANGES; i++) {
		memcpy(piece + to[i].at, data, to[i].bytes);
		data += to[i].bytes;
	}
	struct th_hash have = rig_worker_digest(&other, 0, 0, RIG_PIECE_BYTES);
	cr_assert(th_hash_equal(have, digest_of(piece, RIG_PIECE_BYTES)));
}

static void
read_and_write(bool hashes)
{
	struct th_hash want = digest_of(wanted(), bytes);
	rig_run(&rig, GPU_READ, 77, NULL, 0, from, RANGES, hashes);
	struct gpu_done got = done();
	cr_assert_eq(memcmp(rig.area + 77, wanted(), bytes), 0);
	cr_assert(rig.area[76] == 0 && rig.area[77 + bytes] == 0, "no byte more");
	cr_assert(!hashes || th_hash_equal(got.digests[0], want));
	rig_run(&rig, GPU_WRITE, 77, to, RANGES, NULL, 0, hashes);
	got = done();
	cr_assert(!hashes || th_hash_equal(got.digests[0], want));
	expect_in_to();
}

static void
copy_within(bool hashes)
{
	rig_run(&rig, GPU_COPY, 0, to, RANGES, from, RANGES, hashes);
	struct gpu_done got = done();
	cr_assert(!hashes || th_hash_equal(got.digests[0], digest_of(wanted(), bytes)));
	expect_in_to();
}

/* ---- by a launch ---------------------------------------------------------------------------- */

Test(gpu_helper_small, read_write__are_a_launch_each, .init = setup, .fini = teardown)
{
	read_and_write(false);
	cr_assert_eq(count(CALL_cuLaunchKernel), 2);
	cr_assert_eq(copies(), 0);
}

Test(gpu_helper_small, read_write__hashed__what_is_written_is_hashed_behind_it, .init = setup,
	.fini = teardown)
{
	read_and_write(true);
	cr_assert_eq(count(CALL_cuLaunchKernel), 3);
	cr_assert_eq(copies(), 0);
}

Test(gpu_helper_small, copy__is_a_launch, .init = setup, .fini = teardown)
{
	copy_within(false);
	cr_assert_eq(count(CALL_cuLaunchKernel), 1);
	cr_assert_eq(copies(), 0);
}

Test(gpu_helper_small, copy__hashed__is_two_launches, .init = setup, .fini = teardown)
{
	copy_within(true);
	cr_assert_eq(count(CALL_cuLaunchKernel), 2);
	cr_assert_eq(copies(), 0);
}

Test(gpu_helper_small, all__digests_by_the_cpu__are_launches_too, .init = setup, .fini = teardown)
{
	start_again(GPU_HASH_ON_CPU);
	copy_within(true); /* there, and back to be hashed */
	cr_assert_eq(count(CALL_cuLaunchKernel), 2);
	rig_run(&rig, GPU_HASH, 0, NULL, 0, from, RANGES, true);
	cr_assert(th_hash_equal(done().digests[0], digest_of(wanted(), bytes)));
	cr_assert_eq(count(CALL_cuLaunchKernel), 3);
	read_and_write(true); /* what was written comes back, too */
	cr_assert_eq(count(CALL_cuLaunchKernel), 6);
	cr_assert_eq(copies(), 0);
}

/* ---- large ones, and few -------------------------------------------------------------------- */

static void
read_ranges(const struct gpu_range *ranges, uint32_t number)
{
	const uint8_t *at = rig.area;
	rig_run(&rig, GPU_READ, 0, NULL, 0, ranges, number, false);
	done();
	for (uint32_t i = 0; i < number; i++)
		for (uint64_t j = 0; j < ranges[i].bytes; j++)
			cr_assert_eq(*at++, rig_byte(1, ranges[i].at + j));
}

Test(gpu_helper_small, few__are_the_copy_engines, .init = setup, .fini = teardown)
{
	read_ranges(from, MOVE_SMALL_MIN - 1);
	cr_assert_eq(count(CALL_cuLaunchKernel), 0);
	cr_assert_eq(copies(), MOVE_SMALL_MIN - 1);
	read_ranges(from, MOVE_SMALL_MIN);
	cr_assert_eq(count(CALL_cuLaunchKernel), 1);
	cr_assert_eq(copies(), MOVE_SMALL_MIN - 1);
}

Test(gpu_helper_small, large_ones__are_the_copy_engines, .init = setup, .fini = teardown)
{
	struct gpu_range some[20];
	for (uint32_t i = 0; i < 20; i++) /* each second one is one byte too short for it */
		some[i] = (struct gpu_range){
			WORKER, 0, i * (MOVE_SMALL_BYTES + 64ull), MOVE_SMALL_BYTES - i % 2};
	read_ranges(some, 20);
	cr_assert_eq(count(CALL_cuLaunchKernel), 1);
	cr_assert_eq(copies(), 10);
}

Test(gpu_helper_small, copy__of_both_hashed__arrives, .init = setup, .fini = teardown)
{
	const struct gpu_range target = {OTHER, 0, 5, 0};
	struct gpu_range some[20], all = target;
	for (uint32_t i = 0; i < 20; i++) {
		some[i] = (struct gpu_range){WORKER, 0, i * 90000ull, i % 2 ? 80000 : 1000};
		all.bytes += some[i].bytes;
	}
	rig_run(&rig, GPU_COPY, 0, &all, 1, some, 20, true);
	struct gpu_done got = done();
	cr_assert(th_hash_equal(got.digests[0], rig_worker_digest(&other, 0, 5, all.bytes)));
	rig_run(&rig, GPU_HASH, 0, NULL, 0, some, 20, true);
	cr_assert(th_hash_equal(got.digests[0], done().digests[0]));
	cr_assert_eq(copies(), 10);
}

/* Whole leaves are copied by the kernel that hashes them, whatever lies between them. */
Test(gpu_helper_small, copy__whole_leaves_among_small_ranges__are_read_once, .init = setup,
	.fini = teardown)
{
	const struct gpu_range target = {OTHER, 0, 0, 65536 * 20};
	struct gpu_range some[30];
	uint64_t at = 0;
	for (uint32_t i = 0; i < 20; i++) { /* ten leaves of one range, and ten of two */
		some[at++] = (struct gpu_range){
			WORKER, 0, i * 70000ull / 16 * 16, i < 10 ? 65536 : 30000};
		if (i >= 10)
			some[at++] = (struct gpu_range){WORKER, 0, i * 70000ull + 32000, 35536};
	}
	rig_run(&rig, GPU_COPY, 0, &target, 1, some, 30, true);
	struct gpu_done got = done();
	cr_assert(th_hash_equal(got.digests[0], rig_worker_digest(&other, 0, 0, target.bytes)));
	cr_assert_eq(count(CALL_cuLaunchKernel), 2);
	cr_assert_eq(copies(), 0);
	rig_run(&rig, GPU_HASH, 0, NULL, 0, some, 30, true);
	cr_assert(th_hash_equal(got.digests[0], done().digests[0]));
}

Test(gpu_helper_small, copy__hashed_and_refused__is_said, .init = setup, .fini = teardown)
{
	const struct gpu_range target = {OTHER, 0, 3, MIB}, source = {WORKER, 0, 0, MIB};
	int plan = machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_cuMemcpyDtoDAsync, 0,
		CUDA_ERROR_LAUNCH_FAILED);
	rig_run(&rig, GPU_COPY, 0, &target, 1, &source, 1, true);
	struct gpu_done got = rig_done(&rig);
	cr_assert_eq(got.code, -EIO);
	cr_assert(strstr(got.text, "cuMemcpyDtoDAsync says CUDA_ERROR_LAUNCH_FAILED"), "%s",
		got.text);
	machine_lift(&machine, plan);
}

/* ---- where it cannot be --------------------------------------------------------------------- */

static void
expect_calls(void)
{
	read_and_write(false);
	cr_assert_eq(count(CALL_cuLaunchKernel), 0);
	cr_assert_eq(copies(), 2 * RANGES);
}

Test(gpu_helper_small, area__that_kernels_do_not_reach__is_the_copy_engines, .init = setup,
	.fini = teardown)
{
	/* START has no tables yet: the area is the first that is asked for. */
	int plan = machine_plan(&machine, FAULT_RESULT, 0, CALL_cuMemHostGetDevicePointer, 0,
		CUDA_ERROR_NOT_SUPPORTED);
	start_again(0);
	machine_lift(&machine, plan);
	expect_calls();
	/* Memory of GPUs is another matter. */
	copy_within(false);
	cr_assert_eq(count(CALL_cuLaunchKernel), 1);
}

Test(gpu_helper_small, area__that_is_not_pinned__is_the_copy_engines, .init = setup,
	.fini = teardown)
{
	struct gpu_area_is is;
	int plan = machine_plan(
		&machine, FAULT_RESULT, 0, CALL_cuMemHostRegister, 0, CUDA_ERROR_OPERATING_SYSTEM);
	rig.run_area = 1; /* the same pages */
	rig_area(&rig, 1, RIG_AREA_BYTES, rig.area_fd, &is);
	cr_assert(is.code == 0 && is.pinned == 0);
	machine_lift(&machine, plan);
	expect_calls();
}

Test(gpu_helper_small, kernel__that_does_not_load__is_the_copy_engines, .init = setup,
	.fini = teardown)
{
	int plan = machine_plan(
		&machine, FAULT_RESULT, 0, CALL_cuModuleLoadData, 1, CUDA_ERROR_OUT_OF_MEMORY);
	struct gpu_ready ready = start_again(0);
	cr_assert_eq(machine_met(&machine, plan), 1);
	cr_assert_eq(ready.text[0], 0);
	cr_assert(strstr(ready.gather_text, "cuModuleLoadData says"), "%s", ready.gather_text);
	machine_lift(&machine, plan);
	expect_calls();
	copy_within(true);
	cr_assert_eq(count(CALL_cuLaunchKernel), 1, "the kernel of the digests is there");
}

Test(gpu_helper_small, table__no_memory__is_the_copy_engines, .init = setup, .fini = teardown)
{
	int plan = machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_cuMemHostRegister, 0,
		CUDA_ERROR_OUT_OF_MEMORY);
	expect_calls();
	cr_assert_gt(machine_met(&machine, plan), 0);
}

Test(gpu_helper_small, launch__that_fails__is_said, .init = setup, .fini = teardown)
{
	int plan = machine_plan(
		&machine, FAULT_RESULT, rig.pid, CALL_cuLaunchKernel, 0, CUDA_ERROR_LAUNCH_FAILED);
	rig_run(&rig, GPU_WRITE, 77, to, RANGES, NULL, 0, true);
	struct gpu_done got = rig_done(&rig);
	cr_assert_eq(got.code, -EIO);
	cr_assert(strstr(got.text, "cannot copy many ranges at once: cuLaunchKernel says "
				   "CUDA_ERROR_LAUNCH_FAILED"),
		"%s", got.text);
	machine_lift(&machine, plan);
	copy_within(true);
}
