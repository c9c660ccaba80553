/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_memory_test - every kind of host memory: how a scripted agent is given it, and what is
 * said when it is no source or no destination any more.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "tests/unit/libthc/libthc_fixture.h"

#define PAGE ((size_t)sysconf(_SC_PAGESIZE))
#define BYTES (16 * PAGE)

static void
open_with(uint32_t flags)
{
	struct thc_open_opts opts = good_opts();

	opts.flags = flags;
	cr_assert_eq(thc_open(&opts, SOON, &shard), 0, "%s", thc_errmsg());
}

static void
setup(void)
{
	fake_agent_start(&agent);
	open_with(0);
}

static void
reopen_with(uint32_t flags)
{
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	open_with(flags);
}

TestSuite(libthc_memory, .init = setup, .fini = teardown_handle, .timeout = 30);

#define expect(call, wanted, word)                                                                 \
	do {                                                                                       \
		int got = (call);                                                                  \
		cr_assert_eq(got, (wanted), "%s: %d %s", #call, got, thc_errmsg());                \
		cr_assert_not_null(strstr(thc_errmsg(), (word)), "%s: %s", #call, thc_errmsg());   \
	} while (0)

static struct thc_tensor
tensor_at(const char *name, void *data, uint64_t bytes)
{
	struct thc_tensor tensor = {.name = name,
		.data = data,
		.bytes = bytes,
		.dtype = THC_U8,
		.device = THC_HOST,
		.ndim = 1,
		.local_shape = {bytes}};

	return tensor;
}

static int
register_one(void *data, uint64_t bytes)
{
	const struct thc_tensor tensor = tensor_at("weight", data, bytes);

	return thc_register(shard, &tensor, 1, sizeof(tensor), SOON);
}

static const char *
path(void)
{
	static char text[256];

	good(thc_memory_path(shard, "weight", text, sizeof(text)));
	return text;
}

#define path_is(text) cr_assert_eq(strncmp(path(), (text), strlen(text)), 0, "%s", path())

static char *
map(int fd, size_t offset, int protection)
{
	char *at = mmap(NULL, BYTES, protection, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED,
		fd, (off_t)offset);

	cr_assert_neq(at, MAP_FAILED);
	return at;
}

static int
new_file(unsigned memfd_flags)
{
	int fd = memfd_create("test", MFD_CLOEXEC | memfd_flags);

	cr_assert_eq(ftruncate(fd, (off_t)(2 * BYTES)), 0);
	return fd;
}

#define RW (PROT_READ | PROT_WRITE)

/* ---- private memory ------------------------------------------------------------------------ */

Test(libthc_memory, private__register__gives_the_whole_process_once)
{
	char read_back[16] = "", *at = malloc(100);

	strcpy(at, "a tensor's data");
	good(register_one(at, 100));
	cr_assert_eq(agent.memories, 1);
	cr_assert_eq(agent.memory.kind, FDMSG_PROCESS);
	cr_assert_eq(agent.memory.base, 0);
	cr_assert_eq(agent.memory.offset, 0);
	cr_assert_eq(agent.memory.bytes, INT64_MAX);
	cr_assert_eq(agent.first_place, (uintptr_t)at);
	cr_assert_eq(pread(agent.memory_fd, read_back, 16, (off_t)agent.first_place), 16);
	cr_assert_str_eq(read_back, at);
	cr_assert_eq(pwrite(agent.memory_fd, "b", 1, (off_t)agent.first_place), 1);
	cr_assert_str_eq(at, "b tensor's data");
	path_is("copy (private memory");
	good(thc_publish(shard, 1, SOON));
	good(thc_replicate(shard, "2", SOON, NULL));
	good(thc_unregister(shard, SOON));
	good(register_one(at + 16, 20));
	cr_assert_eq(agent.memories, 1, "it has it already");
	cr_assert_eq(agent.first_place, (uintptr_t)at + 16);
	cr_assert_eq(thc_free(at), THC_E_INVALID);
	free(at);
}

Test(libthc_memory, private__no_memory_fd__is_refused_and_says_what_to_do)
{
	char *at = malloc(100);
	int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	char *zero = map(fd, 0, RW);

	reopen_with(THC_NO_MEMORY_FD);
	expect(register_one(at, 100), THC_E_MEMORY_KIND, "'weight' is private memory");
	cr_assert_not_null(strstr(thc_errmsg(), "thc_alloc"));
	good(thc_import(zero, BYTES, fd, 0));
	expect(register_one(zero, 100), THC_E_MEMORY_KIND, "THC_NO_MEMORY_FD");
	cr_assert_eq(agent.memories, 0);
	good(thc_forget(zero));
	munmap(zero, BYTES);
	th_fd_close(&fd);
	free(at);
}

Test(libthc_memory, private__100000_tensors__one_descriptor)
{
	const size_t count = 100000, apart = 48;
	struct thc_tensor *tensors = calloc(count, sizeof(*tensors));
	char(*names)[12] = calloc(count, sizeof(*names)), *at = malloc(count * apart);

	for (size_t i = 0; i < count; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "t%zu", i);
		/* From the highest address down: the order of the caller does not matter. */
		tensors[i] = tensor_at(names[i], at + (count - 1 - i) * apart, 40);
	}
	good(thc_register(shard, tensors, count, sizeof(*tensors), SOON));
	cr_assert_eq(agent.memories, 1);
	cr_assert_eq(agent.rows, count);
	cr_assert_eq(agent.first_place, (uintptr_t)at + (count - 1) * apart);
	for (unsigned i = 0; i < 100; i++)
		good(thc_publish(shard, i, SOON));
	free(at);
	free(names);
	free(tensors);
}

Test(libthc_memory, private__agent_refuses_it__is_asked_again)
{
	char *at = malloc(100);

	script(agent.memory_code = THC_E_MEMORY_KIND);
	expect(register_one(at, 100), THC_E_MEMORY_KIND, "not taken here");
	script(agent.memory_code = 0);
	good(register_one(at, 100));
	cr_assert_eq(agent.memories, 1);
	good(thc_unregister(shard, SOON));
	free(at);
}

/* So many calls of this thread fail: with a descriptor, and without. */
static _Thread_local unsigned refused_fds, refused_plain;

ssize_t __real_sendmsg(int sock, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int sock, const struct msghdr *message, int flags);

ssize_t
__wrap_sendmsg(int sock, const struct msghdr *message, int flags)
{
	unsigned *refused = message->msg_controllen > 0 ? &refused_fds : &refused_plain;

	if (*refused == 0)
		return __real_sendmsg(sock, message, flags);
	(*refused)--;
	errno = refused == &refused_fds ? ETOOMANYREFS : ENOBUFS;
	return -1;
}

/* The kernel counts those of all processes of a user: it is nothing that the agent did. */
Test(libthc_memory, register__too_many_descriptors_on_their_way__waits_for_them)
{
	void *at = NULL;

	good(thc_alloc(PAGE, 0, &at));
	refused_fds = 3;
	good(register_one(at, 100));
	cr_assert_eq(refused_fds, 0);
	good(thc_unregister(shard, SOON));
	/* What is not said now is said before the next. */
	refused_plain = 1;
	good(thc_free(at));
	good(thc_alloc(PAGE, 0, &at));
	good(register_one(at, 100));
	fake_agent_await(&agent, &agent.forgets, 1);
	good(thc_unregister(shard, SOON));
	good(thc_free(at));
}

Test(libthc_memory, mixed__one_registration__each_by_its_way)
{
	void *allocated = NULL;
	char *private_memory = malloc(100), text[200];

	good(thc_alloc(PAGE, 0, &allocated));
	struct thc_tensor tensors[] = {tensor_at("private", private_memory, 100),
		tensor_at("tied", private_memory, 100), tensor_at("direct", allocated, 100),
		tensor_at("empty", NULL, 0)};
	good(thc_register(shard, tensors, 4, sizeof(tensors[0]), SOON));
	cr_assert_eq(agent.memories, 2);
	good(thc_memory_path(shard, "private", text, sizeof(text)));
	cr_assert_eq(strncmp(text, "copy (", 6), 0, "%s", text);
	good(thc_memory_path(shard, "direct", text, sizeof(text)));
	cr_assert_eq(strncmp(text, "direct (", 8), 0, "%s", text);
	good(thc_replicate(shard, "1", SOON, NULL));
	good(thc_unregister(shard, SOON));
	/* By address, so also between two ways. */
	tensors[1] = tensor_at("tied", private_memory + 1, 99);
	expect(thc_register(shard, tensors, 4, sizeof(tensors[0]), SOON), THC_E_INVALID,
		"'tied' overlaps 'private'");
	tensors[1] = tensor_at("across", (char *)allocated - 10, 20);
	expect(thc_register(shard, tensors, 4, sizeof(tensors[0]), SOON), THC_E_INVALID,
		"'direct' overlaps 'across'");
	good(thc_free(allocated));
	free(private_memory);
}

/* ---- pages are there before the agent ------------------------------------------------------ */

/* What this thread's calls that make pages answer: 0: what the kernel does. */
static _Thread_local int refuse_pages;

int __real_madvise(void *start, size_t bytes, int advice);
int __wrap_madvise(void *start, size_t bytes, int advice);

int
__wrap_madvise(void *start, size_t bytes, int advice)
{
	if (refuse_pages == 0 || (advice != MADV_POPULATE_READ && advice != MADV_POPULATE_WRITE))
		return __real_madvise(start, bytes, advice);
	errno = refuse_pages;
	return -1;
}

static uint64_t
bytes_there(int fd)
{
	struct stat st;

	cr_assert_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

Test(libthc_memory, pages__of_thc_alloc__are_there_and_zero)
{
	/* Of this kernel, and of one before 5.14. */
	const int refused[] = {0, EINVAL};

	for (size_t i = 0; i < TH_ARRAY_LEN(refused); i++) {
		void *at = NULL;
		refuse_pages = refused[i];
		good(thc_alloc(BYTES + 1, 0, &at));
		refuse_pages = 0;
		good(register_one(at, 100));
		cr_assert_eq(agent.memory.bytes, BYTES + PAGE);
		cr_assert_eq(bytes_there(agent.memory_fd), BYTES + PAGE);
		cr_assert_eq(((char *)at)[BYTES], 0);
		good(thc_unregister(shard, SOON));
		good(thc_free(at));
	}
}

Test(libthc_memory, pages__are_not_to_be_had__nothing_is_allocated)
{
	void *at = NULL;

	refuse_pages = ENOMEM;
	expect(thc_alloc(BYTES, 0, &at), -ENOMEM, "allocating");
	refuse_pages = EFAULT;
	expect(thc_alloc(BYTES, 0, &at), -ENOMEM, "allocating");
	refuse_pages = 0;
	cr_assert_null(at);
	good(thc_alloc(BYTES, 0, &at));
	good(thc_free(at));
}

/* A file of which this is a part may be large: its other pages are nobody's business. */
Test(libthc_memory, pages__of_an_import__are_made_below_the_tensors)
{
	const unsigned flags[] = {MFD_ALLOW_SEALING, 0};
	const int refused[] = {0, EINVAL};

	for (unsigned i = 0; i < 4; i++) {
		int fd = new_file(flags[i / 2]);
		char *at = map(fd, PAGE, RW);
		good(thc_import(at, BYTES, fd, PAGE));
		cr_assert_eq(bytes_there(fd), 0);
		struct thc_tensor tensors[] = {tensor_at("a", at + 2 * PAGE - 1, 2),
			tensor_at("b", at + 5 * PAGE, PAGE + 1), tensor_at("c", at, 0)};
		refuse_pages = refused[i % 2];
		good(thc_register(shard, tensors, 3, sizeof(tensors[0]), SOON));
		refuse_pages = 0;
		cr_assert_eq(bytes_there(fd), 4 * PAGE);
		cr_assert_eq(lseek(fd, 0, SEEK_DATA), i % 2 ? -1 : (off_t)(2 * PAGE));
		good(thc_unregister(shard, SOON));
		good(thc_forget(at));
		munmap(at, BYTES);
		th_fd_close(&fd);
	}
}

Test(libthc_memory, pages__of_an_import__are_not_to_be_had__names_the_tensor)
{
	int fd = new_file(MFD_ALLOW_SEALING);
	char *at = map(fd, 0, RW);

	good(thc_import(at, BYTES, fd, 0));
	refuse_pages = EFAULT;
	expect(register_one(at, 100), -ENOMEM, "the pages of 'weight' are not to be had");
	refuse_pages = 0;
	cr_assert_eq(agent.memories, 0);
	const struct thc_tensor tensor = tensor_at("weight", at, 100);
	expect(thc_register(shard, &tensor, 1, sizeof(tensor), 0), THC_E_TIMEOUT,
		"no time to make all pages of 'weight'");
	good(register_one(at, 100));
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&fd);
}

/* A source that only this descriptor cannot write. */
Test(libthc_memory, pages__of_a_read_only_import__are_there)
{
	int fd = new_file(0), reading = -1;
	char path_of[40];

	(void)snprintf(path_of, sizeof(path_of), "/proc/self/fd/%d", fd);
	reading = open(path_of, O_RDONLY | O_CLOEXEC);
	char *at = map(reading, 0, PROT_READ);
	good(thc_import(at, BYTES, reading, 0));
	/* An old kernel makes none by it: nothing is lost, for the agent only reads. */
	refuse_pages = EINVAL;
	good(register_one(at, BYTES));
	good(thc_unregister(shard, SOON));
	cr_assert_eq(bytes_there(fd), 0);
	refuse_pages = 0;
	good(register_one(at, BYTES));
	cr_assert_eq(bytes_there(fd), BYTES);
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&reading);
	th_fd_close(&fd);
}

