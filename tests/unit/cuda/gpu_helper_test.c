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
#include "transport/hash/digest.h"

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

/* Whoever uses the GPU goes first. */
Test(gpu_helper, streams__all__give_way, .init = setup, .fini = teardown)
{
	const struct gpu_range from = {WORKER, 0, 0, MIB}, to = {WORKER, 1, 0, MIB};
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 2);
	rig_worker_open(&worker, &rig, WORKER);
	for (enum gpu_run_op op = GPU_READ; op <= GPU_HASH; op++) {
		bool has_to = op == GPU_WRITE || op == GPU_COPY;
		rig_run(&rig, op, 0, &to, has_to, &from, op != GPU_WRITE, true);
		expect_done(0);
	}
	cr_assert_geq(machine_holds(&machine, rig.pid, HELD_STREAMS), 4);
	cr_assert_eq(machine_holds(&machine, rig.pid, HELD_URGENT_STREAMS), 0);
	rig_worker_end(&worker);
	close_all();
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
	cr_assert(same(copied.digests[0], rig_worker_digest(&other, 0, 0, MIB + 70003)));
	rig_run(&rig, GPU_HASH, 0, NULL, 0, from, 3, true);
	struct gpu_done hashed = rig_done(&rig);
	cr_assert(same(copied.digests[0], hashed.digests[0]));
	rig_run(&rig, GPU_READ, 0, NULL, 0, from, 3, true);
	struct gpu_done got = rig_done(&rig);
	cr_assert(same(copied.digests[0], got.digests[0]));
	cr_assert(same(copied.digests[0], digest_of(rig.area, MIB + 70003)));
	rig_run(&rig, GPU_WRITE, 0, to, 2, NULL, 0, true);
	got = rig_done(&rig);
	cr_assert(same(copied.digests[0], got.digests[0]));
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

/* What is told is what is there, not what was sent. */
static void
write_and_lose(void)
{
	const struct gpu_range to[] = {{WORKER, 0, 5, MIB}};
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 2);
	rig_worker_fill(&worker, 0, 3);
	rig_worker_open(&worker, &rig, WORKER);
	memset(rig.area, 0x5a, MIB);
	machine_plan(&machine, FAULT_IDLE, rig.pid, CALL_cuMemcpyHtoDAsync, 1, CUDA_SUCCESS);
	rig_run(&rig, GPU_WRITE, 0, to, 1, NULL, 0, true);
	struct gpu_done done = rig_done(&rig);
	cr_assert_eq(done.code, 0, "%s", done.text);
	cr_assert(same(done.digests[0], digest_of(rig.area, MIB)));
	memset(rig.area, 0x7f, MIB);
	rig_run(&rig, GPU_WRITE, 0, to, 1, NULL, 0, true);
	done = rig_done(&rig);
	cr_assert_eq(done.code, 0, "%s", done.text);
	cr_assert(!same(done.digests[0], digest_of(rig.area, MIB)));
	cr_assert(same(done.digests[0], rig_worker_digest(&worker, 0, 5, MIB)));
	rig_worker_end(&worker);
	close_all();
}

Test(gpu_helper, write__that_is_lost_on_its_way__has_the_digest_of_what_is_there, .init = setup,
	.fini = teardown)
{
	write_and_lose();
}

Test(gpu_helper, write__that_is_lost__by_the_cpu__has_the_digest_of_what_is_there, .init = setup,
	.fini = teardown)
{
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	rig_start_as(&rig, &machine, 0, GPU_HASH_ON_CPU);
	write_and_lose();
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
	cr_assert(done.code == 0 && same(done.digests[0], rig_worker_digest(&worker, 0, 0, MIB)));
	rig_worker_kill(&worker);
	close_all();
}

/* ---- several chunks ------------------------------------------------------------------------- */

/* Ranges begin and end anywhere in the chunks: on each side elsewhere. */
static const struct gpu_range group_from[] = {
	{WORKER, 0, 1, 70000}, {WORKER, 1, 9, MIB}, {WORKER, 0, MIB, 300000}};
