/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport over memory that is not mapped: every kind of source to every kind of
 * destination, memory that goes away under a leg, and memory that a thread gets stuck in.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "tests/support/transport/sticky.h"
#include "tests/support/transport/transport_pair.h"
#include "transport/loop/crew.h"

#define STALL_NS INT64_C(1500000000)
#define PATIENCE_NS INT64_C(30000000000)

/* With a device at each end that neither memory is registered with: both go through slots. */
#define CONFORMANCE(name)                                                                          \
	PAIR_BOTH(transport_copy, name)                                                            \
	Test(transport_copy_rdma, name)                                                            \
	{                                                                                          \
		pair_rails = 1;                                                                    \
		pair_staged = PAIR_SOURCE | PAIR_READER;                                           \
		name(MODE_RDMA);                                                                   \
	}                                                                                          \
	static void name(enum mode mode)

static const uint64_t odd_sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 9 * MIB + 13, 65536, 65537, 3, 1000000};
#define ODD (sizeof(odd_sizes) / sizeof(odd_sizes[0]))
static const uint64_t four_chunks[] = {16 * MIB};

static struct pair *
setup_with_stall(const uint64_t *sizes, uint32_t count, int64_t stall_ns)
{
	struct pair *s = pair_new(sizes, count, stall_ns);

	rig_shard_to_file(&s->source);
	rig_shard_to_file(&s->reader);
	return s;
}

static struct pair *
setup_new(const uint64_t *sizes, uint32_t count)
{
	return setup_with_stall(sizes, count, CALM_NS);
}

/* Digests and a whole prefix, without reading through what is tested. */
static void
publish(struct pair *s)
{
	struct xfer_part *plain = rig_part(&s->source, true);
	rig_add_digests(plain);
	xfer_part_add_digests(s->from, 0, xfer_part_digest(plain, 0), s->source.table->num_chunks);
	xfer_part_advance(s->from, s->source.table->num_chunks);
	xfer_part_release(plain);
}

/* ---- what works ---------------------------------------------------------------------- */

CONFORMANCE(every_kind_to_every_kind__arrives)
{
	struct pair *s = setup_new(odd_sizes, ODD);
	for (int verify = 0; verify < 2; verify++) {
		for (unsigned pair = 0; pair < 16; pair++) {
			memset(s->reader.memory, 0, s->reader.bytes);
			pair_parts_of(s, (enum rig_memory)(pair / 4), (enum rig_memory)(pair % 4),
				verify);
			pair_go(s, mode);
			pair_hash(s); /* the reader follows it */
			const struct transport_event *done = pair_wait(s, TRANSPORT_DONE);
			cr_assert(rig_shards_equal(&s->source, &s->reader), "pair %u", pair);
			cr_assert_eq(done->bytes_moved, s->source.table->bytes);
			cr_assert_str_eq(done->transport, mode == MODE_TCP    ? "tcp"
							  : mode == MODE_RDMA ? "rdma-copy"
									      : "local");
			rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
			for (uint32_t c = 0; verify && c < s->source.table->num_chunks; c++)
				cr_assert(th_hash_equal(*xfer_part_digest(s->from, c),
					*xfer_part_digest(s->to, c)));
			pair_release(s);
		}
	}
	struct transport_counters counters = rig_counters(s->reader_agent);
	cr_assert_eq(counters.checksum_failures, 0);
	pair_finish(s);
}

/* The digests are of the publisher's bytes, however they are read. */
Test(transport_copy, digests__do_not_depend_on_the_kind)
{
	struct pair *s = setup_new(odd_sizes, ODD);
	struct xfer_part *plain = rig_part(&s->source, true);
	rig_add_digests(plain);
	for (unsigned kind = 0; kind < 4; kind++) {
		pair_parts_of(s, (enum rig_memory)kind, RIG_MAPPED, true);
		pair_hash(s);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
		for (uint32_t c = 0; c < s->source.table->num_chunks; c++)
			cr_assert(th_hash_equal(
				*xfer_part_digest(s->from, c), *xfer_part_digest(plain, c)));
		pair_release(s);
	}
	xfer_part_release(plain);
	pair_finish(s);
}

