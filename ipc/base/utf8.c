/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utf8 - see utf8.h. Follows table 3-7 of the Unicode standard: only the second byte of a sequence
 * has a range that depends on the first. Pure; any thread.
 */
#include "ipc/base/utf8.h"

#include <stdint.h>

static bool
in_range(uint8_t byte, uint8_t low, uint8_t high)
{
	return byte >= low && byte <= high;
}

/* Bytes that a sequence with this first byte has; 0 for a byte that starts none. */
static size_t
sequence_bytes(uint8_t first)
{
	if (first < 0x80)
		return 1;
	if (in_range(first, 0xc2, 0xdf))
		return 2;
	if (in_range(first, 0xe0, 0xef))
		return 3;
	if (in_range(first, 0xf0, 0xf4))
		return 4;
	return 0;
}

size_t
th_utf8_char(const char *text, size_t len)
{
	const uint8_t *bytes = (const uint8_t *)text;
	uint8_t low = 0x80, high = 0xbf;

	if (len == 0)
		return 0;
	size_t count = sequence_bytes(bytes[0]);
	if (count > len)
		return 0;
	if (bytes[0] == 0xe0)
		low = 0xa0; /* below: overlong */
	else if (bytes[0] == 0xed)
		high = 0x9f; /* above: surrogates */
	else if (bytes[0] == 0xf0)
		low = 0x90; /* below: overlong */
	else if (bytes[0] == 0xf4)
		high = 0x8f; /* above: beyond U+10FFFF */
	if (count > 1 && !in_range(bytes[1], low, high))
		return 0;
	for (size_t i = 2; i < count; i++)
		if (!in_range(bytes[i], 0x80, 0xbf))
			return 0;
	return count;
}

bool
th_utf8_is_control(const char *text, size_t char_bytes)
{
	const uint8_t *bytes = (const uint8_t *)text;

	if (char_bytes == 1)
		return bytes[0] < 0x20 || bytes[0] == 0x7f;
	return char_bytes == 2 && bytes[0] == 0xc2 && bytes[1] <= 0x9f;
}

bool
th_utf8_valid(const char *text, size_t len)
{
	size_t at = 0;

	while (at < len) {
		size_t count = th_utf8_char(text + at, len - at);
		if (count == 0)
			return false;
		at += count;
	}
	return true;
}

size_t
th_utf8_cut(const char *text, size_t len)
{
	const uint8_t *bytes = (const uint8_t *)text;

	/* Only the last three bytes can begin a sequence that does not fit. */
	for (size_t back = 1; back <= 3 && back <= len; back++) {
		uint8_t byte = bytes[len - back];
		if (in_range(byte, 0x80, 0xbf))
			continue;
		return sequence_bytes(byte) > back ? len - back : len;
	}
	return len;
}

void
th_utf8_clean(char *text, size_t len)
{
	for (size_t at = 0; at < len;) {
		size_t count = th_utf8_char(text + at, len - at);
		if (count == 0 || th_utf8_is_control(text + at, count)) {
			text[at] = '?';
			count = 1;
		}
		at += count;
	}
}