/* ---- imported memory ----------------------------------------------------------------------- */

Test(libthc_memory, import__file_in_memory_that_may_shrink__is_given_as_a_file)
{
	int fd = new_file(0);
	char *at = map(fd, PAGE, RW);

	good(thc_import(at, BYTES, fd, PAGE));
	good(register_one(at + 10, 100));
	cr_assert_eq(agent.memories, 1);
	cr_assert_eq(agent.memory.kind, FDMSG_FILE);
	cr_assert_eq(agent.memory.base, (uintptr_t)at);
	cr_assert_eq(agent.memory.offset, PAGE);
	cr_assert_eq(agent.memory.bytes, BYTES);
	cr_assert_eq(agent.first_place, 10);
	cr_assert_eq(pwrite(agent.memory_fd, "x", 1, (off_t)(PAGE + 10)), 1);
	cr_assert_eq(at[10], 'x');
	path_is("copy (a file in memory that may shrink");
	good(thc_replicate(shard, "1", SOON, NULL));
	cr_assert_eq(thc_forget(at), THC_E_STATE);
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&fd);
}

/* No private memory is needed for it. */
Test(libthc_memory, import__file_in_a_tmpfs__is_given_as_a_file)
{
	char name[] = "/dev/shm/thc-test-XXXXXX";
	struct statfs fs;
	int fd = statfs("/dev/shm", &fs) == 0 && fs.f_type == TMPFS_MAGIC ? mkstemp(name) : -1;

	if (fd < 0)
		cr_skip_test("no tmpfs at /dev/shm");
	(void)unlink(name);
	cr_assert_eq(ftruncate(fd, (off_t)BYTES), 0);
	char *at = map(fd, 0, RW);
	reopen_with(THC_NO_MEMORY_FD);
	good(thc_import(at, BYTES, fd, 0));
	good(register_one(at, 100));
	cr_assert_eq(agent.memory.kind, FDMSG_FILE);
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&fd);
}

