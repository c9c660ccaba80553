/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utf8 - is this text, and where may it be cut.
 *
 * Names and sentences come from other processes; everything that stores or prints them asks here
 * first. Strict: no overlong forms, no surrogates, nothing above U+10FFFF. Pure.
 */
#ifndef TH_IPC_BASE_UTF8_H
#define TH_IPC_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes (1..4) of the character at the start of text[0..len); 0 when there is no valid one. */
size_t th_utf8_char(const char *text, size_t len);

/* True for a control character of that many bytes: C0, DEL and C1, which terminals obey. */
bool th_utf8_is_control(const char *text, size_t char_bytes);

bool th_utf8_valid(const char *text, size_t len);

/* In place: each byte that is no text, and what terminals obey, becomes a question mark. */
void th_utf8_clean(char *text, size_t len);

/* The longest length <= len at which text does not end in the middle of a character. */
size_t th_utf8_cut(const char *text, size_t len);

#endif
