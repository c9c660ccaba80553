/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint - opening and reading of safetensors files (see checkpoint.h).
 *
 * A file is copied, never mapped: a mapped file that somebody truncates would kill the publisher
 * with SIGBUS while readers wait.
 */
#include "tools/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "tools/checkpoint_index.h"

#define FILE_ALIGNMENT 4096u /* of each file's data in memory: tensors keep their alignment */
#define READ_BYTES ((size_t)64 << 20)
#define FILES_MAX 4096u

bool
checkpoint_is_file_name(const char *text)
{
	size_t length = strlen(text);
	size_t suffix = strlen(CHECKPOINT_SUFFIX);

	return length > suffix && strcmp(text + length - suffix, CHECKPOINT_SUFFIX) == 0;
}

/* Reads exactly bytes bytes. */
static int
read_at(int fd, const char *path, void *memory, size_t bytes, uint64_t offset, struct th_err *err)
{
	uint8_t *at = memory;

	while (bytes > 0) {
		ssize_t got = pread(fd, at, bytes, (off_t)offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return th_fail(err, -errno, "cannot read %s: %s", path, strerror(errno));
		if (got == 0)
			return th_fail(
				err, TH_E_INVALID, "%s became shorter while it was read", path);
		at += got;
		offset += (uint64_t)got;
		bytes -= (size_t)got;
	}
	return 0;
}

/* Opens a regular file; a pipe or a device would block or never end. */
static int
open_regular(const char *path, struct th_err *err, int *ret_fd, uint64_t *ret_bytes)
{
	struct stat st;

	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return th_fail(err, -errno, "cannot open %s: %s", path, strerror(errno));
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		close(fd);
		return th_fail(err, TH_E_INVALID, "%s is not a regular file", path);
	}
	*ret_fd = fd;
	*ret_bytes = (uint64_t)st.st_size;
	return 0;
}

/* The sentence gets the path, which whoever parses does not know. */
static int
fail_in(const char *path, const struct th_err *inner, struct th_err *err)
{
	return th_fail(err, inner->code, "%s: %s", path, inner->text);
}

static int
read_header(struct checkpoint_file *file, uint64_t file_bytes, struct th_err *err)
{
	uint8_t length[SAFETENSORS_LENGTH_BYTES];
	struct th_err inner = {0};
	uint64_t bytes = 0;

	if (file_bytes < sizeof(length))
		return th_fail(err, TH_E_INVALID,
			"%s is not a safetensors file: it has only %" PRIu64 " bytes", file->path,
			file_bytes);
	int rc = read_at(file->fd, file->path, length, sizeof(length), 0, err);
	if (rc < 0)
		return rc;
	if (safetensors_header_length(length, file_bytes, &inner, &bytes) < 0)
		return fail_in(file->path, &inner, err);
	file->text = malloc(bytes + 1);
	if (!file->text)
		return th_fail(err, -ENOMEM, "no memory for the header of %s", file->path);
	file->text_bytes = bytes;
	file->text[bytes] = '\0';
	rc = read_at(file->fd, file->path, file->text, bytes, sizeof(length), err);
	if (rc < 0)
		return rc;
	if (safetensors_parse(file->text, bytes, &inner, &file->header) < 0)
		return fail_in(file->path, &inner, err);
	if (file_bytes - sizeof(length) - bytes != file->header.data_bytes)
		return th_fail(err, TH_E_INVALID,
			"%s has %" PRIu64 " bytes of data, its header describes %" PRIu64
			": the download or copy was cut short, or it is no safetensors file",
			file->path, file_bytes - sizeof(length) - bytes, file->header.data_bytes);
	return 0;
}

