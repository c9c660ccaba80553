/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of legs over RDMA whose bytes go through slots, since no NIC reaches the memory of an end:
 * what comes of it, what it is called, what breaks midway. Memory that a thread gets stuck in, or
 * that goes away, is in transport_copy_test.c; sources that lie, in rdma_hostile_test.c.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/transport/transport_pair.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/leg/reader_own.h"
#include "transport/rdma/memory/stage_own.h"
#include "transport/rdma/rdma.h"
#include "transport/tcp/tcp.h"

#define CHUNK (4 * MIB)

/* More chunks than slots. */
static const uint64_t ten_chunks[] = {40 * MIB};
static const uint64_t odd_sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 9 * MIB + 13, 65536, 65537, 3, 1000000};
#define ODD TH_ARRAY_LEN(odd_sizes)

/* staged: enum pair_end. */
static struct pair *
start(unsigned staged, uint32_t rails, int64_t stall_ns)
{
	pair_rails = rails;
	pair_staged = staged;
	struct pair *s = pair_new(ten_chunks, 1, stall_ns);
	pair_parts(s, true);
	rig_add_digests(s->from);
	return s;
}

static void
pull(struct pair *s)
{
	pair_move(s, MODE_RDMA, 1, s->from, s->to);
}

static void
hold(struct pair *s, bool held)
{
	for (uint32_t i = 0; i < s->reader_agent->num_rails; i++)
		fake_rdma_hold(s->reader_agent->devices[i], held);
}

static uint64_t
asked(struct pair *s)
{
	uint64_t posts = 0;
	for (uint32_t i = 0; i < s->reader_agent->num_rails; i++) {
		struct fake_counters counters;
		fake_rdma_counters(s->reader_agent->devices[i], &counters);
		posts += counters.posts;
	}
	return posts;
}

/* The reader has asked its devices for something more. */
static void
wait_asked(struct pair *s, uint64_t more_than)
{
	int64_t until_ns = th_now_ns() + INT64_C(40000000000);
	while (asked(s) <= more_than) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
}

/* A leg that has three chunks, and READs of those up to prefix are held on the wire. */
static struct pair *
start_reads(unsigned staged, uint32_t rails, uint32_t prefix)
{
	struct pair *s = start(staged, rails, CALM_NS);
	xfer_part_advance(s->from, 3);
	pull(s);
	rig_wait_prefix(&s->rig, s->to, 3);
	hold(s, true);
	uint64_t before = asked(s);
	xfer_part_advance(s->from, prefix);
	wait_asked(s, before);
	return s;
}

static const struct transport_event *
expect_copy(struct pair *s, uint64_t leg)
{
	const struct transport_event *done = pair_done(s, leg);
	cr_assert_str_eq(done->transport, "rdma-copy", "%s", done->fallback);
	cr_assert_str_eq(done->fallback, "");
	cr_assert_neq(done->copy[0], '\0');
	return done;
}