Test(libthc_memory, import__descriptor_that_appends__is_opened_anew)
{
	int fd = new_file(0);
	char *at = map(fd, 0, RW);

	cr_assert_eq(fcntl(fd, F_SETFL, O_APPEND), 0);
	good(thc_import(at, BYTES, fd, 0));
	/* Nor does it when the caller's does later. */
	good(register_one(at, 100));
	cr_assert_eq(agent.memory.kind, FDMSG_FILE);
	cr_assert_eq(fcntl(agent.memory_fd, F_GETFL) & O_APPEND, 0);
	cr_assert_eq(pwrite(agent.memory_fd, "x", 1, 7), 1);
	cr_assert_eq(at[7], 'x');
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&fd);
}

Test(libthc_memory, import__no_file_in_memory__is_reached_by_its_address)
{
	int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	char *at = map(fd, 0, RW);

	good(thc_import(at, BYTES, fd, 12345)); /* nothing asks the file */
	good(register_one(at + PAGE, 100));
	cr_assert_eq(agent.memories, 1);
	cr_assert_eq(agent.memory.kind, FDMSG_PROCESS);
	cr_assert_eq(agent.first_place, (uintptr_t)at + PAGE);
	path_is("copy (no file that lies in memory");
	cr_assert_eq(thc_forget(at), THC_E_STATE);
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&fd);
}

