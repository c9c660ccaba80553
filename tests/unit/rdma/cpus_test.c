/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/rdma/cpus. */
#include "transport/rdma/device/cpus.h"

#include <criterion/criterion.h>

Test(cpus, parse__the_kernels_lists)
{
	static const struct {
		const char *list;
		int count; /* 0: refused */
		size_t first, last;
	} cases[] = {
		{"0\n", 1, 0, 0},
		{"0-3,8,10-11\n", 7, 0, 11},
		{"64-127,192-255", 128, 64, 255},
		{"7-7", 1, 7, 7},
		{"1000-5000", CPU_SETSIZE - 1000, 1000, CPU_SETSIZE - 1},
		{"5000", 0, 0, 0},
		{"99999999999999999999", 0, 0, 0},
		{"", 0, 0, 0},
		{"\n", 0, 0, 0},
		{"3-1", 0, 0, 0},
		{"1,", 0, 0, 0},
		{"1-", 0, 0, 0},
		{"-1", 0, 0, 0},
		{"1 2", 0, 0, 0},
		{"ff,ff", 0, 0, 0},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cpu_set_t set;
		bool good = cpus_parse(cases[i].list, &set);
		cr_assert_eq(good, cases[i].count > 0, "%s", cases[i].list);
		if (!good)
			continue;
		cr_assert_eq(CPU_COUNT(&set), cases[i].count, "%s", cases[i].list);
		cr_assert(CPU_ISSET(cases[i].first, &set) && CPU_ISSET(cases[i].last, &set));
	}
}

Test(cpus, near__a_device_that_is_not_there)
{
	cpu_set_t set;
	cr_assert(!cpus_near("", &set));
	cr_assert(!cpus_near("ffff:ff:1f.7", &set));
}
