/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint_test - files and directories as thctl publish reads them: whole, cut short, lying.
 */
#include "tools/file/checkpoint.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/folder.h"
#include "tools/file/checkpoint_index.h"

static void
write_bytes(const char *name, const void *data, size_t bytes)
{
	FILE *file = fopen(folder_path(name), "w");

	cr_assert(file);
	cr_assert_eq(fwrite(data, 1, bytes, file), bytes);
	cr_assert_eq(fclose(file), 0);
}

/* A file of one U8 tensor with four bytes. Returns its size. */
static size_t
make_file(char file[256], const char *tensor, const char *data)
{
	char header[200];

	int bytes = snprintf(header, sizeof(header),
		"{\"%s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", tensor);
	memset(file, 0, 8);
	file[0] = (char)bytes;
	memcpy(file + 8, header, (size_t)bytes);
	memcpy(file + 8 + bytes, data, 4);
	return (size_t)bytes + 12;
}

static void
write_file(const char *name, const char *tensor, const char *data)
{
	char file[256];

	write_bytes(name, file, make_file(file, tensor, data));
}

static int
try_open(const char *path, struct th_err *err)
{
	struct checkpoint checkpoint = {0};

	int rc = checkpoint_open(path, err, &checkpoint);
	checkpoint_close(&checkpoint);
	return rc;
}

TestSuite(checkpoint, .init = folder_make, .fini = folder_remove);

Test(checkpoint, file__is_mapped)
{
	struct checkpoint checkpoint;
	struct th_err err = {0};

	write_file("a.safetensors", "w", "abcd");
	cr_assert_eq(checkpoint_open(folder_path("a.safetensors"), &err, &checkpoint), 0, "%s",
		err.text);
	cr_assert_eq(checkpoint.count, 1);
	cr_assert_eq(checkpoint.data_bytes, 4);
	cr_assert_eq(memcmp(checkpoint.files[0].data, "abcd", 4), 0);
	cr_assert_eq(checkpoint_check(&checkpoint, &err), 0, "%s", err.text);
	checkpoint_close(&checkpoint);
}

Test(checkpoint, every_truncation__and_a_longer_file__are_refused)
{
	struct th_err err = {0};
	char file[256] = {0};

	size_t bytes = make_file(file, "w", "abcd");
	for (size_t cut = 0; cut < bytes; cut++) {
		write_bytes("cut.safetensors", file, cut);
		cr_assert_eq(try_open(folder_path("cut.safetensors"), &err), TH_E_INVALID,
			"%zu bytes are taken", cut);
		cr_assert(strstr(err.text, "cut.safetensors"), "%s", err.text);
	}
	write_bytes("cut.safetensors", file, bytes + 1);
	cr_assert_eq(try_open(folder_path("cut.safetensors"), &err), TH_E_INVALID);
}

Test(checkpoint, check__file_was_changed__says_how)
{
	struct checkpoint checkpoint;
	struct th_err err = {0};

	write_file("a.safetensors", "w", "abcd");
	cr_assert_eq(checkpoint_open(folder_path("a.safetensors"), NULL, &checkpoint), 0);
	uint64_t bytes = checkpoint.files[0].stamp.bytes;
	cr_assert_eq(truncate(folder_path("a.safetensors"), 20), 0);
	cr_assert_eq(checkpoint_check(&checkpoint, &err), TH_E_CONTRACT);
	cr_assert(strstr(err.text, "a.safetensors") && strstr(err.text, "20"), "%s", err.text);
	/* Of the same size, but written to. */
	cr_assert_eq(truncate(folder_path("a.safetensors"), (off_t)bytes), 0);
	struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	cr_assert_eq(utimensat(AT_FDCWD, folder_path("a.safetensors"), times, 0), 0);
	cr_assert_eq(checkpoint_check(&checkpoint, &err), TH_E_CONTRACT);
	cr_assert(strstr(err.text, "written"), "%s", err.text);
	checkpoint_close(&checkpoint);
}

Test(checkpoint, check__file_was_removed_or_replaced__does_not_matter)
{
	struct checkpoint checkpoint;

	write_file("a.safetensors", "w", "abcd");
	cr_assert_eq(checkpoint_open(folder_path("a.safetensors"), NULL, &checkpoint), 0);
	cr_assert_eq(unlink(folder_path("a.safetensors")), 0);
	write_file("a.safetensors", "w", "efgh");
	cr_assert_eq(checkpoint_check(&checkpoint, NULL), 0);
	cr_assert_eq(memcmp(checkpoint.files[0].data, "abcd", 4), 0);
	checkpoint_close(&checkpoint);
}

Test(checkpoint, not_a_regular_file__is_refused)
{
	cr_assert_eq(try_open("/dev/zero", NULL), TH_E_INVALID);
	cr_assert_eq(mkfifo(folder_path("p.safetensors"), 0600), 0);
	cr_assert_eq(try_open(folder_path("p.safetensors"), NULL), TH_E_INVALID);
	cr_assert_eq(try_open(folder_path("absent"), NULL), -ENOENT);
}

Test(checkpoint, without_tensors__is_refused)
{
	const char file[] = "\x02\0\0\0\0\0\0\0{}";

	write_bytes("none.safetensors", file, 10);
	cr_assert_eq(try_open(folder_path("none.safetensors"), NULL), TH_E_INVALID);
}

Test(checkpoint, directory_without_index__one_file_or_none_at_all)
{
	struct th_err err = {0};

	cr_assert_eq(try_open(folder, &err), TH_E_INVALID);
	write_file("a.safetensors", "w", "abcd");
	cr_assert_eq(try_open(folder, &err), 0, "%s", err.text);
	write_file("b.safetensors", "v", "abcd");
	cr_assert_eq(try_open(folder, &err), TH_E_INVALID);
	cr_assert(strstr(err.text, "index"));
}

