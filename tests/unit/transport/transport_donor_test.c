/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/leg/donor: chunks that another version on the reader's host has come from
 * there, by TCP and by RDMA alike; a donor that is damaged, withdrawn or of no use; legs that
 * follow one another.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/name.h"
#include "tests/support/transport/transport_pair.h"

#define CONFORMANCE(name)                                                                          \
	static void name(enum mode mode);                                                          \
	Test(transport_donor_tcp, name)                                                            \
	{                                                                                          \
		name(MODE_TCP);                                                                    \
	}                                                                                          \
	Test(transport_donor_rdma, name)                                                           \
	{                                                                                          \
		pair_rails = 1;                                                                    \
		name(MODE_RDMA);                                                                   \
	}                                                                                          \
	static void name(enum mode mode)

/* Small ones in the first chunk, then one chunk a row, and one that is cut. */
static const uint64_t sizes[] = {1000, 70000, 2 * MIB, 3 * MIB, 4 * MIB, 2 * MIB + 1, 2 * MIB,
	2 * MIB, 4 * MIB, 12 * MIB + 5};
#define ROWS (sizeof(sizes) / sizeof(sizes[0]))

struct setup {
	struct pair *pair;
	struct rig_shard shard; /* of the donor: as the source */
	struct xfer_part *donor;
	uint32_t num_chunks;
};

/* The source has what the donor has, but for a byte of each row of changed (a mask). */
static void
start(struct setup *s, uint32_t changed)
{
	*s = (struct setup){.pair = pair_new(sizes, ROWS, CALM_NS)};
	rig_shard_init(&s->shard, sizes, ROWS, 42);
	for (uint32_t row = 0; row < ROWS; row++) {
		if (changed >> row & 1)
			s->pair->source.tensors[row][s->shard.manifest.rows[row].bytes / 2] ^= 1;
	}
	s->num_chunks = s->shard.table->num_chunks;
	s->donor = rig_part(&s->shard, true);
	rig_add_digests(s->donor);
	xfer_part_advance(s->donor, s->num_chunks);
	pair_parts(s->pair, true);
	s->pair->reader_agent->donor = s->donor;
}

static void
finish(struct setup *s)
{
	pair_finish(s->pair);
	xfer_part_release(s->donor);
	rig_shard_fini(&s->shard);
}

/* The source has published this much of it. */
static void
publish(struct setup *s, uint32_t prefix)
{
	struct xfer_part *from = s->pair->from;
	struct xfer_part *plain = rig_part(&s->pair->source, true);
	uint32_t known = xfer_part_digest_count(from);
	rig_add_digests(plain);
	xfer_part_add_digests(from, known, xfer_part_digest(plain, known), prefix - known);
	xfer_part_advance(from, prefix);
	xfer_part_release(plain);
}

static void
go(struct setup *s, enum mode mode)
{
	s->pair->leg++;
	pair_go(s->pair, mode);
}

static uint64_t
bytes_of(const struct setup *s, uint32_t chunk)
{
	return chunk_bytes(s->shard.table, chunk);
}

/* The chunk that begins in this row. */
static uint32_t
chunk_of(const struct setup *s, uint32_t row)
{
	const struct chunk_table *table = s->shard.table;
	uint32_t chunk = 0;
	while (table->ranges[table->first[chunk]].row != row)
		chunk++;
	return chunk;
}

static struct transport_counters
counters(const struct setup *s)
{
	return rig_counters(s->pair->reader_agent);
}

CONFORMANCE(all_is_the_same__nothing_is_fetched)
{
	struct setup s;
	start(&s, 0);
	publish(&s, s.num_chunks);
	go(&s, mode);
	const struct transport_event *done = pair_done(s.pair, s.pair->leg);
	cr_assert_eq(done->bytes_moved, 0);
	cr_assert_eq(done->bytes_reused, 0);
	cr_assert_eq(done->bytes_donated, s.shard.table->bytes);
	cr_assert(done->overwrote);
	cr_assert_eq(counters(&s).bytes_donated, s.shard.table->bytes);
	cr_assert_eq(counters(&s).chunks_verified, s.num_chunks);
	cr_assert_eq(counters(&s).donor_failures, 0);
	finish(&s);
}

/* Also when the source only makes its digests meanwhile. */
CONFORMANCE(one_chunk_has_changed__it_alone_is_fetched)
{
	struct setup s;
	start(&s, 1u << 4);
	pair_hash(s.pair);
	go(&s, mode);
	const struct transport_event *done = pair_done(s.pair, s.pair->leg);
	cr_assert_eq(done->bytes_moved, bytes_of(&s, chunk_of(&s, 4)));
	cr_assert_eq(done->bytes_donated, s.shard.table->bytes - done->bytes_moved);
	finish(&s);
}

CONFORMANCE(all_has_changed__all_is_fetched)
{
	struct setup s;
	start(&s, 0);
	for (uint32_t row = 0; row < ROWS; row++)
		memset(s.pair->source.tensors[row], 7, s.shard.manifest.rows[row].bytes);
	publish(&s, s.num_chunks);
	go(&s, mode);
	cr_assert_eq(pair_done(s.pair, s.pair->leg)->bytes_donated, 0);
	finish(&s);
}

/* Its digests still say what it had: what came from it does not count, and is fetched. */
CONFORMANCE(damaged_donor__is_not_passed_on)
{
	struct setup s;
	start(&s, 0);
	s.shard.tensors[3][MIB] ^= 4;
	publish(&s, s.num_chunks);
	go(&s, mode);
	const struct transport_event *done = pair_done(s.pair, s.pair->leg);
	cr_assert_eq(done->bytes_moved, bytes_of(&s, chunk_of(&s, 3)));
	cr_assert_eq(counters(&s).donor_failures, 1);
	cr_assert_eq(counters(&s).checksum_failures, 0, "the source is not to blame");
	finish(&s);
}

