/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save - reserve, map, sync, rename (see save.h).
 */
#include "tools/file/save.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/units.h"
#include "tools/file/checkpoint.h"

#define TEMP_NAME ".thctl-XXXXXX"
#define SYNC_BYTES ((uint64_t)32 << 20) /* between two looks at the caller's wish to stop */
#define COPY_BYTES ((size_t)1 << 20)

/* An entry of a checkpoint directory, which --force may delete. */
static bool
save_is_ours(const char *name)
{
	return checkpoint_is_file_name(name) || strcmp(name, CHECKPOINT_INDEX) == 0;
}

/* Calls for each entry but . and ..; stops at the first failure. */
static int
for_each_entry(const char *path,
	int (*visit)(int dir_fd, const char *name, const char *path, struct th_err *err),
	struct th_err *err)
{
	struct dirent *entry;
	int rc = 0;

	DIR *dir = opendir(path);
	if (!dir)
		return th_fail(err, -errno, "cannot open %s: %s", path, strerror(errno));
	while (rc == 0 && (entry = readdir(dir))) {
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			rc = visit(dirfd(dir), entry->d_name, path, err);
	}
	closedir(dir);
	return rc;
}

static int
visit_check(int dir_fd, const char *name, const char *path, struct th_err *err)
{
	(void)dir_fd;
	if (!save_is_ours(name))
		return th_fail(err, -ENOTEMPTY,
			"%s also holds %s, which --force does not delete: give another OUT", path,
			name);
	return 0;
}

static int
visit_remove(int dir_fd, const char *name, const char *path, struct th_err *err)
{
	if (save_is_ours(name) && unlinkat(dir_fd, name, 0) < 0)
		return th_fail(err, -errno, "cannot remove %s/%s: %s", path, name, strerror(errno));
	return 0;
}

static int
remove_tree(const char *path, struct th_err *err)
{
	int rc = for_each_entry(path, visit_remove, err);

	if (rc < 0)
		return rc;
	if (rmdir(path) < 0)
		return th_fail(err, -errno, "cannot remove %s: %s", path, strerror(errno));
	return 0;
}

/* May something be put at path? */
static int
check_place(const struct save *save, struct th_err *err)
{
	struct stat st;

	if (lstat(save->path, &st) < 0) {
		if (errno == ENOENT)
			return 0;
		return th_fail(err, -errno, "cannot use %s: %s", save->path, strerror(errno));
	}
	if (!save->force)
		return th_fail(err, -EEXIST, "%s is there already: give another OUT, or --force",
			save->path);
	if (save->directory != S_ISDIR(st.st_mode))
		return th_fail(err, -EEXIST, "%s is %s: give another OUT", save->path,
			save->directory ? "not a directory" : "a directory");
	return save->directory ? for_each_entry(save->path, visit_check, err) : 0;
}

static int
set_paths(struct save *save, const char *path, struct th_err *err)
{
	save->path = strdup(path);
	if (!save->path)
		return th_fail(err, -ENOMEM, "no memory for a path");
	for (size_t length = strlen(save->path); length > 1 && save->path[length - 1] == '/';)
		save->path[--length] = '\0';
	char *slash = strrchr(save->path, '/');
	const char *base = slash ? slash + 1 : save->path;
	if (*base == '\0' || strcmp(base, ".") == 0 || strcmp(base, "..") == 0)
		return th_fail(err, TH_E_INVALID, "'%s' is no place for a new file", path);
	if (!slash)
		save->folder = strdup(".");
	else
		save->folder = slash == save->path
				       ? strdup("/")
				       : strndup(save->path, (size_t)(slash - save->path));
	if (!save->folder || asprintf(&save->temp, "%s/" TEMP_NAME, save->folder) < 0) {
		save->temp = NULL;
		return th_fail(err, -ENOMEM, "no memory for a path");
	}
	return 0;
}

/* The permissions that a new file would have had: mkstemp and mkdtemp give only the owner some. */
static mode_t
default_mode(mode_t wanted)
{
	mode_t mask = umask(0);

	umask(mask);
	return wanted & ~mask;
}

/* No signal comes between the thing and the mark that it is there. */
static int
make_temp(struct save *save, struct th_err *err)
{
	sigset_t all, before;
	bool made = false;
	int fd = -1;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	if (save->directory) {
		made = mkdtemp(save->temp) != NULL;
	} else {
		fd = mkostemp(save->temp, O_CLOEXEC);
		made = fd >= 0;
	}
	int rc = made ? 0 : -errno;
	save->there = made;
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (made && save->directory && chmod(save->temp, default_mode(0777)) < 0)
		rc = -errno;
	if (fd >= 0 && fchmod(fd, default_mode(0666)) < 0)
		rc = -errno;
	th_fd_close(&fd);
	return rc < 0 ? th_fail(err, rc, "cannot write in folder %s: %s", save->folder,
				strerror(-rc))
		      : 0;
}

