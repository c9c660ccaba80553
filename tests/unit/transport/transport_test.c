/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport: two or three transports in one process over loopback. The conformance cases
 * run over tcp and over local copies alike; transport_peer_test.c has the peers that misbehave.
 * conformance_gpu_test.c is this file with shards in the memory of GPUs, and the conformance cases
 * alone.
 */
#include "transport/transport.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "tests/support/transport/transport_pair.h"
#include "transport/part/fd_memory.h"
#include "transport/transport_own.h"

/* Short where a stall is waited for; and what is longer. A GPU's process that has just started
 * takes its time, and shares a busy machine with many. */
#ifdef ON_GPUS
#define STALL_NS INT64_C(2000000000)
#define MORE_THAN_STALL_NS (3 * STALL_NS / 2)
#else
#define STALL_NS INT64_C(600000000)
#define MORE_THAN_STALL_NS (4 * STALL_NS)
#endif

#ifdef ON_GPUS
#define CONFORMANCE(name)                                                                          \
	static void name(enum mode mode);                                                          \
	ON_GPUS(name)                                                                              \
	static void name(enum mode mode)
#else
#define CONFORMANCE(name)                                                                          \
	PAIR_BOTH(transport, name)                                                                 \
	Test(transport_rdma, name)                                                                 \
	{                                                                                          \
		pair_rails = 2;                                                                    \
		name(MODE_RDMA);                                                                   \
	}                                                                                          \
	Test(transport_rdma_copy, name)                                                            \
	{                                                                                          \
		pair_rails = 2;                                                                    \
		pair_staged = PAIR_SOURCE | PAIR_READER;                                           \
		name(MODE_RDMA);                                                                   \
	}                                                                                          \
	Test(transport_sendfile, name)                                                             \
	{                                                                                          \
		rig_with_files = true;                                                             \
		name(MODE_TCP);                                                                    \
	}                                                                                          \
	static void name(enum mode mode)
#endif

static const uint64_t odd_sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 9 * MIB + 13, 65536, 65537, 3, 1000000};
#define ODD (sizeof(odd_sizes) / sizeof(odd_sizes[0]))
/* One row: chunk c is its bytes from c * 4 MiB on. */
static const uint64_t eight_chunks[] = {32 * MIB};

#ifdef ON_GPUS
#define ROUNDS 2u
#else
#define ROUNDS 8u
#endif
/* Of what is done at a moment of the transfer: one for each of eight chunks, or more. */
static uint32_t
num_rounds(void)
{
	const char *all = getenv("TH_LONG");

	if (all && strcmp(all, "1") == 0)
		return 20;
	return getenv("TH_TEST_VERBS") ? 3 : ROUNDS; /* real devices are emulated ones, and slow */
}

static struct pair *
start_with_stall(const uint64_t *sizes, uint32_t count, bool verify, int64_t stall_ns)
{
	struct pair *s = pair_new(sizes, count, stall_ns);

	pair_parts(s, verify);
	return s;
}

static struct pair *
start(const uint64_t *sizes, uint32_t count, bool verify)
{
	return start_with_stall(sizes, count, verify, CALM_NS);
}

static struct pair *
start_eight(void)
{
	return start(eight_chunks, 1, true);
}

static void
hash_all(struct pair *s, struct xfer_part *part)
{
	cr_assert_eq(transport_hash(s->source_agent->transport, 7, part), 0);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, 7);
	cr_assert_eq(xfer_part_prefix(part), xfer_part_table(part)->num_chunks);
}

/*
 * ---- conformance ------------------------------------------------------------------------------
 */

