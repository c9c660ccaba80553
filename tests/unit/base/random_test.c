/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of random, with a kernel that gives little at a time, or nothing.
 */
#include "ipc/base/random.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/types.h>

static uint8_t next;
static int refusal, calls, zeros;

ssize_t __wrap_getrandom(void *ret_bytes, size_t count, unsigned int flags);

/* In place of the kernel: a signal comes first, then three bytes at most. */
ssize_t
__wrap_getrandom(void *ret_bytes, size_t count, unsigned int flags)
{
	uint8_t *bytes = ret_bytes;
	cr_assert_eq(flags, 0, "one that does not wait gives numbers that can be guessed");
	errno = refusal ? refusal : EINTR;
	if (refusal || calls++ % 2 == 0)
		return -1;
	size_t given = count < 3 ? count : 3;
	for (size_t i = 0; i < given; i++)
		bytes[i] = zeros > 0 ? 0 : next++;
	zeros -= (int)given;
	return (ssize_t)given;
}

Test(random, little_at_a_time__all_are_filled_and_no_more)
{
	uint8_t bytes[12];
	memset(bytes, 0xff, sizeof(bytes));
	next = 1;
	th_random(bytes, 10);
	for (uint8_t i = 0; i < 10; i++)
		cr_assert_eq(bytes[i], i + 1);
	cr_assert(bytes[10] == 0xff && bytes[11] == 0xff);
}

Test(random, name__never_0)
{
	zeros = 16; /* two draws */
	next = 1;
	cr_assert_neq(th_random_name(), 0);
	cr_assert_eq(next, 9, "the third is it");
}

Test(random, refused__the_process_ends, .signal = SIGABRT)
{
	uint8_t byte;
	refusal = EPERM;
	th_random(&byte, 1);
}
