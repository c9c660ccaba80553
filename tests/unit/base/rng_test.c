/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng_test - the published test vectors of both generators, and what is built on them.
 */
#include "tests/support/rng.h"

#include <criterion/criterion.h>
#include <string.h>

Test(rng, u64__seed_1_2_3_4__gives_the_reference_sequence)
{
	static const uint64_t seed[4] = {1, 2, 3, 4};
	static const uint64_t expected[] = {
		UINT64_C(41943041),
		UINT64_C(58720359),
		UINT64_C(3588806011781223),
		UINT64_C(3591011842654386),
		UINT64_C(9228616714210784205),
		UINT64_C(9973669472204895162),
		UINT64_C(14011001112246962877),
		UINT64_C(12406186145184390807),
		UINT64_C(15849039046786891736),
		UINT64_C(10450023813501588000),
	};
	struct th_rng rng;

	th_rng_init(&rng, seed);
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
		cr_assert_eq(th_rng_u64(&rng), expected[i], "output %zu", i);
}

Test(rng, splitmix64__1234567__gives_the_reference_sequence)
{
	static const uint64_t expected[] = {
		UINT64_C(6457827717110365317),
		UINT64_C(3203168211198807973),
		UINT64_C(9817491932198370423),
		UINT64_C(4593380528125082431),
		UINT64_C(16408922859458223821),
	};
	uint64_t state = 1234567;

	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
		cr_assert_eq(th_splitmix64(&state), expected[i], "output %zu", i);
}

Test(rng, init__zero_seed__does_not_stand_still)
{
	static const uint64_t zero[4] = {0};
	struct th_rng rng, number;

	th_rng_init(&rng, zero);
	th_rng_init_number(&number, 0);
	cr_assert_neq(th_rng_u64(&rng), 0);
	cr_assert_neq(th_rng_u64(&rng), th_rng_u64(&number));
}

Test(rng, below__any_bound__stays_below_and_reaches_all)
{
	struct th_rng rng;
	unsigned int seen[7] = {0};

	th_rng_init_number(&rng, 42);
	for (int i = 0; i < 7000; i++)
		seen[th_rng_below(&rng, 7)]++;
	/* 1000 expected each; 7 standard deviations are 205. */
	for (int i = 0; i < 7; i++)
		cr_assert(seen[i] > 795 && seen[i] < 1205, "%d came %u times", i, seen[i]);
	cr_assert_eq(th_rng_below(&rng, 1), 0);
	cr_assert_lt(th_rng_below(&rng, UINT64_MAX), UINT64_MAX);
}

Test(rng, bytes__any_count__are_the_numbers_from_the_low_end)
{
	static const uint64_t seed[4] = {1, 2, 3, 4};
	/* 41943041 = 0x02800001, 58720359 = 0x03800067 */
	static const uint8_t expected[12] = {0x01, 0, 0x80, 0x02, 0, 0, 0, 0, 0x67, 0, 0x80, 0x03};
	struct th_rng rng;
	uint8_t bytes[13];

	bytes[12] = 0xaa;
	th_rng_init(&rng, seed);
	th_rng_bytes(&rng, bytes, 12);
	cr_assert_eq(memcmp(bytes, expected, 12), 0);
	cr_assert_eq(bytes[12], 0xaa);
	/* The rest of a number is not used again. */
	cr_assert_eq(th_rng_u64(&rng), UINT64_C(3588806011781223));
}