Test(libthc_memory, import__descriptor_for_reading__is_a_source_only)
{
	char name[40];
	int fd = new_file(MFD_ALLOW_SEALING);
	char *at = map(fd, 0, RW);

	(void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	int read_only = open(name, O_RDONLY | O_CLOEXEC);
	cr_assert_geq(read_only, 0);
	good(thc_import(at, BYTES, read_only, 0));
	good(register_one(at, 100));
	cr_assert_eq(agent.memory.kind, FDMSG_FILE);
	cr_assert_eq(fcntl(agent.memory_fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	path_is("copy (a file in memory that cannot be written");
	good(thc_publish(shard, 1, SOON));
	expect(thc_replicate(shard, "2", SOON, NULL), THC_E_MEMORY_KIND, "'weight' was imported");
	expect(thc_update(shard, "2", SOON, NULL), THC_E_MEMORY_KIND, "cannot be written");
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&read_only);
	th_fd_close(&fd);
}

Test(libthc_memory, import__sealed_against_writing__is_a_source_only)
{
	int fd = new_file(MFD_ALLOW_SEALING);

	cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK), 0);
	char *at = map(fd, 0, PROT_READ);
	good(thc_import(at, BYTES, fd, 0));
	good(register_one(at, 100));
	cr_assert_eq(agent.memory.kind, FDMSG_FILE);
	good(thc_publish(shard, 1, SOON));
	cr_assert_eq(thc_replicate(shard, "2", SOON, NULL), THC_E_MEMORY_KIND);
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&fd);
}

