/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of reuse_test.c with a destination in the memory of a GPU (fake_gpus.h): over tcp,
 * within a host from the host's memory and from a GPU's, by RDMA straight into the GPU and through
 * slots. And what is a GPU's own: looks that take their time, fail, or are left behind.
 */
#include <criterion/criterion.h>

#include "ipc/base/clock.h"
#include "tests/support/gpu/rig_fake_gpus.h"
#include "tests/support/transport/transport_pair.h"

static void
run_on(enum rig_memory from, bool for_nics, void (*name)(enum mode mode), enum mode mode)
{
	pair_rails = mode == MODE_RDMA ? 2 : 0;
	rig_gpus_for_nics = for_nics;
	rig_fake_gpus_init(64 * MIB);
	rig_of_sources = from;
	rig_of_readers = RIG_GPU;
	name(mode);
	rig_fake_gpus_fini();
}

#define ON(suite, name, from, for_nics, mode)                                                      \
	Test(suite, name)                                                                          \
	{                                                                                          \
		run_on(from, for_nics, name, mode);                                                \
	}
#define ON_GPUS(name)                                                                              \
	ON(reuse_gpu_tcp, name, RIG_GPU, false, MODE_TCP)                                          \
	ON(reuse_gpu_local, name, RIG_MAPPED, false, MODE_LOCAL)                                   \
	ON(reuse_gpu_cuda_ipc, name, RIG_GPU, false, MODE_LOCAL)                                   \
	ON(reuse_gpu_rdma, name, RIG_GPU, true, MODE_RDMA)                                         \
	ON(reuse_gpu_rdma_copy, name, RIG_GPU, false, MODE_RDMA)

#include "tests/unit/transport/reuse_test.c"

static const uint64_t many[] = {8 * MIB, 8 * MIB, 8 * MIB, 8 * MIB, 8 * MIB, 8 * MIB};
#define MANY 6u
#define MANY_CHUNKS 12u

/* Of two chunks each; the first `changed` differ. The reader has the rest. */
static struct pair *
setup_many(uint32_t changed)
{
	struct pair *s = pair_new(many, MANY, CALM_NS);
	memcpy(s->reader.memory, s->source.memory, s->source.bytes);
	for (uint32_t row = 0; row < changed; row++) {
		for (uint64_t at = 0; at < many[0]; at += MIB)
			change(&s->source, row, at);
	}
	return s;
}

static void
begin_published(struct pair *s, enum mode mode)
{
	s->leg++;
	pair_parts(s, true);
	pair_publish(s);
	xfer_part_expect_reuse(s->to);
	pair_go(s, mode);
}

static void
wait_running(struct pair *s, uint32_t count)
{
	int64_t until_ns = th_now_ns() + INT64_C(30000000000);
	while (fake_gpus_running(rig_gpus->gpus) < count) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
}

/* Each chunk is looked at once, and the GPU is asked for nothing else. */
CONFORMANCE(all_is_there__one_digest_of_each_chunk)
{
	struct pair *s = setup_many(0);
	begin_published(s, mode);
	const struct transport_event *done = pair_done(s, s->leg);
	cr_assert_eq(done->bytes_moved, 0);
	cr_assert_eq(done->bytes_reused, s->source.table->bytes);
	cr_assert_eq(rig_fake_count(GPU_HASH), MANY_CHUNKS);
	cr_assert_eq(
		rig_fake_count(GPU_READ) + rig_fake_count(GPU_WRITE) + rig_fake_count(GPU_COPY), 0);
	pair_finish(s);
}

