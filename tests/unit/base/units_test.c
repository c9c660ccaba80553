/* SPDX-License-Identifier: Apache-2.0 */
/*
 * units_test - durations and sizes: what is taken, what is refused, and that print parses again.
 */
#include "ipc/base/units.h"

#include <criterion/criterion.h>

#include "ipc/base/err.h"
#include "tests/support/rng.h"

static int64_t
duration(const char *text)
{
	int64_t ns = -1;

	cr_assert_eq(th_parse_duration(text, &ns), 0, "\"%s\" is refused", text);
	return ns;
}

static uint64_t
size(const char *text)
{
	uint64_t bytes = 0;

	cr_assert_eq(th_parse_size(text, &bytes), 0, "\"%s\" is refused", text);
	return bytes;
}

Test(units, parse_duration__every_unit)
{
	cr_assert_eq(duration("7ns"), 7);
	cr_assert_eq(duration("7us"), 7000);
	cr_assert_eq(duration("500ms"), 500000000);
	cr_assert_eq(duration("10s"), INT64_C(10000000000));
	cr_assert_eq(duration("2m"), INT64_C(120000000000));
	cr_assert_eq(duration("1h"), INT64_C(3600000000000));
	cr_assert_eq(duration("1d"), INT64_C(86400000000000));
	cr_assert_eq(duration("0"), 0);
	cr_assert_eq(duration("0s"), 0);
	cr_assert_eq(duration("9223372036854775807ns"), INT64_MAX);
}

Test(units, parse_duration__fraction__is_exact)
{
	cr_assert_eq(duration("0.7s"), 700000000);
	cr_assert_eq(duration("1.5ms"), 1500000);
	cr_assert_eq(duration("0.999999d"), INT64_C(86399913600000));
	cr_assert_eq(duration("1.5ns"), 1);
}

Test(units, parse_duration__other_text__is_refused)
{
	static const char *const refused[] = {"", "s", "5", "0.5", "-1s", "+1s", " 1s", "1 s", "1S",
		"1s ", "1ss", "1.s", ".5s", "1.2.3s", "1.1234567s", "1e3s", "infinite",
		"9223372036854775808ns", "106752d", "99999999999999999999s"};
	int64_t ns = 77;

	for (size_t i = 0; i < TH_ARRAY_LEN(refused); i++)
		cr_assert_eq(th_parse_duration(refused[i], &ns), TH_E_INVALID, "\"%s\" is taken",
			refused[i]);
	cr_assert_eq(th_parse_duration(NULL, &ns), TH_E_INVALID);
	cr_assert_eq(ns, 77);
}

Test(units, parse_size__every_unit)
{
	cr_assert_eq(size("4096"), 4096);
	cr_assert_eq(size("0"), 0);
	cr_assert_eq(size("5B"), 5);
	cr_assert_eq(size("3KB"), 3000);
	cr_assert_eq(size("3MB"), 3000000);
	cr_assert_eq(size("3GB"), UINT64_C(3000000000));
	cr_assert_eq(size("3TB"), UINT64_C(3000000000000));
	cr_assert_eq(size("3KiB"), 3072);
	cr_assert_eq(size("64MiB"), 67108864);
	cr_assert_eq(size("1GiB"), 1073741824);
	cr_assert_eq(size("1TiB"), UINT64_C(1099511627776));
	cr_assert_eq(size("1.5GiB"), 1610612736);
	cr_assert_eq(size("18446744073709551615"), UINT64_MAX);
	cr_assert_eq(size("16777215TiB"), UINT64_C(16777215) << 40);
}

Test(units, parse_size__other_text__is_refused)
{
	static const char *const refused[] = {"", "B", "-1", "1K", "1M", "1kb", "1mib", "1 MiB",
		"MiB", "1MiBs", "1.", "18446744073709551616", "16777216TiB", "0x10"};
	uint64_t bytes = 77;

	for (size_t i = 0; i < TH_ARRAY_LEN(refused); i++)
		cr_assert_eq(th_parse_size(refused[i], &bytes), TH_E_INVALID, "\"%s\" is taken",
			refused[i]);
	cr_assert_eq(th_parse_size(NULL, &bytes), TH_E_INVALID);
	cr_assert_eq(bytes, 77);
}

Test(units, print__largest_unit_that_is_exact)
{
	char buffer[TH_UNITS_BYTES];

	cr_assert_str_eq(th_print_duration(0, buffer), "0s");
	cr_assert_str_eq(th_print_duration(1500000000, buffer), "1500ms");
	cr_assert_str_eq(th_print_duration(INT64_C(7200000000000), buffer), "2h");
	cr_assert_str_eq(th_print_duration(-5000, buffer), "-5us");
	cr_assert_str_eq(th_print_duration(INT64_MIN, buffer), "-9223372036854775808ns");
	cr_assert_str_eq(th_print_size(0, buffer), "0B");
	cr_assert_str_eq(th_print_size(67108864, buffer), "64MiB");
	cr_assert_str_eq(th_print_size(1025, buffer), "1025B");
	cr_assert_str_eq(th_print_size(UINT64_MAX, buffer), "18446744073709551615B");
}

Test(units, print__any_number__parses_to_the_same)
{
	struct th_rng rng;
	char buffer[TH_UNITS_BYTES];

	th_rng_init_number(&rng, 1);
	for (int i = 0; i < 20000; i++) {
		uint64_t number = th_rng_u64(&rng) >> th_rng_below(&rng, 64);
		/* Round numbers, so that the large units are printed too. */
		if (i % 2 == 0)
			number -= number % 1000000000;
		cr_assert_eq(size(th_print_size(number, buffer)), number);
		int64_t ns = (int64_t)(number >> 1);
		cr_assert_eq(duration(th_print_duration(ns, buffer)), ns);
	}
}

Test(units, print_short__three_digits)
{
	char buffer[TH_UNITS_BYTES];

	cr_assert_str_eq(th_print_size_short(0, buffer), "0B");
	cr_assert_str_eq(th_print_size_short(999, buffer), "999B");
	cr_assert_str_eq(th_print_size_short(1536, buffer), "1.50KiB");
	cr_assert_str_eq(th_print_size_short(UINT64_C(15) << 30, buffer), "15.0GiB");
	cr_assert_str_eq(th_print_size_short((UINT64_C(1) << 30) - 1, buffer), "1023MiB");
	cr_assert_str_eq(th_print_size_short(UINT64_MAX, buffer), "16777215TiB");
	cr_assert_str_eq(th_print_duration_short(0, buffer), "0s");
	cr_assert_str_eq(th_print_duration_short(712345678, buffer), "712ms");
	cr_assert_str_eq(th_print_duration_short(1234567890, buffer), "1.23s");
	cr_assert_str_eq(th_print_duration_short(-1234567890, buffer), "-1.23s");
	cr_assert_str_eq(th_print_duration_short(INT64_C(90000000000), buffer), "1.50m");
}