CONFORMANCE(wrong_bytes__are_not_verified)
{
	struct pair *s = setup_new(four_chunks, 1);
	pair_parts_of(s, RIG_FILE, RIG_PROCESS, true);
	publish(s);
	s->source.tensors[0][5 * MIB] ^= 1;
	pair_go(s, mode);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_eq(failed->code, TH_E_CHECKSUM);
	cr_assert(failed->source_failed);
	cr_assert(xfer_part_prefix(s->to) <= 1);
	pair_finish(s);
}

/* ---- memory that goes away ------------------------------------------------------------- */

CONFORMANCE(source_that_shrank__fails_as_the_source)
{
	struct pair *s = setup_new(four_chunks, 1);
	for (unsigned kind = RIG_MAPPED; kind <= RIG_PROCESS; kind++) {
		pair_release(s);
		cr_assert_eq(ftruncate(s->source.fd, (off_t)s->source.bytes), 0);
		pair_parts_of(s, (enum rig_memory)kind, RIG_MAPPED, true);
		publish(s);
		cr_assert_eq(ftruncate(s->source.fd, 6 * MIB), 0);
		pair_go(s, mode);
		const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
		cr_assert(failed->source_failed, "kind %u: %s", kind, failed->text);
		/* Over tcp a connection that ends can be seen before the reason that is sent. */
		cr_assert(failed->code == TH_E_STALE_MEMORY || mode == MODE_TCP, "kind %u: %s",
			kind, failed->text);
		cr_assert(xfer_part_prefix(s->to) <= 1);
		if (mode != MODE_LOCAL) {
			const struct transport_event *ended =
				rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, s->leg);
			cr_assert(ended->code == TH_E_STALE_MEMORY || kind == RIG_MAPPED, "%s",
				ended->text);
		}
	}
	pair_finish(s);
}

CONFORMANCE(destination_that_shrank__is_not_the_sources_fault)
{
	struct pair *s = setup_new(four_chunks, 1);
	for (unsigned kind = RIG_MAPPED; kind <= RIG_PROCESS; kind++) {
		pair_release(s);
		cr_assert_eq(ftruncate(s->reader.fd, (off_t)s->reader.bytes), 0);
		pair_parts_of(s, RIG_MAPPED, (enum rig_memory)kind, true);
		publish(s);
		cr_assert_eq(ftruncate(s->reader.fd, 6 * MIB), 0);
		pair_go(s, mode);
		const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
		cr_assert_eq(failed->code, TH_E_STALE_MEMORY, "kind %u: %s", kind, failed->text);
		cr_assert_not(failed->source_failed);
		cr_assert(xfer_part_prefix(s->to) <= 1);
	}
	cr_assert_eq(lseek(s->reader.fd, 0, SEEK_END), 6 * MIB, "it must not grow again");
	pair_finish(s);
}

CONFORMANCE(destination_that_appends__is_refused)
{
	struct pair *s = setup_new(four_chunks, 1);
	pair_parts_of(s, RIG_MAPPED, RIG_FILE, true);
	publish(s);
	cr_assert_eq(fcntl(s->reader.fd, F_SETFL, O_APPEND), 0);
	pair_go(s, mode);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_eq(failed->code, TH_E_MEMORY_KIND, "%s", failed->text);
	cr_assert_not(failed->source_failed);
	pair_finish(s);
}

Test(transport_copy, digests_of_memory_that_is_gone__name_the_row)
{
	static const uint64_t three[] = {5 * MIB, 5 * MIB, 5 * MIB};
	struct pair *s = setup_new(three, 3);
	for (unsigned kind = RIG_MAPPED; kind <= RIG_PROCESS; kind++) {
		pair_release(s);
		cr_assert_eq(ftruncate(s->source.fd, (off_t)s->source.bytes), 0);
		pair_parts_of(s, (enum rig_memory)kind, RIG_MAPPED, true);
		cr_assert_eq(ftruncate(s->source.fd, 6 * MIB), 0);
		pair_hash(s);
		const struct transport_event *failed =
			rig_wait(&s->rig, s->source_agent, TRANSPORT_HASH_FAILED, s->leg);
		cr_assert_eq(failed->code, TH_E_STALE_MEMORY);
		cr_assert_eq(failed->row, 1);
	}
	pair_finish(s);
}

