/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output - what a verb has to say, independent of how it is shown.
 *
 * A verb fills one document (fields, tables, warnings); the format chosen with -o prints it. All
 * formats print the same document, so none can lag behind another. A key is the name in JSON and is
 * never renamed; a title is for people. Text may come from other processes: every format makes it
 * harmless. One owner; a shortage of memory ends the process.
 */
#ifndef TH_TOOLS_THCTL_OUTPUT_H
#define TH_TOOLS_THCTL_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define OUTPUT_SCHEMA "thctl/1"
#define OUTPUT_COLUMNS_MAX 18u

enum value_kind {
	VALUE_NONE, /* not known, or does not apply: "-", null                                 */
	VALUE_TEXT,
	VALUE_NUMBER,
	VALUE_BYTES,
	VALUE_RATE,     /* bytes a second                                                      */
	VALUE_DURATION, /* ns                                                                  */
	VALUE_FLAG,     /* yes or no                                                           */
	VALUE_RATIO,    /* done of total: per cent for people, 0..1 in JSON                    */
};

struct value {
	enum value_kind kind;
	char *text; /* VALUE_TEXT, owned by the document once handed over                      */
	uint64_t number, total;
	int64_t ns;
};

struct value value_none(void);
struct value value_text(const char *text); /* copies; NULL and "" give VALUE_NONE          */
struct value value_textf(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct value value_number(uint64_t number);
struct value value_bytes(uint64_t bytes);
struct value value_rate(uint64_t bytes);
struct value value_duration(int64_t ns);
struct value value_flag(bool flag);
struct value value_ratio(uint64_t done, uint64_t total);

struct column {
	const char *key, *title; /* static */
	bool wide;               /* tables show it only with -o wide; JSON always               */
};

struct field {
	const char *key, *title; /* static; title NULL: only in JSON and wide                   */
	struct value value;
};

struct table {
	const char *key; /* static */
	bool wide;       /* as a column's                                                        */
	uint32_t num_columns, num_rows;
	const struct column *columns; /* static */
	struct value *cells;          /* owns: rows one behind the other                      */
};

struct warning {
	char *code, *text, *next; /* owns; next: the command to run, NULL when there is none    */
};

struct document {
	const char *kind; /* static: "status", "models"...                                    */
	bool one_line;    /* fields only: one line of text, or one of JSON                    */
	bool has_verdict; /* the verdict is printed first: HEALTH_OK, or what is wrong        */
	char *headline;   /* owns: follows the verdict, or is a line of its own; NULL: none   */
	uint32_t num_fields, num_tables, num_warnings;
	struct field *fields;     /* owns */
	struct table *tables;     /* owns */
	struct warning *warnings; /* owns */
};

struct output_format {
	const char *name;
	void (*print)(const struct document *document, bool colour, FILE *to);
};

extern const struct output_format output_table, output_wide, output_json;

/* NULL for another name. */
const struct output_format *output_find(const char *name);

void document_init(struct document *document, const char *kind);
void document_free(struct document *document);
void document_field(
	struct document *document, const char *key, const char *title, struct value value);
/* Rows are added to the table that was begun last. values[num_columns], taken over. */
void document_table(struct document *document, const char *key, const struct column *columns,
	uint32_t num_columns);
void document_table_wide(struct document *document); /* only -o wide and JSON show it       */
void document_row(struct document *document, const struct value *values);
void document_warn(struct document *document, const char *code, const char *next,
	const char *format, ...) __attribute__((format(printf, 4, 5)));

/* For people; "-" for VALUE_NONE. The caller frees it. */
char *value_print(const struct value *value);

/* A copy without control characters and with U+FFFD where it is not UTF-8. The caller frees it. */
char *output_harmless(const char *text);

/* Colour is for a terminal, and not where NO_COLOR is set or TERM says dumb. */
bool output_colour(int fd);

#endif
