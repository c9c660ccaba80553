/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of looks by GPUs (transport/leg/look.h) through the ledger that begins them: what is handed
 * out when, and what is left when they are. The GPU is the test's own (fake_gpus.h): it works when
 * it is told to.
 */
#include "transport/leg/look.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/name.h"
#include "tests/support/gpu/rig_fake_gpus.h"
#include "tests/support/rng.h"
#include "transport/leg/chunk_ledger.h"

#define CHUNK (4 * MIB)
#define ROWS 8u
#define CHUNKS 24u /* three of each row */

struct setup {
	struct rig_shard shard;
	struct xfer_part *part, *plain;
	struct chunk_ledger ledger;
	struct transport_counters counters;
	struct loop *loop;
	struct loop_task looked;
	uint32_t told; /* atomic */
};

static void
run_looked(struct loop_task *task)
{
	__atomic_add_fetch(&loop_container(task, struct setup, looked)->told, 1, __ATOMIC_RELEASE);
}

static void
begin(struct setup *s)
{
	s->plain = rig_part_of(&s->shard, RIG_MAPPED, true);
	rig_add_digests(s->plain); /* of what lies there now */
	xfer_part_expect_reuse(s->part);
	cr_assert_eq(loop_new("test", LOOP_EPOLL, NULL, NULL, &s->loop), 0);
	cr_assert_eq(chunk_ledger_init(&s->ledger, s->part, &s->counters), 0);
	chunk_ledger_look(&s->ledger, s->loop, &s->looked);
	fake_gpus_hold(rig_gpus->gpus, true);
}

static void
start_with(struct setup *s, enum rig_memory memory)
{
	uint64_t sizes[ROWS];
	for (uint32_t i = 0; i < ROWS; i++)
		sizes[i] = 3 * CHUNK;
	*s = (struct setup){.looked.run = run_looked};
	rig_fake_gpus_init(MIB);
	rig_shard_init(&s->shard, sizes, ROWS, 42);
	cr_assert_eq(s->shard.table->num_chunks, CHUNKS);
	s->part = rig_part_of(&s->shard, memory, true);
	begin(s);
}

/* Rows of zeros, as many as rig_fake_part has letters for. */
static void
start_rows(struct setup *s, const char *rows, uint64_t bytes)
{
	uint32_t count = (uint32_t)strlen(rows);
	uint64_t *sizes = th_calloc(count, sizeof(sizes[0]));
	for (uint32_t i = 0; i < count; i++)
		sizes[i] = bytes;
	*s = (struct setup){.looked.run = run_looked};
	rig_fake_gpus_init(MIB);
	rig_shard_init(&s->shard, sizes, count, 0);
	free(sizes);
	s->part = rig_fake_part(&s->shard, rows, true);
	begin(s);
}

static void
start(struct setup *s)
{
	start_with(s, RIG_GPU);
}

static void
finish(struct setup *s)
{
	chunk_ledger_look_stop(&s->ledger);
	fake_gpus_hold(rig_gpus->gpus, false);
	loop_free(s->loop);
	chunk_ledger_fini(&s->ledger);
	xfer_part_release(s->part);
	xfer_part_release(s->plain);
	rig_shard_fini(&s->shard);
	rig_fake_gpus_fini();
}

static int
know(struct setup *s, uint32_t first, uint32_t count)
{
	return chunk_ledger_digests(&s->ledger, first, xfer_part_digest(s->plain, first), count);
}

static void
change(struct setup *s, uint32_t chunk)
{
	s->shard.tensors[chunk / 3][chunk % 3 * CHUNK] ^= 1;
}

static bool
has_none(struct setup *s)
{
	uint32_t chunk;
	return !chunk_ledger_take(&s->ledger, UINT32_MAX, &chunk);
}

static uint32_t
take(struct setup *s)
{
	uint32_t chunk = UINT32_MAX;
	cr_assert(chunk_ledger_take(&s->ledger, UINT32_MAX, &chunk));
	return chunk;
}