CONFORMANCE(whole_shard_of_odd_sizes__arrives)
{
	struct pair *s = start(odd_sizes, ODD, true);
	hash_all(s, s->from);
	pair_move(s, mode, 1, s->from, s->to);
	const struct transport_event *done = pair_done(s, 1);
	cr_assert_eq(done->bytes_moved, s->source.table->bytes);
	cr_assert_eq(done->code, 0);
	bool on_gpus = rig_of_sources == RIG_GPU && rig_of_readers == RIG_GPU;
	bool staged = pair_staged != 0 || rig_of_sources || rig_of_readers;
	cr_assert_str_eq(done->transport, mode == MODE_TCP     ? "tcp"
					  : mode == MODE_LOCAL ? on_gpus ? "cuda-ipc" : "local"
					  : staged             ? "rdma-copy"
							       : "rdma");
	cr_assert_str_eq(done->fallback, "");
	cr_assert_eq(xfer_part_prefix(s->to), s->source.table->num_chunks);
	for (uint32_t c = 0; c < s->source.table->num_chunks; c++)
		cr_assert_eq(
			memcmp(xfer_part_digest(s->from, c), xfer_part_digest(s->to, c), 16), 0);
	if (mode == MODE_TCP) {
		const struct transport_event *ended =
			rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
		cr_assert_eq(ended->code, 0);
		cr_assert_eq(ended->bytes_moved, s->source.table->bytes);
		cr_assert_str_eq(ended->transport, rig_with_files ? "tcp sendfile" : "tcp");
		struct transport_counters sent = rig_counters(s->source_agent);
		cr_assert_eq(sent.bytes_out_file > 0, rig_with_files);
		cr_assert_lt(sent.bytes_out_file, sent.bytes_out, "small ones are gathered");
	}
	struct transport_counters counters = rig_counters(s->reader_agent);
	cr_assert_eq(counters.chunks_verified, s->source.table->num_chunks);
	cr_assert_eq(counters.checksum_failures, 0);
	pair_finish(s);
}

CONFORMANCE(thousands_of_tiny_tensors__arrive)
{
	uint64_t *sizes = calloc(5000, sizeof(sizes[0]));
	for (uint32_t i = 0; i < 5000; i++)
		sizes[i] = (i * 7919) % 3001;
	struct pair *s = start(sizes, 5000, true);
	hash_all(s, s->from);
	pair_move(s, mode, 1, s->from, s->to);
	pair_done(s, 1);
	pair_finish(s);
	free(sizes);
}

CONFORMANCE(without_verify__arrives_without_digests)
{
	struct pair *s = start(odd_sizes, ODD, false);
	hash_all(s, s->from);
	pair_move(s, mode, 1, s->from, s->to);
	pair_done(s, 1);
	cr_assert_eq(xfer_part_digest_count(s->to), 0);
	cr_assert_eq(rig_counters(s->source_agent).bytes_out_file, 0, "nobody would notice");
	pair_finish(s);
}

CONFORMANCE(no_chunks__done_at_once)
{
	static const uint64_t sizes[] = {0, 0};
	struct pair *s = start(sizes, 2, true);
	hash_all(s, s->from);
	pair_move(s, mode, 1, s->from, s->to);
	const struct transport_event *done = rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 1);
	cr_assert_eq(done->bytes_moved, 0);
	cr_assert(!done->overwrote);
	pair_finish(s);
}

CONFORMANCE(while_the_source_is_hashed__follows_its_prefix)
{
	struct pair *s = start_eight();
	pair_move(s, mode, 1, s->from, s->to);
	cr_assert_eq(transport_hash(s->source_agent->transport, 7, s->from), 0);
	pair_done(s, 1);
	pair_finish(s);
}

CONFORMANCE(source_that_waits_long__is_not_a_stall)
{
	struct pair *s = start_with_stall(eight_chunks, 1, true, STALL_NS);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, 3);
	pair_move(s, mode, 1, s->from, s->to);
	rig_wait_prefix(&s->rig, s->to, 3);
	rig_pump_for(&s->rig, MORE_THAN_STALL_NS);
	cr_assert_eq(s->reader_agent->num_events, 0);
	cr_assert_null(rig_find(s->source_agent, TRANSPORT_STALLED, 1));
	cr_assert_eq(xfer_part_prefix(s->to), 3);
	xfer_part_advance(s->from, 8);
	pair_done(s, 1);
	pair_finish(s);
}

