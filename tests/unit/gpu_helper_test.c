/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_helper_test - the process of one GPU: what it opens, moves, hashes and lets go of.
 *
 * The test is the agent; the process and the workers are real ones, on GPUs that are files.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "tests/support/cuda/helper_rig.h"
#include "transport/digest.h"

#define MIB ((uint64_t)1 << 20)
#define WORKER 7u
#define OTHER 8u
#define ALL UINT64_MAX

static struct machine machine;
static struct rig rig;
static struct rig_worker worker, other;

static void
setup(void)
{
	machine_new(&machine, 2, 64 * MIB);
	rig_start(&rig, &machine, 0);
}

static void
teardown(void)
{
	machine_remove(&machine);
}

static bool
same(struct th_hash a, struct th_hash b)
{
	return memcmp(&a, &b, sizeof(a)) == 0;
}

/* The agent closes the socket: the process has ended, well, and nothing is left. */
static void
close_all(void)
{
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	cr_assert_eq(machine_used(&machine, 0), 0);
	cr_assert_eq(machine_used(&machine, 1), 0);
}

static void
expect_done(int code)
{
	struct gpu_done done = rig_done(&rig);
	cr_assert_eq(done.code, code, "%d: %s", done.code, done.text);
	cr_assert_eq(done.text[0] == 0, code == 0);
}

/* ---- the kinds ------------------------------------------------------------------------------ */

/* Ranges of two pieces, odd ones too, there and back. */
static void
through(enum cuda_kind kind)
{
	const struct gpu_range from[] = {{WORKER, 1, 5, 1000}, {WORKER, 1, 1005, 77},
		{WORKER, 0, RIG_PIECE_BYTES - 3, 3}, {WORKER, 1, 0, MIB}};
	const struct gpu_range to[] = {{WORKER, 0, 11, MIB}, {WORKER, 1, RIG_PIECE_BYTES - 80, 80}};
	const uint64_t bytes = 1000 + 77 + 3 + MIB;
	worker = rig_worker_new(kind, 0, 2);
	rig_worker_fill(&worker, 0, 3);
	rig_worker_fill(&worker, 1, 9);
	rig_worker_open(&worker, &rig, WORKER);
	rig_run(&rig, GPU_READ, 4096, NULL, 0, from, 4, false);
	expect_done(0);
	for (uint64_t i = 0; i < 1077; i++)
		cr_assert_eq(rig.area[4096 + i], rig_byte(9, 5 + i));
	for (uint64_t i = 0; i < 3; i++)
		cr_assert_eq(rig.area[4096 + 1077 + i], rig_byte(3, RIG_PIECE_BYTES - 3 + i));
	for (uint64_t i = 0; i < MIB; i++)
		cr_assert_eq(rig.area[4096 + 1080 + i], rig_byte(9, i));
	cr_assert_eq(rig.area[4096 + bytes], 0, "no byte more");
	rig_run(&rig, GPU_WRITE, 4096, to, 2, NULL, 0, false);
	expect_done(0);
	cr_assert(same(rig_worker_digest(&worker, 0, 11, MIB), digest_of(rig.area + 4096, MIB)));
	cr_assert(same(rig_worker_digest(&worker, 1, RIG_PIECE_BYTES - 80, 80),
		digest_of(rig.area + 4096 + MIB, 80)));
	/* It outlives its worker, and nothing is left behind it. */
	rig_worker_end(&worker);
	rig_run(&rig, GPU_READ, 2 * MIB, NULL, 0, to, 2, false);
	expect_done(0);
	cr_assert_eq(memcmp(rig.area + 2 * MIB, rig.area + 4096, MIB + 80), 0);
	struct gpu_left left = rig_leave(&rig, WORKER, ALL);
	cr_assert_eq(left.code, 0, "%s", left.text);
	cr_assert(left.imports == 0 && left.bytes == 0);
	cr_assert_eq(machine_used(&machine, 0), machine.page->devices[0].context_bytes);
	rig_run(&rig, GPU_READ, 0, NULL, 0, to, 2, false);
	expect_done(TH_E_STALE_MEMORY);
	close_all();
}

Test(gpu_helper, legacy__there_and_back, .init = setup, .fini = teardown)
{
	through(CUDA_KIND_LEGACY);
}

Test(gpu_helper, chunk__there_and_back, .init = setup, .fini = teardown)
{
	through(CUDA_KIND_CHUNK);
}