/* At the reader, at the source, at both. */
#define ENDS(what, run)                                                                            \
	Test(transport_stage, reader__##what)                                                      \
	{                                                                                          \
		run(PAIR_READER);                                                                  \
	}                                                                                          \
	Test(transport_stage, source__##what)                                                      \
	{                                                                                          \
		run(PAIR_SOURCE);                                                                  \
	}                                                                                          \
	Test(transport_stage, both__##what)                                                        \
	{                                                                                          \
		run(PAIR_READER | PAIR_SOURCE);                                                    \
	}

static bool
has_any(const struct slab *slab)
{
	static const uint8_t zeros[64];
	bool any = false;
	for (uint32_t i = 0; i < STAGE_SLOTS; i++)
		any = any || memcmp(slab->data + slab_slot_at(i), zeros, sizeof(zeros)) != 0;
	return any;
}

/* Nobody has looked at a chunk by then: the leg ends when its first READ has landed. */
Test(transport_stage, reads_land_and_the_leg_ends__cleared_for_the_next_one)
{
	struct pair *s = start(PAIR_READER, 1, CALM_NS);
	struct transport *transport = s->reader_agent->transport;
	struct slab *slab = NULL;
	struct th_err err;
	xfer_part_advance(s->from, 10);
	hold(s, true);
	pull(s);
	wait_asked(s, 0);
	const struct leg_in *leg = LIST_FIRST(&transport->legs_in);
	while (!has_any(reader_of(leg->paths[0])->stage.slab)) {
		fake_rdma_let(s->reader_agent->devices[0], 1);
		rig_pump(&s->rig, 1);
	}
	transport_stop(transport, 1);
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_STOPPED, 1);
	cr_assert_eq(stage_take(rdma_stage(transport_rdma(transport)), NULL, &err, &slab), 0);
	cr_assert(has_any(slab));
	slab_clear(slab);
	cr_assert_not(has_any(slab));
	slab_release(slab);
	pair_finish(s);
}

/* ---- what comes of it --------------------------------------------------------------------- */

/* Each pair of rails was of use. */
static void
expect_good_paths(struct pair *s)
{
	struct path paths[8];
	struct paths *all = rdma_paths(transport_rdma(s->reader_agent->transport));
	uint32_t count = paths_list(all, paths, TH_ARRAY_LEN(paths));
	cr_assert_eq(count, pair_rails);
	for (uint32_t i = 0; i < count; i++)
		cr_assert_eq(paths[i].failures, 0, "%s", paths[i].why);
}

static void
move_odd_by(unsigned staged, bool verify)
{
	pair_rails = 2;
	pair_staged = staged;
	struct pair *s = pair_new(odd_sizes, ODD, CALM_NS);
	s->reader_agent->require_rdma = true;
	pair_parts(s, verify);
	cr_assert_eq(transport_hash(s->source_agent->transport, 7, s->from), 0);
	pull(s);
	const struct transport_event *done = expect_copy(s, 1);
	cr_assert_eq(done->bytes_moved, s->source.table->bytes);
	struct transport_counters counters = rig_counters(s->reader_agent);
	cr_assert_eq(counters.bytes_in_copy, done->bytes_moved);
	cr_assert_eq(counters.bytes_in_rdma, done->bytes_moved);
	cr_assert_eq(counters.rdma_fallbacks, 0);
	expect_good_paths(s);
	pair_finish(s);
}

static void
move_odd(unsigned staged)
{
	move_odd_by(staged, true);
	move_odd_by(staged, false);
}

ENDS(odd_sizes__arrive, move_odd)

/* Of the worker's process, in a file, and of both by turns. */
static void
move_kinds(unsigned staged)
{
	pair_rails = 2;
	pair_staged = staged;
	struct pair *s = pair_new(odd_sizes, ODD, CALM_NS);
	rig_shard_to_file(&s->source);
	rig_shard_to_file(&s->reader);
	for (enum rig_memory kind = RIG_FILE; kind <= RIG_MIXED; kind++) {
		memset(s->reader.memory, 0, s->reader.bytes);
		s->from = rig_part_of(&s->source, staged & PAIR_SOURCE ? kind : RIG_MAPPED, true);
		s->to = rig_part_of(&s->reader, staged & PAIR_READER ? kind : RIG_MAPPED, true);
		pair_move(s, MODE_RDMA, kind, s->from, s->to);
		cr_assert_eq(transport_hash(s->source_agent->transport, kind, s->from), 0);
		const struct transport_event *done = pair_done(s, kind);
		cr_assert_str_eq(done->transport, "rdma-copy", "%s", done->fallback);
		cr_assert(strstr(done->copy, "private"), "'%s'", done->copy);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, kind);
		pair_release(s);
	}
	pair_finish(s);
}

ENDS(memory_that_is_not_mapped__arrives, move_kinds)

Test(transport_stage, reader__no_room_for_slots__tcp_and_both_reasons)
{
	struct pair *s = calloc(1, sizeof(*s));
	s->rig.num_rails = 1;
	s->source_agent = rig_add_agent(&s->rig, CALM_NS, 0);
	s->rig.stage_bytes = RDMA_NO_STAGE;
	s->reader_agent = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&s->source, ten_chunks, 1, 42);
	rig_shard_init(&s->reader, ten_chunks, 1, 0);
	rig_register(s->source_agent, &s->source);
	pair_parts(s, false);
	xfer_part_advance(s->from, 10);
	pull(s);
	const struct transport_event *done = pair_done(s, 1);
	cr_assert_str_eq(done->transport, "tcp");
	cr_assert(strstr(done->fallback, "not registered"), "%s", done->fallback);
	cr_assert(strstr(done->fallback, "rdma.stage"), "%s", done->fallback);
	cr_assert_str_eq(done->copy, "");
	pair_finish(s);
}

