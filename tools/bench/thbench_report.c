/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_report - filling a report, and printing it as a table or as JSON (see
 * thbench_report.h).
 */
#include "tools/bench/thbench_report.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/units.h"
#include "tools/thctl/output.h"

#define TITLE_COLUMNS 50

/* ---- filling -------------------------------------------------------------------------------- */

static char *
thbench_report_print(const char *format, va_list arguments)
{
	char *text;
	int rc = vasprintf(&text, format, arguments);

	TH_ASSERT(rc >= 0);
	return text;
}

static void
add_fact(struct fact **facts, uint32_t *count, const struct fact *fact)
{
	*facts = th_realloc(*facts, (size_t)*count + 1, sizeof(**facts));
	(*facts)[(*count)++] = *fact;
}

static struct fact
number_fact(const char *key, const char *title, double number, const char *unit)
{
	return (struct fact){
		.key = th_strdup(key), .title = th_strdup(title), .number = number, .unit = unit};
}

static struct fact
text_fact(const char *key, const char *title, const char *text)
{
	return (struct fact){.key = th_strdup(key),
		.title = th_strdup(title),
		.text = output_harmless(text),
		.unit = ""};
}

struct section *
report_section(struct report *report, const char *verb, const char *format, ...)
{
	struct section *section = th_calloc(1, sizeof(*section));
	va_list arguments;

	section->verb = verb;
	va_start(arguments, format);
	section->title = thbench_report_print(format, arguments);
	va_end(arguments);
	report->sections = th_realloc(
		report->sections, (size_t)report->num_sections + 1, sizeof(report->sections[0]));
	report->sections[report->num_sections++] = section;
	return section;
}

void
report_fact(
	struct report *report, const char *key, const char *title, double number, const char *unit)
{
	struct fact fact = number_fact(key, title, number, unit);

	add_fact(&report->facts, &report->num_facts, &fact);
}

void
report_fact_text(struct report *report, const char *key, const char *title, const char *text)
{
	struct fact fact = text_fact(key, title, text);

	add_fact(&report->facts, &report->num_facts, &fact);
}

void
section_fact(struct section *section, const char *key, const char *title, double number,
	const char *unit)
{
	struct fact fact = number_fact(key, title, number, unit);

	add_fact(&section->facts, &section->num_facts, &fact);
}

void
section_fact_text(struct section *section, const char *key, const char *title, const char *text)
{
	struct fact fact = text_fact(key, title, text);

	add_fact(&section->facts, &section->num_facts, &fact);
}

uint32_t
section_series(struct section *section, const char *key, const char *title, const char *unit)
{
	section->series = th_realloc(
		section->series, (size_t)section->num_series + 1, sizeof(section->series[0]));
	section->series[section->num_series] =
		(struct series){.key = th_strdup(key), .title = th_strdup(title), .unit = unit};
	return section->num_series++;
}

void
section_add(struct section *section, uint32_t series, double value)
{
	TH_ASSERT(series < section->num_series);
	samples_add(&section->series[series].samples, value);
}

void
section_ratio(struct section *section, const char *key, const char *title, uint32_t of, uint32_t to,
	enum goal goal, double bound)
{
	TH_ASSERT(of < section->num_series && to < section->num_series);
	section->ratios = th_realloc(
		section->ratios, (size_t)section->num_ratios + 1, sizeof(section->ratios[0]));
	section->ratios[section->num_ratios++] = (struct ratio){.key = th_strdup(key),
		.title = th_strdup(title),
		.of = of,
		.to = to,
		.goal = goal,
		.bound = bound};
}

void
section_note(struct section *section, const char *format, ...)
{
	va_list arguments;

	section->notes = th_realloc(
		section->notes, (size_t)section->num_notes + 1, sizeof(section->notes[0]));
	va_start(arguments, format);
	char *text = thbench_report_print(format, arguments);
	va_end(arguments);
	section->notes[section->num_notes++] = output_harmless(text);
	free(text);
}

static void
free_facts(struct fact *facts, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		free(facts[i].key);
		free(facts[i].title);
		free(facts[i].text);
	}
	free(facts);
}

