/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint - opening and mapping of safetensors files (see checkpoint.h).
 */
#include "tools/file/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "tools/file/checkpoint_index.h"

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
checkpoint_read_header(struct checkpoint_file *file, uint64_t file_bytes, struct th_err *err)
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

/* Of a file without data too: its header is there, so it has pages. */
static int
checkpoint_map_file(struct checkpoint_file *file, struct th_err *err)
{
	size_t bytes = (size_t)file->stamp.bytes;

	void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file->fd, 0);
	/* Some network file systems allow only this one, which is as good for reading. */
	if (at == MAP_FAILED && (errno == ENODEV || errno == EINVAL))
		at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file->fd, 0);
	if (at == MAP_FAILED)
		return th_fail(err, -errno, "cannot map %s: %s", file->path, strerror(errno));
	file->map = at;
	file->data = file->map + SAFETENSORS_LENGTH_BYTES + file->text_bytes;
	return 0;
}

/* Takes path over, also when it fails. */
static int
checkpoint_add_file(struct checkpoint *checkpoint, char *path, struct th_err *err)
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
	rc = stamp_take(file->fd, file->path, err, &file->stamp);
	if (rc == 0)
		rc = checkpoint_read_header(file, file->stamp.bytes, err);
	if (rc == 0)
		rc = checkpoint_map_file(file, err);
	if (rc < 0)
		return rc;
	if (checkpoint->count + file->header.count > MANIFEST_ROWS_MAX)
		return th_fail(
			err, TH_E_LIMIT, "more than %u tensors in all files", MANIFEST_ROWS_MAX);
	checkpoint->count += file->header.count;
	checkpoint->data_bytes += file->header.data_bytes;
	return 0;
}

static char *
checkpoint_join(const char *directory, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

static int
add_file_of(
	struct checkpoint *checkpoint, const char *directory, const char *name, struct th_err *err)
{
	char *path = checkpoint_join(directory, name);

	if (!path)
		return th_fail(err, -ENOMEM, "no memory for a path");
	return checkpoint_add_file(checkpoint, path, err);
}

/* Of a directory, by its name there; NULL: it is none of the checkpoint. */
static const struct checkpoint_file *
find_file(const struct checkpoint *checkpoint, const char *name)
{
	for (uint32_t i = 0; i < checkpoint->num_files; i++) {
		if (strcmp(strrchr(checkpoint->files[i].path, '/') + 1, name) == 0)
			return &checkpoint->files[i];
	}
	return NULL;
}

static int
checkpoint_compare_names(const void *left, const void *right)
{
	return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The names of all tensors, sorted. The caller frees the array, not the names; NULL: no memory. */
static const char **
sorted_names(const struct checkpoint *checkpoint)
{
	uint32_t count = 0;

	const char **names = calloc(th_max_u32(checkpoint->count, 1), sizeof(names[0]));
	if (!names)
		return NULL;
	for (uint32_t i = 0; i < checkpoint->num_files; i++) {
		for (uint32_t j = 0; j < checkpoint->files[i].header.count; j++)
			names[count++] = checkpoint->files[i].header.tensors[j].name;
	}
	qsort(names, count, sizeof(names[0]), checkpoint_compare_names);
	return names;
}

/* Names the first that is listed and not there. */
static int
checkpoint_fail_missing(const struct checkpoint *checkpoint, const struct checkpoint_index *index,
	struct th_err *err)
{
	const struct checkpoint_index_entry *missing = NULL;

	const char **names = sorted_names(checkpoint);
	for (uint32_t i = 0; names && !missing && i < index->count; i++) {
		const char *name = index->entries[i].tensor;
		if (!bsearch(&name, names, checkpoint->count, sizeof(names[0]),
			    checkpoint_compare_names))
			missing = &index->entries[i];
	}
	free(names);
	return th_fail(err, TH_E_INVALID,
		"the index lists tensor '%s' in %s, which does not have it (%u of %u tensors are "
		"there): the download or copy was cut short",
		missing ? missing->tensor : "?", missing ? missing->file : "?", checkpoint->count,
		index->count);
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
			if (!listed)
				return th_fail(err, TH_E_INVALID,
					"tensor '%s' of %s is not in the index: the index is of "
					"another checkpoint",
					tensor, file->path);
			if (strcmp(listed, name) != 0)
				return th_fail(err, TH_E_INVALID,
					"tensor '%s' is in %s, but the index says %s", tensor,
					file->path, listed);
		}
	}
	/* Each one that the files have is listed, for its own file: so none is there twice. */
	if (checkpoint->count != index->count)
		return checkpoint_fail_missing(checkpoint, index, err);
	return 0;
}

/* Counts the safetensors files that are none of the checkpoint; *ret_name is one of them. */
static int
count_others(const struct checkpoint *checkpoint, const char *directory, struct th_err *err,
	char ret_name[NAME_MAX + 1])
{
	struct dirent *entry;
	int found = 0;

	DIR *dir = opendir(directory);
	if (!dir)
		return th_fail(err, -errno, "cannot open %s: %s", directory, strerror(errno));
	while ((entry = readdir(dir))) {
		if (checkpoint_is_file_name(entry->d_name) &&
			!find_file(checkpoint, entry->d_name)) {
			snprintf(ret_name, NAME_MAX + 1, "%s", entry->d_name);
			found++;
		}
	}
	closedir(dir);
	return found;
}