/* Takes path over, also when it fails. */
static int
add_file(struct checkpoint *checkpoint, char *path, struct th_err *err)
{
	uint64_t file_bytes = 0;

	if (checkpoint->num_files == FILES_MAX) {
		free(path);
		return th_fail(err, TH_E_LIMIT, "more than %u files", FILES_MAX);
	}
	struct checkpoint_file *files =
		realloc(checkpoint->files, (checkpoint->num_files + 1) * sizeof(files[0]));
	if (!files) {
		free(path);
		return th_fail(err, -ENOMEM, "no memory for another file");
	}
	checkpoint->files = files;
	struct checkpoint_file *file = &files[checkpoint->num_files++];
	*file = (struct checkpoint_file){.path = path, .fd = -1};
	int rc = open_regular(path, err, &file->fd, &file_bytes);
	if (rc < 0)
		return rc;
	rc = read_header(file, file_bytes, err);
	if (rc < 0)
		return rc;
	if (checkpoint->count + file->header.count > MANIFEST_ROWS_MAX)
		return th_fail(
			err, TH_E_LIMIT, "more than %u tensors in all files", MANIFEST_ROWS_MAX);
	checkpoint->count += file->header.count;
	if (!th_align_up_u64(checkpoint->memory_bytes, FILE_ALIGNMENT, &file->memory_offset) ||
		!th_add_u64(
			file->memory_offset, file->header.data_bytes, &checkpoint->memory_bytes))
		return th_fail(err, TH_E_LIMIT, "the files have more bytes than memory can");
	checkpoint->data_bytes += file->header.data_bytes;
	return 0;
}