static void
free_section(struct section *section)
{
	for (uint32_t i = 0; i < section->num_series; i++) {
		free(section->series[i].key);
		free(section->series[i].title);
		samples_free(&section->series[i].samples);
	}
	for (uint32_t i = 0; i < section->num_ratios; i++) {
		free(section->ratios[i].key);
		free(section->ratios[i].title);
	}
	for (uint32_t i = 0; i < section->num_notes; i++)
		free(section->notes[i]);
	free_facts(section->facts, section->num_facts);
	free(section->series);
	free(section->ratios);
	free(section->notes);
	free(section->title);
	free(section);
}

void
report_free(struct report *report)
{
	for (uint32_t i = 0; i < report->num_sections; i++)
		free_section(report->sections[i]);
	free_facts(report->facts, report->num_facts);
	free(report->sections);
	*report = (struct report){0};
}

/* ---- for people ----------------------------------------------------------------------------- */

static void
print_fact(const struct fact *fact, FILE *to)
{
	char size[TH_UNITS_BYTES];

	if (fact->text) {
		fprintf(to, "  %-*s %s\n", TITLE_COLUMNS, fact->title, fact->text);
	} else if (strcmp(fact->unit, "B") == 0) {
		uint64_t bytes = (uint64_t)fact->number;
		th_print_size_short(bytes, size);
		/* As people give it: 50 MB are not 47.7 MiB. */
		if (bytes > 0 && bytes % 1000000 == 0)
			snprintf(size, sizeof(size), "%" PRIu64 "MB", bytes / 1000000);
		fprintf(to, "  %-*s %s\n", TITLE_COLUMNS, fact->title, size);
	} else {
		fprintf(to, "  %-*s %.4g%s%s\n", TITLE_COLUMNS, fact->title, fact->number,
			*fact->unit ? " " : "", fact->unit);
	}
}

static void
print_ratio(const struct section *section, const struct ratio *ratio, FILE *to)
{
	struct ratio_range range = samples_ratio(
		&section->series[ratio->of].samples, &section->series[ratio->to].samples);
	bool met = ratio->goal == GOAL_AT_LEAST ? range.ratio >= ratio->bound
						: range.ratio <= ratio->bound;

	fprintf(to, "  %-*s %9.3f %9.3f %9.3f", TITLE_COLUMNS, ratio->title, range.ratio, range.min,
		range.max);
	if (ratio->goal != GOAL_NONE)
		fprintf(to, "  %s %g: %s", ratio->goal == GOAL_AT_LEAST ? ">=" : "<=", ratio->bound,
			met ? "met" : "missed");
	fputc('\n', to);
}

static void
print_section(const struct section *section, FILE *to)
{
	fprintf(to, "\n%s: %s\n", section->verb, section->title);
	for (uint32_t i = 0; i < section->num_facts; i++)
		print_fact(&section->facts[i], to);
	if (section->num_series > 0)
		fprintf(to, "  %-*s %9s %9s %9s %9s\n", TITLE_COLUMNS, "", "median", "min", "max",
			"p99");
	for (uint32_t i = 0; i < section->num_series; i++) {
		const struct series *series = &section->series[i];
		fprintf(to, "  %-*s %9.3f %9.3f %9.3f %9.3f %s\n", TITLE_COLUMNS, series->title,
			samples_median(&series->samples), samples_min(&series->samples),
			samples_max(&series->samples), samples_quantile(&series->samples, 0.99),
			series->unit);
	}
	if (section->num_ratios > 0)
		fprintf(to, "  %-*s %9s %9s %9s\n", TITLE_COLUMNS, "", "ratio", "min", "max");
	for (uint32_t i = 0; i < section->num_ratios; i++)
		print_ratio(section, &section->ratios[i], to);
	for (uint32_t i = 0; i < section->num_notes; i++)
		fprintf(to, "  note: %s\n", section->notes[i]);
}

void
report_print_table(const struct report *report, FILE *to)
{
	fprintf(to, "machine\n");
	for (uint32_t i = 0; i < report->num_facts; i++)
		print_fact(&report->facts[i], to);
	for (uint32_t i = 0; i < report->num_sections; i++)
		print_section(report->sections[i], to);
}

/* ---- for programs --------------------------------------------------------------------------- */

