/* SPDX-License-Identifier: Apache-2.0 */
/* keys_page - see keys_page.h. */
#include "tests/support/keys_page.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/units.h"

#define PAGE TH_SOURCE_ROOT "/man/thagentd.conf.5"
#define ROWS_MAX 64

struct row {
	char key[40], value[24], preset[64], range[96];
};

static const struct keys_page *page;
static struct row rows[ROWS_MAX];
static uint32_t num_rows;

/* What stands before the next " Ta ", or before the end; NULL: nothing is left. */
static const char *
column(char **at)
{
	char *begin = *at, *end = begin ? strstr(begin, " Ta ") : NULL;
	*at = end ? end + 4 : NULL;
	if (end)
		*end = '\0';
	return begin;
}

static void
read_row(char *line)
{
	char *at = line + strlen(".It Cm ");
	const char *columns[4];
	for (size_t i = 0; i < TH_ARRAY_LEN(columns); i++) {
		columns[i] = column(&at);
		cr_assert(columns[i], "%s: a row has four columns: %s", PAGE, line);
	}
	cr_assert_null(at, "%s: a row has four columns: %s", PAGE, line);
	cr_assert_lt(num_rows, ROWS_MAX);
	struct row *row = &rows[num_rows++];
	snprintf(row->key, sizeof(row->key), "%s", columns[0]);
	snprintf(row->value, sizeof(row->value), "%s", columns[1]);
	snprintf(row->preset, sizeof(row->preset), "%s", columns[2]);
	snprintf(row->range, sizeof(row->range), "%s", columns[3]);
}

static void
read_rows(void)
{
	char line[256], section[64];
	bool here = false;
	FILE *file = fopen(PAGE, "re");
	cr_assert(file, "%s: %s", PAGE, strerror(errno));
	snprintf(section, sizeof(section), ".Sh %s", page->section);
	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, ".Sh ", 4) == 0)
			here = strcmp(line, section) == 0;
		if (here && strncmp(line, ".It Cm ", 7) == 0)
			read_row(line);
	}
	fclose(file);
}

static void
taken(const struct row *row, const char *value)
{
	struct th_err err = {0};
	page->reset();
	int rc = page->set(row->key, value, &err);
	cr_expect_eq(rc, 0, "%s: \"%s\" is on the page and refused: %s", row->key, value, err.text);
}

static void
refused(const struct row *row, const char *value)
{
	struct th_err err = {0};
	page->reset();
	int rc = page->set(row->key, value, &err);
	cr_expect_lt(
		rc, 0, "%s: \"%s\" is beyond the range on the page and taken", row->key, value);
}

/* The value next to one, below or above it; false: there is none. */
static bool
beside(const struct row *row, const char *value, bool above, char ret_value[TH_UNITS_BYTES])
{
	uint64_t number = strtoull(value, NULL, 10);
	int64_t ns = 0;
	if (strcmp(row->value, "duration") == 0) {
		cr_assert_eq(th_parse_duration(value, &ns), 0, "%s: %s", row->key, value);
		number = (uint64_t)ns;
	} else if (strcmp(row->value, "number") != 0) {
		cr_assert_eq(th_parse_size(value, &number), 0, "%s: %s", row->key, value);
	}
	if (number == 0 && !above)
		return false;
	snprintf(ret_value, TH_UNITS_BYTES, "%" PRIu64 "%s", above ? number + 1 : number - 1,
		strcmp(row->value, "duration") == 0 ? "ns" : "");
	return true;
}

static void
check_words(const struct row *row)
{
	char list[sizeof(row->range)], *at = list, *word;
	snprintf(list, sizeof(list), "%s", row->range);
	while ((word = strsep(&at, ",")))
		taken(row, word + strspn(word, " "));
	refused(row, "another");
	refused(row, "");
}

static void
check_range(const struct row *row)
{
	char low[TH_UNITS_BYTES], high[TH_UNITS_BYTES], more[TH_UNITS_BYTES];
	bool zero = strncmp(row->range, "0, or ", 6) == 0;
	const char *range = zero ? row->range + 6 : row->range;
	int end = 0;
	if (zero)
		taken(row, "0");
	if (sscanf(range, "%31[^ ] to %31[^ ]%n", low, high, &end) == 2 && range[end] == '\0') {
		taken(row, high);
		if (beside(row, high, true, more))
			refused(row, more);
	} else {
		cr_assert(sscanf(range, "%31[^ ] or more%n", low, &end) == 1 && end > 0 &&
				  range[end] == '\0',
			"%s: no range: %s", row->key, row->range);
	}
	taken(row, low);
	if (beside(row, low, false, more))
		refused(row, more);
}

static void
check_row(const struct row *row)
{
	static const char *const ranged[] = {"number", "duration", "size", "size/s"};
	if (!strchr(row->preset, ' ') && strcmp(row->preset, "-") != 0) {
		taken(row, row->preset);
		cr_expect(page->unset(), "%s: the default is not %s", row->key, row->preset);
	}
	if (strcmp(row->value, "word") == 0)
		check_words(row);
	for (size_t i = 0; i < TH_ARRAY_LEN(ranged); i++) {
		if (strcmp(row->value, ranged[i]) == 0)
			check_range(row);
	}
}

void
keys_page_check(const struct keys_page *of)
{
	page = of;
	num_rows = 0;
	read_rows();
	for (const char *const *key = page->keys; *key; key++) {
		uint32_t times = 0;
		for (uint32_t i = 0; i < num_rows; i++)
			times += strcmp(rows[i].key, *key) == 0;
		cr_expect_eq(times, 1, "%s stands %u times below %s", *key, times, page->section);
	}
	for (uint32_t i = 0; i < num_rows; i++) {
		bool there = false;
		for (const char *const *key = page->keys; *key; key++)
			there = there || strcmp(rows[i].key, *key) == 0;
		cr_expect(there, "%s: there is no key %s", page->section, rows[i].key);
		check_row(&rows[i]);
	}
}
