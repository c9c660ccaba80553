/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment - see segment.h.
 */
#include "ipc/shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/fd.h"

#define SEALS_W (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define SEALS_A (SEALS_W | F_SEAL_FUTURE_WRITE)

struct header { /* the first 16 bytes of both files */
	uint32_t magic, layout_id, capacity, reserved;
};
_Static_assert(offsetof(struct shm_w, magic) == 0 && offsetof(struct shm_a, magic) == 0 &&
		       offsetof(struct shm_w, capacity) == offsetof(struct header, capacity) &&
		       offsetof(struct shm_a, capacity) == offsetof(struct header, capacity),
	"both files begin with the same header");

/*
 * All pages are allocated here: a page that is first touched when the memory cgroup is full would
 * be a SIGBUS in whoever touched it.
 */
static int
segment_make_file(const char *name, size_t bytes, int *ret_fd)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	int rc = ftruncate(fd, (off_t)bytes) < 0 ? -errno : -posix_fallocate(fd, 0, (off_t)bytes);
	if (rc < 0) {
		th_fd_close(&fd);
		return rc;
	}
	*ret_fd = fd;
	return 0;
}

static int
make_w(struct segment_agent *segment)
{
	const struct header header = {SHM_MAGIC_W, SHM_LAYOUT_ID, SHM_CAPACITY, 0};
	int rc = segment_make_file("thc-w", sizeof(struct shm_w), &segment->fd_w);

	if (rc < 0)
		return rc;
	ssize_t written = pwrite(segment->fd_w, &header, sizeof(header), 0);
	if (written != (ssize_t)sizeof(header))
		return written < 0 ? -errno : -EIO;
	if (fcntl(segment->fd_w, F_ADD_SEALS, SEALS_W) < 0)
		return -errno;
	/* For reading: what the agent cannot write it cannot spoil by mistake. */
	const void *map = mmap(NULL, sizeof(struct shm_w), PROT_READ, MAP_SHARED, segment->fd_w, 0);
	if (map == MAP_FAILED)
		return -errno;
	segment->w = map;
	return 0;
}

static int
make_a(struct segment_agent *segment)
{
	int rc = segment_make_file("thc-a", sizeof(struct shm_a), &segment->fd_a);

	if (rc < 0)
		return rc;
	void *map = mmap(
		NULL, sizeof(struct shm_a), PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd_a, 0);
	if (map == MAP_FAILED)
		return -errno;
	segment->a = map;
	segment->a->magic = SHM_MAGIC_A;
	segment->a->layout_id = SHM_LAYOUT_ID;
	segment->a->capacity = SHM_CAPACITY;
	segment->a->line.held_version = UINT64_MAX;
	segment->a->line.ready_version = UINT64_MAX;
	/* Nothing is shared yet: memory that was never registered is its owner's. */
	segment->a->line.safe_to_mutate = 1;
	if (fcntl(segment->fd_a, F_ADD_SEALS, SEALS_A) < 0)
		return -errno;
	return 0;
}

int
segment_agent_new(struct segment_agent *ret_segment)
{
	struct segment_agent segment = {.fd_w = -1, .fd_a = -1};
	int rc = make_w(&segment);

	if (rc == 0)
		rc = make_a(&segment);
	if (rc < 0) {
		segment_agent_free(&segment);
		return rc;
	}
	*ret_segment = segment;
	return 0;
}

/* munmap takes no pointer to const. */
static void
segment_unmap(const void *map, size_t bytes)
{
	union {
		const void *constant;
		void *plain;
	} pointer = {.constant = map};

	if (map != NULL)
		(void)munmap(pointer.plain, bytes);
}

void
segment_agent_free(struct segment_agent *segment)
{
	int saved = errno;

	segment_unmap(segment->w, sizeof(*segment->w));
	segment_unmap(segment->a, sizeof(*segment->a));
	segment->w = NULL;
	segment->a = NULL;
	th_fd_close(&segment->fd_w);
	th_fd_close(&segment->fd_a);
	errno = saved;
}

/* The seals come first: only a file that cannot shrink any more has a size worth looking at. */
static int
segment_check_file(int fd, int seals, size_t bytes)
{
	struct stat st;
	int have = fcntl(fd, F_GET_SEALS);

	if (have < 0)
		return errno == EINVAL ? -EPROTO : -errno;
	if ((have & seals) != seals)
		return -EPROTO;
	if (fstat(fd, &st) < 0)
		return -errno;
	return st.st_size == (off_t)bytes ? 0 : -EPROTO;
}

static int
segment_map_file(int fd, int seals, size_t bytes, int protection, uint32_t magic, void **ret_map)
{
	struct header header;
	int rc = segment_check_file(fd, seals, bytes);

	if (rc < 0)
		return rc;
	void *map = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	memcpy(&header, map, sizeof(header));
	if (header.magic != magic || header.layout_id != SHM_LAYOUT_ID ||
		header.capacity != SHM_CAPACITY || header.reserved != 0)
		rc = -EPROTO;
	else if (madvise(map, bytes, MADV_DONTFORK) < 0)
		rc = -errno;
	if (rc < 0) {
		segment_unmap(map, bytes);
		return rc;
	}
	*ret_map = map;
	return 0;
}

int
segment_worker_map(int fd_w, int fd_a, struct segment_worker *ret_segment)
{
	void *w = NULL, *a = NULL;
	int rc = segment_map_file(
		fd_w, SEALS_W, sizeof(struct shm_w), PROT_READ | PROT_WRITE, SHM_MAGIC_W, &w);

	if (rc < 0)
		return rc;
	rc = segment_map_file(fd_a, SEALS_A, sizeof(struct shm_a), PROT_READ, SHM_MAGIC_A, &a);
	if (rc < 0) {
		segment_unmap(w, sizeof(struct shm_w));
		return rc;
	}
	ret_segment->w = w;
	ret_segment->a = a;
	return 0;
}

void
segment_worker_unmap(struct segment_worker *segment)
{
	segment_unmap(segment->w, sizeof(*segment->w));
	segment_unmap(segment->a, sizeof(*segment->a));
	segment->w = NULL;
	segment->a = NULL;
}