static const struct gpu_range group_to[] = {{OTHER, 0, 5, 3}, {OTHER, 0, 8, MIB + 369997}};
static const struct gpu_run group = {.op = GPU_COPY,
	.hashes = 1,
	.num_to = 2,
	.num_from = 3,
	.num_chunks = 5,
	.chunk_bytes = {65536, 3, MIB, 4461 + 65536, 300000 - 65536}};

static void
begin_group(void)
{
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 2);
	other = rig_worker_new(CUDA_KIND_CHUNKS, 0, 1);
	for (uint32_t i = 0; i < 2; i++)
		rig_worker_fill(&worker, i, (uint8_t)(i + 1));
	rig_worker_open(&worker, &rig, WORKER);
	rig_worker_open(&other, &rig, OTHER);
}

static void
end_group(void)
{
	rig_worker_kill(&worker);
	rig_worker_kill(&other);
	close_all();
}

/* What lies in the other's memory now, chunk by chunk. */
static void
expect_group(const struct gpu_done *done)
{
	uint64_t at = group_to[0].at;
	cr_assert_eq(done->code, 0, "%s", done->text);
	for (uint32_t i = 0; i < group.num_chunks; i++) {
		struct th_hash digest = rig_worker_digest(&other, 0, at, group.chunk_bytes[i]);
		cr_assert(same(done->digests[i], digest), "%u", i);
		at += group.chunk_bytes[i];
	}
}

static void
copy_and_hash_group(void)
{
	struct gpu_run run = group;
	begin_group();
	rig_run_of(&rig, &run, group_to, group_from);
	struct gpu_done done = rig_done(&rig);
	expect_group(&done);
	/* The same bytes, one behind the other: a digest of the whole would be another one. */
	rig_run(&rig, GPU_READ, 0, NULL, 0, group_from, 3, false);
	expect_done(0);
	cr_assert(same(done.digests[2], digest_of(rig.area + 65539, MIB)));
	run.op = GPU_HASH;
	run.num_to = run.hashes = 0;
	rig_run_of(&rig, &run, NULL, group_from);
	done = rig_done(&rig);
	expect_group(&done);
	end_group();
}

Test(gpu_helper, group__copied_and_hashed__a_digest_of_each_chunk, .init = setup, .fini = teardown)
{
	pid_t pid = rig.pid;
	copy_and_hash_group();
	cr_assert_eq(machine_calls(&machine, pid, CALL_cuLaunchKernel), 2, "one for all chunks");
}

Test(gpu_helper, group__by_the_cpu__a_digest_of_each_chunk, .init = setup, .fini = teardown)
{
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	rig_start_as(&rig, &machine, 0, GPU_HASH_ON_CPU);
	pid_t pid = rig.pid;
	copy_and_hash_group();
	cr_assert_eq(machine_calls(&machine, pid, CALL_cuLaunchKernel), 0);
}

Test(gpu_helper, group__gpu_that_fails_between_chunks__is_told, .init = setup, .fini = teardown)
{
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	rig_start_as(&rig, &machine, 0, GPU_HASH_ON_CPU);
	begin_group();
	machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_cuStreamSynchronize, 0,
		CUDA_ERROR_ILLEGAL_ADDRESS);
	rig_run_of(&rig, &group, group_to, group_from);
	struct gpu_done done = rig_done(&rig);
	cr_assert_eq(done.code, -EIO);
	cr_assert(strstr(done.text, "cuStreamSynchronize says CUDA_ERROR_ILLEGAL_ADDRESS"), "%s",
		done.text);
	rig_hear_end(&rig, 0);
	cr_assert_eq(rig_end(&rig), 3);
	rig_worker_kill(&worker);
	rig_worker_kill(&other);
}