static void
let_work(void)
{
	fake_gpus_hold(rig_gpus->gpus, false);
	while (fake_gpus_running(rig_gpus->gpus) > 0)
		(void)poll(NULL, 0, 1);
	fake_gpus_hold(rig_gpus->gpus, true);
}

/* All that are under way come back, and those that they begin as well. enum chunk_ledger_result. */
static int
let_look(struct setup *s)
{
	uint32_t before = chunk_ledger_num_looked(&s->ledger);
	int result = 0;
	do {
		fake_gpus_hold(rig_gpus->gpus, false);
		while (fake_gpus_running(rig_gpus->gpus) > 0)
			(void)poll(NULL, 0, 1);
		result |= chunk_ledger_looked(&s->ledger);
	} while (chunk_ledger_looking(&s->ledger));
	fake_gpus_hold(rig_gpus->gpus, true);
	cr_assert_gt(chunk_ledger_num_looked(&s->ledger), before);
	return result;
}

Test(look, all_equal__done_and_nothing_is_handed_out)
{
	struct setup s;
	start(&s);
	cr_assert_eq(know(&s, 0, CHUNKS), 0);
	cr_assert(has_none(&s));
	cr_assert(chunk_ledger_looking(&s.ledger));
	cr_assert_eq(let_look(&s), LEDGER_GREW | LEDGER_COMPLETE);
	cr_assert(has_none(&s));
	cr_assert_eq(s.counters.bytes_reused, CHUNKS * CHUNK);
	cr_assert_eq(s.counters.chunks_verified, CHUNKS);
	cr_assert_eq(s.ledger.reuse.bytes, CHUNKS * CHUNK);
	/* Four, twice as many and the rest. */
	cr_assert_eq(fake_gpus_requests(rig_gpus->gpus, GPU_HASH), 3);
	finish(&s);
}

/* Four may be in vain, and what is behind them waits. */
Test(look, gpu_has_not_answered__a_few_are_asked_for)
{
	struct setup s;
	start(&s);
	cr_assert_eq(know(&s, 0, CHUNKS), 0);
	for (uint32_t i = 0; i < 10; i++)
		cr_assert(has_none(&s));
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 4);
	cr_assert_eq(chunk_ledger_lowest_missing(&s.ledger), CHUNKS); /* the source owes nothing */
	finish(&s);
}

/* The rest of its row is handed out behind it unseen, in order, and other rows are looked at. */
Test(look, one_differs__handed_out_with_the_rest_of_its_row)
{
	struct setup s;
	start(&s);
	change(&s, 3);
	cr_assert_eq(know(&s, 0, CHUNKS), 0);
	cr_assert(has_none(&s));
	cr_assert(let_look(&s) & LEDGER_AGAIN);
	cr_assert_eq(xfer_part_prefix(s.part), 3);
	cr_assert_eq(take(&s), 3);
	uint32_t taken = 1;
	for (uint32_t chunk; chunk_ledger_take(&s.ledger, UINT32_MAX, &chunk); taken++)
		cr_assert(chunk == 4 || chunk == 5);
	cr_assert_leq(taken, 3);
	let_look(&s);
	cr_assert(has_none(&s));
	cr_assert_eq(s.counters.bytes_reused, (CHUNKS - taken) * CHUNK);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 3, xfer_part_digest(s.plain, 3)), LEDGER_GREW);
	finish(&s);
}

Test(look, digest_is_not_known__waits_for_it)
{
	struct setup s;
	start(&s);
	cr_assert_eq(know(&s, 0, 2), 0);
	cr_assert(has_none(&s));
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 2);
	cr_assert_eq(let_look(&s), LEDGER_GREW);
	cr_assert(has_none(&s));
	cr_assert_eq(know(&s, 2, 2), 0);
	cr_assert(has_none(&s));
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 2);
	cr_assert_eq(let_look(&s), LEDGER_GREW);
	cr_assert(chunk_ledger_hurry(&s.ledger));
	cr_assert_eq(take(&s), 4);
	finish(&s);
}

