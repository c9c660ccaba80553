/* SPDX-License-Identifier: Apache-2.0 */
/*
 * folder - one of a test's own, that goes with all that is in it.
 *
 * TestSuite(x, .init = folder_make, .fini = folder_remove)
 */
#ifndef TH_TESTS_SUPPORT_FOLDER_H
#define TH_TESTS_SUPPORT_FOLDER_H

extern char folder[64];

void folder_make(void);
void folder_remove(void);
/* Of what has this name in it; valid until the next call. */
const char *folder_path(const char *name);

#endif
