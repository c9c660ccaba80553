/* SPDX-License-Identifier: Apache-2.0 */
/*
 * maps - see maps.h. A kernel from 6.11 on answers for one address (PROCMAP_QUERY); an older one
 * gives all lines of /proc/self/maps, of which the beginning of each is understood.
 */
#include "libthc/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ipc/base/fd.h"

/* As in linux/fs.h, which is older than this where the kernel may be newer. */
struct query {
	uint64_t size, flags, address;
	uint64_t start, end, vma_flags, page_size, offset, inode;
	uint32_t major, minor, name_size, build_id_size;
	uint64_t name_address, build_id_address;
};
_Static_assert(sizeof(struct query) == 104, "the kernel's struct procmap_query");
#define QUERY _IOWR('f', 17, struct query)
#define QUERY_READABLE 0x01u
#define QUERY_WRITABLE 0x02u
#define QUERY_SHARED 0x08u
#define QUERY_COVERING_OR_NEXT 0x10u

/* What is read of a line is not longer than this; a path may follow. */
#define LINE_HEAD_BYTES 160u

static int
query_at(struct maps *maps, uintptr_t address, struct mapping *ret_mapping)
{
	struct query query = {
		.size = sizeof(query), .flags = QUERY_COVERING_OR_NEXT, .address = address};

	while (ioctl(maps->fd, QUERY, &query) < 0) {
		if (errno == ENOENT)
			return 0;
		if (errno != EINTR)
			return -errno;
	}
	*ret_mapping = (struct mapping){.start = (uintptr_t)query.start,
		.end = (uintptr_t)query.end,
		.readable = (query.vma_flags & QUERY_READABLE) != 0,
		.writable = (query.vma_flags & QUERY_WRITABLE) != 0,
		.shared = (query.vma_flags & QUERY_SHARED) != 0,
		.offset = query.offset,
		.inode = query.inode,
		.major = query.major,
		.minor = query.minor};
	return 1;
}

/* Makes room behind what is left and reads once. The bytes read, 0 at the end, or -errno. */
static int
maps_fill(struct maps *maps)
{
	memmove(maps->buffer, maps->buffer + maps->at, maps->filled - maps->at);
	maps->filled -= maps->at;
	maps->at = 0;
	for (;;) {
		ssize_t bytes = read(
			maps->fd, maps->buffer + maps->filled, sizeof(maps->buffer) - maps->filled);
		if (bytes < 0 && errno == EINTR)
			continue;
		if (bytes < 0)
			return -errno;
		maps->filled += (size_t)bytes;
		return (int)bytes;
	}
}

/* A number and the character behind it. False: it is not so. */
static bool
maps_take_number(const char **at, const char *end, unsigned base, char behind, uint64_t *ret_number)
{
	uint64_t number = 0;
	const char *p = *at;

	for (; p < end; p++) {
		unsigned digit = *p >= '0' && *p <= '9'   ? (unsigned)(*p - '0')
				 : *p >= 'a' && *p <= 'f' ? (unsigned)(*p - 'a') + 10
							  : 99;
		if (digit >= base)
			break;
		number = number * base + digit;
	}
	if (p == *at || p == end || (*p != behind && !(behind == ' ' && *p == '\n')))
		return false;
	*at = p + (*p == '\n' ? 0 : 1);
	*ret_number = number;
	return true;
}

static bool
maps_parse(const char *at, const char *end, struct mapping *ret_mapping)
{
	uint64_t start, stop, offset, major, minor, inode;
	const char *perms;

	if (!maps_take_number(&at, end, 16, '-', &start) ||
		!maps_take_number(&at, end, 16, ' ', &stop))
		return false;
	perms = at;
	if (end - at < 5)
		return false;
	at += 5;
	if (!maps_take_number(&at, end, 16, ' ', &offset) ||
		!maps_take_number(&at, end, 16, ':', &major) ||
		!maps_take_number(&at, end, 16, ' ', &minor) ||
		!maps_take_number(&at, end, 10, ' ', &inode))
		return false;
	*ret_mapping = (struct mapping){.start = (uintptr_t)start,
		.end = (uintptr_t)stop,
		.readable = perms[0] == 'r',
		.writable = perms[1] == 'w',
		.shared = perms[3] == 's',
		.offset = offset,
		.inode = inode,
		.major = (uint32_t)major,
		.minor = (uint32_t)minor};
	return true;
}

/* The next line: 1; 0 at the end. */
static int
next_line(struct maps *maps, struct mapping *ret_mapping)
{
	int rc = 1;

	while (rc > 0 && maps->filled - maps->at < LINE_HEAD_BYTES)
		rc = maps_fill(maps);
	if (rc < 0)
		return rc;
	if (maps->at == maps->filled)
		return 0;
	if (!maps_parse(maps->buffer + maps->at, maps->buffer + maps->filled, ret_mapping))
		return -EPROTO;
	for (;;) {
		char *newline = memchr(maps->buffer + maps->at, '\n', maps->filled - maps->at);
		if (newline != NULL) {
			maps->at = (size_t)(newline - maps->buffer) + 1;
			return 1;
		}
		maps->at = maps->filled;
		rc = maps_fill(maps);
		if (rc <= 0)
			return rc < 0 ? rc : 1;
	}
}

int
maps_begin(struct maps *maps, unsigned flags)
{
	struct mapping mapping;

	maps->any = false;
	maps->at = 0;
	maps->filled = 0;
	maps->fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	if (maps->fd < 0)
		return -errno;
	/* Whatever it says against it (a filter of system calls too): the text is there as well. */
	maps->query = (flags & MAPS_TEXT) == 0 && query_at(maps, 0, &mapping) >= 0;
	return 0;
}

int
maps_find(struct maps *maps, uintptr_t address, struct mapping *ret_mapping)
{
	while (!maps->any || maps->last.end <= address) {
		int rc = maps->query ? query_at(maps, address, &maps->last)
				     : next_line(maps, &maps->last);
		if (rc <= 0) {
			maps->any = false;
			return rc;
		}
		maps->any = true;
	}
	*ret_mapping = maps->last;
	return 1;
}

void
maps_end(struct maps *maps)
{
	th_fd_close(&maps->fd);
}
