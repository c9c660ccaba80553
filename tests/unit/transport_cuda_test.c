/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport with the real processes of GPUs, whose memory is files: each kind of memory,
 * and a process that is killed, or a GPU that is lost, while bytes move. transport_gpu_test.c has
 * what does not depend on how a GPU does its work.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "tests/support/rig_gpus.h"
#include "tests/support/transport_pair.h"

#define STAGING (16 * MIB)

#define MODES(name)                                                                                \
	PAIR_BOTH(transport_cuda, name)                                                            \
	Test(transport_cuda_rdma, name)                                                            \
	{                                                                                          \
		pair_rails = 1;                                                                    \
		name(MODE_RDMA);                                                                   \
	}                                                                                          \
	static void name(enum mode mode)

static const uint64_t odd_sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 9 * MIB + 13, 65536, 65537, 3, 1000000};
#define ODD (sizeof(odd_sizes) / sizeof(odd_sizes[0]))
static const uint64_t ten_chunks[] = {40 * MIB};

static struct pair *
start(const uint64_t *sizes, uint32_t count)
{
	rig_gpus_init(STAGING, false);
	return pair_new(sizes, count, CALM_NS);
}

static void
finish(struct pair *s)
{
	pair_finish(s);
	rig_gpus_fini();
}

static void
parts(struct pair *s, enum rig_memory from, enum rig_memory to)
{
	s->from = rig_part_of(&s->source, from, true);
	s->to = rig_part_of(&s->reader, to, true);
	s->leg++;
}

static void
move(struct pair *s, enum mode mode)
{
	pair_move(s, mode, s->leg, s->from, s->to);
}

static void
publish(struct pair *s)
{
	rig_add_digests(s->from);
	xfer_part_advance(s->from, s->source.table->num_chunks);
}

static void
arrives(struct pair *s, enum mode mode, enum rig_memory from, enum rig_memory to)
{
	memset(s->reader.memory, 0, s->reader.bytes);
	parts(s, from, to);
	move(s, mode);
	cr_assert_eq(transport_hash(s->source_agent->transport, s->leg, s->from), 0);
	const struct transport_event *done =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, s->leg);
	cr_assert(rig_shards_equal(&s->source, &s->reader), "%d to %d", (int)from, (int)to);
	bool direct = mode == MODE_LOCAL && from == RIG_GPU && to == RIG_GPU;
	cr_assert_str_eq(done->transport, direct              ? "cuda-ipc"
					  : mode == MODE_TCP  ? "tcp"
					  : mode == MODE_RDMA ? "rdma-copy"
							      : "local");
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
	struct xfer_part *plain = rig_part_of(&s->source, RIG_MAPPED, true);
	rig_add_digests(plain);
	for (uint32_t c = 0; c < s->source.table->num_chunks; c++)
		cr_assert(
			th_hash_equal(*xfer_part_digest(s->from, c), *xfer_part_digest(plain, c)));
	xfer_part_release(plain);
	pair_release(s);
}

MODES(one_piece_and_many_chunks__arrive)
{
	static const enum cuda_kind kinds[] = {CUDA_KIND_LEGACY, CUDA_KIND_CHUNKS};
	rig_gpus_init(STAGING, false);
	for (uint32_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		rig_gpus_kind = kinds[i];
		struct pair *s = pair_new(odd_sizes, ODD, CALM_NS);
		arrives(s, mode, RIG_GPU, RIG_GPU);
		arrives(s, mode, RIG_GPU, RIG_MAPPED);
		arrives(s, mode, RIG_PROCESS, RIG_GPU);
		arrives(s, mode, RIG_GPU_MAPPED, RIG_GPU_PROCESS);
		cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 0);
		pair_finish(s);
	}
	rig_gpus_fini();
}

/* What runs in it begins again in the next one. */
MODES(process_killed_midway__arrives)
{
	rig_gpus_kind = CUDA_KIND_CHUNKS;
	struct pair *s = start(ten_chunks, 1);
	for (uint32_t round = 0; round < 3; round++) {
		memset(s->reader.memory, 0, s->reader.bytes);
		parts(s, RIG_GPU, RIG_GPU);
		publish(s);
		move(s, mode);
		rig_wait_prefix(&s->rig, s->to, 2 * round);
		/* A copy between GPUs needs the reader's alone. */
		pid_t pid = rig_gpus_pid(mode == MODE_LOCAL ? 1 : round % RIG_GPUS);
		cr_assert_neq(pid, 0);
		kill(pid, SIGKILL);
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, s->leg);
		cr_assert(rig_shards_equal(&s->source, &s->reader), "round %u", round);
		pair_release(s);
	}
	cr_assert_geq(rig_gpus_starts(), RIG_GPUS + 1);
	finish(s);
}

Test(transport_cuda, process_killed_while_it_hashes__hashed)
{
	struct pair *s = start(ten_chunks, 1);
	for (uint32_t round = 0; round < 3; round++) {
		parts(s, RIG_GPU, RIG_MAPPED);
		cr_assert_eq(transport_hash(s->source_agent->transport, s->leg, s->from), 0);
		rig_wait_prefix(&s->rig, s->from, round);
		kill(rig_gpus_pid(0), SIGKILL);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
		pair_release(s);
	}
	finish(s);
}

MODES(readers_gpu_lost__stale_and_why)
{
	struct pair *s = start(ten_chunks, 1);
	parts(s, RIG_GPU, RIG_GPU);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, 3);
	move(s, mode);
	rig_wait_prefix(&s->rig, s->to, 3);
	machine_lose(rig_gpus_machine(), 1, CUDA_ERROR_ECC_UNCORRECTABLE);
	xfer_part_advance(s->from, 10);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, s->leg);
	cr_assert_eq(failed->code, TH_E_STALE_MEMORY, "%s", failed->text);
	cr_assert_not(failed->source_failed);
	cr_assert(strstr(failed->text, "CUDA_ERROR_ECC_UNCORRECTABLE"), "%s", failed->text);
	finish(s);
}

/* The last of a worker's parts and its space go: nobody keeps its memory. */
Test(transport_cuda, all_let_go__the_memory_is_free)
{
	struct pair *s = start(ten_chunks, 1);
	arrives(s, MODE_TCP, RIG_GPU, RIG_GPU);
	struct machine *machine = rig_gpus_machine();
	pid_t pid = rig_gpus_pid(0);
	cr_assert_gt(machine_holds(machine, pid, HELD_IMPORTS), 0);
	pair_release(s);
	rig_gpus->unshare(s->source.space);
	s->source.space = NULL;
	int64_t until_ns = th_now_ns() + INT64_C(30000000000);
	while (machine_holds(machine, pid, HELD_IMPORTS) > 0) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
	finish(s);
}
