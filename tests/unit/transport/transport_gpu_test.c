/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport where rows lie in the memory of GPUs, at either end or both, alone or with
 * others: over tcp, within a host and through slots of RDMA. The GPUs are the test's own
 * (fake_gpus.h), so that they wait and fail when they are told to.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "tests/support/gpu/rig_fake_gpus.h"
#include "tests/support/transport/transport_pair.h"
#include "transport/loop/crew.h"
#include "transport/loop/ferry.h"
#include "transport/part/fd_memory.h"

#define STAGING (64 * MIB)
#define PATIENCE_NS INT64_C(30000000000)

/* A device at each end, but no NIC reaches a GPU's memory: it goes through slots. */
#define MODES(name)                                                                                \
	PAIR_BOTH(transport_gpu, name)                                                             \
	Test(transport_gpu_rdma, name)                                                             \
	{                                                                                          \
		pair_rails = 1;                                                                    \
		name(MODE_RDMA);                                                                   \
	}                                                                                          \
	static void name(enum mode mode)

static const uint64_t odd_sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 9 * MIB + 13, 65536, 65537, 3, 1000000};
#define ODD (sizeof(odd_sizes) / sizeof(odd_sizes[0]))
static const uint64_t four_chunks[] = {16 * MIB, 4 * MIB}; /* and a row of one */

static struct pair *
start_with(const uint64_t *sizes, uint32_t count, uint64_t staging)
{
	rig_fake_gpus_init(staging);
	return pair_new(sizes, count, CALM_NS);
}

static struct pair *
start(const uint64_t *sizes, uint32_t count)
{
	return start_with(sizes, count, STAGING);
}

static void
wait_running(struct pair *s, uint32_t count)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	while (fake_gpus_running(rig_gpus->gpus) < count) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
}

/* ---- what works ---------------------------------------------------------------------- */

static const enum rig_memory kinds[] = {
	RIG_GPU, RIG_MAPPED, RIG_PROCESS, RIG_HOST, RIG_GPU_MAPPED, RIG_GPU_PROCESS};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static void
arrives(struct pair *s, enum mode mode, enum rig_memory from, enum rig_memory to, bool verify)
{
	memset(s->reader.memory, 0, s->reader.bytes);
	pair_parts_of(s, from, to, verify);
	pair_go(s, mode);
	pair_hash(s); /* the reader follows it */
	const struct transport_event *done = pair_wait(s, TRANSPORT_DONE);
	cr_assert(rig_shards_equal(&s->source, &s->reader), "%d to %d", (int)from, (int)to);
	cr_assert_eq(done->bytes_moved, s->source.table->bytes);
	cr_assert(from != RIG_GPU || to != RIG_GPU || !done->fallback[0], "%s", done->fallback);
	cr_assert_str_eq(done->transport, mode == MODE_TCP                   ? "tcp"
					  : mode == MODE_RDMA                ? "rdma-copy"
					  : from == RIG_GPU && to == RIG_GPU ? "cuda-ipc"
									     : "local");
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
	for (uint32_t c = 0; verify && c < s->source.table->num_chunks; c++)
		cr_assert(
			th_hash_equal(*xfer_part_digest(s->from, c), *xfer_part_digest(s->to, c)));
	pair_release(s);
}

MODES(every_kind_to_every_kind__arrives)
{
	struct pair *s = start(odd_sizes, ODD);
	for (uint32_t i = 0; i < 2 * KINDS * KINDS; i++) {
		enum rig_memory from = kinds[i / KINDS % KINDS], to = kinds[i % KINDS];
		bool verify = i < KINDS * KINDS;
		if ((from >= RIG_GPU || to >= RIG_GPU) && (verify || from == to))
			arrives(s, mode, from, to, verify);
	}
	cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 0);
	pair_finish_on_gpus(s);
}

