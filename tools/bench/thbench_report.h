/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_report - what was measured, independent of how it is shown.
 *
 * A verb fills one section or more: facts, series of samples, ratios between them with their goals,
 * notes. Keys are the names in JSON and are never renamed; titles are for people. One owner; a
 * shortage of memory ends the process.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_REPORT_H
#define TH_TOOLS_BENCH_THBENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/bench/thbench_stats.h"

#define REPORT_SCHEMA "thbench/1"

struct fact {
	char *key, *title; /* owns */
	char *text;        /* owns; NULL: it is a number */
	double number;
	const char *unit; /* static; "" for none, "B" for bytes */
};

struct series {
	char *key, *title; /* owns */
	const char *unit;  /* static: "GB/s", "us", "ms", "s" */
	struct samples samples;
};

enum goal {
	GOAL_NONE,
	GOAL_AT_LEAST,
	GOAL_AT_MOST,
};

struct ratio {
	char *key, *title; /* owns */
	uint32_t of, to;   /* which series of the section */
	enum goal goal;
	double bound;
};

struct section {
	const char *verb; /* static */
	char *title;      /* owns */
	uint32_t num_facts, num_series, num_ratios, num_notes;
	struct fact *facts;
	struct series *series;
	struct ratio *ratios;
	char **notes;
};

struct report {
	uint32_t num_facts, num_sections;
	struct fact *facts; /* of the machine */
	struct section **sections;
};

void report_free(struct report *report);
struct section *report_section(struct report *report, const char *verb, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

void report_fact(
	struct report *report, const char *key, const char *title, double number, const char *unit);
void report_fact_text(struct report *report, const char *key, const char *title, const char *text);
void section_fact(struct section *section, const char *key, const char *title, double number,
	const char *unit);
void section_fact_text(
	struct section *section, const char *key, const char *title, const char *text);
/* Returns its index. */
uint32_t section_series(
	struct section *section, const char *key, const char *title, const char *unit);
void section_add(struct section *section, uint32_t series, double value);
void section_ratio(struct section *section, const char *key, const char *title, uint32_t of,
	uint32_t to, enum goal goal, double bound);
/* Something that whoever reads the figures has to know: what was left out, and why. */
void section_note(struct section *section, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

void report_print_table(const struct report *report, FILE *to);
void report_print_json(const struct report *report, FILE *to);

#endif
