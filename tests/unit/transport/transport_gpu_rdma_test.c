/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of RDMA straight from and to the memory of GPUs: large rows by their regions, small ones
 * packed side by side in host memory, what has landed hashed or flushed by the GPU. The GPUs are
 * the test's own (fake_gpus.h), and the device reads their memory where it lies.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "tests/support/gpu/rig_fake_gpus.h"
#include "tests/support/transport/transport_pair.h"
#include "transport/cuda/agent/touch.h"
#include "transport/part/fd_memory.h"
#include "transport/part/packed.h"
#include "transport/rdma/rdma.h"

static const uint64_t odd_sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 9 * MIB + 13, 65536, 65537, 3, 1000000};
#define ODD (sizeof(odd_sizes) / sizeof(odd_sizes[0]))
static const uint64_t four_chunks[] = {16 * MIB};

static const enum rig_memory kinds[] = {RIG_GPU, RIG_MAPPED, RIG_GPU_MAPPED};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct pair *
start(const uint64_t *sizes, uint32_t count)
{
	rig_fake_gpus_init(64 * MIB);
	rig_gpus_for_nics = true;
	pair_rails = 1;
	struct pair *s = pair_new(sizes, count, CALM_NS);
	s->reader_agent->require_rdma = true; /* or TCP carries what waits to be registered */
	return s;
}

/* The source has published it. */
static void
pull(struct pair *s, enum rig_memory from, enum rig_memory to, bool verify)
{
	s->from = rig_part_of(&s->source, from, verify);
	s->to = rig_part_of(&s->reader, to, verify);
	if (verify)
		rig_add_digests(s->from);
	xfer_part_advance(s->from, s->source.table->num_chunks);
	pair_move(s, MODE_RDMA, ++s->leg, s->from, s->to);
}

static void
arrives(struct pair *s, enum rig_memory from, enum rig_memory to, bool verify)
{
	memset(s->reader.memory, 0, s->reader.bytes);
	pull(s, from, to, verify);
	const struct transport_event *done = pair_done(s, s->leg);
	cr_assert(rig_shards_equal(&s->source, &s->reader), "%d to %d", (int)from, (int)to);
	cr_assert_str_eq(done->transport, "rdma", "%d to %d", (int)from, (int)to);
	cr_assert_geq(done->bytes_moved, s->source.table->bytes);
	pair_release(s);
}

Test(transport_gpu_rdma, every_kind_to_every_kind__by_rdma)
{
	struct pair *s = start(odd_sizes, ODD);
	for (uint32_t i = 0; i < 2 * KINDS * KINDS; i++)
		arrives(s, kinds[i / KINDS % KINDS], kinds[i % KINDS], i < KINDS * KINDS);
	struct transport_counters counters = rig_counters(s->reader_agent);
	cr_assert_eq(counters.checksum_failures, 0);
	cr_assert_eq(counters.bytes_in_copy, 0);
	cr_assert_eq(rig_counters(s->source_agent).bytes_staged, 0);
	pair_finish_on_gpus(s);
}

Test(transport_gpu_rdma, large_rows__hashed_by_the_gpu_and_not_moved_by_it)
{
	struct pair *s = start(four_chunks, 1);
	arrives(s, RIG_GPU, RIG_GPU, true);
	cr_assert_eq(rig_fake_count(GPU_HASH), 4);
	cr_assert_eq(
		rig_fake_count(GPU_READ) + rig_fake_count(GPU_WRITE) + rig_fake_count(GPU_COPY), 0);
	pair_finish_on_gpus(s);
}

/* Without digests the GPU still has to see what the NIC has written. */
Test(transport_gpu_rdma, unverified__every_chunk_is_flushed)
{
	struct pair *s = start(four_chunks, 1);
	arrives(s, RIG_GPU, RIG_GPU, false);
	cr_assert_eq(rig_fake_count(GPU_HASH), 0);
	cr_assert_eq(rig_fake_count(GPU_READ), 4);
	cr_assert_eq(rig_fake_count(GPU_WRITE) + rig_fake_count(GPU_COPY), 0);
	pair_finish_on_gpus(s);
}

