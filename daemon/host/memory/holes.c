/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holes - see holes.h.
 */
#include "daemon/host/memory/holes.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "ipc/base/log.h"
#include "transport/part/fd_memory.h"

/* ---- what is mapped -------------------------------------------------------------------------- */

/* Its mappings are guarded as long as it is open: for the life of the process. -errno: none. */
static int
open_faults(void)
{
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS};
	/* Every user may have one that serves no faults of the kernel. */
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, UFFDIO_API, &api) == 0)
		return fd;
	int rc = -errno;
	(void)close(fd);
	return rc;
}

void
holes_guard(void *map, size_t bytes)
{
	static int faults = -1;
	static bool asked, told;
	if (!asked) {
		asked = true;
		faults = open_faults();
	}
	struct uffdio_register range = {.range = {.start = (uintptr_t)map, .len = bytes},
		.mode = UFFDIO_REGISTER_MODE_MISSING};
	int rc = faults < 0 ? faults : ioctl(faults, UFFDIO_REGISTER, &range) < 0 ? -errno : 0;
	if (rc < 0 && !told)
		log_warn("memory",
			"pages that a worker takes out of its memory while it is in use come to be "
			"again on this agent's account: there is no userfaultfd (%s); allow that "
			"system call",
			th_strerror(rc));
	told = told || rc < 0;
}

/* ---- what files have ------------------------------------------------------------------------- */

void
holes_count(struct holes_file *files, uint32_t *count, const struct interval *interval,
	struct fd_memory *access, bool mapped)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct holes_file *file = *count > 0 ? &files[*count - 1] : NULL;
	if (!file || file->dev != interval->dev || file->ino != interval->ino) {
		file = &files[(*count)++];
		*file = (struct holes_file){
			.dev = interval->dev, .ino = interval->ino, .row = interval->row};
	}
	/* Of several objects of one file: what any of them needs. */
	if (access)
		file->access = access;
	file->mapped = file->mapped || mapped;
	uint64_t start = th_max_u64(interval->start / page * page, file->end);
	uint64_t end = interval->end + (page - interval->end % page) % page;
	if (end <= start)
		return;
	file->bytes += end - start;
	file->end = end;
}

const struct holes_file *
holes_find(const struct holes_file *files, uint32_t count, bool destination, uint64_t *ret_missing)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct holes_file *file = &files[i];
		struct stat st;
		if ((!destination && !file->mapped) || !file->access ||
			fstat(fd_memory_fd(file->access), &st) < 0)
			continue;
		uint64_t there = (uint64_t)th_max_i64(st.st_blocks, 0) * 512;
		if (there < file->bytes) {
			*ret_missing = file->bytes - there;
			return file;
		}
	}
	return NULL;
}