/* Not before it may be asked of the source. What was looked at is not handed out beyond it. */
Test(look, limit__nothing_beyond)
{
	struct setup s;
	uint32_t chunk;
	start(&s);
	change(&s, 1);
	cr_assert_eq(know(&s, 0, CHUNKS), 0);
	cr_assert(!chunk_ledger_take(&s.ledger, 2, &chunk));
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 2);
	cr_assert(let_look(&s) & LEDGER_AGAIN);
	cr_assert(!chunk_ledger_take(&s.ledger, 1, &chunk));
	cr_assert(chunk_ledger_take(&s.ledger, 2, &chunk));
	cr_assert_eq(chunk, 1);
	cr_assert(!chunk_ledger_take(&s.ledger, 2, &chunk));
	finish(&s);
}

/* As any other chunk: it is fetched again, and not looked at again. */
Test(look, fetched_in_vain_or_given_back__handed_out_again)
{
	struct setup s;
	start(&s);
	change(&s, 0);
	cr_assert_eq(know(&s, 0, 1), 0);
	cr_assert(has_none(&s));
	cr_assert_eq(let_look(&s), LEDGER_AGAIN);
	cr_assert_eq(take(&s), 0);
	chunk_ledger_give_back(&s.ledger, 0);
	cr_assert_eq(take(&s), 0);
	cr_assert_eq(
		chunk_ledger_arrived(&s.ledger, 0, xfer_part_digest(s.plain, 1)), LEDGER_AGAIN);
	cr_assert_eq(take(&s), 0);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 0, xfer_part_digest(s.plain, 0)), LEDGER_GREW);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_HASH), 1);
	finish(&s);
}

Test(look, fails__handed_out)
{
	struct setup s;
	start(&s);
	fake_gpus_fail(rig_gpus->gpus, GPU_HASH, TH_E_STALE_MEMORY, 0);
	cr_assert_eq(know(&s, 0, CHUNKS), 0);
	cr_assert(has_none(&s));
	cr_assert(let_look(&s) & LEDGER_AGAIN);
	for (uint32_t c = 0; c < 3; c++)
		cr_assert_eq(take(&s), c);
	cr_assert_eq(s.counters.bytes_reused, 0);
	finish(&s);
}

/* Digests of the run before may be left there: they are not taken for its own. */
Test(look, fails_after_another__its_digests_are_none)
{
	struct setup s;
	start_rows(&s, "000000000000", 2 * MIB);
	cr_assert_eq(know(&s, 0, 12), 0);
	cr_assert(has_none(&s));
	let_work();
	fake_gpus_fail(rig_gpus->gpus, GPU_HASH, TH_E_STALE_MEMORY, 0);
	cr_assert_eq(chunk_ledger_looked(&s.ledger), LEDGER_GREW);
	let_look(&s);
	cr_assert_eq(take(&s), 4);
	cr_assert_eq(s.counters.bytes_reused, 4 * 2 * MIB);
	finish(&s);
}

/* Not while the source owes a chunk: that may be why no digest comes. */
Test(look, hurry__not_before_what_was_handed_out_has_come)
{
	struct setup s;
	start(&s);
	change(&s, 0);
	cr_assert_eq(know(&s, 0, 1), 0);
	cr_assert(has_none(&s));
	let_look(&s);
	cr_assert_eq(take(&s), 0);
	cr_assert_eq(know(&s, 1, 2), 0);
	cr_assert_eq(take(&s), 1);
	cr_assert_eq(take(&s), 2);
	cr_assert_not(chunk_ledger_hurry(&s.ledger));
	for (uint32_t c = 0; c < 3; c++)
		cr_assert_geq(chunk_ledger_arrived(&s.ledger, c, xfer_part_digest(s.plain, c)), 0);
	cr_assert(has_none(&s));
	cr_assert(chunk_ledger_hurry(&s.ledger));
	cr_assert_eq(take(&s), 3);
	finish(&s);
}