/* What one GPU sees says nothing of the other one. */
Test(transport_gpu_rdma, chunk_on_two_gpus__both_are_flushed)
{
	static const uint64_t sizes[] = {100000, 200000, 300000, 5};
	static const uint8_t uuids[2][16] = {{7}, {8}};
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY};
	struct xfer_place places[4] = {0};
	struct gpu_space *spaces[2];
	struct rig_shard shard;
	struct th_err err;
	rig_fake_gpus_init(MIB);
	rig_shard_init(&shard, sizes, 4, 1);
	handle.bytes = shard.bytes;
	for (uint32_t i = 0; i < 2; i++) {
		spaces[i] = gpu_space_new(rig_gpus->gpus, uuids[i], "two", &err);
		cr_assert_eq(
			gpu_space_add(spaces[i], &handle, (uintptr_t)shard.memory, -1, NULL, &err),
			0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		places[i].place = (uintptr_t)shard.tensors[i];
		if (i == 3)
			places[i].data = shard.tensors[i];
		else
			places[i].access = fd_memory_new_gpu(rig_gpus->gpus, spaces[i % 2]);
	}
	struct xfer_part *part = xfer_part_new_places(shard.table, places, 4, false, NULL, NULL);
	cr_assert_eq(shard.table->num_chunks, 1);
	cr_assert_eq(touch_flush(part, 0), 0);
	cr_assert_eq(rig_fake_count(GPU_READ), 2);
	xfer_part_release(part);
	for (uint32_t i = 0; i < 3; i++)
		fd_memory_release(places[i].access);
	fd_memory_sweep();
	for (uint32_t i = 0; i < 2; i++)
		gpu_space_release(spaces[i]);
	rig_shard_fini(&shard);
	rig_fake_gpus_fini();
}

Test(transport_gpu_rdma, small_rows__packed_and_scattered)
{
	uint64_t sizes[200];
	for (uint32_t i = 0; i < 200; i++)
		sizes[i] = 1000 + 331 * i;
	struct pair *s = start(sizes, 200);
	arrives(s, RIG_GPU, RIG_GPU, true);
	cr_assert_gt(rig_fake_count(GPU_READ), 0);
	cr_assert_gt(rig_fake_count(GPU_WRITE), 0);
	cr_assert_eq(rig_fake_count(GPU_COPY), 0);
	pair_finish_on_gpus(s);
}

/* ---- what goes wrong ----------------------------------------------------------------------- */

Test(transport_gpu_rdma, what_landed_is_damaged_once__fetched_again)
{
	struct pair *s = start(four_chunks, 1);
	fake_gpus_flip(rig_gpus->gpus, GPU_HASH, 1, 1);
	arrives(s, RIG_GPU, RIG_GPU, true);
	cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 1);
	cr_assert_eq(rig_counters(s->reader_agent).bytes_in_rdma, 20 * MIB);
	pair_finish_on_gpus(s);
}

Test(transport_gpu_rdma, source_changes_what_is_published__told)
{
	struct pair *s = start(four_chunks, 1);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	s->to = rig_part_of(&s->reader, RIG_GPU, true);
	pair_publish(s);
	s->source.tensors[0][9 * MIB] ^= 1;
	pair_move(s, MODE_RDMA, ++s->leg, s->from, s->to);
	const struct transport_event *changed =
		rig_wait(&s->rig, s->source_agent, TRANSPORT_CHANGED, s->leg);
	cr_assert_eq(changed->chunk, 2);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert(failed->source_failed);
	pair_finish_on_gpus(s);
}

Test(transport_gpu_rdma, readers_gpu_is_lost__its_own_memory_is_stale)
{
	for (uint32_t verify = 0; verify < 2; verify++) {
		struct pair *s = start(four_chunks, 1);
		fake_gpus_fail(rig_gpus->gpus, verify ? GPU_HASH : GPU_READ, TH_E_STALE_MEMORY, 1);
		pull(s, RIG_GPU, RIG_GPU, verify);
		const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
		cr_assert_eq(failed->code, TH_E_STALE_MEMORY);
		cr_assert(!failed->source_failed);
		cr_assert_not_null(strstr(failed->text, "the test said so"), "%s", failed->text);
		pair_finish_on_gpus(s);
	}
}

