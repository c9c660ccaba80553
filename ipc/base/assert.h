/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assert - the check for programmer errors, in every build: weights are worth more than the cycles.
 *
 * Never for what another process controls (that is data: validate, count, refuse) and never on the
 * public calls of libthc, which must not end their host process. Cores may use it: the printing is
 * in base.
 */
#ifndef TH_IPC_BASE_ASSERT_H
#define TH_IPC_BASE_ASSERT_H

#define TH_ASSERT(condition)                                                                       \
	do {                                                                                       \
		if (__builtin_expect(!(condition), 0))                                             \
			th_assert_fail(__FILE__, __LINE__, #condition);                            \
	} while (0)

/* Prints `file:line: assertion failed: condition` on stderr and aborts. */
void th_assert_fail(const char *file, int line, const char *condition)
	__attribute__((noreturn, cold));

#endif
