/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of ipc/base/stranger_fd: which numbers are taken, what a thread with a table of its own
 * has, and that no copy of another descriptor is closed for it. Criterion gives each test a
 * process.
 */
#include "ipc/base/stranger_fd.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "transport/loop/crew.h"

#define PATIENCE_NS INT64_C(20000000000)

static int
open_null(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	return fd;
}

/* Containers may keep one of the system calls from us. */
static void
reserve(void)
{
	cr_assert_eq(stranger_reserve(), 0);
	int fd = open_null();
	if (fd < STRANGER_BELOW)
		cr_skip_test("a filter of system calls refuses pidfd_getfd");
	close(fd);
}

/* Not where a thread has the copy by which it fetches. */
static int
at_number(int fd, int number)
{
	cr_assert_eq(fcntl(fd, F_DUPFD_CLOEXEC, number), number);
	return number;
}

static void *
call(void *arg)
{
	void (*run)(void) = *(void (**)(void))arg;
	run();
	return NULL;
}

static void
on_thread(void (*run)(void))
{
	pthread_t thread;
	cr_assert_eq(pthread_create(&thread, NULL, call, &run), 0);
	cr_assert_eq(pthread_join(thread, NULL), 0);
}

static bool begins;

static void
begin(void)
{
	begins = stranger_bare_begin();
}

Test(bare, nothing_is_reserved__thread_shares_the_table)
{
	int fd = open_null();
	begins = true;
	on_thread(begin);
	cr_assert_not(begins);
	cr_assert_lt(fd, STRANGER_BELOW);
	close(fd);
}

Test(bare, reserve__leaves_no_low_number)
{
	reserve();
	for (int i = 0; i < 3; i++)
		cr_assert_geq(open_null(), STRANGER_BELOW);
}

/* ---- a thread ----------------------------------------------------------------------------- */

static int kept, other, fetched, missing;
static bool had_kept, has_other;
static struct stat seen;

static void
fetch(void)
{
	begins = stranger_bare_begin();
	had_kept = fcntl(kept, F_GETFD) >= 0;
	fetched = stranger_bare_fetch(kept);
	(void)fstat(kept, &seen);
	has_other = fcntl(other, F_GETFD) >= 0;
	missing = stranger_bare_fetch(other + 1000);
}

Test(bare, thread__has_what_it_fetches_at_the_same_number)
{
	struct stat want;
	FILE *file = tmpfile();
	reserve();
	other = at_number(open_null(), 150);
	kept = at_number(fileno(file), 200);
	cr_assert_eq(fstat(kept, &want), 0);
	on_thread(fetch);
	cr_assert(begins);
	cr_assert_not(had_kept);
	cr_assert_eq(fetched, 0);
	cr_assert(seen.st_dev == want.st_dev && seen.st_ino == want.st_ino);
	cr_assert_not(has_other);
	cr_assert_eq(missing, -EBADF);
	/* The process has all as before. */
	cr_assert(fcntl(kept, F_GETFD) >= 0 && fcntl(other, F_GETFD) >= 0);
}

/* ---- what is closed ----------------------------------------------------------------------- */

/*
 * A queue forgets who wants to be told when any thread of that process closes any copy of it: the
 * kernel asks it as it asks the file system that a file is of.
 */
static mqd_t
make_queue(void)
{
	char name[32];
	struct mq_attr form = {.mq_maxmsg = 1, .mq_msgsize = 1};
	snprintf(name, sizeof(name), "/th-bare-%d", (int)getpid());
	mqd_t queue = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &form);
	cr_assert_geq(queue, 0, "no message queue: %s", strerror(errno));
	cr_assert_eq(mq_unlink(name), 0);
	return queue;
}

static int
want_told(mqd_t queue)
{
	const struct sigevent nothing = {.sigev_notify = SIGEV_NONE};
	return mq_notify(queue, &nothing) == 0 ? 0 : errno;
}

static void
look(void *arg)
{
	bool *sees = arg;
	*sees = fcntl(kept, F_GETFD) >= 0 && fcntl(other, F_GETFD) < 0;
}

Test(bare, crew__closes_no_copy_of_what_it_was_not_given)
{
	bool sees = false;
	reserve();
	mqd_t queue = make_queue();
	other = at_number(queue, 150);
	kept = at_number(open_null(), 200);
	int *fds = malloc(sizeof(fds[0]));
	fds[0] = kept;
	cr_assert_eq(want_told(queue), 0);
	cr_assert_eq(crew_start(look, &sees, fds, 1), 0);
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
	cr_assert(sees);
	cr_assert_eq(want_told(queue), EBUSY, "a copy was closed");
	mq_close(queue);
}
