/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of path.
 */
#include "ipc/base/path.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Test(path, from_the_root__as_it_is)
{
	char path[8];
	cr_assert_eq(th_path_absolute("/a/b", path, sizeof(path)), 0);
	cr_assert_str_eq(path, "/a/b");
	cr_assert_eq(th_path_absolute("/a/b/c/d", path, sizeof(path)), -ENAMETOOLONG);
}

Test(path, relative__from_the_folder_of_the_process)
{
	char path[64];
	cr_assert_eq(chdir("/"), 0);
	cr_assert_eq(th_path_absolute("a", path, sizeof(path)), 0);
	cr_assert_str_eq(path, "/a");
	cr_assert_eq(chdir("/usr"), 0);
	cr_assert_eq(th_path_absolute("a/b", path, sizeof(path)), 0);
	cr_assert_str_eq(path, "/usr/a/b");
	cr_assert_eq(th_path_absolute("a/b", path, strlen("/usr/a/b")), -ENAMETOOLONG);
}

Test(path, folder_was_removed__relative_fails)
{
	char folder[] = "/tmp/th-path-XXXXXX", path[PATH_MAX];
	cr_assert(mkdtemp(folder) && chdir(folder) == 0 && rmdir(folder) == 0);
	cr_assert_eq(th_path_absolute("a", path, sizeof(path)), -ENOENT);
	cr_assert_eq(th_path_absolute("/a", path, sizeof(path)), 0);
}
