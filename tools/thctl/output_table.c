/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_table - the formats for people: table, and wide with the columns that table leaves out.
 *
 * The verdict comes first, the warnings with the command to run next come last. A column is as wide
 * as its longest cell; what is not on a terminal has no colour, so that it can be cut and compared.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "tools/thctl/output.h"

#define GAP "  "
#define COLOUR_GOOD "\x1b[32m"
#define COLOUR_BAD "\x1b[33m"
#define COLOUR_TITLE "\x1b[1m"
#define COLOUR_END "\x1b[0m"

/* Characters, as a terminal counts them well enough: not the bytes that continue one. */
static size_t
text_width(const char *text)
{
	size_t width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

static void
print_padded(const char *text, size_t width, bool right, bool last, FILE *to)
{
	size_t pad = width > text_width(text) ? width - text_width(text) : 0;

	if (right)
		fprintf(to, "%*s", (int)pad, "");
	fputs(text, to);
	/* No spaces at the end of a line. */
	if (!right && !last)
		fprintf(to, "%*s", (int)pad, "");
	fputs(last ? "\n" : GAP, to);
}

static void
print_verdict(const struct document *document, bool colour, FILE *to)
{
	const char *begin = document->num_warnings == 0 ? COLOUR_GOOD : COLOUR_BAD;

	fprintf(to, "%s%s", colour ? begin : "",
		document->num_warnings == 0 ? "HEALTH_OK" : "HEALTH_WARN");
	for (uint32_t i = 0; i < document->num_warnings; i++) {
		bool again = false;
		for (uint32_t j = 0; j < i; j++)
			again |=
				strcmp(document->warnings[i].code, document->warnings[j].code) == 0;
		if (!again)
			fprintf(to, GAP "%s", document->warnings[i].code);
	}
	fputs(colour ? COLOUR_END : "", to);
	if (document->headline) {
		char *headline = output_harmless(document->headline);
		fprintf(to, GAP "%s", headline);
		free(headline);
	}
	fputc('\n', to);
}

static void
print_fields(const struct document *document, bool wide, FILE *to)
{
	size_t width = 0;

	for (uint32_t i = 0; i < document->num_fields; i++) {
		const struct field *field = &document->fields[i];
		const char *title = field->title ? field->title : field->key;
		if (field->title || wide)
			width = th_max_u64(width, text_width(title));
	}
	for (uint32_t i = 0; i < document->num_fields; i++) {
		const struct field *field = &document->fields[i];
		if (!field->title && !wide)
			continue;
		char *text = value_print(&field->value);
		print_padded(field->title ? field->title : field->key, width, false, false, to);
		fprintf(to, "%s\n", text);
		free(text);
	}
}

/* Numbers stand on the right, and so do the dashes among them. */
static bool
is_numeric(const struct table *table, uint32_t column)
{
	bool numeric = false;

	for (uint32_t row = 0; row < table->num_rows; row++) {
		enum value_kind kind = table->cells[row * table->num_columns + column].kind;
		if (kind == VALUE_TEXT || kind == VALUE_FLAG)
			return false;
		numeric |= kind != VALUE_NONE;
	}
	return numeric;
}

static void
print_table(const struct table *table, bool wide, bool colour, FILE *to)
{
	size_t width[OUTPUT_COLUMNS_MAX] = {0};
	bool numeric[OUTPUT_COLUMNS_MAX] = {false};
	uint32_t last = 0;
	uint32_t count = table->num_columns;

	char **texts = th_calloc((size_t)(table->num_rows + 1) * count, sizeof(texts[0]));
	for (uint32_t column = 0; column < count; column++) {
		if (table->columns[column].wide && !wide)
			continue;
		last = column;
		numeric[column] = is_numeric(table, column);
		width[column] = text_width(table->columns[column].title);
		for (uint32_t row = 0; row < table->num_rows; row++) {
			uint32_t cell = row * count + column;
			texts[cell] = value_print(&table->cells[cell]);
			width[column] = th_max_u64(width[column], text_width(texts[cell]));
		}
	}
	fputs(colour ? COLOUR_TITLE : "", to);
	for (uint32_t column = 0; column <= last; column++) {
		if (width[column] > 0)
			print_padded(table->columns[column].title, width[column], numeric[column],
				column == last, to);
	}
	fputs(colour ? COLOUR_END : "", to);
	for (uint32_t row = 0; row < table->num_rows; row++) {
		for (uint32_t column = 0; column <= last; column++) {
			if (width[column] > 0)
				print_padded(texts[row * count + column], width[column],
					numeric[column], column == last, to);
		}
	}
	for (uint32_t cell = 0; cell < table->num_rows * count; cell++)
		free(texts[cell]);
	free(texts);
}

static void
print_warnings(const struct document *document, bool colour, FILE *to)
{
	for (uint32_t i = 0; i < document->num_warnings; i++) {
		const struct warning *warning = &document->warnings[i];
		char *text = output_harmless(warning->text);
		fprintf(to, "%swarn %s%s  %s", colour ? COLOUR_BAD : "", warning->code,
			colour ? COLOUR_END : "", text);
		if (warning->next)
			fprintf(to, "  try: %s", warning->next);
		fputc('\n', to);
		free(text);
	}
}

static void
print_line(const struct document *document, bool wide, FILE *to)
{
	bool first = true;

	for (uint32_t i = 0; i < document->num_fields; i++) {
		const struct field *field = &document->fields[i];
		if (!field->title && !wide)
			continue;
		char *text = value_print(&field->value);
		fprintf(to, "%s%s", first ? "" : "  ", text);
		free(text);
		first = false;
	}
	fputc('\n', to);
}

static void
print_document(const struct document *document, bool wide, bool colour, FILE *to)
{
	if (document->one_line) {
		print_line(document, wide, to);
		return;
	}
	if (document->has_verdict) {
		print_verdict(document, colour, to);
	} else if (document->headline) {
		char *headline = output_harmless(document->headline);
		fprintf(to, "%s\n", headline);
		free(headline);
	}
	print_fields(document, wide, to);
	for (uint32_t i = 0; i < document->num_tables; i++) {
		const struct table *table = &document->tables[i];
		bool alone = document->num_tables == 1 && document->num_fields == 0;
		/* A list that is empty still shows its titles; a part of a status is left out. */
		if ((table->num_rows == 0 && !alone) || (table->wide && !wide))
			continue;
		if (!alone)
			fputc('\n', to);
		print_table(table, wide, colour, to);
	}
	if (document->has_verdict && document->num_warnings > 0 && document->num_tables > 0)
		fputc('\n', to);
	print_warnings(document, colour, to);
}

static void
print_narrow(const struct document *document, bool colour, FILE *to)
{
	print_document(document, false, colour, to);
}

static void
print_wide(const struct document *document, bool colour, FILE *to)
{
	print_document(document, true, colour, to);
}

const struct output_format output_table = {.name = "table", .print = print_narrow};
const struct output_format output_wide = {.name = "wide", .print = print_wide};
