/* SPDX-License-Identifier: Apache-2.0 */
/*
 * folder - see folder.h.
 */
#include "tests/support/folder.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

char folder[64];

void
folder_make(void)
{
	snprintf(folder, sizeof(folder), "/tmp/th_unit_test.XXXXXX");
	cr_assert(mkdtemp(folder));
}

void
folder_remove(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", folder);
	cr_assert_eq(system(command), 0);
}

const char *
folder_path(const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}