Test(transport_gpu, digests__do_not_depend_on_the_kind)
{
	struct pair *s = start(odd_sizes, ODD);
	struct xfer_part *plain = rig_part_of(&s->source, RIG_MAPPED, true);
	rig_add_digests(plain);
	for (uint32_t i = 0; i < KINDS; i++) {
		pair_parts_of(s, kinds[i], RIG_MAPPED, true);
		pair_hash(s);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
		for (uint32_t c = 0; c < s->source.table->num_chunks; c++)
			cr_assert(th_hash_equal(
				*xfer_part_digest(s->from, c), *xfer_part_digest(plain, c)));
		pair_release(s);
	}
	xfer_part_release(plain);
	pair_finish_on_gpus(s);
}

MODES(thousands_of_tiny_tensors__arrive)
{
	uint64_t *sizes = calloc(3000, sizeof(sizes[0]));
	for (uint32_t i = 0; i < 3000; i++)
		sizes[i] = (i * 7919) % 3001;
	struct pair *s = start(sizes, 3000);
	arrives(s, mode, RIG_GPU, RIG_GPU, true);
	arrives(s, mode, RIG_GPU_MAPPED, RIG_GPU_PROCESS, true);
	pair_finish_on_gpus(s);
	free(sizes);
}

/* ---- GPUs alone ---------------------------------------------------------------------- */

Test(transport_gpu, between_gpus__no_byte_comes_to_the_host)
{
	struct pair *s = start(odd_sizes, ODD);
	pair_parts_of(s, RIG_GPU, RIG_GPU, true);
	pair_hash(s);
	pair_go(s, MODE_LOCAL);
	cr_assert_str_eq(pair_wait(s, TRANSPORT_DONE)->transport, "cuda-ipc");
	cr_assert(rig_shards_equal(&s->source, &s->reader));
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_READ), 0);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_WRITE), 0);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_COPY), s->source.table->num_chunks);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_HASH), s->source.table->num_chunks);
	cr_assert_eq(rig_counters(s->reader_agent).bytes_local, s->source.table->bytes);
	pair_finish_on_gpus(s);
}

static const uint64_t many_chunks[] = {32 * MIB};

/* The leg's reason, and that it is counted once. */
static void
check_why(struct pair *s, const struct transport_event *done, const char *why)
{
	cr_assert_str_eq(done->transport, "local");
	cr_assert_str_eq(done->fallback, why);
	cr_assert_eq(rig_counters(s->reader_agent).gpu_fallbacks, 1);
}

/* Some chunks are copied by then. */
Test(transport_gpu, gpus_that_do_not_reach_each_other__through_the_host_and_why)
{
	for (uint32_t after = 0; after < 10; after += 5) {
		struct pair *s = start(many_chunks, 1);
		pair_parts_of(s, RIG_GPU, RIG_GPU, after % 2 == 0);
		pair_publish(s);
		fake_gpus_fail(rig_gpus->gpus, GPU_COPY, TH_E_MEMORY_KIND, after);
		pair_go(s, MODE_LOCAL);
		const struct transport_event *done = pair_wait(s, TRANSPORT_DONE);
		check_why(s, done, "by staging on the host: the test said so");
		cr_assert_eq(done->bytes_moved, many_chunks[0]);
		cr_assert(rig_shards_equal(&s->source, &s->reader));
		cr_assert_gt(fake_gpus_count(rig_gpus->gpus, GPU_WRITE), 0);
		pair_finish_on_gpus(s);
	}
}

/* A GPU that hashes nothing: the agent does, and goes on where the GPU ended. */
Test(transport_gpu, hash_midway_by_ferries__the_same_digests)
{
	struct pair *s = start(many_chunks, 1);
	pair_parts_of(s, RIG_GPU, RIG_MAPPED, true);
	fake_gpus_fail(rig_gpus->gpus, GPU_HASH, TH_E_MEMORY_KIND, 5);
	pair_hash(s);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
	cr_assert_eq(rig_counters(s->source_agent).gpu_fallbacks, 0, "it is no copy");
	struct xfer_part *plain = rig_part_of(&s->source, RIG_MAPPED, true);
	rig_add_digests(plain);
	for (uint32_t c = 0; c < s->source.table->num_chunks; c++)
		cr_assert(
			th_hash_equal(*xfer_part_digest(s->from, c), *xfer_part_digest(plain, c)));
	xfer_part_release(plain);
	pair_finish_on_gpus(s);
}