Test(libthc_memory, import__memfd_that_takes_the_seal__is_mapped)
{
	int fd = new_file(MFD_ALLOW_SEALING);
	char *at = map(fd, 0, RW);

	good(thc_import(at, BYTES, fd, 0));
	good(register_one(at, 100));
	cr_assert_eq(agent.memory.kind, FDMSG_MEMFD);
	cr_assert_neq(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK, 0);
	path_is("direct (");
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&fd);
}

/* ---- a second look ------------------------------------------------------------------------- */

/* Three tensors that are one range, of which the middle one is spoilt. */
static void
register_three(char *at)
{
	const struct thc_tensor tensors[] = {tensor_at("first", at, 4 * PAGE),
		tensor_at("middle", at + 4 * PAGE, 4 * PAGE),
		tensor_at("last", at + 8 * PAGE, 4 * PAGE)};

	good(thc_register(shard, tensors, 3, sizeof(tensors[0]), SOON));
}

#define expect_all(code, word)                                                                     \
	do {                                                                                       \
		struct thc_op *op = NULL;                                                          \
		expect(thc_publish(shard, 1, SOON), code, word);                                   \
		expect(thc_replicate(shard, "2", SOON, NULL), code, word);                         \
		expect(thc_update(shard, "latest", SOON, NULL), code, word);                       \
		expect(thc_publish_submit(shard, 1, SOON, &op), code, word);                       \
		expect(thc_replicate_submit(shard, "2", SOON, &op), code, word);                   \
		expect(thc_update_submit(shard, "2", SOON, &op), code, word);                      \
		cr_assert_eq(agent.submissions, 0);                                                \
	} while (0)

