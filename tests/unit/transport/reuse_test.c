/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of reuse: when it pays to look, and what moves when some of it is there already. Whatever
 * was there before: what counts is what lies in the destination now. reuse_gpu_test.c is this file
 * with a destination in the memory of a GPU, and the cases of what moves alone.
 */
#include "transport/leg/reuse.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "tests/support/transport/transport_pair.h"
#include "tests/support/transport/transport_peer.h"

#ifdef ON_GPUS
#define CONFORMANCE(name)                                                                          \
	static void name(enum mode mode);                                                          \
	ON_GPUS(name)                                                                              \
	static void name(enum mode mode)
#else
#define CONFORMANCE(name) PAIR_TESTS(reuse, name)

/* ---- the rule ------------------------------------------------------------------------------- */

Test(reuse, off__never_looks)
{
	struct reuse reuse;
	reuse_init(&reuse, false);
	cr_assert(!reuse_pays(&reuse, 0, 0));
}

Test(reuse, a_tensor_that_differs__is_not_looked_at_again)
{
	struct reuse reuse;
	reuse_init(&reuse, true);
	cr_assert(reuse_pays(&reuse, 3, 0));
	reuse_judge(&reuse, 3, false, 10);
	cr_assert(!reuse_pays(&reuse, 3, 0));
	cr_assert(reuse_pays(&reuse, 4, 0));
	reuse_judge(&reuse, 4, true, 10);
	cr_assert(reuse_pays(&reuse, 4, 0));
	cr_assert_eq(reuse.bytes, 10);
}

/* The price of looking in vain: 4 chunks and one of 32. */
Test(reuse, nothing_is_equal__few_are_looked_at)
{
	struct reuse reuse;
	uint32_t looks = 0;
	reuse_init(&reuse, true);
	for (uint32_t row = 0; row < 1600; row++) {
		if (reuse_pays(&reuse, row, 0)) {
			looks++;
			reuse_judge(&reuse, row, false, 10);
		} else {
			reuse_pass(&reuse);
		}
	}
	cr_assert(looks >= 50 && looks <= 55, "%u", looks);
	cr_assert_eq(reuse.bytes, 0);
}

/* After a long stretch of changed tensors: equal ones are found soon, and then each of them. */
Test(reuse, equal_ones_behind_many_that_differ__found)
{
	struct reuse reuse;
	uint32_t found = 0;
	reuse_init(&reuse, true);
	for (uint32_t row = 0; row < 2000; row++) {
		bool equal = row >= 1000;
		if (reuse_pays(&reuse, row, 0))
			reuse_judge(&reuse, row, equal, 1);
		else
			reuse_pass(&reuse);
		found += equal && reuse.bytes == row - 999;
	}
	cr_assert(reuse.bytes >= 968, "%lu", (unsigned long)reuse.bytes);
}

/* Looks of which nothing is known yet: four, and two more for each that is equal. */
Test(reuse, several_at_once__as_many_as_may_be_in_vain)
{
	struct reuse reuse;
	reuse_init(&reuse, true);
	cr_assert(reuse_pays(&reuse, 0, 3));
	cr_assert(!reuse_pays(&reuse, 0, 4));
	for (uint32_t equal = 1; equal < 10; equal++) {
		reuse_judge(&reuse, 0, true, 1);
		cr_assert(reuse_pays(&reuse, 0, equal + 3));
		cr_assert(!reuse_pays(&reuse, 0, equal + 4));
	}
}

/* They were begun before the first of them was known. */
Test(reuse, chunks_of_one_tensor_that_differ__count_once)
{
	struct reuse reuse;
	reuse_init(&reuse, true);
	for (uint32_t i = 0; i < 4; i++)
		reuse_judge(&reuse, 7, false, 1);
	cr_assert(!reuse_pays(&reuse, 7, 0));
	cr_assert(reuse_pays(&reuse, 9, 2));
	cr_assert(!reuse_pays(&reuse, 9, 3));
	/* In whatever order they come back. */
	reuse_judge(&reuse, 8, false, 1);
	reuse_judge(&reuse, 7, false, 1);
	reuse_judge(&reuse, 8, false, 1);
	cr_assert(reuse_pays(&reuse, 9, 1));
	cr_assert(!reuse_pays(&reuse, 9, 2));
}

Test(reuse, worth_a_wait__but_for_the_one_of_32)
{
	struct reuse reuse;
	reuse_init(&reuse, true);
	for (uint32_t row = 0; row < 4; row++) {
		cr_assert(reuse_waits(&reuse, row));
		reuse_judge(&reuse, row, false, 1);
	}
	while (!reuse_pays(&reuse, 9, 0))
		reuse_pass(&reuse);
	cr_assert_eq(reuse.seen, 32);
	cr_assert(!reuse_waits(&reuse, 9));
	reuse_judge(&reuse, 9, true, 1);
	cr_assert(reuse_waits(&reuse, 9));
	cr_assert(!reuse_waits(&reuse, 3));
}

#endif

/* ---- what moves ------------------------------------------------------------------------------ */

/* Small ones in one chunk, and large ones of one to three chunks. */
static const uint64_t mixed[] = {1000, 70000, 4 * MIB, 12 * MIB, 5 * MIB, 8 * MIB, 4 * MIB + 1};
#define MIXED (sizeof(mixed) / sizeof(mixed[0]))

/* Both hold the same bytes. */
static struct pair *
setup_new(int64_t stall_ns)
{
	struct pair *s = pair_new(mixed, MIXED, stall_ns);

	memcpy(s->reader.memory, s->source.memory, s->source.bytes);
	return s;
}

