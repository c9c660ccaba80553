/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name_test - what is a name, a version, a version string.
 */
#include "ipc/base/name.h"

#include <criterion/criterion.h>
#include <string.h>

Test(name, valid__text__is_a_name)
{
	cr_assert(th_name_valid("a", TH_NAME_MAX));
	cr_assert(th_name_valid("meta-llama/Llama 3.1 \xe2\x82\xac", TH_NAME_MAX));
	cr_assert(th_name_valid("abc", 3));
}

Test(name, valid__empty_long_control_or_no_utf8__is_none)
{
	cr_assert_not(th_name_valid(NULL, TH_NAME_MAX));
	cr_assert_not(th_name_valid("", TH_NAME_MAX));
	cr_assert_not(th_name_valid("abcd", 3));
	cr_assert_not(th_name_valid("a\nb", TH_NAME_MAX));
	cr_assert_not(th_name_valid("a\x7f", TH_NAME_MAX));
	cr_assert_not(th_name_valid("a\xc2\x9b", TH_NAME_MAX));
	cr_assert_not(th_name_valid("a\xff", TH_NAME_MAX));
	cr_assert_not(th_name_valid("a\xc3", TH_NAME_MAX));
}

Test(name, valid__array_without_nul__is_read_within_bounds)
{
	char name[4] = {'a', 'b', 'c', 'd'};

	cr_assert_not(th_name_valid(name, sizeof(name) - 1));
}

Test(name, copy__up_to_the_limit__fits)
{
	char from[TH_NAME_MAX + 2], to[TH_NAME_MAX + 1] = "before";

	memset(from, 'x', sizeof(from));
	from[TH_NAME_MAX + 1] = '\0';
	cr_assert_eq(th_name_copy(to, from), TH_E_INVALID);
	cr_assert_str_eq(to, "before");
	from[TH_NAME_MAX] = '\0';
	cr_assert_eq(th_name_copy(to, from), 0);
	cr_assert_str_eq(to, from);
	cr_assert_eq(th_name_copy(to, ""), 0);
	cr_assert_str_eq(to, "");
}

Test(name, hash__halves__both_count)
{
	struct th_hash a = {1, 2};

	cr_assert(th_hash_equal(a, (struct th_hash){1, 2}));
	cr_assert_not(th_hash_equal(a, (struct th_hash){1, 3}));
	cr_assert_not(th_hash_equal(a, (struct th_hash){3, 2}));
	cr_assert(th_hash_none((struct th_hash){0, 0}));
	cr_assert_not(th_hash_none((struct th_hash){0, 1}));
	cr_assert_not(th_hash_none((struct th_hash){1, 0}));
}

Test(name, version_compare__lineage_before_version)
{
	struct th_version low = {1, 9}, high = {2, 3}, none = {7, TH_NO_VERSION};

	cr_assert_lt(th_version_compare(low, high), 0);
	cr_assert_gt(th_version_compare(high, low), 0);
	cr_assert_eq(th_version_compare(low, low), 0);
	cr_assert_lt(th_version_compare(low, (struct th_version){1, 10}), 0);
	cr_assert_gt(th_version_compare((struct th_version){1, UINT64_MAX - 1}, low), 0);
	cr_assert_lt(th_version_compare(none, low), 0);
	cr_assert_gt(th_version_compare(low, none), 0);
	cr_assert_eq(th_version_compare(none, (struct th_version){0, TH_NO_VERSION}), 0);
	cr_assert(th_version_none(none));
	cr_assert_not(th_version_none(low));
}

static struct th_spec
parsed(const char *text)
{
	struct th_spec spec;

	cr_assert_eq(th_spec_parse(text, &spec), 0, "\"%s\" is refused", text);
	return spec;
}

Test(name, spec_parse__number__is_absolute)
{
	cr_assert_not(parsed("17").relative);
	cr_assert_eq(parsed("17").number, 17);
	cr_assert_eq(parsed("0").number, 0);
	cr_assert_eq(parsed("007").number, 7);
	cr_assert_eq(parsed("18446744073709551614").number, UINT64_MAX - 1);
}

Test(name, spec_parse__latest__is_relative)
{
	cr_assert(parsed("latest").relative);
	cr_assert_eq(parsed("latest").number, 0);
	cr_assert(parsed("latest-2").relative);
	cr_assert_eq(parsed("latest-2").number, 2);
	cr_assert_eq(parsed("latest-10").number, 10);
	cr_assert_eq(parsed("latest-18446744073709551615").number, UINT64_MAX);
}

Test(name, spec_parse__other_text__is_refused)
{
	static const char *const refused[] = {"", " 17", "17 ", "+17", "-1", "1.0", "0x1", "1e3",
		"18446744073709551615", "18446744073709551616", "99999999999999999999999",
		"00000000000000000000000000000001", "Latest", "LATEST", "lates", "latest ",
		"latest-", "latest-0", "latest-01", "latest--1", "latest+1", "latest-1x",
		"latest-18446744073709551616", "latest1", "last"};
	struct th_spec spec = {true, 77};

	for (size_t i = 0; i < TH_ARRAY_LEN(refused); i++)
		cr_assert_eq(th_spec_parse(refused[i], &spec), TH_E_INVALID, "\"%s\" is taken",
			refused[i]);
	cr_assert_eq(th_spec_parse(NULL, &spec), TH_E_INVALID);
	cr_assert(spec.relative && spec.number == 77, "untouched on failure");
}

Test(name, cluster_fits__only_two_names_can_differ)
{
	cr_assert(th_cluster_fits("red", "red"));
	cr_assert_not(th_cluster_fits("red", "blue"));
	cr_assert_not(th_cluster_fits("red", "Red"));
	cr_assert_not(th_cluster_fits("re", "red"));
	cr_assert(th_cluster_fits("", "red") && th_cluster_fits("red", ""));
	cr_assert(th_cluster_fits("", ""));
}
