/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of guard (pages that can not be touched), crew (threads that may be left behind) and access
 * (memory behind a descriptor).
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "transport/loop/crew.h"
#include "transport/part/fd_memory.h"
#include "transport/part/sigbus.h"

#define PAGE 4096u
#define PATIENCE_NS INT64_C(30000000000)

/* Two pages of a file that has only the first. */
static uint8_t *
broken_map(int *ret_fd)
{
	int fd = memfd_create("guard", MFD_CLOEXEC);
	cr_assert(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0);
	uint8_t *map = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(map, MAP_FAILED);
	memset(map, 7, 2 * PAGE);
	cr_assert_eq(ftruncate(fd, PAGE), 0);
	*ret_fd = fd;
	return map;
}

Test(guard, missing_pages__are_a_result_again_and_again)
{
	int fd;
	uint8_t *map = broken_map(&fd);
	uint8_t *own = calloc(1, 2 * PAGE);
	struct digest digest;
	cr_assert_eq(sigbus_install(), 0);
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(sigbus_copy(own, map, PAGE), 0);
		cr_assert_eq(own[0], 7);
		cr_assert_eq(sigbus_copy(own, map, 2 * PAGE), TH_E_STALE_MEMORY);
		cr_assert_eq(sigbus_copy(map, own, 2 * PAGE), TH_E_STALE_MEMORY);
		digest_init(&digest);
		cr_assert_eq(sigbus_digest(&digest, map, 2 * PAGE), TH_E_STALE_MEMORY);
		digest_init(&digest);
		cr_assert_eq(sigbus_digest(&digest, map, PAGE), 0);
		cr_assert_eq(sigbus_nt_copy(own, map, PAGE), 0);
		cr_assert_eq(sigbus_nt_copy(own, map, 2 * PAGE), TH_E_STALE_MEMORY);
		cr_assert_eq(sigbus_nt_copy(map, own, 2 * PAGE), TH_E_STALE_MEMORY);
		digest_init(&digest);
		cr_assert_eq(sigbus_digest_copy(&digest, own, map, PAGE), 0);
		cr_assert_eq(sigbus_digest_copy(&digest, own, map, 2 * PAGE), TH_E_STALE_MEMORY);
	}
	free(own);
	munmap(map, 2 * PAGE);
	close(fd);
}