/* Registered for nothing: no device takes the worker's memory. */
Test(transport_stage, reader__registrations_that_fail_while_it_waits__slots_after_all)
{
	pair_rails = 1;
	pair_staged = PAIR_READER;
	struct pair *s = pair_new(ten_chunks, 1, CALM_NS);
	/* Its own few bytes for probes first. */
	struct fake_counters counters = {0};
	while (counters.regs == 0)
		fake_rdma_counters(s->reader_agent->devices[0], &counters);
	fake_rdma_refuse(s->reader_agent->devices[0], FAKE_REG, 1, -EFAULT);
	rig_register(s->reader_agent, &s->reader);
	pair_parts(s, false);
	xfer_part_advance(s->from, 10);
	pull(s);
	const struct transport_event *done = pair_done(s, 1);
	cr_assert_str_eq(done->transport, "rdma-copy", "%s", done->fallback);
	cr_assert(strstr(done->copy, "could be registered on no rail"), "%s", done->copy);
	pair_finish(s);
}

/* What is there already is looked at, and not READ. */
static void
move_reused(unsigned staged)
{
	for (uint32_t equal = 3; equal <= 10; equal += 7) {
		struct pair *s = start(staged, 2, CALM_NS);
		memcpy(s->reader.tensors[0], s->source.tensors[0], equal * CHUNK);
		xfer_part_expect_reuse(s->to);
		xfer_part_advance(s->from, 10);
		pull(s);
		const struct transport_event *done = expect_copy(s, 1);
		cr_assert_eq(done->bytes_reused + done->bytes_moved, 10 * CHUNK);
		if (equal == 10)
			cr_assert_eq(done->bytes_moved, 0);
		pair_finish(s);
	}
}

ENDS(bytes_that_are_here_already__not_read, move_reused)

/* ---- what breaks midway ------------------------------------------------------------------- */

static void
break_one_rail(unsigned staged)
{
	struct pair *s = start_reads(staged, 2, 10);
	fake_rdma_port_set(s->reader_agent->devices[0], 1, false);
	hold(s, false);
	const struct transport_event *done = expect_copy(s, 1);
	cr_assert_eq(done->bytes_moved, 10 * CHUNK);
	pair_finish(s);
}

ENDS(one_of_two_rails_dies__the_other_goes_on, break_one_rail)

static void
break_all_rails(unsigned staged)
{
	struct pair *s = start_reads(staged, 1, 10);
	/* What is not moved again is not looked at. */
	memset(s->source.tensors[0], 0, 3 * CHUNK);
	fake_rdma_port_set(s->reader_agent->devices[0], 1, false);
	hold(s, false);
	const struct transport_event *done = rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 1);
	cr_assert_str_eq(done->transport, "tcp");
	cr_assert_str_eq(done->copy, "");
	cr_assert_neq(done->fallback[0], '\0');
	cr_assert_eq(done->bytes_moved, 10 * CHUNK);
	cr_assert_eq(memcmp(s->source.tensors[0] + 3 * CHUNK, s->reader.tensors[0] + 3 * CHUNK,
			     7 * CHUNK),
		0);
	pair_finish(s);
}