Test(transport_gpu, hash_stop__while_gpus_hash__one_event_at_once)
{
	struct pair *s = start(many_chunks, 1);
	pair_parts_of(s, RIG_GPU, RIG_MAPPED, true);
	fake_gpus_hold(rig_gpus->gpus, true);
	pair_hash(s);
	wait_running(s, 8);
	transport_hash_stop(s->source_agent->transport, s->leg);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASH_STOPPED, s->leg);
	cr_assert_geq(fake_gpus_running(rig_gpus->gpus), 8);
	fake_gpus_hold(rig_gpus->gpus, false);
	cr_assert_eq(s->source_agent->num_events, 1);
	pair_finish_on_gpus(s);
}

/* A look at the source says that it is still what was published: so it is copied once more. */
Test(transport_gpu, copy_damaged_once__copied_again)
{
	struct pair *s = start(many_chunks, 1);
	pair_parts_of(s, RIG_GPU, RIG_GPU, true);
	pair_publish(s);
	fake_gpus_flip(rig_gpus->gpus, GPU_COPY, 4, 1);
	pair_go(s, MODE_LOCAL);
	pair_done(s, s->leg);
	cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 1);
	cr_assert_eq(rig_counters(s->reader_agent).chunks_refetched, 1);
	cr_assert_null(rig_find(s->reader_agent, TRANSPORT_CHANGED, s->leg));
	/* Of its group it alone was looked at, and copied again. */
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_HASH), 1);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_COPY), s->source.table->num_chunks + 1);
	pair_finish_on_gpus(s);
}

/* ---- groups -------------------------------------------------------------------------- */

#define CHUNKS 20u /* each of a row of its own */

static struct pair *
start_rows(void)
{
	uint64_t sizes[CHUNKS];
	for (uint32_t i = 0; i < CHUNKS; i++)
		sizes[i] = 2 * MIB;
	struct pair *s = start(sizes, CHUNKS);
	cr_assert_eq(s->source.table->num_chunks, CHUNKS);
	pair_parts_of(s, RIG_GPU, RIG_GPU, true);
	return s;
}

static uint32_t
requests(enum gpu_run_op op)
{
	return fake_gpus_requests(rig_gpus->gpus, op);
}

/* Of 1, 2, 4, 8 and what is left. */
Test(transport_gpu, groups__of_what_is_there__grow)
{
	struct pair *s = start_rows();
	pair_hash(s);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_HASH), CHUNKS);
	cr_assert_eq(requests(GPU_HASH), 5);
	fake_gpus_hold(rig_gpus->gpus, true);
	pair_go(s, MODE_LOCAL);
	wait_running(s, CHUNKS);
	fake_gpus_hold(rig_gpus->gpus, false);
	pair_done(s, s->leg);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_COPY), CHUNKS);
	cr_assert_eq(requests(GPU_COPY), 5);
	pair_finish_on_gpus(s);
}

/* Who reads behind it has the first of what comes then as soon as can be. */
Test(transport_gpu, groups__after_the_source_was_caught_up_with__are_small_again)
{
	struct pair *s = start_rows();
	rig_add_digests(s->from);
	pair_go(s, MODE_LOCAL);
	for (uint32_t round = 1; round <= 4; round++) {
		xfer_part_advance(s->from, 3 * round);
		rig_wait_prefix(&s->rig, s->to, 3 * round);
		cr_assert_eq(requests(GPU_COPY), 2 * round);
	}
	xfer_part_advance(s->from, CHUNKS);
	pair_done(s, s->leg);
	pair_finish_on_gpus(s);
}

/* The first chunk of it that fails, and no other row, is told. */
Test(transport_gpu, group_whose_digests_fail__is_gone_through)
{
	struct pair *s = start_rows();
	fake_gpus_fail(rig_gpus->gpus, GPU_HASH, TH_E_STALE_MEMORY, 5);
	pair_hash(s);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->source_agent, TRANSPORT_HASH_FAILED, s->leg);
	const struct chunk_table *table = s->source.table;
	cr_assert_eq(xfer_part_prefix(s->from), 3);
	cr_assert_eq(failed->row, table->ranges[table->first[3]].row);
	pair_finish_on_gpus(s);
}

