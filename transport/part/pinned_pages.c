/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_pages - see pinned_pages.h.
 */
#include "transport/part/pinned_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/fd.h"

#define HUGE_BYTES (UINT64_C(2) << 20)

/* A child of the agent has no business in it, and a core file neither. */
static void
keep_away(uint8_t *data, uint64_t bytes)
{
	(void)madvise(data, bytes, MADV_DONTFORK);
	(void)madvise(data, bytes, MADV_DONTDUMP);
}

uint8_t *
pinned_pages_map(uint64_t bytes)
{
	uint64_t slack = bytes >= HUGE_BYTES ? HUGE_BYTES : 0;
	void *map = mmap(
		NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	uint8_t *data = map;
	if (slack > 0) {
		uint64_t before = (HUGE_BYTES - (uintptr_t)map % HUGE_BYTES) % HUGE_BYTES;
		data += before;
		if (before > 0)
			(void)munmap(map, before);
		if (slack > before)
			(void)munmap(data + bytes, slack - before);
		(void)madvise(data, bytes, MADV_HUGEPAGE);
	}
	keep_away(data, bytes);
	return data;
}

int
pinned_pages_map_file(const char *name, uint64_t bytes, int *ret_fd, uint8_t **ret_data)
{
	void *data = MAP_FAILED;
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (data == MAP_FAILED) {
		int rc = -errno;
		th_fd_close(&fd);
		return rc;
	}
	(void)madvise(data, bytes, MADV_HUGEPAGE);
	keep_away(data, bytes);
	*ret_fd = fd;
	*ret_data = data;
	return 0;
}
