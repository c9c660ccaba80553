/* SPDX-License-Identifier: Apache-2.0 */
/*
 * maps_test - what is said of this process's mappings, by both ways that a kernel may offer.
 */
#include "libthc/maps.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE ((size_t)sysconf(_SC_PAGESIZE))
#define MANY 600

static const unsigned ways[] = {0, MAPS_TEXT};

static char *
map(size_t pages)
{
	char *at = mmap(
		NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(at, MAP_FAILED);
	return at;
}

static struct mapping
find(struct maps *maps, const char *at)
{
	struct mapping mapping;

	cr_assert_eq(maps_find(maps, (uintptr_t)at, &mapping), 1);
	cr_assert_gt(mapping.end, (uintptr_t)at);
	return mapping;
}

Test(maps, find__pages_of_one_mapping__have_their_protection)
{
	char *at = map(5);
	struct maps maps;

	cr_assert_eq(mprotect(at + 2 * PAGE, PAGE, PROT_READ), 0);
	cr_assert_eq(munmap(at + 3 * PAGE, PAGE), 0);
	for (size_t way = 0; way < 2; way++) {
		cr_assert_eq(maps_begin(&maps, ways[way]), 0);
		struct mapping first = find(&maps, at);
		cr_assert_leq(first.start, (uintptr_t)at);
		cr_assert_eq(first.end, (uintptr_t)at + 2 * PAGE);
		cr_assert(first.writable && !first.shared);
		cr_assert_eq(first.inode, 0);
		cr_assert_eq(find(&maps, at + PAGE).end, first.end);
		struct mapping second = find(&maps, at + 2 * PAGE);
		cr_assert_eq(second.start, first.end);
		cr_assert_eq(second.end, first.end + PAGE);
		cr_assert(!second.writable);
		/* Of a hole: what lies behind it. */
		cr_assert_eq(find(&maps, at + 3 * PAGE).start, second.end + PAGE);
		maps_end(&maps);
	}
	munmap(at, 5 * PAGE);
}

Test(maps, find__file__has_its_number_and_offset)
{
	char long_name[240];
	struct stat st;
	struct maps maps;

	memset(long_name, 'n', sizeof(long_name));
	long_name[sizeof(long_name) - 1] = '\0';
	int fd = memfd_create(long_name, MFD_CLOEXEC);
	cr_assert_eq(ftruncate(fd, 8 * (off_t)PAGE), 0);
	cr_assert_eq(fstat(fd, &st), 0);
	char *at = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, (off_t)(3 * PAGE));
	cr_assert_neq(at, MAP_FAILED);
	for (size_t way = 0; way < 2; way++) {
		cr_assert_eq(maps_begin(&maps, ways[way]), 0);
		struct mapping mapping = find(&maps, at + PAGE);
		cr_assert_eq(mapping.start, (uintptr_t)at);
		cr_assert_eq(mapping.end, (uintptr_t)at + 4 * PAGE);
		cr_assert_eq(mapping.offset, 3 * PAGE);
		cr_assert_eq(mapping.inode, st.st_ino);
		cr_assert(mapping.shared && !mapping.writable);
		maps_end(&maps);
	}
	munmap(at, 4 * PAGE);
	close(fd);
}

Test(maps, find__nothing_behind__says_so)
{
	struct mapping mapping;
	struct maps maps;

	for (size_t way = 0; way < 2; way++) {
		cr_assert_eq(maps_begin(&maps, ways[way]), 0);
		cr_assert_eq(maps_find(&maps, UINTPTR_MAX, &mapping), 0);
		cr_assert_eq(maps_find(&maps, UINTPTR_MAX, &mapping), 0);
		maps_end(&maps);
	}
}

/* More text than the buffer holds, with a long name in every second line. */
Test(maps, find__many_mappings__both_ways_agree)
{
	char name[200];
	struct maps query, text;

	memset(name, 'm', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	int fd = memfd_create(name, MFD_CLOEXEC);
	cr_assert_eq(ftruncate(fd, (off_t)(MANY * PAGE)), 0);
	char *at = map(MANY);
	for (size_t i = 0; i < MANY; i += 2)
		cr_assert_neq(mmap(at + i * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd,
				      (off_t)(i * PAGE)),
			MAP_FAILED);
	cr_assert_eq(maps_begin(&query, 0), 0);
	cr_assert_eq(maps_begin(&text, MAPS_TEXT), 0);
	for (size_t i = 0; i < MANY; i++) {
		struct mapping a = find(&query, at + i * PAGE), b = find(&text, at + i * PAGE);
		cr_assert_eq(a.start, (uintptr_t)at + i * PAGE);
		cr_assert_eq(a.inode != 0, i % 2 == 0);
		cr_assert(a.start == b.start && a.inode == b.inode && a.offset == b.offset &&
			  a.major == b.major && a.minor == b.minor && a.shared == b.shared &&
			  a.readable == b.readable && a.writable == b.writable);
		/* The last page may have been joined with what lies behind it. */
		if (i + 1 < MANY)
			cr_assert(a.end == a.start + PAGE && b.end == a.end);
	}
	maps_end(&query);
	maps_end(&text);
	munmap(at, MANY * PAGE);
	close(fd);
}