/* Nothing is there yet. */
static int
save_prepare(
	const char *path, bool directory, bool force, struct th_err *err, struct save *ret_save)
{
	struct save save = {.directory = directory, .force = force};

	int rc = set_paths(&save, path, err);
	if (rc == 0)
		rc = check_place(&save, err);
	if (rc == 0 && access(save.folder, W_OK | X_OK) < 0)
		rc = th_fail(
			err, -errno, "cannot write in folder %s: %s", save.folder, strerror(errno));
	if (rc < 0) {
		save_end(&save);
		return rc;
	}
	*ret_save = save;
	return 0;
}

int
save_check(const char *path, bool directory, bool force, struct th_err *err)
{
	struct save save = {0};

	int rc = save_prepare(path, directory, force, err, &save);
	save_end(&save);
	return rc;
}

int
save_begin(const char *path, bool directory, bool force, uint32_t files_max, struct th_err *err,
	struct save *ret_save)
{
	int rc = save_prepare(path, directory, force, err, ret_save);

	if (rc < 0)
		return rc;
	ret_save->files = calloc(files_max, sizeof(ret_save->files[0]));
	ret_save->files_max = files_max;
	rc = ret_save->files ? make_temp(ret_save, err)
			     : th_fail(err, -ENOMEM, "no memory for %u files", files_max);
	if (rc < 0)
		save_end(ret_save);
	return rc;
}

/* ---- files ---------------------------------------------------------------------------------- */

static int
fail_full(const struct save *save, uint64_t bytes, int code, struct th_err *err)
{
	char needed[TH_UNITS_BYTES];
	char left[TH_UNITS_BYTES] = "?";
	struct statvfs st;

	if (statvfs(save->folder, &st) == 0)
		th_print_size_short((uint64_t)st.f_bavail * st.f_frsize, left);
	return th_fail(err, code,
		"no room for %s: a file of %s is needed, folder %s has %s free (%s); make room, or "
		"give another OUT",
		save->path, th_print_size_short(bytes, needed), save->folder, left,
		strerror(-code));
}

/* The room is taken now: a page of the mapping that finds none would be a signal later. */
static int
save_reserve(const struct save *save, const struct save_file *file, struct th_err *err)
{
	int code;

	if (file->bytes > INT64_MAX)
		return fail_full(save, file->bytes, -EFBIG, err);
	do
		code = posix_fallocate(file->fd, 0, (off_t)file->bytes);
	while (code == EINTR);
	if (code == 0)
		return 0;
	if (code == ENOSPC || code == EDQUOT || code == EFBIG)
		return fail_full(save, file->bytes, -code, err);
	return th_fail(err, -code, "cannot write %s: %s", save->path, strerror(code));
}

static int
map(const struct save *save, struct save_file *file, struct th_err *err)
{
	void *at = mmap(NULL, (size_t)file->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);

	if (at == MAP_FAILED)
		return th_fail(err, -errno,
			"cannot map a file in folder %s: %s; give an OUT on another file system",
			save->folder, strerror(errno));
	file->map = at;
	return 0;
}

int
save_create(struct save *save, const char *name, uint64_t bytes, struct th_err *err,
	struct save_file **ret_file)
{
	struct save_file *file = &save->files[save->num_files];