CONFORMANCE(chain_of_three__second_reader_follows_chunk_by_chunk)
{
	struct rig_shard last;
	struct pair *s = start_eight();
	struct rig_agent *third = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&last, eight_chunks, 1, 0);
	rig_register(third, &last);
	struct xfer_part *end = rig_part(&last, true);
	rig_add_digests(s->from);
	pair_move(s, mode, 1, s->from, s->to);
	if (mode != MODE_LOCAL)
		rig_pull(s->reader_agent, third, 2, s->to, end);
	else
		cr_assert_eq(transport_copy(third->transport, 2, s->to, end), 0);
	for (uint32_t c = 1; c <= 8; c++) {
		cr_assert_eq(xfer_part_prefix(end), c - 1);
		xfer_part_advance(s->from, c);
		rig_wait_prefix(&s->rig, end, c);
	}
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 1);
	rig_wait(&s->rig, third, TRANSPORT_DONE, 2);
	cr_assert(rig_shards_equal(&s->source, &last));
	rig_halt(&s->rig);
	xfer_part_release(end);
	rig_shard_fini(&last);
	pair_finish(s);
}

CONFORMANCE(stop_midway_then_another_source__resumes_at_the_prefix)
{
	struct rig_shard other;
	struct pair *s = start_eight();
	rig_shard_init(&other, eight_chunks, 1, 42);
	rig_register(s->source_agent, &other);
	struct xfer_part *second = rig_part(&other, true);
	hash_all(s, second);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, 3);
	pair_move(s, mode, 1, s->from, s->to);
	rig_wait_prefix(&s->rig, s->to, 3);
	transport_stop(s->reader_agent->transport, 1);
	const struct transport_event *stopped =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_STOPPED, 1);
	cr_assert(stopped->overwrote);
	cr_assert_eq(stopped->code, TH_E_CANCELLED);
	cr_assert_eq(xfer_part_prefix(s->to), 3);
	/* What was there is not moved again: the second source's first chunks are not looked at. */
	memset(other.tensors[0], 0, 3 * 4 * MIB);
	rig_shard_put(&other);
	pair_move(s, mode, 2, second, s->to);
	const struct transport_event *done = rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 2);
	cr_assert_eq(done->bytes_moved, 5 * 4 * MIB);
	cr_assert(rig_shards_equal(&s->source, &s->reader));
	rig_halt(&s->rig);
	xfer_part_release(second);
	rig_shard_fini(&other);
	pair_finish(s);
}

/* A write would be a crash, or EFAULT and another event. Or, where none can be forbidden, seen. */
static void
watch_writes(struct rig_shard *shard)
{
	if (!rig_gpus || !rig_gpus->put) {
		mprotect(shard->memory, shard->bytes, PROT_NONE);
		return;
	}
	memset(shard->memory, 0xa5, shard->bytes);
	rig_shard_put(shard);
}

static void
expect_no_write(struct rig_shard *shard)
{
	if (!rig_gpus || !rig_gpus->get)
		return;
	rig_shard_get(shard);
	for (uint64_t i = 0; i < shard->bytes; i++)
		cr_assert_eq(shard->memory[i], 0xa5, "byte %llu", (unsigned long long)i);
}

CONFORMANCE(after_stopped__nobody_writes_to_the_part)
{
	for (uint32_t round = 0; round < num_rounds(); round++) {
		struct pair *s = start_eight();
		hash_all(s, s->from);
		pair_move(s, mode, 1, s->from, s->to);
		rig_wait_prefix(&s->rig, s->to, round % 8);
		transport_stop(s->reader_agent->transport, 1);
		while (!rig_find(s->reader_agent, TRANSPORT_STOPPED, 1) &&
			!rig_find(s->reader_agent, TRANSPORT_DONE, 1))
			rig_pump(&s->rig, 100);
		watch_writes(&s->reader);
		rig_pump_for(&s->rig, 50000000);
		cr_assert_eq(s->reader_agent->num_events, 1);
		expect_no_write(&s->reader);
		pair_finish(s);
	}
}

CONFORMANCE(part_that_is_whole_already__done_without_bytes)
{
	struct pair *s = start_eight();
	hash_all(s, s->from);
	pair_move(s, mode, 1, s->from, s->to);
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 1);
	pair_move(s, mode, 2, s->from, s->to);
	const struct transport_event *done = rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 2);
	cr_assert_eq(done->bytes_moved, 0);
	pair_finish(s);
}

