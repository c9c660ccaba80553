/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of daemon/host/holes: no page of a worker's memory is made here, neither through a mapping
 * nor through a descriptor; and of what is asked before an operation.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/host/memory/holes.h"
#include "ipc/base/err.h"
#include "transport/part/fd_memory.h"
#include "transport/part/sigbus.h"

#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))
#define PAGES 8

/* Of PAGES pages, of which those of the mask are there and full of sevens. */
static int
file_with(uint32_t mask)
{
	int fd = memfd_create("holes", MFD_CLOEXEC);
	cr_assert_eq(ftruncate(fd, (off_t)(PAGES * PAGE)), 0);
	uint8_t *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(at, MAP_FAILED);
	for (uint32_t i = 0; i < PAGES; i++) {
		if (mask & 1u << i)
			memset(at + i * PAGE, 7, PAGE);
	}
	cr_assert_eq(munmap(at, PAGES * PAGE), 0);
	return fd;
}

static uint64_t
pages_of(int fd)
{
	struct stat st;
	cr_assert_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512 / PAGE;
}

static uint8_t *
map(int fd, int protection)
{
	uint8_t *at = mmap(NULL, PAGES * PAGE, protection, MAP_SHARED, fd, 0);
	cr_assert_neq(at, MAP_FAILED);
	holes_guard(at, PAGES * PAGE);
	return at;
}

/* Containers may forbid it; thagentd(8) says what is then. */
static void
needs_userfaultfd(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (fd < 0)
		cr_skip_test("no userfaultfd here: a filter of system calls");
	close(fd);
}

/* ---- mapped --------------------------------------------------------------------------------- */

Test(daemon_holes, guard__page_that_is_there__is_touched_as_ever)
{
	uint8_t bytes[100];
	int fd = file_with(0xff);
	uint8_t *at = map(fd, PROT_READ | PROT_WRITE);
	cr_assert_eq(sigbus_install(), 0);
	cr_assert_eq(sigbus_copy(bytes, at + 3 * PAGE, sizeof(bytes)), 0);
	cr_assert_eq(bytes[99], 7);
	cr_assert_eq(sigbus_copy(at, "new", 3), 0);
	cr_assert_eq(at[1], 'e');
}

Test(daemon_holes, guard__hole__is_neither_read_nor_written_nor_filled)
{
	needs_userfaultfd();
	uint8_t bytes[100] = {0};
	int fd = file_with(0xfb), ends[2];
	uint8_t *at = map(fd, PROT_READ | PROT_WRITE), *reading = map(fd, PROT_READ);
	cr_assert_eq(sigbus_install(), 0);
	cr_assert_eq(sigbus_copy(bytes, at + 2 * PAGE, 1), TH_E_STALE_MEMORY);
	cr_assert_eq(sigbus_copy(bytes, reading + 2 * PAGE, 1), TH_E_STALE_MEMORY);
	cr_assert_eq(sigbus_copy(at + 2 * PAGE, bytes, 1), TH_E_STALE_MEMORY);
	/* The kernel itself, as it does when bytes come from a socket. */
	cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
	cr_assert_eq(write(ends[1], "bytes", 5), 5);
	cr_assert_eq(read(ends[0], at + 2 * PAGE, 5), -1);
	cr_assert_eq(errno, EFAULT);
	cr_assert_eq(pages_of(fd), PAGES - 1);
	/* When its owner has filled it, it is like any other. */
	cr_assert_eq(pwrite(fd, "x", 1, (off_t)(2 * PAGE)), 1);
	cr_assert_eq(sigbus_copy(bytes, reading + 2 * PAGE, 1), 0);
	cr_assert_eq(bytes[0], 'x');
}

Test(daemon_holes, guard__hole_that_is_punched_under_a_touched_page__is_one)
{
	needs_userfaultfd();
	uint8_t byte;
	int fd = file_with(0xff);
	uint8_t *at = map(fd, PROT_READ | PROT_WRITE);
	cr_assert_eq(sigbus_install(), 0);
	cr_assert_eq(sigbus_copy(&byte, at + PAGE, 1), 0);
	cr_assert_eq(
		fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, (off_t)PAGE, (off_t)PAGE),
		0);
	cr_assert_eq(sigbus_copy(&byte, at + PAGE, 1), TH_E_STALE_MEMORY);
	cr_assert_eq(pages_of(fd), PAGES - 1);
}