Test(gpu_helper, group__that_goes_on_where_it_ends__is_one_call_of_the_driver, .init = setup,
	.fini = teardown)
{
	const struct gpu_range from = {WORKER, 0, 16, MIB}, to = {OTHER, 0, 32, MIB};
	struct gpu_run run = {
		.op = GPU_COPY, .num_to = 1, .num_from = 1, .num_chunks = GPU_RUN_CHUNKS_MAX};
	for (uint32_t i = 0; i < GPU_RUN_CHUNKS_MAX; i++)
		run.chunk_bytes[i] = MIB / GPU_RUN_CHUNKS_MAX;
	begin_group();
	uint64_t before = machine_calls(&machine, rig.pid, CALL_cuMemcpyDtoDAsync);
	rig_run_of(&rig, &run, &to, &from);
	expect_done(0);
	cr_assert_eq(machine_calls(&machine, rig.pid, CALL_cuMemcpyDtoDAsync), before + 1);
	cr_assert(same(
		rig_worker_digest(&worker, 0, 16, MIB), rig_worker_digest(&other, 0, 32, MIB)));
	end_group();
}

/* A batch of digests has no more room than one of them needs. */
Test(gpu_helper, many_groups__go_as_they_fit, .init = setup, .fini = teardown)
{
	enum { GROUPS = 40 };
	const uint64_t step = RIG_PIECE_BYTES / GROUPS / 16 * 16;
	begin_group();
	for (uint32_t i = 0; i < GROUPS; i++) {
		const struct gpu_range from = {WORKER, 0, i * step, step},
				       to = {OTHER, 0, i * step, step};
		struct gpu_run run = {.op = GPU_COPY,
			.hashes = i % 5 != 0,
			.num_to = 1,
			.num_from = 1,
			.num_chunks = 1 + i % GPU_RUN_CHUNKS_MAX};
		uint32_t each = (uint32_t)step / run.num_chunks;
		for (uint32_t c = 0; c < run.num_chunks; c++)
			run.chunk_bytes[c] = each;
		run.chunk_bytes[0] += (uint32_t)step - each * run.num_chunks;
		rig_run_of(&rig, &run, &to, &from);
	}
	for (uint32_t i = 0; i < GROUPS; i++) {
		struct gpu_done done = rig_done(&rig);
		cr_assert_eq(done.code, 0, "%s", done.text);
		uint32_t count = 1 + (uint32_t)done.run % GPU_RUN_CHUNKS_MAX;
		uint32_t each = (uint32_t)step / count;
		uint64_t at = done.run * step + step - (uint64_t)(count - 1) * each;
		for (uint32_t c = 1; c < count && done.run % 5 != 0; c++, at += each)
			cr_assert(same(done.digests[c], rig_worker_digest(&other, 0, at, each)));
	}
	cr_assert(same(rig_worker_digest(&worker, 0, 0, GROUPS * step),
		rig_worker_digest(&other, 0, 0, GROUPS * step)));
	end_group();
}

/* ---- to the host ---------------------------------------------------------------------------- */

/* How many calls of the copy engine and of kernels it took. */
static void
read_hashed(uint64_t at, const struct gpu_range *ranges, uint32_t count, uint32_t copies,
	uint32_t launches)
{
	uint32_t copied = machine_calls(&machine, rig.pid, CALL_cuMemcpyDtoHAsync);
	uint32_t launched = machine_calls(&machine, rig.pid, CALL_cuLaunchKernel);
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < count; i++)
		bytes += ranges[i].bytes;
	memset(rig.area, 0, RIG_AREA_BYTES);
	rig_run(&rig, GPU_READ, at, NULL, 0, ranges, count, true);
	struct gpu_done done = rig_done(&rig);
	cr_assert_eq(done.code, 0, "%s", done.text);
	for (uint64_t i = 0, sum = 0; i < count; sum += ranges[i++].bytes)
		for (uint64_t j = 0; j < ranges[i].bytes; j++)
			cr_assert_eq(rig.area[at + sum + j], rig_byte(3, ranges[i].at + j));
	cr_assert(same(done.digests[0], digest_of(rig.area + at, bytes)));
	cr_assert_eq(rig.area[at + bytes], 0);
	cr_assert_eq(machine_calls(&machine, rig.pid, CALL_cuMemcpyDtoHAsync) - copied, copies);
	cr_assert_eq(machine_calls(&machine, rig.pid, CALL_cuLaunchKernel) - launched, launches);
}

