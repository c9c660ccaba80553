/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checked_test - arithmetic at the borders of its types.
 */
#include "ipc/base/checked.h"

#include <criterion/criterion.h>

Test(checked, add__at_the_border__fits_or_leaves_the_result_alone)
{
	uint64_t sum = 7;

	cr_assert(th_add_u64(UINT64_MAX - 1, 1, &sum));
	cr_assert_eq(sum, UINT64_MAX);
	sum = 7;
	cr_assert_not(th_add_u64(UINT64_MAX, 1, &sum));
	cr_assert_eq(sum, 7);
}

Test(checked, mul__at_the_border__fits_or_leaves_the_result_alone)
{
	uint64_t product = 7;

	cr_assert(th_mul_u64(UINT64_C(1) << 63, 1, &product));
	cr_assert_eq(product, UINT64_C(1) << 63);
	product = 7;
	cr_assert_not(th_mul_u64(UINT64_C(1) << 63, 2, &product));
	cr_assert_eq(product, 7);
	cr_assert(th_mul_u64(0, UINT64_MAX, &product));
	cr_assert_eq(product, 0);
}

Test(checked, range_fits__border_and_overflow__are_told_apart)
{
	cr_assert(th_range_fits(0, 10, 10));
	cr_assert(th_range_fits(10, 0, 10));
	cr_assert_not(th_range_fits(1, 10, 10));
	cr_assert_not(th_range_fits(11, 0, 10));
	cr_assert_not(th_range_fits(UINT64_MAX, 2, 10));
	cr_assert_not(th_range_fits(2, UINT64_MAX, 10));
}

Test(checked, align_up__values__reach_the_next_multiple)
{
	uint64_t aligned = 7;

	cr_assert(th_align_up_u64(0, 4096, &aligned));
	cr_assert_eq(aligned, 0);
	cr_assert(th_align_up_u64(1, 4096, &aligned));
	cr_assert_eq(aligned, 4096);
	cr_assert(th_align_up_u64(4096, 4096, &aligned));
	cr_assert_eq(aligned, 4096);
	cr_assert(th_align_up_u64(5, 1, &aligned));
	cr_assert_eq(aligned, 5);
	cr_assert_not(th_align_up_u64(UINT64_MAX, 2, &aligned));
	cr_assert_eq(aligned, 5);
}

Test(checked, is_power_of_two__zero__is_none)
{
	cr_assert_not(th_is_power_of_two_u64(0));
	cr_assert(th_is_power_of_two_u64(1));
	cr_assert_not(th_is_power_of_two_u64(3));
	cr_assert(th_is_power_of_two_u64(UINT64_C(1) << 63));
}

Test(checked, deadline__forever_or_too_far__is_never)
{
	cr_assert_eq(th_deadline_ns(5, 7), 12);
	cr_assert_eq(th_deadline_ns(5, 0), 5);
	cr_assert_eq(th_deadline_ns(5, -1), INT64_MAX);
	cr_assert_eq(th_deadline_ns(5, INT64_MAX - 5), INT64_MAX);
	cr_assert_eq(th_deadline_ns(5, INT64_MAX), INT64_MAX);
}

Test(checked, array_len__array__counts_elements)
{
	static const uint32_t numbers[7] = {0};

	cr_assert_eq(TH_ARRAY_LEN(numbers), 7);
}
