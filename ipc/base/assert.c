/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assert - see assert.h. Uses no heap and no stream: either may be what is broken. Any
 * thread.
 */
#include "ipc/base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void
th_assert_fail(const char *file, int line, const char *condition)
{
	char text[512];
	int length = snprintf(
		text, sizeof(text), "%s:%d: assertion failed: %s\n", file, line, condition);

	if (length >= (int)sizeof(text)) {
		length = (int)sizeof(text) - 1;
		text[length - 1] = '\n';
	}
	/* Nothing is left to do when even this fails. */
	if (length > 0 && write(STDERR_FILENO, text, (size_t)length) < 0)
		abort();
	abort();
}