/* What lies in the directory and does not travel, for whoever wants to say so. */
static int
note_strays(struct checkpoint *checkpoint, const char *directory, struct th_err *err)
{
	char name[NAME_MAX + 1] = "";

	int found = count_others(checkpoint, directory, err, name);
	if (found <= 0)
		return found;
	checkpoint->num_strays = (uint32_t)found;
	checkpoint->stray = strdup(name);
	return checkpoint->stray ? 0 : th_fail(err, -ENOMEM, "no memory for a name");
}

static int
read_index(const char *path, struct th_err *err, struct checkpoint_index *ret_index)
{
	struct th_err inner = {0};
	uint64_t bytes = 0;
	int fd = -1;

	int rc = open_regular(path, err, &fd, &bytes);
	if (rc < 0)
		return rc;
	char *text = bytes <= SAFETENSORS_HEADER_BYTES_MAX ? malloc(bytes + 1) : NULL;
	if (!text)
		rc = th_fail(err, TH_E_LIMIT, "%s has %" PRIu64 " bytes: too many", path, bytes);
	if (rc == 0)
		rc = read_at(fd, path, text, bytes, 0, err);
	if (rc == 0 && checkpoint_index_parse(text, bytes, &inner, ret_index) < 0)
		rc = fail_in(path, &inner, err);
	free(text);
	close(fd);
	return rc;
}

static int
open_indexed(const char *directory, const char *index_path, struct th_err *err,
	struct checkpoint *checkpoint)
{
	struct checkpoint_index index = {0};
	const char *last = ""; /* tensors of one file mostly stand together */

	int rc = read_index(index_path, err, &index);
	for (uint32_t i = 0; i < index.count && rc == 0; i++) {
		const char *name = index.entries[i].file;
		if (strcmp(name, last) != 0 && !find_file(checkpoint, name))
			rc = add_file_of(checkpoint, directory, name, err);
		if (rc == -ENOENT)
			th_fail(err, rc,
				"%s/%s is not there, but the index lists it: the download or copy "
				"is incomplete",
				directory, name);
		last = name;
	}
	if (rc == 0)
		rc = check_index(checkpoint, &index, err);
	if (rc == 0)
		rc = note_strays(checkpoint, directory, err);
	checkpoint_index_free(&index);
	return rc;
}

/* A directory without an index: the one file in it. */
static int
open_single(const char *directory, struct th_err *err, struct checkpoint *checkpoint)
{
	char name[NAME_MAX + 1] = "";

	int found = count_others(checkpoint, directory, err, name);
	if (found < 0)
		return found;
	if (found != 1)
		return th_fail(err, TH_E_INVALID,
			"%s has %s: give the file itself, or a directory with %s", directory,
			found == 0 ? "no .safetensors file"
				   : "several .safetensors files and no index",
			CHECKPOINT_INDEX);
	return add_file_of(checkpoint, directory, name, err);
}

/* Only between files: within one the parser has refused it. An index rules it out too. */
static int
check_tensors(const struct checkpoint *checkpoint, struct th_err *err)
{
	int rc = 0;

	if (checkpoint->count == 0)
		return th_fail(err, TH_E_INVALID, "%s holds no tensor: nothing to publish",
			checkpoint->files[0].path);
	const char **names = sorted_names(checkpoint);
	if (!names)
		return th_fail(err, -ENOMEM, "no memory for %u names", checkpoint->count);
	for (uint32_t i = 1; i < checkpoint->count && rc == 0; i++) {
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
		char *index_path = checkpoint_join(path, CHECKPOINT_INDEX);
		if (!index_path)
			return th_fail(err, -ENOMEM, "no memory for a path");
		rc = access(index_path, F_OK) == 0
			     ? open_indexed(path, index_path, err, &checkpoint)
			     : open_single(path, err, &checkpoint);
		free(index_path);
	} else {
		char *copy = strdup(path);
		rc = copy ? checkpoint_add_file(&checkpoint, copy, err)
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
checkpoint_check(const struct checkpoint *checkpoint, struct th_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < checkpoint->num_files && rc == 0; i++) {
		const struct checkpoint_file *file = &checkpoint->files[i];
		rc = stamp_check(&file->stamp, file->fd, file->path, err);
	}
	return rc;
}

void
checkpoint_close(struct checkpoint *checkpoint)
{
	for (uint32_t i = 0; i < checkpoint->num_files; i++) {
		struct checkpoint_file *file = &checkpoint->files[i];
		if (file->map)
			munmap(file->map, (size_t)file->stamp.bytes);
		th_fd_close(&file->fd);
		safetensors_free(&file->header);
		free(file->text);
		free(file->path);
	}
	free(checkpoint->files);
	free(checkpoint->stray);
	*checkpoint = (struct checkpoint){0};
}
