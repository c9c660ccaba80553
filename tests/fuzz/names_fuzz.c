/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names_fuzz - what people and peers write: names, versions, retention rules, durations, sizes.
 *
 * What is taken has one meaning, which what is printed of it has again.
 */
#include <stdlib.h>

#include "ipc/base/assert.h"
#include "ipc/base/retain_rules.h"
#include "ipc/base/units.h"
#include "tests/fuzz/input.h"

static void
try_spec(const char *text)
{
	struct th_spec spec;
	struct th_retain rules = {0}, again;
	char written[TH_RETAIN_MAX + 1];

	if (th_spec_parse(text, &spec) < 0)
		return;
	TH_ASSERT(strlen(text) <= TH_SPEC_MAX);
	TH_ASSERT(spec.relative || spec.number != TH_NO_VERSION);
	TH_ASSERT(th_retain_add(&rules, &spec));
	th_retain_write(&rules, written);
	TH_ASSERT(th_spec_parse(written, &spec) == 0);
	TH_ASSERT(spec.relative == rules.rules[0].relative && spec.number == rules.rules[0].number);
	TH_ASSERT(th_retain_parse(text, &again, NULL) == 0 && th_retain_equal(&rules, &again));
}

static void
try_retain(const char *text)
{
	struct th_retain rules, again;
	struct th_err err = {0};
	char written[TH_RETAIN_MAX + 1];

	if (th_retain_parse(text, &rules, &err) < 0) {
		TH_ASSERT(err.code != 0 && err.text[0] != '\0');
		return;
	}
	TH_ASSERT(rules.num_rules <= TH_RETAIN_RULES_MAX);
	th_retain_write(&rules, written);
	TH_ASSERT(th_retain_parse(written, &again, NULL) == 0);
	TH_ASSERT(th_retain_equal(&rules, &again) && th_retain_covers(&again, &rules));
	for (uint32_t i = 0; i < rules.num_rules; i++)
		TH_ASSERT(th_retain_add(&again, &rules.rules[i]));
	TH_ASSERT(th_retain_equal(&rules, &again));
}

static void
try_units(const char *text)
{
	char printed[TH_UNITS_BYTES];
	int64_t ns, ns_again;
	uint64_t bytes, bytes_again;

	if (th_parse_duration(text, &ns) == 0) {
		TH_ASSERT(ns >= 0);
		th_print_duration(ns, printed);
		TH_ASSERT(th_parse_duration(printed, &ns_again) == 0 && ns == ns_again);
		th_print_duration_short(ns, printed);
	}
	if (th_parse_size(text, &bytes) == 0) {
		th_print_size(bytes, printed);
		TH_ASSERT(th_parse_size(printed, &bytes_again) == 0 && bytes == bytes_again);
		th_print_size_short(bytes, printed);
	}
}

static void
try_name(const char *text)
{
	char copy[TH_NAME_MAX + 1];

	if (!th_name_valid(text, TH_NAME_MAX))
		return;
	TH_ASSERT(th_name_copy(copy, text) == 0 && strcmp(copy, text) == 0);
	for (const char *at = text; *at != '\0'; at++)
		TH_ASSERT((unsigned char)*at >= ' ' && *at != 0x7f);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* In memory of its own: who reads behind the end is seen. */
	char *text = malloc(size + 1);

	TH_ASSERT(text != NULL);
	if (size > 0)
		memcpy(text, data, size);
	text[size] = '\0';
	try_spec(text);
	try_retain(text);
	try_units(text);
	try_name(text);
	free(text);
	return 0;
}