static void
grow_and_fail(void *arg)
{
	struct xfer_part *source = arg;
	if (xfer_part_failed(source))
		return;
	xfer_part_advance(source, 2);
	xfer_part_fail(source);
}

struct end {
	struct xfer_part *part;
	uint32_t prefix; /* when it was said that there will be no more */
};

static void
look_at_end(void *arg)
{
	struct end *end = arg;
	if (xfer_part_failed(end->part))
		end->prefix = xfer_part_prefix(end->part);
}

/* A thread finds it out while another one is still at what comes before. */
Test(transport_copy, hash_finds_memory_gone__published_as_far_as_it_is_there_and_failed_then)
{
	struct pair *s = setup_new(four_chunks, 1);
	pair_parts_of(s, RIG_MAPPED, RIG_MAPPED, true);
	struct end end = {.part = s->from, .prefix = UINT32_MAX};
	uint64_t bytes = (uint64_t)(s->source.tensors[0] - s->source.memory) + 4 * MIB;
	cr_assert_eq(ftruncate(s->source.fd, (off_t)((bytes + 4095) / 4096 * 4096)), 0);
	xfer_part_watch(s->from, look_at_end, &end);
	pair_hash(s);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASH_FAILED, s->leg);
	cr_assert_eq(end.prefix, 1);
	cr_assert_eq(xfer_part_prefix(s->from), 1);
	xfer_part_unwatch(s->from, look_at_end, &end);
	pair_finish(s);
}

/* While the leg takes the digests for its first look, which brings nothing. */
Test(transport_copy, source_grows_and_fails_at_once__all_that_it_has_comes)
{
	static const enum rig_memory kinds[] = {RIG_MAPPED, RIG_FILE};
	for (uint32_t i = 0; i < TH_ARRAY_LEN(kinds); i++) {
		struct pair *s = setup_new(four_chunks, 1);
		pair_parts_of(s, kinds[i], kinds[i], true);
		struct xfer_part *plain = rig_part(&s->source, true);
		rig_add_digests(plain);
		xfer_part_add_digests(s->from, 0, xfer_part_digest(plain, 0), 4);
		xfer_part_advance(s->from, 1);
		xfer_part_keep(s->to, 0);
		xfer_part_watch(s->to, grow_and_fail, s->from);
		pair_go(s, MODE_LOCAL);
		cr_assert(pair_wait(s, TRANSPORT_FAILED)->source_failed);
		cr_assert_eq(xfer_part_prefix(s->to), 2);
		xfer_part_unwatch(s->to, grow_and_fail, s->from);
		xfer_part_release(plain);
		pair_finish(s);
	}
}

/* ---- memory that a thread gets stuck in ------------------------------------------------ */

/* Its second chunk, and what comes then. */
static void
make_sticky(const struct xfer_part *part)
{
	sticky_make(part, 5 * MIB);
}

CONFORMANCE(stuck_source__neither_stop_nor_fence_waits_for_it)
{
	struct pair *s = setup_new(four_chunks, 1);
	pair_parts_of(s, RIG_FILE, RIG_MAPPED, true);
	publish(s);
	make_sticky(s->from);
	pair_go(s, mode);
	sticky_wait(&s->rig);
	if (mode != MODE_LOCAL) {
		transport_fence(s->source_agent->transport, s->leg);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, s->leg);
		cr_assert(pair_wait(s, TRANSPORT_FAILED)->source_failed);
	} else {
		transport_stop(s->reader_agent->transport, s->leg);
		pair_wait(s, TRANSPORT_STOPPED);
	}
	cr_assert(crew_count() >= 1);
	pair_finish(s); /* the transports close, too */
	cr_assert(crew_count() >= 1);
	sticky_let_go();
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
}

/* The leg fails, by the reader's clock, and the part can be served on. */
Test(transport_copy_tcp, stuck_source__is_a_stall_to_its_reader)
{
	struct pair *s = setup_with_stall(four_chunks, 1, STALL_NS);
	pair_parts_of(s, RIG_FILE, RIG_MAPPED, true);
	publish(s);
	make_sticky(s->from);
	pair_go(s, MODE_TCP);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert(failed->source_failed);
	cr_assert_eq(failed->code, TH_E_NO_PATH, "%s", failed->text);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, s->leg);
	sticky_let_go();
	s->leg++;
	pair_go(s, MODE_TCP);
	pair_done(s, s->leg);
	pair_finish(s);
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
}