/* A few digests are what a leg pays that finds nothing: 4, then 3, 2 and 1 at a time. */
CONFORMANCE(nothing_is_there__few_looks)
{
	struct pair *s = setup_many(MANY);
	begin_published(s, mode);
	const struct transport_event *done = pair_done(s, s->leg);
	cr_assert_eq(done->bytes_reused, 0);
	cr_assert_eq(done->bytes_moved, s->source.table->bytes);
	/* What has landed is hashed as well where a NIC writes to the GPU. */
	bool verifies = mode == MODE_RDMA && rig_gpus_for_nics;
	uint32_t looks = rig_fake_count(GPU_HASH) - (verifies ? MANY_CHUNKS : 0);
	cr_assert(looks >= 4 && looks <= 10, "%u", looks);
	cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 0);
	pair_finish(s);
}

CONFORMANCE(the_first_tensors_have_changed__they_alone_move)
{
	struct pair *s = setup_many(3);
	begin_published(s, mode);
	const struct transport_event *done = pair_done(s, s->leg);
	cr_assert_eq(done->bytes_moved, 3 * many[0]);
	cr_assert_eq(done->bytes_reused, 3 * many[0]);
	pair_finish(s);
}

/* Nothing is fetched that may be there, so nothing has come. */
CONFORMANCE(gpu_takes_its_time__several_looks_and_no_fetch)
{
	struct pair *s = setup_many(0);
	fake_gpus_hold(rig_gpus->gpus, true);
	begin_published(s, mode);
	wait_running(s, 4);
	rig_pump_for(&s->rig, 20000000);
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 4);
	cr_assert_eq(rig_counters(s->source_agent).bytes_out, 0);
	fake_gpus_hold(rig_gpus->gpus, false);
	cr_assert_eq(pair_done(s, s->leg)->bytes_moved, 0);
	pair_finish(s);
}

/* A run of looks that fails says nothing: its chunks are fetched. */
CONFORMANCE(looks_fail__fetched)
{
	if (mode == MODE_RDMA && rig_gpus_for_nics)
		return; /* what has landed is hashed by the GPU, too */
	struct pair *s = setup_many(0);
	fake_gpus_fail(rig_gpus->gpus, GPU_HASH, TH_E_STALE_MEMORY, 7);
	begin_published(s, mode);
	const struct transport_event *done = pair_done(s, s->leg);
	cr_assert_gt(done->bytes_moved, 0);
	cr_assert_geq(done->bytes_reused, 4 * CHUNK);
	cr_assert_eq(done->bytes_moved + done->bytes_reused, s->source.table->bytes);
	pair_finish(s);
}

CONFORMANCE(memory_is_gone_while_it_looks__stale_and_ours)
{
	struct pair *s = setup_many(0);
	fake_gpus_hold(rig_gpus->gpus, true);
	begin_published(s, mode);
	wait_running(s, 4);
	gpu_space_forget(s->reader.space, (uintptr_t)s->reader.memory);
	fake_gpus_hold(rig_gpus->gpus, false);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_not(failed->source_failed);
	cr_assert_eq(failed->code, TH_E_STALE_MEMORY, "%s", failed->text);
	cr_assert(strstr(failed->text, "the test said so"), "%s", failed->text);
	pair_finish(s);
}

/* At all four chunks. */
static struct pair *
start_looking(enum mode mode)
{
	struct pair *s = pair_new(many, 2, CALM_NS);
	memcpy(s->reader.memory, s->source.memory, s->source.bytes);
	fake_gpus_hold(rig_gpus->gpus, true);
	begin_published(s, mode);
	wait_running(s, 4);
	return s;
}

/* They are under way yet, and harm nobody when all else is gone. */
static void
finish_looking(struct pair *s)
{
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 4);
	rig_halt(&s->rig);
	pair_release(s);
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 4);
	fake_gpus_hold(rig_gpus->gpus, false);
	pair_finish(s);
}

/* A look harms nobody, so nobody waits for it: not who stops, and not who gives the memory back. */
CONFORMANCE(stop__while_it_looks__stopped_at_once)
{
	struct pair *s = start_looking(mode);
	transport_stop(s->reader_agent->transport, s->leg);
	pair_wait(s, TRANSPORT_STOPPED);
	finish_looking(s);
}