Test(look, mapped_rows__looked_at_by_who_takes_them)
{
	struct setup s;
	int result;
	start_with(&s, RIG_GPU_MAPPED);
	cr_assert_eq(know(&s, 0, CHUNKS), 0);
	/* Rows 0 and 2 are the GPU's, row 1 is handed out. */
	cr_assert_eq(take(&s), 3);
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 3);
	cr_assert(chunk_ledger_reuse(&s.ledger, 3, &result));
	cr_assert_eq(result, 0);
	cr_assert_eq(let_look(&s), LEDGER_GREW | LEDGER_AGAIN);
	cr_assert_eq(xfer_part_prefix(s.part), 4);
	uint32_t chunk;
	while (xfer_part_prefix(s.part) < CHUNKS) {
		while (chunk_ledger_take(&s.ledger, UINT32_MAX, &chunk))
			cr_assert(chunk_ledger_reuse(&s.ledger, chunk, &result));
		if (chunk_ledger_looking(&s.ledger))
			let_look(&s);
	}
	cr_assert_eq(s.counters.bytes_reused, CHUNKS * CHUNK);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_HASH), CHUNKS / 2);
	finish(&s);
}

/* No more at a time than it takes to keep a GPU busy, and these in two requests. */
Test(look, many_equal__32_under_way)
{
	static const uint32_t steps[] = {4, 8, 16, 32, 32, 8};
	struct setup s;
	char rows[101] = "";
	uint32_t all = 0;
	memset(rows, '0', 100);
	start_rows(&s, rows, 2 * MIB);
	cr_assert_eq(know(&s, 0, 100), 0);
	cr_assert(has_none(&s));
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		cr_assert_eq(fake_gpus_running(rig_gpus->gpus), steps[i]);
		let_work();
		cr_assert(chunk_ledger_looked(&s.ledger) & LEDGER_GREW);
		cr_assert_eq(chunk_ledger_num_looked(&s.ledger), all += steps[i]);
	}
	cr_assert_eq(xfer_part_prefix(s.part), 100);
	cr_assert_eq(fake_gpus_requests(rig_gpus->gpus, GPU_HASH), 8);
	finish(&s);
}

/* A source is told of as many, and that the reader is alive as long as there are more. */
Test(look, rows_on_gpus_and_mapped__each_counts_once_and_what_is_only_taken_does_not)
{
	struct setup s;
	int result;
	start_rows(&s, "0m0", 2 * MIB);
	change(&s, 0);
	cr_assert_eq(know(&s, 0, 3), 0);
	cr_assert_eq(take(&s), 1);
	(void)let_look(&s);
	cr_assert_eq(chunk_ledger_num_looked(&s.ledger), 2);
	cr_assert(chunk_ledger_reuse(&s.ledger, 1, &result));
	cr_assert_eq(chunk_ledger_num_looked(&s.ledger), 3);
	cr_assert_eq(take(&s), 0);
	cr_assert_not(chunk_ledger_reuse(&s.ledger, 0, &result));
	cr_assert_eq(chunk_ledger_num_looked(&s.ledger), 3);
	finish(&s);
}

/* What the last leg has brought stays, whatever it lies in. */
Test(look, next_leg__looks_at_what_the_last_one_left)
{
	struct setup s;
	start_rows(&s, "00m1m", 2 * MIB);
	change(&s, 0);
	cr_assert_eq(know(&s, 0, 5), 0);
	cr_assert_eq(take(&s), 2);
	cr_assert_eq(chunk_ledger_arrived(&s.ledger, 2, xfer_part_digest(s.plain, 2)), 0);
	let_work();
	(void)chunk_ledger_looked(&s.ledger);
	let_work();
	chunk_ledger_look_stop(&s.ledger);
	chunk_ledger_fini(&s.ledger);
	cr_assert_eq(chunk_ledger_init(&s.ledger, s.part, &s.counters), 0);
	chunk_ledger_look(&s.ledger, s.loop, &s.looked);
	cr_assert_eq(take(&s), 4);
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 2);
	finish(&s);
}