/* Only memory can be missing here: keys are our own. */
static void
thbench_report_put(json_t *object, const char *key, json_t *value)
{
	TH_ASSERT(json_object_set_new(object, key, value) == 0);
}

static void
thbench_report_append(json_t *list, json_t *value)
{
	TH_ASSERT(json_array_append_new(list, value) == 0);
}

/* A number without a fraction is an integer: bytes are compared as such. */
static json_t *
json_number(double number)
{
	if (number >= -9e15 && number <= 9e15 &&
		(double)(int64_t)number == number) /* exact there */
		return json_integer((json_int_t)number);
	return json_real(number);
}

static json_t *
facts_to_json(const struct fact *facts, uint32_t count)
{
	json_t *object = json_object();

	for (uint32_t i = 0; i < count; i++)
		thbench_report_put(object, facts[i].key,
			facts[i].text ? json_string(facts[i].text) : json_number(facts[i].number));
	return object;
}

static json_t *
series_to_json(const struct series *series)
{
	json_t *object = json_object(), *samples = json_array();

	for (uint32_t i = 0; i < series->samples.count; i++)
		thbench_report_append(samples, json_real(series->samples.values[i]));
	thbench_report_put(object, "title", json_string(series->title));
	thbench_report_put(object, "unit", json_string(series->unit));
	thbench_report_put(object, "median", json_real(samples_median(&series->samples)));
	thbench_report_put(object, "min", json_real(samples_min(&series->samples)));
	thbench_report_put(object, "max", json_real(samples_max(&series->samples)));
	thbench_report_put(object, "p99", json_real(samples_quantile(&series->samples, 0.99)));
	thbench_report_put(object, "samples", samples);
	return object;
}

static json_t *
ratio_to_json(const struct section *section, const struct ratio *ratio)
{
	struct ratio_range range = samples_ratio(
		&section->series[ratio->of].samples, &section->series[ratio->to].samples);
	json_t *object = json_object();

	thbench_report_put(object, "title", json_string(ratio->title));
	thbench_report_put(object, "of", json_string(section->series[ratio->of].key));
	thbench_report_put(object, "to", json_string(section->series[ratio->to].key));
	thbench_report_put(object, "ratio", json_real(range.ratio));
	thbench_report_put(object, "min", json_real(range.min));
	thbench_report_put(object, "max", json_real(range.max));
	thbench_report_put(object, "at_least",
		ratio->goal == GOAL_AT_LEAST ? json_real(ratio->bound) : json_null());
	thbench_report_put(object, "at_most",
		ratio->goal == GOAL_AT_MOST ? json_real(ratio->bound) : json_null());
	return object;
}

static json_t *
section_to_json(const struct section *section)
{
	json_t *object = json_object(), *series = json_object(), *ratios = json_object();
	json_t *notes = json_array();

	for (uint32_t i = 0; i < section->num_series; i++)
		thbench_report_put(
			series, section->series[i].key, series_to_json(&section->series[i]));
	for (uint32_t i = 0; i < section->num_ratios; i++)
		thbench_report_put(ratios, section->ratios[i].key,
			ratio_to_json(section, &section->ratios[i]));
	for (uint32_t i = 0; i < section->num_notes; i++)
		thbench_report_append(notes, json_string(section->notes[i]));
	thbench_report_put(object, "verb", json_string(section->verb));
	thbench_report_put(object, "title", json_string(section->title));
	thbench_report_put(object, "facts", facts_to_json(section->facts, section->num_facts));
	thbench_report_put(object, "series", series);
	thbench_report_put(object, "ratios", ratios);
	thbench_report_put(object, "notes", notes);
	return object;
}

void
report_print_json(const struct report *report, FILE *to)
{
	json_t *root = json_object(), *results = json_array();

	for (uint32_t i = 0; i < report->num_sections; i++)
		thbench_report_append(results, section_to_json(report->sections[i]));
	thbench_report_put(root, "schema", json_string(REPORT_SCHEMA));
	thbench_report_put(root, "machine", facts_to_json(report->facts, report->num_facts));
	thbench_report_put(root, "results", results);
	json_dumpf(root, to, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	fputc('\n', to);
	json_decref(root);
}