ENDS(all_rails_die__goes_on_over_tcp_from_the_prefix, break_all_rails)

/* Chunk 3 is damaged in the source's slot, or where its first READ finds it; not where it lies when
 * all of it has come. */
static void
damage(unsigned staged)
{
	struct pair *s = start(staged, 1, CALM_NS);
	uint8_t *byte = &s->source.tensors[0][3 * CHUNK];
	xfer_part_advance(s->from, 3);
	pull(s);
	rig_wait_prefix(&s->rig, s->to, 3);
	hold(s, true);
	uint64_t before = asked(s);
	*byte ^= 1;
	xfer_part_advance(s->from, 4);
	wait_asked(s, before);
	if (!(staged & PAIR_SOURCE))
		cr_assert_gt(fake_rdma_let(s->reader_agent->devices[0], 1), 0);
	*byte ^= 1;
	hold(s, false);
	xfer_part_advance(s->from, 10);
	const struct transport_event *done = expect_copy(s, 1);
	cr_assert_eq(done->bytes_moved, 11 * CHUNK);
	cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 1);
	cr_assert_eq(rig_counters(s->reader_agent).chunks_refetched, 1);
	cr_assert_null(rig_find(s->source_agent, TRANSPORT_CHANGED, 1));
	pair_finish(s);
}

ENDS(damaged_on_its_way__read_again, damage)

/* ---- ends --------------------------------------------------------------------------------- */

static void
stop_reads(unsigned staged)
{
	struct pair *s = start_reads(staged, 2, 10);
	transport_stop(s->reader_agent->transport, 1);
	rig_wait(&s->rig, s->reader_agent, TRANSPORT_STOPPED, 1);
	mprotect(s->reader.memory, s->reader.bytes, PROT_NONE);
	hold(s, false);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
	pair_finish(s);
}

ENDS(stop_while_reads_are_on_the_wire__nothing_is_written_after_stopped, stop_reads)

/* Whatever the talk has come to. */
static void
end_anywhere(unsigned staged)
{
	for (uint32_t round = 0; round < 9; round++) {
		struct pair *s = start(staged, 1 + round % 2, CALM_NS);
		xfer_part_advance(s->from, round % 11);
		pull(s);
		rig_pump_for(&s->rig, (int64_t)round * 600000);
		pair_cut(s, round);
		while (s->reader_agent->num_events == 0 && round % 3 != 0)
			rig_pump(&s->rig, 10);
		pair_finish(s);
	}
}

ENDS(stop_and_fence_at_any_moment__one_last_event, end_anywhere)

/* ---- one reads from the other while that still receives ------------------------------------ */

/* A third reads from the reader, whose memory is staged in and out. */
static void
pipeline(unsigned staged)
{
	struct rig_shard last;
	struct pair *s = start(staged | PAIR_READER, 1, CALM_NS);
	struct rig_agent *third = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&last, ten_chunks, 1, 0);
	if (!(staged & PAIR_SOURCE))
		rig_register(third, &last);
	struct xfer_part *end = rig_part(&last, true);
	xfer_part_advance(s->from, 5);
	pull(s);
	rig_pull(s->reader_agent, third, 2, s->to, end);
	rig_wait_prefix(&s->rig, end, 5);
	cr_assert_eq(xfer_part_prefix(s->to), 5);
	xfer_part_advance(s->from, 10);
	const struct transport_event *done = rig_wait(&s->rig, third, TRANSPORT_DONE, 2);
	cr_assert_str_eq(done->transport, "rdma-copy", "%s", done->fallback);
	cr_assert(rig_shards_equal(&s->source, &last));
	expect_copy(s, 1);
	rig_halt(&s->rig);
	xfer_part_release(end);
	pair_finish(s);
	rig_shard_fini(&last);
}

Test(transport_stage, reader__that_is_staged__is_read_from_while_it_receives)
{
	pipeline(0);
}

Test(transport_stage, both__all_staged__are_read_from_while_they_receive)
{
	pipeline(PAIR_SOURCE);
}
