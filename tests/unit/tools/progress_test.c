/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress_test - the line that thctl draws.
 */
#include "tools/thctl/progress.h"

#include <criterion/criterion.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)

Test(progress, line__half_way)
{
	char line[PROGRESS_LINE_BYTES];

	progress_line("fetch", GIB, 2 * GIB, (double)GIB / 2, 200, line);
	cr_assert_str_eq(line,
		"fetch  [##########----------]  50%  1.00GiB of 2.00GiB  512MiB/s  2.00s left");
}

Test(progress, line__nothing_known_yet)
{
	char line[PROGRESS_LINE_BYTES];

	progress_line("fetch", 0, 0, 0, 200, line);
	cr_assert_str_eq(line, "fetch  waiting");
	progress_line("fetch", 0, GIB, 0, 200, line);
	cr_assert_str_eq(line, "fetch  [--------------------]   0%  0B of 1.00GiB");
}

Test(progress, line__ends_are_in_range)
{
	char line[PROGRESS_LINE_BYTES];

	/* More than all: a source that counts differently must not overrun the bar. */
	progress_line("fetch", 3 * GIB, 2 * GIB, 1, 200, line);
	cr_assert(strstr(line, "[####################] 100%"));
	cr_assert(strstr(line, "0s left"));
	progress_line("fetch", 0, UINT64_MAX, 1, 200, line);
	cr_assert_null(strstr(line, "left"));
}

Test(progress, line__narrow_terminal__leaves_parts_out)
{
	char line[PROGRESS_LINE_BYTES];

	for (size_t width = 0; width < 90; width++) {
		progress_line("fetch", GIB, 2 * GIB, 1e9, width, line);
		cr_assert_leq(strlen(line), width);
	}
	progress_line("fetch", GIB, 2 * GIB, 1e9, 5, line);
	cr_assert_str_eq(line, "fetch");
}
