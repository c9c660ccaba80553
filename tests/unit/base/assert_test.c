/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assert_test - a broken invariant ends the process in every build.
 */
#include "ipc/base/assert.h"

#include <criterion/criterion.h>
#include <signal.h>

Test(assert, true_condition__is_evaluated_once__and_goes_on)
{
	int count = 0;

	TH_ASSERT(++count == 1);
	cr_assert_eq(count, 1);
}

Test(assert, false_condition__aborts, .signal = SIGABRT)
{
	volatile int zero = 0;

	TH_ASSERT(zero != 0);
}