Test(libthc_memory, stale__unmapped__names_the_tensor)
{
	char *at = map(-1, 0, RW);

	register_three(at);
	cr_assert_eq(munmap(at + 5 * PAGE, PAGE), 0);
	expect_all(THC_E_STALE_MEMORY, "'middle' is not mapped any more");
	/* It is not forgiven by other memory, but by a new registration. */
	cr_assert_neq(mmap(at + 5 * PAGE, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
		MAP_FAILED);
	expect_all(THC_E_STALE_MEMORY, "'middle'");
	good(thc_unregister(shard, SOON));
	register_three(at);
	good(thc_publish(shard, 1, SOON));
	munmap(at, BYTES);
}

Test(libthc_memory, stale__mapped_anew__names_the_tensor)
{
	int fd = new_file(0), other = new_file(0);
	char *at = map(fd, 0, RW);

	good(thc_import(at, BYTES, fd, 0));
	register_three(at);
	good(thc_publish(shard, 1, SOON));
	script(agent.submissions = 0);
	/* The same file at another place of it, then another file. */
	cr_assert_neq(mmap(at + 4 * PAGE, PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0), MAP_FAILED);
	expect_all(THC_E_STALE_MEMORY, "'middle'");
	cr_assert_neq(
		mmap(at + 4 * PAGE, PAGE, RW, MAP_SHARED | MAP_FIXED, other, (off_t)(4 * PAGE)),
		MAP_FAILED);
	expect_all(THC_E_STALE_MEMORY, "'middle'");
	cr_assert_neq(mmap(at + 4 * PAGE, PAGE, RW, MAP_SHARED | MAP_FIXED, fd, (off_t)(4 * PAGE)),
		MAP_FAILED);
	good(thc_publish(shard, 2, SOON));
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&fd);
	th_fd_close(&other);
}

Test(libthc_memory, stale__allocated_and_unmapped__cannot_be_registered)
{
	void *allocated = NULL;

	good(thc_alloc(BYTES, 0, &allocated));
	register_three(allocated);
	munmap((char *)allocated + 4 * PAGE, PAGE);
	expect_all(THC_E_STALE_MEMORY, "'middle'");
	good(thc_unregister(shard, SOON));
	expect(register_one(allocated, 6 * PAGE), THC_E_STALE_MEMORY, "thc_alloc");
	good(register_one(allocated, 4 * PAGE));
	good(thc_unregister(shard, SOON));
	good(thc_free(allocated));
}

Test(libthc_memory, read_only__private__is_a_source_only)
{
	char *at = map(-1, 0, PROT_READ);

	register_three(at);
	good(thc_publish(shard, 1, SOON));
	expect(thc_replicate(shard, "2", SOON, NULL), THC_E_MEMORY_KIND,
		"'first' is mapped read-only");
	cr_assert_eq(mprotect(at, 6 * PAGE, RW), 0);
	expect(thc_update(shard, "2", SOON, NULL), THC_E_MEMORY_KIND,
		"'middle' is mapped read-only");
	cr_assert_eq(mprotect(at, BYTES, RW), 0);
	good(thc_update(shard, "2", SOON, NULL));
	cr_assert_eq(mprotect(at + 8 * PAGE, PAGE, PROT_READ), 0);
	expect(thc_replicate(shard, "3", SOON, NULL), THC_E_MEMORY_KIND, "'last'");
	good(thc_publish(shard, 3, SOON));
	munmap(at, BYTES);
}

/* GPU memory that is said to be the host's: its address is reserved, and nothing can be read. */
Test(libthc_memory, private__of_no_access__is_refused_and_says_what_it_may_be)
{
	char *at = map(-1, 0, PROT_NONE);
	struct thc_tensor tensor = {.name = "weight",
		.data = at,
		.bytes = PAGE,
		.dtype = THC_U8,
		.device = THC_HOST,
		.ndim = 1,
		.local_shape = {PAGE}};

	expect(thc_register(shard, &tensor, 1, sizeof(tensor), SOON), THC_E_INVALID,
		"CUDA ordinal");
	cr_assert_eq(mprotect(at, BYTES, PROT_READ), 0);
	good(thc_register(shard, &tensor, 1, sizeof(tensor), SOON));
	munmap(at, BYTES);
}