Test(transport_gpu_rdma, sources_gpu_is_lost_while_it_packs__source_failed)
{
	static const uint64_t sizes[] = {100000, 200000, 300000};
	struct pair *s = start(sizes, 3);
	fake_gpus_fail(rig_gpus->gpus, GPU_READ, TH_E_STALE_MEMORY, 0);
	pull(s, RIG_GPU, RIG_MAPPED, true);
	const struct transport_event *ended =
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, s->leg);
	cr_assert_eq(ended->code, TH_E_STALE_MEMORY);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert(failed->source_failed);
	pair_finish_on_gpus(s);
}

/* Its checks wait for it, in as many threads as it may have. */
Test(transport_gpu_rdma, gpu_hangs__legs_of_host_memory_go_on)
{
	struct rig_shard from, to;
	struct pair *s = start(four_chunks, 1);
	rig_shard_init(&from, four_chunks, 1, 7);
	rig_shard_init(&to, four_chunks, 1, 0);
	rig_register(s->source_agent, &from);
	rig_register(s->reader_agent, &to);
	struct xfer_part *source = rig_part_of(&from, RIG_MAPPED, true);
	struct xfer_part *reader = rig_part_of(&to, RIG_MAPPED, true);
	rig_add_digests(source);
	xfer_part_advance(source, from.table->num_chunks);
	fake_gpus_hold(rig_gpus->gpus, true);
	pull(s, RIG_GPU, RIG_GPU, true);
	while (fake_gpus_running(rig_gpus->gpus) < 2)
		rig_pump(&s->rig, 10);
	rig_pull(s->source_agent, s->reader_agent, 2, source, reader);
	cr_assert_str_eq(rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 2)->transport, "rdma");
	cr_assert(rig_shards_equal(&from, &to));
	cr_assert_neq(xfer_part_prefix(s->to), s->source.table->num_chunks);
	fake_gpus_hold(rig_gpus->gpus, false);
	pair_wait(s, TRANSPORT_DONE);
	rig_halt(&s->rig);
	xfer_part_release(source);
	xfer_part_release(reader);
	pair_release(s);
	rig_shard_fini(&from);
	rig_shard_fini(&to);
	pair_finish_on_gpus(s);
}

/* For each GPU, and for those that one part lies on. */
Test(transport_gpu_rdma, parts_on_other_gpus__checked_by_other_threads)
{
	static const char *const rows[] = {"mm", "00", "11", "01"}, *const same[] = {"0m", "10"};
	static const uint64_t sizes[] = {100000, 200000};
	const struct checks *checks[TH_ARRAY_LEN(rows)];
	struct pair *s = start(sizes, 2);
	struct rdma *rdma = transport_rdma(s->reader_agent->transport);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(rows); i++) {
		struct xfer_part *part = rig_fake_part(&s->reader, rows[i], false);
		checks[i] = rdma_checks(rdma, part);
		for (uint32_t other = 0; other < i; other++)
			cr_assert_neq(checks[i], checks[other], "%s", rows[i]);
		xfer_part_release(part);
	}
	for (uint32_t i = 0; i < TH_ARRAY_LEN(same); i++) {
		struct xfer_part *part = rig_fake_part(&s->reader, same[i], false);
		cr_assert_eq(rdma_checks(rdma, part), checks[2 * i + 1], "%s", same[i]);
		xfer_part_release(part);
	}
	pair_finish_on_gpus(s);
}

/* How many there are for parts on one GPU, or on several, of all that there can be. */
static uint32_t
count_checks(struct pair *s, bool one)
{
	const struct checks *seen[1u << RIG_FAKE_GPUS];
	uint32_t count = 0;
	for (uint32_t mask = 1; mask < 1u << RIG_FAKE_GPUS; mask++) {
		char rows[RIG_FAKE_GPUS + 1] = {0};
		uint32_t at = 0;
		if (((mask & (mask - 1)) == 0) != one)
			continue;
		for (uint32_t gpu = 0; gpu < RIG_FAKE_GPUS; gpu++)
			rows[gpu] = mask >> gpu & 1 ? (char)('0' + gpu) : 'm';
		struct xfer_part *part = rig_fake_part(&s->reader, rows, false);
		seen[count] = rdma_checks(transport_rdma(s->reader_agent->transport), part);
		while (seen[at] != seen[count])
			at++;
		count += at == count;
		xfer_part_release(part);
	}
	return count;
}

