/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_test - files and directories that appear whole or not at all, and what is never deleted.
 */
#include "tools/save.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static void
make_folder(void)
{
	snprintf(folder, sizeof(folder), "/tmp/save_test.XXXXXX");
	cr_assert(mkdtemp(folder));
}

static void
remove_folder(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", folder);
	cr_assert_eq(system(command), 0);
}

static const char *
path_of(const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

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
	FILE *file = fopen(path_of(name), "w");

	cr_assert(file);
	fputs(text, file);
	cr_assert_eq(fclose(file), 0);
}

static void
expect(const char *name, const char *text)
{
	char content[64] = "";

	FILE *file = fopen(path_of(name), "r");
	cr_assert(file, "%s is not there", name);
	size_t bytes = fread(content, 1, sizeof(content) - 1, file);
	fclose(file);
	cr_assert_eq(bytes, strlen(text));
	cr_assert_str_eq(content, text);
}

static const struct save_range two_ranges[] = {{"hello ", 6}, {NULL, 0}, {"world", 5}};

TestSuite(save, .init = make_folder, .fini = remove_folder);

Test(save, file__appears_at_commit)
{
	struct save save;
	struct th_err err = {0};
	struct stat st;

	umask(022);
	cr_assert_eq(save_begin(path_of("out"), false, false, &err, &save), 0, "%s", err.text);
	cr_assert_eq(save_write(&save, NULL, two_ranges, 3, NULL, NULL, &err), 0, "%s", err.text);
	cr_assert_neq(access(path_of("out"), F_OK), 0);
	cr_assert_eq(save_commit(&save, &err), 0, "%s", err.text);
	save_abort(&save);
	expect("out", "hello world");
	cr_assert_eq(stat(path_of("out"), &st), 0);
	cr_assert_eq(st.st_mode & 0777, 0644);
	cr_assert_eq(count_entries(folder), 1);
}

Test(save, file__many_small_ranges__all_in_order)
{
	static struct save_range ranges[1000];
	struct save save;
	char want[1001];

	for (int i = 0; i < 1000; i++) {
		want[i] = (char)('a' + i % 26);
		ranges[i] = (struct save_range){&want[i], 1};
	}
	want[1000] = '\0';
	cr_assert_eq(save_begin(path_of("out"), false, false, NULL, &save), 0);
	cr_assert_eq(save_write(&save, NULL, ranges, 1000, NULL, NULL, NULL), 0);
	cr_assert_eq(save_commit(&save, NULL), 0);
	save_abort(&save);
	char got[1001] = "";
	FILE *file = fopen(path_of("out"), "r");
	cr_assert_eq(fread(got, 1, 1000, file), 1000);
	fclose(file);
	cr_assert_str_eq(got, want);
}

Test(save, file__existing__only_with_force)
{
	struct th_err err = {0};
	struct save save;

	put("out", "old");
	cr_assert_eq(save_check(path_of("out"), false, false, &err), -EEXIST);
	cr_assert(strstr(err.text, "--force"));
	cr_assert_eq(save_begin(path_of("out"), false, false, &err, &save), -EEXIST);
	cr_assert_eq(save_check(path_of("out"), false, true, &err), 0);
	cr_assert_eq(save_begin(path_of("out"), false, true, &err, &save), 0);
	cr_assert_eq(save_write(&save, NULL, two_ranges, 3, NULL, NULL, &err), 0);
	expect("out", "old");
	cr_assert_eq(save_commit(&save, &err), 0);
	save_abort(&save);
	expect("out", "hello world");
	cr_assert_eq(count_entries(folder), 1);
}

Test(save, file__that_came_in_the_meantime__is_not_replaced)
{
	struct save save;

	cr_assert_eq(save_begin(path_of("out"), false, false, NULL, &save), 0);
	cr_assert_eq(save_write(&save, NULL, two_ranges, 3, NULL, NULL, NULL), 0);
	put("out", "other");
	cr_assert_eq(save_commit(&save, NULL), -EEXIST);
	save_abort(&save);
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

Test(save, abort__leaves_nothing)
{
	uint64_t seen = 0;
	struct save save;

	cr_assert_eq(save_begin(path_of("out"), false, false, NULL, &save), 0);
	cr_assert_eq(save_write(&save, NULL, two_ranges, 3, stop_at_once, &seen, NULL), -ECANCELED);
	cr_assert_eq(seen, 11);
	save_abort(&save);
	cr_assert_eq(count_entries(folder), 0);
	cr_assert_eq(save_begin(path_of("dir"), true, false, NULL, &save), 0);
	cr_assert_eq(save_write(&save, "a.safetensors", two_ranges, 3, NULL, NULL, NULL), 0);
	save_abort(&save);
	cr_assert_eq(count_entries(folder), 0);
}

Test(save, directory__appears_at_commit_and_replaces_a_checkpoint)
{
	struct th_err err = {0};
	struct save save;

	for (int round = 0; round < 2; round++) {
		bool force = round == 1;
		cr_assert_eq(
			save_begin(path_of("dir/"), true, force, &err, &save), 0, "%s", err.text);
		cr_assert_eq(save_write(&save, force ? "b.safetensors" : "a.safetensors",
				     two_ranges, 3, NULL, NULL, &err),
			0, "%s", err.text);
		cr_assert_eq(save_commit(&save, &err), 0, "%s", err.text);
		save_abort(&save);
		cr_assert_eq(count_entries(path_of("dir")), 1);
		cr_assert_eq(count_entries(folder), 1);
	}
	expect("dir/b.safetensors", "hello world");
	cr_assert_eq(save_check(path_of("dir"), true, false, &err), -EEXIST);
}

Test(save, directory_with_other_files__is_never_replaced)
{
	struct th_err err = {0};

	cr_assert_eq(mkdir(path_of("dir"), 0755), 0);
	put("dir/thesis.txt", "years of work");
	cr_assert_eq(save_check(path_of("dir"), true, true, &err), -ENOTEMPTY);
	cr_assert(strstr(err.text, "thesis.txt"));
	cr_assert_eq(save_check(path_of("dir"), false, true, &err), -EEXIST);
	expect("dir/thesis.txt", "years of work");
}

Test(save, places_that_are_none__are_refused)
{
	cr_assert_eq(save_check("", false, false, NULL), TH_E_INVALID);
	cr_assert_eq(save_check("/", true, true, NULL), TH_E_INVALID);
	cr_assert_eq(save_check(path_of(".."), true, true, NULL), TH_E_INVALID);
	cr_assert_eq(save_check(path_of("absent/out"), false, false, NULL), -ENOENT);
}
