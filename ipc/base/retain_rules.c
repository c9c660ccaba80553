/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain_rules - see retain_rules.h. Pure; cores use it, so it calls nothing but memory and string
 * functions.
 */
#include "ipc/base/retain_rules.h"

#include <string.h>

#include "ipc/base/utf8.h"

#define SHOWN_MAX 64 /* bytes of a bad rule in its sentence */

static int
order(const struct th_spec *a, const struct th_spec *b)
{
	if (a->relative != b->relative)
		return a->relative ? -1 : 1;
	return (a->number > b->number) - (a->number < b->number);
}

static int
bad_rule(const char *rule, size_t len, struct th_err *err)
{
	char shown[SHOWN_MAX + 1];

	len = len > SHOWN_MAX ? th_utf8_cut(rule, SHOWN_MAX) : len;
	for (size_t at = 0; at < len;) {
		size_t step = th_utf8_char(rule + at, len - at);
		bool bad = step == 0 || th_utf8_is_control(rule + at, step);
		step = step == 0 ? 1 : step;
		if (bad)
			memset(shown + at, '?', step);
		else
			memcpy(shown + at, rule + at, step);
		at += step;
	}
	shown[len] = '\0';
	return th_fail(err, TH_E_INVALID,
		"retain: \"%s\" is no rule; write latest, latest-K or a version's number, with "
		"commas and no spaces between them, for example latest,latest-1",
		shown);
}

bool
th_retain_add(struct th_retain *rules, const struct th_spec *rule)
{
	uint32_t at = 0;

	while (at < rules->num_rules && order(&rules->rules[at], rule) < 0)
		at++;
	if (at < rules->num_rules && order(&rules->rules[at], rule) == 0)
		return true;
	if (rules->num_rules == TH_RETAIN_RULES_MAX)
		return false;
	memmove(&rules->rules[at + 1], &rules->rules[at],
		(rules->num_rules - at) * sizeof(rules->rules[0]));
	rules->rules[at] = *rule;
	rules->num_rules++;
	return true;
}

int
th_retain_parse(const char *text, struct th_retain *ret_rules, struct th_err *err)
{
	struct th_retain rules = {0};
	const char *at = text;

	if (text != NULL && strnlen(text, TH_RETAIN_MAX + 1) > TH_RETAIN_MAX)
		return th_fail(err, TH_E_LIMIT, "retain: the list of rules has more than %d bytes",
			TH_RETAIN_MAX);
	while (at != NULL && text[0] != '\0') {
		size_t len = strcspn(at, ",");
		char rule[TH_SPEC_MAX + 1];
		struct th_spec spec;
		if (len > TH_SPEC_MAX)
			return bad_rule(at, len, err);
		memcpy(rule, at, len);
		rule[len] = '\0';
		if (th_spec_parse(rule, &spec) != 0)
			return bad_rule(at, len, err);
		if (!th_retain_add(&rules, &spec))
			return th_fail(err, TH_E_LIMIT, "retain: more than %u rules in one list",
				TH_RETAIN_RULES_MAX);
		at = at[len] == ',' ? at + len + 1 : NULL;
	}
	*ret_rules = rules;
	return 0;
}

bool
th_retain_equal(const struct th_retain *a, const struct th_retain *b)
{
	if (a->num_rules != b->num_rules)
		return false;
	for (uint32_t i = 0; i < a->num_rules; i++) {
		if (order(&a->rules[i], &b->rules[i]) != 0)
			return false;
	}
	return true;
}

bool
th_retain_covers(const struct th_retain *many, const struct th_retain *few)
{
	uint32_t at = 0;

	/* Both ascend. */
	for (uint32_t i = 0; i < few->num_rules; i++) {
		while (at < many->num_rules && order(&many->rules[at], &few->rules[i]) < 0)
			at++;
		if (at == many->num_rules || order(&many->rules[at], &few->rules[i]) != 0)
			return false;
	}
	return true;
}

static size_t
write_number(char *to, uint64_t number)
{
	char digits[20];
	size_t num = 0, len = 0;

	do {
		digits[num++] = (char)('0' + number % 10);
		number /= 10;
	} while (number != 0);
	while (num > 0)
		to[len++] = digits[--num];
	return len;
}

/* The longest: "latest-" and twenty digits. */
_Static_assert(TH_RETAIN_RULES_MAX *(7 + 20 + 1) <= TH_RETAIN_MAX, "a full list fits");

void
th_retain_write(const struct th_retain *rules, char ret_text[TH_RETAIN_MAX + 1])
{
	size_t len = 0;

	for (uint32_t i = 0; i < rules->num_rules; i++) {
		const struct th_spec *rule = &rules->rules[i];
		if (i > 0)
			ret_text[len++] = ',';
		if (rule->relative) {
			memcpy(ret_text + len, "latest", 6);
			len += 6;
			if (rule->number != 0)
				ret_text[len++] = '-';
		}
		if (!rule->relative || rule->number != 0)
			len += write_number(ret_text + len, rule->number);
	}
	ret_text[len] = '\0';
}