/* Whatever one worker registers, each GPU has some of its own. */
Test(transport_gpu_rdma, parts_on_any_set_of_gpus__checked_by_a_few_threads)
{
	static const uint64_t sizes[RIG_FAKE_GPUS] = {1000, 1000, 1000, 1000, 1000, 1000};
	struct pair *s = start(sizes, RIG_FAKE_GPUS);
	cr_assert_leq(count_checks(s, false), 4);
	cr_assert_eq(count_checks(s, true), RIG_FAKE_GPUS);
	pair_finish_on_gpus(s);
}

static void *
fill(void *part)
{
	return packed_fill(part, 1) < 0 ? part : NULL;
}

/* A leg that looked on until it is packed would do nothing else. */
Test(transport_gpu_rdma, another_thread_packs_a_chunk__left_to_it_until_it_tells)
{
	static const uint64_t sizes[] = {100000, 200000};
	for (uint32_t fails = 0; fails < 2; fails++) {
		struct pair *s = start(sizes, 2);
		uint32_t told = 0;
		pthread_t thread;
		void *failed;
		s->from = rig_part_of(&s->source, RIG_GPU, true);
		rig_add_digests(s->from);
		cr_assert_not(packed_lacks(s->from));
		xfer_part_advance(s->from, 1);
		cr_assert(packed_lacks(s->from));
		xfer_part_watch(s->from, rig_count_news, &told);
		if (fails)
			fake_gpus_fail(rig_gpus->gpus, GPU_READ, TH_E_STALE_MEMORY, 0);
		fake_gpus_hold(rig_gpus->gpus, true);
		cr_assert_eq(pthread_create(&thread, NULL, fill, s->from), 0);
		while (fake_gpus_running(rig_gpus->gpus) == 0)
			rig_pump(&s->rig, 1);
		cr_assert_not(packed_lacks(s->from));
		cr_assert_eq(packed_prefix(s->from), 0);
		cr_assert_eq(__atomic_load_n(&told, __ATOMIC_RELAXED), 0);
		fake_gpus_hold(rig_gpus->gpus, false);
		cr_assert_eq(pthread_join(thread, &failed), 0);
		cr_assert_eq(failed != NULL, fails);
		cr_assert_eq(packed_lacks(s->from), fails);
		cr_assert_eq(told, 1);
		xfer_part_unwatch(s->from, rig_count_news, &told);
		pair_finish_on_gpus(s);
	}
}

/* And nothing of it is under way when its pair has ended. */
Test(transport_gpu_rdma, leg_is_cut_at_any_moment__ends)
{
	for (uint32_t round = 0; round < 9; round++) {
		struct pair *s = start(odd_sizes, ODD);
		pull(s, RIG_GPU, RIG_GPU, round % 2);
		rig_pump_for(&s->rig, (int64_t)round * 600000);
		pair_cut(s, round);
		while (s->reader_agent->num_events == 0 && round % 3 != 0)
			rig_pump(&s->rig, 10);
		pair_finish_on_gpus(s);
	}
}

/* A third reads from the reader while that still receives. */
Test(transport_gpu_rdma, partial_replica_on_a_gpu__forwards_what_is_verified)
{
	struct rig_shard last;
	struct pair *s = start(four_chunks, 1);
	struct rig_agent *third = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&last, four_chunks, 1, 0);
	rig_register(third, &last);
	struct xfer_part *end = rig_part_of(&last, RIG_GPU, true);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	s->to = rig_part_of(&s->reader, RIG_GPU, true);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, 2);
	pair_move(s, MODE_RDMA, 1, s->from, s->to);
	rig_pull(s->reader_agent, third, 2, s->to, end);
	rig_wait_prefix(&s->rig, end, 2);
	cr_assert_eq(xfer_part_prefix(s->to), 2);
	xfer_part_advance(s->from, 4);
	cr_assert_str_eq(rig_wait(&s->rig, third, TRANSPORT_DONE, 2)->transport, "rdma");
	cr_assert(rig_shards_equal(&s->source, &last));
	rig_halt(&s->rig);
	xfer_part_release(end);
	pair_release(s);
	rig_shard_fini(&last);
	pair_finish_on_gpus(s);
}
