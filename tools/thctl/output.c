/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output - documents and values (see output.h).
 */
#include "tools/thctl/output.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/units.h"
#include "ipc/base/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

struct value
value_none(void)
{
	return (struct value){.kind = VALUE_NONE};
}

struct value
value_text(const char *text)
{
	if (!text || *text == '\0')
		return value_none();
	return (struct value){.kind = VALUE_TEXT, .text = th_strdup(text)};
}

static char *
print_text(const char *format, va_list arguments)
{
	char *text;

	TH_ASSERT(vasprintf(&text, format, arguments) >= 0);
	return text;
}

struct value
value_textf(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	char *text = print_text(format, arguments);
	va_end(arguments);
	return (struct value){.kind = VALUE_TEXT, .text = text};
}

struct value
value_number(uint64_t number)
{
	return (struct value){.kind = VALUE_NUMBER, .number = number};
}

struct value
value_bytes(uint64_t bytes)
{
	return (struct value){.kind = VALUE_BYTES, .number = bytes};
}

struct value
value_rate(uint64_t bytes)
{
	return (struct value){.kind = VALUE_RATE, .number = bytes};
}

struct value
value_duration(int64_t ns)
{
	return (struct value){.kind = VALUE_DURATION, .ns = ns};
}

struct value
value_flag(bool flag)
{
	return (struct value){.kind = VALUE_FLAG, .number = flag};
}

struct value
value_ratio(uint64_t done, uint64_t total)
{
	if (total == 0)
		return value_none();
	return (struct value){.kind = VALUE_RATIO, .number = done, .total = total};
}

char *
value_print(const struct value *value)
{
	char buffer[TH_UNITS_BYTES];

	switch (value->kind) {
	case VALUE_NONE:
		return th_strdup("-");
	case VALUE_TEXT:
		return output_harmless(value->text);
	case VALUE_NUMBER:
		snprintf(buffer, sizeof(buffer), "%" PRIu64, value->number);
		break;
	case VALUE_BYTES:
		th_print_size_short(value->number, buffer);
		break;
	case VALUE_RATE:
		th_print_size_short(value->number, buffer);
		snprintf(buffer + strlen(buffer), sizeof(buffer) - strlen(buffer), "/s");
		break;
	case VALUE_DURATION:
		th_print_duration_short(value->ns, buffer);
		break;
	case VALUE_FLAG:
		return th_strdup(value->number ? "yes" : "no");
	case VALUE_RATIO:
		/* Cut, not rounded: 100% means all. */
		snprintf(buffer, sizeof(buffer), "%d%%",
			(int)((double)value->number / (double)value->total * 100.0));
		break;
	}
	return th_strdup(buffer);
}

char *
output_harmless(const char *text)
{
	size_t length = strlen(text);
	char *copy = th_calloc(length * (sizeof(REPLACEMENT) - 1) + 1, 1);
	size_t used = 0;

	for (size_t at = 0; at < length;) {
		size_t bytes = th_utf8_char(text + at, length - at);
		if (bytes == 0) {
			memcpy(copy + used, REPLACEMENT, sizeof(REPLACEMENT) - 1);
			used += sizeof(REPLACEMENT) - 1;
			at++;
			continue;
		}
		if (th_utf8_is_control(text + at, bytes))
			copy[used++] = '?';
		else {
			memcpy(copy + used, text + at, bytes);
			used += bytes;
		}
		at += bytes;
	}
	copy[used] = '\0';
	return copy;
}

bool
output_colour(int fd)
{
	const char *none = getenv("NO_COLOR");
	const char *terminal = getenv("TERM");

	return isatty(fd) && !(none && *none) && terminal && strcmp(terminal, "dumb") != 0;
}

const struct output_format *
output_find(const char *name)
{
	static const struct output_format *const formats[] = {
		&output_table, &output_json, &output_wide};

	for (size_t i = 0; i < TH_ARRAY_LEN(formats); i++) {
		if (strcmp(formats[i]->name, name) == 0)
			return formats[i];
	}
	return NULL;
}

void
document_init(struct document *document, const char *kind)
{
	*document = (struct document){.kind = kind};
}

void
document_free(struct document *document)
{
	for (uint32_t i = 0; i < document->num_fields; i++)
		free(document->fields[i].value.text);
	for (uint32_t i = 0; i < document->num_tables; i++) {
		const struct table *table = &document->tables[i];
		for (uint32_t j = 0; j < table->num_rows * table->num_columns; j++)
			free(table->cells[j].text);
		free(table->cells);
	}
	for (uint32_t i = 0; i < document->num_warnings; i++) {
		free(document->warnings[i].code);
		free(document->warnings[i].text);
		free(document->warnings[i].next);
	}
	free(document->fields);
	free(document->tables);
	free(document->warnings);
	free(document->headline);
	*document = (struct document){0};
}

void
document_field(struct document *document, const char *key, const char *title, struct value value)
{
	document->fields =
		th_realloc(document->fields, document->num_fields + 1, sizeof(document->fields[0]));
	document->fields[document->num_fields++] =
		(struct field){.key = key, .title = title, .value = value};
}

void
document_table(struct document *document, const char *key, const struct column *columns,
	uint32_t num_columns)
{
	TH_ASSERT(num_columns <= OUTPUT_COLUMNS_MAX);
	document->tables =
		th_realloc(document->tables, document->num_tables + 1, sizeof(document->tables[0]));
	document->tables[document->num_tables++] =
		(struct table){.key = key, .columns = columns, .num_columns = num_columns};
}

void
document_table_wide(struct document *document)
{
	TH_ASSERT(document->num_tables > 0);
	document->tables[document->num_tables - 1].wide = true;
}

void
document_row(struct document *document, const struct value *values)
{
	TH_ASSERT(document->num_tables > 0);
	struct table *table = &document->tables[document->num_tables - 1];
	size_t used = (size_t)table->num_rows * table->num_columns;

	table->cells = th_realloc(table->cells, used + table->num_columns, sizeof(table->cells[0]));
	memcpy(table->cells + used, values, table->num_columns * sizeof(values[0]));
	table->num_rows++;
}

void
document_warn(
	struct document *document, const char *code, const char *next, const char *format, ...)
{
	va_list arguments;

	document->warnings = th_realloc(
		document->warnings, document->num_warnings + 1, sizeof(document->warnings[0]));
	va_start(arguments, format);
	document->warnings[document->num_warnings++] = (struct warning){
		.code = th_strdup(code),
		.next = next ? th_strdup(next) : NULL,
		.text = print_text(format, arguments),
	};
	va_end(arguments);
}