/* A version is published and read. */
static void
begin(struct pair *s, enum mode mode, bool verify, bool expect)
{
	s->leg++;
	pair_parts(s, verify);
	if (expect)
		xfer_part_expect_reuse(s->to);
	pair_go(s, mode);
}

/* How much moved; it is all there then. */
static uint64_t
end(struct pair *s)
{
	const struct transport_event *done = pair_done(s, s->leg);
	uint64_t moved = done->bytes_moved;
	cr_assert(done->bytes_moved + done->bytes_reused == s->source.table->bytes);
	cr_assert(!done->overwrote == (moved == 0));
	for (uint32_t c = 0; xfer_part_verify(s->to) && c < s->source.table->num_chunks; c++)
		cr_assert(
			th_hash_equal(*xfer_part_digest(s->from, c), *xfer_part_digest(s->to, c)));
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
	pair_release(s);
	return moved;
}

static void
change(struct rig_shard *shard, uint32_t row, uint64_t offset)
{
	shard->tensors[row][offset] ^= 1;
}

/* Also while its digests are only being computed. */
CONFORMANCE(all_is_there__nothing_moves)
{
	struct pair *s = setup_new(CALM_NS);
	for (int round = 0; round < 3; round++) {
		begin(s, mode, true, true);
		pair_hash(s);
		cr_assert_eq(end(s), 0);
	}
	cr_assert_eq(rig_counters(s->reader_agent).bytes_reused, 3 * s->source.table->bytes);
	cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 0);
	pair_finish(s);
}

/* Rows in canonical order: 0 and 1 are small. */
CONFORMANCE(half_of_it_is_there__the_other_half_moves)
{
	struct pair *s = setup_new(CALM_NS);
	const struct manifest_row *rows = s->source.manifest.rows;
	uint64_t changed = 0;
	for (uint32_t row = 2; row < MIXED; row += 2) {
		for (uint64_t at = 0; at < rows[row].bytes; at += MIB)
			change(&s->source, row, at);
		changed += rows[row].bytes;
	}
	begin(s, mode, true, true);
	pair_hash(s);
	cr_assert_eq(end(s), changed);
	pair_finish(s);
}

/* What the worker has written since is seen: old digests would say that all is there. */
CONFORMANCE(destination_that_was_written_to__is_not_taken_for_what_it_was)
{
	struct pair *s = setup_new(CALM_NS);
	begin(s, mode, true, true);
	pair_hash(s);
	cr_assert_eq(end(s), 0);
	change(&s->reader, 0, 999);
	change(&s->reader, 3, s->reader.manifest.rows[3].bytes - 1);
	begin(s, mode, true, true);
	pair_hash(s);
	uint64_t moved = end(s);
	cr_assert(moved > 0 && moved <= 2 * CHUNK, "%lu", (unsigned long)moved);
	pair_finish(s);
}

CONFORMANCE(nobody_expects_it__all_moves)
{
	struct pair *s = setup_new(CALM_NS);
	begin(s, mode, true, false);
	pair_hash(s);
	cr_assert_eq(end(s), s->source.table->bytes);
	pair_finish(s);
}

CONFORMANCE(without_verify__all_moves)
{
	struct pair *s = setup_new(CALM_NS);
	begin(s, mode, false, true);
	pair_hash(s);
	cr_assert_eq(end(s), s->source.table->bytes);
	pair_finish(s);
}

/* Digests that are long in coming: the source lives, so nothing fails, and at last it is asked. */
CONFORMANCE(digests_come_late__it_goes_on_without_a_look)
{
	struct pair *s = setup_new(STALL_NS);
	begin(s, mode, true, true);
	rig_pump_for(&s->rig, 4 * STALL_NS);
	cr_assert_null(rig_find(s->reader_agent, TRANSPORT_FAILED, s->leg));
	pair_hash(s);
	end(s);
	pair_finish(s);
}

#ifndef ON_GPUS

/* ---- a source that is asked for nothing ------------------------------------------------------ */

#define LEG 5

static int
enter(struct peer_setup *s)
{
	uint8_t key[FRAME_KEY_BYTES];

	return peer_enter(s, LEG, s->part, key);
}

static void
say_alive(int fd, uint32_t looks)
{
	struct frame frame = {.kind = FRAME_ALIVE, .leg = LEG, .count = looks};
	peer_put_frame(fd, &frame, NULL, 0);
}

Test(reuse, reader_that_only_looks__is_not_stalled)
{
	struct peer_setup *s = peer_start(8);
	int fd = enter(s);
	rig_wait(&s->rig, s->agent, TRANSPORT_STALLED, LEG);
	say_alive(fd, 1);
	rig_wait(&s->rig, s->agent, TRANSPORT_RESUMED, LEG);
	say_alive(fd, 8);
	peer_put_frame(fd, &(struct frame){.kind = FRAME_BYE, .leg = LEG}, NULL, 0);
	cr_assert_eq(rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG)->code, 0);
	peer_expect_closed(fd);
	peer_finish(s);
}

/* It must come to an end: each chunk is an excuse once. */
Test(reuse, reader_that_looks_at_nothing_new__ended)
{
	static const uint32_t bad[][2] = {{1, 1}, {5, 4}, {0, 0}, {8, 9}};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct peer_setup *s = peer_start(8);
		int fd = enter(s);
		say_alive(fd, bad[i][0]);
		say_alive(fd, bad[i][1]);
		cr_assert_eq(
			rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG)->code, TH_E_PROTOCOL);
		peer_expect_closed(fd);
		peer_finish(s);
	}
}

#endif