/* What is no worker's memory is our own error, and must not be hidden. */
Test(guard, touch_outside_of_it__ends_the_process)
{
	int fd, status = 0;
	uint8_t *map = broken_map(&fd);
	cr_assert_eq(sigbus_install(), 0);
	pid_t pid = fork();
	cr_assert(pid >= 0);
	if (pid == 0) {
		const struct rlimit no_core = {0};
		setrlimit(RLIMIT_CORE, &no_core);
		close(STDERR_FILENO); /* a sanitizer would report it */
		*(volatile uint8_t *)(map + PAGE) = 1;
		_exit(0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
	munmap(map, 2 * PAGE);
	close(fd);
}

/* ---- crew --------------------------------------------------------------------------------- */

struct look {
	int kept, other;
	bool on_thread, sees_kept, sees_other;
};

static void
look(void *arg)
{
	struct look *look = arg;
	look->on_thread = crew_on_thread();
	look->sees_kept = fcntl(look->kept, F_GETFD) >= 0;
	look->sees_other = fcntl(look->other, F_GETFD) >= 0;
}

static int *
list_of(int fd)
{
	int *fds = malloc(sizeof(fds[0]));
	fds[0] = fd;
	return fds;
}

Test(crew, thread__has_only_the_descriptors_it_was_given)
{
	int pipes[2];
	cr_assert_eq(pipe(pipes), 0);
	for (int i = 0; i < 2; i++) { /* lower and higher than what it keeps */
		struct look found = {.kept = pipes[i], .other = pipes[1 - i]};
		cr_assert_eq(crew_start(look, &found, list_of(found.kept), 1), 0);
		cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
		cr_assert(found.on_thread);
		cr_assert(found.sees_kept);
		cr_assert_not(found.sees_other);
	}
	cr_assert_not(crew_on_thread());
	cr_assert(fcntl(pipes[0], F_GETFD) >= 0 && fcntl(pipes[1], F_GETFD) >= 0);
	close(pipes[0]);
	close(pipes[1]);
}

static void
wait_for_end(void *arg)
{
	char byte;
	ssize_t got = read(*(int *)arg, &byte, 1);
	(void)got;
}

Test(crew, wait__ends_at_its_deadline_and_counts)
{
	int pipes[2];
	cr_assert_eq(pipe(pipes), 0);
	cr_assert_eq(crew_start(wait_for_end, &pipes[0], list_of(pipes[0]), 1), 0);
	cr_assert_eq(crew_count(), 1);
	cr_assert_not(crew_wait(th_now_ns() + 20000000));
	close(pipes[1]);
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
	cr_assert_eq(crew_count(), 0);
	close(pipes[0]);
}

/* ---- access ------------------------------------------------------------------------------- */

static int closed;

static void
count_close(int fd)
{
	closed++;
	close(fd);
}

Test(access, file__is_read_and_written_where_it_lies)
{
	int fd = memfd_create("access", MFD_CLOEXEC);
	uint8_t bytes[16] = {0};
	/* With its pages: of holes the agent makes none. */
	cr_assert(fd >= 0 && fallocate(fd, 0, 0, PAGE) == 0);
	struct fd_memory *access = fd_memory_new(fd, FD_MEMORY_FILE, count_close);
	cr_assert_eq(fd_memory_write(access, 100, "sixteen bytes ..", 16), 0);
	cr_assert_eq(fd_memory_read(access, 100, bytes, 16), 0);
	cr_assert_eq(memcmp(bytes, "sixteen bytes ..", 16), 0);
	/* Beyond its end: it neither reads short nor grows. */
	cr_assert_eq(fd_memory_read(access, PAGE - 8, bytes, 16), TH_E_STALE_MEMORY);
	cr_assert_eq(fd_memory_write(access, PAGE - 8, bytes, 16), TH_E_STALE_MEMORY);
	cr_assert_eq(lseek(fd, 0, SEEK_END), PAGE);
	/* Set by whoever shares the descriptor: the bytes would go to the end. */
	cr_assert_eq(fcntl(fd, F_SETFL, O_APPEND), 0);
	cr_assert_eq(fd_memory_write(access, 0, bytes, 16), TH_E_MEMORY_KIND);
	cr_assert_eq(lseek(fd, 0, SEEK_END), PAGE);
	closed = 0;
	struct fd_memory *again = fd_memory_retain(access);
	fd_memory_release(access);
	cr_assert_eq(closed, 0);
	fd_memory_release(again);
	cr_assert_eq(closed, 1);
}

Test(access, process_memory__is_read_and_written_at_addresses)
{
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	uint8_t *memory =
		mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t bytes[16];
	cr_assert(fd >= 0 && memory != MAP_FAILED);
	struct fd_memory *access = fd_memory_new(fd, FD_MEMORY_PROCESS, NULL);
	memory[PAGE - 1] = 9;
	cr_assert_eq(fd_memory_read(access, (uintptr_t)memory + PAGE - 8, bytes, 16), 0);
	cr_assert_eq(bytes[7], 9);
	bytes[0] = 5;
	cr_assert_eq(fd_memory_write(access, (uintptr_t)memory + PAGE, bytes, 16), 0);
	cr_assert_eq(memory[PAGE], 5);
	/* Half of it is gone: not half a result. */
	cr_assert_eq(munmap(memory + PAGE, PAGE), 0);
	cr_assert_eq(
		fd_memory_read(access, (uintptr_t)memory + PAGE - 8, bytes, 16), TH_E_STALE_MEMORY);
	cr_assert_eq(
		fd_memory_write(access, (uintptr_t)memory + PAGE, bytes, 16), TH_E_STALE_MEMORY);
	fd_memory_release(access);
	munmap(memory, PAGE);
	close(fd);
}

Test(access, memory_of_a_process_that_ended__is_stale)
{
	uint8_t *memory =
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int pipes[2];
	char path[64], byte = 0;
	cr_assert(memory != MAP_FAILED && pipe(pipes) == 0);
	pid_t pid = fork();
	cr_assert(pid >= 0);
	if (pid == 0) {
		close(pipes[1]);
		wait_for_end(&pipes[0]);
		_exit(0);
	}
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	cr_assert(fd >= 0);
	struct fd_memory *access = fd_memory_new(fd, FD_MEMORY_PROCESS, NULL);
	cr_assert_eq(fd_memory_read(access, (uintptr_t)memory, &byte, 1), 0);
	close(pipes[1]);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
	cr_assert_eq(fd_memory_read(access, (uintptr_t)memory, &byte, 1), TH_E_STALE_MEMORY);
	cr_assert_eq(fd_memory_write(access, (uintptr_t)memory, &byte, 1), TH_E_STALE_MEMORY);
	fd_memory_release(access);
	close(fd);
	close(pipes[0]);
	munmap(memory, PAGE);
}