/* ---- asked before an operation -------------------------------------------------------------- */

struct asked {
	struct holes_file files[4];
	uint32_t count;
};

static void
count(struct asked *asked, uint64_t ino, uint64_t start, uint64_t end, uint32_t row,
	struct fd_memory *access, bool mapped)
{
	const struct interval interval = {
		.dev = 1, .ino = ino, .start = start, .end = end, .row = row};
	holes_count(asked->files, &asked->count, &interval, access, mapped);
}

Test(daemon_holes, count__neighbours_in_a_page__are_one_page)
{
	struct asked asked = {0};
	count(&asked, 1, 10, 20, 5, NULL, true);
	count(&asked, 1, 20, PAGE, 6, NULL, true);
	cr_assert_eq(asked.files[0].bytes, PAGE);
	count(&asked, 1, PAGE, PAGE + 1, 7, NULL, true);
	count(&asked, 1, 2 * PAGE - 1, 3 * PAGE + 1, 8, NULL, true);
	count(&asked, 1, 9 * PAGE, 10 * PAGE, 9, NULL, true);
	cr_assert_eq(asked.files[0].bytes, 5 * PAGE);
	cr_assert_eq(asked.files[0].row, 5);
	count(&asked, 2, 0, 1, 3, NULL, true);
	cr_assert_eq(asked.count, 2);
	cr_assert_eq(asked.files[1].bytes, PAGE);
	cr_assert_eq(asked.files[1].row, 3);
}

Test(daemon_holes, find__fewer_pages_than_the_tensors_take__are_found)
{
	struct asked asked = {0};
	uint64_t missing = 0;
	int full = file_with(0xff), part = file_with(0x0f);
	struct fd_memory *of_full = fd_memory_new(full, FD_MEMORY_FILE, NULL),
			 *of_part = fd_memory_new(part, FD_MEMORY_FILE, NULL);
	count(&asked, 1, 0, PAGES * PAGE, 0, of_full, true);
	count(&asked, 2, 100, 4 * PAGE, 1, of_part, true);
	cr_assert_null(holes_find(asked.files, asked.count, false, &missing));
	cr_assert_null(holes_find(asked.files, asked.count, true, &missing));
	count(&asked, 2, 5 * PAGE, 7 * PAGE, 2, of_part, true);
	cr_assert_eq(holes_find(asked.files, asked.count, false, &missing), &asked.files[1]);
	cr_assert_eq(missing, 2 * PAGE);
	fd_memory_release(of_full);
	fd_memory_release(of_part);
}

Test(daemon_holes, find__holes_of_what_is_not_mapped__matter_to_a_destination_only)
{
	struct asked asked = {0};
	uint64_t missing = 0;
	struct fd_memory *access = fd_memory_new(file_with(0), FD_MEMORY_FILE, NULL);
	count(&asked, 1, 0, PAGE, 0, access, false);
	cr_assert_null(holes_find(asked.files, asked.count, false, &missing));
	cr_assert_not_null(holes_find(asked.files, asked.count, true, &missing));
	/* One of its objects is mapped: another kept no descriptor. */
	count(&asked, 1, PAGE, 2 * PAGE, 1, NULL, true);
	cr_assert_not_null(holes_find(asked.files, asked.count, false, &missing));
	cr_assert_eq(missing, 2 * PAGE);
	fd_memory_release(access);
}

/* ---- through a descriptor ------------------------------------------------------------------- */

static bool
kernel_tells(int fd)
{
	uint64_t range[2] = {0, PAGE}, pages[5];
	return syscall(451, fd, range, pages, 0) == 0;
}

Test(daemon_holes, write__to_a_hole__makes_no_page_where_the_kernel_tells_of_it)
{
	int fd = file_with(0x0f);
	struct fd_memory *access = fd_memory_new(fd, FD_MEMORY_FILE, NULL);
	cr_assert_eq(fd_memory_write(access, PAGE - 1, "ab", 2), 0);
	int rc = fd_memory_write(access, 4 * PAGE - 1, "ab", 2);
	cr_assert_eq(rc, kernel_tells(fd) ? TH_E_STALE_MEMORY : 0);
	cr_assert_eq(pages_of(fd), kernel_tells(fd) ? 4 : 5);
	fd_memory_release(access);
}