Test(gpu_helper, chunks__there_and_back, .init = setup, .fini = teardown)
{
	through(CUDA_KIND_CHUNKS);
}

Test(gpu_helper, pool__there_and_back, .init = setup, .fini = teardown)
{
	through(CUDA_KIND_POOL);
}

/* ---- within the GPU ------------------------------------------------------------------------- */

static void
copy_and_hash(void)
{
	const struct gpu_range from[] = {
		{WORKER, 0, 1, 70000}, {WORKER, 1, 9, MIB}, {WORKER, 0, MIB, 3}};
	const struct gpu_range to[] = {{OTHER, 0, 0, 3}, {OTHER, 0, 3, MIB + 70000}};
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 2);
	other = rig_worker_new(CUDA_KIND_CHUNKS, 0, 1);
	for (uint32_t i = 0; i < 2; i++)
		rig_worker_fill(&worker, i, (uint8_t)(i + 1));
	rig_worker_open(&worker, &rig, WORKER);
	rig_worker_open(&other, &rig, OTHER);
	rig_run(&rig, GPU_COPY, 0, to, 2, from, 3, true);
	struct gpu_done copied = rig_done(&rig);
	cr_assert_eq(copied.code, 0, "%s", copied.text);
	cr_assert(same(copied.digest, rig_worker_digest(&other, 0, 0, MIB + 70003)));
	rig_run(&rig, GPU_HASH, 0, NULL, 0, from, 3, true);
	struct gpu_done hashed = rig_done(&rig);
	cr_assert(same(copied.digest, hashed.digest));
	rig_run(&rig, GPU_READ, 0, NULL, 0, from, 3, true);
	struct gpu_done got = rig_done(&rig);
	cr_assert(same(copied.digest, got.digest));
	cr_assert(same(copied.digest, digest_of(rig.area, MIB + 70003)));
	rig_run(&rig, GPU_WRITE, 0, to, 2, NULL, 0, true);
	got = rig_done(&rig);
	cr_assert(same(copied.digest, got.digest));
	rig_run(&rig, GPU_COPY, 0, to, 2, from, 3, false);
	expect_done(0);
	rig_worker_kill(&worker);
	rig_worker_kill(&other);
	close_all();
}

Test(gpu_helper, copy_and_hash__cut_differently__are_the_same_bytes, .init = setup,
	.fini = teardown)
{
	pid_t pid = rig.pid;
	copy_and_hash();
	cr_assert_eq(machine_calls(&machine, pid, CALL_cuLaunchKernel), 3);
}

Test(gpu_helper, copy_and_hash__by_the_cpu__are_the_same_bytes, .init = setup, .fini = teardown)
{
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	struct gpu_ready ready = rig_start_as(&rig, &machine, 0, GPU_HASH_ON_CPU);
	cr_assert_eq(ready.hashes_on_gpu, 0);
	cr_assert_str_eq(ready.text, "digests are made by the CPU: so it is set");
	pid_t pid = rig.pid;
	copy_and_hash();
	cr_assert_eq(machine_calls(&machine, pid, CALL_cuLaunchKernel), 0);
}

Test(gpu_helper, copy_and_hash__gpu_that_runs_no_kernel__are_the_same_bytes, .init = setup,
	.fini = teardown)
{
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	machine.page->devices[0].capability = 61;
	struct gpu_ready ready = rig_start_as(&rig, &machine, 0, 0);
	cr_assert_eq(ready.hashes_on_gpu, 0);
	cr_assert(strstr(ready.text, "capability 6, 7.0 is needed"), "%s", ready.text);
	copy_and_hash();
}

Test(gpu_helper, copy_and_hash__no_room_for_the_kernels_table__are_the_same_bytes, .init = setup,
	.fini = teardown)
{
	int plan = machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_cuMemHostRegister, 0,
		CUDA_ERROR_OUT_OF_MEMORY);
	pid_t pid = rig.pid;
	copy_and_hash();
	cr_assert_gt(machine_met(&machine, plan), 0);
	cr_assert_eq(machine_calls(&machine, pid, CALL_cuLaunchKernel), 0);
}