CONFORMANCE(worker_gone__while_it_looks__stopped_at_once)
{
	struct pair *s = start_looking(mode);
	xfer_part_orphan(s->to);
	gpu_space_forget(s->reader.space, (uintptr_t)s->reader.memory);
	transport_stop(s->reader_agent->transport, s->leg);
	pair_wait(s, TRANSPORT_STOPPED);
	finish_looking(s);
}

CONFORMANCE(agent_ends__while_it_looks__at_once)
{
	finish_looking(start_looking(mode));
}

/* Within a host it has all, so there is nothing to end for yet. */
CONFORMANCE(source_gone__while_it_looks__failed_at_once)
{
	struct pair *s = start_looking(mode);
	if (mode == MODE_LOCAL) {
		xfer_part_fail(s->from);
		fake_gpus_hold(rig_gpus->gpus, false);
		cr_assert_eq(pair_done(s, s->leg)->bytes_moved, 0);
		pair_finish(s);
		return;
	}
	transport_fence(s->source_agent->transport, s->leg);
	cr_assert(pair_wait(s, TRANSPORT_FAILED)->source_failed);
	finish_looking(s);
}

/* The next leg begins while looks of the last one are under way: they do not count. */
CONFORMANCE(next_leg__while_looks_of_the_last_are_under_way__its_own_count)
{
	struct pair *s = setup_many(0);
	fake_gpus_hold(rig_gpus->gpus, true);
	begin_published(s, mode);
	wait_running(s, 4);
	transport_stop(s->reader_agent->transport, s->leg);
	pair_wait(s, TRANSPORT_STOPPED);
	pair_move(s, mode, ++s->leg, s->from, s->to);
	wait_running(s, 8);
	fake_gpus_hold(rig_gpus->gpus, false);
	cr_assert_eq(pair_done(s, s->leg)->bytes_reused, s->source.table->bytes);
	cr_assert_eq(rig_fake_count(GPU_HASH), 4 + MANY_CHUNKS);
	pair_finish(s);
}

/* Longer than any stall: neither end takes the other for frozen. */
CONFORMANCE(gpu_hangs_while_it_looks__nobody_stalls)
{
	struct pair *s = pair_new(many, 2, STALL_NS);
	memcpy(s->reader.memory, s->source.memory, s->source.bytes);
	fake_gpus_hold(rig_gpus->gpus, true);
	begin_published(s, mode);
	wait_running(s, 4);
	rig_pump_for(&s->rig, 3 * STALL_NS);
	cr_assert_null(rig_find(s->reader_agent, TRANSPORT_FAILED, s->leg));
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 4);
	fake_gpus_hold(rig_gpus->gpus, false);
	cr_assert_eq(pair_done(s, s->leg)->bytes_moved, 0);
	pair_finish(s);
}

/* What was looked at since is a sign of life. The leg waits for more of the source meanwhile. */
Test(reuse_gpu, source_that_took_the_reader_for_stalled__is_told_of_looks)
{
	rig_fake_gpus_init(64 * MIB);
	struct pair *s = pair_new(many, 2, STALL_NS);
	memcpy(s->reader.memory, s->source.memory, s->source.bytes);
	rig_of_readers = RIG_GPU;
	s->leg++;
	pair_parts(s, true);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, 4);
	xfer_part_expect_reuse(s->to);
	fake_gpus_hold(rig_gpus->gpus, true);
	pair_go(s, MODE_TCP);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_STALLED, s->leg);
	fake_gpus_hold(rig_gpus->gpus, false);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_RESUMED, s->leg);
	pair_finish(s);
	rig_fake_gpus_fini();
}

