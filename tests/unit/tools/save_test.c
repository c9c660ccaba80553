/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_test - files and directories that appear whole or not at all, and what is never deleted.
 */
#include "tools/file/save.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/folder.h"

static int
count_entries(const char *path)
{
	int count = 0;

	DIR *dir = opendir(path);
	cr_assert(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count - 2; /* . and .. */
}

static void
put(const char *name, const char *text)
{
	FILE *file = fopen(folder_path(name), "w");

	cr_assert(file);
	fputs(text, file);
	cr_assert_eq(fclose(file), 0);
}

static void
expect(const char *name, const char *text)
{
	char content[64] = "";

	FILE *file = fopen(folder_path(name), "r");
	cr_assert(file, "%s is not there", name);
	size_t bytes = fread(content, 1, sizeof(content) - 1, file);
	fclose(file);
	cr_assert_eq(bytes, strlen(text));
	cr_assert_str_eq(content, text);
}

/* One file with this text: half of it by a write, half through the mapping. */
static int
fill(struct save *save, const char *name, const char *text)
{
	struct save_file *file;
	struct th_err err = {0};
	size_t bytes = strlen(text);

	int rc = save_create(save, name, bytes, &err, &file);
	if (rc < 0)
		return rc;
	cr_assert_eq(save_put(save, file, 0, text, bytes / 2, &err), 0, "%s", err.text);
	if (file->map)
		memcpy(file->map + bytes / 2, text + bytes / 2, bytes - bytes / 2);
	return save_sync(save, NULL, NULL, &err);
}

TestSuite(save, .init = folder_make, .fini = folder_remove);

Test(save, file__appears_at_commit)
{
	struct save save;
	struct th_err err = {0};
	struct stat st;

	umask(022);
	cr_assert_eq(
		save_begin(folder_path("out"), false, false, 1, &err, &save), 0, "%s", err.text);
	cr_assert_eq(fill(&save, NULL, "hello world"), 0, "%s", err.text);
	cr_assert_neq(access(folder_path("out"), F_OK), 0);
	cr_assert_eq(save_commit(&save, &err), 0, "%s", err.text);
	save_end(&save);
	expect("out", "hello world");
	cr_assert_eq(stat(folder_path("out"), &st), 0);
	cr_assert_eq(st.st_mode & 0777, 0644);
	cr_assert_eq(count_entries(folder), 1);
}

Test(save, copy__of_what_is_there__and_an_empty_file)
{
	struct save_file *file, *empty;
	struct save save;

	cr_assert_eq(save_begin(folder_path("dir"), true, false, 2, NULL, &save), 0);
	cr_assert_eq(save_create(&save, "a.safetensors", 8, NULL, &file), 0);
	cr_assert_eq(save_create(&save, "b.safetensors", 0, NULL, &empty), 0);
	cr_assert_null(empty->map);
	memcpy(file->map, "abcd", 4);
	cr_assert_eq(save_copy(&save, file, 4, file, 0, 4, NULL), 0);
	cr_assert_eq(save_sync(&save, NULL, NULL, NULL), 0);
	cr_assert_eq(save_commit(&save, NULL), 0);
	save_end(&save);
	expect("dir/a.safetensors", "abcdabcd");
	expect("dir/b.safetensors", "");
}

Test(save, file__larger_than_the_disk__says_so_and_leaves_nothing)
{
	struct th_err err = {0};
	struct save_file *file;
	struct save save;

	cr_assert_eq(save_begin(folder_path("out"), false, false, 1, NULL, &save), 0);
	int rc = save_create(&save, NULL, UINT64_C(1) << 60, &err, &file);
	cr_assert(rc == -ENOSPC || rc == -EFBIG, "%d", rc);
	cr_assert(strstr(err.text, "no room") && strstr(err.text, "out"), "%s", err.text);
	save_end(&save);
	cr_assert_eq(count_entries(folder), 0);
}

Test(save, file__existing__only_with_force)
{
	struct th_err err = {0};
	struct save save;

	put("out", "old");
	cr_assert_eq(save_check(folder_path("out"), false, false, &err), -EEXIST);
	cr_assert(strstr(err.text, "--force"));
	cr_assert_eq(save_begin(folder_path("out"), false, false, 1, &err, &save), -EEXIST);
	cr_assert_eq(save_check(folder_path("out"), false, true, &err), 0);
	cr_assert_eq(save_begin(folder_path("out"), false, true, 1, &err, &save), 0);
	cr_assert_eq(fill(&save, NULL, "hello world"), 0);
	expect("out", "old");
	cr_assert_eq(save_commit(&save, &err), 0);
	save_end(&save);
	expect("out", "hello world");
	cr_assert_eq(count_entries(folder), 1);
}

Test(save, file__that_came_in_the_meantime__is_not_replaced)
{
	struct save save;

	cr_assert_eq(save_begin(folder_path("out"), false, false, 1, NULL, &save), 0);
	cr_assert_eq(fill(&save, NULL, "hello world"), 0);
	put("out", "other");
	cr_assert_eq(save_commit(&save, NULL), -EEXIST);
	save_end(&save);
	expect("out", "other");
	cr_assert_eq(count_entries(folder), 1);
}

static bool
stop_at_once(uint64_t done_bytes, void *arg)
{
	uint64_t *seen = arg;

	*seen = done_bytes;
	return false;
}

Test(save, stopped__leaves_nothing)
{
	uint64_t seen = 0;
	struct save save;

	cr_assert_eq(save_begin(folder_path("out"), false, false, 1, NULL, &save), 0);
	cr_assert_eq(fill(&save, NULL, "hello world"), 0);
	cr_assert_eq(save_sync(&save, stop_at_once, &seen, NULL), -ECANCELED);
	cr_assert_eq(seen, 11);
	save_end(&save);
	cr_assert_eq(count_entries(folder), 0);
	cr_assert_eq(save_begin(folder_path("dir"), true, false, 2, NULL, &save), 0);
	cr_assert_eq(fill(&save, "a.safetensors", "hello world"), 0);
	cr_assert_eq(fill(&save, "b.safetensors", "hello world"), 0);
	save_end(&save);
	cr_assert_eq(count_entries(folder), 0);
}

/* As a signal handler does it: after that the process ends. */
Test(save, undo__removes_all__and_nothing_after_the_commit)
{
	struct save save;

	cr_assert_eq(save_begin(folder_path("dir"), true, false, 2, NULL, &save), 0);
	cr_assert_eq(fill(&save, "a.safetensors", "hello world"), 0);
	save_undo(&save);
	cr_assert_eq(count_entries(folder), 0);
	save_end(&save);
	cr_assert_eq(save_begin(folder_path("out"), false, false, 1, NULL, &save), 0);
	cr_assert_eq(fill(&save, NULL, "hello world"), 0);
	cr_assert_eq(save_commit(&save, NULL), 0);
	save_undo(&save);
	expect("out", "hello world");
	save_end(&save);
	expect("out", "hello world");
}

Test(save, directory__appears_at_commit_and_replaces_a_checkpoint)
{
	struct th_err err = {0};
	struct save save;

	for (int round = 0; round < 2; round++) {
		bool force = round == 1;
		cr_assert_eq(save_begin(folder_path("dir/"), true, force, 1, &err, &save), 0, "%s",
			err.text);
		cr_assert_eq(fill(&save, force ? "b.safetensors" : "a.safetensors", "hello world"),
			0, "%s", err.text);
		cr_assert_eq(save_commit(&save, &err), 0, "%s", err.text);
		save_end(&save);
		cr_assert_eq(count_entries(folder_path("dir")), 1);
		cr_assert_eq(count_entries(folder), 1);
	}
	expect("dir/b.safetensors", "hello world");
	cr_assert_eq(save_check(folder_path("dir"), true, false, &err), -EEXIST);
}

Test(save, directory_with_other_files__is_never_replaced)
{
	struct th_err err = {0};

	cr_assert_eq(mkdir(folder_path("dir"), 0755), 0);
	put("dir/thesis.txt", "years of work");
	cr_assert_eq(save_check(folder_path("dir"), true, true, &err), -ENOTEMPTY);
	cr_assert(strstr(err.text, "thesis.txt"));
	cr_assert_eq(save_check(folder_path("dir"), false, true, &err), -EEXIST);
	expect("dir/thesis.txt", "years of work");
}

Test(save, places_that_are_none__are_refused)
{
	cr_assert_eq(save_check("", false, false, NULL), TH_E_INVALID);
	cr_assert_eq(save_check("/", true, true, NULL), TH_E_INVALID);
	cr_assert_eq(save_check(folder_path(".."), true, true, NULL), TH_E_INVALID);
	cr_assert_eq(save_check(folder_path("absent/out"), false, false, NULL), -ENOENT);
}