Test(gpu_helper, hash__launch_that_fails__is_said, .init = setup, .fini = teardown)
{
	const struct gpu_range range = {WORKER, 0, 0, MIB};
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	rig_worker_fill(&worker, 0, 1);
	rig_worker_open(&worker, &rig, WORKER);
	int plan = machine_plan(
		&machine, FAULT_RESULT, rig.pid, CALL_cuLaunchKernel, 0, CUDA_ERROR_LAUNCH_FAILED);
	rig_run(&rig, GPU_HASH, 0, NULL, 0, &range, 1, true);
	struct gpu_done done = rig_done(&rig);
	cr_assert_eq(done.code, -EIO);
	cr_assert(
		strstr(done.text, "cuLaunchKernel says CUDA_ERROR_LAUNCH_FAILED"), "%s", done.text);
	machine_lift(&machine, plan);
	rig_run(&rig, GPU_HASH, 0, NULL, 0, &range, 1, true);
	done = rig_done(&rig);
	cr_assert(done.code == 0 && same(done.digest, rig_worker_digest(&worker, 0, 0, MIB)));
	rig_worker_kill(&worker);
	close_all();
}

/* ---- between GPUs --------------------------------------------------------------------------- */

Test(gpu_helper, copy__from_a_peer__by_any_kind, .init = setup, .fini = teardown)
{
	static const enum cuda_kind kinds[] = {
		CUDA_KIND_LEGACY, CUDA_KIND_CHUNK, CUDA_KIND_CHUNKS, CUDA_KIND_POOL};
	const struct gpu_range from = {OTHER, 0, 3, MIB}, to = {WORKER, 0, 5, MIB};
	worker = rig_worker_new(CUDA_KIND_POOL, 0, 1);
	rig_worker_open(&worker, &rig, WORKER);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		other = rig_worker_new(kinds[i], 1, 1);
		rig_worker_fill(&other, 0, (uint8_t)i);
		rig_worker_open(&other, &rig, OTHER);
		rig_run(&rig, GPU_COPY, 0, &to, 1, &from, 1, true);
		struct gpu_done done = rig_done(&rig);
		cr_assert_eq(done.code, 0, "%s: %s", cuda_kind_name(kinds[i]), done.text);
		cr_assert(same(done.digest, rig_worker_digest(&other, 0, 3, MIB)));
		cr_assert(same(done.digest, rig_worker_digest(&worker, 0, 5, MIB)));
		rig_worker_kill(&other);
		cr_assert_eq(rig_leave(&rig, OTHER, ALL).code, 0);
		cr_assert_eq(machine_used(&machine, 1), 0);
	}
	rig_worker_kill(&worker);
	close_all();
}

Test(gpu_helper, copy__peer_out_of_reach__is_refused, .init = setup, .fini = teardown)
{
	const struct gpu_range from = {OTHER, 0, 0, MIB}, to = {WORKER, 0, 0, MIB};
	machine.page->devices[0].peers = 1;
	worker = rig_worker_new(CUDA_KIND_CHUNK, 0, 1);
	other = rig_worker_new(CUDA_KIND_CHUNK, 1, 1);
	rig_worker_open(&worker, &rig, WORKER);
	const struct gpu_open open = {
		.kind = GPU_OPEN, .worker = OTHER, .handle = other.handles[0]};
	struct gpu_opened opened;
	rig_send(&rig, &open, sizeof(open), other.fds[0]);
	rig_run(&rig, GPU_COPY, 0, &to, 1, &from, 1, false);
	rig_hear(&rig, GPU_OPENED, &opened, sizeof(opened));
	cr_assert_eq(opened.code, TH_E_MEMORY_KIND);
	cr_assert(strstr(opened.text, "no peer access"), "%s", opened.text);
	expect_done(TH_E_STALE_MEMORY);
	rig_worker_kill(&worker);
	rig_worker_kill(&other);
	close_all();
}

/* ---- many at a time ------------------------------------------------------------------------- */

Test(gpu_helper, many_runs__all_are_done, .init = setup, .fini = teardown)
{
	bool done[GPU_RUNS_MAX] = {false};
	worker = rig_worker_new(CUDA_KIND_CHUNK, 0, 1);
	rig_worker_fill(&worker, 0, 5);
	rig_worker_open(&worker, &rig, WORKER);
	for (uint32_t i = 0; i < GPU_RUNS_MAX; i++) {
		const struct gpu_range range = {WORKER, 0, i * 4096ull, 4096};
		rig_run(&rig, GPU_READ, i * 4096ull, NULL, 0, &range, 1, i % 3 == 0);
	}
	for (uint32_t i = 0; i < GPU_RUNS_MAX; i++) {
		struct gpu_done one = rig_done(&rig);
		cr_assert(one.code == 0 && one.run < GPU_RUNS_MAX && !done[one.run]);
		done[one.run] = true;
		if (one.run % 3 == 0)
			cr_assert(same(one.digest, digest_of(rig.area + one.run * 4096, 4096)));
	}
	for (uint64_t i = 0; i < MIB; i++)
		cr_assert_eq(rig.area[i], rig_byte(5, i));
	rig_worker_kill(&worker);
	close_all();
}