static char *
join(const char *directory, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

static int
add_file_of(
	struct checkpoint *checkpoint, const char *directory, const char *name, struct th_err *err)
{
	char *path = join(directory, name);

	if (!path)
		return th_fail(err, -ENOMEM, "no memory for a path");
	return add_file(checkpoint, path, err);
}

/* Every tensor of the files is in the index under that file, and the index has no more. */
static int
check_index(const struct checkpoint *checkpoint, const struct checkpoint_index *index,
	struct th_err *err)
{
	for (uint32_t i = 0; i < checkpoint->num_files; i++) {
		const struct checkpoint_file *file = &checkpoint->files[i];
		const char *name = strrchr(file->path, '/') + 1;
		for (uint32_t j = 0; j < file->header.count; j++) {
			const char *tensor = file->header.tensors[j].name;
			const char *listed = checkpoint_index_find(index, tensor);
			if (!listed || strcmp(listed, name) != 0)
				return th_fail(err, TH_E_INVALID,
					"tensor '%s' of %s is not there in the index", tensor,
					file->path);
		}
	}
	if (checkpoint->count != index->count)
		return th_fail(err, TH_E_INVALID,
			"the index lists %u tensors, the files hold %u: some files are incomplete",
			index->count, checkpoint->count);
	return 0;
}

static bool
has_file(const struct checkpoint *checkpoint, const char *name)
{
	for (uint32_t i = 0; i < checkpoint->num_files; i++) {
		if (strcmp(strrchr(checkpoint->files[i].path, '/') + 1, name) == 0)
			return true;
	}
	return false;
}

static int
open_indexed(const char *directory, const char *index_path, struct th_err *err,
	struct checkpoint *checkpoint)
{
	struct checkpoint_index index = {0};
	struct th_err inner = {0};
	uint64_t bytes = 0;
	int fd = -1;

	int rc = open_regular(index_path, err, &fd, &bytes);
	if (rc < 0)
		return rc;
	char *text = bytes <= SAFETENSORS_HEADER_BYTES_MAX ? malloc(bytes + 1) : NULL;
	if (!text) {
		rc = th_fail(
			err, TH_E_LIMIT, "%s has %" PRIu64 " bytes: too many", index_path, bytes);
		goto out_close;
	}
	rc = read_at(fd, index_path, text, bytes, 0, err);
	if (rc < 0)
		goto out_free;
	rc = checkpoint_index_parse(text, bytes, &inner, &index);
	if (rc < 0) {
		rc = fail_in(index_path, &inner, err);
		goto out_free;
	}
	for (uint32_t i = 0; i < index.count && rc == 0; i++) {
		if (!has_file(checkpoint, index.entries[i].file))
			rc = add_file_of(checkpoint, directory, index.entries[i].file, err);
	}
	if (rc == 0)
		rc = check_index(checkpoint, &index, err);
	checkpoint_index_free(&index);
out_free:
	free(text);
out_close:
	close(fd);
	return rc;
}

/* A directory without an index: the one file in it. */
static int
open_single(const char *directory, struct th_err *err, struct checkpoint *checkpoint)
{
	char name[NAME_MAX + 1] = "";
	struct dirent *entry;
	int found = 0;

	DIR *dir = opendir(directory);
	if (!dir)
		return th_fail(err, -errno, "cannot open %s: %s", directory, strerror(errno));
	while ((entry = readdir(dir))) {
		if (checkpoint_is_file_name(entry->d_name)) {
			snprintf(name, sizeof(name), "%s", entry->d_name);
			found++;
		}
	}
	closedir(dir);
	if (found != 1)
		return th_fail(err, TH_E_INVALID,
			"%s has %s: give the file itself, or a directory with %s", directory,
			found == 0 ? "no .safetensors file"
				   : "several .safetensors files and no index",
			CHECKPOINT_INDEX);
	return add_file_of(checkpoint, directory, name, err);
}

static int
compare_names(const void *left, const void *right)
{
	return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Only between files: within one the parser has refused it. An index rules it out too. */
static int
check_tensors(const struct checkpoint *checkpoint, struct th_err *err)
{
	uint32_t count = 0;
	int rc = 0;

	if (checkpoint->count == 0)
		return th_fail(err, TH_E_INVALID, "%s holds no tensor: nothing to publish",
			checkpoint->files[0].path);
	const char **names = calloc(checkpoint->count, sizeof(names[0]));
	if (!names)
		return th_fail(err, -ENOMEM, "no memory for %u names", checkpoint->count);
	for (uint32_t i = 0; i < checkpoint->num_files; i++) {
		for (uint32_t j = 0; j < checkpoint->files[i].header.count; j++)
			names[count++] = checkpoint->files[i].header.tensors[j].name;
	}
	qsort(names, count, sizeof(names[0]), compare_names);
	for (uint32_t i = 1; i < count && rc == 0; i++) {
		if (strcmp(names[i - 1], names[i]) == 0)
			rc = th_fail(
				err, TH_E_INVALID, "tensor '%s' is in several files", names[i]);
	}
	free(names);
	return rc;
}

int
checkpoint_open(const char *path, struct th_err *err, struct checkpoint *ret_checkpoint)
{
	struct checkpoint checkpoint = {0};
	struct stat st;
	int rc;

	if (stat(path, &st) < 0)
		return th_fail(err, -errno, "cannot open %s: %s", path, strerror(errno));
	if (S_ISDIR(st.st_mode)) {
		char *index_path = join(path, CHECKPOINT_INDEX);
		if (!index_path)
			return th_fail(err, -ENOMEM, "no memory for a path");
		rc = access(index_path, F_OK) == 0
			     ? open_indexed(path, index_path, err, &checkpoint)
			     : open_single(path, err, &checkpoint);
		free(index_path);
	} else {
		char *copy = strdup(path);
		rc = copy ? add_file(&checkpoint, copy, err)
			  : th_fail(err, -ENOMEM, "no memory for a path");
	}
	if (rc == 0)
		rc = check_tensors(&checkpoint, err);
	if (rc < 0) {
		checkpoint_close(&checkpoint);
		return rc;
	}
	*ret_checkpoint = checkpoint;
	return 0;
}

int
checkpoint_read(const struct checkpoint *checkpoint, void *memory, checkpoint_progress progress,
	void *arg, struct th_err *err)
{
	uint64_t done = 0;

	for (uint32_t i = 0; i < checkpoint->num_files; i++) {
		const struct checkpoint_file *file = &checkpoint->files[i];
		uint64_t from = SAFETENSORS_LENGTH_BYTES + file->text_bytes;
		posix_fadvise(file->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
		for (uint64_t at = 0; at < file->header.data_bytes;) {
			size_t bytes = (size_t)th_min_u64(READ_BYTES, file->header.data_bytes - at);
			int rc = read_at(file->fd, file->path,
				(uint8_t *)memory + file->memory_offset + at, bytes, from + at,
				err);
			if (rc < 0)
				return rc;
			at += bytes;
			done += bytes;
			if (progress && !progress(done, arg))
				return th_fail(err, -ECANCELED, "interrupted");
		}
	}
	return 0;
}

void
checkpoint_close(struct checkpoint *checkpoint)
{
	for (uint32_t i = 0; i < checkpoint->num_files; i++) {
		struct checkpoint_file *file = &checkpoint->files[i];
		th_fd_close(&file->fd);
		safetensors_free(&file->header);
		free(file->text);
		free(file->path);
	}
	free(checkpoint->files);
	*checkpoint = (struct checkpoint){0};
}