Test(transport_gpu, group_that_fails__the_row_of_the_source)
{
	struct pair *s = start_rows();
	pair_publish(s);
	fake_gpus_fail(rig_gpus->gpus, GPU_COPY, TH_E_STALE_MEMORY, 5);
	fake_gpus_fail(rig_gpus->gpus, GPU_HASH, TH_E_STALE_MEMORY, 0);
	pair_go(s, MODE_LOCAL);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert(failed->source_failed);
	cr_assert_eq(failed->code, TH_E_STALE_MEMORY, "%s", failed->text);
	cr_assert_neq(failed->row, UINT32_MAX);
	pair_finish_on_gpus(s);
}

/* Each of them is looked at, and is what was published: it was our own memory. */
Test(transport_gpu, group_that_fails__ours_when_the_source_is_well)
{
	struct pair *s = start_rows();
	pair_publish(s);
	fake_gpus_fail(rig_gpus->gpus, GPU_COPY, TH_E_STALE_MEMORY, 5);
	pair_go(s, MODE_LOCAL);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_not(failed->source_failed);
	cr_assert_geq(fake_gpus_count(rig_gpus->gpus, GPU_HASH), 4);
	cr_assert_geq(xfer_part_prefix(s->to), 3);
	pair_finish_on_gpus(s);
}

/* Requests of copies, and for digests. A group that ends with its GPU's rows has not caught up. */
static const struct {
	const char *from, *to;
	uint32_t copies, digests;
} rows_on_two[] = {
	{"00001111000011110000", "00000000000000000000", 7, 7},
	{"00000000000000000000", "01010101010101010101", 20, 5},
};

Test(transport_gpu, groups__of_rows_on_two_gpus__on_one_at_a_time)
{
	for (size_t i = 0; i < sizeof(rows_on_two) / sizeof(rows_on_two[0]); i++) {
		struct pair *s = start_rows();
		pair_release(s);
		s->from = rig_fake_part(&s->source, rows_on_two[i].from, true);
		s->to = rig_fake_part(&s->reader, rows_on_two[i].to, true);
		pair_hash(s);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
		fake_gpus_hold(rig_gpus->gpus, true);
		pair_go(s, MODE_LOCAL);
		wait_running(s, 8);
		fake_gpus_hold(rig_gpus->gpus, false);
		cr_assert_str_eq(pair_done(s, s->leg)->transport, "cuda-ipc");
		cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_COPY), CHUNKS);
		cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_HASH), CHUNKS);
		cr_assert_eq(requests(GPU_COPY), rows_on_two[i].copies);
		cr_assert_eq(requests(GPU_HASH), rows_on_two[i].digests);
		pair_finish_on_gpus(s);
	}
}

/* Small rows share a chunk: by ferries then, all of it, as well as the digests. */
Test(transport_gpu, chunk_on_two_gpus__through_the_host)
{
	static const uint64_t sizes[] = {MIB, MIB, 4 * MIB};
	for (int source = 0; source < 2; source++) {
		struct pair *s = start(sizes, 3);
		s->from = rig_fake_part(&s->source, source ? "010" : "000", true);
		s->to = rig_fake_part(&s->reader, source ? "000" : "010", true);
		s->leg++;
		pair_hash(s);
		pair_go(s, MODE_LOCAL);
		check_why(s, pair_done(s, s->leg),
			"by staging on the host: a chunk of it lies on more than one GPU; keep "
			"small tensors on one");
		rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
		cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_HASH), source ? 0 : 2);
		pair_finish_on_gpus(s);
	}
}

Test(transport_gpu, copy_to_one_that_has_all__done_at_once)
{
	struct pair *s = start(four_chunks, 1);
	pair_parts_of(s, RIG_GPU, RIG_GPU, true);
	pair_publish(s);
	pair_go(s, MODE_LOCAL);
	pair_done(s, s->leg);
	pair_move(s, MODE_LOCAL, ++s->leg, s->from, s->to);
	cr_assert_eq(pair_done(s, s->leg)->bytes_moved, 0);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_COPY), 4);
	pair_finish_on_gpus(s);
}

