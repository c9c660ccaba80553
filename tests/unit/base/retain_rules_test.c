/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain_rules_test - what a list of retention rules is, and what is none.
 */
#include "ipc/base/retain_rules.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct th_retain
parsed(const char *text)
{
	struct th_retain rules;
	struct th_err err = {0};

	cr_assert_eq(th_retain_parse(text, &rules, &err), 0, "%s: %s", text, err.text);
	return rules;
}

static void
is(const struct th_spec *rule, bool relative, uint64_t number)
{
	cr_assert_eq(rule->relative, relative);
	cr_assert_eq(rule->number, number);
}

Test(retain_rules, parse__nothing__is_no_rule)
{
	cr_assert_eq(parsed(NULL).num_rules, 0);
	cr_assert_eq(parsed("").num_rules, 0);
}

Test(retain_rules, parse__a_list__is_sorted)
{
	struct th_retain rules = parsed("17,latest-2,3,latest,latest-10");

	cr_assert_eq(rules.num_rules, 5);
	is(&rules.rules[0], true, 0);
	is(&rules.rules[1], true, 2);
	is(&rules.rules[2], true, 10);
	is(&rules.rules[3], false, 3);
	is(&rules.rules[4], false, 17);
}

Test(retain_rules, parse__repeats__are_one)
{
	struct th_retain rules = parsed("latest,7,latest,007,latest-1,7");

	cr_assert_eq(rules.num_rules, 3);
	is(&rules.rules[0], true, 0);
	is(&rules.rules[1], true, 1);
	is(&rules.rules[2], false, 7);
	/* Of one rule any number of times, the list is short. */
	cr_assert_eq(parsed("1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1").num_rules, 1);
}

Test(retain_rules, parse__the_longest__is_taken)
{
	char text[TH_RETAIN_MAX + 2] = "", rule[40];

	/* Sixteen of 27 bytes each, with commas. */
	for (int i = 0; i < 16; i++) {
		snprintf(
			rule, sizeof(rule), "%slatest-184467440737095516%02d", i > 0 ? "," : "", i);
		strcat(text, rule);
	}
	cr_assert_eq(parsed(text).num_rules, TH_RETAIN_RULES_MAX);
}

static void
refused(const char *text, int code, const char *sentence)
{
	struct th_retain rules = {.num_rules = 77};
	struct th_err err = {0};

	cr_assert_eq(th_retain_parse(text, &rules, &err), code, "\"%s\"", text);
	cr_assert_eq(err.code, code);
	cr_assert(strstr(err.text, sentence) != NULL, "\"%s\" for \"%s\"", err.text, text);
	cr_assert_eq(rules.num_rules, 77, "untouched on failure");
	cr_assert_eq(th_retain_parse(text, &rules, NULL), code);
}

Test(retain_rules, parse__other_text__is_refused)
{
	static const char *const bad[][2] = {
		{",", "\"\""},
		{"latest,", "\"\""},
		{",latest", "\"\""},
		{"latest,,3", "\"\""},
		{" latest", "\" latest\""},
		{"latest, latest-1", "\" latest-1\""},
		{"latest;latest-1", "\"latest;latest-1\""},
		{"latest-0", "\"latest-0\""},
		{"latest~1", "\"latest~1\""},
		{"all", "\"all\""},
		{"-1", "\"-1\""},
		{"17,18446744073709551615", "\"18446744073709551615\""},
		{"17,18446744073709551616", "\"18446744073709551616\""},
		{"lat\nest", "\"lat?est\""},
		{"\xff\xc3,3", "\"?"
			       "?\""},
	};

	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++)
		refused(bad[i][0], TH_E_INVALID, bad[i][1]);
}

Test(retain_rules, parse__a_long_bad_rule__is_cut_in_its_sentence)
{
	char text[TH_RETAIN_MAX + 1];

	memset(text, 'x', TH_RETAIN_MAX);
	text[TH_RETAIN_MAX] = '\0';
	refused(text, TH_E_INVALID, "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
}

Test(retain_rules, parse__too_much__is_a_limit)
{
	char text[TH_RETAIN_MAX + 2];

	refused("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", TH_E_LIMIT, "more than 16");
	cr_assert_eq(parsed("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16").num_rules, 16);
	memset(text, '1', sizeof(text));
	text[TH_RETAIN_MAX + 1] = '\0';
	refused(text, TH_E_LIMIT, "511 bytes");
}

Test(retain_rules, equal__is_what_they_name)
{
	struct th_retain a = parsed("latest,17"), b = parsed("17,latest,017"), c = parsed("latest"),
			 d = parsed("latest,18");

	cr_assert(th_retain_equal(&a, &b));
	cr_assert_not(th_retain_equal(&a, &c));
	cr_assert_not(th_retain_equal(&a, &d));
}

Test(retain_rules, write__is_read_back)
{
	static const char *const texts[] = {"", "latest", "latest,latest-1,0,17",
		"latest-18446744073709551614,18446744073709551614"};
	char text[TH_RETAIN_MAX + 1];
	struct th_retain rules;

	for (size_t i = 0; i < TH_ARRAY_LEN(texts); i++) {
		cr_assert_eq(th_retain_parse(texts[i], &rules, NULL), 0, "%s", texts[i]);
		th_retain_write(&rules, text);
		cr_assert_str_eq(text, texts[i]);
	}
}

Test(retain_rules, add_and_covers__sets)
{
	struct th_retain many = {0}, few = {0};
	struct th_spec rule = {0};

	cr_assert(th_retain_covers(&many, &few));
	for (uint64_t i = TH_RETAIN_RULES_MAX; i > 0; i--) {
		rule.number = i;
		cr_assert(th_retain_add(&many, &rule));
		cr_assert(th_retain_add(&many, &rule), "it is there already");
	}
	cr_assert_eq(many.num_rules, TH_RETAIN_RULES_MAX);
	cr_assert(th_retain_add(&few, &rule));
	cr_assert(th_retain_covers(&many, &few));
	cr_assert_not(th_retain_covers(&few, &many));
	rule.relative = true;
	cr_assert_not(th_retain_add(&many, &rule));
	cr_assert(th_retain_add(&few, &rule));
	cr_assert_not(th_retain_covers(&many, &few));
}
