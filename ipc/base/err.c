/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err - see err.h. All texts are static, so they may be kept and are safe in any thread; cores use
 * this file, so it formats and does nothing else.
 */
#include "ipc/base/err.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/utf8.h"

const char *
th_strerror(int code)
{
	switch (code) {
#define TH_ERROR_TEXT(name, number, text)                                                          \
	case TH_E_##name:                                                                          \
		return text;
		TH_ERRORS(TH_ERROR_TEXT)
#undef TH_ERROR_TEXT
	default:
		break;
	}
	/* The descriptions of glibc that ignore the locale: a log reads the same everywhere. */
	const char *text = th_is_errno(code) ? strerrordesc_np(-code) : NULL;
	return text != NULL ? text : "unknown error";
}

const char *
th_errname(int code)
{
	switch (code) {
#define TH_ERROR_NAME(name, number, text)                                                          \
	case TH_E_##name:                                                                          \
		return #name;
		TH_ERRORS(TH_ERROR_NAME)
#undef TH_ERROR_NAME
	default:
		break;
	}
	const char *name = th_is_errno(code) ? strerrorname_np(-code) : NULL;
	return name != NULL ? name : "?";
}

int
th_fail(struct th_err *err, int code, const char *format, ...)
{
	va_list args;

	if (err == NULL)
		return code;
	/* Through a buffer of its own: the sentence of *err may be one of the arguments. */
	char text[TH_SENTENCE_BYTES];
	va_start(args, format);
	int length = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (length < 0)
		text[0] = '\0';
	else if ((size_t)length >= sizeof(text))
		text[th_utf8_cut(text, sizeof(text) - 1)] = '\0';
	/* It quotes names that were cut, and what others sent. */
	th_utf8_clean(text, strlen(text));
	memcpy(err->text, text, strlen(text) + 1);
	err->code = code;
	return code;
}