Test(transport_gpu, groups__of_tiny_tensors__have_no_more_ranges_than_a_message)
{
	static uint64_t sizes[6000];
	for (uint32_t i = 0; i < 6000; i++)
		sizes[i] = 10000;
	struct pair *s = start(sizes, 6000);
	arrives(s, MODE_LOCAL, RIG_GPU, RIG_GPU, true);
	/* A message has room for 512, and a chunk has 419 on each side. */
	cr_assert_eq(requests(GPU_COPY), s->source.table->num_chunks);
	cr_assert_leq(requests(GPU_HASH), s->source.table->num_chunks);
	cr_assert_geq(requests(GPU_HASH), s->source.table->num_chunks / 2);
	pair_finish_on_gpus(s);
}

/* A leg that is over leaves them behind. */
Test(transport_gpu, groups__under_way_when_the_worker_is_gone__harm_nobody)
{
	struct pair *s = start_rows();
	pair_publish(s);
	fake_gpus_hold(rig_gpus->gpus, true);
	pair_go(s, MODE_LOCAL);
	wait_running(s, CHUNKS);
	xfer_part_orphan(s->to);
	transport_stop(s->reader_agent->transport, s->leg);
	pair_wait(s, TRANSPORT_STOPPED);
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), CHUNKS);
	fake_gpus_hold(rig_gpus->gpus, false);
	pair_finish_on_gpus(s);
}

Test(transport_gpu, copy_damaged_always__checksum)
{
	struct pair *s = start(many_chunks, 1);
	pair_parts_of(s, RIG_GPU, RIG_GPU, true);
	pair_publish(s);
	fake_gpus_flip(rig_gpus->gpus, GPU_COPY, 0, UINT32_MAX);
	pair_go(s, MODE_LOCAL);
	cr_assert_eq(pair_wait(s, TRANSPORT_FAILED)->code, TH_E_CHECKSUM);
	cr_assert_null(rig_find(s->reader_agent, TRANSPORT_CHANGED, s->leg));
	cr_assert_eq(xfer_part_prefix(s->to), 0);
	pair_finish_on_gpus(s);
}

MODES(source_changed_after_hashing__changed)
{
	for (int both = 0; both < 2; both++) {
		struct pair *s = start(many_chunks, 1);
		pair_parts_of(s, RIG_GPU, both ? RIG_GPU : RIG_MAPPED, true);
		pair_publish(s);
		s->source.tensors[0][3 * 4 * MIB + 5] ^= 1;
		pair_go(s, mode);
		struct rig_agent *agent = mode != MODE_LOCAL ? s->source_agent : s->reader_agent;
		cr_assert_eq(rig_wait(&s->rig, agent, TRANSPORT_CHANGED, s->leg)->chunk, 3);
		const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
		cr_assert_eq(failed->code, TH_E_CHECKSUM, "%s", failed->text);
		cr_assert(failed->source_failed);
		cr_assert_leq(xfer_part_prefix(s->to), 3);
		pair_finish_on_gpus(s);
	}
}

/* Whose memory it was: the look at the source tells. */
Test(transport_gpu, copy_that_fails__of_the_one_whose_memory_it_was)
{
	for (int source = 0; source < 2; source++) {
		struct pair *s = start(many_chunks, 1);
		pair_parts_of(s, RIG_GPU, RIG_GPU, true);
		pair_publish(s);
		fake_gpus_fail(rig_gpus->gpus, GPU_COPY, TH_E_STALE_MEMORY, 3);
		fake_gpus_fail(rig_gpus->gpus, GPU_HASH, source ? TH_E_STALE_MEMORY : 0, 0);
		pair_go(s, MODE_LOCAL);
		const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
		cr_assert_eq(failed->code, TH_E_STALE_MEMORY);
		cr_assert_eq(failed->source_failed, source);
		cr_assert_eq(failed->row, source ? 0 : UINT32_MAX);
		cr_assert(strstr(failed->text, "the test said so"), "%s", failed->text);
		pair_finish_on_gpus(s);
	}
}