static void
write_index(const char *text)
{
	write_bytes(CHECKPOINT_INDEX, text, strlen(text));
}

Test(checkpoint, directory_with_index__all_files)
{
	struct checkpoint checkpoint;
	struct th_err err = {0};

	write_file("a.safetensors", "w", "abcd");
	write_file("b.safetensors", "v", "efgh");
	write_index("{\"metadata\":{\"total_size\":8},"
		    "\"weight_map\":{\"v\":\"b.safetensors\",\"w\":\"a.safetensors\"}}");
	cr_assert_eq(checkpoint_open(folder, &err, &checkpoint), 0, "%s", err.text);
	cr_assert_eq(checkpoint.num_files, 2);
	cr_assert_eq(checkpoint.count, 2);
	cr_assert_eq(checkpoint.data_bytes, 8);
	for (uint32_t i = 0; i < 2; i++) {
		const struct checkpoint_file *file = &checkpoint.files[i];
		const char *want = strcmp(file->header.tensors[0].name, "w") == 0 ? "abcd" : "efgh";
		cr_assert_eq(memcmp(file->data, want, 4), 0);
	}
	cr_assert_eq(checkpoint.num_strays, 0);
	checkpoint_close(&checkpoint);
}

Test(checkpoint, directory_with_index__that_does_not_fit__is_refused)
{
	static const char *const refused[] = {
		"",
		"[]",
		"{}",
		"{\"weight_map\":{}}",
		"{\"weight_map\":{\"w\":1}}",
		"{\"weight_map\":{\"w\":\"a.safetensors\",\"x\":\"a.safetensors\"}}",
		"{\"weight_map\":{\"x\":\"a.safetensors\"}}",
		"{\"weight_map\":{\"w\":\"../a.safetensors\"}}",
		"{\"weight_map\":{\"w\":\"/etc/passwd\"}}",
		"{\"weight_map\":{\"w\":\"..\"}}",
		"{\"weight_map\":{\"w\":\"\"}}",
		"{\"weight_map\":{\"w\":\"a.safetensors\",\"w\":\"a.safetensors\"}}",
	};

	write_file("a.safetensors", "w", "abcd");
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		write_index(refused[i]);
		cr_assert_eq(try_open(folder, NULL), TH_E_INVALID, "taken: %s", refused[i]);
	}
	write_index("{\"weight_map\":{\"w\":\"absent.safetensors\"}}");
	cr_assert_eq(try_open(folder, NULL), -ENOENT);
}

static void
expect_sentence(const char *index, const char *first, const char *second)
{
	struct th_err err = {0};

	write_index(index);
	cr_assert_lt(try_open(folder, &err), 0);
	cr_assert(strstr(err.text, first) && strstr(err.text, second), "%s", err.text);
}

Test(checkpoint, directory_with_index__what_is_wrong_is_named)
{
	write_file("a.safetensors", "w", "abcd");
	write_file("b.safetensors", "v", "efgh");
	expect_sentence("{\"weight_map\":{\"w\":\"a.safetensors\",\"x\":\"a.safetensors\"}}",
		"'x' in a.safetensors", "cut short");
	expect_sentence("{\"weight_map\":{\"x\":\"a.safetensors\"}}", "'w'",
		"a.safetensors is not in the index");
	expect_sentence("{\"weight_map\":{\"w\":\"b.safetensors\"}}", "'v'", "b.safetensors");
	expect_sentence("{\"weight_map\":{\"w\":\"a.safetensors\",\"v\":\"c.safetensors\"}}",
		"c.safetensors is not there", "incomplete");
	expect_sentence("{\"weight_map\":{\"w\":1,\"w\":2}}", "line 1", "duplicate");
	/* The same tensor in two files: the index can name only one of them. */
	write_file("b.safetensors", "w", "efgh");
	expect_sentence("{\"weight_map\":{\"w\":\"a.safetensors\",\"v\":\"b.safetensors\"}}",
		"'w' is in", "the index says a.safetensors");
}

Test(checkpoint, directory_with_index__files_beside_it_are_counted)
{
	struct checkpoint checkpoint;

	write_file("a.safetensors", "w", "abcd");
	write_file("other.safetensors", "v", "efgh");
	write_bytes("tokenizer.json", "{}", 2);
	write_index("{\"weight_map\":{\"w\":\"a.safetensors\"}}");
	cr_assert_eq(checkpoint_open(folder, NULL, &checkpoint), 0);
	cr_assert_eq(checkpoint.num_files, 1);
	cr_assert_eq(checkpoint.num_strays, 1);
	cr_assert_str_eq(checkpoint.stray, "other.safetensors");
	checkpoint_close(&checkpoint);
}

Test(checkpoint, index__format_parses_again)
{
	char one[] = "w.1";
	char two[] = "a.2";
	char file[] = "f.safetensors";
	struct checkpoint_index_entry entries[] = {{one, file}, {two, file}};
	struct checkpoint_index index;
	size_t bytes = 0;
	char *text = NULL;

	cr_assert_eq(checkpoint_index_format(entries, 2, 77, NULL, &text, &bytes), 0);
	cr_assert(strstr(text, "\"total_size\": 77"));
	cr_assert_eq(checkpoint_index_parse(text, bytes, NULL, &index), 0);
	cr_assert_eq(index.count, 2);
	cr_assert_str_eq(checkpoint_index_find(&index, "a.2"), "f.safetensors");
	cr_assert_str_eq(checkpoint_index_find(&index, "w.1"), "f.safetensors");
	cr_assert_null(checkpoint_index_find(&index, "w"));
	checkpoint_index_free(&index);
	free(text);
}
