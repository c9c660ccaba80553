/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doorbell - see doorbell.h.
 */
#include "ipc/shm/doorbell.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

int
doorbell_new(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

void
doorbell_arm(_Atomic uint32_t *own_sleeping)
{
	/* Pairs with the load in doorbell_ring of the other side. */
	atomic_store_explicit(own_sleeping, 1, memory_order_seq_cst);
}

void
doorbell_disarm(_Atomic uint32_t *own_sleeping)
{
	/* Only spares the other side a system call: no order is needed. */
	atomic_store_explicit(own_sleeping, 0, memory_order_relaxed);
}

int
doorbell_signal(int fd)
{
	const uint64_t one = 1;
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN | POLLOUT};

	/*
	 * O_NONBLOCK belongs to the open file, which the other process shares and may clear. So a
	 * full counter is looked for first: the write would wait for its reader. That settles it
	 * for a worker and its own agent; doorbell_timer_signal settles it for all.
	 */
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0)
		return -errno;
	if ((flags & O_NONBLOCK) == 0)
		return -EPROTO;
	if (poll(&poll_fd, 1, 0) < 0 && errno != EINTR)
		return -errno;
	if ((poll_fd.revents & POLLOUT) == 0 && (poll_fd.revents & POLLIN) != 0)
		return 0;
	while (write(fd, &one, sizeof(one)) < 0) {
		if (errno == EAGAIN)
			return 0;
		if (errno != EINTR)
			return -errno;
	}
	return 0;
}

int
doorbell_ring(int fd, const _Atomic uint32_t *other_sleeping)
{
	/* Pairs with the store in doorbell_arm of the other side. */
	if (atomic_load_explicit(other_sleeping, memory_order_seq_cst) == 0)
		return 0;
	int rc = doorbell_signal(fd);
	return rc < 0 ? rc : 1;
}

int
doorbell_timer_new(void)
{
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

int
doorbell_timer_signal(int fd)
{
	/* Long past: it goes off at once, and stays readable until it is read. */
	static const struct itimerspec past = {.it_value.tv_nsec = 1};

	return timerfd_settime(fd, TFD_TIMER_ABSTIME, &past, NULL) < 0 ? -errno : 0;
}

int
doorbell_timer_ring(int fd, const _Atomic uint32_t *other_sleeping)
{
	/* Pairs with the store in doorbell_arm of the other side. */
	if (atomic_load_explicit(other_sleeping, memory_order_seq_cst) == 0)
		return 0;
	int rc = doorbell_timer_signal(fd);
	return rc < 0 ? rc : 1;
}

int
doorbell_drain(int fd)
{
	uint64_t count;
	struct iovec part = {.iov_base = &count, .iov_len = sizeof(count)};

	for (;;) {
		/* RWF_NOWAIT: the other process may have cleared O_NONBLOCK. */
		if (preadv2(fd, &part, 1, -1, RWF_NOWAIT) >= 0)
			return 1;
		if (errno == EAGAIN)
			return 0;
		if (errno == EOPNOTSUPP)
			break; /* a kernel before 5.8 */
		if (errno != EINTR)
			return -errno;
	}
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
	if (poll(&poll_fd, 1, 0) <= 0 || (poll_fd.revents & POLLIN) == 0)
		return 0;
	return read(fd, &count, sizeof(count)) >= 0 ? 1 : errno == EAGAIN ? 0 : -errno;
}