/* It follows the prefix of one that is itself filled, chunk by chunk: only what was verified. */
MODES(chain__only_verified_chunks_go_on)
{
	struct rig_shard last;
	struct pair *s = start(many_chunks, 1);
	rig_shard_init(&last, many_chunks, 1, 0);
	struct xfer_part *end = rig_part_of(&last, RIG_GPU, true);
	pair_parts_of(s, RIG_GPU, RIG_GPU, true);
	rig_add_digests(s->from);
	pair_go(s, mode);
	cr_assert_eq(transport_copy(s->reader_agent->transport, 99, s->to, end), 0);
	for (uint32_t c = 1; c <= s->source.table->num_chunks; c++) {
		cr_assert_eq(xfer_part_prefix(end), c - 1);
		xfer_part_advance(s->from, c);
		rig_wait_prefix(&s->rig, end, c);
	}
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 99);
	cr_assert(rig_shards_equal(&s->source, &last));
	rig_halt(&s->rig);
	xfer_part_release(end);
	rig_shard_fini(&last);
	pair_finish_on_gpus(s);
}

/* ---- few blocks ---------------------------------------------------------------------- */

/* Both agents send to each other, and all want more than there is. */
MODES(staging_of_four_blocks__all_arrive)
{
	enum { LEGS = 6 };
	struct rig_shard shards[LEGS];
	struct xfer_part *to[LEGS];
	struct pair *s = start_with(four_chunks, 1, 4 * (uint64_t)GPUS_BLOCK_BYTES);
	pair_parts_of(s, RIG_GPU, RIG_GPU_PROCESS, true);
	pair_publish(s);
	for (uint32_t i = 0; i < LEGS; i++) {
		rig_shard_init(&shards[i], four_chunks, 1, 0);
		to[i] = rig_part_of(&shards[i], i % 3 == 0 ? RIG_PROCESS : RIG_GPU, true);
		if (mode == MODE_LOCAL)
			cr_assert_eq(
				transport_copy(s->reader_agent->transport, 10 + i, s->from, to[i]),
				0);
		else if (i % 2 == 0)
			rig_pull(s->source_agent, s->reader_agent, 10 + i, s->from, to[i]);
		else
			rig_pull(s->reader_agent, s->source_agent, 10 + i, s->from, to[i]);
	}
	for (uint32_t i = 0; i < LEGS; i++) {
		struct rig_agent *agent =
			mode == MODE_LOCAL || i % 2 == 0 ? s->reader_agent : s->source_agent;
		rig_wait(&s->rig, agent, TRANSPORT_DONE, 10 + i);
		cr_assert(rig_shards_equal(&s->source, &shards[i]));
	}
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 0);
	rig_halt(&s->rig);
	for (uint32_t i = 0; i < LEGS; i++) {
		xfer_part_release(to[i]);
		rig_shard_fini(&shards[i]);
	}
	cr_assert_eq(fake_gpus_blocks(rig_gpus->gpus), 0);
	pair_finish_on_gpus(s);
}

/* A GPU reads the next bytes of a chunk, or has them to write, while others are on their way. (For
 * RDMA it does all of a chunk at once: transport_slab_test.c.) */
PAIR_TESTS(transport_gpu, staging_of_one_chunk__three_blocks_under_way)
{
	for (int writes = 0; writes < 2; writes++) {
		struct pair *s = start(four_chunks + 1, 1);
		pair_parts_of(
			s, writes ? RIG_MAPPED : RIG_GPU, writes ? RIG_GPU : RIG_MAPPED, true);
		pair_publish(s);
		cr_assert_eq(s->source.table->num_chunks, 1);
		fake_gpus_hold(rig_gpus->gpus, true);
		pair_go(s, mode);
		wait_running(s, 3);
		fake_gpus_hold(rig_gpus->gpus, false);
		pair_done(s, s->leg);
		cr_assert_eq(fake_gpus_count(rig_gpus->gpus, writes ? GPU_WRITE : GPU_READ), 8);
		pair_finish_on_gpus(s);
	}
}

/* ---- what fails ---------------------------------------------------------------------- */