CONFORMANCE(many_legs_at_once__all_arrive)
{
	enum { LEGS_MAX = 24 };
	const uint32_t legs = getenv("TH_TEST_VERBS") ? 8 : LEGS_MAX;
	static const uint64_t sizes[] = {5 * MIB, 100, 3 * MIB + 1};
	struct rig_shard shards[LEGS_MAX];
	struct xfer_part *parts[LEGS_MAX];
	struct pair *s = start(sizes, 3, true);
	/* Registering takes its time on a slow device, and who waits for it judges no ticket. */
	for (uint32_t i = 0; i < legs; i++) {
		rig_shard_init(&shards[i], sizes, 3, 0);
		rig_register(s->reader_agent, &shards[i]);
		parts[i] = rig_part(&shards[i], true);
	}
	for (uint32_t i = 0; i < legs; i++)
		pair_move(s, mode, 10 + i, s->from, parts[i]);
	hash_all(s, s->from);
	for (uint32_t i = 0; i < legs; i++) {
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 10 + i);
		cr_assert(rig_shards_equal(&s->source, &shards[i]));
	}
	rig_halt(&s->rig);
	for (uint32_t i = 0; i < legs; i++) {
		xfer_part_release(parts[i]);
		rig_shard_fini(&shards[i]);
	}
	pair_finish(s);
}

CONFORMANCE(close_with_legs_running__returns)
{
	for (uint32_t round = 0; round < num_rounds(); round++) {
		struct pair *s = start_eight();
		pair_move(s, mode, 1, s->from, s->to);
		cr_assert_eq(transport_hash(s->source_agent->transport, 7, s->from), 0);
		rig_wait_prefix(&s->rig, s->to, round % 4);
		pair_finish(s);
	}
}

#ifndef ON_GPUS
/*
 * ---- tcp only ---------------------------------------------------------------------------------
 */

Test(transport, source_closes_midway__failed_at_once)
{
	struct pair *s = start_eight();
	rig_add_digests(s->from);
	xfer_part_advance(s->from, 2);
	pair_move(s, MODE_TCP, 1, s->from, s->to);
	rig_wait_prefix(&s->rig, s->to, 2);
	rig_remove_agent(s->source_agent);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	cr_assert(failed->source_failed);
	cr_assert(failed->overwrote);
	cr_assert(strstr(failed->text, "2 of 8"), "%s", failed->text);
	cr_assert(strstr(failed->text, "127.0.0.1:"), "%s", failed->text);
	pair_finish(s);
}

Test(transport, fence__after_ended_nobody_reads_the_part)
{
	for (uint32_t round = 0; round < num_rounds(); round++) {
		struct pair *s = start_eight();
		hash_all(s, s->from);
		pair_move(s, MODE_TCP, 1, s->from, s->to);
		rig_wait_prefix(&s->rig, s->to, round % 8);
		transport_fence(s->source_agent->transport, 1);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
		/* A read would be EFAULT, and the reader would notice nothing else. */
		mprotect(s->source.memory, s->source.bytes, PROT_NONE);
		while (s->reader_agent->num_events == 0)
			rig_pump(&s->rig, 100);
		const struct transport_event *event = &s->reader_agent->events[0];
		cr_assert(event->kind == TRANSPORT_DONE || event->kind == TRANSPORT_FAILED);
		/* It may be fenced before its reader has come. */
		if (event->kind == TRANSPORT_FAILED)
			cr_assert(event->code == TH_E_NO_PATH || event->code == TH_E_DENIED);
		pair_finish(s);
	}
}

/*
 * What sendfile has queued may be read after ENDED, when the worker writes to the memory again:
 * whatever arrives of that, no wrong byte counts.
 */
