/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proc_fuzz - what the kernel tells in files of /proc and of control groups, as any kernel may tell
 * it: the mappings, a process's start, what a descriptor is, what is locked, what room there is.
 *
 * The first byte chooses. open and fopen, under their names for large files, are wrapped: the parts
 * of the input are the files, in the order in which they are opened.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/host/memory/mem_available.h"
#include "ipc/base/assert.h"
#include "ipc/base/stranger_fd.h"
#include "ipc/sock/peer.h"
#include "libthc/maps.h"
#include "tests/fuzz/input.h"
#include "transport/rdma/device/memlock.h"

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);

static struct input files;
static bool told; /* what is opened now is a part of the input */

static int
next_file(void)
{
	struct input part = input_part(&files);
	int fd = memfd_create("proc", MFD_CLOEXEC);

	TH_ASSERT(fd >= 0);
	if (part.left > 0)
		TH_ASSERT(write(fd, part.at, part.left) == (ssize_t)part.left);
	TH_ASSERT(lseek(fd, 0, SEEK_SET) == 0);
	return fd;
}

int
__wrap_open64(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	if (told)
		return next_file();
	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return __real_open64(path, flags, mode);
}

FILE *
__wrap_fopen64(const char *path, const char *mode)
{
	return told ? fdopen(next_file(), "r") : __real_fopen64(path, mode);
}

static void
try_maps(void)
{
	struct maps maps;
	struct mapping mapping;
	uintptr_t address = 0;
	int rc = maps_begin(&maps, MAPS_TEXT);

	TH_ASSERT(rc == 0);
	while ((rc = maps_find(&maps, address, &mapping)) > 0) {
		TH_ASSERT(mapping.end > address);
		address = mapping.end;
	}
	maps_end(&maps);
}

static void
try_start_time(void)
{
	int pidfd = peer_pidfd_by_pid(getpid());

	if (pidfd >= 0)
		close(pidfd);
}

/* A pipe: it has no seals, so the kernel is asked for its words. */
static void
try_descriptor(void)
{
	int ends[2];

	TH_ASSERT(pipe2(ends, O_CLOEXEC) == 0);
	(void)stranger_is_dmabuf(ends[0]);
	close(ends[0]);
	close(ends[1]);
}

static void
try_memlock(void)
{
	struct input parts[2] = {input_part(&files), input_part(&files)};
	char *texts[2];

	for (int i = 0; i < 2; i++) {
		texts[i] = calloc(1, parts[i].left + 1);
		TH_ASSERT(texts[i] != NULL);
		if (parts[i].left > 0)
			memcpy(texts[i], parts[i].at, parts[i].left);
	}
	struct memlock memlock = memlock_parse(texts[0], texts[1], 65536);
	TH_ASSERT(memlock.limit_bytes == 65536);
	free(texts[0]);
	free(texts[1]);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	files = (struct input){data, size};
	uint8_t choice = input_byte(&files);

	told = true;
	if (choice % 5 == 0)
		try_maps();
	else if (choice % 5 == 1)
		try_start_time();
	else if (choice % 5 == 2)
		try_descriptor();
	else if (choice % 5 == 3)
		try_memlock();
	else
		(void)room_now("");
	told = false;
	return 0;
}