Test(libthc_memory, read_only__mapping_of_a_memfd__is_a_source_only)
{
	int fd = new_file(MFD_ALLOW_SEALING);
	char *at = map(fd, 0, PROT_READ);

	good(thc_import(at, BYTES, fd, 0));
	register_three(at);
	cr_assert_eq(agent.memory.kind, FDMSG_MEMFD);
	good(thc_publish(shard, 1, SOON));
	expect(thc_update(shard, "2", SOON, NULL), THC_E_MEMORY_KIND,
		"'first' is mapped read-only");
	good(thc_unregister(shard, SOON));
	good(thc_forget(at));
	munmap(at, BYTES);
	th_fd_close(&fd);
}

/* What lies between two tensors is none of our business. */
Test(libthc_memory, gap__between_tensors__may_go)
{
	char *at = map(-1, 0, RW);
	const struct thc_tensor tensors[] = {tensor_at("a", at, PAGE),
		tensor_at("b", at + 2 * PAGE, PAGE), tensor_at("c", at + 3 * PAGE + 100, 50)};

	good(thc_register(shard, tensors, 3, sizeof(tensors[0]), SOON));
	cr_assert_eq(munmap(at + PAGE, PAGE), 0);
	good(thc_replicate(shard, "1", SOON, NULL));
	cr_assert_eq(munmap(at + 3 * PAGE, PAGE), 0);
	expect(thc_replicate(shard, "2", SOON, NULL), THC_E_STALE_MEMORY, "'c'");
	munmap(at, BYTES);
}

/* ---- huge pages ---------------------------------------------------------------------------- */

Test(libthc_memory, alloc__huge_pages__are_there_or_it_says_so)
{
	void *pages = NULL;
	/* More than any machine has set aside. */
	int rc = thc_alloc(UINT64_C(1) << 46, THC_ALLOC_HUGE, &pages);

	cr_assert_lt(rc, 0);
	cr_assert_not_null(strstr(thc_errmsg(), "vm.nr_hugepages"), "%s", thc_errmsg());
	cr_assert_null(pages);
	/* A small one depends on the machine. */
	rc = thc_alloc(5000, THC_ALLOC_HUGE, &pages);
	if (rc < 0) {
		cr_assert_not_null(strstr(thc_errmsg(), "THC_ALLOC_HUGE"), "%s", thc_errmsg());
		return;
	}
	cr_assert_eq((uintptr_t)pages % (2u << 20), 0);
	good(register_one(pages, 5000));
	path_is("direct (");
	good(thc_unregister(shard, SOON));
	good(thc_free(pages));
}

/* ---- fork ---------------------------------------------------------------------------------- */

/* Descriptors of a process's memory that are open here. */
static unsigned
count_process_memories(void)
{
	unsigned count = 0;
	char link[64], target[64];
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		(void)snprintf(link, sizeof(link), "/proc/self/fd/%.20s", entry->d_name);
		ssize_t bytes = readlink(link, target, sizeof(target) - 1);
		if (bytes < 4)
			continue;
		target[bytes] = '\0';
		count += strncmp(target, "/proc/", 6) == 0 &&
			 strcmp(target + bytes - 4, "/mem") == 0;
	}
	if (dir != NULL)
		(void)closedir(dir);
	return count;
}

static void *
register_main(void *at)
{
	static int rc;

	rc = register_one(at, 100);
	return &rc;
}

Test(libthc_memory, fork__while_it_is_given_away__leaves_the_child_without)
{
	char *at = malloc(100);
	pthread_t thread;
	int status = 1;
	void *rc;

	fake_agent_freeze(&agent, true);
	cr_assert_eq(pthread_create(&thread, NULL, register_main, at), 0);
	while (count_process_memories() == 0)
		(void)sched_yield();
	pid_t child = fork();
	if (child == 0)
		_exit(count_process_memories() == 0 && thc_publish(shard, 1, 0) == THC_E_FORKED &&
					register_one(at, 100) == THC_E_FORKED
				? 0
				: 1);
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
	fake_agent_freeze(&agent, false);
	cr_assert_eq(pthread_join(thread, &rc), 0);
	cr_assert_eq(*(int *)rc, 0);
	cr_assert_eq(count_process_memories(), 1, "the agent's");
	good(thc_publish(shard, 1, SOON));
	free(at);
}
