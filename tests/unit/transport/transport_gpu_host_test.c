/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of copies between GPUs and memory of the agent that they reach: the GPU alone moves the
 * bytes, and what goes wrong is told as of any other copy. GPUs of fake_gpus.h.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "tests/support/gpu/rig_fake_gpus.h"
#include "tests/support/transport/transport_pair.h"

#define PATIENCE_NS INT64_C(30000000000)
#define CHUNKS 8u

static const uint64_t eight_chunks[] = {32 * MIB};

static struct pair *s;

static void
set_up(void)
{
	rig_fake_gpus_init(64 * MIB);
	s = pair_new(eight_chunks, 1, CALM_NS);
}

static void
tear_down(void)
{
	pair_finish(s);
	rig_fake_gpus_fini();
}

TestSuite(transport_gpu_host, .init = set_up, .fini = tear_down);

/* Published without reading through what is tested. */
static void
begin(enum rig_memory from, enum rig_memory to, bool verify)
{
	pair_parts_of(s, from, to, verify);
	if (verify)
		rig_add_digests(s->from);
	xfer_part_advance(s->from, CHUNKS);
}

static void
move(void)
{
	pair_go(s, MODE_LOCAL);
}

static void
wait_running(uint32_t count)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	while (fake_gpus_running(rig_gpus->gpus) < count) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
}

static uint32_t
count(enum gpu_run_op op)
{
	return fake_gpus_count(rig_gpus->gpus, op);
}

/* A chunk is a request, and no block of the staging is between. */
static void
goes(enum rig_memory from, enum rig_memory to, bool verify)
{
	uint32_t reads = count(GPU_READ), writes = count(GPU_WRITE);
	memset(s->reader.memory, 0, s->reader.bytes);
	begin(from, to, verify);
	move();
	const struct transport_event *done = pair_wait(s, TRANSPORT_DONE);
	cr_assert_str_eq(done->transport, "local");
	cr_assert_eq(done->bytes_moved, eight_chunks[0]);
	cr_assert(rig_shards_equal(&s->source, &s->reader));
	cr_assert_eq(count(GPU_READ) - reads, from == RIG_GPU ? CHUNKS : 0);
	cr_assert_eq(count(GPU_WRITE) - writes, to == RIG_GPU ? CHUNKS : 0);
	cr_assert_eq(fake_gpus_taken(rig_gpus->gpus), 0);
	pair_release(s);
}

Test(transport_gpu_host, to_the_host_and_back__by_the_gpu_alone)
{
	goes(RIG_GPU, RIG_HOST, true);
	goes(RIG_HOST, RIG_GPU, true);
	goes(RIG_GPU, RIG_HOST, false);
	goes(RIG_HOST, RIG_GPU, false);
	cr_assert_eq(count(GPU_HASH) + count(GPU_COPY), 0);
}

/* Of any sizes, to memory of the host, and from there to a GPU again. */
Test(transport_gpu_host, there_and_back__the_same)
{
	static const uint64_t sizes[] = {1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1,
		9 * MIB + 13, 65536, 65537, 3, 1000000};
	const uint32_t num = sizeof(sizes) / sizeof(sizes[0]);
	struct rig_shard host;
	pair_finish(s);
	s = pair_new(sizes, num, CALM_NS);
	rig_shard_init(&host, sizes, num, 0);
	struct xfer_part *kept = rig_part_of(&host, RIG_MAPPED, true);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	s->to = rig_part_of(&s->reader, RIG_GPU, true);
	struct transport *transport = s->source_agent->transport;
	cr_assert_eq(transport_hash(transport, 3, s->from), 0);
	cr_assert_eq(transport_copy(transport, 1, s->from, kept), 0);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_DONE, 1);
	memset(s->source.memory, 0, s->source.bytes);
	cr_assert_eq(transport_copy(transport, 2, kept, s->to), 0);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_DONE, 2);
	cr_assert(rig_shards_equal(&host, &s->reader));
	rig_halt(&s->rig);
	xfer_part_release(kept);
	rig_shard_fini(&host);
}

/* It follows one that is itself filled. */
Test(transport_gpu_host, chain__only_verified_chunks_go_on)
{
	struct rig_shard last;
	rig_shard_init(&last, eight_chunks, 1, 0);
	struct xfer_part *end = rig_part_of(&last, RIG_GPU, true);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	s->to = rig_part_of(&s->reader, RIG_HOST, true);
	rig_add_digests(s->from);
	move();
	cr_assert_eq(transport_copy(s->reader_agent->transport, 99, s->to, end), 0);
	for (uint32_t c = 1; c <= CHUNKS; c++) {
		cr_assert_eq(xfer_part_prefix(end), c - 1);
		xfer_part_advance(s->from, c);
		rig_wait_prefix(&s->rig, end, c);
	}
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 99);
	cr_assert(rig_shards_equal(&s->source, &last));
	rig_halt(&s->rig);
	xfer_part_release(end);
	rig_shard_fini(&last);
}

