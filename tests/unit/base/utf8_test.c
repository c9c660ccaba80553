/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utf8_test - every border of table 3-7 of the Unicode standard, and cutting.
 */
#include "ipc/base/utf8.h"

#include <criterion/criterion.h>
#include <string.h>

static size_t
first(const char *text)
{
	return th_utf8_char(text, strlen(text));
}

Test(utf8, char__valid__gives_its_bytes)
{
	cr_assert_eq(first("a"), 1);
	cr_assert_eq(first("\x7f"), 1);
	cr_assert_eq(first("\xc2\x80"), 2);
	cr_assert_eq(first("\xdf\xbf"), 2);
	cr_assert_eq(first("\xe0\xa0\x80"), 3);
	cr_assert_eq(first("\xed\x9f\xbf"), 3);
	cr_assert_eq(first("\xee\x80\x80"), 3);
	cr_assert_eq(first("\xf0\x90\x80\x80"), 4);
	cr_assert_eq(first("\xf4\x8f\xbf\xbf"), 4);
	cr_assert_eq(th_utf8_char("\0", 1), 1);
}

Test(utf8, char__invalid__gives_zero)
{
	static const char *const invalid[] = {
		"\x80", "\xbf",                         /* a continuation first                 */
		"\xc0\x80", "\xc1\xbf",                 /* overlong                             */
		"\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf",     /* overlong                             */
		"\xed\xa0\x80", "\xed\xbf\xbf",         /* surrogates                           */
		"\xf4\x90\x80\x80", "\xf5\x80\x80\x80", /* beyond U+10FFFF                      */
		"\xff", "\xfe",                         /* never used                           */
		"\xc2", "\xe2\x82", "\xf0\x9f\x98",     /* ends early                           */
		"\xc2 ", "\xe2\x82 ", "\xe2 \x82",      /* broken off                           */
	};

	for (size_t i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++)
		cr_assert_eq(first(invalid[i]), 0, "number %zu is taken for valid", i);
	cr_assert_eq(th_utf8_char("", 0), 0);
}

Test(utf8, is_control__c0_del_c1__only)
{
	cr_assert(th_utf8_is_control("\n", 1));
	cr_assert(th_utf8_is_control("\0", 1));
	cr_assert(th_utf8_is_control("\x7f", 1));
	cr_assert(th_utf8_is_control("\xc2\x80", 2));
	cr_assert(th_utf8_is_control("\xc2\x9f", 2));
	cr_assert_not(th_utf8_is_control(" ", 1));
	cr_assert_not(th_utf8_is_control("\xc2\xa0", 2));
	cr_assert_not(th_utf8_is_control("\xc3\x80", 2));
}

Test(utf8, valid__whole_text__is_judged)
{
	cr_assert(th_utf8_valid("", 0));
	cr_assert(th_utf8_valid("gr\xc3\xbc\xc3\x9f", 6));
	cr_assert_not(th_utf8_valid("gr\xc3\xbc\xc3\x9f", 5));
	cr_assert_not(th_utf8_valid("ab\xff", 3));
}

Test(utf8, cut__within_a_character__goes_back)
{
	const char *text = "ab\xf0\x9f\x98\x80";

	cr_assert_eq(th_utf8_cut(text, 6), 6);
	cr_assert_eq(th_utf8_cut(text, 5), 2);
	cr_assert_eq(th_utf8_cut(text, 4), 2);
	cr_assert_eq(th_utf8_cut(text, 3), 2);
	cr_assert_eq(th_utf8_cut(text, 2), 2);
	cr_assert_eq(th_utf8_cut(text, 0), 0);
	/* What is not UTF-8 has no character to keep whole. */
	cr_assert_eq(th_utf8_cut("\x80\x80\x80\x80", 4), 4);
}

Test(utf8, clean__bytes_that_are_no_text__are_question_marks)
{
	char text[] = "a\xff\xc3\xbc\x7f\xc2\x80\xe2\x82";

	th_utf8_clean(text, strlen(text));
	cr_assert_str_eq(text, "a?\xc3\xbc?????");
}
