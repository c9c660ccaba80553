/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save - write beside, sync, rename (see save.h).
 */
#include "tools/save.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "tools/checkpoint.h"

#define TEMP_NAME ".thctl-XXXXXX"
#define BATCH_RANGES 256u
#define BATCH_BYTES ((uint64_t)64 << 20) /* between two looks at the caller's wish to stop */

/* An entry of a checkpoint directory, which --force may delete. */
static bool
is_ours(const char *name)
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
	if (!is_ours(name))
		return th_fail(err, -ENOTEMPTY,
			"%s also holds %s, which --force does not delete: give another OUT", path,
			name);
	return 0;
}

static int
visit_remove(int dir_fd, const char *name, const char *path, struct th_err *err)
{
	if (is_ours(name) && unlinkat(dir_fd, name, 0) < 0)
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

/* For a name behind which there is nothing, or nothing of ours any more. */
static void
forget_temp(struct save *save)
{
	free(save->temp);
	save->temp = NULL;
}

/* The permissions that a new file would have had: mkstemp and mkdtemp give only the owner some. */
static mode_t
default_mode(mode_t wanted)
{
	mode_t mask = umask(0);

	umask(mask);
	return wanted & ~mask;
}

static int
make_temp(struct save *save, struct th_err *err)
{
	int failed = 0;

	if (save->directory) {
		failed = !mkdtemp(save->temp) || chmod(save->temp, default_mode(0777)) < 0;
	} else {
		int fd = mkostemp(save->temp, O_CLOEXEC);
		failed = fd < 0;
		if (fd >= 0)
			close(fd);
	}
	if (!failed)
		return 0;
	int rc = th_fail(
		err, -errno, "cannot write in folder %s: %s", save->folder, strerror(errno));
	forget_temp(save);
	return rc;
}

/* After a failure nothing is left; otherwise temp is only a pattern yet. */
static int
prepare(const char *path, bool directory, bool force, struct th_err *err, struct save *ret_save)
{
	struct save save = {.directory = directory, .force = force};

	int rc = set_paths(&save, path, err);
	if (rc == 0)
		rc = check_place(&save, err);
	if (rc == 0 && access(save.folder, W_OK | X_OK) < 0)
		rc = th_fail(
			err, -errno, "cannot write in folder %s: %s", save.folder, strerror(errno));
	if (rc < 0) {
		forget_temp(&save);
		save_abort(&save);
		return rc;
	}
	*ret_save = save;
	return 0;
}

int
save_check(const char *path, bool directory, bool force, struct th_err *err)
{
	struct save save = {0};

	int rc = prepare(path, directory, force, err, &save);
	forget_temp(&save);
	save_abort(&save);
	return rc;
}

int
save_begin(const char *path, bool directory, bool force, struct th_err *err, struct save *ret_save)
{
	struct save save = {0};

	int rc = prepare(path, directory, force, err, &save);
	if (rc == 0)
		rc = make_temp(&save, err);
	if (rc < 0) {
		save_abort(&save);
		return rc;
	}
	*ret_save = save;
	return 0;
}

/* Takes what comes next, up to a batch, from ranges; *index and *offset say where that is. */
static int
next_batch(const struct save_range *ranges, size_t count, size_t *index, uint64_t *offset,
	struct iovec batch[BATCH_RANGES])
{
	uint64_t bytes = 0;
	int used = 0;

	while (*index < count && used < (int)BATCH_RANGES && bytes < BATCH_BYTES) {
		const struct save_range *range = &ranges[*index];
		uint64_t part = th_min_u64(range->bytes - *offset, BATCH_BYTES - bytes);
		if (part > 0) {
			union {
				const uint8_t *in;
				uint8_t *out; /* an iovec for writing wants no const */
			} data = {.in = (const uint8_t *)range->data + *offset};
			batch[used++] = (struct iovec){.iov_base = data.out, .iov_len = part};
			bytes += part;
			*offset += part;
		}
		if (*offset == range->bytes) {
			(*index)++;
			*offset = 0;
		}
	}
	return used;
}

static int
write_batch(int fd, struct iovec *batch, int used, uint64_t *done)
{
	while (used > 0) {
		ssize_t put = writev(fd, batch, used);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		*done += (uint64_t)put;
		size_t left = (size_t)put;
		while (used > 0 && left >= batch->iov_len) {
			left -= batch->iov_len;
			batch++;
			used--;
		}
		if (used > 0) {
			batch->iov_base = (uint8_t *)batch->iov_base + left;
			batch->iov_len -= left;
		}
	}
	return 0;
}

static int
write_ranges(
	int fd, const struct save_range *ranges, size_t count, save_progress progress, void *arg)
{
	struct iovec batch[BATCH_RANGES];
	uint64_t offset = 0;
	uint64_t done = 0;
	size_t index = 0;
	int used;

	while ((used = next_batch(ranges, count, &index, &offset, batch)) > 0) {
		int rc = write_batch(fd, batch, used, &done);
		if (rc < 0)
			return rc;
		if (progress && !progress(done, arg))
			return -ECANCELED;
	}
	return fsync(fd) < 0 ? -errno : 0;
}

int
save_write(struct save *save, const char *name, const struct save_range *ranges, size_t count,
	save_progress progress, void *arg, struct th_err *err)
{
	char *path = NULL;

	if (save->directory && asprintf(&path, "%s/%s", save->temp, name) < 0)
		return th_fail(err, -ENOMEM, "no memory for a path");
	int fd = open(path ? path : save->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	free(path);
	if (fd < 0)
		return th_fail(err, -errno, "cannot write in folder %s: %s", save->folder,
			strerror(errno));
	int rc = save->directory || fchmod(fd, default_mode(0666)) == 0 ? 0 : -errno;
	if (rc == 0)
		rc = write_ranges(fd, ranges, count, progress, arg);
	if (close(fd) < 0 && rc == 0)
		rc = -errno;
	if (rc == -ECANCELED)
		return th_fail(err, rc, "interrupted");
	if (rc < 0)
		return th_fail(err, rc, "cannot write %s: %s", save->path, strerror(-rc));
	return 0;
}

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
exchange(const struct save *save, bool *ret_exchanged)
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
		rc = exchange(save, &exchanged);
	else if (rc == 0)
		rc = rename(save->temp, save->path) < 0 ? -errno : 0;
	if (rc == 0)
		rc = sync_folder(save->folder);
	if (rc < 0)
		return th_fail(
			err, rc, "cannot put %s in its place: %s", save->path, strerror(-rc));
	/* From here on OUT is there; what is left of the old one is a matter of tidiness. */
	if (exchanged)
		rc = remove_tree(save->temp, err);
	forget_temp(save);
	return rc;
}

void
save_abort(struct save *save)
{
	if (save->temp && save->directory)
		(void)remove_tree(save->temp, NULL);
	else if (save->temp)
		unlink(save->temp);
	free(save->temp);
	free(save->folder);
	free(save->path);
	*save = (struct save){0};
}