Test(transport, fence_of_sendfile__what_is_written_after_ended_never_counts)
{
	rig_with_files = true;
	for (uint32_t round = 0; round < num_rounds(); round++) {
		struct pair *s = start_eight();
		uint8_t *published = malloc(eight_chunks[0]);
		memcpy(published, s->source.tensors[0], eight_chunks[0]);
		hash_all(s, s->from);
		pair_move(s, MODE_TCP, 1, s->from, s->to);
		rig_wait_prefix(&s->rig, s->to, round % 8);
		transport_fence(s->source_agent->transport, 1);
		const struct transport_event *ended =
			rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
		cr_assert(ended->code == 0 || ended->code == TH_E_CANCELLED);
		memset(s->source.tensors[0], 0xa5, eight_chunks[0]);
		while (s->reader_agent->num_events == 0)
			rig_pump(&s->rig, 100);
		const struct transport_event *event = &s->reader_agent->events[0];
		cr_assert(event->kind == TRANSPORT_DONE || event->kind == TRANSPORT_FAILED);
		cr_assert_null(rig_find(s->source_agent, TRANSPORT_CHANGED, 1));
		cr_assert_eq(
			memcmp(published, s->reader.tensors[0], xfer_part_prefix_bytes(s->to)), 0);
		free(published);
		pair_finish(s);
	}
}

Test(transport, sendfile_auto__not_within_a_host)
{
	struct pair *s = start_eight();
	rig_shard_to_file(&s->source);
	struct xfer_part *from = rig_part_of(&s->source, RIG_BOTH, true);
	hash_all(s, from);
	pair_move(s, MODE_TCP, 1, from, s->to);
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 1);
	cr_assert_eq(rig_counters(s->source_agent).bytes_out_file, 0);
	cr_assert_eq(rig_counters(s->source_agent).bytes_out, 32 * MIB);
	pair_finish(s);
	xfer_part_release(from);
}

/* A file that the kernel does not send from, as one of huge pages. */
Test(transport, sendfile_that_is_refused__sent_out_of_the_mapping)
{
	rig_with_files = true;
	struct pair *s = start_eight();
	int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	struct fd_memory *access = fd_memory_new(fd, FD_MEMORY_FILE, NULL);
	struct xfer_place place = {.data = s->source.tensors[0],
		.access = access,
		.place = (uintptr_t)s->source.tensors[0]};
	struct xfer_part *from = xfer_part_new_places(s->source.table, &place, 1, true, NULL, NULL);
	hash_all(s, from);
	pair_move(s, MODE_TCP, 1, from, s->to);
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 1);
	cr_assert_str_eq(rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1)->transport, "tcp");
	cr_assert(rig_shards_equal(&s->source, &s->reader));
	cr_assert_eq(rig_counters(s->source_agent).bytes_out_file, 0);
	xfer_part_release(from);
	pair_finish(s);
	fd_memory_release(access);
	close(fd);
}

Test(transport, pull__wrong_ticket__refused_with_the_sources_sentence)
{
	struct pair *s = start_eight();
	struct th_ticket ticket = rig_ticket(99);
	cr_assert_eq(
		transport_pull(s->reader_agent->transport, 1,
			transport_address(s->source_agent->transport), &ticket, s->to, NULL, 0),
		0);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_DENIED);
	cr_assert(strstr(failed->text, "no such ticket"), "%s", failed->text);
	cr_assert(!failed->overwrote);
	/* It is counted after it was told. */
	while (rig_counters(s->source_agent).strangers_refused == 0)
		rig_pump(&s->rig, 1);
	cr_assert_eq(rig_counters(s->source_agent).strangers_refused, 1);
	pair_finish(s);
}

static void
pull_without_grant(struct pair *s, uint64_t leg)
{
	struct th_ticket ticket = rig_ticket(leg);
	cr_assert_eq(
		transport_pull(s->reader_agent->transport, leg,
			transport_address(s->source_agent->transport), &ticket, s->to, NULL, 0),
		0);
}

static void
wait_knock(struct pair *s)
{
	const struct tickets *tickets = &s->source_agent->transport->tickets;
	while (__atomic_load_n(&tickets->num_knocks, __ATOMIC_RELAXED) == 0)
		rig_pump(&s->rig, 1);
}