/* The second row's memory is not there any more. */
MODES(source_memory_gone__stale_and_the_row)
{
	static const uint64_t sizes[] = {5 * MIB, 6 * MIB};
	struct pair *s = start(sizes, 2);
	pair_parts_of(s, RIG_GPU, RIG_MAPPED, true);
	pair_publish(s);
	/* Of a chunk for RDMA, and of its blocks for others. */
	uint32_t after = mode == MODE_RDMA ? 2 : 14;
	fake_gpus_fail(rig_gpus->gpus, GPU_READ, TH_E_STALE_MEMORY, after);
	pair_go(s, mode);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert(failed->source_failed);
	cr_assert_eq(failed->code, TH_E_STALE_MEMORY, "%s", failed->text);
	cr_assert(strstr(failed->text, "the test said so"), "%s", failed->text);
	if (mode != MODE_LOCAL)
		cr_assert_eq(rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, s->leg)->code,
			TH_E_STALE_MEMORY);
	pair_finish_on_gpus(s);
}

MODES(own_memory_gone__stale_and_ours)
{
	struct pair *s = start(four_chunks, 1);
	pair_parts_of(s, RIG_MAPPED, RIG_GPU, true);
	pair_publish(s);
	fake_gpus_fail(rig_gpus->gpus, GPU_WRITE, TH_E_STALE_MEMORY, 3);
	pair_go(s, mode);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_not(failed->source_failed);
	cr_assert_eq(failed->code, TH_E_STALE_MEMORY, "%s", failed->text);
	cr_assert(strstr(failed->text, "the test said so"), "%s", failed->text);
	pair_finish_on_gpus(s);
}

/* Of the part itself, and its own. */
Test(transport_gpu, hash_of_memory_that_is_gone__failed)
{
	struct pair *s = start(four_chunks, 1);
	pair_parts_of(s, RIG_GPU, RIG_MAPPED, true);
	fake_gpus_fail(rig_gpus->gpus, GPU_HASH, TH_E_STALE_MEMORY, 1);
	fake_gpus_fail(rig_gpus->gpus, GPU_READ, TH_E_STALE_MEMORY, 1);
	pair_hash(s);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->source_agent, TRANSPORT_HASH_FAILED, s->leg);
	cr_assert_eq(failed->row, 0);
	cr_assert(xfer_part_failed(s->from));
	pair_finish_on_gpus(s);
}

/* Who copies it at the same time is sent away. */
Test(transport_gpu, hash_of_memory_that_is_gone__copies_of_it_fail)
{
	for (int both = 0; both < 2; both++) {
		struct pair *s = start(many_chunks, 1);
		pair_parts_of(s, RIG_GPU, both ? RIG_GPU : RIG_MAPPED, true);
		fake_gpus_fail(rig_gpus->gpus, GPU_HASH, TH_E_STALE_MEMORY, 2);
		pair_go(s, MODE_LOCAL);
		pair_hash(s);
		const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
		cr_assert(failed->source_failed);
		cr_assert_eq(failed->code, TH_E_STALE_MEMORY);
		cr_assert(strstr(failed->text, "the test said so"), "%s", failed->text);
		pair_finish_on_gpus(s);
	}
}

/* ---- GPUs that take their time ------------------------------------------------------- */

/* Nothing of the leg reads what it read any more, so nobody waits for the GPU. */
Test(transport_gpu, fence__while_the_gpu_reads__ended_at_once)
{
	struct pair *s = start(four_chunks, 1);
	pair_parts_of(s, RIG_GPU, RIG_MAPPED, true);
	pair_publish(s);
	fake_gpus_hold(rig_gpus->gpus, true);
	pair_go(s, MODE_TCP);
	wait_running(s, 1);
	transport_fence(s->source_agent->transport, s->leg);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, s->leg);
	cr_assert_gt(fake_gpus_running(rig_gpus->gpus), 0);
	fake_gpus_hold(rig_gpus->gpus, false);
	pair_finish_on_gpus(s);
}

