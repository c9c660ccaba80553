/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_test - ownership of descriptors.
 */
#include "ipc/base/fd.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

Test(fd, close__open_descriptor__is_closed_and_forgotten)
{
	int fds[2];

	cr_assert_eq(pipe(fds), 0);
	int number = fds[0];
	th_fd_close(&fds[0]);
	cr_assert_eq(fds[0], -1);
	cr_assert_eq(fcntl(number, F_GETFD), -1);
	cr_assert_eq(errno, EBADF);
	th_fd_close(&fds[1]);
}

Test(fd, close__nothing_or_failure_before__keeps_errno)
{
	int fds[2], none = -1;

	cr_assert_eq(pipe(fds), 0);
	errno = EXDEV;
	th_fd_close(&fds[0]);
	th_fd_close(&fds[1]);
	th_fd_close(&none);
	cr_assert_eq(errno, EXDEV);
}

Test(fd, close__closed_by_a_stranger__is_forgotten)
{
	int fds[2];

	cr_assert_eq(pipe(fds), 0);
	cr_assert_eq(close(fds[0]), 0);
	th_fd_close(&fds[0]);
	cr_assert_eq(fds[0], -1);
	th_fd_close(&fds[1]);
}

Test(fd, move__owner__has_nothing_left)
{
	int fd = 5;

	cr_assert_eq(th_fd_move(&fd), 5);
	cr_assert_eq(fd, -1);
}

Test(fd, nonblock__set__of_this_one)
{
	int fds[2];

	cr_assert_eq(pipe(fds), 0);
	cr_assert_eq(th_fd_nonblock(fds[0]), 0);
	cr_assert(fcntl(fds[0], F_GETFL) & O_NONBLOCK);
	cr_assert_not(fcntl(fds[1], F_GETFL) & O_NONBLOCK);
	th_fd_close(&fds[0]);
	th_fd_close(&fds[1]);
	cr_assert_eq(th_fd_nonblock(-1), -EBADF);
}
