/* SPDX-License-Identifier: Apache-2.0 */
/*
 * units - see units.h. Integers only: a double would lose bytes above 2^53. Pure.
 */
#include "ipc/base/units.h"

#include <stdio.h>
#include <string.h>

#include "ipc/base/err.h"

struct unit {
	const char *name;
	uint64_t factor;
};

/* Ascending: printing takes the last that fits. */
static const struct unit duration_units[] = {
	{"ns", 1},
	{"us", 1000},
	{"ms", 1000 * 1000},
	{"s", UINT64_C(1000) * 1000 * 1000},
	{"m", UINT64_C(60) * 1000 * 1000 * 1000},
	{"h", UINT64_C(3600) * 1000 * 1000 * 1000},
	{"d", UINT64_C(24) * 3600 * 1000 * 1000 * 1000},
};

static const struct unit size_units[] = {
	{"B", 1},
	{"KiB", UINT64_C(1) << 10},
	{"MiB", UINT64_C(1) << 20},
	{"GiB", UINT64_C(1) << 30},
	{"TiB", UINT64_C(1) << 40},
};

static const struct unit decimal_size_units[] = {
	{"KB", 1000},
	{"MB", 1000 * 1000},
	{"GB", UINT64_C(1000) * 1000 * 1000},
	{"TB", UINT64_C(1000) * 1000 * 1000 * 1000},
};

static const struct unit *
find_unit(const struct unit *units, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(units[i].name, name) == 0)
			return &units[i];
	return NULL;
}

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

struct decimal {
	uint64_t whole;
	uint64_t fraction, scale; /* fraction / scale, scale a power of ten */
	const char *rest;
};

static int
parse_decimal(const char *text, struct decimal *ret_decimal)
{
	struct decimal decimal = {.scale = 1};

	if (!is_digit(*text))
		return TH_E_INVALID;
	for (; is_digit(*text); text++)
		if (!th_mul_u64(decimal.whole, 10, &decimal.whole) ||
			!th_add_u64(decimal.whole, (uint64_t)(*text - '0'), &decimal.whole))
			return TH_E_INVALID;
	if (*text == '.') {
		if (!is_digit(*++text))
			return TH_E_INVALID;
		/* Six places are enough for anybody, and keep scale_decimal() within 64 bits. */
		for (; is_digit(*text); text++) {
			if (decimal.scale == 1000000)
				return TH_E_INVALID;
			decimal.fraction = decimal.fraction * 10 + (uint64_t)(*text - '0');
			decimal.scale *= 10;
		}
	}
	decimal.rest = text;
	*ret_decimal = decimal;
	return 0;
}

/* What does not fill a whole ns or byte is dropped. */
static int
scale_decimal(const struct decimal *decimal, uint64_t factor, uint64_t *ret_value)
{
	uint64_t value;
	/* fraction * factor / scale, in two steps of which neither can overflow. */
	uint64_t part = decimal->fraction * (factor / decimal->scale) +
			decimal->fraction * (factor % decimal->scale) / decimal->scale;

	if (!th_mul_u64(decimal->whole, factor, &value) || !th_add_u64(value, part, &value))
		return TH_E_INVALID;
	*ret_value = value;
	return 0;
}

int
th_parse_duration(const char *text, int64_t *ret_ns)
{
	struct decimal decimal;
	uint64_t ns;

	if (text == NULL || parse_decimal(text, &decimal) != 0)
		return TH_E_INVALID;
	const struct unit *unit =
		find_unit(duration_units, TH_ARRAY_LEN(duration_units), decimal.rest);
	if (unit == NULL) {
		if (*decimal.rest != '\0' || decimal.whole != 0 || decimal.fraction != 0)
			return TH_E_INVALID;
		unit = &duration_units[0];
	}
	if (scale_decimal(&decimal, unit->factor, &ns) != 0 || ns > INT64_MAX)
		return TH_E_INVALID;
	*ret_ns = (int64_t)ns;
	return 0;
}

