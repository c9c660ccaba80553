/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_file_test - what thctl plan is told by two files and what it says: all that a file can
 * have, each refusal, and the tables, byte for byte.
 */
#include "tools/file/layout_file.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tools/thctl/plan_tables.h"

/* FSDP2 of 10 rows on 4 ranks. */
static const char fsdp[] =
	"{\"shards\": ["
	"{\"rows\": [{\"name\": \"w\", \"dtype\": \"BF16\", \"shape\": [3, 8],"
	" \"global_shape\": [10, 8], \"offset\": [0, 0]},"
	" {\"name\": \"s\", \"dtype\": \"F32\", \"shape\": [], \"tied\": [\"t\"]}]},"
	"{\"rows\": [{\"name\": \"w\", \"dtype\": \"BF16\", \"shape\": [3, 8],"
	" \"global_shape\": [10, 8], \"offset\": [3, 0]}]},"
	"{\"rows\": [{\"name\": \"w\", \"dtype\": \"BF16\", \"shape\": [3, 8],"
	" \"global_shape\": [10, 8], \"offset\": [6, 0]}]},"
	"{\"rows\": [{\"name\": \"w\", \"dtype\": \"BF16\", \"shape\": [1, 8],"
	" \"global_shape\": [10, 8], \"offset\": [9, 0]}]}]}";

/* By columns, the second to FP8 with its scales in blocks of 4 by 4. */
static const char columns[] =
	"{\"shards\": ["
	"{\"rows\": [{\"name\": \"w\", \"dtype\": \"BF16\", \"shape\": [10, 4],"
	" \"global_shape\": [10, 8], \"offset\": [0, 0], \"stride\": [6, 1]},"
	" {\"name\": \"t\", \"dtype\": \"F32\", \"shape\": []}]},"
	"{\"rows\": [{\"name\": \"w\", \"dtype\": \"F8_E4M3\", \"shape\": [10, 4],"
	" \"global_shape\": [10, 8], \"offset\": [0, 4],"
	" \"convert\": {\"scheme\": \"fp8-block\", \"block\": [4, 4]}},"
	" {\"name\": \"w.scale\", \"dtype\": \"F32\", \"shape\": [3, 1],"
	" \"global_shape\": [3, 2], \"offset\": [0, 1],"
	" \"convert\": {\"scheme\": \"fp8-block\", \"of\": \"w\", \"scales\": true,"
	" \"block\": [4, 4]}}]}]}";

static struct layout_file
parse(const char *text)
{
	struct layout_file file;
	struct th_err err = {0};
	cr_assert_eq(layout_file_parse(text, strlen(text), &err, &file), 0, "%s", err.text);
	return file;
}

static char *
print(const char *published_text, const char *view_text, uint32_t first, uint32_t end)
{
	struct layout_file published = parse(published_text), view = parse(view_text);
	struct document document;
	struct th_err err = {0};
	char *text = NULL;
	size_t bytes = 0;
	cr_assert_eq(
		plan_tables(&published, &view, first, end, &err, &document), 0, "%s", err.text);
	FILE *to = open_memstream(&text, &bytes);
	output_table.print(&document, false, to);
	fclose(to);
	document_free(&document);
	layout_file_free(&published);
	layout_file_free(&view);
	return text;
}

/* Shard 1: blocks of rows 0 to 3, 4 to 7, 8 and 9; each is cut by the shards, so all is staged. */
Test(layout_file, plan__all_shards__one_line_each)
{
	char *text = print(fsdp, columns, 0, 2);
	cr_assert(
		strstr(text, "    0  84B  84B        4       5    11        4B       8B      0B\n"),
		"%s", text);
	cr_assert(
		strstr(text, "    1  52B  80B        4       6    10        8B       8B     80B\n"),
		"%s", text);
	cr_assert(!strstr(text, "SOURCE "), "%s", text);
	free(text);
}

Test(layout_file, plan__one_shard__and_its_sources)
{
	char *text = print(fsdp, columns, 0, 1);
	cr_assert(strstr(text, "SOURCE "), "%s", text);
	cr_assert(strstr(text, "    0       0    28B     4        4B       8B         0\n"), "%s",
		text);
	cr_assert(strstr(text, "    0       3     8B     1        8B       8B         0\n"), "%s",
		text);
	free(text);
}

static void
refuse(const char *text, int code, const char *word)
{
	struct layout_file file;
	struct th_err err = {0};
	cr_assert_eq(layout_file_parse(text, strlen(text), &err, &file), code, "%s", text);
	cr_assert(strstr(err.text, word), "'%s' lacks '%s'", err.text, word);
}

#define ROW(rest) "{\"shards\": [{\"rows\": [{\"name\": \"w\", \"dtype\": \"U8\", " rest "}]}]}"

Test(layout_file, parse__what_is_no_layout__is_refused)
{
	refuse("{", TH_E_INVALID, "no valid JSON in line 1");
	refuse("{}", TH_E_INVALID, "shards must be a list");
	refuse("{\"shards\": []}", TH_E_INVALID, "1 to 1024");
	refuse("{\"shards\": [{}]}", TH_E_INVALID, "shard 0 has no list of rows");
	refuse("{\"shards\": [{\"rows\": []}, {\"rows\": [7]}]}", TH_E_INVALID,
		"shard 1, row 0: it needs a name");
	refuse("{\"shards\": [{\"rows\": [{\"name\": \"w\", \"dtype\": \"U9\"}]}]}", TH_E_INVALID,
		"a dtype as safetensors");
	refuse(ROW("\"shape\": 7"), TH_E_INVALID, "shape must be a list");
	refuse(ROW("\"shape\": [1,1,1,1,1,1,1,1,1]"), TH_E_INVALID, "at most 8");
	refuse(ROW("\"shape\": [-1]"), TH_E_INVALID, "shape must be a list of 1 numbers");
	refuse(ROW("\"shape\": [1.5]"), TH_E_INVALID, "shape must be a list of 1 numbers");
	refuse(ROW("\"shape\": [4], \"offset\": [0, 0]"), TH_E_INVALID, "offset must be");
	refuse(ROW("\"shape\": [4], \"tied\": [7]"), TH_E_INVALID, "tied must be a list of names");
	refuse(ROW("\"shape\": [4], \"tied\": {}"), TH_E_INVALID, "tied must be a list of names");
	refuse(ROW("\"shape\": [4], \"convert\": {}"), TH_E_INVALID, "scheme is none of");
	refuse(ROW("\"shape\": [4], \"convert\": {\"scheme\": \"round\", \"of\": 1}"), TH_E_INVALID,
		"of must be a name");
	refuse(ROW("\"shape\": [4], \"convert\": {\"scheme\": \"fp8-block\", "
		   "\"block\": [4294967296, 1]}"),
		TH_E_INVALID, "more than 32 bits");
}

Test(layout_file, plan__hole_or_published_stride__is_said_with_the_shard)
{
	struct layout_file published = parse(fsdp);
	struct layout_file view = parse(columns);
	struct document document;
	struct th_err err = {0};
	published.num_shards = 3;
	cr_assert_eq(plan_tables(&published, &view, 0, 2, &err, &document), TH_E_LAYOUT);
	cr_assert(strstr(err.text, "shard 0 of the view: tensor 'w': nobody has published [9, 10)"),
		"%s", err.text);
	cr_assert_eq(plan_tables(&view, &view, 0, 1, &err, &document), TH_E_INVALID);
	cr_assert(
		strstr(err.text, "shard 0, row 0: what is published has neither"), "%s", err.text);
	published.num_shards = 4;
	layout_file_free(&published);
	layout_file_free(&view);
}