Test(gpu_helper, read__of_whole_leaves__is_hashed_while_a_kernel_copies_it, .init = setup,
	.fini = teardown)
{
	const struct gpu_range one = {WORKER, 0, 64, MIB}, odd = {WORKER, 0, 65, MIB};
	const struct gpu_range part = {WORKER, 0, 64, MIB + 1};
	const struct gpu_range two[] = {{WORKER, 0, 0, MIB}, {WORKER, 0, MIB + 64, 65536}};
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	rig_worker_fill(&worker, 0, 3);
	rig_worker_open(&worker, &rig, WORKER);
	read_hashed(4096, &one, 1, 0, 1);
	read_hashed(4096, &odd, 1, 1, 0);
	read_hashed(4097, &one, 1, 1, 0);
	read_hashed(4096, &part, 1, 1, 0);
	read_hashed(4096, two, 2, 2, 0);
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
		cr_assert(same(done.digests[0], rig_worker_digest(&other, 0, 3, MIB)));
		cr_assert(same(done.digests[0], rig_worker_digest(&worker, 0, 5, MIB)));
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
			cr_assert(same(one.digests[0], digest_of(rig.area + one.run * 4096, 4096)));
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
			cr_assert(same(one.digests[0], digests[one.run]));
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
	cr_assert_eq(left.code, 0, "%s", left.text);
	cr_assert_eq(machine_used(&machine, 0), machine.page->devices[0].context_bytes);
	close_all();
}

Test(gpu_helper, area__forgotten_under_a_run__stays_for_it, .init = setup, .fini = teardown)
{
	const struct gpu_range range = {WORKER, 0, 0, MIB};
	const struct gpu_area forget = {.kind = GPU_AREA};
	struct gpu_area_is is;
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	rig_worker_fill(&worker, 0, 1);
	rig_worker_open(&worker, &rig, WORKER);
	int plan = machine_plan(&machine, FAULT_HANG, rig.pid, CALL_STREAM, 0, 0);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	rig_send(&rig, &forget, sizeof(forget), -1);
	/* Nobody else begins with it. */
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	expect_done(TH_E_PROTOCOL);
	rig_hear_nothing(&rig, 50);
	cr_assert_eq(machine_calls(&machine, rig.pid, CALL_cuMemHostUnregister), 0);
	machine_lift(&machine, plan);
	expect_done(0);
	rig_hear(&rig, GPU_AREA_IS, &is, sizeof(is));
	cr_assert(is.code == 0 && is.area == 0 && is.pinned == 0, "%s", is.text);
	cr_assert_eq(machine_calls(&machine, rig.pid, CALL_cuMemHostUnregister), 1);
	cr_assert_eq(rig.area[MIB - 1], rig_byte(1, MIB - 1));
	rig_worker_kill(&worker);
	close_all();
}

Test(gpu_helper, area__of_a_part_of_a_file__is_that_part, .init = setup, .fini = teardown)
{
	const struct gpu_range range = {WORKER, 0, 0, 4096};
	const struct gpu_area second = {.kind = GPU_AREA, .area = 7, .at = MIB, .bytes = 8192};
	struct gpu_area_is is;
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	rig_worker_fill(&worker, 0, 1);
	rig_worker_open(&worker, &rig, WORKER);
	rig_send(&rig, &second, sizeof(second), rig.area_fd);
	rig_hear(&rig, GPU_AREA_IS, &is, sizeof(is));
	cr_assert(is.code == 0 && is.area == 7 && is.pinned == 1, "%s", is.text);
	rig.run_area = 7;
	rig_run(&rig, GPU_READ, 4096, NULL, 0, &range, 1, false);
	expect_done(0);
	for (uint64_t i = 0; i < 4096; i++)
		cr_assert_eq(rig.area[MIB + 4096 + i], rig_byte(1, i));
	rig_run(&rig, GPU_READ, 4097, NULL, 0, &range, 1, false);
	expect_done(TH_E_PROTOCOL);
	rig_worker_kill(&worker);
	close_all();
}