/* The bytes that come prove that no shell was asked: this one looks at no event. */
Test(transport, pull__expected__served_while_the_sources_shell_does_nothing)
{
	struct pair *s = start_eight();
	hash_all(s, s->from);
	s->source_agent->num_events = 0;
	rig_offer(s->source_agent, 1, s->from);
	pull_without_grant(s, 1);
	while (xfer_part_prefix(s->to) < xfer_part_table(s->to)->num_chunks) {
		struct pollfd fd = {
			.fd = transport_fd(s->reader_agent->transport), .events = POLLIN};
		struct transport_event event;
		cr_assert_gt(poll(&fd, 1, 30000), 0, "nothing came");
		while (transport_poll(s->reader_agent->transport, &event, 1) > 0)
			cr_assert_neq(event.kind, TRANSPORT_FAILED, "%s", event.text);
	}
	rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
	cr_assert_eq(s->source_agent->num_began, 1);
	pair_finish(s);
}

Test(transport, pull__expected_after_its_reader_has_come__served)
{
	struct pair *s = start_eight();
	hash_all(s, s->from);
	pull_without_grant(s, 1);
	wait_knock(s);
	rig_offer(s->source_agent, 1, s->from);
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 1);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
	cr_assert_eq(s->source_agent->num_began, 1);
	pair_finish(s);
}

Test(transport, pull__refused_while_it_waits__told_why_at_once)
{
	struct pair *s = start_eight();
	struct th_ticket ticket = rig_ticket(1);
	int64_t start_ns = th_now_ns();
	pull_without_grant(s, 1);
	wait_knock(s);
	transport_refuse(s->source_agent->transport, &ticket, TH_E_NOT_AVAILABLE, "it is given up");
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_NOT_AVAILABLE);
	cr_assert(strstr(failed->text, "it is given up"), "%s", failed->text);
	cr_assert_lt(th_now_ns() - start_ns, INT64_C(1500000000), "not when its time was over");
	pair_finish(s);
}

Test(transport, expect__fenced_before_its_reader_comes__ends_and_never_begins)
{
	struct pair *s = start_eight();
	rig_offer(s->source_agent, 1, s->from);
	transport_fence(s->source_agent->transport, 1);
	transport_fence(s->source_agent->transport, 1);
	const struct transport_event *ended =
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
	cr_assert_eq(ended->code, TH_E_CANCELLED);
	cr_assert_eq(ended->bytes_moved, 0);
	pull_without_grant(s, 1);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_DENIED);
	cr_assert_eq(s->source_agent->num_began, 0);
	cr_assert_eq(s->source_agent->num_events, 1, "one end");
	cr_assert_eq(rig_counters(s->source_agent).legs_fenced, 0);
	pair_finish(s);
}

Test(transport, pull__nobody_listens__failed_at_once)
{
	struct th_ticket ticket = rig_ticket(1);
	struct pair *s = start_eight();
	cr_assert_eq(transport_pull(
			     s->reader_agent->transport, 1, "127.0.0.1:1", &ticket, s->to, NULL, 0),
		0);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	cr_assert(failed->source_failed);
	pair_finish(s);
}

Test(transport, pull__bad_addresses__invalid)
{
	static const char *const bad[] = {
		"", "127.0.0.1", ":5", "localhost:80", "127.0.0.1:port", "[127.0.0.1:5"};
	struct th_ticket ticket = rig_ticket(1);
	struct pair *s = start_eight();
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_eq(transport_pull(s->reader_agent->transport, 1, bad[i], &ticket, s->to,
				     NULL, 0),
			TH_E_INVALID, "%s", bad[i]);
	pair_finish(s);
}

Test(transport, pull__other_chunks_at_the_source__layout)
{
	static const uint64_t more[] = {36 * MIB};
	struct rig_shard other;
	struct pair *s = start_eight();
	rig_shard_init(&other, more, 1, 1);
	struct xfer_part *from = rig_part(&other, true);
	pair_move(s, MODE_TCP, 1, from, s->to);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_LAYOUT);
	cr_assert_eq(transport_copy(s->reader_agent->transport, 2, from, s->to), TH_E_LAYOUT);
	rig_halt(&s->rig);
	xfer_part_release(from);
	rig_shard_fini(&other);
	pair_finish(s);
}