CONFORMANCE(leg_is_cut_at_any_moment__ends)
{
	for (uint32_t round = 0; round < 9; round++) {
		struct pair *s = setup_new(CALM_NS);
		change(&s->source, 4 + round % 3, 0);
		begin_published(s, mode);
		rig_pump_for(&s->rig, (int64_t)round * 100000);
		pair_cut(s, round);
		while (s->reader_agent->num_events == 0 && round % 3 != 0)
			rig_pump(&s->rig, 10);
		pair_finish(s);
	}
}

/* Mapped rows and a GPU's by turns: each by its own way. */
CONFORMANCE(rows_of_both_kinds__nothing_moves)
{
	struct pair *s = setup_many(0);
	rig_of_readers = RIG_GPU_MAPPED;
	begin_published(s, mode);
	cr_assert_eq(pair_done(s, s->leg)->bytes_moved, 0);
	cr_assert_eq(rig_fake_count(GPU_HASH), MANY_CHUNKS / 2);
	pair_finish(s);
}

/* A chunk that lies in both is fetched. */
CONFORMANCE(chunk_of_both_kinds__moves)
{
	struct pair *s = setup_new(CALM_NS);
	rig_of_readers = RIG_GPU_MAPPED;
	begin_published(s, mode);
	const struct transport_event *done = pair_done(s, s->leg);
	cr_assert_eq(done->bytes_moved, mixed[0] + mixed[1]);
	pair_finish(s);
}

/* Memory behind a descriptor may hold up whoever touches it. */
CONFORMANCE(rows_behind_a_descriptor__all_moves)
{
	struct pair *s = setup_many(0);
	rig_of_readers = RIG_GPU_PROCESS;
	begin_published(s, mode);
	cr_assert_eq(pair_done(s, s->leg)->bytes_reused, 0);
	cr_assert_eq(rig_fake_count(GPU_HASH), 0);
	pair_finish(s);
}

#define HALF (MANY_CHUNKS / 2 - 1)

/* A source that will not have more, with less than half of it: all of that comes, and then its end.
 * Of two threads one has the last chunk, and the other one none. */
static void
run_failed(enum rig_memory from, enum rig_memory to, bool here)
{
	rig_fake_gpus_init(64 * MIB);
	struct pair *s = setup_many(here ? 0 : MANY);
	s->leg++;
	s->from = rig_part_of(&s->source, from, true);
	s->to = rig_part_of(&s->reader, to, true);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, HALF);
	xfer_part_fail(s->from);
	xfer_part_expect_reuse(s->to);
	pair_go(s, MODE_LOCAL);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert(failed->source_failed);
	cr_assert_eq(failed->code, TH_E_STALE_MEMORY, "%s", failed->text);
	cr_assert_eq(xfer_part_prefix(s->to), HALF, "%d to %d", (int)from, (int)to);
	cr_assert_eq(failed->bytes_reused, here ? HALF * CHUNK : 0);
	pair_finish(s);
	rig_fake_gpus_fini();
}

Test(reuse_gpu, failed_source__what_it_has_comes_first)
{
	static const enum rig_memory ends[][2] = {{RIG_GPU, RIG_MAPPED}, {RIG_MAPPED, RIG_GPU},
		{RIG_GPU, RIG_GPU}, {RIG_MAPPED, RIG_GPU_MAPPED}, {RIG_MAPPED, RIG_MAPPED}};
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		run_failed(ends[i][0], ends[i][1], true);
		run_failed(ends[i][0], ends[i][1], false);
	}
	run_failed(RIG_MAPPED, RIG_PROCESS, false);
}

/* From a GPU into memory of the host, which the mover hashes. */
Test(reuse_gpu, from_a_gpu_to_mapped_memory__nothing_moves)
{
	rig_fake_gpus_init(64 * MIB);
	rig_of_sources = RIG_GPU;
	struct pair *s = setup_many(0);
	begin_published(s, MODE_LOCAL);
	cr_assert_eq(pair_done(s, s->leg)->bytes_moved, 0);
	pair_finish(s);
	rig_fake_gpus_fini();
}