int
th_parse_size(const char *text, uint64_t *ret_bytes)
{
	struct decimal decimal;

	if (text == NULL || parse_decimal(text, &decimal) != 0)
		return TH_E_INVALID;
	const char *name = *decimal.rest == '\0' ? "B" : decimal.rest;
	const struct unit *unit = find_unit(size_units, TH_ARRAY_LEN(size_units), name);
	if (unit == NULL)
		unit = find_unit(decimal_size_units, TH_ARRAY_LEN(decimal_size_units), name);
	if (unit == NULL)
		return TH_E_INVALID;
	return scale_decimal(&decimal, unit->factor, ret_bytes);
}

static const struct unit *
largest_exact(const struct unit *units, size_t count, uint64_t value)
{
	const struct unit *best = &units[0];

	for (size_t i = 0; i < count; i++)
		if (value >= units[i].factor && value % units[i].factor == 0)
			best = &units[i];
	return best;
}

/* Three digits: "1.50", "15.0", "150". Cut, not rounded: 1023.9 KiB never reads as 1024 KiB. */
static char *
print_short(const struct unit *units, size_t count, uint64_t value, char *buffer)
{
	const struct unit *unit = &units[0];

	for (size_t i = 0; i < count; i++)
		if (value >= units[i].factor)
			unit = &units[i];
	uint64_t whole = value / unit->factor;
	/* The remainder is less than the factor, and that less than 2^64 / 100. */
	unsigned int hundredths = (unsigned int)(value % unit->factor * 100 / unit->factor);
	if (unit->factor == 1 || whole >= 100)
		(void)snprintf(
			buffer, TH_UNITS_BYTES, "%llu%s", (unsigned long long)whole, unit->name);
	else if (whole >= 10)
		(void)snprintf(buffer, TH_UNITS_BYTES, "%llu.%u%s", (unsigned long long)whole,
			hundredths / 10, unit->name);
	else
		(void)snprintf(buffer, TH_UNITS_BYTES, "%llu.%02u%s", (unsigned long long)whole,
			hundredths, unit->name);
	return buffer;
}

/* Negative durations are differences; people read them as such. */
static uint64_t
magnitude(int64_t ns)
{
	return ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
}

char *
th_print_duration(int64_t ns, char buffer[TH_UNITS_BYTES])
{
	uint64_t value = magnitude(ns);
	const struct unit *unit =
		value == 0 ? &duration_units[3]
			   : largest_exact(duration_units, TH_ARRAY_LEN(duration_units), value);

	(void)snprintf(buffer, TH_UNITS_BYTES, "%s%llu%s", ns < 0 ? "-" : "",
		(unsigned long long)(value / unit->factor), unit->name);
	return buffer;
}

char *
th_print_size(uint64_t bytes, char buffer[TH_UNITS_BYTES])
{
	const struct unit *unit = largest_exact(size_units, TH_ARRAY_LEN(size_units), bytes);

	(void)snprintf(buffer, TH_UNITS_BYTES, "%llu%s", (unsigned long long)(bytes / unit->factor),
		unit->name);
	return buffer;
}

char *
th_print_duration_short(int64_t ns, char buffer[TH_UNITS_BYTES])
{
	if (ns == 0)
		return th_print_duration(0, buffer);
	if (ns > 0)
		return print_short(
			duration_units, TH_ARRAY_LEN(duration_units), (uint64_t)ns, buffer);
	char positive[TH_UNITS_BYTES];
	print_short(duration_units, TH_ARRAY_LEN(duration_units), magnitude(ns), positive);
	(void)snprintf(buffer, TH_UNITS_BYTES, "-%.30s", positive);
	return buffer;
}

char *
th_print_size_short(uint64_t bytes, char buffer[TH_UNITS_BYTES])
{
	return print_short(size_units, TH_ARRAY_LEN(size_units), bytes, buffer);
}