/* The digests of none. */
static void
know_others(struct setup *s)
{
	uint32_t count = s->shard.table->num_chunks;
	for (uint32_t c = 0; c < count; c++) {
		struct th_hash digest = {c + 1, 0};
		cr_assert_eq(chunk_ledger_digests(&s->ledger, c, &digest, 1), 0);
	}
}

/* They are no GPU's, so one that comes to them leaves them as they are. */
Test(look, many_mapped_rows__handed_out_in_order_and_one_of_32_is_looked_at)
{
	struct setup s;
	char rows[101] = "0";
	int result;
	memset(rows + 1, 'm', 99);
	start_rows(&s, rows, 2 * MIB);
	know_others(&s);
	for (uint32_t chunk = 1; chunk < 100; chunk++) {
		cr_assert_eq(take(&s), chunk);
		cr_assert_eq(s.ledger.next, chunk + 1);
		cr_assert_not(chunk_ledger_reuse(&s.ledger, chunk, &result));
	}
	let_look(&s);
	cr_assert_eq(take(&s), 0);
	cr_assert(has_none(&s));
	cr_assert_eq(s.ledger.reuse.seen, 100);
	cr_assert_eq(s.ledger.reuse.different, 4 + 100 / 32, "%u", s.ledger.reuse.different);
	finish(&s);
}

Test(look, rows_on_two_gpus__a_request_to_each)
{
	struct setup s;
	start_rows(&s, "00110000", 2 * MIB);
	cr_assert_eq(know(&s, 0, 8), 0);
	cr_assert(has_none(&s));
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 4);
	cr_assert_eq(let_look(&s), LEDGER_GREW | LEDGER_COMPLETE);
	cr_assert_eq(fake_gpus_requests(rig_gpus->gpus, GPU_HASH), 3);
	finish(&s);
}

/* Nobody looks, so nobody waits, also for its digest. */
Test(look, chunk_in_several_places__handed_out)
{
	static const char *const rows[] = {"0101", "00mm", "m01m"};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct setup s;
		int result;
		start_rows(&s, rows[i], MIB);
		cr_assert_eq(s.shard.table->num_chunks, 1);
		cr_assert_eq(take(&s), 0);
		cr_assert_not(chunk_ledger_reuse(&s.ledger, 0, &result));
		cr_assert_eq(s.ledger.reuse.seen, 1);
		finish(&s);
	}
}

/* What is published: what lies there, or not, row by row. */
static struct th_hash
published(const struct setup *s, uint64_t seed, uint32_t chunk)
{
	uint32_t row = s->shard.table->ranges[s->shard.table->first[chunk]].row;
	struct th_hash digest = *xfer_part_digest(s->plain, chunk);
	digest.lo ^= seed >> row % 7 & 1;
	return digest;
}

static void
run_any(struct setup *s, uint64_t seed, struct th_rng *rng)
{
	uint32_t count = s->shard.table->num_chunks, known = 0, num_taken = 0;
	uint32_t taken[32];
	int result = 0;
	while (!(result & LEDGER_COMPLETE)) {
		struct th_hash digest;
		uint32_t chunk = known;
		uint64_t step = th_rng_below(rng, 6);
		result = 0;
		if (step == 0 && known < count) {
			digest = published(s, seed, known++);
			result = chunk_ledger_digests(&s->ledger, chunk, &digest, 1);
		} else if (step == 1) {
			uint32_t limit = (uint32_t)th_rng_below(rng, count + 1);
			if (chunk_ledger_take(&s->ledger, limit, &chunk) &&
				!chunk_ledger_reuse(&s->ledger, chunk, &result))
				taken[num_taken++] = chunk;
		} else if (step == 2 && num_taken > 0) {
			chunk_ledger_give_back(&s->ledger, taken[--num_taken]);
		} else if (step == 3 && num_taken > 0) {
			chunk = taken[--num_taken];
			digest = published(s, seed, chunk);
			result = chunk_ledger_arrived(&s->ledger, chunk, &digest);
		} else if (step == 4) {
			let_work();
		} else if (step == 5) {
			result = chunk_ledger_looked(&s->ledger);
		}
		cr_assert_geq(result, 0);
	}
	cr_assert_eq(num_taken, 0);
}

