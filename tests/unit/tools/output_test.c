/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_test - one document in all formats, byte for byte, and that JSON parses to what was put
 * in.
 */
#include "tools/thctl/output.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"

static const struct column columns[] = {
	{"model", "MODEL", false},
	{"bytes", "SIZE", false},
	{"done", "DONE", false},
	{"lineage", "LINEAGE", true},
	{"ready", "READY", false},
};

static void
fill(struct document *document)
{
	document_init(document, "test");
	document->has_verdict = true;
	document->headline = th_strdup("thagentd 1.0 on a");
	document_warn(document, "TH_NO_SERVER", "thctl status", "no server: %s", "refused");
	document_field(document, "server", "server", value_text("tcp://h:1"));
	document_field(document, "uptime_ns", NULL, value_duration(1500000000));
	document_field(document, "data_address", "data", value_none());
	document_table(document, "rows", columns, 5);
	const struct value first[] = {value_text("long-name"), value_bytes(1536), value_ratio(1, 3),
		value_number(7), value_flag(true)};
	document_row(document, first);
	const struct value second[] = {value_text("m\xc3\xa9"), value_none(), value_ratio(3, 3),
		value_number(UINT64_MAX), value_flag(false)};
	document_row(document, second);
	document_table(document, "more", columns, 1);
	document_table_wide(document);
	const struct value third[] = {value_text("x")};
	document_row(document, third);
}

static char *
print(const struct output_format *format, bool colour)
{
	struct document document;
	char *text = NULL;
	size_t bytes = 0;

	fill(&document);
	FILE *to = open_memstream(&text, &bytes);
	format->print(&document, colour, to);
	fclose(to);
	document_free(&document);
	return text;
}

Test(output, table__verdict_first_warnings_last)
{
	char *text = print(&output_table, false);

	cr_assert_str_eq(text, "HEALTH_WARN  TH_NO_SERVER  thagentd 1.0 on a\n"
			       "server  tcp://h:1\n"
			       "data    -\n"
			       "\n"
			       "MODEL         SIZE  DONE  READY\n"
			       "long-name  1.50KiB   33%  yes\n"
			       "m\xc3\xa9               -  100%  no\n"
			       "\n"
			       "warn TH_NO_SERVER  no server: refused  try: thctl status\n");
	free(text);
}

Test(output, wide__has_all_columns)
{
	char *text = print(&output_wide, false);

	cr_assert_str_eq(text, "HEALTH_WARN  TH_NO_SERVER  thagentd 1.0 on a\n"
			       "server     tcp://h:1\n"
			       "uptime_ns  1.50s\n"
			       "data       -\n"
			       "\n"
			       "MODEL         SIZE  DONE               LINEAGE  READY\n"
			       "long-name  1.50KiB   33%                     7  yes\n"
			       "m\xc3\xa9               -  100%  18446744073709551615  no\n"
			       "\n"
			       "MODEL\n"
			       "x\n"
			       "\n"
			       "warn TH_NO_SERVER  no server: refused  try: thctl status\n");
	free(text);
}

Test(output, colour__only_when_asked)
{
	char *plain = print(&output_table, false);
	char *coloured = print(&output_table, true);

	cr_assert_null(strchr(plain, '\x1b'));
	cr_assert(strchr(coloured, '\x1b'));
	free(plain);
	free(coloured);
}

Test(output, json__parses_to_what_was_put_in)
{
	char *text = print(&output_json, true);
	json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);

	cr_assert(root, "%s", text);
	cr_assert_null(strchr(text, '\x1b'));
	const char begin[] = "{\n  \"schema\": \"thctl/1\",\n  \"kind\": \"test\",";
	cr_assert_eq(strncmp(text, begin, strlen(begin)), 0, "%s", text);
	cr_assert_str_eq(json_string_value(json_object_get(root, "health")), "warn");
	cr_assert_eq(json_integer_value(json_object_get(root, "uptime_ns")), 1500000000);
	cr_assert(json_is_null(json_object_get(root, "data_address")));
	json_t *row = json_array_get(json_object_get(root, "rows"), 0);
	cr_assert_eq(json_integer_value(json_object_get(row, "bytes")), 1536);
	cr_assert_eq(json_integer_value(json_object_get(row, "lineage")), 7);
	cr_assert(json_is_true(json_object_get(row, "ready")));
	cr_assert_float_eq(json_real_value(json_object_get(row, "done")), 0.333333, 1e-9);
	row = json_array_get(json_object_get(root, "rows"), 1);
	cr_assert_str_eq(
		json_string_value(json_object_get(row, "lineage")), "18446744073709551615");
	cr_assert_str_eq(json_string_value(json_object_get(row, "model")), "m\xc3\xa9");
	cr_assert_eq(json_array_size(json_object_get(root, "more")), 1);
	json_t *warning = json_array_get(json_object_get(root, "warnings"), 0);
	cr_assert_str_eq(json_string_value(json_object_get(warning, "try")), "thctl status");
	json_decref(root);
	free(text);
}

Test(output, healthy_and_empty__says_so)
{
	struct document document;
	char *text = NULL;
	size_t bytes = 0;

	document_init(&document, "test");
	document.has_verdict = true;
	FILE *to = open_memstream(&text, &bytes);
	output_table.print(&document, false, to);
	document_free(&document);
	document_init(&document, "rows");
	document_table(&document, "rows", columns, 5);
	output_table.print(&document, false, to);
	document_free(&document);
	document_init(&document, "published");
	document.headline = th_strdup("published m 1");
	document_field(&document, "model", NULL, value_text("m"));
	output_table.print(&document, false, to);
	document_free(&document);
	fclose(to);
	cr_assert_str_eq(text, "HEALTH_OK\nMODEL  SIZE  DONE  READY\npublished m 1\n");
	free(text);
}

/* What another process sent must not reach the terminal as a command. */
Test(output, foreign_text__is_made_harmless)
{
	char *text = output_harmless("a\x1b[31mb\nc\xff\xc2\x9b z\xc3\xa9");

	cr_assert_str_eq(text, "a?[31mb?c\xef\xbf\xbd? z\xc3\xa9");
	free(text);
	text = output_harmless("\xff\xff\xff");
	cr_assert_str_eq(text, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
	free(text);
}

Test(output, ratio__full_only_when_all)
{
	struct value nearly = value_ratio(9999999, 10000000);
	struct value none = value_ratio(0, 0);
	char *text = value_print(&nearly);

	cr_assert_str_eq(text, "99%");
	free(text);
	cr_assert_eq(none.kind, VALUE_NONE);
}

Test(output, find__knows_three_formats)
{
	cr_assert_eq(output_find("table"), &output_table);
	cr_assert_eq(output_find("wide"), &output_wide);
	cr_assert_eq(output_find("json"), &output_json);
	cr_assert_null(output_find("yaml"));
	cr_assert_null(output_find(""));
}