Test(transport, pull__source_without_digests__checksum)
{
	struct pair *s = start_eight();
	struct xfer_part *from = rig_part(&s->source, false);
	hash_all(s, from);
	pair_move(s, MODE_TCP, 1, from, s->to);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_CHECKSUM);
	cr_assert_eq(transport_copy(s->reader_agent->transport, 2, from, s->to), TH_E_CHECKSUM);
	rig_halt(&s->rig);
	xfer_part_release(from);
	pair_finish(s);
}

/* Another source with other content under the same name: its digests contradict the known ones. */
Test(transport, pull__second_source_with_other_digests__checksum)
{
	struct rig_shard other;
	struct pair *s = start_eight();
	rig_shard_init(&other, eight_chunks, 1, 43);
	struct xfer_part *second = rig_part(&other, true);
	hash_all(s, second);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, 2);
	pair_move(s, MODE_TCP, 1, s->from, s->to);
	rig_wait_prefix(&s->rig, s->to, 2);
	transport_stop(s->reader_agent->transport, 1);
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_STOPPED, 1);
	pair_move(s, MODE_TCP, 2, second, s->to);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 2);
	cr_assert_eq(failed->code, TH_E_CHECKSUM);
	cr_assert_eq(xfer_part_prefix(s->to), 2);
	rig_halt(&s->rig);
	xfer_part_release(second);
	rig_shard_fini(&other);
	pair_finish(s);
}

Test(transport, one_and_many_connections__arrive)
{
	for (uint32_t connections = 1; connections <= 16; connections *= 4) {
		struct pair *s = start(odd_sizes, ODD, true);
		struct rig_agent *reader = rig_add_agent(&s->rig, CALM_NS, connections);
		hash_all(s, s->from);
		rig_pull(s->source_agent, reader, 1, s->from, s->to);
		rig_wait(&s->rig, reader, TRANSPORT_DONE, 1);
		cr_assert(rig_shards_equal(&s->source, &s->reader));
		pair_finish(s);
	}
}

Test(transport, open__port_in_use__sentence)
{
	struct pair *s = start_eight();
	const char *colon = strrchr(transport_address(s->source_agent->transport), ':');
	struct transport_config config = {
		.listen_host = "127.0.0.1", .listen_port = (uint16_t)atoi(colon + 1)};
	struct th_err err = {0};
	struct transport *transport;
	cr_assert_lt(transport_open(&config, &err, &transport), 0);
	cr_assert(strstr(err.text, colon + 1), "%s", err.text);
	pair_finish(s);
}

/*
 * ---- hashing ----------------------------------------------------------------------------------
 */

Test(transport, hash__no_chunks_or_no_verify__hashed_at_once)
{
	static const uint64_t none[] = {0};
	struct pair *s = start(none, 1, true);
	hash_all(s, s->from);
	pair_finish(s);
	s = start(eight_chunks, 1, false);
	hash_all(s, s->from);
	pair_finish(s);
}

Test(transport, hash_stop__one_event_then_nobody_reads)
{
	for (uint32_t round = 0; round < num_rounds(); round++) {
		struct pair *s = start_eight();
		cr_assert_eq(transport_hash(s->source_agent->transport, 5, s->from), 0);
		rig_wait_prefix(&s->rig, s->from, round % 6);
		transport_hash_stop(s->source_agent->transport, 5);
		transport_hash_stop(s->source_agent->transport, 6);
		while (s->source_agent->num_events == 0)
			rig_pump(&s->rig, 100);
		mprotect(s->source.memory, s->source.bytes, PROT_NONE);
		rig_pump_for(&s->rig, 2000000);
		cr_assert_eq(s->source_agent->num_events, 1);
		cr_assert_eq(s->source_agent->events[0].tag, 5);
		pair_finish(s);
	}
}

#endif
/*
 * ---- a worker that writes to what it has published -----------------------------------------
 */

