/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_memory - see fd_memory.h.
 */
#include "transport/part/fd_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/err.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/loop/crew.h"

struct fd_memory {
	struct fd_memory *next; /* among the dropped ones */
	enum fd_memory_kind kind;
	int fd; /* owns, when there is close_fd */
	void (*close_fd)(int fd);
	struct gpus *gpus;       /* both only of a GPU's */
	struct gpu_space *space; /* owns: a reference */
	uint32_t references;     /* atomic */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fd_memory *dropped;   /* guarded by lock, as the next */
static struct fd_memory_left *left; /* likewise */

struct fd_memory *
fd_memory_new(int fd, enum fd_memory_kind kind, void (*close_fd)(int fd))
{
	struct fd_memory *access = malloc(sizeof(*access));
	fd_memory_sweep();
	if (access)
		*access = (struct fd_memory){
			.kind = kind, .fd = fd, .close_fd = close_fd, .references = 1};
	return access;
}

struct fd_memory *
fd_memory_new_gpu(struct gpus *gpus, struct gpu_space *space)
{
	struct fd_memory *access = fd_memory_new(-1, FD_MEMORY_GPU, NULL);
	if (access) {
		access->gpus = gpus;
		access->space = gpu_space_retain(space);
	}
	return access;
}

struct fd_memory *
fd_memory_retain(struct fd_memory *access)
{
	__atomic_add_fetch(&access->references, 1, __ATOMIC_RELAXED);
	return access;
}

void
fd_memory_release(struct fd_memory *access)
{
	if (access && __atomic_sub_fetch(&access->references, 1, __ATOMIC_ACQ_REL) == 0) {
		pthread_mutex_lock(&lock);
		access->next = dropped;
		dropped = access;
		pthread_mutex_unlock(&lock);
	}
	fd_memory_sweep();
}

void
fd_memory_sweep(void)
{
	if (crew_on_thread())
		return;
	pthread_mutex_lock(&lock);
	struct fd_memory *access = dropped;
	struct fd_memory_left *other = left;
	dropped = NULL;
	left = NULL;
	pthread_mutex_unlock(&lock);
	while (other) {
		struct fd_memory_left *next = other->next;
		other->run(other);
		other = next;
	}
	while (access) {
		struct fd_memory *next = access->next;
		if (access->close_fd)
			access->close_fd(access->fd);
		gpu_space_release(access->space);
		free(access);
		access = next;
	}
}

void
fd_memory_leave(struct fd_memory_left *what)
{
	pthread_mutex_lock(&lock);
	what->next = left;
	left = what;
	pthread_mutex_unlock(&lock);
	fd_memory_sweep();
}

int
fd_memory_fd(const struct fd_memory *access)
{
	return access->fd;
}

struct gpu_space *
fd_memory_space(const struct fd_memory *access)
{
	return access->space;
}

struct gpus *
fd_memory_gpus(const struct fd_memory *access)
{
	return access->gpus;
}

/* An address that is not mapped is EIO; so is a page that its file can not give. */
static int
failure(int error)
{
	return error == EIO || error == EFAULT || error == ENXIO ? TH_E_STALE_MEMORY : -error;
}

int
fd_memory_read(struct fd_memory *access, uint64_t place, void *to, size_t bytes)
{
	uint8_t *at = to;
	while (bytes > 0) {
		ssize_t got = pread(access->fd, at, bytes, (off_t)place);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return failure(errno);
		if (got == 0)
			return TH_E_STALE_MEMORY;
		at += got;
		place += (uint64_t)got;
		bytes -= (size_t)got;
	}
	return 0;
}

/*
 * A file's flags belong to the worker as well, and with O_APPEND the bytes would go to the file's
 * end. One that has shrunk would only grow again. The worker can change both at any moment, but it
 * is its own operation that would then end with the wrong bytes: mistakes are caught, not malice.
 */
static int
fd_memory_check_file(const struct fd_memory *access, uint64_t place, size_t bytes)
{
	struct stat st;
	int flags = fcntl(access->fd, F_GETFL);
	if (flags < 0 || fstat(access->fd, &st) < 0)
		return -errno;
	if (flags & O_APPEND)
		return TH_E_MEMORY_KIND;
	return th_range_fits(place, bytes, (uint64_t)st.st_size) ? 0 : TH_E_STALE_MEMORY;
}

/* Of <linux/mman.h> since Linux 6.5. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
struct cache_range {
	uint64_t offset, bytes;
};
struct cache_pages {
	uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

/*
 * A write to a hole would make pages on the account of this process. A file without any is the
 * rule. Where the holes of another one are older kernels tell only under a lock that the worker can
 * hold; there, what the agent has asked before the operation has to do.
 */
static int
check_pages(const struct fd_memory *access, uint64_t place, size_t bytes)
{
	struct stat st;
	struct cache_range range = {.offset = place, .bytes = bytes};
	struct cache_pages pages;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	if (fstat(access->fd, &st) < 0 || (uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size ||
		syscall(SYS_cachestat, access->fd, &range, &pages, 0u) < 0)
		return 0;
	/* What is swapped out is there as well. */
	uint64_t wanted = (place + bytes - 1) / page - place / page + 1;
	return pages.cached + pages.evicted < wanted ? TH_E_STALE_MEMORY : 0;
}

int
fd_memory_write(struct fd_memory *access, uint64_t place, const void *from, size_t bytes)
{
	const uint8_t *at = from;
	while (bytes > 0) {
		int rc = access->kind == FD_MEMORY_FILE ? fd_memory_check_file(access, place, bytes)
							: 0;
		if (rc == 0 && access->kind == FD_MEMORY_FILE)
			rc = check_pages(access, place, bytes);
		if (rc < 0)
			return rc;
		ssize_t put = pwrite(access->fd, at, bytes, (off_t)place);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return failure(errno);
		if (put == 0)
			return TH_E_STALE_MEMORY;
		if (access->kind == FD_MEMORY_FILE)
			rc = fd_memory_check_file(access, place, (size_t)put);
		if (rc < 0)
			return rc;
		at += put;
		place += (uint64_t)put;
		bytes -= (size_t)put;
	}
	return 0;
}
