/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/ledger: order, late digests, refetching, contradictions; no I/O. */
#include "transport/leg/chunk_ledger.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "ipc/base/err.h"
#include "tests/support/rng.h"
#include "tests/support/transport/transport_rig.h"

#define CHUNKS 6

struct setup {
	struct rig_shard shard;
	struct xfer_part *part;
	struct chunk_ledger ledger;
	struct transport_counters counters;
	struct th_hash digests[CHUNKS];
};

static void
start(struct setup *s, bool verify)
{
	static const uint64_t sizes[] = {CHUNKS * (UINT64_C(4) << 20)};
	*s = (struct setup){0};
	rig_shard_init(&s->shard, sizes, 1, 0);
	s->part = rig_part(&s->shard, verify);
	cr_assert_eq(chunk_ledger_init(&s->ledger, s->part, &s->counters), 0);
	for (uint32_t c = 0; c < CHUNKS; c++)
		s->digests[c] = (struct th_hash){c + 1, c + 100};
}

static void
finish(struct setup *s)
{
	chunk_ledger_fini(&s->ledger);
	xfer_part_release(s->part);
	rig_shard_fini(&s->shard);
}

static uint32_t
take(struct setup *s)
{
	uint32_t chunk = UINT32_MAX;
	cr_assert(chunk_ledger_take(&s->ledger, UINT32_MAX, &chunk));
	return chunk;
}

Test(ledger, chunks_out_of_order__prefix_moves_when_it_reaches_them)
{
	struct setup s;
	start(&s, true);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 0, s.digests, CHUNKS), 0);
	for (uint32_t c = 0; c < CHUNKS; c++)
		cr_assert_eq(take(&s), c);
	uint32_t chunk;
	cr_assert(!chunk_ledger_take(&s.ledger, UINT32_MAX, &chunk));
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 2, &s.digests[2]), 0);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 1, &s.digests[1]), 0);
	cr_assert_eq(xfer_part_prefix(s.part), 0);
	cr_assert_eq(chunk_ledger_lowest_missing(&s.ledger), 0);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 0, &s.digests[0]), LEDGER_GREW);
	cr_assert_eq(xfer_part_prefix(s.part), 3);
	cr_assert_eq(chunk_ledger_lowest_missing(&s.ledger), 3);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 5, &s.digests[5]), 0);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 3, &s.digests[3]), LEDGER_GREW);
	cr_assert_eq(
		chunk_ledger_arrived(&s.ledger, 4, &s.digests[4]), LEDGER_GREW | LEDGER_COMPLETE);
	cr_assert_eq(s.counters.chunks_verified, CHUNKS);
	cr_assert_eq(chunk_ledger_lowest_missing(&s.ledger), CHUNKS);
	finish(&s);
}

Test(ledger, limit__hands_out_nothing_beyond)
{
	struct setup s;
	uint32_t chunk;
	start(&s, true);
	cr_assert(!chunk_ledger_take(&s.ledger, 0, &chunk));
	cr_assert(chunk_ledger_take(&s.ledger, 1, &chunk));
	cr_assert(!chunk_ledger_take(&s.ledger, 1, &chunk));
	finish(&s);
}

Test(ledger, digests_later_than_bytes__judged_when_they_come)
{
	struct setup s;
	start(&s, true);
	take(&s);
	take(&s);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 0, &s.digests[0]), 0);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 1, &s.digests[0]), 0); /* wrong bytes */
	cr_assert_eq(xfer_part_prefix(s.part), 0);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 0, s.digests, 2), LEDGER_GREW | LEDGER_AGAIN);
	cr_assert_eq(xfer_part_prefix(s.part), 1);
	cr_assert_eq(take(&s), 1);
	cr_assert_eq(take(&s), 2);
	finish(&s);
}

Test(ledger, wrong_bytes_three_times__checksum)
{
	struct setup s;
	start(&s, true);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 0, s.digests, CHUNKS), 0);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(take(&s), 0);
		cr_assert_eq(chunk_ledger_arrived(&s.ledger, 0, &s.digests[1]), LEDGER_AGAIN);
	}
	cr_assert_eq(take(&s), 0);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 0, &s.digests[1]), TH_E_CHECKSUM);
	cr_assert_eq(s.counters.checksum_failures, 3);
	cr_assert_eq(s.counters.chunks_refetched, 2);
	finish(&s);
}

Test(ledger, digests_with_a_gap_too_many_or_other_ones__refused)
{
	struct setup s;
	start(&s, true);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 1, s.digests, 1), TH_E_PROTOCOL);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 0, s.digests, CHUNKS + 1), TH_E_PROTOCOL);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, UINT32_MAX, s.digests, 1), TH_E_PROTOCOL);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, CHUNKS, s.digests, 0), TH_E_PROTOCOL);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 0, s.digests, 3), 0);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 1, s.digests + 1, 4), 0); /* overlapping */
	cr_assert_eq(xfer_part_digest_count(s.part), 5);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 0, s.digests + 1, 1), TH_E_CHECKSUM);
	finish(&s);
}

Test(ledger, without_verify__counts_without_digest)
{
	struct setup s;
	start(&s, false);
	take(&s);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 0, NULL), LEDGER_GREW);
	cr_assert_eq(xfer_part_prefix(s.part), 1);
	finish(&s);
}

Test(ledger, part_with_a_prefix__resumes_behind_it)
{
	struct setup s;
	start(&s, true);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 0, s.digests, CHUNKS), 0);
	take(&s);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 0, &s.digests[0]), LEDGER_GREW);
	chunk_ledger_fini(&s.ledger);
	cr_assert_eq(chunk_ledger_init(&s.ledger, s.part, &s.counters), 0);
	cr_assert_eq(take(&s), 1);
	finish(&s);
}

Test(ledger, leg_ends__what_it_verified_is_not_fetched_again)
{
	struct setup s;
	start(&s, true);
	cr_assert_eq(chunk_ledger_digests(&s.ledger, 0, s.digests, CHUNKS), 0);
	for (uint32_t c = 0; c < 5; c++)
		cr_assert_eq(take(&s), c);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 0, &s.digests[0]), LEDGER_GREW);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 2, &s.digests[2]), 0);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 4, &s.digests[4]), 0);
	chunk_ledger_fini(&s.ledger);
	cr_assert_eq(chunk_ledger_init(&s.ledger, s.part, &s.counters), 0);
	uint32_t chunk;
	cr_assert_eq(take(&s), 1);
	cr_assert_eq(take(&s), 3);
	cr_assert_eq(take(&s), 5);
	cr_assert(!chunk_ledger_take(&s.ledger, UINT32_MAX, &chunk));
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 5, &s.digests[5]), 0);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 1, &s.digests[1]), LEDGER_GREW);
	cr_assert_eq(xfer_part_prefix(s.part), 3);
	cr_assert_eq(
		chunk_ledger_arrived(&s.ledger, 3, &s.digests[3]), LEDGER_GREW | LEDGER_COMPLETE);
	finish(&s);
}
