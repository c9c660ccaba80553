/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err_test - texts and names of codes, and the sentence of a failure.
 */
#include "ipc/base/err.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

Test(err, strerror__protocol_code__gives_its_text)
{
	cr_assert_str_eq(th_strerror(TH_E_TIMEOUT), "the deadline passed before anything changed");
	cr_assert_str_eq(
		th_strerror(-5026), "this replica was taken out by an operator or a drain");
}

Test(err, strerror__errno__gives_that_of_the_system)
{
	cr_assert_str_eq(th_strerror(-ENOENT), "No such file or directory");
}

Test(err, strerror__anything_else__is_unknown)
{
	cr_assert_str_eq(th_strerror(0), "unknown error");
	cr_assert_str_eq(th_strerror(ENOENT), "unknown error");
	cr_assert_str_eq(th_strerror(-4095), "unknown error");
	cr_assert_str_eq(th_strerror(-5027), "unknown error");
	cr_assert_str_eq(th_strerror(-2147483647 - 1), "unknown error");
}

Test(err, errname__code__gives_the_short_name)
{
	cr_assert_str_eq(th_errname(TH_E_INVALID), "INVALID");
	cr_assert_str_eq(th_errname(TH_E_EVICTED), "EVICTED");
	cr_assert_str_eq(th_errname(-ENOMEM), "ENOMEM");
	cr_assert_str_eq(th_errname(0), "?");
	cr_assert_str_eq(th_errname(ENOMEM), "?");
	cr_assert_str_eq(th_errname(-5000), "?");
}

Test(err, errno_or_code__are_told_apart)
{
	cr_assert(th_is_errno(-1) && th_is_errno(-4095));
	cr_assert_not(th_is_errno(0) || th_is_errno(1) || th_is_errno(TH_E_INVALID));
	cr_assert_not(th_is_errno(TH_E_EVICTED));
	cr_assert_eq(th_code_or(TH_E_INVALID, TH_E_LIMIT), TH_E_INVALID);
	cr_assert_eq(th_code_or(TH_E_EVICTED, TH_E_LIMIT), TH_E_EVICTED);
	cr_assert_eq(th_code_or(-ENOMEM, TH_E_LIMIT), TH_E_LIMIT);
	cr_assert_eq(th_code_or(0, TH_E_LIMIT), TH_E_LIMIT);
}

Test(err, numbers__all__are_different)
{
	static const int numbers[] = {
#define NUMBER(name, number, text) (number),
		TH_ERRORS(NUMBER)
#undef NUMBER
	};
	const size_t count = sizeof(numbers) / sizeof(numbers[0]);

	cr_assert_eq(count, 26);
	for (size_t i = 0; i < count; i++)
		cr_assert_eq(numbers[i], -5001 - (int)i);
}

Test(err, fail__sentence__is_kept_and_code_returned)
{
	struct th_err err = {0};

	cr_assert_eq(th_fail(&err, TH_E_LIMIT, "%d of %s", 3, "them"), TH_E_LIMIT);
	cr_assert_eq(err.code, TH_E_LIMIT);
	cr_assert_str_eq(err.text, "3 of them");
	cr_assert_eq(th_fail(NULL, -EIO, "unread"), -EIO);
}

Test(err, fail__own_text_as_argument__is_not_overwritten_while_read)
{
	struct th_err err = {0};

	(void)th_fail(&err, -EIO, "disk");
	(void)th_fail(&err, TH_E_STATE, "cannot save: %s", err.text);
	cr_assert_str_eq(err.text, "cannot save: disk");
}

Test(err, fail__long_sentence__is_cut_at_a_character)
{
	struct th_err err = {0};
	char text[TH_SENTENCE_BYTES + 16];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	memcpy(text + TH_SENTENCE_BYTES - 2, "\xc3\xbc", 2);
	(void)th_fail(&err, TH_E_STATE, "%s", text);
	cr_assert_eq(strlen(err.text), TH_SENTENCE_BYTES - 2);
	cr_assert_eq(err.text[TH_SENTENCE_BYTES - 3], 'x');
}

/* What it quotes is a name that was cut, or anything. */
Test(err, fail__quotes_what_is_no_text__is_one_line_of_text)
{
	struct th_err err = {0};

	(void)th_fail(&err, TH_E_INVALID, "'%.3s', '%s'", "gr\xc3\xbc\xc3\x9f", "1\n\x1b[2J");
	cr_assert_str_eq(err.text, "'gr?', '1??[2J'");
}