/* When it is told to be left nothing reads it, so its owner may write. */
CONFORMANCE(withdrawn_in_the_middle__the_rest_is_fetched)
{
	struct setup s;
	start(&s, 0);
	uint32_t half = s.num_chunks / 2;
	publish(&s, half);
	go(&s, mode);
	rig_wait_prefix(&s.pair->rig, s.pair->to, half);
	transport_drop_donor(s.pair->reader_agent->transport, s.pair->leg);
	pair_wait(s.pair, TRANSPORT_DONOR_LEFT);
	memset(s.shard.memory, 0x5a, s.shard.bytes);
	publish(&s, s.num_chunks);
	const struct transport_event *done = pair_done(s.pair, s.pair->leg);
	cr_assert_eq(done->bytes_donated, s.shard.table->start[half]);
	cr_assert_eq(done->bytes_moved, s.shard.table->bytes - done->bytes_donated);
	cr_assert_eq(counters(&s).donor_failures, 0);
	finish(&s);
}

/* At whatever moment: while a chunk is copied, too. */
CONFORMANCE(withdrawn_at_any_moment__nothing_reads_it_any_more)
{
	for (uint32_t round = 0; round < 12; round++) {
		struct setup s;
		start(&s, 0);
		publish(&s, s.num_chunks);
		go(&s, mode);
		while (round > 0 && counters(&s).bytes_donated < (round - 1) * 3 * MIB)
			rig_pump(&s.pair->rig, 0);
		transport_drop_donor(s.pair->reader_agent->transport, s.pair->leg);
		while (!rig_find(s.pair->reader_agent, TRANSPORT_DONOR_LEFT, s.pair->leg) &&
			!rig_find(s.pair->reader_agent, TRANSPORT_DONE, s.pair->leg))
			rig_pump(&s.pair->rig, 10);
		memset(s.shard.memory, 0x5a, s.shard.bytes);
		pair_done(s.pair, s.pair->leg);
		cr_assert_eq(counters(&s).donor_failures, 0);
		finish(&s);
	}
}

/* What the first leg copied stays, and the next one has a donor of its own. */
CONFORMANCE(source_lost_in_the_middle__the_next_leg_goes_on)
{
	struct setup s;
	start(&s, 1u << 8);
	uint32_t half = s.num_chunks / 2;
	publish(&s, half);
	go(&s, mode);
	rig_wait_prefix(&s.pair->rig, s.pair->to, half);
	transport_fence(s.pair->source_agent->transport, s.pair->leg);
	const struct transport_event *lost = pair_wait(s.pair, TRANSPORT_FAILED);
	cr_assert(lost->source_failed && lost->overwrote);
	uint64_t donated = lost->bytes_donated;
	cr_assert_eq(donated, s.shard.table->start[half]);
	publish(&s, s.num_chunks);
	go(&s, mode);
	const struct transport_event *done = pair_done(s.pair, s.pair->leg);
	cr_assert_eq(done->bytes_moved, bytes_of(&s, chunk_of(&s, 8)));
	cr_assert_eq(done->bytes_moved + done->bytes_donated + donated, s.shard.table->bytes);
	finish(&s);
}

/* Digests that are long in coming hold chunks back, but not for ever, and not without a donor. */
CONFORMANCE(withdrawn_before_any_digest__the_source_is_asked)
{
	struct setup s;
	start(&s, 0);
	go(&s, mode);
	transport_drop_donor(s.pair->reader_agent->transport, s.pair->leg);
	pair_wait(s.pair, TRANSPORT_DONOR_LEFT);
	pair_hash(s.pair);
	cr_assert_eq(pair_done(s.pair, s.pair->leg)->bytes_donated, 0);
	finish(&s);
}

/* The leg goes as if there were none, and whoever drops it is answered. */
static void
expect_of_no_use(struct setup *s, struct xfer_part *donor)
{
	s->pair->reader_agent->donor = donor;
	go(s, MODE_TCP);
	transport_drop_donor(s->pair->reader_agent->transport, s->pair->leg);
	pair_wait(s->pair, TRANSPORT_DONOR_LEFT);
	publish(s, s->num_chunks);
	cr_assert_eq(pair_done(s->pair, s->pair->leg)->bytes_moved, s->shard.table->bytes);
	xfer_part_release(donor);
	finish(s);
}

Test(transport_donor, there_is_none__dropped_all_the_same)
{
	struct setup s;
	start(&s, 0);
	expect_of_no_use(&s, NULL);
}

Test(transport_donor, without_digests__of_no_use)
{
	struct setup s;
	start(&s, 0);
	expect_of_no_use(&s, rig_part(&s.shard, false));
}

/* A mover does not wait for a worker, who may keep such memory from answering. */
Test(transport_donor, reached_by_calls_only__of_no_use)
{
	struct setup s;
	start(&s, 0);
	rig_shard_to_file(&s.shard);
	struct xfer_part *donor = rig_part_of(&s.shard, RIG_FILE, true);
	xfer_part_add_digests(donor, 0, xfer_part_digest(s.donor, 0), s.num_chunks);
	expect_of_no_use(&s, donor);
}

Test(transport_donor, other_chunks__of_no_use)
{
	static const uint64_t other[] = {5 * MIB, 1};
	struct rig_shard shard;
	struct setup s;
	start(&s, 0);
	rig_shard_init(&shard, other, 2, 42);
	struct xfer_part *donor = rig_part(&shard, true);
	rig_add_digests(donor);
	expect_of_no_use(&s, donor);
	rig_shard_fini(&shard);
}
