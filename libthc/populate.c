/* SPDX-License-Identifier: Apache-2.0 */
/*
 * populate - see populate.h.
 */
#include "libthc/populate.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "libthc/libthc_own.h"

#ifndef MADV_POPULATE_READ /* only in the headers of a newer C library */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Takes a tenth of a second: the deadline is looked at in between. */
#define SLICE_BYTES (UINT64_C(64) << 20)

static int
populate_slice(const struct populate_memory *memory, uint64_t at, uint64_t bytes)
{
	int advice = memory->written ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;

	while (madvise((void *)(memory->start + at), (size_t)bytes, advice) < 0) {
		/* Linux before 5.14: the same pages, which are not mapped yet. */
		if (errno == EINVAL && fallocate(memory->fd, 0, (off_t)(memory->fd_offset + at),
					       (off_t)bytes) == 0)
			return 0;
		/* Where a touch would be SIGBUS: a full tmpfs, a pool without huge pages. */
		if (errno == EFAULT)
			return -ENOMEM;
		if (errno != EINTR && errno != EAGAIN)
			return -errno;
	}
	return 0;
}

int
populate_all(const struct populate_memory *memory, int64_t until_ns)
{
	for (uint64_t at = 0; at < memory->bytes; at += SLICE_BYTES) {
		if (th_now_ns() >= until_ns)
			return -ETIMEDOUT;
		int rc = populate_slice(memory, at, th_min_u64(memory->bytes - at, SLICE_BYTES));
		if (rc < 0)
			return rc;
	}
	return 0;
}

static bool
has_holes(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && (uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size;
}

/* Without the lock for the moment: who closes the handle ends this. */
static int
populate_unlocked(struct thc_shard *shard, const struct populate_memory *memory, int64_t until_ns)
{
	for (uint64_t at = 0; at < memory->bytes; at += SLICE_BYTES) {
		if (th_now_ns() >= until_ns)
			return -ETIMEDOUT;
		pthread_mutex_unlock(&shard->lock);
		int rc = populate_slice(memory, at, th_min_u64(memory->bytes - at, SLICE_BYTES));
		pthread_mutex_lock(&shard->lock);
		if (rc == 0 && shard->life != SHARD_OPEN)
			rc = -ECANCELED;
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Its own pages, and not all of the file: that may be a large arena of which little is in use. */
static int
populate_tensor(struct thc_shard *shard, const struct checked_tensor *tensor, int64_t until_ns)
{
	const struct memory_object *object = &tensor->object;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	/* Within its page it lies in the file as it does here, for one is mapped at the other. */
	uint64_t before = tensor->start % page;
	const struct populate_memory memory = {.start = tensor->start - before,
		.bytes = (before + tensor->bytes + page - 1) / page * page,
		.fd = object->fd,
		.fd_offset = object->fd_offset + (tensor->start - object->start) - before};
	int rc = populate_unlocked(shard, &memory, until_ns);

	/* On an old kernel, of a file that cannot be written: who only reads it makes no page. */
	if (rc == 0 || rc == -EBADF || rc == -EPERM)
		return 0;
	if (rc == -ECANCELED)
		return shim_fail(THC_E_CANCELLED, "another thread closes this handle");
	if (rc == -ETIMEDOUT)
		return shim_fail(THC_E_TIMEOUT,
			"tensors[%zu].data: there was no time to make all pages of '%s'; call "
			"again, it goes on from there",
			tensor->index, tensor->name);
	return shim_fail(rc, "tensors[%zu].data: the pages of '%s' are not to be had: %s",
		tensor->index, tensor->name, th_strerror(rc));
}

int
populate_imported(struct thc_shard *shard, const struct checked_tensors *checked, int64_t until_ns)
{
	uint64_t serial = 0; /* of the last one: neighbours mostly share an object */
	bool holes = false;

	for (size_t i = 0; i < checked->count; i++) {
		const struct checked_tensor *tensor = &checked->tensors[i];
		const struct memory_object *object = &tensor->object;
		if ((tensor->way != WAY_MAPPED && tensor->way != WAY_FILE) || object->allocated)
			continue;
		if (object->serial != serial) {
			serial = object->serial;
			holes = has_holes(object->fd);
		}
		int rc = holes ? populate_tensor(shard, tensor, until_ns) : 0;
		if (rc < 0)
			return rc;
	}
	return 0;
}
