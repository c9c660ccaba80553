/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_json - one JSON object for programs: numbers in base units, every column, schema thctl/1.
 *
 * Keys come in the order of the document and are never renamed; new ones may appear. A number above
 * 2^63 - 1, which JSON's readers do not agree on, is a text of its digits.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "ipc/base/assert.h"
#include "tools/thctl/output.h"

static json_t *
harmless_text(const char *text)
{
	char *copy = output_harmless(text);
	json_t *json = json_string(copy);

	free(copy);
	return json;
}

static json_t *
number_to_json(uint64_t number)
{
	char digits[24];

	if (number <= INT64_MAX)
		return json_integer((json_int_t)number);
	snprintf(digits, sizeof(digits), "%" PRIu64, number);
	return json_string(digits);
}

static json_t *
value_to_json(const struct value *value)
{
	switch (value->kind) {
	case VALUE_NONE:
		return json_null();
	case VALUE_TEXT:
		return harmless_text(value->text);
	case VALUE_NUMBER:
	case VALUE_BYTES:
	case VALUE_RATE:
		return number_to_json(value->number);
	case VALUE_DURATION:
		return json_integer(value->ns);
	case VALUE_FLAG:
		return json_boolean(value->number != 0);
	case VALUE_RATIO:
		return json_real((double)value->number / (double)value->total);
	}
	return NULL;
}

/* Only memory can be missing here: keys are our own. */
static void
output_json_put(json_t *object, const char *key, json_t *value)
{
	TH_ASSERT(json_object_set_new(object, key, value) == 0);
}

static json_t *
table_to_json(const struct table *table)
{
	json_t *rows = json_array();

	for (uint32_t row = 0; row < table->num_rows; row++) {
		json_t *object = json_object();
		for (uint32_t column = 0; column < table->num_columns; column++)
			output_json_put(object, table->columns[column].key,
				value_to_json(&table->cells[row * table->num_columns + column]));
		TH_ASSERT(json_array_append_new(rows, object) == 0);
	}
	return rows;
}

static json_t *
warnings_to_json(const struct document *document)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < document->num_warnings; i++) {
		const struct warning *warning = &document->warnings[i];
		json_t *object = json_object();
		output_json_put(object, "code", harmless_text(warning->code));
		output_json_put(object, "text", harmless_text(warning->text));
		output_json_put(
			object, "try", warning->next ? harmless_text(warning->next) : json_null());
		TH_ASSERT(json_array_append_new(list, object) == 0);
	}
	return list;
}

static void
print_json(const struct document *document, bool colour, FILE *to)
{
	(void)colour;
	json_t *root = json_object();
	output_json_put(root, "schema", json_string(OUTPUT_SCHEMA));
	output_json_put(root, "kind", json_string(document->kind));
	if (document->has_verdict) {
		output_json_put(
			root, "health", json_string(document->num_warnings == 0 ? "ok" : "warn"));
		output_json_put(root, "warnings", warnings_to_json(document));
	}
	for (uint32_t i = 0; i < document->num_fields; i++)
		output_json_put(
			root, document->fields[i].key, value_to_json(&document->fields[i].value));
	for (uint32_t i = 0; i < document->num_tables; i++)
		output_json_put(root, document->tables[i].key, table_to_json(&document->tables[i]));
	json_dumpf(root, to,
		(document->one_line ? JSON_COMPACT : JSON_INDENT(2)) | JSON_REAL_PRECISION(6));
	fputc('\n', to);
	json_decref(root);
}

const struct output_format output_json = {.name = "json", .print = print_json};
