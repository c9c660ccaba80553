/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc_test - memory or the end, never NULL.
 */
#include "ipc/base/alloc.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

Test(alloc, calloc__memory__is_zero)
{
	unsigned char *memory = th_calloc(3, 5);

	for (int i = 0; i < 15; i++)
		cr_assert_eq(memory[i], 0);
	free(memory);
}

Test(alloc, any__of_nothing__is_not_null)
{
	void *memory = th_calloc(0, 8);

	cr_assert_not_null(memory);
	memory = th_realloc(memory, 0, 8);
	cr_assert_not_null(memory);
	free(memory);
	memory = th_memdup("", 0);
	cr_assert_not_null(memory);
	free(memory);
}

Test(alloc, realloc__more__keeps_the_content)
{
	char *text = th_strdup("abc");

	text = th_realloc(text, 1000, 1);
	cr_assert_str_eq(text, "abc");
	free(text);
}

Test(alloc, memdup__bytes__are_copied)
{
	char *copy = th_memdup("a\0b", 3);

	cr_assert_eq(memcmp(copy, "a\0b", 3), 0);
	free(copy);
}

/* volatile: the compiler would warn about a size that it can see. */
static volatile size_t too_many = SIZE_MAX / 2;

Test(alloc, calloc__too_much__aborts, .signal = SIGABRT)
{
	free(th_calloc(too_many, 1));
}

Test(alloc, calloc__product_overflows__aborts, .signal = SIGABRT)
{
	free(th_calloc(too_many, 8));
}

Test(alloc, realloc__product_overflows__aborts, .signal = SIGABRT)
{
	free(th_realloc(NULL, too_many, 8));
}
