/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name - see name.h. Pure; cores use it, so it calls nothing but memory and string functions.
 */
#include "ipc/base/name.h"

#include <string.h>

#include "ipc/base/utf8.h"

bool
th_name_valid(const char *name, size_t max)
{
	if (name == NULL)
		return false;
	size_t len = strnlen(name, max + 1);
	if (len == 0 || len > max)
		return false;
	for (size_t at = 0; at < len;) {
		size_t count = th_utf8_char(name + at, len - at);
		if (count == 0 || th_utf8_is_control(name + at, count))
			return false;
		at += count;
	}
	return true;
}

bool
th_cluster_fits(const char *a, const char *b)
{
	return a[0] == '\0' || b[0] == '\0' || strcmp(a, b) == 0;
}

int
th_name_copy(char ret_name[TH_NAME_MAX + 1], const char *text)
{
	size_t len = strnlen(text, TH_NAME_MAX + 1);

	if (len > TH_NAME_MAX)
		return TH_E_INVALID;
	memcpy(ret_name, text, len);
	ret_name[len] = '\0';
	return 0;
}

bool
th_hash_equal(struct th_hash a, struct th_hash b)
{
	return a.lo == b.lo && a.hi == b.hi;
}

bool
th_hash_none(struct th_hash hash)
{
	return (hash.lo | hash.hi) == 0;
}

bool
th_version_none(struct th_version version)
{
	return version.version == TH_NO_VERSION;
}

int
th_version_compare(struct th_version a, struct th_version b)
{
	bool a_none = th_version_none(a), b_none = th_version_none(b);

	if (a_none || b_none)
		return (int)b_none - (int)a_none;
	if (a.lineage != b.lineage)
		return a.lineage < b.lineage ? -1 : 1;
	if (a.version != b.version)
		return a.version < b.version ? -1 : 1;
	return 0;
}

/* By hand and not by strtoull, which takes spaces, signs and the locale. */
static int
name_parse_number(const char *text, uint64_t *ret_number)
{
	uint64_t number = 0;

	if (*text == '\0')
		return TH_E_INVALID;
	for (; *text != '\0'; text++) {
		if (*text < '0' || *text > '9' || !th_mul_u64(number, 10, &number) ||
			!th_add_u64(number, (uint64_t)(*text - '0'), &number))
			return TH_E_INVALID;
	}
	*ret_number = number;
	return 0;
}

int
th_spec_parse(const char *text, struct th_spec *ret_spec)
{
	static const char latest[] = "latest";
	const size_t latest_len = sizeof(latest) - 1;
	struct th_spec spec = {0};

	if (text == NULL || strnlen(text, TH_SPEC_MAX + 1) > TH_SPEC_MAX)
		return TH_E_INVALID;
	if (strncmp(text, latest, latest_len) == 0) {
		const char *rest = text + latest_len;
		spec.relative = true;
		/* No "latest-0" and no "latest-01": one meaning has one spelling. */
		if (*rest != '\0' && (rest[0] != '-' || rest[1] == '0' ||
					     name_parse_number(rest + 1, &spec.number) != 0))
			return TH_E_INVALID;
	} else if (name_parse_number(text, &spec.number) != 0 || spec.number == TH_NO_VERSION) {
		return TH_E_INVALID;
	}
	*ret_spec = spec;
	return 0;
}