CONFORMANCE(source_memory_changed_after_hashing__changed_and_nothing_wrong_arrives)
{
	struct pair *s = start_eight();
	hash_all(s, s->from);
	s->source.tensors[0][3 * 4 * MIB + 5] ^= 1;
	rig_shard_put(&s->source);
	pair_move(s, mode, 1, s->from, s->to);
	struct rig_agent *agent = mode != MODE_LOCAL ? s->source_agent : s->reader_agent;
	const struct transport_event *changed = rig_wait(&s->rig, agent, TRANSPORT_CHANGED, 1);
	cr_assert_eq(changed->chunk, 3);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_CHECKSUM, "%s", failed->text);
	cr_assert(failed->source_failed);
	cr_assert(strstr(failed->text, "published"), "%s", failed->text);
	cr_assert_leq(xfer_part_prefix(s->to), 3);
	cr_assert(failed->overwrote);
	/* Not asked for until the attempts are used up. */
	cr_assert_geq(rig_counters(s->reader_agent).checksum_failures, 1);
	cr_assert_eq(rig_counters(s->reader_agent).legs_failed, 1);
	if (mode != MODE_LOCAL)
		cr_assert_eq(rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1)->code,
			TH_E_CONTRACT);
	pair_finish(s);
}

/* A replica that has verified what it received answers for it like a publisher. */
CONFORMANCE(forwarder_memory_changed__changed)
{
	struct rig_shard third;
	struct pair *s = start_eight();
	struct rig_agent *end = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&third, eight_chunks, 1, 0);
	rig_register(end, &third);
	struct xfer_part *last = rig_part(&third, true);
	hash_all(s, s->from);
	cr_assert_eq(transport_copy(s->reader_agent->transport, 1, s->from, s->to), 0);
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 1);
	rig_shard_get(&s->reader);
	s->reader.tensors[0][32 * MIB - 1] ^= 128;
	rig_shard_put(&s->reader);
	if (mode != MODE_LOCAL)
		rig_pull(s->reader_agent, end, 2, s->to, last);
	else
		cr_assert_eq(transport_copy(end->transport, 2, s->to, last), 0);
	struct rig_agent *agent = mode != MODE_LOCAL ? s->reader_agent : end;
	cr_assert_eq(rig_wait(&s->rig, agent, TRANSPORT_CHANGED, 2)->chunk, 7);
	rig_wait(&s->rig, end, TRANSPORT_FAILED, 2);
	xfer_part_release(last);
	pair_finish(s);
	rig_shard_fini(&third);
}

/*
 * ---- fault build ------------------------------------------------------------------------------
 */

#if defined(TH_FAULTS) && !defined(ON_GPUS)
static struct pair *
start_with_fault(const char *name, const char *value, int64_t stall_ns)
{
	setenv(name, value, 1);
	struct pair *s = start_with_stall(eight_chunks, 1, true, stall_ns);
	unsetenv(name);
	hash_all(s, s->from);
	pair_move(s, MODE_TCP, 1, s->from, s->to);
	return s;
}

Test(transport_fault, flip_once__fetched_again_and_the_source_is_untouched)
{
	struct pair *s = start_with_fault("TH_FAULT_FLIP_CHUNK", "3", CALM_NS);
	pair_done(s, 1);
	cr_assert_eq(rig_counters(s->reader_agent).chunks_refetched, 1);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
	cr_assert_null(rig_find(s->source_agent, TRANSPORT_CHANGED, 1));
	pair_finish(s);
}

Test(transport_fault, flip_always__failed_with_checksum)
{
	struct pair *s = start_with_fault("TH_FAULT_FLIP_CHUNK", "3,always", CALM_NS);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_CHECKSUM);
	cr_assert_leq(xfer_part_prefix(s->to), 3);
	const struct transport_event *ended =
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
	cr_assert_neq(ended->code, TH_E_CONTRACT);
	cr_assert_null(rig_find(s->source_agent, TRANSPORT_CHANGED, 1));
	pair_finish(s);
}

Test(transport_fault, stall__failed_after_the_stall_time)
{
	struct pair *s = start_with_fault("TH_FAULT_STALL_AFTER_BYTES", "10000000", STALL_NS);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
	pair_finish(s);
}
#endif