static void
damaged(enum rig_memory from, enum rig_memory to, enum gpu_run_op op)
{
	uint64_t before = rig_counters(s->reader_agent).chunks_refetched;
	memset(s->reader.memory, 0, s->reader.bytes);
	begin(from, to, true);
	fake_gpus_flip(rig_gpus->gpus, op, 4, 1);
	move();
	pair_done(s, s->leg);
	cr_assert_eq(rig_counters(s->reader_agent).chunks_refetched, before + 1);
	cr_assert_null(rig_find(s->reader_agent, TRANSPORT_CHANGED, s->leg));
	pair_release(s);
}

Test(transport_gpu_host, copy_damaged_once__copied_again)
{
	damaged(RIG_GPU, RIG_HOST, GPU_READ);
	damaged(RIG_HOST, RIG_GPU, GPU_WRITE);
}

static void
changed(enum rig_memory from, enum rig_memory to)
{
	begin(from, to, true);
	s->source.tensors[0][3 * 4 * MIB + 5] ^= 1;
	move();
	cr_assert_eq(pair_wait(s, TRANSPORT_CHANGED)->chunk, 3);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_eq(failed->code, TH_E_CHECKSUM, "%s", failed->text);
	cr_assert(failed->source_failed);
	cr_assert_leq(xfer_part_prefix(s->to), 3);
	s->source.tensors[0][3 * 4 * MIB + 5] ^= 1;
	pair_release(s);
}

Test(transport_gpu_host, source_changed_after_hashing__changed)
{
	changed(RIG_GPU, RIG_HOST);
	changed(RIG_HOST, RIG_GPU);
}

static void
fails(enum rig_memory from, enum rig_memory to, enum gpu_run_op op)
{
	begin(from, to, true);
	fake_gpus_fail(rig_gpus->gpus, op, TH_E_STALE_MEMORY, 3);
	fake_gpus_fail(rig_gpus->gpus, GPU_HASH, TH_E_STALE_MEMORY, 0);
	move();
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_eq(failed->code, TH_E_STALE_MEMORY, "%s", failed->text);
	cr_assert_eq(failed->source_failed, from == RIG_GPU);
	cr_assert(strstr(failed->text, "the test said so"), "%s", failed->text);
	pair_release(s);
}

Test(transport_gpu_host, gpu_memory_gone__of_the_one_whose_it_was)
{
	fails(RIG_GPU, RIG_HOST, GPU_READ);
	fails(RIG_HOST, RIG_GPU, GPU_WRITE);
}

/* What is written may still be seen: the stop waits for the GPU. */
Test(transport_gpu_host, stop__while_the_gpu_writes_to_the_host__stopped_when_it_is_done)
{
	begin(RIG_GPU, RIG_HOST, true);
	fake_gpus_hold(rig_gpus->gpus, true);
	move();
	wait_running(CHUNKS);
	transport_stop(s->reader_agent->transport, s->leg);
	rig_pump_for(&s->rig, 20000000);
	cr_assert_null(rig_find(s->reader_agent, TRANSPORT_STOPPED, s->leg));
	fake_gpus_hold(rig_gpus->gpus, false);
	pair_wait(s, TRANSPORT_STOPPED);
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 0);
}

/* Nobody sees what is written, so nobody waits; the memory that is read stays until it is over. */
Test(transport_gpu_host, worker_gone__while_the_gpu_reads_the_host__the_memory_stays)
{
	begin(RIG_HOST, RIG_GPU, true);
	fake_gpus_hold(rig_gpus->gpus, true);
	move();
	wait_running(CHUNKS);
	xfer_part_orphan(s->to);
	transport_stop(s->reader_agent->transport, s->leg);
	pair_wait(s, TRANSPORT_STOPPED);
	pair_release(s);
	gpus_host_release(s->source.host);
	s->source.host = NULL;
	cr_assert(!__atomic_load_n(&s->source.host_gone, __ATOMIC_ACQUIRE));
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), CHUNKS);
	fake_gpus_hold(rig_gpus->gpus, false);
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	while (!__atomic_load_n(&s->source.host_gone, __ATOMIC_ACQUIRE)) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
}