/* What is written may still be seen: the stop waits for the GPU. */
MODES(stop__while_the_gpu_writes__stopped_when_it_is_done)
{
	struct pair *s = start(four_chunks, 1);
	pair_parts_of(s, RIG_MAPPED, RIG_GPU, true);
	pair_publish(s);
	fake_gpus_hold(rig_gpus->gpus, true);
	pair_go(s, mode);
	wait_running(s, 1);
	transport_stop(s->reader_agent->transport, s->leg);
	rig_pump_for(&s->rig, 20000000);
	cr_assert_null(rig_find(s->reader_agent, TRANSPORT_STOPPED, s->leg));
	cr_assert_gt(fake_gpus_running(rig_gpus->gpus), 0);
	fake_gpus_hold(rig_gpus->gpus, false);
	pair_wait(s, TRANSPORT_STOPPED);
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 0);
	pair_finish_on_gpus(s);
}

MODES(stop__worker_gone_while_the_gpu_writes__stopped_at_once)
{
	for (int both = 0; both < 2; both++) {
		struct pair *s = start(four_chunks, 1);
		pair_parts_of(s, both ? RIG_GPU : RIG_MAPPED, RIG_GPU, true);
		pair_publish(s);
		fake_gpus_hold(rig_gpus->gpus, true);
		pair_go(s, mode);
		wait_running(s, 1);
		xfer_part_orphan(s->to);
		transport_stop(s->reader_agent->transport, s->leg);
		pair_wait(s, TRANSPORT_STOPPED);
		cr_assert_gt(fake_gpus_running(rig_gpus->gpus), 0);
		fake_gpus_hold(rig_gpus->gpus, false);
		pair_finish_on_gpus(s);
	}
}

/* The agent ends while blocks are waited for, read and written. */
MODES(close__midway__nothing_is_left)
{
	for (uint32_t round = 0; round < 4; round++) {
		struct pair *s =
			start_with(four_chunks, 1, (round + 1) * (uint64_t)GPUS_BLOCK_BYTES);
		pair_parts_of(s, RIG_GPU, round % 2 ? RIG_GPU_PROCESS : RIG_GPU, true);
		pair_publish(s);
		pair_go(s, mode);
		rig_wait_prefix(&s->rig, s->to, round);
		pair_finish_on_gpus(s);
	}
}

/* ---- threads ------------------------------------------------------------------------- */

/* Nothing of a GPU's part gets stuck in its worker, so no thread is kept for that. */
Test(transport_gpu, part_on_gpus_alone__no_thread)
{
	struct pair *s = start(four_chunks, 1);
	pair_parts_of(s, RIG_GPU, RIG_GPU, true);
	pair_publish(s);
	fake_gpus_hold(rig_gpus->gpus, true);
	pair_go(s, MODE_TCP);
	wait_running(s, 1);
	cr_assert_eq(crew_count(), 0);
	fake_gpus_hold(rig_gpus->gpus, false);
	pair_wait(s, TRANSPORT_DONE);
	pair_finish_on_gpus(s);
}

static void
nothing(struct loop_task *task)
{
	(void)task;
}

static void
drop(void *arg)
{
	ferry_block_drop(arg);
}

/* Such a thread has no descriptor to wake anybody with who waits for the block. */
Test(transport_gpu, block_dropped_by_a_thread_of_the_crew__given_back_by_a_sweep)
{
	static struct loop_task done = {.run = nothing};
	struct pair *s = start(four_chunks, 1);
	struct ferry *ferry;
	struct loop *loop;
	pair_parts_of(s, RIG_GPU, RIG_GPU, true);
	cr_assert_eq(loop_new("test", LOOP_EPOLL, NULL, NULL, &loop), 0);
	cr_assert_eq(ferry_new(s->from, false, loop, &done, &ferry), 0);
	struct ferry_block *block = ferry_spare(ferry);
	cr_assert_eq(fake_gpus_blocks(rig_gpus->gpus), 1);
	cr_assert_eq(crew_start(drop, block, calloc(1, sizeof(int)), 0), 0);
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
	cr_assert_eq(fake_gpus_blocks(rig_gpus->gpus), 1);
	fd_memory_sweep();
	cr_assert_eq(fake_gpus_blocks(rig_gpus->gpus), 0);
	ferry_abandon(ferry);
	loop_free(loop);
	pair_finish_on_gpus(s);
}