	TH_ASSERT(save->num_files < save->files_max);
	*file = (struct save_file){.fd = -1, .bytes = bytes};
	if (!save->directory)
		file->path = strdup(save->temp);
	else if (asprintf(&file->path, "%s/%s", save->temp, name) < 0)
		file->path = NULL;
	if (!file->path)
		return th_fail(err, -ENOMEM, "no memory for a path");
	/* Known before it is there: who is interrupted in between removes nothing else. */
	save->num_files++;
	file->fd = open(file->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (file->fd < 0)
		return th_fail(err, -errno, "cannot write in folder %s: %s", save->folder,
			strerror(errno));
	int rc = bytes > 0 ? save_reserve(save, file, err) : 0;
	if (rc == 0 && bytes > 0)
		rc = map(save, file, err);
	if (rc == 0)
		*ret_file = file;
	return rc;
}

int
save_put(const struct save *save, struct save_file *file, uint64_t offset, const void *data,
	size_t bytes, struct th_err *err)
{
	const uint8_t *at = data;

	TH_ASSERT(th_range_fits(offset, bytes, file->bytes));
	while (bytes > 0) {
		ssize_t put = pwrite(file->fd, at, bytes, (off_t)offset);
		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return th_fail(err, put < 0 ? -errno : -EIO, "cannot write %s: %s",
				save->path, strerror(put < 0 ? errno : EIO));
		at += put;
		offset += (uint64_t)put;
		bytes -= (size_t)put;
	}
	return 0;
}

/* Not through the mappings: a file that somebody cuts short is a failure here, not a signal. */
int
save_copy(const struct save *save, struct save_file *to, uint64_t to_offset,
	const struct save_file *from, uint64_t from_offset, uint64_t bytes, struct th_err *err)
{
	int rc = 0;

	TH_ASSERT(th_range_fits(from_offset, bytes, from->bytes));
	uint8_t *block = malloc(COPY_BYTES);
	if (!block)
		return th_fail(err, -ENOMEM, "no memory to write %s", save->path);
	while (rc == 0 && bytes > 0) {
		ssize_t got = pread(
			from->fd, block, (size_t)th_min_u64(bytes, COPY_BYTES), (off_t)from_offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			rc = th_fail(err, got < 0 ? -errno : -EIO, "cannot read %s again: %s",
				save->path, strerror(got < 0 ? errno : EIO));
			break;
		}
		rc = save_put(save, to, to_offset, block, (size_t)got, err);
		from_offset += (uint64_t)got;
		to_offset += (uint64_t)got;
		bytes -= (uint64_t)got;
	}
	free(block);
	return rc;
}

/* In blocks, so that the caller hears of it; what this does not do the fsync behind it does. */
static int
write_back(const struct save_file *file, uint64_t before, save_progress progress, void *arg)
{
	const unsigned flags =
		SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;

	for (uint64_t at = 0; at < file->bytes;) {
		uint64_t block = th_min_u64(SYNC_BYTES, file->bytes - at);
		if (sync_file_range(file->fd, (off_t)at, (off_t)block, flags) < 0 &&
			(errno == EIO || errno == ENOSPC || errno == EDQUOT))
			return -errno;
		at += block;
		if (progress && !progress(before + at, arg))
			return -ECANCELED;
	}
	return fsync(file->fd) < 0 ? -errno : 0;
}

int
save_sync(struct save *save, save_progress progress, void *arg, struct th_err *err)
{
	uint64_t before = 0;

	for (uint32_t i = 0; i < save->num_files; i++) {
		const struct save_file *file = &save->files[i];
		int rc = write_back(file, before, progress, arg);
		if (rc == -ECANCELED)
			return th_fail(err, rc, "interrupted");
		if (rc < 0)
			return th_fail(err, rc, "cannot write %s: %s", save->path, strerror(-rc));
		before += file->bytes;
	}
	return 0;
}

/* ---- the end -------------------------------------------------------------------------------- */

static int
sync_folder(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	int rc = fsync(fd) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

/*
 * Without force nothing may be replaced, also nothing that came since save_begin. Where the file
 * system cannot promise that, the plain rename is preceded by a look.
 */
static int
rename_new(const struct save *save)
{
	struct stat st;

	if (renameat2(AT_FDCWD, save->temp, AT_FDCWD, save->path, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	if (lstat(save->path, &st) == 0)
		return -EEXIST;
	return rename(save->temp, save->path) < 0 ? -errno : 0;
}

/* The old directory has the temporary name afterwards, and is removed by the caller. */
static int
save_exchange(const struct save *save, bool *ret_exchanged)
{
	if (renameat2(AT_FDCWD, save->temp, AT_FDCWD, save->path, RENAME_EXCHANGE) == 0) {
		*ret_exchanged = true;
		return 0;
	}
	if (errno == ENOENT) /* nothing there to replace */
		return rename(save->temp, save->path) < 0 ? -errno : 0;
	return -errno;
}

int
save_commit(struct save *save, struct th_err *err)
{
	bool exchanged = false;

	int rc = save->directory ? sync_folder(save->temp) : 0;
	if (rc == 0 && !save->force)
		rc = rename_new(save);
	else if (rc == 0 && save->directory)
		rc = save_exchange(save, &exchanged);
	else if (rc == 0)
		rc = rename(save->temp, save->path) < 0 ? -errno : 0;
	if (rc == 0) {
		/* OUT is there; what is at temp now is the old one, or nothing. */
		save->there = false;
		rc = sync_folder(save->folder);
	}
	if (rc < 0)
		th_fail(err, rc, "cannot put %s in its place: %s", save->path, strerror(-rc));
	if (exchanged && remove_tree(save->temp, rc == 0 ? err : NULL) < 0 && rc == 0)
		rc = err ? err->code : -EIO;
	return rc;
}

void
save_undo(const struct save *save)
{
	if (!save->there)
		return;
	for (uint32_t i = 0; i < save->num_files; i++)
		unlink(save->files[i].path);
	if (save->directory)
		rmdir(save->temp);
	else
		unlink(save->temp);
}

void
save_end(struct save *save)
{
	save_undo(save);
	save->there = false;
	for (uint32_t i = 0; i < save->num_files; i++) {
		struct save_file *file = &save->files[i];
		th_fd_close(&file->fd);
		free(file->path);
	}
	free(save->files);
	free(save->temp);
	free(save->folder);
	free(save->path);
	*save = (struct save){0};
}