CONFORMANCE(stuck_destination__is_waited_for_until_its_worker_is_gone)
{
	struct pair *s = setup_new(four_chunks, 1);
	pair_parts_of(s, RIG_MAPPED, RIG_FILE, true);
	publish(s);
	make_sticky(s->to);
	pair_go(s, mode);
	sticky_wait(&s->rig);
	transport_stop(s->reader_agent->transport, s->leg);
	rig_pump_for(&s->rig, 50000000);
	cr_assert_null(rig_find(s->reader_agent, TRANSPORT_STOPPED, s->leg));
	xfer_part_orphan(s->to);
	pair_wait(s, TRANSPORT_STOPPED);
	cr_assert(crew_count() >= 1);
	sticky_let_go();
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
	pair_finish(s);
}

/* The worker lives: when the write ends the leg does. */
CONFORMANCE(stuck_destination__is_stopped_when_it_moves_again)
{
	struct pair *s = setup_new(four_chunks, 1);
	pair_parts_of(s, RIG_MAPPED, RIG_FILE, true);
	publish(s);
	make_sticky(s->to);
	pair_go(s, mode);
	sticky_wait(&s->rig);
	transport_stop(s->reader_agent->transport, s->leg);
	sticky_let_go();
	pair_wait(s, TRANSPORT_STOPPED);
	pair_finish(s);
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
}

CONFORMANCE(stuck_destination__does_not_keep_the_transport_open)
{
	struct pair *s = setup_new(four_chunks, 1);
	pair_parts_of(s, RIG_MAPPED, RIG_FILE, true);
	publish(s);
	make_sticky(s->to);
	pair_go(s, mode);
	sticky_wait(&s->rig);
	pair_finish(s);
	sticky_let_go();
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
}

CONFORMANCE(destination_that_was_stuck_for_a_while__is_no_stall_of_the_source)
{
	struct pair *s = setup_with_stall(four_chunks, 1, STALL_NS);
	pair_parts_of(s, RIG_MAPPED, RIG_FILE, true);
	publish(s);
	make_sticky(s->to);
	pair_go(s, mode);
	sticky_wait(&s->rig);
	rig_pump_for(&s->rig, 2 * STALL_NS);
	cr_assert_null(rig_find(s->reader_agent, TRANSPORT_FAILED, s->leg));
	sticky_let_go();
	pair_done(s, s->leg);
	pair_finish(s);
}

/* One worker's memory is stuck: the others' legs, on the same few movers, go on. */
CONFORMANCE(stuck_legs__do_not_stop_others)
{
	struct pair *s = setup_new(four_chunks, 1);
	struct xfer_part *stuck[8][2];
	for (uint32_t i = 0; i < 8; i++) {
		pair_parts_of(s, RIG_FILE, RIG_MAPPED, true);
		publish(s);
		if (i == 0)
			make_sticky(s->from);
		else
			xfer_part_release(s->from);
		stuck[i][0] = s->from = i == 0 ? s->from : xfer_part_retain(stuck[0][0]);
		stuck[i][1] = s->to;
		cr_assert_eq(transport_copy(s->reader_agent->transport, s->leg, s->from, s->to), 0);
	}
	sticky_wait(&s->rig);
	pair_parts_of(s, RIG_PROCESS, RIG_FILE, true);
	publish(s);
	pair_go(s, mode);
	pair_done(s, s->leg);
	sticky_let_go();
	for (uint64_t leg = 1; leg <= 8; leg++)
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, leg);
	pair_finish(s);
	for (uint32_t i = 0; i < 8; i++) {
		xfer_part_release(stuck[i][0]);
		xfer_part_release(stuck[i][1]);
	}
}

Test(transport_copy, stuck_digests__stop_at_once)
{
	struct pair *s = setup_new(four_chunks, 1);
	pair_parts_of(s, RIG_FILE, RIG_MAPPED, true);
	make_sticky(s->from);
	pair_hash(s);
	sticky_wait(&s->rig);
	transport_hash_stop(s->source_agent->transport, s->leg);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASH_STOPPED, s->leg);
	sticky_let_go();
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
	pair_finish(s);
}
