/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc - see alloc.h. The sentence is written without the heap. Any thread.
 */
#include "ipc/base/alloc.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noreturn, cold)) static void
out_of_memory(size_t count, size_t size)
{
	char text[160];
	int length = snprintf(text, sizeof(text),
		"error memory cannot allocate %zu x %zu bytes, giving up: raise the memory limit "
		"of this process\n",
		count, size);

	if (length > 0 && write(STDERR_FILENO, text, (size_t)length) < 0)
		abort();
	abort();
}

void *
th_calloc(size_t count, size_t size)
{
	/* Not 0 bytes: calloc may answer that with NULL. */
	void *memory = calloc(count == 0 ? 1 : count, size == 0 ? 1 : size);

	if (memory == NULL)
		out_of_memory(count, size);
	return memory;
}

void *
th_realloc(void *memory, size_t count, size_t size)
{
	if (count == 0 || size == 0)
		count = size = 1;
	void *grown = reallocarray(memory, count, size);
	if (grown == NULL)
		out_of_memory(count, size);
	return grown;
}

char *
th_strdup(const char *text)
{
	return th_memdup(text, strlen(text) + 1);
}

void *
th_memdup(const void *memory, size_t bytes)
{
	void *copy = th_calloc(1, bytes);

	if (bytes > 0)
		memcpy(copy, memory, bytes);
	return copy;
}