Test(gpu_helper, many_hashes__go_together, .init = setup, .fini = teardown)
{
	struct th_hash digests[GPU_RUNS_MAX];
	const uint64_t step = RIG_PIECE_BYTES / GPU_RUNS_MAX;
	worker = rig_worker_new(CUDA_KIND_CHUNK, 0, 1);
	other = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	rig_worker_fill(&worker, 0, 5);
	rig_worker_open(&worker, &rig, WORKER);
	rig_worker_open(&other, &rig, OTHER);
	for (uint32_t i = 0; i < GPU_RUNS_MAX; i++) {
		const struct gpu_range from = {WORKER, 0, i * step, step - i % 3};
		const struct gpu_range to = {OTHER, 0, i * step, step - i % 3};
		digests[i] = rig_worker_digest(&worker, 0, from.at, from.bytes);
		if (i % 2)
			rig_run(&rig, GPU_HASH, 0, NULL, 0, &from, 1, true);
		else
			rig_run(&rig, GPU_COPY, 0, &to, 1, &from, 1, i % 4 == 0);
	}
	for (uint32_t i = 0; i < GPU_RUNS_MAX; i++) {
		struct gpu_done one = rig_done(&rig);
		cr_assert_eq(one.code, 0, "%s", one.text);
		cr_assert_lt(one.run, GPU_RUNS_MAX);
		if (one.run % 4 != 2)
			cr_assert(same(one.digest, digests[one.run]));
		if (one.run % 2 == 0)
			cr_assert(same(digests[one.run],
				rig_worker_digest(&other, 0, one.run * step, step - one.run % 3)));
	}
	rig_worker_kill(&worker);
	rig_worker_kill(&other);
	close_all();
}

/* ---- who leaves while he is read ------------------------------------------------------------ */

Test(gpu_helper, leave__while_runs_use_it__closes_after_the_last, .init = setup, .fini = teardown)
{
	const struct gpu_range range = {WORKER, 0, 0, MIB};
	const struct gpu_leave leave = {.kind = GPU_LEAVE, .worker = WORKER, .piece = ALL};
	struct gpu_left left;
	worker = rig_worker_new(CUDA_KIND_CHUNKS, 0, 2);
	rig_worker_open(&worker, &rig, WORKER);
	rig_worker_kill(&worker);
	int plan = machine_plan(&machine, FAULT_HANG, rig.pid, CALL_STREAM, 0, 0);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	rig_send(&rig, &leave, sizeof(leave), -1);
	/* Others are served meanwhile, and who has left begins nothing. */
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	expect_done(TH_E_STALE_MEMORY);
	rig_hear_nothing(&rig, 50);
	machine_lift(&machine, plan);
	expect_done(0);
	rig_hear(&rig, GPU_LEFT, &left, sizeof(left));
	cr_assert(left.code == 0 && left.imports == 0 && left.bytes == 0);
	cr_assert_eq(machine_used(&machine, 0), machine.page->devices[0].context_bytes);
	close_all();
}

Test(gpu_helper, area__replaced_under_a_run__stays_for_it, .init = setup, .fini = teardown)
{
	const struct gpu_range range = {WORKER, 0, 0, MIB};
	struct gpu_area_is is;
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	rig_worker_fill(&worker, 0, 1);
	rig_worker_open(&worker, &rig, WORKER);
	int plan = machine_plan(&machine, FAULT_HANG, rig.pid, CALL_STREAM, 0, 0);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	cr_assert_eq(rig_area(&rig, 0, 0, -1, &is), 0, "%s", is.text);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	expect_done(TH_E_PROTOCOL);
	machine_lift(&machine, plan);
	expect_done(0);
	cr_assert_eq(rig.area[MIB - 1], rig_byte(1, MIB - 1));
	rig_worker_kill(&worker);
	close_all();
}
