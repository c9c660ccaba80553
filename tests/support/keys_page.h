/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys_page - compares the tables of thagentd.conf(5) with what a daemon takes.
 *
 * A row of the page is `.It Cm KEY Ta VALUE Ta DEFAULT Ta RANGE` below the daemon's section. The
 * columns that this reads: DEFAULT, a value as one would write it, or with blanks, or "-", a
 * sentence; RANGE for a number, a duration, a size and a word: "A to B", "A or more", "0, or A or
 * more", or words with commas. With Criterion.
 */
#ifndef TH_TESTS_SUPPORT_KEYS_PAGE_H
#define TH_TESTS_SUPPORT_KEYS_PAGE_H

#include <stdbool.h>

#include "ipc/base/err.h"

struct keys_page {
	const char *section;     /* of the page */
	const char *const *keys; /* NULL at the end: all that there are, each once on the page */
	void (*reset)(void);     /* as if nothing had been set */
	int (*set)(const char *key, const char *value, struct th_err *err);
	bool (*unset)(void); /* whether everything is as reset left it */
};

/* Fails the test with each thing that differs named. */
void keys_page_check(const struct keys_page *page);

#endif