Test(look, any_order_of_any_rows__all_come_once)
{
	for (uint64_t seed = 1; seed <= 12; seed++) {
		struct setup s;
		struct th_rng rng;
		char rows[33] = "";
		uint64_t equal = 0;
		th_rng_init_number(&rng, seed);
		for (uint32_t i = 0; i < 32; i++)
			rows[i] = "01m"[th_rng_below(&rng, 3)];
		start_rows(&s, rows, seed % 3 == 0 ? MIB : 2 * MIB);
		run_any(&s, seed, &rng);
		uint32_t count = s.shard.table->num_chunks;
		for (uint32_t c = 0; c < count; c++) {
			if (th_hash_equal(published(&s, seed, c), *xfer_part_digest(s.plain, c)))
				equal += chunk_bytes(s.shard.table, c);
		}
		cr_assert_eq(xfer_part_prefix(s.part), count);
		cr_assert_eq(s.counters.chunks_verified, count);
		cr_assert_leq(s.counters.bytes_reused, equal);
		cr_assert(has_none(&s));
		finish(&s);
	}
}

Test(look, stopped__nobody_is_told_and_all_is_freed)
{
	struct setup s;
	start(&s);
	cr_assert_eq(know(&s, 0, CHUNKS), 0);
	cr_assert(has_none(&s));
	chunk_ledger_look_stop(&s.ledger);
	loop_free(s.loop); /* its last task has run */
	chunk_ledger_fini(&s.ledger);
	xfer_part_release(s.part);
	uint32_t told = __atomic_load_n(&s.told, __ATOMIC_ACQUIRE);
	cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 4);
	fake_gpus_hold(rig_gpus->gpus, false);
	while (fake_gpus_running(rig_gpus->gpus) > 0)
		(void)poll(NULL, 0, 1);
	cr_assert_eq(__atomic_load_n(&s.told, __ATOMIC_ACQUIRE), told);
	xfer_part_release(s.plain);
	rig_shard_fini(&s.shard);
	rig_fake_gpus_fini(); /* checks that no space of a worker is left */
}

Test(look, stopped__none_begins)
{
	struct setup s;
	start(&s);
	cr_assert_eq(know(&s, 0, CHUNKS), 0);
	chunk_ledger_look_stop(&s.ledger);
	cr_assert_eq(take(&s), 0);
	cr_assert_eq(fake_gpus_count(rig_gpus->gpus, GPU_HASH), 0);
	finish(&s);
}

Test(look, unverified_or_new_memory__none)
{
	for (uint32_t i = 0; i < 2; i++) {
		struct setup s;
		struct chunk_ledger ledger;
		uint32_t chunk;
		start(&s);
		struct xfer_part *part = rig_part_of(&s.shard, RIG_GPU, i == 0);
		if (i == 1)
			xfer_part_expect_reuse(part);
		cr_assert_eq(chunk_ledger_init(&ledger, part, &s.counters), 0);
		chunk_ledger_look(&ledger, s.loop, &s.looked);
		cr_assert(chunk_ledger_take(&ledger, UINT32_MAX, &chunk));
		cr_assert_eq(chunk, 0);
		cr_assert_eq(fake_gpus_running(rig_gpus->gpus), 0);
		chunk_ledger_fini(&ledger);
		xfer_part_release(part);
		finish(&s);
	}
}
