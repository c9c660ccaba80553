/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/host/interval: when do the bytes of two sessions collide? */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/host/memory/memory_claims.h"
#include "tests/support/rng.h"

static const struct interval low = {1, 7, 0, 100, 0};
static const struct interval middle = {1, 7, 100, 200, 0};
static const struct interval across = {1, 7, 99, 101, 0};
static const struct interval other_file = {1, 8, 0, 100, 0};
static const struct interval other_device = {2, 7, 0, 100, 0};

static bool
meet(const struct interval *a, const struct interval *b)
{
	uint32_t i, j;
	return interval_overlap(a, 1, b, 1, &i, &j);
}

Test(daemon_interval, overlap__neighbours__do_not_meet)
{
	cr_assert_not(meet(&low, &middle));
	cr_assert_not(meet(&middle, &low));
}

Test(daemon_interval, overlap__one_byte_shared__meets_both_ways)
{
	cr_assert(meet(&low, &across));
	cr_assert(meet(&across, &low));
	cr_assert(meet(&middle, &across));
	cr_assert(meet(&across, &middle));
}

Test(daemon_interval, overlap__same_place_in_another_file__does_not_meet)
{
	cr_assert_not(meet(&low, &other_file));
	cr_assert_not(meet(&low, &other_device));
}

/* Disjoint sorted intervals with gaps, some of them empty of meaning for the other list. */
static uint32_t
make_list(struct th_rng *rng, struct interval *list, uint32_t count)
{
	uint64_t at = 0;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t start = at + th_rng_below(rng, 40);
		uint64_t end = start + 1 + th_rng_below(rng, 3);
		list[i] = (struct interval){1, 1, start, end, i};
		at = end;
	}
	return count;
}

Test(daemon_interval, overlap__random_lists__same_answer_as_all_pairs)
{
	uint32_t met = 0;
	for (uint64_t seed = 1; seed <= 500; seed++) {
		struct th_rng rng;
		struct interval a[6], b[6];
		th_rng_init_number(&rng, seed);
		uint32_t num_a = make_list(&rng, a, (uint32_t)th_rng_below(&rng, 7));
		uint32_t num_b = make_list(&rng, b, (uint32_t)th_rng_below(&rng, 7));
		bool expected = false;
		for (uint32_t i = 0; i < num_a; i++) {
			for (uint32_t j = 0; j < num_b; j++) {
				if (a[i].start < b[j].end && b[j].start < a[i].end)
					expected = true;
			}
		}
		uint32_t i = 99, j = 99;
		bool got = interval_overlap(a, num_a, b, num_b, &i, &j);
		cr_assert_eq(got, expected, "seed %u", (unsigned)seed);
		if (got)
			cr_assert(a[i].start < b[j].end && b[j].start < a[i].end);
		met += got;
	}
	cr_assert(met > 50 && met < 450, "the lists are no test: %u of 500 met", met);
}

Test(daemon_interval, compare__by_object_then_place__sorts)
{
	struct interval list[] = {other_device, middle, other_file, across, low};
	qsort(list, 5, sizeof(list[0]), interval_compare);
	cr_assert_eq(list[0].end, 100);
	cr_assert_eq(list[1].start, 99);
	cr_assert_eq(list[2].start, 100);
	cr_assert_eq(list[3].ino, 8);
	cr_assert_eq(list[4].dev, 2);
}

struct pair {
	struct claim_table table;
	struct claim first, second;
	int first_owner, second_owner;
};

static void
setup_pair(struct pair *pair, const struct interval *first, const struct interval *second)
{
	*pair = (struct pair){0};
	pair->first =
		(struct claim){.intervals = first, .num_intervals = 1, .owner = &pair->first_owner};
	pair->second = (struct claim){
		.intervals = second, .num_intervals = 1, .owner = &pair->second_owner};
	claim_add(&pair->table, &pair->first);
	claim_add(&pair->table, &pair->second);
}

static bool
refused(const struct pair *pair, enum claim_mode mode)
{
	uint32_t own, other;
	return claim_conflict(&pair->table, &pair->second, mode, &own, &other) != NULL;
}

Test(daemon_interval, claim__destination_over_published__refused_both_ways)
{
	struct pair pair;
	setup_pair(&pair, &low, &across);
	cr_assert_not(refused(&pair, CLAIM_WRITE), "the other one does nothing yet");
	pair.first.mode = CLAIM_READ;
	cr_assert(refused(&pair, CLAIM_WRITE));
	pair.first.mode = CLAIM_WRITE;
	cr_assert(refused(&pair, CLAIM_READ));
	cr_assert(refused(&pair, CLAIM_WRITE));
}

Test(daemon_interval, claim__two_publishers_of_the_same_bytes__allowed)
{
	struct pair pair;
	setup_pair(&pair, &low, &across);
	pair.first.mode = CLAIM_READ;
	cr_assert_not(refused(&pair, CLAIM_READ));
}

Test(daemon_interval, claim__same_owner__never_collides_with_itself)
{
	struct pair pair;
	setup_pair(&pair, &low, &across);
	pair.first.mode = CLAIM_READ;
	pair.second.owner = &pair.first_owner;
	cr_assert_not(refused(&pair, CLAIM_WRITE));
}

Test(daemon_interval, claim__removed__is_forgotten)
{
	struct pair pair;
	setup_pair(&pair, &low, &across);
	pair.first.mode = CLAIM_READ;
	claim_remove(&pair.table, &pair.first);
	cr_assert_not(refused(&pair, CLAIM_WRITE));
	claim_remove(&pair.table, &pair.first);
}
